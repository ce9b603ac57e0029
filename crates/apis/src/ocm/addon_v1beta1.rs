//! `addon.open-cluster-management.io/v1beta1`, where it differs from v1alpha1, which is what is stored (OCM-001, OCM-016).
//! How one becomes the other is in [`super::conversion`].

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::addon::{
    AddOnConfig, AddOnDeploymentConfigSpec, AddOnMeta, AddOnTemplateSpec, ConfigGroupResource,
    ConfigSpecHash, DefaultConfigReference, HealthCheck, InstallProgression, InstallStrategy,
    ObjectReference,
};
use crate::{constants::ADDON_GROUP, kind::kind};

kind! {
    /// ClusterManagementAddOn is an add-on that can be installed in clusters.
    ClusterManagementAddOn = ADDON_GROUP, "v1beta1", "clustermanagementaddons", ClusterResourceScope;
    required
    /// The add-on.
    spec: ClusterManagementAddOnSpec;
    optional
    /// Progress of its installation.
    status as "status": ClusterManagementAddOnStatus;
}

/// The add-on.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ClusterManagementAddOnSpec {
    /// Name and description for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub add_on_meta: Option<AddOnMeta>,
    /// Kinds of configuration that the add-on supports, with their defaults.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["group", "resource"]))]
    pub default_configs: Vec<AddOnConfig>,
    /// How the add-on is installed in clusters.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub install_strategy: Option<InstallStrategy>,
}

/// Progress of an add-on's installation.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ClusterManagementAddOnStatus {
    /// Configuration by default.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub default_config_references: Vec<DefaultConfigReference>,
    /// One entry for each placement.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["namespace", "name"]))]
    pub install_progressions: Vec<InstallProgression>,
}

kind! {
    /// ManagedClusterAddOn is an add-on in the cluster whose mailbox namespace it is in.
    ManagedClusterAddOn = ADDON_GROUP, "v1beta1", "managedclusteraddons", NamespaceResourceScope;
    always
    /// How the add-on is installed.
    spec: ManagedClusterAddOnSpec;
    optional
    /// Observed state of the add-on.
    status as "status": ManagedClusterAddOnStatus;
}

/// How the add-on is installed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ManagedClusterAddOnSpec {
    /// Configuration.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub configs: Vec<AddOnConfig>,
}

/// Observed state of the add-on.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ManagedClusterAddOnStatus {
    /// Conditions.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "crate::schema::conditions")]
    pub conditions: Vec<Condition>,
    /// Objects that belong to the add-on.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub related_objects: Vec<ObjectReference>,
    /// Name and description for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub add_on_meta: Option<AddOnMeta>,
    /// Kinds of configuration that the add-on supports.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub supported_configs: Vec<ConfigGroupResource>,
    /// Configuration in use.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub config_references: Vec<ConfigReference>,
    /// Namespace in the cluster.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// Identities the add-on's agent gets on the hub.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub registrations: Vec<RegistrationConfig>,
    /// How health is determined.
    pub health_check: HealthCheck,
}

/// Configuration in use.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ConfigReference {
    /// API group.
    pub group: String,
    /// Plural name of the resource.
    #[schemars(extend("x-required" = true))]
    pub resource: String,
    /// Desired configuration.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub desired_config: Option<ConfigSpecHash>,
    /// Last applied configuration.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_applied_config: Option<ConfigSpecHash>,
    /// Last observed generation.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_observed_generation: Option<i64>,
}

/// An identity of an add-on's agent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RegistrationConfig {
    /// For the hub itself, or for something else.
    #[serde(rename = "type")]
    #[schemars(extend("x-required" = true), extend("enum" = ["kubeClient", "customSigner"]))]
    pub type_: String,
    /// For the hub.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kube_client: Option<KubeClient>,
    /// For something else.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub custom_signer: Option<CustomSigner>,
}

/// An identity on the hub.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct KubeClient {
    /// Subject of the identity.
    pub subject: KubeClientSubject,
    /// csr or token.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub driver: String,
}

/// User and groups.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct KubeClientSubject {
    /// User name.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub user: String,
    /// Groups.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<String>,
}

/// An identity from a custom signer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct CustomSigner {
    /// Name of the signer.
    #[schemars(extend("x-required" = true), extend(
        "minLength" = 5,
        "maxLength" = 571,
        "pattern" = "^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)+)\\/([a-z0-9-\\.\\/]+)$",
    ))]
    pub signer_name: String,
    /// Subject of the identity.
    pub subject: CustomSubject,
}

/// User, groups and organization units.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct CustomSubject {
    /// User name.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub user: String,
    /// Groups.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<String>,
    /// Organization units.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub organization_units: Vec<String>,
}

kind! {
    /// AddOnDeploymentConfig is configuration for the agents of add-ons.
    AddOnDeploymentConfig = ADDON_GROUP, "v1beta1", "addondeploymentconfigs", NamespaceResourceScope;
    required
    /// The configuration.
    spec: AddOnDeploymentConfigSpec;
}

kind! {
    /// AddOnTemplate defines the agent of an add-on that has no program of its own on the hub.
    AddOnTemplate = ADDON_GROUP, "v1beta1", "addontemplates", ClusterResourceScope;
    required
    /// The add-on.
    spec: AddOnTemplateSpec;
}
