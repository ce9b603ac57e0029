//! From text to an expression that is safe to run.

use std::sync::Arc;

use kube_cel::cel::common::ast::{IdedExpr, SourceInfo};
use kube_cel::cel::parser::Parser;

use super::check::{self, CheckResult, MAX_DEPTH, Variable};
use super::parse_guarded::parse_guarded;
use super::source_error::{SourceError, parse_errors, print_errors};

/// Why an expression does not compile. The text lists all errors with positions, as cel-go prints them.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CompileError {
    /// The expression does not parse.
    #[error("{0}")]
    Parse(String),
    /// The expression uses undeclared names, or operators with operands that do not fit.
    #[error("{0}")]
    Check(String),
}

/// Parses and checks `source`, with the declared variables `known`, and with `methods` beside the usual functions.
pub(super) fn parse(
    source: &str,
    known: &[Variable],
    methods: &[&str],
) -> Result<(IdedExpr, CheckResult), CompileError> {
    // The parsed text may have spaces where the source has operators; errors show the source.
    let read = |read: &str| Ok(parse_and_check(source, read, known, methods));
    parse_guarded(source, read).map_err(CompileError::Parse)?
}

fn parse_and_check(
    source: &str,
    read: &str,
    known: &[Variable],
    methods: &[&str],
) -> Result<(IdedExpr, CheckResult), CompileError> {
    let root =
        Parser::default().parse(read).map_err(|errors| CompileError::Parse(parse_errors(source, errors)))?;
    let facts = check::check(&root, known, methods);
    if facts.depth > MAX_DEPTH {
        return Err(CompileError::Parse(format!("nested more than {MAX_DEPTH} levels deep")));
    }
    if facts.faults.is_empty() {
        return Ok((root, facts));
    }
    let source_positions = source_positions(read);
    let place = |id: u64| {
        source_positions
            .as_ref()
            .and_then(|source_positions| source_positions.offset_for(id))
            .map_or(0, |(start, _)| start as usize)
    };
    let faults = facts.faults.into_iter().map(|(id, message)| SourceError::at(source, place(id), message));
    Err(CompileError::Check(print_errors(source, faults.collect())))
}

/// The positions of the nodes of a valid expression, by id. The parser returns positions only with errors, so this
/// adds one: a bracket at the end.
fn source_positions(source: &str) -> Option<Arc<SourceInfo>> {
    let errors = Parser::default().parse(&format!("{source}\n)")).err()?;
    errors.errors.into_iter().find_map(|error| error.source_info)
}
