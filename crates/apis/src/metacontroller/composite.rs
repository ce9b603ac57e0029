//! The spec of CompositeController.

use super::hook::{EndpointConfig, Hook};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Resources of parents and children, and the hooks that determine the children.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct CompositeControllerSpec {
    /// Objects that own the children.
    #[schemars(extend("x-required" = true))]
    pub parent_resource: CompositeParentResource,
    /// Kinds of children.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub child_resources: Vec<ChildResource>,
    /// How often the hook is called although nothing changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resync_period_seconds: Option<i32>,
    /// Select children by a label with the parent's UID instead of the parent's `spec.selector`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub generate_selector: Option<bool>,
    /// Hooks that determine the children.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hooks: Option<CompositeHooks>,
    /// TLS settings and credentials for the hosts of hooks.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub endpoint_configs: Vec<EndpointConfig>,
}

/// Objects that own children.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct CompositeParentResource {
    /// Group and version, or version alone for the core group.
    #[schemars(extend("x-required" = true))]
    pub api_version: String,
    /// Resource, the plural in lower case.
    #[schemars(extend("x-required" = true))]
    pub resource: String,
    /// Selects the objects that are handled; absent for all.
    #[serde(skip_serializing_if = "Value::is_null")]
    #[schemars(schema_with = "crate::schema::label_selector")]
    pub label_selector: Value,
    /// Fields that determine a revision, for rolling updates.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub revision_history: Option<RevisionHistory>,
    /// Do not call the hook when nothing but the status of a parent changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ignore_status_changes: Option<bool>,
}

/// Fields that determine a revision.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RevisionHistory {
    /// Dotted paths of fields whose change creates a new revision. Default: spec.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub field_paths: Vec<String>,
}

/// A kind of children.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ChildResource {
    /// Group and version, or version alone for the core group.
    #[schemars(extend("x-required" = true))]
    pub api_version: String,
    /// Resource, the plural in lower case.
    #[schemars(extend("x-required" = true))]
    pub resource: String,
    /// How existing children are changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub update_strategy: Option<ChildUpdateStrategy>,
}

/// How existing children are changed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ChildUpdateStrategy {
    /// OnDelete (default): not at all. Recreate and InPlace: all at once. Rolling: one after the other.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = ["OnDelete", "Recreate", "InPlace", "RollingRecreate", "RollingInPlace"]))]
    pub method: Option<String>,
    /// Checks of an updated child before the next child is updated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status_checks: Option<StatusChecks>,
}

/// Checks of a child.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct StatusChecks {
    /// Conditions it must have.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<StatusConditionCheck>,
}

/// A condition a child must have.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct StatusConditionCheck {
    /// Type of the condition.
    #[serde(rename = "type")]
    #[schemars(extend("x-required" = true))]
    pub type_: String,
    /// Its status; absent for any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<String>,
    /// Its reason; absent for any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// Hooks of a CompositeController.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct CompositeHooks {
    /// Called for the related objects of a parent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub customize: Option<Hook>,
    /// Called for the children.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sync: Option<Hook>,
    /// Called for the children when the parent is being deleted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finalize: Option<Hook>,
    /// Accepted and not called.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pre_update_child: Option<Hook>,
    /// Accepted and not called.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub post_update_child: Option<Hook>,
}
