//! `kubestellar cluster leave` (OCM-060): the cluster's side of a departure.

use std::path::Path;
use std::time::Duration;

use ocm_agent::leave::{Leave, LeaveError, leave};

use super::member::Member;
use crate::clients;
use crate::exit::{Exit, Failure, chain};
use crate::printer::Printer;

/// Take out of a cluster what its agent made there. Stop the agent first; the hub is not asked.
///
/// The usual order is `cluster detach NAME` on the hub while the agent runs, then the agent's end, then `cluster leave`. After a
/// `leave` without it, the hub waits for an agent that is no more: `cluster detach NAME --force` takes the cluster out there.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  kubestellar cluster leave --context edge7\n  kubestellar cluster leave --context edge7 --keep-workloads\n  kubestellar cluster detach edge7 --force   # on the hub, if that was not done before"
)]
pub(super) struct Args {
    /// Context of the cluster that leaves; needed unless --kubeconfig names a file, whose current context it is then
    #[arg(long, value_name = "CONTEXT")]
    context: Option<String>,
    /// What was delivered stays, and is nobody's
    #[arg(long, alias = "keep-workload")]
    keep_workloads: bool,
    /// How long to wait for the workload's end
    #[arg(long, value_name = "DURATION", default_value = "10m", value_parser = crate::duration::parse)]
    timeout: Duration,
}

pub(super) async fn run(args: &Args, kubeconfig: Option<&Path>, out: &Printer) -> Result<Exit, Failure> {
    let what = "leaving the hub";
    let chosen = Member::find(kubeconfig, args.context.as_deref())?;
    if let Member::Current(context) = &chosen
        && kubeconfig.is_none()
    {
        // It removes workload: the context that happens to be the current one is not enough.
        return Err(Failure::new(Exit::Usage, what, "which cluster leaves is not said")
            .hint(format!("if it is that of the current context: --context {context}")));
    }
    out.note(&format!("the cluster that leaves: {chosen}"));
    let cluster = clients::client(kubeconfig, args.context.as_deref()).await?;
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
