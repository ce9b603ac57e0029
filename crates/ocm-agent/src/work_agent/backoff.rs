//! The back-off of failed manifests. Each manifest has its own, so that a faulty one does not delay the
//! others (OCM-076). Pure; the time is an argument.

use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

use runtime::backoff::{exponential, jittered};
use tokio::time::Instant;

/// Shortest and longest pause before a failed manifest is retried.
const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(120));

/// When a failed manifest is retried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RetryAt {
    /// With exponential back-off.
    Backoff,
    /// After this pause.
    After(Duration),
}

struct FailedManifest<T> {
    tries: u32,
    due: Instant,
    outcome: T,
}

/// The failed manifests of all works, by work and ordinal, each with its reported outcome.
pub(crate) struct ManifestBackoff<T>(HashMap<String, BTreeMap<usize, FailedManifest<T>>>);

impl<T> Default for ManifestBackoff<T> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<T: Clone> ManifestBackoff<T> {
    /// A manifest failed.
    pub(crate) fn failed(&mut self, work: &str, ordinal: usize, again: RetryAt, outcome: T, now: Instant) {
        let all = self.0.entry(work.to_owned()).or_default();
        let tries = all.get(&ordinal).map_or(0, |s| s.tries);
        let pause = match again {
            RetryAt::Backoff => jittered(exponential(PAUSES.0, PAUSES.1, tries)),
            RetryAt::After(pause) => pause,
        };
        all.insert(ordinal, FailedManifest { tries: tries + 1, due: now + pause, outcome });
    }

    /// Changes the reported outcome of a failed manifest.
    pub(crate) fn revise(&mut self, work: &str, ordinal: usize, outcome: T) {
        if let Some(failed_manifest) = self.0.get_mut(work).and_then(|all| all.get_mut(&ordinal)) {
            failed_manifest.outcome = outcome;
        }
    }

    /// A manifest did not fail.
    pub(crate) fn clear(&mut self, work: &str, ordinal: usize) {
        if let Some(all) = self.0.get_mut(work) {
            all.remove(&ordinal);
            if all.is_empty() {
                self.0.remove(work);
            }
        }
    }

    /// Returns the reported outcomes of the failed manifests whose retry is not due yet, by ordinal.
    pub(crate) fn pending_outcomes(&self, work: &str, now: Instant) -> BTreeMap<usize, T> {
        let all = self.0.get(work).into_iter().flatten();
        all.filter(|(_, failed)| failed.due > now).map(|(ordinal, f)| (*ordinal, f.outcome.clone())).collect()
    }

    /// Returns when the next manifest of the work is due.
    pub(crate) fn next(&self, work: &str) -> Option<Instant> {
        self.0.get(work)?.values().map(|s| s.due).min()
    }

    /// Resets the back-off of the failed manifests for whose outcome `may_succeed` returns true, so that they
    /// are retried at once. Returns their works. Cost: a walk over all failed manifests.
    pub(crate) fn retry_now(&mut self, now: Instant, may_succeed: impl Fn(&T) -> bool) -> Vec<String> {
        let mut works = Vec::new();
        for (work, all) in &mut self.0 {
            let mut found = false;
            for failed_manifest in all.values_mut().filter(|s| may_succeed(&s.outcome)) {
                (failed_manifest.tries, failed_manifest.due, found) = (0, now, true);
            }
            if found {
                works.push(work.clone());
            }
        }
        works
    }

    /// Forgets the failures of a work that changed or is gone.
    pub(crate) fn forget(&mut self, work: &str) {
        self.0.remove(work);
    }

    /// Returns whether any failed manifest has such an outcome.
    pub(crate) fn any(&self, such: impl Fn(&T) -> bool) -> bool {
        self.0.values().flat_map(BTreeMap::values).any(|s| such(&s.outcome))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pending<T: Clone>(
        backoff: &ManifestBackoff<T>,
        work: &str,
        ordinal: usize,
        now: Instant,
    ) -> Option<T> {
        backoff.pending_outcomes(work, now).remove(&ordinal)
    }

    /// OCM-076: the back-off of one manifest grows with its own failures, up to two minutes.
    #[test]
    fn ocm_076_back_off_per_manifest() {
        let (mut backoff, now) = (ManifestBackoff::default(), Instant::now());
        for _ in 0..30 {
            backoff.failed("w", 1, RetryAt::Backoff, "bad", now);
        }
        backoff.failed("w", 2, RetryAt::Backoff, "new", now);
        let late = now + Duration::from_secs(1);
        assert_eq!(pending(&backoff, "w", 1, late), Some("bad"));
        assert_eq!(pending(&backoff, "w", 2, late), None, "it may try again");
        assert_eq!(pending(&backoff, "w", 1, now + PAUSES.1), None, "two minutes are the most");
        assert!(backoff.next("w").is_some_and(|due| due <= now + PAUSES.0), "the earliest");
        assert_eq!(backoff.next("other"), None);
    }

    #[test]
    fn ocm_076_what_changed_is_tried_at_once() {
        let (mut backoff, now) = (ManifestBackoff::default(), Instant::now());
        backoff.failed("w", 1, RetryAt::After(Duration::from_secs(60)), "denied", now);
        backoff.failed("v", 0, RetryAt::Backoff, "unknown", now);
        assert_eq!(backoff.retry_now(now, |o| *o == "unknown"), ["v"]);
        assert_eq!(pending(&backoff, "v", 0, now), None);
        assert_eq!(pending(&backoff, "w", 1, now), Some("denied"));
        backoff.forget("w");
        backoff.clear("v", 0);
        assert_eq!((backoff.next("w"), backoff.next("v")), (None, None));
    }
}
