//! Add-ons, the hub's side: which clusters a Placement selects, which add-ons are installed where, what identity and
//! rights their agents get, how they are deployed, and how they are (`spec` of OCM, 1.3, 4 and 5).
//!
//! Two halves that OCM has as programs of their own: the general manager ([`Config::general`]), and the managers of
//! single add-ons ([`Config::addons`]), of which we have one, for the status add-on ([`status`]). Either works beside a Go
//! counterpart of the other, because they meet in the status of ManagedClusterAddOns only.
//!
//! Pure decisions: [`placement`], [`install`], [`framework`], [`approval`], [`config`], [`deploy`], [`health`]. The rest is
//! shell: informers put keys into one queue, and what is done for a key reads the informers' stores.
//!
//! Cost: thirteen watches. A cluster that changes in what Placements look at costs a look at all clusters for each
//! Placement, once for a swarm of changes; a ManagedClusterAddOn that changes costs at most one write of its status, and
//! a read of each of its roles and bindings the first time. Idle it costs nothing.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use apis::{
    constants::{ADDON_GROUP, ADDON_NAME_LABEL, CLUSTER_GROUP, WORK_GROUP},
    ocm::{
        AddOnDeploymentConfig, ClusterManagementAddOn, ManagedCluster, ManagedClusterAddOn,
        ManagedClusterSet, ManagedClusterSetBinding, ManifestWork, Placement, PlacementDecision,
    },
};
use k8s_openapi::{
    api::{
        certificates::v1::CertificateSigningRequest,
        rbac::v1::{Role, RoleBinding},
    },
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
    jiff::Timestamp,
};
use kube::{Client, Resource, api::DynamicObject};
use parking_lot::Mutex;
use runtime::{
    Event, Light, Next, Queue, Store, TaskError, Tasks, Watched,
    informer::{self, Source},
    install::{InstallError, install as install_kinds},
    rest::{Gvr, Rest, is_conflict},
    work,
};
use serde_json::{Value, json};
use tokio::{sync::watch, time::Instant};
use tokio_util::sync::CancellationToken;

pub mod approval;
pub mod config;
pub mod deploy;
pub mod framework;
pub mod health;
pub mod install;
mod pass;
pub mod placement;
mod presence;
pub mod status;
mod wake;

pub use framework::Addon;

/// Timers of the manager (8.6).
#[derive(Clone, Debug)]
pub struct Timers {
    /// How long an add-on must have been unwanted before it is removed (OCM-163).
    pub confirm: Duration,
}

impl Default for Timers {
    fn default() -> Self {
        Self { confirm: Duration::from_secs(5) }
    }
}

/// Settings of the manager.
#[derive(Clone)]
pub struct Config {
    /// Placements are decided.
    pub placements: bool,
    /// Add-ons are installed where they are to be, with owners and configuration: the general manager.
    pub general: bool,
    /// Add-ons whose own manager this is.
    pub addons: Vec<Arc<dyn Addon>>,
    /// Objects to make at the start if they are missing: namespace, plural, object.
    pub definitions: Vec<(&'static str, &'static str, Value)>,
    /// The timers.
    pub timers: Timers,
    /// The hub's clock.
    pub clock: fn() -> Timestamp,
    /// The kinds to define.
    pub kinds: fn() -> Vec<CustomResourceDefinition>,
    /// Set true once the manager works.
    pub ready: watch::Sender<bool>,
}

impl Default for Config {
    /// Everything a hub does about add-ons, but without an add-on.
    fn default() -> Self {
        Self {
            placements: true,
            general: true,
            addons: Vec::new(),
            definitions: Vec::new(),
            timers: Timers::default(),
            clock: Timestamp::now,
            kinds: apis::crds::ocm_hub,
            ready: watch::Sender::new(false),
        }
    }
}

impl Config {
    /// Everything a hub does about add-ons, with the status add-on.
    pub fn with_status_addon(addon: status::StatusAddon) -> Self {
        Self { addons: vec![Arc::new(addon)], definitions: status::definitions(), ..Self::default() }
    }
}

/// Why the manager ended by itself.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Its kinds could not be installed.
    #[error("defining the kinds of add-ons")]
    Install(#[from] InstallError),
    /// What makes an add-on known could not be made.
    #[error("making the add-on known")]
    Define(#[from] Box<kube::Error>),
    /// A task died.
    #[error(transparent)]
    Task(#[from] TaskError),
}

/// Something to look at.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Key {
    /// A Placement: namespace and name.
    Placement(String, String),
    /// In which clusters an add-on is.
    Install(String),
    /// An add-on in a cluster.
    Addon(String, String),
    /// What is said about an add-on over all clusters.
    Summary(String),
    /// A signing request.
    Csr(String),
}

#[derive(Default)]
struct Stores {
    clusters: Store<ManagedCluster>,
    sets: Store<ManagedClusterSet>,
    bindings: Store<ManagedClusterSetBinding>,
    placements: Store<Placement>,
    decisions: Store<PlacementDecision>,
    owners: Store<ClusterManagementAddOn>,
    addons: Store<ManagedClusterAddOn>,
    /// As they are stored: their digest is that of the text.
    configs: Store<DynamicObject>,
    works: Store<ManifestWork>,
    csrs: Store<CertificateSigningRequest>,
    roles: Store<Light>,
    role_bindings: Store<Light>,
}

/// Cluster and add-on.
type Place = (String, String);

struct Manager {
    rest: Rest,
    config: Config,
    queue: Queue<Key>,
    know: Stores,
    /// Whose rights were given (true) or taken (false), and not touched by others since.
    rights: Mutex<HashMap<Place, bool>>,
    /// Add-ons that are not wanted any more, and since when.
    unwanted: Mutex<HashMap<Place, Instant>>,
}

/// Field manager of the manager.
const MANAGER: &str = "addon-manager";
/// Keys worked on at once.
const WORKERS: usize = 4;

/// Runs the manager until `stop`. `client` must be allowed everything that agents of add-ons are: it hands out rights.
pub async fn run(client: Client, config: Config, stop: CancellationToken) -> Result<(), Error> {
    install_kinds(&client, &(config.kinds)(), MANAGER).await?;
    let rest = Rest::with_manager(client, MANAGER);
    define(&rest, &config.definitions).await.map_err(Box::new)?;
    let ready = config.ready.clone();
    let manager = Arc::new(Manager {
        rest,
        config,
        queue: Queue::new(Duration::from_millis(20), Duration::from_secs(30)),
        know: Stores::default(),
        rights: Mutex::default(),
        unwanted: Mutex::default(),
    });
    let mut tasks = Tasks::new(&stop);
    manager.follow_all(&mut tasks);
    let (me, token) = (manager.clone(), tasks.token().clone());
    tasks.spawn_endless("work", async move {
        tokio::select! {
            () = me.know.synced() => {}
            () = token.cancelled() => return,
        }
        ready.send_replace(true);
        let manager = me.clone();
        work("addon-manager", &me.queue, WORKERS, &token, move |key| {
            let manager = manager.clone();
            async move { manager.act(key).await }
        })
        .await;
    });
    Ok(tasks.finish().await?)
}

/// Makes what is missing, and leaves alone what is there: it is for the administrators of the hub.
async fn define(rest: &Rest, objects: &[(&str, &str, Value)]) -> Result<(), kube::Error> {
    for (namespace, plural, object) in objects {
        if !namespace.is_empty() {
            let body = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}});
            make(rest, &Gvr::new("", "v1", "namespaces"), "", &body).await?;
        }
        let version = object["apiVersion"].as_str().unwrap_or_default();
        let (group, version) = version.split_once('/').unwrap_or(("", version));
        make(rest, &Gvr::new(group, version, plural), namespace, object).await?;
    }
    Ok(())
}

async fn make(rest: &Rest, gvr: &Gvr, namespace: &str, object: &Value) -> Result<(), kube::Error> {
    match rest.create::<Value>(gvr, namespace, object.to_string().into_bytes()).await {
        Err(error) if is_conflict(&error) => Ok(()),
        other => other.map(drop),
    }
}

impl Stores {
    async fn synced(&self) {
        self.clusters.synced().await;
        self.sets.synced().await;
        self.bindings.synced().await;
        self.placements.synced().await;
        self.decisions.synced().await;
        self.owners.synced().await;
        self.addons.synced().await;
        self.configs.synced().await;
        self.works.synced().await;
        self.csrs.synced().await;
        self.roles.synced().await;
        self.role_bindings.synced().await;
    }
}

impl Manager {
    fn follow_all(self: &Arc<Self>, tasks: &mut Tasks) {
        let know = &self.know;
        let labelled = |source: Source| source.labels(ADDON_NAME_LABEL);
        self.follow(tasks, Source::of::<ManagedCluster>(), &know.clusters, Self::on_cluster);
        self.follow(tasks, Source::of::<ManagedClusterSet>(), &know.sets, Self::on_set);
        self.follow(tasks, Source::of::<ManagedClusterSetBinding>(), &know.bindings, Self::on_binding);
        self.follow(tasks, Source::of::<Placement>(), &know.placements, Self::on_placement);
        self.follow(tasks, Source::of::<PlacementDecision>(), &know.decisions, Self::on_decision);
        self.follow(tasks, Source::of::<ClusterManagementAddOn>(), &know.owners, Self::on_owner);
        self.follow(tasks, Source::of::<ManagedClusterAddOn>(), &know.addons, Self::on_addon);
        self.follow(tasks, Source::of::<AddOnDeploymentConfig>(), &know.configs, Self::on_config);
        self.follow(tasks, labelled(Source::of::<ManifestWork>()), &know.works, Self::on_work);
        self.follow(tasks, labelled(Source::of::<CertificateSigningRequest>()), &know.csrs, Self::on_csr);
        self.follow(tasks, labelled(Source::of::<Role>()).metadata(), &know.roles, Self::on_right);
        let bindings = labelled(Source::of::<RoleBinding>()).metadata();
        self.follow(tasks, bindings, &know.role_bindings, Self::on_right);
    }

    fn follow<T: Watched>(
        self: &Arc<Self>,
        tasks: &mut Tasks,
        source: Source,
        store: &Store<T>,
        on: impl Fn(&Self, Event<T>) + Send + Sync + 'static,
    ) {
        let (me, store, token) = (self.clone(), store.clone(), tasks.token().clone());
        let client = self.rest.client().clone();
        tasks.spawn_endless(source.resource.plural.clone(), async move {
            informer::run(client, source, store, |event| on(&me, event), token).await;
        });
    }

    async fn act(&self, key: Key) -> Result<Next, kube::Error> {
        let done = match &key {
            Key::Placement(namespace, name) => self.decide(namespace, name).await,
            Key::Install(addon) => self.install(addon).await,
            Key::Addon(cluster, addon) => self.settle(cluster, addon).await,
            Key::Summary(addon) => self.summarise(addon).await,
            Key::Csr(name) => self.approve(name).await,
        };
        match done {
            // What was read is not the latest: it is on its way to us.
            Err(error) if is_conflict(&error) => Ok(Next::Retry),
            done => done,
        }
    }

    fn now(&self) -> Timestamp {
        (self.config.clock)()
    }

    fn cluster(&self, name: &str) -> Option<Arc<ManagedCluster>> {
        self.know.clusters.get("", name)
    }

    /// The add-on of which this is the own manager.
    fn own(&self, addon: &str) -> Option<&Arc<dyn Addon>> {
        self.config.addons.iter().find(|own| own.name() == addon)
    }

    fn decided(&self, namespace: &str, placement: &str) -> BTreeSet<String> {
        let pages = self.know.decisions.list_namespace(namespace);
        install::decided(pages.iter().map(AsRef::as_ref), namespace, placement)
    }

    /// Digest of a configuration; `None` for one that is missing, or of a kind that is not known.
    fn digest(&self, config: &apis::ocm::addon::AddOnConfig) -> Option<String> {
        if config.group != ADDON_GROUP || config.resource != "addondeploymentconfigs" {
            return None;
        }
        let found = self.know.configs.get(&config.namespace, &config.name)?;
        Some(config::hash(found.data.get("spec").unwrap_or(&Value::Null)))
    }

    /// Approves the request of an add-on's agent, if that is in order (OCM-117).
    async fn approve(&self, name: &str) -> Result<Next, kube::Error> {
        let Some(request) = self.know.csrs.get("", name) else { return Ok(Next::OnChange) };
        let Some((cluster, addon)) = approval::claimed(&request) else { return Ok(Next::OnChange) };
        let member = self.cluster(cluster).filter(|c| {
            c.spec.hub_accepts_client && c.metadata.deletion_timestamp.is_none() && self.own(addon).is_some()
        });
        let (Some(_), Some(addon)) = (member, self.know.addons.get(cluster, addon)) else {
            return Ok(Next::OnChange);
        };
        if !approval::may_approve(&request, &addon) {
            return Ok(Next::OnChange);
        }
        let stamp = self.now().to_string();
        let verdict = json!({"type": "Approved", "status": "True", "reason": "AutoApprovedByHubCSRApprovingController",
            "message": "Auto approving addon agent certificate.", "lastUpdateTime": stamp, "lastTransitionTime": stamp});
        crate::hub::bootstrap::approve(&self.rest, &request, verdict).await.map(|()| Next::OnChange)
    }
}

/// UID and version of what was read: the patch is refused if that is not what is there.
fn identity<K: Resource>(object: &K) -> Value {
    json!({"uid": object.meta().uid, "resourceVersion": object.meta().resource_version})
}

fn name_of<K: Resource>(object: &K) -> &str {
    object.meta().name.as_deref().unwrap_or_default()
}

fn namespace_of<K: Resource>(object: &K) -> &str {
    object.meta().namespace.as_deref().unwrap_or_default()
}

fn addons() -> Gvr {
    Gvr::new(ADDON_GROUP, "v1alpha1", "managedclusteraddons")
}

fn works() -> Gvr {
    Gvr::new(WORK_GROUP, "v1", "manifestworks")
}

fn placements() -> Gvr {
    Gvr::new(CLUSTER_GROUP, "v1beta1", "placements")
}

fn decisions() -> Gvr {
    Gvr::new(CLUSTER_GROUP, "v1beta1", "placementdecisions")
}
