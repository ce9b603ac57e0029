//! What both sides read in a ManagedCluster, and how they write times. Pure.

use std::time::Duration;

use apis::ocm::ManagedCluster;
use k8s_openapi::jiff::Timestamp;

/// Taint of a cluster whose agent is not heard of.
pub const UNREACHABLE: &str = "cluster.open-cluster-management.io/unreachable";

/// How long a lease is good for: `factor` times the cluster's lease duration, of which 0 and nonsense mean 60 s.
pub fn grace(cluster: &ManagedCluster, factor: u32) -> Duration {
    let seconds = cluster.spec.lease_duration_seconds.filter(|s| *s > 0).unwrap_or(60);
    Duration::from_secs(u64::from(seconds.unsigned_abs())) * factor
}

/// Status of a condition.
pub fn status<'a>(cluster: &'a ManagedCluster, type_: &str) -> Option<&'a str> {
    let conditions = &cluster.status.as_ref()?.conditions;
    conditions.iter().find(|c| c.type_ == type_).map(|c| c.status.as_str())
}

/// RFC 3339 with microseconds, as a lease wants it.
pub fn micro(at: Timestamp) -> String {
    format!("{at:.6}")
}
