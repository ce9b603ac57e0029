//! Indexes that find the policies that an object can match, and the objects that a policy can match, without
//! looking at all of them.

use std::collections::{BTreeSet, HashMap};

use super::{
    matching::Labels,
    policy::{Clause, Names},
};
use crate::identity::{ObjectId, PolicyName};

/// A property that every object matched by a clause has; the most selective such property.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum IndexKey {
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
    /// The clause requires nothing that can be indexed.
    Any,
}

/// Returns the index keys of a clause: each object that the clause matches has at least one of them.
pub(super) fn index_keys(clause: &Clause) -> Vec<IndexKey> {
    if let Some(labels) = clause.objects.required_labels() {
        return labels.into_iter().map(|(key, value)| IndexKey::Label(key.into(), value.into())).collect();
    }
    if let Names::Of(names) = &clause.names {
        return names.iter().cloned().map(IndexKey::Name).collect();
    }
    if let Names::Of(names) = &clause.resources {
        return names.iter().cloned().map(IndexKey::Resource).collect();
    }
    if let Names::Of(names) = &clause.namespaces {
        return names.iter().cloned().map(IndexKey::Namespace).collect();
    }
    vec![clause.group.clone().map_or(IndexKey::Any, IndexKey::Group)]
}

/// Policies by the index keys of their clauses.
#[derive(Debug, Default)]
pub(super) struct PolicyIndex(HashMap<IndexKey, BTreeSet<PolicyName>>);

impl PolicyIndex {
    /// Adds the clauses of a policy.
    pub(super) fn insert(&mut self, policy: &PolicyName, clauses: &[Clause]) {
        for key in clauses.iter().flat_map(index_keys) {
            self.0.entry(key).or_default().insert(policy.clone());
        }
    }

    /// Removes the clauses of a policy.
    pub(super) fn remove(&mut self, policy: &PolicyName, clauses: &[Clause]) {
        for key in clauses.iter().flat_map(index_keys) {
            if let Some(policies) = self.0.get_mut(&key) {
                policies.remove(policy);
                if policies.is_empty() {
                    self.0.remove(&key);
                }
            }
        }
    }

    /// Returns every policy that can match the object. Cost: a look-up for each label, and a few more.
    pub(super) fn candidates(&self, id: &ObjectId, labels: &Labels) -> BTreeSet<PolicyName> {
        let mut found = BTreeSet::new();
        let mut look = |key: &IndexKey| found.extend(self.0.get(key).into_iter().flatten().cloned());
        look(&IndexKey::Any);
        look(&IndexKey::Name(id.name().into()));
        look(&IndexKey::Resource(id.resource().plural.clone()));
        look(&IndexKey::Namespace(id.namespace().into()));
        look(&IndexKey::Group(id.resource().group.clone()));
        for (key, value) in labels {
            look(&IndexKey::Label(key.clone(), value.clone()));
        }
        found
    }
}

/// An attribute of objects by which some policy selects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Fact {
    /// The value of a label.
    Label(Box<str>),
    /// The name.
    Name,
    /// The namespace.
    Namespace,
}

impl Fact {
    /// Returns the attribute of an index key; `None` for keys that depend on the resource only.
    pub(super) fn of(key: &IndexKey) -> Option<Self> {
        match key {
            IndexKey::Label(key, _) => Some(Self::Label(key.clone())),
            IndexKey::Name(_) => Some(Self::Name),
            IndexKey::Namespace(_) => Some(Self::Namespace),
            IndexKey::Resource(_) | IndexKey::Group(_) | IndexKey::Any => None,
        }
    }

    /// Returns the value of the attribute for an object.
    fn value<'a>(&self, id: &'a ObjectId, labels: &'a Labels) -> Option<&'a str> {
        match self {
            Self::Label(key) => labels.get(key).map(|value| &**value),
            Self::Name => Some(id.name()),
            Self::Namespace => Some(id.namespace()),
        }
    }
}

/// Objects by the attributes by which some policy selects. Other attributes are not stored.
#[derive(Debug, Default)]
pub(super) struct ObjectIndex {
    labels: HashMap<Box<str>, FactIndex>,
    names: Option<FactIndex>,
    namespaces: Option<FactIndex>,
}

/// Objects by the value of one attribute.
#[derive(Debug)]
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

    /// The value of an object changed from `old` to `new`.
    fn update(&mut self, id: &ObjectId, old: Option<&str>, new: Option<&str>) {
        if old == new {
            return;
        }
        if let Some(old) = old {
            self.remove(old, id);
        }
        if let Some(new) = new {
            self.insert(new, id);
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
    /// Returns the objects for which the attribute has this value. Some policy must select by the attribute.
    pub(super) fn get(&self, fact: &Fact, value: &str) -> impl Iterator<Item = &ObjectId> + use<'_> {
        let index = match fact {
            Fact::Label(key) => self.labels.get(key),
            Fact::Name => self.names.as_ref(),
            Fact::Namespace => self.namespaces.as_ref(),
        };
        index.and_then(|index| index.values.get(value)).into_iter().flatten()
    }

    /// Increases the use count of each attribute in `new` and decreases that of each in `old`. An attribute
    /// whose count leaves 0 is indexed from `objects`, one whose count becomes 0 is dropped, and one that is
    /// in both lists is not touched.
    pub(super) fn exchange<'a, I>(&mut self, old: &[Fact], new: Vec<Fact>, objects: impl Fn() -> I)
    where
        I: Iterator<Item = (&'a ObjectId, &'a Labels)>,
    {
        for fact in new {
            self.want(fact, &objects);
        }
        for fact in old {
            self.release(fact);
        }
    }

    fn want<'a, I>(&mut self, fact: Fact, objects: impl Fn() -> I)
    where
        I: Iterator<Item = (&'a ObjectId, &'a Labels)>,
    {
        if let Some(index) = self.index_mut(&fact) {
            index.users += 1;
            return;
        }
        let mut index = FactIndex { users: 1, values: HashMap::new() };
        for (id, labels) in objects() {
            index.update(id, None, fact.value(id, labels));
        }
        match fact {
            Fact::Label(key) => drop(self.labels.insert(key, index)),
            Fact::Name => self.names = Some(index),
            Fact::Namespace => self.namespaces = Some(index),
        }
    }

    fn release(&mut self, fact: &Fact) {
        let Some(index) = self.index_mut(fact) else { return };
        index.users -= 1;
        if index.users > 0 {
            return;
        }
        match fact {
            Fact::Label(key) => drop(self.labels.remove(key)),
            Fact::Name => self.names = None,
            Fact::Namespace => self.namespaces = None,
        }
    }

    fn index_mut(&mut self, fact: &Fact) -> Option<&mut FactIndex> {
        match fact {
            Fact::Label(key) => self.labels.get_mut(key),
            Fact::Name => self.names.as_mut(),
            Fact::Namespace => self.namespaces.as_mut(),
        }
    }

    /// Updates an object's labels; `None` before it was created or after it was deleted. Cost: a look-up for
    /// each of its labels, whatever policies select by.
    pub(super) fn update(&mut self, id: &ObjectId, old: Option<&Labels>, new: Option<&Labels>) {
        let there = |labels: Option<&Labels>, value| labels.map(|_| value);
        for (index, value) in [(&mut self.names, id.name()), (&mut self.namespaces, id.namespace())] {
            if let Some(index) = index {
                index.update(id, there(old, value), there(new, value));
            }
        }
        for key in old.into_iter().chain(new).flat_map(Labels::keys) {
            if let Some(index) = self.labels.get_mut(key) {
                let [old, new] = [old, new].map(|labels| labels.and_then(|it| it.get(key)).map(|it| &**it));
                index.update(id, old, new);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::identity::GroupResource;

    fn id(name: &str) -> ObjectId {
        ObjectId::new(Arc::new(GroupResource::new("", "configmaps")), "n", name)
    }

    fn labels(of: &[(&str, &str)]) -> Labels {
        of.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect()
    }

    fn app() -> Fact {
        Fact::Label("app".into())
    }

    fn found(index: &ObjectIndex, fact: &Fact, value: &str) -> Vec<String> {
        index.get(fact, value).map(|id| id.name().to_owned()).collect()
    }

    fn nobody<'a>() -> std::iter::Empty<(&'a ObjectId, &'a Labels)> {
        panic!("the objects are walked")
    }

    /// KS-059: an edited policy causes a walk over all objects only for attributes by which no policy
    /// selected before.
    #[test]
    fn ks_059_what_old_and_new_clauses_ask_for_is_not_indexed_anew() {
        let (a, b) = ((id("a"), labels(&[("app", "x")])), (id("b"), labels(&[("env", "x")])));
        let all = || [&a, &b].into_iter().map(|(id, labels)| (id, labels));
        let mut index = ObjectIndex::default();
        index.exchange(&[], vec![app(), app(), Fact::Namespace], all);
        index.exchange(&[app(), app(), Fact::Namespace], vec![Fact::Namespace, app()], nobody);
        assert_eq!(found(&index, &app(), "x"), ["a"]);
        assert_eq!(found(&index, &Fact::Namespace, "n"), ["a", "b"]);
        index.exchange(&[Fact::Namespace, app()], vec![app(), Fact::Name], all);
        assert_eq!(found(&index, &Fact::Name, "b"), ["b"]);
        assert!(index.namespaces.is_none(), "nobody asks for it any more");
        index.exchange(&[app(), Fact::Name], Vec::new(), nobody);
        assert!(index.labels.is_empty() && index.names.is_none());
    }

    /// KS-053: an object is found by its present labels, and not at all once it is deleted.
    #[test]
    fn ks_053_objects_are_found_by_what_they_are_now() {
        let mut index = ObjectIndex::default();
        index.exchange(&[], vec![app(), Fact::Name], std::iter::empty);
        let (old, new) = (labels(&[("app", "x"), ("else", "1")]), labels(&[("app", "y")]));
        index.update(&id("a"), None, Some(&old));
        assert_eq!((found(&index, &app(), "x").len(), found(&index, &Fact::Name, "a").len()), (1, 1));
        index.update(&id("a"), Some(&old), Some(&new));
        assert_eq!((found(&index, &app(), "x").len(), found(&index, &app(), "y").len()), (0, 1));
        index.update(&id("a"), Some(&new), Some(&Labels::new()));
        assert_eq!((found(&index, &app(), "y").len(), found(&index, &Fact::Name, "a").len()), (0, 1));
        index.update(&id("a"), Some(&Labels::new()), None);
        assert!(index.names.is_some_and(|names| names.values.is_empty()));
    }
}
