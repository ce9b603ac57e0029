//! One space of an engine.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::committer::Request;
use crate::engine::Inner;
use crate::hub::{Hub, Ring};
use crate::past::Past;
use crate::state::{Snapshot, State, View};
use crate::watch::Watch;
use crate::{Collection, Entry, Event, Revision, Scope, StoreError, Write};

/// What readers, watchers and the committer share of a space.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) id: u32,
    pub(crate) name: Arc<str>,
    /// The durable state.
    pub(crate) published: ArcSwap<State>,
    pub(crate) hub: Mutex<Hub>,
    /// Revision up to which watchers have got everything.
    pub(crate) delivered: AtomicU64,
    /// The database knows the space. Used by the committer only.
    pub(crate) persisted: AtomicBool,
    pub(crate) removed: AtomicBool,
}

impl Shared {
    pub(crate) fn new(id: u32, name: &str, state: State, ring: Ring, queue_limit: usize) -> Self {
        let revision = state.revision;
        let state = Arc::new(state);
        Self {
            id,
            name: name.into(),
            published: ArcSwap::new(state.clone()),
            hub: Mutex::new(Hub::new(state, ring, queue_limit)),
            delivered: AtomicU64::new(revision.0),
            persisted: AtomicBool::new(false),
            removed: AtomicBool::new(false),
        }
    }

    /// Shows a durable batch: first to readers, then to watchers. Drops the `pruned` oldest events.
    pub(crate) fn publish(&self, state: State, events: Vec<Arc<Event>>, pruned: usize) {
        let state = Arc::new(state);
        let revision = state.revision;
        let mut hub = self.hub.lock();
        let gone = hub.ring.prune(pruned);
        let before = self.published.swap(state.clone());
        hub.publish(state, events);
        drop(hub);
        self.delivered.store(revision.0, Ordering::Release);
        drop((gone, before));
    }
}

/// A space: its state, its history, and the way to change it. Cloning is cheap.
#[derive(Clone, Debug)]
pub struct SpaceStore {
    pub(crate) shared: Arc<Shared>,
    pub(crate) engine: Arc<Inner>,
}

impl SpaceStore {
    pub fn name(&self) -> &str {
        &self.shared.name
    }

    /// Revision of the last durable write.
    pub fn revision(&self) -> Revision {
        self.shared.published.load().revision
    }

    /// The current durable state. Takes no lock, copies a pointer.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot { state: self.shared.published.load_full() }
    }

    /// The state of a collection at exactly `revision`. Costs as many steps as events happened since; writers go on
    /// meanwhile.
    ///
    /// # Errors
    /// [`StoreError::Compacted`] when the history since `revision` is not kept any more,
    /// [`StoreError::Future`] when the revision is not there yet.
    pub fn collection_at(&self, collection: &Collection, revision: Revision) -> Result<View, StoreError> {
        Past::begin(&self.shared, collection, revision)?.finish()
    }

    /// Does one conditional write; durable, and seen by [`SpaceStore::snapshot`], when it returns. A write is
    /// done even if the caller stops waiting. Returns the new version, for a deletion the last state.
    ///
    /// # Errors
    /// [`StoreError::Conflict`] says what is stored instead; others say that nothing can be written.
    pub async fn commit(&self, write: Write) -> Result<Arc<Entry>, StoreError> {
        let (answer, answered) = oneshot::channel();
        let room = self.engine.room(write.size()).await?;
        let request = Request::Write { space: self.shared.clone(), write, answer, room };
        self.engine.send(request).await?;
        answered.await.unwrap_or_else(|_| Err(self.engine.why_closed()))
    }

    /// Why no writes are accepted, if so: the disk refused one, or the store or this space has ended. For health
    /// checks (AS-004); reads go on all the same.
    ///
    /// # Errors
    /// What [`SpaceStore::commit`] would answer.
    pub fn check(&self) -> Result<(), StoreError> {
        self.engine.check()?;
        if self.shared.removed.load(Ordering::Acquire) { Err(StoreError::Closed) } else { Ok(()) }
    }

    /// Events of `scope` with a revision above `after` (which may lie in the future), in order.
    ///
    /// # Errors
    /// [`StoreError::Compacted`] when not all of them are kept any more.
    pub fn watch(&self, scope: Scope, after: Revision) -> Result<Watch, StoreError> {
        Watch::start(self.shared.clone(), Some(scope), after)
    }

    /// Events of all collections; otherwise as [`SpaceStore::watch`]. For the space's own controllers: one
    /// watch serves them all, whatever kinds come and go.
    pub fn watch_all(&self, after: Revision) -> Result<Watch, StoreError> {
        Watch::start(self.shared.clone(), None, after)
    }
}
