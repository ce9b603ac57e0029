//! Runs a MapController: turns events into items and processes them, until it is stopped.
//!
//! Cost of one event: of an input, the parents that can select it; of an output, its item; of a parent, all
//! its keys if the change is material, else nothing. An event whose state the run of its item knew already
//! (the input in its request, an output created exactly as the hook answered) costs nothing: N new inputs
//! cost N calls (MC-037).

use std::{
    hash::{BuildHasher, DefaultHasher, Hash, Hasher, RandomState},
    panic::AssertUnwindSafe,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use apis::metacontroller::{MAP_CONTROLLER_ANNOTATION, MAP_KEY_ANNOTATION};
use futures::FutureExt;
use parking_lot::Mutex;
use runtime::metrics::QueueMetrics;
use tokio::{sync::Notify, task::JoinSet, time::Instant};
use tokio_util::sync::CancellationToken;

use super::{
    key::MapKey,
    mapping::{InputRule, Item, Mapping},
    parents::is_handled,
    work::Worker,
};
use crate::{
    cache::{Change, FollowGuard, ObjectState},
    lanes::{Lanes, Outcome},
    metrics::Numbers,
    object::{self, Object},
};

/// Number of keys of one parent that are processed before the others (MC-035).
const FIRST: usize = 100;

/// A running MapController.
pub struct Running {
    worker: Worker,
    lanes: Mutex<Lanes<Item, ObjectState>>,
    queue: QueueMetrics,
    wake: Notify,
    started: AtomicBool,
    runs: [AtomicU64; 2],
}

/// How often items are processed although nothing changed.
#[derive(Clone, Copy, Debug, Default)]
pub struct Periods {
    /// `resyncPeriodSeconds`.
    pub resync: Option<Duration>,
    /// `--cache-flush-interval`.
    pub flush: Option<Duration>,
}

impl Running {
    /// A MapController that does not run yet.
    pub fn new(worker: Worker, parallelism: usize, queue: QueueMetrics) -> Arc<Self> {
        Arc::new(Self {
            worker,
            lanes: Mutex::new(Lanes::new(parallelism)),
            queue,
            wake: Notify::new(),
            started: AtomicBool::new(false),
            runs: [AtomicU64::new(0), AtomicU64::new(0)],
        })
    }

    /// The state that it processes.
    pub fn mapping(&self) -> &Arc<Mapping> {
        &self.worker.mapping
    }

    /// Returns the values for the metrics.
    pub fn numbers(&self) -> Numbers {
        self.queue.depth(self.lanes.lock().waiting());
        let mut map = [0; 3];
        for parent in self.mapping().parents.lock().all() {
            map[0] += parent.last.inputs.values().map(|inputs| inputs.total as u64).sum::<u64>();
            map[1] += parent.failed.len() as u64;
            map[2] += parent.last.outputs.values().map(|outputs| outputs.detached as u64).sum::<u64>();
        }
        let results = ["success", "error"].into_iter().zip(&self.runs);
        Numbers {
            runs: results.map(|(result, count)| (result, count.load(Ordering::Relaxed))).collect(),
            map: Some(map),
        }
    }

    /// Runs until the worker's token is cancelled. Calls `started` once all caches are filled (MC-018).
    pub async fn run(self: Arc<Self>, periods: Periods, started: impl FnOnce()) {
        let following = self.follow();
        let stop = self.worker.stop.clone();
        let mapping = self.mapping().clone();
        let synced = async {
            mapping.parent_cache.synced().await;
            for rule in &mapping.inputs {
                rule.cache.synced().await;
            }
            for rule in &mapping.outputs {
                rule.cache.synced().await;
            }
        };
        tokio::select! {
            () = synced => {}
            () = stop.cancelled() => return,
        }
        let seat = self.worker.board.join(self.mapping());
        self.started.store(true, Ordering::SeqCst);
        for parent in mapping.parent_cache.list("") {
            self.parent(None, Some(&parent));
        }
        started();
        let ticks = async {
            tokio::join!(self.ticks(periods.resync), self.flushes(periods.flush));
        };
        tokio::select! {
            () = self.dispatch(&stop) => {}
            () = ticks => {}
        }
        drop(seat);
        drop(following);
    }

    fn follow(self: &Arc<Self>) -> Vec<FollowGuard> {
        let mapping = self.mapping();
        let mut all = Vec::new();
        let this = Arc::downgrade(self);
        all.push(mapping.parent_cache.follow(move |(old, new)| {
            if let Some(this) = this.upgrade() {
                this.parent(old, new);
            }
        }));
        for (index, rule) in mapping.inputs.iter().enumerate() {
            let this = Arc::downgrade(self);
            all.push(rule.cache.follow(move |change| {
                if let Some(this) = this.upgrade()
                    && let Some(rule) = this.mapping().inputs.get(index)
                {
                    this.input(rule, change);
                }
            }));
        }
        for rule in &mapping.outputs {
            let this = Arc::downgrade(self);
            all.push(rule.cache.follow(move |change| {
                if let Some(this) = this.upgrade() {
                    this.output(change);
                }
            }));
        }
        all
    }

    /// Adds the items that a change affects; `now` is the new state of the object, if it still exists.
    fn add_for_state(&self, items: impl IntoIterator<Item = Item>, now: Option<&Arc<Object>>) {
        self.lanes(|lanes| {
            for item in items {
                match now {
                    Some(now) => lanes.add_for_state(item, ObjectState::of(&now.value)),
                    None => lanes.add(item),
                }
            }
        });
        self.wake.notify_one();
    }

    /// Changes the lanes and updates the metrics.
    fn lanes<T>(&self, change: impl FnOnce(&mut Lanes<Item, ObjectState>) -> T) -> T {
        let mut lanes = self.lanes.lock();
        let before = lanes.counts;
        let done = change(&mut lanes);
        let after = lanes.counts;
        drop(lanes);
        (before.adds..after.adds).for_each(|_| self.queue.added());
        (before.retries..after.retries).for_each(|_| self.queue.retried());
        done
    }

    fn input(&self, rule: &InputRule, (old, new): Change<'_>) {
        if !self.started.load(Ordering::SeqCst) {
            return;
        }
        if let (Some(old), Some(new), true) = (old, new, rule.ignore_status)
            && old.uid() == new.uid()
            && object::same_but_for_status(&old.value, &new.value)
        {
            return;
        }
        self.add_for_state(
            self.mapping().concerned(rule, old.map(AsRef::as_ref), new.map(AsRef::as_ref)),
            new,
        );
    }

    fn output(&self, (old, new): Change<'_>) {
        if !self.started.load(Ordering::SeqCst) {
            return;
        }
        let parents = self.mapping().parents.lock();
        let item = |object: &Arc<Object>| {
            let tag = |name: &str| object::annotation(&object.value, name);
            let ours = tag(MAP_CONTROLLER_ANNOTATION) == Some(&*self.mapping().name);
            let uid = object::controller_uid(&object.value);
            let key = tag(MAP_KEY_ANNOTATION).filter(|_| ours && parents.get(uid).is_some())?;
            Some((uid.into(), MapKey::raw(key)))
        };
        let (before, after) = (old.and_then(item), new.and_then(item));
        drop(parents);
        let left = before.filter(|before| after.as_ref() != Some(before));
        self.add_for_state(left, None);
        self.add_for_state(after, new);
    }

    fn parent(&self, old: Option<&Arc<Object>>, new: Option<&Arc<Object>>) {
        if !self.started.load(Ordering::SeqCst) {
            return;
        }
        let mapping = self.mapping();
        let handled = new.filter(|new| is_handled(&new.value, &mapping.parent_selector));
        if let Some(old) = old
            && handled.is_none_or(|new| new.uid() != old.uid())
            && mapping.parents.lock().remove(old.uid())
        {
            let first = (old.uid().into(), MapKey::raw(""));
            self.lanes(|lanes| lanes.forget(&first, |(uid, _)| **uid == *old.uid()));
            self.worker.board.forget(&mapping.parent, old.uid());
        }
        let Some(new) = handled else { return };
        let known = mapping.parents.lock().get(new.uid()).is_some();
        let material = old.is_none_or(|old| object::is_material_change(&old.value, &new.value));
        if !known || material {
            mapping.parents.lock().put(new);
            self.fan_out(new);
        }
        self.worker.board.touch(&mapping.parent, new.key(), new.uid());
    }

    /// Adds all keys of a parent that changed.
    fn fan_out(&self, parent: &Object) {
        let uid: object::Text = parent.uid().into();
        let Some(keys) = self.mapping().keys(&uid) else {
            let parents = self.mapping().parents.lock();
            if let Some(Err(why)) = parents.selector(&uid) {
                self.worker.events.warning(
                    &parent.value,
                    "SyncError",
                    format!("invalid spec.selector: {why}"),
                );
            }
            return;
        };
        if let Some(known) = self.mapping().parents.lock().get_mut(&uid) {
            known.pending = keys.iter().cloned().collect();
        }
        self.lanes(|lanes| {
            for (index, key) in keys.into_iter().enumerate() {
                let item = (uid.clone(), key);
                if index < FIRST { lanes.add(item) } else { lanes.add_bulk(item) }
            }
        });
        self.wake.notify_one();
    }

    /// Runs the cache flush. Its first time is after one period, because everything has just been processed.
    async fn flushes(&self, period: Option<Duration>) {
        if let Some(period) = period {
            tokio::time::sleep(period).await;
        }
        self.ticks(period).await;
    }

    /// Adds all keys periodically, each once per period at a time of its own (MC-036).
    async fn ticks(&self, period: Option<Duration>) {
        let Some(period) = period else { return std::future::pending().await };
        loop {
            let begun = Instant::now();
            let mapping = self.mapping();
            let uids = mapping.parents.lock().uids();
            let mut due: Vec<(Duration, Item)> = Vec::new();
            for uid in uids {
                let keys = mapping.keys(&uid).unwrap_or_default();
                due.extend(keys.into_iter().map(|key| (share(&uid, &key, period), (uid.clone(), key))));
            }
            due.sort_by_key(|(at, _)| *at);
            for (at, item) in due {
                tokio::time::sleep_until(begun + at).await;
                self.lanes(|lanes| lanes.resync(item));
                self.wake.notify_one();
            }
            tokio::time::sleep_until(begun + period).await;
        }
    }

    async fn dispatch(self: &Arc<Self>, stop: &CancellationToken) {
        let mut tasks = JoinSet::new();
        let panicked = loop {
            let deadline = self.lanes(|lanes| {
                while let Some(item) = lanes.take(Instant::now()) {
                    let (this, working) = (self.clone(), self.queue.taken(lanes.waited(&item)));
                    tasks.spawn(async move {
                        this.work(item).await;
                        drop(working);
                    });
                }
                lanes.deadline()
            });
            let timer = async {
                match deadline {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = self.wake.notified() => {}
                () = timer => {}
                Some(joined) = tasks.join_next(), if !tasks.is_empty() => {
                    if let Err(error) = joined {
                        break Some(error);
                    }
                }
                () = stop.cancelled() => break None,
            }
        };
        // Calls in progress end with the token; writes in progress are finished.
        while tasks.join_next().await.is_some() {}
        // The item of the panicked task would never run again, so the panic is passed on and the host
        // restarts the controller.
        if let Some(panic) = panicked.and_then(|error| error.try_into_panic().ok()) {
            std::panic::resume_unwind(panic);
        }
    }

    async fn work(&self, item: Item) {
        let run = AssertUnwindSafe(self.worker.run(&item)).catch_unwind().await;
        let (outcome, known) = match run {
            Ok(done) => {
                if !done.expected.is_empty() {
                    // Other items may use the slot while the watch catches up.
                    self.lanes(|lanes| lanes.release(&item));
                    self.wake.notify_one();
                    tokio::select! {
                        () = self.worker.catch_up(&done.expected) => {}
                        () = self.worker.stop.cancelled() => {}
                    }
                }
                (done.outcome, done.known)
            }
            Err(panic) => {
                tracing::error!(key = %item.1, reason = runtime::panic_text(panic.as_ref()), "panicked");
                (Outcome::Failed, Vec::new())
            }
        };
        self.runs[usize::from(outcome == Outcome::Failed)].fetch_add(1, Ordering::Relaxed);
        let jitter = (RandomState::new().hash_one(0) % 1024) as f64 / 1024.0;
        self.lanes(|lanes| lanes.end_knowing(&item, outcome, &known, Instant::now(), jitter));
        self.wake.notify_one();
    }
}

/// Returns the time of an item within the period.
fn share(uid: &str, key: &MapKey, period: Duration) -> Duration {
    let mut hasher = DefaultHasher::new();
    (uid, key.as_str()).hash(&mut hasher);
    period.mul_f64((hasher.finish() % 10_000) as f64 / 10_000.0)
}
