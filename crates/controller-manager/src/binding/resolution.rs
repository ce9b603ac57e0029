//! The objects and destinations of a policy, and their form in a Binding.

use std::{
    collections::{BTreeMap, BTreeSet},
    hash::{BuildHasher, Hash, RandomState},
    sync::{Arc, OnceLock},
};

use apis::control::{BindingEntry, BindingSpec, Destination, DownsyncObjectClauses};
use runtime::PartialObject;

use super::modulation::Modulation;
use crate::identity::{ClusterName, GroupResource, ObjectId};

/// One matched object.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The object as it was when it was evaluated.
    pub object: Arc<PartialObject>,
    /// How it is delivered.
    pub modulation: Arc<Modulation>,
}

/// Destinations and matched objects of one policy.
///
/// Maintains a digest of itself, so that a comparison with a Binding does not cost a look at all of its
/// entries.
#[derive(Clone, Debug, Default)]
pub struct Resolution {
    objects: BTreeMap<ObjectId, Entry>,
    destinations: BTreeSet<ClusterName>,
    digest: SpecDigest,
}

/// Digest of a set of entries and destinations that does not depend on their order. It is valid within one
/// process only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpecDigest {
    sum: u128,
    count: u64,
}

impl SpecDigest {
    fn add(&mut self, item: u128) {
        self.sum = self.sum.wrapping_add(item);
        self.count += 1;
    }

    fn take(&mut self, item: u128) {
        self.sum = self.sum.wrapping_sub(item);
        self.count = self.count.saturating_sub(1);
    }

    /// Computes the digest of a Binding's spec.
    pub fn of(spec: &BindingSpec) -> Self {
        let mut digest = Self::default();
        for entry in spec.entries() {
            digest.add(hash(&ClauseFacts::of(&entry)));
        }
        for destination in &spec.destinations {
            digest.add(hash(&destination.cluster_id.as_str()));
        }
        digest
    }
}

/// The fields in which two equal entries of a Binding agree.
#[derive(Hash)]
struct ClauseFacts<'a> {
    group: &'a str,
    version: &'a str,
    resource: &'a str,
    namespace: &'a str,
    name: &'a str,
    resource_version: &'a str,
    create_only: bool,
    singleton: bool,
    multi: bool,
    collectors: Vec<&'a str>,
}

impl<'a> ClauseFacts<'a> {
    fn of(entry: &BindingEntry<'a>) -> Self {
        Self {
            group: entry.group,
            version: entry.version,
            resource: entry.resource,
            namespace: entry.namespace,
            name: entry.name,
            resource_version: entry.resource_version,
            create_only: entry.create_only,
            singleton: entry.want_singleton_reported_state,
            multi: entry.want_multi_wec_reported_state,
            collectors: sorted(entry.status_collectors),
        }
    }

    fn entry(id: &'a ObjectId, entry: &'a Entry, version: &'a str) -> Self {
        Self {
            group: &id.resource().group,
            version,
            resource: &id.resource().plural,
            namespace: id.namespace(),
            name: id.name(),
            resource_version: &entry.object.metadata.resource_version,
            create_only: entry.modulation.create_only,
            singleton: entry.modulation.singleton,
            multi: entry.modulation.multi,
            collectors: entry.modulation.collectors.iter().map(|name| &**name).collect(),
        }
    }
}

fn sorted(names: &[String]) -> Vec<&str> {
    let names: BTreeSet<&str> = names.iter().map(String::as_str).collect();
    names.into_iter().collect()
}

/// Computes 128 bits from two hashes whose keys are unknown outside of this process, so that no user can
/// craft entries whose digests cancel out.
fn hash(item: &impl Hash) -> u128 {
    static KEYS: OnceLock<[RandomState; 2]> = OnceLock::new();
    let [low, high] = KEYS.get_or_init(|| [RandomState::new(), RandomState::new()]);
    let half = |keys: &RandomState| u128::from(keys.hash_one(item));
    half(high) << 64 | half(low)
}

impl Resolution {
    /// Returns the digest. It equals that of a Binding's spec with the same content.
    pub fn digest(&self) -> SpecDigest {
        self.digest
    }

    /// Returns the matched objects.
    pub fn objects(&self) -> &BTreeMap<ObjectId, Entry> {
        &self.objects
    }

    /// Returns the destinations.
    pub fn destinations(&self) -> &BTreeSet<ClusterName> {
        &self.destinations
    }

    /// Returns the entry of a matched object; `None` if the object is not matched.
    pub fn get(&self, id: &ObjectId) -> Option<&Entry> {
        self.objects.get(id)
    }

    /// Adds or replaces an object; `version` is the API version of its resource. Returns true if that changes
    /// the resolution (KS-053).
    pub fn put(&mut self, id: &ObjectId, entry: Entry, version: &str) -> bool {
        if let Some(old) = self.objects.get(id) {
            let same = old.object.metadata.uid == entry.object.metadata.uid
                && old.object.metadata.resource_version == entry.object.metadata.resource_version
                && old.modulation == entry.modulation;
            if same {
                return false;
            }
            self.digest.take(hash(&ClauseFacts::entry(id, old, version)));
        }
        self.digest.add(hash(&ClauseFacts::entry(id, &entry, version)));
        self.objects.insert(id.clone(), entry);
        true
    }

    /// Removes an object and returns its entry.
    pub fn remove(&mut self, id: &ObjectId, version: &str) -> Option<Entry> {
        let old = self.objects.remove(id)?;
        self.digest.take(hash(&ClauseFacts::entry(id, &old, version)));
        Some(old)
    }

    /// Changes the API version of the objects of a resource. Returns true if there are any.
    pub fn reversion(&mut self, resource: &Arc<GroupResource>, old: &str, new: &str) -> bool {
        let mut any = false;
        let of_resource = self.objects.range(ObjectId::first(resource.clone())..);
        for (id, entry) in of_resource.take_while(|(id, _)| id.resource() == resource) {
            self.digest.take(hash(&ClauseFacts::entry(id, entry, old)));
            self.digest.add(hash(&ClauseFacts::entry(id, entry, new)));
            any = true;
        }
        any
    }

    /// Adds a cluster. Returns true if it is new.
    pub fn add_destination(&mut self, cluster: &ClusterName) -> bool {
        let new = self.destinations.insert(cluster.clone());
        if new {
            self.digest.add(hash(&&**cluster));
        }
        new
    }

    /// Removes a cluster. Returns true if it was there.
    pub fn remove_destination(&mut self, cluster: &str) -> bool {
        let was = self.destinations.remove(cluster);
        if was {
            self.digest.take(hash(&cluster));
        }
        was
    }

    /// Renders the spec of a Binding (KS-060): entries ordered by the text of their resource, then by
    /// namespace and name; destinations by name. `version` returns the API version of a resource.
    pub fn render<'v>(&self, version: impl Fn(&GroupResource) -> &'v str) -> BindingSpec {
        let mut by_resource: BTreeMap<String, Vec<(&ObjectId, &Entry)>> = BTreeMap::new();
        for (id, entry) in &self.objects {
            let resource = id.resource();
            let text = format!("{}/{}, Resource={}", resource.group, version(resource), resource.plural);
            by_resource.entry(text).or_default().push((id, entry));
        }
        let mut workload = DownsyncObjectClauses::default();
        for (id, entry) in by_resource.into_values().flatten() {
            let modulation = entry.modulation.to_api();
            workload.push(&BindingEntry {
                group: &id.resource().group,
                version: version(id.resource()),
                resource: &id.resource().plural,
                namespace: id.namespace(),
                name: id.name(),
                resource_version: &entry.object.metadata.resource_version,
                create_only: modulation.create_only,
                status_collectors: &modulation.status_collectors,
                want_singleton_reported_state: modulation.want_singleton_reported_state,
                want_multi_wec_reported_state: modulation.want_multi_wec_reported_state,
            });
        }
        let destinations =
            self.destinations.iter().map(|name| Destination { cluster_id: name.to_string() }).collect();
        BindingSpec { workload, destinations }
    }
}
