//! What was said last about trouble that lasts.

use std::time::Duration;

use tokio::time::Instant;

/// The same trouble is news again after this.
const AGAIN: Duration = Duration::from_secs(600);

/// Remembers what a log was told, so that it is told once and not at each try.
#[derive(Debug, Default)]
pub(crate) struct Told(Option<(String, Instant)>);

impl Told {
    /// Whether this is another trouble than the last, or the same for long; if so it counts as told.
    pub(crate) fn is_news(&mut self, trouble: &str) -> bool {
        if self.0.as_ref().is_some_and(|(told, at)| told == trouble && at.elapsed() < AGAIN) {
            return false;
        }
        self.0 = Some((trouble.to_owned(), Instant::now()));
        true
    }

    /// It is over.
    pub(crate) fn clear(&mut self) {
        self.0 = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn lasting_trouble_is_told_now_and_then() {
        let mut told = Told::default();
        let mut news = |trouble| told.is_news(trouble);
        assert_eq!(["a", "a", "b", "a", "a"].map(&mut news), [true, false, true, true, false]);
        tokio::time::advance(AGAIN / 2).await;
        assert!(!news("a"));
        tokio::time::advance(AGAIN / 2).await;
        assert!(news("a") && !news("a"));
        told.clear();
        assert!(told.is_news("a"), "it is back");
    }
}
