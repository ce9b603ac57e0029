//! Namespace and name as a key of maps.

use std::{borrow::Borrow, fmt, sync::Arc};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

/// Namespace and name of an object; the namespace of a cluster-scoped object is empty.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectKey {
    /// Namespace, or empty.
    pub namespace: Arc<str>,
    /// Name.
    pub name: Arc<str>,
}

impl ObjectKey {
    /// The key of `namespace` (empty for none) and `name`.
    pub fn new(namespace: &str, name: &str) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }

    /// The key of the object with this metadata. A name that is missing is empty.
    pub fn of(metadata: &ObjectMeta) -> Self {
        let part = |text: &Option<String>| text.as_deref().unwrap_or_default().into();
        Self { namespace: part(&metadata.namespace), name: part(&metadata.name) }
    }
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.namespace.is_empty() {
            f.write_str(&self.name)
        } else {
            write!(f, "{}/{}", self.namespace, self.name)
        }
    }
}

/// A borrowed key for look-ups.
pub(crate) trait Pair {
    fn pair(&self) -> (&str, &str);
}

impl Pair for ObjectKey {
    fn pair(&self) -> (&str, &str) {
        (&self.namespace, &self.name)
    }
}

impl Pair for (&str, &str) {
    fn pair(&self) -> (&str, &str) {
        *self
    }
}

impl<'a> Borrow<dyn Pair + 'a> for ObjectKey {
    fn borrow(&self) -> &(dyn Pair + 'a) {
        self
    }
}

impl PartialEq for dyn Pair + '_ {
    fn eq(&self, other: &Self) -> bool {
        self.pair() == other.pair()
    }
}

impl Eq for dyn Pair + '_ {}

impl PartialOrd for dyn Pair + '_ {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for dyn Pair + '_ {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.pair().cmp(&other.pair())
    }
}
