//! Access to a ManagedCluster, and the format of times, for both sides. Pure.

use std::time::Duration;

use apis::ocm::ManagedCluster;
use k8s_openapi::jiff::Timestamp;

/// Taint of a cluster whose agent does not renew its lease.
pub const UNREACHABLE: &str = "cluster.open-cluster-management.io/unreachable";

/// Returns how long a lease is valid: `factor` times the cluster's lease duration; 0 and invalid durations
/// count as 60 s.
pub fn grace(cluster: &ManagedCluster, factor: u32) -> Duration {
    let seconds = cluster.spec.lease_duration_seconds.filter(|s| *s > 0).unwrap_or(60);
    Duration::from_secs(u64::from(seconds.unsigned_abs())) * factor
}

/// Returns the status of a condition.
pub fn status<'a>(cluster: &'a ManagedCluster, type_: &str) -> Option<&'a str> {
    let conditions = &cluster.status.as_ref()?.conditions;
    conditions.iter().find(|c| c.type_ == type_).map(|c| c.status.as_str())
}

/// RFC 3339 with microseconds, the format of leases.
pub fn micro(at: Timestamp) -> String {
    format!("{at:.6}")
}
