//! Tables for `kubectl get` (spec 2.6, 4.7).

use jiff::Timestamp;
use machinery::jsonpath::JsonPath;
use serde_json::{Value, json};

use crate::descriptor::{Column, Descriptor};
use crate::error::ApiError;

mod cluster;
mod configuration;
mod fields;
mod networking;
mod pods;
mod storage;
mod workloads;

use fields::PrintedObject;

/// The content of `row.object`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum IncludeObject {
    #[default]
    Metadata,
    Object,
    None,
}

impl IncludeObject {
    /// Parses the query parameter.
    ///
    /// # Errors
    /// 400 for an unknown value.
    pub fn parse(text: &str) -> Result<Self, ApiError> {
        Ok(match text {
            "" | "Metadata" => Self::Metadata,
            "Object" => Self::Object,
            "None" => Self::None,
            other => {
                return Err(ApiError::bad_request(format!(
                    "Unable to convert to Table as requested: includeObject: Invalid value: {}: must be 'Metadata', \
                     'Object', 'None', or empty",
                    machinery::field::quote(other)
                )));
            }
        })
    }
}

/// Whether one clause of an Accept header asks for a Table.
pub fn wants_table(clause: &str) -> bool {
    let params: Vec<&str> = clause.split(';').map(str::trim).collect();
    params.contains(&"as=Table") && params.contains(&"g=meta.k8s.io")
}

/// A Table of `objects` with the metadata of the list. `with_columns: false` leaves `columnDefinitions` null (later
/// watch events). Costs a walk over each object per column (AS-018, AS-028).
pub fn render(
    descriptor: &Descriptor,
    objects: &[Value],
    list_metadata: &Value,
    include: IncludeObject,
    with_columns: bool,
    now: Timestamp,
) -> Value {
    let columns = columns(descriptor);
    let paths: Vec<Option<JsonPath>> =
        columns.iter().map(|c| c.path.as_deref().and_then(|path| JsonPath::relaxed(path).ok())).collect();
    let rows: Vec<Value> = objects
        .iter()
        .map(|object| {
            let cells = if descriptor.is_custom() {
                custom_cells(&columns, &paths, object, now)
            } else {
                built_in_cells(descriptor, &columns, object, now)
            };
            json!({"cells": cells, "object": row_object(object, include)})
        })
        .collect();
    let definitions = with_columns.then(|| columns.iter().map(definition).collect::<Vec<_>>());
    json!({
        "kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": list_metadata,
        "columnDefinitions": definitions, "rows": rows,
    })
}

fn definition(column: &Column) -> Value {
    let description = match (column.description.is_empty(), column.name.as_str()) {
        (true, "Name") => "Name must be unique within a namespace.",
        (true, "Age" | "Created At") => "Time since, or at which, the object was created.",
        _ => &column.description,
    };
    json!({
        "name": column.name, "type": column.r#type, "format": column.format, "description": description,
        "priority": column.priority,
    })
}

/// The columns. Custom resources: those of the definition after the name, or name and age.
fn columns(descriptor: &Descriptor) -> Vec<Column> {
    let mut columns = descriptor.columns.clone();
    if !descriptor.is_custom() {
        return columns;
    }
    let column = |name: &str, r#type: &str, format: &str, path: Option<&str>| Column {
        name: name.into(),
        r#type: r#type.into(),
        format: format.into(),
        description: String::new(),
        priority: 0,
        path: path.map(Into::into),
    };
    if columns.first().is_none_or(|first| first.path.is_some()) {
        columns.insert(0, column("Name", "string", "name", None));
    }
    if columns.len() == 1 {
        columns.push(column("Age", "date", "", Some(".metadata.creationTimestamp")));
    }
    columns
}

fn row_object(object: &Value, include: IncludeObject) -> Value {
    match include {
        IncludeObject::None => Value::Null,
        IncludeObject::Object => object.clone(),
        IncludeObject::Metadata => json!({
            "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": object.get("metadata"),
        }),
    }
}

fn custom_cells(
    columns: &[Column],
    paths: &[Option<JsonPath>],
    object: &Value,
    now: Timestamp,
) -> Vec<Value> {
    let cell = |(column, path): (&Column, &Option<JsonPath>)| match path {
        None if column.path.is_none() => object.text("/metadata/name").into(),
        None => Value::Null,
        Some(path) => path.find(object).first().map_or(Value::Null, |v| custom_cell(&column.r#type, v, now)),
    };
    columns.iter().zip(paths).map(cell).collect()
}

/// A value formatted as its column's type; `null` if it has another type.
fn custom_cell(r#type: &str, value: &Value, now: Timestamp) -> Value {
    match (r#type, value) {
        ("string", Value::String(_)) | ("boolean", Value::Bool(_)) | ("number", Value::Number(_)) => {
            value.clone()
        }
        ("string", other) if !other.is_null() => other.to_string().into(),
        ("integer", Value::Number(number)) => match number.as_i64() {
            Some(whole) => whole.into(),
            // Kubernetes truncates the fraction.
            None => number.as_f64().map_or(Value::Null, |f| (f as i64).into()),
        },
        ("date", Value::String(time)) => match time.parse() {
            Ok(time) => fields::human_duration(now, time).into(),
            Err(_) => "<invalid>".into(),
        },
        _ => Value::Null,
    }
}

fn built_in_cells(d: &Descriptor, columns: &[Column], object: &Value, now: Timestamp) -> Vec<Value> {
    let printed = PrintedObject::new(object, now);
    let of_kind = workloads::cells(&d.group, &d.plural, &printed)
        .or_else(|| configuration::cells(&d.group, &d.plural, &printed))
        .or_else(|| networking::cells(&d.group, &d.plural, &printed))
        .or_else(|| storage::cells(&d.group, &d.plural, &printed))
        .or_else(|| cluster::cells(&d.group, &d.plural, &printed));
    let mut of_kind = of_kind.unwrap_or_default().into_iter();
    // Name and age are the same for all kinds; the functions of a kind return the cells between them.
    columns
        .iter()
        .enumerate()
        .map(|(i, column)| match column.name.as_str() {
            "Name" if i == 0 || column.format == "name" && d.plural == "events" && !d.is_custom() => {
                printed.name_cell(&d.group, &d.plural)
            }
            "Age" => printed.age().into(),
            "Created At" => printed.text("/metadata/creationTimestamp").into(),
            _ => of_kind.next().unwrap_or(Value::Null),
        })
        .collect()
}

/// Access to fields by JSON pointer.
trait Fields {
    fn text(&self, pointer: &str) -> String;
}

impl Fields for Value {
    fn text(&self, pointer: &str) -> String {
        self.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned()
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
