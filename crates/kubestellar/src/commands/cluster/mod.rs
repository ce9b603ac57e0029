//! `kubestellar cluster`: clusters of an inventory (SP-114 to SP-118).

mod accept;
mod change;
mod detach;
mod join;
mod leave;
mod list;
mod member;
mod token;

use std::time::Duration;

use apis::constants::CLUSTER_GROUP;
use kube::config::Kubeconfig;
use runtime::rest::{Gvr, Rest};

use crate::contexts::{self, Contexts, Sources};
use crate::exit::{Exit, Failure, from_kube};
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
    /// The kubeconfig that has the context.
    config: Kubeconfig,
    context: String,
}

impl Its {
    async fn open(context: &str, sources: &Sources) -> Result<Self, Failure> {
        let contexts = Contexts::read(sources)?;
        let config = contexts.find(context, "--its")?;
        let rest = Rest::new(contexts::client(config, context).await?);
        Ok(Self { rest, config: config.clone(), context: context.to_owned() })
    }
}

pub(crate) async fn run(args: &Args, sources: &Sources, out: &Printer) -> Result<Exit, Failure> {
    let its = || Its::open(&args.its, sources);
    match &args.command {
        Command::Join(args) => join::run(args, sources.asked.as_deref(), out).await,
        Command::Leave(args) => leave::run(args, sources.asked.as_deref(), out).await,
        Command::Token(args) => token::run(args, &its().await?, out).await,
        Command::Accept(args) => accept::run(args, &its().await?, out).await,
        Command::List(args) => list::run(args, &its().await?, out).await,
        Command::Label(args) => change::label(args, &its().await?, out).await,
        Command::Props(args) => change::props(args, &its().await?, out).await,
        Command::Detach(args) => detach::run(args, &its().await?, out).await,
    }
}

/// The failure of a request about one cluster.
fn failed(what: &str, error: &kube::Error) -> Failure {
    let failure = from_kube(what, error);
    if failure.exit == Exit::NotFound {
        failure.hint("`kubestellar cluster list` lists the clusters")
    } else {
        failure
    }
}

fn managed_clusters() -> Gvr {
    Gvr::new(CLUSTER_GROUP, "v1", "managedclusters")
}

/// Pause between two checks for a change by another program. A command waits for seconds, once.
const LOOK: Duration = Duration::from_millis(250);
