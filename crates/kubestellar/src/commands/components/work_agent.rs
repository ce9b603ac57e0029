//! `kubestellar work-agent` (OCM-151).

use std::path::PathBuf;

use ocm::work_agent::Config;

use crate::clients::{client, server};
use crate::exit::{Exit, Failure};

use super::{announce, until_stopped, with};

/// Run the work agent of one cluster.
///
/// Applies in the cluster what the ManifestWorks in its mailbox namespace hold. The mailbox and the CRDs of both
/// sides must be there.
#[derive(Debug, clap::Args)]
#[command(
    args_override_self = true,
    after_help = "Examples:\n  kubestellar work-agent --spoke-cluster-name edge7 --hub-kubeconfig its.conf --spoke-kubeconfig edge7.conf"
)]
pub(crate) struct Args {
    /// Name of the cluster in the inventory
    #[arg(long, alias = "cluster-name", value_name = "NAME")]
    spoke_cluster_name: String,
    /// Kubeconfig of the inventory space [default: kubectl's]
    #[arg(long, value_name = "FILE")]
    hub_kubeconfig: Option<PathBuf>,
    /// Context of the inventory space [default: current]
    #[arg(long, value_name = "CONTEXT")]
    hub_context: Option<String>,
    /// Kubeconfig of the cluster [default: kubectl's]
    #[arg(long, value_name = "FILE")]
    spoke_kubeconfig: Option<PathBuf>,
    /// Context of the cluster [default: current]
    #[arg(long, value_name = "CONTEXT")]
    spoke_context: Option<String>,
    /// Identifies this agent among several on one cluster [default: hash of the hub's URL]
    #[arg(long, value_name = "ID", default_value = "")]
    agent_id: String,
    /// ManifestWorks handled at once
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u16).range(1..=256))]
    workload_agent_workers: u16,
}

pub(crate) async fn run(args: &Args) -> Result<Exit, Failure> {
    let hub = client(args.hub_kubeconfig.as_deref(), args.hub_context.as_deref()).await?;
    let hub_url = server(args.hub_kubeconfig.as_deref(), args.hub_context.as_deref()).await?;
    let cluster = client(args.spoke_kubeconfig.as_deref(), args.spoke_context.as_deref()).await?;
    let (ready, announced) = announce("work agent");
    let config = Config {
        agent_id: args.agent_id.clone(),
        workers: usize::from(args.workload_agent_workers),
        ready,
        ..Config::new(&args.spoke_cluster_name, &hub_url)
    };
    let component = until_stopped("work agent", |stop| ocm::work_agent::run(hub, cluster, config, stop));
    with(component, announced).await
}
