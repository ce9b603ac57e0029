//! What an ITS has: the hub of Open Cluster Management.

use std::sync::Arc;

use anyhow::Context as _;
use ocm_addon::status::StatusAddon;
use space::{Identity, Space};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::super::rbac;
use crate::exit::{Failure, OrFail};

/// Environment variable with the image of the status agent; the spelling is the original's.
const STATUS_IMAGE: &str = "STATUS_ADDDON_IMAGE_NAME";

/// Defines the kinds of the inventory and of the transport.
pub(super) async fn prepare(its: &Arc<Space>) -> Result<(), Failure> {
    let crds = apis::crds::ocm_hub_converting_with_reports();
    runtime::install(&its.client(&Identity::admin()), &crds, rbac::MANAGER)
        .await
        .or_fail(format!("defining the API kinds of {}", its.name()))
}

/// The add-on manager, with the status add-on.
pub(super) async fn addon_manager(
    its: Arc<Space>,
    stop: CancellationToken,
    ready: watch::Sender<bool>,
) -> anyhow::Result<()> {
    let client = its.client(&Identity::component("kubestellar:addon-manager", &["system:masters"]));
    // Without an image the status agent is where a klusterlet brings its own, as ours do.
    let addon = StatusAddon { image: std::env::var(STATUS_IMAGE).ok(), ..StatusAddon::default() };
    let config = ocm_addon::Config {
        kinds: apis::crds::ocm_hub_converting,
        ready,
        ..ocm_addon::Config::with_status_addon(addon)
    };
    ocm_addon::run(client, config, stop).await.context("add-on manager")
}

/// The controllers of the hub.
pub(super) async fn hub(
    its: Arc<Space>,
    stop: CancellationToken,
    ready: watch::Sender<bool>,
) -> anyhow::Result<()> {
    let client = its.client(&Identity::component("kubestellar:ocm-hub", &["system:masters"]));
    let mut config =
        ocm_hub::Config { kinds: apis::crds::ocm_hub_converting, ready, ..ocm_hub::Config::default() };
    config.approval.vouched_prefix = Some(rbac::VOUCHED.into());
    ocm_hub::run(client, config, stop).await.context("hub")
}
