//! How often the same thing is worked on when each time brings about the next: a hook that never answers twice the same
//! must not keep API server and disk busy all the time. Pure.

use std::{collections::HashMap, hash::Hash, time::Duration};

use tokio::time::Instant;

/// At once, from rest.
const BURST: f64 = 100.0;
/// In a second, from then on.
const RATE: f64 = 10.0;

/// Of one thing.
#[derive(Clone, Copy, Debug)]
pub struct RateLimit {
    left: f64,
    at: Instant,
}

impl RateLimit {
    /// Of something that has been at rest.
    pub fn new(now: Instant) -> Self {
        Self { left: BURST, at: now }
    }

    /// Takes a turn; if there is none, says how long it is until there is.
    pub fn pause(&mut self, now: Instant) -> Option<Duration> {
        self.fill(now);
        if self.left >= 1.0 {
            self.left -= 1.0;
            return None;
        }
        // Rounded up, so that the turn is there then.
        Some(Duration::from_secs_f64((1.0 - self.left) / RATE) + Duration::from_millis(1))
    }

    /// Takes a turn, or the next one there will be, and says how long it is until that.
    pub fn reserve(&mut self, now: Instant) -> Option<Duration> {
        self.fill(now);
        self.left = (self.left - 1.0).max(-1.0);
        (self.left < 0.0).then(|| Duration::from_secs_f64(-self.left / RATE))
    }

    /// It has been at rest for so long that nothing needs to be known of it.
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

/// Of many things; of those at rest, nothing is kept for long.
#[derive(Debug)]
pub struct RateLimits<K> {
    of: HashMap<K, RateLimit>,
    /// How many make it worth while to look for those at rest.
    sweep_at: usize,
}

impl<K> Default for RateLimits<K> {
    fn default() -> Self {
        Self { of: HashMap::new(), sweep_at: SLACK }
    }
}

/// Things of which something is kept in any case.
const SLACK: usize = 64;

impl<K: Clone + Eq + Hash> RateLimits<K> {
    /// Takes a turn of a thing; if there is none, says how long it is until there is. O(1) over time.
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
