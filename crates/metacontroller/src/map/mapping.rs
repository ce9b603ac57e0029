//! The state of one MapController, and the decisions that follow from it (MC-010 to MC-045, MC-081, MC-082).

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

/// The unit of work: UID of a parent, and the key of an input.
pub type Item = (Text, MapKey);

/// A resource of inputs.
pub struct InputRule {
    /// The resource.
    pub served: Served,
    /// Its objects.
    pub cache: Arc<Cache>,
    /// Whether changes of the status alone are ignored.
    pub ignore_status: bool,
}

/// A resource of outputs.
pub struct OutputRule {
    /// Its objects.
    pub cache: Arc<Cache>,
    /// How existing outputs are changed.
    pub method: Method,
}

/// Returns whether there is a MapController of a name.
pub type Exists = Arc<dyn Fn(&str) -> bool + Send + Sync>;

/// One MapController.
pub struct Mapping {
    /// Its name.
    pub name: Text,
    /// The whole controller object, as hooks receive it.
    pub object: Arc<Mutex<Arc<Value>>>,
    /// Resource of the parents.
    pub parent: Served,
    /// Its objects.
    pub parent_cache: Arc<Cache>,
    /// Selects the parents to handle.
    pub parent_selector: LabelSelector,
    /// The resources of inputs.
    pub inputs: Vec<InputRule>,
    /// The resources of outputs.
    pub outputs: Vec<OutputRule>,
    /// The resources of the outputs, in the same order.
    pub output_resources: Vec<Served>,
    /// The parents that are handled.
    pub parents: Mutex<Parents>,
    /// Looks up other MapControllers.
    pub exists: Exists,
}

/// Why outputs are detached from an input (MC-030).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    InputDeleted,
    InputNotMatching,
    InputResourceRemoved,
}

impl Reason {
    /// The text that hooks receive.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::InputDeleted => "InputDeleted",
            Self::InputNotMatching => "InputNotMatching",
            Self::InputResourceRemoved => "InputResourceRemoved",
        }
    }
}

/// Outputs, each with the index of its resource.
pub type Group = Vec<(usize, Arc<Object>)>;

/// What to do about an item (MC §2.13, steps 1 to 3).
pub enum Verdict {
    /// Forget the item, because its parent is not handled.
    Drop,
    /// The selector of the parent cannot be parsed.
    Invalid,
    /// The input is the output of outputs, too many levels deep.
    TooDeep { parent: Arc<Object>, input: Arc<Object> },
    /// Call the map hook.
    Live { parent: Arc<Object>, input: Arc<Object>, group: Group },
    /// The outputs have no input.
    Detached { parent: Arc<Object>, reason: Reason, group: Group },
    /// There is neither an input nor an output.
    Empty,
}

impl Mapping {
    /// Returns every followed resource, as it is served.
    pub fn resources(&self) -> Vec<(Served, Arc<Cache>)> {
        let parents = (self.parent.clone(), self.parent_cache.clone());
        let inputs = self.inputs.iter().map(|rule| (rule.served.clone(), rule.cache.clone()));
        let outputs = self.output_resources.iter().zip(&self.outputs);
        let outputs = outputs.map(|(served, rule)| (served.clone(), rule.cache.clone()));
        std::iter::once(parents).chain(inputs).chain(outputs).collect()
    }

    /// Returns the same by resource name.
    pub fn caches(&self) -> Vec<(String, Arc<Cache>)> {
        let all = self.resources().into_iter();
        all.map(|(served, cache)| (served.group_resource(), cache)).collect()
    }

    /// Decides from the caches alone. Cost: O(outputs of the item).
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

    /// Returns the present state of the parent, if it is handled.
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

    /// Returns the inputs that a parent selects, of one resource. Cost: O(inputs with a label that the
    /// selector requires), or O(inputs in scope) if it requires none.
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

    /// Returns every key of a parent: of the inputs it selects and of the outputs it has. Returns `None` if
    /// its selector cannot be parsed.
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

    /// Returns the items that a change of an input affects (MC-031).
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

    /// Returns this controller's contribution to the status of a parent (MC-080 to MC-083). Cost: O(its
    /// inputs and outputs).
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

/// The view of other objects that the plan for one parent needs.
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
