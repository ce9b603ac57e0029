//! Enrols a cluster without a registration agent: the process that runs both sides vouches for the cluster and leaves
//! behind what registration would have left (OCM-010, OCM-044, OCM-046, OCM-051). Also gives the deletion and the
//! denial of a ManagedCluster their effect.
//!
//! It stands for the controllers of the hub and for the installer in the cluster, both of which grant rights to
//! others: it needs an administrator's clients on both sides. The agents do not; see [`rbac`].
//!
//! Cost: a handful of requests at start, then one watch on the own ManagedCluster and one on the mailbox.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use apis::{
    constants::{
        ADDON_GROUP, CLUSTER_API_FINALIZER, CLUSTER_GROUP, CLUSTER_NAME_LABEL, CLUSTER_SET_LABEL,
        CONTROL_GROUP, OCM_ADDON_NAMESPACE, OCM_AGENT_NAMESPACE, STATUS_ADDON, WORK_GROUP,
    },
    ocm::ManagedCluster,
};
use k8s_openapi::{
    apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta, Time},
    jiff::Timestamp,
};
use kube::Client;
use parking_lot::Mutex;
use runtime::{
    Next, Queue,
    feed::{Change, Key, Keyed, Source, follow},
    install::{InstallError, install},
    rest::{Gvr, Removal, Rest, is_conflict, is_not_found},
    work,
};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::{sync::watch, task::JoinSet, time::Instant};
use tokio_util::sync::CancellationToken;

use crate::work_agent::conditions;

pub mod rbac;

/// Label on a mailbox namespace that names its cluster.
pub const MAILBOX_LABEL: &str = "cluster.open-cluster-management.io/managedCluster";

/// What to enrol.
#[derive(Clone)]
pub struct Config {
    /// Name of the cluster in the inventory, and of its mailbox namespace.
    pub name: String,
    /// Labels by which policies select it.
    pub labels: BTreeMap<String, String>,
    /// Address of the cluster's API server, if it has one.
    pub url: String,
    /// Set true once the cluster is in the inventory and its mailbox is there.
    pub ready: watch::Sender<bool>,
}

impl Config {
    /// A cluster without labels.
    pub fn new(name: &str) -> Self {
        Self {
            name: name.into(),
            labels: BTreeMap::new(),
            url: String::new(),
            ready: watch::Sender::new(false),
        }
    }
}

/// Why a cluster could not be enrolled.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The agents' own kinds could not be installed in the cluster.
    #[error("preparing cluster {cluster}")]
    Prepare { cluster: String, source: InstallError },
    /// A request was refused.
    #[error("enrolling cluster {cluster}")]
    Request { cluster: String, source: Box<kube::Error> },
    /// A task died.
    #[error("a task of the enrolment ended")]
    Task(#[from] tokio::task::JoinError),
}

/// Enrols the cluster and keeps it enrolled until `stop`, or until its ManagedCluster is deleted: then its mailbox is
/// emptied and the finalizer released (OCM 2.10). A ManagedCluster of that name made later is accepted again.
pub async fn run(hub: Client, cluster: Client, config: Config, stop: CancellationToken) -> Result<(), Error> {
    let stop = stop.child_token();
    let member = Arc::new(Member {
        hub: Rest::new(hub),
        cluster: Rest::new(cluster),
        config,
        queue: Queue::new(Duration::from_millis(20), Duration::from_secs(5)),
        gone_since: Mutex::default(),
    });
    member.prepare().await?;
    member
        .enter()
        .await
        .map_err(|source| Error::Request { cluster: member.config.name.clone(), source: Box::new(source) })?;
    let mut tasks = JoinSet::new();
    let (me, token) = (member.clone(), stop.clone());
    tasks.spawn(async move { me.follow_cluster(&token).await });
    let (me, token) = (member.clone(), stop.clone());
    tasks.spawn(async move { me.follow_works(&token).await });
    let (me, token) = (member.clone(), stop.clone());
    tasks.spawn(async move { me.work(&token).await });
    let mut outcome = Ok(());
    while let Some(joined) = tasks.join_next().await {
        if let Err(error) = joined {
            stop.cancel();
            outcome = Err(error.into());
        }
    }
    outcome
}

#[derive(Clone, Deserialize)]
struct Named {
    #[serde(default)]
    metadata: ObjectMeta,
}

impl Keyed for Named {
    fn key(&self) -> Key {
        (self.metadata.namespace.clone().unwrap_or_default(), self.metadata.name.clone().unwrap_or_default())
    }

    fn resource_version(&self) -> &str {
        self.metadata.resource_version.as_deref().unwrap_or_default()
    }
}

#[derive(Deserialize)]
struct List {
    items: Vec<Named>,
}

struct Member {
    hub: Rest,
    cluster: Rest,
    config: Config,
    queue: Queue<()>,
    /// When the ManagedCluster was first seen missing.
    gone_since: Mutex<Option<Instant>>,
}

/// How long others may take to notice that a ManagedCluster has gone.
const LINGER: Duration = Duration::from_secs(1);

impl Member {
    /// The kinds and namespaces that the agents need in the cluster.
    async fn prepare(&self) -> Result<(), Error> {
        let name = || self.config.name.clone();
        install(self.cluster.client(), &apis::crds::ocm_spoke(), "klusterlet")
            .await
            .map_err(|source| Error::Prepare { cluster: name(), source })?;
        for namespace in [OCM_AGENT_NAMESPACE, OCM_ADDON_NAMESPACE] {
            ensure(&self.cluster, &namespaces(), "", namespace, json!({}))
                .await
                .map_err(|source| Error::Request { cluster: name(), source: Box::new(source) })?;
        }
        rbac::create_missing(&self.cluster, &rbac::in_cluster())
            .await
            .map_err(|source| Error::Request { cluster: name(), source: Box::new(source) })
    }

    /// The ManagedCluster is created when it is missing, and only now: later, missing means removed.
    async fn enter(&self) -> Result<(), kube::Error> {
        let mut labels = self.config.labels.clone();
        labels.entry(CLUSTER_SET_LABEL.into()).or_insert_with(|| "default".into());
        let client_configs =
            if self.config.url.is_empty() { json!([]) } else { json!([{"url": self.config.url}]) };
        let body = json!({"apiVersion": format!("{CLUSTER_GROUP}/v1"), "kind": "ManagedCluster",
            "metadata": {"name": self.config.name, "labels": labels, "finalizers": [CLUSTER_API_FINALIZER]},
            "spec": {"hubAcceptsClient": true, "leaseDurationSeconds": 60,
                "managedClusterClientConfigs": client_configs}});
        match self.hub.create::<Named>(&managed_clusters(), "", body.to_string().into_bytes()).await {
            Ok(_) => {}
            Err(error) if is_conflict(&error) => {
                let patch =
                    json!({"metadata": {"labels": self.config.labels}, "spec": {"hubAcceptsClient": true}});
                self.hub.merge::<Named>(&managed_clusters(), "", &self.config.name, &patch).await?;
            }
            Err(error) => return Err(error),
        }
        self.settle().await.map(|_| ())
    }

    async fn follow_cluster(&self, stop: &CancellationToken) {
        let mut source = Source::all(managed_clusters());
        source.fields = format!("metadata.name={}", self.config.name);
        follow(self.hub.client(), &source, stop, |_: Change<Named>| self.queue.add(())).await;
    }

    /// The last work that goes lets the ManagedCluster go.
    async fn follow_works(&self, stop: &CancellationToken) {
        let source = Source::all(manifest_works()).within(&self.config.name).metadata();
        follow(self.hub.client(), &source, stop, |change: Change<Named>| {
            if matches!(change, Change::Gone(_)) {
                self.queue.add(());
            }
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

    /// Brings everything about the ManagedCluster into order.
    async fn settle(&self) -> Result<Next, kube::Error> {
        let found = self.hub.find::<ManagedCluster>(&managed_clusters(), "", &self.config.name).await?;
        let Some(cluster) = found else { return self.clear_up().await };
        *self.gone_since.lock() = None;
        if cluster.metadata.deletion_timestamp.is_some() {
            return self.leave(&cluster).await;
        }
        if !cluster.spec.hub_accepts_client {
            return self.deny(&cluster).await;
        }
        let labels =
            json!({"labels": {MAILBOX_LABEL: self.config.name, CLUSTER_NAME_LABEL: self.config.name}});
        ensure(&self.hub, &namespaces(), "", &self.config.name, labels).await?;
        if !cluster.metadata.finalizers.iter().flatten().any(|f| f == CLUSTER_API_FINALIZER) {
            let mut finalizers = cluster.metadata.finalizers.clone().unwrap_or_default();
            finalizers.push(CLUSTER_API_FINALIZER.into());
            let patch = json!({"metadata": {"uid": cluster.metadata.uid,
                "resourceVersion": cluster.metadata.resource_version, "finalizers": finalizers}});
            self.hub.merge::<Named>(&managed_clusters(), "", &self.config.name, &patch).await?;
        }
        rbac::reconcile(&self.hub, &rbac::on_hub(&self.config.name)).await?;
        self.ensure_addon().await?;
        self.report(&cluster).await?;
        self.config.ready.send_replace(true);
        Ok(Next::OnChange)
    }

    async fn report(&self, cluster: &ManagedCluster) -> Result<(), kube::Error> {
        let now = Time(Timestamp::now());
        let old = cluster.status.clone().unwrap_or_default();
        let mut new = old.clone();
        for (type_, reason, message) in [
            ("HubAcceptedManagedCluster", "HubClusterAdminAccepted", "Accepted by hub cluster admin"),
            ("ManagedClusterJoined", "ManagedClusterJoined", "Managed cluster joined"),
            ("ManagedClusterConditionAvailable", "ManagedClusterAvailable", "Managed cluster is available"),
        ] {
            conditions::set(&mut new.conditions, truth(type_, reason, message, &now), false);
        }
        if let Ok(version) = self.cluster.client().apiserver_version().await {
            new.version.kubernetes = version.git_version;
        }
        if new == old {
            return Ok(());
        }
        let patch = json!({"metadata": {"uid": cluster.metadata.uid}, "status": new});
        self.hub.merge_status::<Named>(&managed_clusters(), "", &self.config.name, &patch).await.map(|_| ())
    }

    /// The status agent runs beside us: its add-on is there and well.
    async fn ensure_addon(&self) -> Result<(), kube::Error> {
        let gvr = Gvr::new(ADDON_GROUP, "v1alpha1", "managedclusteraddons");
        let namespace = self.config.name.as_str();
        let found = match self.hub.find::<Value>(&gvr, namespace, STATUS_ADDON).await {
            Ok(found) => found,
            // A hub without the add-on API works all the same (OCM-002).
            Err(error) if is_not_found(&error) => return Ok(()),
            Err(error) => return Err(error),
        };
        if found.is_none() {
            let body = json!({"apiVersion": format!("{ADDON_GROUP}/v1alpha1"), "kind": "ManagedClusterAddOn",
                "metadata": {"name": STATUS_ADDON, "namespace": namespace},
                "spec": {"installNamespace": OCM_ADDON_NAMESPACE}});
            self.hub.create::<Value>(&gvr, namespace, body.to_string().into_bytes()).await?;
        }
        let available = found.as_ref().is_some_and(|addon| {
            addon.pointer("/status/conditions").and_then(Value::as_array).is_some_and(|all| {
                all.iter().any(|c| {
                    c.get("type") == Some(&json!("Available")) && c.get("status") == Some(&json!("True"))
                })
            })
        });
        if available {
            return Ok(());
        }
        let now = Time(Timestamp::now());
        let condition =
            truth("Available", "ProbeAvailable", &format!("{STATUS_ADDON} add-on is available."), &now);
        let patch = json!({"status": {"conditions": [condition]}});
        self.hub.merge_status::<Value>(&gvr, namespace, STATUS_ADDON, &patch).await.map(|_| ())
    }

    async fn works(&self) -> Result<Vec<Named>, kube::Error> {
        self.hub.list::<List>(&manifest_works(), &self.config.name, "").await.map(|list| list.items)
    }

    /// The cluster is not wanted any more, but what it runs is not taken away: its agents lose their rights as soon as
    /// no work is left (OCM-058). One that never was accepted has none.
    async fn deny(&self, cluster: &ManagedCluster) -> Result<Next, kube::Error> {
        const ACCEPTED: &str = "HubAcceptedManagedCluster";
        let mut status = cluster.status.clone().unwrap_or_default();
        if !status.conditions.iter().any(|c| c.type_ == ACCEPTED && c.status == "True") {
            return Ok(Next::OnChange);
        }
        self.config.ready.send_replace(false);
        let works = !self.works().await?.is_empty();
        rbac::deny(&self.hub, &self.config.name, works).await?;
        if works {
            return Ok(Next::After(Duration::from_secs(5)));
        }
        let denied = Condition {
            status: "False".into(),
            ..truth(ACCEPTED, "HubClusterAdminDenied", "Denied by hub cluster admin", &Time(Timestamp::now()))
        };
        conditions::set(&mut status.conditions, denied, false);
        let patch = json!({"metadata": {"uid": cluster.metadata.uid}, "status": status});
        self.hub
            .merge_status::<Named>(&managed_clusters(), "", &self.config.name, &patch)
            .await
            .map(|_| Next::OnChange)
    }

    /// After the ManagedCluster has gone. Until others know of that they may put works into the mailbox, which the work
    /// agent must be able to take back: it keeps the right to works while there are any, and a moment longer.
    async fn clear_up(&self) -> Result<Next, kube::Error> {
        let since = self.gone_since.lock().get_or_insert_with(Instant::now).elapsed();
        if since < LINGER || !self.works().await?.is_empty() {
            return Ok(Next::After(LINGER));
        }
        self.forget_reports().await?;
        rbac::withdraw_works(&self.hub, &self.config.name).await.map(|()| Next::OnChange)
    }

    /// The status agent, which is about to lose its rights, may not have come to it.
    async fn forget_reports(&self) -> Result<(), kube::Error> {
        let gvr = Gvr::new(CONTROL_GROUP, "v1alpha1", "workstatuses");
        let found = match self.hub.list::<List>(&gvr, &self.config.name, "").await {
            Err(error) if is_not_found(&error) => return Ok(()),
            found => found?.items,
        };
        for report in found {
            let name = report.metadata.name.unwrap_or_default();
            gone(self.hub.delete(&gvr, &self.config.name, &name, &Removal::default()).await)?;
        }
        Ok(())
    }

    /// The cluster leaves: its works go, and with them the workload; then its add-ons; then itself. The mailbox
    /// namespace stays.
    async fn leave(&self, cluster: &ManagedCluster) -> Result<Next, kube::Error> {
        let finalizers = cluster.metadata.finalizers.clone().unwrap_or_default();
        if !finalizers.iter().any(|f| f == CLUSTER_API_FINALIZER) {
            return Ok(Next::OnChange);
        }
        let works = self.works().await?;
        for work in works.iter().filter(|w| w.metadata.deletion_timestamp.is_none()) {
            let name = work.metadata.name.as_deref().unwrap_or_default();
            gone(self.hub.delete(&manifest_works(), &self.config.name, name, &Removal::default()).await)?;
        }
        if !works.is_empty() {
            // The events of their end come here too.
            return Ok(Next::After(Duration::from_secs(1)));
        }
        let addons = Gvr::new(ADDON_GROUP, "v1alpha1", "managedclusteraddons");
        gone(self.hub.delete(&addons, &self.config.name, STATUS_ADDON, &Removal::default()).await)?;
        rbac::withdraw(&self.hub, &self.config.name).await?;
        let rest: Vec<&String> = finalizers.iter().filter(|f| *f != CLUSTER_API_FINALIZER).collect();
        let patch = json!({"metadata": {"uid": cluster.metadata.uid,
            "resourceVersion": cluster.metadata.resource_version, "finalizers": rest}});
        match self.hub.merge::<Named>(&managed_clusters(), "", &self.config.name, &patch).await {
            Err(error) if is_not_found(&error) => {}
            other => {
                other?;
            }
        }
        self.config.ready.send_replace(false);
        Ok(Next::OnChange)
    }
}

fn gone(answer: Result<(), kube::Error>) -> Result<(), kube::Error> {
    match answer {
        Err(error) if is_not_found(&error) => Ok(()),
        other => other,
    }
}

fn truth(type_: &str, reason: &str, message: &str, now: &Time) -> Condition {
    Condition {
        type_: type_.into(),
        status: "True".into(),
        reason: reason.into(),
        message: message.into(),
        observed_generation: None,
        last_transition_time: now.clone(),
    }
}

/// Creates a namespace unless it is there.
async fn ensure(
    rest: &Rest,
    gvr: &Gvr,
    namespace: &str,
    name: &str,
    metadata: Value,
) -> Result<(), kube::Error> {
    if rest.find::<Named>(gvr, namespace, name).await?.is_some() {
        return Ok(());
    }
    let mut metadata = metadata;
    metadata["name"] = name.into();
    let body = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata});
    match rest.create::<Named>(gvr, namespace, body.to_string().into_bytes()).await {
        Err(error) if is_conflict(&error) => Ok(()),
        other => other.map(|_| ()),
    }
}

fn namespaces() -> Gvr {
    Gvr::new("", "v1", "namespaces")
}

fn managed_clusters() -> Gvr {
    Gvr::new(CLUSTER_GROUP, "v1", "managedclusters")
}

fn manifest_works() -> Gvr {
    Gvr::new(WORK_GROUP, "v1", "manifestworks")
}
