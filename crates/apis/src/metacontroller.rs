//! Metacontroller's `metacontroller.k8s.io/v1alpha1`: controllers whose decisions are made by webhooks
//! (MC-001 to MC-006, MC-100 to MC-111, MC-140, MC-150, MC-170).

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{constants::METACONTROLLER_GROUP, kind::kind};

mod composite;
mod decorator;
mod hook;
mod map;

pub use self::composite::{
    ChildResource, ChildUpdateStrategy, CompositeControllerSpec, CompositeHooks, CompositeParentResource,
    RevisionHistory, StatusChecks, StatusConditionCheck,
};
pub use self::decorator::{
    AnnotationSelector, AttachmentResource, AttachmentUpdateStrategy, DecoratedResource,
    DecoratorControllerSpec, DecoratorHooks, SelectorExpression,
};
pub use self::hook::{
    Authorization, BasicAuth, CaBundle, ClientTls, EndpointConfig, EtagConfig, Hook, KeyReference,
    SecretReference, ServiceReference, Webhook,
};
pub use self::map::{
    InputResource, MapControllerSpec, MapControllerStatus, MapHooks, MapParentResource, OutputResource,
    OutputUpdateStrategy,
};

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
