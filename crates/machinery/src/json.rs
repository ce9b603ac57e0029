//! JSON parsing that reports duplicate keys, with Go's error texts.

use std::cell::RefCell;
use std::fmt;

use serde::de::{DeserializeSeed, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

/// Most nesting levels of objects and lists in a written object, in any format (JSON, YAML, protobuf, the result of a
/// patch). Parsers stop at 127 (serde_json), and stored objects are nested deeper when they are read: a list adds two
/// levels, a watch event one, managedFields five.
pub const DEPTH_MAX: usize = 120;
/// How many more levels managedFields have than the object. Written objects may have these levels in addition, or
/// clients could not write back what they have read.
const MANAGED_FIELDS: usize = 5;
/// Most duplicate keys that are reported.
const MAX_DUPLICATES: usize = 100;
/// Most bytes of reported paths of duplicate keys.
const DUPLICATES_TEXT_MAX: usize = 1 << 20;

/// The nesting depth of a value; 0 for a scalar.
pub fn depth(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(depth).max().unwrap_or(0),
        Value::Object(map) => 1 + map.values().map(depth).max().unwrap_or(0),
        _ => 0,
    }
}

/// Malformed JSON. The text is Go's (`unexpected end of JSON input`).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Error(pub String);

/// Parses one JSON value (AS-002, AS-037). Of duplicate keys the last wins; their full paths are returned in the order
/// of the text. Invalid Unicode becomes U+FFFD, as in Go.
///
/// # Errors
/// The text is not JSON, or is nested too deep.
pub fn parse_strict(bytes: &[u8]) -> Result<(Value, Vec<String>), Error> {
    match parse(bytes) {
        Ok(done) => Ok(done),
        Err(error) => match with_valid_unicode(bytes) {
            Some(text) => parse(text.as_bytes()).map_err(|_| Error(go_error_text(text.as_bytes(), &error))),
            None => Err(Error(go_error_text(bytes, &error))),
        },
    }
}

fn parse(bytes: &[u8]) -> Result<(Value, Vec<String>), serde_json::Error> {
    let state = RefCell::new(State::default());
    let mut deserializer = serde_json::Deserializer::from_slice(bytes);
    let value = Seed { state: &state, step: Step::Root }.deserialize(&mut deserializer)?;
    deserializer.end()?;
    Ok((value, state.into_inner().duplicates))
}

#[derive(Default)]
struct State {
    path: String,
    depth: usize,
    /// Inside the object's metadata.
    metadata: bool,
    /// Inside managedFields.
    managers: bool,
    duplicates: Vec<String>,
}

impl State {
    /// Called before a value that belongs to `step`.
    fn step(&mut self, step: &Step<'_>) {
        let is = |wanted: &str| matches!(step, Step::Key(key) if *key == wanted);
        match self.depth {
            0 | 1 => (self.metadata, self.managers) = (self.depth == 1 && is("metadata"), false),
            2 => self.managers = self.metadata && is("managedFields"),
            _ => {}
        }
    }

    /// Called at the beginning of an object or list.
    fn enter<E: serde::de::Error>(&mut self) -> Result<(), E> {
        if self.depth >= DEPTH_MAX + if self.managers { MANAGED_FIELDS } else { 0 } {
            return Err(E::custom(DEEP));
        }
        self.depth += 1;
        Ok(())
    }
}

enum Step<'k> {
    Root,
    Key(&'k str),
    Index(usize),
}

struct Seed<'s, 'k> {
    state: &'s RefCell<State>,
    step: Step<'k>,
}

impl<'de> DeserializeSeed<'de> for Seed<'_, '_> {
    type Value = Value;

    fn deserialize<D: serde::Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        let length = {
            let mut state = self.state.borrow_mut();
            let length = state.path.len();
            state.step(&self.step);
            match self.step {
                Step::Root => {}
                Step::Key(key) => {
                    if length > 0 {
                        state.path.push('.');
                    }
                    state.path.push_str(key);
                }
                Step::Index(index) => {
                    state.path.push('[');
                    state.path.push_str(&index.to_string());
                    state.path.push(']');
                }
            }
            length
        };
        let value = deserializer.deserialize_any(Read { state: self.state })?;
        self.state.borrow_mut().path.truncate(length);
        Ok(value)
    }
}

struct Read<'s> {
    state: &'s RefCell<State>,
}

impl<'de> Visitor<'de> for Read<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any JSON value")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::from(value))
    }

    fn visit_f64<E: serde::de::Error>(self, value: f64) -> Result<Value, E> {
        Number::from_f64(value).map(Value::Number).ok_or_else(|| E::custom("number out of range"))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::String(value.to_owned()))
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(Value::String(value))
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        self.state.borrow_mut().enter()?;
        let mut out = Vec::new();
        while let Some(value) =
            access.next_element_seed(Seed { state: self.state, step: Step::Index(out.len()) })?
        {
            out.push(value);
        }
        self.state.borrow_mut().depth -= 1;
        Ok(Value::Array(out))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        self.state.borrow_mut().enter()?;
        let mut out = Map::new();
        while let Some(key) = access.next_key::<String>()? {
            if out.contains_key(&key) {
                let mut state = self.state.borrow_mut();
                if state.duplicates.len() > MAX_DUPLICATES {
                    return Err(A::Error::custom("too many duplicate fields"));
                }
                let path = if state.path.is_empty() { key.clone() } else { format!("{}.{key}", state.path) };
                let reported_bytes: usize = state.duplicates.iter().map(String::len).sum();
                if reported_bytes < DUPLICATES_TEXT_MAX && !state.duplicates.contains(&path) {
                    state.duplicates.push(path);
                }
            }
            let value = access.next_value_seed(Seed { state: self.state, step: Step::Key(&key) })?;
            out.insert(key, value);
        }
        self.state.borrow_mut().depth -= 1;
        Ok(Value::Object(out))
    }
}

/// The text with invalid UTF-8 and lone surrogate escapes replaced; `None` if there are none.
fn with_valid_unicode(bytes: &[u8]) -> Option<String> {
    let lossy = String::from_utf8_lossy(bytes);
    let mut changed = matches!(lossy, std::borrow::Cow::Owned(_));
    let mut out = String::with_capacity(lossy.len());
    let mut rest = &*lossy;
    while let Some(at) = rest.find('\\') {
        let (before, from) = rest.split_at(at);
        out.push_str(before);
        let unit = |text: &str| {
            let hex = text.strip_prefix("\\u")?.get(..4)?;
            u32::from_str_radix(hex, 16).ok()
        };
        let taken = match unit(from) {
            Some(0xd800..=0xdbff)
                if from.get(6..).and_then(unit).is_some_and(|low| (0xdc00..=0xdfff).contains(&low)) =>
            {
                out.push_str(from.get(..12).unwrap_or_default());
                12
            }
            Some(0xd800..=0xdfff) => {
                out.push_str("\\ufffd");
                changed = true;
                6
            }
            // Keeps an escape and the escaped character together.
            _ => {
                let length = 1 + from.chars().nth(1).map_or(0, char::len_utf8);
                out.push_str(from.get(..length).unwrap_or_default());
                length
            }
        };
        rest = from.get(taken..).unwrap_or_default();
    }
    out.push_str(rest);
    changed.then_some(out)
}

/// The text of Go's scanner.
fn go_error_text(bytes: &[u8], error: &serde_json::Error) -> String {
    let mut scanner = Scanner { bytes, at: 0 };
    let found = scanner.value(0).and_then(|()| {
        scanner.blanks();
        match scanner.peek() {
            None => Ok(()),
            Some(byte) => Err(invalid(byte, "after top-level value")),
        }
    });
    match found {
        Err(text) => text,
        // Go accepts the text and we do not (number range).
        Ok(()) => error.to_string(),
    }
}

const END: &str = "unexpected end of JSON input";
const DEEP: &str = "exceeded max depth";

struct Scanner<'b> {
    bytes: &'b [u8],
    at: usize,
}

fn invalid(byte: u8, context: &str) -> String {
    let shown = match byte {
        b'\'' => r"'\''".to_owned(),
        b'"' => "'\"'".to_owned(),
        byte if byte.is_ascii_graphic() || byte == b' ' => format!("'{}'", char::from(byte)),
        b'\n' => r"'\n'".to_owned(),
        b'\r' => r"'\r'".to_owned(),
        b'\t' => r"'\t'".to_owned(),
        0x80.. => format!("'{}'", char::from(byte)),
        byte => format!(r"'\x{byte:02x}'"),
    };
    format!("invalid character {shown} {context}")
}

impl Scanner<'_> {
    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    fn blanks(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\n' | b'\r' | b'\t')) {
            self.at += 1;
        }
    }

    /// Scans a value inside `depth` objects and lists.
    fn value(&mut self, depth: usize) -> Result<(), String> {
        self.blanks();
        match self.peek().ok_or(END)? {
            b'{' | b'[' if depth >= DEPTH_MAX => Err(DEEP.to_owned()),
            b'{' => self.object(depth),
            b'[' => self.array(depth),
            b'"' => self.string(),
            b't' => self.literal("true"),
            b'f' => self.literal("false"),
            b'n' => self.literal("null"),
            b'-' | b'0'..=b'9' => self.number(),
            byte => Err(invalid(byte, "looking for beginning of value")),
        }
    }

    fn literal(&mut self, word: &str) -> Result<(), String> {
        for (at, wanted) in word.bytes().enumerate() {
            let byte = self.peek().ok_or(END)?;
            if byte != wanted {
                let context = format!("in literal {word} (expecting '{}')", char::from(wanted));
                return Err(if at == 0 {
                    invalid(byte, "looking for beginning of value")
                } else {
                    invalid(byte, &context)
                });
            }
            self.at += 1;
        }
        Ok(())
    }

    fn number(&mut self) -> Result<(), String> {
        if self.peek() == Some(b'-') {
            self.at += 1;
        }
        match self.peek().ok_or(END)? {
            b'0' => self.at += 1,
            b'1'..=b'9' => self.digits(),
            byte => return Err(invalid(byte, "in numeric literal")),
        }
        if self.peek() == Some(b'.') {
            self.at += 1;
            match self.peek().ok_or(END)? {
                b'0'..=b'9' => self.digits(),
                byte => return Err(invalid(byte, "after decimal point in numeric literal")),
            }
        }
        if matches!(self.peek(), Some(b'e' | b'E')) {
            self.at += 1;
            if matches!(self.peek(), Some(b'+' | b'-')) {
                self.at += 1;
            }
            match self.peek().ok_or(END)? {
                b'0'..=b'9' => self.digits(),
                byte => return Err(invalid(byte, "in exponent of numeric literal")),
            }
        }
        Ok(())
    }

    fn digits(&mut self) {
        while self.peek().is_some_and(|b| b.is_ascii_digit()) {
            self.at += 1;
        }
    }

    fn string(&mut self) -> Result<(), String> {
        self.at += 1;
        loop {
            match self.peek().ok_or(END)? {
                b'"' => {
                    self.at += 1;
                    return Ok(());
                }
                b'\\' => {
                    self.at += 1;
                    match self.peek().ok_or(END)? {
                        b'u' => {
                            for _ in 0..4 {
                                self.at += 1;
                                let byte = self.peek().ok_or(END)?;
                                if !byte.is_ascii_hexdigit() {
                                    return Err(invalid(byte, r"in \u hexadecimal character escape"));
                                }
                            }
                        }
                        b'b' | b'f' | b'n' | b'r' | b't' | b'\\' | b'/' | b'"' => {}
                        byte => return Err(invalid(byte, "in string escape code")),
                    }
                }
                byte if byte < 0x20 => return Err(invalid(byte, "in string literal")),
                _ => {}
            }
            self.at += 1;
        }
    }

    fn object(&mut self, depth: usize) -> Result<(), String> {
        self.at += 1;
        self.blanks();
        if self.peek() == Some(b'}') {
            self.at += 1;
            return Ok(());
        }
        loop {
            self.blanks();
            match self.peek().ok_or(END)? {
                b'"' => self.string()?,
                byte => return Err(invalid(byte, "looking for beginning of object key string")),
            }
            self.blanks();
            match self.peek().ok_or(END)? {
                b':' => self.at += 1,
                byte => return Err(invalid(byte, "after object key")),
            }
            self.value(depth + 1)?;
            self.blanks();
            match self.peek().ok_or(END)? {
                b',' => self.at += 1,
                b'}' => {
                    self.at += 1;
                    return Ok(());
                }
                byte => return Err(invalid(byte, "after object key:value pair")),
            }
        }
    }

    fn array(&mut self, depth: usize) -> Result<(), String> {
        self.at += 1;
        self.blanks();
        if self.peek() == Some(b']') {
            self.at += 1;
            return Ok(());
        }
        loop {
            self.value(depth + 1)?;
            self.blanks();
            match self.peek().ok_or(END)? {
                b',' => self.at += 1,
                b']' => {
                    self.at += 1;
                    return Ok(());
                }
                byte => return Err(invalid(byte, "after array element")),
            }
        }
    }
}

/// The name of a value's type in errors.
pub fn type_name(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn error(text: &str) -> String {
        parse_strict(text.as_bytes()).map(|(v, _)| v.to_string()).unwrap_err().to_string()
    }

    #[test]
    fn as_037_duplicates_by_full_path() {
        let text =
            br#"{"metadata":{"name":"a","name":"b"},"data":{"x":"1","x":"2"},"l":[{"k":1,"k":2,"k":3}]}"#;
        let (value, duplicates) = parse_strict(text).unwrap();
        assert_eq!(value, json!({"metadata": {"name": "b"}, "data": {"x": "2"}, "l": [{"k": 3}]}));
        assert_eq!(duplicates, ["metadata.name", "data.x", "l[0].k"]);
    }

    #[test]
    fn as_002_go_texts_of_broken_json() {
        assert_eq!(error(""), "unexpected end of JSON input");
        assert_eq!(error(r#"{"metadata":"#), "unexpected end of JSON input");
        assert_eq!(error("{a}"), "invalid character 'a' looking for beginning of object key string");
        assert_eq!(error("nope"), "invalid character 'o' in literal null (expecting 'u')");
        assert_eq!(error(r#"{"a":1} x"#), "invalid character 'x' after top-level value");
        assert_eq!(error("[1 2]"), "invalid character '2' after array element");
        assert_eq!(error("\"a\nb\""), r"invalid character '\n' in string literal");
    }

    #[test]
    fn as_002_broken_unicode_is_replaced() {
        let (value, _) = parse_strict(br#"{"x":"\ud800","y":"\ud83d\ude00","z":"\\ud800"}"#).unwrap();
        assert_eq!(value, json!({"x": "\u{fffd}", "y": "\u{1f600}", "z": "\\ud800"}));
        assert_eq!(parse_strict(b"\"\xff\"").unwrap().0, json!("\u{fffd}"));
    }

    #[test]
    fn hostile_nesting_is_refused() {
        assert_eq!(error(&"[".repeat(100_000)), DEEP);
    }

    /// AS-002: accepted objects can be read back, also inside a list, a watch event or a ManifestWork.
    #[test]
    fn as_002_nesting_is_bounded_below_what_readers_take() {
        let lists = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        let objects = |depth: usize| format!("{}1{}", r#"{"a":"#.repeat(depth), "}".repeat(depth));
        for (inner, outer) in
            [(lists(DEPTH_MAX), lists(DEPTH_MAX + 1)), (objects(DEPTH_MAX), objects(DEPTH_MAX + 1))]
        {
            assert!(parse_strict(inner.as_bytes()).is_ok(), "{inner}");
            assert_eq!(error(&outer), DEEP);
        }
        let side_by_side = format!("[{},{0}]", lists(DEPTH_MAX - 1));
        assert!(parse_strict(side_by_side.as_bytes()).is_ok(), "what has ended counts no more");
        // The object, its metadata, the list, an entry.
        let managed = |rest: String| format!(r#"{{"metadata":{{"managedFields":[{{"fieldsV1":{rest}}}]}}}}"#);
        assert!(parse_strict(managed(objects(DEPTH_MAX + MANAGED_FIELDS - 4)).as_bytes()).is_ok());
        assert_eq!(error(&managed(objects(DEPTH_MAX + MANAGED_FIELDS - 3))), DEEP);
        for key in [
            r#"{"metadata.managedFields":"#,
            r#"{"metadata":{"managedFieldsX":"#,
            r#"{"spec":{"managedFields":"#,
        ] {
            let around = key.matches('{').count();
            let deep = |depth: usize| format!("{key}{}{}", objects(depth - around), "}".repeat(around));
            assert!(parse_strict(deep(DEPTH_MAX).as_bytes()).is_ok(), "{key}");
            assert_eq!(error(&deep(DEPTH_MAX + 1)), DEEP, "{key}");
        }
        let wrapped = format!(r#"{{"items":[{}]}}"#, lists(DEPTH_MAX + MANAGED_FIELDS));
        assert!(serde_json::from_str::<Value>(&wrapped).is_ok());
    }
}
