//! Decides the order in which items are processed (MC-033 to MC-036, MC-072). Pure: time is an argument.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    time::Duration,
};

use runtime::backoff::{exponential, moment};
use tokio::time::Instant;

use crate::rate_limit::RateLimit;

/// The lane in which an item waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Lane {
    /// Items that changed.
    Fresh,
    /// Items that are processed although nothing about them changed.
    Bulk,
    /// Items that failed.
    Retry,
}

/// Back-off of failed items: 250 ms doubling to 60 s, plus or minus a tenth (MC-072).
const RETRY: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(60));

/// Entries of a lane that may be obsolete, besides those that count.
const SLACK: usize = 64;

/// Most states that are recorded one by one during a run.
const MAX_PENDING_STATES: usize = 64;

/// How a run of an item ended.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Outcome {
    /// Success; the item may have to run again after a while.
    Done { again_after: Option<Duration> },
    /// Failure; the item runs again after its back-off.
    Failed,
    /// The hook asked to be called again after this pause, which is not a failure (MC-073).
    RunAfter(Duration),
    /// The item must run again at once, because its inputs changed during the run (MC-045).
    Stale,
    /// Forget the item.
    Forget,
}

/// Items in three lanes, each item once. Only one worker at a time gets an item. An item that is added while
/// it runs comes again afterwards.
///
/// Failed items hold at most half of the slots (rounded up). Failed and bulk items together hold no more than
/// that while fresh items wait; with a single slot they take turns. So hanging items cannot starve healthy
/// ones (MC-035).
///
/// Adding and taking cost O(log n) at most; memory is one entry per known item.
#[derive(Debug)]
pub struct Lanes<K, S = ()> {
    slots: usize,
    fresh: VecDeque<K>,
    bulk: VecDeque<K>,
    /// Items whose back-off or timer ends, by time and sequence number.
    timed: BTreeMap<(Instant, u64), K>,
    ripe: VecDeque<K>,
    items: BTreeMap<K, Item<S>>,
    sequence: u64,
    running: [usize; 3],
    favour_slow: bool,
    turn: bool,
    /// Counters for the metrics.
    pub counts: Counts,
}

/// The counters since the start.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    /// Items put into a lane.
    pub adds: u64,
    /// Items that were retried after a failure.
    pub retries: u64,
}

#[derive(Debug)]
struct Item<S> {
    waits: Option<Wait>,
    runs: Option<Run<S>>,
    failures: u32,
    /// The timer of `resyncAfterSeconds`.
    timer: Option<(Instant, u64)>,
    /// When the item began to wait for a slot, for the metrics.
    since: Option<Instant>,
    /// Limits how often runs of the item may cause the next run.
    rate_limit: Option<RateLimit>,
}

impl<S> Default for Item<S> {
    fn default() -> Self {
        Self { waits: None, runs: None, failures: 0, timer: None, since: None, rate_limit: None }
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Wait {
    Fresh,
    Bulk,
    /// In back-off until then.
    Paused((Instant, u64)),
    /// The back-off is over.
    Ripe,
}

#[derive(Debug)]
struct Run<S> {
    lane: Lane,
    holds_slot: bool,
    dirty: bool,
    /// How long the item waited for its slot.
    waited: Duration,
    /// States that were reported during the run. The end of the run decides which of them the run did not
    /// know.
    pending_states: Vec<S>,
}

impl<K: Clone + Ord, S: PartialEq> Lanes<K, S> {
    /// Empty lanes for `slots` workers.
    pub fn new(slots: usize) -> Self {
        Self {
            slots: slots.max(1),
            fresh: VecDeque::new(),
            bulk: VecDeque::new(),
            timed: BTreeMap::new(),
            ripe: VecDeque::new(),
            items: BTreeMap::new(),
            sequence: 0,
            running: [0; 3],
            favour_slow: false,
            turn: false,
            counts: Counts::default(),
        }
    }

    /// Adds an item that changed. It is eligible at once, even after a failure; its failure count stays
    /// (MC-072).
    pub fn add(&mut self, key: K) {
        let item = self.items.entry(key.clone()).or_default();
        if let Some(run) = &mut item.runs {
            run.dirty = true;
            return;
        }
        match item.waits {
            Some(Wait::Fresh) => return,
            Some(Wait::Paused(slot)) => drop(self.timed.remove(&slot)),
            _ => {}
        }
        item.waits = Some(Wait::Fresh);
        item.since.get_or_insert_with(Instant::now);
        self.fresh.push_back(key);
        self.counts.adds += 1;
    }

    /// Adds an item because an object has a new state. While the item runs, this counts only if the run turns
    /// out not to know the state (see [`end_knowing`](Self::end_knowing)). So the hook is not called again
    /// for a change that its own last response caused (MC-037).
    pub fn add_for_state(&mut self, key: K, state: S) {
        match self.items.get_mut(&key).and_then(|item| item.runs.as_mut()) {
            // An object that changes this often certainly has a state that the run does not know.
            Some(run) if run.pending_states.len() >= MAX_PENDING_STATES => run.dirty = true,
            Some(run) => run.pending_states.push(state),
            None => self.add(key),
        }
    }

    /// Adds an item to be processed when there is time. An item that waits already keeps its position.
    pub fn add_bulk(&mut self, key: K) {
        let item = self.items.entry(key.clone()).or_default();
        if let Some(run) = &mut item.runs {
            run.dirty = true;
            return;
        }
        match item.waits {
            Some(Wait::Paused(slot)) => drop(self.timed.remove(&slot)),
            Some(_) => return,
            None => {}
        }
        item.waits = Some(Wait::Bulk);
        item.since.get_or_insert_with(Instant::now);
        self.bulk.push_back(key);
        self.counts.adds += 1;
    }

    /// Adds an item for its periodic run; does nothing if the item waits or runs (MC-036).
    pub fn resync(&mut self, key: K) {
        let idle = self.items.get(&key).is_none_or(|item| item.waits.is_none() && item.runs.is_none());
        if idle {
            self.add_bulk(key);
        }
    }

    /// Returns the next item for which there is a slot.
    pub fn take(&mut self, now: Instant) -> Option<K> {
        self.end_pauses(now);
        if self.running.iter().sum::<usize>() >= self.slots {
            return None;
        }
        let lane = self.choose()?;
        let key = self.pop(lane)?;
        if let Some(item) = self.items.get_mut(&key) {
            item.waits = None;
            let since = item.since.take();
            let waited = since.map(|since| now.saturating_duration_since(since)).unwrap_or_default();
            item.runs =
                Some(Run { lane, holds_slot: true, dirty: false, waited, pending_states: Vec::new() });
            if let Some(timer) = item.timer.take() {
                self.timed.remove(&timer);
            }
        }
        self.running[lane as usize] += 1;
        self.favour_slow = lane == Lane::Fresh;
        Some(key)
    }

    /// How long a running item waited for its slot.
    pub fn waited(&self, key: &K) -> Duration {
        self.items.get(key).and_then(|item| item.runs.as_ref()).map(|run| run.waited).unwrap_or_default()
    }

    /// The time when [`take`](Self::take) may return more items although nothing is added.
    pub fn deadline(&self) -> Option<Instant> {
        self.timed.keys().next().map(|(at, _)| *at)
    }

    /// Returns the slot of an item while no other worker may get the item yet.
    pub fn release(&mut self, key: &K) {
        if let Some(run) = self.items.get_mut(key).and_then(|item| item.runs.as_mut()) {
            free(&mut self.running, run);
        }
    }

    /// Ends the run of an item; `jitter` is from 0 to 1.
    pub fn end(&mut self, key: &K, outcome: Outcome, now: Instant, jitter: f64) {
        self.end_knowing(key, outcome, &[], now, jitter);
    }

    /// Ends the run of an item that knew these states, from its request or from its own writes.
    pub fn end_knowing(&mut self, key: &K, outcome: Outcome, known: &[S], now: Instant, jitter: f64) {
        let Some(item) = self.items.get_mut(key) else { return };
        let Some(mut run) = item.runs.take() else { return };
        free(&mut self.running, &mut run);
        run.dirty |= run.pending_states.iter().any(|state| !known.contains(state));
        self.sequence += 1;
        let sequence = self.sequence;
        let mut pause = None;
        match outcome {
            Outcome::Done { again_after } => {
                item.failures = 0;
                if let Some(after) = again_after {
                    let slot = (moment(now, after), sequence);
                    item.timer = Some(slot);
                    self.timed.insert(slot, key.clone());
                }
            }
            Outcome::Failed => {
                let full = exponential(RETRY.0, RETRY.1, item.failures);
                item.failures = item.failures.saturating_add(1);
                pause = Some(full.mul_f64(0.9 + 0.2 * jitter.clamp(0.0, 1.0)));
                self.counts.retries += 1;
            }
            Outcome::RunAfter(after) => pause = Some(after),
            Outcome::Stale => run.dirty = true,
            Outcome::Forget if run.dirty => {}
            Outcome::Forget => {
                self.items.remove(key);
                return;
            }
        }
        if run.dirty {
            // A hook that never returns the same answer twice brings its item back with its own writes,
            // without end.
            let braked = item.rate_limit.get_or_insert_with(|| RateLimit::new(now)).reserve(now);
            // A change ends the back-off, but not of an item that changes so often that it is braked (MC-072).
            pause = braked.map(|braked| pause.map_or(braked, |backoff| backoff.max(braked)));
        }
        if run.dirty && pause.is_none() {
            self.add(key.clone());
        } else if let Some(pause) = pause {
            let slot = (moment(now, pause), sequence);
            if let Some(item) = self.items.get_mut(key) {
                item.waits = Some(Wait::Paused(slot));
            }
            self.timed.insert(slot, key.clone());
        }
    }

    /// Forgets the items from `first` on for which `gone` holds, up to the first for which it does not
    /// (MC-092). A running item is forgotten at its end, unless it is added again. Cost: O(forgotten items ×
    /// log n).
    pub fn forget(&mut self, first: &K, gone: impl Fn(&K) -> bool) {
        let going = self.items.range(first..).map(|(key, _)| key).take_while(|key| gone(key));
        for key in going.cloned().collect::<Vec<_>>() {
            let Some(item) = self.items.get_mut(&key) else { continue };
            if let Some(timer) = item.timer.take() {
                self.timed.remove(&timer);
            }
            if let Some(Wait::Paused(slot)) = item.waits.take() {
                self.timed.remove(&slot);
            }
            item.failures = 0;
            match &mut item.runs {
                Some(run) => {
                    run.dirty = false;
                    run.pending_states.clear();
                }
                None => drop(self.items.remove(&key)),
            }
        }
        self.sweep();
    }

    /// Removes obsolete entries from the lanes that consist mostly of them; the others stay until their turn
    /// comes. The amortised cost is O(1) for each item that was ever put into a lane.
    fn sweep(&mut self) {
        let items = &self.items;
        for (lane, wait) in
            [(&mut self.fresh, Wait::Fresh), (&mut self.bulk, Wait::Bulk), (&mut self.ripe, Wait::Ripe)]
        {
            if lane.len() > 2 * items.len() + SLACK {
                let mut seen = BTreeSet::new();
                lane.retain(|key| {
                    items.get(key).is_some_and(|item| item.waits == Some(wait)) && seen.insert(key.clone())
                });
            }
        }
    }

    /// Number of items that wait for a slot. O(n); for the metrics.
    pub fn waiting(&self) -> usize {
        self.items
            .values()
            .filter(|item| matches!(item.waits, Some(Wait::Fresh | Wait::Bulk | Wait::Ripe)))
            .count()
    }

    /// Number of running items. O(n).
    pub fn active(&self) -> usize {
        self.items.values().filter(|item| item.runs.is_some()).count()
    }

    /// Number of known items.
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// Returns true if no item is known.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    fn end_pauses(&mut self, now: Instant) {
        while let Some(entry) = self.timed.first_entry() {
            let slot = *entry.key();
            if slot.0 > now {
                return;
            }
            let key = entry.remove();
            let Some(item) = self.items.get_mut(&key) else { continue };
            if item.timer == Some(slot) {
                item.timer = None;
                self.add(key);
            } else if item.waits == Some(Wait::Paused(slot)) {
                item.waits = Some(Wait::Ripe);
                item.since.get_or_insert(now);
                self.ripe.push_back(key);
            }
        }
    }

    fn choose(&mut self) -> Option<Lane> {
        self.trim();
        let half = self.slots.div_ceil(2);
        let [_, bulk, retry] = self.running;
        let may_retry = !self.ripe.is_empty() && retry < half;
        let slow = match (self.bulk.is_empty(), may_retry) {
            (true, false) => None,
            (true, true) => Some(Lane::Retry),
            (false, false) => Some(Lane::Bulk),
            (false, true) => {
                self.turn = !self.turn;
                Some(if self.turn { Lane::Retry } else { Lane::Bulk })
            }
        };
        if self.fresh.is_empty() {
            return slow;
        }
        match slow {
            Some(lane) if self.favour_slow && bulk + retry < half => Some(lane),
            _ => Some(Lane::Fresh),
        }
    }

    /// Drops entries from the front of each lane whose item has moved to another lane.
    fn trim(&mut self) {
        for (lane, wait) in
            [(&mut self.fresh, Wait::Fresh), (&mut self.bulk, Wait::Bulk), (&mut self.ripe, Wait::Ripe)]
        {
            while lane
                .front()
                .is_some_and(|key| self.items.get(key).and_then(|item| item.waits) != Some(wait))
            {
                lane.pop_front();
            }
        }
    }

    fn pop(&mut self, lane: Lane) -> Option<K> {
        match lane {
            Lane::Fresh => self.fresh.pop_front(),
            Lane::Bulk => self.bulk.pop_front(),
            Lane::Retry => self.ripe.pop_front(),
        }
    }
}

fn free<S>(running: &mut [usize; 3], run: &mut Run<S>) {
    if std::mem::take(&mut run.holds_slot) {
        running[run.lane as usize] -= 1;
    }
}

#[cfg(test)]
mod tests;
