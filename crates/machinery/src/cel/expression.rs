//! Expressions of users, and the variables that they use.

use kube_cel::cel::{Context, Value as Cel};

use super::budget::BUDGET;
use super::check::{CheckResult, Variable};
use super::convert::{from_json, timestamp};
use super::environment::environment;
use super::library::Library;
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
        Self::parse(source, variables, &[])
    }

    /// Like [`Self::compile`], with the methods of `library`. Evaluate the expression only in scopes of that library.
    ///
    /// # Errors
    /// All errors of the expression, in one text.
    pub fn compile_with(
        source: &str,
        variables: &[Variable],
        library: &Library,
    ) -> Result<Self, CompileError> {
        Self::parse(source, variables, library.names())
    }

    fn parse(source: &str, variables: &[Variable], methods: &[&str]) -> Result<Self, CompileError> {
        let (root, facts) = source::parse(source, variables, methods)?;
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
        let mut unlimited = u64::MAX;
        self.evaluate_within(scope, &mut unlimited)
    }

    /// Like [`Self::evaluate`], and takes the cost from `budget`, which is 0 afterwards if it did not suffice. One
    /// evaluation never costs more than Kubernetes' limit for one expression.
    ///
    /// # Errors
    /// A run-time error, or a budget is spent.
    pub fn evaluate_within(&self, scope: &Scope, budget: &mut u64) -> Result<Value, EvalError> {
        let broken = || EvalError("the expression can't be evaluated".to_owned());
        let (found, spent) = self.metered.run(&scope.context, BUDGET.min(*budget)).ok_or_else(broken)?;
        *budget = if spent.exhausted && *budget < BUDGET { 0 } else { budget.saturating_sub(spent.cost) };
        let found = found.map_err(|error| EvalError(error_text(&error)))?;
        Value::of(found).ok_or_else(|| EvalError("the result is of a type that has no JSON".to_owned()))
    }
}

/// Variables with their values.
pub struct Scope<'p> {
    context: Context<'p>,
}

impl Scope<'static> {
    /// A scope without variables.
    pub fn root() -> Self {
        Self { context: environment().new_inner_scope() }
    }
}

impl<'p> Scope<'p> {
    /// A scope without variables, in which the methods of `library` are known.
    pub fn of(library: &'p Library) -> Self {
        Self { context: library.context().new_inner_scope() }
    }

    /// A nested scope, to which more variables can be added.
    pub fn inner(&self) -> Scope<'_> {
        Scope { context: self.context.new_inner_scope() }
    }

    /// Sets a variable. Copies the value.
    pub fn bind(&mut self, name: &str, value: &serde_json::Value) {
        self.context.add_variable_from_value(name, from_json(value));
    }

    /// Sets a variable to a map with one entry, a time in RFC 3339.
    pub fn bind_time(&mut self, name: &str, key: &str, time: &str) {
        let time = timestamp(time).unwrap_or(Cel::Null);
        let map: std::collections::HashMap<String, Cel> = [(key.to_owned(), time)].into();
        self.context.add_variable_from_value(name, map);
    }
}
