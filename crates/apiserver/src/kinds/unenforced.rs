//! Warnings about kinds that this API server stores, so that they can be delivered to clusters, but does not enforce (AS-073).

use serde_json::Value;

use super::value::{at, entries};

/// What the warning says after the subject.
const STORED: &str = "stored and delivered to clusters, but not enforced by this API server";

/// The warning at the creation of an object of such a kind; `what` is the plural subject.
fn unless_update(what: &str, old: Option<&Value>) -> Vec<String> {
    if old.is_some() { Vec::new() } else { vec![format!("{what} are {STORED}")] }
}

pub(super) fn quota(_: &Value, old: Option<&Value>) -> Vec<String> {
    unless_update("resource quotas", old)
}

pub(super) fn webhooks(_: &Value, old: Option<&Value>) -> Vec<String> {
    unless_update("admission webhooks", old)
}

pub(super) fn policy(_: &Value, old: Option<&Value>) -> Vec<String> {
    unless_update("admission policies", old)
}

pub(super) fn priorities(_: &Value, old: Option<&Value>) -> Vec<String> {
    unless_update("flow schemas and priority levels", old)
}

/// An APIService whose group another server serves.
pub(super) fn aggregation(obj: &Value, old: Option<&Value>) -> Vec<String> {
    if old.is_some() || !at(obj, "spec.service").is_object() {
        return Vec::new();
    }
    vec!["requests for the groups of API services are not forwarded by this API server".to_owned()]
}

/// A Namespace with a level of pod security, now or with this update.
pub(super) fn pod_security(obj: &Value, old: Option<&Value>) -> Vec<String> {
    const ENFORCE: &str = "pod-security.kubernetes.io/enforce";
    let level = |obj: &Value| {
        let found = entries(obj, "metadata.labels").find(|(label, _)| label.as_str() == ENFORCE);
        found.and_then(|(_, value)| value.as_str()).filter(|level| *level != "privileged").map(str::to_owned)
    };
    let now = level(obj);
    if now.is_none() || now == old.and_then(level) {
        return Vec::new();
    }
    vec![format!("levels of pod security are {STORED}")]
}
