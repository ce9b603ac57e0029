//! `kubestellar cluster leave` (OCM-060): the cluster's side of a departure.

use std::path::PathBuf;
use std::time::Duration;

use ocm_agent::leave::{Leave, LeaveError, leave};

use crate::clients;
use crate::exit::{Exit, Failure, chain};
use crate::printer::Printer;

/// Take out of a cluster what its agent made there. Stop the agent first; the hub is not asked.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  kubestellar cluster leave --context edge7\n  kubestellar cluster leave --context edge7 --keep-workloads\n  kubestellar cluster detach edge7   # on the hub, afterwards"
)]
pub(super) struct Args {
    /// Context of the cluster that leaves [default: current]
    #[arg(long, value_name = "CONTEXT")]
    context: Option<String>,
    /// What was delivered stays, and is nobody's
    #[arg(long, alias = "keep-workload")]
    keep_workloads: bool,
    /// How long to wait for the workload's end
    #[arg(long, value_name = "DURATION", default_value = "10m", value_parser = crate::duration::parse)]
    timeout: Duration,
}

pub(super) async fn run(args: &Args, kubeconfig: Option<PathBuf>, out: &Printer) -> Result<Exit, Failure> {
    let what = "leaving the hub";
    let cluster = clients::client(kubeconfig.as_deref(), args.context.as_deref()).await?;
    let how = Leave { keep_workload: args.keep_workloads, patience: args.timeout };
    let left = leave(cluster, &how).await.map_err(|error| {
        let exit = if matches!(error, LeaveError::Held { .. }) { Exit::TimedOut } else { Exit::Failed };
        Failure::new(exit, what, chain(&error))
    })?;
    let fate = if args.keep_workloads { "stays" } else { "is gone" };
    out.result(&format!("the workload of {} works {fate}", left.works));
    if left.others > 0 {
        out.note(&format!("{} works of other hubs, and what their agents need, stay", left.others));
    }
    Ok(Exit::Done)
}
