//! Answers kept by their ETag (MC-108 to MC-110). Pure: time is an argument.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use serde_json::Value;
use tokio::time::Instant;

use super::config::HookKind;
use crate::object::Text;

/// Whose answer it is: hook, UID of the parent, and the input or the revision the request was about (MC-109).
pub type CacheKey = (HookKind, Text, Text);

/// Answers beyond this many: the one used longest ago goes.
const LIMIT: usize = 100_000;

/// An answer and its tag.
#[derive(Clone, Debug)]
pub(super) struct Cached {
    pub(super) etag: Box<str>,
    pub(super) answer: Arc<Value>,
    since: Instant,
    used: u64,
}

/// Answers by whose they are.
#[derive(Debug, Default)]
pub(super) struct Answers {
    entries: HashMap<CacheKey, Cached>,
    by_use: BTreeMap<u64, CacheKey>,
    clock: u64,
}

impl Answers {
    /// The answer for `key`, unless it is older than `expiry`.
    pub(super) fn get(&mut self, key: &CacheKey, expiry: Option<Duration>, now: Instant) -> Option<Cached> {
        let found = self.entries.get_mut(key)?;
        let old = found.used;
        if expiry.is_some_and(|expiry| now.saturating_duration_since(found.since) >= expiry) {
            self.entries.remove(key);
            self.by_use.remove(&old);
            return None;
        }
        self.clock += 1;
        found.used = self.clock;
        let cached = found.clone();
        self.by_use.remove(&old);
        self.by_use.insert(self.clock, key.clone());
        Some(cached)
    }

    /// Keeps an answer.
    pub(super) fn put(&mut self, key: CacheKey, etag: &str, answer: Arc<Value>, now: Instant) {
        self.clock += 1;
        let cached = Cached { etag: etag.into(), answer, since: now, used: self.clock };
        if let Some(old) = self.entries.insert(key.clone(), cached) {
            self.by_use.remove(&old.used);
        }
        self.by_use.insert(self.clock, key);
        while self.entries.len() > LIMIT {
            let Some((_, oldest)) = self.by_use.pop_first() else { return };
            self.entries.remove(&oldest);
        }
    }

    /// Drops what is older than `expiry`. Costs O(kept).
    pub(super) fn sweep(&mut self, expiry: Duration, now: Instant) {
        let by_use = &mut self.by_use;
        self.entries.retain(|_, cached| {
            let fresh = now.saturating_duration_since(cached.since) < expiry;
            if !fresh {
                by_use.remove(&cached.used);
            }
            fresh
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// MC-109, MC-110: each key has its own answer, until it expires.
    #[test]
    fn mc_110_answers_expire() {
        let (mut answers, now) = (Answers::default(), Instant::now());
        let key = |name: &str| (HookKind::Map, Text::from("p"), Text::from(name));
        answers.put(key("a"), "\"e1\"", Arc::new(1.into()), now);
        answers.put(key("b"), "\"e2\"", Arc::new(2.into()), now + Duration::from_secs(1));
        let expiry = Some(Duration::from_secs(10));
        let later = now + Duration::from_secs(10);
        assert!(answers.get(&key("a"), expiry, later).is_none());
        assert_eq!(&*answers.get(&key("b"), expiry, later).unwrap().etag, "\"e2\"");
        assert!(answers.get(&key("c"), None, later).is_none());
        answers.sweep(Duration::from_secs(1), later);
        assert!(answers.entries.is_empty() && answers.by_use.is_empty());
    }
}
