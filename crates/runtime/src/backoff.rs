//! Growing, jittered pauses between tries.

use std::{
    hash::{BuildHasher, RandomState},
    time::Duration,
};

use tokio::time::Instant;

/// Longer than any process runs, yet no clock is too short for it.
const FAR: Duration = Duration::from_secs(30 * 365 * 24 * 3600);

/// The moment a pause after `now`. One that the clock can't express is one that never comes: 30 years off.
pub fn moment(now: Instant, pause: Duration) -> Instant {
    now.checked_add(pause).unwrap_or_else(|| now + FAR)
}

/// Pauses that double from `base` to `max`, each shortened at random by up to a half.
#[derive(Clone, Debug)]
pub struct Backoff {
    base: Duration,
    max: Duration,
    tries: u32,
}

impl Backoff {
    /// The first pause is at most `base`, none is longer than `max`.
    pub fn new(base: Duration, max: Duration) -> Self {
        Self { base, max, tries: 0 }
    }

    /// What clients of an API server use: 50 ms to 30 s.
    pub fn for_server() -> Self {
        Self::new(Duration::from_millis(50), Duration::from_secs(30))
    }

    /// The pause before the next try.
    pub fn pause(&mut self) -> Duration {
        let full = exponential(self.base, self.max, self.tries);
        self.tries = self.tries.saturating_add(1);
        jittered(full)
    }

    /// Starts over, after a success.
    pub fn reset(&mut self) {
        self.tries = 0;
    }
}

/// `base` doubled `tries` times, at most `max`.
pub fn exponential(base: Duration, max: Duration, tries: u32) -> Duration {
    let factor = 1_u32.checked_shl(tries).unwrap_or(u32::MAX);
    base.checked_mul(factor).map_or(max, |pause| pause.min(max))
}

/// Between a half of `full` and `full`.
pub fn jittered(full: Duration) -> Duration {
    // A fresh hasher's keys are random enough to spread clients, and need no generator of our own.
    let random = RandomState::new().hash_one(0) % 1024;
    full / 2 + (full / 2).mul_f64(random as f64 / 1024.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_maximum() {
        let (base, max) = (Duration::from_millis(5), Duration::from_millis(100));
        let pauses: Vec<_> = (0..6).map(|tries| exponential(base, max, tries).as_millis()).collect();
        assert_eq!(pauses, [5, 10, 20, 40, 80, 100]);
        assert_eq!(exponential(base, max, 90), max);
    }

    #[test]
    fn a_moment_beyond_the_clock_is_far_off() {
        let now = Instant::now();
        assert_eq!(moment(now, Duration::from_secs(1)), now + Duration::from_secs(1));
        assert_eq!(moment(now, Duration::MAX), now + FAR);
    }

    #[test]
    fn jitter_keeps_between_half_and_full() {
        let full = Duration::from_millis(100);
        for _ in 0..100 {
            let pause = jittered(full);
            assert!(pause >= full / 2 && pause <= full, "{pause:?}");
        }
    }
}
