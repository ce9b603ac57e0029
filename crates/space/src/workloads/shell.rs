//! Connects the decisions to the space: takes events, reads the store, writes through the API.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use futures::{StreamExt as _, stream};
use machinery::selector::LabelSelector;
use parking_lot::Mutex;
use runtime::{Next, Queue};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use store::{Collection, Entry, Event, EventKind, Key, Snapshot, SpaceStore};

use super::endpoints::{self, Backend, Existing, Selectors};
use super::notes::{self, Notes};
use super::object::{
    Header, Kind, Meta, Owner, Plan, Pod, Write, is_deleting, name, namespace, owner_reference, text, uid,
};
use super::{claims, daemonset, deployment, job, node, pods, replicaset, statefulset};
use crate::follow::State;
use crate::local::{ErrorResponse, InProcessApi, MERGE, unless_overtaken};
use machinery::time::now;

/// Most concurrent writes of one visit. Concurrent writes share commits of the store.
const AT_ONCE: usize = 16;

/// An object to visit.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Task {
    kind: Kind,
    namespace: Arc<str>,
    name: Arc<str>,
}

/// What is known from events.
pub(super) struct Known {
    /// Controllers whose pods wait for a missing service account, by namespace.
    waiting: HashMap<Arc<str>, HashSet<Task>>,
    services: Selectors,
    /// For visits that can wait until more has changed.
    queue: Queue<Task>,
}

fn decode<T: DeserializeOwned + Default>(entry: &Entry) -> T {
    serde_json::from_slice(&entry.value).unwrap_or_else(|error| {
        tracing::warn!(key = ?entry.key, %error, "unreadable object");
        T::default()
    })
}

fn collection(kind: Kind) -> Collection {
    Collection::new(kind.group(), kind.plural())
}

fn look_at_owner(owner: Option<&Owner>, namespace: &Arc<str>, enqueue: &mut dyn FnMut(Task)) {
    if let Some(owner) = owner
        && let Some(kind) = Kind::of_owner(owner)
    {
        enqueue(Task { kind, namespace: namespace.clone(), name: owner.name.as_str().into() });
    }
}

fn service(namespace: &Arc<str>, name: &Arc<str>) -> Task {
    Task { kind: Kind::Service, namespace: namespace.clone(), name: name.clone() }
}

impl Known {
    pub(super) fn new(queue: Queue<Task>) -> Self {
        Self { waiting: HashMap::new(), services: Selectors::default(), queue }
    }

    /// Plans visits of the Services that select a pod.
    fn notice_backend(&self, pod: &Entry) {
        let Key { namespace, .. } = &pod.key;
        let label = |key: &str| pod.meta.labels.get(key).map(|value| &**value);
        for (name, pause) in self.services.of(namespace, label) {
            self.queue.add_after(service(namespace, &name), pause);
        }
    }

    fn notice(&mut self, entry: &Entry, gone: bool, relabeled: bool, enqueue: &mut dyn FnMut(Task)) {
        let Key { collection, namespace, name } = &entry.key;
        if collection.as_str() == "/serviceaccounts" {
            if !gone {
                self.waiting.remove(namespace).into_iter().flatten().for_each(enqueue);
            }
            return;
        }
        let Some(kind) = Kind::of_collection(collection.as_str()) else { return };
        let this = Task { kind, namespace: namespace.clone(), name: name.clone() };
        match kind {
            Kind::Pod => {
                let pod: Pod = decode(entry);
                let owner = pod.metadata.controller();
                look_at_owner(owner, namespace, enqueue);
                let adoptable = owner.is_none() && !entry.meta.labels.is_empty() && pod.active();
                if !gone && (pods::needs_attention(&pod) || adoptable || relabeled) {
                    enqueue(this);
                }
            }
            Kind::ReplicaSet | Kind::ControllerRevision => {
                let Header { metadata } = decode(entry);
                look_at_owner(metadata.controller(), namespace, enqueue);
                if kind == Kind::ReplicaSet && !gone {
                    enqueue(this);
                }
            }
            Kind::Node => enqueue(this),
            Kind::Service => {
                let object: Option<Value> = (!gone).then(|| decode(entry));
                self.services.put(namespace, name, object.as_ref());
                enqueue(this);
            }
            Kind::Endpoints => {
                let pause = self.services.pause(namespace, name);
                self.queue.add_after(service(namespace, name), pause);
            }
            Kind::EndpointSlice => {
                if let Some(of) = entry.meta.labels.get(endpoints::SERVICE_NAME) {
                    let pause = self.services.pause(namespace, of);
                    self.queue.add_after(service(namespace, &(**of).into()), pause);
                }
            }
            Kind::PersistentVolumeClaim if gone => {
                let claim: Value = decode(entry);
                if let Some(volume) = claims::volume_of(&claim) {
                    enqueue(Task { kind: Kind::PersistentVolume, namespace: "".into(), name: volume.into() });
                }
            }
            Kind::PersistentVolume => {
                let volume: Value = decode(entry);
                if let Some((namespace, name)) = claims::claim_of(&volume) {
                    let (namespace, name) = (namespace.into(), name.into());
                    enqueue(Task { kind: Kind::PersistentVolumeClaim, namespace, name });
                }
                enqueue(this);
            }
            _ if gone => {}
            _ => enqueue(this),
        }
    }
}

impl State for Known {
    type Key = Task;

    fn start(&mut self, all: &Snapshot, enqueue: &mut dyn FnMut(Task)) {
        self.waiting.clear();
        self.services = Selectors::default();
        // Visits the node, even if it does not exist.
        enqueue(Task { kind: Kind::Node, namespace: "".into(), name: "".into() });
        for kind in Kind::ALL {
            for entry in all.view(&collection(kind)).iter(None, None) {
                self.notice(entry, false, true, enqueue);
            }
        }
    }

    fn observe(&mut self, event: &Event, enqueue: &mut dyn FnMut(Task)) {
        let relabeled =
            event.previous.as_ref().is_some_and(|previous| previous.meta.labels != event.entry.meta.labels);
        self.notice(&event.entry, event.kind == EventKind::Deleted, relabeled, enqueue);
        if event.entry.key.collection.as_str() == "/pods" {
            self.notice_backend(&event.entry);
            if let Some(previous) = event.previous.as_ref().filter(|_| relabeled) {
                self.notice_backend(previous);
            }
        }
    }
}

pub(super) struct Shell {
    local: InProcessApi,
    store: SpaceStore,
    node: String,
    known: Arc<Mutex<Known>>,
    queue: Queue<Task>,
    notes: Notes,
}

/// The relation of an object to an owner that selects it.
enum Relation {
    Foreign,
    Mine,
    /// The object had no controller; this write adopts it.
    Adopted(Write),
}

/// An owner, and how it selects its dependents.
struct SelectingOwner<'a> {
    object: &'a Value,
    kind: Kind,
    selector: LabelSelector,
}

impl<'a> SelectingOwner<'a> {
    /// `None` if the selector is invalid; an empty one would select everything.
    fn of(object: &'a Value, kind: Kind) -> Option<Self> {
        let selector = LabelSelector::from_object(object.pointer("/spec/selector")?).ok()?;
        (!selector.is_everything()).then_some(Self { object, kind, selector })
    }

    fn selects(&self, entry: &Entry) -> bool {
        self.selector.matches(|key| entry.meta.labels.get(key).map(|value| &**value))
    }

    fn claim(&self, entry: &Entry, kind: Kind, meta: &Meta) -> Relation {
        match meta.controller() {
            Some(owner) if owner.uid == uid(self.object) => Relation::Mine,
            Some(_) => Relation::Foreign,
            // Revisions of a deleted set are of no use to a new one.
            None if kind == Kind::ControllerRevision => Relation::Foreign,
            None if is_deleting(self.object) || meta.deleting() => Relation::Foreign,
            None => {
                let reference = owner_reference(self.object, self.kind);
                Relation::Adopted(with_owners(entry, kind, |owners| owners.push(reference)))
            }
        }
    }
}

/// A patch of the owner references of an object at its current version.
fn with_owners(entry: &Entry, kind: Kind, change: impl FnOnce(&mut Vec<Value>)) -> Write {
    let object: Value = decode(entry);
    let owners = object.pointer("/metadata/ownerReferences").and_then(Value::as_array);
    let mut owners = owners.cloned().unwrap_or_default();
    change(&mut owners);
    let patch = json!({"metadata": {
        "uid": uid(&object), "resourceVersion": entry.revision.to_string(), "ownerReferences": owners,
    }});
    let (namespace, name) = (namespace(&object).to_owned(), name(&object).to_owned());
    Write::Patch { kind, namespace, name, patch }
}

impl Shell {
    pub(super) fn new(
        client: kube::Client,
        store: SpaceStore,
        node: String,
        known: Arc<Mutex<Known>>,
        queue: Queue<Task>,
        notes: Notes,
    ) -> Self {
        Self { local: InProcessApi::new(client, "kubestellar-simulator"), store, node, known, queue, notes }
    }

    pub(super) async fn act(&self, task: Task) -> Result<Next, ErrorResponse> {
        // A snapshot has every write of earlier visits, so nothing is created twice.
        let Plan { writes, again } = self.plan(&task, &self.store.snapshot());
        if writes.iter().any(|write| self.waits_for_account(write, &task)) {
            return Ok(Next::OnChange);
        }
        let outcomes: Vec<Result<(), ErrorResponse>> =
            stream::iter(writes).map(|write| self.write(write)).buffer_unordered(AT_ONCE).collect().await;
        outcomes.into_iter().collect::<Result<(), ErrorResponse>>()?;
        Ok(again.map_or(Next::OnChange, Next::After))
    }

    fn plan(&self, task: &Task, all: &Snapshot) -> Plan {
        if task.kind == Kind::Node {
            return self.ensure_node(task, all).into();
        }
        if task.kind == Kind::Service {
            return self.visit_service(task, all).into();
        }
        let key = Key {
            collection: collection(task.kind),
            namespace: task.namespace.clone(),
            name: task.name.clone(),
        };
        let Some(entry) = all.get(&key) else { return Plan::default() };
        let object: Value = decode(&entry);
        match task.kind {
            Kind::Pod => return self.visit_pod(all, &entry, &object).into(),
            Kind::PersistentVolumeClaim => return visit_claim(all, &object).into(),
            Kind::PersistentVolume => return visit_volume(all, &object).into(),
            _ => {}
        }
        let Some(claimant) = SelectingOwner::of(&object, task.kind) else { return Plan::default() };
        let (node, now) = (self.node.as_str(), now());
        if task.kind == Kind::Deployment {
            let (sets, mut writes) = claimed::<Value>(all, &claimant, Kind::ReplicaSet);
            let taken =
                |name: &str| all.view(&collection(Kind::ReplicaSet)).get(&task.namespace, name).is_some();
            writes.extend(deployment::decide(&object, &sets, taken, &now));
            return writes.into();
        }
        let (pods, mut writes) = claimed::<Pod>(all, &claimant, Kind::Pod);
        let revisions = || claimed::<Value>(all, &claimant, Kind::ControllerRevision).0;
        let plan = match task.kind {
            Kind::ReplicaSet => {
                self.find_owner(all, &entry, &[Kind::Deployment]);
                replicaset::decide(&object, &pods, node).into()
            }
            Kind::StatefulSet => statefulset::decide(&object, &pods, &revisions(), node).into(),
            Kind::DaemonSet => {
                let node = all.view(&collection(Kind::Node)).get("", node).map(|entry| decode(entry));
                daemonset::decide(&object, &pods, &revisions(), &node.unwrap_or_default()).into()
            }
            Kind::Job => job::decide(&object, &pods, node, &now),
            _ => Plan::default(),
        };
        writes.extend(plan.writes);
        Plan { writes, again: plan.again }
    }

    /// Endpoints and EndpointSlices of a Service.
    fn visit_service(&self, task: &Task, all: &Snapshot) -> Vec<Write> {
        let Task { namespace, name, .. } = task;
        let endpoints = all.view(&collection(Kind::Endpoints)).get(namespace, name).map(|it| decode(it));
        let endpoints: Value = endpoints.unwrap_or_default();
        let Some(entry) = all.view(&collection(Kind::Service)).get(namespace, name).cloned() else {
            return endpoints::removal(&endpoints).into_iter().collect();
        };
        let object: Value = decode(&entry);
        let labels = endpoints::selector(&object).unwrap_or_default();
        let selects = |pod: &&Arc<Entry>| {
            labels
                .iter()
                .all(|(key, value)| pod.meta.labels.get(key.as_str()).is_some_and(|it| **it == **value))
        };
        let pods = all.view(&collection(Kind::Pod));
        let pods = pods.iter(Some(namespace), None).filter(|_| !labels.is_empty()).filter(selects);
        let pods: Vec<Backend> = pods.map(|pod| decode(pod)).collect();
        let slices = all.view(&collection(Kind::EndpointSlice));
        let slices = slices
            .iter(Some(namespace), None)
            .filter(|slice| slice.meta.labels.get(endpoints::SERVICE_NAME).is_some_and(|of| **of == **name));
        let slices =
            slices.map(|slice| decode(slice)).filter(|slice| endpoints::is_of(slice, name)).collect();
        let (writes, size) = endpoints::decide(&object, &pods, &Existing { endpoints, slices });
        self.known.lock().services.found(namespace, name, size);
        writes
    }

    /// Creates the node if it is missing, and visits DaemonSets, which depend on it.
    fn ensure_node(&self, task: &Task, all: &Snapshot) -> Vec<Write> {
        if !task.name.is_empty() && *task.name != *self.node {
            return Vec::new();
        }
        let found = all.view(&collection(Kind::Node)).get("", &self.node).map(|entry| decode::<Value>(entry));
        let wanted = node::node(&self.node, &now());
        let Some(mut found) = found else { return vec![Write::Create(Kind::Node, wanted)] };
        for entry in all.view(&collection(Kind::DaemonSet)).iter(None, None) {
            let Key { namespace, name, .. } = &entry.key;
            self.queue.add(Task { kind: Kind::DaemonSet, namespace: namespace.clone(), name: name.clone() });
        }
        if found.pointer("/status/conditions").is_some() {
            return Vec::new();
        }
        let status = wanted.get("status").cloned().unwrap_or_default();
        super::object::set(&mut found, &[], "status", status);
        vec![Write::Status(Kind::Node, found)]
    }

    /// Scheduler and kubelet, and the search for a controller that selects the pod.
    fn visit_pod(&self, all: &Snapshot, entry: &Entry, object: &Value) -> Vec<Write> {
        let Header { metadata } = decode(entry);
        if let Some(release) = release(all, entry, &metadata) {
            return vec![release];
        }
        self.find_owner(all, entry, &Kind::OF_PODS);
        pods::decide(object, &self.node, &now()).into_iter().collect()
    }

    /// Queues the controllers that select an object without controller.
    fn find_owner(&self, all: &Snapshot, entry: &Entry, kinds: &[Kind]) {
        let Header { metadata } = decode(entry);
        if metadata.controller().is_some() || metadata.deleting() || entry.meta.labels.is_empty() {
            return;
        }
        for kind in kinds {
            for candidate in all.view(&collection(*kind)).iter(Some(&entry.key.namespace), None) {
                let object: Value = decode(candidate);
                if SelectingOwner::of(&object, *kind).is_some_and(|claimant| claimant.selects(entry)) {
                    let Key { namespace, name, .. } = &candidate.key;
                    self.queue.add(Task { kind: *kind, namespace: namespace.clone(), name: name.clone() });
                }
            }
        }
    }

    /// Whether a pod's service account is missing. The controller is visited again when the account is created.
    fn waits_for_account(&self, write: &Write, task: &Task) -> bool {
        let Write::Create(Kind::Pod, pod) = write else { return false };
        let account = match text(pod, "/spec/serviceAccountName") {
            "" => "default",
            account => account,
        };
        let accounts = Collection::new("", "serviceaccounts");
        let is_missing = || self.store.snapshot().view(&accounts).get(&task.namespace, account).is_none();
        if !is_missing() {
            return false;
        }
        self.known.lock().waiting.entry(task.namespace.clone()).or_default().insert(task.clone());
        // The account may have been created before the controller was recorded; afterwards its event queues the
        // controller.
        is_missing()
    }

    /// Writes, and says so in Events.
    async fn write(&self, write: Write) -> Result<(), ErrorResponse> {
        let before = if notes::compares(&write) { self.present(&write) } else { None };
        let done = self.send(&write).await;
        if let Ok(after) = &done {
            self.notes.queue(notes::events(&write, before.as_ref(), after, &self.node));
        }
        unless_overtaken(done)
    }

    /// The object that a write changes, as it is now.
    fn present(&self, write: &Write) -> Option<Value> {
        let (kind, namespace, name) = match write {
            Write::Create(..) => return None,
            Write::Update(kind, object) | Write::Status(kind, object) => {
                (*kind, namespace(object), name(object))
            }
            Write::Patch { kind, namespace, name, .. } | Write::Delete { kind, namespace, name, .. } => {
                (*kind, namespace.as_str(), name.as_str())
            }
            Write::Bind { namespace, name, .. } => (Kind::Pod, namespace.as_str(), name.as_str()),
        };
        self.store.snapshot().view(&collection(kind)).get(namespace, name).map(|entry| decode(entry))
    }

    async fn send(&self, write: &Write) -> Result<Value, ErrorResponse> {
        let path = |kind: Kind, object: &Value| kind.path(namespace(object), name(object));
        match write {
            Write::Create(kind, object) => {
                match self.local.post(&kind.path(namespace(object), ""), object).await {
                    Err(refused) if refused.is_forbidden() && self.is_terminating(namespace(object)) => {
                        Ok(Value::Null)
                    }
                    other => other,
                }
            }
            Write::Update(kind, object) => self.local.put(&path(*kind, object), object).await,
            Write::Status(kind, object) => {
                self.local.put(&format!("{}/status", path(*kind, object)), object).await
            }
            Write::Patch { kind, namespace, name, patch } => {
                self.local.patch(&kind.path(namespace, name), MERGE, patch).await
            }
            Write::Delete { kind, namespace, name, uid, at_once } => {
                let mut options = json!({
                    "apiVersion": "v1", "kind": "DeleteOptions",
                    "propagationPolicy": "Background", "preconditions": {"uid": uid},
                });
                if *at_once {
                    super::object::set(&mut options, &[], "gracePeriodSeconds", 0);
                }
                self.local.delete(&kind.path(namespace, name), &options).await
            }
            Write::Bind { namespace, name, uid, node } => {
                let binding = json!({
                    "apiVersion": "v1", "kind": "Binding",
                    "metadata": {"name": name, "namespace": namespace, "uid": uid},
                    "target": {"apiVersion": "v1", "kind": "Node", "name": node},
                });
                self.local.post(&format!("{}/binding", Kind::Pod.path(namespace, name)), &binding).await
            }
        }
    }

    /// Whether the namespace is being deleted, so that nothing can be created in it.
    fn is_terminating(&self, namespace: &str) -> bool {
        let namespaces = Collection::new("", "namespaces");
        let found =
            self.store.snapshot().view(&namespaces).get("", namespace).map(|entry| decode::<Header>(entry));
        found.is_none_or(|found| found.metadata.deleting())
    }
}

fn visit_claim(all: &Snapshot, claim: &Value) -> Vec<Write> {
    let volumes = all.view(&collection(Kind::PersistentVolume));
    let volume = claims::volume_of(claim).and_then(|name| volumes.get("", &name).map(|entry| decode(entry)));
    claims::decide_claim(claim, volume.as_ref()).into_iter().collect()
}

fn visit_volume(all: &Snapshot, volume: &Value) -> Vec<Write> {
    let there = all.view(&collection(Kind::PersistentVolumeClaim));
    let claim = claims::claim_of(volume).and_then(|(namespace, name)| there.get(namespace, name));
    let claim = claim.map(|entry| decode(entry));
    claims::decide_volume(volume, claim.as_ref()).into_iter().collect()
}

/// The dependents of an owner, and the writes that adopt objects without controller.
fn claimed<T: DeserializeOwned + Default>(
    all: &Snapshot,
    owner: &SelectingOwner<'_>,
    kind: Kind,
) -> (Vec<T>, Vec<Write>) {
    let (mut mine, mut writes) = (Vec::new(), Vec::new());
    let view = all.view(&collection(kind));
    for entry in view.iter(Some(namespace(owner.object)), None).filter(|entry| owner.selects(entry)) {
        let Header { metadata } = decode(entry);
        match owner.claim(entry, kind, &metadata) {
            Relation::Foreign => continue,
            Relation::Mine => {}
            Relation::Adopted(write) => writes.push(write),
        }
        mine.push(decode(entry));
    }
    (mine, writes)
}

/// Releases a pod whose labels its controller no longer selects.
fn release(all: &Snapshot, entry: &Entry, meta: &Meta) -> Option<Write> {
    let owner = meta.controller()?;
    let kind = Kind::of_owner(owner)?;
    let view = all.view(&collection(kind));
    let owner_entry = view.get(&entry.key.namespace, &owner.name)?;
    if *owner_entry.meta.uid != *owner.uid {
        return None;
    }
    let object: Value = decode(owner_entry);
    let selects = SelectingOwner::of(&object, kind)?.selects(entry);
    (!selects && !meta.deleting())
        .then(|| with_owners(entry, Kind::Pod, |owners| owners.retain(|one| text(one, "/uid") != owner.uid)))
}
