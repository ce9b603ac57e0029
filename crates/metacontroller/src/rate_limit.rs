//! Limits how often an item runs when each run causes the next one: a hook that never returns the same answer
//! twice must not keep the API server and the disk busy. Pure.

use std::{collections::HashMap, hash::Hash, time::Duration};

use tokio::time::Instant;

/// Runs at once, after a time without runs.
const BURST: f64 = 100.0;
/// Runs per second after the burst.
const RATE: f64 = 10.0;

/// The token bucket of one item.
#[derive(Clone, Copy, Debug)]
pub struct RateLimit {
    left: f64,
    at: Instant,
}

impl RateLimit {
    /// A full bucket.
    pub fn new(now: Instant) -> Self {
        Self { left: BURST, at: now }
    }

    /// Takes a token. If there is none, returns how long it takes until there is one.
    pub fn pause(&mut self, now: Instant) -> Option<Duration> {
        self.fill(now);
        if self.left >= 1.0 {
            self.left -= 1.0;
            return None;
        }
        // Rounded up, so that the token exists then.
        Some(Duration::from_secs_f64((1.0 - self.left) / RATE) + Duration::from_millis(1))
    }

    /// Takes a token, or the next one that will exist. Returns how long it takes until that.
    pub fn reserve(&mut self, now: Instant) -> Option<Duration> {
        self.fill(now);
        self.left = (self.left - 1.0).max(-1.0);
        (self.left < 0.0).then(|| Duration::from_secs_f64(-self.left / RATE))
    }

    /// Returns whether the bucket is full, so that nothing needs to be remembered.
    fn is_rested(&mut self, now: Instant) -> bool {
        self.fill(now);
        self.left >= BURST
    }

    fn fill(&mut self, now: Instant) {
        let new = now.saturating_duration_since(self.at).as_secs_f64() * RATE;
        self.left = (self.left + new).min(BURST);
        self.at = self.at.max(now);
    }
}

/// The token buckets of many items; full buckets are dropped after some time.
#[derive(Debug)]
pub struct RateLimits<K> {
    of: HashMap<K, RateLimit>,
    /// The number of buckets at which full ones are looked for.
    sweep_at: usize,
}

impl<K> Default for RateLimits<K> {
    fn default() -> Self {
        Self { of: HashMap::new(), sweep_at: SLACK }
    }
}

/// Number of buckets that are kept in any case.
const SLACK: usize = 64;

impl<K: Clone + Eq + Hash> RateLimits<K> {
    /// Takes a token of an item. If there is none, returns how long it takes until there is one. Amortised
    /// O(1).
    pub fn pause(&mut self, key: &K, now: Instant) -> Option<Duration> {
        if self.of.len() >= self.sweep_at {
            self.of.retain(|_, rate_limit| !rate_limit.is_rested(now));
            self.sweep_at = 2 * self.of.len() + SLACK;
        }
        self.of.entry(key.clone()).or_insert_with(|| RateLimit::new(now)).pause(now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_at_rest_is_forgotten() {
        let (mut rate_limits, start) = (RateLimits::default(), Instant::now());
        for _ in 0..100 {
            assert_eq!(rate_limits.pause(&0, start), None);
        }
        for key in 1..10_000_u64 {
            let now = start + Duration::from_millis(key);
            assert_eq!(rate_limits.pause(&key, now), None);
            assert!(rate_limits.of.len() <= 4 * SLACK + 200, "{}", rate_limits.of.len());
        }
        assert!(rate_limits.of.contains_key(&0), "it has been at rest for less than ten seconds");
    }

    #[test]
    fn a_hundred_at_once_and_ten_a_second_from_then_on() {
        let start = Instant::now();
        let (mut rate_limit, mut now) = (RateLimit::new(start), start);
        for _ in 0..100 {
            assert_eq!(rate_limit.pause(now), None);
        }
        for _ in 0..50 {
            now += rate_limit.pause(now).unwrap();
            assert_eq!(rate_limit.pause(now), None, "the turn is there when it was said to be");
        }
        let took = (now - start).as_secs_f64();
        assert!((4.9..5.3).contains(&took), "{took}");
        assert!(!rate_limit.is_rested(now) && rate_limit.is_rested(now + Duration::from_secs(11)));
    }
}
