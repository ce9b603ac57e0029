//! Warnings about accepted objects (AS-073).

use std::collections::{HashMap, HashSet};

use machinery::field::Path;
use serde_json::Value;

use super::value::{at, entries, int, list, path, text};

/// Deprecated node labels, their replacements, and the version of the deprecation.
const OLD_LABELS: &[(&str, &str, &str)] = &[
    ("beta.kubernetes.io/arch", "v1.14", "kubernetes.io/arch"),
    ("beta.kubernetes.io/instance-type", "v1.17", "node.kubernetes.io/instance-type"),
    ("beta.kubernetes.io/os", "v1.14", "kubernetes.io/os"),
    ("failure-domain.beta.kubernetes.io/region", "v1.17", "topology.kubernetes.io/region"),
    ("failure-domain.beta.kubernetes.io/zone", "v1.17", "topology.kubernetes.io/zone"),
];

/// Warnings about the pod spec at `place`, except those that apply to `old` as well.
pub(super) fn pod_spec(obj: &Value, old: Option<&Value>, place: &str) -> Vec<String> {
    let spec = at(obj, place);
    if old.is_some_and(|old| at(old, place) == spec) {
        return Vec::new();
    }
    let here = path(place);
    let mut out = Vec::new();
    for (key, _) in entries(spec, "nodeSelector") {
        if let Some((_, since, newer)) = OLD_LABELS.iter().find(|(label, ..)| label == key) {
            let at = here.child("nodeSelector").key(key);
            out.push(format!("{at}: deprecated since {since}; use \"{newer}\" instead"));
        }
    }
    for key in ["initContainers", "containers"] {
        for (i, container) in list(spec, key).iter().enumerate() {
            container_warnings(container, &here.child(key).index(i), &mut out);
        }
    }
    if int(spec, "terminationGracePeriodSeconds").is_some_and(|n| n < 0) {
        let at = here.child("terminationGracePeriodSeconds");
        out.push(format!("{at}: must be >= 0; negative values are invalid and will be treated as 1"));
    }
    out
}

fn container_warnings(container: &Value, place: &Path, out: &mut Vec<String>) {
    let mut seen = HashSet::new();
    for (i, var) in list(container, "env").iter().enumerate() {
        let name = text(var, "name");
        if !seen.insert(name) {
            let at = place.child("env").index(i);
            out.push(format!(
                "{at}: hides previous definition of \"{name}\", which may be dropped when using apply"
            ));
        }
    }
    let mut firsts = HashMap::new();
    for (i, port) in list(container, "ports").iter().enumerate() {
        let first = *firsts.entry((at(port, "containerPort"), at(port, "protocol"))).or_insert(i);
        if first != i {
            let at = |i| place.child("ports").index(i);
            out.push(format!("{}: duplicate port definition with {}", at(i), at(first)));
        }
    }
}

/// Warnings about a service.
pub(super) fn service(obj: &Value, _old: Option<&Value>) -> Vec<String> {
    if list(obj, "spec.externalIPs").is_empty() {
        return Vec::new();
    }
    vec!["spec.externalIPs is deprecated and may no longer be implemented in some clusters".into()]
}

/// Warnings about a claim: storage is counted in whole bytes.
pub(super) fn claim(obj: &Value, _old: Option<&Value>) -> Vec<String> {
    let mut out = Vec::new();
    for key in ["requests", "limits"] {
        let amount = text(at(obj, "spec.resources").get(key).unwrap_or(&Value::Null), "storage");
        if amount.ends_with('m') {
            let at = path("spec.resources").child(key).key("storage");
            out.push(format!("{at}: fractional byte value \"{amount}\" is invalid, must be an integer"));
        }
    }
    out
}
