//! The hub's side of add-ons: the clusters that a Placement selects, where add-ons are installed, the
//! identities and permissions of their agents, their deployment, and their health (`spec` of OCM, 1.3, 4 and
//! 5).
//!
//! It has two parts that are separate programs in OCM: the general manager ([`Config::general`]), and the
//! managers of single add-ons ([`Config::addons`]), of which there is one, for the status add-on
//! ([`status`]). Either part works together with a Go program in place of the other, because they communicate
//! only through the status of ManagedClusterAddOns.
//!
//! Pure decisions: [`placement`], [`install`], [`framework`], [`approval`], [`config`], [`deploy`],
//! [`health`], `template`, [`signer`]. The rest is shell: informers add keys to one queue, and the workers
//! read the informers' stores.
//!
//! An add-on may also be deployed from an AddOnTemplate; then the general manager is its own manager, too
//! (`template`).
//!
//! Cost: fourteen watches, three of them for Placements only. A changed cluster costs a look at all sets,
//! bindings and Placements; for each Placement that may select it and reads what has changed, a look at all
//! clusters, once for a burst of changes. A changed ManagedClusterAddOn costs at most one
//! write of its status, and a read of each of its roles and bindings the first time. Without changes it costs
//! nothing.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use apis::{
    constants::{ADDON_GROUP, ADDON_NAME_LABEL, OCM_HUB_NAMESPACE},
    ocm::{
        AddOnDeploymentConfig, AddOnPlacementScore, AddOnTemplate, ClusterManagementAddOn, ManagedCluster,
        ManagedClusterAddOn, ManagedClusterSet, ManagedClusterSetBinding, ManifestWork, Placement,
        PlacementDecision, addon::ConfigReference,
    },
};
use futures::future::BoxFuture;
use k8s_openapi::{
    api::{
        certificates::v1::CertificateSigningRequest,
        core::v1::{Namespace, Secret, ServiceAccount},
        rbac::v1::{Role, RoleBinding},
    },
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
    jiff::Timestamp,
};
use kube::{Client, Resource, api::DynamicObject};
use ocm_shared::object::{identity, name_of};
use parking_lot::Mutex;
use runtime::{
    Event, Inputs, Next, PartialObject, Queue, Source, Store, TaskError, Tasks, Watched,
    failure::is_clash,
    install::{InstallError, install_shared},
    rest::{Gvr, Rest},
    work,
};
use serde_json::{Value, json};
use tokio::{sync::watch, time::Instant};
use tokio_util::sync::CancellationToken;

mod agent_rights;
pub mod approval;
pub mod config;
mod departure;
pub mod deploy;
pub mod framework;
pub mod health;
pub mod install;
mod pass;
pub mod placement;
mod presence;
mod scheduling;
pub mod signer;
pub mod status;
mod template;
pub mod tokens;
mod wake;
mod wake_placements;

pub use framework::Addon;
use framework::SigningCa;

use ocm_shared::csr::is_decided;

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
    /// Whether Placements are decided.
    pub placements: bool,
    /// Whether add-ons are installed, with owners and configuration: the general manager.
    pub general: bool,
    /// The add-ons of which this is the own manager.
    pub addons: Vec<Arc<dyn Addon>>,
    /// Objects to create at the start if they are missing: namespace, plural, object.
    pub definitions: Vec<(&'static str, &'static str, Value)>,
    /// The timers.
    pub timers: Timers,
    /// The hub's clock.
    pub clock: fn() -> Timestamp,
    /// The CRDs to install.
    pub kinds: fn() -> Vec<CustomResourceDefinition>,
    /// Set to true once the manager works.
    pub ready: watch::Sender<bool>,
}

impl Default for Config {
    /// Everything a hub does about add-ons, without an add-on of its own.
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
        Self {
            addons: vec![Arc::new(addon)],
            definitions: status::definitions(),
            kinds: apis::crds::ocm_hub_with_reports,
            ..Self::default()
        }
    }
}

/// Why the manager ended by itself.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The CRDs could not be installed.
    #[error("installing the CRDs of add-ons")]
    Install(#[from] InstallError),
    /// The objects that define an add-on could not be created.
    #[error("creating the definition of the add-on")]
    Define(#[from] Box<kube::Error>),
    /// A task died.
    #[error(transparent)]
    Task(#[from] TaskError),
}

/// A work item.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Key {
    /// A Placement: namespace and name.
    Placement(String, String),
    /// The clusters in which an add-on is installed.
    Install(String),
    /// An add-on in a cluster.
    Addon(String, String),
    /// The summary of an add-on over all clusters.
    Summary(String),
    /// A signing request.
    Csr(String),
    /// The service account of an add-on's agent: cluster and add-on.
    Token(String, String),
}

#[derive(Default)]
struct Stores {
    clusters: Store<ManagedCluster>,
    sets: Store<ManagedClusterSet>,
    bindings: Store<ManagedClusterSetBinding>,
    placements: Store<Placement>,
    decisions: Store<PlacementDecision>,
    scores: Store<AddOnPlacementScore>,
    owners: Store<ClusterManagementAddOn>,
    addons: Store<ManagedClusterAddOn>,
    /// As they are stored, because the digest is that of the stored JSON.
    configs: Store<DynamicObject>,
    /// Likewise.
    templates: Store<DynamicObject>,
    works: Store<ManifestWork>,
    csrs: Store<CertificateSigningRequest>,
    roles: Store<PartialObject>,
    role_bindings: Store<PartialObject>,
    /// What is made for agents that identify themselves by token.
    accounts: Store<PartialObject>,
    token_roles: Store<PartialObject>,
    token_bindings: Store<PartialObject>,
}

/// Cluster and add-on.
type ClusterAddon = (String, String);

/// What was last done about the permissions of an add-on's agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rights {
    /// Permissions with this digest were granted.
    Given(u64),
    Taken,
}

struct Manager {
    rest: Rest,
    config: Config,
    queue: Queue<Key>,
    know: Stores,
    /// The agents whose permissions were granted or removed, and that no other client has changed since.
    rights: Mutex<HashMap<ClusterAddon, Rights>>,
    /// Add-ons that are no longer wanted, and since when.
    unwanted: Mutex<HashMap<ClusterAddon, Instant>>,
}

/// Field manager of the manager.
const MANAGER: &str = "addon-manager";
/// Pause before a request is retried whose signer's key could not be used.
const UNSIGNED: Duration = Duration::from_secs(10);
/// Keys worked on at once.
const WORKERS: usize = 4;

/// Runs the manager until `stop`. `client` must have all permissions of agents of add-ons, because it grants
/// them.
///
/// # Errors
///
/// If the CRDs or the definitions cannot be created, or a task fails.
pub fn run(client: Client, config: Config, stop: CancellationToken) -> BoxFuture<'static, Result<(), Error>> {
    Box::pin(drive(client, config, stop))
}

async fn drive(client: Client, config: Config, stop: CancellationToken) -> Result<(), Error> {
    install_shared(&client, &(config.kinds)(), MANAGER).await?;
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
    let synced = manager.follow_all(Inputs::new(&mut tasks));
    let (me, token) = (manager.clone(), tasks.token().clone());
    tasks.spawn_endless("work", async move {
        tokio::select! {
            () = synced => {}
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

/// Creates missing objects, and leaves existing ones alone: the administrators of the hub may change them.
async fn define(rest: &Rest, objects: &[(&str, &str, Value)]) -> Result<(), kube::Error> {
    for (namespace, plural, object) in objects {
        if !namespace.is_empty() {
            let body = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}});
            rest.create_missing(&Gvr::of::<Namespace>(), "", &body).await?;
        }
        let version = object["apiVersion"].as_str().unwrap_or_default();
        let (group, version) = version.split_once('/').unwrap_or(("", version));
        rest.create_missing(&Gvr::new(group, version, plural), namespace, object).await?;
    }
    Ok(())
}

impl Manager {
    /// Follows everything that the manager decides on. The future ends when all of it is known.
    fn follow_all(self: &Arc<Self>, mut inputs: Inputs<'_>) -> BoxFuture<'static, ()> {
        let to = &mut inputs;
        let know = &self.know;
        let labelled = |source: Source| source.labels(ADDON_NAME_LABEL);
        self.follow(to, Source::of::<ManagedCluster>(), &know.clusters, Self::on_cluster);
        if self.config.placements {
            self.follow(to, Source::of::<ManagedClusterSet>(), &know.sets, Self::on_set);
            self.follow(to, Source::of::<ManagedClusterSetBinding>(), &know.bindings, Self::on_binding);
            self.follow(to, Source::of::<AddOnPlacementScore>(), &know.scores, Self::on_score);
        }
        self.follow(to, Source::of::<Placement>(), &know.placements, Self::on_placement);
        self.follow(to, Source::of::<PlacementDecision>(), &know.decisions, Self::on_decision);
        self.follow(to, Source::of::<ClusterManagementAddOn>(), &know.owners, Self::on_owner);
        self.follow(to, Source::of::<ManagedClusterAddOn>(), &know.addons, Self::on_addon);
        self.follow(to, Source::of::<AddOnDeploymentConfig>(), &know.configs, Self::on_config);
        self.follow(to, Source::of::<AddOnTemplate>(), &know.templates, Self::on_template);
        self.follow(to, labelled(Source::of::<ManifestWork>()), &know.works, Self::on_work);
        self.follow(to, labelled(Source::of::<CertificateSigningRequest>()), &know.csrs, Self::on_csr);
        self.follow(to, labelled(Source::of::<Role>()).metadata(), &know.roles, Self::on_right);
        let bindings = labelled(Source::of::<RoleBinding>()).metadata();
        self.follow(to, bindings, &know.role_bindings, Self::on_right);
        let of_tokens = |source: Source| source.labels(format!("{}=true", tokens::LABEL)).metadata();
        let accounts = of_tokens(Source::of::<ServiceAccount>());
        self.follow(to, accounts, &know.accounts, Self::on_token_object);
        self.follow(to, of_tokens(Source::of::<Role>()), &know.token_roles, Self::on_token_object);
        let bindings = of_tokens(Source::of::<RoleBinding>());
        self.follow(to, bindings, &know.token_bindings, Self::on_token_object);
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
            Key::Placement(namespace, name) => self.decide(namespace, name).await,
            Key::Install(addon) => self.install(addon).await,
            Key::Addon(cluster, addon) => self.settle(cluster, addon).await,
            Key::Summary(addon) => self.summarise(addon).await,
            Key::Csr(name) => self.approve(name).await,
            Key::Token(cluster, addon) => self.token_identity(cluster, addon).await,
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

    fn cluster(&self, name: &str) -> Option<Arc<ManagedCluster>> {
        self.know.clusters.get("", name)
    }

    /// Returns the add-on, if this is its own manager: one of [`Config::addons`], or one from a template.
    /// `references` are those that its status should have.
    fn own(
        &self,
        owner: Option<&ClusterManagementAddOn>,
        addon: &Arc<ManagedClusterAddOn>,
        references: &[ConfigReference],
    ) -> Option<Arc<dyn Addon>> {
        let name = name_of(addon.as_ref());
        if let Some(own) = self.config.addons.iter().find(|own| own.name() == name) {
            return Some(own.clone());
        }
        let templated = match owner {
            Some(owner) => framework::is_managed(owner) && template::is_supported(owner),
            // Its definition is deleted, and so will be the add-on: it is rendered from its last template.
            None => references.iter().any(|r| r.group == ADDON_GROUP && r.resource == template::TEMPLATES),
        };
        (self.config.general && templated).then(|| {
            let find = |template: &str| self.know.templates.get("", template);
            Arc::new(template::Templated::new(addon.clone(), references, find)) as Arc<dyn Addon>
        })
    }

    fn decided(&self, namespace: &str, placement: &str) -> BTreeSet<String> {
        let pages = self.know.decisions.list_namespace(namespace);
        install::decided(pages.iter().map(AsRef::as_ref), namespace, placement)
    }

    /// Returns the digest of a configuration; `None` if it is missing or its kind is not known.
    fn digest(&self, config: &apis::ocm::addon::AddOnConfig) -> Option<String> {
        let found = match (config.group.as_str(), config.resource.as_str()) {
            (ADDON_GROUP, "addondeploymentconfigs") => self.know.configs.get(&config.namespace, &config.name),
            (ADDON_GROUP, template::TEMPLATES) => self.know.templates.get("", &config.name),
            _ => None,
        }?;
        Some(config::hash(found.data.get("spec").unwrap_or(&Value::Null)))
    }

    /// Approves the request of an add-on's agent, if allowed. Signs it, if it is for a signer whose key the
    /// add-on has (OCM-117).
    async fn approve(&self, name: &str) -> Result<Next, kube::Error> {
        let Some(request) = self.know.csrs.get("", name) else { return Ok(Next::OnChange) };
        let Some((cluster, addon)) = approval::claimed(&request) else { return Ok(Next::OnChange) };
        let accepted =
            |c: &Arc<ManagedCluster>| c.spec.hub_accepts_client && c.metadata.deletion_timestamp.is_none();
        let known = self.cluster(cluster).filter(accepted).and_then(|_| self.know.addons.get(cluster, addon));
        let Some(addon) = known else { return Ok(Next::OnChange) };
        let references = addon.status.as_ref().map(|s| s.config_references.as_slice()).unwrap_or_default();
        let owner = self.know.owners.get("", name_of(addon.as_ref()));
        let Some(own) = self.own(owner.as_deref(), &addon, references) else { return Ok(Next::OnChange) };
        let authority = own.signing_ca(&request.spec.signer_name);
        let authority = authority.filter(|_| approval::may_be_signed(&request, &addon));
        if !is_decided(&request) && (authority.is_some() || approval::may_approve(&request, &addon)) {
            let stamp = self.now().to_string();
            let verdict = json!({"type": "Approved", "status": "True", "reason": "AutoApprovedByHubCSRApprovingController",
                "message": "Auto approving addon agent certificate.", "lastUpdateTime": stamp, "lastTransitionTime": stamp});
            ocm_shared::bootstrap::approve(&self.rest, &request, verdict).await?;
            // The event of the approval brings the request back to be signed.
            return Ok(Next::OnChange);
        }
        match authority.filter(|_| approval::is_unsigned(&request)) {
            Some(authority) => self.sign(&request, &authority).await,
            None => Ok(Next::OnChange),
        }
    }

    async fn sign(
        &self,
        request: &CertificateSigningRequest,
        authority: &SigningCa,
    ) -> Result<Next, kube::Error> {
        use base64::Engine as _;
        let namespace =
            Some(authority.namespace.as_str()).filter(|n| !n.is_empty()).unwrap_or(OCM_HUB_NAMESPACE);
        let secret: Option<Secret> = self.rest.find(&Gvr::of::<Secret>(), namespace, &authority.name).await?;
        let part = |key: &str| {
            let data = secret.as_ref().and_then(|secret| secret.data.as_ref());
            data.and_then(|data| data.get(key)).map(|bytes| bytes.0.as_slice()).unwrap_or_default()
        };
        let signed = signer::Signer::read(part("tls.crt"), part("tls.key"))
            .and_then(|signer| signer.sign(request, self.now()));
        let certificate = match signed {
            Ok(certificate) => certificate,
            Err(error) => {
                // No event reports when an administrator repairs the Secret.
                tracing::warn!(request = name_of(request), secret = authority.name, namespace, %error, "a certificate of an add-on is not signed");
                return Ok(Next::After(UNSIGNED));
            }
        };
        let certificate = base64::engine::general_purpose::STANDARD.encode(certificate);
        let patch = json!({"metadata": identity(request), "status": {"certificate": certificate}});
        let gvr = Gvr::of::<CertificateSigningRequest>();
        self.rest.merge_status::<Value>(&gvr, "", name_of(request), &patch).await.map(|_| Next::OnChange)
    }
}

fn namespace_of<K: Resource>(object: &K) -> &str {
    object.meta().namespace.as_deref().unwrap_or_default()
}

fn addons() -> Gvr {
    Gvr::of::<ManagedClusterAddOn>()
}

fn works() -> Gvr {
    Gvr::of::<ManifestWork>()
}

fn decisions() -> Gvr {
    Gvr::of::<PlacementDecision>()
}
