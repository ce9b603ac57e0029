//! `kubestellar transport-controller` (KS-216).

use std::path::PathBuf;
use std::sync::Arc;

use transport::Config;
use transport::plugin::{Ocm, Transport, bundle::Bundle};
use transport::shard::Limits;

use crate::clients::client;
use crate::exit::{Exit, Failure};

use super::{announce, until_stopped, with};

/// Run the transport controller of one WDS.
///
/// Turns each Binding of the WDS into envelopes, by default ManifestWorks, in the mailbox namespaces of the ITS.
#[derive(Debug, clap::Args)]
#[command(
    args_override_self = true,
    after_help = "Examples:\n  kubestellar transport-controller --wds-name wds1 --wds-kubeconfig wds.conf --transport-kubeconfig its.conf\n  kubestellar transport-controller --wds-name wds1 --wds-context wds1 --transport-context its1 --max-num-wrapped 1"
)]
pub(crate) struct Args {
    /// Name of the WDS; part of the names and labels of what is delivered
    #[arg(long, value_name = "NAME")]
    wds_name: String,
    /// Kubeconfig of the WDS [default: kubectl's]
    #[arg(long, value_name = "FILE")]
    wds_kubeconfig: Option<PathBuf>,
    /// Context of the WDS [default: current]
    #[arg(long, value_name = "CONTEXT")]
    wds_context: Option<String>,
    /// Kubeconfig of the ITS [default: kubectl's]
    #[arg(long, value_name = "FILE")]
    transport_kubeconfig: Option<PathBuf>,
    /// Context of the ITS [default: current]
    #[arg(long, value_name = "CONTEXT")]
    transport_context: Option<String>,
    /// Bindings handled at once
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=256))]
    concurrency: u16,
    /// Most objects in one envelope
    #[arg(long, value_name = "N", default_value_t = 512_000, value_parser = clap::value_parser!(u64).range(1..))]
    max_num_wrapped: u64,
    /// Most bytes of objects in one envelope
    #[arg(long, value_name = "BYTES", default_value_t = 512_000, value_parser = clap::value_parser!(u64).range(1..))]
    max_size_wrapped: u64,
    /// How objects are wrapped for the clusters
    #[arg(long, value_enum, default_value_t)]
    transport_plugin: Plugin,
}

/// The transports there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
enum Plugin {
    /// ManifestWorks, for OCM's work agent
    #[default]
    Ocm,
    /// ConfigMaps that hold a list of objects, for any agent that applies it
    Bundle,
}

impl Plugin {
    fn transport(self) -> Arc<dyn Transport> {
        match self {
            Self::Ocm => Arc::new(Ocm),
            Self::Bundle => Arc::new(Bundle),
        }
    }
}

pub(crate) async fn run(args: &Args) -> Result<Exit, Failure> {
    let wds = client(args.wds_kubeconfig.as_deref(), args.wds_context.as_deref()).await?;
    let its = client(args.transport_kubeconfig.as_deref(), args.transport_context.as_deref()).await?;
    let (ready, announced) = announce("transport controller");
    let bound = |n: u64| usize::try_from(n).unwrap_or(usize::MAX);
    let config = Config {
        limits: Limits {
            max_num: bound(args.max_num_wrapped),
            max_size: bound(args.max_size_wrapped),
            ..Limits::default()
        },
        concurrency: usize::from(args.concurrency),
        transport: args.transport_plugin.transport(),
        ready,
        ..Config::new(&args.wds_name)
    };
    let component = until_stopped("transport controller", |stop| transport::run(wds, its, config, stop));
    with(component, announced).await
}
