//! When the log is compacted, and the thread that writes snapshots.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::Event;
use crate::EventKind;
use crate::log::manifest::Part;
use crate::log::snapshot::{self, SpaceImage};
use crate::log::{Log, SEGMENT_BYTES};
use crate::published::Shared;
use crate::ring::Ring;
use crate::state::State;

/// A snapshot is written when the files have more than `2.5 × needed + 32 MiB`, so that each byte written to the log
/// costs less than another 0.7 bytes for snapshots. After a while without writes: `2 × needed + 1 MiB`.
const BUSY_BYTES: u64 = if cfg!(test) { 256 << 10 } else { 32 << 20 };
const IDLE_BYTES: u64 = if cfg!(test) { 64 << 10 } else { 1 << 20 };
/// Most segments that are not full. Each start after a crash begins one.
const SEGMENTS: u64 = 32;
/// Pause after a snapshot that could not be written.
const RETRY_PAUSE: Duration = Duration::from_secs(10);
/// Approximate overhead of a version on the disk, in bytes.
const RECORD_BYTES: u64 = 200;

pub(crate) struct Compaction {
    /// Approximate size of the current state on the disk, in bytes.
    live: u64,
    running: Option<Running>,
    /// No snapshot before this time.
    after: Option<Instant>,
}

struct Running {
    cancel: Arc<AtomicBool>,
    thread: JoinHandle<io::Result<Vec<Part>>>,
}

fn weight(value: usize) -> u64 {
    value as u64 + RECORD_BYTES
}

fn size(state: &State) -> u64 {
    let entries = state.contents().flat_map(|content| content.tree.iter(None, None));
    entries.map(|entry| weight(entry.value.len())).sum()
}

impl Compaction {
    pub(crate) fn new(spaces: &[Arc<Shared>]) -> Self {
        let live = spaces.iter().map(|space| size(&space.durable.state.load())).sum();
        Self { live, running: None, after: None }
    }

    /// Counts events that were written.
    pub(crate) fn count(&mut self, events: &[Arc<Event>]) {
        for event in events {
            let gone = event.previous.as_ref().map_or(0, |previous| weight(previous.value.len()));
            self.live = self.live.saturating_sub(gone);
            if event.kind != EventKind::Deleted {
                self.live += weight(event.entry.value.len());
            }
        }
    }

    /// Subtracts a removed space.
    pub(crate) fn forget(&mut self, space: &Shared) {
        self.live = self.live.saturating_sub(size(&space.durable.state.load()));
    }

    /// Begins a snapshot if there is much to be gained. `history`: bytes of recent events.
    ///
    /// # Errors
    /// The disk refused to begin a segment.
    pub(crate) fn begin<'a>(
        &mut self,
        log: &mut Log,
        spaces: impl Iterator<Item = &'a Arc<Shared>>,
        history: usize,
        idle: bool,
    ) -> io::Result<()> {
        let resting = self.after.is_some_and(|after| Instant::now() < after);
        if self.running.is_some() || resting || !self.is_due(log, history as u64, idle) {
            return Ok(());
        }
        self.after = Some(Instant::now() + RETRY_PAUSE);
        let plan = log.begin_snapshot(spaces.map(|space| image(space)).collect())?;
        let cancel = Arc::new(AtomicBool::new(false));
        let (medium, cancelled) = (log.medium().clone(), cancel.clone());
        let work = move || snapshot::write(&plan, &*medium, &cancelled);
        let thread = std::thread::Builder::new().name("store-snapshot".into()).spawn(work)?;
        self.running = Some(Running { cancel, thread });
        Ok(())
    }

    fn is_due(&self, log: &Log, history: u64, idle: bool) -> bool {
        // An event also needs the previous version of its object, which may be in no other event.
        let needed = self.live + 2 * history;
        let bytes = log.bytes();
        let most = if idle { 2 * needed + IDLE_BYTES } else { needed * 5 / 2 + BUSY_BYTES };
        bytes > most || segments_beyond(log) > SEGMENTS
    }

    /// Waits for the snapshot that this start has begun, if there are many segments after crashes. Otherwise a process
    /// that never runs long enough to finish a snapshot would leave another segment each time.
    pub(crate) fn catch_up(&mut self, log: &mut Log) {
        if segments_beyond(log) > 2 * SEGMENTS {
            self.install(log);
        }
    }

    pub(crate) fn is_running(&self) -> bool {
        self.running.is_some()
    }

    /// Makes the snapshot current if it is complete.
    pub(crate) fn finish(&mut self, log: &mut Log) {
        if self.running.as_ref().is_some_and(|running| running.thread.is_finished()) {
            self.install(log);
        }
    }

    /// Waits for the snapshot and makes it current.
    fn install(&mut self, log: &mut Log) {
        let Some(Running { thread, .. }) = self.running.take() else { return };
        let written = thread.join().unwrap_or_else(|_| Err(io::Error::other("the thread panicked")));
        let installed = match written {
            Ok(parts) => log.install(parts),
            Err(error) => {
                log.discard_snapshot();
                Err(error)
            }
        };
        match installed {
            Ok(()) => self.after = None,
            Err(error) => {
                tracing::warn!(%error, "writing a snapshot; the log goes on without it");
                self.after = Some(Instant::now() + RETRY_PAUSE);
            }
        }
    }

    /// Stops the thread. `false` if there is none.
    pub(crate) fn cancel(&mut self) -> bool {
        let Some(Running { cancel, thread }) = self.running.take() else { return false };
        cancel.store(true, Ordering::Relaxed);
        let _ = thread.join();
        true
    }
}

/// The number of segments that are not full.
fn segments_beyond(log: &Log) -> u64 {
    (log.segments() as u64).saturating_sub(log.bytes() / SEGMENT_BYTES)
}

fn image(space: &Shared) -> SpaceImage {
    let hub = space.durable.hub.lock();
    let Ring { events, floor, .. } = &hub.ring;
    SpaceImage {
        id: space.id,
        name: space.name.clone(),
        floor: *floor,
        state: hub.state.clone(),
        events: events.iter().cloned().collect(),
    }
}
