//! `kubestellar controller-manager` (KS-210, KS-213, KS-215).

use std::path::PathBuf;

use controller_manager::{AllowedGroups, Config};

use crate::clients::client;
use crate::exit::{Exit, Failure};

use super::{announce, until_stopped, with};

/// Run the binding and status controllers of one WDS.
///
/// Watches the WDS and the ITS given by kubeconfig, installs the control CRDs in the WDS, turns BindingPolicies
/// into Bindings and brings singleton status back.
#[derive(Debug, clap::Args)]
#[command(
    args_override_self = true,
    after_help = "Examples:\n  kubestellar controller-manager --wds-name wds1 --wds-kubeconfig wds.conf --its-name its1 --its-kubeconfig its.conf\n  kubestellar controller-manager --wds-name wds1 --wds-context wds1 --its-name its1 --its-context its1"
)]
pub(crate) struct Args {
    /// Name of the WDS; part of the names and labels of what is delivered
    #[arg(long, value_name = "NAME")]
    wds_name: String,
    /// Name of the ITS, for the log
    #[arg(long, value_name = "NAME", default_value = "")]
    its_name: String,
    /// Kubeconfig of the WDS [default: kubectl's]
    #[arg(long, value_name = "FILE")]
    wds_kubeconfig: Option<PathBuf>,
    /// Context of the WDS [default: current]
    #[arg(long, value_name = "CONTEXT")]
    wds_context: Option<String>,
    /// Kubeconfig of the ITS [default: kubectl's]
    #[arg(long, value_name = "FILE")]
    its_kubeconfig: Option<PathBuf>,
    /// Context of the ITS [default: current]
    #[arg(long, value_name = "CONTEXT")]
    its_context: Option<String>,
    /// API groups to look at, comma separated; empty for all; an empty element or "core" is the core group
    #[arg(long, value_name = "GROUPS", default_value = "")]
    api_groups: String,
    /// Controllers to run, of binding and status; empty for all
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    controllers: Vec<Controller>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Controller {
    Binding,
    Status,
}

pub(crate) async fn run(args: &Args) -> Result<Exit, Failure> {
    let status = args.controllers.is_empty() || args.controllers.contains(&Controller::Status);
    if status && !args.controllers.is_empty() && !args.controllers.contains(&Controller::Binding) {
        return Err(Failure::new(
            Exit::Failed,
            "choosing the controllers",
            "the status controller needs the binding controller",
        ));
    }
    let wds = client(args.wds_kubeconfig.as_deref(), args.wds_context.as_deref()).await?;
    let its = client(args.its_kubeconfig.as_deref(), args.its_context.as_deref()).await?;
    let (ready, announced) = announce("controller manager");
    let config = Config {
        api_groups: AllowedGroups::parse(&args.api_groups),
        status,
        ready,
        ..Config::new(args.wds_name.as_str(), args.its_name.as_str())
    };
    let component =
        until_stopped("controller manager", |stop| controller_manager::run(wds, its, config, stop));
    with(component, announced).await
}
