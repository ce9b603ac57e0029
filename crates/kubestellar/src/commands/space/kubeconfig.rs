//! `kubestellar space kubeconfig` (SP-112).

use std::path::PathBuf;

use super::{Host, credentials};
use crate::datadir::write_atomically;
use crate::exit::{Exit, Failure, OrFail};
use crate::printer::Printer;

/// Print the kubeconfig of a space, or write it to a file.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  kubestellar space kubeconfig wds1 > wds1.conf\n  kubestellar space kubeconfig team-a -o team-a.conf"
)]
pub(super) struct Args {
    /// Name of the space
    #[arg(value_name = "NAME")]
    name: String,
    /// File to write instead of printing; it gets mode 0600
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// The kubeconfig for use inside the hosting cluster
    #[arg(long)]
    in_cluster: bool,
}

pub(super) async fn run(args: &Args, host: &Host, out: &Printer) -> Result<Exit, Failure> {
    let what = format!("reading the kubeconfig of {}", args.name);
    let plane = host.get(&what, &args.name).await?;
    let text = credentials(host, &plane, args.in_cluster).await?;
    match &args.output {
        None => out.result(&text),
        Some(file) => {
            write_atomically(file, text.as_bytes(), 0o600).or_fail(format!("writing {}", file.display()))?;
            out.note(&format!("the kubeconfig of {} is in {}", args.name, file.display()));
        }
    }
    Ok(Exit::Done)
}
