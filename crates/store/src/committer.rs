//! The one writer: checks, numbers, makes durable, then shows.
//!
//! Whatever waits when a commit begins goes into it, whatever space it is for: one `fsync` serves all.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};

use crate::disk::{Change, Disk};
use crate::engine::Limits;
use crate::hub::weight;
use crate::space::Shared;
use crate::state::State;
use crate::{Action, Encoded, Entry, Event, EventKind, Expect, Key, Revision, StoreError, Write};

/// Most writes of one batch.
const BATCH: usize = 1024;
/// Most bytes of one batch (the last write may go beyond).
const BATCH_BYTES: usize = 8 << 20;
/// Recent events any space may keep, however many spaces there are.
const SHARE_MIN: usize = 128 << 10;

type Answer<T> = oneshot::Sender<Result<T, StoreError>>;

/// What the committer is asked to do.
pub(crate) enum Request {
    Write { space: Arc<Shared>, write: Write, answer: Answer<Arc<Entry>>, room: OwnedSemaphorePermit },
    Remove { space: Arc<Shared>, answer: Answer<()> },
    Stop { answer: Option<oneshot::Sender<()>> },
}

struct Waiting {
    space: Arc<Shared>,
    write: Write,
    answer: Answer<Arc<Entry>>,
    /// Its part of the backlog, given back when it has been answered.
    room: OwnedSemaphorePermit,
}

/// A space's part of a batch.
struct Working {
    space: Arc<Shared>,
    state: State,
    events: Vec<Arc<Event>>,
    bytes: usize,
}

pub(crate) struct Committer {
    disk: Option<Disk>,
    waiting: mpsc::Receiver<Request>,
    stopping: Arc<AtomicBool>,
    failure: Arc<Mutex<Option<StoreError>>>,
    limits: Limits,
    /// Number of spaces with events.
    spaces: usize,
    /// Bytes of recent events over all spaces.
    kept: usize,
}

impl Committer {
    pub(crate) fn new(
        disk: Option<Disk>,
        waiting: mpsc::Receiver<Request>,
        stopping: Arc<AtomicBool>,
        failure: Arc<Mutex<Option<StoreError>>>,
        limits: Limits,
        spaces: usize,
        kept: usize,
    ) -> Self {
        Self { disk, waiting, stopping, failure, limits, spaces, kept }
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
        while let Ok(request) = self.waiting.try_recv() {
            if let Some(Some(answer)) = self.take(request) {
                let _ = answer.send(());
            }
        }
        // Closes the file and releases the lock before anyone hears that we are done.
        drop(self.disk.take());
        if let Some(answer) = stop {
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
                Request::Write { space, write, answer, room } => {
                    bytes += write.size();
                    batch.push(Waiting { space, write, answer, room });
                    if batch.len() < BATCH && bytes < BATCH_BYTES {
                        next = self.waiting.try_recv().ok();
                    }
                }
                Request::Remove { space, answer } => {
                    self.commit(std::mem::take(&mut batch));
                    let _ = answer.send(self.remove(&space));
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

    fn commit(&mut self, batch: Vec<Waiting>) {
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
        let mut results = Vec::with_capacity(batch.len());
        let mut taken = Vec::with_capacity(batch.len());
        for Waiting { space, write, answer, room } in batch {
            taken.push(room);
            let result = if space.removed.load(Ordering::Acquire) {
                Err(StoreError::Closed)
            } else {
                let part = parts.entry(space.id).or_insert_with(|| Working::new(space));
                part.apply(write)
            };
            results.push((answer, result));
        }
        match self.make_durable(parts) {
            // Also conflicts are told only now: what they show may be of this batch.
            Ok(()) => {
                for (answer, result) in results {
                    let _ = answer.send(result);
                }
            }
            Err(error) => {
                for (answer, _) in results {
                    let _ = answer.send(Err(error.clone()));
                }
            }
        }
    }

    fn make_durable(&mut self, parts: BTreeMap<u32, Working>) -> Result<(), StoreError> {
        let mut changed: Vec<_> = parts.into_values().filter(|part| !part.events.is_empty()).collect();
        if changed.is_empty() {
            return Ok(());
        }
        let excess: Vec<usize> = changed.iter().map(|part| self.excess(part)).collect();
        if let Some(disk) = &self.disk {
            let changes = changed.iter().zip(&excess).map(|(part, &excess)| part.change(excess));
            disk.write(changes).map_err(|error| self.poison(error))?;
        }
        for (part, excess) in changed.drain(..).zip(excess) {
            let before = part.space.hub.lock().ring.bytes;
            if !part.space.persisted.swap(true, Ordering::Relaxed) {
                self.spaces += 1;
            }
            part.space.publish(part.state, part.events, excess);
            let after = part.space.hub.lock().ring.bytes;
            self.kept = self.kept + after - before;
        }
        Ok(())
    }

    fn excess(&self, part: &Working) -> usize {
        let share = if self.kept > self.limits.total_event_bytes {
            (self.limits.total_event_bytes / self.spaces.max(1)).max(SHARE_MIN)
        } else {
            usize::MAX
        };
        let bytes = self.limits.event_bytes.min(share);
        part.space.hub.lock().ring.excess(part.events.len(), part.bytes, self.limits.events, bytes)
    }

    fn remove(&mut self, space: &Arc<Shared>) -> Result<(), StoreError> {
        if let Some(failure) = self.failure.lock().clone() {
            return Err(failure);
        }
        if space.persisted.load(Ordering::Relaxed) {
            if let Some(disk) = &self.disk {
                disk.remove(space.id).map_err(|error| self.poison(error))?;
            }
            self.spaces -= 1;
        }
        space.removed.store(true, Ordering::Release);
        let mut hub = space.hub.lock();
        hub.close(&StoreError::Closed);
        self.kept -= hub.ring.bytes;
        Ok(())
    }

    /// After a failed write nobody knows what the disk holds, so nothing more is written until it is read again.
    fn poison(&self, error: redb::Error) -> StoreError {
        let error = Arc::new(error);
        tracing::error!(%error, "the disk refused a write; no more are accepted");
        *self.failure.lock() = Some(StoreError::Poisoned(error.clone()));
        StoreError::Disk(error)
    }
}

impl Working {
    fn new(space: Arc<Shared>) -> Self {
        let state = State::clone(&space.published.load());
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

    /// What the disk is to do when the `excess` oldest events go.
    fn change(&self, excess: usize) -> Change<'_> {
        let hub = self.space.hub.lock();
        let mut obsolete = Vec::new();
        let mut floor = hub.ring.floor;
        for event in hub.ring.events.iter().take(excess) {
            obsolete.extend(event.previous.as_ref().map(|previous| previous.revision));
            if event.kind == EventKind::Deleted {
                obsolete.push(event.entry.revision);
            }
            floor = event.entry.revision;
        }
        let describe = excess > 0 || !self.space.persisted.load(Ordering::Relaxed);
        Change {
            space: self.space.id,
            events: &self.events,
            obsolete,
            describe: describe.then_some((&*self.space.name, floor)),
        }
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
