//! A work queue of keys.

use std::{
    collections::{BTreeMap, HashMap, HashSet, VecDeque},
    hash::Hash,
    sync::{Arc, OnceLock},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{sync::Notify, time::Instant};
use tokio_util::sync::CancellationToken;

use crate::{
    backoff::{exponential, moment},
    limiter::{Rate, TokenBucket},
    metrics::{QueueMetrics, WorkTimer},
};

/// A work queue. A key is in it at most once, however often it is added, and only one worker at a time gets
/// it. A key that is added while a worker has it comes again afterwards. So the length is bounded by the
/// number of distinct keys, and adding never waits.
///
/// A key has at most one timer, the earliest that was requested. The timer ends when a worker gets the key. A
/// caller that needs a later time as well must request it again while it processes the key.
pub struct Queue<K>(Arc<Inner<K>>);

struct Inner<K> {
    base: Duration,
    max: Duration,
    state: Mutex<State<K>>,
    wake: Notify,
    metrics: OnceLock<QueueMetrics>,
}

struct State<K> {
    /// The keys that are ready, each with the time when it became ready.
    ready: VecDeque<(K, Instant)>,
    /// Keys in `ready`, and keys that go there when their processing ends.
    dirty: HashSet<K>,
    processing: HashSet<K>,
    delayed: BTreeMap<(Instant, u64), K>,
    due: HashMap<K, Timer>,
    failures: HashMap<K, u32>,
    sequence: u64,
    /// Rate limit of retries, for all keys together.
    limit: Option<TokenBucket>,
}

/// The timer of a delayed key.
struct Timer {
    /// The key's position in `delayed`.
    slot: (Instant, u64),
    /// The key has taken a token of the retry limit. The token is returned if the key comes earlier for
    /// another reason.
    turn: bool,
}

impl<K> Clone for Queue<K> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<K: Clone + Eq + Hash> Default for Queue<K> {
    /// Retries after 5 ms, doubling to 1000 s, as the controllers of the original do.
    fn default() -> Self {
        Self::new(Duration::from_millis(5), Duration::from_secs(1000))
    }
}

/// A key that a worker has. Dropping it lets the queue give the key out again.
pub struct KeyGuard<K: Clone + Eq + Hash> {
    queue: Queue<K>,
    key: K,
    /// Ends the measurement of the processing time when dropped.
    _working: Option<WorkTimer>,
}

impl<K: Clone + Eq + Hash> KeyGuard<K> {
    /// The key.
    pub fn key(&self) -> &K {
        &self.key
    }
}

impl<K: Clone + Eq + Hash> Drop for KeyGuard<K> {
    fn drop(&mut self) {
        let mut state = self.queue.0.state.lock();
        state.processing.remove(&self.key);
        if state.dirty.contains(&self.key) {
            state.ready.push_back((self.key.clone(), Instant::now()));
            self.queue.0.report_depth(&state);
            drop(state);
            self.queue.0.wake.notify_one();
        }
    }
}

impl<K: Clone + Eq + Hash> Queue<K> {
    /// An empty queue. A key that fails comes again after `base`, doubling to `max`.
    pub fn new(base: Duration, max: Duration) -> Self {
        let state = State {
            ready: VecDeque::new(),
            dirty: HashSet::new(),
            processing: HashSet::new(),
            delayed: BTreeMap::new(),
            due: HashMap::new(),
            failures: HashMap::new(),
            sequence: 0,
            limit: None,
        };
        let (state, wake) = (Mutex::new(state), Notify::new());
        Self(Arc::new(Inner { base, max, state, wake, metrics: OnceLock::new() }))
    }

    /// Limits the retries of all keys together to this rate. Only the first call has an effect.
    ///
    /// Additions are not limited. A retry that is overtaken by an addition returns its token, so however
    /// often N keys fail and are added again, the last of their retries waits for N tokens and not for one
    /// token per failure.
    pub fn limited(self, rate: Rate) -> Self {
        self.0.state.lock().limit.get_or_insert_with(|| TokenBucket::new(rate, Instant::now()));
        self
    }

    /// Counts the queue in `metrics` from now on. Only the first call has an effect.
    pub fn observed(self, metrics: QueueMetrics) -> Self {
        let _ = self.0.metrics.set(metrics);
        self
    }

    /// Adds a key, for the next free worker.
    pub fn add(&self, key: K) {
        let mut state = self.0.state.lock();
        state.undelay(&key);
        if self.0.enqueue(&mut state, key) {
            drop(state);
            self.0.wake.notify_one();
        }
    }

    /// Adds a key after a pause. Does nothing if the key comes earlier anyway.
    pub fn add_after(&self, key: K, pause: Duration) {
        if pause.is_zero() {
            return self.add(key);
        }
        let at = moment(Instant::now(), pause);
        let mut state = self.0.state.lock();
        if !state.dirty.contains(&key) && state.delay(key, at, false) {
            drop(state);
            self.0.wake.notify_one();
        }
    }

    /// Adds a key that failed. The pause doubles with each failure until [`forget`](Self::forget).
    pub fn retry(&self, key: K) {
        self.retry_within(key, Duration::MAX);
    }

    /// Like [`retry`](Self::retry), with a back-off of at most `longest`.
    pub fn retry_within(&self, key: K, longest: Duration) {
        let now = Instant::now();
        let mut state = self.0.state.lock();
        let failures = state.failures.entry(key.clone()).or_default();
        let tries = *failures;
        *failures = tries.saturating_add(1);
        if let Some(metrics) = self.0.metrics.get() {
            metrics.retried();
        }
        if state.dirty.contains(&key) {
            return;
        }
        let own = exponential(self.0.base, self.0.max, tries).min(longest);
        let turn = state.limit.as_mut().map(|limit| limit.reserve(now));
        let at = moment(now, turn.map_or(own, |turn| own.max(turn)));
        if state.delay(key, at, turn.is_some()) {
            drop(state);
            self.0.wake.notify_one();
        }
    }

    /// Makes all keys that wait after a failure ready now, because the cause of their failures may be gone. A
    /// key that is being processed and fails again starts with the shortest pause. Cost: O(keys that failed).
    pub fn retry_now(&self) {
        let failed: Vec<K> = {
            let mut state = self.0.state.lock();
            let failures = std::mem::take(&mut state.failures);
            failures.into_keys().filter(|key| state.due.contains_key(key)).collect()
        };
        for key in failed {
            self.add(key);
        }
    }

    /// Forgets the failures of a key, after a success.
    pub fn forget(&self, key: &K) {
        self.0.state.lock().failures.remove(key);
    }

    /// The longest pause of the back-off.
    pub(crate) fn longest_pause(&self) -> Duration {
        self.0.max
    }

    /// Number of keys that are ready.
    pub fn len(&self) -> usize {
        self.0.state.lock().ready.len()
    }

    /// Returns true if no key is ready, being processed or delayed.
    pub fn is_idle(&self) -> bool {
        let state = self.0.state.lock();
        state.ready.is_empty() && state.processing.is_empty() && state.delayed.is_empty()
    }

    /// Returns true if no key is ready.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Waits for a key. Returns `None` once `stop` is cancelled.
    pub async fn next(&self, stop: &CancellationToken) -> Option<KeyGuard<K>> {
        loop {
            if stop.is_cancelled() {
                return None;
            }
            let deadline = match self.take() {
                Ok((key, came)) => {
                    let working = self.0.metrics.get().map(|metrics| metrics.taken(came.elapsed()));
                    return Some(KeyGuard { queue: self.clone(), key, _working: working });
                }
                Err(deadline) => deadline,
            };
            let timer = async {
                match deadline {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = self.0.wake.notified() => {}
                () = timer => {}
                () = stop.cancelled() => return None,
            }
        }
    }

    fn take(&self) -> Result<(K, Instant), Option<Instant>> {
        let mut state = self.0.state.lock();
        self.0.promote(&mut state, Instant::now());
        let Some((key, came)) = state.ready.pop_front() else {
            return Err(state.delayed.keys().next().map(|(at, _)| *at));
        };
        self.0.report_depth(&state);
        state.dirty.remove(&key);
        state.processing.insert(key.clone());
        let more = !state.ready.is_empty() || !state.delayed.is_empty();
        drop(state);
        if more {
            // A notification wakes one worker; that worker wakes the next one if more keys are ready.
            self.0.wake.notify_one();
        }
        Ok((key, came))
    }
}

impl<K: Clone + Eq + Hash> Inner<K> {
    /// Makes a key ready. Returns true if a worker must be woken.
    fn enqueue(&self, state: &mut State<K>, key: K) -> bool {
        if !state.dirty.insert(key.clone()) {
            return false;
        }
        if let Some(metrics) = self.metrics.get() {
            metrics.added();
        }
        if state.processing.contains(&key) {
            return false;
        }
        state.ready.push_back((key, Instant::now()));
        self.report_depth(state);
        true
    }

    fn report_depth(&self, state: &State<K>) {
        if let Some(metrics) = self.metrics.get() {
            metrics.depth(state.ready.len());
        }
    }

    fn promote(&self, state: &mut State<K>, now: Instant) {
        while let Some(entry) = state.delayed.first_entry() {
            if entry.key().0 > now {
                return;
            }
            let key = entry.remove();
            state.due.remove(&key);
            self.enqueue(state, key);
        }
    }
}

impl<K: Clone + Eq + Hash> State<K> {
    /// Ends the timer of a key that comes for another reason.
    fn undelay(&mut self, key: &K) {
        if let Some(timer) = self.due.remove(key) {
            self.delayed.remove(&timer.slot);
            self.give_back(timer.turn);
        }
    }

    /// Sets the timer of a key. Returns false if the key has an earlier timer.
    fn delay(&mut self, key: K, at: Instant, turn: bool) -> bool
    where
        K: Clone,
    {
        if self.due.get(&key).is_some_and(|timer| timer.slot.0 <= at) {
            self.give_back(turn);
            return false;
        }
        self.undelay(&key);
        self.sequence += 1;
        let slot = (at, self.sequence);
        self.due.insert(key.clone(), Timer { slot, turn });
        self.delayed.insert(slot, key);
        true
    }

    fn give_back(&mut self, turn: bool) {
        if let Some(limit) = self.limit.as_mut().filter(|_| turn) {
            limit.give_back();
        }
    }
}

#[cfg(test)]
mod tests;
