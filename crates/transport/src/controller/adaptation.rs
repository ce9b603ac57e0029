//! CustomTransforms and properties of WECs, as the watches report them. Pure.

use std::collections::{BTreeMap, BTreeSet};

use apis::control::{Binding, CustomTransformStatus};

use super::work::{Todo, Work};
use crate::{
    customize::{
        catalogue::{Catalogue, Entry},
        properties::{Cache, Inventory},
        transforms::Transforms,
    },
    objects::{Rules, resources},
};

/// The caches of CustomTransforms and properties.
#[derive(Default)]
pub(super) struct Adaptation {
    catalogue: Catalogue,
    transforms: Transforms,
    pub(super) properties: Cache,
}

impl Adaptation {
    /// KS-113, KS-116: a CustomTransform changed, or with `None` is gone. Returns the Bindings and the statuses that this
    /// affects.
    pub(super) fn put_transform(&mut self, name: &str, now: Option<Entry>) -> Todo {
        let affected = self.transforms.note(name, now.as_ref().map(|entry| &entry.spec));
        let concerned = self.catalogue.put(name, now);
        let mut todo = Todo::sync(affected);
        todo.work.extend(concerned.into_iter().map(Work::Judge));
        todo
    }

    /// KS-115, KS-116: returns the status that a CustomTransform should have and has not, and its UID.
    pub(super) fn status_due(&self, name: &str) -> Option<(String, CustomTransformStatus)> {
        self.catalogue.status_due(name)
    }

    /// A ManagedCluster changed, or with `None` is gone. Returns the Bindings that this affects, and whether the cluster
    /// is no longer being deleted.
    pub(super) fn put_cluster(&mut self, name: &str, now: Option<Inventory>) -> (Todo, bool) {
        let was = self.properties.is_terminating(name);
        let affected = self.properties.put_inventory(name, now);
        (Todo::sync(affected), was && !self.properties.is_terminating(name))
    }

    /// The properties in the ConfigMap of a WEC changed, or with `None` the ConfigMap is gone.
    pub(super) fn put_property_map(&mut self, name: &str, now: Option<BTreeMap<String, String>>) -> Todo {
        Todo::sync(self.properties.put_map(name, now))
    }

    /// Returns the instructions for every resource that a Binding lists, and the Bindings whose instructions changed with
    /// that. From now on the Binding is enqueued when its instructions change (KS-112, KS-114).
    pub(super) fn rules(&mut self, name: &str, binding: &Binding) -> (Rules, Todo) {
        let of = resources(&binding.spec);
        let (mut rules, mut todo) = (Rules::new(), Todo::nothing());
        for resource in &of {
            let catalogue = &self.catalogue;
            let (rule, affected) = self.transforms.changes_for(resource, name, || catalogue.of(resource));
            todo = todo.and(Todo::sync(affected));
            rules.insert(resource.clone(), rule);
        }
        self.transforms.set_binding_group_resources(name, of);
        (rules, todo)
    }

    /// Forgets a Binding that is deleted or being deleted.
    pub(super) fn forget(&mut self, name: &str) {
        self.transforms.set_binding_group_resources(name, BTreeSet::new());
        self.properties.set_sensitive(name, BTreeSet::new());
    }

    /// Number of CustomTransforms.
    pub(super) fn transforms(&self) -> usize {
        self.catalogue.len()
    }
}
