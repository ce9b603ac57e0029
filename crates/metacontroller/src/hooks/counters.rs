//! The counters of one hook.

use std::{collections::BTreeMap, sync::atomic::AtomicI64};

use parking_lot::Mutex;

use super::error::HookError;
use crate::histogram::Histogram;

/// The counters of one hook (MC-204, MC-206).
pub struct HookMetrics {
    /// By status code.
    pub requests: Mutex<BTreeMap<u16, u64>>,
    /// By reason.
    pub failures: Mutex<BTreeMap<&'static str, u64>>,
    /// Duration in seconds.
    pub duration: Histogram,
    /// Name resolution: when it began and ended.
    pub dns: [Histogram; 2],
    /// TLS handshake, after the start of the connection: when it began and ended.
    pub tls: [Histogram; 2],
    /// Calls in progress.
    pub in_flight: AtomicI64,
}

impl Default for HookMetrics {
    fn default() -> Self {
        Self {
            requests: Mutex::default(),
            failures: Mutex::default(),
            duration: Histogram::of_requests(),
            dns: Histogram::of_dns(),
            tls: Histogram::of_tls(),
            in_flight: AtomicI64::new(0),
        }
    }
}

impl HookMetrics {
    /// Counts a failure.
    pub fn failed(&self, error: &HookError) {
        *self.failures.lock().entry(error.reason()).or_default() += 1;
    }
}
