//! The parts of Open Cluster Management's API groups that KubeStellar uses.

pub mod addon;
pub mod cluster;
pub mod work;

pub use addon::{AddOnDeploymentConfig, ClusterManagementAddOn, ManagedClusterAddOn};
pub use cluster::{
    ClusterClaim, ManagedCluster, ManagedClusterSet, ManagedClusterSetBinding, Placement, PlacementDecision,
};
pub use work::{AppliedManifestWork, ManifestWork};
