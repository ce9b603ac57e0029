//! Removes from a cluster what its agents created there, with or without the delivered workload (OCM-060).
//!
//! The agent must have stopped, or it creates everything again. The hub is not contacted: there the cluster
//! becomes unreachable, until its ManagedCluster is deleted.
//!
//! Cost: two requests for each AppliedManifestWork, and one or two for each object that it lists.

use std::time::Duration;

use apis::{
    constants::{
        APPLIED_WORK_FINALIZER, CLUSTER_GROUP, OCM_ADDON_NAMESPACE, OCM_AGENT_NAMESPACE, WORK_GROUP,
    },
    ocm::{
        AppliedManifestWork,
        work::{AppliedManifestWorkSpec, AppliedResource},
    },
};
use futures::future::BoxFuture;
use k8s_openapi::{
    api::core::v1::{Namespace, Secret},
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{Client, config::Kubeconfig};
use runtime::failure::{is_clash, is_not_found};
use runtime::rest::{Gvr, Removal, Rest};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use crate::{
    registration::{self, Endpoint},
    work_agent::HubNames,
};
use ocm_shared::rbac;

/// How a cluster is left.
#[derive(Clone, Copy, Debug)]
pub struct Leave {
    /// Whether the workload stays, without an owner.
    pub keep_workload: bool,
    /// How long to wait until the workload is gone.
    pub patience: Duration,
}

/// What was removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Left {
    /// Number of works whose workload was removed, or stays without an owner.
    pub works: usize,
    /// Number of works of other hubs. If there are any, the CRDs and permissions that their agents need stay.
    pub others: usize,
}

/// Why a cluster could not be left. What was done stays done; another try continues from there.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LeaveError {
    /// A request was refused.
    #[error("cleaning up the cluster")]
    Request(#[from] Box<kube::Error>),
    /// An object is not deleted.
    #[error("{count} objects of the workload are still there, among them {resource} {namespace}/{name}")]
    Held {
        /// Number of such objects.
        count: usize,
        /// Plural of one of them.
        resource: String,
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
    },
}

impl From<kube::Error> for LeaveError {
    fn from(error: kube::Error) -> Self {
        Self::Request(Box::new(error))
    }
}

/// Tries of a write of an object that conflicts with other writers.
const TRIES: usize = 8;
/// Interval between checks of objects that are being deleted.
const LOOK: Duration = Duration::from_millis(200);

#[derive(Deserialize)]
struct Works {
    #[serde(default)]
    items: Vec<AppliedManifestWork>,
}

/// Removes what the agent created for the hub in the stored kubeconfig, and then the agent's own objects.
/// Includes what it created while that hub, or an earlier one, had another address.
///
/// # Errors
///
/// If a request is refused, or an object is not deleted in time.
pub fn leave(cluster: Client, how: &Leave) -> BoxFuture<'_, Result<Left, LeaveError>> {
    Box::pin(take_leave(cluster, how))
}

async fn take_leave(cluster: Client, how: &Leave) -> Result<Left, LeaveError> {
    let rest = Rest::with_manager(cluster, "klusterlet");
    let agent = kept(&rest).await?;
    let works = match rest.list::<Works>(&applied_works(), "", "").await {
        Err(error) if is_not_found(&error) => Vec::new(),
        other => other?.items,
    };
    let (ours, others): (Vec<_>, Vec<_>) = works.into_iter().partition(|work| agent.made(&work.spec));
    let uids: Vec<&str> = ours.iter().filter_map(|work| work.metadata.uid.as_deref()).collect();
    let statuses = ours.iter().filter_map(|work| work.status.as_ref());
    let mut going = Vec::new();
    for resource in statuses.flat_map(|status| &status.applied_resources) {
        if how.keep_workload {
            disown(&rest, resource, &uids).await?;
        } else if let Some(uid) = ends_with(&rest, resource, &uids).await? {
            going.push((resource, uid));
        }
    }
    for work in &ours {
        remove_work(&rest, work).await?;
    }
    wait_for(&rest, going, how.patience).await?;
    clear_up(&rest, others.is_empty()).await?;
    Ok(Left { works: ours.len(), others: others.len() })
}

/// The identity of the agent that had joined a hub; empty if the cluster had not joined, or has left.
#[derive(Default)]
struct Agent {
    /// Digests of the hub's address.
    hub: Option<HubNames>,
    name: Option<String>,
}

impl Agent {
    /// Returns whether that agent created the AppliedManifestWork (OCM-060, OCM-071).
    fn made(&self, work: &AppliedManifestWorkSpec) -> bool {
        self.hub.as_ref().is_some_and(|hub| hub.is_of_hub(&work.hub_hash))
            || self.name.as_ref().is_some_and(|name| *name == work.agent_id)
    }
}

async fn kept(rest: &Rest) -> Result<Agent, kube::Error> {
    let found: Option<k8s_openapi::api::core::v1::Secret> =
        rest.find(&secrets(), OCM_AGENT_NAMESPACE, registration::SECRET).await?;
    let Some(mut data) = found.and_then(|secret| secret.data) else { return Ok(Agent::default()) };
    let mut text = |key: &str| data.remove(key).and_then(|bytes| String::from_utf8(bytes.0).ok());
    let kubeconfig = text("kubeconfig");
    let endpoint = kubeconfig.and_then(|text| Endpoint::of(&Kubeconfig::from_yaml(&text).ok()?));
    let name = text(registration::AGENT_NAME).filter(|name| !name.is_empty());
    Ok(Agent { hub: endpoint.map(|endpoint| HubNames::new(endpoint.server())), name })
}

fn of(resource: &AppliedResource) -> Gvr {
    Gvr::new(&resource.group, &resource.version, &resource.resource)
}

fn owners(object: &Value) -> &[Value] {
    object
        .pointer("/metadata/ownerReferences")
        .and_then(Value::as_array)
        .map(Vec::as_slice)
        .unwrap_or_default()
}

fn is_one_of(owner: &Value, uids: &[&str]) -> bool {
    owner.get("uid").and_then(Value::as_str).is_some_and(|uid| uids.contains(&uid))
}

async fn read(rest: &Rest, resource: &AppliedResource) -> Result<Option<Value>, kube::Error> {
    match rest.find::<Value>(&of(resource), &resource.namespace, &resource.name).await {
        // The CRD is gone as well.
        Err(error) if is_not_found(&error) => Ok(None),
        other => other,
    }
}

/// Removes our owner references from an object, so that it stays.
async fn disown(rest: &Rest, resource: &AppliedResource, uids: &[&str]) -> Result<(), kube::Error> {
    let mut tries = 0;
    loop {
        let Some(object) = read(rest, resource).await? else { return Ok(()) };
        let kept: Vec<&Value> = owners(&object).iter().filter(|owner| !is_one_of(owner, uids)).collect();
        if kept.len() == owners(&object).len() {
            return Ok(());
        }
        let version = object.pointer("/metadata/resourceVersion").cloned().unwrap_or_default();
        let patch = json!({"metadata": {"resourceVersion": version, "ownerReferences": kept}});
        match rest.merge::<Value>(&of(resource), &resource.namespace, &resource.name, &patch).await {
            Err(error) if is_not_found(&error) => return Ok(()),
            Err(error) if is_clash(&error) && tries < TRIES => tries += 1,
            other => return other.map(drop),
        }
    }
}

/// Returns the UID of an object that only our works own: it is deleted with them.
async fn ends_with(
    rest: &Rest,
    resource: &AppliedResource,
    uids: &[&str],
) -> Result<Option<String>, kube::Error> {
    let Some(object) = read(rest, resource).await? else { return Ok(None) };
    let all = owners(&object);
    if all.is_empty() || !all.iter().all(|owner| is_one_of(owner, uids)) {
        return Ok(None);
    }
    Ok(object.pointer("/metadata/uid").and_then(Value::as_str).map(str::to_owned))
}

/// Deletes an AppliedManifestWork. No agent is left for its finalizer; the workload is deleted because its
/// owner is.
async fn remove_work(rest: &Rest, work: &AppliedManifestWork) -> Result<(), kube::Error> {
    let name = work.metadata.name.as_deref().unwrap_or_default();
    let all = work.metadata.finalizers.iter().flatten();
    let kept: Vec<&String> = all.filter(|finalizer| *finalizer != APPLIED_WORK_FINALIZER).collect();
    let patch = json!({"metadata": {"uid": work.metadata.uid, "finalizers": kept}});
    match rest.merge::<Value>(&applied_works(), "", name, &patch).await {
        Err(error) if !is_not_found(&error) => return Err(error),
        _ => {}
    }
    let removal = Removal { uid: work.metadata.uid.clone(), propagation: None };
    unless_gone(rest.delete(&applied_works(), "", name, &removal).await)
}

fn unless_gone(done: Result<(), kube::Error>) -> Result<(), kube::Error> {
    match done {
        Err(error) if !is_not_found(&error) => Err(error),
        _ => Ok(()),
    }
}

/// Waits until these objects are gone: only then may the CRD of their owners be deleted.
async fn wait_for(
    rest: &Rest,
    mut going: Vec<(&AppliedResource, String)>,
    patience: Duration,
) -> Result<(), LeaveError> {
    let deadline = Instant::now() + patience;
    loop {
        let mut left = Vec::new();
        for (resource, uid) in going {
            let found = read(rest, resource).await?;
            let same = found
                .is_some_and(|found| found.pointer("/metadata/uid").and_then(Value::as_str) == Some(&*uid));
            if same {
                left.push((resource, uid));
            }
        }
        let Some((first, _)) = left.first() else { return Ok(()) };
        if Instant::now() > deadline {
            return Err(LeaveError::Held {
                count: left.len(),
                resource: first.resource.clone(),
                namespace: first.namespace.clone(),
                name: first.name.clone(),
            });
        }
        going = left;
        sleep(LOOK).await;
    }
}

/// Deletes the agents' own objects: the credential always; CRDs, permissions and namespaces unless another
/// hub's agent needs them.
async fn clear_up(rest: &Rest, all: bool) -> Result<(), kube::Error> {
    let removal = Removal::default();
    let pending = registration::pending_secret(registration::SECRET);
    for name in [registration::SECRET, &pending] {
        unless_gone(rest.delete(&secrets(), OCM_AGENT_NAMESPACE, name, &removal).await)?;
    }
    if !all {
        return Ok(());
    }
    let definitions = Gvr::of::<CustomResourceDefinition>();
    for name in [format!("appliedmanifestworks.{WORK_GROUP}"), format!("clusterclaims.{CLUSTER_GROUP}")] {
        unless_gone(rest.delete(&definitions, "", &name, &removal).await)?;
    }
    rbac::withdraw(rest, &rbac::in_cluster()).await?;
    for namespace in [OCM_AGENT_NAMESPACE, OCM_ADDON_NAMESPACE] {
        unless_gone(rest.delete(&Gvr::of::<Namespace>(), "", namespace, &removal).await)?;
    }
    Ok(())
}

fn applied_works() -> Gvr {
    Gvr::of::<AppliedManifestWork>()
}

fn secrets() -> Gvr {
    Gvr::of::<Secret>()
}
