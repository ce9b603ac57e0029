use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::is_false;
use crate::{Condition, constants::CONTROL_GROUP, kind::kind};

kind! {
    /// Binding lists the objects that a BindingPolicy selects and the clusters they go to. It is maintained by KubeStellar, one for each policy, under the policy's name.
    Binding = CONTROL_GROUP, "v1alpha1", "bindings", ClusterResourceScope;
    always
    /// Objects and clusters.
    spec: BindingSpec;
    optional
    /// What became of it.
    status as "status": BindingStatus;
}

/// Objects and the clusters they go to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct BindingSpec {
    /// The objects.
    pub workload: DownsyncObjectClauses,
    /// The clusters.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["clusterId"]))]
    pub destinations: Vec<Destination>,
}

/// The objects of a Binding.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct DownsyncObjectClauses {
    /// Cluster-scoped objects.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend(
        "x-kubernetes-list-type" = "map",
        "x-kubernetes-list-map-keys" = ["group", "resource", "name"],
    ))]
    pub cluster_scope: Vec<ClusterScopeDownsyncClause>,
    /// Namespaced objects.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend(
        "x-kubernetes-list-type" = "map",
        "x-kubernetes-list-map-keys" = ["group", "resource", "namespace", "name"],
    ))]
    pub namespace_scope: Vec<NamespaceScopeDownsyncClause>,
}

/// Refers to one cluster-scoped object at one version.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ClusterScopeDownsyncClause {
    /// API group; empty is the core group.
    #[schemars(extend("x-required" = true))]
    pub group: String,
    /// API version.
    #[schemars(extend("x-required" = true))]
    pub version: String,
    /// Lowercase plural name of the resource.
    #[schemars(extend("x-required" = true))]
    pub resource: String,
    /// Name of the object.
    #[schemars(extend("x-required" = true))]
    pub name: String,
    /// The object's resourceVersion when it was evaluated.
    #[schemars(extend("x-required" = true))]
    pub resource_version: String,
    /// Create the object in the clusters if it is not there, and leave it alone afterwards.
    #[serde(skip_serializing_if = "is_false")]
    pub create_only: bool,
    /// Names of the StatusCollectors that summarise the reported state of the object.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub status_collectors: Vec<String>,
    /// Bring the object's status back from the one cluster it is sent to.
    #[serde(skip_serializing_if = "is_false")]
    pub want_singleton_reported_state: bool,
    /// Bring the object's status back, aggregated over all clusters it is sent to.
    #[serde(rename = "wantMultiWECReportedState", skip_serializing_if = "is_false")]
    pub want_multi_wec_reported_state: bool,
}

/// Refers to one namespaced object at one version.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct NamespaceScopeDownsyncClause {
    /// API group; empty is the core group.
    #[schemars(extend("x-required" = true))]
    pub group: String,
    /// API version.
    #[schemars(extend("x-required" = true))]
    pub version: String,
    /// Lowercase plural name of the resource.
    #[schemars(extend("x-required" = true))]
    pub resource: String,
    /// Namespace of the object.
    #[schemars(extend("x-required" = true))]
    pub namespace: String,
    /// Name of the object.
    #[schemars(extend("x-required" = true))]
    pub name: String,
    /// The object's resourceVersion when it was evaluated.
    #[schemars(extend("x-required" = true))]
    pub resource_version: String,
    /// Create the object in the clusters if it is not there, and leave it alone afterwards.
    #[serde(skip_serializing_if = "is_false")]
    pub create_only: bool,
    /// Names of the StatusCollectors that summarise the reported state of the object.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub status_collectors: Vec<String>,
    /// Bring the object's status back from the one cluster it is sent to.
    #[serde(skip_serializing_if = "is_false")]
    pub want_singleton_reported_state: bool,
    /// Bring the object's status back, aggregated over all clusters it is sent to.
    #[serde(rename = "wantMultiWECReportedState", skip_serializing_if = "is_false")]
    pub want_multi_wec_reported_state: bool,
}

/// How an object is treated.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct DownsyncModulation {
    /// Create the object in the clusters if it is not there, and leave it alone afterwards.
    #[serde(skip_serializing_if = "is_false")]
    pub create_only: bool,
    /// Names of the StatusCollectors that summarise the reported state of the object.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub status_collectors: Vec<String>,
    /// Bring the object's status back from the one cluster it is sent to.
    #[serde(skip_serializing_if = "is_false")]
    pub want_singleton_reported_state: bool,
    /// Bring the object's status back, aggregated over all clusters it is sent to.
    #[serde(rename = "wantMultiWECReportedState", skip_serializing_if = "is_false")]
    pub want_multi_wec_reported_state: bool,
}

macro_rules! modulated {
    ($($clause:ident),+) => {$(
        impl $clause {
            /// How the object is treated.
            pub fn modulation(&self) -> DownsyncModulation {
                DownsyncModulation {
                    create_only: self.create_only,
                    status_collectors: self.status_collectors.clone(),
                    want_singleton_reported_state: self.want_singleton_reported_state,
                    want_multi_wec_reported_state: self.want_multi_wec_reported_state,
                }
            }
        }
    )+};
}
modulated!(ClusterScopeDownsyncClause, NamespaceScopeDownsyncClause);

/// One cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Destination {
    /// Name of the cluster in the inventory.
    #[schemars(extend("x-required" = true))]
    pub cluster_id: String,
}

/// What became of the Binding.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct BindingStatus {
    /// Aspects of the Binding's state.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
    /// Generation of the Binding that the transport has acted on.
    #[schemars(extend("x-required" = true))]
    pub observed_generation: i64,
    /// What is wrong with the delivery.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<String>,
}
