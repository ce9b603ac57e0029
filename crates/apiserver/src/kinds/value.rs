//! Access to JSON by dotted path.

use machinery::field::Path;
use serde_json::{Map, Value};

static NULL: Value = Value::Null;

/// The value at a dotted path; `Null` if absent.
pub(crate) fn at<'a>(value: &'a Value, path: &str) -> &'a Value {
    path.split('.').try_fold(value, |v, key| v.get(key)).unwrap_or(&NULL)
}

/// The string at a path; empty if absent, like Go's zero value.
pub(crate) fn text<'a>(value: &'a Value, path: &str) -> &'a str {
    at(value, path).as_str().unwrap_or_default()
}

pub(crate) fn int(value: &Value, path: &str) -> Option<i64> {
    at(value, path).as_i64()
}

pub(crate) fn flag(value: &Value, path: &str) -> bool {
    at(value, path).as_bool().unwrap_or_default()
}

/// The list at a path; empty if absent.
pub(crate) fn list<'a>(value: &'a Value, path: &str) -> &'a [Value] {
    at(value, path).as_array().map(Vec::as_slice).unwrap_or_default()
}

/// The entries of the object at a path, in key order.
pub(crate) fn entries<'a>(
    value: &'a Value,
    path: &str,
) -> impl Iterator<Item = (&'a String, &'a Value)> + use<'a> {
    at(value, path).as_object().into_iter().flatten()
}

pub(crate) fn has(value: &Value, path: &str) -> bool {
    !at(value, path).is_null()
}

/// The mutable value at a path, if it exists.
pub(crate) fn at_mut<'a>(value: &'a mut Value, path: &str) -> Option<&'a mut Value> {
    path.split('.').try_fold(value, |v, key| v.get_mut(key))
}

pub(crate) fn list_mut<'a>(
    value: &'a mut Value,
    path: &str,
) -> impl Iterator<Item = &'a mut Value> + use<'a> {
    at_mut(value, path).and_then(Value::as_array_mut).into_iter().flatten()
}

/// The object at a path, created if absent or null; `None` if the path leads through another type.
pub(crate) fn object_mut<'a>(value: &'a mut Value, path: &str) -> Option<&'a mut Map<String, Value>> {
    let mut here = value;
    for key in path.split('.') {
        let map = here.as_object_mut()?;
        let next = map.entry(key).or_insert(Value::Null);
        if next.is_null() {
            *next = Value::Object(Map::new());
        }
        here = next;
    }
    here.as_object_mut()
}

/// Creates the object at a path if it is absent.
pub(crate) fn ensure(value: &mut Value, path: &str) {
    let _ = object_mut(value, path);
}

/// Sets a field unless it has a value. An empty string counts as no value, as in Go.
pub(crate) fn fill(map: &mut Map<String, Value>, key: &str, default: impl Into<Value>) {
    match map.get(key) {
        None | Some(Value::Null) => {}
        Some(Value::String(s)) if s.is_empty() => {}
        Some(_) => return,
    }
    map.insert(key.to_owned(), default.into());
}

/// [`fill`] in the object at `path`, which is created if absent.
pub(crate) fn fill_at(value: &mut Value, path: &str, key: &str, default: impl Into<Value>) {
    if let Some(map) = object_mut(value, path) {
        fill(map, key, default);
    }
}

/// Sets a field of the object at a path, which is created if absent.
pub(crate) fn set_at(value: &mut Value, path: &str, key: &str, new: impl Into<Value>) {
    if let Some(map) = object_mut(value, path) {
        map.insert(key.to_owned(), new.into());
    }
}

/// Makes all fields equal to those of `from`, except the fields of `keep`, of which nulls are removed. Equal fields
/// are not copied; in a large object most are equal.
pub(crate) fn restore(value: &mut Value, from: &Value, keep: &[&str]) {
    let (Some(map), Some(wanted)) = (value.as_object_mut(), from.as_object()) else { return };
    map.retain(
        |key, value| if keep.contains(&key.as_str()) { !value.is_null() } else { wanted.contains_key(key) },
    );
    for (key, field) in wanted {
        if !keep.contains(&key.as_str()) && map.get(key) != Some(field) {
            map.insert(key.clone(), field.clone());
        }
    }
}

/// Sets a top-level field; null removes it.
pub(crate) fn put(value: &mut Value, key: &str, new: &Value) {
    if let Some(map) = value.as_object_mut() {
        if new.is_null() {
            map.remove(key);
        } else {
            map.insert(key.to_owned(), new.clone());
        }
    }
}

pub(crate) fn remove(value: &mut Value, key: &str) -> Option<Value> {
    value.as_object_mut().and_then(|m| m.remove(key))
}

/// Removes a field of the object at a path.
pub(crate) fn remove_at(value: &mut Value, path: &str, key: &str) -> Option<Value> {
    at_mut(value, path).and_then(|v| remove(v, key))
}

/// The field path of a dotted text.
pub(crate) fn path(dotted: &str) -> Path {
    dotted.split('.').fold(Path::root(), |path, key| path.child(key))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// AS-043: a write to a part of an object restores the rest.
    #[test]
    fn as_043_the_rest_is_as_it_was() {
        let old =
            json!({"kind": "Boat", "spec": {"sails": 2}, "status": {"wet": true}, "metadata": {"name": "a"}});
        let sent =
            json!({"kind": "Boat", "spec": {"sails": 3}, "status": {"wet": false}, "more": 1, "gone": null});
        let mut new = sent.clone();
        restore(&mut new, &old, &["status", "gone"]);
        assert_eq!(
            new,
            json!({"kind": "Boat", "spec": {"sails": 2}, "status": {"wet": false}, "metadata": {"name": "a"}})
        );
        let mut new = json!({"status": null});
        restore(&mut new, &json!({"status": 1}), &["status"]);
        assert_eq!(new, json!({}));
    }
}
