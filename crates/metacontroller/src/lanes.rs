//! The order in which items are worked on (MC-033 to MC-036, MC-072). Pure: time is an argument.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    time::Duration,
};

use runtime::backoff::{exponential, moment};
use tokio::time::Instant;

use crate::pace::Pace;

/// Where an item waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Lane {
    /// For what somebody changed.
    Fresh,
    /// For what is looked at though nothing about it changed.
    Bulk,
    /// For what failed.
    Retry,
}

/// Waits of failed items: 250 ms doubling to 60 s, give or take a tenth (MC-072).
const RETRY: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(60));

/// Entries of a lane that may be left over, beside those that count.
const SLACK: usize = 64;

/// States that a run is told of one by one.
const TOLD: usize = 64;

/// How an item's run ended.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Outcome {
    /// Well; it may want to come again after a while.
    Done { again_after: Option<Duration> },
    /// Badly; it comes again after its own growing pause.
    Failed,
    /// Told to come again after this pause, which is no failure (MC-073).
    Told(Duration),
    /// It must come again at once: what it was based on changed (MC-045).
    Stale,
    /// There is nothing left to know of it.
    Forget,
}

/// Items in three lanes, each item once; an item is given out to one worker at a time. One that is added while it
/// is worked on comes again afterwards.
///
/// Failed items hold at most half of the slots (rounded up), and failed and bulk ones together no more than that
/// while fresh ones wait; with one slot they take turns. So hanging items can't starve healthy ones (MC-035).
///
/// Adding and taking cost O(log n) at most; memory is one entry per known item.
#[derive(Debug)]
pub struct Lanes<K, S = ()> {
    slots: usize,
    fresh: VecDeque<K>,
    bulk: VecDeque<K>,
    /// By time and sequence: items whose pause after a failure, or whose timer, ends then.
    timed: BTreeMap<(Instant, u64), K>,
    ripe: VecDeque<K>,
    items: BTreeMap<K, Item<S>>,
    sequence: u64,
    running: [usize; 3],
    favour_slow: bool,
    turn: bool,
    /// Numbers for the metrics: added, tried again.
    pub counts: Counts,
}

/// What happened so far.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    /// Items put into a lane.
    pub adds: u64,
    /// Items tried again after a failure.
    pub retries: u64,
}

#[derive(Debug)]
struct Item<S> {
    waits: Option<Wait>,
    runs: Option<Run<S>>,
    failures: u32,
    /// The timer of `resyncAfterSeconds`.
    timer: Option<(Instant, u64)>,
    /// Since when it has waited for a slot, for the metrics.
    since: Option<Instant>,
    /// How often a run of it brought about the next.
    pace: Option<Pace>,
}

impl<S> Default for Item<S> {
    fn default() -> Self {
        Self { waits: None, runs: None, failures: 0, timer: None, since: None, pace: None }
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Wait {
    Fresh,
    Bulk,
    /// Its pause ends then.
    Paused((Instant, u64)),
    /// Its pause is over.
    Ripe,
}

#[derive(Debug)]
struct Run<S> {
    lane: Lane,
    holds_slot: bool,
    dirty: bool,
    /// How long it waited for its slot.
    waited: Duration,
    /// States that were told of meanwhile. Whether they are news to this run, its end says.
    told: Vec<S>,
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

    /// Something about the item changed. It is eligible at once, even after a failure, whose count stays (MC-072).
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

    /// The item is to be looked at because of a state that somebody brought about. While it is worked on, that counts
    /// only if the run turns out not to know the state (see [`end_knowing`](Self::end_knowing)): so nobody is asked again
    /// because of what he was just shown, or what was just made as he said (MC-037).
    pub fn tell(&mut self, key: K, state: S) {
        match self.items.get_mut(&key).and_then(|item| item.runs.as_mut()) {
            // Of an object that changes all the time, something is news for sure.
            Some(run) if run.told.len() >= TOLD => run.dirty = true,
            Some(run) => run.told.push(state),
            None => self.add(key),
        }
    }

    /// The item is to be looked at again, when there is time. One that waits already keeps its place.
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

    /// A periodic look: nothing for an item that waits or is worked on (MC-036).
    pub fn resync(&mut self, key: K) {
        let idle = self.items.get(&key).is_none_or(|item| item.waits.is_none() && item.runs.is_none());
        if idle {
            self.add_bulk(key);
        }
    }

    /// Gives out the next item there is a slot for.
    pub fn take(&mut self, now: Instant) -> Option<K> {
        self.ripen(now);
        if self.running.iter().sum::<usize>() >= self.slots {
            return None;
        }
        let lane = self.choose()?;
        let key = self.pop(lane)?;
        if let Some(item) = self.items.get_mut(&key) {
            item.waits = None;
            let since = item.since.take();
            let waited = since.map(|since| now.saturating_duration_since(since)).unwrap_or_default();
            item.runs = Some(Run { lane, holds_slot: true, dirty: false, waited, told: Vec::new() });
            if let Some(timer) = item.timer.take() {
                self.timed.remove(&timer);
            }
        }
        self.running[lane as usize] += 1;
        self.favour_slow = lane == Lane::Fresh;
        Some(key)
    }

    /// How long an item that is worked on had waited for that.
    pub fn waited(&self, key: &K) -> Duration {
        self.items.get(key).and_then(|item| item.runs.as_ref()).map(|run| run.waited).unwrap_or_default()
    }

    /// When [`take`](Self::take) may give out more though nothing is added.
    pub fn deadline(&self) -> Option<Instant> {
        self.timed.keys().next().map(|(at, _)| *at)
    }

    /// Gives the slot of an item back, while nobody else may work on the item yet.
    pub fn release(&mut self, key: &K) {
        if let Some(run) = self.items.get_mut(key).and_then(|item| item.runs.as_mut()) {
            free(&mut self.running, run);
        }
    }

    /// Ends the run of an item; `jitter` is from 0 to 1.
    pub fn end(&mut self, key: &K, outcome: Outcome, now: Instant, jitter: f64) {
        self.end_knowing(key, outcome, &[], now, jitter);
    }

    /// Ends the run of an item that knew these states, from the request it made or from its own writes.
    pub fn end_knowing(&mut self, key: &K, outcome: Outcome, known: &[S], now: Instant, jitter: f64) {
        let Some(item) = self.items.get_mut(key) else { return };
        let Some(mut run) = item.runs.take() else { return };
        free(&mut self.running, &mut run);
        run.dirty |= run.told.iter().any(|state| !known.contains(state));
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
            Outcome::Told(after) => pause = Some(after),
            Outcome::Stale => run.dirty = true,
            Outcome::Forget if run.dirty => {}
            Outcome::Forget => {
                self.items.remove(key);
                return;
            }
        }
        if run.dirty {
            // A hook that never answers twice the same has its item come back with its own writes, without end.
            pause = item.pace.get_or_insert_with(|| Pace::new(now)).reserve(now);
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

    /// Forgets the items from `first` on for which `gone` holds, up to the first for which it doesn't (MC-092). One that is
    /// worked on is forgotten at its end, unless it is added again. Costs O(those × log n).
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
                    run.told.clear();
                }
                None => drop(self.items.remove(&key)),
            }
        }
        self.sweep();
    }

    /// Takes out of the lanes what waits elsewhere or no more, where that is most of a lane: usually, that is left to when
    /// its turn comes. So it costs O(1) for each item that was ever put into a lane.
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

    /// Items that wait for a slot. O(n): for who looks at the metrics.
    pub fn waiting(&self) -> usize {
        self.items
            .values()
            .filter(|item| matches!(item.waits, Some(Wait::Fresh | Wait::Bulk | Wait::Ripe)))
            .count()
    }

    /// Items that are worked on. O(n).
    pub fn active(&self) -> usize {
        self.items.values().filter(|item| item.runs.is_some()).count()
    }

    /// Known items.
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// No item is known.
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    fn ripen(&mut self, now: Instant) {
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

    /// Drops what has moved to another lane from the front of each.
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
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    const DONE: Outcome = Outcome::Done { again_after: None };

    /// A hook that wants never to be asked again is asked when something changes.
    #[test]
    fn endless_pauses_are_borne() {
        let (mut lanes, now) = (Lanes::<_>::new(4), Instant::now());
        for outcome in [Outcome::Told(Duration::MAX), Outcome::Done { again_after: Some(Duration::MAX) }] {
            lanes.add("a");
            assert_eq!(lanes.take(now), Some("a"));
            lanes.end(&"a", outcome, now, 0.5);
            assert!(lanes.deadline().is_some_and(|at| at > now));
            assert_eq!(lanes.take(now), None);
        }
    }

    /// MC-033, MC-034: many triggers are one run, and one more if they come meanwhile.
    #[test]
    fn mc_033_a_key_runs_once_at_a_time_and_once_more_when_dirty() {
        let (mut lanes, now) = (Lanes::<_>::new(4), Instant::now());
        lanes.add("a");
        lanes.add("a");
        assert_eq!(lanes.take(now), Some("a"));
        lanes.add("a");
        lanes.add_bulk("a");
        assert_eq!(lanes.take(now), None);
        lanes.end(&"a", DONE, now, 0.5);
        assert_eq!(lanes.take(now), Some("a"));
        lanes.end(&"a", DONE, now, 0.5);
        assert_eq!(lanes.take(now), None);
    }

    /// MC-037: what a run knew is no news when it is told meanwhile; anything else brings the item back.
    #[test]
    fn mc_037_known_states_are_no_news() {
        let (mut lanes, now) = (Lanes::<_, u8>::new(1), Instant::now());
        for (told, known, again) in
            [(&[1, 2][..], &[2, 1][..], false), (&[1, 3], &[1], true), (&[], &[1], false), (&[1], &[], true)]
        {
            lanes.add("a");
            assert_eq!(lanes.take(now), Some("a"));
            for state in told {
                lanes.tell("a", *state);
            }
            lanes.end_knowing(&"a", DONE, known, now, 0.5);
            assert_eq!(lanes.take(now), again.then_some("a"), "{told:?} {known:?}");
            lanes.end(&"a", DONE, now, 0.5);
        }
        // Told while nobody works on it, it is news whatever it is.
        lanes.tell("a", 1);
        assert_eq!(lanes.take(now), Some("a"));
        // A run that ends with nothing left comes again for what it didn't know.
        lanes.tell("a", 2);
        lanes.end_knowing(&"a", Outcome::Forget, &[1], now, 0.5);
        assert_eq!(lanes.take(now), Some("a"));
    }

    /// MC-092: a parent that is gone leaves no item, timer, pause or count behind.
    #[test]
    fn mc_092_forgotten_items_leave_nothing() {
        let (mut lanes, now) = (Lanes::<_>::new(8), Instant::now());
        for i in 0..6 {
            lanes.add(("gone", i));
        }
        lanes.add(("stays", 0));
        let take = |lanes: &mut Lanes<_>| lanes.take(now).unwrap();
        let (timed, failed, told) = (take(&mut lanes), take(&mut lanes), take(&mut lanes));
        lanes.end(&timed, Outcome::Done { again_after: Some(Duration::from_secs(5)) }, now, 0.5);
        lanes.end(&failed, Outcome::Failed, now, 0.5);
        lanes.end(&told, Outcome::Told(Duration::from_secs(9)), now, 0.5);
        let running = take(&mut lanes);
        lanes.add(running);
        lanes.add_bulk(("gone", 9));
        lanes.forget(&("gone", 0), |(parent, _)| *parent == "gone");
        assert_eq!((lanes.deadline(), lanes.waiting(), lanes.active()), (None, 1, 1));
        lanes.end(&running, Outcome::Forget, now, 0.5);
        assert_eq!(lanes.len(), 1);
        let later = now + Duration::from_secs(100);
        assert_eq!((lanes.take(later), lanes.take(later)), (Some(("stays", 0)), None));
        // Its failures are forgotten too: the first pause is the shortest again.
        lanes.add(failed);
        assert_eq!(lanes.take(now), Some(failed));
        lanes.end(&failed, Outcome::Failed, now, 0.5);
        assert_eq!(lanes.deadline().map(|at| (at - now).as_millis()), Some(250));
    }

    /// MC-092: of parents that come and go while nothing can be worked on, no more is kept than of those that are there.
    #[test]
    fn mc_092_nothing_piles_up() {
        let (mut lanes, now) = (Lanes::<_>::new(1), Instant::now());
        lanes.add((0, 0));
        assert_eq!(lanes.take(now), Some((0, 0)));
        for round in 0..200 {
            for i in 0..10 {
                lanes.add((1 + round % 2, i));
                lanes.add_bulk((3 + round % 2, i));
            }
            lanes.forget(&(1, 0), |(parent, _)| (1..=4).contains(parent));
        }
        assert_eq!(lanes.len(), 1);
        assert!(
            lanes.fresh.len() + lanes.bulk.len() <= 4 * SLACK,
            "{} {}",
            lanes.fresh.len(),
            lanes.bulk.len()
        );
        lanes.add((1, 1));
        lanes.end(&(0, 0), DONE, now, 0.5);
        assert_eq!(lanes.take(now), Some((1, 1)));
        lanes.end(&(1, 1), DONE, now, 0.5);
        assert_eq!(lanes.take(now), None);
    }

    /// MC-035: with one slot, fresh and bulk take turns.
    #[test]
    fn mc_035_one_slot_alternates() {
        let (mut lanes, now) = (Lanes::<_>::new(1), Instant::now());
        for i in 0..3 {
            lanes.add(format!("f{i}"));
            lanes.add_bulk(format!("b{i}"));
        }
        let mut order = String::new();
        while let Some(key) = lanes.take(now) {
            order.push_str(&key[..1]);
            lanes.end(&key, DONE, now, 0.0);
        }
        assert_eq!(order, "fbfbfb");
    }

    /// MC-035: hanging failures hold half of the slots at most.
    #[test]
    fn mc_035_failed_items_leave_half_of_the_slots() {
        let (mut lanes, now) = (Lanes::<_>::new(4), Instant::now());
        for i in 0..6 {
            lanes.add(i);
        }
        let first: Vec<_> = std::iter::from_fn(|| lanes.take(now)).collect();
        assert_eq!(first.len(), 4);
        for key in first {
            lanes.end(&key, Outcome::Failed, now, 0.5);
        }
        for key in std::iter::from_fn(|| lanes.take(now)).collect::<Vec<_>>() {
            lanes.end(&key, Outcome::Failed, now, 0.5);
        }
        let later = now + Duration::from_secs(1);
        let hanging: Vec<_> = std::iter::from_fn(|| lanes.take(later)).collect();
        assert_eq!(hanging.len(), 2);
        lanes.add(100);
        lanes.add(101);
        assert_eq!((lanes.take(later), lanes.take(later)), (Some(100), Some(101)));
    }

    /// An item whose runs bring about the next one comes ten times a second in the end; what is at rest comes at once.
    #[test]
    fn items_that_bring_themselves_back_are_slowed() {
        let (mut lanes, start) = (Lanes::<_>::new(1), Instant::now());
        let (mut now, mut runs) = (start, 0);
        lanes.add("a");
        while now < start + Duration::from_secs(20) {
            let Some(key) = lanes.take(now) else {
                now = lanes.deadline().unwrap();
                continue;
            };
            runs += 1;
            lanes.add(key);
            lanes.end(&key, DONE, now, 0.5);
        }
        assert!((280..=310).contains(&runs), "{runs}");
        lanes.add("b");
        assert_eq!(lanes.take(now), Some("b"));
    }

    /// MC-072: pauses double to a minute, an event cuts one short without resetting the count, success resets.
    #[test]
    fn mc_072_pauses_double_until_success() {
        let mut lanes = Lanes::<_>::new(1);
        let mut now = Instant::now();
        lanes.add(1);
        let mut pauses = vec![];
        for _ in 0..10 {
            lanes.take(now).unwrap();
            lanes.end(&1, Outcome::Failed, now, 0.5);
            let next = lanes.deadline().unwrap();
            pauses.push((next - now).as_millis());
            now = next;
        }
        assert_eq!(pauses, [250, 500, 1000, 2000, 4000, 8000, 16000, 32000, 60000, 60000]);
        lanes.add(1);
        lanes.take(now).unwrap();
        lanes.end(&1, Outcome::Failed, now, 0.5);
        assert_eq!((lanes.deadline().unwrap() - now).as_secs(), 60);
        lanes.add(1);
        lanes.take(now).unwrap();
        lanes.end(&1, DONE, now, 0.5);
        assert_eq!(lanes.deadline(), None);
        lanes.add(1);
        lanes.take(now).unwrap();
        lanes.end(&1, Outcome::Failed, now, 0.0);
        assert_eq!((lanes.deadline().unwrap() - now).as_millis(), 225);
    }

    /// MC-036: a tick adds nothing for what waits, runs or pauses.
    #[test]
    fn mc_036_ticks_do_not_pile_up() {
        let (mut lanes, now) = (Lanes::<_>::new(1), Instant::now());
        lanes.resync(1);
        lanes.resync(1);
        lanes.take(now).unwrap();
        lanes.resync(1);
        lanes.end(&1, Outcome::Failed, now, 0.5);
        lanes.resync(1);
        assert_eq!(lanes.take(now), None);
        assert_eq!(lanes.take(now + Duration::from_secs(1)), Some(1));
    }

    /// MC-A-63: a timer fires once, and a later answer replaces it.
    #[test]
    fn mc_a_63_a_timer_fires_once() {
        let (mut lanes, now) = (Lanes::<_>::new(1), Instant::now());
        let after = |secs| Outcome::Done { again_after: Some(Duration::from_secs(secs)) };
        lanes.add(1);
        lanes.take(now).unwrap();
        lanes.end(&1, after(9), now, 0.0);
        lanes.add(1);
        lanes.take(now).unwrap();
        lanes.end(&1, after(2), now, 0.0);
        assert_eq!(lanes.take(now + Duration::from_secs(1)), None);
        assert_eq!(lanes.take(now + Duration::from_secs(2)), Some(1));
        lanes.end(&1, DONE, now, 0.0);
        assert_eq!(lanes.take(now + Duration::from_secs(100)), None);
    }

    #[derive(Clone, Debug)]
    enum Step {
        Add(u8),
        Bulk(u8),
        Resync(u8),
        Take,
        End(u8, u8),
        Release(u8),
        Forget(u8),
        Wait(u16),
    }

    fn step() -> impl Strategy<Value = Step> {
        let key = 0..6_u8;
        prop_oneof![
            4 => key.clone().prop_map(Step::Add),
            2 => key.clone().prop_map(Step::Bulk),
            2 => key.clone().prop_map(Step::Resync),
            5 => Just(Step::Take),
            5 => (key.clone(), 0..5_u8).prop_map(|(k, o)| Step::End(k, o)),
            1 => key.clone().prop_map(Step::Release),
            1 => key.prop_map(Step::Forget),
            2 => (0..3000_u16).prop_map(Step::Wait),
        ]
    }

    proptest! {
        /// MC-033, MC-034: whatever happens, no key is out twice, slots are kept, and what was added comes.
        #[test]
        fn mc_034_nothing_is_lost_and_nothing_runs_twice(steps in prop::collection::vec(step(), 0..120), slots in 1..4_usize) {
            let mut lanes = Lanes::<_>::new(slots);
            let mut now = Instant::now();
            let (mut out, mut held): (HashSet<u8>, HashSet<u8>) = Default::default();
            let mut owed: HashSet<u8> = HashSet::new();
            let outcomes = [DONE, Outcome::Failed, Outcome::Told(Duration::from_secs(1)), Outcome::Stale, Outcome::Forget];
            for step in steps {
                match step {
                    Step::Add(k) => { lanes.add(k); owed.insert(k); }
                    Step::Bulk(k) => { lanes.add_bulk(k); owed.insert(k); }
                    Step::Resync(k) => lanes.resync(k),
                    Step::Take => if let Some(k) = lanes.take(now) {
                        prop_assert!(out.insert(k), "twice");
                        held.insert(k);
                        owed.remove(&k);
                        prop_assert!(held.len() <= slots);
                    },
                    Step::End(k, o) => if out.remove(&k) { held.remove(&k); lanes.end(&k, outcomes[o as usize], now, 0.5) },
                    Step::Release(k) => if out.contains(&k) { lanes.release(&k); held.remove(&k); },
                    Step::Forget(k) => { lanes.forget(&k, |x| *x == k); owed.remove(&k); }
                    Step::Wait(ms) => now += Duration::from_millis(ms.into()),
                }
            }
            for k in out.drain() { lanes.end(&k, DONE, now, 0.5); }
            now += Duration::from_secs(100);
            for _ in 0..100 {
                let Some(k) = lanes.take(now) else { break };
                owed.remove(&k);
                lanes.end(&k, DONE, now, 0.5);
            }
            prop_assert!(owed.is_empty(), "never given out: {:?}", owed);
            prop_assert_eq!((lanes.waiting(), lanes.active()), (0, 0));
        }
    }
}
