//! Decides when a stream of changes is written (KS-038).

use std::time::{Duration, Instant};

/// Decides when the pending changes of one object are written: a single change to an idle object at once, a
/// burst once per window. The last change of a burst is always written.
///
/// A single change that follows another one is not delayed. A burst begins when two or more changes arrive
/// during one write, or when several writes in a row were each requested within a tenth of the window after
/// the previous write. The burst ends when a whole window passes without a change. If a write takes more than
/// a tenth of the window, the window doubles, up to a limit; fast writes reset it.
#[derive(Clone, Debug)]
pub struct Coalescer {
    base: Duration,
    max: Duration,
    window: Duration,
    pending: u32,
    flushed: Option<Instant>,
    /// Number of writes in a row that were requested right after the previous write.
    rapid: u32,
    burst: bool,
}

const RAPID_WRITES: u32 = 3;

impl Default for Coalescer {
    fn default() -> Self {
        Self::new(Duration::from_millis(50), Duration::from_secs(1))
    }
}

impl Coalescer {
    /// Creates a coalescer whose window varies from `base` to `max`.
    pub fn new(base: Duration, max: Duration) -> Self {
        Self { base, max, window: base, pending: 0, flushed: None, rapid: 0, burst: false }
    }

    /// Counts a change.
    pub fn change(&mut self) {
        self.pending = self.pending.saturating_add(1);
    }

    /// Returns how long to wait before the pending changes may be written; zero means now.
    pub fn wait(&mut self, now: Instant) -> Duration {
        let Some(flushed) = self.flushed else { return Duration::ZERO };
        let left = (flushed + self.window).saturating_duration_since(now);
        if left.is_zero() {
            self.burst = false;
            return left;
        }
        if self.pending > 1 || (self.rapid >= RAPID_WRITES && self.window - left < self.window / 10) {
            self.burst = true;
        }
        if self.burst { left } else { Duration::ZERO }
    }

    /// Marks the start of a write of all pending changes. Changes counted after this call belong to the next
    /// write.
    pub fn begin(&mut self, now: Instant) {
        let close = |flushed| now.saturating_duration_since(flushed) < self.window / 10;
        self.rapid = if self.flushed.is_some_and(close) { self.rapid + 1 } else { 0 };
        self.burst |= self.pending > 1;
        self.pending = 0;
    }

    /// Drops the pending changes, because nothing is left to write.
    pub fn settle(&mut self) {
        self.pending = 0;
    }

    /// Marks the end of the write that began at `began`.
    pub fn end(&mut self, began: Instant, now: Instant) {
        self.flushed = Some(now);
        let slow = now.saturating_duration_since(began) * 10 > self.window;
        self.window = if slow { (self.window * 2).min(self.max) } else { (self.window / 2).max(self.base) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn flush(c: &mut Coalescer, at: Instant, took: Duration) {
        c.begin(at);
        c.end(at, at + took);
    }

    #[test]
    fn ks_038_a_change_to_an_idle_object_goes_at_once() {
        let mut c = Coalescer::default();
        let t = Instant::now();
        c.change();
        assert_eq!(c.wait(t), Duration::ZERO);
        flush(&mut c, t, MS);
        c.change();
        assert_eq!(c.wait(t + 8 * MS), Duration::ZERO, "one change alone is no burst");
    }

    #[test]
    fn ks_038_a_burst_goes_once_per_window() {
        let mut c = Coalescer::default();
        let t = Instant::now();
        let mut writes = 0;
        let mut next = t;
        for i in 0..1000 {
            let now = t + i * MS;
            c.change();
            if now >= next && c.wait(now).is_zero() {
                flush(&mut c, now, MS);
                writes += 1;
            } else {
                next = now + c.wait(now);
            }
        }
        assert!((15..=25).contains(&writes), "{writes} writes in a second");
    }

    #[test]
    fn ks_038_slow_writes_stretch_the_window() {
        let mut c = Coalescer::default();
        let t = Instant::now();
        for _ in 0..10 {
            c.change();
            flush(&mut c, t, 200 * MS);
        }
        c.change();
        assert_eq!(c.wait(t + 400 * MS), Duration::ZERO, "a slow write is not yet a burst");
        c.change();
        assert_eq!(c.wait(t + 200 * MS), Duration::from_secs(1));
        assert_eq!(c.wait(t + 1200 * MS), Duration::ZERO);
        for _ in 0..10 {
            flush(&mut c, t, MS);
        }
        assert_eq!(c.window, 50 * MS);
    }
}
