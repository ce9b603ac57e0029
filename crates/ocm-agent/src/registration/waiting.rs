//! Logs that the agent waits for the acceptance of the cluster. That is no error, so it is logged once, and
//! then from time to time.

use std::time::Duration;

use tokio::time::Instant;

/// A shorter wait is not logged.
const PATIENCE: Duration = Duration::from_secs(3);
/// Pause between two log messages about the same wait.
const AGAIN: Duration = Duration::from_secs(15 * 60);

/// When the wait began, and when it was last logged.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Waiting {
    since: Option<Instant>,
    reported: Option<Instant>,
}

impl Waiting {
    /// Begins a wait, unless one is in progress.
    pub(super) fn begin(&mut self, now: Instant) {
        self.since.get_or_insert(now);
    }

    /// Ends the wait.
    pub(super) fn over(&mut self) {
        *self = Self::default();
    }

    /// Returns when to log next; `None` without a wait.
    pub(super) fn next_log_in(&self, now: Instant) -> Option<Duration> {
        let since = self.since?;
        let next = self.reported.map_or(since + PATIENCE, |reported| reported + AGAIN);
        Some(next.saturating_duration_since(now))
    }

    /// Logs the wait if it is time to.
    pub(super) fn tell(&mut self, cluster: &str, now: Instant) {
        self.begin(now);
        if self.next_log_in(now).is_none_or(|left| !left.is_zero()) {
            return;
        }
        self.reported = Some(now);
        tracing::info!(
            "waiting for the hub to accept cluster {cluster}; run there: kubestellar cluster accept {cluster}"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// OCM-019: logged after a moment, then after a long time; the next wait is a new one.
    #[test]
    fn ocm_019_a_wait_is_told_seldom() {
        let (mut waiting, start) = (Waiting::default(), Instant::now());
        assert_eq!(waiting.next_log_in(start), None);
        waiting.tell("c1", start);
        assert_eq!((waiting.next_log_in(start), waiting.reported), (Some(PATIENCE), None));
        let first = start + PATIENCE;
        waiting.tell("c1", first);
        assert_eq!((waiting.next_log_in(first), waiting.reported), (Some(AGAIN), Some(first)));
        waiting.tell("c1", first + AGAIN / 2);
        assert_eq!(
            (waiting.next_log_in(first + AGAIN / 2), waiting.reported),
            (Some(AGAIN / 2), Some(first))
        );
        let second = first + AGAIN;
        waiting.tell("c1", second);
        assert_eq!((waiting.next_log_in(second), waiting.reported), (Some(AGAIN), Some(second)));
        waiting.over();
        assert_eq!(waiting.next_log_in(second), None);
    }
}
