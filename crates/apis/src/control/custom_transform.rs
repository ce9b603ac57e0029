use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{constants::CONTROL_GROUP, kind::kind};

kind! {
    /// CustomTransform says what is removed from the objects of one resource on their way to the clusters.
    CustomTransform = CONTROL_GROUP, "v1alpha1", "customtransforms", ClusterResourceScope;
    always
    /// What is removed from which objects.
    spec: CustomTransformSpec;
    optional
    /// What became of it.
    status as "status": CustomTransformStatus;
}

/// What is removed from which objects.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct CustomTransformSpec {
    /// API group of the objects; empty is the core group.
    #[schemars(extend("x-required" = true))]
    pub api_group: String,
    /// Lowercase plural name of the resource.
    #[schemars(extend("x-required" = true))]
    pub resource: String,
    /// JSONPaths of what is removed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub remove: Vec<String>,
}

/// What became of the CustomTransform.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct CustomTransformStatus {
    /// Generation that this status is about.
    #[schemars(extend("x-required" = true))]
    pub observed_generation: i64,
    /// What is wrong.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<String>,
    /// What may be wrong.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}
