//! Enrols a cluster that this installation serves itself, in the role of an administrator: prepares the
//! cluster for the agents, and creates its ManagedCluster as an accepted one. The rest is the usual handshake
//! between registration agent and hub (OCM-A-03).
//!
//! It grants permissions on both sides, and so needs clients of an administrator; the agents do not.
//!
//! Cost: few requests at start, then a watch on the own ManagedCluster.

use std::{collections::BTreeMap, net::SocketAddr, sync::Arc, time::Duration};

use apis::{
    constants::{
        ADDON_FEATURE_LABEL_PREFIX, BUILT_IN_ADDONS_ANNOTATION, CLUSTER_GROUP, CLUSTER_SET_LABEL,
        OCM_ADDON_NAMESPACE, OCM_AGENT_NAMESPACE,
    },
    ocm::{
        ManagedCluster,
        cluster::{CONDITION_AVAILABLE, CONDITION_HUB_ACCEPTED, ClientConfig},
    },
};
use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::Namespace;
use kube::Client;
use parking_lot::Mutex;
use runtime::{
    Next, Queue, Source, TaskError, Tasks, WithoutManagedFields,
    failure::{is_already_exists, is_conflict},
    feed::{Change, follow},
    install::{InstallError, install_shared},
    rest::{Gvr, Rest},
    work,
};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use ocm_shared::{cluster::status, rbac};

/// The cluster to enrol.
#[derive(Clone)]
pub struct Config {
    /// Name of the cluster in the inventory, and of its mailbox namespace.
    pub name: String,
    /// Labels for the ManagedCluster when it is created; users may change them later.
    pub labels: BTreeMap<String, String>,
    /// Those of the labels that an existing ManagedCluster gets, too. Empty once that has been done.
    pub more_labels: Arc<Mutex<BTreeMap<String, String>>>,
    /// Address of the cluster's API server, if it has one.
    pub url: String,
    /// Add-ons whose agents the installation runs for the cluster.
    pub built_in: Vec<String>,
    /// Whether the cluster is known to have been in this inventory: if its ManagedCluster is missing at the start, somebody took the
    /// cluster out, and it stays out.
    pub returning: bool,
    /// Set to true once somebody has taken the cluster out of the inventory.
    pub left: watch::Sender<bool>,
    /// Set to true once the cluster is in the inventory and healthy with its built-in add-ons, or is denied.
    pub ready: watch::Sender<bool>,
    /// Whether the cluster is prepared, so that its registration agent may start.
    pub prepared: watch::Sender<bool>,
    /// Whether the cluster is accepted, so that its other agents may work.
    pub accepted: watch::Sender<bool>,
}

impl Config {
    /// A cluster without labels.
    pub fn new(name: &str) -> Self {
        Self {
            name: name.into(),
            labels: BTreeMap::new(),
            more_labels: Arc::default(),
            url: String::new(),
            built_in: Vec::new(),
            returning: false,
            left: watch::Sender::new(false),
            ready: watch::Sender::new(false),
            prepared: watch::Sender::new(false),
            accepted: watch::Sender::new(false),
        }
    }
}

/// Why a cluster could not be enrolled.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The CRDs that agents need could not be installed in the cluster.
    #[error("preparing cluster {cluster}")]
    Prepare { cluster: String, source: InstallError },
    /// A request was refused.
    #[error("enrolling cluster {cluster}")]
    Request { cluster: String, source: Box<kube::Error> },
    /// A task panicked.
    #[error(transparent)]
    Task(#[from] TaskError),
}

/// Tries of a write of a ManagedCluster that conflicts with other writers.
const TRIES: usize = 8;

/// Enrols the cluster, and maintains that until `stop`.
///
/// # Errors
///
/// If the cluster cannot be prepared, a request is refused, or a task fails.
pub fn run(
    hub: Client,
    cluster: Client,
    config: Config,
    stop: CancellationToken,
) -> BoxFuture<'static, Result<(), Error>> {
    Box::pin(drive(hub, cluster, config, stop))
}

async fn drive(hub: Client, cluster: Client, config: Config, stop: CancellationToken) -> Result<(), Error> {
    let member = Arc::new(Member {
        hub: Rest::new(hub),
        cluster,
        config,
        queue: Queue::new(Duration::from_millis(20), Duration::from_secs(5)),
    });
    let refused = |source| Error::Request { cluster: member.config.name.clone(), source: Box::new(source) };
    if member.config.returning && member.is_out().await.map_err(refused)? {
        tracing::info!(cluster = member.config.name, "it was taken out of the inventory");
        member.config.left.send_replace(true);
        stop.cancelled().await;
        return Ok(());
    }
    prepare(&member.cluster, &member.config.name).await?;
    member.enter().await.map_err(refused)?;
    member.config.prepared.send_replace(true);
    let mut tasks = Tasks::new(&stop);
    let (me, token) = (member.clone(), tasks.token().clone());
    tasks.spawn_endless("ManagedCluster", async move { me.follow_cluster(&token).await });
    let token = tasks.token().clone();
    tasks.spawn_endless("enrolment", async move { member.work(&token).await });
    Ok(tasks.finish().await?)
}

/// Creates the CRDs, namespaces and permissions that agents need in their cluster, whose name in the
/// inventory is `name`.
///
/// # Errors
///
/// If a CRD cannot be installed or a request is refused.
pub fn prepare<'a>(cluster: &'a Client, name: &'a str) -> BoxFuture<'a, Result<(), Error>> {
    Box::pin(prepare_cluster(cluster, name))
}

async fn prepare_cluster(cluster: &Client, name: &str) -> Result<(), Error> {
    let request = |source| Error::Request { cluster: name.to_owned(), source: Box::new(source) };
    install_shared(cluster, &apis::crds::ocm_spoke(), "klusterlet")
        .await
        .map_err(|source| Error::Prepare { cluster: name.to_owned(), source })?;
    let rest = Rest::new(cluster.clone());
    for namespace in [OCM_AGENT_NAMESPACE, OCM_ADDON_NAMESPACE] {
        ensure_namespace(&rest, namespace).await.map_err(request)?;
    }
    rbac::create_missing(&rest, &rbac::in_cluster()).await.map_err(request)
}

struct Member {
    hub: Rest,
    cluster: Client,
    config: Config,
    queue: Queue<()>,
}

impl Member {
    async fn is_out(&self) -> Result<bool, kube::Error> {
        let found: Option<Value> = self.hub.find(&managed_clusters(), "", &self.config.name).await?;
        Ok(found.is_none())
    }

    /// Creates the ManagedCluster as an accepted one if it is missing. This is done only at the start: later,
    /// a missing ManagedCluster has been deleted. The administrators of the hub decide whether an existing
    /// one is accepted.
    async fn enter(&self) -> Result<(), kube::Error> {
        let mut labels = self.config.labels.clone();
        labels.entry(CLUSTER_SET_LABEL.into()).or_insert_with(|| "default".into());
        let client_configs =
            if self.config.url.is_empty() { json!([]) } else { json!([{"url": self.config.url}]) };
        // Null removes the annotation of an earlier start.
        let built_in = Some(self.config.built_in.join(",")).filter(|names| !names.is_empty());
        let annotations: BTreeMap<&str, &String> =
            built_in.iter().map(|names| (BUILT_IN_ADDONS_ANNOTATION, names)).collect();
        let body = json!({"apiVersion": format!("{CLUSTER_GROUP}/v1"), "kind": "ManagedCluster",
            "metadata": {"name": self.config.name, "labels": labels, "annotations": annotations},
            "spec": {"hubAcceptsClient": true, "leaseDurationSeconds": 60,
                "managedClusterClientConfigs": client_configs}});
        match self
            .hub
            .create::<WithoutManagedFields<ManagedCluster>>(
                &managed_clusters(),
                "",
                body.to_string().into_bytes(),
            )
            .await
        {
            Err(error) if is_already_exists(&error) => self.return_to(built_in).await,
            other => other.map(|_| self.config.more_labels.lock().clear()),
        }
    }

    /// Updates a ManagedCluster of an earlier start.
    async fn return_to(&self, built_in: Option<String>) -> Result<(), kube::Error> {
        let labels = self.config.more_labels.lock().clone();
        let patch =
            json!({"metadata": {"labels": labels, "annotations": {BUILT_IN_ADDONS_ANNOTATION: built_in}}});
        self.merge(&patch).await?;
        self.config.more_labels.lock().clear();
        for left in (0..TRIES).rev() {
            let WithoutManagedFields(known): WithoutManagedFields<ManagedCluster> =
                self.hub.get(&managed_clusters(), "", &self.config.name).await?;
            let clients = moved(&known.spec.managed_cluster_client_configs, &self.config.url);
            if clients == known.spec.managed_cluster_client_configs {
                break;
            }
            let patch = json!({"metadata": {"resourceVersion": known.metadata.resource_version},
                "spec": {"managedClusterClientConfigs": clients}});
            match self.merge(&patch).await {
                Err(error) if is_conflict(&error) && left > 0 => {}
                done => return done,
            }
        }
        Ok(())
    }

    async fn merge(&self, patch: &Value) -> Result<(), kube::Error> {
        let name = self.config.name.as_str();
        self.hub
            .merge::<WithoutManagedFields<ManagedCluster>>(&managed_clusters(), "", name, patch)
            .await
            .map(drop)
    }

    async fn follow_cluster(&self, stop: &CancellationToken) {
        let source = Source::all(managed_clusters()).named(&self.config.name);
        follow(self.hub.client(), &source, stop, |_: Change<ManagedCluster>| {
            self.queue.add(());
        })
        .await;
    }

    async fn work(self: &Arc<Self>, stop: &CancellationToken) {
        let me = self.clone();
        work("enrolment", &self.queue, 1, stop, move |()| {
            let me = me.clone();
            async move { me.settle().await }
        })
        .await;
    }

    /// Reports the progress of the cluster.
    async fn settle(&self) -> Result<Next, kube::Error> {
        let name = self.config.name.as_str();
        let found = self.hub.find::<ManagedCluster>(&managed_clusters(), "", name).await?;
        let Some(cluster) = found else {
            self.config.left.send_replace(true);
            return Ok(Next::OnChange);
        };
        if cluster.metadata.deletion_timestamp.is_some() {
            // Its agents clean up while they have permissions.
            return Ok(Next::OnChange);
        }
        match status(&cluster, CONDITION_HUB_ACCEPTED) {
            Some("True") => {}
            Some(_) if !cluster.spec.hub_accepts_client => {
                self.config.accepted.send_replace(false);
                rbac::withdraw(&self.hub, &rbac::status_addon_on_hub(name)).await?;
                self.config.ready.send_replace(true);
                return Ok(Next::OnChange);
            }
            _ => return Ok(Next::OnChange),
        }
        // The add-on manager handles an agent that has its identity as an add-on.
        if cluster.spec.hub_accepts_client && self.config.built_in.is_empty() {
            rbac::reconcile(&self.hub, &rbac::status_addon_on_hub(name)).await?;
        }
        self.config.accepted.send_replace(true);
        let status_of_joined = status(&cluster, CONDITION_AVAILABLE).map(str::to_owned);
        // These labels are the last that the hub sets about a healthy cluster.
        let labels = cluster.metadata.labels.unwrap_or_default();
        let is_well = |addon: &String| {
            labels
                .get(&format!("{ADDON_FEATURE_LABEL_PREFIX}{addon}"))
                .is_some_and(|state| state == "available")
        };
        let heard = status_of_joined.is_some_and(|available| available != "Unknown");
        if heard && self.config.built_in.iter().all(is_well) {
            self.config.ready.send_replace(true);
        }
        Ok(Next::OnChange)
    }
}

/// Returns the addresses of a cluster with `url` as one of them. An address under which this installation
/// served it before, at another port or on this machine, is replaced. Addresses from users stay.
fn moved(known: &[ClientConfig], url: &str) -> Vec<ClientConfig> {
    let now = place(url);
    let was_ours = |known: &str| match (place(known), now) {
        (Some((at, path)), Some((here, own))) => {
            path == own && (at.ip() == here.ip() || at.ip().is_loopback())
        }
        _ => false,
    };
    let mut clients: Vec<ClientConfig> = Vec::new();
    for config in known {
        let mut config = config.clone();
        if was_ours(&config.url) {
            url.clone_into(&mut config.url);
        }
        if clients.iter().all(|other| other.url != config.url) {
            clients.push(config);
        }
    }
    clients
}

/// Returns the socket address and the path of a URL whose host is an IP address.
fn place(url: &str) -> Option<(SocketAddr, &str)> {
    let (authority, path) = url.strip_prefix("https://")?.split_once('/')?;
    Some((authority.parse().ok()?, path))
}

/// Creates a namespace unless it exists.
async fn ensure_namespace(rest: &Rest, name: &str) -> Result<(), kube::Error> {
    let mut body = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
    if name == OCM_ADDON_NAMESPACE {
        body["metadata"]["labels"] = json!({"addon.open-cluster-management.io/namespace": "true"});
    }
    rest.ensure(&Gvr::of::<Namespace>(), "", name, &body).await.map(drop)
}

fn managed_clusters() -> Gvr {
    Gvr::of::<ManagedCluster>()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// SP-102: an address under which the cluster was served before is replaced by the present one; others
    /// stay.
    #[test]
    fn sp_102_a_cluster_has_one_address_of_ours() {
        let configs = |urls: &[&str]| -> Vec<ClientConfig> {
            urls.iter().map(|url| ClientConfig { url: (*url).into(), ..ClientConfig::default() }).collect()
        };
        let now = "https://127.0.0.1:2/spaces/c1";
        for (known, wanted) in [
            (vec![], vec![]),
            (vec![now], vec![now]),
            (vec!["https://127.0.0.1:1/spaces/c1"], vec![now]),
            (vec!["https://127.0.0.1:1/spaces/c1", "https://edge", now], vec![now, "https://edge"]),
            (vec!["https://127.0.0.1:1/spaces/c10"], vec!["https://127.0.0.1:1/spaces/c10"]),
            (vec!["https://edge:6443"], vec!["https://edge:6443"]),
            (vec!["https://ks.example/spaces/c1"], vec!["https://ks.example/spaces/c1"]),
            (vec!["https://192.0.2.7:443/spaces/c1"], vec!["https://192.0.2.7:443/spaces/c1"]),
        ] {
            assert_eq!(moved(&configs(&known), now), configs(&wanted), "{known:?}");
        }
    }
}
