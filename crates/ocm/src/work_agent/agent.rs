//! The shell of the work agent: watches, queue, feeds on applied kinds.
//!
//! A changed work with K manifests costs, beside in-memory work O(K), the requests for what differs, one status
//! patch on the hub and at most one in the cluster. An event on an applied object costs one look at that object.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use apis::{
    constants::{MANIFEST_WORK_FINALIZER, WORK_GROUP},
    ocm::{
        AppliedManifestWork, ManifestWork,
        work::{AppliedResource, ManifestWorkStatus},
    },
};
use kube::Client;
use parking_lot::Mutex;
use runtime::{
    Next, Queue,
    feed::{Change, Key, Keyed, Source, follow},
    mapper::Mapper,
    metrics::Metrics,
    rest::{Gvr, Rest},
    work,
};
use serde::Deserialize;
use sha2::{Digest as _, Sha256};
use tokio::{sync::watch, task::JoinSet, time::Instant};
use tokio_util::sync::CancellationToken;

use super::{
    merge::hex,
    pass::Scope,
    records::{Meta, Tracker},
    rules::{Header, Target},
};

/// Settings of the work agent.
#[derive(Clone)]
pub struct Config {
    /// Name of the managed cluster, that is, of the mailbox namespace.
    pub cluster_name: String,
    /// URL of the hub exactly as in the agent's kubeconfig; its hash names AppliedManifestWorks (OCM-071).
    pub hub_url: String,
    /// `--agent-id`; the hub's hash when empty.
    pub agent_id: String,
    /// Works handled at a time.
    pub workers: usize,
    /// Manifests of one work applied at a time.
    pub parallel_manifests: usize,
    /// Pause before a work is applied again although nothing is known to have changed (OCM-073); up to half as long
    /// again.
    pub reapply: Duration,
    /// How long an AppliedManifestWork without a ManifestWork stays (OCM-096).
    pub eviction_grace: Duration,
    /// Set true once the agent works.
    pub ready: watch::Sender<bool>,
    /// What is counted goes here: the queue `ManifestWorkAgent`.
    pub metrics: Metrics,
}

impl Config {
    /// The defaults, for one cluster and hub.
    pub fn new(cluster_name: &str, hub_url: &str) -> Self {
        Self {
            cluster_name: cluster_name.into(),
            hub_url: hub_url.into(),
            agent_id: String::new(),
            workers: 10,
            parallel_manifests: 16,
            reapply: Duration::from_secs(240),
            eviction_grace: Duration::from_secs(3600),
            ready: watch::Sender::new(false),
            metrics: Metrics::default(),
        }
    }
}

/// Why the agent ended by itself.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A task of the agent died.
    #[error("a task of the work agent ended")]
    Task(#[from] tokio::task::JoinError),
}

/// Lower-case hexadecimal SHA-256 of the hub's URL (OCM-015).
pub fn hub_hash(url: &str) -> String {
    hex(&Sha256::digest(url.as_bytes()))
}

/// Runs until `stop`. Returns after everything it started has ended.
pub async fn run(hub: Client, cluster: Client, config: Config, stop: CancellationToken) -> Result<(), Error> {
    let stop = stop.child_token();
    let agent = Arc::new(Agent::new(&hub, &cluster, config, stop.clone()));
    let mut tasks = JoinSet::new();
    {
        let me = agent.clone();
        tasks.spawn(async move { me.follow_works().await });
    }
    {
        let me = agent.clone();
        tasks.spawn(async move { me.follow_applied_works().await });
    }
    {
        let me = agent.clone();
        tasks.spawn(async move { me.work().await });
    }
    let mut outcome = Ok(());
    while let Some(joined) = tasks.join_next().await {
        if let Err(error) = joined {
            stop.cancel();
            outcome = Err(error.into());
        }
    }
    // Feeds end with `stop`; wait for them too.
    let mut feeds = std::mem::take(&mut *agent.feed_tasks.lock());
    while feeds.join_next().await.is_some() {}
    outcome
}

macro_rules! watched {
    ($name:ident, $inner:ty) => {
        #[derive(Clone)]
        struct $name($inner);

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                <$inner>::deserialize(deserializer).map(Self)
            }
        }

        impl Keyed for $name {
            fn key(&self) -> Key {
                let metadata = &self.0.metadata;
                (metadata.namespace.clone().unwrap_or_default(), metadata.name.clone().unwrap_or_default())
            }

            fn resource_version(&self) -> &str {
                self.0.metadata.resource_version.as_deref().unwrap_or_default()
            }
        }
    };
}
watched!(WatchedWork, ManifestWork);
watched!(WatchedApplied, AppliedManifestWork);

pub(crate) struct Agent {
    pub(crate) config: Config,
    pub(crate) hub: Rest,
    pub(crate) cluster: Rest,
    pub(crate) mapper: Mapper,
    pub(crate) hash: String,
    pub(crate) works: Mutex<HashMap<String, Arc<ManifestWork>>>,
    pub(crate) applied: Mutex<HashMap<String, Arc<AppliedManifestWork>>>,
    pub(crate) tracker: Mutex<Tracker>,
    /// The status of a work as we last wrote it; we are its only writer (OCM-162).
    pub(crate) statuses: Mutex<HashMap<String, ManifestWorkStatus>>,
    /// When works are applied although nothing is known to have changed.
    passes: Mutex<HashMap<String, Instant>>,
    feeds: Mutex<HashMap<Gvr, CancellationToken>>,
    feed_tasks: Mutex<JoinSet<()>>,
    pub(crate) queue: Queue<String>,
    synced: [AtomicBool; 2],
    started: CancellationToken,
    stop: CancellationToken,
}

impl Agent {
    fn new(hub: &Client, cluster: &Client, mut config: Config, stop: CancellationToken) -> Self {
        let hash = hub_hash(&config.hub_url);
        let counted = config.metrics.queue("ManifestWorkAgent");
        if config.agent_id.is_empty() {
            config.agent_id.clone_from(&hash);
        }
        Self {
            config,
            hub: Rest::new(hub.clone()),
            cluster: Rest::with_manager(cluster.clone(), "work-agent"),
            mapper: Mapper::new(cluster.clone()),
            hash,
            works: Mutex::default(),
            applied: Mutex::default(),
            tracker: Mutex::default(),
            statuses: Mutex::default(),
            passes: Mutex::default(),
            feeds: Mutex::default(),
            feed_tasks: Mutex::default(),
            queue: Queue::new(Duration::from_millis(5), Duration::from_secs(120)).observed(counted),
            synced: [AtomicBool::new(false), AtomicBool::new(false)],
            started: CancellationToken::new(),
            stop,
        }
    }

    fn mark_synced(&self, which: usize) {
        if let Some(flag) = self.synced.get(which) {
            flag.store(true, Ordering::SeqCst);
        }
        if self.synced.iter().all(|flag| flag.load(Ordering::SeqCst)) {
            self.started.cancel();
        }
    }

    async fn follow_works(&self) {
        let source = Source::all(manifest_works()).within(&self.config.cluster_name);
        follow(self.hub.client(), &source, &self.stop, |change: Change<WatchedWork>| match change {
            Change::Put(WatchedWork(work)) => self.note_work(work),
            Change::Gone((_, name)) => {
                self.works.lock().remove(&name);
                self.wake(&name);
            }
            Change::Synced => self.mark_synced(0),
        })
        .await;
    }

    /// OCM-073: a change of spec or labels, the start of a deletion, a lost finalizer. Nothing else is work.
    fn note_work(&self, work: ManifestWork) {
        let name = work.metadata.name.clone().unwrap_or_default();
        let essence = |w: &ManifestWork| {
            let m = &w.metadata;
            (m.uid.clone(), m.generation, m.labels.clone(), m.deletion_timestamp.is_some())
        };
        let lost = !has_finalizer(&work) && work.metadata.deletion_timestamp.is_none();
        let old = self.works.lock().insert(name.clone(), Arc::new(work.clone()));
        let lost = lost && old.as_ref().is_none_or(|old| has_finalizer(old));
        if lost || old.is_none_or(|old| essence(&old) != essence(&work)) {
            self.wake(&name);
        }
    }

    fn wake(&self, name: &str) {
        self.tracker.lock().mark(name);
        self.queue.forget(&name.to_owned());
        self.queue.add(name.to_owned());
    }

    async fn follow_applied_works(&self) {
        let source = Source::all(applied_manifest_works());
        follow(self.cluster.client(), &source, &self.stop, |change: Change<WatchedApplied>| match change {
            Change::Put(WatchedApplied(applied)) => {
                let name = applied.metadata.name.clone().unwrap_or_default();
                let (ours, work) =
                    (applied.spec.agent_id == self.config.agent_id, applied.spec.manifest_work_name.clone());
                let deleting = applied.metadata.deletion_timestamp.is_some();
                let known = {
                    let mut all = self.applied.lock();
                    let newer = all.get(&name).is_none_or(|old| !older(&applied, old));
                    let known = all.contains_key(&name);
                    if newer {
                        all.insert(name, Arc::new(applied));
                    }
                    known
                };
                // Deletion by an admin, or one that an earlier life left behind (OCM-095, OCM-096).
                if ours && (deleting || !known) {
                    self.wake(&work);
                }
            }
            Change::Gone((_, name)) => {
                let gone = self.applied.lock().remove(&name);
                if let Some(applied) = gone {
                    self.wake(&applied.spec.manifest_work_name);
                }
            }
            Change::Synced => self.mark_synced(1),
        })
        .await;
    }

    async fn work(self: &Arc<Self>) {
        tokio::select! {
            () = self.stop.cancelled() => return,
            () = self.started.cancelled() => {}
        }
        self.config.ready.send_replace(true);
        let me = self.clone();
        work("works", &self.queue, self.config.workers, &self.stop, move |name: String| {
            let me = me.clone();
            async move { me.handle(&name).await }
        })
        .await;
    }

    async fn handle(self: &Arc<Self>, name: &str) -> Result<Next, kube::Error> {
        let touched = self.tracker.lock().take(name);
        let scope = match touched {
            Some(objects) if !objects.is_empty() => Scope::Objects(objects),
            Some(_) if !self.pass_is_due(name) => return Ok(self.until_next_pass(name)),
            Some(_) => Scope::Everything,
            None => Scope::Changed,
        };
        let outcome = self.sync(name, scope).await;
        if matches!(outcome, Ok(Next::OnChange)) {
            return Ok(self.until_next_pass(name));
        }
        self.tracker.lock().mark(name);
        outcome
    }

    /// The queue has one timer for each work, which any other cause to come resets: so it is set anew whenever a work
    /// was handled.
    fn until_next_pass(&self, name: &str) -> Next {
        let pause = self.passes.lock().get(name).map(|due| due.saturating_duration_since(Instant::now()));
        pause.filter(|pause| !pause.is_zero()).map_or(Next::OnChange, Next::After)
    }

    /// For a wake-up without a cause: true when it is time for a full pass.
    fn pass_is_due(&self, name: &str) -> bool {
        self.passes.lock().get(name).is_some_and(|due| *due <= Instant::now())
    }

    /// Plans the next full pass.
    pub(crate) fn plan_pass(&self, name: &str) {
        let nanos = std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .map_or(0, |elapsed| elapsed.subsec_nanos());
        let pause = self.config.reapply.mul_f64(1.0 + f64::from(nanos % 1000) / 2000.0);
        self.passes.lock().insert(name.to_owned(), Instant::now() + pause);
    }

    /// The work is gone: no timer for it any more.
    pub(crate) fn forget(&self, name: &str) {
        self.tracker.lock().forget_work(name);
        self.statuses.lock().remove(name);
        self.passes.lock().remove(name);
    }

    /// Follows the kinds of recorded objects, and no others.
    pub(crate) fn adjust_feeds(self: &Arc<Self>) {
        let wanted = self.tracker.lock().resources();
        let mut feeds = self.feeds.lock();
        feeds.retain(|gvr, stop| {
            let keep = wanted.contains(gvr);
            if !keep {
                stop.cancel();
            }
            keep
        });
        let mut tasks = self.feed_tasks.lock();
        while tasks.try_join_next().is_some() {}
        for gvr in wanted {
            if feeds.contains_key(&gvr) || self.stop.is_cancelled() {
                continue;
            }
            let stop = self.stop.child_token();
            feeds.insert(gvr.clone(), stop.clone());
            let me = self.clone();
            tasks.spawn(async move { me.follow_kind(gvr, &stop).await });
        }
    }

    async fn follow_kind(&self, gvr: Gvr, stop: &CancellationToken) {
        let source = Source::all(gvr.clone()).metadata();
        follow(self.cluster.client(), &source, stop, |change: Change<Meta>| match change {
            Change::Put(object) => self.note_object(&gvr, object.key(), Some(&object)),
            Change::Gone(key) => self.note_object(&gvr, key, None),
            Change::Synced => {}
        })
        .await;
    }

    fn note_object(&self, gvr: &Gvr, (namespace, name): Key, live: Option<&Meta>) {
        let target = Target { group: gvr.group.clone(), resource: gvr.plural.clone(), namespace, name };
        let wake = self.tracker.lock().event(&target, live.map(|l| &l.metadata), Instant::now());
        for (work, pause) in wake {
            if pause.is_zero() {
                self.queue.add(work);
            } else {
                self.queue.add_after(work, pause);
            }
        }
    }

    /// Objects that works other than `except` hold manifests for, by group, kind, namespace and name.
    pub(crate) fn wanted_by_others(&self, except: &str) -> HashSet<(String, String, String, String)> {
        let works: Vec<Arc<ManifestWork>> = self
            .works
            .lock()
            .iter()
            .filter(|(name, work)| *name != except && work.metadata.deletion_timestamp.is_none())
            .map(|(_, work)| work.clone())
            .collect();
        works
            .iter()
            .flat_map(|work| &work.spec.workload.manifests)
            .map(|manifest| {
                let header = Header::of(manifest);
                (header.group, header.kind, header.namespace, header.name)
            })
            .collect()
    }

    /// The AppliedManifestWork of a work, as last seen.
    pub(crate) fn applied_of(&self, name: &str) -> Option<Arc<AppliedManifestWork>> {
        self.applied.lock().get(&self.applied_name(name)).cloned()
    }

    pub(crate) fn applied_name(&self, name: &str) -> String {
        format!("{}-{name}", self.hash)
    }

    pub(crate) fn remember_applied(&self, applied: AppliedManifestWork) -> Arc<AppliedManifestWork> {
        let applied = Arc::new(applied);
        self.applied.lock().insert(applied.metadata.name.clone().unwrap_or_default(), applied.clone());
        applied
    }
}

fn older(new: &AppliedManifestWork, old: &AppliedManifestWork) -> bool {
    let number =
        |w: &AppliedManifestWork| w.metadata.resource_version.as_ref().and_then(|v| v.parse::<u64>().ok());
    new.metadata.uid == old.metadata.uid && matches!((number(new), number(old)), (Some(n), Some(o)) if n < o)
}

pub(crate) fn manifest_works() -> Gvr {
    Gvr::new(WORK_GROUP, "v1", "manifestworks")
}

pub(crate) fn applied_manifest_works() -> Gvr {
    Gvr::new(WORK_GROUP, "v1", "appliedmanifestworks")
}

pub(crate) fn has_finalizer(work: &ManifestWork) -> bool {
    work.metadata.finalizers.iter().flatten().any(|f| f == MANIFEST_WORK_FINALIZER)
}

/// What a status lists, empty when there is none.
pub(crate) fn listed(applied: &AppliedManifestWork) -> &[AppliedResource] {
    applied.status.as_ref().map(|s| s.applied_resources.as_slice()).unwrap_or_default()
}

/// Labels of a work, as pairs.
pub(crate) fn labels(work: &ManifestWork) -> BTreeMap<String, String> {
    work.metadata.labels.clone().unwrap_or_default()
}
