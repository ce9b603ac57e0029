//! The lease: a sign of life for the hub, which made it (OCM-047, OCM-048).

use std::{sync::Arc, time::Duration};

use apis::{
    constants::CLUSTER_LEASE,
    ocm::{ManagedCluster, cluster::CONDITION_HUB_ACCEPTED},
};
use runtime::rest::{Gvr, Rest};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::{Agent, jitter};
use crate::hub::availability;

/// How often to renew; `None` while the cluster is not accepted.
pub(super) type Beat = Option<Duration>;

/// What the ManagedCluster asks for.
pub(super) fn beat(cluster: Option<&ManagedCluster>) -> Beat {
    let cluster = cluster?;
    (availability::status(cluster, CONDITION_HUB_ACCEPTED) == Some("True"))
        .then(|| availability::grace(cluster, 1))
}

impl Agent {
    /// Renews the lease as often as `beats` says.
    pub(super) async fn renew(
        self: Arc<Self>,
        hub: Rest,
        mut beats: watch::Receiver<Beat>,
        stop: CancellationToken,
    ) {
        while !stop.is_cancelled() {
            let beat = *beats.borrow_and_update();
            if let Some(period) = beat {
                if let Err(error) = self.renew_once(&hub).await {
                    tracing::warn!(%error, cluster = self.names.cluster, "renewing the lease");
                }
                tokio::select! {
                    () = tokio::time::sleep(jitter(period, 0.25)) => {}
                    changed = beats.changed() => if changed.is_err() { return },
                    () = stop.cancelled() => return,
                }
                continue;
            }
            tokio::select! {
                changed = beats.changed() => if changed.is_err() { return },
                () = stop.cancelled() => return,
            }
        }
    }

    async fn renew_once(&self, hub: &Rest) -> Result<(), kube::Error> {
        let gvr = Gvr::new("coordination.k8s.io", "v1", "leases");
        let mut lease: Value = hub.get(&gvr, &self.names.cluster, CLUSTER_LEASE).await?;
        let stamp = crate::hub::micro(self.now());
        match lease.get_mut("spec").and_then(Value::as_object_mut) {
            Some(spec) => drop(spec.insert("renewTime".into(), stamp.into())),
            None => lease["spec"] = json!({"renewTime": stamp}),
        }
        hub.replace::<Value>(&gvr, &self.names.cluster, CLUSTER_LEASE, lease.to_string().into_bytes())
            .await
            .map(drop)
    }
}
