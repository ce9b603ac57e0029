//! `kubestellar status-agent` (KS-217).

use std::path::PathBuf;

use status_addon::Config;

use crate::clients::client;
use crate::exit::{Exit, Failure};

use super::{announce, until_stopped, with};

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
}

pub(crate) async fn run(args: &Args) -> Result<Exit, Failure> {
    let hub = client(args.hub_kubeconfig.as_deref(), args.hub_context.as_deref()).await?;
    let cluster = client(args.spoke_kubeconfig.as_deref(), args.spoke_context.as_deref()).await?;
    let (ready, announced) = announce("status agent");
    let config = Config { ready, ..Config::new(&args.cluster_name) };
    let component = until_stopped("status agent", |stop| status_addon::run(cluster, hub, config, stop));
    with(component, announced).await
}
