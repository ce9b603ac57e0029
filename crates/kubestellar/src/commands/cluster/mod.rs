//! `kubestellar cluster`: clusters of an inventory (SP-114 to SP-118).

mod accept;
mod change;
mod detach;
mod join;
mod leave;
mod list;
mod token;

use std::path::PathBuf;
use std::time::Duration;

use apis::constants::CLUSTER_GROUP;
use kube::Client;
use runtime::rest::{Gvr, Rest};

use crate::clients;
use crate::datadir::DataDir;
use crate::exit::{Exit, Failure, not_running};
use crate::kubeconfig;
use crate::printer::Printer;

/// Manage the clusters of an inventory space: let them join, accept them, look at them, take them out.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  kubestellar cluster token\n  kubestellar cluster accept edge7 --wait\n  kubestellar cluster list\n  kubestellar cluster label edge7 location-group=edge\n  kubestellar cluster detach edge7"
)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
    /// Context of the inventory space
    #[arg(long, global = true, value_name = "NAME", default_value = "its1")]
    its: String,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    Token(token::Args),
    Join(join::Args),
    Accept(accept::Args),
    #[command(visible_alias = "ls")]
    List(list::Args),
    Label(change::LabelArgs),
    Props(change::PropsArgs),
    Detach(detach::Args),
    Leave(leave::Args),
}

/// The inventory space that a command works on.
struct Its {
    rest: Rest,
    file: PathBuf,
    context: String,
}

pub(crate) async fn run(
    args: &Args,
    data: Option<&DataDir>,
    kubeconfig: Option<PathBuf>,
    out: &Printer,
) -> Result<Exit, Failure> {
    if let Command::Join(args) = &args.command {
        return join::run(args, kubeconfig, out).await;
    }
    if let Command::Leave(args) = &args.command {
        return leave::run(args, kubeconfig, out).await;
    }
    // The context that the user names; else the file of the installation, which always has its spaces.
    let own = data.map(DataDir::kubeconfig).filter(|file| file.exists());
    let file = kubeconfig.or(own);
    let is_file = |file: &PathBuf| file.exists();
    if file.is_none() && !kubeconfig::files(None)?.iter().any(is_file) {
        return Err(not_running(format!("using context {}", args.its), "kubestellar up"));
    }
    let client: Client = clients::client(file.as_deref(), Some(&args.its)).await?;
    let its = Its { rest: Rest::new(client), file: file.unwrap_or_default(), context: args.its.clone() };
    match &args.command {
        Command::Join(args) => join::run(args, None, out).await,
        Command::Token(args) => token::run(args, &its, out).await,
        Command::Accept(args) => accept::run(args, &its, out).await,
        Command::List(args) => list::run(args, &its, out).await,
        Command::Label(args) => change::label(args, &its, out).await,
        Command::Props(args) => change::props(args, &its, out).await,
        Command::Detach(args) => detach::run(args, &its, out).await,
        Command::Leave(args) => leave::run(args, None, out).await,
    }
}

fn managed_clusters() -> Gvr {
    Gvr::new(CLUSTER_GROUP, "v1", "managedclusters")
}

/// Pause between two checks for a change by another program. A command waits for seconds, once.
const LOOK: Duration = Duration::from_millis(250);
