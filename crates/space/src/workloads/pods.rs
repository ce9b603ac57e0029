//! Scheduler and kubelet of a node that runs nothing: every pod is healthy at once.

use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use super::object::{
    Kind, Pod, SIMULATED, Write, annotation, condition, conditions, flag, generation, is_deleting, name,
    namespace, number, set, status_write, text, uid,
};

/// Address of the one node.
pub(super) const NODE_ADDRESS: &str = "10.127.0.1";

/// Whether the kubelet must act on a pod.
pub(super) fn needs_attention(pod: &Pod) -> bool {
    if pod.metadata.deleting() {
        return pod.metadata.finalizers.is_empty();
    }
    let stale = pod.status.observed_generation != pod.metadata.generation.max(1);
    !pod.finished() && (pod.spec.node_name.is_empty() || pod.status.phase != "Running" || stale)
}

/// The next write for a pod: its annotation, its node, its status, or its deletion.
pub(super) fn decide(pod: &Value, node: &str, now: &str) -> Option<Write> {
    let place = || (namespace(pod).to_owned(), name(pod).to_owned(), uid(pod).to_owned());
    if is_deleting(pod) {
        let finalizers = pod.pointer("/metadata/finalizers").and_then(Value::as_array);
        // Nothing runs in the pod, so it needs no grace period.
        let free = finalizers.is_none_or(Vec::is_empty);
        let (namespace, name, uid) = place();
        return free.then_some(Write::Delete { kind: Kind::Pod, namespace, name, uid, at_once: true });
    }
    if matches!(text(pod, "/status/phase"), "Succeeded" | "Failed") {
        return None;
    }
    if annotation(pod, SIMULATED) != "true" {
        let (namespace, name, uid) = place();
        let patch = json!({"metadata": {"uid": uid, "annotations": {SIMULATED: "true"}}});
        return Some(Write::Patch { kind: Kind::Pod, namespace, name, patch });
    }
    if text(pod, "/spec/nodeName").is_empty() {
        if is_gated(pod) {
            return gated(pod);
        }
        let (namespace, name, uid) = place();
        return Some(Write::Bind { namespace, name, uid, node: node.to_owned() });
    }
    let seen = number(pod, "/status/observedGeneration") == generation(pod).max(1);
    if text(pod, "/status/phase") == "Running" && seen && has_debuggers(pod) {
        return None;
    }
    status_write(Kind::Pod, pod, status(pod, now))
}

fn is_gated(pod: &Value) -> bool {
    let gates = pod.pointer("/spec/schedulingGates").and_then(Value::as_array);
    gates.is_some_and(|gates| !gates.is_empty())
}

fn gated(pod: &Value) -> Option<Write> {
    let mut status = pod.get("status").cloned().unwrap_or_else(|| json!({}));
    let new_conditions = json!([{
        "type": "PodScheduled", "status": "False", "reason": "SchedulingGated",
        "message": "Scheduling is blocked due to non-empty scheduling gates",
        "lastProbeTime": null, "lastTransitionTime": null, "observedGeneration": generation(pod).max(1),
    }]);
    if condition(&conditions(pod), "PodScheduled").is_some() {
        return None;
    }
    set(&mut status, &[], "conditions", new_conditions);
    status_write(Kind::Pod, pod, status)
}

/// Pods that may end succeed at once, whoever made them: a Job, Helm for a hook or a test, a user. Others run for ever.
fn completes(pod: &Value) -> bool {
    matches!(text(pod, "/spec/restartPolicy"), "Never" | "OnFailure")
}

fn list<'a>(object: &'a Value, pointer: &str) -> &'a [Value] {
    object.pointer(pointer).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

fn status(pod: &Value, now: &str) -> Value {
    let completes = completes(pod);
    let running = if completes { "False" } else { "True" };
    let before = conditions(pod);
    let condition = |kind: &str, status: &str, reason: Option<&str>| {
        let since = machinery::conditions::since(before.iter(), kind, status, now);
        let mut condition = json!({
            "type": kind, "status": status, "observedGeneration": generation(pod).max(1),
            "lastProbeTime": null, "lastTransitionTime": since,
        });
        if let Some(reason) = reason {
            set(&mut condition, &[], "reason", reason);
        }
        condition
    };
    let over = completes.then_some("PodCompleted");
    let started = match text(pod, "/status/startTime") {
        "" => now,
        known => known,
    };
    let address = address(pod);
    let mut status = json!({
        "phase": if completes { "Succeeded" } else { "Running" },
        "observedGeneration": generation(pod).max(1),
        "conditions": [
            condition("PodReadyToStartContainers", running, None),
            condition("Initialized", "True", over),
            condition("Ready", running, over),
            condition("ContainersReady", running, over),
            condition("PodScheduled", "True", None),
        ],
        "hostIP": NODE_ADDRESS, "hostIPs": [{"ip": NODE_ADDRESS}],
        "podIP": address, "podIPs": [{"ip": address}],
        "startTime": started, "qosClass": text(pod, "/status/qosClass"),
        "containerStatuses": containers(pod, "/spec/containers", |_| completes, now),
    });
    let ended = |container: &Value| completes || text(container, "/restartPolicy") != "Always";
    let init = containers(pod, "/spec/initContainers", ended, now);
    if !init.is_empty() {
        set(&mut status, &[], "initContainerStatuses", init);
    }
    let debuggers = containers(pod, DEBUGGERS, |_| true, now);
    if !debuggers.is_empty() {
        set(&mut status, &[], "ephemeralContainerStatuses", debuggers);
    }
    status
}

const DEBUGGERS: &str = "/spec/ephemeralContainers";

/// Whether the status has every ephemeral container of the pod. They are added while it runs.
fn has_debuggers(pod: &Value) -> bool {
    list(pod, "/status/ephemeralContainerStatuses").len() >= list(pod, DEBUGGERS).len()
}

fn containers(pod: &Value, pointer: &str, ended: impl Fn(&Value) -> bool, now: &str) -> Vec<Value> {
    let is_init = pointer.ends_with("initContainers");
    list(pod, pointer)
        .iter()
        .map(|container| {
            let ended = ended(container);
            // Init containers have completed; a sidecar ends with its pod.
            let ready = !ended || is_init && text(container, "/restartPolicy") != "Always";
            container_status(pod, container, ended, ready, now)
        })
        .collect()
}

fn container_status(pod: &Value, container: &Value, ended: bool, ready: bool, now: &str) -> Value {
    let container_name = text(container, "/name");
    let image = full_image(text(container, "/image"));
    let id = format!("simulated://{}", hex(&Sha256::digest(format!("{}/{container_name}", uid(pod)))));
    let state = if ended {
        json!({"terminated": {"containerID": id, "exitCode": 0, "reason": "Completed",
            "startedAt": now, "finishedAt": now}})
    } else {
        json!({"running": {"startedAt": now}})
    };
    let mut status: Map<String, Value> = Map::new();
    let resources = container.get("resources").cloned().unwrap_or_else(|| json!({}));
    if let Some(requests) = resources.get("requests") {
        status.insert("allocatedResources".into(), requests.clone());
    }
    let mounts: Vec<Value> = list(container, "/volumeMounts").iter().map(mount_status).collect();
    if !mounts.is_empty() {
        status.insert("volumeMounts".into(), mounts.into());
    }
    for (key, value) in [
        ("name", container_name.into()),
        ("imageID", format!("simulated://{image}").into()),
        ("image", image.into()),
        ("containerID", id.into()),
        ("state", state),
        ("lastState", json!({})),
        ("ready", ready.into()),
        ("started", (!ended).into()),
        ("restartCount", 0.into()),
        ("resources", resources),
    ] {
        status.insert(key.into(), value);
    }
    status.into()
}

fn mount_status(mount: &Value) -> Value {
    let mut status = json!({"name": text(mount, "/name"), "mountPath": text(mount, "/mountPath")});
    if flag(mount, "/readOnly") {
        set(&mut status, &[], "readOnly", true);
        set(&mut status, &[], "recursiveReadOnly", "Disabled");
    }
    status
}

/// An image name with registry and tag, as container runtimes report it.
fn full_image(image: &str) -> String {
    let (first, rest) = image.split_once('/').unwrap_or(("", image));
    let has_registry = first.contains(['.', ':']) || first == "localhost";
    let named = match (has_registry, first.is_empty()) {
        (true, _) => image.to_owned(),
        (false, true) => format!("docker.io/library/{image}"),
        (false, false) => format!("docker.io/{image}"),
    };
    let last = rest.rsplit('/').next().unwrap_or_default();
    if image.contains('@') || last.contains(':') { named } else { format!("{named}:latest") }
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a String can't fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// The address of the pod, constant for its life: the node's, or one of 10.128.0.0/9 derived from the uid.
fn address(pod: &Value) -> String {
    if flag(pod, "/spec/hostNetwork") {
        return NODE_ADDRESS.into();
    }
    match Sha256::digest(uid(pod).as_bytes())[..] {
        [b, c, d, ..] => format!("10.{}.{c}.{}", b | 128, d.clamp(1, 254)),
        _ => NODE_ADDRESS.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workloads::object::field;

    const NOW: &str = "2026-01-01T00:00:00Z";

    fn pod() -> Value {
        json!({
            "metadata": {"name": "p", "namespace": "n", "uid": "u", "generation": 1},
            "spec": {"containers": [{"name": "c", "image": "nginx:1.27", "resources": {"requests": {"cpu": "1"}},
                "volumeMounts": [{"name": "t", "mountPath": "/t", "readOnly": true}]}],
                "initContainers": [{"name": "i", "image": "busybox"},
                    {"name": "side", "image": "ghcr.io/x/side@sha256:00", "restartPolicy": "Always"}]},
            "status": {"phase": "Pending", "qosClass": "Burstable"},
        })
    }

    fn status_of(write: Option<Write>) -> Value {
        match write {
            Some(Write::Status(Kind::Pod, pod)) => pod["status"].clone(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_bare_pod_is_marked_bound_and_runs() {
        let mut pod = pod();
        assert!(matches!(decide(&pod, "node", NOW), Some(Write::Patch { .. })));
        pod["metadata"]["annotations"] = json!({SIMULATED: "true"});
        assert!(matches!(decide(&pod, "node", NOW), Some(Write::Bind { .. })));
        pod["spec"]["nodeName"] = json!("node");
        let status = status_of(decide(&pod, "node", NOW));
        assert_eq!(status["phase"], "Running");
        assert_eq!(status["qosClass"], "Burstable");
        let conditions: Vec<String> = list(&status, "/conditions")
            .iter()
            .map(|c| format!("{}={}", field(c, "type"), field(c, "status")))
            .collect();
        assert_eq!(
            conditions,
            [
                "PodReadyToStartContainers=True",
                "Initialized=True",
                "Ready=True",
                "ContainersReady=True",
                "PodScheduled=True"
            ]
        );
        let container = &status["containerStatuses"][0];
        assert_eq!(container["image"], "docker.io/library/nginx:1.27");
        assert_eq!(container["allocatedResources"], json!({"cpu": "1"}));
        assert_eq!(container["volumeMounts"][0]["recursiveReadOnly"], "Disabled");
        let [init, side] = list(&status, "/initContainerStatuses") else { panic!("two") };
        assert_eq!((&init["ready"], &init["started"]), (&json!(true), &json!(false)));
        assert_eq!(init["state"]["terminated"]["reason"], "Completed");
        assert_eq!((&side["ready"], &side["started"]), (&json!(true), &json!(true)));
        pod["status"] = status;
        assert_eq!(decide(&pod, "node", NOW), None);
    }

    #[test]
    fn a_pod_that_may_end_succeeds() {
        let mut pod = pod();
        pod["metadata"]["annotations"] = json!({SIMULATED: "true"});
        pod["spec"]["nodeName"] = json!("node");
        pod["spec"]["restartPolicy"] = json!("OnFailure");
        assert_eq!(status_of(decide(&pod, "node", NOW))["phase"], "Succeeded");
        pod["spec"]["restartPolicy"] = json!("Always");
        assert_eq!(status_of(decide(&pod, "node", NOW))["phase"], "Running");
        pod["spec"]["restartPolicy"] = json!("Never");
        let status = status_of(decide(&pod, "node", NOW));
        assert_eq!(status["phase"], "Succeeded");
        assert_eq!(status["conditions"][2]["reason"], "PodCompleted");
        assert_eq!(status["containerStatuses"][0]["state"]["terminated"]["exitCode"], 0);
        assert_eq!(status["containerStatuses"][0]["ready"], false);
        pod["status"] = status;
        assert_eq!(decide(&pod, "node", NOW), None);
    }

    #[test]
    fn a_pod_that_is_being_deleted_goes_when_no_finalizer_is_left() {
        let mut pod = pod();
        pod["metadata"]["deletionTimestamp"] = json!(NOW);
        pod["metadata"]["finalizers"] = json!(["a/b"]);
        assert_eq!(decide(&pod, "node", NOW), None);
        pod["metadata"]["finalizers"] = json!([]);
        assert!(matches!(decide(&pod, "node", NOW), Some(Write::Delete { at_once: true, .. })));
    }

    #[test]
    fn a_gated_pod_waits() {
        let mut pod = pod();
        pod["metadata"]["annotations"] = json!({SIMULATED: "true"});
        pod["spec"]["schedulingGates"] = json!([{"name": "wait"}]);
        let status = status_of(decide(&pod, "node", NOW));
        assert_eq!(status["conditions"][0]["reason"], "SchedulingGated");
        assert_eq!(status["phase"], "Pending");
        pod["status"] = status;
        assert_eq!(decide(&pod, "node", NOW), None);
    }

    #[test]
    fn images_get_registry_and_tag() {
        for (image, full) in [
            ("nginx", "docker.io/library/nginx:latest"),
            ("bitnami/nginx:1", "docker.io/bitnami/nginx:1"),
            ("localhost:5000/a", "localhost:5000/a:latest"),
            ("quay.io/a/b@sha256:1", "quay.io/a/b@sha256:1"),
        ] {
            assert_eq!(full_image(image), full);
        }
    }
}
