//! Defaulting from the schema.
//!
//! Costs what is there and what is added, not a look at each field that a type has: objects may have a million elements of a type
//! of ten thousand fields. `room` is how many bytes may still be added.

use serde_json::{Map, Value};

use super::graph::{Graph, Id, Node};

/// More was to be filled in than [`DEFAULTS_MAX`] bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the defaults of its schema would add more than {DEFAULTS_MAX} bytes to the object")]
pub struct DefaultsError;

/// The most bytes of defaults that the schema of a custom resource may add to one object: a small object may have a million
/// elements, each of which lacks a large default.
pub const DEFAULTS_MAX: usize = 16 << 20;

pub(super) fn value(graph: &Graph, id: Id, value: &mut Value, room: &mut usize) {
    let node = graph.resolve(id).1;
    if !graph.custom && !node.defaults_below {
        return;
    }
    match value {
        Value::Object(map) => object(graph, node, map, room),
        Value::Array(items) => {
            let Some(element) = node.items else { return };
            for item in items {
                if item.is_null()
                    && let Some(default) = replacement(graph, element, room)
                {
                    *item = default;
                }
                self::value(graph, element, item, room);
            }
        }
        _ => {}
    }
}

fn object(graph: &Graph, node: &Node, map: &mut Map<String, Value>, room: &mut usize) {
    if graph.custom {
        drop_nulls(graph, node, map);
    }
    for (key, value) in map.iter_mut() {
        if let Some(field) = node.field(key) {
            self::value(graph, field.node, value, room);
        } else if let Some(element) = node.additional {
            if value.is_null()
                && let Some(default) = replacement(graph, element, room)
            {
                *value = default;
            }
            self::value(graph, element, value, room);
        }
    }
    for field in node.defaulted.iter().filter_map(|place| node.fields.get(*place as usize)) {
        if map.contains_key(&*field.name) {
            continue;
        }
        if *room == 0 {
            return;
        }
        if let Some(default) = fill(graph, field.node) {
            let mut default = added(default, field.name.len(), room);
            self::value(graph, field.node, &mut default, room);
            map.insert(field.name.to_string(), default);
        }
    }
}

/// A default that is put in, taken off the room there is.
fn added(default: &Value, name: usize, room: &mut usize) -> Value {
    *room = room.saturating_sub(name + bytes(default));
    default.clone()
}

/// Roughly the length of a value's text.
fn bytes(value: &Value) -> usize {
    4 + match value {
        Value::String(text) => text.len(),
        Value::Array(items) => items.iter().map(bytes).sum(),
        Value::Object(map) => map.iter().map(|(key, value)| key.len() + bytes(value)).sum::<usize>(),
        _ => 4,
    }
}

/// Null is absence, unless it is allowed: it goes away, and a default may take its place.
fn drop_nulls(graph: &Graph, node: &Node, map: &mut Map<String, Value>) {
    map.retain(|key, value| {
        if !value.is_null() {
            return true;
        }
        match (node.field(key), node.additional) {
            (Some(field), _) => {
                let declared = graph.resolve(field.node).1;
                declared.nullable || (declared.kind == super::graph::Type::Any && declared.preserve)
            }
            // An entry of a map with a default is filled in later.
            (None, Some(element)) => {
                let declared = graph.resolve(element).1;
                declared.nullable || declared.default.is_some()
            }
            (None, None) => true,
        }
    });
}

/// The default of a field. Go's zero values in the built-in tables are no defaults (they are only printed).
fn fill(graph: &Graph, id: Id) -> Option<&Value> {
    let default = graph.node(id).default.as_ref().or_else(|| graph.resolve(id).1.default.as_ref())?;
    let zero = match default {
        Value::String(text) => text.is_empty(),
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::Bool(value) => !value,
        _ => false,
    };
    (graph.custom || !zero).then_some(default)
}

fn replacement(graph: &Graph, id: Id, room: &mut usize) -> Option<Value> {
    if !graph.custom || graph.resolve(id).1.nullable || *room == 0 {
        return None;
    }
    fill(graph, id).map(|default| added(default, 0, room))
}
