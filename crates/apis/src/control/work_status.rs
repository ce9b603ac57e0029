use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{constants::CONTROL_GROUP, kind::kind};

kind! {
    /// WorkStatus is the reported state of one object in the cluster whose mailbox namespace it is in.
    WorkStatus = CONTROL_GROUP, "v1alpha1", "workstatuses", NamespaceResourceScope;
    always
    /// Which object.
    spec: WorkStatusSpec;
    optional
    /// The object's status in the cluster.
    status as "status": super::RawObject;
    optional
    /// How fresh the state is.
    status_details as "statusDetails": StatusDetails;
}

/// Which object a WorkStatus is about.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct WorkStatusSpec {
    /// The object.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source_ref: Option<SourceRef>,
}

/// Refers to an object.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct SourceRef {
    /// API group; empty is the core group.
    #[schemars(extend("x-required" = true))]
    pub group: String,
    /// API version.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub version: String,
    /// Lowercase plural name of the resource.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub resource: String,
    /// Kind of the object.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub kind: String,
    /// Name of the object.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Namespace of the object; empty for cluster-scoped ones.
    #[schemars(extend("x-required" = true))]
    pub namespace: String,
}

/// How fresh a reported state is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct StatusDetails {
    /// Generation of the object in the workload description space that was last processed.
    #[schemars(extend("x-required" = true))]
    pub last_generation: i64,
    /// Whether that generation has been applied.
    #[schemars(extend("x-required" = true))]
    pub last_generation_is_applied: bool,
    /// When the state was last known to be current.
    #[schemars(extend("x-required" = true), schema_with = "crate::schema::time")]
    pub last_currency_update_time: Time,
}

impl Default for StatusDetails {
    fn default() -> Self {
        Self {
            last_generation: 0,
            last_generation_is_applied: false,
            last_currency_update_time: crate::schema::epoch(),
        }
    }
}

/// Returns the key of an object in [`crate::constants::ORIGIN_OBJECT_GENERATIONS_ANNOTATION`]. None of the
/// parts can contain a slash.
pub fn generation_key(group: &str, kind: &str, namespace: &str, name: &str) -> String {
    format!("{group}/{kind}/{namespace}/{name}")
}
