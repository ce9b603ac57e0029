//! The key of an input, as it is stored in labels and annotations (MC-020, MC-021).

use std::fmt;

use crate::object::Text;

/// The key of an input: `<plural>[.<group>]/<namespace>/<name>`. It contains the name and not the UID, so a
/// recreated input gets the outputs of its predecessor. It contains no version, so another served version is
/// the same input.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MapKey(Text);

/// The three parts of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parts<'a> {
    /// `plural` or `plural.group`.
    pub group_resource: &'a str,
    /// Namespace, empty for cluster-scoped inputs.
    pub namespace: &'a str,
    /// Name.
    pub name: &'a str,
}

impl MapKey {
    /// The key of an object.
    pub fn new(group_resource: &str, namespace: &str, name: &str) -> Self {
        Self(format!("{group_resource}/{namespace}/{name}").into())
    }

    /// A key as it was stored; [`parts`](Self::parts) tells whether it is valid.
    pub fn raw(text: &str) -> Self {
        Self(text.into())
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the parts; `None` if the key is malformed (MC-027).
    pub fn parts(&self) -> Option<Parts<'_>> {
        let mut parts = self.0.split('/');
        let (group_resource, namespace, name) = (parts.next()?, parts.next()?, parts.next()?);
        let whole = parts.next().is_none() && !group_resource.is_empty() && !name.is_empty();
        whole.then_some(Parts { group_resource, namespace, name })
    }
}

impl fmt::Display for MapKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for MapKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// MC-020, MC-027: the documented forms, and malformed ones.
    #[test]
    fn mc_020_keys_have_three_parts() {
        let key = MapKey::new("widgets.example.com", "prod", "w1");
        assert_eq!(key.as_str(), "widgets.example.com/prod/w1");
        assert_eq!(MapKey::new("nodes", "", "n1").as_str(), "nodes//n1");
        let parts = MapKey::raw("nodes//n1");
        assert_eq!(parts.parts(), Some(Parts { group_resource: "nodes", namespace: "", name: "n1" }));
        for bad in ["", "nodes", "nodes/n1", "a/b/c/d", "/a/b", "a/b/"] {
            assert_eq!(MapKey::raw(bad).parts(), None, "{bad:?}");
        }
    }
}
