//! What one MapController knows, and what it decides from it (MC-010 to MC-045, MC-081, MC-082).

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use machinery::selector::LabelSelector;
use parking_lot::Mutex;
use serde_json::Value;

use super::{
    answer::OutputRef,
    group::{ClusterView, Method},
    key::MapKey,
    parents::{Parents, is_handled},
    selector,
    status::{Contribution, Inputs, Outputs},
};
use crate::{
    cache::Cache,
    object::{self, Object, Text},
    resource::Served,
};

/// UID of a parent, and an input's key: the unit of work.
pub type Item = (Text, MapKey);

/// A kind of inputs.
pub struct InputRule {
    /// The resource.
    pub served: Served,
    /// Its objects.
    pub cache: Arc<Cache>,
    /// A change of nothing but status is none.
    pub ignore_status: bool,
}

/// A kind of outputs.
pub struct OutputRule {
    /// Its objects.
    pub cache: Arc<Cache>,
    /// How existing ones are changed.
    pub method: Method,
}

/// Whether there is a MapController of a name.
pub type Exists = Arc<dyn Fn(&str) -> bool + Send + Sync>;

/// One MapController.
pub struct Mapping {
    /// Its name.
    pub name: Text,
    /// The whole object, as hooks get it.
    pub object: Arc<Mutex<Arc<Value>>>,
    /// Resource of the parents.
    pub parent: Served,
    /// Objects of that.
    pub parent_cache: Arc<Cache>,
    /// Which of them are handled.
    pub parent_selector: LabelSelector,
    /// Kinds of inputs.
    pub inputs: Vec<InputRule>,
    /// Kinds of outputs.
    pub outputs: Vec<OutputRule>,
    /// Resources of the outputs, in the same order.
    pub output_resources: Vec<Served>,
    /// The parents that are handled.
    pub parents: Mutex<Parents>,
    /// Other MapControllers.
    pub exists: Exists,
}

/// Why outputs have no input (MC-030).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    InputDeleted,
    InputNotMatching,
    InputResourceRemoved,
}

impl Reason {
    /// As hooks are told.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::InputDeleted => "InputDeleted",
            Self::InputNotMatching => "InputNotMatching",
            Self::InputResourceRemoved => "InputResourceRemoved",
        }
    }
}

/// Outputs with the index of their resource.
pub type Group = Vec<(usize, Arc<Object>)>;

/// What an item needs (MC §2.13, steps 1 to 3).
pub enum Verdict {
    /// Its parent is not handled.
    Drop,
    /// Its parent's selector can't be read.
    Invalid,
    /// The input was made of inputs too often.
    TooDeep { parent: Arc<Object>, input: Arc<Object> },
    /// To be mapped.
    Live { parent: Arc<Object>, input: Arc<Object>, group: Group },
    /// Outputs without an input.
    Detached { parent: Arc<Object>, reason: Reason, group: Group },
    /// There is nothing.
    Empty,
}

impl Mapping {
    /// Everything it follows, as it is served.
    pub fn resources(&self) -> Vec<(Served, Arc<Cache>)> {
        let parents = (self.parent.clone(), self.parent_cache.clone());
        let inputs = self.inputs.iter().map(|rule| (rule.served.clone(), rule.cache.clone()));
        let outputs = self.output_resources.iter().zip(&self.outputs);
        let outputs = outputs.map(|(served, rule)| (served.clone(), rule.cache.clone()));
        std::iter::once(parents).chain(inputs).chain(outputs).collect()
    }

    /// The same by resource.
    pub fn caches(&self) -> Vec<(String, Arc<Cache>)> {
        let all = self.resources().into_iter();
        all.map(|(served, cache)| (served.group_resource(), cache)).collect()
    }

    /// Decides from the caches alone. Costs O(outputs of the item).
    pub fn judge(&self, (uid, key): &Item) -> Verdict {
        let Some(parent) = self.parent(uid) else { return Verdict::Drop };
        let selector = match self.parents.lock().selector(uid) {
            Some(Ok(selector)) => selector.clone(),
            Some(Err(_)) => return Verdict::Invalid,
            None => return Verdict::Drop,
        };
        match self.input(&parent.value, &selector, key) {
            Ok(input) if selector::depth(&input.value) >= selector::MAX_DEPTH => {
                Verdict::TooDeep { parent, input }
            }
            Ok(input) => Verdict::Live { group: self.group(uid, key), parent, input },
            Err(reason) => {
                let group = self.group(uid, key);
                if group.is_empty() { Verdict::Empty } else { Verdict::Detached { parent, reason, group } }
            }
        }
    }

    /// The parent as it is now, if it is handled.
    fn parent(&self, uid: &str) -> Option<Arc<Object>> {
        let key = self.parents.lock().get(uid)?.key.clone();
        let parent = self.parent_cache.by_key(&key)?;
        (parent.uid() == uid && is_handled(&parent.value, &self.parent_selector)).then_some(parent)
    }

    fn input(&self, parent: &Value, selector: &LabelSelector, key: &MapKey) -> Result<Arc<Object>, Reason> {
        let parts = key.parts().ok_or(Reason::InputResourceRemoved)?;
        let rule = self.inputs.iter().find(|rule| rule.served.group_resource() == parts.group_resource);
        let rule = rule.ok_or(Reason::InputResourceRemoved)?;
        let input = rule.cache.get(parts.namespace, parts.name).ok_or(Reason::InputDeleted)?;
        let scope = object::namespace(parent);
        let in_scope = !rule.served.namespaced || scope.is_empty() || scope == parts.namespace;
        if in_scope && selector::is_eligible(parent, selector, &input.value) {
            Ok(input)
        } else {
            Err(Reason::InputNotMatching)
        }
    }

    /// The outputs of an item.
    pub fn group(&self, uid: &str, key: &MapKey) -> Group {
        let members = self.outputs.iter().enumerate().flat_map(|(index, rule)| {
            let group = rule.cache.group(uid, &self.name, key);
            group.into_iter().map(move |object| (index, object))
        });
        members.collect()
    }

    /// Inputs that a parent selects, by resource. Costs O(inputs with a label the selector insists on), without such a
    /// label O(inputs in scope).
    fn eligible(parent: &Value, selector: &LabelSelector, rule: &InputRule) -> Vec<Arc<Object>> {
        let scope = if rule.served.namespaced { object::namespace(parent) } else { "" };
        let mut found = rule.cache.candidates(scope, selector);
        found.retain(|input| selector::is_eligible(parent, selector, &input.value));
        found
    }

    /// The key of an input.
    pub fn key_of(rule: &InputRule, input: &Object) -> MapKey {
        MapKey::new(&rule.served.group_resource(), &input.key().namespace, &input.key().name)
    }

    /// Every key of a parent: of inputs it selects and of outputs it has. None if its selector can't be read.
    pub fn keys(&self, uid: &str) -> Option<Vec<MapKey>> {
        let parent = self.parent(uid)?;
        let selector = self.parents.lock().selector(uid)?.ok()?.clone();
        let mut keys: Vec<MapKey> = Vec::new();
        for rule in &self.inputs {
            let eligible = Self::eligible(&parent.value, &selector, rule);
            keys.extend(eligible.iter().map(|input| Self::key_of(rule, input)));
        }
        let known: HashSet<MapKey> = keys.iter().cloned().collect();
        let mut more = HashSet::new();
        for rule in &self.outputs {
            let groups = rule.cache.group_keys(uid, &self.name);
            more.extend(groups.into_iter().filter(|key| !known.contains(key)));
        }
        keys.extend(more);
        Some(keys)
    }

    /// The parents whose item a change of an input concerns (MC-031).
    pub fn concerned(&self, rule: &InputRule, old: Option<&Object>, new: Option<&Object>) -> Vec<Item> {
        let Some(any) = new.or(old) else { return Vec::new() };
        let key = Self::key_of(rule, any);
        let mut uids: HashSet<Text> = HashSet::new();
        {
            let parents = self.parents.lock();
            let places: Vec<Text> = match (self.parent.namespaced, rule.served.namespaced) {
                (false, _) => vec!["".into()],
                (true, true) => vec![any.key().namespace.clone()],
                (true, false) => parents.namespaces().into_iter().collect(),
            };
            for (place, object) in places.iter().flat_map(|place| [(place, old), (place, new)]) {
                if let Some(object) = object {
                    uids.extend(parents.selecting(place, object::labels(&object.value)));
                }
            }
        }
        uids.extend(self.outputs.iter().flat_map(|output| output.cache.owners_of(&self.name, &key)));
        let parents = self.parents.lock();
        uids.into_iter().filter(|uid| parents.get(uid).is_some()).map(|uid| (uid, key.clone())).collect()
    }

    /// What this controller knows for the status of a parent (MC-080 to MC-083). Costs O(its inputs and outputs).
    pub fn contribution(&self, uid: &str) -> Option<Contribution> {
        let parent = self.parent(uid)?;
        let (selector, failed, pending) = {
            let parents = self.parents.lock();
            let known = parents.get(uid)?;
            (parents.selector(uid)?.ok()?.clone(), known.failed.clone(), known.pending.len())
        };
        let mut contribution = Contribution { complete: pending == 0, ..Contribution::default() };
        for rule in &self.inputs {
            let eligible = Self::eligible(&parent.value, &selector, rule);
            let failed = if failed.is_empty() {
                0
            } else {
                eligible.iter().filter(|input| failed.contains(&Self::key_of(rule, input))).count()
            };
            let gvr = &rule.served.gvr;
            contribution
                .inputs
                .insert((gvr.group.clone(), gvr.plural.clone()), Inputs { total: eligible.len(), failed });
        }
        let mut live: HashMap<Text, bool> = HashMap::new();
        for (rule, served) in self.outputs.iter().zip(&self.output_resources) {
            let mut outputs = Outputs::default();
            for (controller, key, object) in rule.cache.owned(uid) {
                if key.is_empty() {
                    continue;
                }
                outputs.count(&object.value);
                if *controller == *self.name {
                    let live = *live.entry(key).or_insert_with_key(|key| {
                        self.input(&parent.value, &selector, &MapKey::raw(key)).is_ok()
                    });
                    outputs.detached += usize::from(!live);
                }
            }
            contribution.outputs.insert((served.gvr.group.clone(), served.gvr.plural.clone()), outputs);
        }
        if let Some(known) = self.parents.lock().get_mut(uid) {
            known.last = contribution.clone();
        }
        Some(contribution)
    }
}

/// The rest of the world, as far as one parent's outputs are concerned.
pub struct ParentClusterView<'a> {
    /// The controller.
    pub mapping: &'a Mapping,
    /// The parent.
    pub parent: &'a Value,
}

impl ClusterView for ParentClusterView<'_> {
    fn at(&self, place: &OutputRef) -> Option<Arc<Object>> {
        self.mapping.outputs.get(place.rule)?.cache.get(&place.namespace, &place.name)
    }

    fn is_live(&self, key: &MapKey) -> bool {
        match selector::parse(self.parent) {
            Ok(selector) => self.mapping.input(self.parent, &selector, key).is_ok(),
            Err(_) => true,
        }
    }

    fn controller_exists(&self, name: &str) -> bool {
        (self.mapping.exists)(name)
    }
}
