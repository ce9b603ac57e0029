//! DaemonSets: one pod on the one node.

use serde_json::{Value, json};

use super::object::{
    Kind, Pod, Write, annotation, conditions, field, generation, is_deleting, name, pod_from, status_write,
    text, without_zeros,
};
use super::revision::{self, Revisions, hash_of};

const REVISION: &str = "controller-revision-hash";
const GENERATION: &str = "deprecated.daemonset.template.generation";

/// The next writes. `pods` and `revisions` are those that the set controls; `node` is the stored node.
pub(super) fn decide(set: &Value, pods: &[Pod], revisions: &[Value], node: &Value) -> Vec<Write> {
    let Revisions { update, mut writes } = revision::sync(set, Kind::DaemonSet, revisions);
    let hash = hash_of(&update, set);
    let wanted = is_wanted(set, node);
    if is_deleting(set) {
        return status(set, pods, hash, wanted).into_iter().collect();
    }
    let moves = adjust(set, pods, hash, wanted, name(node));
    let waits = moves.is_empty();
    writes.extend(moves);
    writes.extend(status(set, pods, hash, wanted));
    if waits {
        let in_use = |one: &Value| {
            name(one) == update
                || pods.iter().any(|pod| revision::made_from(pod.metadata.label(REVISION), one))
        };
        writes.extend(revision::surplus(set, revisions, in_use));
    }
    writes
}

/// Whether the node has the labels that the template requires.
fn is_wanted(set: &Value, node: &Value) -> bool {
    let labels = node.pointer("/metadata/labels").unwrap_or(&Value::Null);
    let asked = set.pointer("/spec/template/spec/nodeSelector").and_then(Value::as_object);
    let mut asked = asked.into_iter().flatten();
    !node.is_null() && asked.all(|(key, value)| Some(field(labels, key)) == value.as_str())
}

fn adjust(set: &Value, pods: &[Pod], hash: &str, wanted: bool, node: &str) -> Vec<Write> {
    if pods.is_empty() {
        return if wanted { vec![make(set, hash, node)] } else { Vec::new() };
    }
    let rolls = text(set, "/spec/updateStrategy/type") != "OnDelete";
    let mut staying = false;
    let mut writes = Vec::new();
    for pod in pods.iter().filter(|pod| !pod.metadata.deleting()) {
        let stale = rolls && pod.metadata.label(REVISION) != hash;
        if wanted && !staying && !stale && !pod.finished() {
            staying = true;
        } else {
            writes.push(pod.delete());
        }
    }
    writes
}

fn make(set: &Value, hash: &str, node: &str) -> Write {
    let template = set.pointer("/spec/template").unwrap_or(&Value::Null);
    let template_generation = match annotation(set, GENERATION) {
        "" => "1",
        known => known,
    };
    let labels = [(REVISION, hash), ("pod-template-generation", template_generation)];
    let mut pod = pod_from(set, Kind::DaemonSet, template, &format!("{}-", name(set)), &labels, node);
    super::object::set(
        &mut pod,
        &["spec", "affinity", "nodeAffinity"],
        "requiredDuringSchedulingIgnoredDuringExecution",
        json!({"nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}]}),
    );
    let mut tolerations =
        pod.pointer("/spec/tolerations").and_then(Value::as_array).cloned().unwrap_or_default();
    let host = super::object::flag(&pod, "/spec/hostNetwork");
    let all = [
        ("not-ready", "NoExecute"),
        ("unreachable", "NoExecute"),
        ("disk-pressure", "NoSchedule"),
        ("memory-pressure", "NoSchedule"),
        ("pid-pressure", "NoSchedule"),
        ("unschedulable", "NoSchedule"),
        ("network-unavailable", "NoSchedule"),
    ];
    for (key, effect) in all.into_iter().take(if host { 7 } else { 6 }) {
        let toleration =
            json!({"key": format!("node.kubernetes.io/{key}"), "operator": "Exists", "effect": effect});
        if !tolerations.contains(&toleration) {
            tolerations.push(toleration);
        }
    }
    super::object::set(&mut pod, &["spec"], "tolerations", tolerations);
    Write::Create(Kind::Pod, pod)
}

fn status(set: &Value, pods: &[Pod], hash: &str, wanted: bool) -> Option<Write> {
    let here: Vec<&Pod> = pods.iter().filter(|pod| pod.active()).collect();
    let scheduled = wanted && !here.is_empty();
    let ready = wanted && here.iter().any(|pod| pod.ready());
    let updated = wanted && here.iter().any(|pod| pod.metadata.label(REVISION) == hash);
    let mut status = json!({
        "currentNumberScheduled": i64::from(scheduled), "desiredNumberScheduled": i64::from(wanted),
        "numberMisscheduled": i64::from(!wanted && !here.is_empty()), "numberReady": i64::from(ready),
        "numberAvailable": i64::from(ready), "numberUnavailable": i64::from(wanted && !ready),
        "updatedNumberScheduled": i64::from(updated), "observedGeneration": generation(set),
    });
    let conditions = conditions(set);
    if let (Some(status), false) = (status.as_object_mut(), conditions.is_empty()) {
        status.insert("conditions".into(), conditions.into());
    }
    let optional = ["numberAvailable", "numberUnavailable", "updatedNumberScheduled", "observedGeneration"];
    status_write(Kind::DaemonSet, set, without_zeros(status, &optional))
}
