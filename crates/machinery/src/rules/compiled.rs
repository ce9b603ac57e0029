//! Compiled rules of a type. The type stores them, so this file uses only the node ids of types.

use std::collections::BTreeMap;

use serde_json::Value;

use super::program::Expression;
use crate::schema::types::Id;
use crate::schema::validations::Rule;

/// The compiled rules of a type.
#[derive(Debug, Default)]
pub(crate) struct CompiledRules {
    pub(super) rules: BTreeMap<Id, Vec<CompiledRule>>,
    /// Nodes with rules at or below them.
    pub(super) has_rules_below: Vec<bool>,
}

#[derive(Debug)]
pub(crate) struct CompiledRule {
    pub(super) source: Rule,
    pub(super) rule: Result<Expression, String>,
    pub(super) message: Option<Expression>,
}

impl CompiledRule {
    /// Whether the rule must run. `old` is the value before the update. A transition rule runs if there is an old
    /// value, other rules if the value has changed. A rule that does not compile always reports its error.
    pub(super) fn applies(&self, old: Option<&Value>, unchanged: bool) -> bool {
        match &self.rule {
            Ok(expression) if expression.uses_old() => old.is_some() || self.source.optional_old_self,
            Ok(_) => !unchanged,
            Err(_) => true,
        }
    }
}
