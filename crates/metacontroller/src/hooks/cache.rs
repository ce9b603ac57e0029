//! Caches hook answers by ETag (MC-108 to MC-110). Pure: time is an argument.

use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

use bytes::Bytes;
use tokio::time::Instant;

use super::config::HookKind;
use crate::object::Text;

/// The key of a cached answer: hook, UID of the parent, and the input or revision that the request was about
/// (MC-109).
pub type CacheKey = (HookKind, Text, Text);

/// Most cached answers; beyond this number the least recently used one is dropped (MC-110).
const LIMIT: usize = 100_000;
/// Most bytes of the cached answers of one hook. Answers are kept as text and decoded when needed, because
/// decoded they would take several times as much.
const BYTES: usize = 128 << 20;
/// Bytes that an answer takes besides its texts.
const EACH: usize = 256;

/// An answer and its ETag.
#[derive(Clone, Debug)]
pub(super) struct Cached {
    pub(super) etag: Box<str>,
    pub(super) body: Bytes,
    since: Instant,
    used: u64,
}

fn size((_, uid, part): &CacheKey, cached: &Cached) -> usize {
    EACH + 2 * (uid.len() + part.len()) + cached.etag.len() + cached.body.len()
}

/// The cached answers by key.
#[derive(Debug, Default)]
pub(super) struct Answers {
    bytes: usize,
    entries: HashMap<CacheKey, Cached>,
    by_use: BTreeMap<u64, CacheKey>,
    clock: u64,
}

impl Answers {
    /// Returns the answer for `key`, unless it is older than `expiry`.
    pub(super) fn get(&mut self, key: &CacheKey, expiry: Option<Duration>, now: Instant) -> Option<Cached> {
        let found = self.entries.get_mut(key)?;
        if expiry.is_some_and(|expiry| now.saturating_duration_since(found.since) >= expiry) {
            self.remove(key);
            return None;
        }
        self.clock += 1;
        let before = std::mem::replace(&mut found.used, self.clock);
        let cached = found.clone();
        self.by_use.remove(&before);
        self.by_use.insert(self.clock, key.clone());
        Some(cached)
    }

    /// Caches an answer and drops the least recently used ones if there are too many. An answer that is too
    /// large by itself is not cached.
    pub(super) fn put(&mut self, key: CacheKey, etag: &str, body: &[u8], now: Instant) {
        self.remove(&key);
        self.clock += 1;
        // Copied, because the body may be part of a larger buffer.
        let cached =
            Cached { etag: etag.into(), body: Bytes::copy_from_slice(body), since: now, used: self.clock };
        let size = size(&key, &cached);
        if size > BYTES {
            return;
        }
        self.bytes += size;
        self.by_use.insert(self.clock, key.clone());
        self.entries.insert(key, cached);
        while self.entries.len() > LIMIT || self.bytes > BYTES {
            let Some((_, oldest)) = self.by_use.first_key_value() else { return };
            let oldest = oldest.clone();
            self.remove(&oldest);
        }
    }

    fn remove(&mut self, key: &CacheKey) {
        if let Some(cached) = self.entries.remove(key) {
            self.by_use.remove(&cached.used);
            self.bytes -= size(key, &cached);
        }
    }

    /// Drops answers older than `expiry`. Cost: O(cached answers).
    pub(super) fn sweep(&mut self, expiry: Duration, now: Instant) {
        let old = |cached: &Cached| now.saturating_duration_since(cached.since) >= expiry;
        let going: Vec<_> =
            self.entries.iter().filter(|(_, cached)| old(cached)).map(|(key, _)| key.clone()).collect();
        for key in &going {
            self.remove(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// MC-109, MC-110: each key has its own answer until it expires.
    #[test]
    fn mc_110_answers_expire() {
        let (mut answers, now) = (Answers::default(), Instant::now());
        let key = |name: &str| (HookKind::Map, Text::from("p"), Text::from(name));
        answers.put(key("a"), "\"e1\"", b"1", now);
        answers.put(key("b"), "\"e2\"", b"2", now + Duration::from_secs(1));
        let expiry = Some(Duration::from_secs(10));
        let later = now + Duration::from_secs(10);
        assert!(answers.get(&key("a"), expiry, later).is_none());
        assert_eq!(&*answers.get(&key("b"), expiry, later).unwrap().etag, "\"e2\"");
        assert!(answers.get(&key("c"), None, later).is_none());
        answers.sweep(Duration::from_secs(1), later);
        assert!(answers.entries.is_empty() && answers.by_use.is_empty() && answers.bytes == 0);
    }

    /// MC-110: large answers displace others, and an answer larger than the limit is not cached.
    #[test]
    fn mc_110_answers_are_bounded_by_bytes() {
        let (mut answers, now) = (Answers::default(), Instant::now());
        let key = |name: &str| (HookKind::Map, Text::from("p"), Text::from(name));
        let large = vec![b' '; BYTES / 4];
        for name in ["a", "b", "c"] {
            answers.put(key(name), "e", &large, now);
        }
        assert!(answers.get(&key("a"), None, now).is_some());
        answers.put(key("d"), "e", &large, now);
        let kept = ["a", "b", "c", "d"].map(|name| answers.get(&key(name), None, now).is_some());
        assert_eq!(kept, [true, false, true, true], "what was used longest ago is gone");
        answers.put(key("a"), "e", b"small", now);
        assert!(answers.bytes < BYTES * 3 / 4);
        answers.put(key("a"), "e", &vec![b' '; BYTES], now);
        assert!(answers.get(&key("a"), None, now).is_none());
        assert_eq!((answers.entries.len(), answers.by_use.len()), (2, 2));
    }
}
