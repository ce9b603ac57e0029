//! ReplicaSets: as many pods as wanted.

use std::cmp::Reverse;

use serde_json::{Value, json};

use super::object::{
    Kind, Pod, Write, conditions, generation, is_deleting, name, pod_from, replicas, status_write,
    without_zeros,
};

/// Most pods that are created or deleted in one pass. The rest follow in the next pass.
const BURST: usize = 500;

/// The next writes. `pods` are those that the set controls. A ready pod counts as available at once, because
/// `minReadySeconds` is taken as elapsed.
pub(super) fn decide(set: &Value, pods: &[Pod], node: &str) -> Vec<Write> {
    let mut active: Vec<&Pod> = pods.iter().filter(|pod| pod.active()).collect();
    if !is_deleting(set) {
        let wanted = usize::try_from(replicas(set)).unwrap_or_default();
        let writes = adjust(set, &mut active, wanted, node);
        // The events of these writes cause another visit, so there is one status write at the end and not one per pod.
        // A status that has observed the latest generation therefore also says that the number of pods is right.
        if !writes.is_empty() {
            return writes;
        }
    }
    status_write(Kind::ReplicaSet, set, status(set, pods, &active)).into_iter().collect()
}

fn adjust(set: &Value, active: &mut [&Pod], wanted: usize, node: &str) -> Vec<Write> {
    let template = set.pointer("/spec/template").unwrap_or(&Value::Null);
    if active.len() < wanted {
        let make = || {
            let name = format!("{}-", name(set));
            Write::Create(Kind::Pod, pod_from(set, Kind::ReplicaSet, template, &name, &[], node))
        };
        return std::iter::repeat_with(make).take((wanted - active.len()).min(BURST)).collect();
    }
    // Order of deletion: not ready first, then low deletion cost, then young.
    active.sort_by_cached_key(|pod| {
        let cost = pod.metadata.annotations.get("controller.kubernetes.io/pod-deletion-cost");
        let cost: i64 = cost.and_then(|cost| cost.parse().ok()).unwrap_or_default();
        (pod.ready(), cost, Reverse(pod.metadata.creation_timestamp.clone()), pod.metadata.name.clone())
    });
    active.iter().take((active.len() - wanted).min(BURST)).map(|pod| pod.delete()).collect()
}

fn status(set: &Value, pods: &[Pod], active: &[&Pod]) -> Value {
    let ready = active.iter().filter(|pod| pod.ready()).count();
    let wanted = set.pointer("/spec/template/metadata/labels").and_then(Value::as_object);
    let labeled = active.iter().filter(|pod| {
        wanted.is_none_or(|labels| {
            labels.iter().all(|(key, value)| Some(pod.metadata.label(key)) == value.as_str())
        })
    });
    let going = pods.iter().filter(|pod| pod.metadata.deleting() && !pod.finished()).count();
    let mut status = json!({
        "replicas": active.len(), "fullyLabeledReplicas": labeled.count(), "readyReplicas": ready,
        "availableReplicas": ready, "terminatingReplicas": going, "observedGeneration": generation(set),
    });
    // Conditions are written by other controllers.
    let conditions = conditions(set);
    if let (Some(status), false) = (status.as_object_mut(), conditions.is_empty()) {
        status.insert("conditions".into(), conditions.into());
    }
    without_zeros(
        status,
        &["fullyLabeledReplicas", "readyReplicas", "availableReplicas", "observedGeneration"],
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set_of(size: i64) -> Value {
        json!({"metadata": {"name": "web", "namespace": "n", "uid": "u", "generation": 2}, "spec": {"replicas": size,
            "template": {"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "c"}]}}}})
    }

    fn pod(name: &str, ready: bool, born: &str) -> Pod {
        let ready = if ready { "True" } else { "False" };
        serde_json::from_value(json!({
            "metadata": {"name": name, "namespace": "n", "uid": name, "creationTimestamp": born, "labels": {"app": "web"}},
            "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": ready}]}}))
        .expect("a pod")
    }

    #[test]
    fn missing_pods_are_made_from_the_template_and_owned() {
        let writes = decide(&set_of(2), &[pod("a", true, "1")], "node");
        let [Write::Create(Kind::Pod, made)] = &writes[..] else { panic!("{writes:?}") };
        assert_eq!(made["metadata"]["generateName"], "web-");
        assert_eq!(made["metadata"]["labels"], json!({"app": "web"}));
        assert_eq!(made["metadata"]["annotations"], json!({"kubestellar.io/simulated": "true"}));
        assert_eq!(
            made["metadata"]["ownerReferences"],
            json!([{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "u",
                "controller": true, "blockOwnerDeletion": true}])
        );
        assert_eq!(made["spec"]["nodeName"], "node");
    }

    #[test]
    fn surplus_pods_go_unready_and_young_ones_first() {
        let pods = [pod("old", true, "1"), pod("young", true, "2"), pod("broken", false, "0")];
        let gone = |size: i64| -> Vec<String> {
            let name = |write| match write {
                Write::Delete { name, at_once: true, .. } => name,
                other => panic!("{other:?}"),
            };
            decide(&set_of(size), &pods, "node").into_iter().map(name).collect()
        };
        assert_eq!(gone(2), ["broken"]);
        assert_eq!(gone(1), ["broken", "young"]);
    }

    #[test]
    fn a_status_is_written_once_and_leaves_zeros_out() {
        let pods = [pod("a", true, "1"), pod("b", false, "1")];
        let mut set = set_of(2);
        let [Write::Status(_, written)] = &decide(&set, &pods, "node")[..] else { panic!("a status") };
        assert_eq!(
            written["status"],
            json!({"replicas": 2, "fullyLabeledReplicas": 2, "readyReplicas": 1, "availableReplicas": 1,
                "terminatingReplicas": 0, "observedGeneration": 2})
        );
        set["status"] = written["status"].clone();
        assert_eq!(decide(&set, &pods, "node"), []);
        let [Write::Status(_, written)] = &decide(&set_of(0), &[], "node")[..] else { panic!("a status") };
        assert_eq!(
            written["status"],
            json!({"replicas": 0, "terminatingReplicas": 0, "observedGeneration": 2})
        );
    }
}
