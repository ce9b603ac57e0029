//! What every space has, whatever it is for, and what a simulated cluster has in addition.

use std::sync::Arc;

use space::controllers::{self, CsrSigner};
use space::{Identity, Space, workloads};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::exit::{Failure, OrFail};

/// A space and the configuration of its controllers.
#[derive(Clone)]
pub(super) struct EverySpace {
    space: Arc<Space>,
    config: controllers::Config,
}

impl EverySpace {
    pub(super) fn new(space: Arc<Space>, ca_pem: &str) -> Result<Self, Failure> {
        let keys = space.keys();
        let signer = CsrSigner::new(&keys.client_ca, &keys.client_ca_key)
            .or_fail(format!("starting the space {}", space.name()))?;
        let config = controllers::Config { ca_bundle_pem: ca_pem.to_owned(), csr_signer: Some(signer) };
        Ok(Self { space, config })
    }
}

/// The controllers of every Kubernetes control plane.
pub(super) async fn controllers(
    EverySpace { space, config }: EverySpace,
    stop: CancellationToken,
    ready: watch::Sender<bool>,
) -> anyhow::Result<()> {
    let client = space.client(&Identity::component("system:kube-controller-manager", &["system:masters"]));
    Ok(controllers::run(client, space.server().store().clone(), config, ready, stop).await?)
}

/// What stands for the nodes of a simulated cluster.
pub(super) async fn simulator(
    EverySpace { space, .. }: EverySpace,
    stop: CancellationToken,
    ready: watch::Sender<bool>,
) -> anyhow::Result<()> {
    let client = space.client(&Identity::component("kubestellar:simulator", &["system:masters"]));
    let config = workloads::Config { node_name: format!("{}-node", space.name()) };
    Ok(workloads::run(client, space.server().store().clone(), config, ready, stop).await?)
}
