//! Tasks that have an owner.
//!
//! One meaning of "a task ended" for all components: a task that ends without an error leaves the others alone; one that
//! fails or panics ends its component, whose caller starts it again. [`Tasks`] are those that a component starts once,
//! [`TaskPool`] those that come and go while it runs.

use std::{any::Any, collections::HashMap, fmt::Display, panic::AssertUnwindSafe};

use futures::{FutureExt, TryFutureExt, future::BoxFuture};
use tokio::task::{Id, JoinError, JoinSet};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

/// Why a task of a [`Tasks`] ended with an error.
#[derive(Debug, thiserror::Error)]
pub enum TaskError {
    /// The task failed.
    #[error("{task}: {reason}")]
    Failed { task: String, reason: String },
    /// The task panicked.
    #[error("{task} panicked: {reason}")]
    Panicked { task: String, reason: String },
}

/// A set of tasks that live and end together: the first failure or panic stops all of them.
pub struct Tasks {
    set: JoinSet<Result<(), String>>,
    names: HashMap<Id, String>,
    stop: CancellationToken,
}

impl Tasks {
    /// An empty set. Its tasks stop when `parent` is cancelled; the set never cancels `parent`.
    pub fn new(parent: &CancellationToken) -> Self {
        Self { set: JoinSet::new(), names: HashMap::new(), stop: parent.child_token() }
    }

    /// Runs a component: `start` starts its tasks. The future ends when all of them have ended; they stop when `stop` is
    /// cancelled, or when one of them fails.
    ///
    /// # Errors
    ///
    /// The first error of a task.
    pub fn run(
        stop: CancellationToken,
        start: impl FnOnce(&mut Self) + Send + 'static,
    ) -> BoxFuture<'static, Result<(), TaskError>> {
        Box::pin(async move {
            let mut tasks = Self::new(&stop);
            start(&mut tasks);
            tasks.finish().await
        })
    }

    /// Cancelled when the tasks must end.
    pub fn token(&self) -> &CancellationToken {
        &self.stop
    }

    /// Starts a task.
    pub fn spawn<E: Display>(
        &mut self,
        name: impl Into<String>,
        task: impl Future<Output = Result<(), E>> + Send + 'static,
    ) {
        self.spawn_boxed(name.into(), Box::pin(task.map_err(|error| format!("{error:#}"))));
    }

    /// Not generic, so that what it takes to run a task is compiled once and not for each task.
    fn spawn_boxed(&mut self, name: String, task: BoxFuture<'static, Result<(), String>>) {
        let handle = self.set.spawn(task);
        self.names.insert(handle.id(), name);
    }

    /// Starts a task that cannot fail.
    pub fn spawn_endless(
        &mut self,
        name: impl Into<String>,
        task: impl Future<Output = ()> + Send + 'static,
    ) {
        self.spawn_boxed(name.into(), Box::pin(task.map(Ok)));
    }

    /// Makes the set fail when a task of `pool` panics; `name` is what the error calls the pool.
    pub fn depend_on(&mut self, name: impl Into<String>, pool: &TaskPool) {
        let (broken, stop) = (pool.broken().clone(), self.stop.clone());
        self.spawn(name, async move {
            tokio::select! {
                () = broken.cancelled() => Err("one of them panicked"),
                () = stop.cancelled() => Ok(()),
            }
        });
    }

    /// Waits for all tasks.
    ///
    /// # Errors
    ///
    /// The first error of a task.
    pub async fn finish(mut self) -> Result<(), TaskError> {
        let mut outcome = Ok(());
        while let Some(joined) = self.set.join_next_with_id().await {
            if let Err(error) = self.ended(joined) {
                tracing::error!(%error, "a task ended; stopping the rest");
                self.stop.cancel();
                outcome = outcome.and(Err(error));
            }
        }
        outcome
    }

    fn ended(&mut self, joined: Result<(Id, Result<(), String>), JoinError>) -> Result<(), TaskError> {
        let id = joined.as_ref().map_or_else(JoinError::id, |(id, _)| *id);
        let task = self.names.remove(&id).unwrap_or_default();
        match joined {
            Ok((_, Ok(()))) => Ok(()),
            Ok((_, Err(reason))) => Err(TaskError::Failed { task, reason }),
            Err(error) => match error.try_into_panic() {
                Ok(panic) => Err(TaskError::Panicked { task, reason: panic_text(panic.as_ref()).into() }),
                Err(_cancelled) => Ok(()),
            },
        }
    }
}

/// Tasks that come and go while a component runs, such as one watch for each resource that it follows. Clones share them.
///
/// What the tasks maintain is stale once one of them has panicked. Then the pool is broken, and the component that
/// [depends on it](Tasks::depend_on) ends. The owner must call [`shutdown`](Self::shutdown) before it returns.
#[derive(Clone, Debug)]
pub struct TaskPool {
    tracker: TaskTracker,
    stop: CancellationToken,
    broken: CancellationToken,
}

impl TaskPool {
    /// An empty pool. Its tasks stop when `parent` is cancelled; the pool never cancels `parent`.
    pub fn new(parent: &CancellationToken) -> Self {
        Self { tracker: TaskTracker::new(), stop: parent.child_token(), broken: CancellationToken::new() }
    }

    /// Cancelled when the tasks must end.
    pub fn token(&self) -> &CancellationToken {
        &self.stop
    }

    /// Starts a task, which must end when the pool's token is cancelled.
    pub fn spawn(&self, name: impl Into<String>, task: impl Future<Output = ()> + Send + 'static) {
        self.tracker.spawn(guarded(task, name.into(), self.broken.clone()));
    }

    /// Cancelled when a task has panicked.
    pub fn broken(&self) -> &CancellationToken {
        &self.broken
    }

    /// Stops all tasks and waits for them.
    pub async fn shutdown(&self) {
        self.stop.cancel();
        self.tracker.close();
        self.tracker.wait().await;
    }
}

/// Runs a task whose result is not awaited. If the task panics, logs that and cancels `broken`, so that the
/// owner of `broken` can end instead of continuing without the task.
async fn guarded(task: impl Future<Output = ()>, name: impl Display, broken: CancellationToken) {
    if let Err(panic) = AssertUnwindSafe(task).catch_unwind().await {
        tracing::error!(task = %name, reason = panic_text(panic.as_ref()), "panicked");
        broken.cancel();
    }
}

/// Returns the message of a panic.
pub fn panic_text(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("without a message")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_guarded_panic_is_told_to_the_owner() {
        let broken = CancellationToken::new();
        guarded(async {}, "good", broken.clone()).await;
        assert!(!broken.is_cancelled());
        guarded(async { panic!("oh no") }, "bad", broken.clone()).await;
        assert!(broken.is_cancelled());
    }

    #[tokio::test]
    async fn a_component_ends_with_the_pool_it_depends_on() {
        let stop = CancellationToken::new();
        let mut tasks = Tasks::new(&stop);
        let pool = TaskPool::new(tasks.token());
        tasks.depend_on("watches", &pool);
        pool.spawn("short", async {});
        let token = pool.token().clone();
        pool.spawn("patient", async move { token.cancelled().await });
        pool.spawn("hasty", async { panic!("oh no") });
        assert_eq!(tasks.finish().await.unwrap_err().to_string(), "watches: one of them panicked");
        pool.shutdown().await;
        assert!(!stop.is_cancelled(), "the parent's token is not ours");
    }

    #[tokio::test]
    async fn a_panic_ends_all_and_is_named() {
        let stop = CancellationToken::new();
        let mut tasks = Tasks::new(&stop);
        let token = tasks.token().clone();
        tasks.spawn_endless("patient", async move { token.cancelled().await });
        tasks.spawn_endless("hasty", async { panic!("oh {}", "no") });
        assert_eq!(tasks.finish().await.unwrap_err().to_string(), "hasty panicked: oh no");
        assert!(!stop.is_cancelled(), "the parent's token is not ours");
    }
}
