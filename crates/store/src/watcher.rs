//! The queue between the hub and the reader of one watch.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::Waker;

use parking_lot::Mutex;

use crate::ring::Ring;
use crate::{Event, Revision, Scope, StoreError};

/// A watch's queue, which the hub fills and the reader empties.
#[derive(Debug)]
pub(crate) struct Watcher {
    state: Mutex<WatcherState>,
}

#[derive(Debug)]
struct WatcherState {
    queue: VecDeque<Arc<Event>>,
    /// Events up to here are not wanted, or were queued.
    position: Revision,
    /// New events go straight into the queue. Otherwise it is refilled from the ring once it is empty.
    live: bool,
    waker: Option<Waker>,
    end: Option<StoreError>,
}

/// What a watcher has for its reader.
pub(crate) enum Next {
    Event(Arc<Event>),
    /// Nothing queued, and events since the queue overflowed (or since the start) are still in the ring.
    Behind,
    /// Nothing to hand out.
    Idle,
}

impl Watcher {
    /// A watcher for events above `after`; `live` if there are none yet.
    pub(crate) fn new(after: Revision, live: bool) -> Self {
        let state = WatcherState { queue: VecDeque::new(), position: after, live, waker: None, end: None };
        Self { state: Mutex::new(state) }
    }

    /// Every event up to this revision was queued, or is not wanted.
    pub(crate) fn position(&self) -> Revision {
        self.state.lock().position
    }

    /// Fills the empty queue of a watcher that is behind with up to `room` events of the ring. At the ring's end, which is
    /// revision `newest`, the watcher is live again.
    pub(crate) fn refill(&self, ring: &Ring, scope: Option<&Scope>, room: usize, newest: Revision) {
        let mut state = self.state.lock();
        if state.live || state.end.is_some() || !state.queue.is_empty() {
            return;
        }
        if state.position < ring.floor {
            state.end = Some(StoreError::Compacted { asked: state.position, oldest: ring.floor });
            return;
        }
        let wanted = |event: &&Arc<Event>| scope.is_none_or(|scope| scope.covers(event));
        let found: VecDeque<_> = ring.after(state.position).filter(wanted).take(room).cloned().collect();
        state.live = found.len() < room;
        state.position = match found.back() {
            Some(last) if !state.live => last.entry.revision,
            _ => state.position.max(newest),
        };
        state.queue = found;
    }

    pub(crate) fn next(&self, waker: Option<&Waker>) -> Result<Next, StoreError> {
        const KEPT_CAPACITY: usize = 32;
        let mut state = self.state.lock();
        if let Some(event) = state.queue.pop_front() {
            if state.queue.is_empty() && state.queue.capacity() > KEPT_CAPACITY {
                state.queue = VecDeque::new();
            }
            return Ok(Next::Event(event));
        }
        if let Some(end) = &state.end {
            return Err(end.clone());
        }
        if !state.live {
            return Ok(Next::Behind);
        }
        if let Some(waker) = waker
            && !state.waker.as_ref().is_some_and(|known| known.will_wake(waker))
        {
            state.waker = Some(waker.clone());
        }
        Ok(Next::Idle)
    }

    /// Whether nothing is queued and new events arrive here; `refill` is called when it is behind.
    pub(crate) fn is_caught_up(&self, refill: impl FnOnce()) -> bool {
        let behind = {
            let state = self.state.lock();
            !state.live && state.queue.is_empty() && state.end.is_none()
        };
        if behind {
            refill();
        }
        let state = self.state.lock();
        state.live && state.queue.is_empty() && state.end.is_none()
    }

    /// Called for events in revision order, with the hub locked. Returns the waker of the reader, if it sleeps.
    pub(crate) fn push(&self, event: &Arc<Event>, limit: usize) -> Option<Waker> {
        let mut state = self.state.lock();
        if !state.live || event.entry.revision <= state.position {
            return None;
        }
        if state.queue.len() >= limit {
            state.live = false;
            state.position = Revision(event.entry.revision.0 - 1);
            return None;
        }
        state.queue.push_back(event.clone());
        state.waker.take()
    }

    pub(crate) fn end(&self, why: &StoreError) {
        let mut state = self.state.lock();
        state.end.get_or_insert_with(|| why.clone());
        if let Some(waker) = state.waker.take() {
            waker.wake();
        }
    }
}

/// Wakers of readers whose watch got events.
#[must_use = "the readers sleep until they are woken"]
#[derive(Debug, Default)]
pub(crate) struct Wakers(pub(crate) Vec<Waker>);

impl Wakers {
    pub(crate) fn wake(self) {
        self.0.into_iter().for_each(Waker::wake);
    }
}
