//! Decides which event enqueues which keys. Cheap, because it runs on the informers' tasks.

use std::time::Duration;

use apis::{
    constants::{ADDON_NAME_LABEL, CLUSTER_NAME_LABEL, PLACEMENT_LABEL},
    ocm::{
        ClusterManagementAddOn, ManagedCluster, ManagedClusterAddOn, ManifestWork, Placement,
        PlacementDecision,
        cluster::{CONDITION_AVAILABLE, CONDITION_HUB_ACCEPTED},
    },
};
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use kube::api::DynamicObject;
use runtime::{Event, PartialObject};

use super::{
    Key, Manager, approval,
    config::PROGRESSING,
    install, name_of, namespace_of,
    template::{TEMPLATES, registration::TEMPLATE_LABEL},
};
use ocm_shared::{cluster::status, csr::is_decided};

/// Changes of many clusters or add-ons arrive in bursts, so keys about all of them wait a moment.
pub(super) const TOGETHER: Duration = Duration::from_millis(20);

impl Manager {
    pub(super) fn on_cluster(&self, event: Event<ManagedCluster>) {
        match &event {
            Event::Added(new) | Event::Deleted(new) => {
                self.wake_for_cluster(new);
                self.wake_installs();
                self.wake_addons_in(name_of(new.as_ref()));
            }
            Event::Updated { old, new } => {
                let (o, n) = (&old.metadata, &new.metadata);
                let leaving = o.deletion_timestamp != n.deletion_timestamp;
                let accepted = status(old, CONDITION_HUB_ACCEPTED) != status(new, CONDITION_HUB_ACCEPTED)
                    || old.spec.hub_accepts_client != new.spec.hub_accepts_client;
                self.wake_for_change(old, new);
                if leaving || accepted {
                    self.wake_installs();
                }
                let available = status(old, CONDITION_AVAILABLE) != status(new, CONDITION_AVAILABLE);
                if leaving || accepted || available || o.annotations != n.annotations {
                    self.wake_addons_in(name_of(new.as_ref()));
                }
            }
            Event::Synced => {}
        }
    }

    fn wake_installs(&self) {
        if self.config.general {
            for key in self.know.owners.keys() {
                self.queue.add_after(Key::Install(key.name.to_string()), TOGETHER);
            }
        }
    }

    fn wake_addons_in(&self, cluster: &str) {
        for addon in self.know.addons.list_namespace(cluster) {
            self.queue.add(Key::Addon(cluster.to_owned(), name_of(addon.as_ref()).to_owned()));
        }
    }

    fn wake_addons_of(&self, owner: &str) {
        for key in self.know.addons.keys().into_iter().filter(|key| &*key.name == owner) {
            self.queue.add(Key::Addon(key.namespace.to_string(), owner.to_owned()));
        }
    }

    pub(super) fn on_placement(&self, event: Event<Placement>) {
        let Some(placement) = event.object() else { return };
        let (namespace, name) = (namespace_of(placement.as_ref()), name_of(placement.as_ref()));
        if self.config.placements {
            self.queue.add(Key::Placement(namespace.to_owned(), name.to_owned()));
        }
        if !matches!(event, Event::Updated { .. }) {
            self.wake_installs_for(namespace, name);
        }
    }

    pub(super) fn on_decision(&self, event: Event<PlacementDecision>) {
        let Some(decision) = event.object() else { return };
        let label = decision.metadata.labels.as_ref().and_then(|all| all.get(PLACEMENT_LABEL));
        let (namespace, Some(placement)) = (namespace_of(decision.as_ref()), label) else { return };
        if self.config.placements {
            self.queue.add(Key::Placement(namespace.to_owned(), placement.clone()));
        }
        self.wake_installs_for(namespace, placement);
    }

    fn wake_installs_for(&self, namespace: &str, placement: &str) {
        if !self.config.general {
            return;
        }
        for owner in self.know.owners.list() {
            let placements = install::placements(&owner).unwrap_or_default();
            if placements.iter().any(|(n, p)| n == namespace && p == placement) {
                self.queue.add(Key::Install(name_of(owner.as_ref()).to_owned()));
            }
        }
    }

    pub(super) fn on_owner(&self, event: Event<ClusterManagementAddOn>) {
        if let Event::Updated { old, new } = &event
            && old.spec == new.spec
            && old.metadata.annotations == new.metadata.annotations
            && old.metadata.deletion_timestamp == new.metadata.deletion_timestamp
        {
            return;
        }
        let Some(owner) = event.object() else { return };
        let name = name_of(owner.as_ref());
        if self.config.general {
            self.queue.add(Key::Install(name.to_owned()));
            self.queue.add_after(Key::Summary(name.to_owned()), TOGETHER);
        }
        self.wake_addons_of(name);
    }

    pub(super) fn on_addon(&self, event: Event<ManagedClusterAddOn>) {
        let Some(addon) = event.object() else { return };
        let (cluster, name) = (namespace_of(addon.as_ref()), name_of(addon.as_ref()));
        self.queue.add(Key::Addon(cluster.to_owned(), name.to_owned()));
        self.queue.add(Key::Token(cluster.to_owned(), name.to_owned()));
        let registrations = |a: &ManagedClusterAddOn| a.status.as_ref().map(|s| s.registrations.clone());
        let progress = |a: &ManagedClusterAddOn| {
            let conditions = a.status.as_ref().map(|s| s.conditions.as_slice()).unwrap_or_default();
            conditions.iter().find(|c| c.type_ == PROGRESSING).map(|c| c.reason.clone())
        };
        let (registered, progressed, membership) = match &event {
            Event::Updated { old, new } => {
                (registrations(old) != registrations(new), progress(old) != progress(new), false)
            }
            _ => (true, true, true),
        };
        if registered {
            let theirs = |csr: &CertificateSigningRequest| {
                !is_decided(csr) && approval::claimed(csr) == Some((cluster, name))
            };
            for csr in self.know.csrs.list().iter().filter(|csr| theirs(csr)) {
                self.queue.add(Key::Csr(name_of(csr.as_ref()).to_owned()));
            }
        }
        if self.config.general && progressed {
            self.queue.add_after(Key::Summary(name.to_owned()), TOGETHER);
        }
        if self.config.general && membership {
            self.queue.add_after(Key::Install(name.to_owned()), TOGETHER);
        }
        if matches!(event, Event::Deleted(_)) {
            self.rights.lock().remove(&(cluster.to_owned(), name.to_owned()));
        }
    }

    pub(super) fn on_config(&self, event: Event<DynamicObject>) {
        self.wake_configured("addondeploymentconfigs", event);
    }

    pub(super) fn on_template(&self, event: Event<DynamicObject>) {
        self.wake_configured(TEMPLATES, event);
    }

    fn wake_configured(&self, resource: &str, event: Event<DynamicObject>) {
        if let Event::Updated { old, new } = &event
            && old.data.get("spec") == new.data.get("spec")
        {
            return;
        }
        let Some(config) = event.object() else { return };
        let (namespace, name) = (namespace_of(config.as_ref()), name_of(config.as_ref()));
        for addon in self.know.addons.list() {
            let references =
                addon.status.as_ref().map(|s| s.config_references.as_slice()).unwrap_or_default();
            if references.iter().any(|r| r.resource == resource && r.namespace == namespace && r.name == name)
            {
                let (cluster, name) = (namespace_of(addon.as_ref()), name_of(addon.as_ref()));
                self.queue.add(Key::Addon(cluster.to_owned(), name.to_owned()));
            }
        }
        if self.config.general {
            for key in self.know.owners.keys() {
                self.queue.add_after(Key::Summary(key.name.to_string()), TOGETHER);
            }
        }
    }

    pub(super) fn on_work(&self, event: Event<ManifestWork>) {
        let Some(work) = event.object() else { return };
        let label = work.metadata.labels.as_ref().and_then(|all| all.get(ADDON_NAME_LABEL));
        if let Some(addon) = label {
            self.queue.add(Key::Addon(namespace_of(work.as_ref()).to_owned(), addon.clone()));
        }
    }

    pub(super) fn on_csr(&self, event: Event<CertificateSigningRequest>) {
        if let Event::Added(csr) | Event::Updated { new: csr, .. } = &event {
            self.queue.add(Key::Csr(name_of(csr.as_ref()).to_owned()));
        }
    }

    /// Restores roles and bindings that another client changed or deleted.
    pub(super) fn on_right(&self, event: Event<PartialObject>) {
        let Some(light) = event.object() else { return };
        let labels = &light.metadata.labels;
        let Some(addon) = labels.get(ADDON_NAME_LABEL) else { return };
        let templated = labels.contains_key(TEMPLATE_LABEL);
        let cluster = labels.get(CLUSTER_NAME_LABEL).filter(|_| templated);
        let place = (cluster.unwrap_or(&light.metadata.namespace).to_string(), addon.to_string());
        if matches!(event, Event::Added(_)) {
            // A binding that was left behind while the manager was down is deleted.
            if !templated || self.know.addons.get(&place.0, &place.1).is_some() {
                return;
            }
        } else {
            self.rights.lock().remove(&place);
        }
        self.queue.add(Key::Addon(place.0, place.1));
    }
}
