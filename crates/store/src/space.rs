//! One space of an engine.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::committer::{Order, Request, Waiting};
use crate::engine::Inner;
use crate::hub::{Hub, Ring, Sleepers};
use crate::past::Past;
use crate::state::{Snapshot, State, View};
use crate::watch::Watch;
use crate::{Collection, Entry, Event, Pace, Revision, Scope, StoreError, Write};

/// What readers and watchers see of a space.
#[derive(Debug)]
pub(crate) struct Face {
    pub(crate) published: ArcSwap<State>,
    pub(crate) hub: Mutex<Hub>,
    /// Revision up to which watchers have got everything.
    pub(crate) delivered: AtomicU64,
}

impl Face {
    fn new(state: Arc<State>, ring: Ring, queue_limit: usize) -> Self {
        Self {
            delivered: AtomicU64::new(state.revision.0),
            published: ArcSwap::new(state.clone()),
            hub: Mutex::new(Hub::new(state, ring, queue_limit)),
        }
    }

    /// Shows a batch: first to readers, then to watchers, who are to be woken then. Drops the `pruned` oldest events.
    pub(crate) fn publish(
        &self,
        state: Arc<State>,
        events: impl IntoIterator<Item = Arc<Event>>,
        pruned: usize,
    ) -> Sleepers {
        let revision = state.revision;
        let mut hub = self.hub.lock();
        let gone = hub.ring.prune(pruned);
        let before = self.published.swap(state.clone());
        let sleepers = hub.publish(state, events);
        drop(hub);
        self.delivered.store(revision.0, Ordering::Release);
        drop((gone, before));
        sleepers
    }
}

/// What readers, watchers and writers share of a space.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) id: u32,
    pub(crate) name: Arc<str>,
    /// What is on the disk.
    pub(crate) durable: Face,
    /// What has been decided: `durable`, and the writes on their way to the disk.
    pub(crate) ahead: Face,
    /// The database knows the space. Used by the journal only.
    pub(crate) persisted: AtomicBool,
    pub(crate) removed: AtomicBool,
}

impl Shared {
    pub(crate) fn new(id: u32, name: &str, state: State, ring: Ring, queue_limit: usize) -> Self {
        let state = Arc::new(state);
        Self {
            id,
            name: name.into(),
            ahead: Face::new(state.clone(), ring.clone(), queue_limit),
            durable: Face::new(state, ring, queue_limit),
            persisted: AtomicBool::new(false),
            removed: AtomicBool::new(false),
        }
    }

    pub(crate) fn face(&self, pace: Pace) -> &Face {
        match pace {
            Pace::Durable => &self.durable,
            Pace::Deciding | Pace::Ahead => &self.ahead,
        }
    }

    /// Shows what is durable now, and forgets as much of the history on both faces.
    pub(crate) fn publish(&self, state: Arc<State>, events: Vec<Arc<Event>>, pruned: usize) {
        self.durable.publish(state, events, pruned).wake();
        if pruned > 0 {
            let floor = self.durable.hub.lock().ring.floor;
            let gone = self.ahead.hub.lock().ring.prune_through(floor);
            drop(gone);
        }
    }

    /// Ends all watches, now and in future.
    pub(crate) fn close(&self, why: &StoreError) {
        self.ahead.hub.lock().close(why);
        self.durable.hub.lock().close(why);
    }
}

/// A space: its state, its history, and the way to change it. Shows what is durable, unless it is the handle that
/// [`SpaceStore::ahead`] gives. Cloning is cheap.
#[derive(Clone, Debug)]
pub struct SpaceStore {
    pub(crate) shared: Arc<Shared>,
    pub(crate) engine: Arc<Inner>,
    pub(crate) pace: Pace,
    /// Newest revision that a `Deciding` handle has shown.
    pub(crate) seen: Option<Arc<AtomicU64>>,
}

impl SpaceStore {
    pub fn name(&self) -> &str {
        &self.shared.name
    }

    /// The same space without waiting for the disk: reads and watches show writes that are on their way there, and
    /// [`SpaceStore::commit`] returns once the write has its place behind them.
    ///
    /// All spaces of an engine share one journal, in which a write lies behind whatever its writer had seen. So after
    /// a crash no space holds an effect without its cause, as long as all effects are writes to this engine: only for
    /// readers in this process that write nowhere else, and that end with it.
    #[must_use]
    pub fn ahead(&self) -> Self {
        Self { pace: Pace::Ahead, seen: None, ..self.clone() }
    }

    /// The same space for one write by somebody who waits for the disk: it is decided on the newest state, so that it
    /// does not lose races against writes that are on their way. [`SpaceStore::commit`] returns when it is durable;
    /// before any other answer comes [`SpaceStore::settle`].
    #[must_use]
    pub fn deciding(&self) -> Self {
        Self { pace: Pace::Deciding, seen: Some(Arc::default()), ..self.clone() }
    }

    /// Waits until all that a handle of [`SpaceStore::deciding`] has shown is durable. Returns at once if it is.
    ///
    /// # Errors
    /// It never will be.
    pub async fn settle(&self) -> Result<(), StoreError> {
        let seen = self.seen.as_ref().map_or(0, |seen| seen.load(Ordering::Relaxed));
        if self.shared.durable.published.load().revision.0 >= seen {
            return Ok(());
        }
        let (answer, answered) = oneshot::channel();
        let room = self.engine.room(0).await?;
        self.engine.send(Request::Order(Order::Settle { answer, room }))?;
        answered.await.unwrap_or_else(|_| Err(self.engine.why_closed()))
    }

    /// Revision of the last write.
    pub fn revision(&self) -> Revision {
        self.snapshot().revision()
    }

    /// The current state. Takes no lock, copies a pointer.
    pub fn snapshot(&self) -> Snapshot {
        let state = self.face().published.load_full();
        if let Some(seen) = &self.seen {
            seen.fetch_max(state.revision.0, Ordering::Relaxed);
        }
        Snapshot { state }
    }

    fn face(&self) -> &Face {
        self.shared.face(self.pace)
    }

    /// The state of a collection at exactly `revision`. Costs as many steps as events happened since; writers go on
    /// meanwhile.
    ///
    /// # Errors
    /// [`StoreError::Compacted`] when the history since `revision` is not kept any more,
    /// [`StoreError::Future`] when the revision is not there yet.
    pub fn collection_at(&self, collection: &Collection, revision: Revision) -> Result<View, StoreError> {
        Past::begin(self.face(), collection, revision)?.finish()
    }

    /// What happened to some collections after one revision, up to another, in order. Cost: a look at every event of the
    /// space after `after`.
    ///
    /// # Errors
    /// [`StoreError::Compacted`] when not all of that is kept any more.
    pub fn changes(
        &self,
        collections: &[&Collection],
        after: Revision,
        until: Revision,
    ) -> Result<Vec<Arc<Event>>, StoreError> {
        self.face().hub.lock().changes(collections, after, until)
    }

    /// Does one conditional write; durable, and seen by [`SpaceStore::snapshot`], when it returns. A write is
    /// done even if the caller stops waiting. Returns the new version, for a deletion the last state.
    ///
    /// # Errors
    /// [`StoreError::Conflict`] says what is stored instead; others say that nothing can be written.
    pub async fn commit(&self, write: Write) -> Result<Arc<Entry>, StoreError> {
        let (answer, answered) = oneshot::channel();
        let room = self.engine.room(write.size()).await?;
        let waiting = Waiting { space: self.shared.clone(), pace: self.pace, write, answer, room };
        self.engine.send(Request::Write(waiting))?;
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
        Watch::start(self.shared.clone(), self.pace, Some(scope), after)
    }

    /// Events of all collections; otherwise as [`SpaceStore::watch`]. For the space's own controllers: one
    /// watch serves them all, whatever kinds come and go.
    pub fn watch_all(&self, after: Revision) -> Result<Watch, StoreError> {
        Watch::start(self.shared.clone(), self.pace, None, after)
    }
}
