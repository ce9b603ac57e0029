//! Which clusters are in a set.

use apis::{
    constants::CLUSTER_SET_LABEL,
    ocm::{ManagedCluster, ManagedClusterSet},
};
use machinery::selector::LabelSelector;

/// The members of a set, with its selector parsed once.
pub enum Members<'a> {
    /// Clusters with the label of this set.
    Labelled(&'a str),
    /// Clusters with certain labels.
    Selected(LabelSelector),
}

impl<'a> Members<'a> {
    /// `None` if the set's selector cannot be parsed.
    pub fn of(set: &'a ManagedClusterSet) -> Option<Self> {
        let selector = &set.spec.cluster_selector;
        if selector.selector_type != "LabelSelector" {
            return set.metadata.name.as_deref().map(Self::Labelled);
        }
        let object = serde_json::to_value(selector.label_selector.as_ref()?).ok()?;
        LabelSelector::from_object(&object).ok().map(Self::Selected)
    }

    /// Returns whether a cluster is in the set.
    pub fn has(&self, cluster: &ManagedCluster) -> bool {
        let labels = cluster.metadata.labels.as_ref();
        let label = |key: &str| labels.and_then(|all| all.get(key)).map(String::as_str);
        match self {
            Self::Labelled(name) => label(CLUSTER_SET_LABEL) == Some(*name),
            Self::Selected(selector) => selector.matches(label),
        }
    }
}
