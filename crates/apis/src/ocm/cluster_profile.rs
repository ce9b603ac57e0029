//! `multicluster.x-k8s.io`: the inventory API of Kubernetes' Multicluster SIG.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::cluster::ManagedClusterVersion;
use crate::{constants::MULTICLUSTER_GROUP, kind::kind};

/// Condition: the cluster's API server answers.
pub const CONDITION_HEALTHY: &str = "ControlPlaneHealthy";

kind! {
    /// ClusterProfile shows one cluster of the inventory to the users of a namespace (OCM-165).
    ClusterProfile = MULTICLUSTER_GROUP, "v1alpha1", "clusterprofiles", NamespaceResourceScope;
    required
    /// Which cluster, and who manages the profile.
    spec: ClusterProfileSpec;
    optional
    /// Observed state of the cluster.
    status as "status": ClusterProfileStatus;
}

/// Which cluster, and who manages the profile.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ClusterProfileSpec {
    /// Name of the cluster for people.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub display_name: String,
    /// The cluster manager that owns the profile. Cannot be changed.
    #[schemars(extend("x-required" = true), extend("x-kubernetes-validations" = [{
        "rule": "self == oldSelf", "message": "ClusterManager is immutable",
    }]))]
    pub cluster_manager: ClusterManager,
}

/// A cluster manager.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ClusterManager {
    /// Name of the cluster manager.
    #[schemars(extend("x-required" = true))]
    pub name: String,
}

/// Observed state of the cluster.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ClusterProfileStatus {
    /// Conditions of the cluster.
    #[schemars(schema_with = "crate::schema::conditions")]
    pub conditions: Vec<Condition>,
    /// Versions of the cluster.
    pub version: ManagedClusterVersion,
    /// What the cluster says about itself.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub properties: Vec<Property>,
    /// How the cluster can be reached. Written by other programs.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "providers")]
    pub access_providers: Option<Value>,
    /// The older name of `accessProviders`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "providers")]
    pub credential_providers: Option<Value>,
}

/// One fact about a cluster.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Property {
    /// Name of the property.
    #[schemars(extend("x-required" = true), extend("minLength" = 1, "maxLength" = 253))]
    pub name: String,
    /// Value of the property.
    #[schemars(extend("x-required" = true), extend("minLength" = 1, "maxLength" = 1024))]
    pub value: String,
    /// When the property was seen in the cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::schema::time")]
    pub last_observed_time: Option<Time>,
}

/// The ways to reach a cluster, each like a cluster in a kubeconfig.
fn providers(_: &mut SchemaGenerator) -> Schema {
    let text = || serde_json::json!({"type": "string"});
    let extensions = serde_json::json!({
        "type": "array",
        "items": {
            "type": "object",
            "required": ["extension", "name"],
            "properties": {
                "extension": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
                "name": text(),
            },
        },
    });
    json_schema!({
        "type": "array",
        "items": {
            "type": "object",
            "required": ["name"],
            "properties": {
                "name": text(),
                "cluster": {
                    "type": "object",
                    "required": ["server"],
                    "properties": {
                        "certificate-authority": text(),
                        "certificate-authority-data": {"type": "string", "format": "byte"},
                        "disable-compression": {"type": "boolean"},
                        "extensions": extensions,
                        "insecure-skip-tls-verify": {"type": "boolean"},
                        "proxy-url": text(),
                        "server": text(),
                        "tls-server-name": text(),
                    },
                },
            },
        },
    })
}
