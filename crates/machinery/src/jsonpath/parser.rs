//! Parsing of paths.

use serde_json::Value;

use super::{Filter, JsonPathError, Operand, Step, Test};

/// Most bytes of a path.
const LENGTH_MAX: usize = 8 * 1024;
/// Most nesting levels of filters and unions.
const DEPTH_MAX: usize = 8;

type Result<T> = std::result::Result<T, JsonPathError>;

pub(super) fn parse(text: &str) -> Result<Vec<Step>> {
    if text.len() > LENGTH_MAX {
        return Err(error("path is too long"));
    }
    let text = text.trim();
    let text = text.strip_prefix(['$', '@']).unwrap_or(text);
    steps(text, 0)
}

fn error(text: impl Into<String>) -> JsonPathError {
    JsonPathError(text.into())
}

fn steps(mut rest: &str, depth: usize) -> Result<Vec<Step>> {
    let mut out = Vec::new();
    while !rest.is_empty() {
        if let Some(after) = rest.strip_prefix("..") {
            out.push(Step::Descend);
            if after.is_empty() || after.starts_with('.') {
                return Err(error("unexpected end of recursive descent"));
            }
            // A name, a wildcard or brackets follow.
            rest = if after.starts_with('[') { after } else { name(after, &mut out)? };
        } else if let Some(after) = rest.strip_prefix('.') {
            // A single dot is the root, and `.[0]` is `[0]`.
            rest = if after.is_empty() || after.starts_with('[') { after } else { name(after, &mut out)? };
        } else if let Some(after) = rest.strip_prefix('[') {
            let (inside, after) = brackets(after)?;
            out.push(bracket(inside.trim(), depth)?);
            rest = after;
        } else if out.is_empty() {
            rest = name(rest, &mut out)?;
        } else {
            return Err(error(format!("unrecognized character in action: {:?}", first(rest))));
        }
    }
    Ok(out)
}

fn first(text: &str) -> char {
    text.chars().next().unwrap_or('\0')
}

/// Parses a name up to the next dot or bracket. A backslash escapes the next character.
fn name<'a>(text: &'a str, out: &mut Vec<Step>) -> Result<&'a str> {
    let mut name = String::new();
    let mut escaped = false;
    let mut end = text.len();
    for (i, c) in text.char_indices() {
        match c {
            _ if escaped => {
                name.push(c);
                escaped = false;
            }
            '\\' => escaped = true,
            '.' | '[' => {
                end = i;
                break;
            }
            ' ' | '\t' | '\r' | '\n' | '|' | ',' | ']' | '{' | '}' | '(' | ')' => {
                return Err(error(format!("unrecognized character in action: {c:?}")));
            }
            _ => name.push(c),
        }
    }
    if escaped {
        return Err(error("unexpected end after backslash"));
    }
    match name.as_str() {
        "" => return Err(error("a name is missing")),
        "*" if text.starts_with('*') => out.push(Step::Wildcard),
        _ => out.push(Step::Field(name)),
    }
    Ok(text.get(end..).unwrap_or_default())
}

/// The text up to the closing bracket, and the rest.
fn brackets(text: &str) -> Result<(&str, &str)> {
    let end = scan(text, |c, open| c == ']' && open == 0).ok_or_else(|| error("unterminated array"))?;
    let (inside, after) = text.split_at_checked(end).unwrap_or((text, ""));
    Ok((inside, after.get(1..).unwrap_or_default()))
}

/// The position of the first character outside of quotes that satisfies `found`, which gets the number of open
/// brackets.
fn scan(text: &str, mut found: impl FnMut(char, usize) -> bool) -> Option<usize> {
    let mut quote: Option<char> = None;
    let mut open = 0_usize;
    let mut escaped = false;
    for (i, c) in text.char_indices() {
        if escaped {
            escaped = false;
            continue;
        }
        match (quote, c) {
            (_, '\\') => escaped = true,
            (Some(q), c) if c == q => quote = None,
            (Some(_), _) => {}
            (None, '\'' | '"') => quote = Some(c),
            (None, c) => {
                if found(c, open) {
                    return Some(i);
                }
                match c {
                    '[' | '(' => open += 1,
                    ']' | ')' => open = open.saturating_sub(1),
                    _ => {}
                }
            }
        }
    }
    None
}

fn bracket(text: &str, depth: usize) -> Result<Step> {
    if depth >= DEPTH_MAX {
        return Err(error("filters are nested too deeply"));
    }
    if text == "*" {
        return Ok(Step::Wildcard);
    }
    if let Some(filter) = text.strip_prefix("?(") {
        let filter = filter.strip_suffix(')').ok_or_else(|| error("unclosed filter expression"))?;
        return Ok(Step::Filter(Box::new(self::filter(filter.trim(), depth + 1)?)));
    }
    let parts = split(text);
    if parts.len() > 1 {
        let parts: Result<Vec<Vec<Step>>> =
            parts.into_iter().map(|p| union_member(p.trim(), depth + 1)).collect();
        return Ok(Step::Union(parts?));
    }
    match unquote(text) {
        Some(name) => Ok(Step::Field(name?)),
        None => index(text),
    }
}

/// Splits at commas outside of quotes and brackets.
fn split(text: &str) -> Vec<&str> {
    let mut parts = Vec::new();
    let mut rest = text;
    while let Some(at) = scan(rest, |c, open| c == ',' && open == 0) {
        let (part, after) = rest.split_at_checked(at).unwrap_or((rest, ""));
        parts.push(part);
        rest = after.get(1..).unwrap_or_default();
    }
    parts.push(rest);
    parts
}

/// Parses a member of `[a,b]`: a quoted name, an index or slice, or a path.
fn union_member(text: &str, depth: usize) -> Result<Vec<Step>> {
    let numeric = text.starts_with(|c: char| c.is_ascii_digit() || matches!(c, '-' | ':'));
    if numeric || text == "*" || text.starts_with(['\'', '"', '?']) {
        return Ok(vec![bracket(text, depth)?]);
    }
    if text.is_empty() {
        return Err(error("invalid array index "));
    }
    steps(text, depth)
}

/// The text inside quotes; `None` if it is not quoted.
fn unquote(text: &str) -> Option<Result<String>> {
    let quote = text.chars().next().filter(|c| matches!(c, '\'' | '"'))?;
    let unterminated = || error("unterminated quoted string");
    let Some(inner) = text.get(1..).and_then(|t| t.strip_suffix(quote)) else {
        return Some(Err(unterminated()));
    };
    let mut out = String::new();
    let mut chars = inner.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => match chars.next() {
                None => return Some(Err(unterminated())),
                Some('n') => out.push('\n'),
                Some('t') => out.push('\t'),
                Some('r') => out.push('\r'),
                Some(other) => out.push(other),
            },
            c if c == quote => return Some(Err(error(format!("invalid array index {text}")))),
            c => out.push(c),
        }
    }
    Some(Ok(out))
}

fn index(text: &str) -> Result<Step> {
    let bad = || error(format!("invalid array index {text}"));
    let number = |t: &str| t.trim().parse::<i64>().map_err(|_| bad());
    let optional = |t: Option<&str>| t.map(str::trim).filter(|t| !t.is_empty()).map(number).transpose();
    if !text.contains(':') {
        return Ok(Step::Index(number(text)?));
    }
    let parts: Vec<&str> = text.split(':').collect();
    if parts.len() > 3 {
        return Err(bad());
    }
    let step = optional(parts.get(2).copied())?.unwrap_or(1);
    if step < 1 {
        return Err(error("step must be > 0"));
    }
    Ok(Step::Slice { start: optional(parts.first().copied())?, end: optional(parts.get(1).copied())?, step })
}

fn filter(text: &str, depth: usize) -> Result<Filter> {
    let at = scan(text, |c, open| open == 0 && matches!(c, '=' | '!' | '<' | '>'));
    let Some(at) = at else {
        return Ok(Filter {
            left: operand(text, depth)?,
            test: Test::Exists,
            right: Operand::Literal(Value::Null),
        });
    };
    let (left, rest) = text.split_at_checked(at).unwrap_or((text, ""));
    let tests = [
        ("==", Test::Equal),
        ("!=", Test::NotEqual),
        ("<=", Test::LessOrEqual),
        (">=", Test::GreaterOrEqual),
        ("<", Test::Less),
        (">", Test::Greater),
    ];
    let found = tests.into_iter().find_map(|(sign, test)| rest.strip_prefix(sign).map(|right| (test, right)));
    let (test, right) = found.ok_or_else(|| error(format!("unrecognized filter operator in {text:?}")))?;
    Ok(Filter { left: operand(left.trim(), depth)?, test, right: operand(right.trim(), depth)? })
}

fn operand(text: &str, depth: usize) -> Result<Operand> {
    if let Some(quoted) = unquote(text) {
        return Ok(Operand::Literal(Value::String(quoted?)));
    }
    if let Some(path) = text.strip_prefix(['@', '$']) {
        return Ok(Operand::Path(steps(path, depth)?));
    }
    if text.starts_with(['.', '[']) {
        return Ok(Operand::Path(steps(text, depth)?));
    }
    match text {
        "true" => Ok(Operand::Literal(Value::Bool(true))),
        "false" => Ok(Operand::Literal(Value::Bool(false))),
        "null" => Ok(Operand::Literal(Value::Null)),
        _ => {
            let number: Option<serde_json::Number> = text.parse().ok();
            let number = number.ok_or_else(|| error(format!("cannot parse filter operand {text:?}")))?;
            Ok(Operand::Literal(Value::Number(number)))
        }
    }
}
