//! Configuration and limits of a server.

use std::sync::Arc;
use std::time::Duration;

use store::SpaceStore;

use super::downloads::DownloadLimits;
use super::uploads::UploadLimits;
use crate::admission::Admission;
use crate::authn::Authenticator;
use crate::authz::Authorizer;
use crate::strategy::KindSettings;
use crate::tokens::Issuer;

/// Configuration of an [`ApiServer`](super::ApiServer).
pub struct ApiServerConfig {
    pub store: SpaceStore,
    pub authenticator: Arc<Authenticator>,
    pub authorizer: Authorizer,
    /// Signs the tokens of TokenRequests. `None`: the authenticator's issuer signs them, if there is one.
    pub tokens: Option<Arc<Issuer>>,
    /// `host:port` as clients see this server (`serverAddress` in discovery).
    pub advertise: String,
    /// Write the RBAC bootstrap roles and bindings at start.
    pub rbac_bootstrap: bool,
    /// Create `default`, `kube-system`, `kube-public` and `kube-node-lease` at start.
    pub system_namespaces: bool,
    pub limits: Limits,
    /// Choices about built-in kinds.
    pub kinds: KindSettings,
    /// Admission of the control plane that is built on this server.
    pub admission: Option<Arc<dyn Admission>>,
}

impl ApiServerConfig {
    /// A server without authorization, for tests and trusted callers.
    pub fn open(store: SpaceStore, authenticator: Arc<Authenticator>) -> Self {
        Self {
            store,
            authenticator,
            authorizer: Authorizer::always_allow(),
            tokens: None,
            advertise: "127.0.0.1:6443".into(),
            rbac_bootstrap: false,
            system_namespaces: true,
            limits: Limits::default(),
            kinds: KindSettings::default(),
            admission: None,
        }
    }
}

/// Bounds on what clients can make the server hold (AS-070).
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Number of requests in flight. A request counts from when its body is there; a watch does not count once it has
    /// started.
    pub in_flight: usize,
    /// Number of requests of one user in flight, except for `system:masters`.
    pub in_flight_per_user: usize,
    /// The same as `in_flight` for `system:masters`, whose requests must get through when the other limit is reached.
    pub in_flight_masters: usize,
    /// Most bytes of a request body.
    pub body_bytes: usize,
    /// Bounds on bodies that do not arrive at once.
    pub uploads: UploadLimits,
    /// Bounds on responses that their clients do not read at once.
    pub downloads: DownloadLimits,
    /// Longest time of a request; for a watch, until it has started.
    pub request_timeout: Duration,
    /// Number of requests of one user that may wait for a slot for heavy work (large bodies and objects, definitions, long
    /// lists). Further requests are answered 429.
    pub heavy_waiting: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            in_flight: 600,
            in_flight_per_user: 300,
            in_flight_masters: 4800,
            body_bytes: 3 << 20,
            uploads: UploadLimits::default(),
            downloads: DownloadLimits::default(),
            request_timeout: Duration::from_secs(60),
            heavy_waiting: 64,
        }
    }
}
