//! Values as Go's `%v` prints them, for error texts.

use std::fmt;

use serde_json::Value;

/// Prints `map[a:1 b:[x y]]`.
pub(super) struct GoValue<'a>(pub(super) &'a Value);

impl fmt::Display for GoValue<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Value::Null => f.write_str("<nil>"),
            Value::String(text) => f.write_str(text),
            Value::Array(items) => print_list(items, f),
            Value::Object(map) => print_map(map, f),
            other => other.fmt(f),
        }
    }
}

fn print_list(items: &[Value], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    f.write_str("[")?;
    for (i, item) in items.iter().enumerate() {
        let gap = if i > 0 { " " } else { "" };
        write!(f, "{gap}{}", GoValue(item))?;
    }
    f.write_str("]")
}

fn print_map(map: &serde_json::Map<String, Value>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    f.write_str("map[")?;
    for (i, (key, value)) in map.iter().enumerate() {
        let gap = if i > 0 { " " } else { "" };
        write!(f, "{gap}{key}:{}", GoValue(value))?;
    }
    f.write_str("]")
}
