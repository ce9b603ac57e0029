//! The form in which Go prints built-in objects: which empty fields it omits, and which it always prints.

use serde_json::{Map, Value};

use super::graph::{Graph, Id, Node, Presence, Type};

/// Deeper nesting occurs in recursive types only, and those are pointers in Go.
const MAX_ZERO_DEPTH: usize = 16;

pub(super) fn value(graph: &Graph, id: Id, value: &mut Value) {
    let node = graph.resolve(id).1;
    match (node.kind, value) {
        (Type::Object, Value::Object(map)) if !node.fields.is_empty() => object(graph, node, map),
        (Type::Object, Value::Object(map)) => {
            if let Some(element) = node.additional {
                for one in map.values_mut() {
                    self::value(graph, element, one);
                }
            }
        }
        (Type::Array, Value::Array(items)) => {
            if let Some(element) = node.items {
                for one in items {
                    self::value(graph, element, one);
                }
            }
        }
        (Type::SchemaOrBool | Type::SchemaOrArray, other) => {
            if let Some(schema) = node.items {
                match other {
                    Value::Array(items) => {
                        for one in items {
                            self::value(graph, schema, one);
                        }
                    }
                    Value::Object(_) => self::value(graph, schema, other),
                    _ => {}
                }
            }
        }
        _ => {}
    }
}

fn object(graph: &Graph, node: &Node, map: &mut Map<String, Value>) {
    map.retain(|key, one| {
        let Some(field) = node.field(key) else { return true };
        self::value(graph, field.node, one);
        match field.presence {
            Presence::Pointer => !one.is_null(),
            // An empty list here clears all ownership; `managed` removes it.
            Presence::OmitEmpty => !is_zero(one) || (&**key == "managedFields" && one.is_array()),
            Presence::Always | Presence::AlwaysNull => true,
        }
    });
    for field in &node.fields {
        if matches!(field.presence, Presence::Always | Presence::AlwaysNull)
            && !map.contains_key(&*field.name)
        {
            let zero = match field.presence {
                Presence::Always => zero(graph, field.node, 0),
                _ => Value::Null,
            };
            map.insert(field.name.to_string(), zero);
        }
    }
}

/// Replaces empty lists and maps that are always printed by null, as they are stored.
pub(super) fn store_form(graph: &Graph, id: Id, value: &mut Value) {
    let node = graph.resolve(id).1;
    if !node.empties_below {
        return;
    }
    match value {
        Value::Object(map) => {
            for (key, one) in map.iter_mut() {
                let Some(field) = node.field(key) else {
                    if let Some(element) = node.additional {
                        store_form(graph, element, one);
                    }
                    continue;
                };
                if (one.as_array().is_some_and(Vec::is_empty) || one.as_object().is_some_and(Map::is_empty))
                    && super::definitions::empties(graph, field)
                {
                    *one = Value::Null;
                } else {
                    store_form(graph, field.node, one);
                }
            }
        }
        Value::Array(items) => {
            if let Some(element) = node.items {
                for one in items {
                    store_form(graph, element, one);
                }
            }
        }
        _ => {}
    }
}

fn is_zero(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(map) => map.is_empty(),
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::Bool(true) => false,
    }
}

/// The zero value of a type as Go prints it.
pub(super) fn zero(graph: &Graph, id: Id, depth: usize) -> Value {
    let node = graph.resolve(id).1;
    match node.kind {
        Type::Object if !node.fields.is_empty() && depth < MAX_ZERO_DEPTH => {
            let mut map = Map::new();
            for field in &node.fields {
                match field.presence {
                    Presence::Always => {
                        map.insert(field.name.to_string(), zero(graph, field.node, depth + 1));
                    }
                    Presence::AlwaysNull => {
                        map.insert(field.name.to_string(), Value::Null);
                    }
                    Presence::Pointer | Presence::OmitEmpty => {}
                }
            }
            Value::Object(map)
        }
        Type::String => Value::String(String::new()),
        Type::Int32 | Type::Int64 | Type::Integer | Type::Number | Type::IntOrString => Value::from(0),
        Type::Boolean => Value::Bool(false),
        Type::Quantity => Value::from("0"),
        _ => Value::Null,
    }
}
