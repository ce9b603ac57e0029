//! Agents of add-ons that run in the process of the registration agent.
//!
//! The registration agent annotates its ManagedCluster with the add-ons that it includes. An add-on manager
//! that knows the annotation deploys nothing, and checks the agent's lease. Another one, such as a Go
//! manager, deploys its own agent and checks the deployed objects. So the mode of the health check tells
//! whether the agent in this process is the wanted one.

use std::{future::Future, time::Duration};

use k8s_openapi::{api::coordination::v1::Lease, jiff::Timestamp};
use kube::Client;
use runtime::{
    backoff::jittered,
    rest::{Gvr, Rest},
};
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::Connection;

/// The duration of the lease, and the interval between renewals.
const LEASE: Duration = Duration::from_secs(60);

/// An add-on whose agent runs in this process.
#[derive(Clone)]
pub struct BuiltIn {
    name: String,
    pub(super) connection: Connection,
    /// The namespace of the agent, once it has an identity on the hub and is wanted here.
    pub(super) granted: watch::Sender<Option<String>>,
}

impl BuiltIn {
    /// An add-on of this name, without an identity yet.
    pub fn new(name: &str) -> Self {
        Self { name: name.into(), connection: Connection::default(), granted: watch::Sender::new(None) }
    }

    /// Name of the add-on.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns a client of the hub with the identity of the add-on's agent.
    pub fn hub(&self) -> Client {
        self.connection.client()
    }

    /// Runs the agent whenever it is wanted, until `stop`. Once `ready` is true, renews its lease in
    /// `cluster`.
    ///
    /// # Errors
    ///
    /// Those of the agent, when it ends by itself.
    pub async fn run<F, E>(
        &self,
        cluster: Client,
        mut ready: watch::Receiver<bool>,
        stop: CancellationToken,
        mut agent: impl FnMut(CancellationToken) -> F,
    ) -> Result<(), E>
    where
        F: Future<Output = Result<(), E>>,
    {
        let mut granted = self.granted.subscribe();
        loop {
            let namespace = tokio::select! {
                wanted = granted.wait_for(Option::is_some) => match wanted.ok().and_then(|w| w.clone()) {
                    Some(namespace) => namespace,
                    None => return Ok(()),
                },
                () = stop.cancelled() => return Ok(()),
            };
            let turn = stop.child_token();
            let lease = async {
                let well = tokio::select! {
                    well = ready.wait_for(|yes| *yes) => well.is_ok(),
                    () = turn.cancelled() => false,
                };
                if well {
                    keep_lease(
                        &Rest::with_manager(cluster.clone(), "status-agent"),
                        &namespace,
                        &self.name,
                        &turn,
                    )
                    .await;
                }
            };
            let withdrawn = async {
                tokio::select! {
                    _ = granted.wait_for(|wanted| wanted.as_ref() != Some(&namespace)) => {}
                    () = turn.cancelled() => {}
                }
                turn.cancel();
            };
            let working = async {
                let outcome = agent(turn.clone()).await;
                turn.cancel();
                outcome
            };
            let (outcome, (), ()) = tokio::join!(working, lease, withdrawn);
            outcome?;
            if stop.is_cancelled() {
                return Ok(());
            }
        }
    }
}

/// Renews the lease of an add-on's agent until `stop`. Costs one or two requests per minute.
async fn keep_lease(cluster: &Rest, namespace: &str, name: &str, stop: &CancellationToken) {
    let mut backoff = runtime::Backoff::new(Duration::from_millis(100), LEASE);
    while !stop.is_cancelled() {
        let pause = match renew(cluster, namespace, name).await {
            Ok(()) => {
                backoff.reset();
                jittered(LEASE)
            }
            Err(error) => {
                tracing::warn!(%error, namespace, lease = name, "renewing the lease of the add-on");
                backoff.pause()
            }
        };
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = stop.cancelled() => return,
        }
    }
}

async fn renew(cluster: &Rest, namespace: &str, name: &str) -> Result<(), kube::Error> {
    let gvr = Gvr::of::<Lease>();
    let stamp = ocm_shared::cluster::micro(Timestamp::now());
    let spec = json!({"holderIdentity": name, "leaseDurationSeconds": LEASE.as_secs(), "renewTime": stamp});
    if let Some(mut lease) = cluster.find::<Value>(&gvr, namespace, name).await? {
        lease["spec"] = spec;
        return cluster
            .replace::<Value>(&gvr, namespace, name, lease.to_string().into_bytes())
            .await
            .map(drop);
    }
    let body = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
        "metadata": {"name": name, "namespace": namespace}, "spec": spec});
    cluster.create_missing(&gvr, namespace, &body).await.map(drop)
}
