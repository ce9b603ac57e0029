//! What all requests of a server share.

use std::sync::Arc;

use tokio_util::sync::CancellationToken;

use crate::metrics::Metrics;
use crate::server::ApiServerConfig;
use crate::tokens::Issuer;
use crate::work::HeavyWork;

/// The state of one server that its handlers and watches use.
pub(crate) struct ServerState {
    pub config: ApiServerConfig,
    /// Cancelled when the server stops, which ends its watches.
    pub stop: CancellationToken,
    /// Held while a write chooses and stores a value of a limited range (cluster IP, node port).
    pub allocation: tokio::sync::Mutex<()>,
    pub metrics: Metrics,
    pub work: HeavyWork,
}

impl ServerState {
    /// The issuer that signs service-account tokens.
    pub(crate) fn issuer(&self) -> Option<&Arc<Issuer>> {
        self.config.tokens.as_ref().or_else(|| self.config.authenticator.issuer())
    }
}
