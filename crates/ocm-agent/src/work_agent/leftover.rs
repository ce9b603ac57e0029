//! Labels and annotations that an earlier form of a manifest set and the present one does not. Pure.
//!
//! The API server remembers who set a field: our writes stand in `metadata.managedFields` under the name of the agent,
//! which is that of OCM's agent, too. A field stands there as long as nobody else changed it. So nothing has to be stored
//! for this, it works after a restart, and an agent of OCM may take over or hand over at any time.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::merge::{SPEC_HASH, text};

/// The field manager of work agents.
const MANAGER: &str = "work-agent";
/// The maps in the metadata that are merged, so that a key stays when a manifest drops it.
const FIELDS: [&str; 2] = ["labels", "annotations"];
/// Keys that API servers add to an object as they decode it; they stand under the name of who wrote the object.
const DEFAULTED: [&str; 2] = ["kubernetes.io/metadata.name", "deprecated.daemonset.template.generation"];

/// Adds to `required` the request to remove ([`super::merge::update`]) each label and annotation of the live object that a
/// work agent set, nobody changed since, and `required` does not have. Does nothing if another AppliedManifestWork than
/// `owner` owns the object, because it may be the one that wants them.
pub fn request_removal(required: &mut Value, live: &Value, owner: &Value) {
    if has_other_owner(live, text(owner, "uid")) {
        return;
    }
    for field in FIELDS {
        let keys = leftover(required, live, field);
        let Some(metadata) = required.get_mut("metadata").and_then(Value::as_object_mut) else { return };
        if keys.is_empty() {
            continue;
        }
        let map = metadata.entry(field).or_insert_with(|| Value::Object(Map::new()));
        if !map.is_object() {
            *map = Value::Object(Map::new());
        }
        if let Some(map) = map.as_object_mut() {
            map.extend(keys.into_iter().map(|key| (format!("{key}-"), Value::String(String::new()))));
        }
    }
}

fn has_other_owner(live: &Value, uid: &str) -> bool {
    let owners = live.pointer("/metadata/ownerReferences").and_then(Value::as_array);
    owners.into_iter().flatten().any(|owner| {
        text(owner, "kind") == "AppliedManifestWork"
            && text(owner, "apiVersion").starts_with("work.open-cluster-management.io/")
            && text(owner, "uid") != uid
    })
}

fn leftover(required: &Value, live: &Value, field: &str) -> BTreeSet<String> {
    let map = |object: &Value| {
        object.get("metadata").and_then(|m| m.get(field)).and_then(Value::as_object).cloned()
    };
    let (wanted, have) = (map(required).unwrap_or_default(), map(live).unwrap_or_default());
    let mut ours = BTreeSet::new();
    let mut theirs = BTreeSet::new();
    for entry in live.pointer("/metadata/managedFields").and_then(Value::as_array).into_iter().flatten() {
        let plain = text(entry, "operation") == "Update" && text(entry, "subresource").is_empty();
        let keys = if text(entry, "manager") == MANAGER && plain { &mut ours } else { &mut theirs };
        let set =
            entry.get("fieldsV1").and_then(|f| f.get("f:metadata")).and_then(|m| m.get(format!("f:{field}")));
        let set = set.and_then(Value::as_object).into_iter().flatten();
        keys.extend(set.filter_map(|(key, _)| key.strip_prefix("f:")));
    }
    let by_server = |key: &str| DEFAULTED.contains(&key) || (field == "labels" && is_copied(live, key));
    // The agent adds this one itself.
    ours.remove(SPEC_HASH);
    ours.into_iter()
        .filter(|key| !theirs.contains(key) && have.contains_key(*key) && !by_server(key))
        .filter(|key| !wanted.contains_key(*key) && !wanted.contains_key(&format!("{key}-")))
        .map(str::to_owned)
        .collect()
}

/// A Job or ReplicationController without labels gets those of its pod template.
fn is_copied(live: &Value, key: &str) -> bool {
    matches!(text(live, "kind"), "Job" | "ReplicationController")
        && live.pointer("/spec/template/metadata/labels").is_some_and(|labels| labels.get(key).is_some())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::work_agent::merge::{Verdict, to_create, update};
    use serde_json::json;

    fn entry(manager: &str, operation: &str, labels: &[&str]) -> Value {
        let keys: Map<String, Value> = labels.iter().map(|key| (format!("f:{key}"), json!({}))).collect();
        json!({"manager": manager, "operation": operation, "fieldsV1": {"f:metadata": {"f:labels": keys}}})
    }

    fn live(labels: &Value, managed: &[Value]) -> Value {
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "labels": labels, "managedFields": managed,
            "ownerReferences": [{"apiVersion": "work.open-cluster-management.io/v1", "kind": "AppliedManifestWork", "uid": "u"}]}})
    }

    fn removed(required: &Value, live: &Value) -> Vec<String> {
        let mut required = required.clone();
        request_removal(&mut required, live, &json!({"uid": "u"}));
        let labels =
            required.pointer("/metadata/labels").and_then(Value::as_object).cloned().unwrap_or_default();
        labels.keys().filter_map(|key| key.strip_suffix('-')).map(str::to_owned).collect()
    }

    /// OCM-078: what an earlier form set goes; what others set, changed or want as well stays.
    #[test]
    fn ocm_078_what_only_we_set_goes_again() {
        let have = json!({"old": "1", "kept": "1", "users": "1", "both": "1", "ours.example/x": "1"});
        let managed = [
            entry("work-agent", "Update", &["old", "kept", "both", "gone", "ours.example/x"]),
            entry("kubectl", "Update", &["users"]),
            entry("gitops", "Apply", &["both"]),
        ];
        let required = json!({"metadata": {"labels": {"kept": "2"}}});
        let object = live(&have, &managed);
        assert_eq!(removed(&required, &object), ["old", "ours.example/x"]);
        assert_eq!(removed(&json!({"metadata": {"name": "a"}}), &object), ["kept", "old", "ours.example/x"]);
        let other = [entry("work-agent", "Apply", &["old"]), entry("klusterlet", "Update", &["kept"])];
        assert!(removed(&json!({"metadata": {}}), &live(&have, &other)).is_empty(), "not written by Update");
        assert!(removed(&json!({"metadata": {}}), &live(&have, &[])).is_empty(), "nobody knows who set it");
    }

    #[test]
    fn ocm_078_a_shared_object_and_what_servers_add_are_left_alone() {
        let have = json!({"a": "1", "kubernetes.io/metadata.name": "n", "app": "x"});
        let managed = [entry("work-agent", "Update", &["a", "kubernetes.io/metadata.name", "app"])];
        let plain = json!({"metadata": {}});
        let mut object = live(&have, &managed);
        object["kind"] = "Job".into();
        object["spec"] = json!({"template": {"metadata": {"labels": {"app": "x"}}}});
        assert_eq!(removed(&plain, &object), ["a"]);
        let owners = object["metadata"]["ownerReferences"].as_array_mut().expect("a list");
        owners.push(json!({"apiVersion": "work.open-cluster-management.io/v1", "kind": "AppliedManifestWork", "uid": "other"}));
        assert!(removed(&plain, &object).is_empty(), "another work may want it");
    }

    #[test]
    fn ocm_078_a_removal_is_carried_out_and_creates_nothing() {
        let managed = [entry("work-agent", "Update", &["old"])];
        let object = live(&json!({"old": "1"}), &managed);
        let mut required = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}});
        request_removal(&mut required, &object, &json!({"uid": "u"}));
        let Verdict::Replace(new) = update(&required, &object) else { panic!("it differs") };
        assert_eq!(new["metadata"]["labels"], json!({}));
        assert_eq!(to_create(&required)["metadata"]["labels"], json!({}));
    }
}
