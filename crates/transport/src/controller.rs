//! The shell of the transport controller: watches and queue here, reads and writes in `sync` and `deliver`.
//!
//! Cost of one event of a Binding with N objects and M destinations, in requests: the changed objects, plus
//! the envelopes whose contents changed (M for one object), plus one status write. In memory the cost is O(N
//! log N + M), as long as no other client changes the envelopes and no object requests customisation.

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
    Next, Queue, ResourceVersion,
    feed::{Change, Key, Keyed, Source, WithoutManagedFields, follow},
    limiter::Rate,
    metrics::Metrics,
    rest::{Gvr, Rest},
    retry_until_done, work,
};
use serde_json::{Value, json};
use tokio::{sync::watch, task::JoinSet, time::Instant};
use tokio_util::sync::CancellationToken;

use crate::{
    content::Digest,
    objects::{Known, ReadError},
    plan::Items,
    plugin::{Item, Ocm, Transport},
    shard::Limits,
    wrapped::{EnvelopeIndex, KnownEnvelope, Origin, WrappedObject},
    write::Writer,
};
use adaptation::Adaptation;
use deliver::{Expansions, OlderForms};
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
    /// Name of the WDS; it becomes part of names and labels.
    pub wds_name: String,
    /// Size limits of wrapped objects.
    pub limits: Limits,
    /// Number of Bindings processed at a time.
    pub concurrency: usize,
    /// Number of destinations written at a time, for one Binding.
    pub parallel_destinations: usize,
    /// How long a Binding must be unchanged before its outdated generation annotations are refreshed.
    pub refresh_after: Duration,
    /// Pause between two such refreshes, over all Bindings.
    pub refresh_pause: Duration,
    /// Whether wrapped objects carry the generations of their objects (OCM-139). This costs no extra write:
    /// the generations change only when an object changes, and then the envelope is written anyway.
    pub object_generations: bool,
    /// The plugin.
    pub transport: Arc<dyn Transport>,
    /// Set to true once every input needed for decisions is known.
    pub ready: watch::Sender<bool>,
    /// Receives the metrics: the queue `transport-controller` (KS-223), and the counts of objects (KS-221,
    /// KS-222).
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

/// Runs until `stop` is cancelled. Returns after every task it started has ended.
///
/// # Errors
///
/// If a task of the controller panics.
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

/// KS-135: creates the namespace of property ConfigMaps, with retries. Nothing waits for it.
async fn ensure_properties_namespace(its: &Rest, stop: &CancellationToken) {
    let gvr = Gvr::new("", "v1", "namespaces");
    let body = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": PROPERTIES_NAMESPACE}});
    let make = || its.ensure(&gvr, "", PROPERTIES_NAMESPACE, &body);
    retry_until_done("the namespace of property ConfigMaps", stop, make).await;
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Work {
    /// A Binding.
    Sync(String),
    /// The status of a CustomTransform.
    Judge(String),
}

/// Rate limit for retries of failed Bindings, all together.
const RETRIES: Rate = Rate { qps: 10.0, burst: 100 };
/// The longest back-off of one Binding; the original goes to 1000 s. A Binding waits here for things that no
/// watch reports: a mailbox of a cluster that is not accepted yet, a kind that is not served yet, an
/// unreachable server. Whoever repairs that must not wait a quarter of an hour for the effect. The rate limit
/// above bounds the cost of retries.
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// The queue of the controller.
fn queue() -> Queue<Work> {
    Queue::new(Duration::from_millis(5), LONGEST_PAUSE).limited(RETRIES)
}

/// What the controller remembers of a Binding between two runs.
#[derive(Default)]
struct BindingMemory {
    /// UID of the Binding that this belongs to.
    uid: String,
    known: Known,
    /// The status as this controller last wrote it.
    reported: Option<ReportedStatus>,
    /// How the objects were distributed, if that is the same for all destinations.
    layout: Option<Layout>,
    /// Results of the expansion of objects that request customisation.
    expansions: Expansions,
    /// Older forms of objects that cannot be delivered in their present form.
    older_forms: OlderForms,
}

/// This controller's part of a Binding's status. A Binding that was recreated under an old name starts
/// without it (KS-013).
#[derive(Clone, Debug, PartialEq, Eq)]
struct ReportedStatus {
    uid: String,
    generation: i64,
    errors: Vec<String>,
}

impl BindingMemory {
    /// Resets the memory if the Binding was recreated under an old name: the objects that the old one
    /// delivered are gone or will be removed.
    fn is_about(&mut self, binding: &Binding) {
        let uid = binding.metadata.uid.as_deref().unwrap_or_default();
        if self.uid != uid {
            *self = Self { uid: uid.to_owned(), ..Self::default() };
        }
    }

    /// Returns the status of this very Binding, from memory or as it was read (KS-013).
    fn reported_for(&mut self, binding: &Binding) -> Option<&ReportedStatus> {
        let uid = binding.metadata.uid.clone().unwrap_or_default();
        if self.reported.as_ref().is_none_or(|reported| reported.uid != uid) {
            self.reported = binding.status.as_ref().map(|status| ReportedStatus {
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
    index: Mutex<EnvelopeIndex>,
    /// The digest that each wrapped object should have; a watch event that agrees with it causes no work
    /// (KS-084).
    expected: Mutex<HashMap<Key, Digest>>,
    /// Bindings that wait until a wrapped object of another Binding is gone (KS-098).
    blocked: Mutex<HashMap<Key, BTreeSet<String>>>,
    memories: Mutex<HashMap<String, Arc<tokio::sync::Mutex<BindingMemory>>>>,
    /// CustomTransforms and properties, with their caches.
    adaptation: Mutex<Adaptation>,
    /// Bindings with outdated annotations, and when they last became outdated.
    outdated: Mutex<HashMap<String, Instant>>,
    refreshes: Queue<String>,
    queue: Queue<Work>,
    gauges: Gauges,
    synced: [AtomicBool; Input::COUNT],
    started: CancellationToken,
}

/// An input that must be completely listed before anything is decided.
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

/// A failure that is worth a retry.
#[derive(Debug, thiserror::Error)]
enum SyncError {
    #[error("reading the workload: {0}")]
    Workload(#[from] ReadError),
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
        follow(
            self.wds.client(),
            &source,
            stop,
            |change: Change<WithoutManagedFields<Binding>>| match change {
                Change::Put(WithoutManagedFields(binding)) => self.note_binding(binding),
                Change::Gone((_, name)) => {
                    self.bindings.lock().remove(&name);
                    self.gauges.bindings.set(count(self.bindings.lock().len()));
                    self.queue.add(Work::Sync(name));
                }
                Change::Synced => self.mark_synced(Input::Bindings),
            },
        )
        .await;
    }

    /// Enqueues the Binding, unless only fields changed that this or the status controller writes.
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
        if self.index.lock().is_stale(&key, ResourceVersion::new(object.resource_version())) {
            return;
        }
        let old = self.index.lock().get(&key);
        let payload = if self.writer.payload() == "spec" { object.spec } else { object.data };
        let metadata = object.metadata;
        // The generation changes exactly when the spec changes, so an equal generation needs no comparison of
        // specs.
        let same_spec = old.as_ref().filter(|old| {
            metadata.generation.is_some_and(|g| g != 0 && g == old.generation)
                && metadata.uid.as_ref() == Some(&old.uid)
        });
        let (fingerprint, contents, items) = match same_spec {
            Some(old) => (old.fingerprint, old.contents.clone(), old.items.clone()),
            None => self.read_payload(payload),
        };
        let seen = KnownEnvelope::new(&metadata, fingerprint, contents, items);
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
                // Envelopes of other WDSs do not concern this controller, and it would never forget them.
                let ours = |origin: &&Arc<Origin>| origin.wds == self.config.wds_name;
                let others = old.iter().map(|old| &old.origin).filter(|old| **old != origin);
                for origin in std::iter::once(&origin).chain(others).filter(ours) {
                    index.note_foreign_change(origin, &key.0);
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
        // An envelope that this controller deleted is expected to go; any other must be created again
        // (KS-084).
        let wanted = self.expected.lock().contains_key(key);
        let old = {
            let mut index = self.index.lock();
            let Some((old, touched)) = index.remove(key) else { return };
            self.gauges.wrapped_objects.set(count(index.len()));
            if wanted {
                index.note_foreign_change(&old.origin, &key.0);
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

    /// A name changed its owner or became free: Bindings that wait for it try again (KS-098).
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

    /// KS-083: the envelopes of another WDS cause no work.
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

    /// KS-095: failed Bindings are retried, each with back-off and all together at 10 per second after a
    /// burst of 100. The crate `runtime` tests that a queue keeps to its rate.
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

        // A single Binding: 5 ms, doubling.
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
