//! Commit decisions: checks preconditions, assigns revisions, and publishes writes to readers that do not wait for the
//! disk.
//!
//! Flat combining: the first thread to submit a request becomes the committer and also processes every request
//! submitted while it works. Later submitters only wait for their answer. So a write that need not wait for the disk
//! wakes no other thread before its watchers. The [`Journal`] makes decided writes durable.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::OwnedSemaphorePermit;

use crate::journal::{Answer, Batch, Journal, Outcome, Part};
use crate::published::Shared;
use crate::ring::weight;
use crate::state::State;
use crate::watcher::Wakers;
use crate::{Action, Encoded, Entry, Event, EventKind, Expect, Key, ReadLevel, Revision, StoreError, Write};

/// Most writes of one batch.
const BATCH: usize = 1024;
/// Most bytes of one batch. The last write may exceed it.
const BATCH_BYTES: usize = 8 << 20;

/// A request to the committer.
pub(crate) enum Request {
    Write(PendingWrite),
    Order(Order),
}

/// A request other than a write. It is processed in order with the writes.
pub(crate) enum Order {
    /// Answers when everything decided before is durable.
    Settle {
        answer: Answer<()>,
        permit: OwnedSemaphorePermit,
    },
    Remove {
        space: Arc<Shared>,
        answer: Answer<()>,
    },
    /// Takes back decided writes that are not durable, because the disk refused them.
    RollBack,
    /// Ends the committer. Later requests are dropped.
    Stop {
        answer: Answer<()>,
    },
}

/// A write that waits for its decision.
pub(crate) struct PendingWrite {
    pub(crate) space: Arc<Shared>,
    pub(crate) level: ReadLevel,
    pub(crate) write: Write,
    /// The value of [`Shared::rollbacks`] that the writer knows, if the write may depend on reads ahead of the disk.
    pub(crate) rollbacks: Option<u64>,
    pub(crate) answer: Answer<Arc<Entry>>,
    /// The write's part of the backlog, released when the write is durable.
    pub(crate) permit: OwnedSemaphorePermit,
}

/// One space's part of the batch that is being decided.
struct PendingPart {
    space: Arc<Shared>,
    state: State,
    events: Vec<Arc<Event>>,
    bytes: usize,
}

pub(crate) struct Committer {
    /// Bounded by the permits of the backlog.
    waiting: Mutex<VecDeque<Request>>,
    /// Locked by the deciding thread. `None` before the start, after the store has ended, and after a panic.
    deciding: Mutex<Option<Deciding>>,
    failure: Arc<Mutex<Option<StoreError>>>,
}

/// State of the deciding thread.
struct Deciding {
    journal: Journal,
    /// Spaces with decided writes that may not be durable yet.
    touched: BTreeMap<u32, Weak<Shared>>,
}

impl Committer {
    /// A committer that drops all requests until [`Committer::start`].
    pub(crate) fn new(failure: Arc<Mutex<Option<StoreError>>>) -> Arc<Self> {
        Arc::new(Self { waiting: Mutex::default(), deciding: Mutex::default(), failure })
    }

    pub(crate) fn start(&self, journal: Journal) {
        *self.deciding.lock() = Some(Deciding { journal, touched: BTreeMap::new() });
    }

    /// Submits a request, which this thread or the deciding thread processes. Waits neither for the disk nor for
    /// another thread. A request that cannot be processed is dropped, which drops its answer channel.
    pub(crate) fn submit(&self, request: Request) {
        self.waiting.lock().push_back(request);
        loop {
            let _turn = Turn { committer: self };
            // The deciding thread checks the queue again after it has released the lock.
            let Some(mut deciding) = self.deciding.try_lock() else { return };
            // `None` during a decision, so that no decision follows one that panicked half way.
            *deciding = deciding.take().and_then(|deciding| self.decide_all(deciding));
            if deciding.is_none() {
                self.drop_requests();
            }
            drop(deciding);
            if self.waiting.lock().is_empty() {
                return;
            }
        }
    }

    /// Whether the committer has ended.
    pub(crate) fn is_over(&self) -> bool {
        self.deciding.try_lock().is_some_and(|deciding| deciding.is_none())
    }

    /// Drops all requests. The submitters notice because their answer channels are dropped.
    fn drop_requests(&self) {
        let waiting = std::mem::take(&mut *self.waiting.lock());
        drop(waiting);
    }

    /// Processes the queue. `None` after [`Order::Stop`].
    fn decide_all(&self, mut deciding: Deciding) -> Option<Deciding> {
        loop {
            let (writes, order) = self.gather();
            if writes.is_empty() && order.is_none() {
                return Some(deciding);
            }
            self.decide(&mut deciding, writes);
            match order {
                None => {}
                Some(Order::Settle { answer, permit }) => {
                    let settled = Batch { settled: vec![answer], permits: vec![permit], ..Batch::default() };
                    self.send_to_journal(&deciding.journal, settled);
                }
                Some(Order::Remove { space, answer }) => self.remove(&mut deciding, space, answer),
                Some(Order::RollBack) => {
                    for space in std::mem::take(&mut deciding.touched).into_values() {
                        // A space whose handle is gone was removed.
                        if let Some(space) = space.upgrade() {
                            space.roll_back();
                        }
                    }
                    if !deciding.journal.rolled_back() {
                        self.journal_died();
                    }
                }
                Some(Order::Stop { answer }) => {
                    deciding.journal.stop(answer);
                    return None;
                }
            }
        }
    }

    fn remove(&self, deciding: &mut Deciding, space: Arc<Shared>, answer: Answer<()>) {
        if let Some(failure) = self.refused(&deciding.journal) {
            let _ = answer.send(Err(failure));
            return;
        }
        space.removed.store(true, Ordering::Release);
        if !deciding.journal.remove(space, answer) {
            self.journal_died();
        }
    }

    /// Why the disk accepts no writes at present. Also asks the journal to reopen the log.
    fn refused(&self, journal: &Journal) -> Option<StoreError> {
        let failure = self.failure.lock().clone()?;
        journal.reopen_soon();
        Some(failure)
    }

    /// The writes of one batch, and the other request that ends the batch.
    fn gather(&self) -> (Vec<PendingWrite>, Option<Order>) {
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

    fn decide(&self, deciding: &mut Deciding, batch: Vec<PendingWrite>) {
        if batch.is_empty() {
            return;
        }
        if let Some(failure) = self.refused(&deciding.journal) {
            for waiting in batch {
                let _ = waiting.answer.send(Err(failure.clone()));
            }
            return;
        }
        let mut parts = BTreeMap::new();
        let mut decided = Batch::default();
        let mut early = Vec::new();
        for PendingWrite { space, level, write, rollbacks, answer, permit } in batch {
            decided.permits.push(permit);
            let taken_back = rollbacks.is_some_and(|known| known != space.rollbacks.load(Ordering::SeqCst));
            let result = if space.removed.load(Ordering::Acquire) {
                Err(StoreError::Closed)
            } else if taken_back {
                let why = std::io::Error::other(
                    "what the write rests on had not reached the disk and was taken back",
                );
                Err(StoreError::Disk(Arc::new(why)))
            } else {
                parts.entry(space.id).or_insert_with(|| PendingPart::new(space)).apply(write)
            };
            match level {
                ReadLevel::Ahead => early.push(Outcome { answer, result }),
                ReadLevel::Durable | ReadLevel::Deciding => decided.answers.push(Outcome { answer, result }),
            }
        }
        let changed = parts.into_values().filter(|part| !part.events.is_empty());
        decided.parts = changed.map(PendingPart::decided).collect();
        for part in &decided.parts {
            deciding.touched.entry(part.space.id).or_insert_with(|| Arc::downgrade(&part.space));
        }
        let publish =
            |part: &Part| part.space.ahead.publish(part.state.clone(), part.events.iter().cloned(), 0);
        let wakers: Vec<_> = decided.parts.iter().map(publish).collect();
        // Sent before the readers are woken, so that the journal starts first.
        self.send_to_journal(&deciding.journal, decided);
        early.into_iter().for_each(Outcome::send);
        wakers.into_iter().for_each(Wakers::wake);
    }

    fn send_to_journal(&self, journal: &Journal, batch: Batch) {
        if !journal.batch(batch) {
            self.journal_died();
        }
    }

    /// The journal's thread has ended, which only a bug can cause. From now on nothing is accepted.
    fn journal_died(&self) {
        self.failure.lock().get_or_insert(StoreError::Closed);
    }
}

/// Covers the time in which this thread may be deciding. Dropped after the lock, so that a submitter that found the
/// lock taken learns about a panic.
struct Turn<'a> {
    committer: &'a Committer,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.committer.journal_died();
            self.committer.drop_requests();
        }
    }
}

impl PendingPart {
    fn new(space: Arc<Shared>) -> Self {
        let state = State::clone(&space.ahead.state.load());
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
