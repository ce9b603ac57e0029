//! Expressions of users, and the variables that they see.

use std::collections::BTreeSet;

use kube_cel::cel::{Context, Value as Cel};

use super::budget::BUDGET;
use super::check::Variable;
use super::convert::{from_json, timestamp};
use super::environment::environment;
use super::fault::error_text;
use super::metered::Metered;
use super::source::{self, CompileError};
use super::value::Value;

/// Why an expression has no value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct EvalError(String);

/// A compiled expression.
#[derive(Clone, Debug)]
pub struct Expression {
    metered: Metered,
    variables: BTreeSet<String>,
}

impl Expression {
    /// Parses an expression and checks that it uses `variables` and known functions only, and that operators fit what
    /// is known of the types of their operands.
    pub fn compile(source: &str, variables: &[Variable]) -> Result<Self, CompileError> {
        let (root, facts) = source::parse(source, variables)?;
        Ok(Self { metered: Metered::new(root, facts.depth), variables: facts.used })
    }

    /// Whether the expression looks at a variable.
    pub fn mentions(&self, variable: &str) -> bool {
        self.variables.contains(variable)
    }

    /// The value, given the variables in `scope`.
    pub fn evaluate(&self, scope: &Scope) -> Result<Value, EvalError> {
        let broken = || EvalError("the expression can't be evaluated".to_owned());
        let (found, _) = self.metered.run(&scope.0, BUDGET).ok_or_else(broken)?;
        let found = found.map_err(|error| EvalError(error_text(&error)))?;
        Value::of(found).ok_or_else(|| EvalError("the result is of a type that has no JSON".to_owned()))
    }
}

/// Variables with their values.
pub struct Scope<'p>(Context<'p>);

impl Scope<'static> {
    /// No variables.
    pub fn root() -> Self {
        Self(environment().new_inner_scope())
    }
}

impl Scope<'_> {
    /// A scope with these variables, and room for more.
    pub fn inner(&self) -> Scope<'_> {
        Scope(self.0.new_inner_scope())
    }

    /// Gives a variable a value. Costs a copy.
    pub fn bind(&mut self, name: &str, value: &serde_json::Value) {
        self.0.add_variable_from_value(name, from_json(value));
    }

    /// Gives a variable the value of a map with one time, written as RFC 3339 has it.
    pub fn bind_time(&mut self, name: &str, key: &str, time: &str) {
        let time = timestamp(time).unwrap_or(Cel::Null);
        let map: std::collections::HashMap<String, Cel> = [(key.to_owned(), time)].into();
        self.0.add_variable_from_value(name, map);
    }
}
