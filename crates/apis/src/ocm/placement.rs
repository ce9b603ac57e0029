//! How a Placement orders and groups clusters, and the scores that add-ons give to clusters (OCM-013).

use k8s_openapi::apimachinery::pkg::{
    apis::meta::v1::{Condition, LabelSelector, Time},
    util::intstr::IntOrString,
};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{constants::CLUSTER_GROUP, kind::kind};

/// How clusters are ordered when a Placement takes only some of them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PrioritizerPolicy {
    /// `Additive` (also if empty) adds the configurations to the default weights; `Exact` uses them alone.
    #[serde(skip_serializing_if = "String::is_empty")]
    #[schemars(extend("x-default" = "Additive"))]
    pub mode: String,
    /// Weights of prioritizers.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub configurations: Vec<PrioritizerConfig>,
}

/// The weight of one prioritizer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct PrioritizerConfig {
    /// The prioritizer.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("x-required" = true))]
    pub score_coordinate: Option<ScoreCoordinate>,
    /// Factor of its scores; 0 switches it off.
    #[schemars(extend("x-default" = 1, "minimum" = -10, "maximum" = 10))]
    pub weight: i32,
}

impl Default for PrioritizerConfig {
    fn default() -> Self {
        Self { score_coordinate: None, weight: 1 }
    }
}

/// Names a prioritizer.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ScoreCoordinate {
    /// `BuiltIn` or `AddOn`.
    #[serde(rename = "type")]
    #[schemars(extend("x-required" = true), extend("x-default" = "BuiltIn", "enum" = ["BuiltIn", "AddOn"]))]
    pub type_: String,
    /// `Balance`, `Steady`, `ResourceAllocatableCPU` or `ResourceAllocatableMemory`.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub built_in: String,
    /// A score of an add-on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub add_on: Option<AddOnScore>,
}

/// A score of an add-on: an entry of the AddOnPlacementScores of this name.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct AddOnScore {
    /// Name of the AddOnPlacementScore in the namespaces of the clusters.
    #[schemars(extend("x-required" = true))]
    pub resource_name: String,
    /// Name of the score in it.
    #[schemars(extend("x-required" = true))]
    pub score_name: String,
}

/// How decisions are grouped.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct DecisionStrategy {
    /// The groups.
    pub group_strategy: GroupStrategy,
}

/// The groups of the decisions.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct GroupStrategy {
    /// Groups by labels and claims, in this order; the other clusters follow in groups without a name.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub decision_groups: Vec<DecisionGroupRule>,
    /// Most clusters in one group, or their share of all as a percentage.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "clusters_per_group")]
    pub clusters_per_decision_group: Option<IntOrString>,
}

/// A named group of decisions.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct DecisionGroupRule {
    /// Name of the group.
    #[schemars(
        extend("x-required" = true),
        extend("pattern" = "^[a-zA-Z0-9][-A-Za-z0-9_.]{0,61}[a-zA-Z0-9]$")
    )]
    pub group_name: String,
    /// Which clusters.
    #[schemars(extend("x-required" = true))]
    pub group_cluster_selector: GroupClusterSelector,
}

/// Selects the clusters of a group.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct GroupClusterSelector {
    /// By labels.
    #[schemars(schema_with = "crate::schema::label_selector")]
    pub label_selector: LabelSelector,
    /// By claims of the clusters.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "claim_selector")]
    pub claim_selector: Option<Value>,
}

/// Selects clusters by expressions, all of which must be true.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct CelSelector {
    /// Expressions over `managedCluster`.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "null_is_empty")]
    pub cel_expressions: Vec<String>,
}

/// Go clients may write an empty list as null.
fn null_is_empty<'de, D: serde::Deserializer<'de>>(value: D) -> Result<Vec<String>, D::Error> {
    Option::deserialize(value).map(Option::unwrap_or_default)
}

fn clusters_per_group(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "x-kubernetes-int-or-string": true,
        "x-default": "100%",
        "pattern": "^((100|[1-9][0-9]{0,1})%|[1-9][0-9]*)$",
    })
}

/// A selector without labels: expressions only.
pub(crate) fn claim_selector(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "properties": {
            "matchExpressions": {
                "type": "array",
                "items": {
                    "type": "object",
                    "required": ["key", "operator"],
                    "properties": {
                        "key": {"type": "string"},
                        "operator": {"type": "string"},
                        "values": {
                            "type": "array",
                            "items": {"type": "string"},
                            "x-kubernetes-list-type": "atomic",
                        },
                    },
                },
            },
        },
    })
}

/// How clusters are spread. OCM declares it and does not read it; neither do we.
pub(crate) fn spread_policy(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "properties": {
            "spreadConstraints": {
                "type": "array",
                "maxItems": 8,
                "items": {
                    "type": "object",
                    "required": ["topologyKey", "topologyKeyType"],
                    "properties": {
                        "maxSkew": {"type": "integer", "format": "int32", "minimum": 1, "x-default": 1},
                        "topologyKey": {
                            "type": "string", "maxLength": 316, "pattern": crate::schema::LABEL_KEY,
                        },
                        "topologyKeyType": {"type": "string", "enum": ["Label", "Claim"]},
                        "whenUnsatisfiable": {
                            "type": "string", "x-default": "ScheduleAnyway",
                            "enum": ["DoNotSchedule", "ScheduleAnyway"],
                        },
                    },
                },
            },
        },
    })
}

kind! {
    /// AddOnPlacementScore has the scores that an add-on gives to the cluster whose namespace it is in.
    AddOnPlacementScore = CLUSTER_GROUP, "v1alpha1", "addonplacementscores", NamespaceResourceScope;
    optional
    /// The scores.
    status as "status": AddOnPlacementScoreStatus;
}

/// The scores of a cluster.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct AddOnPlacementScoreStatus {
    /// Conditions.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "crate::schema::conditions")]
    pub conditions: Vec<Condition>,
    /// The scores.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub scores: Vec<AddOnPlacementScoreItem>,
    /// When the scores stop to count; none if they do not.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::schema::time")]
    pub valid_until: Option<Time>,
}

/// One score.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct AddOnPlacementScoreItem {
    /// Its name.
    #[schemars(extend("x-required" = true))]
    pub name: String,
    /// Its value, -100 to 100.
    #[schemars(extend("x-required" = true), extend("minimum" = -100, "maximum" = 100))]
    pub value: i32,
}
