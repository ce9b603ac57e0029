//! The one node of a simulated cluster.

use serde_json::{Value, json};

use super::object::SIMULATED;
use super::pods::NODE_ADDRESS;

/// The node, with the status of a healthy one. Its heartbeat is never renewed.
pub(super) fn node(name: &str, now: &str) -> Value {
    let condition = |kind: &str, status: &str, reason: &str, message: &str| {
        json!({
            "type": kind, "status": status, "reason": reason, "message": message,
            "lastHeartbeatTime": now, "lastTransitionTime": now,
        })
    };
    let resources = json!({
        "cpu": "32", "memory": "131072000Ki", "pods": "10000", "ephemeral-storage": "1048576000Ki",
        "hugepages-1Gi": "0", "hugepages-2Mi": "0",
    });
    json!({
        "apiVersion": "v1", "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {
                "kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64",
                "beta.kubernetes.io/os": "linux", "beta.kubernetes.io/arch": "amd64",
                "node-role.kubernetes.io/control-plane": "",
            },
            "annotations": {SIMULATED: "true"},
        },
        "spec": {"podCIDR": "10.128.0.0/9", "podCIDRs": ["10.128.0.0/9"]},
        "status": {
            "capacity": resources, "allocatable": resources,
            "addresses": [{"type": "InternalIP", "address": NODE_ADDRESS}, {"type": "Hostname", "address": name}],
            "conditions": [
                condition("MemoryPressure", "False", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
                condition("DiskPressure", "False", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
                condition("PIDPressure", "False", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
                condition("Ready", "True", "KubeletReady", "kubelet is posting ready status (simulated: no containers run)"),
            ],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}},
            "nodeInfo": {
                "architecture": "amd64", "operatingSystem": "linux", "osImage": "Simulated (no containers run)",
                "kernelVersion": "simulated", "containerRuntimeVersion": "simulated://1.0.0",
                "kubeletVersion": apiserver::version::GIT_VERSION, "kubeProxyVersion": "",
                "machineID": "simulated", "systemUUID": "simulated", "bootID": "simulated",
            },
        },
    })
}
