use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::is_false;
use crate::{Condition, constants::CONTROL_GROUP, kind::kind};

kind! {
    /// BindingPolicy says what goes where: which objects of this space are sent to which clusters, and what is reported back about them.
    BindingPolicy = CONTROL_GROUP, "v1alpha1", "bindingpolicies", ClusterResourceScope;
    always
    /// What goes where.
    spec: BindingPolicySpec;
    optional
    /// Observed state.
    status as "status": BindingPolicyStatus;
}

/// What goes where. (KS-005)
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(description = "What goes where.")]
pub struct BindingPolicySpec {
    /// A cluster is a destination if its labels in the inventory satisfy at least one of these selectors. None means no cluster; an empty selector means every cluster.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "crate::schema::checked_label_selectors")]
    pub cluster_selectors: Vec<LabelSelector>,
    /// An object is sent if it matches at least one of these clauses.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub downsync: Vec<DownsyncPolicyClause>,
}

/// Matches objects by what it says about group, resource, namespace, labels and name, all of which must hold, and says how they are treated. At least one criterion must be given.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("anyOf" = [
    {"required": ["apiGroup"]},
    {"required": ["resources"]},
    {"required": ["namespaces"]},
    {"required": ["namespaceSelectors"]},
    {"required": ["objectSelectors"]},
    {"required": ["objectNames"]},
]))]
pub struct DownsyncPolicyClause {
    /// API group of the object. Empty is the core group; absent is any group.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub api_group: Option<String>,
    /// Lowercase plural names of resources, or "*" for any. None means any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resources: Option<Vec<String>>,
    /// Names of namespaces, or "*" for any. None means any. Cluster-scoped objects are in no namespace.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespaces: Option<Vec<String>>,
    /// At least one must match the labels of the object's Namespace. None means any; an empty selector lets cluster-scoped objects pass, too.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::schema::label_selectors")]
    pub namespace_selectors: Option<Vec<LabelSelector>>,
    /// At least one must match the object's labels. None means any.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::schema::label_selectors")]
    pub object_selectors: Option<Vec<LabelSelector>>,
    /// Names of objects, or "*" for any. None means any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub object_names: Option<Vec<String>>,
    /// Create the object in the clusters if it does not exist, and never change it.
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

/// Observed state of the policy.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct BindingPolicyStatus {
    /// Conditions of the policy.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
    /// Generation of the policy that this status is about.
    #[schemars(extend("x-required" = true))]
    pub observed_generation: i64,
    /// Errors of the policy or its delivery.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<String>,
}
