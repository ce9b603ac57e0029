//! Availability of a cluster: lease, clock, taints (OCM-047 … OCM-053). Pure; the time is an argument.

use std::time::Duration;

use apis::ocm::{
    ManagedCluster,
    cluster::{CONDITION_AVAILABLE, CONDITION_CLOCK, Taint},
};
use k8s_openapi::{
    apimachinery::pkg::apis::meta::v1::{Condition, Time},
    jiff::Timestamp,
};
use ocm_shared::cluster::{UNREACHABLE, status};

/// Taint of a cluster whose API does not answer.
pub const UNAVAILABLE: &str = "cluster.open-cluster-management.io/unavailable";
/// Annotation that switches the comparison of clocks off.
pub const SKIP_CLOCK: &str = "registration.open-cluster-management.io/skip-clock-sync-check";

/// The state of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseState {
    /// It is valid for this much longer.
    Until(Duration),
    /// It has expired.
    Stopped,
}

/// Evaluates a lease. `since` is when the hub started: a lease that expired while the hub was down gets one
/// grace period from then (8.1).
pub fn lease_state(renewed: Timestamp, since: Timestamp, grace: Duration, now: Timestamp) -> LeaseState {
    let last = renewed.max(since);
    let grace = i128::try_from(grace.as_nanos()).unwrap_or(i128::MAX);
    let left = last.as_nanosecond().saturating_add(grace) - now.as_nanosecond();
    match u64::try_from(left) {
        Ok(left) if left > 0 => LeaseState::Until(Duration::from_nanos(left)),
        Ok(_) => LeaseState::Stopped,
        Err(_) if left > 0 => LeaseState::Until(Duration::from_secs(3600)),
        Err(_) => LeaseState::Stopped,
    }
}

/// The condition of a cluster whose lease has expired.
pub fn unknown(now: Timestamp) -> Condition {
    Condition {
        type_: CONDITION_AVAILABLE.into(),
        status: "Unknown".into(),
        reason: "ManagedClusterLeaseUpdateStopped".into(),
        message: "Registration agent stopped updating its lease.".into(),
        observed_generation: None,
        last_transition_time: Time(now),
    }
}

/// The condition about clocks, for a renewal with the timestamp `renewed` that arrives at `now` (OCM-052).
pub fn clock(cluster: &ManagedCluster, renewed: Timestamp, grace: Duration, now: Timestamp) -> Condition {
    let skip = cluster
        .metadata
        .annotations
        .iter()
        .flatten()
        .any(|(key, value)| key == SKIP_CLOCK && value == "true");
    let apart = now.duration_since(renewed).unsigned_abs();
    let (status, reason, message) = if skip || apart < grace {
        ("True", "ManagedClusterClockSynced", "The clock of the managed cluster is synced with the hub.")
    } else {
        (
            "False",
            "ManagedClusterClockOutOfSync",
            "The clock of hub and agent is out of sync. This may cause the Unknown status and affect agent functionalities.",
        )
    };
    Condition {
        type_: CONDITION_CLOCK.into(),
        status: status.into(),
        reason: reason.into(),
        message: message.into(),
        observed_generation: None,
        last_transition_time: Time(now),
    }
}

/// Returns the taints that a cluster should have, `None` if it has them (OCM-053). Taints of other writers
/// stay.
pub fn taints(cluster: &ManagedCluster) -> Option<Vec<Taint>> {
    let wanted = match status(cluster, CONDITION_AVAILABLE) {
        Some("True") => None,
        Some("False") => Some(UNAVAILABLE),
        _ => Some(UNREACHABLE),
    };
    let have = &cluster.spec.taints;
    let ours = |taint: &Taint| [UNREACHABLE, UNAVAILABLE].contains(&taint.key.as_str());
    let right = |taint: &Taint| {
        Some(taint.key.as_str()) == wanted && taint.effect == "NoSelect" && taint.value.is_empty()
    };
    let mut new: Vec<Taint> = have.iter().filter(|taint| !ours(taint) || right(taint)).cloned().collect();
    if let Some(key) = wanted
        && !new.iter().any(right)
    {
        // The hub's admission sets the time (OCM-041).
        new.push(Taint { key: key.into(), effect: "NoSelect".into(), ..Taint::default() });
    }
    (new != *have).then_some(new)
}

#[cfg(test)]
mod tests {
    use super::*;
    use apis::ocm::cluster::ManagedClusterStatus;
    use ocm_shared::{clock::FutureTimes, cluster::grace};
    use proptest::prelude::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn cluster(available: Option<&str>, taints: &[&str]) -> ManagedCluster {
        let mut cluster = ManagedCluster::named("c1");
        cluster.spec.taints = taints
            .iter()
            .map(|&key| Taint {
                key: key.into(),
                effect: "NoSelect".into(),
                time_added: Some(Time(at(1))),
                ..Taint::default()
            })
            .collect();
        let conditions = available
            .map(|status| Condition { status: status.into(), ..unknown(at(0)) })
            .into_iter()
            .collect();
        cluster.status = Some(ManagedClusterStatus { conditions, ..ManagedClusterStatus::default() });
        cluster
    }

    /// OCM-A-18: a lease is valid for exactly five lease durations after the last renewal.
    #[test]
    fn ocm_049_a_lease_runs_out_after_its_grace() {
        let grace = Duration::from_secs(15);
        let cases = [
            (100, 0, 100, LeaseState::Until(grace)),
            (100, 0, 114, LeaseState::Until(Duration::from_secs(1))),
            (100, 0, 115, LeaseState::Stopped),
            (100, 0, 9000, LeaseState::Stopped),
            // The hub was down.
            (100, 5000, 5014, LeaseState::Until(Duration::from_secs(1))),
            (100, 5000, 5015, LeaseState::Stopped),
            // The agent's clock is ahead.
            (3700, 0, 100, LeaseState::Until(Duration::from_secs(3615))),
        ];
        for (renewed, since, now, wanted) in cases {
            assert_eq!(
                lease_state(at(renewed), at(since), grace, at(now)),
                wanted,
                "{renewed} {since} {now}"
            );
        }
    }

    /// OCM-049: a renewal of the future counts from when it was seen, so that a cluster that is gone does not stay available until then.
    #[test]
    fn ocm_049_a_renewal_of_the_future_runs_out() {
        let (grace, mut ahead) = (Duration::from_secs(15), FutureTimes::default());
        let mut left = |renewed: i64, now: i64| {
            let last = ahead.heard_at("c1", at(renewed), at(now));
            lease_state(last, at(0), grace, at(now))
        };
        let year = 31_536_000;
        assert_eq!(left(year, 100), LeaseState::Until(grace));
        assert_eq!(left(year, 110), LeaseState::Until(Duration::from_secs(5)));
        assert_eq!(left(year, 115), LeaseState::Stopped);
        assert_eq!(left(year + 1, 116), LeaseState::Until(grace), "renewed by a clock that is ahead");
        assert_eq!(left(117, 118), LeaseState::Until(Duration::from_secs(14)));
        assert_eq!(left(year, 50), LeaseState::Until(grace), "the hub's clock went back");
    }

    #[test]
    fn ocm_049_no_lease_duration_means_a_minute() {
        for (seconds, wanted) in [(None, 300), (Some(0), 300), (Some(-3), 300), (Some(3), 15)] {
            let mut cluster = ManagedCluster::named("c1");
            cluster.spec.lease_duration_seconds = seconds;
            assert_eq!(grace(&cluster, 5), Duration::from_secs(wanted));
        }
    }

    /// OCM-A-21: a clock that is an hour fast or slow is noticed, unless the annotation switches the
    /// comparison off.
    #[test]
    fn ocm_052_clocks_are_compared_with_the_renewal() {
        let grace = Duration::from_secs(300);
        for (renewed, now, status) in [
            (1000, 1000, "True"),
            (1299, 1000, "True"),
            (1300, 1000, "False"),
            (4600, 1000, "False"),
            (1000, 4600, "False"),
        ] {
            let mut cluster = cluster(None, &[]);
            assert_eq!(clock(&cluster, at(renewed), grace, at(now)).status, status, "{renewed} {now}");
            cluster.metadata.annotations = Some([(SKIP_CLOCK.to_owned(), "true".to_owned())].into());
            assert_eq!(clock(&cluster, at(renewed), grace, at(now)).status, "True");
        }
    }

    #[test]
    fn ocm_053_taints_follow_availability() {
        let keys = |taints: &[Taint]| taints.iter().map(|t| t.key.clone()).collect::<Vec<_>>();
        type Case = (Option<&'static str>, &'static [&'static str], Option<&'static [&'static str]>);
        let cases: &[Case] = &[
            (None, &[], Some(&[UNREACHABLE])),
            (Some("Unknown"), &["mine"], Some(&["mine", UNREACHABLE])),
            (Some("Unknown"), &[UNREACHABLE], None),
            (Some("False"), &[UNREACHABLE], Some(&[UNAVAILABLE])),
            (Some("False"), &[UNAVAILABLE, "mine"], None),
            (Some("True"), &[UNAVAILABLE, "mine", UNREACHABLE], Some(&["mine"])),
            (Some("True"), &["mine"], None),
        ];
        for (available, have, wanted) in cases {
            let new = taints(&cluster(*available, have));
            assert_eq!(
                new.as_deref().map(keys),
                wanted.map(|w| w.iter().map(ToString::to_string).collect()),
                "{available:?} {have:?}"
            );
        }
    }

    proptest! {
        /// Correct taints are not changed, and other taints stay.
        #[test]
        fn ocm_053_taints_settle(status in 0usize..4, have in proptest::collection::vec(0usize..3, 0..4)) {
            let status = [None, Some("True"), Some("False"), Some("Unknown")][status];
            let have: Vec<&str> = have.into_iter().map(|i| [UNREACHABLE, UNAVAILABLE, "mine"][i]).collect();
            let mut cluster = cluster(status, &have);
            if let Some(new) = taints(&cluster) {
                cluster.spec.taints = new;
            }
            prop_assert_eq!(taints(&cluster), None);
            prop_assert_eq!(
                cluster.spec.taints.iter().filter(|t| t.key == "mine").count(),
                have.iter().filter(|k| **k == "mine").count()
            );
        }
    }
}
