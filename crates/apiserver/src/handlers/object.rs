//! Small accessors for objects as JSON values.

use serde_json::{Map, Value};

/// A string of `metadata`, or `""`.
pub(crate) fn meta_str<'a>(object: &'a Value, key: &str) -> &'a str {
    object.get("metadata").and_then(|m| m.get(key)).and_then(Value::as_str).unwrap_or_default()
}

pub(crate) fn meta<'a>(object: &'a Value, key: &str) -> Option<&'a Value> {
    object.get("metadata")?.get(key)
}

/// Sets a member of `metadata`. Creates `metadata` if the object has none.
pub(crate) fn set_meta(object: &mut Value, key: &str, value: Value) {
    let Some(map) = object.as_object_mut() else {
        return;
    };
    let metadata = map.entry("metadata").or_insert(Value::Null);
    match metadata {
        Value::Object(metadata) => {
            metadata.insert(key.to_owned(), value);
        }
        other => *other = Value::Object(Map::from_iter([(key.to_owned(), value)])),
    }
}

pub(crate) fn remove_meta(object: &mut Value, key: &str) {
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.remove(key);
    }
}

/// Copies `metadata.{key}` of `from`; removes it if `from` has none.
pub(crate) fn copy_meta(object: &mut Value, from: &Value, key: &str) {
    match meta(from, key) {
        Some(value) => set_meta(object, key, value.clone()),
        None => remove_meta(object, key),
    }
}

pub(crate) fn finalizers(object: &Value) -> Vec<&str> {
    meta(object, "finalizers")
        .and_then(Value::as_array)
        .map(|list| list.iter().filter_map(Value::as_str).collect())
        .unwrap_or_default()
}

pub(crate) fn is_terminating(object: &Value) -> bool {
    meta(object, "deletionTimestamp").is_some_and(|v| !v.is_null())
}
