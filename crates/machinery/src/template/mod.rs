//! Go's `text/template`, over a map of strings (KS-121 … KS-123).
//!
//! Supports the whole language: actions, pipelines, variables, `if`, `with`, `range`, `define`, `template`, `block`,
//! `break`, `continue`, comments, trimming and the predefined functions. There are no custom functions, and no types
//! other than booleans, numbers, strings and the one map. A key that the map lacks is an error (`missingkey=error`).
//!
//! Templates come from outside, so [`Limits`] bound everything: the source, its nesting, the steps, and the length of
//! the output and of intermediate texts. This is our own implementation because existing libraries bound neither steps
//! nor intermediate texts.
//!
//! Differences from Go: complex numbers are refused, texts are UTF-8 (half a character becomes `�`), and error texts
//! are similar but not equal.

mod exec;
mod format;
mod functions;
mod lex;
mod literal;
mod parse;
mod tree;
mod value;

use std::{collections::BTreeMap, fmt, sync::Arc};

/// Limits of one expansion (KS-123).
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Most bytes of source.
    pub source: usize,
    /// Most bytes of output, and of any intermediate text.
    pub output: usize,
    /// Most executed nodes and commands. 64 bytes of text count as one more.
    pub steps: usize,
    /// Most nested invocations of templates.
    pub depth: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { source: 64 * 1024, output: 1024 * 1024, steps: 100_000, depth: 100 }
    }
}

/// An error of a template, or of its expansion.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TemplateError {
    /// Byte offset in the source.
    at: usize,
    /// Offset of the action that the error cuts short, if there is one.
    action: Option<usize>,
    stage: Stage,
    context: String,
    message: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Stage {
    Parsing,
    Body,
    /// The error is in a template that the source defines.
    Defined(String),
}

impl TemplateError {
    fn parse(at: usize, message: impl Into<String>) -> Self {
        Self { at, action: None, stage: Stage::Parsing, context: String::new(), message: message.into() }
    }
}

/// A [`TemplateError`] with the name of its template, for users.
#[derive(Debug, thiserror::Error)]
pub struct Error {
    name: String,
    line: usize,
    column: usize,
    /// Line of the action with the error, if it is another line.
    action: Option<usize>,
    fault: Box<TemplateError>,
}

impl fmt::Display for Error {
    /// Prints one line, whatever the template contains.
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

/// A parsed template. It can be expanded any number of times.
pub struct Template {
    source: Arc<str>,
    parsed: Result<parse::Parsed, TemplateError>,
}

impl fmt::Debug for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Template").field("source", &self.source).finish_non_exhaustive()
    }
}

impl Template {
    /// Parses `source`. [`Template::expand`] reports parse errors, because it knows a name for the template.
    pub fn new(source: &str, limits: &Limits) -> Self {
        let parsed = if source.len() > limits.source {
            let problem =
                format!("the template has {} bytes; at most {} are allowed", source.len(), limits.source);
            Err(TemplateError::parse(0, problem))
        } else {
            parse::parse(source)
        };
        Self { source: source.into(), parsed }
    }

    /// Executes the template with `data` as its dot. Errors call it `name`.
    ///
    /// # Errors
    /// The template does not parse, its execution fails, or it exceeds a limit.
    pub fn expand(
        &self,
        name: &str,
        data: &Arc<BTreeMap<String, String>>,
        limits: &Limits,
    ) -> Result<String, Error> {
        self.expand_counting(name, data, limits).0
    }

    /// [`Self::expand`], with the number of steps, for limits over several templates.
    ///
    /// # Errors
    /// As for [`Self::expand`].
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

    fn error(&self, name: &str, fault: TemplateError) -> Error {
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
