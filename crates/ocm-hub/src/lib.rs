//! The hub's controllers: acceptance, permissions and departure of clusters, approval of their certificates,
//! leases, taints, cluster sets (`spec` of OCM, 2.4.3 to 2.10).
//!
//! [`enroll`] does the part of the administrators, on both sides of the handshake, for a cluster that this
//! process serves.
//!
//! Pure decisions: [`availability`], [`collect`], [`managed`], [`profiles`], [`sets`]. The rest is shell: informers add
//! keys to one queue, and the workers read the informers' stores.
//!
//! Cost: eleven watches. A renewed lease costs no request, unless the clocks differ. An accepted cluster with
//! a relevant change costs a read of each of its six roles and bindings. A changed label costs a scan of all
//! clusters for each set that may select by it.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use apis::{
    constants::CLUSTER_NAME_LABEL,
    ocm::{
        ClusterProfile, ManagedCluster, ManagedClusterAddOn, ManagedClusterSet, ManagedClusterSetBinding,
        ManifestWork,
    },
};
use futures::future::BoxFuture;
use k8s_openapi::{
    api::{
        authorization::v1::SubjectAccessReview,
        certificates::v1::CertificateSigningRequest,
        coordination::v1::Lease,
        core::v1::Namespace,
        rbac::v1::{ClusterRole, ClusterRoleBinding, RoleBinding},
    },
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
    apimachinery::pkg::apis::meta::v1::Condition,
    jiff::Timestamp,
};
use kube::{Client, core::PartialObjectMeta};
use ocm_shared::object::{identity, name_of};
use parking_lot::Mutex;
use runtime::{
    Event, Inputs, Next, PartialObject, Queue, Source, Store, TaskError, Tasks, Watched,
    failure::is_clash,
    install::{InstallError, install_shared},
    metrics::Metrics,
    rest::{Gvr, Rest},
    work,
};
use serde_json::{Value, json};
use tokio::{sync::watch, time::Instant};
use tokio_util::sync::CancellationToken;

use ocm_shared::{bootstrap, clock::FutureTimes, conditions, csr, rbac::Take};

pub mod admission;
pub mod availability;
pub mod collect;
pub mod completed;
pub mod enroll;
pub mod managed;
mod membership;
mod presence;
pub mod profiles;
pub mod sets;
mod shown;
mod wake;
pub mod works;

pub use membership::is_denied;

/// Timers of the hub (8.6).
#[derive(Clone, Debug)]
pub struct Timers {
    /// A lease is valid for this many lease durations.
    pub grace_factor: u32,
    /// Pause between two checks of what a leaving cluster still has.
    pub requeue: Duration,
    /// Pause between two checks of the built-in sets.
    pub sets: Duration,
    /// How long after the end of a ManagedCluster other controllers may still create works in its mailbox.
    pub linger: Duration,
}

impl Default for Timers {
    fn default() -> Self {
        Self {
            grace_factor: 5,
            requeue: Duration::from_secs(5),
            sets: Duration::from_secs(10),
            linger: Duration::from_secs(1),
        }
    }
}

/// Settings of the hub.
#[derive(Clone)]
pub struct Config {
    /// Requesters whose first certificate is approved automatically.
    pub approval: csr::Policy,
    /// Whether every new ManagedCluster is accepted, once (gate ManagedClusterAutoApproval; OCM-043).
    pub auto_accept: bool,
    /// Whether the content of a deleted cluster's mailbox is deleted (gate ResourceCleanup).
    pub cleanup: bool,
    /// Whether complete works are deleted after their time to live (gate CleanUpCompletedManifestWork;
    /// OCM-097). Costs a watch of whole works.
    pub clean_completed: bool,
    /// Whether the hub maintains the sets `default` and `global` (gate DefaultClusterSet).
    pub default_sets: bool,
    /// Whether clusters are shown as ClusterProfiles in the namespaces that their sets are bound to (gate
    /// ClusterProfile; OCM-165). Installs that kind.
    pub cluster_profiles: bool,
    /// Additional labels of mailbox namespaces, and of the roles and bindings of clusters (`--labels`; OCM-166).
    pub labels: BTreeMap<String, String>,
    /// The timers.
    pub timers: Timers,
    /// The hub's clock.
    pub clock: fn() -> Timestamp,
    /// Receives the metrics (OCM-164).
    pub metrics: Metrics,
    /// Most clusters with metrics of their own.
    pub most_shown: usize,
    /// The CRDs to install.
    pub kinds: fn() -> Vec<CustomResourceDefinition>,
    /// Set to true once the hub works.
    pub ready: watch::Sender<bool>,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            approval: csr::Policy::default(),
            auto_accept: false,
            cleanup: true,
            clean_completed: false,
            default_sets: true,
            cluster_profiles: false,
            labels: BTreeMap::new(),
            timers: Timers::default(),
            clock: Timestamp::now,
            metrics: Metrics::default(),
            most_shown: 1000,
            kinds: apis::crds::ocm_hub,
            ready: watch::Sender::new(false),
        }
    }
}

/// Why the hub ended by itself.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The CRDs could not be installed.
    #[error("installing the CRDs of the hub")]
    Install(#[from] InstallError),
    /// What bootstrapping agents need could not be created.
    #[error("preparing the hub for agents")]
    Bootstrap(#[from] Box<kube::Error>),
    /// A task died.
    #[error(transparent)]
    Task(#[from] TaskError),
}

/// A work item.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Key {
    /// Acceptance, permissions and departure of a cluster.
    Membership(String),
    /// Its lease.
    Presence(String),
    /// Its clock, after a renewal of the lease.
    Clock(String),
    /// Its taints.
    Taints(String),
    /// The labels about its add-ons, and the add-ons of a cluster with an expired lease.
    Features(String),
    /// A signing request.
    Csr(String),
    /// The built-in sets.
    Builtin,
    /// The namespaces that the cluster's sets request.
    Namespaces(String),
    /// Status of a set.
    Set(String),
    /// A complete work: namespace and name.
    Completed(String, String),
    /// Status of a binding: namespace and name.
    Binding(String, String),
    /// The profile of a cluster in a namespace: namespace and cluster.
    Profile(String, String),
}

type Meta<K> = PartialObjectMeta<K>;

#[derive(Default)]
struct Stores {
    clusters: Store<ManagedCluster>,
    leases: Store<Lease>,
    csrs: Store<CertificateSigningRequest>,
    works: Store<Meta<ManifestWork>>,
    /// Followed only for their completion (OCM-097).
    whole_works: Store<ManifestWork>,
    addons: Store<ManagedClusterAddOn>,
    sets: Store<ManagedClusterSet>,
    bindings: Store<ManagedClusterSetBinding>,
    /// Followed only with the gate ClusterProfile.
    profiles: Store<ClusterProfile>,
    namespaces: Store<PartialObject>,
    roles: Store<PartialObject>,
    role_bindings: Store<PartialObject>,
    cluster_role_bindings: Store<PartialObject>,
}

struct Hub {
    rest: Rest,
    config: Config,
    queue: Queue<Key>,
    know: Stores,
    /// When the hub began to watch leases.
    since: Timestamp,
    ahead: Mutex<FutureTimes>,
    metrics: shown::HubMetrics,
    /// Clusters that are gone but still have permissions or works, and since when.
    gone: Mutex<HashMap<String, Instant>>,
    /// Clusters whose permissions have been removed, and which of them, unless those changed since.
    taken: Mutex<HashMap<String, Take>>,
    /// Clusters whose deletion this hub saw, until their mailboxes are empty.
    deleted: Mutex<HashSet<String>>,
}

/// Runs the hub's controllers until `stop`. `client` must have all permissions, because the controllers grant
/// permissions.
///
/// # Errors
///
/// If the CRDs or the bootstrap objects cannot be created, or a task fails.
pub fn run(client: Client, config: Config, stop: CancellationToken) -> BoxFuture<'static, Result<(), Error>> {
    Box::pin(drive(client, config, stop))
}

async fn drive(client: Client, config: Config, stop: CancellationToken) -> Result<(), Error> {
    let mut kinds = (config.kinds)();
    if config.cluster_profiles {
        kinds.extend(apis::crds::cluster_profiles());
    }
    install_shared(&client, &kinds, MANAGER).await?;
    let rest = Rest::with_manager(client, MANAGER);
    bootstrap::prepare(&rest).await.map_err(Box::new)?;
    let ready = config.ready.clone();
    let hub = Arc::new(Hub {
        rest,
        since: (config.clock)(),
        ahead: Mutex::default(),
        metrics: shown::HubMetrics::new(&config.metrics, config.most_shown),
        config,
        queue: Queue::new(Duration::from_millis(20), Duration::from_secs(30)),
        know: Stores::default(),
        gone: Mutex::default(),
        taken: Mutex::default(),
        deleted: Mutex::default(),
    });
    let mut tasks = Tasks::new(&stop);
    let synced = hub.follow_all(Inputs::new(&mut tasks));
    if hub.config.default_sets {
        hub.queue.add(Key::Builtin);
    }
    let (me, token) = (hub.clone(), tasks.token().clone());
    tasks.spawn_endless("work", async move {
        tokio::select! {
            () = synced => {}
            () = token.cancelled() => return,
        }
        ready.send_replace(true);
        let hub = me.clone();
        work("hub", &me.queue, WORKERS, &token, move |key| {
            let hub = hub.clone();
            async move { hub.act(key).await }
        })
        .await;
    });
    Ok(tasks.finish().await?)
}

/// Field manager of the hub.
const MANAGER: &str = "registration-controller";
/// Number of workers. One cluster has several keys, which may be processed concurrently; a write based on an
/// old version is refused and retried.
const WORKERS: usize = 4;

impl Stores {
    fn cluster(&self, name: &str) -> Option<Arc<ManagedCluster>> {
        self.clusters.get("", name)
    }
}

impl Hub {
    /// Follows everything that the hub decides on. The future ends when all of it is known.
    fn follow_all(self: &Arc<Self>, mut inputs: Inputs<'_>) -> BoxFuture<'static, ()> {
        let to = &mut inputs;
        let labelled = |source: Source| source.labels(CLUSTER_NAME_LABEL);
        let know = &self.know;
        self.follow(to, Source::of::<ManagedCluster>(), &know.clusters, Self::on_cluster);
        self.follow(to, labelled(Source::of::<Lease>()), &know.leases, Self::on_lease);
        self.follow(to, labelled(Source::of::<CertificateSigningRequest>()), &know.csrs, Self::on_csr);
        self.follow(to, Source::of::<ManifestWork>().metadata(), &know.works, Self::on_work);
        self.follow(to, Source::of::<ManagedClusterAddOn>(), &know.addons, Self::on_addon);
        self.follow(to, Source::of::<ManagedClusterSet>(), &know.sets, Self::on_set);
        self.follow(to, Source::of::<ManagedClusterSetBinding>(), &know.bindings, Self::on_binding);
        if self.config.cluster_profiles {
            self.follow(to, Source::of::<ClusterProfile>(), &know.profiles, Self::on_profile);
        }
        if self.config.clean_completed {
            self.follow(to, Source::of::<ManifestWork>(), &know.whole_works, Self::on_whole_work);
        }
        let light = |source: Source| labelled(source).metadata();
        self.follow(to, light(Source::of::<Namespace>()), &know.namespaces, Self::on_right);
        self.follow(to, light(Source::of::<ClusterRole>()), &know.roles, Self::on_right);
        self.follow(to, light(Source::of::<RoleBinding>()), &know.role_bindings, Self::on_right);
        self.follow(
            to,
            light(Source::of::<ClusterRoleBinding>()),
            &know.cluster_role_bindings,
            Self::on_right,
        );
        inputs.synced()
    }

    fn follow<T: Watched>(
        self: &Arc<Self>,
        inputs: &mut Inputs<'_>,
        source: Source,
        store: &Store<T>,
        on: fn(&Self, Event<T>),
    ) {
        let me = self.clone();
        inputs.follow(self.rest.client(), source, store, move |event| on(&me, event));
    }

    async fn act(&self, key: Key) -> Result<Next, kube::Error> {
        let done = match &key {
            Key::Membership(cluster) => self.membership(cluster).await,
            Key::Presence(cluster) => self.presence(cluster).await,
            Key::Clock(cluster) => self.clock(cluster).await,
            Key::Taints(cluster) => self.taints(cluster).await,
            Key::Features(cluster) => self.features(cluster).await,
            Key::Csr(name) => self.sign(name).await,
            Key::Builtin => self.builtin_sets().await,
            Key::Namespaces(cluster) => self.managed_namespaces(cluster).await,
            Key::Set(name) => self.set_status(name).await,
            Key::Completed(namespace, name) => self.completed(namespace, name).await,
            Key::Binding(namespace, name) => self.binding_status(namespace, name).await,
            Key::Profile(namespace, cluster) => self.profile(namespace, cluster).await,
        };
        match done {
            // The informer has not received the latest version yet.
            Err(error) if is_clash(&error) => Ok(Next::Retry),
            done => done,
        }
    }

    fn now(&self) -> Timestamp {
        (self.config.clock)()
    }

    /// Approves a signing request if allowed (OCM-039).
    async fn sign(&self, name: &str) -> Result<Next, kube::Error> {
        let Some(request) = self.know.csrs.get("", name) else { return Ok(Next::OnChange) };
        match csr::verdict(&request, &self.config.approval) {
            csr::Verdict::Leave => return Ok(Next::OnChange),
            csr::Verdict::IfMayRenew if !self.may_renew(&request).await? => {
                self.metrics.request("refused");
                return Ok(Next::OnChange);
            }
            csr::Verdict::Approve | csr::Verdict::IfMayRenew => {}
        }
        let stamp = self.now().to_string();
        let condition = json!({"type": "Approved", "status": "True", "reason": "AutoApprovedByHubCSRApprovingController",
            "message": "Auto approving Managed cluster agent certificate after SubjectAccessReview.",
            "lastUpdateTime": stamp, "lastTransitionTime": stamp});
        bootstrap::approve(&self.rest, &request, condition).await?;
        self.metrics.request("approved");
        Ok(Next::OnChange)
    }

    async fn may_renew(&self, request: &CertificateSigningRequest) -> Result<bool, kube::Error> {
        let spec = &request.spec;
        let review = json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": {
            "user": spec.username, "uid": spec.uid, "groups": spec.groups, "extra": spec.extra,
            "resourceAttributes": {"verb": "renew", "group": "register.open-cluster-management.io",
                "resource": "managedclusters", "subresource": "clientcertificates"}}});
        let gvr = Gvr::of::<SubjectAccessReview>();
        let answer: Value = self.rest.create(&gvr, "", review.to_string().into_bytes()).await?;
        Ok(answer.pointer("/status/allowed").and_then(Value::as_bool).unwrap_or(false))
    }

    /// Writes conditions of a cluster, if any changed (OCM-004).
    async fn report(&self, cluster: &ManagedCluster, news: Vec<Condition>) -> Result<(), kube::Error> {
        let old = cluster.status.as_ref().map(|status| status.conditions.clone()).unwrap_or_default();
        let mut list = old.clone();
        for condition in news {
            conditions::set(&mut list, condition);
        }
        if list == old {
            return Ok(());
        }
        let patch = json!({"metadata": identity(cluster), "status": {"conditions": list}});
        self.rest.merge_status::<Value>(&clusters(), "", name_of(cluster), &patch).await.map(drop)
    }

    /// Writes metadata or spec of a cluster, unless it has changed in the meantime.
    async fn patch(&self, cluster: &ManagedCluster, patch: Value) -> Result<(), kube::Error> {
        let patch = guarded(cluster, patch);
        self.rest.merge::<Value>(&clusters(), "", name_of(cluster), &patch).await.map(drop)
    }
}

/// Returns a patch of metadata or spec that the server refuses if the cluster has changed since it was read
/// (OCM-005).
fn guarded(cluster: &ManagedCluster, mut patch: Value) -> Value {
    let mut metadata = identity(cluster);
    if let (Some(all), Some(more)) =
        (metadata.as_object_mut(), patch.get("metadata").and_then(Value::as_object))
    {
        all.extend(more.clone());
    }
    patch["metadata"] = metadata;
    patch
}

fn clusters() -> Gvr {
    Gvr::of::<ManagedCluster>()
}

fn works() -> Gvr {
    Gvr::of::<ManifestWork>()
}

fn addons() -> Gvr {
    Gvr::of::<ManagedClusterAddOn>()
}
