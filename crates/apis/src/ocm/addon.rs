//! `addon.open-cluster-management.io/v1alpha1`.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{constants::ADDON_GROUP, kind::kind};

kind! {
    /// ClusterManagementAddOn is an add-on that can be installed in clusters.
    ClusterManagementAddOn = ADDON_GROUP, "v1alpha1", "clustermanagementaddons", ClusterResourceScope;
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
    /// Deprecated way to configure the add-on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub add_on_configuration: Option<ConfigCoordinates>,
    /// Kinds of configuration that the add-on supports.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["group", "resource"]))]
    pub supported_configs: Vec<ConfigMeta>,
    /// How the add-on is installed in clusters.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub install_strategy: Option<InstallStrategy>,
}

/// Name and description for people.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct AddOnMeta {
    /// Name.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub display_name: String,
    /// Description.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub description: String,
}

/// Deprecated way to configure the add-on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ConfigCoordinates {
    /// Name of the CRD.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub crd_name: String,
    /// Name of the object.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub cr_name: String,
}

/// A kind of configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ConfigMeta {
    /// API group.
    #[schemars(extend("x-default" = ""))]
    pub group: String,
    /// Plural name of the resource.
    #[schemars(extend("x-required" = true), extend("minLength" = 1))]
    pub resource: String,
    /// Default configuration object.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default_config: Option<ConfigReferent>,
}

/// Refers to an object of a known kind.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ConfigReferent {
    /// Namespace.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// Name.
    #[schemars(extend("x-required" = true), extend("minLength" = 1))]
    pub name: String,
}

/// How an add-on is installed in clusters.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct InstallStrategy {
    /// Manual or Placements.
    #[serde(rename = "type")]
    #[schemars(extend("x-default" = "Manual", "enum" = ["Manual", "Placements"]))]
    pub type_: String,
    /// The placements.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["namespace", "name"]))]
    pub placements: Vec<PlacementStrategy>,
}

/// Installation in the clusters of a placement.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PlacementStrategy {
    /// Namespace of the placement.
    #[schemars(extend("x-required" = true), extend("minLength" = 1))]
    pub namespace: String,
    /// Name of the placement.
    #[schemars(extend("x-required" = true), extend("minLength" = 1))]
    pub name: String,
    /// Configuration.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub configs: Vec<AddOnConfig>,
    /// Order of the rollout.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::schema::any_object", extend("x-default" = {"type": "All"}))]
    pub rollout_strategy: Option<Value>,
}

/// An object that configures an add-on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct AddOnConfig {
    /// API group.
    #[schemars(extend("x-default" = ""))]
    pub group: String,
    /// Plural name of the resource.
    #[schemars(extend("x-required" = true), extend("minLength" = 1))]
    pub resource: String,
    /// Namespace.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// Name.
    #[schemars(extend("x-required" = true), extend("minLength" = 1))]
    pub name: String,
}

/// Progress of an add-on's installation.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ClusterManagementAddOnStatus {
    /// Configuration by default.
    #[serde(rename = "defaultconfigReferences", skip_serializing_if = "Vec::is_empty")]
    pub default_config_references: Vec<DefaultConfigReference>,
    /// One entry for each placement.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["namespace", "name"]))]
    pub install_progressions: Vec<InstallProgression>,
}

/// Configuration by default.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct DefaultConfigReference {
    /// API group.
    pub group: String,
    /// Plural name of the resource.
    #[schemars(extend("x-required" = true))]
    pub resource: String,
    /// The object.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub desired_config: Option<ConfigSpecHash>,
}

/// An object and the digest of its spec.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ConfigSpecHash {
    /// Namespace.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// Name.
    #[schemars(extend("x-required" = true))]
    pub name: String,
    /// Digest.
    #[schemars(extend("x-required" = true))]
    pub spec_hash: String,
}

/// Progress of the installation for one placement.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct InstallProgression {
    /// Namespace of the placement.
    #[schemars(extend("x-required" = true))]
    pub namespace: String,
    /// Name of the placement.
    #[schemars(extend("x-required" = true))]
    pub name: String,
    /// Configuration.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub config_references: Vec<InstallConfigReference>,
    /// Conditions.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "crate::schema::conditions")]
    pub conditions: Vec<Condition>,
}

/// Configuration of an installation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct InstallConfigReference {
    /// API group.
    pub group: String,
    /// Plural name of the resource.
    #[schemars(extend("x-required" = true))]
    pub resource: String,
    /// Desired configuration.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub desired_config: Option<ConfigSpecHash>,
    /// Last known good configuration.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_known_good_config: Option<ConfigSpecHash>,
    /// Last applied configuration.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_applied_config: Option<ConfigSpecHash>,
}

kind! {
    /// ManagedClusterAddOn is an add-on in the cluster whose mailbox namespace it is in.
    ManagedClusterAddOn = ADDON_GROUP, "v1alpha1", "managedclusteraddons", NamespaceResourceScope;
    always
    /// How the add-on is installed.
    spec: ManagedClusterAddOnSpec;
    optional
    /// Observed state of the add-on.
    status as "status": ManagedClusterAddOnStatus;
}

/// How the add-on is installed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ManagedClusterAddOnSpec {
    /// Namespace in the cluster.
    #[serde(skip_serializing_if = "String::is_empty")]
    #[schemars(extend(
        "x-default" = "open-cluster-management-agent-addon",
        "maxLength" = 63,
        "pattern" = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$",
    ))]
    pub install_namespace: String,
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
    /// Deprecated way to configure the add-on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub add_on_configuration: Option<ConfigCoordinates>,
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
    /// csr or token.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub kube_client_driver: String,
}

/// Refers to an object.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ObjectReference {
    /// API group.
    #[schemars(extend("x-required" = true))]
    pub group: String,
    /// Plural name of the resource.
    #[schemars(extend("x-required" = true))]
    pub resource: String,
    /// Namespace.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// Name.
    #[schemars(extend("x-required" = true))]
    pub name: String,
}

/// A kind of configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ConfigGroupResource {
    /// API group.
    pub group: String,
    /// Plural name of the resource.
    #[schemars(extend("x-required" = true))]
    pub resource: String,
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
    /// Namespace.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub namespace: String,
    /// Name.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
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

/// An identity of an add-on's agent on the hub.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RegistrationConfig {
    /// Name of the signer of its certificates.
    #[schemars(extend("x-required" = true), extend(
        "minLength" = 5,
        "maxLength" = 571,
        "pattern" = "^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)+)\\/([a-z0-9-\\.\\/]+)$",
    ))]
    pub signer_name: String,
    /// Its subject.
    pub subject: RegistrationSubject,
}

/// Subject of an identity.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RegistrationSubject {
    /// User name.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub user: String,
    /// Groups.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<String>,
    /// Organization units.
    #[serde(rename = "organizationUnit", skip_serializing_if = "Vec::is_empty")]
    pub organization_units: Vec<String>,
}

/// How health is determined.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct HealthCheck {
    /// Lease or Customized.
    #[serde(skip_serializing_if = "String::is_empty")]
    #[schemars(extend("x-default" = "Lease", "enum" = ["Lease", "Customized"]))]
    pub mode: String,
}

kind! {
    /// AddOnDeploymentConfig is configuration for the agents of add-ons.
    AddOnDeploymentConfig = ADDON_GROUP, "v1alpha1", "addondeploymentconfigs", NamespaceResourceScope;
    required
    /// The configuration.
    spec: AddOnDeploymentConfigSpec;
}

/// Configuration for the agents of add-ons.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct AddOnDeploymentConfigSpec {
    /// Values by name.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub customized_variables: Vec<CustomizedVariable>,
    /// Node selector and tolerations of the agents.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::schema::any_object")]
    pub node_placement: Option<Value>,
    /// Mirror registries for images.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub registries: Vec<ImageMirror>,
    /// How the agents reach the hub.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::schema::any_object")]
    pub proxy_config: Option<Value>,
    /// Namespace of the agents in the cluster.
    #[serde(skip_serializing_if = "String::is_empty")]
    #[schemars(extend("x-default" = "open-cluster-management-agent-addon", "maxLength" = 63))]
    pub agent_install_namespace: String,
    /// Resources of the agents' containers.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::schema::any_list")]
    pub resource_requirements: Option<Value>,
}

/// A named value.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct CustomizedVariable {
    /// Name.
    #[schemars(extend("x-required" = true), extend("maxLength" = 255, "pattern" = "^[a-zA-Z_][_a-zA-Z0-9]*$"))]
    pub name: String,
    /// Value.
    #[schemars(extend("maxLength" = 1024))]
    pub value: String,
}

/// Mirror registries for images.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct ImageMirror {
    /// The registry to use.
    #[schemars(extend("x-required" = true))]
    pub mirror: String,
    /// The registry that it replaces; empty for all.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub source: String,
}

kind! {
    /// AddOnTemplate defines the agent of an add-on that has no program of its own on the hub.
    AddOnTemplate = ADDON_GROUP, "v1alpha1", "addontemplates", ClusterResourceScope;
    required
    /// The add-on.
    spec: AddOnTemplateSpec;
}

/// An add-on without a program of its own on the hub.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct AddOnTemplateSpec {
    /// Name of the add-on.
    #[schemars(extend("x-required" = true), extend("minLength" = 1))]
    #[serde(rename = "addonName")]
    pub add_on_name: String,
    /// Objects of the agent: the spec of a ManifestWork.
    #[schemars(extend("x-required" = true), schema_with = "crate::schema::any_object")]
    pub agent_spec: Value,
    /// Identities the agent gets on the hub.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "crate::schema::any_list")]
    pub registration: Vec<Value>,
}
