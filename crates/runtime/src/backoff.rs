//! Exponential back-off with jitter.

use std::{
    hash::{BuildHasher, RandomState},
    time::Duration,
};

use tokio::time::Instant;

/// Longer than any process runs, and still within the range of every clock.
const FAR: Duration = Duration::from_secs(30 * 365 * 24 * 3600);

/// Returns the instant `pause` after `now`. If the clock cannot express that instant, returns one 30 years
/// ahead, which means "never".
pub fn moment(now: Instant, pause: Duration) -> Instant {
    now.checked_add(pause).unwrap_or_else(|| now + FAR)
}

/// Exponential back-off: pauses double from `base` to `max`, and each pause is shortened at random by up to a
/// half.
#[derive(Clone, Debug)]
pub struct Backoff {
    base: Duration,
    max: Duration,
    tries: u32,
}

impl Backoff {
    /// Creates a back-off whose first pause is at most `base` and whose longest pause is `max`.
    pub fn new(base: Duration, max: Duration) -> Self {
        Self { base, max, tries: 0 }
    }

    /// The back-off for requests to an API server: 50 ms to 30 s.
    pub fn for_server() -> Self {
        Self::new(Duration::from_millis(50), Duration::from_secs(30))
    }

    /// Returns the pause before the next try and counts that try.
    pub fn pause(&mut self) -> Duration {
        let full = exponential(self.base, self.max, self.tries);
        self.tries = self.tries.saturating_add(1);
        jittered(full)
    }

    /// Starts again at the shortest pause. Call this after a success.
    pub fn reset(&mut self) {
        self.tries = 0;
    }
}

/// Returns `base` doubled `tries` times, limited to `max`.
pub fn exponential(base: Duration, max: Duration, tries: u32) -> Duration {
    let factor = 1_u32.checked_shl(tries).unwrap_or(u32::MAX);
    base.checked_mul(factor).map_or(max, |pause| pause.min(max))
}

/// Returns a random duration between half of `full` and `full`.
pub fn jittered(full: Duration) -> Duration {
    // The keys of a new hasher are random enough to spread clients, so no random number generator is needed.
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
