//! Protection of volumes and claims in use: a deleted one stays until nothing uses it. Pure.

use serde_json::Value;
use store::{Collection, Entry, Key, Snapshot};

/// The finalizer of claims. The API server adds it.
const CLAIM: &str = "kubernetes.io/pvc-protection";
/// The finalizer of volumes. The API server adds it.
const VOLUME: &str = "kubernetes.io/pv-protection";

/// Collection of PersistentVolumeClaims.
pub(super) fn claims() -> Collection {
    Collection::new("", "persistentvolumeclaims")
}

/// Collection of PersistentVolumes.
pub(super) fn volumes() -> Collection {
    Collection::new("", "persistentvolumes")
}

/// Collection of Pods.
pub(super) fn pods() -> Collection {
    Collection::new("", "pods")
}

fn parse(entry: &Entry) -> Value {
    serde_json::from_slice(&entry.value).unwrap_or_default()
}

/// Whether the object is being deleted and has our finalizer.
pub(super) fn is_waiting(entry: &Entry) -> bool {
    let object = parse(entry);
    let finalizers = object.pointer("/metadata/finalizers").and_then(Value::as_array);
    let held = finalizers.into_iter().flatten().filter_map(Value::as_str).any(|f| f == CLAIM || f == VOLUME);
    held && object.pointer("/metadata/deletionTimestamp").is_some()
}

/// The finalizer to remove if nothing uses the object: no running pod uses the claim, no claim uses the volume. For a
/// claim, costs a visit of the pods of its namespace.
pub(super) fn release(key: &Key, all: &Snapshot) -> Option<(Box<str>, &'static str)> {
    let entry = all.get(key).filter(|entry| is_waiting(entry))?;
    if key.collection == volumes() {
        let bound = parse(&entry).pointer("/status/phase").and_then(Value::as_str) == Some("Bound");
        return (!bound).then(|| (entry.meta.uid.clone(), VOLUME));
    }
    let used = all.view(&pods()).iter(Some(&key.namespace), None).any(|pod| uses(&parse(pod), &key.name));
    (!used).then(|| (entry.meta.uid.clone(), CLAIM))
}

fn uses(pod: &Value, claim: &str) -> bool {
    let ended = matches!(pod.pointer("/status/phase").and_then(Value::as_str), Some("Succeeded" | "Failed"));
    let volumes = pod.pointer("/spec/volumes").and_then(Value::as_array);
    let named = |volume: &Value| {
        volume.pointer("/persistentVolumeClaim/claimName").and_then(Value::as_str) == Some(claim)
    };
    !ended && volumes.into_iter().flatten().any(named)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_claim_is_used_by_pods_that_have_not_ended() {
        let pod = |phase: &str| json!({"spec": {"volumes": [{"emptyDir": {}}, {"persistentVolumeClaim": {"claimName": "c"}}]}, "status": {"phase": phase}});
        assert!(uses(&pod("Running"), "c") && uses(&pod("Pending"), "c"));
        assert!(!uses(&pod("Running"), "d") && !uses(&pod("Succeeded"), "c") && !uses(&json!({}), "c"));
    }
}
