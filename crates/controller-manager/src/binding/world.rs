//! The state of the binding controller and what follows from it.
//!
//! Pure: events go in, the names of the items to process come out. Cost of one event, with N objects, M
//! clusters and P policies:
//!
//! * object: the policies whose clauses name one of its labels, its name, resource, namespace or group;
//! * policy: the objects with a label, name or namespace that it names, or of the resources it names, or all
//!   N; and M clusters. Nothing if only its status changed. The first policy that selects by a label key, by
//!   names or by namespaces costs one walk over all N to index them;
//! * cluster: the cluster selectors of P policies if its labels changed, else nothing;
//! * Namespace: nothing unless its labels changed and a policy has `namespaceSelectors`; else the objects in
//!   it times those policies.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use runtime::PartialObject;

use super::{
    index::{Fact, IndexKey, ObjectIndex, PolicyIndex, index_keys},
    matching::{Labels, matching, selects},
    modulation::Modulation,
    policy::{Clause, Policy},
    resolution::{Entry, Resolution},
};
use crate::identity::{ClusterName, GroupResource, ObjectId, PolicyName};

/// What must be processed after an event.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Bindings whose resolution changed or was removed.
    pub bindings: BTreeSet<PolicyName>,
    /// Objects for which the request for status, or the clusters it covers, changed.
    pub requests: BTreeSet<ObjectId>,
    /// Pairs of policy and object with StatusCollectors, now or before, for which the object, the collectors
    /// or the destinations changed.
    pub collected: BTreeSet<(PolicyName, ObjectId)>,
}

/// How a watched resource is served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Served {
    /// API version.
    pub version: Box<str>,
    /// Kind.
    pub kind: Box<str>,
}

/// What policies request about the status of one object (§5.1).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Request {
    /// Some policy requests the singleton status.
    pub singleton: bool,
    /// Some policy requests the aggregated status of all clusters.
    pub multi: bool,
    /// Destinations of all policies that request either.
    pub clusters: BTreeSet<ClusterName>,
}

#[derive(Debug)]
struct PolicyState {
    policy: Policy,
    resolution: Resolution,
    /// The distinct modulations of this policy's entries; there are few.
    modulations: Vec<Arc<Modulation>>,
}

#[derive(Debug)]
struct Record {
    object: Arc<PartialObject>,
    /// Policies whose resolution contains the object.
    policies: Vec<PolicyName>,
}

/// Policies, objects, clusters and namespaces as last observed, and the resulting resolutions.
#[derive(Debug, Default)]
pub struct World {
    policies: BTreeMap<PolicyName, PolicyState>,
    policy_index: PolicyIndex,
    objects: BTreeMap<ObjectId, Record>,
    object_index: ObjectIndex,
    resources: HashMap<Arc<GroupResource>, Served>,
    namespaces: HashMap<Box<str>, Labels>,
    clusters: BTreeMap<ClusterName, Labels>,
    /// Number of clauses, over all policies, that request singleton status.
    singleton_clauses: usize,
    /// Why the WDS refuses the status that was reported for an object.
    refusals: BTreeMap<ObjectId, Box<str>>,
}

impl World {
    /// Notes why a reported status was refused, or with `None` that it is accepted now. Returns the policies
    /// that request the status, if this differs from what was known.
    pub fn put_refusal(&mut self, id: &ObjectId, why: Option<&str>) -> &[PolicyName] {
        let news = match why {
            Some(why) if self.refusals.get(id).is_some_and(|known| **known == *why) => false,
            Some(why) => {
                self.refusals.insert(id.clone(), why.into());
                true
            }
            None => self.refusals.remove(id).is_some(),
        };
        if news { self.policies_of(id) } else { &[] }
    }

    /// Returns the objects of a policy whose reported status is refused, with the reason. Cost: the number of
    /// all such objects.
    pub fn refusals_of(&self, policy: &str) -> impl Iterator<Item = (&ObjectId, &str)> {
        let resolution = self.resolution(policy);
        let asked = move |id: &ObjectId| {
            resolution.and_then(|all| all.get(id)).is_some_and(|entry| entry.modulation.wants_status())
        };
        self.refusals.iter().filter(move |(id, _)| asked(id)).map(|(id, why)| (id, &**why))
    }

    /// Returns the resolution of a policy; `None` if there is no such policy or it is being deleted.
    pub fn resolution(&self, policy: &str) -> Option<&Resolution> {
        self.policies.get(policy).map(|state| &state.resolution)
    }

    /// Returns a policy that is not being deleted.
    pub fn policy(&self, name: &str) -> Option<&Policy> {
        self.policies.get(name).map(|state| &state.policy)
    }

    /// Returns how a resource is served; `None` if it is not watched.
    pub fn served(&self, resource: &GroupResource) -> Option<&Served> {
        self.resources.get(resource)
    }

    /// Returns the API version of a resource that is watched.
    pub fn version(&self, resource: &GroupResource) -> &str {
        self.served(resource).map_or("", |served| &served.version)
    }

    /// Returns an object as last observed.
    pub fn object(&self, id: &ObjectId) -> Option<&Arc<PartialObject>> {
        self.objects.get(id).map(|record| &record.object)
    }

    /// Returns the shared name of a resource.
    pub fn intern(&self, group: &str, plural: &str) -> Arc<GroupResource> {
        let resource = GroupResource::new(group, plural);
        self.resources.get_key_value(&resource).map_or_else(|| Arc::new(resource), |(known, _)| known.clone())
    }

    /// Returns whether any policy requests the status of an object.
    pub fn is_requested(&self, id: &ObjectId) -> bool {
        self.treatments(id).any(|(modulation, _)| modulation.wants_status())
    }

    /// Returns whether any policy requests singleton status, for any object.
    pub fn wants_singletons(&self) -> bool {
        self.singleton_clauses > 0
    }

    /// Returns the number of clusters that a singleton status would come from (KS-064): the united
    /// destinations of the policies that request it, `None` if no policy does. Cost: the policies that match
    /// the object and, if two or more of them request it, their destinations.
    pub fn singletons(&self, id: &ObjectId) -> Option<usize> {
        let mut asking = self.treatments(id).filter(|(modulation, _)| modulation.singleton);
        let (_, first) = asking.next()?;
        let Some((_, second)) = asking.next() else { return Some(first.destinations().len()) };
        let mut all: BTreeSet<_> = first.destinations().union(second.destinations()).collect();
        all.extend(asking.flat_map(|(_, resolution)| resolution.destinations()));
        Some(all.len())
    }

    /// Returns whether any policy requests the aggregated status of an object.
    pub fn wants_multi(&self, id: &ObjectId) -> bool {
        self.treatments(id).any(|(modulation, _)| modulation.multi)
    }

    /// Returns the StatusCollectors that a policy requests for objects that it matches.
    pub fn collectors_of(&self, policy: &str) -> BTreeSet<Box<str>> {
        let state = self.policies.get(policy);
        let used = state.into_iter().flat_map(|state| {
            let used = state.modulations.iter().filter(|it| Arc::strong_count(it) > 1);
            used.flat_map(|modulation| modulation.collectors.iter().cloned())
        });
        used.collect()
    }

    /// Returns the policies that request a StatusCollector.
    pub fn policies_with_collector(&self, collector: &str) -> Vec<PolicyName> {
        let asks = |state: &PolicyState| {
            state.policy.clauses.iter().any(|clause| clause.modulation.collectors.contains(collector))
        };
        self.policies.iter().filter(|(_, state)| asks(state)).map(|(name, _)| name.clone()).collect()
    }

    /// Returns whether a policy requests StatusCollectors for an object.
    pub fn collects(&self, policy: &str, id: &ObjectId) -> bool {
        let entry = self.policies.get(policy).and_then(|state| state.resolution.get(id));
        entry.is_some_and(|entry| !entry.modulation.collectors.is_empty())
    }

    /// Returns the pairs of policy and object for which StatusCollectors are requested.
    pub fn collected(&self) -> impl Iterator<Item = (PolicyName, ObjectId)> {
        self.policies.iter().flat_map(|(name, state)| {
            let asked = |entry: &Entry| !entry.modulation.collectors.is_empty();
            let objects = state.resolution.objects().iter().filter(move |(_, entry)| asked(entry));
            objects.map(|(id, _)| (name.clone(), id.clone()))
        })
    }

    /// Returns every object with its labels.
    pub fn objects(&self) -> impl Iterator<Item = (&ObjectId, &Arc<PartialObject>)> {
        self.objects.iter().map(|(id, record)| (id, &record.object))
    }

    /// Returns the policies whose resolution contains the object.
    pub fn policies_of(&self, id: &ObjectId) -> &[PolicyName] {
        self.objects.get(id).map_or(&[], |record| &record.policies)
    }

    /// Returns the modulation and the resolution of each policy that matches an object.
    fn treatments(&self, id: &ObjectId) -> impl Iterator<Item = (&Modulation, &Resolution)> {
        let states = self.policies_of(id).iter().filter_map(|name| self.policies.get(name));
        states.filter_map(move |PolicyState { resolution, .. }| {
            Some((&*resolution.get(id)?.modulation, resolution))
        })
    }

    /// Returns what policies request about the status of an object. Cost: the policies that match it and
    /// their destinations.
    pub fn request(&self, id: &ObjectId) -> Request {
        let mut request = Request::default();
        for (modulation, resolution) in self.treatments(id).filter(|(it, _)| it.wants_status()) {
            request.singleton |= modulation.singleton;
            request.multi |= modulation.multi;
            request.clusters.extend(resolution.destinations().iter().cloned());
        }
        request
    }

    /// A resource is watched in this version.
    pub fn put_resource(&mut self, resource: &Arc<GroupResource>, served: Served) -> Changes {
        let mut changes = Changes::default();
        let new = served.version.clone();
        if let Some(old) = self.resources.insert(resource.clone(), served)
            && old.version != new
        {
            for (name, state) in &mut self.policies {
                if state.resolution.reversion(resource, &old.version, &new) {
                    changes.bindings.insert(name.clone());
                }
            }
        }
        changes
    }

    /// A resource is no longer watched: forgets its objects (KS-035).
    pub fn remove_resource(&mut self, resource: &Arc<GroupResource>) -> Changes {
        let changes = self.keep_objects(resource, |_| false);
        self.resources.remove(resource);
        changes
    }

    /// Forgets the objects of a resource for which `keep` returns false.
    pub fn keep_objects(
        &mut self,
        resource: &Arc<GroupResource>,
        keep: impl Fn(&ObjectId) -> bool,
    ) -> Changes {
        let from = ObjectId::first(resource.clone());
        let of_resource = self.objects.range(from..).map(|(id, _)| id);
        let gone: Vec<_> =
            of_resource.take_while(|id| id.resource() == resource).filter(|id| !keep(id)).cloned().collect();
        let mut changes = Changes::default();
        for id in gone {
            self.remove_object_into(&id, &mut changes);
        }
        changes
    }

    /// Stores the present state of an object. Its resource must have been put before.
    pub fn put_object(&mut self, id: &ObjectId, object: Arc<PartialObject>) -> Changes {
        let mut changes = Changes::default();
        let labels = &object.metadata.labels;
        let (old, policies) = match self.objects.remove(id) {
            Some(record) => (Some(record.object), record.policies),
            None => (None, Vec::new()),
        };
        self.object_index.update(id, old.as_ref().map(|old| &old.metadata.labels), Some(labels));
        let mut affected = self.policy_index.candidates(id, labels);
        affected.extend(policies.iter().cloned());
        self.objects.insert(id.clone(), Record { object, policies });
        for policy in affected {
            self.evaluate(&policy, id, &mut changes);
        }
        changes
    }

    /// Removes a deleted object.
    pub fn remove_object(&mut self, id: &ObjectId) -> Changes {
        let mut changes = Changes::default();
        self.remove_object_into(id, &mut changes);
        changes
    }

    fn remove_object_into(&mut self, id: &ObjectId, changes: &mut Changes) {
        let Some(record) = self.objects.remove(id) else { return };
        self.object_index.update(id, Some(&record.object.metadata.labels), None);
        let version = self.resources.get(id.resource()).map_or("", |served| &served.version);
        for name in record.policies {
            let Some(state) = self.policies.get_mut(&name) else { continue };
            if let Some(entry) = state.resolution.remove(id, version) {
                if entry.modulation.wants_status() {
                    changes.requests.insert(id.clone());
                }
                if !entry.modulation.collectors.is_empty() {
                    changes.collected.insert((name.clone(), id.clone()));
                }
                changes.bindings.insert(name);
            }
        }
    }

    /// Stores a policy that is not being deleted.
    pub fn put_policy(&mut self, policy: Policy) -> Changes {
        let name = policy.name.clone();
        let mut changes = Changes::default();
        let old = self.policies.get(&name).map(|state| state.policy.clone());
        let old = match old {
            Some(old) if old == policy => return changes,
            Some(old) if old.uid != policy.uid => {
                changes = self.remove_policy(&name);
                None
            }
            old => old,
        };
        let (new_clauses, new_selectors) = (
            old.as_ref().is_none_or(|old| old.clauses != policy.clauses),
            old.as_ref().is_none_or(|old| old.cluster_selectors != policy.cluster_selectors),
        );
        if new_clauses {
            self.index(&name, old.as_ref(), Some(&policy));
        }
        match self.policies.get_mut(&name) {
            Some(state) => state.policy = policy,
            None => {
                let (resolution, modulations) = (Resolution::default(), Vec::new());
                self.policies.insert(name.clone(), PolicyState { policy, resolution, modulations });
            }
        }
        // The Binding is processed even if the resolution is unchanged: errors and generation may differ.
        changes.bindings.insert(name.clone());
        if new_selectors {
            let clusters: Vec<_> = self.clusters.keys().cloned().collect();
            for cluster in clusters {
                self.evaluate_cluster(&name, &cluster, &mut changes);
            }
        }
        if new_clauses {
            for id in self.candidates(&name) {
                self.evaluate(&name, &id, &mut changes);
            }
        }
        changes
    }

    /// Removes a policy that is deleted or being deleted.
    pub fn remove_policy(&mut self, name: &str) -> Changes {
        let mut changes = Changes::default();
        let Some(state) = self.policies.remove(name) else { return changes };
        self.index(&state.policy.name, Some(&state.policy), None);
        for (id, entry) in state.resolution.objects() {
            if let Some(record) = self.objects.get_mut(id) {
                record.policies.retain(|policy| &**policy != name);
            }
            if entry.modulation.wants_status() {
                changes.requests.insert(id.clone());
            }
            if !entry.modulation.collectors.is_empty() {
                changes.collected.insert((name.into(), id.clone()));
            }
        }
        changes.bindings.insert(name.into());
        changes
    }

    /// Stores a cluster's labels.
    pub fn put_cluster(&mut self, name: &str, labels: Labels) -> Changes {
        if self.clusters.get(name) == Some(&labels) {
            return Changes::default();
        }
        self.clusters.insert(name.into(), labels);
        self.cluster_changed(name)
    }

    /// Removes a cluster.
    pub fn remove_cluster(&mut self, name: &str) -> Changes {
        self.clusters.remove(name);
        self.cluster_changed(name)
    }

    fn cluster_changed(&mut self, name: &str) -> Changes {
        let mut changes = Changes::default();
        let (cluster, policies): (ClusterName, Vec<_>) =
            (name.into(), self.policies.keys().cloned().collect());
        for policy in policies {
            self.evaluate_cluster(&policy, &cluster, &mut changes);
        }
        changes
    }

    /// Stores a Namespace's labels (KS-049).
    pub fn put_namespace(&mut self, name: &str, labels: Labels) -> Changes {
        if self.namespaces.get(name) == Some(&labels) {
            return Changes::default();
        }
        self.namespaces.insert(name.into(), labels);
        self.namespace_changed(name)
    }

    /// Removes a Namespace.
    pub fn remove_namespace(&mut self, name: &str) -> Changes {
        self.namespaces.remove(name);
        self.namespace_changed(name)
    }

    fn namespace_changed(&mut self, name: &str) -> Changes {
        let mut changes = Changes::default();
        let looking: Vec<_> = self
            .policies
            .iter()
            .filter(|(_, state)| state.policy.looks_at_namespaces())
            .map(|(policy, _)| policy.clone())
            .collect();
        if looking.is_empty() {
            return changes;
        }
        let inside: Vec<_> = self.object_index.get(&Fact::Namespace, name).cloned().collect();
        for id in inside {
            for policy in &looking {
                self.evaluate(policy, &id, &mut changes);
            }
        }
        changes
    }

    /// Indexes a policy, and the objects that it can match, by its new clauses instead of its old ones.
    fn index(&mut self, name: &PolicyName, old: Option<&Policy>, new: Option<&Policy>) {
        let singletons =
            |clauses: &[Clause]| clauses.iter().filter(|clause| clause.modulation.singleton).count();
        let [before, after] = [old, new].map(|policy| policy.map_or(&[][..], |policy| &policy.clauses));
        self.policy_index.remove(name, before);
        self.policy_index.insert(name, after);
        self.singleton_clauses = self.singleton_clauses + singletons(after) - singletons(before);
        let objects = || self.objects.iter().map(|(id, record)| (id, &record.object.metadata.labels));
        let facts = |policy: Option<&Policy>| policy.map(facts).unwrap_or_default();
        self.object_index.exchange(&facts(old), facts(new), objects);
    }

    /// Returns every object that the policy can match or has matched.
    fn candidates(&self, name: &str) -> BTreeSet<ObjectId> {
        let Some(state) = self.policies.get(name) else { return BTreeSet::new() };
        let mut found: BTreeSet<_> = state.resolution.objects().keys().cloned().collect();
        for key in state.policy.clauses.iter().flat_map(index_keys) {
            match &key {
                IndexKey::Label(_, value) | IndexKey::Name(value) | IndexKey::Namespace(value) => {
                    let ids = Fact::of(&key).map(|fact| self.object_index.get(&fact, value));
                    found.extend(ids.into_iter().flatten().cloned());
                }
                IndexKey::Resource(plural) => self.extend(&mut found, |resource| resource.plural == *plural),
                IndexKey::Group(group) => self.extend(&mut found, |resource| resource.group == *group),
                IndexKey::Any => return self.objects.keys().cloned().chain(found).collect(),
            }
        }
        found
    }

    fn extend(&self, found: &mut BTreeSet<ObjectId>, wanted: impl Fn(&GroupResource) -> bool) {
        for resource in self.resources.keys().filter(|resource| wanted(resource)) {
            let of_resource = self.objects.range(ObjectId::first(resource.clone())..).map(|(id, _)| id);
            found.extend(of_resource.take_while(|id| id.resource() == resource).cloned());
        }
    }

    fn evaluate(&mut self, policy: &PolicyName, id: &ObjectId, changes: &mut Changes) {
        let (Some(state), Some(record)) = (self.policies.get_mut(policy), self.objects.get_mut(id)) else {
            return;
        };
        let version = self.resources.get(id.resource()).map_or("", |served| &served.version);
        let labels = &record.object.metadata.labels;
        let matched = matching(&state.policy.clauses, id, labels, |name| self.namespaces.get(name));
        let collects = |modulation: &Modulation| !modulation.collectors.is_empty();
        let collected = state.resolution.get(id).is_some_and(|entry| collects(&entry.modulation))
            || matched.as_ref().is_some_and(collects);
        let before = state.resolution.get(id).map(|entry| wanted(&entry.modulation));
        let after = matched.as_ref().map(wanted);
        let changed = match matched {
            Some(modulation) => {
                let modulation = shared(&mut state.modulations, modulation);
                let entry = Entry { object: record.object.clone(), modulation };
                if before.is_none() {
                    record.policies.push(policy.clone());
                }
                state.resolution.put(id, entry, version)
            }
            None => {
                record.policies.retain(|other| other != policy);
                state.resolution.remove(id, version).is_some()
            }
        };
        if changed {
            changes.bindings.insert(policy.clone());
        }
        if changed && collected {
            changes.collected.insert((policy.clone(), id.clone()));
        }
        if before.unwrap_or_default() != after.unwrap_or_default() {
            changes.requests.insert(id.clone());
        }
    }

    fn evaluate_cluster(&mut self, policy: &PolicyName, cluster: &ClusterName, changes: &mut Changes) {
        let Some(state) = self.policies.get_mut(policy) else { return };
        let labels = self.clusters.get(cluster);
        let selectors = &state.policy.cluster_selectors;
        let selected = labels.is_some_and(|labels| selectors.iter().any(|it| selects(it, labels)));
        let changed = if selected {
            state.resolution.add_destination(cluster)
        } else {
            state.resolution.remove_destination(cluster)
        };
        if changed {
            changes.bindings.insert(policy.clone());
            let entries = state.resolution.objects().iter();
            let asked = entries.filter(|(_, entry)| entry.modulation.wants_status());
            changes.requests.extend(asked.map(|(id, _)| id.clone()));
            let collected = state.resolution.objects().iter();
            let collected = collected.filter(|(_, entry)| !entry.modulation.collectors.is_empty());
            changes.collected.extend(collected.map(|(id, _)| (policy.clone(), id.clone())));
        }
    }
}

fn wanted(modulation: &Modulation) -> (bool, bool) {
    (modulation.singleton, modulation.multi)
}

/// Returns the attributes by which the policy selects.
fn facts(policy: &Policy) -> Vec<Fact> {
    let mut facts: Vec<_> =
        policy.clauses.iter().flat_map(index_keys).filter_map(|key| Fact::of(&key)).collect();
    if policy.looks_at_namespaces() {
        facts.push(Fact::Namespace);
    }
    facts
}

/// Returns the shared instance of an equal modulation if there is one.
fn shared(known: &mut Vec<Arc<Modulation>>, modulation: Modulation) -> Arc<Modulation> {
    if let Some(same) = known.iter().find(|same| ***same == modulation) {
        return same.clone();
    }
    known.retain(|unused| Arc::strong_count(unused) > 1);
    let modulation = Arc::new(modulation);
    known.push(modulation.clone());
    modulation
}
