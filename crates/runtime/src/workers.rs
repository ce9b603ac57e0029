//! Workers that process the keys of a work queue.

use std::{
    fmt::{Debug, Display},
    hash::Hash,
    panic::AssertUnwindSafe,
    time::Duration,
};

use futures::FutureExt;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::{Queue, panic_text};

/// What the queue does with a key after it was processed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Process the key when it is added again.
    OnChange,
    /// Process the key again after this pause.
    After(Duration),
    /// Process the key again with back-off, as after an error, but without a log message.
    Retry,
    /// Like `Retry`, with a back-off of at most this.
    RetryWithin(Duration),
}

/// Processes the keys of a queue with `workers` concurrent workers until `stop` is cancelled. Keys that are
/// being processed then are finished.
///
/// A key whose processing fails or panics is retried with back-off; other keys are not affected. A panic
/// outside of the processing ends the other workers and is passed on to the caller, because a queue without
/// workers would look like an idle one.
pub async fn work<K, E, F, Fut>(name: &str, queue: &Queue<K>, workers: usize, stop: &CancellationToken, f: F)
where
    K: Clone + Eq + Hash + Debug + Send + Sync + 'static,
    E: Display + Send,
    F: Fn(K) -> Fut + Clone + Send + Sync + 'static,
    Fut: Future<Output = Result<Next, E>> + Send,
{
    let (mut tasks, stop) = (JoinSet::new(), stop.child_token());
    for _ in 0..workers.max(1) {
        let (name, queue, stop, f) = (name.to_owned(), queue.clone(), stop.clone(), f.clone());
        tasks.spawn(async move {
            while let Some(guard) = queue.next(&stop).await {
                let key = guard.key().clone();
                let outcome = AssertUnwindSafe(async { f(key.clone()).await }).catch_unwind().await;
                let settled = std::panic::catch_unwind(AssertUnwindSafe(|| {
                    settle(&name, &queue, key.clone(), outcome);
                }));
                if let Err(panic) = settled {
                    let reason = panic_text(panic.as_ref());
                    tracing::error!(
                        queue = name,
                        ?key,
                        reason,
                        "panicked after the work; will be tried again"
                    );
                    queue.add_after(key, queue.longest_pause());
                }
                drop(guard);
            }
        });
    }
    let mut panicked = None;
    while let Some(joined) = tasks.join_next().await {
        let Some(panic) = joined.err().and_then(|error| error.try_into_panic().ok()) else { continue };
        tracing::error!(
            queue = name,
            reason = panic_text(panic.as_ref()),
            "a worker panicked; ending the rest"
        );
        stop.cancel();
        panicked.get_or_insert(panic);
    }
    if let Some(panic) = panicked {
        std::panic::resume_unwind(panic);
    }
}

/// Must run before the key's guard is dropped, so that the delay and the failure count belong to one run.
fn settle<K, E>(name: &str, queue: &Queue<K>, key: K, outcome: std::thread::Result<Result<Next, E>>)
where
    K: Clone + Eq + Hash + Debug,
    E: Display,
{
    match outcome {
        Ok(Ok(Next::OnChange)) => queue.forget(&key),
        Ok(Ok(Next::After(pause))) => {
            queue.forget(&key);
            queue.add_after(key, pause);
        }
        Ok(Ok(Next::Retry)) => queue.retry(key),
        Ok(Ok(Next::RetryWithin(longest))) => queue.retry_within(key, longest),
        Ok(Err(error)) => {
            tracing::warn!(queue = name, ?key, %error, "will be tried again");
            queue.retry(key);
        }
        Err(panic) => {
            let reason = panic_text(panic.as_ref());
            tracing::error!(queue = name, ?key, reason, "panicked; will be tried again");
            queue.retry(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use parking_lot::Mutex;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn workers_share_the_keys_and_stop() {
        let (queue, stop) = (Queue::default(), CancellationToken::new());
        let seen = Arc::new(Mutex::new(Vec::new()));
        for key in 0..100 {
            queue.add(key);
        }
        let (done, list) = (stop.clone(), seen.clone());
        work("test", &queue, 4, &stop, move |key: i32| {
            let (done, list) = (done.clone(), list.clone());
            async move {
                tokio::task::yield_now().await;
                let first = !list.lock().contains(&key);
                list.lock().push(key);
                if list.lock().len() == 101 {
                    done.cancel();
                }
                if key == 50 && first { Err("once") } else { Ok(Next::OnChange) }
            }
        })
        .await;
        let mut seen = seen.lock().clone();
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), 100);
    }

    #[tokio::test(start_paused = true)]
    async fn a_panic_is_retried_and_stops_no_other_key() {
        let (queue, stop) = (Queue::default(), CancellationToken::new());
        queue.add("bad");
        queue.add("good");
        let runs = Arc::new(Mutex::new(Vec::new()));
        let (list, done) = (runs.clone(), stop.clone());
        work("test", &queue, 1, &stop, move |key: &str| {
            let (list, done) = (list.clone(), done.clone());
            async move {
                list.lock().push(key);
                assert!(key != "bad" || list.lock().len() > 1, "the first time");
                if list.lock().len() == 3 {
                    done.cancel();
                }
                Ok::<_, &str>(Next::OnChange)
            }
        })
        .await;
        assert_eq!(*runs.lock(), ["bad", "good", "bad"]);
    }

    /// A worker survives a key that asks for an endless pause.
    #[tokio::test(start_paused = true)]
    async fn an_endless_pause_ends_no_worker() {
        let (queue, stop) = (Queue::default(), CancellationToken::new());
        queue.add("endless");
        queue.add("other");
        let done = stop.clone();
        work("test", &queue, 1, &stop, move |key: &str| {
            let done = done.clone();
            async move {
                if key == "other" {
                    done.cancel();
                }
                Ok::<_, &str>(Next::After(Duration::MAX))
            }
        })
        .await;
        assert!(queue.is_empty() && !queue.is_idle());
    }

    #[tokio::test(start_paused = true)]
    async fn a_key_touched_while_worked_on_comes_again_but_never_twice_at_once() {
        let (queue, stop) = (Queue::default(), CancellationToken::new());
        queue.add(7);
        let state = Arc::new(Mutex::new((0, 0)));
        let (again, end, counts) = (queue.clone(), stop.clone(), state.clone());
        work("test", &queue, 4, &stop, move |key: u8| {
            let (again, end, counts) = (again.clone(), end.clone(), counts.clone());
            async move {
                counts.lock().0 += 1;
                again.add(key);
                tokio::task::yield_now().await;
                let mut counts = counts.lock();
                assert_eq!(counts.0, 1, "two at once");
                counts.0 -= 1;
                counts.1 += 1;
                if counts.1 == 4 {
                    end.cancel();
                }
                Ok::<_, &str>(Next::Retry)
            }
        })
        .await;
        assert_eq!(state.lock().1, 4);
    }
}
