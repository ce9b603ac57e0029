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

/// Objects by the values of those labels that some policy asks for.
#[derive(Debug, Default)]
pub(super) struct LabelIndex {
    keys: BTreeMap<Box<str>, KeyIndex>,
}

#[derive(Debug, Default)]
struct KeyIndex {
    users: usize,
    values: HashMap<Box<str>, BTreeSet<ObjectId>>,
}

impl LabelIndex {
    /// Objects with this label; the key must be wanted by someone.
    pub(super) fn get(&self, key: &str, value: &str) -> Option<&BTreeSet<ObjectId>> {
        self.keys.get(key)?.values.get(value)
    }

    /// Counts one more user of a key. A new key is filled from `objects`, once.
    pub(super) fn want<'a>(&mut self, key: &str, objects: impl Iterator<Item = (&'a ObjectId, &'a Labels)>) {
        if let Some(index) = self.keys.get_mut(key) {
            index.users += 1;
            return;
        }
        let mut index = KeyIndex { users: 1, values: HashMap::new() };
        for (id, labels) in objects {
            if let Some(value) = labels.get(key) {
                index.values.entry(value.clone()).or_default().insert(id.clone());
            }
        }
        self.keys.insert(key.into(), index);
    }

    /// Counts one user less; a key without users is dropped.
    pub(super) fn release(&mut self, key: &str) {
        if let Some(index) = self.keys.get_mut(key) {
            index.users -= 1;
            if index.users == 0 {
                self.keys.remove(key);
            }
        }
    }

    /// Takes note of an object's change of labels; none before it came and after it went.
    pub(super) fn relabel(&mut self, id: &ObjectId, old: Option<&Labels>, new: Option<&Labels>) {
        for (key, index) in &mut self.keys {
            let old = old.and_then(|labels| labels.get(key));
            let new = new.and_then(|labels| labels.get(key));
            if old == new {
                continue;
            }
            if let Some(old) = old
                && let Some(ids) = index.values.get_mut(old)
            {
                ids.remove(id);
                if ids.is_empty() {
                    index.values.remove(old);
                }
            }
            if let Some(new) = new {
                index.values.entry(new.clone()).or_default().insert(id.clone());
            }
        }
    }
}
