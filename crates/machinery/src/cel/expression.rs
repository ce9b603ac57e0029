//! Expressions of users, and the variables that they use.

use kube_cel::cel::{Context, Value as Cel};

use super::budget::BUDGET;
use super::check::{CheckResult, Variable};
use super::convert::{from_json, timestamp};
use super::environment::environment;
use super::metered::MeteredExpression;
use super::source::{self, CompileError};
use super::source_error::error_text;
use super::value::Value;

/// Why the evaluation of an expression failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct EvalError(String);

/// A compiled expression.
#[derive(Clone, Debug)]
pub struct Expression {
    metered: MeteredExpression,
    facts: CheckResult,
}

impl Expression {
    /// Parses an expression and checks that it uses only `variables` and known functions, and that operators fit the
    /// known types of their operands.
    ///
    /// # Errors
    /// All errors of the expression, in one text.
    pub fn compile(source: &str, variables: &[Variable]) -> Result<Self, CompileError> {
        let (root, facts) = source::parse(source, variables)?;
        Ok(Self { metered: MeteredExpression::new(root, facts.depth), facts })
    }

    /// Whether the expression uses a variable.
    pub fn mentions(&self, variable: &str) -> bool {
        self.facts.used.contains(variable)
    }

    /// Whether the expression can see more of a variable than these fields: it selects another field, or uses the
    /// variable in another way (as a whole, or by an index).
    pub fn sees_more_than(&self, variable: &str, fields: &[&str]) -> bool {
        let other = |(of, field): &(String, String)| of == variable && !fields.contains(&field.as_str());
        self.facts.whole.contains(variable) || self.facts.selected.iter().any(other)
    }

    /// Evaluates the expression with the variables in `scope`.
    ///
    /// # Errors
    /// A run-time error, or the budget is spent.
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
    /// A scope without variables.
    pub fn root() -> Self {
        Self(environment().new_inner_scope())
    }
}

impl Scope<'_> {
    /// A nested scope, to which more variables can be added.
    pub fn inner(&self) -> Scope<'_> {
        Scope(self.0.new_inner_scope())
    }

    /// Sets a variable. Copies the value.
    pub fn bind(&mut self, name: &str, value: &serde_json::Value) {
        self.0.add_variable_from_value(name, from_json(value));
    }

    /// Sets a variable to a map with one entry, a time in RFC 3339.
    pub fn bind_time(&mut self, name: &str, key: &str, time: &str) {
        let time = timestamp(time).unwrap_or(Cel::Null);
        let map: std::collections::HashMap<String, Cel> = [(key.to_owned(), time)].into();
        self.0.add_variable_from_value(name, map);
    }
}
