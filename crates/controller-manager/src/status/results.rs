//! Keeps CombinedStatus objects as the StatusCollectors require (KS-186 … KS-197).

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use apis::{
    constants::{REPORT_NAMESPACE, STATUS_API_GROUP_LABEL, STATUS_MANAGER, STATUS_RESOURCE_LABEL},
    control::CombinedStatus,
};
use k8s_openapi::api::core::v1::Namespace;
use kube::Client;
use parking_lot::Mutex;
use runtime::{
    Coalescer, Event, Next, ObjectKey, Store, failure,
    rest::{Gvr, Removal, Rest},
};
use serde_json::{Value, json};

use super::{
    collectors::Collectors,
    combine::fit,
    combined::{Asked, Pair, patch},
    error::StatusError,
    reports::Reports,
    sight::Sight,
    table::{Inputs, Table},
};
use crate::{
    identity::ObjectId,
    own_writes::{OWN_WRITE_TTL, RecentWrite},
    shared::{Shared, StatusItem},
};

/// Writes the answers of StatusCollectors into CombinedStatus objects.
///
/// Cost of a changed report: one row for each StatusCollector of its object, and one write if any answer
/// changed. A single change is written at once, a burst once per window. Cost of a changed object: a read if
/// an expression uses `obj`, and its rows again if more than its status changed.
pub(super) struct Combiner {
    rest: Rest,
    shared: Arc<Shared>,
    reports: Arc<Reports>,
    collectors: Arc<Collectors>,
    published: Store<CombinedStatus>,
    /// Whether StatusCollectors may read the contents of Secrets, as in the original.
    read_secrets: bool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    pairs: HashMap<Pair, Known>,
    /// The pair of each CombinedStatus. A CombinedStatus that is not listed here has no pair (KS-191).
    names: HashMap<ObjectKey, Pair>,
}

/// What is remembered of a pair.
#[derive(Default)]
struct Known {
    key: Option<ObjectKey>,
    /// Taken out while the pair is processed.
    table: Table,
    coalescer: Coalescer,
    /// The object without its status, and the version at which it was read.
    object: Option<(Box<str>, Arc<Value>)>,
    own_write: RecentWrite<CombinedStatus>,
}

impl Combiner {
    pub(super) fn new(
        wds: Client,
        shared: Arc<Shared>,
        reports: Arc<Reports>,
        collectors: Arc<Collectors>,
        published: Store<CombinedStatus>,
        read_secrets: bool,
    ) -> Self {
        let rest = Rest::with_manager(wds, STATUS_MANAGER);
        Self { rest, shared, reports, collectors, published, read_secrets, state: Mutex::default() }
    }

    /// All inputs are synced: enqueues each pair, and each CombinedStatus, whose pair may be gone (KS-194).
    pub(super) fn begin(&self) {
        let pairs: Vec<(Pair, ObjectKey)> = {
            let world = self.shared.world.lock();
            let all = world.collected().map(|(policy, object)| Pair { policy, object });
            all.filter_map(|pair| Asked::find(&world, &pair).map(|asked| (asked.key(&pair), pair)))
                .map(|(key, pair)| (pair, key))
                .collect()
        };
        let mut state = self.state.lock();
        for (pair, key) in &pairs {
            state.names.insert(key.clone(), pair.clone());
            state.pairs.entry(pair.clone()).or_default().key = Some(key.clone());
        }
        drop(state);
        for (pair, _) in pairs {
            self.shared.enqueue_status(StatusItem::Pair(pair));
        }
        self.sweep();
    }

    /// Enqueues each CombinedStatus.
    pub(super) fn sweep(&self) {
        for key in self.published.keys() {
            self.shared.enqueue_status(StatusItem::Published(key));
        }
    }

    /// The report about an object changed.
    pub(super) fn reported(&self, id: &ObjectId) {
        let pairs: Vec<Pair> = {
            let world = self.shared.world.lock();
            let policies = world.policies_of(id).iter();
            let collect = policies.filter(|policy| world.collects(policy, id));
            collect.map(|policy| Pair { policy: policy.clone(), object: id.clone() }).collect()
        };
        for pair in pairs {
            self.shared.enqueue_status(StatusItem::Pair(pair));
        }
    }

    /// The informer reported a CombinedStatus (KS-193).
    pub(super) fn seen(&self, event: &Event<CombinedStatus>) {
        let Some(object) = event.object() else { return };
        let key = runtime::Watched::key(&**object);
        let mut state = self.state.lock();
        if let Some(pair) = state.names.get(&key).cloned()
            && let Some(known) = state.pairs.get_mut(&pair)
            && known.own_write.observe(object, matches!(event, Event::Deleted(_)))
        {
            return;
        }
        drop(state);
        self.shared.enqueue_status(StatusItem::Published(key));
    }

    /// Processes an existing CombinedStatus: restores it if its pair wants another content, deletes it if it
    /// has no pair. A CombinedStatus about objects whose state is unknown stays (KS-030).
    pub(super) async fn sync_published(&self, key: &ObjectKey) -> Result<Next, StatusError> {
        if let Some(pair) = self.state.lock().names.get(key).cloned() {
            self.shared.enqueue_status(StatusItem::Pair(pair));
            return Ok(Next::OnChange);
        }
        let Some(object) = self.published.get_key(key) else { return Ok(Next::OnChange) };
        let labels = object.metadata.labels.as_ref();
        let label = |key| labels.and_then(|labels| labels.get(key)).map_or("", String::as_str);
        if self.shared.unknown.lock().has(label(STATUS_API_GROUP_LABEL), label(STATUS_RESOURCE_LABEL)) {
            return Ok(Next::OnChange);
        }
        self.remove(key, object.metadata.uid.clone()).await?;
        Ok(Next::OnChange)
    }

    async fn remove(&self, key: &ObjectKey, uid: Option<String>) -> Result<(), StatusError> {
        let removal = Removal { uid, ..Removal::default() };
        match self.rest.delete(&resource(), &key.namespace, &key.name, &removal).await {
            Err(error) if failure::is_not_found(&error) || failure::is_conflict(&error) => Ok(()),
            done => Ok(done?),
        }
    }

    /// Processes a pair: brings its CombinedStatus into the right state.
    pub(super) async fn sync_pair(&self, pair: &Pair) -> Result<Next, StatusError> {
        let asked = Asked::find(&self.shared.world.lock(), pair);
        let Some(asked) = asked else {
            self.forget(pair).await?;
            return Ok(Next::OnChange);
        };
        let key = asked.key(pair);
        if let Some(wait) = self.register(pair, &key).await? {
            return Ok(Next::After(wait));
        }
        let Some(inputs) = self.inputs(pair, &asked).await? else { return Ok(Next::OnChange) };
        let mut results = self.evaluate(pair, inputs).await?;
        fit(&mut results);
        let wanted = asked.render(pair, results);
        let current = {
            let state = self.state.lock();
            let own = state.pairs.get(pair).and_then(|known| known.own_write.get(Instant::now()));
            own.or_else(|| self.published.get_key(&key))
        };
        let change = match &current {
            None => Some(json!(wanted)),
            Some(current) => patch(current, &wanted),
        };
        let began = Instant::now();
        let Some(change) = change else {
            self.with(pair, |known| known.coalescer.settle());
            return Ok(Next::OnChange);
        };
        self.with(pair, |known| known.coalescer.begin(began));
        let wrote = self.write(&key, current.is_some(), change, &wanted).await;
        let unseen = self.with(pair, |known| {
            let now = Instant::now();
            known.coalescer.end(began, now);
            match &wrote {
                Ok(own) => known.own_write.record(Arc::new(own.clone()), now),
                Err(_) => known.own_write.forget(),
            }
            known.own_write.is_pending()
        });
        wrote?;
        Ok(if unseen { Next::After(OWN_WRITE_TTL) } else { Next::OnChange })
    }

    fn with<T>(&self, pair: &Pair, f: impl FnOnce(&mut Known) -> T) -> T {
        f(self.state.lock().pairs.entry(pair.clone()).or_default())
    }

    /// Registers the name of the pair's CombinedStatus, and deletes one under an old name, of an object or
    /// policy that no longer exists. Returns how long to wait in a burst.
    async fn register(&self, pair: &Pair, key: &ObjectKey) -> Result<Option<Duration>, StatusError> {
        let (old, wait) = {
            let mut state = self.state.lock();
            state.names.insert(key.clone(), pair.clone());
            let known = state.pairs.entry(pair.clone()).or_default();
            let old = known.key.replace(key.clone()).filter(|old| old != key);
            if old.is_some() {
                *known = Known { key: Some(key.clone()), ..Known::default() };
            }
            known.coalescer.change();
            let wait = known.coalescer.wait(Instant::now());
            if let Some(old) = &old {
                state.names.remove(old);
            }
            (old, wait)
        };
        if let Some(old) = old {
            self.remove(&old, None).await?;
        }
        Ok((!wait.is_zero()).then_some(wait))
    }

    async fn forget(&self, pair: &Pair) -> Result<(), StatusError> {
        let key = {
            let mut state = self.state.lock();
            let key = state.pairs.get(pair).and_then(|known| known.key.clone());
            if let Some(key) = &key {
                state.names.remove(key);
            }
            key
        };
        if let Some(key) = key {
            self.remove(&key, None).await?;
        }
        self.state.lock().pairs.remove(pair);
        Ok(())
    }

    /// Returns the inputs of the results; `None` if the object is gone.
    async fn inputs(&self, pair: &Pair, asked: &Asked) -> Result<Option<Inputs>, StatusError> {
        let queries = self.collectors.queries(&asked.collectors);
        let object = if queries.values().any(|query| query.uses_object()) {
            match self.object(pair, asked).await? {
                None => return Ok(None),
                object => object,
            }
        } else {
            None
        };
        let report = |wec: &crate::identity::ClusterName| (wec.clone(), self.reports.get(&pair.object, wec));
        let reports = asked.destinations.iter().map(report).collect();
        Ok(Some(Inputs { queries, reports, object, sight: self.sight(pair) }))
    }

    fn sight(&self, pair: &Pair) -> Sight {
        Sight::of(pair.object.resource(), self.read_secrets)
    }

    /// Returns what StatusCollectors may see of the object, without its status (KS-176). The value in memory stays the same as long as nothing
    /// else changes.
    async fn object(&self, pair: &Pair, asked: &Asked) -> Result<Option<Arc<Value>>, StatusError> {
        let known = self.with(pair, |known| known.object.clone());
        if let Some((version, object)) = &known
            && *version == asked.version
        {
            return Ok(Some(object.clone()));
        }
        let id = &pair.object;
        let version = asked.api_version.rsplit('/').next().unwrap_or_default();
        let gvr = Gvr::new(&id.resource().group, version, &id.resource().plural);
        let mut live: Value = match self.rest.get(&gvr, id.namespace(), id.name()).await {
            Err(error) if failure::is_not_found(&error) => return Ok(None),
            live => live?,
        };
        if let Some(live) = live.as_object_mut() {
            live.remove("status");
        }
        self.sight(pair).cut(&mut live);
        let metadata = live.get_mut("metadata").and_then(Value::as_object_mut);
        let version = metadata.map(|metadata| {
            metadata.remove("managedFields");
            metadata.get("resourceVersion").and_then(Value::as_str).unwrap_or_default().into()
        });
        let object = known
            .map(|(_, object)| object)
            .filter(|known| is_same_but_for_version(known, &live))
            .unwrap_or_else(|| Arc::new(live));
        let read = (version.unwrap_or_else(|| asked.version.clone()), object.clone());
        self.with(pair, |known| known.object = Some(read));
        Ok(Some(object))
    }

    /// Evaluates users' expressions on a thread for blocking work.
    async fn evaluate(
        &self,
        pair: &Pair,
        inputs: Inputs,
    ) -> Result<Vec<apis::control::NamedStatusCombination>, StatusError> {
        let mut table = self.with(pair, |known| std::mem::take(&mut known.table));
        if table.is_fresh(&inputs) {
            table.refresh(&inputs);
        } else {
            let work = move || {
                table.refresh(&inputs);
                table
            };
            table = tokio::task::spawn_blocking(work).await.map_err(|_| StatusError::Evaluation)?;
        }
        let results = table.results();
        self.with(pair, |known| known.table = table);
        Ok(results)
    }

    async fn write(
        &self,
        key: &ObjectKey,
        exists: bool,
        change: Value,
        wanted: &CombinedStatus,
    ) -> Result<CombinedStatus, StatusError> {
        if exists {
            match self.rest.merge(&resource(), &key.namespace, &key.name, &change).await {
                Err(error) if failure::is_not_found(&error) => {}
                done => return Ok(done?),
            }
        }
        let body = serde_json::to_vec(wanted).map_err(kube::Error::SerdeError)?;
        match self.rest.create(&resource(), &key.namespace, body.clone()).await {
            Err(error) if failure::is_already_exists(&error) => {
                let live: CombinedStatus = self.rest.get(&resource(), &key.namespace, &key.name).await?;
                match patch(&live, wanted) {
                    None => Ok(live),
                    Some(change) => {
                        Ok(self.rest.merge(&resource(), &key.namespace, &key.name, &change).await?)
                    }
                }
            }
            Err(error) if failure::is_not_found(&error) && &*key.namespace == REPORT_NAMESPACE => {
                ensure_namespace(&self.rest).await?;
                Ok(self.rest.create(&resource(), &key.namespace, body).await?)
            }
            done => Ok(done?),
        }
    }
}

/// Creates the namespace of CombinedStatus objects about cluster-scoped objects (KS-015).
pub(super) async fn ensure_namespace(rest: &Rest) -> Result<(), kube::Error> {
    let namespaces = Gvr::of::<Namespace>();
    let body = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": REPORT_NAMESPACE}});
    rest.ensure(&namespaces, "", REPORT_NAMESPACE, &body).await.map(drop)
}

fn resource() -> Gvr {
    Gvr::of::<CombinedStatus>()
}

fn is_same_but_for_version(old: &Value, new: &Value) -> bool {
    let without = |object: &Value| {
        let mut object = object.clone();
        if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
            metadata.remove("resourceVersion");
        }
        object
    };
    without(old) == without(new)
}
