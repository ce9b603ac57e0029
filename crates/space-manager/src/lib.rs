//! The Space Manager: it makes spaces out of ControlPlanes, as KubeFlex' operator does (SP-001 to SP-074).
//!
//! * A ControlPlane of type `k8s`, `vcluster`, `k3s` or `ocm` becomes an embedded space, if this process runs such spaces
//!   ([`Spaces`]). `host` shows the hosting cluster itself as a space, `external` adopts a cluster by a kubeconfig.
//! * PostCreateHooks are templates that are applied once, or built-in components that run.
//! * Decisions are pure: [`status`] and [`adoption`], the choice of the ITS in [`its`], hooks in [`hooks`]. [`pass`] is the
//!   shell: one pass reads the ControlPlane, puts in place what is missing, and writes its status if that changed.
//!
//! One event costs one pass of one ControlPlane: some five reads, and writes only where something differs. An event of a
//! hook costs a pass for each ControlPlane that uses it.

mod adoption;
pub mod condition;
mod credentials;
mod deletion;
mod embedded;
mod external;
mod hooks;
mod host;
mod its;
mod manager;
pub mod names;
mod outside;
mod pass;
pub mod prepare;
mod running;
mod spaces;
mod status;

use std::sync::Arc;

use futures::future::BoxFuture;
use kube::Client;
use runtime::connect::Reach;
use runtime::metrics::Metrics;
use runtime::{Ready, TaskError};
use tokio_util::sync::CancellationToken;

pub use embedded::{is_embedded, suspended_space, wanted_space};
pub use spaces::{Access, Component, ComponentState, Role, Spaces, SpacesError};

/// The hosting cluster, as ControlPlanes of type `host` show it.
#[derive(Clone, Debug, Default)]
pub struct HostAddress {
    /// URL for use from outside.
    pub outside: String,
    /// URL for use inside the cluster.
    pub inside: String,
    /// CA of these, PEM. Without it, the CA of the service account's Secret is used.
    pub ca_pem: Option<String>,
}

/// Configuration of the Space Manager.
pub struct Config {
    /// The embedded spaces of this process; without them the types that need one are refused.
    pub spaces: Option<Arc<dyn Spaces>>,
    /// The hosting cluster.
    pub host: HostAddress,
    /// Where adopted clusters may be: whoever may write Secrets and ControlPlanes chooses the addresses.
    pub reach: Reach,
    /// Where the work queue is counted.
    pub metrics: Metrics,
    /// Set to true once the manager works.
    pub ready: Ready,
}

/// Why the Space Manager ended.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kinds could not be defined.
    #[error(transparent)]
    Kinds(#[from] runtime::install::InstallError),
    /// A task died.
    #[error(transparent)]
    Task(#[from] TaskError),
}

/// Manages the ControlPlanes of `hosting` until `stop`. `hosting` must have all rights, because hooks may make any object.
///
/// # Errors
///
/// The kinds cannot be defined, or a task panics. Requests that fail are repeated.
pub fn run(
    hosting: Client,
    config: Config,
    stop: CancellationToken,
) -> BoxFuture<'static, Result<(), Error>> {
    Box::pin(manager::drive(hosting, config, stop))
}
