//! One watch and one copy of the objects of each resource, shared by all hosted controllers (MC-039, MC-190
//! to MC-192), with the indexes that their decisions need.
//!
//! Cost: one list and watch per followed resource; per event O(log n) for the indexes and one call per
//! follower. Memory: one copy of each object.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{Arc, Weak},
    time::Duration,
};

use apis::metacontroller::{MAP_CONTROLLER_ANNOTATION, MAP_KEY_ANNOTATION};
use kube::Client;
use machinery::selector::{LabelOp, LabelSelector};
use parking_lot::{Mutex, RwLock};
use runtime::{Event, ObjectKey, ResourceVersion, Source, Store, TaskPool, informer, rest::Gvr};
use serde_json::Value;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::{
    map::key::MapKey,
    object::{self, Object, Text},
    resource::Served,
};

/// A change of one object: the old and the new state. Their versions differ. The cache has the new state
/// already.
pub type Change<'a> = (Option<&'a Arc<Object>>, Option<&'a Arc<Object>>);
/// Called for each change, on the watch's task; must not block.
type ChangeHandler = Arc<dyn Fn(Change<'_>) + Send + Sync>;

/// All caches of a process.
#[derive(Clone)]
pub struct Caches {
    client: Client,
    tasks: TaskPool,
    running: Arc<Mutex<HashMap<Gvr, Weak<Cache>>>>,
}

impl Caches {
    /// No caches yet; all end with `stop`.
    pub fn new(client: Client, stop: &CancellationToken) -> Self {
        Self { client, tasks: TaskPool::new(stop), running: Arc::default() }
    }

    /// Returns the cache of a resource. Its watch lasts as long as someone holds the cache.
    pub fn get(&self, served: &Served) -> Arc<Cache> {
        let mut running = self.running.lock();
        if let Some(cache) = running.get(&served.gvr).and_then(Weak::upgrade) {
            return cache;
        }
        let stop = self.tasks.token().child_token();
        let cache = Arc::new(Cache::new(stop.clone()));
        let (weak, store) = (Arc::downgrade(&cache), cache.store.clone());
        let on_event = move |event: Event<Object>| {
            if let Some(cache) = weak.upgrade() {
                cache.apply(event);
            }
        };
        let source = Source::all(served.api_resource());
        let informer = informer::run(self.client.clone(), source, store, on_event, stop);
        self.tasks.spawn(format!("watch of {}", served.gvr.plural), informer);
        running.retain(|_, cache| cache.strong_count() > 0);
        running.insert(served.gvr.clone(), Arc::downgrade(&cache));
        cache
    }

    /// The tasks of the watches. The caches are stale once a watch or a handler has panicked.
    pub fn tasks(&self) -> &TaskPool {
        &self.tasks
    }

    /// Ends all watches and waits for them.
    pub async fn shutdown(&self) {
        self.tasks.shutdown().await;
    }
}

/// The objects of one resource.
pub struct Cache {
    store: Store<Object>,
    state: RwLock<State>,
    followers: Mutex<BTreeMap<u64, ChangeHandler>>,
    /// Counts changes; `caught_up` waits on it.
    changes: watch::Sender<u64>,
    stop: CancellationToken,
}

impl Drop for Cache {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

#[derive(Default)]
struct State {
    objects: BTreeMap<ObjectKey, Arc<Object>>,
    /// UID of the controlling owner, MapController and map key (both may be empty), and the object's key.
    owned: BTreeSet<(Text, Text, Text, ObjectKey)>,
    /// Number of tagged objects by map key, MapController and UID of the controlling owner.
    tagged: BTreeMap<(Text, Text, Text), usize>,
    labelled: HashMap<(Box<str>, Box<str>), BTreeSet<ObjectKey>>,
    uids: HashMap<Text, ObjectKey>,
    /// Highest version that all handlers have been called with.
    seen: ResourceVersion,
    /// An object whose change is in the indexes, but for which the handlers have not been called yet.
    unreported: Option<ObjectKey>,
    next_follower: u64,
}

/// Unregisters the handler when dropped.
pub struct FollowGuard {
    cache: Arc<Cache>,
    id: u64,
}

impl Drop for FollowGuard {
    fn drop(&mut self) {
        self.cache.followers.lock().remove(&self.id);
    }
}

impl Cache {
    fn new(stop: CancellationToken) -> Self {
        Self {
            store: Store::default(),
            state: RwLock::default(),
            followers: Mutex::default(),
            changes: watch::Sender::new(0),
            stop,
        }
    }

    /// Calls `follower` for each change from now on.
    pub fn follow(self: &Arc<Self>, follower: impl Fn(Change<'_>) + Send + Sync + 'static) -> FollowGuard {
        let id = {
            let mut state = self.state.write();
            state.next_follower += 1;
            state.next_follower
        };
        self.followers.lock().insert(id, Arc::new(follower));
        FollowGuard { cache: self.clone(), id }
    }

    /// Waits until every object that existed at the start is known.
    pub async fn synced(&self) {
        self.store.synced().await;
    }

    /// Returns whether every object that existed at the start is known.
    pub fn is_synced(&self) -> bool {
        self.store.is_synced()
    }

    /// Reports why the watch does not work at present; `None` if it works.
    pub fn watch_error(&self) -> watch::Receiver<Option<Text>> {
        self.store.watch_error()
    }

    fn apply(&self, event: Event<Object>) {
        let (key, version, new) = match event {
            Event::Added(new) | Event::Updated { new, .. } => {
                (new.key().clone(), new.version().to_owned(), Some(new))
            }
            Event::Deleted(last) => (last.key().clone(), last.version().to_owned(), None),
            Event::Synced => {
                self.changes.send_modify(|count| *count += 1);
                return;
            }
        };
        let old = self.state.write().put(&key, new.clone());
        let same = matches!((&old, &new), (Some(old), Some(new)) if old.version() == new.version());
        if !same && (old.is_some() || new.is_some()) {
            let followers: Vec<ChangeHandler> = self.followers.lock().values().cloned().collect();
            for follower in followers {
                follower((old.as_ref(), new.as_ref()));
            }
        }
        self.state.write().reported(&version);
        self.changes.send_modify(|count| *count += 1);
    }

    /// Returns an object by namespace and name.
    pub fn get(&self, namespace: &str, name: &str) -> Option<Arc<Object>> {
        self.by_key(&ObjectKey::new(namespace, name))
    }

    /// Returns an object by key.
    pub fn by_key(&self, key: &ObjectKey) -> Option<Arc<Object>> {
        self.state.read().objects.get(key).cloned()
    }

    /// Returns an object by UID.
    pub fn by_uid(&self, uid: &str) -> Option<Arc<Object>> {
        let state = self.state.read();
        state.objects.get(state.uids.get(uid)?).cloned()
    }

    /// Returns all objects, or those of one namespace.
    pub fn list(&self, namespace: &str) -> Vec<Arc<Object>> {
        let state = self.state.read();
        if namespace.is_empty() {
            return state.objects.values().cloned().collect();
        }
        let from = ObjectKey::new(namespace, "");
        let here = state.objects.range(from..).take_while(|(key, _)| &*key.namespace == namespace);
        here.map(|(_, object)| object.clone()).collect()
    }

    /// Returns the objects of a namespace (all if it is empty) that may match. If the selector requires a
    /// label with a value, returns the objects with that label, at a cost of O(result).
    pub fn candidates(&self, namespace: &str, selector: &LabelSelector) -> Vec<Arc<Object>> {
        let Some((label, value)) = required_label(selector) else { return self.list(namespace) };
        let state = self.state.read();
        let Some(keys) = state.labelled.get(&(label, value)) else { return Vec::new() };
        let get = |key: &ObjectKey| state.objects.get(key).cloned();
        if namespace.is_empty() {
            return keys.iter().filter_map(get).collect();
        }
        let from = ObjectKey::new(namespace, "");
        keys.range(from..).take_while(|key| &*key.namespace == namespace).filter_map(get).collect()
    }

    /// Returns the objects that `owner` controls and that have the tags of this controller and key (MC-023).
    /// O(log n + result).
    pub fn group(&self, owner: &str, controller: &str, key: &MapKey) -> Vec<Arc<Object>> {
        let state = self.state.read();
        let wanted = (owner, controller, key.as_str());
        let from = (owner.into(), controller.into(), key.as_str().into(), ObjectKey::new("", ""));
        let members = state.owned.range(from..).take_while(|(o, c, k, _)| (&**o, &**c, &**k) == wanted);
        members.filter_map(|(.., object)| state.objects.get(object).cloned()).collect()
    }

    /// Returns the keys of the groups of an owner and a controller. O(members).
    pub fn group_keys(&self, owner: &str, controller: &str) -> BTreeSet<MapKey> {
        let state = self.state.read();
        let from = (owner.into(), controller.into(), "".into(), ObjectKey::new("", ""));
        let mine = state.owned.range(from..).take_while(|(o, c, ..)| (&**o, &**c) == (owner, controller));
        mine.filter(|(_, _, key, _)| !key.is_empty()).map(|(_, _, key, _)| MapKey::raw(key)).collect()
    }

    /// Returns all objects that `owner` controls, with their MapController and map key. O(result).
    pub fn owned(&self, owner: &str) -> Vec<(Text, Text, Arc<Object>)> {
        let state = self.state.read();
        let from = (owner.into(), "".into(), "".into(), ObjectKey::new("", ""));
        let mine = state.owned.range(from..).take_while(|(o, ..)| &**o == owner);
        mine.filter_map(|(_, c, k, key)| Some((c.clone(), k.clone(), state.objects.get(key).cloned()?)))
            .collect()
    }

    /// Returns the UIDs of the owners that have a group of this key.
    pub fn owners_of(&self, controller: &str, key: &MapKey) -> Vec<Text> {
        let state = self.state.read();
        let from = (key.as_str().into(), controller.into(), "".into());
        let range = state.tagged.range(from..);
        range
            .take_while(|((k, c, _), _)| (&**k, &**c) == (key.as_str(), controller))
            .map(|((.., owner), _)| owner.clone())
            .collect()
    }

    /// Waits until the watch has reported a write and all handlers have been called for it: a version of an
    /// object, or its deletion. Gives up after `longest`.
    pub async fn caught_up(&self, expected: &ExpectedEvent, longest: Duration) {
        let mut changes = self.changes.subscribe();
        let wait = async {
            loop {
                if self.state.read().shows(expected) {
                    return;
                }
                if changes.changed().await.is_err() {
                    return;
                }
            }
        };
        let _ = tokio::time::timeout(longest, wait).await;
    }
}

/// One state of one object: UID and version. A run that used this state learns nothing from its event.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ObjectState(Box<str>, Box<str>);

impl ObjectState {
    /// The state of an object as the server returned it.
    pub fn of(object: &Value) -> Self {
        Self(object::uid(object).into(), object::resource_version(object).into())
    }
}

/// The event that the watch will report after a write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ExpectedEvent {
    /// The object at this version or a later one. `echo` is set for a creation whose result is exactly what
    /// was requested.
    Version { key: ObjectKey, version: String, echo: Option<ObjectState> },
    /// The object with this UID is deleted or being deleted.
    Gone { key: ObjectKey, uid: String },
}

impl State {
    fn reported(&mut self, version: &str) {
        self.seen.raise(ResourceVersion::new(version));
        self.unreported = None;
    }

    fn put(&mut self, key: &ObjectKey, new: Option<Arc<Object>>) -> Option<Arc<Object>> {
        self.unreported = Some(key.clone());
        let old = self.objects.remove(key);
        if let Some(old) = &old {
            self.index(old, false);
        }
        if let Some(new) = new {
            self.index(&new, true);
            self.objects.insert(key.clone(), new);
        }
        old
    }

    fn index(&mut self, object: &Object, present: bool) {
        let (value, key) = (&object.value, object.key());
        if present {
            self.uids.insert(object.uid().into(), key.clone());
        } else {
            self.uids.remove(object.uid());
        }
        for (label, text) in object::labels(value).as_object().into_iter().flatten() {
            let entry = (label.as_str().into(), text.as_str().unwrap_or_default().into());
            if present {
                self.labelled.entry(entry).or_default().insert(key.clone());
            } else if let Some(keys) = self.labelled.get_mut(&entry) {
                keys.remove(key);
                if keys.is_empty() {
                    self.labelled.remove(&entry);
                }
            }
        }
        let owner = object::controller_uid(value);
        if owner.is_empty() {
            return;
        }
        let tag = |name: &str| object::annotation(value, name).unwrap_or_default();
        let (controller, map_key) = (tag(MAP_CONTROLLER_ANNOTATION), tag(MAP_KEY_ANNOTATION));
        let owned = (Text::from(owner), Text::from(controller), Text::from(map_key), key.clone());
        let tagged = (owned.2.clone(), owned.1.clone(), owned.0.clone());
        if present {
            self.owned.insert(owned);
            *self.tagged.entry(tagged).or_default() += usize::from(!map_key.is_empty());
        } else {
            self.owned.remove(&owned);
            if let Some(count) = self.tagged.get_mut(&tagged) {
                *count = count.saturating_sub(1);
                if *count == 0 {
                    self.tagged.remove(&tagged);
                }
            }
        }
    }

    fn shows(&self, expected: &ExpectedEvent) -> bool {
        let reported = |key: &ObjectKey| self.unreported.as_ref() != Some(key);
        match expected {
            ExpectedEvent::Version { key, version, .. } => {
                let version = ResourceVersion::new(version);
                let past = version.is_comparable() && self.seen >= version;
                let there =
                    || self.objects.get(key).is_some_and(|object| object.version() == version.as_str());
                past || (reported(key) && there())
            }
            ExpectedEvent::Gone { key, uid } => {
                let gone =
                    |object: &Arc<Object>| object.uid() != uid || object::is_terminating(&object.value);
                reported(key) && self.objects.get(key).is_none_or(gone)
            }
        }
    }
}

/// Returns a label and value that every match has.
pub fn required_label(selector: &LabelSelector) -> Option<(Box<str>, Box<str>)> {
    let exact = selector.requirements().iter().find(|requirement| {
        matches!(requirement.op, LabelOp::Equals | LabelOp::DoubleEquals | LabelOp::In)
            && requirement.values.len() == 1
    })?;
    Some((exact.key.as_str().into(), exact.values.first()?.as_str().into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn object(name: &str, version: u64, owner: &str, tags: Value, labels: Value) -> Object {
        let mut value = json!({"metadata": {"name": name, "namespace": "n", "resourceVersion": version.to_string(), "uid": name, "annotations": tags, "labels": labels}});
        if !owner.is_empty() {
            value["metadata"]["ownerReferences"] = json!([{"uid": owner, "controller": true}]);
        }
        Object::new(value)
    }

    fn names(objects: &[Arc<Object>]) -> String {
        objects.iter().map(|o| o.key().name.to_string()).collect::<Vec<_>>().join(" ")
    }

    /// MC-023, MC-026, MC-032: the groups by owner, controller and key follow the objects; an event with an
    /// equal version is no change.
    #[test]
    fn mc_026_groups_are_indexed() {
        let cache = Arc::new(Cache::new(CancellationToken::new()));
        let reported = Arc::new(Mutex::new(0));
        let count = reported.clone();
        let _following = cache.follow(move |_| *count.lock() += 1);
        let key = MapKey::raw("configmaps/n/i");
        let tags = json!({MAP_CONTROLLER_ANNOTATION: "mc", MAP_KEY_ANNOTATION: "configmaps/n/i"});
        let a = Arc::new(object("a", 1, "P", tags.clone(), json!({"app": "x"})));
        cache.apply(Event::Added(a.clone()));
        cache.apply(Event::Added(a));
        cache.apply(Event::Added(Arc::new(object("b", 2, "P", json!({}), json!({"app": "x"})))));
        cache.apply(Event::Added(Arc::new(object("c", 3, "Q", tags, json!({"app": "y"})))));
        assert_eq!(*reported.lock(), 3);
        assert_eq!(names(&cache.group("P", "mc", &key)), "a");
        assert_eq!(cache.group_keys("P", "mc").len(), 1);
        assert_eq!(cache.owned("P").len(), 2);
        assert_eq!(cache.owners_of("mc", &key).len(), 2);
        let selector = LabelSelector::parse("app=x").unwrap();
        assert_eq!(names(&cache.candidates("n", &selector)), "a b");
        assert_eq!(names(&cache.candidates("other", &selector)), "");
        cache.apply(Event::Added(Arc::new(object("a", 4, "", json!({}), json!({})))));
        assert_eq!(names(&cache.group("P", "mc", &key)), "");
        assert_eq!(cache.owners_of("mc", &key).len(), 1);
        assert_eq!(names(&cache.candidates("n", &selector)), "b");
        cache.apply(Event::Deleted(Arc::new(object("c", 5, "", json!({}), json!({})))));
        assert_eq!(cache.owners_of("mc", &key).len(), 0);
        assert_eq!(names(&cache.list("n")), "a b");
    }

    /// MC-192: there is one cache for each resource and one copy of each object.
    #[tokio::test]
    async fn mc_192_objects_are_there_once() {
        let service = tower::service_fn(|_: http::Request<kube::client::Body>| {
            std::future::pending::<Result<http::Response<kube::client::Body>, std::convert::Infallible>>()
        });
        let stop = CancellationToken::new();
        let caches = Caches::new(Client::new(service, "default"), &stop);
        let maps = Served {
            gvr: Gvr::new("", "v1", "configmaps"),
            kind: "ConfigMap".into(),
            namespaced: true,
            has_status: false,
        };
        let (one, other) = (caches.get(&maps), caches.get(&maps));
        assert!(Arc::ptr_eq(&one, &other));
        let tags = json!({MAP_CONTROLLER_ANNOTATION: "mc", MAP_KEY_ANNOTATION: "k"});
        one.apply(Event::Added(Arc::new(object("a", 1, "P", tags, json!({"app": "x"})))));
        let first = one.get("n", "a").unwrap();
        let selector = LabelSelector::parse("app=x").unwrap();
        let (_, _, owned) = other.owned("P").remove(0);
        let group = other.group("P", "mc", &MapKey::raw("k")).remove(0);
        for again in [other.by_uid("a").unwrap(), other.candidates("n", &selector).remove(0), owned, group] {
            assert!(Arc::ptr_eq(&first, &again));
        }
        drop((one, other));
        assert!(caches.get(&maps).get("n", "a").is_none(), "what nobody holds is not kept");
        caches.shutdown().await;
    }

    #[tokio::test]
    async fn a_write_is_waited_for() {
        let cache = Arc::new(Cache::new(CancellationToken::new()));
        let expected =
            ExpectedEvent::Version { key: ObjectKey::new("n", "a"), version: "7".into(), echo: None };
        let waiting = {
            let (cache, expected) = (cache.clone(), expected.clone());
            tokio::spawn(async move { cache.caught_up(&expected, Duration::from_secs(60)).await })
        };
        cache.apply(Event::Added(Arc::new(object("a", 7, "", json!({}), json!({})))));
        waiting.await.unwrap();
        let gone = ExpectedEvent::Gone { key: ObjectKey::new("n", "a"), uid: "a".into() };
        assert!(!cache.state.read().shows(&gone));
        cache.apply(Event::Deleted(Arc::new(object("a", 8, "", json!({}), json!({})))));
        assert!(cache.state.read().shows(&gone) && cache.state.read().shows(&expected));
    }
}
