//! Own writes that the informer has not seen yet, for a limited time.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use runtime::{Report, ResourceVersion, Watched};

/// How long an own write counts although the informer has not seen it. Normally the informer sees it at once.
/// If the object was deleted while the watch was interrupted, the informer never does.
pub(crate) const OWN_WRITE_TTL: Duration = Duration::from_secs(5);

/// Our last write of one object ([`runtime::OwnWrite`]), as we wrote it and when.
#[derive(Debug)]
pub(crate) struct RecentWrite<T>(runtime::OwnWrite<(Arc<T>, Instant)>);

impl<T> Default for RecentWrite<T> {
    fn default() -> Self {
        Self(runtime::OwnWrite::default())
    }
}

impl<T: Watched> RecentWrite<T> {
    /// The informer has seen the object, or with `gone` its deletion. Returns true if it has seen our last
    /// write.
    pub(crate) fn observe(&mut self, object: &T, gone: bool) -> bool {
        let version = ResourceVersion::new(object.version());
        if gone {
            self.0.observe_deletion(version);
            return false;
        }
        self.0.observe(version) == Report::Own
    }

    /// Records a write. The informer may have seen the written object, and even its deletion, before the
    /// response arrived.
    pub(crate) fn record(&mut self, object: Arc<T>, now: Instant) {
        self.0.record(ResourceVersion::new(object.version()), (object.clone(), now));
    }

    /// Forgets the write, because a later one failed.
    pub(crate) fn forget(&mut self) {
        self.0.forget();
    }

    /// Returns whether the informer has not seen our last write yet.
    pub(crate) fn is_pending(&self) -> bool {
        self.0.is_pending()
    }

    /// Returns the object as we wrote it, as long as the write is newer than what the informer has seen and
    /// not older than [`OWN_WRITE_TTL`].
    pub(crate) fn get(&self, now: Instant) -> Option<Arc<T>> {
        let own = self.0.pending().filter(|(_, when)| now.duration_since(*when) < OWN_WRITE_TTL);
        own.map(|(object, _)| object.clone())
    }
}

#[cfg(test)]
mod tests {
    use runtime::{PartialObject, informer::PartialMeta};

    use super::*;

    fn thing(version: &str) -> PartialObject {
        PartialObject { metadata: PartialMeta { resource_version: version.into(), ..PartialMeta::default() } }
    }

    /// KS-071: a write counts until the informer has seen it, a later version, or the deletion of the object,
    /// and at most for [`OWN_WRITE_TTL`].
    #[test]
    fn ks_071_how_long_a_write_is_believed() {
        let start = Instant::now();
        let wrote = |version| {
            let mut own_write = RecentWrite::default();
            own_write.observe(&thing("5"), false);
            own_write.record(Arc::new(thing(version)), start);
            own_write
        };
        assert_eq!(wrote("7").get(start).map(|it| it.version().to_owned()).as_deref(), Some("7"));
        assert!(wrote("7").get(start + OWN_WRITE_TTL).is_none());
        assert!(!wrote("5").is_pending(), "seen before the answer came");
        assert!(!wrote("odd").is_pending(), "nobody knows whether it is later");
        for (seen, gone, own, unseen) in [
            ("6", false, false, true),
            ("6", true, false, false),
            ("7", false, true, false),
            ("7", true, false, false),
            ("8", false, false, false),
            ("odd", false, false, false),
        ] {
            let mut own_write = wrote("7");
            assert_eq!(own_write.observe(&thing(seen), gone), own, "{seen}, gone: {gone}");
            assert_eq!(own_write.is_pending(), unseen, "{seen}, gone: {gone}");
        }
        let mut own_write = wrote("7");
        own_write.forget();
        assert!(own_write.get(start).is_none());
    }
}
