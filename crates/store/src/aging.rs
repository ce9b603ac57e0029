//! Which events of the history are old.
//!
//! The history of a space serves watches that were interrupted, slow watchers and pages of lists. After some minutes nobody asks
//! for it any more: Kubernetes compacts its history every 5 minutes. So a burst of writes does not keep its memory for good.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Instant;

use crate::published::Shared;
use crate::{Limits, Revision};

/// How many times per age the spaces are looked at.
const LOOKS: u32 = 10;

/// When the spaces had which revision.
pub(crate) struct Aging {
    next: Instant,
    /// For each space, the oldest first; the first may be older than the age, the others are not. At most [`LOOKS`] + 2.
    marks: BTreeMap<u32, VecDeque<(Instant, Revision)>>,
}

impl Aging {
    pub(crate) fn new(now: Instant) -> Self {
        Self { next: now, marks: BTreeMap::new() }
    }

    pub(crate) fn is_due(&self, now: Instant) -> bool {
        now >= self.next
    }

    pub(crate) fn forget(&mut self, space: u32) {
        self.marks.remove(&space);
    }

    /// Drops the events of the spaces that are older than `limits.event_age`, as far as a space has more than
    /// `limits.young_bytes`. Returns how many bytes went. The start of the history on the disk stays, until it moves for
    /// another reason: after a restart some of these events are there again for as long.
    pub(crate) fn drop_old<'a>(
        &mut self,
        now: Instant,
        limits: &Limits,
        spaces: impl Iterator<Item = &'a Arc<Shared>>,
    ) -> usize {
        self.next = now + limits.event_age / LOOKS;
        spaces.map(|space| drop_old(self.marks.entry(space.id).or_default(), now, limits, space)).sum()
    }
}

fn drop_old(
    marks: &mut VecDeque<(Instant, Revision)>,
    now: Instant,
    limits: &Limits,
    space: &Shared,
) -> usize {
    let mut hub = space.durable.hub.lock();
    marks.push_back((now, hub.state.revision));
    let is_old = |mark: &(Instant, Revision)| now.duration_since(mark.0) >= limits.event_age;
    while marks.get(1).is_some_and(is_old) {
        marks.pop_front();
    }
    let Some((_, old)) = marks.front().copied().filter(is_old) else { return 0 };
    let before = hub.ring.bytes;
    let count = hub.ring.count_through(old, before.saturating_sub(limits.young_bytes));
    if count == 0 {
        return 0;
    }
    let gone = hub.ring.prune(count);
    hub.ring.shrink();
    let (floor, after) = (hub.ring.floor, hub.ring.bytes);
    drop(hub);
    let mut hub = space.ahead.hub.lock();
    let ahead = hub.ring.prune_through(floor);
    hub.ring.shrink();
    drop(hub);
    // Freed outside of the locks.
    drop((gone, ahead));
    before - after
}
