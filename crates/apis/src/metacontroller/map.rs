//! The spec and status of MapController (MC-001 to MC-006).

use super::hook::{EndpointConfig, Hook};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Resources of parents, inputs and outputs, and the hooks that determine the outputs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct MapControllerSpec {
    /// Objects that own the outputs. Their `spec.selector` selects the inputs; without it, all are selected.
    #[schemars(extend("x-required" = true))]
    pub parent_resource: MapParentResource,
    /// Kinds of objects that outputs are made from.
    #[schemars(extend("x-required" = true), extend("minItems" = 1), extend("maxItems" = 64))]
    pub input_resources: Vec<InputResource>,
    /// Kinds of objects that are created.
    #[schemars(extend("x-required" = true), extend("minItems" = 1), extend("maxItems" = 64))]
    pub output_resources: Vec<OutputResource>,
    /// How often the hook is called for every input although nothing changed. Less than 1 means 1; absent
    /// means never.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resync_period_seconds: Option<i32>,
    /// Hooks that determine the outputs.
    #[schemars(extend("x-required" = true))]
    pub hooks: MapHooks,
    /// TLS settings and credentials for the hosts of hooks.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub endpoint_configs: Vec<EndpointConfig>,
    /// Number of inputs processed at a time. The default is a setting of the program.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("minimum" = 1), extend("maximum" = 256))]
    pub parallelism: Option<i32>,
}

/// Objects that own outputs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct MapParentResource {
    /// Group and version, or version alone for the core group.
    #[schemars(extend("x-required" = true), extend("minLength" = 1))]
    pub api_version: String,
    /// Resource, the plural in lower case.
    #[schemars(extend("x-required" = true), extend("minLength" = 1))]
    pub resource: String,
    /// Selects the objects that are handled; absent for all.
    #[serde(skip_serializing_if = "Value::is_null")]
    #[schemars(schema_with = "crate::schema::label_selector")]
    pub label_selector: Value,
}

/// A kind of inputs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct InputResource {
    /// Group and version, or version alone for the core group.
    #[schemars(extend("x-required" = true), extend("minLength" = 1))]
    pub api_version: String,
    /// Resource, the plural in lower case.
    #[schemars(extend("x-required" = true), extend("minLength" = 1))]
    pub resource: String,
    /// Do not call the hook when nothing but the status of an input changed.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub ignore_status_changes: bool,
}

/// A kind of outputs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct OutputResource {
    /// Group and version, or version alone for the core group.
    #[schemars(extend("x-required" = true), extend("minLength" = 1))]
    pub api_version: String,
    /// Resource, the plural in lower case.
    #[schemars(extend("x-required" = true), extend("minLength" = 1))]
    pub resource: String,
    /// How existing outputs are changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub update_strategy: Option<OutputUpdateStrategy>,
}

/// How existing outputs are changed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct OutputUpdateStrategy {
    /// OnDelete (default): not at all. Recreate: delete, then create. InPlace: update.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = ["OnDelete", "Recreate", "InPlace"]))]
    pub method: Option<String>,
}

/// Hooks of a MapController.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct MapHooks {
    /// Called for the outputs of one input.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-required" = true))]
    pub map: Option<Hook>,
    /// Called for the outputs to keep when their input is gone. Without this hook they are deleted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tombstone: Option<Hook>,
}

/// Whether the controller runs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct MapControllerStatus {
    /// Generation that this status is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// Conditions; only type Ready.
    #[schemars(schema_with = "crate::schema::conditions")]
    pub conditions: Vec<Condition>,
}
