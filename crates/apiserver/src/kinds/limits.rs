//! Admission by LimitRanges: defaults and bounds of new pods and claims (AS-057).

use serde_json::Value;

use super::check::quantity;
use super::value::{at, entries, has, list, list_mut, set_at, text};
use crate::error::ApiError;
use crate::strategy::WriteContext;

const ANNOTATION: &str = "kubernetes.io/limit-ranger";

/// Sets defaults of the namespace's LimitRanges on containers, then checks their bounds.
pub(super) fn pod(cx: &WriteContext<'_>, obj: &mut Value) -> Result<(), ApiError> {
    let ranges = cx.lookup.list("", "limitranges", Some(cx.namespace));
    if ranges.is_empty() {
        return Ok(());
    }
    let mut set = Vec::new();
    for limit in of_type(&ranges, "Container") {
        for (key, what) in [("spec.initContainers", "init container"), ("spec.containers", "container")] {
            for container in list_mut(obj, key) {
                fill(container, limit, what, &mut set);
            }
        }
    }
    if !set.is_empty() {
        let note = format!("LimitRanger plugin set: {}", set.join("; "));
        set_at(obj, "metadata.annotations", ANNOTATION, note);
    }
    let mut faults = Vec::new();
    for limit in of_type(&ranges, "Container") {
        for container in list(obj, "spec.containers").iter().chain(list(obj, "spec.initContainers")) {
            check(at(container, "resources"), limit, "Container", &mut faults);
        }
    }
    refuse("pods", obj, &faults)
}

/// Checks the requests of a claim.
pub(super) fn claim(cx: &WriteContext<'_>, obj: &mut Value) -> Result<(), ApiError> {
    let ranges = cx.lookup.list("", "limitranges", Some(cx.namespace));
    let mut faults = Vec::new();
    for limit in of_type(&ranges, "PersistentVolumeClaim") {
        for (key, word) in [("min", "minimum"), ("max", "maximum")] {
            for (resource, bound) in entries(limit, key) {
                let asked = at(obj, "spec.resources.requests").get(resource).unwrap_or(&Value::Null);
                let broken = match key {
                    "min" => less(asked, bound),
                    _ => less(bound, asked),
                };
                if broken {
                    faults.push(format!(
                        "{word} {resource} usage per PersistentVolumeClaim is {}, but request is {}",
                        shown(bound),
                        shown(asked)
                    ));
                }
            }
        }
    }
    refuse("persistentvolumeclaims", obj, &faults)
}

fn of_type<'a>(ranges: &'a [Value], kind: &'static str) -> impl Iterator<Item = &'a Value> + use<'a> {
    ranges
        .iter()
        .flat_map(|range| list(range, "spec.limits"))
        .filter(move |limit| text(limit, "type") == kind)
}

/// Sets the defaults of one limit on one container. Adds the names of the fields to `set`.
fn fill(container: &mut Value, limit: &Value, what: &str, set: &mut Vec<String>) {
    let name = text(container, "name").to_owned();
    for (defaults, place, word) in
        [("defaultRequest", "resources.requests", "request"), ("default", "resources.limits", "limit")]
    {
        let missing: Vec<(String, Value)> = entries(limit, defaults)
            .filter(|(resource, _)| !has(at(container, place), resource))
            .map(|(resource, amount)| (resource.clone(), amount.clone()))
            .collect();
        if missing.is_empty() {
            continue;
        }
        let names: Vec<&str> = missing.iter().map(|(resource, _)| resource.as_str()).collect();
        set.push(format!("{} {word} for {what} {name}", names.join(", ")));
        for (resource, amount) in missing {
            set_at(container, place, &resource, amount);
        }
    }
}

fn check(resources: &Value, limit: &Value, kind: &str, faults: &mut Vec<String>) {
    let read = |place: &str, resource: &str| at(resources, place).get(resource).cloned().unwrap_or_default();
    for (resource, bound) in entries(limit, "min") {
        let (request, max) = (read("requests", resource), read("limits", resource));
        let is = format!("minimum {resource} usage per {kind} is {}", shown(bound));
        if request.is_null() {
            faults.push(format!("{is}.  No request is specified"));
        } else if less(&request, bound) {
            faults.push(format!("{is}, but request is {}", shown(&request)));
        } else if less(&max, bound) {
            faults.push(format!("{is}, but limit is {}", shown(&max)));
        }
    }
    for (resource, bound) in entries(limit, "max") {
        let (request, max) = (read("requests", resource), read("limits", resource));
        let is = format!("maximum {resource} usage per {kind} is {}", shown(bound));
        if max.is_null() {
            faults.push(format!("{is}.  No limit is specified"));
        } else if less(bound, &max) {
            faults.push(format!("{is}, but limit is {}", shown(&max)));
        } else if less(bound, &request) {
            faults.push(format!("{is}, but request is {}", shown(&request)));
        }
    }
}

/// Whether both are amounts and `a` is smaller.
fn less(a: &Value, b: &Value) -> bool {
    matches!((quantity(a), quantity(b)), (Some(a), Some(b)) if a < b)
}

fn shown(amount: &Value) -> String {
    amount.as_str().map_or_else(|| amount.to_string(), str::to_owned)
}

fn refuse(resource: &str, obj: &Value, faults: &[String]) -> Result<(), ApiError> {
    let why = match faults {
        [] => return Ok(()),
        [one] => one.clone(),
        many => format!("[{}]", many.join(", ")),
    };
    Err(ApiError::forbidden("", resource, text(obj, "metadata.name"), &why))
}
