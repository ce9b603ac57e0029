//! Combines the rows of single WECs into the answer of a StatusCollector (KS-178 … KS-185). Pure.

use std::{
    cmp::Ordering,
    collections::{BTreeMap, BTreeSet},
};

use apis::control::{
    AggregationError, Destination, NamedStatusCombination, RowError, StatusCombinationRow, Value as ApiValue,
    ValueType,
};
use machinery::{cel::Value, number};

use super::query::{Aggregator, Query, Row};
use crate::identity::ClusterName;

/// Computes the answer of a query from the row of each WEC. Cost: a walk over the rows. Floating-point
/// numbers are summed in the order of WECs, so that a sum does not depend on the order of events (KS-184).
pub fn combine<'r>(
    name: &str,
    query: &Query,
    rows: impl Iterator<Item = (&'r ClusterName, &'r Row)> + Clone,
) -> NamedStatusCombination {
    let mut answer = NamedStatusCombination {
        name: name.to_owned(),
        column_names: query.names().to_vec(),
        row_errors: row_errors(query, rows.clone()),
        ..NamedStatusCombination::default()
    };
    let kept = rows.filter_map(|(wec, row)| match row {
        Row::Kept { cells, .. } => Some((wec, cells.as_slice())),
        Row::Dropped | Row::Broken(_) => None,
    });
    match query.aggregations() {
        None => {
            let row =
                |(_, cells): (_, &[Value])| StatusCombinationRow { columns: cells.iter().map(api).collect() };
            answer.rows = kept.take(query.limit()).map(row).collect();
        }
        Some((groups, aggregators)) => {
            for group in grouped(groups, kept).into_values().take(query.limit()) {
                let columns = query.names().get(groups..).unwrap_or_default();
                let mut row: Vec<ApiValue> = group.values.iter().map(api).collect();
                for (at, (column, aggregator)) in columns.iter().zip(&aggregators).enumerate() {
                    let (value, error) = aggregate(*aggregator, at, &group.members);
                    row.push(value);
                    let error = error.map(|error| AggregationError { column_name: column.clone(), error });
                    answer.aggregation_errors.extend(error);
                }
                answer.rows.push(StatusCombinationRow { columns: row });
            }
        }
    }
    answer
}

/// KS-185: returns one error for each column that fails for any WEC, taken from the first such WEC; the
/// filter's error comes first.
fn row_errors<'r>(query: &Query, rows: impl Iterator<Item = (&'r ClusterName, &'r Row)>) -> Vec<RowError> {
    let mut first: BTreeMap<Option<usize>, RowError> = BTreeMap::new();
    for (wec, row) in rows {
        for error in row.errors() {
            first.entry(error.column).or_insert_with(|| RowError {
                wec: Destination { cluster_id: wec.to_string() },
                column_name: error.column.and_then(|at| query.names().get(at)).cloned().unwrap_or_default(),
                error: error.error.clone(),
            });
        }
    }
    first.into_values().collect()
}

/// WECs with equal values.
struct Group<'r> {
    values: &'r [Value],
    /// The subjects of each WEC.
    members: Vec<(&'r ClusterName, &'r [Value])>,
}

/// KS-179: without group columns there is one group of all WECs. KS-184: groups are sorted.
fn grouped<'r>(
    groups: usize,
    rows: impl Iterator<Item = (&'r ClusterName, &'r [Value])>,
) -> BTreeMap<Vec<Key<'r>>, Group<'r>> {
    let mut found: BTreeMap<Vec<Key>, Group> = BTreeMap::new();
    if groups == 0 {
        found.insert(Vec::new(), Group { values: &[], members: Vec::new() });
    }
    for (wec, cells) in rows {
        let (values, subjects) = cells.split_at(groups.min(cells.len()));
        let key = values.iter().map(Key::of).collect();
        let group = found.entry(key).or_insert_with(|| Group { values, members: Vec::new() });
        group.members.push((wec, subjects));
    }
    found
}

/// A value as a grouping key: numbers are compared by value, whatever their type.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Key<'v> {
    Null,
    Bool(bool),
    Number(Number),
    Text(&'v str),
    Other(String),
}

#[derive(Debug)]
enum Number {
    Whole(i128),
    Other(f64),
}

impl Ord for Number {
    fn cmp(&self, other: &Self) -> Ordering {
        match (self, other) {
            (Self::Whole(a), Self::Whole(b)) => a.cmp(b),
            (Self::Whole(a), Self::Other(b)) => (*a as f64).total_cmp(b),
            (Self::Other(a), Self::Whole(b)) => a.total_cmp(&(*b as f64)),
            (Self::Other(a), Self::Other(b)) => a.total_cmp(b),
        }
    }
}

impl PartialOrd for Number {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Number {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Number {}

impl Number {
    fn of(value: f64) -> Self {
        if value.is_nan() {
            return Self::Other(f64::NAN);
        }
        // A larger number is a whole number anyway, and no integer of the input equals it.
        if value.fract() == 0.0 && value.abs() < 1e30 {
            Self::Whole(value as i128)
        } else {
            Self::Other(value)
        }
    }
}

impl<'v> Key<'v> {
    fn of(value: &'v Value) -> Self {
        match value {
            Value::Null => Self::Null,
            Value::Bool(value) => Self::Bool(*value),
            Value::Int(value) => Self::Number(Number::Whole((*value).into())),
            Value::Uint(value) => Self::Number(Number::Whole((*value).into())),
            Value::Double(value) => Self::Number(Number::of(*value)),
            Value::String(text) | Value::Bytes(text) | Value::Timestamp(text) | Value::Duration(text) => {
                Self::Text(text)
            }
            Value::List(json) | Value::Map(json) => Self::Other(json.to_string()),
        }
    }
}

/// Converts a value to the form in a CombinedStatus (KS-182).
fn api(value: &Value) -> ApiValue {
    let typed = |type_| ApiValue { type_, ..ApiValue::default() };
    match value {
        Value::Null => typed(ValueType::Null),
        Value::Bool(value) => ApiValue { boolean: Some(*value), ..typed(ValueType::Bool) },
        Value::Int(value) => number_text(value.to_string()),
        Value::Uint(value) => number_text(value.to_string()),
        Value::Double(value) => number_text(number::text(*value)),
        Value::String(text) | Value::Bytes(text) | Value::Timestamp(text) | Value::Duration(text) => {
            ApiValue { string: Some(text.clone()), ..typed(ValueType::String) }
        }
        Value::List(json) => ApiValue { array: Some(json.clone()), ..typed(ValueType::Array) },
        Value::Map(json) => ApiValue { object: Some(json.clone()), ..typed(ValueType::Object) },
    }
}

fn number_text(text: String) -> ApiValue {
    ApiValue { type_: ValueType::Number, number: Some(text), ..ApiValue::default() }
}

/// Aggregates column `at` of the members into one value (KS-179). Returns it with the first error.
fn aggregate(
    aggregator: Aggregator,
    at: usize,
    members: &[(&ClusterName, &[Value])],
) -> (ApiValue, Option<String>) {
    if aggregator == Aggregator::Count {
        return (number_text(members.len().to_string()), None);
    }
    let mut error = None;
    let mut usable = Vec::with_capacity(members.len());
    for (wec, subjects) in members {
        match subjects.get(at).map_or_else(|| Err("has no value".to_owned()), subject) {
            Ok(value) => usable.push(value),
            Err(why) => drop(error.get_or_insert_with(|| format!("for WEC {wec}, {why}"))),
        }
    }
    let sum = || usable.iter().fold(0.0, |sum, value| sum + value);
    let value = match aggregator {
        Aggregator::Count => 0.0,
        Aggregator::Sum => sum(),
        Aggregator::Avg if members.is_empty() => {
            error.get_or_insert_with(|| "no values to average".to_owned());
            f64::NAN
        }
        // A WEC without a usable value counts as 0.
        Aggregator::Avg => sum() / members.len() as f64,
        Aggregator::Min => {
            usable.iter().fold(f64::INFINITY, |least, value| if *value < least { *value } else { least })
        }
        Aggregator::Max => {
            usable.iter().fold(f64::NEG_INFINITY, |most, value| if *value > most { *value } else { most })
        }
    };
    (number_text(number::text(value)), error)
}

/// KS-180.
fn subject(value: &Value) -> Result<f64, String> {
    match value {
        Value::Int(value) => Ok(*value as f64),
        Value::Uint(value) => Ok(*value as f64),
        Value::Double(value) => Ok(*value),
        Value::String(text) => number::parse(text)
            .map_err(|error| format!("failed to parse combinedField subject as a float: {error}")),
        other => Err(format!("combinedField subject has unexpected type {}", other.type_name())),
    }
}

/// Returns whether two answers are equal (KS-186), whatever the order of their rows and the notation of their
/// numbers.
pub fn same(left: &[NamedStatusCombination], right: &[NamedStatusCombination]) -> bool {
    let by_name = |list: &[NamedStatusCombination]| -> Vec<(String, String)> {
        let mut all: Vec<_> = list.iter().map(|one| (one.name.clone(), canonical(one))).collect();
        all.sort();
        all
    };
    left == right || by_name(left) == by_name(right)
}

fn canonical(answer: &NamedStatusCombination) -> String {
    let mut answer = answer.clone();
    for value in answer.rows.iter_mut().flat_map(|row| &mut row.columns) {
        if let Some(text) = &mut value.number
            && let Ok(value) = text.parse::<f64>()
            && text.parse::<i64>().is_err()
        {
            *text = number::text(value);
        }
    }
    let rows = std::mem::take(&mut answer.rows);
    let text = |row: &StatusCombinationRow| serde_json::to_string(row).unwrap_or_default();
    let mut rows: Vec<String> = rows.iter().map(text).collect();
    rows.sort();
    format!("{} {rows:?}", serde_json::to_string(&answer).unwrap_or_default())
}

/// Most bytes of all answers about one object: what an API server accepts for a custom resource, with room
/// for the other fields.
const MAX_BYTES: usize = 1 << 20;

/// Removes rows, first from the largest answers, until all answers fit into one object (KS-199).
pub fn fit(answers: &mut [NamedStatusCombination]) {
    let size = |answer: &NamedStatusCombination| serde_json::to_vec(answer).map_or(0, |it| it.len());
    let mut sizes: Vec<(usize, usize)> =
        answers.iter().map(size).enumerate().map(|(at, size)| (size, at)).collect();
    let mut total: usize = sizes.iter().map(|(size, _)| size).sum();
    sizes.sort_unstable();
    let names: BTreeSet<usize> = std::iter::from_fn(|| {
        let (size, at) = (total > MAX_BYTES).then(|| sizes.pop()).flatten()?;
        total -= size;
        Some(at)
    })
    .collect();
    for at in names {
        if let Some(answer) = answers.get_mut(at) {
            let rows = std::mem::take(&mut answer.rows).len();
            let error = format!("{rows} rows are left out, as the results together exceed {MAX_BYTES} bytes");
            answer.aggregation_errors = vec![AggregationError { column_name: String::new(), error }];
            answer.row_errors.clear();
        }
    }
}
