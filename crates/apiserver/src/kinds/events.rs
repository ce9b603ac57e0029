//! Events. Two groups serve them from one collection.

use machinery::names;
use serde_json::{Map, Value};

use super::check::Errs;
use super::spec::{BASE, Facts, FieldLabel, Spec};
use super::value::{at, object_mut, path, text};
use crate::strategy::{NameRule, WriteContext};

const CORE_FIELDS: &[FieldLabel] = &[
    ("involvedObject.kind", "involvedObject.kind", ""),
    ("involvedObject.namespace", "involvedObject.namespace", ""),
    ("involvedObject.name", "involvedObject.name", ""),
    ("involvedObject.uid", "involvedObject.uid", ""),
    ("involvedObject.apiVersion", "involvedObject.apiVersion", ""),
    ("involvedObject.resourceVersion", "involvedObject.resourceVersion", ""),
    ("involvedObject.fieldPath", "involvedObject.fieldPath", ""),
    ("reason", "reason", ""),
    ("reportingComponent", "reportingComponent", ""),
    ("source", "source.component", ""),
    ("type", "type", ""),
];

const NAMED_FIELDS: &[FieldLabel] = &[
    ("regarding.kind", "regarding.kind", ""),
    ("regarding.namespace", "regarding.namespace", ""),
    ("regarding.name", "regarding.name", ""),
    ("regarding.uid", "regarding.uid", ""),
    ("regarding.apiVersion", "regarding.apiVersion", ""),
    ("regarding.resourceVersion", "regarding.resourceVersion", ""),
    ("regarding.fieldPath", "regarding.fieldPath", ""),
    ("reason", "reason", ""),
    ("reportingController", "reportingController", ""),
    ("type", "type", ""),
];

const EVENT: Spec = Spec {
    facts: Facts { create_on_update: true, name: NameRule::PathSegment, own_labels: true, ..BASE.facts },
    convert,
    ..BASE
};

pub(super) const CORE_EVENT: Spec =
    Spec { fields: CORE_FIELDS, default: default_core, validate: validate_core, ..EVENT };

pub(super) const NAMED_EVENT: Spec = Spec {
    fields: NAMED_FIELDS,
    default: default_named,
    validate_create: |_, obj, errs| {
        same_namespace(obj, "regarding", "involvedObject", errs);
        recorded(obj, "reportingController", errs);
        unset(obj, errs);
    },
    validate_update: |_, obj, old, errs| {
        same_namespace(obj, "regarding", "involvedObject", errs);
        for key in ["regarding", "reason", "eventTime", "reportingController", "reportingInstance", "action"]
        {
            if at(obj, key) != at(old, key) && !at(old, "eventTime").is_null() {
                errs.immutable(key, obj, old);
            }
        }
    },
    ..EVENT
};

/// Fields with different names in the core form and in the `events.k8s.io` form.
const RENAMED: &[(&str, &str)] = &[
    ("involvedObject", "regarding"),
    ("message", "note"),
    ("reportingComponent", "reportingController"),
    ("source", "deprecatedSource"),
    ("firstTimestamp", "deprecatedFirstTimestamp"),
    ("lastTimestamp", "deprecatedLastTimestamp"),
    ("count", "deprecatedCount"),
];

fn convert(event: &mut Value, to: &str) {
    if to == "v1" { to_core(event) } else { to_named(event) }
}

/// Converts a core event into the form of `events.k8s.io/v1`.
fn to_named(event: &mut Value) {
    rename(event, RENAMED.iter().copied());
    super::value::put(event, "apiVersion", &"events.k8s.io/v1".into());
    // The core form prints these even if they are empty.
    for key in ["reportingController", "reportingInstance"] {
        if text(event, key).is_empty() {
            drop(super::value::remove(event, key));
        }
    }
    default_named(event);
}

/// Converts an event of `events.k8s.io/v1` into the core form.
fn to_core(event: &mut Value) {
    rename(event, RENAMED.iter().map(|(core, named)| (*named, *core)));
    super::value::put(event, "apiVersion", &"v1".into());
    default_core(event);
}

fn rename<'a>(event: &mut Value, names: impl Iterator<Item = (&'a str, &'a str)>) {
    let Some(map) = event.as_object_mut() else { return };
    for (from, to) in names {
        if let Some(value) = map.remove(from) {
            map.insert(to.to_owned(), value);
        }
    }
}

/// Sets the fields that Kubernetes always prints.
fn default_core(obj: &mut Value) {
    for place in ["involvedObject", "source"] {
        object_mut(obj, place);
    }
    let Some(map) = obj.as_object_mut() else { return };
    always_null(map, &["eventTime", "firstTimestamp", "lastTimestamp"]);
    for key in ["reportingComponent", "reportingInstance"] {
        map.entry(key).or_insert_with(|| Value::from(""));
    }
}

fn default_named(obj: &mut Value) {
    for place in ["regarding", "deprecatedSource"] {
        object_mut(obj, place);
    }
    if let Some(map) = obj.as_object_mut() {
        always_null(map, &["eventTime", "deprecatedFirstTimestamp", "deprecatedLastTimestamp"]);
    }
}

fn always_null(map: &mut Map<String, Value>, keys: &[&str]) {
    for key in keys {
        map.entry(*key).or_insert(Value::Null);
    }
}

fn validate_core(_: &WriteContext<'_>, obj: &Value, errs: &mut Errs) {
    same_namespace(obj, "involvedObject", "involvedObject", errs);
    if !at(obj, "eventTime").is_null() {
        recorded(obj, "reportingComponent", errs);
    }
}

/// Checks that an event is in the namespace of its subject, or in `default` for a subject without namespace.
fn same_namespace(obj: &Value, subject: &str, shown: &str, errs: &mut Errs) {
    let about = text(at(obj, subject), "namespace");
    let own = text(obj, "metadata.namespace");
    if about != own && !(about.is_empty() && own == "default") {
        errs.invalid_str(&path(shown).child("namespace"), about, "does not match event.namespace");
    }
}

/// Checks the fields that the newer form requires.
fn recorded(obj: &Value, controller: &str, errs: &mut Errs) {
    if at(obj, "eventTime").is_null() {
        errs.required(&path("eventTime"), "");
    }
    let name = text(obj, controller);
    if name.is_empty() {
        errs.required(&path(controller), "");
    } else {
        errs.names(&path(controller), name, names::qualified_name(name));
    }
    for (key, max) in [("reportingInstance", 128), ("action", 128), ("reason", 128)] {
        let value = text(obj, key);
        if value.is_empty() {
            errs.required(&path(key), "");
        } else if value.len() > max {
            errs.invalid_str(&path(key), "", &format!("can have at most {max} characters"));
        }
    }
    let note = if text(obj, "note").is_empty() { text(obj, "message") } else { text(obj, "note") };
    if note.len() > 1024 {
        errs.invalid_str(&path("message"), "", "can have at most 1024 characters");
    }
}

/// Checks that a new event does not set deprecated fields.
fn unset(obj: &Value, errs: &mut Errs) {
    let kind = text(obj, "type");
    if !matches!(kind, "Normal" | "Warning") {
        errs.invalid_str(&path("type"), "", &format!("has invalid value: {kind}"));
    }
    for (key, shown) in [
        ("deprecatedFirstTimestamp", "firstTimestamp"),
        ("deprecatedLastTimestamp", "lastTimestamp"),
        ("deprecatedCount", "count"),
    ] {
        if !at(obj, key).is_null() {
            errs.invalid_str(&path(shown), "", "needs to be unset");
        }
    }
    if at(obj, "deprecatedSource").as_object().is_some_and(|source| !source.is_empty()) {
        errs.invalid_str(&path("source"), "", "needs to be unset");
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn as_010_events_have_two_forms() {
        let core = json!({"apiVersion": "v1", "kind": "Event", "metadata": {"name": "e", "namespace": "a"},
            "involvedObject": {"kind": "Pod", "name": "p", "namespace": "a"}, "message": "m", "reason": "r",
            "count": 2, "type": "Normal", "source": {"component": "c"}, "eventTime": null,
            "firstTimestamp": "2026-01-01T00:00:00Z", "lastTimestamp": null,
            "reportingComponent": "", "reportingInstance": ""});
        let mut event = core.clone();
        to_named(&mut event);
        assert_eq!(
            event,
            json!({"apiVersion": "events.k8s.io/v1", "kind": "Event", "metadata": {"name": "e", "namespace": "a"},
                "regarding": {"kind": "Pod", "name": "p", "namespace": "a"}, "note": "m", "reason": "r",
                "deprecatedCount": 2, "type": "Normal", "deprecatedSource": {"component": "c"}, "eventTime": null,
                "deprecatedFirstTimestamp": "2026-01-01T00:00:00Z", "deprecatedLastTimestamp": null})
        );
        to_core(&mut event);
        assert_eq!(event, core);
    }
}
