//! The engine: many spaces over one journal.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use crate::committer::{Committer, Order, Request};
use crate::disk::{Disk, Loaded};
use crate::hub::Ring;
use crate::journal::{Answer, Journal};
use crate::space::{Shared, SpaceStore};
use crate::state::State;
use crate::{Pace, StoreError};

/// Bounds on what is kept.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Recent events kept per space.
    pub events: usize,
    /// Bytes of recent events kept per space.
    pub event_bytes: usize,
    /// Bytes of recent events over all spaces. Above it a space that writes keeps no more than its share.
    pub total_event_bytes: usize,
    /// Events queued per watcher; a slower one is served from the recent events.
    pub queue: usize,
    /// Writes that are being committed; further ones wait with their callers.
    pub backlog: usize,
    /// Bytes of the writes that are being committed; further ones wait with their callers.
    pub backlog_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        const MIB: usize = 1 << 20;
        Self {
            events: 65_536,
            event_bytes: 24 * MIB,
            total_event_bytes: 192 * MIB,
            queue: 4096,
            backlog: 4096,
            backlog_bytes: 64 * MIB,
        }
    }
}

/// Bytes that a unit of the backlog stands for.
const ROOM: usize = 1 << 10;

fn units(limits: &Limits) -> usize {
    (limits.backlog_bytes / ROOM).clamp(1, u32::MAX as usize)
}

/// What the smallest write takes, so that there are no more than [`Limits::backlog`].
fn least(limits: &Limits) -> usize {
    (units(limits) / limits.backlog.max(1)).max(1)
}

/// Many spaces over one journal. Cloning is cheap; the last handle (of engine or space) to go ends its journal.
#[derive(Clone, Debug)]
pub struct Engine {
    inner: Arc<Inner>,
}

pub(crate) struct Inner {
    committer: Committer,
    /// What is left of [`Limits::backlog_bytes`], in units of [`ROOM`].
    room: Arc<Semaphore>,
    stopping: AtomicBool,
    failure: Arc<Mutex<Option<StoreError>>>,
    registry: Mutex<Registry>,
    /// The journal's.
    thread: Mutex<Option<JoinHandle<()>>>,
    limits: Limits,
}

#[derive(Default)]
struct Registry {
    spaces: BTreeMap<Arc<str>, Arc<Shared>>,
    next_id: u32,
}

impl Engine {
    /// Opens the database in `dir`, making both if absent. The directory is locked until the engine is closed.
    ///
    /// # Errors
    /// [`StoreError::Locked`], [`StoreError::Access`] or [`StoreError::Corrupt`], each naming the path.
    pub fn open(dir: &Path) -> Result<Self, StoreError> {
        Self::open_with(dir, Limits::default())
    }

    /// [`Engine::open`] with other bounds.
    pub fn open_with(dir: &Path, limits: Limits) -> Result<Self, StoreError> {
        let (disk, loaded) = Disk::open(dir)?;
        Self::start(Some(disk), loaded, limits)
    }

    /// An engine without a disk: the same in every other respect.
    pub fn in_memory() -> Self {
        Self::in_memory_with(Limits::default())
    }

    /// [`Engine::in_memory`] with other bounds.
    pub fn in_memory_with(limits: Limits) -> Self {
        match Self::start(None, Vec::new(), limits.clone()) {
            Ok(engine) => engine,
            // Only a thread that cannot be started: an engine that refuses writes and says so.
            Err(error) => Self::dead(error, limits),
        }
    }

    fn dead(error: StoreError, limits: Limits) -> Self {
        let room = Semaphore::new(0);
        room.close();
        let failure = Arc::new(Mutex::new(Some(error)));
        let inner = Inner {
            committer: Committer::new(None, failure.clone()),
            room: Arc::new(room),
            stopping: AtomicBool::new(false),
            failure,
            registry: Mutex::default(),
            thread: Mutex::default(),
            limits,
        };
        Self { inner: Arc::new(inner) }
    }

    pub(crate) fn start(disk: Option<Disk>, loaded: Vec<Loaded>, limits: Limits) -> Result<Self, StoreError> {
        let mut registry = Registry::default();
        let mut kept = 0;
        for Loaded { id, name, state, ring } in loaded {
            kept += ring.bytes;
            let shared = Shared::new(id, &name, state, ring, limits.queue);
            shared.persisted.store(true, Ordering::Relaxed);
            registry.next_id = registry.next_id.max(id + 1);
            registry.spaces.insert(shared.name.clone(), Arc::new(shared));
        }
        let failure = Arc::new(Mutex::new(None));
        let path = disk.as_ref().map(|disk| disk.path().to_owned()).unwrap_or_default();
        let spaces = registry.spaces.len();
        let (journal, thread) = Journal::start(disk, failure.clone(), limits.clone(), spaces, kept)
            .map_err(|source| StoreError::Access { path, source: Arc::new(source) })?;
        let inner = Inner {
            committer: Committer::new(Some(journal), failure.clone()),
            room: Arc::new(Semaphore::new(units(&limits))),
            stopping: AtomicBool::new(false),
            failure,
            registry: Mutex::new(registry),
            thread: Mutex::new(Some(thread)),
            limits,
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Opens the space, or creates it. A new space reaches the disk with its first write.
    pub fn space(&self, name: &str) -> Result<SpaceStore, StoreError> {
        if self.inner.stopping.load(Ordering::Acquire) {
            return Err(StoreError::Closed);
        }
        let mut registry = self.inner.registry.lock();
        let shared = match registry.spaces.get(name) {
            Some(shared) => shared.clone(),
            None => {
                let id = registry.next_id;
                registry.next_id += 1;
                let queue = self.inner.limits.queue;
                let shared = Arc::new(Shared::new(id, name, State::default(), Ring::default(), queue));
                registry.spaces.insert(shared.name.clone(), shared.clone());
                shared
            }
        };
        Ok(SpaceStore { shared, engine: self.inner.clone(), pace: Pace::Durable, seen: None })
    }

    /// Names of all spaces, in order.
    pub fn spaces(&self) -> Vec<String> {
        self.inner.registry.lock().spaces.keys().map(|name| name.to_string()).collect()
    }

    /// Removes a space with all its data. Its watches end and its handles accept no more writes. A space
    /// opened under the name afterwards starts empty. Nothing happens when there is none.
    pub async fn remove_space(&self, name: &str) -> Result<(), StoreError> {
        let Some(space) = self.inner.registry.lock().spaces.remove(name) else { return Ok(()) };
        let (answer, answered) = oneshot::channel();
        self.inner.send(Request::Order(Order::Remove { space, answer }))?;
        answered.await.unwrap_or_else(|_| Err(self.inner.why_closed()))
    }

    /// Why no writes are accepted, if so. For readiness checks.
    pub fn check(&self) -> Result<(), StoreError> {
        self.inner.check()
    }

    /// Why the disk takes no writes at present, if so. Reads go on. For `/readyz` and status displays.
    pub fn failure(&self) -> Option<StoreError> {
        self.inner.failure.lock().clone()
    }

    /// Commits what is waiting, releases the directory and ends the journal. Watches end; reads go on.
    pub async fn close(&self) -> Result<(), StoreError> {
        let (answer, answered) = oneshot::channel();
        self.inner.stop(answer);
        // An error means that it had ended before: there is nothing left to wait for.
        let _ = answered.await;
        self.inner.end();
        match self.check() {
            Err(StoreError::Closed) | Ok(()) => Ok(()),
            Err(failure) => Err(failure),
        }
    }
}

impl Inner {
    /// Waits for a write's place in the backlog. First come, first served, also for large ones; one that is larger
    /// than the whole backlog has it for itself.
    pub(crate) async fn room(&self, bytes: usize) -> Result<OwnedSemaphorePermit, StoreError> {
        let units = bytes.div_ceil(ROOM).clamp(least(&self.limits), units(&self.limits));
        let units = u32::try_from(units).unwrap_or(u32::MAX);
        self.room.clone().acquire_many_owned(units).await.map_err(|_| self.why_closed())
    }

    /// Also notices that a decision panicked.
    pub(crate) fn check(&self) -> Result<(), StoreError> {
        if let Some(failure) = &*self.failure.lock() {
            return Err(failure.clone());
        }
        let ended = self.stopping.load(Ordering::Acquire) || self.committer.is_over();
        if ended { Err(StoreError::Closed) } else { Ok(()) }
    }

    pub(crate) fn send(&self, request: Request) -> Result<(), StoreError> {
        if self.stopping.load(Ordering::Acquire) {
            return Err(self.why_closed());
        }
        self.committer.ask(request);
        Ok(())
    }

    /// Lets nothing in any more, and has the journal end behind all that is.
    fn stop(&self, answer: Answer<()>) {
        self.stopping.store(true, Ordering::Release);
        self.committer.ask(Request::Order(Order::Stop { answer }));
    }

    pub(crate) fn why_closed(&self) -> StoreError {
        self.failure.lock().clone().unwrap_or(StoreError::Closed)
    }

    /// Waits for the journal's thread, which has been told to stop, and tells the watchers.
    fn end(&self) {
        let thread = self.thread.lock().take();
        if let Some(thread) = thread
            && thread.join().is_err()
        {
            tracing::error!("the store's journal panicked");
        }
        let spaces: Vec<_> = self.registry.lock().spaces.values().cloned().collect();
        for space in spaces {
            space.close(&StoreError::Closed);
        }
    }
}

#[cfg(test)]
impl Inner {
    /// Writes that are being committed, when each takes `size` bytes.
    pub(crate) fn committing(&self, size: usize) -> usize {
        (units(&self.limits) - self.room.available_permits()) / size.div_ceil(ROOM)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let (answer, _) = oneshot::channel();
        self.stop(answer);
        self.end();
    }
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").finish_non_exhaustive()
    }
}
