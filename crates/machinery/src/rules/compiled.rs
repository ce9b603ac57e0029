//! Compiled rules of a type. The type keeps them, so this file knows nothing of types but their node ids.

use std::collections::BTreeMap;

use serde_json::Value;

use super::program::Expression;
use crate::schema::checks::Rule;
use crate::schema::types::Id;

/// The rules of a type, compiled.
#[derive(Debug, Default)]
pub(crate) struct Compiled {
    pub(super) rules: BTreeMap<Id, Vec<CompiledRule>>,
    /// Nodes with rules at or below them.
    pub(super) reaches: Vec<bool>,
}

#[derive(Debug)]
pub(crate) struct CompiledRule {
    pub(super) source: Rule,
    pub(super) rule: Result<Expression, String>,
    pub(super) message: Option<Expression>,
}

impl CompiledRule {
    /// Whether it has something to look at in a value that was `old` before: a rule about changes what was there, any
    /// other what is not as before. One that could not be compiled is told each time.
    pub(super) fn applies(&self, old: Option<&Value>, unchanged: bool) -> bool {
        match &self.rule {
            Ok(expression) if expression.uses_old() => old.is_some() || self.source.optional_old_self,
            Ok(_) => !unchanged,
            Err(_) => true,
        }
    }
}
