//! `work.open-cluster-management.io/v1`.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{constants::WORK_GROUP, kind::kind};

/// Update strategy: keep the object as the manifest says (default).
pub const STRATEGY_UPDATE: &str = "Update";
/// Update strategy: create the object, then leave it alone.
pub const STRATEGY_CREATE_ONLY: &str = "CreateOnly";
/// Update strategy: server-side apply.
pub const STRATEGY_SERVER_SIDE_APPLY: &str = "ServerSideApply";
/// Update strategy: only look.
pub const STRATEGY_READ_ONLY: &str = "ReadOnly";
/// Condition of a work and of a manifest: it has been applied.
pub const CONDITION_APPLIED: &str = "Applied";
/// Condition of a work and of a manifest: it is there.
pub const CONDITION_AVAILABLE: &str = "Available";
/// Type of the condition that freezes a manifest or a work.
pub const COMPLETE: &str = "Complete";
/// Feedback value type.
pub const FIELD_INTEGER: &str = "Integer";
/// Feedback value type.
pub const FIELD_STRING: &str = "String";
/// Feedback value type.
pub const FIELD_BOOLEAN: &str = "Boolean";
/// Feedback value type.
pub const FIELD_JSON_RAW: &str = "JsonRaw";

kind! {
    /// ManifestWork holds objects for the cluster whose mailbox namespace it is in (OCM-014).
    ManifestWork = WORK_GROUP, "v1", "manifestworks", NamespaceResourceScope;
    required
    /// The objects, and how they are treated.
    spec: ManifestWorkSpec;
    optional
    /// Observed state of the objects.
    status as "status": ManifestWorkStatus;
}

/// Objects, and how they are treated.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ManifestWorkSpec {
    /// The objects.
    pub workload: ManifestsTemplate,
    /// What happens to the objects when the work is deleted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delete_option: Option<DeleteOption>,
    /// How single objects are treated.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub manifest_configs: Vec<ManifestConfigOption>,
    /// Identity whose permissions are used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub executor: Option<ManifestWorkExecutor>,
}

/// The objects of a work.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ManifestsTemplate {
    /// Whole Kubernetes objects.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "crate::schema::embedded_list")]
    pub manifests: Vec<Value>,
}

/// What happens to the objects when the work is deleted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct DeleteOption {
    /// Foreground, Orphan or SelectivelyOrphan.
    #[serde(skip_serializing_if = "String::is_empty")]
    #[schemars(extend("x-default" = "Foreground", "enum" = ["Foreground", "Orphan", "SelectivelyOrphan"]))]
    pub propagation_policy: String,
    /// What SelectivelyOrphan leaves behind.
    #[serde(rename = "selectivelyOrphans", skip_serializing_if = "Option::is_none")]
    pub selectively_orphans: Option<SelectivelyOrphan>,
    /// Seconds after which a complete work is removed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttl_seconds_after_finished: Option<i64>,
}

/// What is left behind.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SelectivelyOrphan {
    /// Objects that are left behind.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub orphaning_rules: Vec<ResourceIdentifier>,
}

/// Refers to objects of a work.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ResourceIdentifier {
    /// API group; empty is the core group.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub group: String,
    /// Lowercase plural name of the resource.
    #[schemars(extend("x-required" = true))]
    pub resource: String,
    /// Namespace of the object; empty for cluster-scoped ones.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// Name of the object.
    #[schemars(extend("x-required" = true))]
    pub name: String,
}

/// How single objects are treated.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ManifestConfigOption {
    /// Which objects; namespace and name may hold "*".
    #[schemars(extend("x-required" = true))]
    pub resource_identifier: ResourceIdentifier,
    /// What is reported back about them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub feedback_rules: Vec<FeedbackRule>,
    /// How they are written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub update_strategy: Option<UpdateStrategy>,
    /// Conditions that are derived from them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["condition"]))]
    pub condition_rules: Vec<ConditionRule>,
    /// Poll or Watch.
    #[serde(skip_serializing_if = "String::is_empty")]
    #[schemars(extend("enum" = ["Poll", "Watch"], "x-default" = "Poll"))]
    pub feedback_scrape_type: String,
}

/// What is reported back about an object.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct FeedbackRule {
    /// WellKnownStatus or JSONPaths.
    #[serde(rename = "type")]
    #[schemars(extend("x-required" = true), extend("enum" = ["WellKnownStatus", "JSONPaths"]))]
    pub type_: String,
    /// Parts of the status.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub json_paths: Vec<FeedbackJsonPath>,
}

/// A named part of the status.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct FeedbackJsonPath {
    /// Its name.
    #[schemars(extend("x-required" = true))]
    pub name: String,
    /// API version the path is for; none means any.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub version: String,
    /// Path below .status.
    #[schemars(extend("x-required" = true))]
    pub path: String,
}

/// How an object is written.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct UpdateStrategy {
    /// Update, CreateOnly, ServerSideApply or ReadOnly.
    #[serde(rename = "type", skip_serializing_if = "String::is_empty")]
    #[schemars(extend("x-required" = true), extend(
        "x-default" = "Update",
        "enum" = ["Update", "CreateOnly", "ServerSideApply", "ReadOnly"],
    ))]
    pub type_: String,
    /// How it is applied.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub server_side_apply: Option<ServerSideApplyConfig>,
}

/// How an object is applied.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ServerSideApplyConfig {
    /// Take fields from other managers.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub force: bool,
    /// Name of the field manager.
    #[serde(skip_serializing_if = "String::is_empty")]
    #[schemars(extend("x-default" = "work-agent", "pattern" = "^work-agent"))]
    pub field_manager: String,
    /// Fields that are not changed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["condition"]))]
    pub ignore_fields: Vec<IgnoreField>,
}

/// Fields that are not changed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct IgnoreField {
    /// When they are not changed.
    #[serde(skip_serializing_if = "String::is_empty")]
    #[schemars(extend("x-required" = true), extend("x-default" = "OnSpokePresent", "enum" = ["OnSpokePresent", "OnSpokeChange"]))]
    pub condition: String,
    /// The fields, as JSONPaths.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub json_paths: Vec<String>,
    /// The fields, as JSON pointers.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub json_pointers: Vec<String>,
    /// The fields, as jq expressions.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub jq_path_expressions: Vec<String>,
}

/// A condition that is derived from an object.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-validations" = [{
    "message": "Condition is required for CEL rules",
    "rule": "self.type != 'CEL' || self.condition != \"\"",
}]))]
pub struct ConditionRule {
    /// Type of the condition.
    #[schemars(extend("x-required" = true))]
    pub condition: String,
    /// CEL or WellKnownConditions.
    #[serde(rename = "type")]
    #[schemars(extend("x-required" = true), extend("enum" = ["CEL", "WellKnownConditions"]))]
    pub type_: String,
    /// Expressions all of which must be true.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub cel_expressions: Vec<String>,
    /// Message of the condition.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message: String,
    /// Expression for the message.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub message_expression: String,
}

/// Identity whose permissions are used.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ManifestWorkExecutor {
    /// Subject of the identity.
    #[schemars(extend("x-required" = true))]
    pub subject: ExecutorSubject,
}

/// Identity that applies a work's objects.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ExecutorSubject {
    /// ServiceAccount.
    #[serde(rename = "type")]
    #[schemars(extend("x-required" = true), extend("enum" = ["ServiceAccount"]))]
    pub type_: String,
    /// The service account.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service_account: Option<ExecutorServiceAccount>,
}

/// A service account.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ExecutorServiceAccount {
    /// Its namespace.
    #[schemars(extend("x-required" = true), extend(
        "minLength" = 1,
        "maxLength" = 253,
        "pattern" = "^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*)$",
    ))]
    pub namespace: String,
    /// Its name.
    #[schemars(extend("x-required" = true), extend(
        "minLength" = 1,
        "maxLength" = 253,
        "pattern" = "^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*)$",
    ))]
    pub name: String,
}

/// Observed state of a work.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ManifestWorkStatus {
    /// Conditions of the work.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "crate::schema::conditions")]
    pub conditions: Vec<Condition>,
    /// State of its objects.
    #[serde(skip_serializing_if = "ManifestResourceStatus::is_empty")]
    pub resource_status: ManifestResourceStatus,
}

/// State of a work's objects.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ManifestResourceStatus {
    /// One entry for each object.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub manifests: Vec<ManifestCondition>,
}

impl ManifestResourceStatus {
    /// Returns true if nothing is known yet.
    pub fn is_empty(&self) -> bool {
        self.manifests.is_empty()
    }
}

/// State of one object.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ManifestCondition {
    /// Which object.
    #[schemars(extend("x-required" = true))]
    pub resource_meta: ManifestResourceMeta,
    /// The requested feedback.
    pub status_feedback: StatusFeedbackResult,
    /// Conditions of the object.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "crate::schema::conditions")]
    pub conditions: Vec<Condition>,
}

/// Which object of the work.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ManifestResourceMeta {
    /// Index in the work's manifests.
    pub ordinal: i32,
    /// API group.
    pub group: String,
    /// API version.
    pub version: String,
    /// Kind.
    pub kind: String,
    /// Plural name of the resource.
    pub resource: String,
    /// Name.
    pub name: String,
    /// Namespace.
    pub namespace: String,
}

/// The requested feedback.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct StatusFeedbackResult {
    /// One entry for each value found.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub values: Vec<FeedbackValue>,
}

/// A reported value.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct FeedbackValue {
    /// Its name.
    #[schemars(extend("x-required" = true))]
    pub name: String,
    /// The value.
    #[serde(rename = "fieldValue")]
    #[schemars(extend("x-required" = true))]
    pub value: FieldValue,
}

/// A value of one of four types.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct FieldValue {
    /// Integer, String, Boolean or JsonRaw.
    #[serde(rename = "type")]
    #[schemars(extend("x-required" = true), extend("enum" = ["Integer", "String", "Boolean", "JsonRaw"]))]
    pub type_: String,
    /// The value if it is an integer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub integer: Option<i64>,
    /// The value if it is a string.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub string: Option<String>,
    /// The value if it is a boolean.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub boolean: Option<bool>,
    /// The value as JSON.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("maxLength" = 1024))]
    pub json_raw: Option<String>,
}

kind! {
    /// AppliedManifestWork owns what was applied in a cluster for one ManifestWork (OCM-015).
    AppliedManifestWork = WORK_GROUP, "v1", "appliedmanifestworks", ClusterResourceScope;
    always
    /// Which ManifestWork of which hub.
    spec: AppliedManifestWorkSpec;
    optional
    /// What was applied.
    status as "status": AppliedManifestWorkStatus;
}

/// Which ManifestWork of which hub.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct AppliedManifestWorkSpec {
    /// Digest of the hub's address.
    #[schemars(extend("x-required" = true))]
    pub hub_hash: String,
    /// Name of the ManifestWork.
    #[schemars(extend("x-required" = true))]
    pub manifest_work_name: String,
    /// Identity of the agent.
    #[serde(rename = "agentID", skip_serializing_if = "String::is_empty")]
    pub agent_id: String,
}

/// What was applied.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct AppliedManifestWorkStatus {
    /// One entry for each object.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub applied_resources: Vec<AppliedResource>,
    /// When eviction of an orphaned work began.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::schema::time")]
    pub eviction_start_time: Option<Time>,
}

/// An object that was applied.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct AppliedResource {
    /// API group.
    pub group: String,
    /// Plural name of the resource.
    #[schemars(extend("x-required" = true))]
    pub resource: String,
    /// Namespace.
    pub namespace: String,
    /// Name.
    #[schemars(extend("x-required" = true))]
    pub name: String,
    /// API version.
    #[schemars(extend("x-required" = true))]
    pub version: String,
    /// UID in the cluster.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub uid: String,
}
