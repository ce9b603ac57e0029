//! What we wrote, until the informer has seen it.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use runtime::Watched;

/// How long an own write is believed without the informer having seen it. It comes at once as a rule; if the object went
/// while the watch was interrupted it never does.
pub(crate) const BELIEF: Duration = Duration::from_secs(5);

/// What is believed of one object beyond what the informer says: our last write, if that is newer.
#[derive(Debug)]
pub(crate) struct Belief<T> {
    written: Option<(Arc<T>, Instant)>,
    /// The latest version that the informer saw, be it that of a deletion.
    seen: u64,
}

impl<T> Default for Belief<T> {
    fn default() -> Self {
        Self { written: None, seen: 0 }
    }
}

impl<T: Watched> Belief<T> {
    /// The informer saw the object, or its end. True if what it saw is our last write.
    pub(crate) fn saw(&mut self, object: &T, gone: bool) -> bool {
        let version = version(object);
        self.seen = self.seen.max(version.unwrap_or(0));
        let is_own = self.written.as_ref().is_some_and(|(own, _)| own.version() == object.version());
        let seen = self.seen;
        self.written.take_if(|(own, _)| gone || !is_later(&**own, seen));
        is_own && !gone
    }

    /// This was written. The informer may have seen it, and even its end, before the answer came.
    pub(crate) fn wrote(&mut self, object: Arc<T>, now: Instant) {
        self.written = is_later(&*object, self.seen).then_some((object, now));
    }

    /// What was written came to nothing.
    pub(crate) fn forget(&mut self) {
        self.written = None;
    }

    /// Whether the informer has yet to see our last write.
    pub(crate) fn is_unseen(&self) -> bool {
        self.written.is_some()
    }

    /// The object as we wrote it, as long as that is believed.
    pub(crate) fn get(&self, now: Instant) -> Option<Arc<T>> {
        let believed = self.written.as_ref().filter(|(_, when)| now.duration_since(*when) < BELIEF);
        believed.map(|(object, _)| object.clone())
    }
}

/// Versions are numbers on every server we know of; where they are not, only the informer is believed.
fn version(object: &impl Watched) -> Option<u64> {
    object.version().parse().ok()
}

fn is_later(object: &impl Watched, seen: u64) -> bool {
    version(object).is_some_and(|version| version > seen)
}

#[cfg(test)]
mod tests {
    use runtime::{Light, informer::LightMeta};

    use super::*;

    fn thing(version: &str) -> Light {
        Light { metadata: LightMeta { resource_version: version.into(), ..LightMeta::default() } }
    }

    /// KS-071: a write is believed until the informer has seen it, something later, or the object's end, and no longer than it
    /// may take.
    #[test]
    fn ks_071_how_long_a_write_is_believed() {
        let start = Instant::now();
        let wrote = |version| {
            let mut belief = Belief::default();
            belief.saw(&thing("5"), false);
            belief.wrote(Arc::new(thing(version)), start);
            belief
        };
        assert_eq!(wrote("7").get(start).map(|it| it.version().to_owned()).as_deref(), Some("7"));
        assert!(wrote("7").get(start + BELIEF).is_none());
        assert!(!wrote("5").is_unseen(), "seen before the answer came");
        assert!(!wrote("odd").is_unseen(), "nobody knows whether it is later");
        for (seen, gone, own, unseen) in [
            ("6", false, false, true),
            ("6", true, false, false),
            ("7", false, true, false),
            ("7", true, false, false),
            ("8", false, false, false),
            ("odd", false, false, true),
        ] {
            let mut belief = wrote("7");
            assert_eq!(belief.saw(&thing(seen), gone), own, "{seen}, gone: {gone}");
            assert_eq!(belief.is_unseen(), unseen, "{seen}, gone: {gone}");
        }
        let mut belief = wrote("7");
        belief.forget();
        assert!(belief.get(start).is_none());
    }
}
