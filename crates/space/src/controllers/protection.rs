//! Volumes and claims that are on their way out stay as long as something uses them, and go then. Pure.

use serde_json::Value;
use store::{Collection, Entry, Key, Snapshot};

/// Finalizer of claims, which the API server adds.
const CLAIM: &str = "kubernetes.io/pvc-protection";
/// Finalizer of volumes, which the API server adds.
const VOLUME: &str = "kubernetes.io/pv-protection";

/// Claims for storage.
pub(super) fn claims() -> Collection {
    Collection::new("", "persistentvolumeclaims")
}

/// Storage.
pub(super) fn volumes() -> Collection {
    Collection::new("", "persistentvolumes")
}

/// What uses claims.
pub(super) fn pods() -> Collection {
    Collection::new("", "pods")
}

fn parse(entry: &Entry) -> Value {
    serde_json::from_slice(&entry.value).unwrap_or_default()
}

/// Whether deletion has begun and our finalizer is what may keep it.
pub(super) fn is_waiting(entry: &Entry) -> bool {
    let object = parse(entry);
    let finalizers = object.pointer("/metadata/finalizers").and_then(Value::as_array);
    let held = finalizers.into_iter().flatten().filter_map(Value::as_str).any(|f| f == CLAIM || f == VOLUME);
    held && object.pointer("/metadata/deletionTimestamp").is_some()
}

/// The finalizer to take away, if nothing uses the object any more: a claim no pod that has not ended, a volume no
/// claim. For a claim, costs a look at the pods of its namespace.
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
