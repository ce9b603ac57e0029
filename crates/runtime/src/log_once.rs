//! De-duplicates log messages about problems that last.

use std::time::Duration;

use tokio::time::Instant;

/// The same problem is logged again after this time.
const AGAIN: Duration = Duration::from_secs(600);

/// Remembers the problem that was logged last, so that it is logged once and not at each retry.
#[derive(Debug, Default)]
pub(crate) struct LogOnce(Option<(String, Instant)>);

impl LogOnce {
    /// Returns whether to log this problem: it differs from the last one, or the last one was logged long
    /// ago. If so, it counts as logged.
    pub(crate) fn should_log(&mut self, watch_error: &str) -> bool {
        if self.0.as_ref().is_some_and(|(logged, at)| logged == watch_error && at.elapsed() < AGAIN) {
            return false;
        }
        self.0 = Some((watch_error.to_owned(), Instant::now()));
        true
    }

    /// Notes that the problem is over.
    pub(crate) fn clear(&mut self) {
        self.0 = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn lasting_trouble_is_told_now_and_then() {
        let mut logged = LogOnce::default();
        let mut news = |watch_error| logged.should_log(watch_error);
        assert_eq!(["a", "a", "b", "a", "a"].map(&mut news), [true, false, true, true, false]);
        tokio::time::advance(AGAIN / 2).await;
        assert!(!news("a"));
        tokio::time::advance(AGAIN / 2).await;
        assert!(news("a") && !news("a"));
        logged.clear();
        assert!(logged.should_log("a"), "it is back");
    }
}
