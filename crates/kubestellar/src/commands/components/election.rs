//! Flags of leader election (KS-211, OCM-150).

use std::time::Duration;

use runtime::election::{LeaseLock, Timing};

use super::goflags::{boolean, duration};
use crate::exit::{Exit, Failure};

/// Durations, under the names of both families of Go programs.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Leader election")]
pub(super) struct TimingFlags {
    /// How long a leader that is not heard of keeps others out
    #[arg(long = "leader-elect-lease-duration", alias = "leader-election-lease-duration", value_name = "DURATION",
        default_value = "15s", value_parser = duration)]
    lease_duration: Duration,
    /// How long a leader goes on without having renewed its Lease
    #[arg(long = "leader-elect-renew-deadline", alias = "leader-election-renew-deadline", value_name = "DURATION",
        default_value = "10s", value_parser = duration)]
    renew_deadline: Duration,
    /// Pause between two tries to get or renew the Lease
    #[arg(long = "leader-elect-retry-period", alias = "leader-election-retry-period", value_name = "DURATION",
        default_value = "2s", value_parser = duration)]
    retry_period: Duration,
}

impl TimingFlags {
    /// Returns the election with the Lease `name` in `namespace`, or why its durations are invalid.
    pub(super) fn lock(&self, namespace: &str, name: &str) -> Result<LeaseLock, Failure> {
        let timing = Timing {
            lease: self.lease_duration,
            renew_deadline: self.renew_deadline,
            retry: self.retry_period,
        };
        timing
            .check()
            .map_err(|error| Failure::new(Exit::Usage, "reading the leader election flags", error))?;
        Ok(LeaseLock { timing, ..LeaseLock::new(namespace, name) })
    }
}

/// Leader election that is off by default, as in KubeStellar's programs.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Leader election")]
pub(super) struct OptionalElection {
    /// Work only while holding a Lease, so that of several such processes one works
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_value = "false",
        default_missing_value = "true", value_parser = boolean)]
    leader_elect: bool,
    #[command(flatten)]
    timing: TimingFlags,
    /// Name of the Lease [default: by component]
    #[arg(long, value_name = "NAME")]
    leader_elect_resource_name: Option<String>,
    /// Namespace of the Lease [default: the pod's, or by component]
    #[arg(long, value_name = "NAMESPACE")]
    leader_elect_resource_namespace: Option<String>,
}

impl OptionalElection {
    /// Returns the election; `None` if it is off. Without flags the Lease is `name` in the pod's namespace, or in
    /// `namespace` outside of a cluster.
    pub(super) fn lock(&self, namespace: &str, name: &str) -> Result<Option<LeaseLock>, Failure> {
        let said = self.leader_elect_resource_namespace.clone().or_else(pod_namespace);
        let namespace = said.as_deref().unwrap_or(namespace);
        let name = self.leader_elect_resource_name.as_deref().unwrap_or(name);
        // The values are checked also if the election is off, so that an error is found at once.
        let lock = self.timing.lock(namespace, name)?;
        Ok(self.leader_elect.then_some(lock))
    }
}

/// Leader election that is on by default, as in OCM's programs.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "Leader election")]
pub(super) struct StandingElection {
    /// Work without holding a Lease
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_value = "false",
        default_missing_value = "true", value_parser = boolean)]
    disable_leader_election: bool,
    #[command(flatten)]
    timing: TimingFlags,
    /// Namespace of the Lease [default: the pod's, else "default"]
    #[arg(long, value_name = "NAMESPACE")]
    namespace: Option<String>,
}

impl StandingElection {
    /// Returns the election with the Lease `name`; `None` if it is off.
    pub(super) fn lock(&self, name: &str) -> Result<Option<LeaseLock>, Failure> {
        let namespace = self.namespace.clone().or_else(pod_namespace).unwrap_or_else(|| "default".to_owned());
        let lock = self.timing.lock(&namespace, name)?;
        Ok((!self.disable_leader_election).then_some(lock))
    }
}

/// Returns the namespace of this process' pod; `None` outside of a cluster.
pub(super) fn pod_namespace() -> Option<String> {
    let text = std::fs::read_to_string("/var/run/secrets/kubernetes.io/serviceaccount/namespace").ok()?;
    Some(text.trim().to_owned()).filter(|it| !it.is_empty())
}
