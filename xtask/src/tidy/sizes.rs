//! Long files and functions: printed, never forbidden.

use super::source::{Crate, closing};

const FILE_LINES: usize = 600;
const FUNCTION_LINES: usize = 80;

/// One line for each long file and function outside of tests.
pub(crate) fn check(one: &Crate) -> Vec<String> {
    let mut found = Vec::new();
    for file in one.files.iter().filter(|file| !file.is_test()) {
        let lines = file.text.lines().count();
        if lines > FILE_LINES {
            found.push(format!("{}: {lines} lines", file.path.display()));
        }
        for (name, line, lines) in functions(&file.code) {
            if lines > FUNCTION_LINES {
                found.push(format!("{}:{line}: fn {name} has {lines} lines", file.path.display()));
            }
        }
    }
    found
}

/// Name, first line and number of lines of each function with a body.
fn functions(code: &str) -> Vec<(&str, usize, usize)> {
    let starts = code.match_indices("fn ").map(|(start, _)| start);
    let whole = starts.filter(|&start| code[..start].ends_with([' ', '\n']) || start == 0);
    whole
        .filter_map(|start| {
            let rest = &code[start..];
            let open = rest.find('{')?;
            if rest.find(';').is_some_and(|end| end < open) {
                return None;
            }
            let name = rest[3..].split(|c: char| !c.is_alphanumeric() && c != '_').next()?;
            let line = code[..start].matches('\n').count() + 1;
            Some((name, line, rest[..closing(rest, open)].matches('\n').count() + 1))
        })
        .collect()
}
