//! `kubestellar completion`: scripts for shells. They ask the server for the names of policies and clusters (SP-089).

use std::io::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use apis::control::BindingPolicy;
use apis::ocm::ManagedCluster;
use clap_complete::Shell;
use kube::api::ListParams;
use kube::{Api, ResourceExt};

use super::get::spaces::{SpaceArgs, Spaces};
use crate::exit::{Exit, Failure};
use crate::printer::Printer;

/// Print the completion script of a shell.
///
/// In bash, zsh and fish the script also completes names of policies and clusters, as they are at that moment.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  source <(kubestellar completion bash)\n  kubestellar completion fish | source"
)]
pub(crate) struct Args {
    shell: Shell,
}

/// Print names for a completion script.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  kubestellar complete policies")]
pub(crate) struct NamesArgs {
    #[arg(value_enum)]
    what: Names,
    #[command(flatten)]
    spaces: SpaceArgs,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Names {
    Policies,
    Clusters,
}

/// Longest time that a completion may take, because the user has pressed a key and waits.
const PATIENCE: Duration = Duration::from_secs(2);

pub(crate) fn run(args: &Args, mut command: clap::Command) -> Exit {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, "kubestellar", &mut script);
    script.extend_from_slice(live(args.shell).as_bytes());
    // A closed pipe is not an error.
    let _ = std::io::stdout().lock().write_all(&script);
    Exit::Done
}

/// The part of a script that completes names. It follows the script that completes commands and flags.
fn live(shell: Shell) -> &'static str {
    match shell {
        Shell::Bash => include_str!("completion/live.bash"),
        Shell::Zsh => include_str!("completion/live.zsh"),
        Shell::Fish => include_str!("completion/live.fish"),
        _ => "",
    }
}

/// Prints names, one per line. Prints nothing if the server cannot be asked: a completion has no place for errors.
pub(crate) async fn names(
    args: &NamesArgs,
    files: &[PathBuf],
    installation: Option<PathBuf>,
    out: &Printer,
) -> Result<Exit, Failure> {
    let list = async {
        let spaces = Spaces::open(&args.spaces, files, installation).await.ok()?;
        let params = ListParams::default();
        Some(match args.what {
            Names::Policies => {
                let list = Api::<BindingPolicy>::all(spaces.wds).list_metadata(&params).await.ok()?;
                list.iter().map(ResourceExt::name_any).collect::<Vec<_>>()
            }
            Names::Clusters => {
                let list = Api::<ManagedCluster>::all(spaces.its).list_metadata(&params).await.ok()?;
                list.iter().map(ResourceExt::name_any).collect()
            }
        })
    };
    let names = tokio::time::timeout(PATIENCE, list).await.ok().flatten().unwrap_or_default();
    if !names.is_empty() {
        out.result(&names.join("\n"));
    }
    Ok(Exit::Done)
}
