//! One space of an engine.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::oneshot;

use crate::committer::{Order, PendingWrite, Request};
use crate::core::Core;
use crate::historical_read::HistoricalRead;
use crate::published::{Published, Shared};
use crate::state::{Snapshot, View};
use crate::watch::Watch;
use crate::{Collection, Entry, Event, ReadLevel, Revision, Scope, StoreError, Write};

/// A space: its state, its history, and writes to it. Reads return durable writes, except through the handles that
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

    /// A handle of the same space that does not wait for the disk: reads and watches return writes that are not
    /// durable yet, and [`SpaceStore::commit`] returns once the write has its position in the log.
    ///
    /// All spaces of an engine share one log, in which a write comes after everything that its writer had read. So
    /// after a crash no space has an effect without its cause, as long as all effects are writes to this engine. Such
    /// handles are for components of this process that write nowhere else.
    ///
    /// When the disk refuses writes, those that are not durable are taken back: watches of such handles end with
    /// [`StoreError::Compacted`], and their readers must list again.
    #[must_use]
    pub fn ahead(&self) -> Self {
        Self { level: ReadLevel::Ahead, seen: None, ..self.clone() }
    }

    /// A handle of the same space for one write by a client that waits for the disk. The write is decided on the
    /// newest state, so that it does not conflict with writes that are not durable yet. [`SpaceStore::commit`] returns
    /// when the write is durable; call [`SpaceStore::settle`] before any other answer to the client.
    #[must_use]
    pub fn deciding(&self) -> Self {
        let rollbacks = self.shared.rollbacks.load(Ordering::SeqCst);
        let seen = Seen { revision: AtomicU64::new(0), rollbacks };
        Self { level: ReadLevel::Deciding, seen: Some(Arc::new(seen)), ..self.clone() }
    }

    /// Waits until everything that a handle of [`SpaceStore::deciding`] has read is durable. Returns at once if it is.
    ///
    /// # Errors
    /// It will never be durable: [`StoreError::ReadOnly`], [`StoreError::Disk`], [`StoreError::Closed`].
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
            let permit = self.core.permit(0).await?;
            self.core.send(Request::Order(Order::Settle { answer, permit }))?;
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

    /// The state of a collection at exactly `revision`. Costs one step per event since then. Does not block writers.
    ///
    /// # Errors
    /// [`StoreError::Compacted`] if the history since `revision` is not kept any more, [`StoreError::Future`] if the
    /// revision does not exist yet.
    pub fn collection_at(&self, collection: &Collection, revision: Revision) -> Result<View, StoreError> {
        HistoricalRead::begin(self.published(), collection, revision)?.finish()
    }

    /// The events of some collections in (`after`, `until`], in order. Visits every event of the space after `after`.
    ///
    /// # Errors
    /// [`StoreError::Compacted`] if some of them are not kept any more.
    pub fn changes(
        &self,
        collections: &[&Collection],
        after: Revision,
        until: Revision,
    ) -> Result<Vec<Arc<Event>>, StoreError> {
        self.published().hub.lock().changes(collections, after, until)
    }

    /// Commits one conditional write. On return it is durable, and [`SpaceStore::snapshot`] contains it. The write
    /// happens even if the caller stops waiting. Returns the new version; for a deletion, the last state.
    ///
    /// # Errors
    /// [`StoreError::Conflict`] has the stored version. [`StoreError::Disk`] and [`StoreError::ReadOnly`]: the disk
    /// refused, and the write has no effect. [`StoreError::Closed`].
    pub async fn commit(&self, write: Write) -> Result<Arc<Entry>, StoreError> {
        let (answer, answered) = oneshot::channel();
        let permit = self.core.permit(write.size()).await?;
        let rollbacks = self.seen.as_ref().map(|seen| seen.rollbacks);
        let waiting =
            PendingWrite { space: self.shared.clone(), level: self.level, write, rollbacks, answer, permit };
        self.core.send(Request::Write(waiting))?;
        answered.await.unwrap_or_else(|_| Err(self.core.why_closed()))
    }

    /// Fails while no writes are accepted: the disk refuses them, or the store or this space has ended. Reads
    /// continue. For health checks (AS-004).
    ///
    /// # Errors
    /// The error that [`SpaceStore::commit`] would return.
    pub fn check(&self) -> Result<(), StoreError> {
        self.core.check()?;
        if self.shared.removed.load(Ordering::Acquire) { Err(StoreError::Closed) } else { Ok(()) }
    }

    /// Events of `scope` with a revision above `after` (which may be in the future), in order.
    ///
    /// # Errors
    /// [`StoreError::Compacted`] if some of them are not kept any more.
    pub fn watch(&self, scope: Scope, after: Revision) -> Result<Watch, StoreError> {
        Watch::start(self.shared.clone(), self.level, Some(scope), after)
    }

    /// [`SpaceStore::watch`] of all collections, for the space's own controllers: one watch serves all kinds, also
    /// those that are defined later.
    ///
    /// # Errors
    /// As for [`SpaceStore::watch`].
    pub fn watch_all(&self, after: Revision) -> Result<Watch, StoreError> {
        Watch::start(self.shared.clone(), self.level, None, after)
    }
}
