//! What an engine and the handles of its spaces share: the way in for writes, and how it ends.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

use crate::committer::{Committer, Order, Request};
use crate::journal::Answer;
use crate::published::Shared;
use crate::{Limits, StoreError};

/// Bytes that a unit of the backlog stands for.
const ROOM: usize = 1 << 10;

fn units(limits: &Limits) -> usize {
    (limits.backlog_bytes / ROOM).clamp(1, u32::MAX as usize)
}

/// What the smallest write takes, so that there are no more than [`Limits::backlog`].
fn least(limits: &Limits) -> usize {
    (units(limits) / limits.backlog.max(1)).max(1)
}

pub(crate) struct Core {
    committer: Arc<Committer>,
    /// What is left of [`Limits::backlog_bytes`], in units of [`ROOM`].
    room: Arc<Semaphore>,
    stopping: AtomicBool,
    /// Why no writes are accepted at present.
    failure: Arc<Mutex<Option<StoreError>>>,
    pub(crate) registry: Mutex<Registry>,
    /// The journal's.
    thread: Mutex<Option<JoinHandle<()>>>,
    pub(crate) limits: Limits,
}

#[derive(Default)]
pub(crate) struct Registry {
    pub(crate) spaces: BTreeMap<Arc<str>, Arc<Shared>>,
    pub(crate) next_id: u32,
}

impl Core {
    pub(crate) fn new(
        committer: Arc<Committer>,
        failure: Arc<Mutex<Option<StoreError>>>,
        registry: Registry,
        thread: Option<JoinHandle<()>>,
        limits: Limits,
    ) -> Self {
        let room = Semaphore::new(units(&limits));
        if thread.is_none() {
            room.close();
        }
        Self {
            committer,
            room: Arc::new(room),
            stopping: AtomicBool::new(false),
            failure,
            registry: Mutex::new(registry),
            thread: Mutex::new(thread),
            limits,
        }
    }

    /// Waits for a write's place in the backlog. First come, first served, also for large ones; one that is larger
    /// than the whole backlog has it for itself.
    ///
    /// # Errors
    /// The engine accepts nothing.
    pub(crate) async fn room(&self, bytes: usize) -> Result<OwnedSemaphorePermit, StoreError> {
        let units = bytes.div_ceil(ROOM).clamp(least(&self.limits), units(&self.limits));
        let units = u32::try_from(units).unwrap_or(u32::MAX);
        self.room.clone().acquire_many_owned(units).await.map_err(|_| self.why_closed())
    }

    pub(crate) fn failure(&self) -> Option<StoreError> {
        self.failure.lock().clone()
    }

    /// Fails while no writes are accepted, also after a panic in a decision.
    ///
    /// # Errors
    /// Why.
    pub(crate) fn check(&self) -> Result<(), StoreError> {
        if let Some(failure) = self.failure() {
            return Err(failure);
        }
        if self.is_stopping() || self.committer.is_over() { Err(StoreError::Closed) } else { Ok(()) }
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// # Errors
    /// The engine is closed.
    pub(crate) fn send(&self, request: Request) -> Result<(), StoreError> {
        if self.is_stopping() {
            return Err(self.why_closed());
        }
        self.committer.submit(request);
        Ok(())
    }

    /// Accepts nothing any more, and has the journal end when everything accepted before is done.
    pub(crate) fn stop(&self, answer: Answer<()>) {
        self.stopping.store(true, Ordering::Release);
        self.committer.submit(Request::Order(Order::Stop { answer }));
    }

    pub(crate) fn why_closed(&self) -> StoreError {
        self.failure().unwrap_or(StoreError::Closed)
    }

    /// Why something that was read ahead of the disk is not there any more.
    pub(crate) fn why_taken_back(&self) -> StoreError {
        self.failure().unwrap_or_else(|| {
            let why = std::io::Error::other("writes that had not reached the disk were taken back");
            StoreError::Disk(Arc::new(why))
        })
    }

    /// Waits for the journal's thread, which has been stopped, and ends all watches.
    pub(crate) fn end(&self) {
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
impl Core {
    /// Writes that are being committed, when each takes `size` bytes.
    pub(crate) fn committing(&self, size: usize) -> usize {
        (units(&self.limits) - self.room.available_permits()) / size.div_ceil(ROOM)
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        let (answer, _) = oneshot::channel();
        self.stop(answer);
        self.end();
    }
}

impl fmt::Debug for Core {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Core").finish_non_exhaustive()
    }
}
