//! The way to the disk: makes batches durable in their order, then publishes them.
//!
//! One thread. Everything that waits when a group begins goes into it, whatever space it is for: one flush serves all.
//! Deciding goes on meanwhile. In a rush of writes that no client waits for, a group waits a little for more of them, which
//! saves flushes.
//!
//! When the disk refuses a group, everything decided and not durable is refused and taken back (`Order::RollBack`). Then
//! the journal tries to reopen the log, with growing pauses and when a write is submitted, until the disk takes writes.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use crate::compaction::Compaction;
use crate::log::{Change, Log};
use crate::published::Shared;
use crate::state::State;
use crate::{Entry, Event, Limits, Revision, StoreError};

/// Most events of one group (the last batch may go beyond).
const EVENTS: usize = 2048;
/// Most bytes of one group (the last batch may go beyond).
const BYTES: usize = 8 << 20;
/// A group of at least as many events indicates a rush; the next waits for more.
const RUSH: usize = 16;
/// How long it waits, when no client waits for it.
const COMPANY: Duration = Duration::from_millis(10);
/// Recent events any space may keep, however many spaces there are.
const SHARE_MIN: usize = 128 << 10;
/// Pauses between attempts to reopen the log grow from the first to the second.
const RETRY: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));
/// After so long without a write, files that hold much more than they must are compacted.
const IDLE: Duration = Duration::from_millis(if cfg!(test) { 50 } else { 5000 });
/// Pause between two looks at a snapshot that is being written.
const FINISHED: Duration = Duration::from_millis(50);

pub(crate) type Answer<T> = oneshot::Sender<Result<T, StoreError>>;

/// What was decided about a write, and the channel to its writer.
pub(crate) struct Outcome {
    pub(crate) answer: Answer<Arc<Entry>>,
    pub(crate) result: Result<Arc<Entry>, StoreError>,
}

impl Outcome {
    pub(crate) fn send(self) {
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
    /// Sent when what was decided, or what refused it, is durable.
    pub(crate) answers: Vec<Outcome>,
    /// Sent when everything before is durable.
    pub(crate) settled: Vec<Answer<()>>,
    /// The writes' parts of the backlog.
    pub(crate) rooms: Vec<OwnedSemaphorePermit>,
}

pub(crate) enum Job {
    Batch(Batch),
    Remove(Arc<Shared>, Answer<()>),
    /// Everything that was decided before the disk refused lies before this in the queue.
    RolledBack,
    /// A write was refused because the log is not open.
    TryAgain,
    Stop(Answer<()>),
}

/// The sending end. When it is dropped the thread ends by itself, later.
pub(crate) struct Journal {
    /// Bounded by the rooms of the backlog, which what is sent holds.
    jobs: mpsc::Sender<Job>,
    /// A [`Job::TryAgain`] is in the queue.
    asked: Arc<AtomicBool>,
}

impl Journal {
    /// Starts the thread. `spaces` are those that the log knows. The thread calls `roll_back` when the disk has refused a
    /// write, so that everything is taken back that was decided and is not durable.
    ///
    /// # Errors
    /// The system starts no thread.
    pub(crate) fn start(
        log: Option<Log>,
        roll_back: Box<dyn Fn() + Send>,
        failure: Arc<Mutex<Option<StoreError>>>,
        limits: Limits,
        spaces: Vec<Arc<Shared>>,
    ) -> io::Result<(Self, JoinHandle<()>)> {
        let (jobs, waiting) = mpsc::channel();
        let asked = Arc::new(AtomicBool::new(false));
        let kept = spaces.iter().map(|space| space.durable.hub.lock().ring.bytes).sum();
        let compaction = Compaction::new(&spaces);
        let writer = Writer {
            log,
            roll_back,
            failure,
            limits,
            spaces: spaces.into_iter().map(|space| (space.id, space)).collect(),
            kept,
            rush: false,
            outage: None,
            asked: asked.clone(),
            compaction,
        };
        let thread =
            std::thread::Builder::new().name("store-journal".into()).spawn(move || writer.run(&waiting))?;
        Ok((Self { jobs, asked }, thread))
    }

    /// Hands a batch on. `false` when the thread has ended.
    pub(crate) fn batch(&self, batch: Batch) -> bool {
        self.jobs.send(Job::Batch(batch)).is_ok()
    }

    /// Removes a space behind all that was handed on before. `false` as for [`Journal::batch`].
    pub(crate) fn remove(&self, space: Arc<Shared>, answer: Answer<()>) -> bool {
        self.jobs.send(Job::Remove(space, answer)).is_ok()
    }

    /// Says that decisions begin again from what is durable. `false` as for [`Journal::batch`].
    pub(crate) fn rolled_back(&self) -> bool {
        self.jobs.send(Job::RolledBack).is_ok()
    }

    /// Has the log reopened soon, if it is not open.
    pub(crate) fn try_again(&self) {
        if !self.asked.swap(true, Ordering::AcqRel) {
            let _ = self.jobs.send(Job::TryAgain);
        }
    }

    /// Has everything done and the files closed before the answer.
    pub(crate) fn stop(self, answer: Answer<()>) {
        // An error means that the thread has ended: it does not answer.
        let _ = self.jobs.send(Job::Stop(answer));
    }
}

/// The disk refuses writes.
struct Outage {
    /// Nothing that was decided before is in the queue any more.
    rolled_back: bool,
    tried: Instant,
    pause: Duration,
}

struct Writer {
    log: Option<Log>,
    roll_back: Box<dyn Fn() + Send>,
    failure: Arc<Mutex<Option<StoreError>>>,
    limits: Limits,
    /// Those that the log knows.
    spaces: BTreeMap<u32, Arc<Shared>>,
    /// Bytes of recent events over all spaces.
    kept: usize,
    /// The last group had many events.
    rush: bool,
    outage: Option<Outage>,
    asked: Arc<AtomicBool>,
    compaction: Compaction,
}

impl Writer {
    fn run(mut self, waiting: &mpsc::Receiver<Job>) {
        let mut next = None;
        self.compact(false);
        if let Some(log) = &mut self.log {
            self.compaction.catch_up(log);
        }
        loop {
            if let Some(log) = &mut self.log {
                self.compaction.finish(log);
            }
            let job = match next.take() {
                Some(job) => job,
                None => match waiting.recv_timeout(self.pause()) {
                    Ok(job) => job,
                    Err(RecvTimeoutError::Timeout) => {
                        self.look_after();
                        continue;
                    }
                    Err(RecvTimeoutError::Disconnected) => return self.close(),
                },
            };
            match job {
                Job::Batch(batch) => next = self.gather(batch, waiting),
                Job::Remove(space, answer) => {
                    let _ = answer.send(self.remove(&space));
                }
                Job::RolledBack => {
                    if let Some(outage) = &mut self.outage {
                        outage.rolled_back = true;
                    }
                    self.reopen();
                }
                Job::TryAgain => {
                    self.asked.store(false, Ordering::Release);
                    if self.outage.as_ref().is_some_and(|outage| outage.tried.elapsed() >= RETRY.0) {
                        self.reopen();
                    }
                }
                Job::Stop(answer) => {
                    // Closes the files and releases the lock before the answer.
                    self.close();
                    let _ = answer.send(Ok(()));
                    return;
                }
            }
        }
    }

    /// How long there is nothing to do without a job.
    fn pause(&self) -> Duration {
        match &self.outage {
            _ if self.log.is_none() => Duration::MAX,
            _ if self.compaction.is_running() => FINISHED,
            Some(outage) => outage.pause.saturating_sub(outage.tried.elapsed()),
            None => IDLE,
        }
    }

    /// After a pause.
    fn look_after(&mut self) {
        match &self.outage {
            Some(outage) if outage.tried.elapsed() >= outage.pause => self.reopen(),
            None if !self.compaction.is_running() => self.compact(true),
            _ => {}
        }
    }

    fn close(mut self) {
        let Some(mut log) = self.log.take() else { return };
        if self.compaction.cancel() {
            log.discard_snapshot();
        }
        if self.outage.is_none()
            && let Err(error) = log.close()
        {
            tracing::warn!(%error, "closing the store; the next start takes it for one that was interrupted");
        }
    }

    /// Makes a batch durable with everything that waits behind it. Returns the next job that does not belong to the group.
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
        let done = match self.refusal() {
            Some(failure) => Err(failure),
            None => self.make_durable(parts.into_values().collect()),
        };
        for Outcome { answer, result } in answers {
            // Also conflicts are answered only now: they may name a version of this group.
            Outcome { answer, result: done.clone().and(result) }.send();
        }
        for answer in settled {
            let _ = answer.send(done.clone());
        }
        drop(rooms);
        self.compact(false);
    }

    /// Why what was decided before the outage is refused.
    fn refusal(&self) -> Option<StoreError> {
        self.outage.as_ref()?;
        Some(match self.failure.lock().clone() {
            Some(StoreError::ReadOnly(cause)) => StoreError::Disk(cause),
            Some(other) => other,
            None => StoreError::Closed,
        })
    }

    fn make_durable(&mut self, parts: Vec<Part>) -> Result<(), StoreError> {
        if parts.is_empty() {
            return Ok(());
        }
        let excess: Vec<usize> = parts.iter().map(|part| self.excess(part)).collect();
        if let Some(log) = &mut self.log {
            let changes = parts.iter().zip(&excess).map(|(part, &excess)| part.change(excess));
            if let Err(error) = log.append(changes) {
                return Err(self.refuse(error));
            }
        }
        for (part, excess) in parts.into_iter().zip(excess) {
            let before = part.space.durable.hub.lock().ring.bytes;
            if !part.space.persisted.swap(true, Ordering::Relaxed) {
                self.spaces.insert(part.space.id, part.space.clone());
            }
            self.compaction.count(&part.events);
            part.space.publish(part.state, part.events, excess);
            let after = part.space.durable.hub.lock().ring.bytes;
            self.kept = self.kept + after - before;
        }
        Ok(())
    }

    fn excess(&self, part: &Part) -> usize {
        let share = if self.kept > self.limits.total_event_bytes {
            (self.limits.total_event_bytes / self.spaces.len().max(1)).max(SHARE_MIN)
        } else {
            usize::MAX
        };
        let bytes = self.limits.event_bytes.min(share);
        let hub = part.space.durable.hub.lock();
        hub.ring.excess(part.events.len(), part.bytes, self.limits.events, bytes)
    }

    fn remove(&mut self, space: &Arc<Shared>) -> Result<(), StoreError> {
        let removed = match self.refusal() {
            Some(failure) => Err(failure),
            None if space.persisted.load(Ordering::Relaxed) => {
                let removed = self.log.as_mut().map_or(Ok(()), |log| log.remove(space.id));
                removed.map_err(|error| self.refuse(error))
            }
            None => Ok(()),
        };
        if removed.is_err() {
            space.removed.store(false, Ordering::Release);
            return removed;
        }
        if self.spaces.remove(&space.id).is_some() {
            self.compaction.forget(space);
        }
        space.close(&StoreError::Closed);
        self.kept -= space.durable.hub.lock().ring.bytes;
        self.compact(false);
        Ok(())
    }

    /// Makes the store read-only and has everything taken back that is not durable.
    fn refuse(&mut self, error: io::Error) -> StoreError {
        let cause = Arc::new(error);
        tracing::error!(error = %cause, "the disk refused a write; the store is read-only until it takes writes again");
        *self.failure.lock() = Some(StoreError::ReadOnly(cause.clone()));
        self.outage = Some(Outage { rolled_back: false, tried: Instant::now(), pause: RETRY.0 });
        (self.roll_back)();
        StoreError::Disk(cause)
    }

    /// Tries to end the outage.
    fn reopen(&mut self) {
        let (Some(outage), Some(log)) = (&mut self.outage, &mut self.log) else { return };
        outage.tried = Instant::now();
        if !outage.rolled_back {
            return;
        }
        match log.reopen() {
            Ok(()) => {
                tracing::info!("the disk takes writes again");
                self.outage = None;
                *self.failure.lock() = None;
            }
            Err(error) => {
                outage.pause = (outage.pause * 2).min(RETRY.1);
                *self.failure.lock() = Some(StoreError::ReadOnly(Arc::new(error)));
            }
        }
    }

    /// Begins a snapshot if the files hold much more than they must.
    fn compact(&mut self, idle: bool) {
        if self.outage.is_none()
            && let Some(log) = &mut self.log
            && let Err(error) = self.compaction.begin(log, self.spaces.values(), self.kept, idle)
        {
            // The next write tries again, and fails if the disk still refuses.
            tracing::warn!(%error, "beginning a snapshot");
        }
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
    answers: Vec<Outcome>,
    settled: Vec<Answer<()>>,
    rooms: Vec<OwnedSemaphorePermit>,
    events: usize,
    bytes: usize,
}

impl Group {
    /// Whether no client waits for it.
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
    /// What is written when the `excess` oldest events go.
    fn change(&self, excess: usize) -> Change<'_> {
        let hub = self.space.durable.hub.lock();
        let last = excess.checked_sub(1).and_then(|last| hub.ring.events.get(last));
        let floor: Revision = last.map_or(hub.ring.floor, |event| event.entry.revision);
        let describe = excess > 0 || !self.space.persisted.load(Ordering::Relaxed);
        Change {
            space: self.space.id,
            describe: describe.then_some((&*self.space.name, floor)),
            events: &self.events,
        }
    }
}
