//! Finding the policies that an object can match, and the objects that a policy can match, without looking
//! at all of them.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::{
    matching::Labels,
    policy::{Clause, Names},
};
use crate::identity::{ObjectId, PolicyName};

/// What every object that a clause matches has; the most telling such thing.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Hook {
    /// A label with this value.
    Label(Box<str>, Box<str>),
    /// This name.
    Name(Box<str>),
    /// This plural resource name.
    Resource(Box<str>),
    /// This namespace.
    Namespace(Box<str>),
    /// This API group.
    Group(Box<str>),
    /// Nothing.
    Any,
}

/// The hooks of a clause: each object that it matches has at least one of them.
pub(super) fn hooks(clause: &Clause) -> Vec<Hook> {
    if let Some(labels) = clause.objects.required_labels() {
        return labels.into_iter().map(|(key, value)| Hook::Label(key.into(), value.into())).collect();
    }
    if let Names::Of(names) = &clause.names {
        return names.iter().cloned().map(Hook::Name).collect();
    }
    if let Names::Of(names) = &clause.resources {
        return names.iter().cloned().map(Hook::Resource).collect();
    }
    if let Names::Of(names) = &clause.namespaces {
        return names.iter().cloned().map(Hook::Namespace).collect();
    }
    vec![clause.group.clone().map_or(Hook::Any, Hook::Group)]
}

/// Policies by the hooks of their clauses.
#[derive(Debug, Default)]
pub(super) struct PolicyIndex(HashMap<Hook, BTreeSet<PolicyName>>);

impl PolicyIndex {
    /// Adds a policy's clauses.
    pub(super) fn insert(&mut self, policy: &PolicyName, clauses: &[Clause]) {
        for hook in clauses.iter().flat_map(hooks) {
            self.0.entry(hook).or_default().insert(policy.clone());
        }
    }

    /// Takes a policy's clauses out.
    pub(super) fn remove(&mut self, policy: &PolicyName, clauses: &[Clause]) {
        for hook in clauses.iter().flat_map(hooks) {
            if let Some(policies) = self.0.get_mut(&hook) {
                policies.remove(policy);
                if policies.is_empty() {
                    self.0.remove(&hook);
                }
            }
        }
    }

    /// Every policy that can match the object. Costs a look-up for each label, and a few more.
    pub(super) fn candidates(&self, id: &ObjectId, labels: &Labels) -> BTreeSet<PolicyName> {
        let mut found = BTreeSet::new();
        let mut look = |hook: &Hook| found.extend(self.0.get(hook).into_iter().flatten().cloned());
        look(&Hook::Any);
        look(&Hook::Name(id.name().into()));
        look(&Hook::Resource(id.resource().plural.clone()));
        look(&Hook::Namespace(id.namespace().into()));
        look(&Hook::Group(id.resource().group.clone()));
        for (key, value) in labels {
            look(&Hook::Label(key.clone(), value.clone()));
        }
        found
    }
}

/// A fact of objects that some policy asks for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Fact {
    /// The value of a label.
    Label(Box<str>),
    /// The name.
    Name,
    /// The namespace.
    Namespace,
}

impl Fact {
    /// The fact that a hook is about; none for those that resources tell.
    pub(super) fn of(hook: &Hook) -> Option<Self> {
        match hook {
            Hook::Label(key, _) => Some(Self::Label(key.clone())),
            Hook::Name(_) => Some(Self::Name),
            Hook::Namespace(_) => Some(Self::Namespace),
            Hook::Resource(_) | Hook::Group(_) | Hook::Any => None,
        }
    }

    /// What the fact is for an object.
    fn value<'a>(&self, id: &'a ObjectId, labels: &'a Labels) -> Option<&'a str> {
        match self {
            Self::Label(key) => labels.get(key).map(|value| &**value),
            Self::Name => Some(id.name()),
            Self::Namespace => Some(id.namespace()),
        }
    }
}

/// Objects by those facts that some policy asks for; nothing is kept about any other.
#[derive(Debug, Default)]
pub(super) struct ObjectIndex {
    facts: BTreeMap<Fact, FactIndex>,
}

#[derive(Debug, Default)]
struct FactIndex {
    users: usize,
    values: HashMap<Box<str>, BTreeSet<ObjectId>>,
}

impl FactIndex {
    fn insert(&mut self, value: &str, id: &ObjectId) {
        match self.values.get_mut(value) {
            Some(ids) => drop(ids.insert(id.clone())),
            None => drop(self.values.insert(value.into(), [id.clone()].into())),
        }
    }

    fn remove(&mut self, value: &str, id: &ObjectId) {
        if let Some(ids) = self.values.get_mut(value) {
            ids.remove(id);
            if ids.is_empty() {
                self.values.remove(value);
            }
        }
    }
}

impl ObjectIndex {
    /// Objects of which the fact has this value; the fact must be wanted by someone.
    pub(super) fn get(&self, fact: &Fact, value: &str) -> impl Iterator<Item = &ObjectId> + use<'_> {
        self.facts.get(fact).and_then(|index| index.values.get(value)).into_iter().flatten()
    }

    /// Counts one more user of a fact. A new one is filled from `objects`, once.
    pub(super) fn want<'a>(&mut self, fact: Fact, objects: impl Iterator<Item = (&'a ObjectId, &'a Labels)>) {
        if let Some(index) = self.facts.get_mut(&fact) {
            index.users += 1;
            return;
        }
        let mut index = FactIndex { users: 1, values: HashMap::new() };
        for (id, labels) in objects {
            if let Some(value) = fact.value(id, labels) {
                index.insert(value, id);
            }
        }
        self.facts.insert(fact, index);
    }

    /// Counts one user less; a fact without users is dropped.
    pub(super) fn release(&mut self, fact: &Fact) {
        if let Some(index) = self.facts.get_mut(fact) {
            index.users -= 1;
            if index.users == 0 {
                self.facts.remove(fact);
            }
        }
    }

    /// Takes note of an object's labels; none before it came and after it went.
    pub(super) fn update(&mut self, id: &ObjectId, old: Option<&Labels>, new: Option<&Labels>) {
        for (fact, index) in &mut self.facts {
            let old = old.and_then(|labels| fact.value(id, labels));
            let new = new.and_then(|labels| fact.value(id, labels));
            if old == new {
                continue;
            }
            if let Some(old) = old {
                index.remove(old, id);
            }
            if let Some(new) = new {
                index.insert(new, id);
            }
        }
    }
}
