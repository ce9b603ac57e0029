//! Errors in the text of an expression, printed as cel-go prints them, with position and line.

use kube_cel::cel::{ExecutionError, ParseError, ParseErrors, Value as Cel};

/// Most errors that are printed.
const SHOWN: usize = 100;

/// One error of an expression.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SourceError {
    /// Line number, from 1.
    line: usize,
    /// Characters before the error in its line.
    column: usize,
    message: String,
}

impl SourceError {
    /// An error at a line and a column. Both count from 1.
    pub(crate) fn new(line: usize, column: usize, message: String) -> Self {
        Self { line, column: column.saturating_sub(1), message }
    }

    /// An error at a byte offset of `source`.
    pub(crate) fn at(source: &str, offset: usize, message: String) -> Self {
        let before = source.get(..offset).unwrap_or_default();
        let column = before.rsplit('\n').next().map_or(0, |line| line.chars().count());
        Self { line: 1 + before.matches('\n').count(), column, message }
    }

    fn print_errors(&self, source: &str) -> String {
        if source.is_empty() {
            return format!("ERROR: <input>:1:0: {}", self.message);
        }
        let mut shown = format!("ERROR: <input>:{}:{}: {}", self.line, self.column + 1, self.message);
        let Some(line) = source.split('\n').nth(self.line.saturating_sub(1)) else { return shown };
        let mut rest = line.chars();
        let dots: String =
            rest.by_ref().take(self.column).map(|c| if c.is_ascii() { '.' } else { '．' }).collect();
        let mark = if rest.next().is_none_or(|c| c.is_ascii()) { '^' } else { '＾' };
        shown.push_str(&format!("\n | {}\n | {dots}{mark}", line.replace('\t', " ")));
        shown
    }
}

/// Prints parse errors of `source`.
pub(crate) fn parse_errors(source: &str, errors: ParseErrors) -> String {
    let at = |number: isize| usize::try_from(number).unwrap_or_default();
    let fault = |error: ParseError| SourceError::new(at(error.pos.0), at(error.pos.1), error.msg);
    print_errors(source, errors.errors.into_iter().map(fault).collect())
}

/// Prints all errors of `source`, sorted by position.
pub(crate) fn print_errors(source: &str, mut faults: Vec<SourceError>) -> String {
    faults.sort_by_key(|fault| (fault.line, fault.column));
    let shown: Vec<String> = faults.iter().take(SHOWN).map(|fault| fault.print_errors(source)).collect();
    shown.join("\n")
}

/// The text of a run-time error, as cel-go prints it.
pub(crate) fn error_text(error: &ExecutionError) -> String {
    match error {
        ExecutionError::NoSuchKey(key) => format!("no such key: {key}"),
        ExecutionError::NoSuchOverload
        | ExecutionError::ValuesNotComparable(..)
        | ExecutionError::UnsupportedBinaryOperator(..)
        | ExecutionError::UnsupportedUnaryOperator(..)
        | ExecutionError::UnexpectedType { .. } => "no such overload".to_owned(),
        ExecutionError::UndeclaredReference(name) => {
            format!("undeclared reference to '{name}' (in container '')")
        }
        ExecutionError::DivisionByZero(_) => "division by zero".to_owned(),
        ExecutionError::RemainderByZero(_) => "modulus by zero".to_owned(),
        ExecutionError::Overflow(..) => "integer overflow".to_owned(),
        ExecutionError::IndexOutOfBounds(index) => match index {
            Cel::Int(at) => format!("index out of bounds: {at}"),
            _ => "index out of bounds".to_owned(),
        },
        ExecutionError::FunctionError { message, .. } => message.clone(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// KS-170: errors are printed as by cel-go, also after wide characters and tabs.
    #[test]
    fn ks_170_faults_have_places_and_lines() {
        let source = "a\tb ==\n 'é' + c";
        let last = SourceError::at(source, source.len() - 1, "two".into());
        let first = SourceError::new(1, 3, "one".into());
        assert_eq!(
            print_errors(source, vec![last, first]),
            "ERROR: <input>:1:3: one\n | a b ==\n | ..^\nERROR: <input>:2:8: two\n |  'é' + c\n | ..．....^"
        );
        assert_eq!(
            print_errors("é", vec![SourceError::at("é", 0, "x".into())]),
            "ERROR: <input>:1:1: x\n | é\n | ＾"
        );
        assert_eq!(
            print_errors("(", vec![SourceError::new(1, 2, "x".into())]),
            "ERROR: <input>:1:2: x\n | (\n | .^",
            "behind the end"
        );
        assert_eq!(print_errors("", vec![SourceError::new(1, 1, "x".into())]), "ERROR: <input>:1:0: x");
    }
}
