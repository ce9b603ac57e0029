//! Go's `text/template`, over a map of texts (KS-121 … KS-123).
//!
//! The whole language: actions, pipelines, variables, `if`, `with`, `range`, `define`, `template`, `block`, `break`,
//! `continue`, comments, trimming and the predefined functions. Beside it, nothing: no functions of a user's own, no
//! types but booleans, numbers, texts and the one map. A key that the map lacks is an error (`missingkey=error`).
//!
//! Templates come from outside, so everything is bounded ([`Limits`]): the source, what it may nest, the steps it takes,
//! the length of its output and of every text on the way. Own code, since the libraries for it bound neither steps nor
//! texts on the way.
//!
//! Where it differs from Go: complex numbers are refused, texts are UTF-8 (cutting a character in half leaves `�`), and
//! errors read alike but not the same.

mod exec;
mod format;
mod functions;
mod lex;
mod literal;
mod parse;
mod tree;
mod value;

use std::{collections::BTreeMap, fmt, sync::Arc};

/// What one expansion may cost (KS-123).
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes of source.
    pub source: usize,
    /// Bytes of output, and of any text on the way to it.
    pub output: usize,
    /// Nodes and commands executed; 64 bytes of text count as one more.
    pub steps: usize,
    /// Templates that invoke each other.
    pub depth: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { source: 64 * 1024, output: 1024 * 1024, steps: 100_000, depth: 100 }
    }
}

/// What is wrong with a template, or with its expansion over some data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Offset in the source.
    at: usize,
    /// Offset of the action that it ends before its time, if there is one.
    action: Option<usize>,
    stage: Stage,
    context: String,
    message: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Stage {
    Parsing,
    Body,
    /// Executing a template that the source defines.
    Defined(String),
}

impl Fault {
    fn parse(at: usize, message: impl Into<String>) -> Self {
        Self { at, action: None, stage: Stage::Parsing, context: String::new(), message: message.into() }
    }
}

/// A [`Fault`] with the name of its template, for a user.
#[derive(Debug, thiserror::Error)]
pub struct Error {
    name: String,
    line: usize,
    column: usize,
    /// Line of the action that the fault is in, if that is another.
    action: Option<usize>,
    fault: Box<Fault>,
}

impl fmt::Display for Error {
    /// One line, whatever the template holds.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, line, column, action, fault } = self;
        let of = match &fault.stage {
            Stage::Parsing => None,
            Stage::Body => Some(name),
            Stage::Defined(inner) => Some(inner),
        };
        let text = match of {
            None => {
                let started = action.map_or_else(String::new, |action| {
                    let of = if fault.message.ends_with(" action") { "" } else { " in action" };
                    format!("{of} started at {name}:{action}")
                });
                format!("template: {name}:{line}: {}{started}", fault.message)
            }
            Some(of) => {
                let at = shortened(&fault.context);
                let at = if at.is_empty() { at } else { format!(" at <{at}>") };
                format!("template: {name}:{line}:{column}: executing {of:?}{at}: {}", fault.message)
            }
        };
        f.write_str(&text.replace(|c: char| c.is_control(), " "))
    }
}

fn shortened(text: &str) -> String {
    const MOST: usize = 60;
    if text.chars().count() <= MOST {
        return text.to_owned();
    }
    text.chars().take(MOST).chain("...".chars()).collect()
}

/// A parsed template, to be expanded any number of times.
pub struct Template {
    source: Arc<str>,
    parsed: Result<parse::Parsed, Fault>,
}

impl fmt::Debug for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Template").field("source", &self.source).finish_non_exhaustive()
    }
}

impl Template {
    /// Parses `source`. What is wrong with it is told by [`Template::expand`], which knows a name for it.
    pub fn new(source: &str, limits: &Limits) -> Self {
        let parsed = if source.len() > limits.source {
            let problem =
                format!("the template has {} bytes; at most {} are allowed", source.len(), limits.source);
            Err(Fault::parse(0, problem))
        } else {
            parse::parse(source)
        };
        Self { source: source.into(), parsed }
    }

    /// Executes the template with `data` as its dot. `name` stands for it in errors.
    pub fn expand(
        &self,
        name: &str,
        data: &Arc<BTreeMap<String, String>>,
        limits: &Limits,
    ) -> Result<String, Error> {
        self.expand_counting(name, data, limits).0
    }

    /// The same, and how many steps it took: for limits over several templates.
    pub fn expand_counting(
        &self,
        name: &str,
        data: &Arc<BTreeMap<String, String>>,
        limits: &Limits,
    ) -> (Result<String, Error>, usize) {
        let (expanded, steps) = match &self.parsed {
            Ok(parsed) => exec::execute(parsed, name, data.clone(), limits),
            Err(fault) => (Err(fault.clone()), 0),
        };
        (expanded.map_err(|fault| self.error(name, fault)), steps)
    }

    fn error(&self, name: &str, fault: Fault) -> Error {
        let before = self.source.get(..fault.at).unwrap_or_default();
        let line_of = |text: &str| 1 + text.matches('\n').count();
        let line = line_of(before);
        let action =
            fault.action.and_then(|at| self.source.get(..at)).map(line_of).filter(|action| *action != line);
        let column = before.len() - before.rfind('\n').map_or(0, |newline| newline + 1);
        Error { name: name.to_owned(), line, column, action, fault: Box::new(fault) }
    }
}

#[cfg(test)]
mod tests;
