//! Compiles the rules of a type, and finds those that apply to a value.

use std::sync::Arc;

use serde_json::Value;

use super::compiled::{CompiledRule, CompiledRules};
use super::program::Expression;
use crate::schema::graph::{Graph, Id};
use crate::schema::old_elements::OldElements;

/// The rules of a type. The first call compiles them.
pub(crate) fn compiled(graph: &Graph) -> Arc<CompiledRules> {
    graph.rules.get_or_init(|| Arc::new(build(graph))).clone()
}

fn build(graph: &Graph) -> CompiledRules {
    let mut out =
        CompiledRules { has_rules_below: vec![false; graph.nodes.len()], ..CompiledRules::default() };
    for (at, node) in graph.nodes.iter().enumerate() {
        let Some(checks) = node.checks.as_ref().filter(|c| !c.rules.is_empty()) else { continue };
        let compile = |source: &crate::schema::validations::Rule| CompiledRule {
            rule: Expression::compile(&source.expression),
            message: Expression::compile(&source.message_expression)
                .ok()
                .filter(|_| !source.message_expression.is_empty()),
            source: source.clone(),
        };
        out.rules.insert(at as Id, checks.rules.iter().map(compile).collect());
        if let Some(slot) = out.has_rules_below.get_mut(at) {
            *slot = true;
        }
    }
    let mut changed = !out.rules.is_empty();
    while changed {
        changed = false;
        for (at, node) in graph.nodes.iter().enumerate() {
            let reached = |id: &Id| out.has_rules_below.get(*id as usize).copied().unwrap_or_default();
            let below = node.fields.iter().any(|f| reached(&f.node))
                || node.items.as_ref().is_some_and(reached)
                || node.additional.as_ref().is_some_and(reached)
                || node.target.as_ref().is_some_and(reached);
            if below && !reached(&(at as Id)) {
                out.has_rules_below[at] = true;
                changed = true;
            }
        }
    }
    out
}

impl CompiledRules {
    /// Whether any rule at or below a node applies to the value.
    pub(super) fn applies(&self, graph: &Graph, id: Id, value: &Value, old: Option<&Value>) -> bool {
        let (id, node) = graph.resolve(id);
        if value.is_null() || self.has_rules_below.get(id as usize) != Some(&true) {
            return false;
        }
        if let Some(rules) = self.rules.get(&id) {
            let unchanged = old == Some(value);
            if rules.iter().any(|rule| rule.applies(old, unchanged)) {
                return true;
            }
        }
        match value {
            Value::Object(map) => map.iter().any(|(key, one)| {
                let below = node.field(key).map(|field| field.node).or(node.additional);
                below.is_some_and(|id| self.applies(graph, id, one, old.and_then(|old| old.get(key))))
            }),
            Value::Array(items) => {
                let old_elements = OldElements::new(graph, id, old);
                items.iter().enumerate().any(|(index, item)| {
                    node.items.is_some_and(|element| {
                        self.applies(graph, element, item, old_elements.of(index, item))
                    })
                })
            }
            _ => false,
        }
    }
}
