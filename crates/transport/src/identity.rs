//! Identity of a workload object.

use std::fmt;

use serde_json::Value;

/// Identity of an object inside an envelope; the gloss of KS-080 is a set of these. It has no version.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Identity {
    /// API group; empty for the core group.
    pub group: String,
    /// Kind.
    pub kind: String,
    /// Namespace; empty for cluster-scoped objects.
    pub namespace: String,
    /// Name.
    pub name: String,
}

impl Identity {
    /// Reads the identity of an object. Returns `None` if kind or name is missing.
    pub fn of(object: &Value) -> Option<Self> {
        let api_version = object.get("apiVersion")?.as_str()?;
        let metadata = object.get("metadata")?;
        Some(Self {
            group: api_version.split_once('/').map_or("", |(group, _)| group).to_owned(),
            kind: object.get("kind")?.as_str()?.to_owned(),
            namespace: metadata.get("namespace").and_then(Value::as_str).unwrap_or_default().to_owned(),
            name: metadata.get("name")?.as_str()?.to_owned(),
        })
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.kind)?;
        if !self.group.is_empty() {
            write!(f, ".{}", self.group)?;
        }
        if self.namespace.is_empty() {
            write!(f, "({})", self.name)
        } else {
            write!(f, "({}/{})", self.namespace, self.name)
        }
    }
}
