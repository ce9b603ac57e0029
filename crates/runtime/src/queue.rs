//! A work queue of keys, and workers for it.

use std::{
    collections::{BTreeMap, HashMap, HashSet, VecDeque},
    fmt::{Debug, Display},
    hash::Hash,
    panic::AssertUnwindSafe,
    sync::{Arc, OnceLock},
    time::Duration,
};

use futures::FutureExt;
use parking_lot::Mutex;
use tokio::{sync::Notify, task::JoinSet, time::Instant};
use tokio_util::sync::CancellationToken;

use crate::{
    backoff::{exponential, moment},
    limiter::{Rate, TokenBucket},
    metrics::{QueueMetrics, WorkTimer},
    panic_text,
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

/// What the queue does with a key after it was processed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Process the key when it is added again.
    OnChange,
    /// Process the key again after this pause.
    After(Duration),
    /// Process the key again with back-off, as after an error, but without a log message.
    Retry,
    /// Like `Retry`, with a back-off of at most this.
    RetryWithin(Duration),
}

/// Processes the keys of a queue with `workers` concurrent workers until `stop` is cancelled. Keys that are
/// being processed then are finished.
///
/// A key whose processing fails or panics is retried with back-off; other keys are not affected. A panic
/// outside of the processing ends the other workers and is passed on to the caller, because a queue without
/// workers would look like an idle one.
pub async fn work<K, E, F, Fut>(name: &str, queue: &Queue<K>, workers: usize, stop: &CancellationToken, f: F)
where
    K: Clone + Eq + Hash + Debug + Send + Sync + 'static,
    E: Display + Send,
    F: Fn(K) -> Fut + Clone + Send + Sync + 'static,
    Fut: Future<Output = Result<Next, E>> + Send,
{
    let (mut tasks, stop) = (JoinSet::new(), stop.child_token());
    for _ in 0..workers.max(1) {
        let (name, queue, stop, f) = (name.to_owned(), queue.clone(), stop.clone(), f.clone());
        tasks.spawn(async move {
            while let Some(guard) = queue.next(&stop).await {
                let key = guard.key().clone();
                let outcome = AssertUnwindSafe(async { f(key.clone()).await }).catch_unwind().await;
                let settled = std::panic::catch_unwind(AssertUnwindSafe(|| {
                    settle(&name, &queue, key.clone(), outcome);
                }));
                if let Err(panic) = settled {
                    let reason = panic_text(panic.as_ref());
                    tracing::error!(
                        queue = name,
                        ?key,
                        reason,
                        "panicked after the work; will be tried again"
                    );
                    queue.add_after(key, queue.0.max);
                }
                drop(guard);
            }
        });
    }
    let mut panicked = None;
    while let Some(joined) = tasks.join_next().await {
        let Some(panic) = joined.err().and_then(|error| error.try_into_panic().ok()) else { continue };
        tracing::error!(
            queue = name,
            reason = panic_text(panic.as_ref()),
            "a worker panicked; ending the rest"
        );
        stop.cancel();
        panicked.get_or_insert(panic);
    }
    if let Some(panic) = panicked {
        std::panic::resume_unwind(panic);
    }
}

/// Must run before the key's guard is dropped, so that the delay and the failure count belong to one run.
fn settle<K, E>(name: &str, queue: &Queue<K>, key: K, outcome: std::thread::Result<Result<Next, E>>)
where
    K: Clone + Eq + Hash + Debug,
    E: Display,
{
    match outcome {
        Ok(Ok(Next::OnChange)) => queue.forget(&key),
        Ok(Ok(Next::After(pause))) => {
            queue.forget(&key);
            queue.add_after(key, pause);
        }
        Ok(Ok(Next::Retry)) => queue.retry(key),
        Ok(Ok(Next::RetryWithin(longest))) => queue.retry_within(key, longest),
        Ok(Err(error)) => {
            tracing::warn!(queue = name, ?key, %error, "will be tried again");
            queue.retry(key);
        }
        Err(panic) => {
            let reason = panic_text(panic.as_ref());
            tracing::error!(queue = name, ?key, reason, "panicked; will be tried again");
            queue.retry(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_key_is_given_out_once_and_to_one_worker() {
        let (queue, stop) = (Queue::default(), CancellationToken::new());
        queue.add(1);
        queue.add(1);
        let guard = queue.next(&stop).await.unwrap();
        assert_eq!(*guard.key(), 1);
        queue.add(1);
        assert!(queue.is_empty(), "not given out while it is worked on");
        drop(guard);
        assert_eq!(queue.len(), 1, "comes again as it was added meanwhile");
        drop(queue.next(&stop).await.unwrap());
        assert!(queue.is_idle());
    }

    #[tokio::test(start_paused = true)]
    async fn a_delayed_key_comes_at_its_time_or_with_an_earlier_one() {
        let (queue, stop) = (Queue::default(), CancellationToken::new());
        let start = Instant::now();
        queue.add_after("late", Duration::from_secs(5));
        queue.add_after("late", Duration::from_secs(9));
        queue.add_after("soon", Duration::from_secs(5));
        queue.add_after("soon", Duration::from_secs(1));
        assert_eq!(*queue.next(&stop).await.unwrap().key(), "soon");
        assert_eq!(start.elapsed().as_secs(), 1);
        assert_eq!(*queue.next(&stop).await.unwrap().key(), "late");
        assert_eq!(start.elapsed().as_secs(), 5);
        queue.add_after("now", Duration::from_secs(5));
        queue.add("now");
        drop(queue.next(&stop).await.unwrap());
        assert!(queue.is_idle());
    }

    #[tokio::test(start_paused = true)]
    async fn what_failed_can_be_hurried_and_waits_no_longer_than_it_is_told() {
        let (queue, stop) =
            (Queue::new(Duration::from_secs(100), Duration::from_secs(1000)), CancellationToken::new());
        let start = Instant::now();
        queue.add_after("timed", Duration::from_secs(7));
        queue.retry("failed");
        queue.retry_now();
        assert_eq!(*queue.next(&stop).await.unwrap().key(), "failed");
        assert_eq!(start.elapsed(), Duration::ZERO);
        assert_eq!(*queue.next(&stop).await.unwrap().key(), "timed");
        assert_eq!(start.elapsed().as_secs(), 7);
        queue.retry_within("failed", Duration::from_secs(30));
        assert_eq!(*queue.next(&stop).await.unwrap().key(), "failed");
        assert_eq!(start.elapsed().as_secs(), 37);
    }

    #[tokio::test(start_paused = true)]
    async fn failures_double_the_pause_until_forgotten() {
        let (queue, stop) =
            (Queue::new(Duration::from_secs(1), Duration::from_secs(60)), CancellationToken::new());
        let mut pauses = vec![];
        for _ in 0..3 {
            let start = Instant::now();
            queue.retry(7);
            drop(queue.next(&stop).await.unwrap());
            pauses.push(start.elapsed().as_secs());
        }
        assert_eq!(pauses, [1, 2, 4]);
        queue.forget(&7);
        let start = Instant::now();
        queue.retry(7);
        drop(queue.next(&stop).await.unwrap());
        assert_eq!(start.elapsed().as_secs(), 1);
    }

    /// MC-143: retries of all keys together keep to the rate after a burst; additions do not wait.
    #[tokio::test(start_paused = true)]
    async fn mc_143_retries_keep_to_a_rate() {
        let (stop, start) = (CancellationToken::new(), Instant::now());
        let queue = Queue::default().limited(Rate { qps: 10.0, burst: 100 });
        for key in 0..150 {
            queue.retry(key);
        }
        queue.add(1000);
        assert_eq!(*queue.next(&stop).await.unwrap().key(), 1000);
        for _ in 0..100 {
            drop(queue.next(&stop).await.unwrap());
        }
        assert!(start.elapsed().as_millis() < 100, "the burst: {:?}", start.elapsed());
        for _ in 100..150 {
            drop(queue.next(&stop).await.unwrap());
        }
        assert_eq!(start.elapsed().as_secs(), 5);
    }

    /// Keys that fail again and again because they are added again and again accumulate no debt: once their
    /// cause is gone, N keys are done after N tokens.
    #[tokio::test(start_paused = true)]
    async fn a_burst_of_failures_recovers_however_often_keys_failed() {
        let stop = CancellationToken::new();
        let most = Duration::from_secs(5);
        let queue = Queue::new(Duration::from_millis(5), most).limited(Rate { qps: 10.0, burst: 100 });
        let healed = Instant::now() + Duration::from_secs(30);
        let done = Arc::new(Mutex::new(HashSet::new()));
        let (adding, list, end) = (queue.clone(), done.clone(), stop.clone());
        let events = async move {
            // 200 failures a second, and 10 tokens.
            while Instant::now() < healed {
                (0..200).for_each(|key| adding.add(key));
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        };
        let worker = work("test", &queue, 4, &stop, move |key: i32| {
            let (list, end) = (list.clone(), end.clone());
            async move {
                if Instant::now() < healed {
                    return Err("not there");
                }
                let mut list = list.lock();
                list.insert(key);
                if list.len() == 200 {
                    end.cancel();
                }
                Ok(Next::OnChange)
            }
        });
        tokio::join!(events, worker);
        let took = healed.elapsed();
        assert_eq!(done.lock().len(), 200);
        assert!(took <= Duration::from_secs(20) + most, "{took:?}");
        let state = queue.0.state.lock();
        assert!(state.due.is_empty() && state.delayed.is_empty() && state.failures.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn workers_share_the_keys_and_stop() {
        let (queue, stop) = (Queue::default(), CancellationToken::new());
        let seen = Arc::new(Mutex::new(Vec::new()));
        for key in 0..100 {
            queue.add(key);
        }
        let (done, list) = (stop.clone(), seen.clone());
        work("test", &queue, 4, &stop, move |key: i32| {
            let (done, list) = (done.clone(), list.clone());
            async move {
                tokio::task::yield_now().await;
                let first = !list.lock().contains(&key);
                list.lock().push(key);
                if list.lock().len() == 101 {
                    done.cancel();
                }
                if key == 50 && first { Err("once") } else { Ok(Next::OnChange) }
            }
        })
        .await;
        let mut seen = seen.lock().clone();
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), 100);
    }

    #[tokio::test(start_paused = true)]
    async fn a_panic_is_retried_and_stops_no_other_key() {
        let (queue, stop) = (Queue::default(), CancellationToken::new());
        queue.add("bad");
        queue.add("good");
        let runs = Arc::new(Mutex::new(Vec::new()));
        let (list, done) = (runs.clone(), stop.clone());
        work("test", &queue, 1, &stop, move |key: &str| {
            let (list, done) = (list.clone(), done.clone());
            async move {
                list.lock().push(key);
                assert!(key != "bad" || list.lock().len() > 1, "the first time");
                if list.lock().len() == 3 {
                    done.cancel();
                }
                Ok::<_, &str>(Next::OnChange)
            }
        })
        .await;
        assert_eq!(*runs.lock(), ["bad", "good", "bad"]);
    }

    /// A worker survives a key that asks for an endless pause.
    #[tokio::test(start_paused = true)]
    async fn an_endless_pause_ends_no_worker() {
        let (queue, stop) = (Queue::default(), CancellationToken::new());
        queue.add("endless");
        queue.add("other");
        let done = stop.clone();
        work("test", &queue, 1, &stop, move |key: &str| {
            let done = done.clone();
            async move {
                if key == "other" {
                    done.cancel();
                }
                Ok::<_, &str>(Next::After(Duration::MAX))
            }
        })
        .await;
        assert!(queue.is_empty() && !queue.is_idle());
    }

    /// A key whose clones panic, which brings its worker down outside of what is caught.
    #[derive(PartialEq, Eq, Hash, Debug)]
    struct PanickingKey;

    impl Clone for PanickingKey {
        fn clone(&self) -> Self {
            panic!("brittle")
        }
    }

    #[tokio::test(start_paused = true)]
    #[should_panic(expected = "brittle")]
    async fn a_worker_that_panics_is_not_lost() {
        let (queue, stop) = (Queue::default(), CancellationToken::new());
        {
            let mut state = queue.0.state.lock();
            state.ready.push_back((PanickingKey, Instant::now()));
        }
        work("test", &queue, 2, &stop, |_: PanickingKey| async { Ok::<_, &str>(Next::OnChange) }).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_key_touched_while_worked_on_comes_again_but_never_twice_at_once() {
        let (queue, stop) = (Queue::default(), CancellationToken::new());
        queue.add(7);
        let state = Arc::new(Mutex::new((0, 0)));
        let (again, end, counts) = (queue.clone(), stop.clone(), state.clone());
        work("test", &queue, 4, &stop, move |key: u8| {
            let (again, end, counts) = (again.clone(), end.clone(), counts.clone());
            async move {
                counts.lock().0 += 1;
                again.add(key);
                tokio::task::yield_now().await;
                let mut counts = counts.lock();
                assert_eq!(counts.0, 1, "two at once");
                counts.0 -= 1;
                counts.1 += 1;
                if counts.1 == 4 {
                    end.cancel();
                }
                Ok::<_, &str>(Next::Retry)
            }
        })
        .await;
        assert_eq!(state.lock().1, 4);
    }
}
