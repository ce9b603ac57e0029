//! Conversion of JSON values into CEL values by schema.

use std::collections::HashMap;
use std::sync::Arc;

use kube_cel::cel::Value as Cel;
use kube_cel::cel::objects::{Key, Map};
use serde_json::Value;

use super::identifier::escape;
use crate::cel::convert::{self, from_json};
use crate::schema::graph::{Graph, Id, Node, Type};

/// The metadata fields that rules at the root can use.
const METADATA: [&str; 2] = ["name", "generateName"];

/// Converts a value. `resource`: the value is a whole object.
pub(super) fn convert(graph: &Graph, id: Id, value: &Value, resource: bool) -> Cel {
    let node = graph.resolve(id).1;
    match value {
        Value::Null => Cel::Null,
        Value::Bool(value) => Cel::Bool(*value),
        Value::Number(number) => match (node.kind, number.as_i64()) {
            (Type::Number, _) | (_, None) => Cel::Float(number.as_f64().unwrap_or_default()),
            (_, Some(int)) => Cel::Int(int),
        },
        Value::String(text) => string(node, text),
        Value::Array(items) => {
            let item = |one: &Value| match node.items {
                Some(element) => convert(graph, element, one, false),
                None => from_json(one),
            };
            Cel::List(Arc::new(items.iter().map(item).collect()))
        }
        Value::Object(map) => object(graph, node, map, resource),
    }
}

fn object(graph: &Graph, node: &Node, map: &serde_json::Map<String, Value>, resource: bool) -> Cel {
    let resource = resource || node.embedded;
    let mut out = HashMap::with_capacity(map.len());
    for (key, one) in map {
        let (name, value) = if let Some(field) = node.field(key) {
            let Some(name) = escape(key) else { continue };
            let value = match one {
                Value::Object(meta) if resource && key == "metadata" => metadata(meta),
                one => convert(graph, field.node, one, false),
            };
            (name, value)
        } else if let Some(element) = node.additional {
            (key.clone(), convert(graph, element, one, false))
        } else if node.fields.is_empty() {
            (key.clone(), from_json(one))
        } else {
            // Undeclared fields are hidden.
            continue;
        };
        out.insert(Key::String(Arc::new(name)), value);
    }
    Cel::Map(Map { map: Arc::new(out) })
}

fn metadata(meta: &serde_json::Map<String, Value>) -> Cel {
    let seen = METADATA.iter().filter_map(|name| Some((*name, meta.get(*name)?)));
    let out = seen.map(|(name, value)| (Key::String(Arc::new(name.to_owned())), from_json(value))).collect();
    Cel::Map(Map { map: Arc::new(out) })
}

/// Strings of some formats become other CEL types.
fn string(node: &Node, text: &str) -> Cel {
    let as_string = || Cel::String(Arc::new(text.to_owned()));
    let format = node.checks.as_ref().and_then(|c| c.format.as_deref());
    let built = match (node.kind, format) {
        (Type::String, Some("date-time" | "datetime")) => convert::timestamp(text),
        (Type::String, Some("date")) => convert::date(text),
        (Type::String, Some("duration")) => convert::duration(text),
        (Type::String, Some("byte")) => convert::bytes(text),
        _ => None,
    };
    built.unwrap_or_else(as_string)
}
