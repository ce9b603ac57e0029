//! The shell of the status agent: reads four kinds of feeds and writes WorkStatuses.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use apis::control::WorkStatus;
use apis::ocm::{AppliedManifestWork, ManifestWork};
use futures::future::BoxFuture;
use kube::Client;
use parking_lot::Mutex;
use runtime::events::{self, Events, Recorder};
use runtime::failure::{is_clash, is_not_found};
use runtime::feed::{self, Change};
use runtime::limiter::Rate;
use runtime::mapper::Mapper;
use runtime::metrics::Metrics;
use runtime::rest::{Gvr, Removal, Rest};
use runtime::{Next, Queue, Source as Collection, TaskError, TaskPool, Tasks, work};
use serde_json::{Value, json};
use tokio::sync::{Notify, watch};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use crate::decide::{Effect, Object, Source, plan};
use crate::items::{Applied, Delivered, Named, Reported, Work};
use crate::measures::Measures;
use crate::unserved::Unserved;
use crate::view::{Affected, ConflictReport, View};

/// Field manager of the agent's writes.
const MANAGER: &str = "status-agent";
/// Number of workers.
const WORKERS: usize = 8;
/// Back-off of a write that failed: shortest and longest pause.
const RETRY: (Duration, Duration) = (Duration::from_millis(5), Duration::from_secs(120));

/// Rate limit for Events about one ManifestWork, as in client-go.
const EVENTS: Rate = Rate { qps: 1.0 / 300.0, burst: 25 };

/// The settings of an agent.
#[derive(Clone, Debug)]
pub struct Config {
    /// Name of the cluster, which is also the name of its mailbox namespace in the inventory space.
    pub cluster_name: String,
    /// Whether WorkStatuses tell how current objects are, for ManifestWorks that carry generations (OCM-139).
    /// Costs at most two writes for each object whose generation changed, and the transfer of whole
    /// ManifestWorks instead of their metadata.
    pub status_details: bool,
    /// Set to true once every feed has read its first list.
    pub ready: watch::Sender<bool>,
    /// Receives the metrics: the queue `status-agent`, and progress of the work (OCM-164).
    pub metrics: Metrics,
}

impl Config {
    pub fn new(cluster_name: &str) -> Self {
        Self {
            cluster_name: cluster_name.into(),
            status_details: false,
            ready: watch::Sender::new(false),
            metrics: Metrics::default(),
        }
    }
}

/// Runs the agent of one cluster until `stop`. `cluster` is a client of the cluster, `hub` one of the
/// inventory space.
///
/// # Errors
///
/// If a task of the agent panics.
pub fn run(
    cluster: Client,
    hub: Client,
    config: Config,
    stop: CancellationToken,
) -> BoxFuture<'static, Result<(), TaskError>> {
    Tasks::run(stop, move |tasks| start(tasks, cluster, hub, config))
}

fn start(tasks: &mut Tasks, cluster: Client, hub: Client, config: Config) {
    let stop = tasks.token().clone();
    let counted = config.metrics.queue("status-agent");
    let (measures, view) = (Measures::new(&config.metrics), View::new(config.status_details));
    let hub = Rest::with_manager(hub, MANAGER);
    let (events, inbox) = Events::new();
    let recorder = Recorder::new(hub.clone(), MANAGER, EVENTS);
    let agent = Arc::new(Agent {
        config,
        measures,
        mapper: Mapper::new(cluster.clone()),
        cluster,
        hub,
        view: Mutex::new(view),
        unserved: Mutex::default(),
        queue: Queue::new(RETRY.0, RETRY.1).observed(counted),
        kinds_changed: Notify::new(),
        events,
    });
    let feeds = TaskPool::new(&stop);
    tasks.depend_on("watches of objects", &feeds);
    tasks.spawn_endless("Events", events::write(recorder, inbox, stop.clone()));
    tasks.spawn_endless("AppliedManifestWorks", agent.clone().follow_applied(stop.clone()));
    tasks.spawn_endless("ManifestWorks", agent.clone().follow_works(stop.clone()));
    tasks.spawn_endless("WorkStatuses", agent.clone().follow_reports(stop.clone()));
    tasks.spawn_endless("kinds", agent.clone().follow_kinds(feeds));
    tasks.spawn_endless("workers", agent.work(stop));
}

struct Agent {
    config: Config,
    measures: Measures,
    cluster: Client,
    hub: Rest,
    mapper: Mapper,
    view: Mutex<View>,
    unserved: Mutex<Unserved>,
    queue: Queue<Source>,
    /// Notified when the set of resources to follow may have changed.
    kinds_changed: Notify,
    events: Events,
}

fn work_statuses() -> Gvr {
    Gvr::of::<WorkStatus>()
}

impl Agent {
    async fn work(self: Arc<Self>, stop: CancellationToken) {
        let me = self.clone();
        let handle = move |source: Source| {
            let me = me.clone();
            async move { me.act(&source).await }
        };
        work("status-agent", &self.queue, WORKERS, &stop, handle).await;
    }

    async fn follow_applied(self: Arc<Self>, stop: CancellationToken) {
        let source = Collection::of::<AppliedManifestWork>();
        feed::follow(&self.cluster, &source, &stop, |change: Change<Applied>| {
            let affected = match change {
                Change::Put(item) => self.view.lock().put_applied(&item),
                Change::Gone(key) => self.view.lock().gone_applied(&key.name),
                Change::Synced => Affected { sources: self.view.lock().applied_synced(), kinds: true },
            };
            self.enqueue(affected.sources);
            if affected.kinds {
                self.kinds_changed.notify_one();
            }
        })
        .await;
    }

    async fn follow_works(self: Arc<Self>, stop: CancellationToken) {
        let source = Collection::of::<ManifestWork>().namespaced(self.config.cluster_name.as_str());
        let source = if self.config.status_details { source } else { source.metadata() };
        feed::follow(self.hub.client(), &source, &stop, |change: Change<Work>| {
            self.enqueue(match change {
                Change::Put(item) => self.view.lock().put_work(item),
                Change::Gone(key) => self.view.lock().gone_work(&key.name),
                Change::Synced => self.view.lock().works_synced(),
            });
        })
        .await;
    }

    async fn follow_reports(self: Arc<Self>, stop: CancellationToken) {
        let source = Collection::of::<WorkStatus>().namespaced(self.config.cluster_name.as_str());
        feed::follow(self.hub.client(), &source, &stop, |change: Change<Reported>| {
            self.enqueue(match change {
                Change::Put(item) => self.view.lock().put_report(item),
                Change::Gone(key) => self.view.lock().gone_report(&key.name),
                Change::Synced => self.view.lock().reports_synced(),
            });
        })
        .await;
    }

    /// Starts and stops one feed for each resource of delivered objects, and one on CRDs while any of those
    /// resources is not served.
    async fn follow_kinds(self: Arc<Self>, feeds: TaskPool) {
        let stop = feeds.token();
        let mut running: HashMap<Gvr, CancellationToken> = HashMap::new();
        let mut definitions: Option<CancellationToken> = None;
        loop {
            let again = self.unserved.lock().next();
            tokio::select! {
                () = stop.cancelled() => break,
                () = self.kinds_changed.notified() => {}
                () = sleep_until(again.unwrap_or_else(Instant::now)), if again.is_some() => {}
            }
            let wanted = self.view.lock().wanted();
            self.unserved.lock().retain(&wanted);
            running.retain(|gvr, token| {
                let keep = wanted.contains(gvr);
                if !keep {
                    token.cancel();
                    let all = self.view.lock().unfollow(gvr);
                    self.enqueue(all);
                }
                keep
            });
            for gvr in wanted {
                if running.contains_key(&gvr) || !self.unserved.lock().is_due(&gvr, Instant::now()) {
                    continue;
                }
                let Some(kind) = self.kind_of(&gvr).await else { continue };
                let token = stop.child_token();
                running.insert(gvr.clone(), token.clone());
                self.view.lock().follow(gvr.clone(), &kind);
                let me = self.clone();
                feeds.spawn(format!("watch of {}", gvr.plural), async move {
                    me.follow_objects(gvr, &token).await;
                });
            }
            let waiting = !self.unserved.lock().is_empty();
            if !waiting && let Some(token) = definitions.take() {
                token.cancel();
            }
            if waiting && definitions.is_none() {
                let token = stop.child_token();
                definitions = Some(token.clone());
                let me = self.clone();
                feeds.spawn("watch of definitions", async move { me.follow_definitions(&token).await });
            }
        }
        feeds.shutdown().await;
    }

    /// Returns the kind. It is part of the name of a WorkStatus, so it must be known before the first object
    /// is processed.
    async fn kind_of(&self, gvr: &Gvr) -> Option<String> {
        let answer = self.mapper.by_resource(gvr).await;
        let mut unserved = self.unserved.lock();
        match answer {
            Ok(Some(mapped)) => {
                unserved.found(gvr);
                return Some(mapped.kind);
            }
            Ok(None) => {}
            Err(error) => tracing::debug!(%error, "asking what the cluster serves"),
        }
        unserved.missed(gvr, Instant::now());
        None
    }

    async fn follow_definitions(&self, stop: &CancellationToken) {
        let source =
            Collection::all(Gvr::new("apiextensions.k8s.io", "v1", "customresourcedefinitions")).metadata();
        feed::follow(&self.cluster, &source, stop, |change: Change<Named>| {
            if let Change::Put(definition) = change
                && self.unserved.lock().defined(&definition.metadata.name, Instant::now())
            {
                self.kinds_changed.notify_one();
            }
        })
        .await;
    }

    async fn follow_objects(&self, gvr: Gvr, stop: &CancellationToken) {
        let source = Collection::all(gvr.clone());
        feed::follow(&self.cluster, &source, stop, |change: Change<Delivered>| {
            if stop.is_cancelled() {
                return;
            }
            let changed = match change {
                Change::Put(item) => self.view.lock().put_object(&gvr, item),
                Change::Gone(key) => self.view.lock().gone_object(&gvr, &key),
                Change::Synced => {
                    let all = self.view.lock().objects_synced(&gvr);
                    self.enqueue(all);
                    return;
                }
            };
            if let Some(source) = changed {
                self.measures.noted(&source, Instant::now());
                self.enqueue(vec![source]);
            }
        })
        .await;
    }

    /// Enqueues objects. The caller must not hold the lock of the view.
    fn enqueue(&self, sources: Vec<Source>) {
        for source in sources {
            self.queue.add(source);
        }
        if !*self.config.ready.borrow() && self.view.lock().ready() {
            self.config.ready.send_replace(true);
        }
    }

    async fn act(&self, source: &Source) -> Result<Next, kube::Error> {
        let since = self.measures.begins(source);
        let (object, existing) = self.view.lock().look(source);
        let effects = plan(&self.config.cluster_name, source, &object, &existing);
        if effects.is_empty() {
            // The ManifestWork of the object is not known yet: the change still waits.
            self.measures.failed(source, since.filter(|_| object == Object::Unclear));
            return Ok(Next::OnChange);
        }
        for effect in effects {
            if let Effect::Conflict { .. } = &effect {
                return Ok(self.report_conflict(source, &effect));
            }
            let outcome = self.apply(effect).await;
            self.measures.wrote(&outcome);
            if outcome.is_err() {
                self.measures.failed(source, since);
            }
            match outcome {
                Ok(()) => {}
                // The feed brings the newer version, and with it the next run.
                Err(error) if is_clash(&error) => return Ok(Next::Retry),
                Err(error) => return Err(error),
            }
        }
        self.measures.settled(since, Instant::now());
        Ok(Next::OnChange)
    }

    /// Reports once that an object has no WorkStatus because another object's WorkStatus has the name. When
    /// that WorkStatus is deleted, the object is enqueued.
    fn report_conflict(&self, source: &Source, effect: &Effect) -> Next {
        let Effect::Conflict { name, holder, work_name, work_uid } = effect else { return Next::OnChange };
        match self.view.lock().wait_for(name, source) {
            ConflictReport::Free => return Next::Retry,
            ConflictReport::Still => return Next::OnChange,
            ConflictReport::First => {}
        }
        let called = |s: &Source| {
            let place = if s.namespace.is_empty() { String::new() } else { format!("{}/", s.namespace) };
            format!("{} {place}{}", s.gvr.plural, s.name)
        };
        let work = json!({"apiVersion": "work.open-cluster-management.io/v1", "kind": "ManifestWork",
            "metadata": {"namespace": self.config.cluster_name, "name": work_name, "uid": work_uid}});
        let why = format!(
            "no status of {} is returned: its WorkStatus would have the same name as that of {}, {name}",
            called(source),
            called(holder)
        );
        self.events.warning(&work, "WorkStatusNameClash", why);
        Next::OnChange
    }

    async fn apply(&self, effect: Effect) -> Result<(), kube::Error> {
        let (gvr, namespace) = (work_statuses(), self.config.cluster_name.as_str());
        match effect {
            Effect::Delete { name, uid } => {
                let removal = Removal { uid: Some(uid), propagation: None };
                match self.hub.delete(&gvr, namespace, &name, &removal).await {
                    Err(error) if is_not_found(&error) => Ok(()),
                    other => other,
                }
            }
            Effect::Create { object, status } => {
                let created: Reported =
                    self.hub.create(&gvr, namespace, object.to_string().into_bytes()).await?;
                let name = created.metadata.name.clone();
                // Stored at once, so that the next change of the object does not create it again.
                let mut affected = self.view.lock().wrote_report(created);
                // The object itself is being processed.
                affected.pop();
                self.enqueue(affected);
                match status {
                    Some(status) => self.report(&gvr, namespace, &name, &status).await,
                    None => Ok(()),
                }
            }
            Effect::Label { name, labels } => {
                let patch = json!({ "metadata": { "labels": labels } });
                self.hub.merge::<Value>(&gvr, namespace, &name, &patch).await.map(|_| ())
            }
            Effect::Details { name, currency } => {
                let now =
                    jiff::Timestamp::from_second(jiff::Timestamp::now().as_second()).unwrap_or_default();
                let patch = json!({"statusDetails": {"lastGeneration": currency.generation,
                    "lastGenerationIsApplied": currency.applied, "lastCurrencyUpdateTime": now.to_string()}});
                let answer: Reported = self.hub.merge(&gvr, namespace, &name, &patch).await?;
                self.view.lock().wrote_report(answer);
                Ok(())
            }
            Effect::Report { name, status } => self.report(&gvr, namespace, &name, &status).await,
            // Already reported.
            Effect::Conflict { .. } => Ok(()),
        }
    }

    async fn report(
        &self,
        gvr: &Gvr,
        namespace: &str,
        name: &str,
        status: &Value,
    ) -> Result<(), kube::Error> {
        let patch = json!([{ "op": "add", "path": "/status", "value": status }]);
        let answer: Reported = self.hub.json_patch_status(gvr, namespace, name, patch).await?;
        self.view.lock().wrote_report(answer);
        Ok(())
    }
}
