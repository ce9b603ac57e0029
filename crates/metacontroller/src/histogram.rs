//! Durations in buckets, in Prometheus' text format.

use std::{
    fmt::Write as _,
    sync::atomic::{AtomicU64, Ordering},
};

/// Upper bounds of the buckets, in seconds: of whole requests, of name resolution, and of TLS handshakes.
const REQUEST: &[f64] = &[0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];
const DNS: &[f64] = &[0.005, 0.01, 0.025, 0.05];
const TLS: &[f64] = &[0.05, 0.1, 0.25, 0.5];

/// Durations in buckets.
pub struct Histogram {
    bounds: &'static [f64],
    buckets: Box<[AtomicU64]>,
    count: AtomicU64,
    micros: AtomicU64,
}

impl Histogram {
    fn new(bounds: &'static [f64]) -> Self {
        let buckets = bounds.iter().map(|_| AtomicU64::new(0)).collect();
        Self { bounds, buckets, count: AtomicU64::new(0), micros: AtomicU64::new(0) }
    }

    /// For whole requests.
    pub fn of_requests() -> Self {
        Self::new(REQUEST)
    }

    /// For the start and the end of name resolution.
    pub fn of_dns() -> [Self; 2] {
        [Self::new(DNS), Self::new(DNS)]
    }

    /// For the start and the end of TLS handshakes.
    pub fn of_tls() -> [Self; 2] {
        [Self::new(TLS), Self::new(TLS)]
    }

    /// Counts a duration in seconds.
    pub fn observe(&self, seconds: f64) {
        for (bucket, _) in self.buckets.iter().zip(self.bounds).filter(|(_, bound)| seconds <= **bound) {
            bucket.fetch_add(1, Ordering::Relaxed);
        }
        self.count.fetch_add(1, Ordering::Relaxed);
        self.micros.fetch_add((seconds * 1e6) as u64, Ordering::Relaxed);
    }

    /// Returns whether nothing was counted.
    pub(crate) fn is_empty(&self) -> bool {
        self.count.load(Ordering::Relaxed) == 0
    }

    /// Returns the series of a family with these labels.
    pub(crate) fn lines(&self, name: &str, labels: &str) -> String {
        let mut lines = String::new();
        let count = self.count.load(Ordering::Relaxed);
        for (bound, bucket) in self.bounds.iter().zip(&self.buckets) {
            let seen = bucket.load(Ordering::Relaxed);
            let _ = writeln!(lines, "{name}_bucket{{{labels},le=\"{bound}\"}} {seen}");
        }
        let sum = self.micros.load(Ordering::Relaxed) as f64 / 1e6;
        let _ = writeln!(lines, "{name}_bucket{{{labels},le=\"+Inf\"}} {count}");
        let _ = writeln!(lines, "{name}_sum{{{labels}}} {sum}");
        let _ = writeln!(lines, "{name}_count{{{labels}}} {count}");
        lines
    }
}
