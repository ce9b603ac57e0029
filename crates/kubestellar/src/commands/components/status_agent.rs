//! `kubestellar status-agent` (KS-217, OCM-133).

use std::path::PathBuf;

use status_addon::Config;

use crate::exit::{Exit, Failure};

use super::connection::{Caller, connection_flags};
use super::election::OptionalElection;
use super::goflags::KlogFlags;
use super::process::{Probes, Process, endpoint_flags};

/// Run the status add-on's agent of one cluster.
///
/// Keeps a WorkStatus in the mailbox namespace for each delivered object that has a status.
#[derive(Debug, clap::Args)]
#[command(
    args_override_self = true,
    after_help = "Examples:\n  kubestellar status-agent --cluster-name edge7 --hub-kubeconfig its.conf --spoke-kubeconfig edge7.conf"
)]
pub(crate) struct Args {
    /// Name of the cluster in the inventory
    #[arg(long, value_name = "NAME")]
    cluster_name: String,
    /// Namespace that the add-on is installed in
    #[arg(long, value_name = "NAMESPACE")]
    addon_namespace: Option<String>,
    /// Name of the add-on
    #[arg(long, value_name = "NAME", default_value = "status")]
    addon_name: String,
    /// Fill statusDetails of WorkStatuses: which generation came last, and whether it is applied; takes a transport
    /// controller with --object-generations
    #[arg(long)]
    status_details: bool,
    #[command(flatten)]
    election: OptionalElection,
    #[command(flatten)]
    endpoints: EndpointFlags,
    #[command(flatten)]
    hub: HubFlags,
    #[command(flatten)]
    spoke: SpokeFlags,
    #[command(flatten)]
    pub(crate) logging: KlogFlags,
}

connection_flags!(HubFlags, "hub", "the inventory space", "hub-qps" = "5", "hub-burst" = 10);
connection_flags!(SpokeFlags, "spoke", "the cluster", "local-qps" = "5", "local-burst" = 10);
endpoint_flags!(EndpointFlags, metrics = ":8080", pprof = ":8082", probes = ":8081");

/// The Lease of the original. Its name stems from the scaffold of that program.
const LEASE: &str = "c6f71c85.kflex.kubestellar.org";

pub(crate) async fn run(args: &Args, own: Option<&PathBuf>) -> Result<Exit, Failure> {
    let (hub, mut cluster) = (args.hub.connection(), args.spoke.connection());
    if !cluster.is_named() {
        cluster.file = own.cloned();
    }
    let lock = args.election.lock(args.addon_namespace.as_deref().unwrap_or("default"), LEASE)?;
    let process =
        Process::start("status agent", args.endpoints.endpoints(), Probes::Ping, &args.logging).await?;
    tracing::debug!(addon = args.addon_name, "the add-on");
    let caller = Caller { agent: "status-agent", metrics: &process.metrics };
    let clients = async {
        let lock = cluster.to_lead(&caller, lock).await?;
        Ok((hub.client(&caller, None).await?, cluster.client(&caller, None).await?, lock))
    };
    let clients = clients.await;
    let (process, (hub, cluster, lock)) = process.unless_failed(clients).await?;
    let config = Config {
        status_details: args.status_details,
        ready: process.ready.clone(),
        metrics: process.metrics.clone(),
        ..Config::new(&args.cluster_name)
    };
    process.run(lock, |stop| status_addon::run(cluster, hub, config, stop)).await
}
