//! Which service answers a request to the listener (SP-055, SP-056).

use std::collections::BTreeMap;
use std::sync::Arc;

use apiserver::health::Check;
use apiserver::server::Service as ApiService;
use http::Request;
use parking_lot::RwLock;

use crate::addressed::{Addressed, Misdirected, addressed};
use crate::certificate::ServerNames;

/// A space as clients reach it.
#[derive(Default)]
struct Served {
    /// `None`: the space is stopped for a while, and its requests are answered with 503 (SP-050).
    service: Option<ApiService>,
    names: Arc<ServerNames>,
}

/// Routes paths to spaces.
#[derive(Default)]
pub struct Router {
    spaces: RwLock<BTreeMap<String, Served>>,
    /// Serves all paths outside `/spaces/`. Only a bare API server has it.
    root: RwLock<Option<ApiService>>,
}

impl Router {
    pub fn add(&self, space: &str, service: ApiService) {
        self.spaces.write().entry(space.to_owned()).or_default().service = Some(service);
    }

    pub fn remove(&self, space: &str) {
        self.spaces.write().remove(space);
    }

    /// Answers new requests for a space with 503, until the space is added again or removed.
    pub fn pause(&self, space: &str) {
        self.spaces.write().entry(space.to_owned()).or_default().service = None;
    }

    pub(crate) fn is_paused(&self, space: &str) -> bool {
        self.spaces.read().get(space).is_some_and(|space| space.service.is_none())
    }

    pub fn set_root(&self, service: ApiService) {
        *self.root.write() = Some(service);
    }

    /// The service for a request, and how many leading bytes of the path name the space. `None`: the process answers.
    ///
    /// # Errors
    /// The request names two spaces.
    pub(crate) fn find<B>(
        &self,
        sni: Option<&str>,
        request: &Request<B>,
    ) -> Result<Option<(ApiService, usize)>, Misdirected> {
        if let Some(root) = self.root.read().clone() {
            return Ok(Some((root, 0)));
        }
        let Addressed { space, prefix } = addressed(sni, request)?;
        Ok(space.and_then(|space| Some((self.spaces.read().get(&space)?.service.clone()?, prefix))))
    }

    /// The certificates of the server names of a space. A paused space has them, so that its clients are told that it is
    /// stopped.
    pub(crate) fn names_of(&self, space: &str) -> Option<Arc<ServerNames>> {
        if self.root.read().is_some() {
            return None;
        }
        self.spaces.read().get(space).map(|space| space.names.clone())
    }

    /// The health checks of the process. A space that is not ready makes the process unready but not dead: `/livez`
    /// and `/healthz` report only that requests are answered (SP-139).
    pub(crate) fn checks(&self, path: &str) -> Vec<Check> {
        let mut checks = vec![Check::new("ping", true)];
        if path.starts_with("/readyz") {
            let spaces = self.spaces.read();
            let served = spaces.iter().filter_map(|(name, space)| Some((name, space.service.as_ref()?)));
            checks.extend(served.map(|(name, space)| space.readiness(format!("space/{name}"))));
        }
        checks
    }
}
