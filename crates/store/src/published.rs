//! State and watchers of a space at both read levels.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use arc_swap::ArcSwap;
use parking_lot::Mutex;

use crate::hub::Hub;
use crate::ring::Ring;
use crate::state::State;
use crate::watcher::Wakers;
use crate::{Event, ReadLevel, StoreError};

/// State, history and watchers of a space at one read level.
#[derive(Debug)]
pub(crate) struct Published {
    pub(crate) state: ArcSwap<State>,
    pub(crate) hub: Mutex<Hub>,
    /// Watchers have received every event up to this revision.
    pub(crate) delivered: AtomicU64,
}

impl Published {
    fn new(state: Arc<State>, ring: Ring, queue_limit: usize) -> Self {
        Self {
            delivered: AtomicU64::new(state.revision.0),
            state: ArcSwap::new(state.clone()),
            hub: Mutex::new(Hub::new(state, ring, queue_limit)),
        }
    }

    /// Publishes a batch, first to readers, then to the queues of watchers. Drops the `pruned` oldest events. Returns
    /// the wakers of these watchers.
    pub(crate) fn publish(
        &self,
        state: Arc<State>,
        events: impl IntoIterator<Item = Arc<Event>>,
        pruned: usize,
    ) -> Wakers {
        let revision = state.revision;
        let mut hub = self.hub.lock();
        let gone = hub.ring.prune(pruned);
        let before = self.state.swap(state.clone());
        let wakers = hub.publish(state, events);
        drop(hub);
        self.delivered.store(revision.0, Ordering::Release);
        // Freed outside of the lock.
        drop((gone, before));
        wakers
    }

    /// Replaces the state, drops the history and ends all watches. Their readers must list again.
    fn reset(&self, state: Arc<State>) {
        let revision = state.revision;
        let mut hub = self.hub.lock();
        let before = self.state.swap(state.clone());
        let gone = hub.reset(state);
        drop(hub);
        self.delivered.store(revision.0, Ordering::Release);
        drop((gone, before));
    }
}

/// The part of a space that readers, watchers and writers share.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) id: u32,
    pub(crate) name: Arc<str>,
    /// Durable writes.
    pub(crate) durable: Published,
    /// Decided writes: `durable`, and those on their way to the disk.
    pub(crate) ahead: Published,
    /// How often decided writes were taken back.
    pub(crate) rollbacks: AtomicU64,
    /// The log knows the space. Used by the journal only.
    pub(crate) persisted: AtomicBool,
    pub(crate) removed: AtomicBool,
}

impl Shared {
    pub(crate) fn new(id: u32, name: &str, state: State, ring: Ring, queue_limit: usize) -> Self {
        let state = Arc::new(state);
        Self {
            id,
            name: name.into(),
            ahead: Published::new(state.clone(), ring.clone(), queue_limit),
            durable: Published::new(state, ring, queue_limit),
            rollbacks: AtomicU64::new(0),
            persisted: AtomicBool::new(false),
            removed: AtomicBool::new(false),
        }
    }

    pub(crate) fn at(&self, level: ReadLevel) -> &Published {
        match level {
            ReadLevel::Durable => &self.durable,
            ReadLevel::Deciding | ReadLevel::Ahead => &self.ahead,
        }
    }

    /// Publishes what has become durable. Both levels drop the same `pruned` oldest events.
    pub(crate) fn publish(&self, state: Arc<State>, events: Vec<Arc<Event>>, pruned: usize) {
        self.durable.publish(state, events, pruned).wake();
        if pruned > 0 {
            let floor = self.durable.hub.lock().ring.floor;
            let gone = self.ahead.hub.lock().ring.prune_through(floor);
            drop(gone);
        }
    }

    /// Takes back decided writes that will not become durable. Their revisions are not reused, so that no reader
    /// confuses a later write with one that was taken back.
    pub(crate) fn roll_back(&self) {
        let durable = self.durable.state.load_full();
        let decided = self.ahead.state.load().revision;
        if decided > durable.revision {
            self.ahead.reset(Arc::new(durable.at(decided)));
            // After the state: a reader that sees the old state also sees the old number.
            self.rollbacks.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Ends all watches. New ones fail.
    pub(crate) fn close(&self, why: &StoreError) {
        self.ahead.hub.lock().close(why);
        self.durable.hub.lock().close(why);
    }
}
