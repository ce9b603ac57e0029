//! KubeFlex' `tenancy.kflex.kubestellar.org/v1alpha1`: control planes, which we call spaces.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{constants::TENANCY_GROUP, kind::kind};

kind! {
    /// ControlPlane is a space: an API server with storage of its own.
    ControlPlane = TENANCY_GROUP, "v1alpha1", "controlplanes", ClusterResourceScope;
    always
    /// What kind of space.
    spec: ControlPlaneSpec;
    optional
    /// Observed state of the space.
    status as "status": ControlPlaneStatus;
}

/// What kind of space.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
#[schemars(extend("x-kubernetes-validations" = [{
    "rule": "self.type == oldSelf.type",
    "message": "type is immutable; delete and recreate the ControlPlane",
}]))]
pub struct ControlPlaneSpec {
    /// Kind of space.
    #[serde(rename = "type")]
    #[schemars(extend("x-required" = true), extend("enum" = ["k8s", "ocm", "vcluster", "host", "external", "k3s"]))]
    pub type_: String,
    /// Kind of storage.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = ["shared", "dedicated"]))]
    pub backend: Option<String>,
    /// Secret with a kubeconfig that is used once to adopt an external cluster.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bootstrap_secret_ref: Option<BootstrapSecretReference>,
    /// Lifetime of the token that is created in an adopted cluster, in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-default" = 31_536_000))]
    pub token_expiration_seconds: Option<i64>,
    /// Deprecated: one hook.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub post_create_hook: Option<String>,
    /// Deprecated: variables of the one hook.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub post_create_hook_vars: BTreeMap<String, String>,
    /// Hooks that are run, in this order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub post_create_hooks: Vec<PostCreateHookUse>,
    /// Variables for every hook.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub global_vars: BTreeMap<String, String>,
    /// Be ready only when the hooks' objects are.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-default" = false))]
    pub wait_for_post_create_hooks: Option<bool>,
}

/// Use of one hook.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PostCreateHookUse {
    /// Name of the hook.
    #[schemars(extend("x-required" = true))]
    pub hook_name: String,
    /// Variables of the hook.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub vars: BTreeMap<String, String>,
}

/// Secret with the kubeconfig of an external cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct BootstrapSecretReference {
    /// Namespace of the Secret.
    #[schemars(extend("x-required" = true))]
    pub namespace: String,
    /// Name of the Secret.
    #[schemars(extend("x-required" = true))]
    pub name: String,
    /// Key of the kubeconfig.
    #[schemars(extend("x-required" = true))]
    pub in_cluster_key: String,
}

/// Observed state of the space.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ControlPlaneStatus {
    /// Conditions.
    #[schemars(extend("x-required" = true))]
    pub conditions: Vec<TenancyCondition>,
    /// Generation that this status is about.
    #[schemars(extend("x-required" = true))]
    pub observed_generation: i64,
    /// Secret with the kubeconfig.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret_ref: Option<SecretReference>,
    /// Hooks that have been applied.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub post_create_hooks: BTreeMap<String, bool>,
    /// Whether all hooks have been applied.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub post_create_hook_completed: bool,
}

/// One aspect of a space's state.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TenancyCondition {
    /// What the condition is about.
    #[serde(rename = "type")]
    pub type_: String,
    /// True, False or Unknown.
    pub status: String,
    /// When the condition was written last.
    #[serde(default = "crate::schema::epoch")]
    #[schemars(extend("x-required" = true), schema_with = "crate::schema::time")]
    pub last_update_time: Time,
    /// When the status changed last.
    #[serde(default = "crate::schema::epoch")]
    #[schemars(extend("x-required" = true), schema_with = "crate::schema::time")]
    pub last_transition_time: Time,
    /// One word for the state.
    #[serde(default)]
    #[schemars(extend("x-required" = true))]
    pub reason: String,
    /// The state in words.
    #[serde(default)]
    #[schemars(extend("x-required" = true))]
    pub message: String,
}

/// Secret with a kubeconfig.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SecretReference {
    /// Namespace of the Secret.
    #[schemars(extend("x-required" = true))]
    pub namespace: String,
    /// Name of the Secret.
    #[schemars(extend("x-required" = true))]
    pub name: String,
    /// Key of the kubeconfig for use from outside the hosting cluster.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub key: String,
    /// Key of the kubeconfig for use by pods in the hosting cluster.
    #[schemars(extend("x-required" = true))]
    pub in_cluster_key: String,
}

kind! {
    /// PostCreateHook holds objects that are created with a space.
    PostCreateHook = TENANCY_GROUP, "v1alpha1", "postcreatehooks", ClusterResourceScope;
    always
    /// The objects.
    spec: PostCreateHookSpec;
    optional
    /// Observed state of the hook.
    status as "status": ControlPlaneStatus;
}

/// The objects of a hook.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PostCreateHookSpec {
    /// Whole Kubernetes objects, with variables in their strings.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "crate::schema::embedded_list")]
    pub templates: Vec<Value>,
    /// Default values of variables.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub default_vars: Vec<Variable>,
}

/// A variable.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Variable {
    /// Name.
    #[schemars(extend("x-required" = true))]
    pub name: String,
    /// Value.
    #[schemars(extend("x-required" = true))]
    pub value: String,
}
