//! The parts of Open Cluster Management's API groups that KubeStellar uses.

pub mod addon;
pub mod addon_v1beta1;
pub mod cluster;
pub mod cluster_profile;
pub mod conversion;
pub mod placement;
pub mod work;

pub use addon::{AddOnDeploymentConfig, AddOnTemplate, ClusterManagementAddOn, ManagedClusterAddOn};
pub use cluster::{
    ClusterClaim, ClusterProperty, ManagedCluster, ManagedClusterSet, ManagedClusterSetBinding, Placement,
    PlacementDecision,
};
pub use cluster_profile::ClusterProfile;
pub use placement::AddOnPlacementScore;
pub use work::{AppliedManifestWork, ManifestWork};
