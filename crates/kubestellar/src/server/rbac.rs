//! The rights of components that belong to no cluster: the controllers of a WDS, in the WDS and in its ITS (SP-065). The
//! agents of a cluster get their rights from its enrolment ([`ocm_shared::rbac`]).
//!
//! These components have no credential outside this process. The roles limit the damage that a fault in one of them can
//! do, and document which rights a component needs that runs in another process.

use kube::Client;
use ocm_shared::rbac::{binding, reconcile, role, rule, subject};
use runtime::rest::Rest;
use serde_json::{Value, json};
use space::Identity;

/// Field manager of what the process itself writes.
pub(super) const MANAGER: &str = "kubestellar";
/// Prefix of the user names under which the registration agents of embedded clusters ask to join, each for its own
/// cluster. No credential has such a user name; only clients inside this process have.
pub(super) const VOUCHED: &str = "kubestellar:bootstrap:";
/// Label of the roles and bindings that this process maintains.
const SYSTEM_LABEL: &str = "kubestellar.io/system";
const CONTROLLER_MANAGER: &str = "kubestellar:controller-manager";
const TRANSPORT: &str = "kubestellar:transport-controller";
const METACONTROLLER: &str = "kubestellar:metacontroller";
const HELM_RELEASES: &str = "kubestellar:helm-releases";
const READ: [&str; 3] = ["get", "list", "watch"];
const CONTROL: &str = apis::constants::CONTROL_GROUP;
const CLUSTERS: &str = apis::constants::CLUSTER_GROUP;
const WORK: &str = apis::constants::WORK_GROUP;

/// The binding and status controllers, in the WDS and in the ITS.
pub(super) fn controller_manager() -> Identity {
    Identity::component(CONTROLLER_MANAGER, &[])
}

/// The transport controller, in the WDS and in the ITS.
pub(super) fn transport() -> Identity {
    Identity::component(TRANSPORT, &[])
}

/// Metacontroller, in a space where it is switched on.
pub(super) fn metacontroller() -> Identity {
    Identity::component(METACONTROLLER, &[])
}

/// The component that labels Helm's releases, in a WDS where it is switched on.
pub(super) fn helm_releases() -> Identity {
    Identity::component(HELM_RELEASES, &[])
}

/// Creates its role in a WDS with the administrator's client `wds` (KS-A-12): it may read the metadata of Secrets and label them.
pub(super) async fn helm_releases_in(wds: Client) -> Result<(), kube::Error> {
    let rules = json!([rule("", &["secrets"], &["list", "watch", "patch"])]);
    reconcile(&Rest::new(wds), &granted(HELM_RELEASES, &rules)).await
}

/// Creates its role in a space with the administrator's client `space` (MC-209). Its users may have objects of any
/// kind, so it may do anything with any object, as the original may. It cannot grant rights that it does not have.
pub(super) async fn metacontroller_in(space: Client) -> Result<(), kube::Error> {
    reconcile(&Rest::new(space), &granted(METACONTROLLER, &json!([rule("*", &["*"], &["*"])]))).await
}

/// The identity of an account to which an enrolment has granted rights.
pub(super) fn enrolled(subject: &ocm_shared::rbac::Subject) -> Identity {
    let groups: Vec<&str> = subject.groups.iter().map(String::as_str).collect();
    Identity::component(&subject.user, &groups)
}

/// Creates the roles in a WDS, or corrects them, with the administrator's client `wds`.
pub(super) async fn in_description_space(wds: Client) -> Result<(), kube::Error> {
    let roles =
        [granted(CONTROLLER_MANAGER, &controller_manager_in_wds()), granted(TRANSPORT, &transport_in_wds())];
    reconcile(&Rest::new(wds), &roles.concat()).await
}

/// Creates the roles in an ITS, or corrects them, with the administrator's client `its`.
pub(super) async fn in_inventory_space(its: Client) -> Result<(), kube::Error> {
    let roles =
        [granted(CONTROLLER_MANAGER, &controller_manager_in_its()), granted(TRANSPORT, &transport_in_its())];
    reconcile(&Rest::new(its), &roles.concat()).await
}

/// A ClusterRole and its binding to the user of the same name.
fn granted(name: &str, rules: &Value) -> [Value; 2] {
    let labels = json!({SYSTEM_LABEL: "true"});
    [
        role("", name, labels.clone(), rules.clone()),
        binding("", name, labels, ("ClusterRole", name), json!([subject("User", name)])),
    ]
}

/// Workload may be of any kind, so the controllers may read all kinds, label them (`patch`) and return a status (`patch`
/// of the status; `update` where the status is no subresource). Roles and bindings can be workload, and a label on one
/// counts as granting its rights: hence `escalate` and `bind`. The controllers neither create nor delete workload.
fn controller_manager_in_wds() -> Value {
    json!([
        rule("*", &["*"], &["get", "list", "watch", "patch", "update"]),
        rule(CONTROL, &["*"], &["*"]),
        rule("apiextensions.k8s.io", &["customresourcedefinitions"], &["create"]),
        rule("", &["namespaces", "events"], &["create"]),
        rule("rbac.authorization.k8s.io", &["clusterroles", "roles"], &["bind", "escalate"]),
    ])
}

fn transport_in_wds() -> Value {
    json!([
        rule("*", &["*"], &READ),
        rule(CONTROL, &["bindings", "customtransforms"], &["update", "patch"]),
        rule(CONTROL, &["bindings/status", "customtransforms/status"], &["update", "patch"]),
        rule(CONTROL, &["bindings/finalizers"], &["update"]),
    ])
}

fn controller_manager_in_its() -> Value {
    json!([rule(CLUSTERS, &["managedclusters"], &READ), rule(CONTROL, &["workstatuses"], &READ)])
}

fn transport_in_its() -> Value {
    json!([
        rule(WORK, &["manifestworks"], &["*"]),
        rule(CLUSTERS, &["managedclusters"], &READ),
        rule("", &["configmaps"], &READ),
        rule("", &["namespaces"], &["get", "create"]),
    ])
}

#[cfg(test)]
mod tests;
