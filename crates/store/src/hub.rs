//! Recent events of a space, and the watchers that wait for more.
//!
//! One event costs a push to the ring plus one push per watcher that it concerns (see [`Topics`]). An idle watcher
//! costs a few hundred bytes.

use std::sync::Arc;

use crate::ring::Ring;
use crate::state::State;
use crate::topics::Topics;
use crate::watcher::{Wakers, Watcher};
use crate::{Collection, Event, Revision, Scope, StoreError};

/// Most events that are visited while a writer may be waiting for the hub.
const STRIDE: usize = 512;

/// History, watchers, and the state after all events that were delivered to watchers.
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

    /// Publishes the events of one batch. `state` is the state after them.
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

    /// Replaces the state and ends all watches. Returns the history, to be freed outside of locks.
    pub(crate) fn reset(&mut self, state: Arc<State>) -> Ring {
        let floor = state.revision;
        self.topics.each(|watcher| {
            let asked = watcher.position().min(floor);
            watcher.end(&StoreError::Compacted { asked, oldest: floor });
        });
        self.state = state;
        std::mem::replace(&mut self.ring, Ring { floor, ..Ring::default() })
    }

    /// Ends all watches. New ones fail.
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
        let watcher = Arc::new(Watcher::new(after, after >= self.state.revision));
        self.next_id += 1;
        self.topics.subscribe(scope, self.next_id, watcher.clone());
        Ok((self.next_id, watcher))
    }

    pub(crate) fn unsubscribe(&mut self, scope: Option<&Scope>, id: u64) {
        self.topics.unsubscribe(scope, id);
    }

    /// Refills the queue of a watcher that is behind.
    pub(crate) fn refill(&self, scope: Option<&Scope>, watcher: &Watcher) {
        watcher.refill(&self.ring, scope, self.queue_limit.div_ceil(2), self.state.revision);
    }

    /// The events of some collections in (`after`, `until`], in order. Visits all events after `after`.
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

    /// The newest events of the collection in (`from`, `to`], newest first, and the revision down to which they are
    /// complete. Visits at most [`STRIDE`] events.
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
