//! Defaulting from the schema.

use serde_json::{Map, Value};

use super::graph::{Graph, Id, Node};

pub(super) fn value(graph: &Graph, id: Id, value: &mut Value) {
    let node = graph.resolve(id).1;
    if !graph.custom && !node.defaults_below {
        return;
    }
    match value {
        Value::Object(map) => object(graph, node, map),
        Value::Array(items) => {
            let Some(element) = node.items else { return };
            for item in items {
                if item.is_null()
                    && let Some(default) = replacement(graph, element)
                {
                    *item = default;
                }
                self::value(graph, element, item);
            }
        }
        _ => {}
    }
}

fn object(graph: &Graph, node: &Node, map: &mut Map<String, Value>) {
    if graph.custom {
        drop_nulls(graph, node, map);
    }
    for field in &node.fields {
        if let Some(value) = map.get_mut(&*field.name) {
            self::value(graph, field.node, value);
        } else if let Some(default) = fill(graph, field.node) {
            let mut default = default.clone();
            self::value(graph, field.node, &mut default);
            map.insert(field.name.to_string(), default);
        }
    }
    if let Some(element) = node.additional {
        for (key, value) in map.iter_mut() {
            if node.field(key).is_some() {
                continue;
            }
            if value.is_null()
                && let Some(default) = replacement(graph, element)
            {
                *value = default;
            }
            self::value(graph, element, value);
        }
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

fn replacement(graph: &Graph, id: Id) -> Option<Value> {
    if !graph.custom || graph.resolve(id).1.nullable {
        return None;
    }
    fill(graph, id).cloned()
}
