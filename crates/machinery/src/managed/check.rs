//! Type checks of applied configurations.

use serde_json::{Map, Value};

use super::set::Elem;
use super::typed::{Form, TypeRef, Types};
use crate::field::TEXT_MAX;
use crate::schema::graph::Type;

/// Error texts, up to [`TEXT_MAX`] bytes.
#[derive(Default)]
struct ErrorTexts {
    texts: Vec<String>,
    bytes: usize,
}

impl ErrorTexts {
    fn is_full(&self) -> bool {
        self.bytes >= TEXT_MAX
    }

    fn push(&mut self, text: String) {
        if !self.is_full() {
            self.bytes += text.len();
            self.texts.push(text);
        }
    }
}

/// Checks an applied value.
///
/// # Errors
/// The first errors, as Kubernetes prints them.
pub(super) fn check(types: Types, place: TypeRef, value: &Value) -> Result<(), String> {
    let mut faults = ErrorTexts::default();
    walk(types, place, value, &mut String::new(), &mut faults);
    match faults.texts.as_slice() {
        [] => Ok(()),
        [one] => Err(one.clone()),
        many => {
            let lines: Vec<String> = many.iter().map(|one| format!("  {one}")).collect();
            Err(format!("errors:\n{}", lines.join("\n")))
        }
    }
}

fn walk(types: Types, place: TypeRef, value: &Value, path: &mut String, faults: &mut ErrorTexts) {
    let Some(id) = place.filter(|_| !faults.is_full()) else { return };
    let kind = types.0.resolve(id).1.kind;
    let fault = |text: String, path: &str, faults: &mut ErrorTexts| {
        faults.push(if path.is_empty() { text } else { format!("{path}: {text}") });
    };
    match (kind, value) {
        (_, Value::Null) => {}
        (Type::Object, Value::Object(map)) => fields(types, place, map, path, faults),
        (Type::Any, Value::Object(map)) => fields(types, place, map, path, faults),
        (Type::Array, Value::Array(items)) => list(types, place, value, items, path, faults),
        (Type::Object, other) => fault(format!("expected map, got {}", print_internal(other)), path, faults),
        (Type::Array, other) => fault(format!("expected list, got {}", print_internal(other)), path, faults),
        (Type::Int32 | Type::Int64 | Type::Integer | Type::Number, other) if !other.is_number() => {
            let got = match other {
                Value::String(_) => "string".to_owned(),
                other => print_internal(other),
            };
            fault(format!("expected numeric (int or float), got {got}"), path, faults);
        }
        (Type::String | Type::Bytes | Type::Time | Type::MicroTime, other) if !other.is_string() => {
            fault(format!("expected string, got {}", print_internal(other)), path, faults);
        }
        (Type::Boolean, other) if !other.is_boolean() => {
            fault(format!("expected boolean, got {}", print_internal(other)), path, faults);
        }
        (Type::Quantity | Type::IntOrString, Value::Object(_) | Value::Array(_)) => {
            fault(format!("expected scalar, got {}", print_internal(value)), path, faults);
        }
        _ => {}
    }
}

fn fields(
    types: Types,
    place: TypeRef,
    map: &Map<String, Value>,
    path: &mut String,
    faults: &mut ErrorTexts,
) {
    let open = types.allows_unknown(place);
    for (key, one) in map {
        let length = path.len();
        path.push('.');
        path.push_str(key);
        let (child, declared) = types.field(place, key);
        if !declared && !open {
            if !faults.is_full() {
                faults.push(format!("{path}: field not declared in schema"));
            }
        } else {
            walk(types, child, one, path, faults);
        }
        path.truncate(length);
    }
}

fn list(
    types: Types,
    place: TypeRef,
    value: &Value,
    items: &[Value],
    path: &mut String,
    faults: &mut ErrorTexts,
) {
    let element = types.items(place);
    let Form::List(list) = types.form(place, value) else {
        for (index, item) in items.iter().enumerate() {
            step(types, element, item, &Elem::Index(index as i64), path, faults);
        }
        return;
    };
    let mut seen = std::collections::BTreeSet::new();
    for (index, item) in items.iter().enumerate() {
        match types.elem(place, list, item) {
            Err(text) => faults.push(format!("{path}: element {index}: {text}")),
            Ok(elem) => {
                step(types, element, item, &elem, path, faults);
                if !seen.insert(elem.clone()) {
                    faults.push(format!("{path}: duplicate entries for key {elem}"));
                }
            }
        }
    }
}

fn step(
    types: Types,
    element: TypeRef,
    item: &Value,
    elem: &Elem,
    path: &mut String,
    faults: &mut ErrorTexts,
) {
    let length = path.len();
    path.push_str(&elem.to_string());
    walk(types, element, item, path, faults);
    path.truncate(length);
}

/// The value as Go prints its internal form.
fn print_internal(value: &Value) -> String {
    let inner = match value {
        Value::String(text) => format!("{text:?}"),
        other => other.to_string(),
    };
    format!("&value.valueUnstructured{{Value:{inner}}}")
}
