//! The loop below the controllers of a space: one watch over all its collections feeds a pure state, which
//! says what to look at; workers look and act.
//!
//! One event costs the state's `observe`; nothing polls. An idle space costs a parked task per worker.

use std::fmt::{Debug, Display};
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use runtime::{Next, Queue, work};
use store::{Event, Snapshot, SpaceStore, StoreError};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// What is known from events, and which keys an event makes worth looking at.
pub(crate) trait State: Send + 'static {
    type Key: Clone + Eq + Hash + Debug + Send + Sync + 'static;

    /// Begins from (again from, after falling behind) everything there is.
    fn start(&mut self, all: &Snapshot, look: &mut dyn FnMut(Self::Key));

    fn observe(&mut self, event: &Event, look: &mut dyn FnMut(Self::Key));
}

/// Events taken before the queue is touched again.
const BURST: usize = 256;

/// Follows `store` until `stop`. `act` is called for each key, a few at a time, never twice at once for the same.
#[expect(clippy::too_many_arguments, reason = "called twice, each argument of its own type")]
pub(crate) async fn follow<S, A, Fut, E>(
    name: &str,
    store: SpaceStore,
    state: Arc<Mutex<S>>,
    queue: Queue<S::Key>,
    workers: usize,
    act: A,
    ready: watch::Sender<bool>,
    stop: CancellationToken,
) -> Result<(), StoreError>
where
    S: State,
    A: Fn(S::Key) -> Fut + Clone + Send + Sync + 'static,
    Fut: Future<Output = Result<Next, E>> + Send + 'static,
    E: Display + Send,
{
    let stop = stop.child_token();
    let working = work(name, &queue, workers, &stop, act);
    let watching = async {
        let outcome = watch_all(&store, &state, &queue, &ready, &stop).await;
        stop.cancel();
        outcome
    };
    let ((), outcome) = tokio::join!(working, watching);
    outcome
}

async fn watch_all<S: State>(
    store: &SpaceStore,
    state: &Mutex<S>,
    queue: &Queue<S::Key>,
    ready: &watch::Sender<bool>,
    stop: &CancellationToken,
) -> Result<(), StoreError> {
    loop {
        let all = store.snapshot();
        let mut events = store.watch_all(all.revision())?;
        state.lock().start(&all, &mut |key| queue.add(key));
        drop(all);
        ready.send_replace(true);
        loop {
            let first = tokio::select! {
                () = stop.cancelled() => return Ok(()),
                event = events.next() => event,
            };
            let mut next = first.map(Some);
            let mut state = state.lock();
            let mut taken = 0;
            let fallen_behind = loop {
                match next {
                    Ok(Some(event)) => state.observe(&event, &mut |key| queue.add(key)),
                    Ok(None) => break false,
                    Err(StoreError::Compacted { .. }) => break true,
                    Err(error) => return Err(error),
                }
                taken += 1;
                next = if taken < BURST { events.try_next() } else { Ok(None) };
            };
            drop(state);
            if fallen_behind {
                break;
            }
        }
        // Slower than the history is long: begin again, with a moment to breathe.
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}
