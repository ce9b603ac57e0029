//! Waiting for somebody who accepts the cluster. That is no fault of anyone: it is said once, and then once in a while.

use std::time::Duration;

use tokio::time::Instant;

/// Accepted faster than that, nobody need know that there was something to wait for.
const PATIENCE: Duration = Duration::from_secs(3);
/// Between two lines about the same wait.
const AGAIN: Duration = Duration::from_secs(15 * 60);

/// Since when it lasts, and when that was said last.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Waiting {
    since: Option<Instant>,
    told: Option<Instant>,
}

impl Waiting {
    /// It begins, unless it has.
    pub(super) fn begin(&mut self, now: Instant) {
        self.since.get_or_insert(now);
    }

    /// It is over.
    pub(super) fn over(&mut self) {
        *self = Self::default();
    }

    /// When there will be something to say; none if nothing is waited for.
    pub(super) fn tells_in(&self, now: Instant) -> Option<Duration> {
        let since = self.since?;
        let next = self.told.map_or(since + PATIENCE, |told| told + AGAIN);
        Some(next.saturating_duration_since(now))
    }

    /// Says that the cluster waits, if it is time to.
    pub(super) fn tell(&mut self, cluster: &str, now: Instant) {
        self.begin(now);
        if self.tells_in(now).is_none_or(|left| !left.is_zero()) {
            return;
        }
        self.told = Some(now);
        tracing::info!(
            "waiting for the hub to accept cluster {cluster}; run there: kubestellar cluster accept {cluster}"
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// OCM-019: told after a moment, then after a long time; the next wait is another one.
    #[test]
    fn ocm_019_a_wait_is_told_seldom() {
        let (mut waiting, start) = (Waiting::default(), Instant::now());
        assert_eq!(waiting.tells_in(start), None);
        waiting.tell("c1", start);
        assert_eq!((waiting.tells_in(start), waiting.told), (Some(PATIENCE), None));
        let first = start + PATIENCE;
        waiting.tell("c1", first);
        assert_eq!((waiting.tells_in(first), waiting.told), (Some(AGAIN), Some(first)));
        waiting.tell("c1", first + AGAIN / 2);
        assert_eq!((waiting.tells_in(first + AGAIN / 2), waiting.told), (Some(AGAIN / 2), Some(first)));
        let second = first + AGAIN;
        waiting.tell("c1", second);
        assert_eq!((waiting.tells_in(second), waiting.told), (Some(AGAIN), Some(second)));
        waiting.over();
        assert_eq!(waiting.tells_in(second), None);
    }
}
