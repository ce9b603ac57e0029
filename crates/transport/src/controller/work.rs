//! The work of the controller, its queue, and why work fails.

use std::{collections::BTreeSet, time::Duration};

use runtime::{Queue, limiter::Rate};

use crate::objects::ReadError;

/// A work item.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Work {
    /// A Binding.
    Sync(String),
    /// The status of a CustomTransform.
    Judge(String),
}

/// What an event makes necessary.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Todo {
    /// To be done; work that failed before waits for the end of its back-off.
    pub(super) work: BTreeSet<Work>,
    /// To be done at once, because what made it fail may be gone: its back-off starts anew.
    pub(super) at_once: BTreeSet<Work>,
}

impl Todo {
    /// Nothing to do.
    pub(super) fn nothing() -> Self {
        Self::default()
    }

    /// Bindings to be processed.
    pub(super) fn sync(bindings: impl IntoIterator<Item = String>) -> Self {
        Self { work: bindings.into_iter().map(Work::Sync).collect(), ..Self::default() }
    }

    /// Bindings to be processed at once.
    pub(super) fn sync_at_once(bindings: impl IntoIterator<Item = String>) -> Self {
        Self { at_once: bindings.into_iter().map(Work::Sync).collect(), ..Self::default() }
    }

    /// Both.
    pub(super) fn and(mut self, other: Self) -> Self {
        self.work.extend(other.work);
        self.at_once.extend(other.at_once);
        self
    }

    /// Puts the work into the queue.
    pub(super) fn enqueue(self, queue: &Queue<Work>) {
        for work in self.work {
            queue.add(work);
        }
        for work in self.at_once {
            queue.forget(&work);
            queue.add(work);
        }
    }
}

/// Rate limit for retries of failed Bindings, all together.
const RETRIES: Rate = Rate { qps: 10.0, burst: 100 };
/// The longest back-off of one Binding; the original goes to 1000 s. A Binding waits here for things that no
/// watch reports: a mailbox of a cluster that is not accepted yet, a kind that is not served yet, an
/// unreachable server. Whoever repairs that must not wait a quarter of an hour for the effect. The rate limit
/// above bounds the cost of retries.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// The queue of the controller.
pub(super) fn queue() -> Queue<Work> {
    Queue::new(Duration::from_millis(5), LONGEST_PAUSE).limited(RETRIES)
}

/// A failure that is worth a retry.
#[derive(Debug, thiserror::Error)]
pub(super) enum SyncError {
    #[error("reading the workload: {0}")]
    Workload(#[from] ReadError),
    #[error("writing the Binding: {0}")]
    Binding(#[source] kube::Error),
    #[error("writing wrapped objects: {0}")]
    Wrapped(String),
    #[error("writing the CustomTransform: {0}")]
    Transform(#[source] kube::Error),
    #[error("expanding templates")]
    Expansion(#[from] tokio::task::JoinError),
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;
    use tokio_util::sync::CancellationToken;

    use super::*;

    /// KS-095: failed Bindings are retried, each with back-off and all together at 10 per second after a
    /// burst of 100. The crate `runtime` tests that a queue keeps to its rate.
    #[tokio::test(start_paused = true)]
    async fn ks_095_retries_keep_to_a_rate() {
        let (queue, stop, start) = (queue(), CancellationToken::new(), Instant::now());
        let sync = |n: u32| Work::Sync(format!("binding-{n}"));
        (0..150).for_each(|n| queue.retry(sync(n)));
        for _ in 0..150 {
            drop(queue.next(&stop).await.unwrap());
        }
        assert_eq!(start.elapsed().as_secs(), 5);
        tokio::time::sleep(Duration::from_secs(100)).await;

        // A single Binding: 5 ms, doubling.
        queue.forget(&sync(0));
        let mut pauses = Vec::new();
        for _ in 0..12 {
            let start = Instant::now();
            queue.retry(sync(0));
            drop(queue.next(&stop).await.unwrap());
            pauses.push(start.elapsed().as_millis());
        }
        assert_eq!(pauses[..4], [5, 10, 20, 40]);
        assert_eq!(pauses[11..], [5000]);
    }
}
