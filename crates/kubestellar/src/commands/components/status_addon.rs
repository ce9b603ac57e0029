//! `kubestellar status-addon` (OCM-130, OCM-133): the status add-on's controller, for a hub that has a general add-on
//! manager already.

use ocm_addon::status::StatusAddon;

use crate::exit::{Exit, Failure};

use super::connection::connection_flags;
use super::election::OptionalElection;
use super::goflags::KlogFlags;
use super::process::{Probes, Process, endpoint_flags};

connection_flags!(HubFlags, "hub", "the hub", "kube-api-qps" = "50", "kube-api-burst" = 100);
endpoint_flags!(EndpointFlags, metrics = ":9280", pprof = ":9282", probes = "0");

/// The Lease of the controller.
const LEASE: &str = "addon-status-controller-lock";

/// Run the status add-on's controller of one hub.
///
/// Brings a status agent into every cluster of the hub: identity, rights, deployment, health. The hub's general add-on
/// manager decides which clusters those are; `kubestellar ocm hub` is both in one.
#[derive(Debug, clap::Args)]
#[command(
    args_override_self = true,
    after_help = "Examples:\n  kubestellar status-addon --hub-kubeconfig its.conf --agent-image registry.example/status-agent:1\n  kubestellar status-addon --hub-kubeconfig its.conf --agent-hub-qps=7"
)]
pub(crate) struct Args {
    #[command(flatten)]
    agents: AgentFlags,
    #[command(flatten)]
    election: OptionalElection,
    #[command(flatten)]
    endpoints: EndpointFlags,
    #[command(flatten)]
    hub: HubFlags,
    #[command(flatten)]
    pub(crate) logging: KlogFlags,
}

/// Image and settings of the status agents.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Status agents in the clusters (what is given is passed on)")]
#[allow(clippy::struct_field_names, reason = "they are the names of the flags")]
pub(super) struct AgentFlags {
    /// Image of the agent; without, it is only where a klusterlet brings its own
    #[arg(long, value_name = "IMAGE", env = "STATUS_ADDDON_IMAGE_NAME")]
    agent_image: Option<String>,
    /// The agent may read everything in its cluster, instead of doing everything
    #[arg(long)]
    agent_read_only: bool,
    #[arg(long, value_name = "ADDRESS", hide_short_help = true)]
    agent_metrics_bind_addr: Option<String>,
    #[arg(long, value_name = "ADDRESS", hide_short_help = true)]
    agent_pprof_bind_addr: Option<String>,
    /// Most requests a second on the hub
    #[arg(long, value_name = "RATE")]
    agent_hub_qps: Option<String>,
    #[arg(long, value_name = "N")]
    agent_hub_burst: Option<String>,
    /// Most requests a second in the cluster
    #[arg(long, value_name = "RATE")]
    agent_local_qps: Option<String>,
    #[arg(long, value_name = "N")]
    agent_local_burst: Option<String>,
    /// Log level
    #[arg(long, value_name = "N")]
    agent_v: Option<String>,
    #[arg(long, value_name = "PATTERNS", hide_short_help = true)]
    agent_vmodule: Option<String>,
    #[arg(long, value_name = "FORMAT", hide_short_help = true)]
    agent_logging_format: Option<String>,
    #[arg(long, value_name = "DURATION", hide_short_help = true)]
    agent_log_flush_frequency: Option<String>,
}

impl AgentFlags {
    pub(super) fn addon(&self) -> StatusAddon {
        let given = [
            ("metrics-bind-addr", &self.agent_metrics_bind_addr),
            ("pprof-bind-addr", &self.agent_pprof_bind_addr),
            ("hub-qps", &self.agent_hub_qps),
            ("hub-burst", &self.agent_hub_burst),
            ("local-qps", &self.agent_local_qps),
            ("local-burst", &self.agent_local_burst),
            ("v", &self.agent_v),
            ("vmodule", &self.agent_vmodule),
            ("logging-format", &self.agent_logging_format),
            ("log-flush-frequency", &self.agent_log_flush_frequency),
        ];
        let passed = given.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value.clone()?)));
        StatusAddon {
            image: self.agent_image.clone().filter(|image| !image.is_empty()),
            flags: passed.collect(),
            read_only: self.agent_read_only,
        }
    }
}

pub(crate) async fn run(args: &Args) -> Result<Exit, Failure> {
    let connection = args.hub.connection();
    let lock = args.election.lock(apis::constants::OCM_NAMESPACE, LEASE)?;
    let process =
        Process::start("status add-on", args.endpoints.endpoints(), Probes::Ping, &args.logging).await?;
    let (process, client, lock) = process.connected(&connection, "status-addon", "hub", lock).await?;
    let config = ocm_addon::Config {
        placements: false,
        general: false,
        ready: process.ready.clone(),
        ..ocm_addon::Config::with_status_addon(args.agents.addon())
    };
    process.run(lock, |stop| ocm_addon::run(client, config, stop)).await
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    /// OCM-A-101 (the flags): each one that is given is passed on under its own name, the others are not.
    #[test]
    fn ocm_133_flags_for_the_agents() {
        let parse = |line: &[&str]| Line::parse_from([&["status-addon"], line].concat()).args;
        let addon = parse(&["--agent-hub-qps=7", "--agent-v=4", "--agent-image=x:1"]).agents.addon();
        let flags: Vec<(&str, &str)> = addon.flags.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
        assert_eq!(flags, [("hub-qps", "7"), ("v", "4")]);
        assert_eq!(addon.image.as_deref(), Some("x:1"));
        for name in ocm_addon::status::AGENT_FLAGS {
            let flag = format!("--agent-{name}=1");
            assert_eq!(parse(&[&flag]).agents.addon().flags.keys().collect::<Vec<_>>(), [name]);
        }
        assert!(parse(&[]).agents.addon().flags.is_empty());
    }
}
