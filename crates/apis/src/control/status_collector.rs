use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{constants::CONTROL_GROUP, kind::kind};

kind! {
    /// StatusCollector is a query over the reported states of an object in many clusters.
    StatusCollector = CONTROL_GROUP, "v1alpha1", "statuscollectors", ClusterResourceScope;
    always
    /// The query.
    spec: StatusCollectorSpec;
    optional
    /// Observed state.
    status as "status": StatusCollectorStatus;
}

/// A query, in the manner of SQL, over one row for each cluster.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct StatusCollectorSpec {
    /// CEL expression that selects rows, like WHERE.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub filter: Option<String>,
    /// Rows with equal values of these are aggregated together, like GROUP BY.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub group_by: Vec<NamedExpression>,
    /// Aggregations over the rows of a group.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub combined_fields: Vec<NamedAggregator>,
    /// Plain columns.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub select: Vec<NamedExpression>,
    /// Most rows in the result.
    #[schemars(extend("x-required" = true))]
    pub limit: i64,
}

/// A column that is an expression.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct NamedExpression {
    /// Name of the column.
    #[schemars(extend("x-required" = true))]
    pub name: String,
    /// CEL expression.
    #[schemars(extend("x-required" = true))]
    pub def: String,
}

/// A column that is an aggregation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct NamedAggregator {
    /// Name of the column.
    #[schemars(extend("x-required" = true))]
    pub name: String,
    /// COUNT, SUM, AVG, MIN or MAX.
    #[serde(rename = "type")]
    #[schemars(extend("x-required" = true))]
    pub type_: String,
    /// CEL expression of what is aggregated; none for COUNT.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub subject: Option<String>,
}

/// Observed state of the StatusCollector.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct StatusCollectorStatus {
    /// Generation that this status is about.
    #[schemars(extend("x-required" = true))]
    pub observed_generation: i64,
    /// Errors in the query.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<String>,
}
