//! The binding controller and the status controller of a WDS.
//!
//! * [`binding`]: reads BindingPolicies and workload objects, writes Bindings. [`binding::world::World`]
//!   makes the decisions and does no I/O.
//! * [`status`]: reads WorkStatus objects of the ITS, writes `.status` of workload objects;
//!   [`status::decision`] decides.
//! * [`releases`]: optionally labels the Secrets of Helm's releases, so that policies can select them.
//!
//! The first two run in one process for one WDS and share what is known about the workload objects.

pub mod binding;
pub mod identity;
mod own_writes;
pub mod releases;
mod shared;
pub mod status;

use std::time::Duration;

use apis::constants::BINDING_MANAGER;
use futures::future::BoxFuture;
use kube::Client;
use runtime::{Ready, Tasks, metrics::Metrics};
use tokio_util::sync::CancellationToken;

pub use binding::resources::AllowedGroups;

/// The settings of the controllers.
#[derive(Clone, Debug)]
pub struct Config {
    /// Name of the WDS. WorkStatus objects that name another WDS are ignored (KS-149).
    pub wds_name: String,
    /// Name of the ITS, for log messages.
    pub its_name: String,
    /// API groups whose resources are watched (KS-213).
    pub api_groups: AllowedGroups,
    /// Whether the status controller runs, too.
    pub status: bool,
    /// Whether the Secrets of Helm's releases get the labels of their charts (KS-A-12).
    pub label_helm_releases: bool,
    /// `--collectors-read-secrets`: StatusCollectors may read the contents of Secrets, as in the original.
    pub collectors_read_secrets: bool,
    /// Set to true once the binding controller works.
    pub ready: Ready,
    /// How long resources that cannot be listed may delay the start (KS-030).
    pub patience: Duration,
    /// Receives the metrics: the queues `Binding-<WDS>` and `Status-<WDS>` (KS-223).
    pub metrics: Metrics,
}

impl Config {
    /// All controllers and all API groups.
    pub fn new(wds_name: impl Into<String>, its_name: impl Into<String>) -> Self {
        Self {
            wds_name: wds_name.into(),
            its_name: its_name.into(),
            api_groups: AllowedGroups::default(),
            status: true,
            label_helm_releases: false,
            collectors_read_secrets: false,
            ready: Ready::new(false),
            patience: Duration::from_secs(30),
            metrics: Metrics::default(),
        }
    }
}

/// Why the controllers ended.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The CRDs could not be installed.
    #[error(transparent)]
    Install(#[from] runtime::install::InstallError),
    /// A task failed or panicked.
    #[error(transparent)]
    Task(#[from] runtime::TaskError),
}

/// Runs the controllers until `stop` is cancelled. First installs the five CRDs of a WDS (KS-002).
///
/// # Errors
///
/// If the CRDs cannot be installed, or if a task fails or panics.
pub fn run(
    wds: Client,
    its: Client,
    config: Config,
    stop: CancellationToken,
) -> BoxFuture<'static, Result<(), Error>> {
    Box::pin(async move {
        let crds = apis::crds::control();
        tokio::select! {
            installed = runtime::install(&wds, &crds, BINDING_MANAGER) => installed?,
            () = stop.cancelled() => return Ok(()),
        }
        tracing::info!(wds = config.wds_name, its = config.its_name, "starting the controllers");
        let ready = config.ready.clone();
        let outcome = Tasks::run(stop, move |tasks| start(tasks, wds, &its, config)).await;
        ready.send_replace(false);
        Ok(outcome?)
    })
}

fn start(tasks: &mut Tasks, wds: Client, its: &Client, config: Config) {
    let shared = shared::Shared::new(config.status);
    if config.label_helm_releases {
        let (name, metrics, ready) = (config.wds_name.clone(), config.metrics.clone(), Ready::new(false));
        let labels = releases::run(wds.clone(), name, metrics, ready, tasks.token().clone());
        tasks.spawn("labels of releases", labels);
    }
    binding::start(tasks, &wds, its, config.clone(), shared.clone());
    status::start(tasks, wds, its, config, shared);
}
