//! CEL expressions of users, outside of schemas. They are compiled once, and stopped when they exceed their budget.
//!
//! The functions are those of rules ([`crate::rules`]): CEL's own and those of Kubernetes. The work is counted while
//! it is done, for rules too: loops, comparisons and functions pay for the values that they visit or create (`budget`,
//! `rewrite`). An expression without budget ends with an error.
//!
//! Evaluation is synchronous and takes up to a second, so callers must not run it on an async thread.

mod access;
mod ast;
pub(crate) mod budget;
mod check;
pub(crate) mod convert;
pub(crate) mod environment;
mod expression;
mod functions;
mod library;
mod logic;
pub(crate) mod metered;
pub(crate) mod names;
pub(crate) mod parse_guarded;
mod rewrite;
mod runtime_type;
mod source;
mod source_error;
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
pub use library::Library;
pub use source::CompileError;
pub(crate) use source_error::{SourceError, error_text, parse_errors, print_errors};
pub use value::Value;
