//! The hosted controllers: each MapController, CompositeController and DecoratorController object is a controller that
//! runs as long as its object wants it to (MC-003, MC-093, MC-094, MC-140).

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
use runtime::{Next, Queue, events::Events, mapper::Mapper, rest::Rest, work};
use serde_json::Value;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::{
    cache::{Cache, Caches, FollowGuard},
    conditions::{self, Condition},
    definitions,
    hooks::{self, Credentials, HookClient, Proxies, Settings},
    map,
    metrics::Metrics,
    object::{self, Object, Text},
    resource::Served,
    status_board::StatusBoard,
    sync::{self, shell::Syncer},
    writes::Writer,
};

/// What all hosted controllers share.
pub struct Shared {
    /// One watch for each resource.
    pub caches: Caches,
    /// Writes objects.
    pub writer: Arc<Writer>,
    /// Which resource serves a kind, for children that no rule declares.
    pub mapper: Mapper,
    /// Those are made at all (MC-149).
    pub undeclared_children: bool,
    /// Tells users.
    pub events: Events,
    /// Writes the status of parents of MapControllers.
    pub board: Arc<StatusBoard>,
    /// Counts.
    pub metrics: Metrics,
    /// Between us and hooks.
    pub proxies: Proxies,
    /// Items at a time for each controller that doesn't say.
    pub workers: usize,
    /// `--cache-flush-interval`.
    pub flush: Option<Duration>,
    /// `--discovery-interval`: longest pause before something that isn't served is asked for again.
    pub again: Duration,
    /// Ends everything.
    pub stop: CancellationToken,
}

/// Why a controller was not started.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct StartError {
    /// Reason of the condition.
    pub reason: &'static str,
    /// For users.
    pub text: String,
    /// It may be otherwise later, without a change of the object.
    pub passing: bool,
    /// How the user is told.
    pub failure_report: FailureReport,
}

/// How a user is told that a controller was not started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailureReport {
    /// By an Event with every try; equal ones are counted.
    CreateError,
    /// By one Event for each state of the spec (MC-141).
    SyncError,
    /// Not at all but in the log: it is waited for (MC-141).
    Log,
}

impl StartError {
    fn new(reason: &'static str, text: String, passing: bool) -> Self {
        Self { reason, text, passing, failure_report: FailureReport::CreateError }
    }

    /// What comes by itself is waited for without a word; anything else is said as before.
    pub fn awaited(self) -> Self {
        Self { failure_report: if self.passing { FailureReport::Log } else { self.failure_report }, ..self }
    }

    /// The spec makes no sense.
    pub fn spec(text: String) -> Self {
        Self::new("InvalidSpec", text, false)
    }

    /// A resource is not served.
    pub fn missing(text: String) -> Self {
        Self::new("ResourceNotFound", text, true)
    }

    /// A hook's configuration makes no sense.
    pub fn hook(text: String) -> Self {
        Self::new("HookConfigError", text, false)
    }

    /// What a hook's configuration refers to is not there.
    pub fn credentials(text: String) -> Self {
        Self::new("HookConfigError", text, true)
    }

    /// Parents without status.
    pub fn status(served: &Served) -> Self {
        let text = format!("{} does not have subresource 'Status' enabled", served.group_resource());
        Self::new("NoStatusSubresource", text, true)
    }
}

impl Shared {
    /// A client of a hook, which is counted and follows the credentials it refers to (MC-105).
    pub async fn hook_client(
        self: &Arc<Self>,
        controller: (&'static str, &str),
        settings: Settings,
        fields: &'static [&'static str],
    ) -> Result<Arc<HookClient>, StartError> {
        let credentials = Credentials::new(self.writer.rest().clone());
        let material = credentials.resolve(&settings.endpoint).await.map_err(StartError::credentials)?;
        let (kind, url) = (settings.kind, settings.url.to_string());
        let client =
            HookClient::new(settings, fields, &material, &self.proxies).map_err(StartError::credentials)?;
        self.metrics.hook(controller, kind, &url, client.metrics().clone());
        Ok(Arc::new(client))
    }
}

/// Kinds of controllers.
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

/// When it is worth a word that the objects of a kind are not known.
const LATE: Duration = Duration::from_secs(10);

/// Pause before a controller that ended by itself is started again.
const RESTART: Duration = Duration::from_secs(5);

/// Starts and stops controllers as their objects say.
pub struct Host {
    shared: Arc<Shared>,
    rest: Rest,
    target: LabelSelector,
    caches: BTreeMap<Kind, Arc<Cache>>,
    queue: Queue<Id>,
    running: Mutex<HashMap<Id, HostedController>>,
    refused: Mutex<HashMap<Id, RejectedSpec>>,
}

/// A spec that did not run.
#[derive(Clone, Debug, PartialEq)]
struct RejectedSpec {
    uid: String,
    spec: Value,
    /// None if it will not run until it changes: no need to try again. Else what was said last.
    said: Option<String>,
}

/// Resources that a controller works with, and what is to be done when one of them is served again.
struct Dependencies {
    resources: Vec<(Served, Arc<Cache>)>,
    returned: Box<dyn Fn() + Send + Sync>,
}

struct HostedController {
    uid: String,
    spec: Value,
    /// What it shows hooks, renewed when the object changes.
    object: Arc<Mutex<Arc<Value>>>,
    stop: CancellationToken,
    /// It ended though nobody stopped it: by a panic, or because a resource is served otherwise.
    ended: Arc<AtomicBool>,
    task: JoinHandle<()>,
}

impl Host {
    /// A host for the controllers with these labels. A thing that failed is tried again after `again` at most.
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

    /// Hosts until the shared token is cancelled; all controllers have ended then. `ready` is called once all objects
    /// are known. A kind whose definition is not there, as in a cluster that has those of the original, keeps the others
    /// from nothing.
    pub async fn run(self: Arc<Self>, ready: impl FnOnce()) {
        let stop = self.shared.stop.clone();
        let mut following = Vec::new();
        for (kind, cache) in &self.caches {
            let (queue, kind, all) = (self.queue.clone(), *kind, Arc::downgrade(cache));
            following.push(cache.follow(move |(old, new)| {
                // Whoever starts must know of all others of its kind.
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

    /// All objects of a kind, once they are known.
    async fn first(&self, kind: Kind, cache: &Cache) {
        if tokio::time::timeout(LATE, cache.synced()).await.is_err() {
            let why = cache.trouble().borrow().clone();
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
                self.tell(id, &wanted.value, &why, again);
                let condition = Condition::not_ready(why.reason, &why.text);
                let told = self.condition(*kind, &wanted.value, condition).await;
                // Whoever was not told why nothing runs is told with the next try.
                let next = if why.passing || !told { Next::Retry } else { Next::OnChange };
                let said = (next == Next::Retry).then_some(why.text);
                self.refused
                    .lock()
                    .insert(id.clone(), RejectedSpec { uid: wanted.uid().to_owned(), spec, said });
                Ok(next)
            }
        }
    }

    /// Says why a controller was not started; `again` if that was the reason last time, too.
    fn tell(&self, (kind, name): &Id, object: &Value, why: &StartError, again: bool) {
        let events = &self.shared.events;
        match why.failure_report {
            FailureReport::CreateError => {
                events.warning(object, "CreateError", format!("Cannot create new controller: {why}"));
            }
            FailureReport::SyncError if !again => {
                events.warning(object, "SyncError", format!("[{name}] Sync error - {why}"));
            }
            FailureReport::Log if !again => {
                tracing::info!(kind = kind.as_str(), %name, %why, "not started yet; it is waited for");
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

    /// A life that ends, too, when one of the resources it relies on is served otherwise.
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
                    tracing::info!(resource = served.group_resource(), "it is served otherwise than before");
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
        // If that fails, the next one is written in its place.
        self.condition(Kind::Map, &object.value, Condition::not_ready("Starting", "filling caches")).await;
        let health = conditions::Health::new(self.rest.clone(), Kind::Map.served(), object.value.clone());
        let (events, about, name) = (self.shared.events.clone(), object.clone(), name.clone());
        let rest = self.rest.clone();
        // What failed is tried again within a minute.
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
        // Their retries may be a quarter of an hour apart by now.
        let returned = Box::new(move || queue.hurry());
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

    /// False if it could not be written.
    async fn condition(&self, kind: Kind, object: &Value, condition: Condition) -> bool {
        // The other kinds have an empty status, which the original's schema prunes.
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

/// The life of a controller. If it ends though nobody stopped it, the host sees to it after a pause.
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
        tracing::warn!(kind, %name, "a controller ended by itself; it is started again");
        // First, so that who takes the key finds it so.
        ended.store(true, Ordering::SeqCst);
        queue.add_after(id, RESTART);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What ended by itself is looked at again, what was stopped is not.
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
