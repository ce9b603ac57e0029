//! Names and identities.

use std::{cmp::Ordering, fmt, sync::Arc};

/// Name of a BindingPolicy, and of its Binding.
pub type PolicyName = Arc<str>;
/// Name of a ManagedCluster, and of its mailbox namespace.
pub type ClusterName = Arc<str>;

/// API group (empty for core) and lower-case plural name of a resource.
///
/// The version is not part of it: one object seen in two versions is still one object (KS-036).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupResource {
    /// API group.
    pub group: Box<str>,
    /// Plural name.
    pub plural: Box<str>,
}

impl GroupResource {
    /// A resource by its two names.
    pub fn new(group: &str, plural: &str) -> Self {
        Self { group: group.into(), plural: plural.into() }
    }

    /// Returns whether this is the named resource.
    pub fn is(&self, group: &str, plural: &str) -> bool {
        &*self.group == group && &*self.plural == plural
    }
}

impl fmt::Display for GroupResource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.group.is_empty() {
            f.write_str(&self.plural)
        } else {
            write!(f, "{}.{}", self.plural, self.group)
        }
    }
}

/// Identity of a workload object.
///
/// Ordered by resource and then by the text `namespace/name`, which is the order within a Binding (KS-060).
#[derive(Clone, Debug)]
pub struct ObjectId {
    resource: Arc<GroupResource>,
    /// `namespace/name`, or `name`.
    path: Arc<str>,
    /// Length of the namespace; 0 for a cluster-scoped object.
    split: u32,
}

impl ObjectId {
    /// The object `name` in `namespace`, which is empty for a cluster-scoped object.
    pub fn new(resource: Arc<GroupResource>, namespace: &str, name: &str) -> Self {
        let path = if namespace.is_empty() { name.into() } else { format!("{namespace}/{name}").into() };
        Self { resource, path, split: namespace.len() as u32 }
    }

    /// The lower bound of all objects of a resource.
    pub fn first(resource: Arc<GroupResource>) -> Self {
        Self { resource, path: "".into(), split: 0 }
    }

    /// Its resource.
    pub fn resource(&self) -> &Arc<GroupResource> {
        &self.resource
    }

    /// Its namespace; empty for a cluster-scoped object.
    pub fn namespace(&self) -> &str {
        self.path.get(..self.split as usize).unwrap_or_default()
    }

    /// Its name.
    pub fn name(&self) -> &str {
        let from = if self.split == 0 { 0 } else { self.split as usize + 1 };
        self.path.get(from..).unwrap_or_default()
    }

    fn facts(&self) -> (&str, &str, &str, u32) {
        (&self.resource.group, &self.resource.plural, &self.path, self.split)
    }
}

impl fmt::Display for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.resource, self.path)
    }
}

impl PartialEq for ObjectId {
    fn eq(&self, other: &Self) -> bool {
        self.facts() == other.facts()
    }
}

impl Eq for ObjectId {}

impl PartialOrd for ObjectId {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for ObjectId {
    fn cmp(&self, other: &Self) -> Ordering {
        self.facts().cmp(&other.facts())
    }
}

impl std::hash::Hash for ObjectId {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.facts().hash(state);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ks_060_objects_are_ordered_by_the_text_of_namespace_and_name() {
        let resource = Arc::new(GroupResource::new("", "configmaps"));
        let id = |namespace, name| ObjectId::new(resource.clone(), namespace, name);
        assert!(id("a-b", "x") < id("a", "x"), "'-' is before '/'");
        assert_eq!((id("a", "x").namespace(), id("a", "x").name()), ("a", "x"));
        assert_eq!((id("", "x").namespace(), id("", "x").name()), ("", "x"));
        assert!(ObjectId::first(resource.clone()) < id("", "a"));
    }
}
