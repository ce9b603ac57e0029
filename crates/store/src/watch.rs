//! Following a space's events.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Poll, Waker};

use crate::published::{Published, Shared};
use crate::watcher::{Next, Watcher};
use crate::{Event, ReadLevel, Revision, Scope, StoreError};

/// The events of a [`Scope`], or of the whole space, after a revision, in order, without gap or duplicate.
///
/// A reader that is slow is served from the space's ring of recent events; when the ring has moved past it,
/// the watch ends with [`StoreError::Compacted`] and the reader must list again.
#[derive(Debug)]
pub struct Watch {
    space: Arc<Shared>,
    level: ReadLevel,
    watcher: Arc<Watcher>,
    scope: Option<Scope>,
    id: u64,
}

impl Watch {
    pub(crate) fn start(
        space: Arc<Shared>,
        level: ReadLevel,
        scope: Option<Scope>,
        after: Revision,
    ) -> Result<Self, StoreError> {
        let (id, watcher) = space.at(level).hub.lock().subscribe(scope.as_ref(), after)?;
        Ok(Self { space, level, watcher, scope, id })
    }

    /// Waits for the next event. Cancel safe. After an error every further call returns the same error.
    ///
    /// # Errors
    /// The watch has ended: [`StoreError::Compacted`], [`StoreError::Closed`].
    pub async fn next(&mut self) -> Result<Arc<Event>, StoreError> {
        std::future::poll_fn(|cx| match self.take(Some(cx.waker())) {
            Ok(Some(event)) => Poll::Ready(Ok(event)),
            Ok(None) => Poll::Pending,
            Err(end) => Poll::Ready(Err(end)),
        })
        .await
    }

    /// The next event if there is one already.
    ///
    /// # Errors
    /// As for [`Watch::next`].
    pub fn try_next(&mut self) -> Result<Option<Arc<Event>>, StoreError> {
        self.take(None)
    }

    /// `Some(R)`: every event of the scope with a revision up to R has been handed out. `None`: more are
    /// waiting, or the watch has ended. For bookmarks.
    pub fn progress(&mut self) -> Option<Revision> {
        // Read before looking at the queue: what comes later is above it.
        let delivered = Revision(self.published().delivered.load(Ordering::Acquire));
        self.watcher
            .is_caught_up(|| self.published().hub.lock().refill(self.scope.as_ref(), &self.watcher))
            .then_some(delivered)
    }

    fn published(&self) -> &Published {
        self.space.at(self.level)
    }

    fn take(&mut self, waker: Option<&Waker>) -> Result<Option<Arc<Event>>, StoreError> {
        loop {
            match self.watcher.next(waker)? {
                Next::Event(event) => return Ok(Some(event)),
                Next::Idle => return Ok(None),
                Next::Behind => self.published().hub.lock().refill(self.scope.as_ref(), &self.watcher),
            }
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.published().hub.lock().unsubscribe(self.scope.as_ref(), self.id);
    }
}
