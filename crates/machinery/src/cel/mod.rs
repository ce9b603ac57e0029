//! CEL expressions of users, outside of schemas: compiled once, and stopped when they need too much work.
//!
//! The functions are those of rules ([`crate::rules`]): CEL's own and those of Kubernetes. The work is counted while it is
//! done, for rules too: loops, comparisons, and functions pay for the values that they walk over or make (`meter`). What
//! runs out of budget ends with an error.
//!
//! Evaluation is synchronous and takes a second at the worst; callers keep it off threads that others wait for.

mod access;
mod check;
mod fault;
mod logic;
mod meter;
mod names;
mod source;
mod standard;
#[cfg(test)]
mod tests;
mod times;
mod types;
mod value;

use std::collections::BTreeSet;
use std::panic::AssertUnwindSafe;

use kube_cel::cel::common::ast::IdedExpr;
use kube_cel::cel::{Context, ExecutionError, Value as Cel};

pub(crate) use fault::{Fault, show, unread};
pub(crate) use meter::{BUDGET, Spent, environment, own_environment};
pub use value::Value;

use crate::rules;

/// Why an expression is none. The text has all that is wrong, each with its place and line, as cel-go shows it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CompileError {
    /// It can't be read.
    #[error("{0}")]
    Unread(String),
    /// It uses what nobody declared, or operators where they don't fit.
    #[error("{0}")]
    Unfit(String),
}

/// Why an expression has no value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct EvalError(String);

/// A variable that expressions may use. All of them are maps.
#[derive(Clone, Copy, Debug)]
pub struct Variable<'n> {
    /// Its name.
    pub name: &'n str,
    /// Whether its values are texts; else nothing is known of them.
    pub texts: bool,
}

impl<'n> Variable<'n> {
    /// A map to anything.
    pub const fn map(name: &'n str) -> Self {
        Self { name, texts: false }
    }

    /// A map to texts.
    pub const fn texts(name: &'n str) -> Self {
        Self { name, texts: true }
    }
}

/// A compiled expression.
#[derive(Clone, Debug)]
pub struct Expression {
    metered: Metered,
    variables: BTreeSet<String>,
}

/// An expression that pays for what it does.
#[derive(Clone, Debug)]
pub(crate) struct Metered {
    root: IdedExpr,
    depth: usize,
}

/// What a run of a [`Metered`] expression came to; nothing if it could not be run.
pub(crate) type Outcome = Option<(Result<Cel, ExecutionError>, Spent)>;

impl Metered {
    /// Of a parsed expression that is nested this deep.
    pub(crate) fn new(mut root: IdedExpr, depth: usize) -> Self {
        meter::rewrite(&mut root);
        Self { root, depth }
    }

    /// How deep it is nested.
    pub(crate) fn depth(&self) -> usize {
        self.depth
    }

    /// Runs it in a scope below [`environment`], for at most `budget`.
    pub(crate) fn run(&self, context: &Context, budget: u64) -> Outcome {
        let run = || meter::with_budget(budget, || Cel::resolve(&self.root, context));
        if self.depth <= DEEP {
            return std::panic::catch_unwind(AssertUnwindSafe(run)).ok();
        }
        std::thread::scope(|threads| {
            let stack = self.depth.saturating_mul(LEVEL_STACK).max(DEEP_STACK);
            let runner = std::thread::Builder::new().stack_size(stack).spawn_scoped(threads, run);
            runner.ok()?.join().ok()
        })
    }
}

/// What is nested deeper is run on a thread of its own, as the evaluator takes some 10 KiB of stack for each level, several
/// times that without optimisation. Only what is used of a stack is memory.
const DEEP: usize = 16;
const DEEP_STACK: usize = 64 << 20;
const LEVEL_STACK: usize = 128 << 10;

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
        let found = found.map_err(|error| EvalError(rules::words(&error)))?;
        Value::of(found).ok_or_else(|| EvalError("the result is of a type that has no JSON".to_owned()))
    }
}

/// Variables with their values.
pub struct Scope<'p>(Context<'p>);

impl Scope<'static> {
    /// No variables.
    pub fn root() -> Self {
        Self(meter::environment().new_inner_scope())
    }
}

impl Scope<'_> {
    /// A scope with these variables, and room for more.
    pub fn inner(&self) -> Scope<'_> {
        Scope(self.0.new_inner_scope())
    }

    /// Gives a variable a value. Costs a copy.
    pub fn bind(&mut self, name: &str, value: &serde_json::Value) {
        self.0.add_variable_from_value(name, rules::plain(value));
    }

    /// Gives a variable the value of a map with one time, written as RFC 3339 has it.
    pub fn bind_time(&mut self, name: &str, key: &str, time: &str) {
        let time = rules::timestamp(time).unwrap_or(Cel::Null);
        let map: std::collections::HashMap<String, Cel> = [(key.to_owned(), time)].into();
        self.0.add_variable_from_value(name, map);
    }
}
