//! The one who decides: checks and numbers writes, and shows them to those who do not wait for the disk.
//!
//! Whatever waits when a batch begins goes into it, whatever space it is for; the journal makes it durable.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};

use crate::hub::weight;
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
    Write {
        space: Arc<Shared>,
        pace: Pace,
        write: Write,
        answer: Answer<Arc<Entry>>,
        room: OwnedSemaphorePermit,
    },
    /// Wait for all before it.
    Settle {
        answer: Answer<()>,
    },
    Remove {
        space: Arc<Shared>,
        answer: Answer<()>,
    },
    Stop {
        answer: Option<oneshot::Sender<()>>,
    },
}

struct Waiting {
    space: Arc<Shared>,
    pace: Pace,
    write: Write,
    answer: Answer<Arc<Entry>>,
    /// Its part of the backlog, given back when it is durable.
    room: OwnedSemaphorePermit,
}

/// A space's part of a batch that is being decided.
struct Working {
    space: Arc<Shared>,
    state: State,
    events: Vec<Arc<Event>>,
    bytes: usize,
}

pub(crate) struct Committer {
    journal: Journal,
    waiting: mpsc::Receiver<Request>,
    stopping: Arc<AtomicBool>,
    failure: Arc<Mutex<Option<StoreError>>>,
}

impl Committer {
    pub(crate) fn new(
        journal: Journal,
        waiting: mpsc::Receiver<Request>,
        stopping: Arc<AtomicBool>,
        failure: Arc<Mutex<Option<StoreError>>>,
    ) -> Self {
        Self { journal, waiting, stopping, failure }
    }

    pub(crate) fn run(mut self) {
        let mut stop = None;
        while let Some(request) = self.waiting.blocking_recv() {
            if let Some(answer) = self.take(request) {
                stop = answer;
                break;
            }
            if self.stopping.load(Ordering::Acquire) && self.waiting.is_empty() {
                break;
            }
        }
        self.waiting.close();
        let mut stops = Vec::from_iter(stop);
        while let Ok(request) = self.waiting.try_recv() {
            stops.extend(self.take(request).flatten());
        }
        // Closes the file and releases the lock before anyone hears that we are done.
        self.journal.finish();
        for answer in stops {
            let _ = answer.send(());
        }
    }

    /// Handles a request and the writes queued behind it. `Some` when asked to stop.
    #[expect(clippy::option_option, reason = "asked to stop, by someone who may wait for it")]
    fn take(&mut self, request: Request) -> Option<Option<oneshot::Sender<()>>> {
        let mut batch = Vec::new();
        let mut bytes = 0;
        let mut next = Some(request);
        while let Some(request) = next.take() {
            match request {
                Request::Write { space, pace, write, answer, room } => {
                    bytes += write.size();
                    batch.push(Waiting { space, pace, write, answer, room });
                    if batch.len() < BATCH && bytes < BATCH_BYTES {
                        next = self.waiting.try_recv().ok();
                    }
                }
                Request::Settle { answer } => {
                    self.commit(std::mem::take(&mut batch));
                    self.hand_on(Batch { settled: vec![answer], ..Batch::default() });
                }
                Request::Remove { space, answer } => {
                    self.commit(std::mem::take(&mut batch));
                    space.removed.store(true, Ordering::Release);
                    if !self.journal.remove(space, answer) {
                        self.lost();
                    }
                }
                Request::Stop { answer } => {
                    self.commit(batch);
                    return Some(answer);
                }
            }
        }
        self.commit(batch);
        None
    }

    fn commit(&self, batch: Vec<Waiting>) {
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
        for part in &decided.parts {
            part.space.ahead.publish(part.state.clone(), part.events.iter().cloned(), 0);
        }
        early.into_iter().for_each(Verdict::tell);
        self.hand_on(decided);
    }

    fn hand_on(&self, batch: Batch) {
        if !self.journal.batch(batch) {
            self.lost();
        }
    }

    /// Nobody takes batches any more, which only a defect can bring about: nothing is accepted from now on.
    fn lost(&self) {
        self.failure.lock().get_or_insert(StoreError::Closed);
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
