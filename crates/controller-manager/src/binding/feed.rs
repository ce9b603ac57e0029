//! Turns events into changes of the world, and those into work.

use std::sync::Arc;

use apis::{
    condition,
    constants::{EXECUTING_COUNT_LABEL, MULTI_WEC_STATUS_LABEL, SINGLETON_STATUS_LABEL},
    control::BindingPolicy,
};
use kube::api::ApiResource;
use runtime::{Event, PartialObject, Store};

use super::{
    facts::BindingFacts,
    policy::Policy,
    sync::Syncer,
    unknown::UnknownResources,
    world::{Changes, Served, World},
};
use crate::{
    identity::{GroupResource, ObjectId},
    shared::{Shared, StatusItem},
    status::combined::Pair,
};

/// Receives every event of the binding controller.
pub(super) struct Feed {
    shared: Arc<Shared>,
    syncer: Arc<Syncer>,
}

impl Feed {
    pub(super) fn new(shared: Arc<Shared>, syncer: Arc<Syncer>) -> Self {
        Self { shared, syncer }
    }

    pub(super) fn policies(&self) -> &Store<BindingPolicy> {
        self.syncer.policies()
    }

    pub(super) fn bindings(&self) -> &Store<BindingFacts> {
        self.syncer.bindings()
    }

    /// All inputs are synced: enqueues each policy, and each Binding, whose policy may be gone.
    pub(super) fn begin(&self) {
        for key in self.policies().keys().into_iter().chain(self.bindings().keys()) {
            self.syncer.look(&key.name);
        }
    }

    pub(super) fn on_policy(&self, event: Event<BindingPolicy>) {
        let Some(object) = event.object() else { return };
        let name = object.metadata.name.clone().unwrap_or_default();
        let changes = match &event {
            Event::Deleted(_) => self.shared.world.lock().remove_policy(&name),
            _ if object.metadata.deletion_timestamp.is_some() => {
                self.shared.world.lock().remove_policy(&name)
            }
            _ => self.shared.world.lock().put_policy(Policy::new(object)),
        };
        self.spread(changes);
        match event {
            Event::Updated { old, new } => {
                if old.metadata.generation != new.metadata.generation
                    || old.metadata.deletion_timestamp != new.metadata.deletion_timestamp
                    || old.metadata.finalizers != new.metadata.finalizers
                {
                    self.syncer.look(&name);
                } else if old.status != new.status {
                    self.syncer.report(&name);
                }
            }
            Event::Added(_) | Event::Deleted(_) => self.syncer.look(&name),
            Event::Synced => {}
        }
    }

    pub(super) fn on_binding(&self, event: Event<BindingFacts>) {
        let Some(object) = event.object() else { return };
        let name = object.metadata.name.as_str();
        let gone = matches!(event, Event::Deleted(_));
        self.syncer.seen(name, object, gone);
        match &event {
            Event::Updated { old, new } => {
                if old.spec != new.spec
                    || old.metadata.owner_references != new.metadata.owner_references
                    || old.metadata.deletion_timestamp != new.metadata.deletion_timestamp
                {
                    self.syncer.look(name);
                }
                if !same_report(old, new) {
                    self.syncer.report(name);
                }
            }
            _ => self.syncer.look(name),
        }
        if !gone {
            self.shared.enqueue_status(StatusItem::Binding(name.into()));
        }
    }

    pub(super) fn on_cluster(&self, event: Event<PartialObject>) {
        let changes = match &event {
            // A cluster that is being deleted gets nothing new, and its objects are withdrawn while that is
            // still possible.
            Event::Added(new) | Event::Updated { new, .. } if new.metadata.deletion_timestamp.is_some() => {
                self.shared.world.lock().remove_cluster(&new.metadata.name)
            }
            Event::Added(new) | Event::Updated { new, .. } => {
                self.shared.world.lock().put_cluster(&new.metadata.name, new.metadata.labels.clone())
            }
            Event::Deleted(old) => self.shared.world.lock().remove_cluster(&old.metadata.name),
            Event::Synced => return,
        };
        self.spread(changes);
    }

    pub(super) fn on_namespace(&self, event: Event<PartialObject>) {
        let changes = match &event {
            Event::Added(new) | Event::Updated { new, .. } => {
                self.shared.world.lock().put_namespace(&new.metadata.name, new.metadata.labels.clone())
            }
            Event::Deleted(old) => self.shared.world.lock().remove_namespace(&old.metadata.name),
            Event::Synced => return,
        };
        self.spread(changes);
    }

    /// A resource will be watched in this version.
    pub(super) fn on_resource(&self, resource: &ApiResource) {
        let id = Arc::new(GroupResource::new(&resource.group, &resource.plural));
        let served =
            Served { version: resource.version.as_str().into(), kind: resource.kind.as_str().into() };
        let changes = self.shared.world.lock().put_resource(&id, served);
        self.spread(changes);
    }

    /// A resource is no longer watched.
    pub(super) fn on_resource_gone(&self, resource: &GroupResource) {
        let changes = self.shared.world.lock().remove_resource(&Arc::new(resource.clone()));
        self.spread(changes);
        // A resource that is not served has no objects. So their state is known now, also if they never could
        // be listed.
        self.now_known(resource);
    }

    /// Handles an event of a workload object.
    pub(super) fn on_object(&self, resource: &ApiResource, event: Event<PartialObject>) {
        let Some(object) = event.object() else { return };
        let (changes, id, tell) = {
            let mut world = self.shared.world.lock();
            let resource = world.intern(&resource.group, &resource.plural);
            if world.served(&resource).is_none() {
                // The watch was stopped while this event was on its way.
                return;
            }
            let id = ObjectId::new(resource, &object.metadata.namespace, &object.metadata.name);
            let changes = match &event {
                Event::Deleted(_) => world.remove_object(&id),
                _ => world.put_object(&id, object.clone()),
            };
            let tell = !matches!(event, Event::Deleted(_)) && concerns_status(&world, &id, object);
            (changes, id, tell)
        };
        self.spread(changes);
        if tell {
            self.shared.enqueue_status(StatusItem::Object(id));
        }
    }

    /// The objects of a resource were listed again: removes the objects that are not in the list.
    pub(super) fn on_listed(&self, resource: &ApiResource, store: &Store<PartialObject>) {
        let (changes, resource) = {
            let mut world = self.shared.world.lock();
            let resource = world.intern(&resource.group, &resource.plural);
            let there = |id: &ObjectId| store.get(id.namespace(), id.name()).is_some();
            (world.keep_objects(&resource, there), resource)
        };
        self.spread(changes);
        self.now_known(&resource);
    }

    /// The objects of a resource are known now: entries of Bindings and CombinedStatuses about them are no
    /// longer left unchanged.
    fn now_known(&self, resource: &GroupResource) {
        if self.syncer.known(resource) {
            self.look_again();
        }
    }

    /// Sets the objects whose state is unknown.
    pub(super) fn unknown(&self, look: impl FnOnce() -> UnknownResources) {
        if self.syncer.set_unknown(look) {
            self.look_again();
        }
    }

    fn look_again(&self) {
        self.shared.enqueue_status(StatusItem::Sweep);
        self.begin();
    }

    fn spread(&self, changes: Changes) {
        for policy in &changes.bindings {
            self.syncer.changed(policy);
        }
        for (policy, object) in changes.collected {
            self.shared.enqueue_status(StatusItem::Pair(Pair { policy, object }));
        }
        if changes.requests.is_empty() {
            return;
        }
        let world = self.shared.world.lock();
        for id in &changes.requests {
            // If two policies ask for the singleton status of one object, a change of the clusters of one
            // also changes the error of the other (KS-064).
            for policy in world.policies_of(id) {
                self.syncer.report(policy);
            }
        }
        drop(world);
        for id in changes.requests {
            self.shared.enqueue_status(StatusItem::Object(id));
        }
    }
}

fn same_report(old: &BindingFacts, new: &BindingFacts) -> bool {
    let (before, after) = (old.status.clone().unwrap_or_default(), new.status.clone().unwrap_or_default());
    before.errors == after.errors
        && before.observed_generation == after.observed_generation
        && old.metadata.generation == new.metadata.generation
        && condition::same(&before.conditions, &after.conditions)
}

/// Returns whether the status controller handles or handled the object.
fn concerns_status(world: &World, id: &ObjectId, object: &PartialObject) -> bool {
    let labels = &object.metadata.labels;
    [SINGLETON_STATUS_LABEL, MULTI_WEC_STATUS_LABEL, EXECUTING_COUNT_LABEL]
        .iter()
        .any(|label| labels.contains_key(*label))
        || world.is_requested(id)
}
