//! Validation of what decides the node of a pod: affinity, spreading, tolerations (spec 2.5).

use machinery::field::Path;
use machinery::names;
use serde_json::Value;

use super::check::Errs;
use super::value::{at, has, int, list, text};

const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";
const EFFECTS: &[&str] = &["NoSchedule", "PreferNoSchedule", "NoExecute"];
const BAD_OPERATOR: &str = "not a valid selector operator";

/// Validates `affinity` of a pod.
pub(super) fn affinity(affinity: &Value, place: &Path, errs: &mut Errs) {
    let nodes = at(affinity, "nodeAffinity");
    let here = place.child("nodeAffinity");
    if has(nodes, REQUIRED) {
        node_selector(at(nodes, REQUIRED), &here.child(REQUIRED), errs);
    }
    for (i, term) in list(nodes, PREFERRED).iter().enumerate() {
        let here = here.child(PREFERRED).index(i);
        weight(term, &here, errs);
        node_term(at(term, "preference"), false, &here.child("preference"), errs);
    }
    for key in ["podAffinity", "podAntiAffinity"] {
        let pods = at(affinity, key);
        let here = place.child(key);
        for (i, term) in list(pods, REQUIRED).iter().enumerate() {
            pod_term(term, &here.child(REQUIRED).index(i), errs);
        }
        for (i, term) in list(pods, PREFERRED).iter().enumerate() {
            let here = here.child(PREFERRED).index(i);
            weight(term, &here, errs);
            pod_term(at(term, "podAffinityTerm"), &here.child("podAffinityTerm"), errs);
        }
    }
}

fn weight(term: &Value, place: &Path, errs: &mut Errs) {
    let weight = int(term, "weight").unwrap_or_default();
    if !(1..=100).contains(&weight) {
        errs.invalid(&place.child("weight"), &Value::from(weight), "must be in the range 1-100");
    }
}

/// Validates a node selector: of a pod's affinity, or of a volume.
pub(super) fn node_selector(selector: &Value, place: &Path, errs: &mut Errs) {
    let here = place.child("nodeSelectorTerms");
    let terms = list(selector, "nodeSelectorTerms");
    if terms.is_empty() {
        errs.required(&here, "must have at least one node selector term");
    }
    for (i, term) in terms.iter().enumerate() {
        node_term(term, true, &here.index(i), errs);
    }
}

/// `values`: whether the values must be label values.
fn node_term(term: &Value, values: bool, place: &Path, errs: &mut Errs) {
    for (i, requirement) in list(term, "matchExpressions").iter().enumerate() {
        label_requirement(requirement, values, &place.child("matchExpressions").index(i), errs);
    }
    for (i, requirement) in list(term, "matchFields").iter().enumerate() {
        field_requirement(requirement, &place.child("matchFields").index(i), errs);
    }
}

fn label_requirement(requirement: &Value, check_values: bool, place: &Path, errs: &mut Errs) {
    let here = place.child("values");
    let values = list(requirement, "values");
    match text(requirement, "operator") {
        "In" | "NotIn" => {
            if values.is_empty() {
                errs.required(&here, "must be specified when `operator` is 'In' or 'NotIn'");
            }
        }
        "Exists" | "DoesNotExist" => {
            if !values.is_empty() {
                errs.forbidden(&here, "may not be specified when `operator` is 'Exists' or 'DoesNotExist'");
            }
        }
        "Gt" | "Lt" => {
            if values.len() != 1 {
                errs.required(&here, "must be specified single value when `operator` is 'Lt' or 'Gt'");
            }
        }
        other => errs.invalid_str(&place.child("operator"), other, BAD_OPERATOR),
    }
    let key = text(requirement, "key");
    errs.names(&place.child("key"), key, names::qualified_name(key));
    if check_values {
        for (i, value) in values.iter().filter_map(Value::as_str).enumerate() {
            errs.names(&here.index(i), value, names::label_value(value));
        }
    }
}

fn field_requirement(requirement: &Value, place: &Path, errs: &mut Errs) {
    let here = place.child("values");
    let values = list(requirement, "values");
    match text(requirement, "operator") {
        "In" | "NotIn" => {
            if values.len() != 1 {
                errs.required(
                    &here,
                    "must be only one value when `operator` is 'In' or 'NotIn' for node field selector",
                );
            }
        }
        other => errs.invalid_str(&place.child("operator"), other, BAD_OPERATOR),
    }
    let key = text(requirement, "key");
    if key == "metadata.name" {
        for (i, value) in values.iter().filter_map(Value::as_str).enumerate() {
            errs.names(&here.index(i), value, names::dns1123_subdomain(value));
        }
    } else {
        errs.invalid_str(&place.child("key"), key, "not a valid field selector key");
    }
}

fn pod_term(term: &Value, place: &Path, errs: &mut Errs) {
    for key in ["labelSelector", "namespaceSelector"] {
        errs.selector(&place.child(key), at(term, key));
    }
    for name in list(term, "namespaces").iter().filter_map(Value::as_str) {
        errs.names(&place.child("namespace"), name, names::dns1123_label(name));
    }
    label_keys(term, &["matchLabelKeys", "mismatchLabelKeys"], place, errs);
    let key = text(term, "topologyKey");
    if key.is_empty() {
        errs.required(&place.child("topologyKey"), "can not be empty");
    }
    errs.names(&place.child("topologyKey"), key, names::qualified_name(key));
}

/// Validates lists of label keys that complete `labelSelector`.
fn label_keys(term: &Value, lists: &[&str], place: &Path, errs: &mut Errs) {
    let selector = at(term, "labelSelector");
    for name in lists {
        let here = place.child(name);
        let keys = list(term, name);
        if keys.is_empty() {
            continue;
        }
        if selector.is_null() {
            errs.forbidden(&here, "must not be specified when labelSelector is not set");
            continue;
        }
        for (i, key) in keys.iter().filter_map(Value::as_str).enumerate() {
            errs.names(&here.index(i), key, names::qualified_name(key));
        }
    }
    let both = "exists in both matchLabelKeys and mismatchLabelKeys";
    for (i, key) in list(term, "matchLabelKeys").iter().enumerate() {
        if list(term, "mismatchLabelKeys").contains(key) {
            errs.invalid(&place.child("matchLabelKeys").index(i), key, both);
        }
    }
}

/// Validates `topologySpreadConstraints` of a pod.
pub(super) fn spreading(constraints: &[Value], place: &Path, errs: &mut Errs) {
    for (i, constraint) in constraints.iter().enumerate() {
        let here = place.index(i);
        let (key, action) = (text(constraint, "topologyKey"), text(constraint, "whenUnsatisfiable"));
        positive(constraint, "maxSkew", &here, errs);
        if key.is_empty() {
            errs.required(&here.child("topologyKey"), "can not be empty");
        }
        errs.one_of(&here.child("whenUnsatisfiable"), action, &["DoNotSchedule", "ScheduleAnyway"]);
        let same =
            |other: &Value| text(other, "topologyKey") == key && text(other, "whenUnsatisfiable") == action;
        if constraints.iter().skip(i + 1).any(same) {
            let shown = format!("{{{key}, {action}}}");
            errs.duplicate(&here.child("{topologyKey, whenUnsatisfiable}"), &shown.into());
        }
        if has(constraint, "minDomains") {
            positive(constraint, "minDomains", &here, errs);
            if action != "DoNotSchedule" {
                let detail =
                    format!("can only use minDomains if whenUnsatisfiable=DoNotSchedule, not {action}");
                errs.invalid(&here.child("minDomains"), at(constraint, "minDomains"), &detail);
            }
        }
        for key in ["nodeAffinityPolicy", "nodeTaintsPolicy"] {
            if has(constraint, key) {
                errs.one_of(&here.child(key), text(constraint, key), &["Honor", "Ignore"]);
            }
        }
        label_keys(constraint, &["matchLabelKeys"], &here, errs);
        errs.selector(&here.child("labelSelector"), at(constraint, "labelSelector"));
    }
}

fn positive(object: &Value, key: &str, place: &Path, errs: &mut Errs) {
    let number = int(object, key).unwrap_or_default();
    if number <= 0 {
        errs.invalid(&place.child(key), &Value::from(number), "must be greater than zero");
    }
}

/// Validates `tolerations` of a pod or a runtime class.
pub(super) fn tolerations(tolerations: &[Value], place: &Path, errs: &mut Errs) {
    for (i, toleration) in tolerations.iter().enumerate() {
        let here = place.index(i);
        let (key, operator, effect) =
            (text(toleration, "key"), text(toleration, "operator"), text(toleration, "effect"));
        let at_operator = here.child("operator");
        if !key.is_empty() {
            errs.names(&here.child("key"), key, names::qualified_name(key));
        } else if operator != "Exists" {
            errs.invalid_str(
                &at_operator,
                operator,
                "operator must be Exists when `key` is empty, which means \"match all values and all keys\"",
            );
        }
        if has(toleration, "tolerationSeconds") && effect != "NoExecute" {
            errs.invalid_str(
                &here.child("effect"),
                effect,
                "effect must be 'NoExecute' when `tolerationSeconds` is set",
            );
        }
        let value = text(toleration, "value");
        match operator {
            "" | "Equal" => {
                let faults = names::label_value(value);
                if !faults.is_empty() {
                    errs.invalid_str(&at_operator, value, &faults.join(";"));
                }
            }
            "Exists" if !value.is_empty() => {
                errs.invalid_str(&at_operator, value, "value must be empty when `operator` is 'Exists'");
            }
            "Exists" => {}
            "Lt" | "Gt" => {
                errs.unsupported(&at_operator, operator, &["Equal", "Exists", "Lt", "Gt"]);
            }
            other => errs.unsupported(&at_operator, other, &["Equal", "Exists"]),
        }
        if !effect.is_empty() {
            errs.one_of(&here.child("effect"), effect, EFFECTS);
        }
    }
}
