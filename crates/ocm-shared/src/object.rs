//! What every object has.

use kube::Resource;
use serde_json::{Value, json};

/// Returns UID and version of the object, as the `metadata` of a patch: the server refuses the patch if they differ.
pub fn identity<K: Resource>(object: &K) -> Value {
    json!({"uid": object.meta().uid, "resourceVersion": object.meta().resource_version})
}

/// Returns the name of the object; empty if it has none.
pub fn name_of<K: Resource>(object: &K) -> &str {
    object.meta().name.as_deref().unwrap_or_default()
}
