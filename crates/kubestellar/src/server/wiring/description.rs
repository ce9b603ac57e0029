//! What a WDS has: binding, status and transport controllers, and what can be switched on beside them.

use std::sync::Arc;

use anyhow::Context as _;
use space::{Identity, Space};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use transport::shard::Limits;

use super::super::{admission::WORK_BYTES, rbac};
use crate::exit::{Failure, OrFail};

/// A WDS and its ITS.
#[derive(Clone)]
pub(super) struct Description {
    pub(super) wds: Arc<Space>,
    pub(super) its: Arc<Space>,
    /// Whether StatusCollectors may read the contents of Secrets.
    pub(super) collectors_read_secrets: bool,
}

impl Description {
    /// Grants the controllers their rights. If the controller manager runs in another process, defines the kinds that it
    /// would define: the other components should not have to wait for it.
    pub(super) async fn prepare(&self, controllers_run_here: bool) -> Result<(), Failure> {
        let (wds, its) = (self.wds.name(), self.its.name());
        let admin = self.wds.client(&Identity::admin());
        rbac::in_description_space(admin.clone())
            .await
            .or_fail(format!("granting the controllers of {wds} their rights"))?;
        rbac::in_inventory_space(self.its.client(&Identity::admin()))
            .await
            .or_fail(format!("granting the controllers of {wds} their rights in {its}"))?;
        if !controllers_run_here {
            runtime::install(&admin, &apis::crds::control(), rbac::MANAGER)
                .await
                .or_fail(format!("defining the API kinds of {wds}"))?;
        }
        Ok(())
    }
}

/// The binding controller and the status controller.
pub(super) async fn controllers(
    Description { wds, its, collectors_read_secrets }: Description,
    stop: CancellationToken,
    ready: watch::Sender<bool>,
) -> anyhow::Result<()> {
    let me = rbac::controller_manager();
    let config = controller_manager::Config {
        ready,
        collectors_read_secrets,
        ..controller_manager::Config::new(wds.name(), its.name())
    };
    controller_manager::run(wds.client_ahead(&me), its.client_ahead(&me), config, stop)
        .await
        .context("controller manager")
}

/// The transport controller.
pub(super) async fn transport(
    Description { wds, its, .. }: Description,
    stop: CancellationToken,
    ready: watch::Sender<bool>,
) -> anyhow::Result<()> {
    let me = rbac::transport();
    let limits = Limits { max_size: WORK_BYTES, ..Limits::default() };
    let config = transport::Config { ready, limits, ..transport::Config::new(wds.name()) };
    transport::run(wds.client_ahead(&me), its.client_ahead(&me), config, stop)
        .await
        .context("transport controller")
}

/// Defines Metacontroller's kinds and grants it its rights.
pub(super) async fn prepare_metacontroller(wds: &Arc<Space>) -> Result<(), Failure> {
    let (name, admin) = (wds.name(), wds.client(&Identity::admin()));
    runtime::install(&admin, &apis::crds::metacontroller(), rbac::MANAGER)
        .await
        .or_fail(format!("defining the kinds of Metacontroller in {name}"))?;
    rbac::metacontroller_in(admin).await.or_fail(format!("granting Metacontroller its rights in {name}"))
}

/// Metacontroller.
pub(super) async fn metacontroller(
    wds: Arc<Space>,
    stop: CancellationToken,
    ready: watch::Sender<bool>,
) -> anyhow::Result<()> {
    let client = wds.client(&rbac::metacontroller());
    let config = metacontroller::Config { ready, ..metacontroller::Config::default() };
    metacontroller::run(client, config, stop).await.context("Metacontroller")
}

/// Grants the right to label Helm's releases.
pub(super) async fn prepare_helm_releases(wds: &Arc<Space>) -> Result<(), Failure> {
    rbac::helm_releases_in(wds.client(&Identity::admin()))
        .await
        .or_fail(format!("granting the right to label releases in {}", wds.name()))
}

/// Labels Helm's releases.
pub(super) async fn helm_releases(
    wds: Arc<Space>,
    stop: CancellationToken,
    ready: watch::Sender<bool>,
) -> anyhow::Result<()> {
    let (client, name) = (wds.client_ahead(&rbac::helm_releases()), wds.name().to_owned());
    let metrics = runtime::metrics::Metrics::default();
    controller_manager::releases::run(client, name, metrics, ready, stop).await.context("Helm releases")
}
