//! `kubestellar ocm hub` and `kubestellar ocm agent` (OCM-151): the hub's controllers and a cluster's agent as processes of
//! their own.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use apis::constants::STATUS_ADDON;
use machinery::names;
use ocm_addon as addon;
use ocm_agent::registration::BuiltIn;
use ocm_agent::{registration, work_agent};
use ocm_hub as hub;
use runtime::calls::observed;
use runtime::limiter::{Limiter, Rate};
use runtime::metrics::Metrics;
use tokio_util::sync::CancellationToken;

use crate::exit::{Exit, Failure, OrFail};
use crate::logging::LogFormat;

use super::connection::{Caller, Connection, connection_flags, qps};
use super::election::StandingElection;
use super::entry::Entry;
use super::goflags::{KlogFlags, boolean, duration, pair};
use super::process::{Probes, Process, endpoint_flags};
use super::status_addon::AgentFlags;
use super::work_flags::{WORK_AGENT, WorkFlags, WorkGates};

connection_flags!(HubFlags, "hub", "the hub", "kube-api-qps" = "50", "kube-api-burst" = 100);
connection_flags!(SpokeFlags, "spoke", "the cluster", "kube-api-qps" = "50", "kube-api-burst" = 100);
endpoint_flags!(HubEndpoints, metrics = "0", pprof = "0", probes = "0");
endpoint_flags!(AgentEndpoints, metrics = "0", pprof = "0", probes = "0");

/// Run one side of Open Cluster Management alone: a hub's controllers, or a cluster's agent.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  kubestellar ocm hub --hub-kubeconfig its.conf\n  kubestellar ocm agent --spoke-cluster-name edge7 --bootstrap-kubeconfig join.conf --spoke-kubeconfig edge7.conf"
)]
pub(crate) struct Args {
    #[command(subcommand)]
    side: Side,
}

#[derive(Debug, clap::Subcommand)]
enum Side {
    Hub(Box<HubArgs>),
    Placement(Box<PlacementArgs>),
    Agent(Box<AgentArgs>),
}

/// Run the controllers of a hub: acceptance, certificates, leases, cluster sets, placements, add-ons.
#[derive(Debug, clap::Args)]
struct HubArgs {
    /// Users whose first certificates are approved, with the gate ManagedClusterAutoApproval
    #[arg(long, value_name = "USERS", value_delimiter = ',', alias = "cluster-auto-approval-users")]
    auto_approved_csr_users: Vec<String>,
    /// Further labels of what the hub makes for clusters: mailbox namespaces, roles and bindings
    #[arg(long, value_name = "K=V", value_delimiter = ',', value_parser = label)]
    labels: Vec<(String, String)>,
    /// Gates as NAME=true|false: DefaultClusterSet, ResourceCleanup, ManagedClusterAutoApproval, AddonManagement,
    /// CleanUpCompletedManifestWork, ClusterProfile
    #[arg(long, value_name = "GATES", value_delimiter = ',', value_parser = pair)]
    feature_gates: Vec<(String, String)>,
    /// Leave the status add-on to another controller
    #[arg(long)]
    without_status_addon: bool,
    /// Leave Placements to another controller, such as `kubestellar ocm placement`
    #[arg(long)]
    without_placement: bool,
    /// Most clusters that ocm_managedcluster_available shows by themselves
    #[arg(long, value_name = "N", default_value_t = 1000)]
    metrics_clusters: usize,
    #[command(flatten)]
    agents: AgentFlags,
    #[command(flatten)]
    election: StandingElection,
    #[command(flatten)]
    endpoints: HubEndpoints,
    #[command(flatten)]
    hub: HubFlags,
    #[command(flatten)]
    logging: KlogFlags,
}

/// Run the controller of Placements alone, beside another hub.
#[derive(Debug, clap::Args)]
struct PlacementArgs {
    #[command(flatten)]
    election: StandingElection,
    #[command(flatten)]
    endpoints: HubEndpoints,
    #[command(flatten)]
    hub: HubFlags,
    #[command(flatten)]
    logging: KlogFlags,
}

/// Run the agent of one cluster: joins the hub, keeps its certificate and lease, applies its works.
///
/// Makes the namespaces and kinds that it needs in the cluster where they are missing, if it may. When the bootstrap
/// kubeconfig changes it begins anew, and joins again if that leads to another hub.
#[derive(Debug, clap::Args)]
struct AgentArgs {
    /// Kubeconfig to join with: the hub and a bootstrap token
    #[arg(long, value_name = "FILE")]
    bootstrap_kubeconfig: PathBuf,
    /// Name of the cluster in the inventory [default: the one it joined under before, or a random one]
    #[arg(long, value_name = "NAME", alias = "cluster-name")]
    spoke_cluster_name: Option<String>,
    /// Name of the agent [default: the one it had before, or a random one]
    #[arg(long, value_name = "ID")]
    agent_id: Option<String>,
    /// Secret with the hub credential, in the agent's namespace in the cluster
    #[arg(long, value_name = "NAME", default_value = registration::SECRET)]
    hub_kubeconfig_secret: String,
    /// Directory to write the hub credential to as files
    #[arg(long, value_name = "DIR")]
    hub_kubeconfig_dir: Option<PathBuf>,
    /// Addresses of the cluster's API server, https only
    #[arg(long, value_name = "URLS", value_delimiter = ',', value_parser = https)]
    spoke_external_server_urls: Vec<String>,
    /// Pause between looks at the cluster's health; a bare number is one of seconds
    #[arg(long, value_name = "DURATION", default_value = "1m", value_parser = pause)]
    cluster_healthcheck_period: Duration,
    /// Most claims reported beside the reserved ones
    #[arg(long, value_name = "N", default_value_t = 20)]
    max_custom_cluster_claims: usize,
    /// Claims with these endings are reserved
    #[arg(long, value_name = "SUFFIXES", value_delimiter = ',')]
    reserved_cluster_claim_suffixes: Vec<String>,
    /// Annotations of the new ManagedCluster, of those beginning with agent.open-cluster-management.io/
    #[arg(long, value_name = "K=V", value_delimiter = ',', value_parser = pair)]
    cluster_annotations: Vec<(String, String)>,
    /// Seconds a certificate is to be good, at least 3600 [default: the signer's choice]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(3600..))]
    client_cert_expiration_seconds: Option<u32>,
    /// How agents of add-ons identify themselves to the hub: by certificate or by token. Those in this process have a
    /// certificate
    #[arg(long, value_name = "DRIVER", value_enum, default_value_t)]
    addon_kubeclient_registration_auth: AddonAuth,
    /// Seconds a token of an add-on is to be good, at least 600
    #[arg(long, value_name = "SECONDS", default_value_t = 31_536_000, value_parser = clap::value_parser!(i64).range(600..))]
    addon_token_expiration_seconds: i64,
    #[command(flatten)]
    work: WorkFlags,
    /// Gates as NAME=true|false: RawFeedbackJsonString, ClusterProperty
    #[arg(long, value_name = "GATES", value_delimiter = ',', value_parser = pair)]
    feature_gates: Vec<(String, String)>,
    /// Most requests a second of the work agent about objects of the hub, on average; negative for no limit
    #[arg(long, value_name = "RATE", default_value = "50", allow_negative_numbers = true, value_parser = qps)]
    hub_kube_api_qps: f64,
    /// How many of those may go at once
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    hub_kube_api_burst: u32,
    #[command(flatten)]
    spoke: SpokeFlags,
    #[command(flatten)]
    endpoints: AgentEndpoints,
    #[command(flatten)]
    logging: KlogFlags,
}

/// How agents of add-ons identify themselves to the hub.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
enum AddonAuth {
    /// By a certificate that the hub signs.
    #[default]
    Csr,
    /// By tokens of a service account on the hub.
    Token,
}

impl Args {
    /// The value of `--logging-format`.
    pub(crate) fn log_format(&self) -> Option<LogFormat> {
        match &self.side {
            Side::Hub(args) => args.logging.format(),
            Side::Placement(args) => args.logging.format(),
            Side::Agent(args) => args.logging.format(),
        }
    }
}

/// A label, as the API server will take it.
fn label(text: &str) -> Result<(String, String), String> {
    let (key, value) = pair(text)?;
    let wrong = [names::qualified_name(&key), names::label_value(&value)].concat();
    if wrong.is_empty() { Ok((key, value)) } else { Err(wrong.join("; ")) }
}

fn pause(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().map(Duration::from_secs);
    match seconds.or_else(|_| duration(text))? {
        Duration::ZERO => Err("it must be longer than nothing".to_owned()),
        some => Ok(some),
    }
}

fn https(text: &str) -> Result<String, String> {
    if text.strip_prefix("https://").is_some_and(|host| !host.is_empty()) {
        return Ok(text.to_owned());
    }
    Err(format!("{text:?} does not begin with https://"))
}

pub(crate) async fn run(args: &Args) -> Result<Exit, Failure> {
    match &args.side {
        Side::Hub(args) => run_hub(args).await,
        Side::Placement(args) => run_placement(args).await,
        Side::Agent(args) => run_agent(args).await,
    }
}

async fn run_hub(args: &HubArgs) -> Result<Exit, Failure> {
    let mut config = hub::Config { labels: args.labels.iter().cloned().collect(), ..hub::Config::default() };
    let (mut approve, mut manage_addons) = (false, true);
    for (gate, value) in &args.feature_gates {
        let what = || format!("setting the feature gate {gate}");
        let on: bool =
            value.parse().map_err(|_| Failure::new(Exit::Usage, what(), "it is neither true nor false"))?;
        match gate.as_str() {
            "DefaultClusterSet" => config.default_sets = on,
            "ResourceCleanup" => config.cleanup = on,
            "ManagedClusterAutoApproval" => approve = on,
            "AddonManagement" => manage_addons = on,
            "CleanUpCompletedManifestWork" => config.clean_completed = on,
            "ClusterProfile" => config.cluster_profiles = on,
            _ if on => return Err(Failure::new(Exit::Usage, what(), "there is no such gate here")),
            _ => {}
        }
    }
    config.auto_accept = approve;
    if approve {
        config.approval.approved_users.clone_from(&args.auto_approved_csr_users);
    } else if !args.auto_approved_csr_users.is_empty() {
        let why = "it takes --feature-gates ManagedClusterAutoApproval=true";
        return Err(Failure::new(Exit::Usage, "using --auto-approved-csr-users", why));
    }
    let connection = args.hub.connection();
    let lock = args.election.lock("registration-controller-lock")?;
    let process = Process::start("hub", args.endpoints.endpoints(), Probes::Ping, &args.logging).await?;
    config.ready = process.ready.clone();
    (config.metrics, config.most_shown) = (process.metrics.clone(), args.metrics_clusters);
    let (process, client, lock) = process.connected(&connection, "hub", "hub", lock).await?;
    let status = (!args.without_status_addon).then(|| args.agents.addon());
    let addons = manage_addons.then(|| addon::Config {
        placements: !args.without_placement,
        ..status.map_or_else(addon::Config::default, addon::Config::with_status_addon)
    });
    process.run(lock, |stop| both(client, config, addons, stop)).await
}

/// How the versions of KubeStellar's API servers end.
const OWN_VERSION: &str = "+kubestellar";

/// Returns whether the API server converts between the versions of the add-on API by itself, so that both can be served
/// (OCM-001). Waits for a server that does not answer, until `stop`.
async fn converts(hub: &kube::Client, stop: &CancellationToken) -> bool {
    let mut backoff = runtime::Backoff::for_server();
    while !stop.is_cancelled() {
        match hub.apiserver_version().await {
            Ok(version) => return version.git_version.ends_with(OWN_VERSION),
            Err(error) if runtime::failure::is_lasting(&error) => return false,
            Err(error) => tracing::warn!(%error, "the hub's API server does not answer; asking again"),
        }
        stop.run_until_cancelled(tokio::time::sleep(backoff.pause())).await;
    }
    false
}

async fn run_placement(args: &PlacementArgs) -> Result<Exit, Failure> {
    let connection = args.hub.connection();
    let lock = args.election.lock("placement-controller-lock")?;
    let process =
        Process::start("placement controller", args.endpoints.endpoints(), Probes::Ping, &args.logging)
            .await?;
    let (process, client, lock) = process.connected(&connection, "placement", "hub", lock).await?;
    let config = addon::Config { general: false, ready: process.ready.clone(), ..addon::Config::default() };
    process.run(lock, |stop| addon::run(client, config, stop)).await
}

/// Why a hub ended by itself.
#[derive(Debug, thiserror::Error)]
enum HubError {
    #[error(transparent)]
    Hub(#[from] hub::Error),
    #[error(transparent)]
    Addons(#[from] addon::Error),
}

/// Runs the controllers of a hub. If one ends by itself, all end.
async fn both(
    client: kube::Client,
    mut config: hub::Config,
    mut addons: Option<addon::Config>,
    stop: CancellationToken,
) -> Result<(), HubError> {
    if converts(&client, &stop).await {
        config.kinds = apis::crds::ocm_hub_converting;
        if let Some(addons) = &mut addons {
            let reports = !addons.addons.is_empty();
            addons.kinds = if reports {
                apis::crds::ocm_hub_converting_with_reports
            } else {
                apis::crds::ocm_hub_converting
            };
        }
    }
    let stop = stop.child_token();
    let (to_addons, token) = (client.clone(), stop.clone());
    let addons = async {
        let Some(config) = addons else { return Ok(()) };
        let outcome = addon::run(to_addons, config, token.clone()).await;
        token.cancel();
        outcome
    };
    let hub = async {
        let outcome = hub::run(client, config, stop.clone()).await;
        stop.cancel();
        outcome
    };
    let (hub, addons) = tokio::join!(hub, addons);
    hub?;
    Ok(addons?)
}

/// What feature gates of OCM's agents mean here.
#[derive(Clone, Copy)]
struct AgentGates {
    work: WorkGates,
    /// ClusterProperty.
    properties: bool,
}

impl AgentGates {
    fn of(pairs: &[(String, String)]) -> Result<Self, Failure> {
        let (own, others): (Vec<_>, Vec<_>) =
            pairs.iter().cloned().partition(|(name, _)| name == "ClusterProperty");
        let mut properties = false;
        for (name, value) in own {
            let what = || format!("setting the feature gate {name}");
            properties = boolean(&value).map_err(|why| Failure::new(Exit::Usage, what(), why))?;
        }
        Ok(Self { work: WorkGates::of(&others)?, properties })
    }
}

async fn run_agent(args: &AgentArgs) -> Result<Exit, Failure> {
    let gates = AgentGates::of(&args.feature_gates)?;
    let entry = Entry::read(&args.bootstrap_kubeconfig).await?;
    let process = Process::start("agent", args.endpoints.endpoints(), Probes::Ping, &args.logging).await?;
    let outcome = args.keep(entry, gates, &process).await;
    process.close().await;
    outcome.map(|()| Exit::Done)
}

impl AgentArgs {
    /// Runs the agent until the process is to end, and restarts it whenever the bootstrap kubeconfig has changed.
    async fn keep(&self, mut entry: Entry, gates: AgentGates, process: &Process) -> Result<(), Failure> {
        let (metrics, cluster) = (&process.metrics, self.spoke.connection());
        // Registration needs few requests and has no rate limit: a lease that waits for the workload would be renewed too late.
        let unlimited = Connection { rate: None, ..cluster.clone() };
        let spoke = unlimited.client(&Caller { agent: "registration-agent", metrics }, None).await?;
        let cluster = cluster.client(&Caller { agent: WORK_AGENT, metrics }, None).await?;
        let optional = if gates.properties { apis::crds::cluster_properties() } else { Vec::new() };
        ocm_agent::provide::provide(&spoke, &optional).await.or_fail("preparing the cluster")?;
        loop {
            let turn = process.stop.child_token();
            let work = self.work_side(&entry, cluster.clone(), gates.work, metrics);
            let config = registration::Config {
                cluster_properties: gates.properties,
                ..self.registration(&entry, process)
            };
            let running = agent(entry.bootstrap.clone(), spoke.clone(), config, work, turn.clone());
            tokio::pin!(running);
            let other = tokio::select! {
                outcome = &mut running => return outcome,
                other = entry.changed(&self.bootstrap_kubeconfig) => other,
            };
            tracing::info!("the bootstrap kubeconfig has changed: beginning anew");
            turn.cancel();
            running.await?;
            entry = other;
        }
    }

    fn work_side(
        &self,
        entry: &Entry,
        cluster: kube::Client,
        gates: WorkGates,
        metrics: &Metrics,
    ) -> WorkSide<'_> {
        let rate = Rate { qps: self.hub_kube_api_qps, burst: self.hub_kube_api_burst };
        let limiter = (rate.qps > 0.0).then(|| Arc::new(Limiter::new(rate)));
        let counted = metrics.requests(entry.endpoint.server().trim_start_matches("https://"), None);
        WorkSide {
            cluster,
            hub: Box::new(move |hub| observed(hub, limiter, counted)),
            configure: Box::new(move |config| self.work.configure(config, gates)),
        }
    }

    fn registration(&self, entry: &Entry, process: &Process) -> registration::Config {
        let mut config = registration::Config {
            cluster_name: self.spoke_cluster_name.clone(),
            agent_name: self.agent_id.clone(),
            secret: self.hub_kubeconfig_secret.clone(),
            directory: self.hub_kubeconfig_dir.clone(),
            external_urls: self.spoke_external_server_urls.clone(),
            max_custom_claims: self.max_custom_cluster_claims,
            reserved_claim_suffixes: self.reserved_cluster_claim_suffixes.clone(),
            annotations: self.cluster_annotations.iter().cloned().collect::<BTreeMap<_, _>>(),
            certificate_seconds: self.client_cert_expiration_seconds,
            addon_tokens: (self.addon_kubeclient_registration_auth == AddonAuth::Token)
                .then_some(self.addon_token_expiration_seconds),
            ready: process.ready.clone(),
            ..registration::Config::new(entry.endpoint.clone())
        };
        config.timers.health = self.cluster_healthcheck_period;
        config
    }
}

/// What the work agent does not share with the registration agent (OCM-070).
pub(crate) struct WorkSide<'a> {
    /// Its client of the cluster.
    cluster: kube::Client,
    /// Makes its client of the hub from that of the agent.
    hub: Box<dyn FnOnce(kube::Client) -> kube::Client + 'a>,
    /// The settings from its flags.
    configure: Box<dyn FnOnce(work_agent::Config) -> work_agent::Config + 'a>,
}

impl WorkSide<'_> {
    /// Uses the agent's clients and the defaults.
    pub(crate) fn plain(spoke: &kube::Client) -> Self {
        Self { cluster: spoke.clone(), hub: Box::new(|hub| hub), configure: Box::new(|config| config) }
    }
}

/// Runs the agent of a cluster until `stop`: registration; the work agent with `work`, once the cluster is accepted; and the status
/// agent, once the hub gives it an identity and does not deploy one.
pub(crate) async fn agent(
    bootstrap: kube::Client,
    spoke: kube::Client,
    config: registration::Config,
    work: WorkSide<'_>,
    stop: CancellationToken,
) -> Result<(), Failure> {
    let status = BuiltIn::new(STATUS_ADDON);
    let names = registration::resolve(&spoke, &config).await.or_fail("finding out the cluster's name")?;
    let config = registration::Config {
        cluster_name: Some(names.cluster.clone()),
        agent_name: Some(names.agent.clone()),
        built_in: vec![status.clone()],
        ..config
    };
    let (mut accepted, hub) = (config.accepted.subscribe(), (work.hub)(config.connection.client()));
    let (working, configure) = (work.cluster, work.configure);
    let work = work_agent::Config::new(&names.cluster, config.endpoint.server());
    // The agent keeps its name when the hub moves to another address, so it releases what it owns under the old one (OCM-096).
    let work = configure(work_agent::Config { agent_id: names.agent, ..work });
    let stop = stop.child_token();
    let (reporting, until) = (spoke.clone(), stop.clone());
    let (registering, token) = (stop.clone(), stop.clone());
    let registration = async move {
        let outcome = registration::run(bootstrap, spoke, config, registering.clone()).await;
        registering.cancel();
        outcome.map_err(|error| {
            Failure::new(Exit::Failed, "running the registration agent", crate::exit::chain(&error))
        })
    };
    let work = async move {
        let go = tokio::select! {
            waited = accepted.wait_for(|yes| *yes) => waited.is_ok(),
            () = token.cancelled() => false,
        };
        if !go {
            return Ok(());
        }
        let outcome = work_agent::run(hub, working, work, token.clone()).await;
        token.cancel();
        outcome
            .map_err(|error| Failure::new(Exit::Failed, "running the work agent", crate::exit::chain(&error)))
    };
    let reports = async {
        let outcome = report(&status, reporting, &names.cluster, until.clone()).await;
        until.cancel();
        outcome
    };
    let (registered, worked, reported) = tokio::join!(registration, work, reports);
    registered.and(worked).and(reported)
}

/// Runs the status agent of a cluster, whenever the add-on is installed.
async fn report(
    addon: &BuiltIn,
    spoke: kube::Client,
    cluster: &str,
    stop: CancellationToken,
) -> Result<(), Failure> {
    let ready = tokio::sync::watch::Sender::new(false);
    let agent = |turn| {
        let config = status_addon::Config { ready: ready.clone(), ..status_addon::Config::new(cluster) };
        status_addon::run(spoke.clone(), addon.hub(), config, turn)
    };
    let outcome = addon.run(spoke.clone(), ready.subscribe(), stop, agent).await;
    outcome
        .map_err(|error| Failure::new(Exit::Failed, "running the status agent", crate::exit::chain(&error)))
}
