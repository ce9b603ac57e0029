//! Starting a server.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arc_swap::ArcSwap;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use super::downloads::{DownloadLimits, Downloads};
use super::places::Places;
use super::uploads::Uploads;
use super::{ApiServer, ApiServerConfig, Bounds};
use crate::crd::{self, Follower, FollowerHealth};
use crate::health::FailingChecks;
use crate::metrics::Metrics;
use crate::state::ServerState;
use crate::work::{self, HeavyWork};
use crate::{bootstrap, openapi};

/// Why a server did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    #[error("reading the space: {0}")]
    Store(#[from] store::StoreError),
    #[error("preparing the space: {0}")]
    Bootstrap(String),
}

impl ApiServer {
    /// Loads the catalog, creates the system namespaces and bootstrap roles, and starts following
    /// CustomResourceDefinitions.
    ///
    /// # Errors
    /// The space cannot be read, or an object that must exist cannot be written.
    pub fn start(config: ApiServerConfig) -> BoxFuture<'static, Result<Arc<Self>, StartError>> {
        Box::pin(Self::boot(config))
    }

    async fn boot(config: ApiServerConfig) -> Result<Arc<Self>, StartError> {
        let catalog = Arc::new(ArcSwap::from(crate::builtin::catalog()));
        let stop = CancellationToken::new();
        let follower = Follower::new(config.store.clone(), catalog.clone(), config.admission.clone());
        follower.sync().await;
        let follower_health = FollowerHealth::up();
        let supervised = crd::supervise(
            follower,
            config.store.clone(),
            catalog.clone(),
            config.admission.clone(),
            follower_health.clone(),
            stop.clone(),
        );
        let (rbac, namespaces) = (config.rbac_bootstrap, config.system_namespaces);
        let server = Arc::new(Self {
            bounds: Bounds {
                in_flight: Places::new(config.limits.in_flight, config.limits.in_flight_per_user),
                uploads: Uploads::new(config.limits.uploads),
                downloads: Downloads::new(config.limits.downloads),
            },
            bounds_of_masters: Bounds {
                in_flight: Places::new(config.limits.in_flight_masters, usize::MAX),
                uploads: Uploads::new(config.limits.uploads),
                // They are one user as a rule.
                downloads: Downloads::new(DownloadLimits {
                    bytes_per_user: config.limits.downloads.bytes,
                    ..config.limits.downloads
                }),
            },
            state: Arc::new(ServerState {
                config,
                stop,
                allocation: tokio::sync::Mutex::new(()),
                metrics: Metrics::default(),
                work: HeavyWork::of_process(),
            }),
            catalog,
            openapi: openapi::Cache::default(),
            prepared: AtomicBool::new(false),
            draining: AtomicBool::new(false),
            follower_health,
            failing_checks: FailingChecks::default(),
            follower: Mutex::new(Some(tokio::spawn(supervised))),
            number: work::server_number(),
        });
        let prepared = bootstrap::run(&server, namespaces, rbac).await;
        if let Err(error) = prepared {
            server.stop().await;
            return Err(StartError::Bootstrap(error));
        }
        server.prepared.store(true, Ordering::Release);
        Ok(server)
    }
}
