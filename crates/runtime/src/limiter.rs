//! Client-side rate limits with a token bucket, as in client-go.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// An average rate and a burst.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rate {
    /// Requests per second on average. Above 0.
    pub qps: f64,
    /// Requests that may be sent at once. At least 1.
    pub burst: u32,
}

/// A token bucket: tokens arrive at a rate and accumulate up to the burst. Each request takes one, on credit
/// if there is none.
#[derive(Clone, Debug)]
pub struct TokenBucket {
    rate: Rate,
    tokens: f64,
    at: Instant,
}

impl TokenBucket {
    /// A full bucket.
    pub fn new(rate: Rate, now: Instant) -> Self {
        Self { rate, tokens: f64::from(rate.burst), at: now }
    }

    fn fill(&mut self, now: Instant) {
        let new = now.saturating_duration_since(self.at).as_secs_f64() * self.rate.qps;
        self.tokens = (self.tokens + new).min(f64::from(self.rate.burst));
        self.at = self.at.max(now);
    }

    /// Returns whether the bucket has been unused long enough to be full.
    pub(crate) fn is_full(&mut self, now: Instant) -> bool {
        self.fill(now);
        self.tokens >= f64::from(self.rate.burst)
    }

    /// Takes one token and returns true, or returns false if there is none.
    pub fn take(&mut self, now: Instant) -> bool {
        self.fill(now);
        let there = self.tokens >= 1.0;
        if there {
            self.tokens -= 1.0;
        }
        there
    }

    /// Returns a token that was taken and not used.
    pub(crate) fn give_back(&mut self) {
        self.tokens = (self.tokens + 1.0).min(f64::from(self.rate.burst));
    }

    /// Takes one token and returns how long it takes until that token exists.
    pub(crate) fn reserve(&mut self, now: Instant) -> Duration {
        self.fill(now);
        self.tokens -= 1.0;
        if self.tokens >= 0.0 {
            return Duration::ZERO;
        }
        Duration::try_from_secs_f64(-self.tokens / self.rate.qps).unwrap_or(Duration::MAX)
    }
}

/// How the limiter classifies a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestClass {
    /// A read of one object, or a write.
    Object,
    /// A list, the start of a watch, or discovery.
    Collection,
}

/// Limits the requests of one client.
///
/// Requests for single objects obey the given rate. Requests that follow resources (lists, watches,
/// discovery) have a limit of their own, at least [`Limiter::FOLLOWING`]. The Go programs create a separate
/// client for them whose limits grow with the number of resources; otherwise it would take more than a minute
/// to follow a server with 400 resources (KS-031).
#[derive(Debug)]
pub struct Limiter {
    objects: Mutex<TokenBucket>,
    collections: Mutex<TokenBucket>,
}

impl Limiter {
    /// The lowest limit for lists and watches.
    pub const FOLLOWING: Rate = Rate { qps: 50.0, burst: 300 };

    /// A limiter whose buckets are full.
    pub fn new(rate: Rate) -> Self {
        let now = Instant::now();
        let following =
            Rate { qps: rate.qps.max(Self::FOLLOWING.qps), burst: rate.burst.max(Self::FOLLOWING.burst) };
        Self {
            objects: Mutex::new(TokenBucket::new(rate, now)),
            collections: Mutex::new(TokenBucket::new(following, now)),
        }
    }

    /// Waits until this request may be sent, in the order of the calls. Returns how long that took.
    pub async fn wait(&self, load: RequestClass) -> Duration {
        let bucket = match load {
            RequestClass::Object => &self.objects,
            RequestClass::Collection => &self.collections,
        };
        let pause = bucket.lock().reserve(Instant::now());
        if !pause.is_zero() {
            tokio::time::sleep(pause).await;
        }
        pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// KS-210: a burst is sent at once, further requests at the rate; an idle client regains its burst.
    #[test]
    fn ks_210_rate_and_burst() {
        let start = Instant::now();
        let mut bucket = TokenBucket::new(Rate { qps: 5.0, burst: 10 }, start);
        let waits: Vec<u128> = (0..13).map(|_| bucket.reserve(start).as_millis()).collect();
        assert_eq!(waits[..10], [0; 10]);
        assert_eq!(waits[10..], [200, 400, 600]);
        let later = start + Duration::from_secs(60);
        assert!((0..10).all(|_| bucket.reserve(later).is_zero()));
        assert_eq!(bucket.reserve(later).as_millis(), 200);
    }

    /// KS-031: 400 watches start in under 30 s, whatever the rate for objects is.
    #[tokio::test(start_paused = true)]
    async fn ks_031_watches_have_a_bound_of_their_own() {
        let limiter = Limiter::new(Rate { qps: 0.1, burst: 1 });
        let start = Instant::now();
        for _ in 0..400 {
            limiter.wait(RequestClass::Collection).await;
        }
        let took = start.elapsed();
        assert!(took > Duration::from_millis(1900) && took < Duration::from_secs(30), "{took:?}");
        assert!(limiter.wait(RequestClass::Object).await.is_zero());
        assert_eq!(limiter.wait(RequestClass::Object).await.as_secs(), 10);
    }
}
