//! Defaults of the schema.
//!
//! The cost depends on the object and the added defaults, not on the number of fields of the type: objects may have a
//! million elements of a type with ten thousand fields. `room` is how many bytes may still be added.

use serde_json::{Map, Value};

use super::graph::{Graph, Id, Node};

/// The defaults are larger than [`DEFAULTS_MAX`] bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the defaults of its schema would add more than {DEFAULTS_MAX} bytes to the object")]
pub struct DefaultsError;

/// Most bytes of defaults that the schema of a custom resource may add to one object. Without a limit, a small object
/// with a million elements could get a large default in each.
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

/// A default value. Subtracts its size from `room`.
fn added(default: &Value, name: usize, room: &mut usize) -> Value {
    *room = room.saturating_sub(name + bytes(default));
    default.clone()
}

/// The approximate length of a value's text.
fn bytes(value: &Value) -> usize {
    4 + match value {
        Value::String(text) => text.len(),
        Value::Array(items) => items.iter().map(bytes).sum(),
        Value::Object(map) => map.iter().map(|(key, value)| key.len() + bytes(value)).sum::<usize>(),
        _ => 4,
    }
}

/// Removes nulls that are not allowed, so that defaults can replace them.
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
            // A default of map entries is filled in later.
            (None, Some(element)) => {
                let declared = graph.resolve(element).1;
                declared.nullable || declared.default.is_some()
            }
            (None, None) => true,
        }
    });
}

/// The default of a field. Zero values of Go in the built-in table are printed, but are not defaults.
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
