//! Fields that a server-side apply does not set, because other managers own them (OCM-082). Pure.

use apis::ocm::work::IgnoreField;
use machinery::jsonpath::JsonPath;
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use super::{jq, merge::hex};

/// The fields are ignored until the manifest changes. With any other value they are ignored as soon as the
/// object exists.
const ON_CHANGE: &str = "OnSpokeChange";

/// Removes from `object` the fields that are ignored when the object exists.
pub fn reduce(object: &mut Value, ignore: &[IgnoreField]) -> Result<(), String> {
    for field in ignore.iter().filter(|field| field.condition != ON_CHANGE) {
        for path in &field.json_paths {
            by_path(object, path);
        }
        for pointer in &field.json_pointers {
            by_pointer(object, pointer).map_err(|e| format!("JSON Pointer error in '{pointer}': {e}"))?;
        }
        for expression in &field.jq_path_expressions {
            jq::delete(object, expression)
                .map_err(|e| format!("JQ expression error in '{expression}': {e}"))?;
        }
    }
    Ok(())
}

/// Returns a fingerprint of the manifest: 32 hexadecimal digits. An equal fingerprint means that the applied
/// manifest is unchanged.
pub fn fingerprint(object: &Value) -> String {
    let mut digest = hex(&Sha256::digest(object.to_string().as_bytes()));
    digest.truncate(32);
    digest
}

/// Removes members of maps only: a list without one of its elements would have another meaning. A text that
/// is not a path is skipped.
fn by_path(object: &mut Value, path: &str) {
    let last = path.rsplit('.').next().unwrap_or_default();
    if last.is_empty() || last.contains(['[', ']', '*']) {
        tracing::debug!(path, "does not end in a member; nothing is ignored");
        return;
    }
    match JsonPath::relaxed(path) {
        Ok(parsed) => {
            parsed.remove(object);
        }
        Err(error) => tracing::debug!(path, %error, "no path; nothing is ignored"),
    }
}

fn by_pointer(object: &mut Value, pointer: &str) -> Result<(), String> {
    let Some((parent, key)) = pointer.rsplit_once('/').filter(|_| pointer.starts_with('/')) else {
        return Err(format!("jsonpointer must start with a slash: {pointer:?}"));
    };
    let key = key.replace("~1", "/").replace("~0", "~");
    match object.pointer_mut(parent) {
        Some(Value::Object(members)) => drop(members.remove(&key)),
        Some(Value::Array(items)) => {
            let index: usize = key.parse().map_err(|_| format!("{key:?} is no index"))?;
            if index < items.len() {
                items.remove(index);
            }
        }
        // An absent field need not be removed.
        _ => {}
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn reduced(ignore: Value) -> Result<Value, String> {
        let mut object = json!({"spec": {"replicas": 2, "paused": true, "list": [{"name": "a", "image": "x"},
            {"name": "b", "image": "y"}]}, "metadata": {"annotations": {"a/b": "1"}}});
        let ignore: Vec<IgnoreField> = serde_json::from_value(json!([ignore])).expect("fields");
        reduce(&mut object, &ignore).map(|()| object)
    }

    #[test]
    fn ocm_082_three_languages_for_paths() {
        let gone =
            |ignore: Value, pointer: &str| reduced(ignore).expect("reduced").pointer(pointer).is_none();
        assert!(gone(json!({"jsonPaths": [".spec.replicas"]}), "/spec/replicas"));
        assert!(gone(json!({"jsonPaths": [".spec.list[*].image"]}), "/spec/list/1/image"));
        assert!(gone(json!({"jsonPointers": ["/metadata/annotations/a~1b"]}), "/metadata/annotations/a~1b"));
        assert!(gone(json!({"jsonPointers": ["/spec/list/0", "/no/such"]}), "/spec/list/1"));
        let jq = ".spec.list[] | select(.name == \"b\") | .image";
        assert!(gone(json!({"jqPathExpressions": [jq]}), "/spec/list/1/image"));
        assert!(!gone(json!({"jqPathExpressions": [jq]}), "/spec/list/0/image"));
    }

    #[test]
    fn ocm_082_what_is_skipped_and_what_fails() {
        let whole = reduced(json!({})).expect("reduced");
        for skipped in [
            json!({"condition": "OnSpokeChange", "jsonPaths": [".spec.replicas"]}),
            json!({"jsonPaths": [".spec.list[0]", "..[", ""]}),
        ] {
            assert_eq!(reduced(skipped.clone()), Ok(whole.clone()), "{skipped}");
        }
        for (bad, text) in [
            (json!({"jsonPointers": ["spec"]}), "JSON Pointer error in 'spec': "),
            (json!({"jsonPointers": ["/spec/list/x"]}), "JSON Pointer error in '/spec/list/x': "),
            (json!({"jqPathExpressions": [".spec["]}), "JQ expression error in '.spec[': "),
        ] {
            assert!(reduced(bad).is_err_and(|e| e.starts_with(text)), "{text}");
        }
    }
}
