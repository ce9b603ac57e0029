//! The shell of the transport controller: watches and queue here, reads and writes in `sync` and `deliver`.
//!
//! One event of a Binding with N objects and M destinations costs, in requests, the objects that changed plus the
//! envelopes whose contents changed (M for one object) plus one status write; in memory work O(N log N + M) as long as nobody
//! else touches the envelopes and no object wants customisation.

use std::{
    collections::{BTreeSet, HashMap},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use apis::{
    constants::{ORIGIN_BINDING_LABEL, PROPERTIES_NAMESPACE, TRANSPORT_MANAGER},
    control::Binding,
};
use futures::future::BoxFuture;
use kube::Client;
use parking_lot::Mutex;
use runtime::{
    Next, Queue,
    feed::{Change, Key, Keyed, Lean, Source, follow},
    limiter::Rate,
    metrics::Metrics,
    persist,
    rest::{Gvr, Rest},
    work,
};
use serde_json::{Value, json};
use tokio::{sync::watch, task::JoinSet, time::Instant};
use tokio_util::sync::CancellationToken;

use crate::{
    content::Digest,
    objects::{Known, Unread},
    plan::Items,
    plugin::{Item, Ocm, Transport},
    shard::Limits,
    wrapped::{Index, Origin, Seen, WrappedObject},
    write::Writer,
};
use adaptation::Adaptation;
use deliver::{Expansions, Kept};
use gauges::{Gauges, count};
use layout::Layout;
use watched::bindings;

mod adaptation;
mod deliver;
mod gauges;
mod layout;
mod refresh;
mod sync;
mod watched;

/// Settings of the transport controller (KS-216).
#[derive(Clone)]
pub struct Config {
    /// Name of the WDS; goes into names and labels.
    pub wds_name: String,
    /// Bounds of wrapped objects.
    pub limits: Limits,
    /// Bindings handled at a time.
    pub concurrency: usize,
    /// Destinations written at a time, for one Binding.
    pub parallel_destinations: usize,
    /// How long a Binding must be quiet before generation annotations that are out of date are refreshed.
    pub refresh_after: Duration,
    /// The pause between two such refreshes, of whatever Bindings.
    pub refresh_pause: Duration,
    /// Wrapped objects tell the generations of what is inside (OCM-139). Costs no write: it goes with those that a changed
    /// object takes anyway.
    pub object_generations: bool,
    /// The plugin.
    pub transport: Arc<dyn Transport>,
    /// Set true once everything is known that is needed to decide.
    pub ready: watch::Sender<bool>,
    /// What is counted goes here: the queue `transport-controller` (KS-223), and what there is of everything (KS-221, KS-222).
    pub metrics: Metrics,
}

impl Config {
    /// The defaults of the command line, for the WDS of this name.
    pub fn new(wds_name: &str) -> Self {
        Self {
            wds_name: wds_name.into(),
            limits: Limits::default(),
            concurrency: 4,
            parallel_destinations: 16,
            refresh_after: Duration::from_secs(60),
            refresh_pause: Duration::from_secs(1),
            object_generations: false,
            transport: Arc::new(Ocm),
            ready: watch::Sender::new(false),
            metrics: Metrics::default(),
        }
    }
}

/// Why the controller ended by itself.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A task of the controller died.
    #[error("a task of the transport controller ended")]
    Task(#[from] tokio::task::JoinError),
}

/// Runs until `stop`. Returns after everything it started has ended.
pub fn run(
    wds: Client,
    its: Client,
    config: Config,
    stop: CancellationToken,
) -> BoxFuture<'static, Result<(), Error>> {
    Box::pin(drive(wds, its, config, stop))
}

async fn drive(wds: Client, its: Client, config: Config, stop: CancellationToken) -> Result<(), Error> {
    let stop = stop.child_token();
    let controller = Arc::new(Controller::new(&wds, &its, config));
    let mut tasks = JoinSet::new();
    let (me, token) = (controller.clone(), stop.clone());
    tasks.spawn(async move { me.follow_bindings(&token).await });
    let (me, token) = (controller.clone(), stop.clone());
    tasks.spawn(async move { me.follow_wrapped(&token).await });
    let (me, token) = (controller.clone(), stop.clone());
    tasks.spawn(async move { me.follow_transforms(&token).await });
    let (me, token) = (controller.clone(), stop.clone());
    tasks.spawn(async move { me.follow_clusters(&token).await });
    let (me, token) = (controller.clone(), stop.clone());
    tasks.spawn(async move { me.follow_property_maps(&token).await });
    let (its, token) = (Rest::with_manager(its, TRANSPORT_MANAGER), stop.clone());
    tasks.spawn(async move { ensure_properties_namespace(&its, &token).await });
    let (me, token) = (controller.clone(), stop.clone());
    tasks.spawn(async move { me.work(&token).await });
    let (me, token) = (controller, stop.clone());
    tasks.spawn(async move { me.refresh_annotations(&token).await });
    let mut outcome = Ok(());
    while let Some(joined) = tasks.join_next().await {
        if let Err(error) = joined {
            stop.cancel();
            outcome = Err(error.into());
        }
    }
    outcome
}

/// KS-135: the namespace for property ConfigMaps is there sooner or later; nothing waits for it.
async fn ensure_properties_namespace(its: &Rest, stop: &CancellationToken) {
    let gvr = Gvr::new("", "v1", "namespaces");
    let body = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": PROPERTIES_NAMESPACE}});
    let make = || its.ensure(&gvr, "", PROPERTIES_NAMESPACE, &body);
    persist("the namespace of property ConfigMaps", stop, make).await;
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Work {
    /// A Binding.
    Sync(String),
    /// The status of a CustomTransform.
    Judge(String),
}

/// How often Bindings that failed are tried again, all together.
const RETRIES: Rate = Rate { qps: 10.0, burst: 100 };
/// The longest pause of one Binding. The original goes to 1000 s. What a Binding waits for here has no event that is
/// watched (a mailbox of a cluster not accepted yet, a kind not served yet, a server that is away), so whoever mends it
/// should not wait a quarter of an hour; it is the rate above that bounds what retries cost.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// The queue of the controller.
fn queue() -> Queue<Work> {
    Queue::new(Duration::from_millis(5), LONGEST_PAUSE).limited(RETRIES)
}

/// What is remembered of a Binding between two runs.
#[derive(Default)]
struct Memory {
    /// UID of the Binding that this is about.
    uid: String,
    known: Known,
    /// What the status says, as last written by us.
    reported: Option<Reported>,
    /// How objects were distributed, while that is the same for all destinations.
    layout: Option<Layout>,
    /// What became of objects that want customisation.
    expansions: Expansions,
    /// What stays of objects that can't be delivered as they are now.
    kept: Kept,
}

/// Our part of a Binding's status. A Binding made anew under an old name starts without (KS-013).
#[derive(Clone, Debug, PartialEq, Eq)]
struct Reported {
    uid: String,
    generation: i64,
    errors: Vec<String>,
}

impl Memory {
    /// A Binding that was made anew under an old name starts without: what the old one had delivered is gone, or goes.
    fn is_about(&mut self, binding: &Binding) {
        let uid = binding.metadata.uid.as_deref().unwrap_or_default();
        if self.uid != uid {
            *self = Self { uid: uid.to_owned(), ..Self::default() };
        }
    }

    /// What the status of this very Binding says, from memory or as it was read (KS-013).
    fn reported_for(&mut self, binding: &Binding) -> Option<&Reported> {
        let uid = binding.metadata.uid.clone().unwrap_or_default();
        if self.reported.as_ref().is_none_or(|reported| reported.uid != uid) {
            self.reported = binding.status.as_ref().map(|status| Reported {
                uid,
                generation: status.observed_generation,
                errors: status.errors.clone(),
            });
        }
        self.reported.as_ref()
    }
}

struct Controller {
    config: Config,
    wds: Rest,
    writer: Writer,
    its: Client,
    bindings: Mutex<HashMap<String, Arc<Binding>>>,
    index: Mutex<Index>,
    /// What each wrapped object is meant to be; an echo that agrees causes no work (KS-084).
    expected: Mutex<HashMap<Key, Digest>>,
    /// Bindings that wait for a wrapped object of someone else to go (KS-098).
    blocked: Mutex<HashMap<Key, BTreeSet<String>>>,
    memories: Mutex<HashMap<String, Arc<tokio::sync::Mutex<Memory>>>>,
    /// What adapts objects.
    adaptation: Mutex<Adaptation>,
    /// Bindings some of whose annotations are out of date, and when that last became so.
    outdated: Mutex<HashMap<String, Instant>>,
    refreshes: Queue<String>,
    queue: Queue<Work>,
    gauges: Gauges,
    synced: [AtomicBool; Input::COUNT],
    started: CancellationToken,
}

/// What is followed, and must have been seen as a whole before anything is decided.
#[derive(Clone, Copy, Debug)]
enum Input {
    Bindings,
    Wrapped,
    Transforms,
    Clusters,
    Properties,
}

impl Input {
    const COUNT: usize = Self::Properties as usize + 1;
}

/// A failure that is worth another try.
#[derive(Debug, thiserror::Error)]
enum SyncError {
    #[error("reading the workload: {0}")]
    Workload(#[from] Unread),
    #[error("writing the Binding: {0}")]
    Binding(#[source] kube::Error),
    #[error("writing wrapped objects: {0}")]
    Wrapped(String),
    #[error("writing the CustomTransform: {0}")]
    Transform(#[source] kube::Error),
    #[error("expanding templates")]
    Expansion(#[from] tokio::task::JoinError),
}

impl Controller {
    fn new(wds: &Client, its: &Client, config: Config) -> Self {
        let counted = config.metrics.queue("transport-controller");
        let gauges = Gauges::new(&config.metrics);
        Self {
            wds: Rest::with_manager(wds.clone(), TRANSPORT_MANAGER),
            writer: Writer::new(Rest::with_manager(its.clone(), TRANSPORT_MANAGER), config.transport.kind()),
            its: its.clone(),
            config,
            bindings: Mutex::default(),
            index: Mutex::default(),
            expected: Mutex::default(),
            blocked: Mutex::default(),
            memories: Mutex::default(),
            adaptation: Mutex::default(),
            outdated: Mutex::default(),
            refreshes: Queue::default(),
            queue: queue().observed(counted),
            gauges,
            synced: Default::default(),
            started: CancellationToken::new(),
        }
    }

    fn mark_synced(&self, input: Input) {
        if let Some(flag) = self.synced.get(input as usize) {
            flag.store(true, Ordering::SeqCst);
        }
        if self.synced.iter().all(|flag| flag.load(Ordering::SeqCst)) {
            self.started.cancel();
        }
    }

    async fn follow_bindings(&self, stop: &CancellationToken) {
        let source = Source::all(bindings());
        follow(self.wds.client(), &source, stop, |change: Change<Lean<Binding>>| match change {
            Change::Put(Lean(binding)) => self.note_binding(binding),
            Change::Gone((_, name)) => {
                self.bindings.lock().remove(&name);
                self.gauges.bindings.set(count(self.bindings.lock().len()));
                self.queue.add(Work::Sync(name));
            }
            Change::Synced => self.mark_synced(Input::Bindings),
        })
        .await;
    }

    /// Enqueues unless only what we or the status controller write has changed.
    fn note_binding(&self, binding: Binding) {
        let name = binding.metadata.name.clone().unwrap_or_default();
        let essence = |b: &Binding| {
            let m = &b.metadata;
            (m.uid.clone(), m.generation, m.deletion_timestamp.is_some(), m.finalizers.clone())
        };
        let fresh = essence(&binding);
        let old = self.bindings.lock().insert(name.clone(), Arc::new(binding));
        self.gauges.bindings.set(count(self.bindings.lock().len()));
        if old.is_none_or(|old| essence(&old) != fresh) {
            let work = Work::Sync(name);
            self.queue.forget(&work);
            self.queue.add(work);
        }
    }

    async fn follow_wrapped(&self, stop: &CancellationToken) {
        let source = Source::all(self.writer.gvr().clone()).labelled(ORIGIN_BINDING_LABEL);
        follow(&self.its, &source, stop, |change: Change<WrappedObject>| match change {
            Change::Put(object) => self.note_wrapped(object),
            Change::Gone(key) => self.note_wrapped_gone(&key),
            Change::Synced => self.mark_synced(Input::Wrapped),
        })
        .await;
    }

    fn note_wrapped(&self, object: WrappedObject) {
        let key = object.key();
        if self.index.lock().is_stale(&key, object.resource_version()) {
            return;
        }
        let old = self.index.lock().get(&key);
        let payload = if self.writer.payload() == "spec" { object.spec } else { object.data };
        let metadata = object.metadata;
        // The generation moves with every change of the spec, and only then: no need to read it again.
        let same_spec = old.as_ref().filter(|old| {
            metadata.generation.is_some_and(|g| g != 0 && g == old.generation)
                && metadata.uid.as_ref() == Some(&old.uid)
        });
        let (fingerprint, contents, items) = match same_spec {
            Some(old) => (old.fingerprint, old.contents.clone(), old.items.clone()),
            None => self.read_payload(payload),
        };
        let seen = Seen::new(&metadata, fingerprint, contents, items);
        let origin = seen.origin.clone();
        let as_meant = {
            let expected = self.expected.lock();
            match expected.get(&key) {
                Some(digest) => *digest == seen.fingerprint && seen.exactly_labelled && !seen.deleting,
                None => seen.deleting,
            }
        } && old.as_ref().is_none_or(|old| old.origin == origin);
        let touched = {
            let mut index = self.index.lock();
            if !as_meant {
                // Those of other WDSs are nothing to us, and nobody would forget them.
                let ours = |origin: &&Arc<Origin>| origin.wds == self.config.wds_name;
                let others = old.iter().map(|old| &old.origin).filter(|old| **old != origin);
                for origin in std::iter::once(&origin).chain(others).filter(ours) {
                    index.disturb(origin, &key.0);
                }
            }
            let touched = index.put(key.clone(), seen);
            self.gauges.wrapped_objects.set(count(index.len()));
            touched
        };
        self.enqueue_all(touched);
        if !as_meant {
            self.enqueue(&origin);
            if let Some(old) = old.filter(|old| old.origin != origin) {
                self.enqueue(&old.origin);
                self.unblock(&key);
            }
        }
    }

    fn note_wrapped_gone(&self, key: &Key) {
        // One that we deleted ourselves is expected to go; any other is to be made anew (KS-084).
        let wanted = self.expected.lock().contains_key(key);
        let old = {
            let mut index = self.index.lock();
            let Some((old, touched)) = index.remove(key) else { return };
            self.gauges.wrapped_objects.set(count(index.len()));
            if wanted {
                index.disturb(&old.origin, &key.0);
            }
            drop(index);
            self.enqueue_all(touched);
            old
        };
        self.unblock(key);
        if wanted {
            self.enqueue(&old.origin);
        }
    }

    /// A name changed hands or became free: whoever waits for it tries again (KS-098).
    fn unblock(&self, key: &Key) {
        for binding in self.blocked.lock().remove(key).into_iter().flatten() {
            let work = Work::Sync(binding);
            self.queue.forget(&work);
            self.queue.add(work);
        }
    }

    fn read_payload(&self, payload: Value) -> (Digest, Arc<Vec<Item>>, Items) {
        let mut whole = serde_json::Map::new();
        whole.insert(self.writer.payload().into(), payload);
        let unwrapped = self.config.transport.unwrap(&Value::Object(whole)).unwrap_or_default();
        let items = unwrapped.items.iter().map(|item| item.identity.clone()).collect();
        (unwrapped.fingerprint, Arc::new(unwrapped.items), Arc::new(items))
    }

    /// KS-083: what another WDS put there is no work for us.
    fn enqueue(&self, origin: &Origin) {
        if origin.wds == self.config.wds_name {
            self.queue.add(Work::Sync(origin.binding.clone()));
        }
    }

    fn enqueue_all(&self, origins: BTreeSet<Origin>) {
        for origin in origins {
            self.enqueue(&origin);
        }
    }

    async fn work(self: &Arc<Self>, stop: &CancellationToken) {
        tokio::select! {
            () = stop.cancelled() => return,
            () = self.started.cancelled() => {}
        }
        self.config.ready.send_replace(true);
        let me = self.clone();
        work("transport", &self.queue, self.config.concurrency, stop, move |work| {
            let me = me.clone();
            async move { me.handle(work).await }
        })
        .await;
    }

    async fn handle(&self, work: Work) -> Result<Next, SyncError> {
        match work {
            Work::Sync(name) => self.sync(&name).await?,
            Work::Judge(name) => self.judge(&name).await?,
        }
        Ok(Next::OnChange)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// KS-095: what failed is tried again, of each Binding with back-off and of all together at 10 a second after a burst of
    /// 100. How a queue keeps to a rate is `runtime`'s to test.
    #[tokio::test(start_paused = true)]
    async fn ks_095_retries_keep_to_a_rate() {
        let (queue, stop, start) = (queue(), CancellationToken::new(), Instant::now());
        let sync = |n: u32| Work::Sync(format!("binding-{n}"));
        (0..150).for_each(|n| queue.retry(sync(n)));
        for _ in 0..150 {
            drop(queue.next(&stop).await.unwrap());
        }
        assert_eq!(start.elapsed().as_secs(), 5);
        tokio::time::sleep(Duration::from_secs(100)).await;

        // One alone: 5 ms, doubling.
        queue.forget(&sync(0));
        let mut pauses = Vec::new();
        for _ in 0..12 {
            let start = Instant::now();
            queue.retry(sync(0));
            drop(queue.next(&stop).await.unwrap());
            pauses.push(start.elapsed().as_millis());
        }
        assert_eq!(pauses[..4], [5, 10, 20, 40]);
        assert_eq!(pauses[11..], [5000]);
    }
}
