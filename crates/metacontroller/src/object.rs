//! Kubernetes objects as JSON, and access to the metadata that decisions need.

use std::sync::Arc;

use kube::api::ApiResource;
use machinery::names;
use runtime::{ObjectKey, Watched};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};

/// An object as an API server returned it. Its key and version are read once.
#[derive(Clone, Debug, PartialEq)]
pub struct Object {
    key: ObjectKey,
    version: Box<str>,
    /// The whole object.
    pub value: Value,
}

impl Object {
    /// Reads the key and version of `value`.
    pub fn new(value: Value) -> Self {
        let key = ObjectKey::new(namespace(&value), name(&value));
        let version = meta(&value, "resourceVersion").into();
        Self { key, version, value }
    }

    /// Namespace and name.
    pub fn key(&self) -> &ObjectKey {
        &self.key
    }

    /// `metadata.resourceVersion`.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// `metadata.uid`.
    pub fn uid(&self) -> &str {
        uid(&self.value)
    }
}

impl<'de> Deserialize<'de> for Object {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Value::deserialize(deserializer).map(Self::new)
    }
}

impl Watched for Object {
    fn key(&self) -> ObjectKey {
        self.key.clone()
    }

    fn version(&self) -> &str {
        &self.version
    }

    fn received(&mut self, resource: &ApiResource) {
        if let Value::Object(map) = &mut self.value {
            map.entry("apiVersion").or_insert_with(|| resource.api_version.clone().into());
            map.entry("kind").or_insert_with(|| resource.kind.clone().into());
        }
    }
}

fn meta<'a>(object: &'a Value, field: &str) -> &'a str {
    object.get("metadata").and_then(|meta| meta.get(field)).and_then(Value::as_str).unwrap_or_default()
}

/// `metadata.name`, or an empty text.
pub fn name(object: &Value) -> &str {
    meta(object, "name")
}

/// `metadata.namespace`, or an empty text.
pub fn namespace(object: &Value) -> &str {
    meta(object, "namespace")
}

/// `metadata.uid`, or an empty text.
pub fn uid(object: &Value) -> &str {
    meta(object, "uid")
}

/// `metadata.resourceVersion`, or an empty text.
pub fn resource_version(object: &Value) -> &str {
    meta(object, "resourceVersion")
}

/// `apiVersion`, or an empty text.
pub fn api_version(object: &Value) -> &str {
    object.get("apiVersion").and_then(Value::as_str).unwrap_or_default()
}

/// `kind`, or an empty text.
pub fn kind(object: &Value) -> &str {
    object.get("kind").and_then(Value::as_str).unwrap_or_default()
}

/// `metadata.generation`, 0 for none.
pub fn generation(object: &Value) -> i64 {
    object.pointer("/metadata/generation").and_then(Value::as_i64).unwrap_or_default()
}

/// Returns whether the object is being deleted.
pub fn is_terminating(object: &Value) -> bool {
    object.pointer("/metadata/deletionTimestamp").is_some_and(|at| !at.is_null())
}

/// `metadata.labels`, null for none.
pub fn labels(object: &Value) -> &Value {
    object.pointer("/metadata/labels").unwrap_or(&Value::Null)
}

/// One label.
pub fn label<'a>(object: &'a Value, key: &str) -> Option<&'a str> {
    labels(object).get(key).and_then(Value::as_str)
}

/// One annotation.
pub fn annotation<'a>(object: &'a Value, key: &str) -> Option<&'a str> {
    object.pointer("/metadata/annotations").and_then(|all| all.get(key)).and_then(Value::as_str)
}

/// Returns the owner reference of the controller.
pub fn controller(object: &Value) -> Option<&Value> {
    owners(object).find(|owner| owner.get("controller") == Some(&Value::Bool(true)))
}

/// Returns the UID of the controlling owner, or an empty text.
pub fn controller_uid(object: &Value) -> &str {
    controller(object).and_then(|owner| owner.get("uid")).and_then(Value::as_str).unwrap_or_default()
}

fn owners(object: &Value) -> impl Iterator<Item = &Value> {
    object.pointer("/metadata/ownerReferences").and_then(Value::as_array).into_iter().flatten()
}

/// Returns whether the object has this finalizer.
pub fn has_finalizer(object: &Value, finalizer: &str) -> bool {
    let all = object.pointer("/metadata/finalizers").and_then(Value::as_array);
    all.into_iter().flatten().any(|one| one.as_str() == Some(finalizer))
}

/// Returns the map `metadata.<field>`, created if necessary; `None` if `object` is not an object.
pub fn metadata_map<'a>(object: &'a mut Value, field: &str) -> Option<&'a mut Map<String, Value>> {
    let meta = metadata_mut(object)?.entry(field).or_insert_with(|| Value::Object(Map::new()));
    if meta.is_null() {
        *meta = Value::Object(Map::new());
    }
    meta.as_object_mut()
}

/// Returns `metadata`, created if necessary; `None` if `object` is not an object.
pub fn metadata_mut(object: &mut Value) -> Option<&mut Map<String, Value>> {
    object.as_object_mut()?.entry("metadata").or_insert_with(|| Value::Object(Map::new())).as_object_mut()
}

/// Returns an owner reference that makes `owner` the controller (MC-054).
pub fn controller_reference(owner: &Value) -> Value {
    serde_json::json!({
        "apiVersion": api_version(owner),
        "kind": kind(owner),
        "name": name(owner),
        "uid": uid(owner),
        "controller": true,
        "blockOwnerDeletion": true,
    })
}

/// Makes `owner` the controller of `object`: replaces the owner reference with its UID, or appends one
/// (MC-054).
pub fn set_controller(object: &mut Value, owner: &Value) {
    let reference = controller_reference(owner);
    let Some(meta) = metadata_mut(object) else { return };
    let list = meta.entry("ownerReferences").or_insert_with(|| Value::Array(Vec::new()));
    if !list.is_array() {
        *list = Value::Array(Vec::new());
    }
    let Some(list) = list.as_array_mut() else { return };
    match list.iter_mut().find(|one| one.get("uid").and_then(Value::as_str) == Some(uid(owner))) {
        Some(entry) => *entry = reference,
        None => list.push(reference),
    }
}

/// Returns whether a change from `old` to `new` is material (MC-031): generation, labels, annotations or
/// deletion changed, or, for objects without generation, anything but status and bookkeeping fields.
pub fn is_material_change(old: &Value, new: &Value) -> bool {
    let meta = |object: &Value, field: &str| {
        let found = object.pointer("/metadata").and_then(|meta| meta.get(field)).cloned();
        found.filter(|value| !value.is_null() && *value != Value::Object(Map::new()))
    };
    if ["labels", "annotations", "deletionTimestamp"].iter().any(|field| meta(old, field) != meta(new, field))
    {
        return true;
    }
    match (generation(old), generation(new)) {
        (0, _) | (_, 0) => !same_but_for_status(old, new),
        (before, after) => before != after,
    }
}

/// Compares two objects without `status`, `metadata.resourceVersion` and `metadata.managedFields`.
pub fn same_but_for_status(old: &Value, new: &Value) -> bool {
    fn fields(object: &Value) -> impl Iterator<Item = (&String, &Value)> {
        object.as_object().into_iter().flatten().filter(|(key, _)| *key != "status" && *key != "metadata")
    }
    fn facts(object: &Value) -> impl Iterator<Item = (&String, &Value)> {
        let meta = object.get("metadata").and_then(Value::as_object);
        meta.into_iter().flatten().filter(|(key, _)| *key != "resourceVersion" && *key != "managedFields")
    }
    fields(old).eq(fields(new)) && facts(old).eq(facts(new))
}

/// The object without `metadata.managedFields` (MC-040).
pub fn without_managed_fields(object: &Value) -> Value {
    let Value::Object(map) = object else { return object.clone() };
    let trimmed = map.iter().map(|(key, value)| match value {
        Value::Object(meta) if key == "metadata" => {
            let kept = meta.iter().filter(|(field, _)| *field != "managedFields");
            (key.clone(), kept.map(|(k, v)| (k.clone(), v.clone())).collect())
        }
        _ => (key.clone(), value.clone()),
    });
    Value::Object(trimmed.collect())
}

/// Returns whether a text can be one segment of a URL's path and leads nowhere else. Texts from hooks become
/// part of request paths, and those requests have more permissions than a hook.
pub fn is_segment(text: &str) -> bool {
    let ends_it = |c: char| matches!(c, '?' | '#' | '\\') || c.is_whitespace() || c.is_control();
    !text.is_empty() && names::path_segment(text).is_empty() && !text.contains(ends_it)
}

/// Returns whether a text is `version` or `group/version` and fit for a path.
pub fn is_api_version(text: &str) -> bool {
    let mut parts = text.split('/');
    let (first, second, third) = (parts.next(), parts.next(), parts.next());
    first.is_some_and(is_segment) && second.is_none_or(is_segment) && third.is_none()
}

/// `prod/web` or `web`.
pub fn display(namespace: &str, name: &str) -> String {
    if namespace.is_empty() { name.to_owned() } else { format!("{namespace}/{name}") }
}

/// Shared text.
pub type Text = Arc<str>;

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// MC-031: what counts as a change of a parent.
    #[test]
    fn mc_031_status_changes_are_not_material() {
        let base = json!({"metadata": {"generation": 2, "resourceVersion": "5"}, "spec": {"a": 1}, "status": {"b": 1}});
        let with = |pointer: &str, value: Value| {
            let mut changed = base.clone();
            let (parent, field) = pointer.rsplit_once('/').unwrap();
            changed.pointer_mut(parent).unwrap()[field] = value;
            changed
        };
        assert!(!is_material_change(&base, &with("/metadata/resourceVersion", json!("6"))));
        assert!(!is_material_change(&base, &with("/status/b", json!(2))));
        assert!(!is_material_change(&base, &with("/metadata/managedFields", json!([1]))));
        assert!(!is_material_change(&base, &with("/metadata/annotations", json!({}))));
        assert!(is_material_change(&base, &with("/metadata/generation", json!(3))));
        assert!(is_material_change(&base, &with("/metadata/labels", json!({"a": "b"}))));
        assert!(is_material_change(&base, &with("/metadata/deletionTimestamp", json!("now"))));
        let plain = json!({"metadata": {"resourceVersion": "5"}, "data": {"a": "1"}});
        let mut other = plain.clone();
        other["data"]["a"] = json!("2");
        assert!(is_material_change(&plain, &other));
    }

    /// MC-054: a plain owner reference to the parent becomes the controlling one.
    #[test]
    fn mc_054_an_entry_of_the_parent_is_upgraded() {
        let parent = json!({"apiVersion": "a/v1", "kind": "P", "metadata": {"name": "p", "uid": "1"}});
        let mut object = json!({"metadata": {"ownerReferences": [{"uid": "0"}, {"uid": "1", "name": "p"}]}});
        set_controller(&mut object, &parent);
        let list = object["metadata"]["ownerReferences"].as_array().unwrap();
        assert_eq!((list.len(), &list[1]), (2, &controller_reference(&parent)));
        let mut plain = json!({"metadata": {}});
        set_controller(&mut plain, &parent);
        assert_eq!(controller_uid(&plain), "1");
    }
}
