//! The description of a served resource, the same for built-in kinds and custom resources.

use std::collections::BTreeMap;
use std::sync::Arc;

use machinery::schema::Schema;
use serde_json::Value;
use store::Collection;

use crate::strategy::Strategy;

/// A resource in one served version.
#[derive(Clone)]
pub struct Descriptor {
    pub group: String,
    pub version: String,
    pub plural: String,
    pub singular: String,
    pub kind: String,
    pub list_kind: String,
    pub namespaced: bool,
    pub short_names: Vec<String>,
    pub categories: Vec<String>,
    /// Verbs in the order in which discovery lists them. Review kinds have `create` only.
    pub verbs: Vec<String>,
    /// By name: `status`, `scale`, `token`, `approval`, `eviction`, ...
    pub subresources: BTreeMap<String, Subresource>,
    /// The type of the object.
    pub schema: Schema,
    /// Name of the definition in OpenAPI (`io.k8s.api.apps.v1.Deployment`). For custom resources it is built from
    /// group and kind.
    pub definition: String,
    pub list_definition: String,
    /// The collection of stored objects, shared by all versions of the resource (and by `events` of the core group and
    /// of events.k8s.io).
    pub collection: Collection,
    /// `apiVersion` of the stored bytes. If it differs from [`Descriptor::api_version`], reads convert.
    pub storage_api_version: String,
    /// Columns of the Table form.
    pub columns: Vec<Column>,
    /// Behaviour of this kind that differs from the generic one.
    pub strategy: Arc<dyn Strategy>,
    /// Present on custom resources.
    pub custom: Option<Arc<CustomResource>>,
}

/// A served subresource, with the kind of its bodies.
#[derive(Clone, Debug)]
pub struct Subresource {
    pub group: String,
    pub version: String,
    pub kind: String,
    pub verbs: Vec<String>,
    pub action: SubresourceAction,
}

/// What requests to a subresource do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SubresourceAction {
    /// Read and write parts of the object itself: `status`, `approval`, `finalize`, `ephemeralcontainers`, `resize`.
    Object,
    /// Read and write the number of replicas.
    Scale,
    /// Issue a service-account token.
    Token,
    /// Delete a pod if its disruption budget allows it.
    Eviction,
    /// Assign a pod to a node.
    Binding,
    /// Read what the containers of a pod have written.
    PodLog,
    /// Open a stream into a pod: `exec`, `attach`, `portforward`.
    PodConnection,
    /// Forward HTTP requests into a pod.
    PodProxy,
    /// Forward HTTP requests to the endpoints of another kind.
    Proxy,
}

impl SubresourceAction {
    /// Whether the path may continue behind the subresource.
    pub(crate) fn is_proxy(self) -> bool {
        matches!(self, Self::PodProxy | Self::Proxy)
    }
}

/// A Table column. Custom resources have a `path`; the cells of built-in kinds are computed by column name.
#[derive(Clone, Debug)]
pub struct Column {
    pub name: String,
    pub r#type: String,
    pub format: String,
    pub description: String,
    /// 0: shown always; above 0: in wide tables only.
    pub priority: i64,
    pub path: Option<String>,
}

/// Properties of custom resources only.
#[derive(Clone, Debug)]
pub struct CustomResource {
    /// Name and uid of the CustomResourceDefinition.
    pub crd: String,
    pub crd_uid: String,
    /// `spec.versions[].schema.openAPIV3Schema` as written, for OpenAPI.
    pub open_api: Value,
    /// Spec, status and selector JSONPaths of the scale subresource.
    pub scale: Option<ScalePaths>,
    pub has_status: bool,
    /// JSONPaths of `selectableFields`, with leading dot.
    pub selectable_fields: Vec<String>,
    pub deprecated: bool,
    /// Text of the `Warning` header for a deprecated version, without code and agent.
    pub deprecation_warning: Option<String>,
    /// The CustomResourceDefinition is being deleted: creates are refused with 403.
    pub terminating: bool,
    /// Revision of the CustomResourceDefinition that this was compiled from. Objects written before it are pruned and
    /// defaulted when they are read, because the definition may have gained defaults since.
    pub schema_revision: u64,
}

#[derive(Clone, Debug)]
pub struct ScalePaths {
    pub spec_replicas: String,
    pub status_replicas: String,
    pub label_selector: Option<String>,
}

impl Descriptor {
    /// `v1`, `apps/v1`.
    pub fn api_version(&self) -> String {
        api_version(&self.group, &self.version)
    }

    pub fn is_custom(&self) -> bool {
        self.custom.is_some()
    }

    pub fn has_verb(&self, verb: &str) -> bool {
        self.verbs.iter().any(|v| v == verb)
    }
}

/// `version` in the core group, `group/version` elsewhere.
pub fn api_version(group: &str, version: &str) -> String {
    if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") }
}
