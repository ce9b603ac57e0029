//! Conversion of JSON and of texts into CEL values.

use std::sync::{Arc, OnceLock};

use kube_cel::cel::objects::{Key, Map};
use kube_cel::cel::{Context, Program, Value as Cel};
use serde_json::Value;

use super::functions::shared_functions;

/// Converts JSON without a schema.
pub(crate) fn from_json(value: &Value) -> Cel {
    match value {
        Value::Null => Cel::Null,
        Value::Bool(value) => Cel::Bool(*value),
        Value::Number(number) => {
            number.as_i64().map_or_else(|| Cel::Float(number.as_f64().unwrap_or_default()), Cel::Int)
        }
        Value::String(text) => Cel::String(Arc::new(text.clone())),
        Value::Array(items) => Cel::List(Arc::new(items.iter().map(from_json).collect())),
        Value::Object(map) => {
            let out = map.iter().map(|(k, v)| (Key::String(Arc::new(k.clone())), from_json(v))).collect();
            Cel::Map(Map { map: Arc::new(out) })
        }
    }
}

/// Parses a time in RFC 3339.
pub(crate) fn timestamp(text: &str) -> Option<Cel> {
    convert(TIMESTAMP, text)
}

/// Parses a date (`2026-01-02`) as the time at its beginning.
pub(crate) fn date(text: &str) -> Option<Cel> {
    timestamp(&format!("{text}T00:00:00Z"))
}

/// Parses a duration in Go's format.
pub(crate) fn duration(text: &str) -> Option<Cel> {
    convert(DURATION, text)
}

/// Decodes base64.
pub(crate) fn bytes(text: &str) -> Option<Cel> {
    convert(BYTES, text)
}

const TIMESTAMP: &str = "timestamp(x)";
const DURATION: &str = "duration(x)";
const BYTES: &str = "base64.decode(x)";

/// Applies one of CEL's own conversions.
fn convert(source: &'static str, text: &str) -> Option<Cel> {
    static PROGRAMS: OnceLock<Vec<(&'static str, Program)>> = OnceLock::new();
    let programs = PROGRAMS.get_or_init(|| {
        let sources = [TIMESTAMP, DURATION, BYTES];
        sources.into_iter().filter_map(|s| Program::compile(s).ok().map(|p| (s, p))).collect()
    });
    let program = &programs.iter().find(|(name, _)| *name == source)?.1;
    let mut context: Context = shared_functions().new_inner_scope();
    context.add_variable_from_value("x", text.to_owned());
    program.execute(&context).ok()
}
