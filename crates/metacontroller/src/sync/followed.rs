//! The related resources that are followed at present (MC-116, MC-190).

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use runtime::rest::Gvr;
use tokio::time::Instant;

use crate::cache::{Cache, FollowGuard};

/// How long a resource is followed after the last answer that refers to it. So it need not be listed again
/// when an answer changes for a moment or a parent is recreated.
const LINGER: Duration = Duration::from_secs(60);

/// The followed resources, with the number of customize answers that refer to each.
#[derive(Default)]
pub(super) struct Followed {
    all: HashMap<Gvr, (Arc<Cache>, FollowGuard)>,
    uses: HashMap<Gvr, usize>,
    /// Unreferenced resources, by the time when they became so.
    idle: BTreeSet<(Instant, Gvr)>,
}

impl Followed {
    /// Returns the cache of a resource that is followed.
    pub(super) fn get(&self, gvr: &Gvr) -> Option<&Arc<Cache>> {
        self.all.get(gvr).map(|(cache, _)| cache)
    }

    /// One more answer refers to a resource.
    pub(super) fn used(&mut self, gvr: &Gvr) {
        *self.uses.entry(gvr.clone()).or_default() += 1;
    }

    /// One answer less refers to a resource. Returns true if none is left.
    pub(super) fn unused(&mut self, gvr: &Gvr, now: Instant) -> bool {
        let Some(uses) = self.uses.get_mut(gvr) else { return false };
        *uses -= 1;
        if *uses > 0 {
            return false;
        }
        self.uses.remove(gvr);
        self.idle.insert((now, gvr.clone()))
    }

    /// Follows a resource, unless it is followed already.
    pub(super) fn follow(&mut self, gvr: &Gvr, begin: impl FnOnce() -> (Arc<Cache>, FollowGuard)) {
        if !self.all.contains_key(gvr) {
            self.all.insert(gvr.clone(), begin());
        }
    }

    /// Removes the resources that have been unreferenced long enough; the caller drops them. Returns the time
    /// of the next removal. Cost: O(resources that became unreferenced).
    pub(super) fn leave(&mut self, now: Instant) -> (Vec<(Arc<Cache>, FollowGuard)>, Option<Instant>) {
        let mut left = Vec::new();
        while let Some((since, gvr)) = self.idle.first().cloned() {
            if since + LINGER > now {
                return (left, Some(since + LINGER));
            }
            self.idle.pop_first();
            let again = self.idle.iter().any(|(_, other)| *other == gvr);
            if !self.uses.contains_key(&gvr) && !again {
                left.extend(self.all.remove(&gvr));
            }
        }
        (left, None)
    }
}

#[cfg(test)]
mod tests {
    use kube::Client;
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::{cache::Caches, resource::Served};

    /// MC-190: a resource that no answer refers to is released, but not at once.
    #[tokio::test(start_paused = true)]
    async fn mc_190_what_nobody_asks_for_is_left() {
        let service = tower::service_fn(|_: http::Request<kube::client::Body>| {
            std::future::pending::<Result<http::Response<kube::client::Body>, std::convert::Infallible>>()
        });
        let stop = CancellationToken::new();
        let caches = Caches::new(Client::new(service, "default"), &stop);
        let gvr = Gvr::new("", "v1", "secrets");
        let served = Served { gvr: gvr.clone(), kind: "Secret".into(), namespaced: true, has_status: false };
        let begin = || {
            let cache = caches.get(&served);
            let following = cache.follow(|_| ());
            (cache, following)
        };
        let (mut followed, start) = (Followed::default(), Instant::now());
        let after = |seconds: u64| start + Duration::from_secs(seconds);
        followed.used(&gvr);
        followed.used(&gvr);
        followed.follow(&gvr, begin);
        assert!(!followed.unused(&gvr, after(0)));
        assert!(followed.unused(&gvr, after(10)));
        let (left, next) = followed.leave(after(10));
        assert_eq!((left.len(), next), (0, Some(after(10) + LINGER)));
        // Referenced again in between, and released once more.
        followed.used(&gvr);
        assert!(followed.unused(&gvr, after(50)));
        let (left, next) = followed.leave(after(10) + LINGER);
        assert_eq!((left.len(), next), (0, Some(after(50) + LINGER)));
        let (left, next) = followed.leave(after(50) + LINGER);
        assert_eq!((left.len(), next), (1, None));
        assert!(followed.get(&gvr).is_none());
        let watch = Arc::downgrade(&left[0].0);
        drop(left);
        assert!(watch.upgrade().is_none(), "its watch has ended");
        // A resource that is in use when its time comes stays.
        followed.used(&gvr);
        followed.follow(&gvr, begin);
        followed.unused(&gvr, after(60));
        followed.used(&gvr);
        let (left, next) = followed.leave(after(1000));
        assert_eq!((left.len(), next, followed.get(&gvr).is_some()), (0, None, true));
        caches.shutdown().await;
    }
}
