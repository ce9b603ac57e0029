//! Decides which event enqueues which Placements. Cheap, because it runs on the informers' tasks.

use std::collections::BTreeSet;

use apis::ocm::{
    AddOnPlacementScore, ManagedCluster, ManagedClusterSet, ManagedClusterSetBinding, Placement,
};
use runtime::Event;

use super::{
    Key, Manager, name_of, namespace_of,
    placement::{
        members::Members,
        predicates::has_expressions,
        prioritizers::{reads_resources, reads_scores},
    },
    wake::TOGETHER,
};

impl Manager {
    /// Enqueues the Placements that may select a cluster.
    pub(super) fn wake_for_cluster(&self, cluster: &ManagedCluster) {
        self.wake_selecting(&[cluster], |_| true);
    }

    /// Enqueues the Placements that read what has changed about a cluster. Those with CEL expressions may read
    /// everything.
    pub(super) fn wake_for_change(&self, old: &ManagedCluster, new: &ManagedCluster) {
        let (o, n) = (&old.metadata, &new.metadata);
        let claims = |c: &ManagedCluster| c.status.as_ref().map(|s| s.cluster_claims.clone());
        let resources =
            |c: &ManagedCluster| c.status.as_ref().map(|s| (s.allocatable.clone(), s.capacity.clone()));
        let for_all = o.deletion_timestamp != n.deletion_timestamp
            || o.labels != n.labels
            || old.spec.taints != new.spec.taints
            || claims(old) != claims(new);
        let resized = resources(old) != resources(new);
        let any = o.annotations != n.annotations || old.spec != new.spec || old.status != new.status;
        if for_all || any {
            self.wake_selecting(&[old, new], |placement| {
                for_all || (resized && reads_resources(placement)) || has_expressions(placement)
            });
        }
    }

    /// Enqueues those Placements whose sets have one of the clusters.
    fn wake_selecting(&self, clusters: &[&ManagedCluster], reads: impl Fn(&Placement) -> bool) {
        if !self.config.placements {
            return;
        }
        let has = |set: &ManagedClusterSet| {
            Members::of(set).is_some_and(|set| clusters.iter().any(|cluster| set.has(cluster)))
        };
        let all = self.know.sets.list();
        let sets: BTreeSet<&str> =
            all.iter().filter(|set| has(set)).map(|set| name_of(set.as_ref())).collect();
        let bindings = self.know.bindings.list();
        let bound: BTreeSet<(&str, &str)> = bindings
            .iter()
            .map(|b| (namespace_of(b.as_ref()), b.spec.cluster_set.as_str()))
            .filter(|(_, set)| sets.contains(set))
            .collect();
        let selects = |placement: &Placement| {
            let (namespace, asked) = (namespace_of(placement), &placement.spec.cluster_sets);
            let mut here = bound.range((namespace, "")..).take_while(|(at, _)| *at == namespace);
            here.any(|(_, set)| asked.is_empty() || asked.iter().any(|name| name == set))
        };
        for placement in self.know.placements.list() {
            if selects(&placement) && reads(&placement) {
                self.wake_placement(&placement);
            }
        }
    }

    fn wake_placement(&self, placement: &Placement) {
        let (namespace, name) = (namespace_of(placement).to_owned(), name_of(placement).to_owned());
        self.queue.add_after(Key::Placement(namespace, name), TOGETHER);
    }

    pub(super) fn on_set(&self, event: Event<ManagedClusterSet>) {
        if matches!(&event, Event::Updated { old, new } if old.spec == new.spec) {
            return;
        }
        let Some(set) = event.object() else { return };
        let bindings = self.know.bindings.list();
        let bound = bindings.iter().filter(|b| b.spec.cluster_set == name_of(set.as_ref()));
        for namespace in bound.map(|b| namespace_of(b.as_ref())).collect::<BTreeSet<_>>() {
            self.wake_namespace(namespace);
        }
    }

    pub(super) fn on_binding(&self, event: Event<ManagedClusterSetBinding>) {
        if matches!(&event, Event::Updated { old, new } if old.spec == new.spec) {
            return;
        }
        if let Some(binding) = event.object() {
            self.wake_namespace(namespace_of(binding.as_ref()));
        }
    }

    fn wake_namespace(&self, namespace: &str) {
        for placement in self.know.placements.list_namespace(namespace) {
            self.wake_placement(&placement);
        }
    }

    pub(super) fn on_score(&self, event: Event<AddOnPlacementScore>) {
        if matches!(&event, Event::Updated { old, new } if old.status == new.status) {
            return;
        }
        let Some(score) = event.object() else { return };
        let Some(cluster) = self.cluster(namespace_of(score.as_ref())) else { return };
        let name = name_of(score.as_ref());
        self.wake_selecting(&[&cluster], |placement| {
            reads_scores(placement, name) || has_expressions(placement)
        });
    }
}
