//! `kubestellar transport-controller` (KS-216).

use std::sync::Arc;

use transport::Config;
use transport::plugin::{Ocm, Transport, bundle::Bundle};
use transport::shard::Limits;

use crate::exit::{Exit, Failure};

use super::connection::{Caller, connection_flags};
use super::election::OptionalElection;
use super::goflags::KlogFlags;
use super::process::{Probes, Process, endpoint_flags};

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
    /// Say in each envelope which generations its objects have in the WDS, for status agents with --status-details
    #[arg(long)]
    object_generations: bool,
    #[command(flatten)]
    election: OptionalElection,
    #[command(flatten)]
    endpoints: EndpointFlags,
    #[command(flatten)]
    wds: WdsFlags,
    #[command(flatten)]
    transport: TransportFlags,
    #[command(flatten)]
    pub(crate) logging: KlogFlags,
}

/// The transports.
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

connection_flags!(WdsFlags, "wds", "the WDS", "wds-qps" = "5", "wds-burst" = 10);
connection_flags!(TransportFlags, "transport", "the ITS", "transport-qps" = "5", "transport-burst" = 10);
endpoint_flags!(EndpointFlags, metrics = ":8090", pprof = ":8092", probes = "");

pub(crate) async fn run(args: &Args) -> Result<Exit, Failure> {
    let (wds, its) = (args.wds.connection(), args.transport.connection());
    let lock = args.election.lock("kube-system", &format!("transport-controller-{}", args.wds_name))?;
    let process =
        Process::start("transport controller", args.endpoints.endpoints(), Probes::Any, &args.logging)
            .await?;
    let caller = Caller { agent: "transport-controller", metrics: &process.metrics };
    let clients = async {
        let lock = wds.to_lead(&caller, lock).await?;
        Ok((wds.client(&caller, Some("wds")).await?, its.client(&caller, Some("its")).await?, lock))
    };
    let clients = clients.await;
    let (process, (wds, its, lock)) = process.unless_failed(clients).await?;
    let bound = |n: u64| usize::try_from(n).unwrap_or(usize::MAX);
    let config = Config {
        limits: Limits {
            max_num: bound(args.max_num_wrapped),
            max_size: bound(args.max_size_wrapped),
            ..Limits::default()
        },
        concurrency: usize::from(args.concurrency),
        object_generations: args.object_generations,
        ready: process.ready.clone(),
        transport: args.transport_plugin.transport(),
        metrics: process.metrics.clone(),
        ..Config::new(&args.wds_name)
    };
    process.run(lock, |stop| transport::run(wds, its, config, stop)).await
}
