//! What Composite- and DecoratorController share: hooks, finalizers, writes, the queue.

use std::{
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use machinery::selector::LabelSelector;
use parking_lot::Mutex;
use runtime::{
    Next, ObjectKey, Queue,
    failure::{is_clash, is_not_found, message_of},
    work,
};
use serde_json::{Value, json};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{
    decide::{self, AnswerContext, Children, DesiredObjects},
    related::{Missing, Related},
    undeclared,
};
use crate::{
    cache::{Cache, ExpectedEvent},
    hooks::{Call, HookClient, HookError},
    map::{
        answer::Desired,
        group::{self, Method, Write},
        run::Periods,
    },
    metrics::Numbers,
    object::{self, Object, Text},
    rate_limit::RateLimits,
    resource::Served,
    shared::Shared,
    wire::object_map,
};

/// Longest wait until the watch reports our own writes.
const CATCH_UP: Duration = Duration::from_secs(5);
/// Longest pause before related objects that were being listed are looked for again.
const FETCHING: Duration = Duration::from_secs(1);
/// Tries of a write that conflicts with other writers.
const TRIES: u32 = 5;
/// Pause after the first try; five times as long after each further one, as in client-go.
const CONTENDED: Duration = Duration::from_millis(10);

/// A parent: index of its resource, and its key.
pub type Key = (usize, ObjectKey);

/// A resource of children or attachments.
pub struct ChildRule {
    /// Its objects.
    pub cache: Arc<Cache>,
    /// How existing ones are changed.
    pub method: Method,
}

/// The hooks.
#[derive(Clone, Default)]
pub struct Hooks {
    pub sync: Option<Arc<HookClient>>,
    pub finalize: Option<Arc<HookClient>>,
    pub customize: Option<Arc<HookClient>>,
}

impl Hooks {
    /// Returns all hooks.
    pub fn all(&self) -> Vec<Arc<HookClient>> {
        [&self.sync, &self.finalize, &self.customize].into_iter().flatten().cloned().collect()
    }
}

/// A resource of parents.
pub struct ParentRule {
    /// The resource.
    pub served: Served,
    /// Its objects.
    pub cache: Arc<Cache>,
    /// Selector for their labels.
    pub labels: LabelSelector,
    /// Selector for their annotations.
    pub annotations: LabelSelector,
    /// Whether changes of the status alone are ignored.
    pub ignore_status: bool,
}

impl ParentRule {
    /// Returns whether the controller selects this parent.
    pub fn selects(&self, parent: &Value) -> bool {
        let annotations = parent.pointer("/metadata/annotations").unwrap_or(&Value::Null);
        self.labels.matches_labels(object::labels(parent)) && self.annotations.matches_labels(annotations)
    }
}

/// The state of a running controller.
pub struct Base {
    pub kind: &'static str,
    pub name: Text,
    /// The whole controller object, as hooks receive it.
    pub object: Arc<Mutex<Arc<Value>>>,
    pub finalizer: String,
    pub shared: Arc<Shared>,
    pub parents: Vec<ParentRule>,
    pub children: Vec<ChildRule>,
    pub child_resources: Vec<Served>,
    pub hooks: Hooks,
    pub related: Option<Related>,
    pub queue: Queue<Key>,
    pub stop: CancellationToken,
    pub started: AtomicBool,
    /// Rate limits of parents that were synced recently.
    pub rate_limits: Mutex<RateLimits<Key>>,
    pub runs: [AtomicU64; 2],
}

/// Why a sync ended early.
pub enum Failure {
    /// A text for the user.
    Text(String),
    /// The hook requested a pause.
    Later(Duration),
    /// Nothing to report; the sync is retried as after an error.
    Quiet,
    /// A text for the user, about a resource that is not served yet. No event reports when it will be.
    Unserved(String),
    /// Related objects are being listed.
    NotYet,
}

impl From<String> for Failure {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

/// One of the two kinds of controllers.
pub trait Syncer: Send + Sync + 'static {
    /// The shared state.
    fn base(&self) -> &Base;
    /// A further cache that must be filled first.
    fn also(&self) -> Option<Arc<Cache>> {
        None
    }
    /// Called once all caches are filled, before anything is synced.
    fn starting(&self) {}
    /// Syncs one parent.
    fn sync(&self, key: &Key) -> impl Future<Output = Result<Next, Failure>> + Send;
}

/// Runs until the base's token is cancelled.
pub async fn run<S: Syncer>(syncer: Arc<S>, periods: Periods, workers: usize, started: impl FnOnce()) {
    let stop = syncer.base().stop.clone();
    let synced = async {
        for rule in &syncer.base().parents {
            rule.cache.synced().await;
        }
        for rule in &syncer.base().children {
            rule.cache.synced().await;
        }
        if let Some(cache) = syncer.also() {
            cache.synced().await;
        }
    };
    tokio::select! {
        () = synced => {}
        () = stop.cancelled() => return,
    }
    syncer.starting();
    syncer.base().started.store(true, Ordering::SeqCst);
    syncer.base().enqueue_all();
    started();
    let ticks =
        async { tokio::join!(tick(syncer.base(), periods.resync), tick(syncer.base(), periods.flush)) };
    let queue = syncer.base().queue.clone();
    let worker = syncer.clone();
    let working = work(syncer.base().kind, &queue, workers, &stop, move |key| {
        let syncer = worker.clone();
        async move { Ok::<_, String>(turn(&*syncer, key).await) }
    });
    let related = async {
        match &syncer.base().related {
            Some(related) => related.end_idle_watches().await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        () = working => {}
        _ = ticks => {}
        () = related => {}
    }
}

async fn tick(base: &Base, period: Option<Duration>) {
    let Some(period) = period else { return std::future::pending().await };
    loop {
        tokio::time::sleep(period).await;
        base.enqueue_all();
    }
}

async fn turn<S: Syncer>(syncer: &S, key: Key) -> Next {
    let base = syncer.base();
    // A hook that never returns the same answer twice brings its parent back with each of its own writes.
    if let Some(pause) = base.rate_limits.lock().pause(&key, Instant::now()) {
        return Next::After(pause);
    }
    let before = base.parent(&key);
    let outcome = tokio::select! {
        outcome = syncer.sync(&key) => outcome,
        () = base.stop.cancelled() => Err(Failure::Quiet),
    };
    base.release_related(&key, before.as_deref());
    base.runs[usize::from(matches!(outcome, Err(Failure::Text(_) | Failure::Unserved(_))))]
        .fetch_add(1, Ordering::Relaxed);
    match outcome {
        Ok(next) => next,
        Err(Failure::Later(pause)) => Next::After(pause),
        Err(Failure::Quiet) => Next::Retry,
        Err(Failure::NotYet) => Next::RetryWithin(FETCHING),
        Err(Failure::Unserved(text)) => {
            base.report_error(&key, &text);
            Next::RetryWithin(base.shared.again)
        }
        Err(Failure::Text(text)) => {
            base.report_error(&key, &text);
            Next::Retry
        }
    }
}

impl Base {
    /// Returns a parent from the cache.
    pub fn parent(&self, (rule, key): &Key) -> Option<Arc<Object>> {
        self.parents.get(*rule)?.cache.by_key(key)
    }

    /// Releases the related objects of a parent that was deleted, or is not selected any more, during a hook
    /// call: its event came before the call's result was stored.
    fn release_related(&self, key: &Key, before: Option<&Object>) {
        let (Some(before), Some(related)) = (before, &self.related) else { return };
        let now = self.parent(key);
        if now.is_none_or(|now| now.uid() != before.uid() || !self.concerns(key.0, &now)) {
            related.keep(before.uid(), &[]);
        }
    }

    /// Emits an Event about a failed sync.
    fn report_error(&self, key: &Key, text: &str) {
        if let Some(parent) = self.parent(key) {
            self.shared.events.warning(&parent.value, "SyncError", format!("Sync error: {text}"));
        }
    }

    /// Enqueues every parent.
    pub fn enqueue_all(&self) {
        for (index, rule) in self.parents.iter().enumerate() {
            for parent in rule.cache.list("") {
                self.consider(index, &parent);
            }
        }
    }

    /// Returns whether the controller handles a parent.
    fn concerns(&self, index: usize, parent: &Object) -> bool {
        let selects = self.parents.get(index).is_some_and(|rule| rule.selects(&parent.value));
        selects || object::has_finalizer(&parent.value, &self.finalizer)
    }

    /// Enqueues a parent if the controller handles it.
    pub fn consider(&self, index: usize, parent: &Object) {
        if self.concerns(index, parent) {
            self.queue.add((index, parent.key().clone()));
        }
    }

    /// Handles the change of a parent.
    pub fn parent_changed(&self, index: usize, old: Option<&Arc<Object>>, new: Option<&Arc<Object>>) {
        if !self.started.load(Ordering::SeqCst) {
            return;
        }
        if let (Some(old), Some(related)) = (old, &self.related)
            && new.is_none_or(|new| new.uid() != old.uid() || !self.concerns(index, new))
        {
            related.keep(old.uid(), &[]);
        }
        let (Some(new), Some(rule)) = (new, self.parents.get(index)) else { return };
        if let Some(old) = old
            && rule.ignore_status
            && old.uid() == new.uid()
            && !object::is_terminating(&new.value)
            && !object::is_material_change(&old.value, &new.value)
        {
            return;
        }
        self.consider(index, new);
        // A parent that is no longer selected may have been selected until now: another hook may handle its
        // attachments.
        if let Some(old) = old
            && rule.selects(&old.value)
        {
            self.queue.add((index, new.key().clone()));
        }
    }

    /// Enqueues the parent that controls a child.
    pub fn owner_changed(&self, child: &Value) {
        let Some(owner) = object::controller(child) else { return };
        let text = |field: &str| owner.get(field).and_then(Value::as_str).unwrap_or_default();
        let (group, _) = text("apiVersion").split_once('/').unwrap_or_default();
        for (index, rule) in self.parents.iter().enumerate() {
            if rule.served.kind != text("kind") || rule.served.gvr.group != group {
                continue;
            }
            let namespace = rule.served.place(object::namespace(child));
            if let Some(parent) = rule.cache.get(namespace, text("name")).filter(|p| p.uid() == text("uid")) {
                self.consider(index, &parent);
            }
        }
    }

    /// Enqueues a parent by UID, for related objects.
    pub fn wake(&self, uid: &str) {
        for (index, rule) in self.parents.iter().enumerate() {
            if let Some(parent) = rule.cache.by_uid(uid) {
                self.consider(index, &parent);
            }
        }
    }

    /// Number of parents that wait for this controller's finalizer (MC-119).
    pub fn finalizers_left(&self) -> usize {
        let parents = self.parents.iter().flat_map(|rule| rule.cache.list(""));
        parents.filter(|parent| object::has_finalizer(&parent.value, &self.finalizer)).count()
    }

    /// Returns the values for the metrics.
    pub fn numbers(&self) -> Numbers {
        let results = ["success", "error"].into_iter().zip(&self.runs);
        Numbers {
            runs: results.map(|(result, count)| (result, count.load(Ordering::Relaxed))).collect(),
            ..Numbers::default()
        }
    }

    /// Returns every followed resource, as it is served.
    pub fn resources(&self) -> Vec<(Served, Arc<Cache>)> {
        let parents = self.parents.iter().map(|rule| (rule.served.clone(), rule.cache.clone()));
        let children = self.child_resources.iter().zip(&self.children);
        parents.chain(children.map(|(served, rule)| (served.clone(), rule.cache.clone()))).collect()
    }

    /// Calls a hook for a parent.
    pub async fn ask(
        &self,
        hook: &HookClient,
        parent: &Object,
        part: &str,
        body: &Value,
    ) -> Result<Arc<Value>, Failure> {
        let key = (hook.settings().kind, parent.uid().into(), part.into());
        hook.call(Call { key, body }).await.map_err(|error| hook_failure(hook, &error))
    }

    /// Returns the related objects of a parent at a revision; `{}` without a customize hook.
    pub async fn related(&self, parent: &Value, revision: &str) -> Result<Value, Failure> {
        let Some(related) = &self.related else { return Ok(json!({})) };
        let controller = self.object.lock().clone();
        match related.of(&controller, parent, revision).await {
            Ok(found) => Ok(found),
            Err(Missing::NotYet) => Err(Failure::NotYet),
            Err(Missing::Unserved(why)) => Err(Failure::Unserved(format!("customize hook: {why}"))),
            Err(Missing::Rules(why)) => Err(Failure::Text(format!("customize hook: {why}"))),
            Err(Missing::Hook(error)) => match &self.hooks.customize {
                Some(hook) => Err(hook_failure(hook, &error)),
                None => Err(Failure::Text(error.to_string())),
            },
        }
    }

    /// Returns the children in the form of a request.
    pub fn child_map(&self, hook: &HookClient, parent: &Object, children: &Children) -> Value {
        let all = self.child_resources.iter().enumerate().map(|(index, served)| {
            let of_rule = children.iter().filter(|(rule, _)| *rule == index);
            (served, of_rule.map(|(_, object)| object.value.clone()).collect())
        });
        object_map(hook.settings().version, object::namespace(&parent.value), all)
    }

    /// Returns how children of a rule are changed.
    pub fn method(&self, rule: usize) -> Method {
        self.children.get(rule).map(|rule| rule.method).unwrap_or_default()
    }

    /// Returns what answers for a parent are validated against.
    pub fn context<'a>(&'a self, field: &'static str, parent: &'a Value) -> AnswerContext<'a> {
        let undeclared = self.shared.undeclared_children;
        AnswerContext { field, parent, declared: &self.child_resources, undeclared }
    }

    /// Turns the observed objects into the desired ones (MC-120).
    pub async fn manage(
        &self,
        parent: &Value,
        wanted: &DesiredObjects,
        observed: Children,
    ) -> Result<(), String> {
        let writer = &self.shared.writer;
        let observed = self.as_wanted(&wanted.desired, observed).await?;
        let method = |rule| self.method(rule);
        let server_side = writer.strategy().is_server_side();
        let writes = decide::manage(parent, &wanted.desired, &observed, method, server_side);
        let managed = self.carry_out(writes).await;
        let made = undeclared::make(writer, &self.shared.mapper, parent, &wanted.undeclared_objects).await;
        match (managed, made) {
            (Err(one), Err(other)) => Err(format!("{one}; {other}")),
            (managed, made) => managed.and(made),
        }
    }

    /// Does the writes in their order; a refused write does not stop the others (MC-120). Waits until the
    /// caches show the writes.
    pub async fn carry_out(&self, writes: Vec<Write>) -> Result<(), String> {
        let (mut expected, mut errors): (Vec<(usize, ExpectedEvent)>, Vec<String>) = Default::default();
        let writer = &self.shared.writer;
        for write in writes {
            let (rule, made) = match write {
                Write::Delete { place, uid } => {
                    let Some(served) = self.child_resources.get(place.rule) else { continue };
                    (place.rule, writer.delete(served, &place.namespace, &place.name, &uid).await)
                }
                Write::Create { place, body } => {
                    let Some(served) = self.resource_of(place.rule, &body) else { continue };
                    (place.rule, writer.create(&served, &body).await)
                }
                Write::Update { place, body } | Write::Adopt { place, body } => {
                    let Some(served) = self.resource_of(place.rule, &body) else { continue };
                    (place.rule, writer.update(&served, &body).await)
                }
                Write::Apply { place, body, observed, recreate } => {
                    let Some(served) = self.resource_of(place.rule, &body) else { continue };
                    (place.rule, writer.apply(&served, &body, &observed, recreate).await)
                }
                Write::Retag { .. } | Write::Conflict { .. } => continue,
            };
            match made {
                Ok(made) => expected.extend(made.map(|made| (rule, made))),
                // As in the original: an object of another owner is left alone (MC-125).
                Err(refused) if refused.exists => tracing::info!(why = refused.text, "not created"),
                Err(refused) => errors.push(refused.text),
            }
        }
        for (rule, one) in expected {
            if let Some(rule) = self.children.get(rule) {
                rule.cache.caught_up(&one, CATCH_UP).await;
            }
        }
        if errors.is_empty() { Ok(()) } else { Err(errors.join("; ")) }
    }

    /// Returns the resource of a child, in the version of its body.
    fn resource_of(&self, rule: usize, body: &Value) -> Option<Served> {
        self.child_resources.get(rule).map(|served| served.at(object::api_version(body)))
    }

    /// Returns the observed children in the versions in which they are desired. A child is the same object in
    /// every version of its kind, but can be compared in one version only (MC-121). Costs one request for
    /// each child that the hook requests in another version than the declared one.
    pub async fn as_wanted(&self, desired: &[Desired], mut observed: Children) -> Result<Children, String> {
        for one in desired {
            let declared = self.child_resources.get(one.place.rule).map(|served| served.gvr.api_version());
            if declared.is_none_or(|declared| declared == object::api_version(&one.body)) {
                continue;
            }
            let known = observed.iter_mut().find(|(rule, child)| group::place_of(*rule, child) == one.place);
            let (Some((_, child)), Some(served)) = (known, self.resource_of(one.place.rule, &one.body))
            else {
                continue;
            };
            let (namespace, name) = (served.place(&one.place.namespace), &one.place.name);
            let live = self.shared.writer.rest().find::<Value>(&served.gvr, namespace, name).await;
            let live = live.map_err(|error| message_of(&error))?;
            if let Some(live) = live.filter(|live| object::uid(live) == child.uid()) {
                *child = Arc::new(Object::new(live));
            }
        }
        Ok(observed)
    }

    /// Adds or removes our finalizer (MC-119). Returns the parent after that; `None` if it is gone.
    pub async fn finalizer(
        &self,
        rule: usize,
        parent: &Object,
        wanted: bool,
    ) -> Result<Option<Arc<Object>>, String> {
        let finalizer = self.finalizer.clone();
        let changed = self
            .change(rule, parent, false, |live| {
                if object::has_finalizer(live, &finalizer) == wanted
                    || (wanted && object::is_terminating(live))
                {
                    return false;
                }
                let Some(meta) = object::metadata_mut(live) else { return false };
                let list = meta.entry("finalizers").or_insert_with(|| json!([]));
                if let Some(list) = list.as_array_mut() {
                    if wanted {
                        list.push(finalizer.as_str().into());
                    } else {
                        list.retain(|one| one.as_str() != Some(&finalizer));
                    }
                }
                if meta.get("finalizers").and_then(Value::as_array).is_some_and(Vec::is_empty) {
                    meta.remove("finalizers");
                }
                true
            })
            .await?;
        Ok(changed.map(|value| Arc::new(Object::new(value))))
    }

    /// Changes a parent on the server, with retries on conflicts. Returns the parent after that.
    pub async fn change(
        &self,
        rule: usize,
        parent: &Object,
        status: bool,
        edit: impl Fn(&mut Value) -> bool,
    ) -> Result<Option<Value>, String> {
        let Some(rule) = self.parents.get(rule) else { return Ok(None) };
        let (rest, served) = (self.shared.writer.rest(), &rule.served);
        let (namespace, name) = (served.place(&parent.key().namespace), &parent.key().name);
        for attempt in 0..TRIES {
            if attempt > 0 {
                // Several clients write to a new parent at the same time.
                tokio::time::sleep(CONTENDED * 5_u32.pow(attempt - 1)).await;
            }
            let live: Option<Value> =
                rest.find(&served.gvr, namespace, name).await.map_err(|error| message_of(&error))?;
            let Some(mut live) = live.filter(|live| object::uid(live) == parent.uid()) else {
                return Ok(None);
            };
            if !edit(&mut live) {
                return Ok(Some(live));
            }
            let body = live.to_string().into_bytes();
            let written: Result<Value, _> = if status {
                rest.replace_status(&served.gvr, namespace, name, body).await
            } else {
                rest.replace(&served.gvr, namespace, name, body).await
            };
            match written {
                Ok(written) => {
                    let key = parent.key().clone();
                    let version = object::resource_version(&written).to_owned();
                    rule.cache
                        .caught_up(&ExpectedEvent::Version { key, version, echo: None }, CATCH_UP)
                        .await;
                    return Ok(Some(written));
                }
                Err(error) if is_clash(&error) => {}
                Err(error) if is_not_found(&error) => return Ok(None),
                Err(error) => return Err(message_of(&error)),
            }
        }
        Err(format!("{name} is changed by others all the time"))
    }

    /// Returns what to do after a sync.
    pub fn again(&self, after: Option<f64>) -> Next {
        match after.and_then(|secs| Duration::try_from_secs_f64(secs).ok()) {
            Some(pause) => Next::After(pause),
            None => Next::OnChange,
        }
    }
}

fn hook_failure(hook: &HookClient, error: &HookError) -> Failure {
    match error {
        HookError::TooManyRequests(Some(pause)) => Failure::Later(*pause),
        HookError::TooManyRequests(None) => Failure::Quiet,
        error => Failure::Text(format!("{} hook: {error}", hook.settings().kind.as_str())),
    }
}
