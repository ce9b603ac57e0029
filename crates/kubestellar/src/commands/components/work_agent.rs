//! `kubestellar work-agent` (OCM-150, OCM-151).

use std::path::PathBuf;

use ocm_agent::work_agent::Config;
use runtime::endpoints::Bind;

use crate::exit::{Exit, Failure};

use super::connection::{Caller, Connection, connection_flags};
use super::election::StandingElection;
use super::goflags::{KlogFlags, pair};
use super::process::{Probes, Process, by_default, endpoint_flags};
use super::secure::{self, TlsFlags};
use super::work_flags::{WORK_AGENT, WorkFlags, WorkGates};

/// Run the work agent of one cluster.
///
/// Applies in the cluster what the ManifestWorks in its mailbox namespace hold. The mailbox and the CRDs of both
/// sides must be there.
#[derive(Debug, clap::Args)]
#[command(
    args_override_self = true,
    after_help = "Examples:\n  kubestellar work-agent --spoke-cluster-name edge7 --hub-kubeconfig its.conf --spoke-kubeconfig edge7.conf"
)]
pub(crate) struct Args {
    /// Name of the cluster in the inventory
    #[arg(long, alias = "cluster-name", value_name = "NAME")]
    spoke_cluster_name: String,
    /// Directory with the kubeconfig of the hub, unless --hub-kubeconfig names it
    #[arg(long, value_name = "DIR")]
    hub_kubeconfig_dir: Option<PathBuf>,
    /// Identifies this agent among several on one cluster; one that takes over from `ocm agent` goes by the agent-name in its
    /// hub-kubeconfig-secret [default: hash of the hub's URL]
    #[arg(long, value_name = "ID", default_value = "")]
    agent_id: String,
    #[command(flatten)]
    work: WorkFlags,
    /// Gates as NAME=true|false: RawFeedbackJsonString
    #[arg(long, value_name = "GATES", value_delimiter = ',', value_parser = pair)]
    feature_gates: Vec<(String, String)>,
    /// Where /healthz, /readyz and /metrics are served over TLS; metrics only to whom the cluster lets see them
    #[arg(long, value_name = "ADDRESS", default_value = by_default!(":8443"))]
    listen: Bind,
    #[command(flatten)]
    tls: TlsFlags,
    #[command(flatten)]
    unsupported: Box<Unsupported>,
    #[command(flatten)]
    election: StandingElection,
    #[command(flatten)]
    endpoints: EndpointFlags,
    #[command(flatten)]
    spoke: SpokeFlags,
    #[command(flatten)]
    hub: HubFlags,
    #[command(flatten)]
    pub(crate) logging: KlogFlags,
}

connection_flags!(SpokeFlags, "spoke", "the cluster", "kube-api-qps" = "50", "kube-api-burst" = 100);
connection_flags!(HubFlags, "hub", "the hub", "hub-kube-api-qps" = "50", "hub-kube-api-burst" = 100);
endpoint_flags!(EndpointFlags, metrics = "0", pprof = "0", probes = "0");

/// Flags of OCM's agent whose other values ask for what is not there: accepted as long as they say the default.
#[derive(Clone, Debug, clap::Args)]
struct Unsupported {
    #[arg(long, hide = true, default_value = "kube")]
    workload_source_driver: String,
    #[arg(long, hide = true, default_value = "")]
    cloudevents_client_id: String,
    #[arg(long, hide = true, default_value = "")]
    cloudevents_client_codecs: String,
    #[arg(long, hide = true, default_value = "/spoke/hub-kubeconfig/kubeconfig")]
    workload_source_config: String,
    #[arg(long, hide = true, default_value = "")]
    config: String,
    #[arg(long, hide = true)]
    terminate_on_files: Vec<String>,
}

impl Unsupported {
    fn check(&self) -> Result<(), Failure> {
        let other = [
            ("workload-source-driver", self.workload_source_driver != "kube"),
            ("cloudevents-client-id", !self.cloudevents_client_id.is_empty()),
            ("cloudevents-client-codecs", !self.cloudevents_client_codecs.is_empty()),
        ];
        let broker = other.into_iter().find(|(_, set)| *set).map(|(flag, _)| {
            format!("--{flag}: works come from the hub's API server only; event brokers are not supported")
        });
        let file = (!self.config.is_empty())
            .then(|| "--config: there is no configuration file, use the flags".to_owned())
            .or_else(|| {
                (!self.terminate_on_files.is_empty()).then(|| {
                    "--terminate-on-files: it is not supported; changed credentials are read without a restart"
                        .to_owned()
                })
            });
        match broker.or(file) {
            Some(why) => Err(Failure::new(Exit::Usage, "reading the flags of the work agent", why)),
            None => Ok(()),
        }
    }
}

pub(crate) async fn run(args: &Args, own: Option<&PathBuf>) -> Result<Exit, Failure> {
    args.unsupported.check()?;
    let (gates, tls) = (WorkGates::of(&args.feature_gates)?, args.tls.check()?);
    let (mut hub, mut cluster) = (args.hub.connection(), args.spoke.connection());
    if !hub.is_named() {
        // Where OCM's deployments mount it.
        let mounted =
            || Some(PathBuf::from("/spoke/hub-kubeconfig")).filter(|dir| dir.join("kubeconfig").exists());
        hub.file = args.hub_kubeconfig_dir.clone().or_else(mounted).map(|dir| dir.join("kubeconfig"));
    }
    // OCM's agent may run elsewhere than in the cluster it works on; --kubeconfig is where it runs, and has its Lease.
    let place = match own {
        Some(file) => Connection { file: Some(file.clone()), ..Connection::default() },
        None => cluster.clone(),
    };
    if !cluster.is_named() {
        cluster.file = own.cloned();
    }
    let lock = args.election.lock("work-agent-lock")?;
    let process =
        Process::start("work agent", args.endpoints.endpoints(), Probes::Ping, &args.logging).await?;
    let caller = Caller { agent: WORK_AGENT, metrics: &process.metrics };
    let clients = async {
        let lock = place.to_lead(&caller, lock).await?;
        let url = hub.server().await?;
        let (hub, cluster) = (hub.client(&caller, None).await?, cluster.client(&caller, None).await?);
        let endpoint = secure::open(&args.listen, tls, process.metrics.clone(), cluster.clone()).await?;
        Ok((hub, url, cluster, lock, endpoint))
    };
    let clients = clients.await;
    let (mut process, (hub, hub_url, cluster, lock, endpoint)) = process.unless_failed(clients).await?;
    if let Some(endpoint) = endpoint {
        process.serve("secure", endpoint);
    }
    let config = Config {
        agent_id: args.agent_id.clone(),
        ready: process.ready.clone(),
        metrics: process.metrics.clone(),
        ..args.work.configure(Config::new(&args.spoke_cluster_name, &hub_url), gates)
    };
    process.run(lock, |stop| ocm_agent::work_agent::run(hub, cluster, config, stop)).await
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use runtime::limiter::Rate;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    /// OCM-070 (the flags): each side has a rate of its own.
    #[test]
    fn ocm_070_rates_of_both_sides() {
        let parse =
            |more: &[&str]| Line::parse_from([&["agent", "--spoke-cluster-name=c1"], more].concat()).args;
        let (cluster, hub) =
            (|args: &Args| args.spoke.connection().rate, |args: &Args| args.hub.connection().rate);
        let standard = Some(Rate { qps: 50.0, burst: 100 });
        let args = parse(&[]);
        assert_eq!((cluster(&args), hub(&args)), (standard, standard));
        let args = parse(&["--kube-api-qps=7.5", "--hub-kube-api-burst=3"]);
        assert_eq!(cluster(&args), Some(Rate { qps: 7.5, burst: 100 }));
        assert_eq!(hub(&args), Some(Rate { qps: 50.0, burst: 3 }));
        assert_eq!(hub(&parse(&["--hub-kube-api-qps=-1"])), None);
    }
}
