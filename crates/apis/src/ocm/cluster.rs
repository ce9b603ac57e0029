//! `cluster.open-cluster-management.io`.

use std::collections::BTreeMap;

use k8s_openapi::{
    ByteString,
    api::core::v1::Toleration,
    apimachinery::pkg::{
        api::resource::Quantity,
        apis::meta::v1::{Condition, LabelSelector, Time},
    },
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::placement::{CelSelector, DecisionStrategy, PrioritizerPolicy};
use crate::{
    constants::{ABOUT_GROUP, CLUSTER_GROUP},
    kind::kind,
};

/// Condition: the hub's admin accepted the cluster.
pub const CONDITION_HUB_ACCEPTED: &str = "HubAcceptedManagedCluster";
/// Condition: the agent has joined.
pub const CONDITION_JOINED: &str = "ManagedClusterJoined";
/// Condition: the cluster answers.
pub const CONDITION_AVAILABLE: &str = "ManagedClusterConditionAvailable";
/// Condition: the clocks of hub and agent agree.
pub const CONDITION_CLOCK: &str = "ManagedClusterConditionClockSynced";
/// Condition: the agent's certificate was renewed.
pub const CONDITION_ROTATED: &str = "ClusterCertificateRotated";
/// Condition: how far the deletion is.
pub const CONDITION_DELETING: &str = "Deleting";

kind! {
    /// ManagedCluster stands for one cluster of the inventory (OCM-010).
    ManagedCluster = CLUSTER_GROUP, "v1", "managedclusters", ClusterResourceScope;
    required
    /// Desired state of the cluster.
    spec: ManagedClusterSpec;
    optional
    /// Observed state of the cluster.
    status as "status": ManagedClusterStatus;
}

/// Desired state of the cluster.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ManagedClusterSpec {
    /// How the cluster's API server can be reached.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub managed_cluster_client_configs: Vec<ClientConfig>,
    /// Whether the hub's admin accepts the cluster.
    #[schemars(extend("x-default" = false))]
    pub hub_accepts_client: bool,
    /// How often the agent renews its lease, in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-default" = 60))]
    pub lease_duration_seconds: Option<i32>,
    /// Taints that keep placements away.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub taints: Vec<Taint>,
}

/// How the cluster's API server can be reached.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ClientConfig {
    /// Address of the API server.
    #[schemars(extend("x-required" = true))]
    pub url: String,
    /// Certificates that sign the API server's.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::schema::bytes")]
    pub ca_bundle: Option<ByteString>,
}

/// A taint that keeps placements away.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Taint {
    /// Key of the taint.
    #[schemars(extend("x-required" = true), extend(
        "maxLength" = 316,
        "pattern" = "^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])$",
    ))]
    pub key: String,
    /// Value of the taint.
    #[serde(skip_serializing_if = "String::is_empty")]
    #[schemars(extend("maxLength" = 1024))]
    pub value: String,
    /// Effect of the taint.
    #[schemars(extend("x-required" = true), extend("enum" = ["NoSelect", "PreferNoSelect", "NoSelectIfNew"]))]
    pub effect: String,
    /// When the taint was added.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::schema::time", extend("x-nullable" = true))]
    pub time_added: Option<Time>,
}

/// Observed state of the cluster.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ManagedClusterStatus {
    /// Conditions of the cluster.
    #[schemars(schema_with = "crate::schema::conditions")]
    pub conditions: Vec<Condition>,
    /// Total resources.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "crate::schema::quantities")]
    pub capacity: BTreeMap<String, Quantity>,
    /// Resources for workloads.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "crate::schema::quantities")]
    pub allocatable: BTreeMap<String, Quantity>,
    /// Versions of the cluster.
    pub version: ManagedClusterVersion,
    /// Claims of the cluster about itself.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub cluster_claims: Vec<ManagedClusterClaim>,
    /// Namespaces kept by the hub.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["clusterSet", "name"]))]
    pub managed_namespaces: Vec<ManagedNamespace>,
}

/// Versions of the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ManagedClusterVersion {
    /// Version of Kubernetes.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub kubernetes: String,
}

/// A claim of the cluster about itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ManagedClusterClaim {
    /// Name of the claim.
    #[schemars(extend("minLength" = 1, "maxLength" = 253))]
    pub name: String,
    /// Value of the claim.
    #[schemars(extend("minLength" = 1, "maxLength" = 1024))]
    pub value: String,
}

/// A namespace kept by the hub.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ManagedNamespace {
    /// Name of the namespace.
    #[schemars(extend("x-required" = true))]
    pub name: String,
    /// The set that requests it.
    #[schemars(extend("x-required" = true))]
    pub cluster_set: String,
    /// Conditions of the namespace.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "crate::schema::conditions")]
    pub conditions: Vec<Condition>,
}

kind! {
    /// ManagedClusterSet is a group of ManagedClusters (OCM-011).
    ManagedClusterSet = CLUSTER_GROUP, "v1beta2", "managedclustersets", ClusterResourceScope;
    always
    /// Which clusters are in the set.
    spec: ManagedClusterSetSpec;
    optional
    /// Observed state of the set.
    status as "status": ConditionsStatus;
}

/// Which clusters are in the set.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-default" = {"clusterSelector": {"selectorType": "ExclusiveClusterSetLabel"}}))]
pub struct ManagedClusterSetSpec {
    /// How clusters are found.
    pub cluster_selector: ManagedClusterSelector,
    /// Namespaces that the set requests in its clusters.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub managed_namespaces: Vec<NamespaceName>,
}

/// How the clusters of a set are found.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-default" = {"selectorType": "ExclusiveClusterSetLabel"}))]
pub struct ManagedClusterSelector {
    /// By the set label of the clusters, or by any label.
    #[serde(skip_serializing_if = "String::is_empty")]
    #[schemars(extend(
        "x-default" = "ExclusiveClusterSetLabel",
        "enum" = ["ExclusiveClusterSetLabel", "LabelSelector"],
    ))]
    pub selector_type: String,
    /// Which labels.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::schema::label_selector")]
    pub label_selector: Option<LabelSelector>,
}

/// Name of a namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct NamespaceName {
    /// The name.
    #[schemars(extend("x-required" = true), extend("maxLength" = 63))]
    pub name: String,
}

/// A status that is conditions only.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ConditionsStatus {
    /// Conditions.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "crate::schema::conditions")]
    pub conditions: Vec<Condition>,
}

kind! {
    /// ManagedClusterSetBinding lets the placements of its namespace use a ManagedClusterSet.
    ManagedClusterSetBinding = CLUSTER_GROUP, "v1beta2", "managedclustersetbindings", NamespaceResourceScope;
    always
    /// Which set.
    spec: ManagedClusterSetBindingSpec;
    optional
    /// Observed state of the binding.
    status as "status": ConditionsStatus;
}

/// Which set.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ManagedClusterSetBindingSpec {
    /// Name of the ManagedClusterSet.
    #[schemars(extend("minLength" = 1))]
    pub cluster_set: String,
}

kind! {
    /// Placement selects clusters of the sets that are bound to its namespace (OCM-013).
    Placement = CLUSTER_GROUP, "v1beta1", "placements", NamespaceResourceScope;
    required
    /// Which clusters.
    spec: PlacementSpec;
    optional
    /// What was selected.
    status as "status": PlacementStatus;
}

/// Which clusters a placement selects.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PlacementSpec {
    /// Sets that clusters are taken from; none means all that are bound.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub cluster_sets: Vec<String>,
    /// How many clusters; none means all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub number_of_clusters: Option<i32>,
    /// Conditions on clusters, one of which must hold.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub predicates: Vec<ClusterPredicate>,
    /// How clusters are ordered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prioritizer_policy: Option<PrioritizerPolicy>,
    /// How clusters are spread. OCM does not read it yet; neither do we.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "super::placement::spread_policy")]
    pub spread_policy: Option<Value>,
    /// Taints that are tolerated.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "tolerations")]
    pub tolerations: Vec<Toleration>,
    /// How decisions are grouped.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub decision_strategy: Option<DecisionStrategy>,
    /// Order of the clusters in the decisions. OCM does not read it yet; neither do we.
    #[serde(skip_serializing_if = "String::is_empty")]
    #[schemars(extend("x-default" = "ClusterName", "enum" = ["ClusterName", "Score"]))]
    pub sort_by: String,
    /// How often changes of scores alone are written. OCM does not read it yet; neither do we.
    #[serde(skip_serializing_if = "String::is_empty")]
    #[schemars(extend("x-default" = "1m", "pattern" = "^[0-9]+[hms]$"))]
    pub score_rate_limit: String,
}

fn tolerations(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
    schemars::json_schema!({
        "type": "array",
        "items": {
            "type": "object",
            "properties": {
                "key": {
                    "type": "string", "maxLength": 316,
                    "pattern": "^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])$",
                },
                "operator": {"type": "string", "x-default": "Equal"},
                "value": {"type": "string", "maxLength": 1024},
                "effect": {"type": "string", "enum": ["NoSelect", "PreferNoSelect", "NoSelectIfNew"]},
                "tolerationSeconds": {"type": "integer", "format": "int64"},
            },
        },
    })
}

/// Conditions on a cluster.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ClusterPredicate {
    /// Selector that must match.
    pub required_cluster_selector: ClusterSelector,
}

/// Selects clusters.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ClusterSelector {
    /// By labels.
    #[schemars(schema_with = "crate::schema::label_selector")]
    pub label_selector: LabelSelector,
    /// By claims of the clusters.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "super::placement::claim_selector")]
    pub claim_selector: Option<Value>,
    /// By expressions over the cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cel_selector: Option<CelSelector>,
}

/// What a placement selected.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PlacementStatus {
    /// How many clusters.
    pub number_of_selected_clusters: i32,
    /// Groups of clusters.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub decision_groups: Vec<DecisionGroup>,
    /// Conditions.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "crate::schema::conditions")]
    pub conditions: Vec<Condition>,
    /// When scores were last written. OCM does not write it yet; neither do we.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::schema::time")]
    pub last_score_update_time: Option<Time>,
}

/// A group of selected clusters.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct DecisionGroup {
    /// Number of the group.
    pub decision_group_index: i32,
    /// Name of the group.
    pub decision_group_name: String,
    /// The PlacementDecisions of the group.
    pub decisions: Vec<String>,
    /// How many clusters.
    #[schemars(extend("x-default" = 0))]
    pub cluster_count: i32,
}

kind! {
    /// PlacementDecision lists clusters that a Placement selected.
    PlacementDecision = CLUSTER_GROUP, "v1beta1", "placementdecisions", NamespaceResourceScope;
    optional
    /// The clusters.
    status as "status": PlacementDecisionStatus;
}

/// The selected clusters.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct PlacementDecisionStatus {
    /// One entry for each cluster.
    #[schemars(extend("x-required" = true))]
    pub decisions: Vec<ClusterDecision>,
}

/// A selected cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ClusterDecision {
    /// Name of the cluster.
    #[schemars(extend("x-required" = true))]
    pub cluster_name: String,
    /// Why it was selected.
    #[schemars(extend("x-required" = true))]
    pub reason: String,
    /// The cluster's score. OCM does not write it yet; neither do we.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub score: Option<i64>,
}

kind! {
    /// ClusterClaim is a claim of a managed cluster about itself (OCM-055). It exists in the managed cluster.
    ClusterClaim = CLUSTER_GROUP, "v1alpha1", "clusterclaims", ClusterResourceScope;
    always
    /// The claim.
    spec: ClusterClaimSpec;
}

kind! {
    /// ClusterProperty is a property of a cluster, an API of Kubernetes' Multicluster SIG (OCM-055). It exists in the
    /// managed cluster, and is reported like a ClusterClaim.
    ClusterProperty = ABOUT_GROUP, "v1alpha1", "clusterproperties", ClusterResourceScope;
    always
    /// The property.
    spec: ClusterPropertySpec;
}

/// The property.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ClusterPropertySpec {
    /// The value.
    #[schemars(extend("x-required" = true), extend("minLength" = 1))]
    pub value: String,
}

/// The claim.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ClusterClaimSpec {
    /// The value.
    #[schemars(extend("minLength" = 1, "maxLength" = 1024))]
    pub value: String,
}
