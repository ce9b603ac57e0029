//! Warnings about kinds that this API server stores, so that they can be delivered to clusters, but does not enforce (AS-073).
//! Spaces of an installation send them; `kubestellar apiserver`, which stands in for kube-apiserver, does not.

use serde_json::Value;

use super::value::{at, entries};

/// What the warning says after the subject.
const STORED: &str = "stored and delivered to clusters, but not enforced by this API server";

/// The warning at the creation of an object of such a kind; `what` is the plural subject.
fn unless_update(what: &str, old: Option<&Value>) -> Option<String> {
    old.is_none().then(|| format!("{what} are {STORED}"))
}

pub(super) fn quota(_: &Value, old: Option<&Value>) -> Option<String> {
    unless_update("resource quotas", old)
}

pub(super) fn webhooks(_: &Value, old: Option<&Value>) -> Option<String> {
    unless_update("admission webhooks", old)
}

pub(super) fn policy(_: &Value, old: Option<&Value>) -> Option<String> {
    unless_update("admission policies", old)
}

pub(super) fn priorities(_: &Value, old: Option<&Value>) -> Option<String> {
    unless_update("flow schemas and priority levels", old)
}

/// An APIService whose group another server serves.
pub(super) fn aggregation(obj: &Value, old: Option<&Value>) -> Option<String> {
    let elsewhere = old.is_none() && at(obj, "spec.service").is_object();
    elsewhere
        .then(|| "requests for the groups of API services are not forwarded by this API server".to_owned())
}

/// A Namespace with a level of pod security, now or with this update.
pub(super) fn pod_security(obj: &Value, old: Option<&Value>) -> Option<String> {
    const ENFORCE: &str = "pod-security.kubernetes.io/enforce";
    let level = |obj: &Value| {
        let found = entries(obj, "metadata.labels").find(|(label, _)| label.as_str() == ENFORCE);
        found.and_then(|(_, value)| value.as_str()).filter(|level| *level != "privileged").map(str::to_owned)
    };
    let now = level(obj);
    (now.is_some() && now != old.and_then(level)).then(|| format!("levels of pod security are {STORED}"))
}
