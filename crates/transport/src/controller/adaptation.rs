//! CustomTransforms and properties, as the watches report them.

use apis::{
    constants::PROPERTIES_NAMESPACE,
    control::{Binding, CustomTransform},
};
use runtime::{
    failure::is_not_found,
    feed::{Change, Source, WithoutManagedFields, follow},
};
use serde::de::IgnoredAny;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::{
    Controller, Input, SyncError, Work,
    gauges::count,
    watched::{InputObject, clusters, config_maps, transforms},
};
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
    pub(super) catalogue: Catalogue,
    pub(super) transforms: Transforms,
    pub(super) properties: Cache,
}

impl Controller {
    pub(super) async fn follow_transforms(&self, stop: &CancellationToken) {
        let source = Source::all(transforms());
        follow(self.wds.client(), &source, stop, |change: Change<WithoutManagedFields<CustomTransform>>| {
            match change {
                Change::Put(WithoutManagedFields(transform)) => {
                    let name = transform.metadata.name.clone().unwrap_or_default();
                    self.note_transform(&name, Some(Entry::new(transform)));
                }
                Change::Gone((_, name)) => self.note_transform(&name, None),
                Change::Synced => self.mark_synced(Input::Transforms),
            }
        })
        .await;
    }

    /// KS-113, KS-116: enqueues the Bindings and the statuses that a change of a CustomTransform affects.
    fn note_transform(&self, name: &str, now: Option<Entry>) {
        let (affected, concerned) = {
            let mut all = self.adaptation.lock();
            let affected = all.transforms.note(name, now.as_ref().map(|entry| &entry.spec));
            let concerned = all.catalogue.put(name, now);
            self.gauges.transforms.set(count(all.catalogue.len()));
            (affected, concerned)
        };
        for binding in affected {
            self.queue.add(Work::Sync(binding));
        }
        for transform in concerned {
            self.queue.add(Work::Judge(transform));
        }
    }

    /// KS-115, KS-116: writes the status of a CustomTransform if it differs from what it should be.
    pub(super) async fn judge(&self, name: &str) -> Result<(), SyncError> {
        let Some((uid, status)) = self.adaptation.lock().catalogue.status_due(name) else { return Ok(()) };
        let list = |lines: Vec<String>| if lines.is_empty() { Value::Null } else { json!(lines) };
        let patch = json!({"metadata": {"uid": uid}, "status": {"observedGeneration": status.observed_generation,
            "errors": list(status.errors), "warnings": list(status.warnings)}});
        match self.wds.merge_status::<IgnoredAny>(&transforms(), "", name, &patch).await {
            Ok(_) => Ok(()),
            // The CustomTransform is gone; its own event reports that. The server also refuses if it was
            // recreated under the same name; the next try knows the new one.
            Err(error) if is_not_found(&error) => Ok(()),
            Err(error) => Err(SyncError::Transform(error)),
        }
    }

    pub(super) async fn follow_clusters(&self, stop: &CancellationToken) {
        let source = Source::all(clusters()).metadata();
        follow(&self.its, &source, stop, |change: Change<InputObject>| match change {
            Change::Put(facts) => {
                let metadata = facts.metadata;
                let name = metadata.name.unwrap_or_default();
                let inventory = Inventory {
                    labels: metadata.labels.unwrap_or_default(),
                    annotations: metadata.annotations.unwrap_or_default(),
                    terminating: metadata.deletion_timestamp.is_some(),
                };
                self.note_cluster(&name, Some(inventory));
            }
            Change::Gone((_, name)) => self.note_cluster(&name, None),
            Change::Synced => self.mark_synced(Input::Clusters),
        })
        .await;
    }

    fn note_cluster(&self, name: &str, now: Option<Inventory>) {
        let (affected, revived) = {
            let mut all = self.adaptation.lock();
            let was = all.properties.is_terminating(name);
            let affected = all.properties.put_inventory(name, now);
            self.gauges.wecs.set(count(all.properties.wecs()));
            (affected, was && !all.properties.is_terminating(name))
        };
        for binding in affected {
            self.queue.add(Work::Sync(binding));
        }
        if revived {
            // The cluster was deleted, which is rare. Looking at all Bindings finds those that still list it.
            let lists = |binding: &Binding| binding.spec.destinations.iter().any(|d| d.cluster_id == name);
            let all = self.bindings.lock();
            for (binding, _) in all.iter().filter(|(_, binding)| lists(binding)) {
                self.queue.add(Work::Sync(binding.clone()));
            }
        }
    }

    pub(super) async fn follow_property_maps(&self, stop: &CancellationToken) {
        let source = Source::all(config_maps()).within(PROPERTIES_NAMESPACE);
        follow(&self.its, &source, stop, |change: Change<InputObject>| {
            let (name, now) = match change {
                Change::Put(facts) => {
                    (facts.metadata.name.clone().unwrap_or_default(), Some(facts.properties()))
                }
                Change::Gone((_, name)) => (name, None),
                Change::Synced => return self.mark_synced(Input::Properties),
            };
            let affected = {
                let all = &mut self.adaptation.lock().properties;
                let affected = all.put_map(&name, now);
                self.gauges.prop_maps.set(count(all.maps()));
                affected
            };
            for binding in affected {
                self.queue.add(Work::Sync(binding));
            }
        })
        .await;
    }

    /// Returns the instructions for every resource that a Binding lists. From now on the Binding is enqueued
    /// when they change (KS-112, KS-114).
    pub(super) fn rules(&self, name: &str, binding: &Binding) -> Rules {
        let of = resources(&binding.spec);
        let mut all = self.adaptation.lock();
        let all = &mut *all;
        let mut rules = Rules::new();
        for resource in &of {
            let catalogue = &all.catalogue;
            let (rule, affected) = all.transforms.changes_for(resource, name, || catalogue.of(resource));
            for binding in affected {
                self.queue.add(Work::Sync(binding));
            }
            rules.insert(resource.clone(), rule);
        }
        all.transforms.set_binding_group_resources(name, of);
        rules
    }

    /// Forgets a Binding that is deleted or being deleted.
    pub(super) fn forget_adaptation(&self, name: &str) {
        let mut all = self.adaptation.lock();
        all.transforms.set_binding_group_resources(name, std::collections::BTreeSet::new());
        all.properties.set_sensitive(name, std::collections::BTreeSet::new());
    }
}
