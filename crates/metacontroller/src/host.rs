//! Hosts the controllers: each MapController, CompositeController and DecoratorController object is a
//! controller that runs as its object specifies (MC-003, MC-093, MC-094, MC-140).

use std::{
    collections::{BTreeMap, HashMap},
    panic::AssertUnwindSafe,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures::{
    FutureExt,
    future::{BoxFuture, join_all},
};
use machinery::selector::LabelSelector;
use parking_lot::Mutex;
use runtime::{Next, Queue, rest::Rest, work};
use serde_json::Value;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::{
    cache::{Cache, FollowGuard},
    conditions::{self, Condition},
    definitions, hooks, map,
    object::{self, Object, Text},
    resource::Served,
    shared::{FailureReport, Shared, StartError},
    sync::{self, shell::Syncer},
};

/// The kinds of hosted controllers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    Map,
    Composite,
    Decorator,
}

impl Kind {
    const ALL: [Self; 3] = [Self::Map, Self::Composite, Self::Decorator];

    /// Its name.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Map => "MapController",
            Self::Composite => "CompositeController",
            Self::Decorator => "DecoratorController",
        }
    }

    fn plural(self) -> &'static str {
        match self {
            Self::Map => "mapcontrollers",
            Self::Composite => "compositecontrollers",
            Self::Decorator => "decoratorcontrollers",
        }
    }

    fn served(self) -> Served {
        Served {
            gvr: runtime::rest::Gvr::new(apis::constants::METACONTROLLER_GROUP, "v1alpha1", self.plural()),
            kind: self.as_str().into(),
            namespaced: false,
            has_status: true,
        }
    }
}

type Id = (Kind, Text);

/// After this time a log message says that the objects of a kind are not known yet.
const LATE: Duration = Duration::from_secs(10);

/// Pause before a controller that ended by itself is started again.
const RESTART: Duration = Duration::from_secs(5);

/// Starts and stops controllers according to their objects.
pub struct Host {
    shared: Arc<Shared>,
    rest: Rest,
    target: LabelSelector,
    caches: BTreeMap<Kind, Arc<Cache>>,
    queue: Queue<Id>,
    running: Mutex<HashMap<Id, HostedController>>,
    refused: Mutex<HashMap<Id, RejectedSpec>>,
}

/// A spec whose controller could not be started.
#[derive(Clone, Debug, PartialEq)]
struct RejectedSpec {
    uid: String,
    spec: Value,
    /// The last reported problem, if the start is retried. `None` if the controller will not start until its
    /// spec changes.
    said: Option<String>,
}

/// The resources that a controller uses, and what to do when one of them is served again.
struct Dependencies {
    resources: Vec<(Served, Arc<Cache>)>,
    returned: Box<dyn Fn() + Send + Sync>,
}

struct HostedController {
    uid: String,
    spec: Value,
    /// The controller object as hooks receive it, updated when the object changes.
    object: Arc<Mutex<Arc<Value>>>,
    stop: CancellationToken,
    /// Set if the controller ended without being stopped: by a panic, or because a resource is served
    /// differently.
    ended: Arc<AtomicBool>,
    task: JoinHandle<()>,
}

impl Host {
    /// Hosts the controllers with these labels. A failed start is retried after `again` at most.
    pub fn new(shared: Arc<Shared>, rest: Rest, target: LabelSelector, again: Duration) -> Arc<Self> {
        let caches = Kind::ALL.into_iter().map(|kind| (kind, shared.caches.get(&kind.served()))).collect();
        let queue = Queue::new(Duration::from_millis(250).min(again), again);
        Arc::new(Self {
            shared,
            rest,
            target,
            caches,
            queue,
            running: Mutex::default(),
            refused: Mutex::default(),
        })
    }

    /// Hosts controllers until the shared token is cancelled; all of them have ended when this returns. Calls
    /// `ready` once all controller objects are known. A kind whose CRD does not exist, as in a cluster with
    /// the CRDs of the original, does not delay the others.
    pub async fn run(self: Arc<Self>, ready: impl FnOnce()) {
        let stop = self.shared.stop.clone();
        let mut following = Vec::new();
        for (kind, cache) in &self.caches {
            let (queue, kind, all) = (self.queue.clone(), *kind, Arc::downgrade(cache));
            following.push(cache.follow(move |(old, new)| {
                // A controller that starts must know all others of its kind.
                if all.upgrade().is_some_and(|all| all.is_synced()) {
                    for object in old.into_iter().chain(new) {
                        queue.add((kind, object.key().name.clone()));
                    }
                }
            }));
        }
        let first = self.caches.iter().map(|(kind, cache)| self.first(*kind, cache));
        let first = async {
            join_all(first).await;
            ready();
            std::future::pending::<()>().await;
        };
        let this = self.clone();
        let working = work("controllers", &self.queue, 4, &stop, move |id| {
            let host = this.clone();
            async move { host.reconcile(&id).await }
        });
        tokio::select! {
            () = working => {}
            () = first => {}
        }
        drop(following);
        let ids: Vec<Id> = self.running.lock().keys().cloned().collect();
        for id in ids {
            self.end(&id, None).await;
        }
    }

    /// Enqueues all objects of a kind, once they are known.
    async fn first(&self, kind: Kind, cache: &Cache) {
        if tokio::time::timeout(LATE, cache.synced()).await.is_err() {
            let why = cache.watch_error().borrow().clone();
            tracing::warn!(
                kind = kind.as_str(),
                why = why.as_deref(),
                "its objects can't be listed so far; none of this kind runs until they can"
            );
            cache.synced().await;
        }
        for object in cache.list("") {
            self.queue.add((kind, object.key().name.clone()));
        }
    }

    async fn reconcile(&self, id: &Id) -> Result<Next, StartError> {
        let (kind, name) = id;
        let found = self.caches.get(kind).and_then(|cache| cache.get("", name));
        let wanted = found.filter(|object| {
            !object::is_terminating(&object.value)
                && self.target.matches_labels(object::labels(&object.value))
        });
        let Some(wanted) = wanted else {
            self.refused.lock().remove(id);
            self.end(id, Some("the object is gone or is selected no more")).await;
            return Ok(Next::OnChange);
        };
        let spec = wanted.value.get("spec").cloned().unwrap_or_default();
        let mut why = "the spec changed";
        {
            let running = self.running.lock();
            if let Some(hosted) = running.get(id)
                && hosted.uid == wanted.uid()
                && hosted.spec == spec
            {
                if !hosted.ended.load(Ordering::SeqCst) {
                    *hosted.object.lock() = Arc::new(object::without_managed_fields(&wanted.value));
                    return Ok(Next::OnChange);
                }
                why = "it ended by itself and is started again";
            }
        }
        let known = self.refused.lock().get(id).cloned();
        let known = known.filter(|known| known.uid == wanted.uid() && known.spec == spec);
        if known.as_ref().is_some_and(|known| known.said.is_none()) {
            return Ok(Next::OnChange);
        }
        self.end(id, Some(why)).await;
        match self.start(id, &wanted, spec.clone()).await {
            Ok(()) => {
                self.refused.lock().remove(id);
                Ok(Next::OnChange)
            }
            Err(why) => {
                self.shared.metrics.forget((kind.as_str(), name));
                let again = known.and_then(|known| known.said).as_ref() == Some(&why.text);
                self.report_start_error(id, &wanted.value, &why, again);
                let condition = Condition::not_ready(why.reason, &why.text);
                let reported = self.condition(*kind, &wanted.value, condition).await;
                // If the condition could not be written, the next try writes it.
                let next = if why.passing || !reported { Next::Retry } else { Next::OnChange };
                let said = (next == Next::Retry).then_some(why.text);
                self.refused
                    .lock()
                    .insert(id.clone(), RejectedSpec { uid: wanted.uid().to_owned(), spec, said });
                Ok(next)
            }
        }
    }

    /// Reports why a controller was not started; `again` if the reason is the same as last time.
    fn report_start_error(&self, (kind, name): &Id, object: &Value, why: &StartError, again: bool) {
        let events = &self.shared.events;
        match why.failure_report {
            FailureReport::CreateError => {
                events.warning(object, "CreateError", format!("Cannot create new controller: {why}"));
            }
            FailureReport::SyncError if !again => {
                events.warning(object, "SyncError", format!("[{name}] Sync error - {why}"));
            }
            FailureReport::Log if !again => {
                tracing::info!(kind = kind.as_str(), %name, %why, "not started yet; waiting for the missing resource");
            }
            FailureReport::SyncError | FailureReport::Log => {
                tracing::debug!(kind = kind.as_str(), %name, %why, "still not started");
            }
        }
    }

    async fn start(&self, id: &Id, object: &Arc<Object>, spec: Value) -> Result<(), StartError> {
        let (kind, name) = id;
        let whole = self.shared.stop.child_token();
        let stop = whole.child_token();
        let shown = Arc::new(Mutex::new(Arc::new(object::without_managed_fields(&object.value))));
        let (life, dependencies) = match kind {
            Kind::Map => self.start_map(name, object, &shown, stop.clone()).await?,
            Kind::Composite => {
                let (running, periods) =
                    sync::setup::composite(&self.shared, &object.value, shown.clone(), stop.clone()).await?;
                let following = running.follow();
                self.start_sync(*kind, object, running, periods, following)
            }
            Kind::Decorator => {
                let (running, periods) =
                    sync::setup::decorator(&self.shared, &object.value, shown.clone(), stop.clone()).await?;
                let following = running.follow();
                self.start_sync(*kind, object, running, periods, following)
            }
        };
        let life = self.until_another(life, dependencies, stop).boxed();
        let ended = Arc::new(AtomicBool::new(false));
        let task = tokio::spawn(watched(life, id.clone(), self.queue.clone(), ended.clone(), whole.clone()));
        let hosted =
            HostedController { uid: object.uid().to_owned(), spec, object: shown, stop: whole, ended, task };
        self.running.lock().insert(id.clone(), hosted);
        Ok(())
    }

    /// Returns a future that ends with the controller, or when one of its resources is served differently.
    fn until_another(
        &self,
        mut life: BoxFuture<'static, ()>,
        dependencies: Dependencies,
        stop: CancellationToken,
    ) -> impl Future<Output = ()> + Send + use<> {
        let client = self.rest.client().clone();
        async move {
            let another = definitions::another(client, dependencies.resources, dependencies.returned);
            tokio::select! {
                () = &mut life => {}
                served = another => {
                    tracing::info!(resource = served.group_resource(), "the resource is served differently than before");
                    stop.cancel();
                    life.await;
                }
            }
        }
    }

    async fn start_map(
        &self,
        name: &Text,
        object: &Arc<Object>,
        shown: &Arc<Mutex<Arc<Value>>>,
        stop: CancellationToken,
    ) -> Result<(BoxFuture<'static, ()>, Dependencies), StartError> {
        let controllers = self.caches.get(&Kind::Map).cloned();
        let exists: map::mapping::Exists =
            Arc::new(move |name| controllers.as_ref().is_some_and(|cache| cache.get("", name).is_some()));
        let (running, periods, hooks) =
            map::setup::prepare(&self.shared, &object.value, exists, shown.clone(), stop.clone()).await?;
        let numbers = running.clone();
        self.shared.metrics.numbers(("MapController", name), Arc::new(move || numbers.numbers()));
        self.shared.events.normal(&object.value, "Starting", format!("Starting controller: {name}"));
        // If this write fails, the next condition replaces it.
        self.condition(Kind::Map, &object.value, Condition::not_ready("Starting", "filling caches")).await;
        let health = conditions::Health::new(self.rest.clone(), Kind::Map.served(), object.value.clone());
        let (events, about, name) = (self.shared.events.clone(), object.clone(), name.clone());
        let rest = self.rest.clone();
        // Failed items are retried within a minute anyway.
        let dependencies =
            Dependencies { resources: running.mapping().resources(), returned: Box::new(|| {}) };
        let life = Box::pin(async move {
            let (started, is_started) = tokio::sync::watch::channel(false);
            let caches = running.mapping().caches();
            let watching = health.run(caches, is_started, stop.clone());
            let on_start = move || {
                events.normal(&about.value, "Started", format!("Started controller: {name}"));
                started.send_replace(true);
            };
            let all = std::iter::once(hooks.map).chain(hooks.tombstone);
            let credentials = all.map(|hook| hooks::follow(rest.clone(), hook, stop.clone()));
            let credentials = join_all(credentials);
            tokio::join!(running.run(periods, on_start), watching, credentials);
        });
        Ok((life, dependencies))
    }

    fn start_sync<S: Syncer>(
        &self,
        kind: Kind,
        object: &Arc<Object>,
        running: Arc<S>,
        periods: map::run::Periods,
        following: Vec<FollowGuard>,
    ) -> (BoxFuture<'static, ()>, Dependencies) {
        let name = running.base().name.clone();
        let numbers = running.clone();
        self.shared.metrics.numbers((kind.as_str(), &name), Arc::new(move || numbers.base().numbers()));
        self.shared.events.normal(&object.value, "Starting", format!("Starting controller: {name}"));
        let (events, about, rest) = (self.shared.events.clone(), object.clone(), self.rest.clone());
        let (workers, cache) = (self.shared.workers, self.caches.get(&kind).cloned());
        let queue = running.base().queue.clone();
        // The pauses between retries may have grown to a quarter of an hour.
        let returned = Box::new(move || queue.retry_now());
        let dependencies = Dependencies { resources: running.base().resources(), returned };
        let life = Box::pin(async move {
            let on_start = || events.normal(&about.value, "Started", format!("Started controller: {name}"));
            let stop = running.base().stop.clone();
            let hooks = running.base().hooks.all().into_iter();
            let credentials = join_all(hooks.map(|hook| hooks::follow(rest.clone(), hook, stop.clone())));
            tokio::join!(sync::shell::run(running.clone(), periods, workers, on_start), credentials);
            drop(following);
            let left = running.base().finalizers_left();
            if left > 0 && cache.is_none_or(|cache| cache.get("", &name).is_none()) {
                let text =
                    format!("{left} object(s) keep the finalizer {} and can't go", running.base().finalizer);
                events.normal(&about.value, "FinalizersLeft", text);
            }
        });
        (life, dependencies)
    }

    /// Stops a controller and waits for it.
    async fn end(&self, id: &Id, why: Option<&str>) {
        let Some(hosted) = self.running.lock().remove(id) else { return };
        let (kind, name) = id;
        let object = hosted.object.lock().clone();
        tracing::info!(kind = kind.as_str(), %name, why, "stopping");
        self.shared.events.normal(&object, "Stopping", format!("Stopping controller: {name}"));
        hosted.stop.cancel();
        if let Err(error) = hosted.task.await {
            tracing::error!(kind = kind.as_str(), %name, %error, "a controller ended badly");
        }
        self.shared.metrics.forget((kind.as_str(), name));
        self.shared.events.normal(&object, "Stopped", format!("Stopped controller: {name}"));
    }

    /// Writes the condition. Returns false if that failed.
    async fn condition(&self, kind: Kind, object: &Value, condition: Condition) -> bool {
        // The other kinds have no condition: the schema of the original prunes it.
        if kind != Kind::Map {
            return true;
        }
        let written = conditions::write(&self.rest, &kind.served(), object, &condition).await;
        if let Err(error) = &written {
            tracing::warn!(name = object::name(object), error, "the condition can't be written");
        }
        written.is_ok()
    }
}

/// Runs a controller. If it ends without being stopped, the host restarts it after a pause.
async fn watched(
    life: BoxFuture<'static, ()>,
    id: Id,
    queue: Queue<Id>,
    ended: Arc<AtomicBool>,
    stop: CancellationToken,
) {
    let outcome = AssertUnwindSafe(life).catch_unwind().await;
    let (kind, name) = (id.0.as_str(), id.1.clone());
    let reason = outcome.as_ref().err().map(|panic| runtime::panic_text(panic.as_ref()));
    if let Some(reason) = reason {
        tracing::error!(kind, %name, reason, "a controller panicked");
    }
    if !stop.is_cancelled() {
        tracing::warn!(kind, %name, "a controller ended by itself; it will be restarted");
        // Set before the key is added, so that the worker sees it.
        ended.store(true, Ordering::SeqCst);
        queue.add_after(id, RESTART);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A controller that ended by itself is started again, a stopped one is not.
    #[tokio::test(start_paused = true)]
    async fn a_controller_that_panics_is_looked_at_again() {
        let id: Id = (Kind::Map, "mc".into());
        for (life, stopped, again) in [
            (async { panic!("oh no") }.boxed(), false, true),
            (async {}.boxed(), false, true),
            (async {}.boxed(), true, false),
            (async { panic!("oh no") }.boxed(), true, false),
        ] {
            let (queue, ended, stop) =
                (Queue::default(), Arc::new(AtomicBool::new(false)), CancellationToken::new());
            if stopped {
                stop.cancel();
            }
            watched(life, id.clone(), queue.clone(), ended.clone(), stop).await;
            assert_eq!((ended.load(Ordering::SeqCst), !queue.is_idle()), (again, again));
            if again {
                assert_eq!(*queue.next(&CancellationToken::new()).await.unwrap().key(), id);
            }
        }
    }
}
