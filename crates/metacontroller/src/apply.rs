//! Computes the new state of an observed object from the desired state: the three-way merge of
//! Metacontroller's dynamic apply (MC-125 to MC-130). Pure.

use std::collections::BTreeSet;

use apis::metacontroller::LAST_APPLIED_ANNOTATION;
use serde_json::{Map, Value};

use crate::object;

/// Metadata fields that the server sets; values from a hook are ignored (MC-126, MC-129a).
const SYSTEM: [&str; 9] = [
    "selfLink",
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "managedFields",
    "ownerReferences",
];

/// Keys by which lists are merged, in order of precedence (MC-128).
const LIST_KEYS: [&str; 7] = ["containerPort", "port", "mountPath", "name", "uid", "ip", "path"];

/// Removes from a desired object what a hook must not set: system fields, status, our own annotation (MC-044,
/// MC-129a). Owner references stay: they are used when the object is created.
pub fn sanitized(mut desired: Value) -> Value {
    if let Some(map) = desired.as_object_mut() {
        map.remove("status");
    }
    if let Some(meta) = object::metadata_mut(&mut desired) {
        for field in SYSTEM.iter().filter(|field| **field != "ownerReferences") {
            meta.remove(*field);
        }
        for field in ["annotations", "labels", "ownerReferences"] {
            if meta.get(field).is_some_and(Value::is_null) {
                meta.remove(field);
            }
        }
        if let Some(Value::Object(annotations)) = meta.get_mut("annotations") {
            annotations.remove(LAST_APPLIED_ANNOTATION);
        }
    }
    desired
}

/// Returns the body of a creation: `desired` with the last-applied annotation (MC-125), controlled by
/// `parent` (MC-054).
pub fn create(desired: &Value, parent: &Value) -> Value {
    let mut body = desired.clone();
    remember(&mut body, desired);
    object::set_controller(&mut body, parent);
    body
}

/// Returns the body of an update; `None` if nothing differs (MC-126, MC-130). `desired` must be
/// [`sanitized`].
pub fn update(observed: &Value, desired: &Value) -> Option<Value> {
    // Owners are set at creation. An update does not change them, so owners that a hook echoes are ignored.
    let (last, desired) = (without_owners(last_applied(observed)), without_owners(desired.clone()));
    let mut merged = merge(observed, &last, &desired);
    restore(&mut merged, observed);
    if loosely_equal(&without_memory(&merged), &without_memory(observed)) && loosely_equal(&last, &desired) {
        return None;
    }
    remember(&mut merged, &desired);
    Some(merged)
}

/// Returns whether applying `desired` would leave the object unchanged. With server-side apply there is no
/// last-applied state.
pub fn is_settled(observed: &Value, desired: &Value, server_side: bool) -> bool {
    if !server_side {
        return update(observed, desired).is_none();
    }
    let mut merged = merge(observed, &Value::Null, desired);
    restore(&mut merged, observed);
    loosely_equal(&without_memory(&merged), &without_memory(observed))
}

/// Returns the last-applied state; null if it is not known.
pub fn last_applied(observed: &Value) -> Value {
    let text = object::annotation(observed, LAST_APPLIED_ANNOTATION).unwrap_or_default();
    serde_json::from_str(text).map(sanitized).unwrap_or(Value::Null)
}

fn remember(body: &mut Value, desired: &Value) {
    let text = desired.to_string();
    if let Some(annotations) = object::metadata_map(body, "annotations") {
        annotations.insert(LAST_APPLIED_ANNOTATION.into(), text.into());
    }
}

fn without_owners(mut object: Value) -> Value {
    if let Some(meta) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        meta.remove("ownerReferences");
    }
    object
}

fn without_memory(object: &Value) -> Value {
    let mut object = object.clone();
    if let Some(meta) = object::metadata_mut(&mut object) {
        if let Some(Value::Object(annotations)) = meta.get_mut("annotations") {
            annotations.remove(LAST_APPLIED_ANNOTATION);
        }
        for field in ["annotations", "labels"] {
            if meta
                .get(field)
                .is_some_and(|value| value.as_object().is_some_and(Map::is_empty) || value.is_null())
            {
                meta.remove(field);
            }
        }
    }
    object
}

/// Restores the system fields and the status of `observed` (MC-126).
fn restore(merged: &mut Value, observed: &Value) {
    let put = |map: &mut Map<String, Value>, field: &str, value: Option<&Value>| match value {
        Some(value) => drop(map.insert(field.into(), value.clone())),
        None => drop(map.remove(field)),
    };
    if let Some(map) = merged.as_object_mut() {
        put(map, "status", observed.get("status"));
    }
    let Some(meta) = object::metadata_mut(merged) else { return };
    for field in SYSTEM {
        put(meta, field, observed.pointer("/metadata").and_then(|meta| meta.get(field)));
    }
}

/// Merges by the type of the observed value (MC-127).
pub fn merge(observed: &Value, last: &Value, desired: &Value) -> Value {
    match (observed, desired) {
        (Value::Object(have), Value::Object(want)) => Value::Object(merge_maps(have, last, want)),
        (Value::Array(have), Value::Array(want)) => merge_lists(have, last, want),
        _ => desired.clone(),
    }
}

fn merge_maps(have: &Map<String, Value>, last: &Value, want: &Map<String, Value>) -> Map<String, Value> {
    let mut merged = have.clone();
    for key in last.as_object().into_iter().flatten().map(|(key, _)| key) {
        if !want.contains_key(key) {
            merged.remove(key);
        }
    }
    for (key, value) in want {
        match have.get(key) {
            // A null for an absent field has no effect (MC-129b).
            None if value.is_null() => {}
            None => drop(merged.insert(key.clone(), value.clone())),
            Some(old) => {
                drop(merged.insert(key.clone(), merge(old, last.get(key).unwrap_or(&Value::Null), value)));
            }
        }
    }
    merged
}

fn merge_lists(have: &[Value], last: &Value, want: &[Value]) -> Value {
    let before = last.as_array().map_or(&[][..], Vec::as_slice);
    let Some(key) = list_key(&[have, before, want]) else { return Value::Array(want.to_vec()) };
    let by = |list: &'_ [Value], id: &str| {
        list.iter().find(|item| item_id(item, key).as_deref() == Some(id)).cloned()
    };
    let mut merged = Vec::new();
    for item in have {
        let id = item_id(item, key).unwrap_or_default();
        match (by(before, &id), by(want, &id)) {
            (last, Some(wanted)) => merged.push(merge(item, &last.unwrap_or(Value::Null), &wanted)),
            (Some(_), None) => {}
            (None, None) => merged.push(item.clone()),
        }
    }
    let new = want.iter().filter(|item| by(have, &item_id(item, key).unwrap_or_default()).is_none());
    merged.extend(new.cloned());
    Value::Array(merged)
}

/// Returns the key that all items of all three lists have, with distinct values within each list (MC-128,
/// MC-129d).
fn list_key(lists: &[&[Value]; 3]) -> Option<&'static str> {
    if lists.iter().all(|list| list.is_empty()) {
        return None;
    }
    let usable = |key: &str| {
        lists.iter().all(|list| {
            let mut seen = BTreeSet::new();
            list.iter().all(|item| item_id(item, key).is_some_and(|id| seen.insert(id)))
        })
    };
    LIST_KEYS.into_iter().find(|key| usable(key))
}

fn item_id(item: &Value, key: &str) -> Option<String> {
    match item.as_object()?.get(key)? {
        Value::String(text) => Some(text.clone()),
        Value::Null => None,
        other => Some(other.to_string()),
    }
}

/// Compares values; 1 and 1.0 are equal (MC-129c).
pub fn loosely_equal(left: &Value, right: &Value) -> bool {
    match (left, right) {
        (Value::Number(a), Value::Number(b)) => a == b || a.as_f64() == b.as_f64(),
        (Value::Array(a), Value::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| loosely_equal(a, b))
        }
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len() && a.iter().all(|(key, a)| b.get(key).is_some_and(|b| loosely_equal(a, b)))
        }
        _ => left == right,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    /// MC-A-82 with MC-127, MC-128, MC-129: vectors.
    #[test]
    fn mc_a_82_apply_vectors() {
        let cases = [
            (
                "a list keyed by name keeps a foreign sidecar",
                json!({"c": [{"name": "a", "image": "1"}, {"name": "side"}]}),
                json!({"c": [{"name": "a", "image": "1"}]}),
                json!({"c": [{"name": "a", "image": "2"}]}),
                json!({"c": [{"name": "a", "image": "2"}, {"name": "side"}]}),
            ),
            (
                "an item applied before and wanted no more goes",
                json!({"c": [{"name": "a"}, {"name": "b"}]}),
                json!({"c": [{"name": "a"}, {"name": "b"}]}),
                json!({"c": [{"name": "b"}]}),
                json!({"c": [{"name": "b"}]}),
            ),
            (
                "a list of scalars is replaced",
                json!({"a": ["x", "y"]}),
                Value::Null,
                json!({"a": ["z"]}),
                json!({"a": ["z"]}),
            ),
            (
                "TCP and UDP on one port both stay (MC-129d)",
                json!({"p": [{"port": 53, "protocol": "TCP"}, {"port": 53, "protocol": "UDP"}]}),
                Value::Null,
                json!({"p": [{"port": 53, "protocol": "TCP"}, {"port": 53, "protocol": "UDP"}]}),
                json!({"p": [{"port": 53, "protocol": "TCP"}, {"port": 53, "protocol": "UDP"}]}),
            ),
            (
                "null for what is absent asks for nothing",
                json!({"a": 1}),
                Value::Null,
                json!({"b": null}),
                json!({"a": 1}),
            ),
            ("another type replaces", json!({"a": {"b": 1}}), Value::Null, json!({"a": 5}), json!({"a": 5})),
            (
                "a field applied before goes",
                json!({"a": 1, "b": 2}),
                json!({"a": 1}),
                json!({}),
                json!({"b": 2}),
            ),
            ("three empty lists", json!({"a": []}), json!({"a": []}), json!({"a": []}), json!({"a": []})),
            (
                "new items come last, in their order",
                json!({"c": [{"name": "z"}]}),
                Value::Null,
                json!({"c": [{"name": "b"}, {"name": "a"}, {"name": "z"}]}),
                json!({"c": [{"name": "z"}, {"name": "b"}, {"name": "a"}]}),
            ),
        ];
        for (why, observed, last, desired, expected) in cases {
            assert_eq!(merge(&observed, &last, &desired), expected, "{why}");
        }
    }

    fn stored(desired: &Value) -> Value {
        let parent = json!({"apiVersion": "v1", "kind": "P", "metadata": {"name": "p", "uid": "u"}});
        let mut object = create(desired, &parent);
        object["metadata"]["uid"] = json!("1");
        object["metadata"]["resourceVersion"] = json!("7");
        object["metadata"]["creationTimestamp"] = json!("2026-01-01T00:00:00Z");
        object["status"] = json!({"ready": true});
        object
    }

    /// MC-054, MC-126, MC-129a: an object that the hook echoes as observed is no change.
    #[test]
    fn mc_a_54_an_echo_is_no_change() {
        let desired = json!({"apiVersion": "v1", "kind": "C", "metadata": {"name": "a", "annotations": {"t": "1"}}, "data": {"a": "1"}});
        let observed = stored(&desired);
        assert_eq!(update(&observed, &desired), None);
        let echoed = sanitized(observed.clone());
        let first = update(&observed, &echoed);
        let settled = first.unwrap_or(observed);
        assert_eq!(update(&settled, &sanitized(settled.clone())), None, "at most one write follows an echo");
    }

    /// MC-125: the last-applied annotation has the desired object without its owner, as compact JSON; the
    /// owner is added afterwards.
    #[test]
    fn mc_125_what_is_remembered() {
        let parent = json!({"apiVersion": "v1", "kind": "P", "metadata": {"name": "p", "uid": "u"}});
        let desired = json!({"apiVersion": "v1", "kind": "C", "metadata": {"name": "a", "annotations": {"t": "1"}}, "data": {"a": "1"}});
        let made = create(&desired, &parent);
        let text = made["metadata"]["annotations"][LAST_APPLIED_ANNOTATION].as_str().unwrap();
        assert_eq!(text, desired.to_string());
        assert!(!text.contains(": ") && !text.contains('\n'), "{text}");
        assert_eq!(object::controller_uid(&made), "u");
        assert_eq!(last_applied(&made), desired);
    }

    /// MC-130: the same annotation content in another notation is no change.
    #[test]
    fn mc_130_another_text_of_the_annotation_is_no_change() {
        let desired = json!({"apiVersion": "v1", "kind": "C", "metadata": {"name": "a"}, "n": 1});
        let mut observed = stored(&desired);
        observed["metadata"]["annotations"][LAST_APPLIED_ANNOTATION] = json!(
            "{ \"kind\":\"C\",\"n\":1.0,\"metadata\":{\"name\":\"a\",\"creationTimestamp\":null},\"apiVersion\":\"v1\" }"
        );
        assert_eq!(update(&observed, &desired), None);
    }

    /// MC-050: fields of other writers stay, and our own fields are restored.
    #[test]
    fn mc_a_50_drift_is_reverted_and_foreign_fields_stay() {
        let desired = json!({"apiVersion": "v1", "kind": "C", "metadata": {"name": "a"}, "data": {"a": "1"}});
        let mut observed = stored(&desired);
        observed["data"] = json!({"a": "drift", "theirs": "x"});
        let body = update(&observed, &desired).unwrap();
        assert_eq!(body["data"], json!({"a": "1", "theirs": "x"}));
        assert_eq!(body["metadata"]["resourceVersion"], json!("7"));
        assert_eq!(body["status"], json!({"ready": true}));
    }

    fn value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            any::<bool>().prop_map(Value::from),
            (0..4_i64).prop_map(Value::from),
            "[ab]{0,2}".prop_map(Value::from),
        ];
        leaf.prop_recursive(3, 16, 3, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
                prop::collection::btree_map("name|port|[ab]", inner, 0..3)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    fn spec() -> impl Strategy<Value = Value> {
        value().prop_map(
            |spec| json!({"apiVersion": "v1", "kind": "C", "metadata": {"name": "a"}, "spec": spec}),
        )
    }

    proptest! {
        /// MC-059: after an update there is nothing left to write, whatever the object was before.
        #[test]
        fn mc_059_updates_settle(observed in spec(), desired in spec()) {
            let observed = stored(&observed);
            let after = update(&observed, &desired).unwrap_or(observed);
            prop_assert_eq!(update(&after, &desired), None);
        }

        /// MC-127: the result is the desired state, if no list of another writer and no null is involved.
        #[test]
        fn mc_127_a_merge_with_itself_changes_nothing(desired in value()) {
            prop_assert_eq!(merge(&desired, &Value::Null, &desired), desired);
        }
    }
}
