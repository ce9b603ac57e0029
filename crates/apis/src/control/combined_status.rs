use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Destination;
use crate::{constants::CONTROL_GROUP, kind::kind};

kind! {
    /// CombinedStatus holds the results of the StatusCollectors for one object of one BindingPolicy.
    CombinedStatus = CONTROL_GROUP, "v1alpha1", "combinedstatuses", NamespaceResourceScope;
    optional
    /// One result for each StatusCollector.
    results as "results": Vec<NamedStatusCombination>;
}

/// The result of one StatusCollector.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct NamedStatusCombination {
    /// Name of the StatusCollector.
    #[schemars(extend("x-required" = true))]
    pub name: String,
    /// Names of the columns.
    #[schemars(extend("x-required" = true))]
    pub column_names: Vec<String>,
    /// The rows.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub rows: Vec<StatusCombinationRow>,
    /// Errors of the rows of single clusters.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub row_errors: Vec<RowError>,
    /// Errors of aggregations.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub aggregation_errors: Vec<AggregationError>,
}

/// One row of a result.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct StatusCombinationRow {
    /// One value for each column.
    #[schemars(extend("x-required" = true))]
    pub columns: Vec<Value>,
}

/// A value and its type (KS-016).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
#[schemars(description = "A value and its type.")]
pub struct Value {
    /// String, Number, Bool, Null, Object or Array.
    #[serde(rename = "type")]
    #[schemars(extend("x-required" = true))]
    pub type_: ValueType,
    /// The value if it is a string.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub string: Option<String>,
    /// The value if it is a number, as text.
    #[serde(rename = "float", skip_serializing_if = "Option::is_none")]
    pub number: Option<String>,
    /// The value if it is a boolean.
    #[serde(rename = "bool", skip_serializing_if = "Option::is_none")]
    pub boolean: Option<bool>,
    /// The value if it is an object.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::schema::any_value")]
    pub object: Option<serde_json::Value>,
    /// The value if it is a list.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "crate::schema::any_value")]
    pub array: Option<serde_json::Value>,
}

/// String, Number, Bool, Null, Object or Array.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ValueType {
    String,
    Number,
    Bool,
    #[default]
    Null,
    Object,
    Array,
}

/// An error of the row of a cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct RowError {
    /// The cluster.
    #[schemars(extend("x-required" = true))]
    pub wec: Destination,
    /// The column; empty for the filter.
    #[schemars(extend("x-required" = true))]
    pub column_name: String,
    /// The error.
    #[schemars(extend("x-required" = true))]
    pub error: String,
}

/// An error of an aggregation.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct AggregationError {
    /// The column.
    #[schemars(extend("x-required" = true))]
    pub column_name: String,
    /// The error.
    #[schemars(extend("x-required" = true))]
    pub error: String,
}
