//! The predefined functions. There are no others.

use std::{cmp::Ordering, sync::Arc};

use super::{
    format::{self, Printer, is_printable},
    value::Value,
};

/// A predefined function.
#[derive(Clone, Copy, Debug)]
pub(super) struct Function {
    name: &'static str,
    least: usize,
    most: Option<usize>,
}

const fn fixed(name: &'static str, count: usize) -> Function {
    Function { name, least: count, most: Some(count) }
}

const fn variadic(name: &'static str, least: usize) -> Function {
    Function { name, least, most: None }
}

const ALL: [Function; 19] = [
    variadic("and", 1),
    variadic("call", 1),
    variadic("eq", 1),
    fixed("ge", 2),
    fixed("gt", 2),
    variadic("html", 0),
    variadic("index", 1),
    variadic("js", 0),
    fixed("le", 2),
    fixed("len", 1),
    fixed("lt", 2),
    fixed("ne", 2),
    fixed("not", 1),
    variadic("or", 1),
    variadic("print", 0),
    variadic("printf", 1),
    variadic("println", 0),
    variadic("slice", 1),
    variadic("urlquery", 0),
];

/// The name as a constant, if it is a function.
pub(super) fn function(name: &str) -> Option<&'static str> {
    Function::named(name).map(|function| function.name)
}

impl Function {
    pub(super) fn named(name: &str) -> Option<Self> {
        ALL.iter().find(|function| function.name == name).copied()
    }

    /// The error for this number of arguments.
    pub(super) fn wrong_number(&self, given: usize) -> Option<String> {
        let Self { name, least, most } = self;
        match most {
            Some(most) if given != *most => {
                Some(format!("wrong number of args for {name}: want {most} got {given}"))
            }
            None if given < *least => {
                Some(format!("wrong number of args for {name}: want at least {least} got {given}"))
            }
            _ => None,
        }
    }

    /// For `and` and `or`: the truth value that ends the evaluation.
    pub(super) fn short_circuit(&self) -> Option<bool> {
        match self.name {
            "and" => Some(false),
            "or" => Some(true),
            _ => None,
        }
    }
}

/// The error of `call`, whose first argument is never a function. `shown` is its source text, unless it came from a
/// pipeline.
pub(super) fn not_callable(callee: &Value, shown: Option<String>) -> String {
    let name = shown.unwrap_or_else(|| match callee {
        Value::Text(text) => text.to_string(),
        other => format!("<{} Value>", other.type_name()),
    });
    match callee {
        Value::Nil => "call of nil".to_owned(),
        other => format!("non-function {name} of type {}", other.type_name()),
    }
}

/// Applies a function to its arguments.
///
/// # Errors
/// Go's text for arguments that do not fit.
pub(super) fn apply(function: Function, args: &[Value], printer: &mut Printer) -> Result<Value, String> {
    let (first, rest) = match args.split_first() {
        Some((first, rest)) => (first, rest),
        None => (&Value::Nil, args),
    };
    let other = rest.first().unwrap_or(&Value::Nil);
    match function.name {
        "not" => Ok(Value::Bool(!first.truth())),
        "len" => length(first),
        "index" if matches!(first, Value::Nil) => Err("index of untyped nil".into()),
        "index" => rest.iter().try_fold(first.clone(), |item, index| element(&item, index)),
        "slice" => slice(first, rest),
        "eq" => equal_to_any(first, rest).map(Value::Bool),
        "ne" => equal(first, other).map(|equal| Value::Bool(!equal)),
        "lt" => compare(first, other).map(|order| Value::Bool(order == Some(Ordering::Less))),
        "le" => compare(first, other)
            .map(|order| Value::Bool(matches!(order, Some(Ordering::Less | Ordering::Equal)))),
        "gt" => compare(first, other).map(|order| Value::Bool(order == Some(Ordering::Greater))),
        "ge" => compare(first, other)
            .map(|order| Value::Bool(matches!(order, Some(Ordering::Greater | Ordering::Equal)))),
        "print" => printer.print(args),
        "println" => printer.println(args),
        "printf" => match first {
            Value::Text(format) => printer.printf(&format.clone(), rest),
            value => Err(format!("wrong type for value; expected string; got {}", value.type_name())),
        },
        "html" => Ok(Value::text(html(&joined(args, printer)?))),
        "js" => Ok(Value::text(js(&joined(args, printer)?))),
        "urlquery" => Ok(Value::text(url_query(&joined(args, printer)?))),
        name => Err(format!("{name} is not known")),
    }
    .and_then(|value| match &value {
        Value::Text(text) if text.len() > printer.limit() => Err(format::too_large(printer.limit())),
        _ => Ok(value),
    })
}

fn length(value: &Value) -> Result<Value, String> {
    match value {
        Value::Text(text) => Ok(Value::Int(text.len() as i64)),
        Value::Map(map) => Ok(Value::Int(map.len() as i64)),
        Value::Nil => Err("len of nil".into()),
        other => Err(format!("len of type {}", other.type_name())),
    }
}

fn element(item: &Value, index: &Value) -> Result<Value, String> {
    match item {
        Value::Text(text) => {
            let at = position(index, text.len())?;
            text.as_bytes()
                .get(at)
                .map(|byte| Value::Byte(*byte))
                .ok_or_else(|| format!("index out of range: {at}"))
        }
        Value::Map(map) => match index {
            // A missing key gives the zero value, whatever `missingkey` says.
            Value::Text(key) => Ok(Value::text(map.get(&**key).map(String::as_str).unwrap_or_default())),
            Value::Nil => Err("value is nil; should be of type string".into()),
            other => Err(format!("value has type {}; should be string", other.type_name())),
        },
        other => Err(format!("can't index item of type {}", other.type_name())),
    }
}

fn position(index: &Value, most: usize) -> Result<usize, String> {
    let number = match index {
        Value::Nil => return Err("cannot index slice/array with nil".into()),
        value => value
            .integer()
            .ok_or_else(|| format!("cannot index slice/array with type {}", value.type_name()))?,
    };
    usize::try_from(number)
        .ok()
        .filter(|at| *at <= most)
        .ok_or_else(|| format!("index out of range: {number}"))
}

fn slice(item: &Value, indexes: &[Value]) -> Result<Value, String> {
    let text = match item {
        Value::Text(_) if indexes.len() == 3 => return Err("cannot 3-index slice a string".into()),
        Value::Text(_) | Value::Map(_) if indexes.len() > 3 => {
            return Err(format!("too many slice indexes: {}", indexes.len()));
        }
        Value::Text(text) => text,
        Value::Nil => return Err("slice of untyped nil".into()),
        other => return Err(format!("can't slice item of type {}", other.type_name())),
    };
    let mut bounds = [0, text.len()];
    for (bound, index) in bounds.iter_mut().zip(indexes) {
        *bound = position(index, text.len())?;
    }
    let [from, to] = bounds;
    let Some(bytes) = text.as_bytes().get(from..to) else {
        return Err(format!("invalid slice index: {from} > {to}"));
    };
    Ok(Value::text(String::from_utf8_lossy(bytes)))
}

fn equal_to_any(value: &Value, others: &[Value]) -> Result<bool, String> {
    if others.is_empty() {
        return Err("missing argument for comparison".into());
    }
    for other in others {
        if equal(value, other)? {
            return Ok(true);
        }
    }
    Ok(false)
}

fn equal(left: &Value, right: &Value) -> Result<bool, String> {
    match (left, right) {
        (Value::Nil, Value::Nil) => Ok(true),
        (Value::Map(_), Value::Nil) | (Value::Nil, Value::Map(_)) => Ok(false),
        (Value::Map(_), _) => Err("non-comparable type map[string]string".into()),
        (_, Value::Map(_)) => Err("non-comparable type map[string]string".into()),
        (Value::Nil, _) | (_, Value::Nil) => Ok(false),
        (Value::Bool(l), Value::Bool(r)) => Ok(l == r),
        _ => compare(left, right).map(|order| order == Some(Ordering::Equal)),
    }
}

fn compare(left: &Value, right: &Value) -> Result<Option<Ordering>, String> {
    match (left, right) {
        (Value::Text(l), Value::Text(r)) => Ok(Some(l.as_bytes().cmp(r.as_bytes()))),
        (Value::Float(l), Value::Float(r)) => Ok(l.partial_cmp(r)),
        (Value::Nil | Value::Map(_), _) | (_, Value::Nil | Value::Map(_)) => {
            Err("invalid type for comparison".into())
        }
        (Value::Bool(_), Value::Bool(_)) => Err("invalid type for comparison".into()),
        _ => match (left.integer(), right.integer()) {
            (Some(l), Some(r)) => Ok(Some(l.cmp(&r))),
            _ => Err(format!(
                "incompatible types for comparison: {} and {}",
                left.type_name(),
                right.type_name()
            )),
        },
    }
}

/// The arguments as one text, as `print` joins them.
fn joined(args: &[Value], printer: &mut Printer) -> Result<Arc<str>, String> {
    if let [Value::Text(text)] = args {
        return Ok(text.clone());
    }
    let visible: Vec<Value> = args
        .iter()
        .map(|arg| if matches!(arg, Value::Nil) { Value::text("<no value>") } else { arg.clone() })
        .collect();
    match printer.print(&visible)? {
        Value::Text(text) => Ok(text),
        _ => Ok("".into()),
    }
}

fn html(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\0' => out.push('\u{fffd}'),
            '"' => out.push_str("&#34;"),
            '\'' => out.push_str("&#39;"),
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            c => out.push(c),
        }
    }
    out
}

fn js(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '\'' => out.push_str("\\'"),
            '"' => out.push_str("\\\""),
            '<' | '>' | '&' | '=' | '\0'..='\u{1f}' => {
                out.push_str(&format!("\\u{:04X}", u32::from(c)));
            }
            c if c.is_ascii() || is_printable(c) => out.push(c),
            c => out.push_str(&format!("\\u{:04X}", u32::from(c))),
        }
    }
    out
}

fn url_query(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => out.push(char::from(byte)),
            b' ' => out.push('+'),
            byte => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}
