//! `kubestellar manifests`: what an installation on a hosting cluster consists of (KS-219, KS-227).

mod hosting;
mod values;

#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::exit::{Exit, Failure, OrFail};
use crate::printer::{Format, Printer};

use values::Values;

/// Print the manifests of an installation on a hosting cluster.
///
/// Takes the values of KubeStellar's core chart, as far as they say what runs: ITSes, WDSes, verbosity and
/// transport_controller. For each WDS there are the controller manager and the transport controller, in the namespace
/// <wds>-system and under the names they have there, each with a service account that may do what it has to and nothing
/// else. Spaces are ControlPlanes; every component waits for those it needs, so all can be applied at once.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  kubestellar manifests --values values.yaml | kubectl apply -f -\n  kubestellar manifests --kinds its | kubectl --context its1 apply --server-side -f -\n  kubestellar manifests --values values.yaml --image registry.example/kubestellar:0.1.0 -o json"
)]
pub(crate) struct Args {
    /// Values of the core chart
    #[arg(long, value_name = "FILE", required_unless_present = "kinds")]
    values: Option<PathBuf>,
    /// Print instead the CustomResourceDefinitions that an API server of this side needs, for installations in which the
    /// components may not create them
    #[arg(long, value_enum, value_name = "SIDE", conflicts_with = "values")]
    kinds: Option<Side>,
    /// Image that has this program
    #[arg(long, default_value_t = default_image())]
    image: String,
    /// Output format: yaml, or json for one List
    #[arg(short, long, value_enum, default_value_t = Format::Yaml)]
    output: Format,
}

/// What an API server is for.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Side {
    /// A workload description space
    Wds,
    /// An inventory and transport space: a hub
    Its,
    /// A workload execution cluster
    Wec,
}

impl Side {
    /// Its kinds. Those of a hub include WorkStatus, which agents of the status add-on write (KS-200).
    fn kinds(self) -> Vec<Value> {
        let kinds = match self {
            Self::Wds => apis::crds::control(),
            Self::Its => apis::crds::ocm_hub_with_reports(),
            Self::Wec => apis::crds::ocm_spoke(),
        };
        kinds.iter().filter_map(|kind| serde_json::to_value(kind).ok()).collect()
    }
}

fn default_image() -> String {
    format!("kubestellar:{}", env!("CARGO_PKG_VERSION"))
}

pub(crate) async fn run(args: &Args, out: &Printer) -> Result<Exit, Failure> {
    let items = match (&args.values, args.kinds) {
        (Some(values), _) => hosted(values, &args.image).await?,
        (None, side) => side.map(Side::kinds).unwrap_or_default(),
    };
    match args.output {
        Format::Yaml => out.result(&stream(&items)?),
        format => {
            let list = serde_json::json!({"apiVersion": "v1", "kind": "List", "items": items});
            out.document(&list, format)?;
        }
    }
    Ok(Exit::Done)
}

/// The manifests of an installation with the values in this file.
async fn hosted(values: &Path, image: &str) -> Result<Vec<Value>, Failure> {
    let doing = || format!("reading {}", values.display());
    let text = tokio::fs::read_to_string(values).await.or_fail(doing())?;
    let values: Values =
        serde_saphyr::from_str(&text).map_err(|e| Failure::new(Exit::Usage, doing(), e.to_string()))?;
    hosting::manifests(&values, image).map_err(|e| Failure::new(Exit::Usage, doing(), e.to_string()))
}

/// YAML documents one after the other.
fn stream(items: &[Value]) -> Result<String, Failure> {
    let mut text = String::new();
    for (index, item) in items.iter().enumerate() {
        let document = serde_saphyr::to_string(item).or_fail("printing the manifests")?;
        text.push_str(if index == 0 { "" } else { "\n---\n" });
        text.push_str(document.trim_end());
    }
    Ok(text)
}
