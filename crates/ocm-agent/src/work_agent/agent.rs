//! The shell of the work agent: watches, queue, timers.
//!
//! Cost of a changed work with K manifests: O(K) in memory, the requests for what differs, one status patch
//! on the hub and at most two in the cluster. An event of an applied object costs one look at that object.

use std::{
    collections::{BTreeMap, HashMap},
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
        work::{AppliedManifestWorkSpec, AppliedResource, ManifestWorkStatus},
    },
};
use futures::future::BoxFuture;
use kube::Client;
use parking_lot::Mutex;
use runtime::{
    Next, Queue,
    backoff::jittered,
    feed::{Change, Source, WithoutManagedFields, follow},
    mapper::Mapper,
    metrics::Metrics,
    rest::{Gvr, Rest},
    work,
};
use tokio::{sync::watch, task::JoinSet, time::Instant};
use tokio_util::sync::CancellationToken;

use super::{
    backoff::ManifestBackoff,
    completion::{self, Rules},
    feedback::Raw,
    kinds::Kinds,
    measures::Measures,
    names::HubNames,
    outcome::Done,
    pass::PENDING,
    records::{Meaning, Tracker},
    wanted::ManifestIndex,
};

/// Settings of the work agent.
#[derive(Clone)]
pub struct Config {
    /// Name of the managed cluster, which is also the name of the mailbox namespace.
    pub cluster_name: String,
    /// URL of the hub, exactly as in the agent's kubeconfig unless the hub has moved. Its hash is part of the
    /// names of AppliedManifestWorks (OCM-071); with another URL every object would get a second owner.
    pub hub_url: String,
    /// `--agent-id`; the hub's hash when empty.
    pub agent_id: String,
    /// Number of works processed at a time.
    pub workers: usize,
    /// Number of manifests of one work applied at a time.
    pub parallel_manifests: usize,
    /// Pause before a work is applied again although no change was observed (OCM-073); jitter adds up to a
    /// half.
    pub reapply: Duration,
    /// `--status-sync-interval`: pause between two reads of objects whose resource cannot be watched
    /// (OCM-161); jitter at most doubles it.
    pub status_sync: Duration,
    /// Pause before a manifest that the executor may not apply is retried (OCM-086).
    pub executor_retry: Duration,
    /// How long an AppliedManifestWork without a ManifestWork is kept (OCM-096).
    pub eviction_grace: Duration,
    /// `--allow-mass-eviction`: evict even if more than half of the works disappeared at once (OCM-096).
    pub allow_mass_eviction: bool,
    /// `--max-feedback-watch`: most kinds that are watched; objects of further kinds are read periodically
    /// (OCM-161).
    pub max_watched_kinds: usize,
    /// How feedback values are reported that are neither text, integer nor boolean (OCM-090).
    pub raw_feedback: Raw,
    /// `--unchecked-feedback`: report values of objects that the executor of their work may not `get`, as OCM's agent
    /// does.
    pub unchecked_feedback: bool,
    /// Set to true once the agent works.
    pub ready: watch::Sender<bool>,
    /// Receives the metrics: the queue `ManifestWorkAgent`, and progress of the work (OCM-164).
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
            status_sync: Duration::from_secs(10),
            executor_retry: Duration::from_secs(60),
            eviction_grace: Duration::from_secs(3600),
            allow_mass_eviction: false,
            max_watched_kinds: usize::MAX,
            raw_feedback: Raw::Refused,
            unchecked_feedback: false,
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

/// Runs until `stop` is cancelled. Returns after every task it started has ended.
///
/// # Errors
///
/// If a task of the agent panics.
pub fn run(
    hub: Client,
    cluster: Client,
    config: Config,
    stop: CancellationToken,
) -> BoxFuture<'static, Result<(), Error>> {
    Box::pin(drive(hub, cluster, config, stop))
}

async fn drive(hub: Client, cluster: Client, config: Config, stop: CancellationToken) -> Result<(), Error> {
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
    // The feeds end with `stop`; wait for them, too.
    let mut feeds = agent.kinds.lock().take_tasks();
    while let Some(joined) = feeds.join_next().await {
        outcome = outcome.and(joined.map_err(Error::from));
    }
    outcome
}

/// A work item of the queue.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Item {
    /// A work of the mailbox, by name.
    Work(String),
    /// An AppliedManifestWork of another hub, by its own name.
    Foreign(String),
}

/// When a work is processed although no change was observed.
#[derive(Clone, Copy, Debug)]
struct Clock {
    /// A full pass that corrects every object (OCM-073).
    pass: Instant,
    /// A read of the objects that cannot be watched.
    poll: Instant,
}

pub(crate) struct Agent {
    pub(crate) config: Config,
    pub(crate) hub: Rest,
    pub(crate) cluster: Rest,
    pub(crate) mapper: Mapper,
    pub(crate) names: HubNames,
    pub(crate) works: Mutex<HashMap<String, Arc<ManifestWork>>>,
    pub(crate) wanted: Mutex<ManifestIndex>,
    pub(crate) applied: Mutex<HashMap<String, Arc<AppliedManifestWork>>>,
    pub(crate) tracker: Mutex<Tracker>,
    pub(crate) backoff: Mutex<ManifestBackoff<Done>>,
    /// Compiled rules.
    pub(crate) rules: Arc<Rules>,
    /// The status of a work as this agent last wrote it, with the work's UID; no other client writes it
    /// (OCM-162).
    statuses: Mutex<HashMap<String, (Option<String>, ManifestWorkStatus)>>,
    /// One of these locks, by target, is held while the new owner of an object is decided and written.
    /// Without it, one work could hand an object over to another work that is releasing it.
    pub(crate) removals: Vec<tokio::sync::Mutex<()>>,
    clocks: Mutex<HashMap<String, Clock>>,
    /// Works with objects that are still to be removed, and how long to wait for them.
    leaving: Mutex<HashMap<String, Duration>>,
    pub(crate) kinds: Mutex<Kinds>,
    pub(crate) measures: Measures,
    queue: Queue<Item>,
    synced: [AtomicBool; 2],
    started: CancellationToken,
    pub(crate) stop: CancellationToken,
}

impl Agent {
    fn new(hub: &Client, cluster: &Client, mut config: Config, stop: CancellationToken) -> Self {
        let names = HubNames::new(&config.hub_url);
        let counted = config.metrics.queue("ManifestWorkAgent");
        let measures = Measures::new(&config.metrics);
        if config.agent_id.is_empty() {
            names.hash().clone_into(&mut config.agent_id);
        }
        Self {
            config,
            hub: Rest::new(hub.clone()),
            cluster: Rest::with_manager(cluster.clone(), "work-agent"),
            mapper: Mapper::new(cluster.clone()),
            names,
            works: Mutex::default(),
            wanted: Mutex::default(),
            applied: Mutex::default(),
            tracker: Mutex::default(),
            backoff: Mutex::default(),
            rules: Arc::default(),
            statuses: Mutex::default(),
            removals: (0..64).map(|_| tokio::sync::Mutex::default()).collect(),
            clocks: Mutex::default(),
            leaving: Mutex::default(),
            kinds: Mutex::default(),
            measures,
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
        follow(
            self.hub.client(),
            &source,
            &self.stop,
            |change: Change<WithoutManagedFields<ManifestWork>>| match change {
                Change::Put(WithoutManagedFields(work)) => self.note_work(work),
                Change::Gone((_, name)) => {
                    self.wanted.lock().remove(&name);
                    self.works.lock().remove(&name);
                    self.wake(&name);
                }
                Change::Synced => self.mark_synced(0),
            },
        )
        .await;
    }

    /// OCM-073: enqueues a work for a change of spec or labels, the start of a deletion, a removed finalizer,
    /// or completion. Other changes cause no work.
    fn note_work(&self, work: ManifestWork) {
        let name = work.metadata.name.clone().unwrap_or_default();
        let essence = |w: &ManifestWork| {
            let m = &w.metadata;
            (m.uid.clone(), m.generation, m.labels.clone(), m.deletion_timestamp.is_some(), is_frozen(w))
        };
        let lost = !has_finalizer(&work) && work.metadata.deletion_timestamp.is_none();
        let work = Arc::new(work);
        let old = self.works.lock().insert(name.clone(), work.clone());
        let lost = lost && old.as_ref().is_none_or(|old| has_finalizer(old));
        let changed = old.is_none_or(|old| essence(&old) != essence(&work));
        if changed {
            self.wanted.lock().put(&name, &work);
        }
        if lost || changed {
            self.wake(&name);
        }
    }

    /// Enqueues a work as if for the first time: failed manifests are retried at once.
    fn wake(&self, name: &str) {
        self.tracker.lock().mark(name);
        self.measures.noted(name, Instant::now());
        self.backoff.lock().forget(name);
        let item = Item::Work(name.to_owned());
        self.queue.forget(&item);
        self.queue.add(item);
    }

    /// Enqueues a work for what is pending for it.
    pub(crate) fn queue_work(&self, name: &str) {
        self.queue.add(Item::Work(name.to_owned()));
    }

    /// As [`Agent::queue_work`], for several works.
    pub(crate) fn queue_works(&self, names: &[String]) {
        for name in names {
            self.queue_work(name);
        }
    }

    pub(crate) fn queue_work_after(&self, name: String, pause: Duration) {
        self.queue.add_after(Item::Work(name), pause);
    }

    async fn follow_applied_works(&self) {
        let source = Source::all(applied_manifest_works());
        follow(
            self.cluster.client(),
            &source,
            &self.stop,
            |change: Change<WithoutManagedFields<AppliedManifestWork>>| match change {
                Change::Put(WithoutManagedFields(applied)) => self.note_applied(applied),
                Change::Gone((_, name)) => {
                    let gone = self.drop_applied(&name);
                    if let Some(applied) = gone
                        && self.is_of_this_hub(&applied)
                    {
                        self.wake(&applied.spec.manifest_work_name);
                    }
                }
                Change::Synced => self.mark_synced(1),
            },
        )
        .await;
    }

    /// Handles a deletion by an administrator, or an AppliedManifestWork that an earlier run left behind
    /// (OCM-095, OCM-096).
    fn note_applied(&self, applied: AppliedManifestWork) {
        let name = applied.metadata.name.clone().unwrap_or_default();
        let deleting = applied.metadata.deletion_timestamp.is_some();
        let of_this_hub = self.is_of_this_hub(&applied);
        let ours = self.is_own(&applied.spec);
        let work = applied.spec.manifest_work_name.clone();
        let (known, superseded) = {
            let mut all = self.applied.lock();
            let old = all.get(&name);
            let (known, newer) = (old.is_some(), old.is_none_or(|old| !older(&applied, old)));
            if newer {
                self.measures.eviction(old.map(AsRef::as_ref), Some(&applied));
                all.insert(name.clone(), Arc::new(applied));
            }
            (known, self.names.superseded(&work, |name| all.contains_key(name)))
        };
        if let Some(superseded) = superseded.filter(|_| !known) {
            self.queue.add(Item::Foreign(superseded));
        }
        if !ours || known && !deleting {
            return;
        }
        if of_this_hub {
            self.tracker.lock().mark(&work);
            self.queue_work(&work);
        } else {
            self.queue.add(Item::Foreign(name));
        }
    }

    async fn work(self: &Arc<Self>) {
        tokio::select! {
            () = self.stop.cancelled() => return,
            () = self.started.cancelled() => {}
        }
        self.config.ready.send_replace(true);
        let me = self.clone();
        work("works", &self.queue, self.config.workers, &self.stop, move |item: Item| {
            let me = me.clone();
            async move {
                match &item {
                    Item::Work(name) => me.handle(name).await,
                    Item::Foreign(name) => me.foreign_applied(name).await,
                }
            }
        })
        .await;
    }

    async fn handle(self: &Arc<Self>, name: &str) -> Result<Next, kube::Error> {
        self.measures.begins(name);
        let mut todo = self.tracker.lock().take(name);
        let now = Instant::now();
        let clock = self.clocks.lock().get(name).copied();
        todo.everything |= clock.is_some_and(|clock| clock.pass <= now);
        todo.changed |= self.leaving.lock().contains_key(name);
        todo.changed |= self.backoff.lock().next(name).is_some_and(|due| due <= now);
        if clock.is_some_and(|clock| clock.poll <= now) {
            for target in self.unfollowed(name) {
                todo.objects.entry(target).or_insert(Meaning::Look);
            }
            self.plan_poll(name);
        }
        if todo.is_empty() {
            self.measures.reported(name, false, now);
            return Ok(self.rest(name));
        }
        let outcome = self.sync(name, &mut todo).await;
        match outcome {
            Ok(Next::OnChange) => Ok(self.rest(name)),
            Ok(next) => {
                self.set_leaving(name, Some(PENDING));
                Ok(next)
            }
            Err(error) => {
                let mut tracker = self.tracker.lock();
                tracker.put_back(name, todo);
                tracker.mark(name);
                Err(error)
            }
        }
    }

    /// Sets the timer of a work. The queue has one timer for each work, and any other cause to process the
    /// work resets it, so it is set again after each run.
    fn rest(&self, name: &str) -> Next {
        let now = Instant::now();
        let clock = self.clocks.lock().get(name).copied();
        let leaving = self.leaving.lock().get(name).map(|pause| now + *pause);
        let poll = clock.map(|clock| clock.poll).filter(|_| !self.unfollowed(name).is_empty());
        let retry = self.backoff.lock().next(name);
        let due = [clock.map(|clock| clock.pass), poll, retry, leaving].into_iter().flatten().min();
        due.map_or(Next::OnChange, |due| {
            Next::After(due.saturating_duration_since(now).max(Duration::from_millis(1)))
        })
    }

    /// Schedules the next full pass, if none is scheduled or one has just ended.
    pub(crate) fn plan_pass(&self, name: &str, made: bool) {
        let now = Instant::now();
        let pass = now + jittered(self.config.reapply.mul_f64(1.5)).max(self.config.reapply);
        let poll = now + jittered(self.config.status_sync.saturating_mul(2));
        let mut clocks = self.clocks.lock();
        let clock = clocks.entry(name.to_owned()).or_insert(Clock { pass, poll });
        if made {
            clock.pass = pass;
        }
    }

    fn plan_poll(&self, name: &str) {
        let poll = Instant::now() + jittered(self.config.status_sync.saturating_mul(2));
        if let Some(clock) = self.clocks.lock().get_mut(name) {
            clock.poll = poll;
        }
    }

    /// Notes whether objects of the work are still to be removed, so that it must be processed again after a
    /// pause.
    pub(crate) fn set_leaving(&self, name: &str, pause: Option<Duration>) {
        let mut all = self.leaving.lock();
        match pause {
            Some(pause) => drop(all.insert(name.to_owned(), pause)),
            None => drop(all.remove(name)),
        }
    }

    /// Forgets a work that is gone.
    pub(crate) fn forget(&self, name: &str) {
        let rivals = self.tracker.lock().forget_work(name);
        self.queue_works(&rivals);
        self.backoff.lock().forget(name);
        self.statuses.lock().remove(name);
        self.measures.forget(name);
        self.clocks.lock().remove(name);
        self.leaving.lock().remove(name);
    }

    /// Stops everything about the work until it changes.
    pub(crate) fn freeze(&self, name: &str) {
        self.backoff.lock().forget(name);
        self.clocks.lock().remove(name);
        self.leaving.lock().remove(name);
    }

    /// Returns the status that this agent last wrote for this very work; there may have been another one of
    /// its name before.
    pub(crate) fn last_status(&self, name: &str, work: &ManifestWork) -> Option<ManifestWorkStatus> {
        let statuses = self.statuses.lock();
        statuses.get(name).filter(|(uid, _)| *uid == work.metadata.uid).map(|(_, status)| status.clone())
    }

    pub(crate) fn remember_status(&self, name: &str, work: &ManifestWork, status: ManifestWorkStatus) {
        self.statuses.lock().insert(name.to_owned(), (work.metadata.uid.clone(), status));
    }

    /// Returns whether this very work still exists on the hub.
    pub(crate) fn is_wanted(&self, name: &str, work: &ManifestWork) -> bool {
        self.works.lock().get(name).is_some_and(|now| {
            now.metadata.uid == work.metadata.uid && now.metadata.deletion_timestamp.is_none()
        })
    }

    /// Returns the AppliedManifestWork of a work, as last observed.
    pub(crate) fn applied_of(&self, name: &str) -> Option<Arc<AppliedManifestWork>> {
        let name = self.applied_name(name);
        self.applied.lock().get(&name).cloned()
    }

    /// Returns whether this agent created it, or an agent of this hub without an ID (OCM-071).
    pub(crate) fn is_own(&self, spec: &AppliedManifestWorkSpec) -> bool {
        let names = &self.names;
        spec.agent_id == self.config.agent_id
            || names.is_of_hub(&spec.hub_hash) && names.is_of_hub(&spec.agent_id)
    }

    /// Name of the AppliedManifestWork of a work: of the one that exists, if one does.
    pub(crate) fn applied_name(&self, name: &str) -> String {
        let applied = self.applied.lock();
        self.names.of_work(name, |name| applied.contains_key(name))
    }

    /// Stores the response to a request.
    pub(crate) fn remember_applied(
        &self,
        WithoutManagedFields(applied): WithoutManagedFields<AppliedManifestWork>,
    ) -> Arc<AppliedManifestWork> {
        let applied = Arc::new(applied);
        let name = applied.metadata.name.clone().unwrap_or_default();
        let old = self.applied.lock().insert(name, applied.clone());
        self.measures.eviction(old.as_deref(), Some(&applied));
        applied
    }

    pub(crate) fn drop_applied(&self, name: &str) -> Option<Arc<AppliedManifestWork>> {
        let old = self.applied.lock().remove(name);
        self.measures.eviction(old.as_deref(), None);
        old
    }
}

/// Returns whether a work is complete and must not be changed.
pub(crate) fn is_frozen(work: &ManifestWork) -> bool {
    work.status.as_ref().is_some_and(|status| completion::is_complete(&status.conditions))
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

/// Returns the resources that a status lists; empty without a status.
pub(crate) fn listed(applied: &AppliedManifestWork) -> &[AppliedResource] {
    applied.status.as_ref().map(|s| s.applied_resources.as_slice()).unwrap_or_default()
}

/// Labels of a work, as pairs.
pub(crate) fn labels(work: &ManifestWork) -> BTreeMap<String, String> {
    work.metadata.labels.clone().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::{registration::Connection, work_agent::hub_hash};

    fn agent() -> Arc<Agent> {
        let nowhere = Connection::default().client();
        let config = Config { reapply: Duration::ZERO, ..Config::new("c1", "https://hub") };
        Arc::new(Agent::new(&nowhere, &nowhere, config, CancellationToken::new()))
    }

    fn work(uid: &str, conditions: Value) -> ManifestWork {
        serde_json::from_value(json!({
            "apiVersion": "work.open-cluster-management.io/v1", "kind": "ManifestWork",
            "metadata": {"name": "w", "namespace": "c1", "uid": uid, "finalizers": [MANIFEST_WORK_FINALIZER]},
            "spec": {"workload": {"manifests": []}}, "status": {"conditions": conditions},
        }))
        .unwrap()
    }

    /// OCM-073: when the time for another pass comes, a complete work is left alone, and not processed again
    /// and again.
    #[tokio::test]
    async fn ocm_073_a_complete_work_is_at_rest() {
        let agent = agent();
        agent.plan_pass("w", true);
        let complete = json!([{"type": "Complete", "status": "True", "reason": "ConditionRulesAggregated",
            "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}]);
        agent.note_work(work("a", complete));
        for _ in 0..2 {
            assert_eq!(agent.handle("w").await.unwrap(), Next::OnChange);
        }
    }

    /// OCM-071, OCM-096: an agent that got an ID continues with the AppliedManifestWorks that it created for
    /// this hub without one, and leaves those of other agents alone.
    #[tokio::test]
    async fn ocm_071_whose_an_applied_work_is() {
        let nowhere = Connection::default().client();
        let named = |id: &str| {
            let config = Config { agent_id: id.into(), ..Config::new("c1", "https://hub") };
            Agent::new(&nowhere, &nowhere, config, CancellationToken::new())
        };
        let (this, other) = (hub_hash("https://hub"), hub_hash("https://other"));
        for (hub, agent, own) in [
            (&this, "ship", true),
            (&other, "ship", true),
            (&this, this.as_str(), true),
            (&other, other.as_str(), false),
            (&other, this.as_str(), false),
            (&this, "boat", false),
        ] {
            let spec = AppliedManifestWorkSpec {
                hub_hash: hub.clone(),
                manifest_work_name: "w".into(),
                agent_id: agent.into(),
            };
            assert_eq!(named("ship").is_own(&spec), own, "{hub} {agent}");
        }
    }

    /// OCM-162: the last written status of a work is not used for another work of its name.
    #[tokio::test]
    async fn ocm_162_a_work_made_anew_has_no_status_yet() {
        let agent = agent();
        let (old, new) = (work("a", json!([])), work("b", json!([])));
        agent.remember_status("w", &old, ManifestWorkStatus::default());
        assert!(agent.last_status("w", &old).is_some());
        assert!(agent.last_status("w", &new).is_none());
    }
}
