//! A certificate does not mean acceptance (OCM-046, E1): until the hub's administrator accepts the cluster,
//! the agent has no permissions on the hub, not even to read its own ManagedCluster.

use std::time::Duration;

use apis::ocm::{ManagedCluster, cluster::CONDITION_HUB_ACCEPTED};
use runtime::failure::code_of;
use runtime::rest::Rest;
use tokio_util::sync::CancellationToken;

use super::{Agent, managed_clusters, waiting::Waiting};
use ocm_shared::cluster::status;

impl Agent {
    /// Waits until the agent may read its own ManagedCluster. No watch can report that, so it polls, at
    /// intervals of up to ten seconds. Returns false if it is stopped, or when the hub rejects the
    /// certificate.
    pub(super) async fn wait_for_acceptance(&self, hub: &Rest, stop: &CancellationToken) -> bool {
        let (cluster, gvr) = (self.names.cluster.as_str(), managed_clusters());
        let mut backoff = runtime::Backoff::new(Duration::from_millis(50), Duration::from_secs(10));
        let mut waiting = Waiting::default();
        loop {
            let asked = tokio::select! {
                asked = hub.find::<ManagedCluster>(&gvr, "", cluster) => asked,
                () = stop.cancelled() => return false,
            };
            let (pause, go_on) = match asked {
                Ok(_) => return true,
                Err(error) if code_of(&error) == 403 => {
                    waiting.tell(cluster, tokio::time::Instant::now());
                    (backoff.pause(), self.is_still_good().await)
                }
                Err(error) => {
                    tracing::warn!(%error, cluster, "asking the hub about the cluster; will be tried again");
                    (backoff.pause().max(Duration::from_secs(1)), code_of(&error) != 401)
                }
            };
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = stop.cancelled() => return false,
            }
            if !go_on {
                return false;
            }
        }
    }

    /// Starts the components that wait for the acceptance.
    pub(super) fn note_acceptance(&self, mine: Option<&ManagedCluster>) {
        if mine.is_some_and(|mine| status(mine, CONDITION_HUB_ACCEPTED) == Some("True")) {
            self.config.accepted.send_if_modified(|accepted| !std::mem::replace(accepted, true));
        }
    }
}
