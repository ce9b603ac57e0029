//! Decides which event enqueues which keys. Cheap, because it runs on the informers' tasks.

use std::{collections::BTreeSet, time::Duration};

use apis::{
    constants::{CLUSTER_NAME_LABEL, CLUSTER_SET_LABEL},
    ocm::{
        ClusterProfile, ManagedCluster, ManagedClusterAddOn, ManagedClusterSet, ManagedClusterSetBinding,
        ManifestWork,
        cluster::{CONDITION_AVAILABLE, CONDITION_CLOCK, CONDITION_HUB_ACCEPTED},
    },
};
use k8s_openapi::api::{certificates::v1::CertificateSigningRequest, coordination::v1::Lease};
use ocm_shared::cluster::status;
use runtime::{Event, PartialObject};

use super::{
    Hub, Key, Meta, name_of,
    profiles::{is_rebound, is_shown},
};

/// Changes of labels and add-ons arrive in bursts, and are processed together.
const TOGETHER: Duration = Duration::from_millis(50);

impl Hub {
    pub(super) fn on_cluster(&self, event: Event<ManagedCluster>) {
        match &event {
            Event::Added(new) | Event::Updated { new, .. } => {
                let available = status(new, CONDITION_AVAILABLE) == Some("True");
                self.metrics.cluster(name_of(new.as_ref()), available);
            }
            Event::Deleted(old) => {
                self.metrics.cluster_gone(name_of(old.as_ref()));
                self.deleted.lock().insert(name_of(old.as_ref()).to_owned());
            }
            Event::Synced => {}
        }
        match &event {
            Event::Added(new) | Event::Deleted(new) => {
                let name = name_of(new.as_ref()).to_owned();
                self.queue.add(Key::Membership(name.clone()));
                self.queue.add(Key::Presence(name.clone()));
                self.queue.add(Key::Taints(name.clone()));
                self.queue.add_after(Key::Features(name.clone()), TOGETHER);
                self.wake_profiles_of(&name);
                self.queue.add_after(Key::Namespaces(name), TOGETHER);
                self.wake_sets(new);
            }
            Event::Updated { old, new } => self.on_changed_cluster(old, new),
            Event::Synced => {}
        }
    }

    fn on_changed_cluster(&self, old: &ManagedCluster, new: &ManagedCluster) {
        let name = name_of(new).to_owned();
        let (o, n) = (&old.metadata, &new.metadata);
        let leaving = o.deletion_timestamp != n.deletion_timestamp;
        let accepted = status(old, CONDITION_HUB_ACCEPTED) != status(new, CONDITION_HUB_ACCEPTED);
        let available = status(old, CONDITION_AVAILABLE) != status(new, CONDITION_AVAILABLE);
        if leaving
            || accepted
            || o.finalizers != n.finalizers
            || o.annotations != n.annotations
            || old.spec.hub_accepts_client != new.spec.hub_accepts_client
        {
            self.queue.add(Key::Membership(name.clone()));
        }
        if leaving || accepted || old.spec.lease_duration_seconds != new.spec.lease_duration_seconds {
            self.queue.add(Key::Presence(name.clone()));
        }
        if available || old.spec.taints != new.spec.taints {
            self.queue.add(Key::Taints(name.clone()));
        }
        if available || o.labels != n.labels {
            self.queue.add_after(Key::Features(name.clone()), TOGETHER);
        }
        if is_shown(old, new) {
            self.wake_profiles_of(&name);
        }
        if o.labels != n.labels {
            self.queue.add_after(Key::Namespaces(name), TOGETHER);
            self.wake_sets(old);
            self.wake_sets(new);
        }
    }

    /// Enqueues the sets that may contain this cluster.
    fn wake_sets(&self, cluster: &ManagedCluster) {
        let own = cluster.metadata.labels.as_ref().and_then(|labels| labels.get(CLUSTER_SET_LABEL));
        for set in self.know.sets.list() {
            let name = name_of(set.as_ref());
            let by_label = set.spec.cluster_selector.selector_type == "LabelSelector";
            if by_label || own.is_some_and(|own| own == name) {
                self.queue.add_after(Key::Set(name.to_owned()), TOGETHER);
            }
        }
    }

    pub(super) fn on_lease(&self, event: Event<Lease>) {
        let renewed =
            |lease: &Lease| lease.spec.as_ref().and_then(|spec| spec.renew_time.as_ref()).map(|time| time.0);
        let Some(lease) = event.object() else { return };
        let cluster = lease.metadata.namespace.clone().unwrap_or_default();
        match &event {
            Event::Updated { old, new } if renewed(old) != renewed(new) => {
                if let (Some(before), Some(now)) = (renewed(old), renewed(new)) {
                    self.metrics
                        .lease_renewed(Duration::try_from(now.duration_since(before)).unwrap_or_default());
                }
                self.queue.add(Key::Clock(cluster));
            }
            Event::Updated { .. } | Event::Synced => {}
            Event::Added(_) | Event::Deleted(_) => {
                // The first renewal may arrive before the lease's own event, and the next renewal is far
                // away.
                let unknown = |c: &ManagedCluster| status(c, CONDITION_CLOCK).is_none();
                if self.know.cluster(&cluster).is_some_and(|c| unknown(&c)) {
                    self.queue.add(Key::Clock(cluster.clone()));
                }
                self.queue.add(Key::Presence(cluster));
            }
        }
    }

    pub(super) fn on_csr(&self, event: Event<CertificateSigningRequest>) {
        if let Event::Added(csr) | Event::Updated { new: csr, .. } = &event {
            self.queue.add(Key::Csr(name_of(csr.as_ref()).to_owned()));
        }
    }

    /// Works matter for clusters that were denied.
    pub(super) fn on_work(&self, event: Event<Meta<ManifestWork>>) {
        let Some(work) = event.object() else { return };
        let cluster = work.metadata.namespace.clone().unwrap_or_default();
        if self.is_parting(&cluster) {
            self.queue.add(Key::Membership(cluster));
        }
    }

    fn is_parting(&self, cluster: &str) -> bool {
        self.know
            .cluster(cluster)
            .is_none_or(|c| c.metadata.deletion_timestamp.is_some() || !c.spec.hub_accepts_client)
    }

    pub(super) fn on_addon(&self, event: Event<ManagedClusterAddOn>) {
        let Some(addon) = event.object() else { return };
        let cluster = addon.metadata.namespace.clone().unwrap_or_default();
        if self.is_parting(&cluster) {
            self.queue.add(Key::Membership(cluster.clone()));
        }
        self.queue.add_after(Key::Features(cluster), TOGETHER);
    }

    /// Enqueues the cluster of a mailbox, role or binding that another client changed or deleted, or whose
    /// cluster is not known.
    pub(super) fn on_right(&self, event: Event<PartialObject>) {
        let Some(object) = event.object() else { return };
        let cluster = object.metadata.labels.get(CLUSTER_NAME_LABEL).map(|name| name.to_string());
        let cluster = match cluster {
            Some(shared) if shared.is_empty() => {
                self.know.clusters.keys().first().map(|key| key.name.to_string())
            }
            named => named,
        };
        let Some(cluster) = cluster else { return };
        let was_taken = self.taken.lock().remove(&cluster).is_some();
        let news = !matches!(event, Event::Added(_)) || self.know.cluster(&cluster).is_none();
        if news || was_taken {
            self.queue.add(Key::Membership(cluster));
        }
    }

    pub(super) fn on_set(&self, event: Event<ManagedClusterSet>) {
        let Some(set) = event.object() else { return };
        let name = name_of(set.as_ref());
        if self.config.default_sets {
            self.queue.add(Key::Builtin);
        }
        self.queue.add(Key::Set(name.to_owned()));
        let wants = |set: &ManagedClusterSet| !set.spec.managed_namespaces.is_empty();
        let namespaces = match &event {
            Event::Updated { old, new } => (wants(old) || wants(new)) && old.spec != new.spec,
            _ => wants(set),
        };
        if namespaces {
            for key in self.know.clusters.keys() {
                self.queue.add_after(Key::Namespaces(key.name.to_string()), TOGETHER);
            }
        }
        let came_or_went = !matches!(event, Event::Updated { .. });
        let other_clusters = match &event {
            Event::Updated { old, new } => old.spec.cluster_selector != new.spec.cluster_selector,
            _ => true,
        };
        for binding in self.know.bindings.list().iter().filter(|b| b.spec.cluster_set == name) {
            if came_or_went {
                self.wake_binding(binding);
            }
            if other_clusters {
                self.wake_profiles_in(binding.metadata.namespace.as_deref().unwrap_or_default());
            }
        }
    }

    pub(super) fn on_binding(&self, event: Event<ManagedClusterSetBinding>) {
        if let Event::Added(binding) | Event::Updated { new: binding, .. } = &event {
            self.wake_binding(binding);
        }
        let rebound = match &event {
            Event::Updated { old, new } => is_rebound(old, new),
            _ => true,
        };
        if let Some(binding) = event.object().filter(|_| rebound) {
            self.wake_profiles_in(binding.metadata.namespace.as_deref().unwrap_or_default());
        }
    }

    fn wake_binding(&self, binding: &ManagedClusterSetBinding) {
        let namespace = binding.metadata.namespace.clone().unwrap_or_default();
        self.queue.add(Key::Binding(namespace, name_of(binding).to_owned()));
    }

    /// Enqueues the profiles of a cluster, wherever it may have one.
    pub(super) fn wake_profiles_of(&self, cluster: &str) {
        if !self.config.cluster_profiles {
            return;
        }
        let keys = self.know.bindings.keys();
        let namespaces: BTreeSet<&str> = keys.iter().map(|key| &*key.namespace).collect();
        for namespace in namespaces {
            self.queue.add_after(Key::Profile(namespace.to_owned(), cluster.to_owned()), TOGETHER);
        }
    }

    /// Enqueues all profiles of a namespace, and the clusters that may get one there.
    pub(super) fn wake_profiles_in(&self, namespace: &str) {
        if !self.config.cluster_profiles {
            return;
        }
        let there = self.know.profiles.list_namespace(namespace);
        let clusters = self.know.clusters.keys();
        let names = clusters
            .iter()
            .map(|key| &*key.name)
            .chain(there.iter().map(|profile| name_of(profile.as_ref())));
        for name in names.collect::<BTreeSet<&str>>() {
            self.queue.add_after(Key::Profile(namespace.to_owned(), name.to_owned()), TOGETHER);
        }
    }

    pub(super) fn on_profile(&self, event: Event<ClusterProfile>) {
        let Some(profile) = event.object() else { return };
        let namespace = profile.metadata.namespace.clone().unwrap_or_default();
        self.queue.add(Key::Profile(namespace, name_of(profile.as_ref()).to_owned()));
    }
}
