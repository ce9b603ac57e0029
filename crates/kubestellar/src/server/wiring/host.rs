//! What the host space has: the Space Manager.

use std::sync::Arc;

use anyhow::Context as _;
use runtime::connect::Reach;
use space::{Identity, Space};
use space_manager::prepare::{SystemConfig, prepare_host};
use space_manager::{HostAddress, Spaces};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// The host space and the spaces that its ControlPlanes stand for.
#[derive(Clone)]
pub(in super::super) struct Host {
    pub(in super::super) space: Arc<Space>,
    pub(in super::super) spaces: Arc<dyn Spaces>,
    /// CA of the listener, PEM.
    pub(in super::super) ca_pem: String,
    /// Port of the listener.
    pub(in super::super) port: u16,
}

impl Host {
    pub(super) fn name(&self) -> &str {
        self.space.name()
    }

    /// Defines the kinds and creates what every host space has.
    async fn prepare(&self) -> anyhow::Result<()> {
        let config = SystemConfig { domain: "localtest.me".to_owned(), external_port: self.port };
        prepare_host(&self.space.client(&Identity::admin()), &config)
            .await
            .with_context(|| format!("preparing the host space {}", self.name()))
    }
}

/// The Space Manager. It acts as an administrator: hooks may make any object.
pub(super) async fn space_manager(
    of: Host,
    stop: CancellationToken,
    ready: watch::Sender<bool>,
) -> anyhow::Result<()> {
    of.prepare().await?;
    let client = of.space.client(&Identity::component("kubestellar:space-manager", &["system:masters"]));
    let address = HostAddress {
        outside: of.space.url().to_owned(),
        inside: of.space.url().to_owned(),
        ca_pem: Some(of.ca_pem.clone()),
    };
    let config = space_manager::Config {
        spaces: Some(of.spaces.clone()),
        host: address,
        // Clusters of this machine, such as kind's, have loopback addresses.
        reach: Reach::Servers,
        metrics: runtime::metrics::Metrics::default(),
        ready,
    };
    space_manager::run(client, config, stop).await.context("Space Manager")
}
