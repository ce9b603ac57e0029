//! What a Placement selects from, and why a Placement cannot be decided.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use apis::ocm::{AddOnPlacementScore, ManagedCluster, ManagedClusterSet};

/// Finds the AddOnPlacementScore of a cluster, by the names of both.
pub type FindScores = Arc<dyn Fn(&str, &str) -> Option<Arc<AddOnPlacementScore>> + Send + Sync>;

/// Counts in how many decisions of other Placements each cluster is. Called only if the count matters.
pub type CountDecisions = Box<dyn FnOnce() -> BTreeMap<String, u32> + Send>;

/// What a Placement selects from.
pub struct Candidates {
    /// Existing sets that are bound to the Placement's namespace.
    pub sets: Vec<Arc<ManagedClusterSet>>,
    /// All clusters.
    pub clusters: Vec<Arc<ManagedCluster>>,
    /// Clusters that are selected at present.
    pub chosen: BTreeSet<String>,
    /// Decisions of the other Placements.
    pub decisions: CountDecisions,
    /// Scores of add-ons.
    pub scores: FindScores,
}

/// Why a Placement cannot be decided. The text is that of OCM: the plugin and the reason.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{plugin}:{why}")]
pub struct Misconfigured {
    /// The part of the scheduler that refuses it; may be empty.
    pub plugin: &'static str,
    /// The reason.
    pub why: String,
}

impl Misconfigured {
    /// The text after the name of the `plugin`.
    pub fn new(plugin: &'static str, why: impl Into<String>) -> Self {
        Self { plugin, why: why.into() }
    }
}
