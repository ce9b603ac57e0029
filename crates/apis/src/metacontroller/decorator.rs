//! The spec of DecoratorController.

use super::hook::{EndpointConfig, Hook};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Resources of targets and attachments, and the hooks that determine them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct DecoratorControllerSpec {
    /// Kinds of targets.
    #[schemars(extend("x-required" = true))]
    pub resources: Vec<DecoratedResource>,
    /// Kinds of attachments.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub attachments: Vec<AttachmentResource>,
    /// How often the hook is called although nothing changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resync_period_seconds: Option<i32>,
    /// Hooks that determine targets and attachments.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hooks: Option<DecoratorHooks>,
    /// TLS settings and credentials for the hosts of hooks.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub endpoint_configs: Vec<EndpointConfig>,
}

/// A kind of targets.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct DecoratedResource {
    /// Group and version, or version alone for the core group.
    #[schemars(extend("x-required" = true))]
    pub api_version: String,
    /// Resource, the plural in lower case.
    #[schemars(extend("x-required" = true))]
    pub resource: String,
    /// Targets have these labels; absent for all.
    #[serde(skip_serializing_if = "Value::is_null")]
    #[schemars(schema_with = "crate::schema::label_selector")]
    pub label_selector: Value,
    /// Targets have these annotations; absent for all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub annotation_selector: Option<AnnotationSelector>,
    /// Do not call the hook when nothing but the status of a target changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ignore_status_changes: Option<bool>,
}

/// A selector by annotations.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct AnnotationSelector {
    /// Annotations with exactly these values.
    #[serde(skip_serializing_if = "std::collections::BTreeMap::is_empty")]
    pub match_annotations: std::collections::BTreeMap<String, String>,
    /// Tests of annotations, as those of labels.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub match_expressions: Vec<SelectorExpression>,
}

/// One test.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct SelectorExpression {
    /// Name of the annotation.
    #[schemars(extend("x-required" = true))]
    pub key: String,
    /// In, NotIn, Exists or DoesNotExist.
    #[schemars(extend("x-required" = true))]
    pub operator: String,
    /// Values of In and NotIn.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub values: Vec<String>,
}

/// A kind of attachments.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct AttachmentResource {
    /// Group and version, or version alone for the core group.
    #[schemars(extend("x-required" = true))]
    pub api_version: String,
    /// Resource, the plural in lower case.
    #[schemars(extend("x-required" = true))]
    pub resource: String,
    /// How existing attachments are changed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub update_strategy: Option<AttachmentUpdateStrategy>,
}

/// How existing attachments are changed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct AttachmentUpdateStrategy {
    /// OnDelete (default): not at all. Recreate: delete, then create. InPlace: update. Rolling ones are the same.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = ["OnDelete", "Recreate", "InPlace", "RollingRecreate", "RollingInPlace"]))]
    pub method: Option<String>,
}

/// Hooks of a DecoratorController.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct DecoratorHooks {
    /// Called for the related objects of a target.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub customize: Option<Hook>,
    /// Called for the target's labels, annotations and status, and for the attachments.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sync: Option<Hook>,
    /// Called instead of sync when the target is being deleted or is no longer selected.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub finalize: Option<Hook>,
}
