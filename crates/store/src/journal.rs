//! The journal: makes batches durable in order, then publishes them.
//!
//! It has one thread. Everything that is queued when a group begins becomes part of it, for all spaces: one flush
//! serves all. Decisions continue meanwhile. If many writes arrive and no client waits for them, a group waits shortly
//! for more, which saves flushes.
//!
//! If the disk refuses a group, everything that is decided and not durable is refused and taken back
//! (`Order::RollBack`). Then the journal tries to reopen the log, with growing pauses and when a write is submitted,
//! until the disk accepts writes.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, oneshot};

use crate::aging::Aging;
use crate::compaction::Compaction;
use crate::log::{Change, Log};
use crate::published::Shared;
use crate::state::State;
use crate::{Entry, Event, Limits, Revision, StoreError};

/// Most events of one group. The last batch may exceed it.
const EVENTS: usize = 2048;
/// Most bytes of one group. The last batch may exceed it.
const BYTES: usize = 8 << 20;
/// A group with at least this many events makes the next group wait for more.
const RUSH_EVENTS: usize = 16;
/// How long a group waits if no client waits for it.
const GROUP_WAIT: Duration = Duration::from_millis(10);
/// Bytes of recent events that every space may keep, however many spaces there are.
const MIN_SPACE_BYTES: usize = 128 << 10;
/// The first and the longest pause between attempts to reopen the log.
const RETRY: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));
/// After this time without a write, files that are much larger than needed are compacted.
const IDLE: Duration = Duration::from_millis(if cfg!(test) { 50 } else { 5000 });
/// After this time without a write, the mark of the last one is flushed.
const MARK_IDLE: Duration = Duration::from_millis(if cfg!(test) { 20 } else { 1000 });
/// Pause between two checks of a snapshot that is being written.
const FINISHED: Duration = Duration::from_millis(50);

pub(crate) type Answer<T> = oneshot::Sender<Result<T, StoreError>>;

/// The decision about a write, and the channel to its writer.
pub(crate) struct Outcome {
    pub(crate) answer: Answer<Arc<Entry>>,
    pub(crate) result: Result<Arc<Entry>, StoreError>,
}

impl Outcome {
    pub(crate) fn send(self) {
        // The writer may have stopped waiting.
        let _ = self.answer.send(self.result);
    }
}

/// A space's part of a batch.
pub(crate) struct Part {
    pub(crate) space: Arc<Shared>,
    /// With all `events`.
    pub(crate) state: Arc<State>,
    pub(crate) events: Vec<Arc<Event>>,
    /// Bytes that the events occupy in memory.
    pub(crate) bytes: usize,
}

/// Writes that were decided together.
#[derive(Default)]
pub(crate) struct Batch {
    /// At most one for each space.
    pub(crate) parts: Vec<Part>,
    /// Sent when the decided writes, or the writes that a refusal depends on, are durable.
    pub(crate) answers: Vec<Outcome>,
    /// Sent when everything decided before is durable.
    pub(crate) settled: Vec<Answer<()>>,
    /// The permits of the writes in the backlog.
    pub(crate) permits: Vec<OwnedSemaphorePermit>,
}

pub(crate) enum Job {
    Batch(Batch),
    Remove(Arc<Shared>, Answer<()>),
    /// All writes decided before the disk refused are before this in the queue.
    RolledBack,
    /// Reopen the log: a write was refused because it is not open.
    Reopen,
    Stop(Answer<()>),
}

/// The sending end. Dropping it ends the thread, later.
pub(crate) struct Journal {
    /// Bounded, because what is sent holds permits of the backlog.
    jobs: mpsc::Sender<Job>,
    /// A [`Job::Reopen`] is in the queue.
    reopen_queued: Arc<AtomicBool>,
}

impl Journal {
    /// Starts the thread. `spaces` are those that the log knows. The thread calls `roll_back` when the disk has
    /// refused a write, to take back everything that is decided and not durable.
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
        let reopen_queued = Arc::new(AtomicBool::new(false));
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
            reopen_queued: reopen_queued.clone(),
            compaction,
            aging: Aging::new(Instant::now()),
        };
        let thread =
            std::thread::Builder::new().name("store-journal".into()).spawn(move || writer.run(&waiting))?;
        Ok((Self { jobs, reopen_queued }, thread))
    }

    /// Queues a batch. `false` if the thread has ended.
    pub(crate) fn batch(&self, batch: Batch) -> bool {
        self.jobs.send(Job::Batch(batch)).is_ok()
    }

    /// Removes a space after everything queued before. `false` as for [`Journal::batch`].
    pub(crate) fn remove(&self, space: Arc<Shared>, answer: Answer<()>) -> bool {
        self.jobs.send(Job::Remove(space, answer)).is_ok()
    }

    /// Reports that decisions continue from the durable state. `false` as for [`Journal::batch`].
    pub(crate) fn rolled_back(&self) -> bool {
        self.jobs.send(Job::RolledBack).is_ok()
    }

    /// Asks to reopen the log soon, if it is not open.
    pub(crate) fn reopen_soon(&self) {
        if !self.reopen_queued.swap(true, Ordering::AcqRel) {
            let _ = self.jobs.send(Job::Reopen);
        }
    }

    /// Finishes everything and closes the files before it answers.
    pub(crate) fn stop(self, answer: Answer<()>) {
        // If the thread has ended, it does not answer.
        let _ = self.jobs.send(Job::Stop(answer));
    }
}

/// The period in which the disk refuses writes.
struct Outage {
    /// The queue has no more writes that were decided before.
    rolled_back: bool,
    tried: Instant,
    pause: Duration,
}

struct Writer {
    log: Option<Log>,
    roll_back: Box<dyn Fn() + Send>,
    failure: Arc<Mutex<Option<StoreError>>>,
    limits: Limits,
    /// Spaces that the log knows.
    spaces: BTreeMap<u32, Arc<Shared>>,
    /// Bytes of recent events over all spaces.
    kept: usize,
    /// The last group had many events.
    rush: bool,
    outage: Option<Outage>,
    reopen_queued: Arc<AtomicBool>,
    compaction: Compaction,
    aging: Aging,
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
            self.drop_old_events();
            let job = match next.take() {
                Some(job) => job,
                None => match waiting.recv_timeout(self.pause()) {
                    Ok(job) => job,
                    Err(RecvTimeoutError::Timeout) => {
                        self.work_between_jobs();
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
                Job::Reopen => {
                    self.reopen_queued.store(false, Ordering::Release);
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

    /// How long to wait for a job.
    fn pause(&self) -> Duration {
        match &self.outage {
            _ if self.log.is_none() => Duration::MAX,
            _ if self.compaction.is_running() => FINISHED,
            Some(outage) => outage.pause.saturating_sub(outage.tried.elapsed()),
            None if self.log.as_ref().is_some_and(Log::mark_is_unflushed) => MARK_IDLE,
            None => IDLE,
        }
    }

    /// Work between jobs.
    fn work_between_jobs(&mut self) {
        match &self.outage {
            Some(outage) if outage.tried.elapsed() >= outage.pause => self.reopen(),
            None if let Some(log) = self.log.as_mut().filter(|log| log.mark_is_unflushed()) => {
                log.flush_mark();
            }
            None if !self.compaction.is_running() => self.compact(true),
            _ => {}
        }
    }

    fn drop_old_events(&mut self) {
        let now = Instant::now();
        if self.aging.is_due(now) {
            self.kept -= self.aging.drop_old(now, &self.limits, self.spaces.values());
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

    /// Makes a batch durable, with everything queued behind it. Returns the next job that does not belong to the
    /// group.
    fn gather(&mut self, first: Batch, waiting: &mpsc::Receiver<Job>) -> Option<Job> {
        let mut group = Group::default();
        group.add(first);
        let until = self.rush.then(|| Instant::now() + GROUP_WAIT);
        let mut next = None;
        while group.events < EVENTS && group.bytes < BYTES {
            match next_job(waiting, until.filter(|_| group.no_client_waits())) {
                Some(Job::Batch(batch)) => group.add(batch),
                Some(other) => {
                    next = Some(other);
                    break;
                }
                None => break,
            }
        }
        self.rush = group.events >= RUSH_EVENTS;
        self.commit(group);
        next
    }

    fn commit(&mut self, group: Group) {
        let Group { parts, answers, settled, permits, .. } = group;
        let done = match self.refusal() {
            Some(failure) => Err(failure),
            None => self.make_durable(parts.into_values().collect()),
        };
        for Outcome { answer, result } in answers {
            // Conflicts are answered now as well, because they may name a version of this group.
            Outcome { answer, result: done.clone().and(result) }.send();
        }
        for answer in settled {
            let _ = answer.send(done.clone());
        }
        drop(permits);
        self.compact(false);
    }

    /// Why writes that were decided before the outage are refused.
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
            (self.limits.total_event_bytes / self.spaces.len().max(1)).max(MIN_SPACE_BYTES)
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
            self.aging.forget(space.id);
            self.compaction.forget(space);
        }
        space.close(&StoreError::Closed);
        self.kept -= space.durable.hub.lock().ring.bytes;
        self.compact(false);
        Ok(())
    }

    /// Makes the store read-only and takes back everything that is not durable.
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

    /// Begins a snapshot if the files are much larger than needed.
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

/// The next job, if one is queued or arrives until then.
fn next_job(waiting: &mpsc::Receiver<Job>, until: Option<Instant>) -> Option<Job> {
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
    permits: Vec<OwnedSemaphorePermit>,
    events: usize,
    bytes: usize,
}

impl Group {
    /// Whether no client waits for it.
    fn no_client_waits(&self) -> bool {
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
        self.permits.extend(batch.permits);
    }
}

impl Part {
    /// The change to write if the `excess` oldest events are dropped.
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
