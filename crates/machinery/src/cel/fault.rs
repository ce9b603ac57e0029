//! What is wrong with the text of an expression, as cel-go shows it: with the place, and the line that it is in.

use kube_cel::cel::{ExecutionError, ParseError, ParseErrors, Value as Cel};

/// Faults that are shown; the rest of them is not.
const SHOWN: usize = 100;

/// One fault of an expression.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    /// Number of the line, from 1.
    line: usize,
    /// Characters before it in the line.
    column: usize,
    message: String,
}

impl Fault {
    /// A fault whose line and column are known; both count from 1.
    pub(crate) fn new(line: usize, column: usize, message: String) -> Self {
        Self { line, column: column.saturating_sub(1), message }
    }

    /// A fault of what begins behind that many bytes of `source`.
    pub(crate) fn at(source: &str, offset: usize, message: String) -> Self {
        let before = source.get(..offset).unwrap_or_default();
        let column = before.rsplit('\n').next().map_or(0, |line| line.chars().count());
        Self { line: 1 + before.matches('\n').count(), column, message }
    }

    fn show(&self, source: &str) -> String {
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

/// What keeps `source` from being read.
pub(crate) fn unread(source: &str, errors: ParseErrors) -> String {
    let at = |number: isize| usize::try_from(number).unwrap_or_default();
    let fault = |error: ParseError| Fault::new(at(error.pos.0), at(error.pos.1), error.msg);
    show(source, errors.errors.into_iter().map(fault).collect())
}

/// All faults of `source`, in their order there.
pub(crate) fn show(source: &str, mut faults: Vec<Fault>) -> String {
    faults.sort_by_key(|fault| (fault.line, fault.column));
    let shown: Vec<String> = faults.iter().take(SHOWN).map(|fault| fault.show(source)).collect();
    shown.join("\n")
}

/// The text of a run-time error, as cel-go has it.
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

    /// KS-170: as cel-go shows them, wide characters and tabs among them.
    #[test]
    fn ks_170_faults_have_places_and_lines() {
        let source = "a\tb ==\n 'é' + c";
        let last = Fault::at(source, source.len() - 1, "two".into());
        let first = Fault::new(1, 3, "one".into());
        assert_eq!(
            show(source, vec![last, first]),
            "ERROR: <input>:1:3: one\n | a b ==\n | ..^\nERROR: <input>:2:8: two\n |  'é' + c\n | ..．....^"
        );
        assert_eq!(show("é", vec![Fault::at("é", 0, "x".into())]), "ERROR: <input>:1:1: x\n | é\n | ＾");
        assert_eq!(
            show("(", vec![Fault::new(1, 2, "x".into())]),
            "ERROR: <input>:1:2: x\n | (\n | .^",
            "behind the end"
        );
        assert_eq!(show("", vec![Fault::new(1, 1, "x".into())]), "ERROR: <input>:1:0: x");
    }
}
