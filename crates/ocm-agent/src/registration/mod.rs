//! The registration agent: gets a cluster into the inventory of a hub by the double opt-in handshake, and keeps it there
//! (`spec` of OCM, 2.1 to 2.9).
//!
//! The agent keeps its identity in a Secret of its cluster. While that is not good, it bootstraps with what it was given
//! to join: it creates the ManagedCluster and a signing request, and waits for both to be accepted, in any order. With a
//! good one it works: it renews certificate and lease, and reports how its cluster is.
//!
//! It does the same for the agents of add-ons, and tells how those are ([`BuiltIn`] are the ones that run in its process).
//!
//! Pure decisions: [`identity`], [`probe`], [`report`], `addon_rules`. Components that act for the cluster on the hub share the
//! agent's [`Connection`], whose credential changes under them.
//!
//! Cost: on the hub a watch each of the own ManagedCluster and of the own signing requests, two requests per renewal of the
//! lease, and a status patch when something changed; in the cluster watches of nodes, claims and the Secret, and one look
//! at its health per period.

use std::{collections::BTreeMap, path::PathBuf, sync::Arc, time::Duration};

use apis::{
    constants::{BUILT_IN_ADDONS_ANNOTATION, OCM_AGENT_NAMESPACE},
    ocm::ManagedCluster,
};
use futures::future::BoxFuture;
use k8s_openapi::jiff::Timestamp;
use kube::Client;
use parking_lot::Mutex;
use runtime::{
    Store, TaskError,
    backoff::jittered,
    rest::{Gvr, Rest},
};
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

mod addon_api;
mod addon_identity;
mod addon_rules;
mod addons;
mod built_in;
mod connection;
mod handshake;
pub mod identity;
mod lease;
mod namespaces;
mod pending;
pub mod probe;
pub mod report;
mod secret;
mod status;
mod waiting;
mod welcome;

pub use built_in::BuiltIn;
pub use connection::{Connect, Connection, Credential, client, over_tls};
pub(crate) use identity::AGENT_NAME;
pub use identity::{BadName, Endpoint, Names};

/// Timers of the agent (8.6).
#[derive(Clone, Debug)]
pub struct Timers {
    /// Between looks at whether the ManagedCluster is there, while bootstrapping; up to twice as long.
    pub creation: Duration,
    /// Between looks at Secret and signing request without an event.
    pub secret: Duration,
    /// Between looks at the cluster's health.
    pub health: Duration,
    /// How long the cluster must be ill before that is reported.
    pub blip: Duration,
    /// Between looks meanwhile.
    pub recheck: Duration,
}

impl Default for Timers {
    fn default() -> Self {
        let minutes = |n: u64| Duration::from_secs(60 * n);
        Self {
            creation: minutes(60),
            secret: minutes(5),
            health: minutes(1),
            blip: Duration::from_secs(20),
            recheck: Duration::from_secs(5),
        }
    }
}

/// Name of the Secret with the credential, unless another is asked for.
pub const SECRET: &str = "hub-kubeconfig-secret";

/// Name of the Secret beside `secret` that has the key of a certificate that is still waited for (OCM-A-36).
pub fn pending_secret(secret: &str) -> String {
    format!("{secret}-pending")
}

/// The time as an agent sees it.
pub type Clock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// Settings of the agent.
#[derive(Clone)]
pub struct Config {
    /// Name of the cluster; else the kept one, else made up (OCM-032).
    pub cluster_name: Option<String>,
    /// Name of the agent; likewise.
    pub agent_name: Option<String>,
    /// How to reach the hub.
    pub endpoint: Endpoint,
    /// URL by which the hub is known: its hash marks what is the hub's in the cluster (OCM-056). That of the endpoint, unless
    /// the hub has moved.
    pub hub_url: String,
    /// Makes clients from certificates.
    pub connect: Connect,
    /// Addresses of the cluster's API server (`--spoke-external-server-urls`).
    pub external_urls: Vec<String>,
    /// Annotations of the ManagedCluster; only those with the agent's prefix are set (`--cluster-annotations`).
    pub annotations: BTreeMap<String, String>,
    /// Most claims beside the reserved ones (`--max-custom-cluster-claims`).
    pub max_custom_claims: usize,
    /// Claims with these endings are reserved (`--reserved-cluster-claim-suffixes`).
    pub reserved_claim_suffixes: Vec<String>,
    /// How long certificates are to be good (`--client-cert-expiration-seconds`); the signer's choice without.
    pub certificate_seconds: Option<u32>,
    /// Namespace of the Secret.
    pub namespace: String,
    /// Name of the Secret (`--hub-kubeconfig-secret`).
    pub secret: String,
    /// Where the Secret is written to as files (`--hub-kubeconfig-dir`).
    pub directory: Option<PathBuf>,
    /// The timers.
    pub timers: Timers,
    /// The agent's clock.
    pub clock: Clock,
    /// The connection to the hub, usable once `joined`.
    pub connection: Connection,
    /// Whether the agent has a good certificate.
    pub joined: watch::Sender<bool>,
    /// Set true once the hub accepts the cluster: before, whoever else acts for it on the hub has no rights there. Stays so:
    /// a cluster that is denied later takes back what it delivered.
    pub accepted: watch::Sender<bool>,
    /// Set true once the cluster has been reported as available, or is denied.
    pub ready: watch::Sender<bool>,
    /// Add-ons whose agents run beside this one.
    pub built_in: Vec<BuiltIn>,
}

impl Config {
    /// The defaults, for a hub.
    pub fn new(endpoint: Endpoint) -> Self {
        Self {
            cluster_name: None,
            agent_name: None,
            connect: over_tls(endpoint.clone()),
            hub_url: endpoint.server().to_owned(),
            endpoint,
            external_urls: Vec::new(),
            annotations: BTreeMap::new(),
            max_custom_claims: 20,
            reserved_claim_suffixes: Vec::new(),
            certificate_seconds: None,
            namespace: OCM_AGENT_NAMESPACE.into(),
            secret: SECRET.into(),
            directory: None,
            timers: Timers::default(),
            clock: Arc::new(Timestamp::now),
            connection: Connection::default(),
            joined: watch::Sender::new(false),
            accepted: watch::Sender::new(false),
            ready: watch::Sender::new(false),
            built_in: Vec::new(),
        }
    }

    /// The annotation that tells the hub of the add-ons whose agents run here.
    pub fn built_in_annotation(&self) -> Option<(String, String)> {
        let names: Vec<&str> = self.built_in.iter().map(BuiltIn::name).collect();
        (!names.is_empty()).then(|| (BUILT_IN_ADDONS_ANNOTATION.to_owned(), names.join(",")))
    }
}

/// Why the agent ended by itself.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The cluster cannot have this name.
    #[error(transparent)]
    Name(#[from] BadName),
    /// The Secret could not be read.
    #[error("reading what an earlier run kept")]
    Kept(#[from] Box<kube::Error>),
    /// A task died.
    #[error(transparent)]
    Task(#[from] TaskError),
}

struct Agent {
    config: Config,
    names: Names,
    cluster: Rest,
    /// The own ManagedCluster.
    mine: Store<ManagedCluster>,
    /// No namespace is managed, nor marked from before.
    no_namespaces: Mutex<bool>,
    /// Wakes the status loop.
    look: Notify,
    /// Wakes who looks after add-ons, when the hub says something about the cluster.
    rejudge: Notify,
}

/// The names an agent with these settings has (OCM-032). Made-up ones are new at each call.
pub fn resolve<'a>(cluster: &'a Client, config: &'a Config) -> BoxFuture<'a, Result<Names, Error>> {
    Box::pin(look_up(cluster, config))
}

async fn look_up(cluster: &Client, config: &Config) -> Result<Names, Error> {
    let cluster = Rest::new(cluster.clone());
    let kept = handshake::read(&cluster, config).await.map_err(Box::new)?;
    Ok(identity::names(config.cluster_name.as_deref(), config.agent_name.as_deref(), &kept, random_text)?)
}

/// Runs the agent until `stop`. `bootstrap` is a client of the hub that may ask to join, `cluster` one of the cluster.
pub fn run(
    bootstrap: Client,
    cluster: Client,
    config: Config,
    stop: CancellationToken,
) -> BoxFuture<'static, Result<(), Error>> {
    Box::pin(drive(bootstrap, cluster, config, stop))
}

async fn drive(
    bootstrap: Client,
    cluster: Client,
    config: Config,
    stop: CancellationToken,
) -> Result<(), Error> {
    let cluster = Rest::with_manager(cluster, "registration-agent");
    let Some(kept) = first_look(&cluster, &config, &stop).await else { return Ok(()) };
    let names =
        identity::names(config.cluster_name.as_deref(), config.agent_name.as_deref(), &kept, random_text)?;
    while !stop.is_cancelled() {
        let agent = Arc::new(Agent {
            config: config.clone(),
            names: names.clone(),
            cluster: cluster.clone(),
            mine: Store::default(),
            no_namespaces: Mutex::new(false),
            look: Notify::new(),
            rejudge: Notify::new(),
        });
        if !agent.recall().await {
            config.joined.send_replace(false);
            agent.clone().bootstrap(bootstrap.clone(), &stop).await?;
            continue;
        }
        config.joined.send_replace(true);
        agent.clone().steady(&stop).await?;
        config.connection.set(None);
    }
    Ok(())
}

/// What an earlier run kept. A cluster that does not answer yet is asked again.
async fn first_look(cluster: &Rest, config: &Config, stop: &CancellationToken) -> Option<identity::Data> {
    let mut backoff = runtime::Backoff::for_server();
    loop {
        match handshake::read(cluster, config).await {
            Ok(kept) => return Some(kept),
            Err(error) => tracing::warn!(%error, "reading the Secret {}/{}", config.namespace, config.secret),
        }
        tokio::select! {
            () = tokio::time::sleep(backoff.pause()) => {}
            () = stop.cancelled() => return None,
        }
    }
}

impl Agent {
    fn now(&self) -> Timestamp {
        (self.config.clock)()
    }

    /// Connects with what is kept, if that is good.
    async fn recall(&self) -> bool {
        let data = match handshake::read(&self.cluster, &self.config).await {
            Ok(data) => data,
            Err(error) => {
                tracing::warn!(%error, "reading the Secret");
                return false;
            }
        };
        match identity::validate(&data, &self.names, &self.config.endpoint, self.now()) {
            Ok(_) => {
                self.write_files(&data);
                self.adopt(&data).await
            }
            Err(why) => {
                tracing::info!(cluster = self.names.cluster, %why, "joining the hub anew");
                false
            }
        }
    }

    /// Whether what is kept is still what [`Agent::recall`] found good.
    async fn is_still_good(&self) -> bool {
        handshake::read(&self.cluster, &self.config).await.map_or(true, |data| {
            identity::validate(&data, &self.names, &self.config.endpoint, self.now()).is_ok()
        })
    }

    /// Begins to use a certificate.
    async fn adopt(&self, data: &identity::Data) -> bool {
        let text =
            |key: &str| data.get(key).and_then(|v| String::from_utf8(v.0.clone()).ok()).unwrap_or_default();
        let credential = Credential { certificate: text(identity::CERTIFICATE), key: text(identity::KEY) };
        match (self.config.connect)(credential).await {
            Ok(client) => {
                self.config.connection.set(Some(client));
                true
            }
            Err(error) => {
                tracing::error!(error, "the kept credential cannot be used");
                false
            }
        }
    }
}

/// A pause of `least` up to that and `fraction` more.
fn jitter(least: Duration, fraction: f64) -> Duration {
    least + jittered(least.mul_f64(2.0 * fraction)).saturating_sub(least.mul_f64(fraction))
}

/// From [0, 1).
fn chance() -> f64 {
    (jittered(Duration::from_secs(2)).as_secs_f64() - 1.0).clamp(0.0, 0.999)
}

/// Lower-case letters and digits.
fn random_text(length: usize) -> String {
    use std::hash::{BuildHasher as _, RandomState};
    const LETTERS: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
    (0..length)
        .map(|at| {
            let index = RandomState::new().hash_one(at) % 32;
            char::from(LETTERS.get(index as usize).copied().unwrap_or(b'a'))
        })
        .collect()
}

fn managed_clusters() -> Gvr {
    Gvr::new(apis::constants::CLUSTER_GROUP, "v1", "managedclusters")
}

fn requests() -> Gvr {
    Gvr::new("certificates.k8s.io", "v1", "certificatesigningrequests")
}
