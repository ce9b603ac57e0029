//! Which service answers a request to the listener (SP-055, SP-056).

use std::collections::{BTreeMap, BTreeSet};

use apiserver::health::Check;
use apiserver::server::Service as ApiService;
use http::Request;
use parking_lot::RwLock;

use crate::addressed::{Addressed, Misdirected, addressed};

/// Routes paths to spaces.
#[derive(Default)]
pub struct Router {
    spaces: RwLock<BTreeMap<String, ApiService>>,
    /// Spaces that are stopped for a while: their requests are answered with 503 (SP-050).
    paused: RwLock<BTreeSet<String>>,
    /// Serves all paths outside `/spaces/`. Only a bare API server has it.
    root: RwLock<Option<ApiService>>,
}

impl Router {
    pub fn add(&self, space: &str, service: ApiService) {
        self.paused.write().remove(space);
        self.spaces.write().insert(space.to_owned(), service);
    }

    pub fn remove(&self, space: &str) {
        self.spaces.write().remove(space);
        self.paused.write().remove(space);
    }

    /// Answers new requests for a space with 503, until the space is added again or removed.
    pub fn pause(&self, space: &str) {
        self.paused.write().insert(space.to_owned());
        self.spaces.write().remove(space);
    }

    pub(crate) fn is_paused(&self, space: &str) -> bool {
        self.paused.read().contains(space)
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
        Ok(space.and_then(|space| Some((self.spaces.read().get(&space).cloned()?, prefix))))
    }

    /// Whether a space has server names. A paused one has, so that its clients are told that it is stopped.
    pub(crate) fn serves_by_name(&self, space: &str) -> bool {
        self.root.read().is_none() && (self.spaces.read().contains_key(space) || self.is_paused(space))
    }

    /// The health checks of the process. A space that is not ready makes the process unready but not dead: `/livez`
    /// and `/healthz` report only that requests are answered (SP-139).
    pub(crate) fn checks(&self, path: &str) -> Vec<Check> {
        let mut checks = vec![Check::new("ping", true)];
        if path.starts_with("/readyz") {
            let spaces = self.spaces.read();
            checks.extend(spaces.iter().map(|(name, space)| space.readiness(format!("space/{name}"))));
        }
        checks
    }
}
