//! Renews the cluster's lease, which the hub created (OCM-047, OCM-048).

use std::{sync::Arc, time::Duration};

use apis::{
    constants::CLUSTER_LEASE,
    ocm::{ManagedCluster, cluster::CONDITION_HUB_ACCEPTED},
};
use k8s_openapi::api::coordination::v1::Lease;
use runtime::failure::is_not_found;
use runtime::rest::{Gvr, Rest};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::{Agent, jitter};
use ocm_shared::cluster::{grace, status};

/// The interval between renewals; `None` while the cluster is not accepted.
pub(super) type RenewInterval = Option<Duration>;

/// Returns the interval that the ManagedCluster requests.
pub(super) fn renew_interval(cluster: Option<&ManagedCluster>) -> RenewInterval {
    let cluster = cluster?;
    (status(cluster, CONDITION_HUB_ACCEPTED) == Some("True")).then(|| grace(cluster, 1))
}

/// Calls `renew` at the interval in `intervals`, and at once when that changes. A failed renewal is only late.
async fn keep<F: Future<Output = ()>>(
    mut intervals: watch::Receiver<RenewInterval>,
    stop: &CancellationToken,
    renew: impl Fn() -> F,
) {
    while !stop.is_cancelled() {
        let renew_interval = *intervals.borrow_and_update();
        if renew_interval.is_some() {
            renew().await;
        }
        let pause = async {
            match renew_interval {
                Some(period) => tokio::time::sleep(jitter(period, 0.25)).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = pause => {}
            changed = intervals.changed() => if changed.is_err() { return },
            () = stop.cancelled() => return,
        }
    }
}

impl Agent {
    /// Renews the lease at the interval in `intervals`.
    pub(super) async fn renew(
        self: Arc<Self>,
        hub: Rest,
        intervals: watch::Receiver<RenewInterval>,
        stop: CancellationToken,
    ) {
        let renew = || async {
            if let Err(error) = self.renew_once(&hub).await {
                if is_not_found(&error) {
                    // The cluster was accepted a moment ago. The hub is about to create the lease, with the current time.
                    tracing::debug!(cluster = self.names.cluster, "there is no lease to renew yet");
                    return;
                }
                tracing::warn!(%error, cluster = self.names.cluster, "renewing the lease");
            }
        };
        keep(intervals, &stop, renew).await;
    }

    async fn renew_once(&self, hub: &Rest) -> Result<(), kube::Error> {
        let gvr = Gvr::of::<Lease>();
        let mut lease: Value = hub.get(&gvr, &self.names.cluster, CLUSTER_LEASE).await?;
        let stamp = ocm_shared::cluster::micro(self.now());
        match lease.get_mut("spec").and_then(Value::as_object_mut) {
            Some(spec) => drop(spec.insert("renewTime".into(), stamp.into())),
            None => lease["spec"] = json!({"renewTime": stamp}),
        }
        hub.replace::<Value>(&gvr, &self.names.cluster, CLUSTER_LEASE, lease.to_string().into_bytes())
            .await
            .map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use apis::ocm::cluster::ManagedClusterStatus;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

    /// OCM-048: the interval is the cluster's lease duration, where 0 means a minute; there are no renewals
    /// unless the cluster is accepted.
    #[test]
    fn ocm_048_how_often() {
        let cluster = |accepted: Option<&str>, seconds: i32| {
            let mut cluster = ManagedCluster::named("c1");
            cluster.spec.lease_duration_seconds = Some(seconds);
            let condition = |status: &str| Condition {
                type_: CONDITION_HUB_ACCEPTED.into(),
                status: status.into(),
                reason: "x".into(),
                message: String::new(),
                observed_generation: None,
                last_transition_time: Time(k8s_openapi::jiff::Timestamp::UNIX_EPOCH),
            };
            let conditions = accepted.map(condition).into_iter().collect();
            cluster.status = Some(ManagedClusterStatus { conditions, ..ManagedClusterStatus::default() });
            cluster
        };
        let seconds = |n: u64| Some(Duration::from_secs(n));
        assert_eq!(renew_interval(None), None);
        for (accepted, lease, wanted) in [
            (Some("True"), 7, seconds(7)),
            (Some("True"), 0, seconds(60)),
            (Some("False"), 7, None),
            (Some("Unknown"), 7, None),
            (None, 7, None),
        ] {
            assert_eq!(renew_interval(Some(&cluster(accepted, lease))), wanted, "{accepted:?} {lease}");
        }
        for _ in 0..1000 {
            let pause = jitter(Duration::from_secs(60), 0.25);
            assert!(pause >= Duration::from_secs(60) && pause < Duration::from_secs(75), "{pause:?}");
        }
    }

    /// OCM-048: a changed duration takes effect at once; renewals end when the cluster is denied or the agent
    /// stops.
    #[tokio::test]
    async fn ocm_048_changes_count_at_once() {
        let hour = |n: u64| Some(Duration::from_secs(3600 * n));
        let (reported, mut renewed) = tokio::sync::mpsc::unbounded_channel();
        let (intervals, stop) = (watch::Sender::new(None), CancellationToken::new());
        let (heard, token) = (intervals.subscribe(), stop.clone());
        let running = tokio::spawn(async move {
            keep(heard, &token, || {
                reported.send(()).unwrap();
                std::future::ready(())
            })
            .await;
        });
        for renew_interval in [hour(1), hour(2), None, hour(2)] {
            intervals.send_replace(renew_interval);
            if renew_interval.is_some() {
                renewed.recv().await.expect("a renewal, long before the hour is over");
            }
            assert!(renewed.try_recv().is_err(), "one");
        }
        stop.cancel();
        running.await.unwrap();
        assert!(renewed.recv().await.is_none());
    }
}
