//! All resources that a space serves, as an immutable value that is replaced when CRDs change.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::descriptor::Descriptor;

/// All served resources at one moment. Readers hold an `Arc` for the length of a request.
#[derive(Clone, Default)]
pub struct Catalog {
    /// Groups in discovery order: built-in priority first, then custom groups alphabetically.
    groups: Vec<Group>,
    resources: BTreeMap<(String, String, String), Arc<Descriptor>>,
    /// Counts up with each change. Part of the cache keys of discovery and OpenAPI.
    pub generation: u64,
}

/// An API group with its versions, preferred first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    pub name: String,
    pub versions: Vec<String>,
}

impl Catalog {
    /// Makes a catalog. `groups` gives order and preferred versions, and must name every group and version of
    /// `resources`.
    pub fn new(
        groups: Vec<Group>,
        resources: impl IntoIterator<Item = Arc<Descriptor>>,
        generation: u64,
    ) -> Self {
        let resources = resources
            .into_iter()
            .map(|d| ((d.group.clone(), d.version.clone(), d.plural.clone()), d))
            .collect();
        Self { groups, resources, generation }
    }

    pub fn groups(&self) -> &[Group] {
        &self.groups
    }

    pub fn group(&self, name: &str) -> Option<&Group> {
        self.groups.iter().find(|g| g.name == name)
    }

    pub fn has_version(&self, group: &str, version: &str) -> bool {
        self.group(group).is_some_and(|g| g.versions.iter().any(|v| v == version))
    }

    /// The resource with this plural in this version.
    pub fn resource(&self, group: &str, version: &str, plural: &str) -> Option<&Arc<Descriptor>> {
        // The tuple key needs owned strings. One lookup per request costs little compared with the request.
        self.resources.get(&(group.to_owned(), version.to_owned(), plural.to_owned()))
    }

    /// Resources of one group and version, sorted by plural.
    pub fn in_version(&self, group: &str, version: &str) -> impl Iterator<Item = &Arc<Descriptor>> + use<'_> {
        let (group, version) = (group.to_owned(), version.to_owned());
        let first = (group.clone(), version.clone(), String::new());
        self.resources
            .range(first..)
            .map(|(_, d)| d)
            .take_while(move |d| d.group == group && d.version == version)
    }

    /// The resource of this kind.
    pub fn kind(&self, group: &str, version: &str, kind: &str) -> Option<&Arc<Descriptor>> {
        self.in_version(group, version).find(|d| d.kind == kind)
    }

    pub fn all(&self) -> impl Iterator<Item = &Arc<Descriptor>> {
        self.resources.values()
    }
}
