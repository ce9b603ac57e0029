//! Recent events of a space.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::{Event, Revision};

/// Recent events, oldest first: all with revision above `floor`, none at or below.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ring {
    pub(crate) events: VecDeque<Arc<Event>>,
    pub(crate) floor: Revision,
    pub(crate) bytes: usize,
}

/// Approximate bytes that an event occupies in memory.
pub(crate) fn weight(event: &Event) -> usize {
    const FIXED: usize = 320;
    FIXED + event.entry.value.len()
}

impl Ring {
    pub(crate) fn push(&mut self, event: Arc<Event>) {
        self.bytes += weight(&event);
        self.events.push_back(event);
    }

    /// How many of the oldest events to drop when `added` events with `added_bytes` come. Drops in strides, because
    /// the start of the history is written to the disk each time it moves.
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

    /// How many of the oldest events are not above `revision` and have at most `bytes` together.
    pub(crate) fn count_through(&self, revision: Revision, bytes: usize) -> usize {
        let mut size = 0;
        let fits = |event: &&Arc<Event>| {
            size += weight(event);
            size <= bytes && event.entry.revision <= revision
        };
        self.events.iter().take_while(fits).count()
    }

    /// Drops the `count` oldest events. Returns them, to be freed outside of locks.
    pub(crate) fn prune(&mut self, count: usize) -> Vec<Arc<Event>> {
        let gone: Vec<_> = self.events.drain(..count.min(self.events.len())).collect();
        if let Some(last) = gone.last() {
            self.floor = last.entry.revision;
        }
        self.bytes -= gone.iter().map(|event| weight(event)).sum::<usize>();
        gone
    }

    /// Gives back the room of events that are gone.
    pub(crate) fn shrink(&mut self) {
        self.events.shrink_to(2 * self.events.len());
    }

    /// Drops the events up to `floor`. Returns them, to be freed outside of locks.
    pub(crate) fn prune_through(&mut self, floor: Revision) -> Vec<Arc<Event>> {
        self.prune(self.events.partition_point(|event| event.entry.revision <= floor))
    }

    /// The events above `revision`.
    pub(crate) fn after(&self, revision: Revision) -> impl Iterator<Item = &Arc<Event>> {
        let start = self.events.partition_point(|event| event.entry.revision <= revision);
        self.events.range(start..)
    }
}
