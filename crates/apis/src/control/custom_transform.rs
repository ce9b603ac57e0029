use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{constants::CONTROL_GROUP, kind::kind};

kind! {
    /// CustomTransform lists what is removed from the objects of one resource before they are delivered.
    CustomTransform = CONTROL_GROUP, "v1alpha1", "customtransforms", ClusterResourceScope;
    always
    /// The objects, and what is removed from them.
    spec: CustomTransformSpec;
    optional
    /// Observed state.
    status as "status": CustomTransformStatus;
}

/// The objects, and what is removed from them.
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

/// Observed state of the CustomTransform.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct CustomTransformStatus {
    /// Generation that this status is about.
    #[schemars(extend("x-required" = true))]
    pub observed_generation: i64,
    /// Errors in the spec.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<String>,
    /// Warnings about the spec.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<String>,
}
