//! `kubestellar version` (SP-125).

use serde::Serialize;

use crate::exit::{Exit, Failure};
use crate::printer::{Format, Printer};

/// Print the version of this program and of the Kubernetes API it serves.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  kubestellar version\n  kubestellar version -o json")]
pub(crate) struct Args {
    /// Output format
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Document {
    api_version: &'static str,
    kind: &'static str,
    version: &'static str,
    kubernetes_version: String,
    platform: String,
}

pub(crate) fn run(args: &Args, out: &Printer) -> Result<Exit, Failure> {
    let version = Document {
        api_version: "cli.kubestellar.io/v1alpha1",
        kind: "Version",
        version: env!("CARGO_PKG_VERSION"),
        kubernetes_version: apiserver::version::GIT_VERSION.to_owned(),
        platform: format!("{}/{}", std::env::consts::OS, std::env::consts::ARCH),
    };
    match args.output {
        Format::Json | Format::Yaml => out.document(&version, args.output)?,
        Format::Table | Format::Wide | Format::Name => out.result(&format!(
            "kubestellar {} ({})\nserves Kubernetes API {}",
            version.version, version.platform, version.kubernetes_version
        )),
    }
    Ok(Exit::Done)
}
