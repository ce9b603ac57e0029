//! Pruning of custom resources: drops fields that their schema does not specify (AS-041).

use serde_json::Value;

use super::decode::whole;
use super::graph::{Graph, Id, Node, StackPath};
use super::unknown::Unknown;

pub(super) fn value(graph: &Graph, id: Id, value: &mut Value, at: &StackPath, unknown: &mut Unknown) {
    let node = graph.resolve(id).1;
    match value {
        Value::Object(map) => object(graph, node, map, at, unknown),
        Value::Array(items) => match node.items {
            Some(element) => {
                for (index, item) in items.iter_mut().enumerate() {
                    self::value(graph, element, item, &at.index(index), unknown);
                }
            }
            // A list without declared type: nothing in it is specified.
            None => {
                for (index, item) in items.iter_mut().enumerate() {
                    undeclared(graph, node, item, &at.index(index), unknown);
                }
            }
        },
        Value::Number(_) => whole(value),
        _ => {}
    }
}

fn object(
    graph: &Graph,
    node: &Node,
    map: &mut serde_json::Map<String, Value>,
    at: &StackPath,
    unknown: &mut Unknown,
) {
    map.retain(|key, one| {
        if let Some(field) = node.field(key) {
            self::value(graph, field.node, one, &at.field(key), unknown);
            return true;
        }
        if let Some(element) = node.additional {
            self::value(graph, element, one, &at.field(key), unknown);
            return true;
        }
        if node.preserve || node.open {
            numbers(one);
            return true;
        }
        unknown.push(&at.field(key));
        false
    });
    // The metadata of an embedded object passes through ObjectMeta, which drops empty maps and lists. The handler
    // maintains the root's metadata.
    if node.embedded
        && at.parent.is_some()
        && let (Some(field), Some(metadata)) = (node.field("metadata"), map.get_mut("metadata"))
    {
        super::normalise::value(graph, field.node, metadata);
    }
}

fn undeclared(graph: &Graph, node: &Node, value: &mut Value, at: &StackPath, unknown: &mut Unknown) {
    if node.preserve || node.open {
        return numbers(value);
    }
    if let Value::Object(map) = value {
        object(graph, &Node::default(), map, at, unknown);
    }
}

/// Prints whole numbers without a fraction, also where any type is allowed.
fn numbers(value: &mut Value) {
    match value {
        Value::Number(_) => whole(value),
        Value::Array(items) => items.iter_mut().for_each(numbers),
        Value::Object(map) => map.values_mut().for_each(numbers),
        _ => {}
    }
}
