//! `kubestellar space-manager` (SP-126): ControlPlanes and PostCreateHooks of a hosting cluster, in place of KubeFlex' operator.

use std::path::Path;

use kube::config::KubeConfigOptions;
use runtime::connect::Reach;
use space_manager::{Config, HostAddress, names};

use super::election::OptionalElection;
use super::goflags::KlogFlags;
use super::process::{Probes, Process, endpoint_flags, in_pod};
use crate::clients;
use crate::exit::{Exit, Failure, chain};

endpoint_flags!(EndpointFlags, metrics = ":8080", pprof = "0", probes = ":8081");

/// Address of a cluster's API server inside the cluster.
const INSIDE: &str = "https://kubernetes.default.svc";

/// Run the Space Manager of a hosting cluster: its ControlPlanes and PostCreateHooks.
///
/// It takes the place of KubeFlex' operator, and takes turns with one if both elect their leader. ControlPlanes of the types
/// `host` and `external` work as there. The types that run an API server in pods (k8s, ocm, vcluster, k3s) are refused, with a
/// condition that says what to do: the spaces of `kubestellar up` have a Space Manager of their own, which serves them.
#[derive(Debug, clap::Args)]
#[command(
    args_override_self = true,
    after_help = "Examples:\n  kubestellar space-manager --kubeconfig hosting.conf --leader-elect\n  kubestellar space-manager --context kind-kubeflex --host-url https://hosting.example:6443"
)]
pub(crate) struct Args {
    /// Context of the kubeconfig [default: current]
    #[arg(long, value_name = "CONTEXT")]
    context: Option<String>,
    /// Address of the hosting cluster in the kubeconfigs of ControlPlanes of type host, for use from outside [default: that of
    /// the kubeconfig]
    #[arg(long, value_name = "URL")]
    host_url: Option<String>,
    #[command(flatten)]
    election: OptionalElection,
    #[command(flatten)]
    endpoints: EndpointFlags,
    #[command(flatten)]
    pub(crate) logging: KlogFlags,
}

pub(crate) async fn run(args: &Args, kubeconfig: Option<&Path>) -> Result<Exit, Failure> {
    let lock = args.election.lock(names::SYSTEM_NAMESPACE, names::LEASE)?;
    let process =
        Process::start("space manager", args.endpoints.endpoints(), Probes::Ping, &args.logging).await?;
    let options = KubeConfigOptions { context: args.context.clone(), ..KubeConfigOptions::default() };
    let connected = async {
        let config = clients::config(kubeconfig, &options).await?;
        let outside = args.host_url.clone().unwrap_or_else(|| config.cluster_url.to_string());
        let client = kube::Client::try_from(config).map_err(|error| {
            Failure::new(Exit::Failed, "connecting to the hosting cluster", chain(&error))
        })?;
        Ok((client, outside))
    };
    let connected = connected.await;
    let (process, (client, outside)) = process.unless_failed(connected).await?;
    let config = Config {
        spaces: None,
        host: HostAddress { outside, inside: INSIDE.to_owned(), ca_pem: None },
        reach: if in_pod() { Reach::OtherMachines } else { Reach::Servers },
        metrics: process.metrics.clone(),
        ready: process.ready.clone(),
    };
    let lock = lock.map(|lock| (client.clone(), lock));
    process.run(lock, |stop| space_manager::run(client, config, stop)).await
}
