//! From text to an expression that is safe to run.

use std::sync::Arc;

use kube_cel::cel::common::ast::{IdedExpr, SourceInfo};
use kube_cel::cel::parser::Parser;

use super::check::{self, Facts, MAX_DEPTH, Variable};
use super::fault::{Fault, show, unread};
use super::read::guarded;

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

/// Parses `source`, whose variables must be among `known`.
pub(super) fn parse(source: &str, known: &[Variable]) -> Result<(IdedExpr, Facts), CompileError> {
    // What is read may have blanks where the source has not; what is shown is the source.
    let read = |read: &str| Ok(look(source, read, known));
    guarded(source, read).map_err(CompileError::Unread)?
}

fn look(source: &str, read: &str, known: &[Variable]) -> Result<(IdedExpr, Facts), CompileError> {
    let root =
        Parser::default().parse(read).map_err(|errors| CompileError::Unread(unread(source, errors)))?;
    let facts = check::check(&root, known);
    if facts.depth > MAX_DEPTH {
        return Err(CompileError::Unread(format!("nested more than {MAX_DEPTH} levels deep")));
    }
    if facts.faults.is_empty() {
        return Ok((root, facts));
    }
    let places = places(read);
    let place = |id: u64| {
        places.as_ref().and_then(|places| places.offset_for(id)).map_or(0, |(start, _)| start as usize)
    };
    let faults = facts.faults.into_iter().map(|(id, message)| Fault::at(source, place(id), message));
    Err(CompileError::Unfit(show(source, faults.collect())))
}

/// Where the parts of a sound expression are, by their ids. The reader says so together with errors only, so it is given
/// one: a bracket behind the end.
fn places(source: &str) -> Option<Arc<SourceInfo>> {
    let errors = Parser::default().parse(&format!("{source}\n)")).err()?;
    errors.errors.into_iter().find_map(|error| error.source_info)
}
