//! The objects that customize hooks request (MC-113 to MC-118). They are followed on demand, and an index
//! leads from an object to the parents.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use runtime::rest::Gvr;
use serde_json::{Value, json};
use tokio::{sync::Notify, time::Instant};

use super::{
    followed::Followed,
    rules::{self, Rule},
};
use crate::{
    cache::{Cache, Change, FollowGuard},
    hooks::{Call, HookClient, HookError},
    object::{self, Object, Text},
    resource::Served,
    selector_index::SelectorKey,
    shared::Shared,
    wire::object_map,
};

/// How long an answer is valid for a generation.
const FRESH: Duration = Duration::from_secs(20 * 60);

/// Enqueues the parent of a UID.
pub type Wake = Arc<dyn Fn(&Text) + Send + Sync>;

/// The related objects of all parents of one controller.
pub struct Related {
    shared: Arc<Shared>,
    hook: Arc<HookClient>,
    index: Arc<Mutex<Index>>,
    wake: Wake,
    /// Notified when a resource is not referenced any more.
    idle: Arc<Notify>,
}

/// Why related objects are not available.
pub enum Missing {
    /// The customize hook failed.
    Hook(HookError),
    /// The request is invalid.
    Rules(String),
    /// A requested resource is not served yet.
    Unserved(String),
    /// The objects are being listed.
    NotYet,
}

/// UID of a parent, and its revision that was asked about (empty without rolling updates).
type Asker = (Text, Text);

#[derive(Default)]
struct Index {
    /// The requests by UID and revision.
    parents: HashMap<Text, HashMap<Text, Known>>,
    /// The parents to look at for an event of a resource.
    slots: HashMap<(Gvr, Slot), HashSet<Asker>>,
    followed: Followed,
}

struct Known {
    generation: i64,
    since: Instant,
    rules: Vec<(Served, Rule)>,
}

#[derive(Clone, PartialEq, Eq, Hash)]
enum Slot {
    /// Namespace (empty for any) and name.
    Named(String, String),
    /// By labels.
    At(SelectorKey),
}

fn slots(rule: &Rule) -> Vec<Slot> {
    if !rule.names.is_empty() {
        return rule.names.iter().map(|name| Slot::Named(rule.namespace.clone(), name.clone())).collect();
    }
    vec![Slot::At(SelectorKey::of(&rule.namespace, &rule.labels))]
}

/// Returns the resources that a rule refers to; a namespace selector adds Namespaces.
fn resources<'a>(served: &'a Served, rule: &Rule) -> impl Iterator<Item = Served> + use<'a> {
    std::iter::once(served.clone()).chain(rule.namespaces.is_some().then(namespaces))
}

fn namespaces() -> Served {
    Served {
        gvr: Gvr::new("", "v1", "namespaces"),
        kind: "Namespace".into(),
        namespaced: false,
        has_status: true,
    }
}

impl Index {
    fn concerned(&self, gvr: &Gvr, (old, new): Change<'_>) -> HashSet<Text> {
        let mut found = HashSet::new();
        for object in old.into_iter().chain(new) {
            let key = object.key();
            let labels = object::labels(&object.value);
            let mut places = vec![&*key.namespace];
            if !key.namespace.is_empty() {
                places.push("");
            }
            let look = places.into_iter().flat_map(|namespace| {
                let named = Slot::Named(namespace.to_owned(), key.name.to_string());
                SelectorKey::looked_at(namespace, labels).map(Slot::At).chain([named])
            });
            for slot in look {
                for asker in self.slots.get(&(gvr.clone(), slot)).into_iter().flatten() {
                    let rules = self.known(asker).into_iter().flat_map(|known| &known.rules);
                    let mut of_resource = rules.filter(|(served, _)| served.gvr == *gvr);
                    if of_resource
                        .any(|(_, rule)| rule.matches(&object.value, |name| self.namespace_labels(name)))
                    {
                        found.insert(asker.0.clone());
                    }
                }
            }
        }
        found
    }

    fn known(&self, (uid, part): &Asker) -> Option<&Known> {
        self.parents.get(uid)?.get(part)
    }

    fn namespace_labels(&self, name: &str) -> Value {
        let found = self.followed.get(&namespaces().gvr).and_then(|cache| cache.get("", name));
        found.map(|namespace| object::labels(&namespace.value).clone()).unwrap_or_default()
    }

    /// Stores the request of a parent.
    fn put(&mut self, asker: &Asker, known: Known) {
        for (served, rule) in &known.rules {
            for slot in slots(rule) {
                self.slots.entry((served.gvr.clone(), slot)).or_default().insert(asker.clone());
            }
            resources(served, rule).for_each(|resource| self.followed.used(&resource.gvr));
        }
        self.parents.entry(asker.0.clone()).or_default().insert(asker.1.clone(), known);
    }

    /// Forgets a parent except for these revisions. Returns true if some resource is not referenced any more.
    fn forget(&mut self, uid: &Text, but_for: &[&str]) -> bool {
        let all = self.parents.get(uid).into_iter().flat_map(HashMap::keys);
        let going: Vec<Text> = all.filter(|part| !but_for.contains(&&***part)).cloned().collect();
        let mut idle = false;
        for part in going {
            idle |= self.forget_one(&(uid.clone(), part));
        }
        idle
    }

    fn forget_one(&mut self, asker: &Asker) -> bool {
        let Some(parts) = self.parents.get_mut(&asker.0) else { return false };
        let Some(known) = parts.remove(&asker.1) else { return false };
        let (now, mut idle) = (Instant::now(), false);
        if parts.is_empty() {
            self.parents.remove(&asker.0);
        }
        for (served, rule) in &known.rules {
            for slot in slots(rule) {
                let at = (served.gvr.clone(), slot);
                if let Some(askers) = self.slots.get_mut(&at) {
                    askers.remove(asker);
                    if askers.is_empty() {
                        self.slots.remove(&at);
                    }
                }
            }
            for resource in resources(served, rule) {
                idle |= self.followed.unused(&resource.gvr, now);
            }
        }
        idle
    }
}

impl Related {
    /// Nothing is followed yet.
    pub fn new(shared: Arc<Shared>, hook: Arc<HookClient>, wake: Wake) -> Self {
        Self { shared, hook, index: Arc::default(), wake, idle: Arc::default() }
    }

    /// Keeps only these revisions of a parent; an empty list forgets the parent.
    pub fn keep(&self, uid: &str, revisions: &[&str]) {
        if self.index.lock().forget(&uid.into(), revisions) {
            self.idle.notify_one();
        }
    }

    /// Ends the watches of unreferenced resources after a minute. Never returns.
    pub async fn end_idle_watches(&self) {
        loop {
            let (left, next) = self.index.lock().followed.leave(Instant::now());
            drop(left);
            let timer = async {
                match next {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = self.idle.notified() => {}
                () = timer => {}
            }
        }
    }

    /// Returns the objects related to a parent at a revision, in the form of a request. Calls the hook if the
    /// parent's generation is new or the last answer is too old (MC-113), once for each revision (MC-151).
    pub async fn of(&self, controller: &Value, parent: &Value, revision: &str) -> Result<Value, Missing> {
        let asker: Asker = (object::uid(parent).into(), revision.into());
        let generation = object::generation(parent);
        let fresh = {
            let index = self.index.lock();
            let known = index.known(&asker);
            known.is_some_and(|known| known.generation == generation && known.since.elapsed() < FRESH)
        };
        if !fresh {
            self.ask(controller, parent, &asker).await?;
        }
        self.collect(parent, &asker)
    }

    async fn ask(&self, controller: &Value, parent: &Value, asker: &Asker) -> Result<(), Missing> {
        let body = json!({"controller": controller, "parent": parent});
        let (uid, revision) = asker.clone();
        let call = Call { key: (self.hook.settings().kind, uid, revision), body: &body };
        let answer = self.hook.call(call).await.map_err(Missing::Hook)?;
        let version = self.hook.settings().version;
        let mut found = Vec::new();
        for rule in rules::read(&answer, self.hook.settings().strict).map_err(Missing::Rules)? {
            let served = self.shared.served(&rule.api_version, &rule.resource).await;
            let served = served.map_err(|why| {
                if why.passing { Missing::Unserved(why.text) } else { Missing::Rules(why.text) }
            })?;
            let namespace = object::namespace(parent);
            let rule = rule.scoped(&served, namespace, version).map_err(Missing::Rules)?;
            found.push((served, rule));
        }
        let wanted: Vec<Served> = found.iter().flat_map(|(served, rule)| resources(served, rule)).collect();
        let known = Known { generation: object::generation(parent), since: Instant::now(), rules: found };
        let mut index = self.index.lock();
        let idle = index.forget_one(asker);
        // Referenced from here on, so that no resource that is followed now is released.
        index.put(asker, known);
        for served in &wanted {
            index.followed.follow(&served.gvr, || self.follow(served));
        }
        drop(index);
        if idle {
            self.idle.notify_one();
        }
        Ok(())
    }

    /// The index is locked here; only the watch calls the handler.
    fn follow(&self, served: &Served) -> (Arc<Cache>, FollowGuard) {
        let cache = self.shared.caches.get(served);
        let (index, wake, gvr) = (Arc::downgrade(&self.index), self.wake.clone(), served.gvr.clone());
        let of_namespaces = gvr == namespaces().gvr;
        let following = cache.follow(move |change| {
            let Some(index) = index.upgrade() else { return };
            let uids = {
                let index = index.lock();
                let mut uids = index.concerned(&gvr, change);
                if of_namespaces && relabelled(change) {
                    // MC-118: the set of selected namespaces may have changed.
                    let chooses =
                        |known: &Known| known.rules.iter().any(|(_, rule)| rule.namespaces.is_some());
                    let choosing = index.parents.iter().filter(|(_, parts)| parts.values().any(chooses));
                    uids.extend(choosing.map(|(uid, _)| uid.clone()));
                }
                uids
            };
            for uid in &uids {
                wake(uid);
            }
        });
        (cache, following)
    }

    fn collect(&self, parent: &Value, asker: &Asker) -> Result<Value, Missing> {
        let index = self.index.lock();
        let Some(known) = index.known(asker) else { return Ok(json!({})) };
        let mut groups: Vec<(&Served, Vec<Value>)> = Vec::new();
        for (served, rule) in &known.rules {
            let Some(cache) = index.followed.get(&served.gvr) else { return Err(Missing::NotYet) };
            let namespaces = index.followed.get(&namespaces().gvr);
            let ready = cache.is_synced()
                && (rule.namespaces.is_none() || namespaces.is_some_and(|cache| cache.is_synced()));
            if !ready {
                return Err(Missing::NotYet);
            }
            let candidates = match &rule.names[..] {
                [] => cache.candidates(&rule.namespace, &rule.labels),
                names if !rule.namespace.is_empty() || !served.namespaced => {
                    names.iter().filter_map(|name| cache.get(&rule.namespace, name)).collect()
                }
                _ => cache.list(""),
            };
            let matching =
                candidates.iter().filter(|o| rule.matches(&o.value, |name| index.namespace_labels(name)));
            let objects: Vec<Value> = matching.map(|object| object.value.clone()).collect();
            match groups.iter_mut().find(|(known, _)| known.gvr == served.gvr) {
                Some((_, all)) => all.extend(objects),
                None => groups.push((served, objects)),
            }
        }
        Ok(object_map(self.hook.settings().version, object::namespace(parent), groups))
    }
}

fn relabelled((old, new): Change<'_>) -> bool {
    let labels = |object: Option<&Arc<Object>>| object.map(|object| object::labels(&object.value).clone());
    labels(old) != labels(new)
}
