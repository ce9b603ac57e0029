//! Objects that customize hooks ask for (MC-113 to MC-118): followed on demand, found by an index from object to parent.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use runtime::rest::Gvr;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::rules::{self, Rule};
use crate::{
    cache::{Cache, Change, Following, anchor},
    hooks::{Call, HookClient, HookError},
    host::Shared,
    object::{self, Object, Text},
    resource::Served,
    wire::object_map,
};

/// How long an answer counts for a generation.
const FRESH: Duration = Duration::from_secs(20 * 60);

/// Tells that the parent of a UID must be looked at.
pub type Wake = Arc<dyn Fn(&Text) + Send + Sync>;

/// Related objects of all parents of one controller.
pub struct Related {
    shared: Arc<Shared>,
    hook: Arc<HookClient>,
    index: Arc<Mutex<Index>>,
    wake: Wake,
}

/// Why there are no related objects to be had.
pub enum Missing {
    /// The hook failed.
    Hook(HookError),
    /// What it asks for makes no sense.
    Rules(String),
    /// They are being fetched; wakes up by itself.
    NotYet,
}

#[derive(Default)]
struct Index {
    parents: HashMap<Text, Known>,
    /// Where an event of a resource looks for parents.
    slots: HashMap<(Gvr, Slot), HashSet<Text>>,
    followed: HashMap<Gvr, (Served, Arc<Cache>, Following)>,
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
    /// A label every match has.
    Labelled(Box<str>, Box<str>),
    /// Any object.
    Any,
}

fn slots(rule: &Rule) -> Vec<Slot> {
    if !rule.names.is_empty() {
        return rule.names.iter().map(|name| Slot::Named(rule.namespace.clone(), name.clone())).collect();
    }
    match anchor(&rule.labels) {
        Some((label, value)) => vec![Slot::Labelled(label, value)],
        None => vec![Slot::Any],
    }
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
            let mut look = vec![
                Slot::Named(key.namespace.to_string(), key.name.to_string()),
                Slot::Named(String::new(), key.name.to_string()),
                Slot::Any,
            ];
            for (label, value) in object::labels(&object.value).as_object().into_iter().flatten() {
                look.push(Slot::Labelled(label.as_str().into(), value.as_str().unwrap_or_default().into()));
            }
            for slot in look {
                for uid in self.slots.get(&(gvr.clone(), slot)).into_iter().flatten() {
                    let rules = self.parents.get(uid).into_iter().flat_map(|known| &known.rules);
                    let mut of_resource = rules.filter(|(served, _)| served.gvr == *gvr);
                    if of_resource
                        .any(|(_, rule)| rule.matches(&object.value, |name| self.namespace_labels(name)))
                    {
                        found.insert(uid.clone());
                    }
                }
            }
        }
        found
    }

    fn namespace_labels(&self, name: &str) -> Value {
        let cache = self.followed.get(&namespaces().gvr);
        let found = cache.and_then(|(_, cache, _)| cache.get("", name));
        found.map(|namespace| object::labels(&namespace.value).clone()).unwrap_or_default()
    }

    fn forget(&mut self, uid: &Text) {
        let Some(known) = self.parents.remove(uid) else { return };
        for (served, rule) in &known.rules {
            for slot in slots(rule) {
                let at = (served.gvr.clone(), slot);
                if let Some(uids) = self.slots.get_mut(&at) {
                    uids.remove(uid);
                    if uids.is_empty() {
                        self.slots.remove(&at);
                    }
                }
            }
        }
    }
}

impl Related {
    /// Nothing is followed yet.
    pub fn new(shared: Arc<Shared>, hook: Arc<HookClient>, wake: Wake) -> Self {
        Self { shared, hook, index: Arc::default(), wake }
    }

    /// A parent is gone.
    pub fn forget(&self, uid: &str) {
        self.index.lock().forget(&uid.into());
    }

    /// The objects related to a parent, as they go into a request. Calls the hook when the parent's generation is new to
    /// it or the last answer is old (MC-113).
    pub async fn of(&self, controller: &Value, parent: &Object) -> Result<Value, Missing> {
        let uid: Text = parent.uid().into();
        let generation = object::generation(&parent.value);
        let fresh = {
            let index = self.index.lock();
            let known = index.parents.get(&uid);
            known.is_some_and(|known| known.generation == generation && known.since.elapsed() < FRESH)
        };
        if !fresh {
            self.ask(controller, parent, &uid, generation).await?;
        }
        self.collect(parent, &uid)
    }

    async fn ask(
        &self,
        controller: &Value,
        parent: &Object,
        uid: &Text,
        generation: i64,
    ) -> Result<(), Missing> {
        let body = json!({"controller": controller, "parent": parent.value});
        let call = Call { key: (self.hook.settings().kind, uid.clone(), "".into()), body: &body };
        let answer = self.hook.call(call).await.map_err(Missing::Hook)?;
        let version = self.hook.settings().version;
        let mut found = Vec::new();
        for rule in rules::read(&answer).map_err(Missing::Rules)? {
            let served = self.shared.served(&rule.api_version, &rule.resource).await;
            let served = served.map_err(|why| Missing::Rules(why.text))?;
            let namespace = object::namespace(&parent.value);
            let rule = rule.scoped(&served, namespace, version).map_err(Missing::Rules)?;
            found.push((served, rule));
        }
        for (served, rule) in &found {
            self.follow(served);
            if rule.namespaces.is_some() {
                self.follow(&namespaces());
            }
        }
        let mut index = self.index.lock();
        index.forget(uid);
        for (served, rule) in &found {
            for slot in slots(rule) {
                index.slots.entry((served.gvr.clone(), slot)).or_default().insert(uid.clone());
            }
        }
        index.parents.insert(uid.clone(), Known { generation, since: Instant::now(), rules: found });
        Ok(())
    }

    fn follow(&self, served: &Served) {
        if self.index.lock().followed.contains_key(&served.gvr) {
            return;
        }
        let cache = self.shared.caches.get(served);
        let (index, wake, gvr) = (Arc::downgrade(&self.index), self.wake.clone(), served.gvr.clone());
        let of_namespaces = gvr == namespaces().gvr;
        let following = cache.follow(move |change| {
            let Some(index) = index.upgrade() else { return };
            let uids = {
                let index = index.lock();
                let mut uids = index.concerned(&gvr, change);
                if of_namespaces && relabelled(change) {
                    // MC-118: the choice of namespaces may be another now.
                    let choosing = index
                        .parents
                        .iter()
                        .filter(|(_, known)| known.rules.iter().any(|(_, rule)| rule.namespaces.is_some()));
                    uids.extend(choosing.map(|(uid, _)| uid.clone()));
                }
                uids
            };
            for uid in &uids {
                wake(uid);
            }
        });
        self.index.lock().followed.entry(served.gvr.clone()).or_insert((served.clone(), cache, following));
    }

    fn collect(&self, parent: &Object, uid: &Text) -> Result<Value, Missing> {
        let index = self.index.lock();
        let Some(known) = index.parents.get(uid) else { return Ok(json!({})) };
        let mut groups: Vec<(&Served, Vec<Value>)> = Vec::new();
        for (served, rule) in &known.rules {
            let Some((_, cache, _)) = index.followed.get(&served.gvr) else { return Err(Missing::NotYet) };
            let namespaces = index.followed.get(&namespaces().gvr);
            let ready = cache.is_synced()
                && (rule.namespaces.is_none() || namespaces.is_some_and(|(_, cache, _)| cache.is_synced()));
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
        Ok(object_map(self.hook.settings().version, object::namespace(&parent.value), groups))
    }
}

fn relabelled((old, new): Change<'_>) -> bool {
    let labels = |object: Option<&Arc<Object>>| object.map(|object| object::labels(&object.value).clone());
    labels(old) != labels(new)
}
