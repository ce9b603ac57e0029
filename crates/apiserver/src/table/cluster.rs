//! Cells of cluster-level kinds. Each list is without name and age.

use serde_json::Value;

use super::fields::{NONE, PrintedObject, UNKNOWN};

pub(super) fn cells(group: &str, plural: &str, o: &PrintedObject<'_>) -> Option<Vec<Value>> {
    Some(match (group, plural) {
        ("", "namespaces") => vec![o.text("/status/phase").into()],
        ("", "nodes") => node(o),
        ("", "componentstatuses") => {
            let healthy = o.each("/conditions").find(|c| c.text("/type") == "Healthy");
            let (status, message, error) = match &healthy {
                Some(c) if c.text("/status") == "True" => ("Healthy", c.text("/message"), c.text("/error")),
                Some(c) => ("Unhealthy", c.text("/message"), c.text("/error")),
                None => ("Unknown", "", ""),
            };
            vec![status.into(), message.into(), error.into()]
        }
        ("scheduling.k8s.io", "priorityclasses") => vec![
            o.int("/value").into(),
            o.flag("/globalDefault").into(),
            o.text_or("/preemptionPolicy", "PreemptLowerPriority").into(),
        ],
        ("node.k8s.io", "runtimeclasses") => vec![o.text("/handler").into()],
        ("flowcontrol.apiserver.k8s.io", "flowschemas") => {
            let dangling = o.condition("Dangling").unwrap_or("?");
            vec![
                o.text_or("/spec/priorityLevelConfiguration/name", NONE).into(),
                o.int("/spec/matchingPrecedence").into(),
                o.text_or("/spec/distinguisherMethod/type", NONE).into(),
                dangling.into(),
            ]
        }
        ("flowcontrol.apiserver.k8s.io", "prioritylevelconfigurations") => {
            let or_none = |pointer: &str| o.get(pointer).cloned().unwrap_or_else(|| NONE.into());
            let queuing = "/spec/limited/limitResponse/queuing";
            let shares = if o.has("/spec/exempt") {
                "/spec/exempt/nominalConcurrencyShares"
            } else {
                "/spec/limited/nominalConcurrencyShares"
            };
            vec![
                o.text("/spec/type").into(),
                or_none(shares),
                or_none(&format!("{queuing}/queues")),
                or_none(&format!("{queuing}/handSize")),
                or_none(&format!("{queuing}/queueLengthLimit")),
            ]
        }
        ("resource.k8s.io", "resourceclaims") => vec![claim_state(o).into()],
        ("resource.k8s.io", "resourceslices") => vec![
            o.text("/spec/nodeName").into(),
            o.text("/spec/driver").into(),
            o.text("/spec/pool/name").into(),
        ],
        _ => return None,
    })
}

fn claim_state(o: &PrintedObject<'_>) -> String {
    let mut states = Vec::new();
    if o.has("/metadata/deletionTimestamp") {
        states.push("deleted");
    }
    if o.has("/status/allocation") {
        states.push("allocated");
    } else if states.is_empty() {
        states.push("pending");
    }
    if o.count("/status/reservedFor") > 0 {
        states.push("reserved");
    }
    states.join(",")
}

fn node(o: &PrintedObject<'_>) -> Vec<Value> {
    let mut status = vec![match o.condition("Ready") {
        Some("True") => "Ready",
        Some(_) => "NotReady",
        None => "Unknown",
    }];
    if o.flag("/spec/unschedulable") {
        status.push("SchedulingDisabled");
    }
    let labels = o.get("/metadata/labels").and_then(Value::as_object).into_iter().flatten();
    let mut roles: Vec<&str> = labels
        .filter_map(|(key, value)| {
            let by_value = || value.as_str().filter(|_| key == "kubernetes.io/role");
            key.strip_prefix("node-role.kubernetes.io/").or_else(by_value).filter(|role| !role.is_empty())
        })
        .collect();
    roles.sort_unstable();
    roles.dedup();
    let roles = if roles.is_empty() { NONE.to_owned() } else { roles.join(",") };
    let address = |r#type: &str| {
        let found = o.each("/status/addresses").find(|a| a.text("/type") == r#type);
        found.map_or(NONE, |a| a.text("/address")).to_owned()
    };
    let info = |field: &str| o.text_or(&format!("/status/nodeInfo/{field}"), UNKNOWN).to_owned();
    vec![
        status.join(",").into(),
        roles.into(),
        o.text("/status/nodeInfo/kubeletVersion").into(),
        address("InternalIP").into(),
        address("ExternalIP").into(),
        info("osImage").into(),
        info("kernelVersion").into(),
        info("containerRuntimeVersion").into(),
    ]
}
