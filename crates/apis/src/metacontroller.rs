//! Metacontroller's `metacontroller.k8s.io/v1alpha1`: controllers whose decisions are made by webhooks
//! (MC-001 to MC-006, MC-100 to MC-111, MC-140, MC-150, MC-170).

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use crate::{constants::METACONTROLLER_GROUP, kind::kind};

/// The last-applied state of children, attachments and outputs.
pub const LAST_APPLIED_ANNOTATION: &str = "metacontroller.k8s.io/last-applied-configuration";
/// On an attachment: the DecoratorController it belongs to.
pub const DECORATOR_ANNOTATION: &str = "metacontroller.k8s.io/decorator-controller";
/// On an output: the MapController it belongs to (MC-022).
pub const MAP_CONTROLLER_ANNOTATION: &str = "metacontroller.k8s.io/map-controller";
/// On an output: the key of its input (MC-020).
pub const MAP_KEY_ANNOTATION: &str = "metacontroller.k8s.io/map-key";
/// On an output: the UID of the input when the output was created (MC-021).
pub const MAP_INPUT_UID_ANNOTATION: &str = "metacontroller.k8s.io/map-input-uid";
/// On an output of outputs: the number of levels (MC-016).
pub const MAP_DEPTH_ANNOTATION: &str = "metacontroller.k8s.io/map-depth";
/// Prefix of the finalizer of a CompositeController; its name follows.
pub const COMPOSITE_FINALIZER_PREFIX: &str = "metacontroller.io/compositecontroller-";
/// Prefix of the finalizer of a DecoratorController; its name follows.
pub const DECORATOR_FINALIZER_PREFIX: &str = "metacontroller.io/decoratorcontroller-";
/// Label that a generated selector selects by: the parent's UID.
pub const CONTROLLER_UID_LABEL: &str = "controller-uid";
/// Label of a ControllerRevision: API group of the parent.
pub const REVISION_GROUP_LABEL: &str = "metacontroller.k8s.io/apiGroup";
/// Label of a ControllerRevision: resource of the parent.
pub const REVISION_RESOURCE_LABEL: &str = "metacontroller.k8s.io/resource";

kind! {
    /// MapController generates outputs for a parent, each from one input that the parent selects.
    MapController = METACONTROLLER_GROUP, "v1alpha1", "mapcontrollers", ClusterResourceScope;
    required
    /// Resources of parents, inputs and outputs, and the hooks that determine the outputs.
    spec: MapControllerSpec;
    optional
    /// Whether the controller runs.
    status as "status": MapControllerStatus;
}

kind! {
    /// CompositeController creates the children of a parent.
    CompositeController = METACONTROLLER_GROUP, "v1alpha1", "compositecontrollers", ClusterResourceScope;
    required
    /// Resources of parents and children, and the hooks that determine the children.
    spec: CompositeControllerSpec;
    optional
    /// Empty.
    status as "status": EmptyStatus;
}

kind! {
    /// DecoratorController adds labels, annotations, status and attachments to existing objects.
    DecoratorController = METACONTROLLER_GROUP, "v1alpha1", "decoratorcontrollers", ClusterResourceScope;
    required
    /// Resources of targets and attachments, and the hooks that determine them.
    spec: DecoratorControllerSpec;
    optional
    /// Empty.
    status as "status": EmptyStatus;
}

kind! {
    /// ControllerRevision records which children were created from which revision of a parent. For internal
    /// use.
    ControllerRevision = METACONTROLLER_GROUP, "v1alpha1", "controllerrevisions", NamespaceResourceScope;
    optional
    /// The fields of the parent that determine this revision.
    parent_patch as "parentPatch": ParentPatch;
    optional
    /// The children that are at this revision.
    children as "children": Vec<RevisionChildren>;
}

/// Nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct EmptyStatus {}

/// Part of a parent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
#[schemars(transparent)]
pub struct ParentPatch(#[schemars(schema_with = "crate::schema::any_object")] pub Value);

/// Children of one kind.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RevisionChildren {
    /// API group, empty for the core group.
    #[schemars(extend("x-required" = true))]
    pub api_group: String,
    /// Kind.
    #[schemars(extend("x-required" = true))]
    pub kind: String,
    /// Names.
    #[schemars(extend("x-required" = true))]
    pub names: Vec<String>,
}

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

/// A hook.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Hook {
    /// Version of requests and answers; v1 by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = ["v1", "v2"]))]
    pub version: Option<String>,
    /// The webhook.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub webhook: Option<Webhook>,
}

/// A hook that is called by HTTP.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Webhook {
    /// URL of the hook; it takes precedence over service and path.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    /// Longest wait for the answer, for example 500ms or 1m30s. Default is 10s.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeout: Option<String>,
    /// Path at the service.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Service in the cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service: Option<ServiceReference>,
    /// Whether answers are cached by their ETag.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub etag: Option<EtagConfig>,
    /// loose: unknown fields of an answer are ignored. strict: they are errors. Default: loose for v1, strict for v2.
    #[serde(rename = "responseUnMarshallMode", skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = ["loose", "strict"]))]
    pub response_unmarshall_mode: Option<String>,
    /// Trusted CA certificates; the default is those of the system.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ca_bundle: Option<CaBundle>,
    /// Client certificate.
    #[serde(rename = "clientTLS", skip_serializing_if = "Option::is_none")]
    pub client_tls: Option<ClientTls>,
    /// Authorization header.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub authorization: Option<Authorization>,
    /// User name and password.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub basic_auth: Option<BasicAuth>,
}

/// A Service in the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ServiceReference {
    /// Name.
    #[schemars(extend("x-required" = true))]
    pub name: String,
    /// Namespace.
    #[schemars(extend("x-required" = true))]
    pub namespace: String,
    /// Port; 80 by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub port: Option<i32>,
    /// http (default) or https.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub protocol: Option<String>,
}

/// Caching of answers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct EtagConfig {
    /// Whether answers are cached.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    /// How long an answer is kept; absent for ever.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache_timeout_seconds: Option<i32>,
    /// How often old answers are removed; absent for as often as they get old.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache_cleanup_seconds: Option<i32>,
}

/// CA certificates, from exactly one source.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct CaBundle {
    /// PEM.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub inline: Option<String>,
    /// In a Secret; key ca.crt by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<KeyReference>,
    /// In a ConfigMap; key ca.crt by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub config_map_ref: Option<KeyReference>,
}

/// A value in a Secret or ConfigMap.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct KeyReference {
    /// Name.
    #[schemars(extend("x-required" = true))]
    pub name: String,
    /// Namespace.
    #[schemars(extend("x-required" = true))]
    pub namespace: String,
    /// Key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
}

/// A Secret.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct SecretReference {
    /// Name.
    #[schemars(extend("x-required" = true))]
    pub name: String,
    /// Namespace.
    #[schemars(extend("x-required" = true))]
    pub namespace: String,
}

/// A certificate and its key.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ClientTls {
    /// The Secret they are in.
    #[schemars(extend("x-required" = true))]
    pub secret_ref: SecretReference,
    /// Key of the certificate; tls.crt by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cert_key: Option<String>,
    /// Key of the private key; tls.key by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub private_key_key: Option<String>,
}

/// An Authorization header.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Authorization {
    /// Scheme of the header; Bearer by default. Basic is not allowed.
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub type_: Option<String>,
    /// Secret key with the rest of the header.
    #[schemars(extend("x-required" = true))]
    pub secret_ref: KeyReference,
}

/// User name and password.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct BasicAuth {
    /// The Secret they are in.
    #[schemars(extend("x-required" = true))]
    pub secret_ref: SecretReference,
    /// Key of the user name; username by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub username_key: Option<String>,
    /// Key of the password; password by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub password_key: Option<String>,
}

/// TLS settings and credentials for one host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct EndpointConfig {
    /// Host, or host and port.
    #[schemars(extend("x-required" = true))]
    pub host: String,
    /// Trusted CA certificates.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ca_bundle: Option<CaBundle>,
    /// Client certificate.
    #[serde(rename = "clientTLS", skip_serializing_if = "Option::is_none")]
    pub client_tls: Option<ClientTls>,
    /// Authorization header.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub authorization: Option<Authorization>,
    /// User name and password.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub basic_auth: Option<BasicAuth>,
}
