//! The registration agent: registers a cluster with a hub by the double opt-in handshake, and keeps it
//! registered (`spec` of OCM, 2.1 to 2.9).
//!
//! The agent stores its identity in a Secret of its cluster. While that is not valid, it bootstraps with the
//! credentials it was given: it creates the ManagedCluster and a signing request, and waits until both are
//! accepted, in any order. With a valid identity it works: it renews certificate and lease, and reports the
//! state of its cluster.
//!
//! It does the same for the agents of add-ons, and reports their health ([`BuiltIn`] are those that run in
//! its process).
//!
//! Pure decisions: [`identity`], [`probe`], [`report`], `addon_rules`. Components that use the cluster's
//! identity on the hub share the agent's [`Connection`], whose credential is replaced while it is in use.
//!
//! Cost: on the hub a watch of the own ManagedCluster and one of the own signing requests, two requests for
//! each renewal of the lease, and a status patch when something changed. In the cluster watches of nodes,
//! claims and the Secret, and one health check per period.

use std::{collections::BTreeMap, path::PathBuf, sync::Arc, time::Duration};

use apis::{
    constants::{BUILT_IN_ADDONS_ANNOTATION, OCM_AGENT_NAMESPACE},
    ocm::ManagedCluster,
};
use futures::future::BoxFuture;
use k8s_openapi::{api::certificates::v1::CertificateSigningRequest, jiff::Timestamp};
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
mod addon_report;
mod addon_rules;
mod addon_token;
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
    /// Interval between checks whether the ManagedCluster exists, while bootstrapping; jitter at most doubles
    /// it.
    pub creation: Duration,
    /// Interval between checks of Secret and signing request without an event.
    pub secret: Duration,
    /// Interval between health checks of the cluster.
    pub health: Duration,
    /// How long the cluster must be unhealthy before that is reported.
    pub blip: Duration,
    /// Interval between health checks in that time.
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

/// Default name of the Secret with the credential.
pub const SECRET: &str = "hub-kubeconfig-secret";

/// Name of the Secret beside `secret` with the key of a pending certificate (OCM-A-36).
pub fn pending_secret(secret: &str) -> String {
    format!("{secret}-pending")
}

/// The agent's clock.
pub type Clock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// Settings of the agent.
#[derive(Clone)]
pub struct Config {
    /// Name of the cluster. Without it the stored name is used, or a random one (OCM-032).
    pub cluster_name: Option<String>,
    /// Name of the agent; likewise.
    pub agent_name: Option<String>,
    /// The address of the hub.
    pub endpoint: Endpoint,
    /// URL of the hub: its hash marks the hub's objects in the cluster (OCM-056). It is that of the endpoint,
    /// unless the hub has moved.
    pub hub_url: String,
    /// Creates clients from certificates.
    pub connect: Connect,
    /// Addresses of the cluster's API server (`--spoke-external-server-urls`).
    pub external_urls: Vec<String>,
    /// Annotations for the ManagedCluster; only those with the agent's prefix are set
    /// (`--cluster-annotations`).
    pub annotations: BTreeMap<String, String>,
    /// Most claims besides the reserved ones (`--max-custom-cluster-claims`).
    pub max_custom_claims: usize,
    /// Whether ClusterProperties are reported like claims (gate ClusterProperty).
    pub cluster_properties: bool,
    /// Claims with these suffixes are reserved (`--reserved-cluster-claim-suffixes`).
    pub reserved_claim_suffixes: Vec<String>,
    /// Requested lifetime of certificates (`--client-cert-expiration-seconds`); `None` leaves it to the
    /// signer.
    pub certificate_seconds: Option<u32>,
    /// Namespace of the Secret.
    pub namespace: String,
    /// Name of the Secret (`--hub-kubeconfig-secret`).
    pub secret: String,
    /// Directory into which the content of the Secret is written as files (`--hub-kubeconfig-dir`).
    pub directory: Option<PathBuf>,
    /// The timers.
    pub timers: Timers,
    /// The agent's clock.
    pub clock: Clock,
    /// The connection to the hub; it can be used once `joined` is true.
    pub connection: Connection,
    /// Whether the agent has a valid certificate.
    pub joined: watch::Sender<bool>,
    /// Set to true once the hub accepts the cluster: before that, the other components have no permissions on
    /// the hub. It stays true, because a cluster that is denied later removes what it delivered.
    pub accepted: watch::Sender<bool>,
    /// Set to true once the cluster has been reported as available, or is denied.
    pub ready: watch::Sender<bool>,
    /// Lifetime in seconds of the tokens by which agents of add-ons identify themselves to the hub
    /// (`--addon-kubeclient-registration-auth token`; OCM-167). `None` for certificates, which those in this process always
    /// have.
    pub addon_tokens: Option<i64>,
    /// Add-ons whose agents run in this process.
    pub built_in: Vec<BuiltIn>,
}

impl Config {
    /// The default settings for a hub.
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
            cluster_properties: false,
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
            addon_tokens: None,
            built_in: Vec::new(),
        }
    }

    /// Returns the annotation that tells the hub about the add-ons in this process.
    pub fn built_in_annotation(&self) -> Option<(String, String)> {
        let names: Vec<&str> = self.built_in.iter().map(BuiltIn::name).collect();
        (!names.is_empty()).then(|| (BUILT_IN_ADDONS_ANNOTATION.to_owned(), names.join(",")))
    }
}

/// Why the agent ended by itself.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The cluster name is invalid.
    #[error(transparent)]
    Name(#[from] BadName),
    /// The Secret could not be read.
    #[error("reading the stored identity")]
    Kept(#[from] Box<kube::Error>),
    /// A task failed or panicked.
    #[error(transparent)]
    Task(#[from] TaskError),
}

struct Agent {
    config: Config,
    names: Names,
    cluster: Rest,
    /// The own ManagedCluster.
    mine: Store<ManagedCluster>,
    /// True if no namespace is managed, and none is marked from before.
    no_namespaces: Mutex<bool>,
    /// Wakes the status loop.
    look: Notify,
    /// Wakes the add-on loop when the ManagedCluster changes.
    rejudge: Notify,
}

/// Returns the names that an agent with these settings has (OCM-032). Random names differ at each call.
///
/// # Errors
///
/// If the name is invalid or the Secret cannot be read.
pub fn resolve<'a>(cluster: &'a Client, config: &'a Config) -> BoxFuture<'a, Result<Names, Error>> {
    Box::pin(look_up(cluster, config))
}

async fn look_up(cluster: &Client, config: &Config) -> Result<Names, Error> {
    let cluster = Rest::new(cluster.clone());
    let kept = handshake::read(&cluster, config).await.map_err(Box::new)?;
    Ok(identity::names(config.cluster_name.as_deref(), config.agent_name.as_deref(), &kept, random_text)?)
}

/// Runs the agent until `stop`. `bootstrap` is a client of the hub that may ask to join, `cluster` one of the
/// cluster.
///
/// # Errors
///
/// If the cluster name is invalid, the Secret cannot be read, or a task fails.
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
        agent.clone().run_joined(&stop).await?;
        config.connection.set(None);
    }
    Ok(())
}

/// Reads what an earlier run stored. Retries while the cluster does not answer.
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

    /// Connects with the stored credential, if it is valid.
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
                tracing::info!(cluster = self.names.cluster, %why, "joining the hub again");
                false
            }
        }
    }

    /// Returns whether the stored credential is still the one that [`Agent::recall`] found valid.
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
                tracing::error!(error, "the stored credential cannot be used");
                false
            }
        }
    }
}

/// Returns `least` plus a random part of up to `fraction` of it.
fn jitter(least: Duration, fraction: f64) -> Duration {
    least + jittered(least.mul_f64(2.0 * fraction)).saturating_sub(least.mul_f64(fraction))
}

/// Returns a random number from [0, 1).
fn chance() -> f64 {
    (jittered(Duration::from_secs(2)).as_secs_f64() - 1.0).clamp(0.0, 0.999)
}

/// Returns random lower-case letters and digits.
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
    Gvr::of::<ManagedCluster>()
}

fn requests() -> Gvr {
    Gvr::of::<CertificateSigningRequest>()
}
