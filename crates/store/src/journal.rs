//! The way to the disk: makes batches durable in their order, then shows them.
//!
//! Whatever waits when a transaction begins goes into it, whatever space it is for: one `fsync` serves all. Meanwhile
//! others go on deciding. In a rush of writes that nobody waits for, a transaction waits a little for more of them: a page
//! that several of them touch is written once.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use crate::disk::{Change, Disk};
use crate::engine::Limits;
use crate::space::Shared;
use crate::state::State;
use crate::{Entry, Event, EventKind, StoreError};

/// Most events of one transaction (the last batch may go beyond).
const EVENTS: usize = 2048;
/// Most bytes of one transaction (the last batch may go beyond).
const BYTES: usize = 8 << 20;
/// A transaction of at least as many events tells of a rush; the next waits for company.
const RUSH: usize = 16;
/// How long it waits, when nobody waits for it.
const COMPANY: Duration = Duration::from_millis(10);
/// Recent events any space may keep, however many spaces there are.
const SHARE_MIN: usize = 128 << 10;

pub(crate) type Answer<T> = oneshot::Sender<Result<T, StoreError>>;

/// What was decided about a write, and who is to know.
pub(crate) struct Verdict {
    pub(crate) answer: Answer<Arc<Entry>>,
    pub(crate) result: Result<Arc<Entry>, StoreError>,
}

impl Verdict {
    pub(crate) fn tell(self) {
        // An error means that the writer did not wait.
        let _ = self.answer.send(self.result);
    }
}

/// A space's part of a batch.
pub(crate) struct Part {
    pub(crate) space: Arc<Shared>,
    /// With all `events`.
    pub(crate) state: Arc<State>,
    pub(crate) events: Vec<Arc<Event>>,
    /// What the events keep in memory.
    pub(crate) bytes: usize,
}

/// What was decided together.
#[derive(Default)]
pub(crate) struct Batch {
    /// At most one for each space.
    pub(crate) parts: Vec<Part>,
    /// For those who wait until what was decided, or what refused them, is durable.
    pub(crate) answers: Vec<Verdict>,
    /// For those who wait for all before.
    pub(crate) settled: Vec<Answer<()>>,
    /// The writes' parts of the backlog.
    pub(crate) rooms: Vec<OwnedSemaphorePermit>,
}

enum Job {
    Batch(Batch),
    Remove(Arc<Shared>, Answer<()>),
    Stop(Answer<()>),
}

/// The sending end. When it is dropped the thread ends by itself, later.
pub(crate) struct Journal {
    /// Bounded by the rooms of the backlog, which what is sent holds.
    jobs: mpsc::Sender<Job>,
}

impl Journal {
    /// Starts the thread. `spaces` have events, `kept` bytes of them in all.
    pub(crate) fn start(
        disk: Option<Disk>,
        failure: Arc<Mutex<Option<StoreError>>>,
        limits: Limits,
        spaces: usize,
        kept: usize,
    ) -> std::io::Result<(Self, JoinHandle<()>)> {
        let (jobs, waiting) = mpsc::channel();
        let writer = Writer { disk, failure, limits, spaces, kept, rush: false };
        let thread =
            std::thread::Builder::new().name("store-journal".into()).spawn(move || writer.run(&waiting))?;
        Ok((Self { jobs }, thread))
    }

    /// Hands a batch on. `false` when nobody is there to take it.
    pub(crate) fn batch(&self, batch: Batch) -> bool {
        self.jobs.send(Job::Batch(batch)).is_ok()
    }

    /// Removes a space behind all that was handed on before. `false` as for [`Journal::batch`].
    pub(crate) fn remove(&self, space: Arc<Shared>, answer: Answer<()>) -> bool {
        self.jobs.send(Job::Remove(space, answer)).is_ok()
    }

    /// Has everything done and the file closed before the answer.
    pub(crate) fn stop(self, answer: Answer<()>) {
        // An error means that the thread has ended: nobody is there to answer.
        let _ = self.jobs.send(Job::Stop(answer));
    }
}

struct Writer {
    disk: Option<Disk>,
    failure: Arc<Mutex<Option<StoreError>>>,
    limits: Limits,
    /// Number of spaces with events.
    spaces: usize,
    /// Bytes of recent events over all spaces.
    kept: usize,
    /// The last transaction had many events.
    rush: bool,
}

impl Writer {
    fn run(mut self, waiting: &mpsc::Receiver<Job>) {
        let mut next = waiting.recv().ok();
        while let Some(job) = next.take() {
            match job {
                Job::Batch(batch) => next = self.gather(batch, waiting),
                Job::Remove(space, answer) => {
                    let _ = answer.send(self.remove(&space));
                }
                Job::Stop(answer) => {
                    // Closes the file and releases the lock before anyone hears that we are done.
                    drop(self);
                    let _ = answer.send(Ok(()));
                    return;
                }
            }
            if next.is_none() {
                next = waiting.recv().ok();
            }
        }
    }

    /// Commits a batch with all that waits behind it. Returns what came next and was not for this transaction.
    fn gather(&mut self, first: Batch, waiting: &mpsc::Receiver<Job>) -> Option<Job> {
        let mut group = Group::default();
        group.add(first);
        let until = self.rush.then(|| Instant::now() + COMPANY);
        let mut next = None;
        while group.events < EVENTS && group.bytes < BYTES {
            match following(waiting, until.filter(|_| group.is_patient())) {
                Some(Job::Batch(batch)) => group.add(batch),
                Some(other) => {
                    next = Some(other);
                    break;
                }
                None => break,
            }
        }
        self.rush = group.events >= RUSH;
        self.commit(group);
        next
    }

    fn commit(&mut self, group: Group) {
        let Group { parts, answers, settled, rooms, .. } = group;
        let poisoned = self.failure.lock().clone();
        let done = match poisoned {
            Some(failure) => Err(failure),
            None => self.make_durable(parts.into_values().collect()),
        };
        for Verdict { answer, result } in answers {
            // Also conflicts are told only now: what they show may be of this group.
            Verdict { answer, result: done.clone().and(result) }.tell();
        }
        for answer in settled {
            let _ = answer.send(done.clone());
        }
        drop(rooms);
    }

    fn make_durable(&mut self, parts: Vec<Part>) -> Result<(), StoreError> {
        if parts.is_empty() {
            return Ok(());
        }
        let excess: Vec<usize> = parts.iter().map(|part| self.excess(part)).collect();
        if let Some(disk) = &self.disk {
            let changes = parts.iter().zip(&excess).map(|(part, &excess)| part.change(excess));
            disk.write(changes).map_err(|error| self.poison(error))?;
        }
        for (part, excess) in parts.into_iter().zip(excess) {
            let before = part.space.durable.hub.lock().ring.bytes;
            if !part.space.persisted.swap(true, Ordering::Relaxed) {
                self.spaces += 1;
            }
            part.space.publish(part.state, part.events, excess);
            let after = part.space.durable.hub.lock().ring.bytes;
            self.kept = self.kept + after - before;
        }
        Ok(())
    }

    fn excess(&self, part: &Part) -> usize {
        let share = if self.kept > self.limits.total_event_bytes {
            (self.limits.total_event_bytes / self.spaces.max(1)).max(SHARE_MIN)
        } else {
            usize::MAX
        };
        let bytes = self.limits.event_bytes.min(share);
        let hub = part.space.durable.hub.lock();
        hub.ring.excess(part.events.len(), part.bytes, self.limits.events, bytes)
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
        space.close(&StoreError::Closed);
        self.kept -= space.durable.hub.lock().ring.bytes;
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

/// The next job, if it is there already or comes until then.
fn following(waiting: &mpsc::Receiver<Job>, until: Option<Instant>) -> Option<Job> {
    waiting.try_recv().ok().or_else(|| {
        let left = until?.checked_duration_since(Instant::now())?;
        waiting.recv_timeout(left).ok()
    })
}

/// Batches that become durable together.
#[derive(Default)]
struct Group {
    parts: BTreeMap<u32, Part>,
    answers: Vec<Verdict>,
    settled: Vec<Answer<()>>,
    rooms: Vec<OwnedSemaphorePermit>,
    events: usize,
    bytes: usize,
}

impl Group {
    /// Whether nobody waits for it.
    fn is_patient(&self) -> bool {
        self.answers.is_empty() && self.settled.is_empty()
    }

    fn add(&mut self, batch: Batch) {
        for part in batch.parts {
            self.events += part.events.len();
            self.bytes += part.bytes;
            match self.parts.get_mut(&part.space.id) {
                None => {
                    self.parts.insert(part.space.id, part);
                }
                Some(before) => {
                    before.state = part.state;
                    before.events.extend(part.events);
                    before.bytes += part.bytes;
                }
            }
        }
        self.answers.extend(batch.answers);
        self.settled.extend(batch.settled);
        self.rooms.extend(batch.rooms);
    }
}

impl Part {
    /// What the disk is to do when the `excess` oldest events go.
    fn change(&self, excess: usize) -> Change<'_> {
        let hub = self.space.durable.hub.lock();
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
