//! Bounds on kept history and on pending writes.

use std::time::Duration;

/// Bounds on kept history and on pending writes.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Recent events kept per space.
    pub events: usize,
    /// Bytes of recent events kept per space.
    pub event_bytes: usize,
    /// Bytes of recent events over all spaces. Above it, a space that writes keeps no more than its share.
    pub total_event_bytes: usize,
    /// Events older than this are dropped, if their space keeps more than `young_bytes`.
    pub event_age: Duration,
    /// Bytes of recent events that a space keeps whatever their age.
    pub young_bytes: usize,
    /// Events queued per watcher. A slower watcher reads from the recent events.
    pub queue: usize,
    /// Pending writes. Further writes wait in their callers.
    pub backlog: usize,
    /// Bytes of pending writes. Further writes wait in their callers.
    pub backlog_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        const MIB: usize = 1 << 20;
        Self {
            events: 65_536,
            event_bytes: 24 * MIB,
            total_event_bytes: 192 * MIB,
            event_age: Duration::from_secs(300),
            young_bytes: MIB,
            queue: 4096,
            backlog: 4096,
            backlog_bytes: 64 * MIB,
        }
    }
}
