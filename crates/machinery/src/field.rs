//! Field paths and validation errors (AS-002).

use std::fmt::{self, Write as _};
use std::sync::Arc;

use serde_json::Value;

/// The path of a field, printed as in Kubernetes: `spec.rules[0].verbs`, `data[tls.crt]`.
///
/// A path shares its parents with other paths. Names come from clients, and copying a long name for everything below
/// it would cost the square of its size.
#[derive(Clone, Debug, Default)]
pub struct Path(Option<Arc<Link>>);

/// The last step of a path.
#[derive(Debug)]
struct Link {
    before: Path,
    name: Box<str>,
    /// Printed in brackets: an element of a list or an entry of a map.
    bracketed: bool,
}

impl Path {
    /// The empty path; prints `<nil>`.
    pub const fn root() -> Self {
        Self(None)
    }

    /// A top-level field. The empty name prints `[]`, as in Kubernetes.
    pub fn field(name: &str) -> Self {
        Self::root().child(name)
    }

    /// A field below this one.
    #[must_use]
    pub fn child(&self, name: &str) -> Self {
        if name.is_empty() {
            return self.key("");
        }
        self.with(name, false)
    }

    /// An element of a list.
    #[must_use]
    pub fn index(&self, index: usize) -> Self {
        self.key(&index.to_string())
    }

    /// An entry of a map.
    #[must_use]
    pub fn key(&self, key: &str) -> Self {
        self.with(key, true)
    }

    fn with(&self, name: &str, bracketed: bool) -> Self {
        Self(Some(Arc::new(Link { before: self.clone(), name: name.into(), bracketed })))
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut links = Vec::new();
        let mut here = self.0.as_deref();
        while let Some(link) = here {
            links.push(link);
            here = link.before.0.as_deref();
        }
        if links.is_empty() {
            return f.write_str("<nil>");
        }
        for (place, link) in links.iter().rev().enumerate() {
            match (link.bracketed, place) {
                (true, _) => write!(f, "[{}]", link.name)?,
                (false, 0) => f.write_str(&link.name)?,
                (false, _) => write!(f, ".{}", link.name)?,
            }
        }
        Ok(())
    }
}

/// One validation error, printed `{field}: {body}`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    pub field: String,
    pub body: String,
    pub reason: &'static str,
}

impl Error {
    fn new(path: &Path, reason: &'static str, body: String) -> Self {
        Self { field: path.to_string(), body, reason }
    }

    /// A required value is missing. `detail` may be empty.
    pub fn required(path: &Path, detail: &str) -> Self {
        Self::new(path, "FieldValueRequired", with_detail("Required value".to_owned(), detail))
    }

    /// A value is malformed.
    pub fn invalid(path: &Path, value: &Value, detail: &str) -> Self {
        Self::invalid_text(path, &print(value), detail)
    }

    /// A string is malformed.
    pub fn invalid_str(path: &Path, value: &str, detail: &str) -> Self {
        Self::invalid_text(path, &quote(value), detail)
    }

    /// A value is malformed. The caller has printed it, because Kubernetes prints structures in declaration order,
    /// which a JSON map does not keep.
    pub fn invalid_text(path: &Path, printed: &str, detail: &str) -> Self {
        Self::new(path, "FieldValueInvalid", with_detail(format!("Invalid value: {printed}"), detail))
    }

    /// A required value is absent: `Invalid value: null: …`.
    pub fn invalid_nil(path: &Path, detail: &str) -> Self {
        Self::invalid_text(path, "null", detail)
    }

    /// A value is malformed and is not printed: `Invalid value: {detail}`.
    pub fn invalid_omitted(path: &Path, detail: &str) -> Self {
        Self::new(path, "FieldValueInvalid", with_detail("Invalid value".to_owned(), detail))
    }

    /// A value is of the wrong type.
    pub fn type_invalid(path: &Path, type_name: &str, detail: &str) -> Self {
        let body = with_detail(format!("Invalid value: {}", quote(type_name)), detail);
        Self::new(path, "FieldValueTypeInvalid", body)
    }

    /// A value is not one of the allowed ones.
    pub fn not_supported(path: &Path, value: &Value, supported: &[&str]) -> Self {
        let mut body = format!("Unsupported value: {}", print(value));
        for (i, one) in supported.iter().enumerate() {
            body.push_str(if i == 0 { ": supported values: " } else { ", " });
            body.push_str(&quote(one));
        }
        Self::new(path, "FieldValueNotSupported", body)
    }

    /// A value that must be unique occurs twice.
    pub fn duplicate(path: &Path, value: &Value) -> Self {
        Self::new(path, "FieldValueDuplicate", format!("Duplicate value: {}", print(value)))
    }

    /// A valid value is not allowed here.
    pub fn forbidden(path: &Path, detail: &str) -> Self {
        Self::new(path, "FieldValueForbidden", with_detail("Forbidden".to_owned(), detail))
    }

    /// A reference to an object that does not exist.
    pub fn not_found(path: &Path, value: &Value) -> Self {
        Self::new(path, "FieldValueNotFound", format!("Not found: {}", print(value)))
    }

    /// A value has more than `max` bytes. It is not printed.
    pub fn too_long(path: &Path, max: usize) -> Self {
        Self::new(path, "FieldValueTooLong", format!("Too long: may not be more than {max} bytes"))
    }

    /// A list has more than `max` items.
    pub fn too_many(path: &Path, actual: usize, max: usize) -> Self {
        let items = if max == 1 { "item" } else { "items" };
        let body = format!("Too many: {actual}: must have at most {max} {items}");
        Self::new(path, "FieldValueTooMany", body)
    }

    /// An internal error.
    pub fn internal(path: &Path, detail: &str) -> Self {
        Self::new(path, "InternalError", with_detail("Internal error".to_owned(), detail))
    }

    /// `reason` of the cause.
    pub fn reason(&self) -> &'static str {
        self.reason
    }

    /// `message` of the cause: the text without the field.
    pub fn message(&self) -> &str {
        &self.body
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.body)
    }
}

impl std::error::Error for Error {}

/// Most bytes of error texts about one object. Long names and values occur in every error below them; without this
/// bound the errors of an object of a megabyte could have a hundred gigabytes.
pub const TEXT_MAX: usize = 4 << 20;

/// Errors in the order of discovery, up to [`TEXT_MAX`] bytes. Later errors are dropped.
#[derive(Clone, Debug, Default)]
pub struct Errors {
    list: Vec<Error>,
    bytes: usize,
}

impl Errors {
    /// Whether further errors are dropped, so that callers can stop searching.
    pub fn is_full(&self) -> bool {
        self.bytes >= TEXT_MAX
    }

    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    pub fn len(&self) -> usize {
        self.list.len()
    }

    pub fn push(&mut self, error: Error) {
        if !self.is_full() {
            self.bytes += error.field.len() + error.body.len();
            self.list.push(error);
        }
    }

    pub fn into_vec(self) -> Vec<Error> {
        self.list
    }
}

impl Extend<Error> for Errors {
    fn extend<I: IntoIterator<Item = Error>>(&mut self, errors: I) {
        errors.into_iter().for_each(|error| self.push(error));
    }
}

impl IntoIterator for Errors {
    type Item = Error;
    type IntoIter = std::vec::IntoIter<Error>;

    fn into_iter(self) -> Self::IntoIter {
        self.list.into_iter()
    }
}

fn with_detail(mut text: String, detail: &str) -> String {
    if !detail.is_empty() {
        text.push_str(": ");
        text.push_str(detail);
    }
    text
}

/// A value as errors print it: strings quoted, other values as compact JSON.
pub fn print(value: &Value) -> String {
    match value {
        Value::String(text) => quote(text),
        other => declared(other),
    }
}

/// Compact JSON with the members of label selectors in the order of their declaration. All other maps are in the order
/// of their keys, as Kubernetes prints maps.
fn declared(value: &Value) -> String {
    match value {
        Value::Array(items) => {
            format!("[{}]", items.iter().map(declared).collect::<Vec<_>>().join(","))
        }
        Value::Object(map) => {
            let mut members: Vec<(&String, &Value)> = map.iter().collect();
            members.sort_by_key(|(key, _)| *key == "matchExpressions");
            let shown = members.iter().map(|(key, value)| format!("{}:{}", quote(key), declared(value)));
            format!("{{{}}}", shown.collect::<Vec<_>>().join(","))
        }
        other => other.to_string(),
    }
}

/// A double-quoted string, as Go's `%q` prints it: printable characters unchanged, others escaped.
pub fn quote(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\u{7}' => out.push_str("\\a"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{b}' => out.push_str("\\v"),
            c if !unprintable(c) => out.push(c),
            // Writing to a string cannot fail.
            c if (c as u32) < 0x80 => drop(write!(out, "\\x{:02x}", c as u32)),
            c if (c as u32) < 0x1_0000 => drop(write!(out, "\\u{:04x}", c as u32)),
            c => drop(write!(out, "\\U{:08x}", c as u32)),
        }
    }
    out.push('"');
    out
}

/// Whether Go escapes the character: controls, blanks other than the space, invisible formatting, private use.
fn unprintable(c: char) -> bool {
    c.is_control()
        || (c != ' ' && c.is_whitespace())
        || matches!(c as u32,
            0xad | 0x600..=0x605 | 0x200b..=0x200f | 0x202a..=0x202e | 0x2060..=0x206f | 0xfeff
            | 0xe000..=0xf8ff | 0xfff0..=0xfffb | 0xfffe | 0xffff | 0xe_0000..=0x10_ffff)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn as_002_paths_print_like_kubernetes() {
        let rules = Path::field("spec").child("rules").index(0).child("verbs");
        assert_eq!(rules.to_string(), "spec.rules[0].verbs");
        assert_eq!(Path::field("data").key("tls.crt").to_string(), "data[tls.crt]");
        assert_eq!(Path::root().to_string(), "<nil>");
        assert_eq!(Path::field("").to_string(), "[]");
        assert_eq!(Path::root().index(2).to_string(), "[2]");
    }

    /// AS-002: the error texts about an object are bounded, whatever its names and values are.
    #[test]
    fn as_002_texts_of_errors_are_bounded() {
        let long = Path::field("data").key(&"k".repeat(TEXT_MAX / 10));
        let mut errors = Errors::default();
        for index in 0..100 {
            errors.push(Error::required(&long.index(index), ""));
        }
        assert!(errors.is_full());
        assert_eq!(errors.len(), 10);
        assert_eq!(errors.into_vec().len(), 10);
    }

    #[test]
    fn as_002_bodies() {
        let at = Path::field("f");
        let text = |e: Error| e.to_string();
        assert_eq!(text(Error::required(&at, "")), "f: Required value");
        assert_eq!(text(Error::required(&at, "why")), "f: Required value: why");
        assert_eq!(
            text(Error::invalid(&at, &json!({"a": "b"}), "bad")),
            r#"f: Invalid value: {"a":"b"}: bad"#
        );
        assert_eq!(text(Error::invalid(&at, &json!("a\nb"), "bad")), r#"f: Invalid value: "a\nb": bad"#);
        assert_eq!(text(Error::invalid_nil(&at, "bad")), "f: Invalid value: null: bad");
        assert_eq!(text(Error::invalid_omitted(&at, "bad")), "f: Invalid value: bad");
        assert_eq!(text(Error::type_invalid(&at, "string", "no")), r#"f: Invalid value: "string": no"#);
        assert_eq!(
            text(Error::not_supported(&at, &json!("x"), &["a", "b"])),
            r#"f: Unsupported value: "x": supported values: "a", "b""#
        );
        assert_eq!(text(Error::duplicate(&at, &json!("x"))), r#"f: Duplicate value: "x""#);
        assert_eq!(text(Error::forbidden(&at, "no")), "f: Forbidden: no");
        assert_eq!(text(Error::not_found(&at, &json!(3))), "f: Not found: 3");
        assert_eq!(text(Error::too_long(&at, 5)), "f: Too long: may not be more than 5 bytes");
        assert_eq!(text(Error::too_many(&at, 9, 8)), "f: Too many: 9: must have at most 8 items");
        assert_eq!(Error::too_long(&at, 5).reason(), "FieldValueTooLong");
        assert_eq!(Error::internal(&at, "x").message(), "Internal error: x");
    }

    #[test]
    fn quoting_keeps_what_is_printable() {
        assert_eq!(quote("ünï\0\u{200b}\"\\"), r#""ünï\x00\u200b\"\\""#);
    }
}
