//! Deciding: checks and numbers writes, and shows them to those who do not wait for the disk.
//!
//! There is no thread for it. Whoever brings a request decides what waits, his own and what others bring meanwhile, unless
//! somebody is at it already, who then takes it along. So a write that need not wait for the disk wakes no other thread
//! before its watchers. The journal makes durable what was decided.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::OwnedSemaphorePermit;

use crate::hub::{Sleepers, weight};
use crate::journal::{Answer, Batch, Journal, Part, Verdict};
use crate::space::Shared;
use crate::state::State;
use crate::{Action, Encoded, Entry, Event, EventKind, Expect, Key, Pace, Revision, StoreError, Write};

/// Most writes of one batch.
const BATCH: usize = 1024;
/// Most bytes of one batch (the last write may go beyond).
const BATCH_BYTES: usize = 8 << 20;

/// What the committer is asked to do.
pub(crate) enum Request {
    Write(Waiting),
    Order(Order),
}

/// What is done in its turn, between writes.
pub(crate) enum Order {
    /// Wait for all before it.
    Settle {
        answer: Answer<()>,
        room: OwnedSemaphorePermit,
    },
    Remove {
        space: Arc<Shared>,
        answer: Answer<()>,
    },
    /// Nothing after it is done.
    Stop {
        answer: Answer<()>,
    },
}

/// A write that is to be decided.
pub(crate) struct Waiting {
    pub(crate) space: Arc<Shared>,
    pub(crate) pace: Pace,
    pub(crate) write: Write,
    pub(crate) answer: Answer<Arc<Entry>>,
    /// Its part of the backlog, given back when it is durable.
    pub(crate) room: OwnedSemaphorePermit,
}

/// A space's part of a batch that is being decided.
struct Working {
    space: Arc<Shared>,
    state: State,
    events: Vec<Arc<Event>>,
    bytes: usize,
}

pub(crate) struct Committer {
    /// Bounded by the rooms of the backlog.
    waiting: Mutex<VecDeque<Request>>,
    /// Locked by the one who decides. `None` once the store has ended, or a decision has panicked.
    journal: Mutex<Option<Journal>>,
    failure: Arc<Mutex<Option<StoreError>>>,
}

impl Committer {
    /// Without a journal everything is refused.
    pub(crate) fn new(journal: Option<Journal>, failure: Arc<Mutex<Option<StoreError>>>) -> Self {
        Self { waiting: Mutex::default(), journal: Mutex::new(journal), failure }
    }

    /// Has the request done, by this thread or by one that is at it. Waits neither for the disk nor for another thread.
    /// What cannot be done any more is dropped with its answer.
    pub(crate) fn ask(&self, request: Request) {
        self.waiting.lock().push_back(request);
        loop {
            let _turn = Turn { committer: self };
            // Whoever has the lock looks once more at what waits when he has let go of it.
            let Some(mut journal) = self.journal.try_lock() else { return };
            // Empty while a decision is on its way, so that none follows one that panicked half way.
            *journal = journal.take().and_then(|journal| self.decide_all(journal));
            if journal.is_none() {
                self.give_up();
            }
            drop(journal);
            if self.waiting.lock().is_empty() {
                return;
            }
        }
    }

    /// Whether nothing is decided any more.
    pub(crate) fn is_over(&self) -> bool {
        self.journal.try_lock().is_some_and(|journal| journal.is_none())
    }

    /// Whoever waits hears of it by the loss of his answer.
    fn give_up(&self) {
        let waiting = std::mem::take(&mut *self.waiting.lock());
        drop(waiting);
    }

    /// Decides what waits. Gives the journal back unless it was told to stop.
    fn decide_all(&self, journal: Journal) -> Option<Journal> {
        loop {
            let (writes, order) = self.gather();
            if writes.is_empty() && order.is_none() {
                return Some(journal);
            }
            self.decide(&journal, writes);
            match order {
                None => {}
                Some(Order::Settle { answer, room }) => {
                    let settled = Batch { settled: vec![answer], rooms: vec![room], ..Batch::default() };
                    self.hand_on(&journal, settled);
                }
                Some(Order::Remove { space, answer }) => {
                    space.removed.store(true, Ordering::Release);
                    if !journal.remove(space, answer) {
                        self.lost();
                    }
                }
                Some(Order::Stop { answer }) => {
                    journal.stop(answer);
                    return None;
                }
            }
        }
    }

    /// The writes of one batch, and the order that follows them.
    fn gather(&self) -> (Vec<Waiting>, Option<Order>) {
        let mut waiting = self.waiting.lock();
        let mut batch = Vec::new();
        let mut bytes = 0;
        while batch.len() < BATCH && bytes < BATCH_BYTES {
            match waiting.pop_front() {
                Some(Request::Write(write)) => {
                    bytes += write.write.size();
                    batch.push(write);
                }
                Some(Request::Order(order)) => return (batch, Some(order)),
                None => break,
            }
        }
        (batch, None)
    }

    fn decide(&self, journal: &Journal, batch: Vec<Waiting>) {
        if batch.is_empty() {
            return;
        }
        let poisoned = self.failure.lock().clone();
        if let Some(failure) = poisoned {
            for waiting in batch {
                let _ = waiting.answer.send(Err(failure.clone()));
            }
            return;
        }
        let mut parts = BTreeMap::new();
        let mut decided = Batch::default();
        let mut early = Vec::new();
        for Waiting { space, pace, write, answer, room } in batch {
            decided.rooms.push(room);
            let result = if space.removed.load(Ordering::Acquire) {
                Err(StoreError::Closed)
            } else {
                parts.entry(space.id).or_insert_with(|| Working::new(space)).apply(write)
            };
            match pace {
                Pace::Ahead => early.push(Verdict { answer, result }),
                Pace::Durable | Pace::Deciding => decided.answers.push(Verdict { answer, result }),
            }
        }
        let changed = parts.into_values().filter(|part| !part.events.is_empty());
        decided.parts = changed.map(Working::decided).collect();
        let show = |part: &Part| part.space.ahead.publish(part.state.clone(), part.events.iter().cloned(), 0);
        let sleepers: Vec<_> = decided.parts.iter().map(show).collect();
        // The journal begins before those who are woken take the processors.
        self.hand_on(journal, decided);
        early.into_iter().for_each(Verdict::tell);
        sleepers.into_iter().for_each(Sleepers::wake);
    }

    fn hand_on(&self, journal: &Journal, batch: Batch) {
        if !journal.batch(batch) {
            self.lost();
        }
    }

    /// Nobody takes batches any more, which only a defect can bring about: nothing is accepted from now on.
    fn lost(&self) {
        self.failure.lock().get_or_insert(StoreError::Closed);
    }
}

/// The time in which somebody may be deciding. Goes after the lock, so that whoever found it locked is told of a panic.
struct Turn<'a> {
    committer: &'a Committer,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.committer.lost();
            self.committer.give_up();
        }
    }
}

impl Working {
    fn new(space: Arc<Shared>) -> Self {
        let state = State::clone(&space.ahead.published.load());
        Self { space, state, events: Vec::new(), bytes: 0 }
    }

    fn apply(&mut self, write: Write) -> Result<Arc<Entry>, StoreError> {
        let actual = self.state.get(&write.key).cloned();
        let holds = match (write.expect, &actual) {
            (Expect::Absent, None) => matches!(write.action, Action::Put(_)),
            (Expect::At(expected), Some(actual)) => actual.revision == expected,
            _ => false,
        };
        if !holds {
            return Err(StoreError::Conflict { key: write.key, actual });
        }
        let revision = Revision(self.state.revision.0 + 1);
        let Some(content) = self.state.content_mut(&write.key.collection) else {
            return Err(StoreError::Conflict { key: write.key, actual });
        };
        let key = actual.as_ref().map_or(write.key, |previous| previous.key.clone());
        let (kind, entry) = match write.action {
            Action::Put(encoded) => {
                let entry = content.share(build(key, revision, encoded));
                content.tree.insert(entry.clone());
                (if actual.is_some() { EventKind::Updated } else { EventKind::Created }, entry)
            }
            Action::Delete(encoded) => {
                content.tree.remove(&key.namespace, &key.name);
                (EventKind::Deleted, Arc::new(build(key, revision, encoded)))
            }
        };
        self.state.revision = revision;
        let event = Arc::new(Event { kind, entry: entry.clone(), previous: actual });
        self.bytes += weight(&event);
        self.events.push(event);
        Ok(entry)
    }

    fn decided(self) -> Part {
        let Self { space, state, events, bytes } = self;
        Part { space, state: Arc::new(state), events, bytes }
    }
}

fn build(key: Key, revision: Revision, encoded: Encoded) -> Entry {
    let mut digits = [0_u8; 20];
    let digits = decimal(revision.0, &mut digits);
    let mut value = Vec::with_capacity(encoded.head.len() + digits.len() + encoded.tail.len());
    value.extend_from_slice(&encoded.head);
    value.extend_from_slice(digits);
    value.extend_from_slice(&encoded.tail);
    Entry { key, revision, value: Bytes::from(value.into_boxed_slice()), meta: encoded.meta }
}

fn decimal(mut number: u64, buffer: &mut [u8; 20]) -> &[u8] {
    let mut start = buffer.len();
    for (at, slot) in buffer.iter_mut().enumerate().rev() {
        *slot = b'0' + (number % 10) as u8;
        number /= 10;
        start = at;
        if number == 0 {
            break;
        }
    }
    buffer.get(start..).unwrap_or_default()
}
