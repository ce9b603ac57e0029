//! The event loop of the controllers of a space: one watch over all collections feeds a pure state, which returns
//! keys; workers visit the keys.
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

/// The state that is built from events, and the keys that an event adds to the queue.
pub(crate) trait State: Send + 'static {
    type Key: Clone + Eq + Hash + Debug + Send + Sync + 'static;

    /// Builds the state from a snapshot: at the start, and again after falling behind.
    fn start(&mut self, all: &Snapshot, enqueue: &mut dyn FnMut(Self::Key));

    fn observe(&mut self, event: &Event, enqueue: &mut dyn FnMut(Self::Key));
}

/// Most events that are taken before the queue is served again.
const BURST: usize = 256;

/// The event loop of one set of controllers.
pub(crate) struct EventLoop<S: State> {
    /// What log messages call the controllers.
    pub(crate) name: &'static str,
    pub(crate) store: SpaceStore,
    pub(crate) state: Arc<Mutex<S>>,
    pub(crate) queue: Queue<S::Key>,
    /// Most keys that are visited concurrently.
    pub(crate) workers: usize,
    /// Set to true once the state has been built for the first time.
    pub(crate) ready: watch::Sender<bool>,
}

impl<S: State> EventLoop<S> {
    /// Follows the store until `stop` is cancelled. Calls `act` for each key, for a few keys concurrently, but never
    /// twice at once for the same key.
    pub(crate) async fn run<A, Fut, E>(self, act: A, stop: CancellationToken) -> Result<(), StoreError>
    where
        A: Fn(S::Key) -> Fut + Clone + Send + Sync + 'static,
        Fut: Future<Output = Result<Next, E>> + Send + 'static,
        E: Display + Send,
    {
        let stop = stop.child_token();
        let working = work(self.name, &self.queue, self.workers, &stop, act);
        let watching = async {
            let outcome = watch_all(&self.store, &self.state, &self.queue, &self.ready, &stop).await;
            stop.cancel();
            outcome
        };
        let ((), outcome) = tokio::join!(working, watching);
        outcome
    }
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
        // The watch fell behind the store's history. Pause, then begin again.
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}
