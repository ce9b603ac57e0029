//! CEL expressions of users, outside of schemas: compiled once, and stopped when they need too much work.
//!
//! The functions are those of rules ([`crate::rules`]): CEL's own and those of Kubernetes. The work is counted while it is
//! done, for rules too: loops, comparisons, and functions pay for the values that they walk over or make (`meter`). What
//! runs out of budget ends with an error.
//!
//! Evaluation is synchronous and takes a second at the worst; callers keep it off threads that others wait for.

mod access;
mod ast;
pub(crate) mod budget;
mod check;
pub(crate) mod convert;
pub(crate) mod environment;
mod expression;
mod fault;
mod functions;
mod logic;
pub(crate) mod metered;
pub(crate) mod names;
pub(crate) mod read;
mod rewrite;
mod runtime_type;
mod source;
mod standard;
#[cfg(test)]
mod tests;
mod text;
mod times;
mod types;
mod unary;
mod value;

pub use check::Variable;
pub use expression::{EvalError, Expression, Scope};
pub(crate) use fault::{Fault, error_text, show, unread};
pub use source::CompileError;
pub use value::Value;
