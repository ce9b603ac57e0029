//! What an engine shares with the handles of its spaces: submitting writes, and shutdown.

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

/// Bytes per unit of the backlog.
const BACKLOG_UNIT: usize = 1 << 10;

fn units(limits: &Limits) -> usize {
    (limits.backlog_bytes / BACKLOG_UNIT).clamp(1, u32::MAX as usize)
}

/// Least units that a write takes, so that there are at most [`Limits::backlog`] pending writes.
fn least(limits: &Limits) -> usize {
    (units(limits) / limits.backlog.max(1)).max(1)
}

pub(crate) struct Core {
    committer: Arc<Committer>,
    /// The free part of [`Limits::backlog_bytes`], in units of [`BACKLOG_UNIT`].
    backlog: Arc<Semaphore>,
    stopping: AtomicBool,
    /// Why no writes are accepted at present.
    failure: Arc<Mutex<Option<StoreError>>>,
    pub(crate) registry: Mutex<Registry>,
    /// The thread of the journal.
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
        let backlog = Semaphore::new(units(&limits));
        if thread.is_none() {
            backlog.close();
        }
        Self {
            committer,
            backlog: Arc::new(backlog),
            stopping: AtomicBool::new(false),
            failure,
            registry: Mutex::new(registry),
            thread: Mutex::new(thread),
            limits,
        }
    }

    /// Waits until the backlog has room for a write. Strictly in order, also for large writes. A write larger than the
    /// whole backlog gets all of it.
    ///
    /// # Errors
    /// The engine accepts no writes.
    pub(crate) async fn permit(&self, bytes: usize) -> Result<OwnedSemaphorePermit, StoreError> {
        let units = bytes.div_ceil(BACKLOG_UNIT).clamp(least(&self.limits), units(&self.limits));
        let units = u32::try_from(units).unwrap_or(u32::MAX);
        self.backlog.clone().acquire_many_owned(units).await.map_err(|_| self.why_closed())
    }

    pub(crate) fn failure(&self) -> Option<StoreError> {
        self.failure.lock().clone()
    }

    /// Fails while no writes are accepted, also after a panic in a decision.
    ///
    /// # Errors
    /// The reason.
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

    /// Stops accepting requests, and lets the journal end after everything accepted before.
    pub(crate) fn stop(&self, answer: Answer<()>) {
        self.stopping.store(true, Ordering::Release);
        self.committer.submit(Request::Order(Order::Stop { answer }));
    }

    pub(crate) fn why_closed(&self) -> StoreError {
        self.failure().unwrap_or(StoreError::Closed)
    }

    /// Why a write that was read ahead of the disk does not exist any more.
    pub(crate) fn why_taken_back(&self) -> StoreError {
        self.failure().unwrap_or_else(|| {
            let why = std::io::Error::other("writes that had not reached the disk were taken back");
            StoreError::Disk(Arc::new(why))
        })
    }

    /// Waits for the journal's thread, which must have been stopped, and ends all watches.
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
    /// The number of writes in the backlog if each has `size` bytes.
    pub(crate) fn committing(&self, size: usize) -> usize {
        (units(&self.limits) - self.backlog.available_permits()) / size.div_ceil(BACKLOG_UNIT)
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
