//! What is not known about the workload at present (KS-030).

use std::{collections::BTreeSet, fmt};

use crate::identity::GroupResource;

/// Groups and resources of whose objects nothing is known, not even whether they exist.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct UnknownResources {
    pub(crate) groups: BTreeSet<String>,
    pub(crate) resources: BTreeSet<GroupResource>,
}

impl UnknownResources {
    pub(crate) fn is_empty(&self) -> bool {
        self.groups.is_empty() && self.resources.is_empty()
    }

    /// Returns whether everything in `other` is unknown here, too.
    pub(crate) fn covers(&self, other: &Self) -> bool {
        other.groups.is_subset(&self.groups)
            && other.resources.iter().all(|resource| self.has(&resource.group, &resource.plural))
    }

    pub(crate) fn has(&self, group: &str, plural: &str) -> bool {
        self.groups.contains(group) || self.resources.iter().any(|resource| resource.is(group, plural))
    }
}

impl fmt::Display for UnknownResources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let groups = self.groups.iter().map(|group| format!("*.{group}"));
        let all: Vec<_> = groups.chain(self.resources.iter().map(ToString::to_string)).collect();
        let (some, rest) = all.split_at(all.len().min(4));
        f.write_str(&some.join(", "))?;
        if rest.is_empty() { Ok(()) } else { write!(f, " and {} more", rest.len()) }
    }
}
