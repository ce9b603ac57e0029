//! Resources of delivered objects that the cluster does not serve. Pure; the time is an argument.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use runtime::Backoff;
use runtime::rest::Gvr;
use tokio::time::Instant;

/// Back-off of discovery. The event of a CRD reports that it begins to be served; the back-off is for
/// resources without such an event (aggregated servers, a cluster that does not answer).
const PAUSES: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(60));

/// When to ask again, by resource.
#[derive(Default)]
pub(crate) struct Unserved(BTreeMap<Gvr, (Backoff, Instant)>);

impl Unserved {
    /// The resource is not served.
    pub(crate) fn missed(&mut self, gvr: &Gvr, now: Instant) {
        let new = || (Backoff::new(PAUSES.0, PAUSES.1), now);
        let (backoff, due) = self.0.entry(gvr.clone()).or_insert_with(new);
        *due = now + backoff.pause();
    }

    /// The resource is served.
    pub(crate) fn found(&mut self, gvr: &Gvr) {
        self.0.remove(gvr);
    }

    /// Forgets all resources except these.
    pub(crate) fn retain(&mut self, wanted: &BTreeSet<Gvr>) {
        self.0.retain(|gvr, _| wanted.contains(gvr));
    }

    /// Returns whether to ask for the resource now.
    pub(crate) fn is_due(&self, gvr: &Gvr, now: Instant) -> bool {
        self.0.get(gvr).is_none_or(|(_, due)| *due <= now)
    }

    /// A CRD (`<plural>.<group>`) changed. Returns whether to ask again.
    pub(crate) fn defined(&mut self, definition: &str, now: Instant) -> bool {
        let mut any = false;
        for (gvr, (backoff, due)) in &mut self.0 {
            if definition.split_once('.') == Some((gvr.plural.as_str(), gvr.group.as_str())) {
                backoff.reset();
                (*due, any) = (now, true);
            }
        }
        any
    }

    /// Returns when to ask next.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.0.values().map(|(_, due)| *due).min()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// OCM-134: a resource that is not served is asked for at growing intervals, and at once when its CRD
    /// changes.
    #[test]
    fn ocm_134_pauses_grow_and_a_definition_ends_them() {
        let (buoys, now) = (Gvr::new("sea.example", "v1", "buoys"), Instant::now());
        let mut unserved = Unserved::default();
        assert!(unserved.is_due(&buoys, now) && unserved.next().is_none());
        for _ in 0..20 {
            unserved.missed(&buoys, now);
        }
        assert!(!unserved.is_due(&buoys, now + PAUSES.1 / 3));
        assert!(unserved.is_due(&buoys, now + PAUSES.1));
        assert!(!unserved.defined("boats.sea.example", now) && !unserved.defined("buoys.sea", now));
        assert!(unserved.defined("buoys.sea.example", now));
        assert!(unserved.is_due(&buoys, now));
        unserved.missed(&buoys, now);
        assert!(unserved.next().is_some_and(|due| due <= now + PAUSES.0), "from the start again");
        unserved.retain(&BTreeSet::new());
        assert!(unserved.is_empty());
    }
}
