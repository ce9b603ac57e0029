//! Decoding of built-in objects, like Go decodes JSON into its structs (AS-002).

use base64::Engine as _;
use serde_json::{Map, Number, Value};

use super::graph::{Graph, Id, Node, StackPath, Type};
use super::unknown::Unknown;
use crate::quantity::Quantity;
use crate::time::{self, TimeError};

/// A value that does not fit its type. The text is Go's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct DecodeError(pub String);

pub(super) struct Decoder<'g> {
    graph: &'g Graph,
    root: Option<Id>,
    pub(super) unknown: Unknown,
}

/// The struct of a field, which Go names in errors.
type Owner<'a> = &'a str;

impl<'g> Decoder<'g> {
    pub(super) fn new(graph: &'g Graph, root: Id) -> Self {
        Self { graph, root: Some(root), unknown: Unknown::default() }
    }

    pub(super) fn value(
        &mut self,
        id: Id,
        value: &mut Value,
        at: &StackPath,
        owner: Owner,
    ) -> Result<(), DecodeError> {
        let (id, node) = self.graph.resolve(id);
        match node.kind {
            Type::Any => Ok(()),
            Type::Object => match value {
                Value::Object(map) => self.object(node, map, at),
                other => Err(self.mismatch(other, id, at, owner)),
            },
            Type::Array => match value {
                Value::Array(items) => self.list(node, items, at, owner),
                other => Err(self.mismatch(other, id, at, owner)),
            },
            Type::SchemaOrBool | Type::SchemaOrArray => self.schema_or(node, value, at, owner),
            Type::Boolean if value.is_boolean() => Ok(()),
            Type::Int32 | Type::Int64 | Type::Integer => match integer(value, node.kind) {
                Some(number) => {
                    *value = Value::from(number);
                    Ok(())
                }
                None => Err(self.mismatch(value, id, at, owner)),
            },
            Type::Number if value.is_number() => {
                whole(value);
                Ok(())
            }
            Type::String if value.is_string() => Ok(()),
            Type::Quantity => quantity(value),
            _ => self.text(id, node, value, at, owner),
        }
    }

    /// Decodes a value that is (or may be) a string of some format.
    fn text(
        &self,
        id: Id,
        node: &Node,
        value: &mut Value,
        at: &StackPath,
        owner: Owner,
    ) -> Result<(), DecodeError> {
        match (node.kind, &*value) {
            (Type::Bytes, Value::String(text)) => {
                if let Some(canonical) = base64_canonical(text)? {
                    *value = Value::String(canonical);
                }
                Ok(())
            }
            (Type::Time, Value::String(text)) => {
                *value = Value::String(time::canonical(text)?);
                Ok(())
            }
            (Type::MicroTime, Value::String(text)) => {
                *value = Value::String(time::canonical_micro(text)?);
                Ok(())
            }
            (Type::IntOrString, Value::String(_)) => Ok(()),
            (Type::IntOrString, Value::Number(_)) => match integer(value, Type::Int32) {
                Some(number) => {
                    *value = Value::from(number);
                    Ok(())
                }
                None => Err(self.mismatch(value, id, at, owner)),
            },
            _ => Err(self.mismatch(value, id, at, owner)),
        }
    }

    fn object(
        &mut self,
        node: &'g Node,
        map: &mut Map<String, Value>,
        at: &StackPath,
    ) -> Result<(), DecodeError> {
        if node.fields.is_empty() {
            let Some(element) = node.additional else { return Ok(()) };
            for (key, value) in map.iter_mut() {
                if value.is_null() {
                    *value = self.zero(element);
                } else {
                    // Go prints the path of the map for its entries.
                    self.value(element, value, &at.field(key), "")?;
                }
            }
            return Ok(());
        }
        let mut fault = None;
        map.retain(|key, value| {
            if fault.is_some() {
                return true;
            }
            let Some(field) = node.field(key) else {
                self.unknown.push(&at.field(key));
                return false;
            };
            if value.is_null() {
                return false;
            }
            if let Err(error) = self.value(field.node, value, &at.field(key), node.short_name()) {
                fault = Some(error);
            }
            true
        });
        fault.map_or(Ok(()), Err)
    }

    fn list(
        &mut self,
        node: &Node,
        items: &mut [Value],
        at: &StackPath,
        owner: Owner,
    ) -> Result<(), DecodeError> {
        let Some(element) = node.items else { return Ok(()) };
        for (index, item) in items.iter_mut().enumerate() {
            if item.is_null() {
                *item = self.zero(element);
            } else {
                self.value(element, item, &at.index(index), owner)?;
            }
        }
        Ok(())
    }

    fn schema_or(
        &mut self,
        node: &Node,
        value: &mut Value,
        at: &StackPath,
        owner: Owner,
    ) -> Result<(), DecodeError> {
        let Some(schema) = node.items else { return Ok(()) };
        match value {
            Value::Object(_) => self.value(schema, value, at, owner),
            Value::Bool(_) if node.kind == Type::SchemaOrBool => Ok(()),
            Value::Array(items) if node.kind == Type::SchemaOrArray => {
                for (index, item) in items.iter_mut().enumerate() {
                    self.value(schema, item, &at.index(index), owner)?;
                }
                Ok(())
            }
            _ if node.kind == Type::SchemaOrBool => {
                Err(DecodeError("boolean or JSON schema expected".to_owned()))
            }
            _ => Ok(()),
        }
    }

    /// Go's value for a null in a list or map.
    fn zero(&self, id: Id) -> Value {
        match self.graph.resolve(id).1.kind {
            Type::String => Value::String(String::new()),
            Type::Int32 | Type::Int64 | Type::Integer | Type::Number | Type::IntOrString => Value::from(0),
            Type::Boolean => Value::Bool(false),
            Type::Object => Value::Object(Map::new()),
            Type::Quantity => Value::from("0"),
            _ => Value::Null,
        }
    }

    fn mismatch(&self, value: &Value, id: Id, at: &StackPath, owner: Owner) -> DecodeError {
        let got = match value {
            Value::Null => "null".to_owned(),
            Value::Bool(_) => "bool".to_owned(),
            Value::String(_) => "string".to_owned(),
            Value::Array(_) => "array".to_owned(),
            Value::Object(_) => "object".to_owned(),
            Value::Number(n) if self.graph.resolve(id).1.kind != Type::String => format!("number {n}"),
            Value::Number(_) => "number".to_owned(),
        };
        let mut place = at;
        let mut owner = owner;
        // Go names the struct that contains the map.
        while owner.is_empty() {
            let Some(parent) = place.parent else { break };
            place = parent;
            owner = self.owner_of(place);
        }
        let wants = self.go_type(id);
        DecodeError(format!(
            "json: cannot unmarshal {} into Go struct field {owner}.{} of type {wants}",
            if got.starts_with("number ") && !numeric(self.graph.resolve(id).1.kind) {
                "number"
            } else {
                &got
            },
            place.render(true),
        ))
    }

    /// The name of the struct of a field. Walks from the root, because errors are rare.
    fn owner_of(&self, place: &StackPath) -> &'g str {
        let mut steps = Vec::new();
        let mut here = Some(place);
        while let Some(at) = here {
            steps.push(at.step);
            here = at.parent;
        }
        let Some(mut id) = self.root else { return "" };
        let mut owner = "";
        for step in steps.into_iter().rev() {
            let node = self.graph.resolve(id).1;
            let next = match step {
                super::graph::Step::Root => continue,
                super::graph::Step::Field(name) => match node.field(name) {
                    Some(field) => {
                        owner = node.short_name();
                        Some(field.node)
                    }
                    None => node.additional,
                },
                super::graph::Step::Index(_) => node.items,
            };
            let Some(next) = next else { break };
            id = next;
        }
        owner
    }

    fn go_type(&self, id: Id) -> String {
        let node = self.graph.resolve(id).1;
        match node.kind {
            Type::Int32 | Type::IntOrString => "int32".to_owned(),
            Type::Int64 | Type::Integer => "int64".to_owned(),
            Type::Boolean => "bool".to_owned(),
            Type::Number => "float64".to_owned(),
            Type::Bytes => "[]uint8".to_owned(),
            Type::Array => format!("[]{}", node.items.map(|i| self.go_type(i)).unwrap_or_default()),
            Type::Object if !node.name.is_empty() => short_package(&node.name),
            Type::Object => {
                format!("map[string]{}", node.additional.map(|a| self.go_type(a)).unwrap_or_default())
            }
            _ => "string".to_owned(),
        }
    }
}

/// `io.k8s.api.core.v1.PodSpec` → `v1.PodSpec`.
fn short_package(name: &str) -> String {
    let mut parts = name.rsplit('.');
    let last = parts.next().unwrap_or_default();
    let package = parts.next().unwrap_or_default();
    format!("{package}.{last}")
}

fn numeric(kind: Type) -> bool {
    matches!(kind, Type::Int32 | Type::Int64 | Type::Integer | Type::Number | Type::IntOrString)
}

/// The integer of a JSON number if Go accepts it: no fraction, no exponent, in range. `-0` is zero.
fn integer(value: &Value, kind: Type) -> Option<i64> {
    let number = match value {
        Value::Number(number) => number.as_i64().or_else(|| (number.as_f64() == Some(0.0)).then_some(0)),
        _ => None,
    }?;
    (kind != Type::Int32 || i32::try_from(number).is_ok()).then_some(number)
}

/// Prints a float without a fraction as an integer.
pub(super) fn whole(value: &mut Value) {
    let Value::Number(number) = &*value else { return };
    if number.is_i64() {
        return;
    }
    let Some(float) = number.as_f64() else { return };
    if float.fract() == 0.0 && float.abs() < 1e21 {
        // `{}` prints the shortest representation and pads with zeros, as Go does.
        let text = format!("{float}");
        if let Ok(int) = text.parse::<i64>() {
            *value = Value::Number(Number::from(int));
        } else if let Ok(int) = text.parse::<u64>() {
            *value = Value::Number(Number::from(int));
        }
    }
}

fn quantity(value: &mut Value) -> Result<(), DecodeError> {
    let text = match &*value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    let parsed = Quantity::parse(&text).map_err(|e| DecodeError(e.to_string()))?;
    *value = Value::String(parsed.to_string());
    Ok(())
}

/// Canonical base64: Go's decoder skips line breaks, and its encoder prints none. `None` if the text is canonical.
fn base64_canonical(text: &str) -> Result<Option<String>, DecodeError> {
    let engine = &base64::engine::general_purpose::STANDARD;
    let cleaned: Option<String> =
        text.contains(['\n', '\r']).then(|| text.chars().filter(|c| !matches!(c, '\n' | '\r')).collect());
    let checked = cleaned.as_deref().unwrap_or(text);
    match engine.decode(checked) {
        Ok(_) => Ok(cleaned),
        Err(error) => {
            use base64::DecodeError::{InvalidByte, InvalidLastSymbol, InvalidLength, InvalidPadding};
            let foreign = |b: u8| !b.is_ascii_alphanumeric() && !matches!(b, b'+' | b'/' | b'=');
            let at = match error {
                _ if checked.bytes().any(foreign) => checked.bytes().position(foreign).unwrap_or_default(),
                InvalidByte(at, _) | InvalidLastSymbol(at, _) => at,
                InvalidLength(length) => length / 4 * 4,
                InvalidPadding => checked.len() / 4 * 4,
            };
            // Go accepts non-zero trailing bits.
            if matches!(error, InvalidLastSymbol(..)) {
                return relaxed_base64(checked).map(Some);
            }
            Err(DecodeError(format!("illegal base64 data at input byte {at}")))
        }
    }
}

fn relaxed_base64(text: &str) -> Result<String, DecodeError> {
    use base64::alphabet::STANDARD;
    use base64::engine::{GeneralPurpose, GeneralPurposeConfig};
    let relaxed =
        GeneralPurpose::new(&STANDARD, GeneralPurposeConfig::new().with_decode_allow_trailing_bits(true));
    let bytes = relaxed
        .decode(text)
        .map_err(|_| DecodeError(format!("illegal base64 data at input byte {}", text.len() / 4 * 4)))?;
    Ok(base64::engine::general_purpose::STANDARD.encode(bytes))
}

impl From<TimeError> for DecodeError {
    fn from(error: TimeError) -> Self {
        Self(error.to_string())
    }
}
