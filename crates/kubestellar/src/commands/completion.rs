//! `kubestellar completion`: scripts for shells. They ask the server for the names of policies and clusters (SP-089).

use std::io::Write as _;
use std::time::Duration;

use apis::control::BindingPolicy;
use apis::ocm::ManagedCluster;
use clap_complete::Shell;
use kube::api::ListParams;
use kube::{Api, ResourceExt};

use super::get::spaces::{SpaceArgs, Spaces};
use crate::contexts::Sources;
use crate::exit::{Exit, Failure};
use crate::printer::Printer;

/// Print the completion script of a shell.
///
/// In bash, zsh and fish the script also completes names of policies and clusters, as they are at that moment.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  source <(kubestellar completion bash)\n  source <(kubestellar completion zsh)    # after compinit\n  \
                  kubestellar completion zsh > ~/.zfunc/_kubestellar    # a folder of $fpath\n  kubestellar completion fish | source"
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

pub(crate) fn run(args: &Args, command: clap::Command) -> Exit {
    // A closed pipe is not an error.
    let _ = std::io::stdout().lock().write_all(&script(args.shell, command));
    Exit::Done
}

/// Begins the last statement of the generated script for zsh, which completes commands and flags at once.
const ZSH_END: &[u8] = b"\nif [ \"$funcstack[1]\" = \"_kubestellar\" ]; then";

fn script(shell: Shell, mut command: clap::Command) -> Vec<u8> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command, "kubestellar", &mut script);
    if shell == Shell::Zsh
        && let Some(end) = script.windows(ZSH_END.len()).rposition(|part| part == ZSH_END)
    {
        script.truncate(end);
    }
    script.extend_from_slice(live(shell).as_bytes());
    script
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
pub(crate) async fn names(args: &NamesArgs, sources: &Sources, out: &Printer) -> Result<Exit, Failure> {
    let list = async {
        let spaces = Spaces::open(&args.spaces, sources).await.ok()?;
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

#[cfg(test)]
mod tests {
    use super::*;

    /// SP-089: the script for zsh decides once who completes: the part that knows names, also where the script is a file in
    /// `$fpath` and the first completion runs it as a function.
    #[test]
    fn sp_089_the_script_for_zsh_has_one_end() {
        let command = clap::Command::new("kubestellar").subcommand(clap::Command::new("up"));
        let script = String::from_utf8(script(Shell::Zsh, command)).unwrap();
        assert!(script.starts_with("#compdef kubestellar\n") && script.contains("_kubestellar_live() {"));
        assert_eq!(script.matches("funcstack").count(), 1);
        assert!(!script.contains("compdef _kubestellar kubestellar"), "without names");
        assert!(script.ends_with("    _kubestellar_live \"$@\"\nfi\n"));
    }
}
