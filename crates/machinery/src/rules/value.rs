//! JSON values as CEL sees them, by their types.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use kube_cel::cel::objects::{Key, Map};
use kube_cel::cel::{Context, Program, Value as Cel};
use serde_json::Value;

use crate::schema::graph::{Graph, Id, Node, Type};

/// The part of an object that rules at its root see of its metadata.
const METADATA: [&str; 2] = ["name", "generateName"];

/// Converts a value; `resource` says that it is a whole object.
pub(super) fn convert(graph: &Graph, id: Id, value: &Value, resource: bool) -> Cel {
    let node = graph.resolve(id).1;
    match value {
        Value::Null => Cel::Null,
        Value::Bool(value) => Cel::Bool(*value),
        Value::Number(number) => match (node.kind, number.as_i64()) {
            (Type::Number, _) | (_, None) => Cel::Float(number.as_f64().unwrap_or_default()),
            (_, Some(int)) => Cel::Int(int),
        },
        Value::String(text) => string(node, text),
        Value::Array(items) => {
            let item = |one: &Value| match node.items {
                Some(element) => convert(graph, element, one, false),
                None => plain(one),
            };
            Cel::List(Arc::new(items.iter().map(item).collect()))
        }
        Value::Object(map) => object(graph, node, map, resource),
    }
}

fn object(graph: &Graph, node: &Node, map: &serde_json::Map<String, Value>, resource: bool) -> Cel {
    let resource = resource || node.embedded;
    let mut out = HashMap::with_capacity(map.len());
    for (key, one) in map {
        let (name, value) = if let Some(field) = node.field(key) {
            let Some(name) = escape(key) else { continue };
            let value = match one {
                Value::Object(meta) if resource && key == "metadata" => metadata(meta),
                one => convert(graph, field.node, one, false),
            };
            (name, value)
        } else if let Some(element) = node.additional {
            (key.clone(), convert(graph, element, one, false))
        } else if node.fields.is_empty() {
            (key.clone(), plain(one))
        } else {
            // What is not declared is not seen.
            continue;
        };
        out.insert(Key::String(Arc::new(name)), value);
    }
    Cel::Map(Map { map: Arc::new(out) })
}

fn metadata(meta: &serde_json::Map<String, Value>) -> Cel {
    let seen = METADATA.iter().filter_map(|name| Some((*name, meta.get(*name)?)));
    let out = seen.map(|(name, value)| (Key::String(Arc::new(name.to_owned())), plain(value))).collect();
    Cel::Map(Map { map: Arc::new(out) })
}

/// A value of which nothing is known.
pub(crate) fn plain(value: &Value) -> Cel {
    match value {
        Value::Null => Cel::Null,
        Value::Bool(value) => Cel::Bool(*value),
        Value::Number(number) => {
            number.as_i64().map_or_else(|| Cel::Float(number.as_f64().unwrap_or_default()), Cel::Int)
        }
        Value::String(text) => Cel::String(Arc::new(text.clone())),
        Value::Array(items) => Cel::List(Arc::new(items.iter().map(plain).collect())),
        Value::Object(map) => {
            let out = map.iter().map(|(k, v)| (Key::String(Arc::new(k.clone())), plain(v))).collect();
            Cel::Map(Map { map: Arc::new(out) })
        }
    }
}

/// A time, from RFC 3339.
pub(crate) fn timestamp(text: &str) -> Option<Cel> {
    call("timestamp(x)", text)
}

/// Strings of some formats are more than strings.
fn string(node: &Node, text: &str) -> Cel {
    let as_string = || Cel::String(Arc::new(text.to_owned()));
    let format = node.checks.as_ref().and_then(|c| c.format.as_deref());
    let built = match (node.kind, format) {
        (Type::String, Some("date-time" | "datetime")) => call("timestamp(x)", text),
        (Type::String, Some("date")) => call("timestamp(x)", &format!("{text}T00:00:00Z")),
        (Type::String, Some("duration")) => call("duration(x)", text),
        (Type::String, Some("byte")) => call("base64.decode(x)", text),
        _ => None,
    };
    built.unwrap_or_else(as_string)
}

/// Builds a value with one of CEL's own conversions.
fn call(source: &'static str, text: &str) -> Option<Cel> {
    static PROGRAMS: OnceLock<Vec<(&'static str, Program)>> = OnceLock::new();
    let programs = PROGRAMS.get_or_init(|| {
        let sources = ["timestamp(x)", "duration(x)", "base64.decode(x)"];
        sources.into_iter().filter_map(|s| Program::compile(s).ok().map(|p| (s, p))).collect()
    });
    let program = &programs.iter().find(|(name, _)| *name == source)?.1;
    let mut context: Context = super::base().new_inner_scope();
    context.add_variable_from_value("x", text.to_owned());
    program.execute(&context).ok()
}

/// Words of the language, which fields have with underscores around them.
const RESERVED: [&str; 21] = [
    "true",
    "false",
    "null",
    "in",
    "as",
    "break",
    "const",
    "continue",
    "else",
    "for",
    "function",
    "if",
    "import",
    "let",
    "loop",
    "package",
    "namespace",
    "return",
    "var",
    "void",
    "while",
];

/// The field that an identifier stands for: [`escape`] undone.
pub(super) fn unescape(identifier: &str) -> String {
    const SIGNS: [(&str, &str); 5] = [
        ("__underscores__", "__"),
        ("__dot__", "."),
        ("__dash__", "-"),
        ("__slash__", "/"),
        ("__dollar__", "$"),
    ];
    let word = identifier.strip_prefix("__").and_then(|rest| rest.strip_suffix("__"));
    if let Some(word) = word.filter(|word| RESERVED.contains(word)) {
        return word.to_owned();
    }
    let mut out = String::with_capacity(identifier.len());
    let mut rest = identifier;
    while let Some(first) = rest.chars().next() {
        let sign = SIGNS.iter().find_map(|(name, sign)| Some((*sign, rest.strip_prefix(name)?)));
        let (text, after) = match sign {
            Some(found) => found,
            None => rest.split_at(first.len_utf8()),
        };
        out.push_str(text);
        rest = after;
    }
    out
}

/// The identifier of a field; `None` when it cannot have one.
pub(super) fn escape(name: &str) -> Option<String> {
    if RESERVED.contains(&name) {
        return Some(format!("__{name}__"));
    }
    if name.is_empty() || name.starts_with(|c: char| c.is_ascii_digit()) {
        return None;
    }
    let fits = |c: char| c.is_ascii_alphanumeric() || "_.-/$".contains(c);
    if !name.chars().all(fits) {
        return None;
    }
    let escaped = name.replace("__", "\u{0}").replace('.', "__dot__").replace('-', "__dash__");
    Some(escaped.replace('/', "__slash__").replace('$', "__dollar__").replace('\u{0}', "__underscores__"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// AS-044: each field is found by its identifier.
    #[test]
    fn as_044_identifiers_lead_back_to_fields() {
        let names = [
            "a",
            "if",
            "true",
            "a.b",
            "a-b/c$",
            "__",
            "a__b",
            "a___b",
            "a_.b",
            "_._",
            "a.underscores.b",
            "x.dot.y",
            "__dot__",
            "____",
            "kubernetes.io/x",
            "__if__",
            "namespace",
        ];
        for name in names {
            let identifier = escape(name).unwrap_or_else(|| panic!("{name} can be an identifier"));
            assert_eq!(unescape(&identifier), name, "{identifier}");
        }
    }
}
