//! Recent events of a space and the watchers that wait for more.
//!
//! One event costs: a push to the ring plus one push per watcher that it concerns (see [`Topics`]). An idle watcher costs
//! a few hundred bytes.

use std::collections::VecDeque;
use std::sync::Arc;
use std::task::Waker;

use parking_lot::Mutex;

use crate::state::State;
use crate::topics::Topics;
use crate::{Collection, Event, Revision, Scope, StoreError};

/// Most events looked at while a writer may be waiting for the hub.
const STRIDE: usize = 512;

/// Recent events, oldest first: all with revision above `floor`, none at or below.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ring {
    pub(crate) events: VecDeque<Arc<Event>>,
    pub(crate) floor: Revision,
    pub(crate) bytes: usize,
}

/// What an event keeps in memory, roughly.
pub(crate) fn weight(event: &Event) -> usize {
    const FIXED: usize = 320;
    FIXED + event.entry.value.len()
}

impl Ring {
    pub(crate) fn push(&mut self, event: Arc<Event>) {
        self.bytes += weight(&event);
        self.events.push_back(event);
    }

    /// How many of the oldest events to drop when `added` come with `added_bytes`. Works in strides: the start of
    /// the history is written to the disk each time it moves.
    pub(crate) fn excess(&self, added: usize, added_bytes: usize, events: usize, bytes: usize) -> usize {
        let (mut count, mut size) = (self.events.len() + added, self.bytes + added_bytes);
        if count <= events + events / 16 && size <= bytes + bytes / 16 {
            return 0;
        }
        let mut excess = 0;
        for event in &self.events {
            if count <= events && size <= bytes {
                break;
            }
            count -= 1;
            size = size.saturating_sub(weight(event));
            excess += 1;
        }
        excess
    }

    /// Drops the `count` oldest events; they are returned to be freed outside of locks.
    pub(crate) fn prune(&mut self, count: usize) -> Vec<Arc<Event>> {
        let gone: Vec<_> = self.events.drain(..count.min(self.events.len())).collect();
        if let Some(last) = gone.last() {
            self.floor = last.entry.revision;
        }
        self.bytes -= gone.iter().map(|event| weight(event)).sum::<usize>();
        gone
    }

    /// Drops the events up to `floor`; they are returned to be freed outside of locks.
    pub(crate) fn prune_through(&mut self, floor: Revision) -> Vec<Arc<Event>> {
        self.prune(self.events.partition_point(|event| event.entry.revision <= floor))
    }

    fn after(&self, revision: Revision) -> impl Iterator<Item = &Arc<Event>> {
        let start = self.events.partition_point(|event| event.entry.revision <= revision);
        self.events.range(start..)
    }
}

/// The receiving end's shared part.
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
    fn push(&self, event: &Arc<Event>, limit: usize) -> Option<Waker> {
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

    fn end(&self, why: &StoreError) {
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
pub(crate) struct Wakers(Vec<Waker>);

impl Wakers {
    pub(crate) fn wake(self) {
        self.0.into_iter().for_each(Waker::wake);
    }
}

/// History, watchers, and the state with all events that the watchers got.
#[derive(Debug)]
pub(crate) struct Hub {
    pub(crate) state: Arc<State>,
    pub(crate) ring: Ring,
    topics: Topics,
    next_id: u64,
    closed: Option<StoreError>,
    queue_limit: usize,
}

impl Hub {
    pub(crate) fn new(state: Arc<State>, ring: Ring, queue_limit: usize) -> Self {
        Self { state, ring, topics: Topics::default(), next_id: 0, closed: None, queue_limit }
    }

    /// Takes the events of one batch. `state` shows all of them.
    pub(crate) fn publish(
        &mut self,
        state: Arc<State>,
        events: impl IntoIterator<Item = Arc<Event>>,
    ) -> Wakers {
        self.state = state;
        let mut wakers = Wakers::default();
        for event in events {
            self.topics.concerned(&event, |watcher| wakers.0.extend(watcher.push(&event, self.queue_limit)));
            self.ring.push(event);
        }
        wakers
    }

    /// Replaces the state. Drops the history, which is returned to be freed outside of locks, and ends all watches.
    pub(crate) fn reset(&mut self, state: Arc<State>) -> Ring {
        let floor = state.revision;
        self.topics.each(|watcher| {
            let asked = watcher.state.lock().position.min(floor);
            watcher.end(&StoreError::Compacted { asked, oldest: floor });
        });
        self.state = state;
        std::mem::replace(&mut self.ring, Ring { floor, ..Ring::default() })
    }

    /// Ends all watches, now and in future.
    pub(crate) fn close(&mut self, why: &StoreError) {
        self.closed = Some(why.clone());
        self.topics.each(|watcher| watcher.end(why));
    }

    pub(crate) fn subscribe(
        &mut self,
        scope: Option<&Scope>,
        after: Revision,
    ) -> Result<(u64, Arc<Watcher>), StoreError> {
        if let Some(why) = &self.closed {
            return Err(why.clone());
        }
        if after < self.ring.floor {
            return Err(StoreError::Compacted { asked: after, oldest: self.ring.floor });
        }
        let state = WatcherState {
            queue: VecDeque::new(),
            position: after,
            live: after >= self.state.revision,
            waker: None,
            end: None,
        };
        let watcher = Arc::new(Watcher { state: Mutex::new(state) });
        self.next_id += 1;
        self.topics.subscribe(scope, self.next_id, watcher.clone());
        Ok((self.next_id, watcher))
    }

    pub(crate) fn unsubscribe(&mut self, scope: Option<&Scope>, id: u64) {
        self.topics.unsubscribe(scope, id);
    }

    /// Fills the queue of a watcher that is behind from the ring; at the ring's end it is live again.
    pub(crate) fn refill(&self, scope: Option<&Scope>, watcher: &Watcher) {
        let mut state = watcher.state.lock();
        if state.live || state.end.is_some() || !state.queue.is_empty() {
            return;
        }
        if state.position < self.ring.floor {
            state.end = Some(StoreError::Compacted { asked: state.position, oldest: self.ring.floor });
            return;
        }
        let wanted = |event: &&Arc<Event>| scope.is_none_or(|scope| scope.covers(event));
        let room = self.queue_limit.div_ceil(2);
        let found: VecDeque<_> = self.ring.after(state.position).filter(wanted).take(room).cloned().collect();
        state.live = found.len() < room;
        state.position = match found.back() {
            Some(last) if !state.live => last.entry.revision,
            _ => state.position.max(self.state.revision),
        };
        state.queue = found;
    }

    /// The events in (`after`, `until`] of some collections, in order. Looks at all events after `after`.
    pub(crate) fn changes(
        &self,
        collections: &[&Collection],
        after: Revision,
        until: Revision,
    ) -> Result<Vec<Arc<Event>>, StoreError> {
        if after < self.ring.floor {
            return Err(StoreError::Compacted { asked: after, oldest: self.ring.floor });
        }
        let concerned = |event: &&Arc<Event>| collections.contains(&&event.entry.key.collection);
        let until = |event: &&Arc<Event>| event.entry.revision <= until;
        Ok(self.ring.after(after).take_while(until).filter(concerned).cloned().collect())
    }

    /// The newest of the events in (`from`, `to`] that concern the collection, newest first, and the revision down to
    /// which that is all of them. Looks at no more than [`STRIDE`] events.
    pub(crate) fn events_before(
        &self,
        collection: &Collection,
        from: Revision,
        to: Revision,
    ) -> Result<(Vec<Arc<Event>>, Revision), StoreError> {
        if from < self.ring.floor {
            return Err(StoreError::Compacted { asked: from, oldest: self.ring.floor });
        }
        let end = self.ring.events.partition_point(|event| event.entry.revision <= to);
        let start = self.ring.events.partition_point(|event| event.entry.revision <= from);
        let cut = start.max(end.saturating_sub(STRIDE));
        let concerned = |event: &&Arc<Event>| event.entry.key.collection == *collection;
        let found = self.ring.events.range(cut..end).rev().filter(concerned).cloned().collect();
        let reached = match self.ring.events.get(cut) {
            Some(first) if cut > start => Revision(first.entry.revision.0 - 1),
            _ => from,
        };
        Ok((found, reached))
    }
}

#[cfg(test)]
impl Hub {
    pub(crate) fn watchers(&self) -> usize {
        self.topics.size()
    }
}
