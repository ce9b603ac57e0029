//! One space of an engine.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::oneshot;

use crate::committer::{Order, Request, Waiting};
use crate::core::Core;
use crate::historical_read::HistoricalRead;
use crate::published::{Published, Shared};
use crate::state::{Snapshot, View};
use crate::watch::Watch;
use crate::{Collection, Entry, Event, ReadLevel, Revision, Scope, StoreError, Write};

/// A space: its state, its history, and the way to change it. Reads return what is durable, except through the handles that
/// [`SpaceStore::ahead`] and [`SpaceStore::deciding`] return. Cloning is cheap.
#[derive(Clone, Debug)]
pub struct SpaceStore {
    pub(crate) shared: Arc<Shared>,
    pub(crate) core: Arc<Core>,
    pub(crate) level: ReadLevel,
    pub(crate) seen: Option<Arc<Seen>>,
}

/// What a `Deciding` handle has read.
#[derive(Debug)]
pub(crate) struct Seen {
    /// The newest revision.
    revision: AtomicU64,
    /// [`Shared::rollbacks`] when the handle was made.
    rollbacks: u64,
}

impl SpaceStore {
    pub fn name(&self) -> &str {
        &self.shared.name
    }

    /// The same space without waiting for the disk: reads and watches return writes that are on their way there, and
    /// [`SpaceStore::commit`] returns once the write has its place behind them.
    ///
    /// All spaces of an engine share one log, in which a write lies behind everything that its writer had read. So after
    /// a crash no space holds an effect without its cause, as long as all effects are writes to this engine. This is for
    /// readers in this process that write nowhere else, and that end with it.
    ///
    /// When the disk refuses writes, those that had not reached it are taken back: watches of such handles end with
    /// [`StoreError::Compacted`], and their readers must list again.
    #[must_use]
    pub fn ahead(&self) -> Self {
        Self { level: ReadLevel::Ahead, seen: None, ..self.clone() }
    }

    /// The same space for one write by a client that waits for the disk: the write is decided on the newest state, so
    /// that it does not lose races against writes that are on their way. [`SpaceStore::commit`] returns when the write is
    /// durable; call [`SpaceStore::settle`] before any other answer.
    #[must_use]
    pub fn deciding(&self) -> Self {
        let rollbacks = self.shared.rollbacks.load(Ordering::SeqCst);
        let seen = Seen { revision: AtomicU64::new(0), rollbacks };
        Self { level: ReadLevel::Deciding, seen: Some(Arc::new(seen)), ..self.clone() }
    }

    /// Waits until everything that a handle of [`SpaceStore::deciding`] has read is durable. Returns at once if it is.
    ///
    /// # Errors
    /// It never will be: [`StoreError::ReadOnly`], [`StoreError::Disk`], [`StoreError::Closed`].
    pub async fn settle(&self) -> Result<(), StoreError> {
        let Some(seen) = &self.seen else { return Ok(()) };
        let taken_back = || self.shared.rollbacks.load(Ordering::SeqCst) != seen.rollbacks;
        let revision = seen.revision.load(Ordering::Relaxed);
        let durable = self.shared.durable.state.load().revision.0 >= revision;
        if durable && !taken_back() {
            return Ok(());
        }
        if !taken_back() {
            let (answer, answered) = oneshot::channel();
            let room = self.core.room(0).await?;
            self.core.send(Request::Order(Order::Settle { answer, room }))?;
            answered.await.unwrap_or_else(|_| Err(self.core.why_closed()))?;
        }
        if taken_back() { Err(self.core.why_taken_back()) } else { Ok(()) }
    }

    /// Revision of the last write.
    pub fn revision(&self) -> Revision {
        self.snapshot().revision()
    }

    /// The current state. Takes no lock, copies a pointer.
    pub fn snapshot(&self) -> Snapshot {
        let state = self.published().state.load_full();
        if let Some(seen) = &self.seen {
            seen.revision.fetch_max(state.revision.0, Ordering::Relaxed);
        }
        Snapshot { state }
    }

    fn published(&self) -> &Published {
        self.shared.at(self.level)
    }

    /// The state of a collection at exactly `revision`. Costs as many steps as there were events since; does not block
    /// writers.
    ///
    /// # Errors
    /// [`StoreError::Compacted`] when the history since `revision` is not kept any more,
    /// [`StoreError::Future`] when the revision is not there yet.
    pub fn collection_at(&self, collection: &Collection, revision: Revision) -> Result<View, StoreError> {
        HistoricalRead::begin(self.published(), collection, revision)?.finish()
    }

    /// The events of some collections after one revision, up to another, in order. Costs a look at every event of the
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
        self.published().hub.lock().changes(collections, after, until)
    }

    /// Does one conditional write. It is durable, and returned by [`SpaceStore::snapshot`], when this returns. A write is
    /// done even if the caller stops waiting. Returns the new version, for a deletion the last state.
    ///
    /// # Errors
    /// [`StoreError::Conflict`] names what is stored instead. [`StoreError::Disk`] and [`StoreError::ReadOnly`]: the disk
    /// refused, the write is not done. [`StoreError::Closed`].
    pub async fn commit(&self, write: Write) -> Result<Arc<Entry>, StoreError> {
        let (answer, answered) = oneshot::channel();
        let room = self.core.room(write.size()).await?;
        let rollbacks = self.seen.as_ref().map(|seen| seen.rollbacks);
        let waiting =
            Waiting { space: self.shared.clone(), level: self.level, write, rollbacks, answer, room };
        self.core.send(Request::Write(waiting))?;
        answered.await.unwrap_or_else(|_| Err(self.core.why_closed()))
    }

    /// Fails while no writes are accepted: the disk refuses them, or the store or this space has ended. For health
    /// checks (AS-004); reads go on all the same.
    ///
    /// # Errors
    /// What [`SpaceStore::commit`] would answer.
    pub fn check(&self) -> Result<(), StoreError> {
        self.core.check()?;
        if self.shared.removed.load(Ordering::Acquire) { Err(StoreError::Closed) } else { Ok(()) }
    }

    /// Events of `scope` with a revision above `after` (which may lie in the future), in order.
    ///
    /// # Errors
    /// [`StoreError::Compacted`] when not all of them are kept any more.
    pub fn watch(&self, scope: Scope, after: Revision) -> Result<Watch, StoreError> {
        Watch::start(self.shared.clone(), self.level, Some(scope), after)
    }

    /// Events of all collections; otherwise as [`SpaceStore::watch`]. For the space's own controllers: one
    /// watch serves them all, whatever kinds come and go.
    ///
    /// # Errors
    /// As for [`SpaceStore::watch`].
    pub fn watch_all(&self, after: Revision) -> Result<Watch, StoreError> {
        Watch::start(self.shared.clone(), self.level, None, after)
    }
}
