//! Encodes JSON values into the same protobuf bytes that Go writes (AS-030).

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use serde_json::{Map, Value};

use super::decode::GO_ZERO;
use super::table::{Field, Id, Repeat, Table, Type};
use super::wire::Writer;
use crate::encode::value_bytes;

type Object = Map<String, Value>;

/// Encodes values as the types of the table. A value of another type counts as absent: stored objects are checked, and
/// clients could not read it either.
pub(super) struct Encoder {
    table: &'static Table,
}

impl Encoder {
    pub(super) fn new() -> Self {
        Self { table: Table::get() }
    }

    /// The bytes of a whole message.
    pub(super) fn object(&self, id: Id, value: &Value) -> Vec<u8> {
        let mut out = Writer::default();
        if let Some(object) = value.as_object() {
            self.message(id, object, &mut out);
        }
        out.finish()
    }

    /// The bytes of one field with its tag.
    pub(super) fn single(&self, field: &Field, value: &Value) -> Vec<u8> {
        let mut out = Writer::default();
        self.value(field.r#type, field.number, value, &mut out);
        out.finish()
    }

    fn message(&self, id: Id, object: &Object, out: &mut Writer) {
        for field in self.table.fields(id).iter().rev() {
            self.field(field, object, out);
        }
    }

    fn field(&self, field: &Field, object: &Object, out: &mut Writer) {
        if let (true, Type::Message(id)) = (field.inline, field.r#type) {
            let mark = out.mark();
            self.message(id, object, out);
            return out.close(mark, field.number);
        }
        let value = object.get(field.name).filter(|value| !value.is_null());
        match (field.repeat, value) {
            (Repeat::One, Some(value)) => self.value(field.r#type, field.number, value, out),
            (Repeat::One, None) if field.pointer => {}
            (Repeat::One, None) => self.value(field.r#type, field.number, &Value::Null, out),
            (Repeat::List, Some(Value::Array(items))) => {
                for item in items.iter().rev() {
                    self.value(field.r#type, field.number, item, out);
                }
            }
            (Repeat::Map, Some(Value::Object(map))) => {
                for (key, value) in map.iter().rev() {
                    let mark = out.mark();
                    self.value(field.r#type, 2, value, out);
                    out.bytes(1, key.as_bytes());
                    out.close(mark, field.number);
                }
            }
            _ => {}
        }
    }

    /// A value with its tag. If the JSON value has another type, the zero value.
    fn value(&self, r#type: Type, number: u32, value: &Value, out: &mut Writer) {
        match r#type {
            Type::Bool => return out.number(number, u64::from(value.as_bool() == Some(true))),
            Type::Int32 | Type::Int64 => return out.number(number, integer(value) as u64),
            Type::Double => return out.fixed64(number, value.as_f64().unwrap_or(0.0).to_bits()),
            _ => {}
        }
        let mark = out.mark();
        match r#type {
            Type::String => out.raw(value.as_str().unwrap_or_default().as_bytes()),
            Type::Bytes => out.raw(&STANDARD.decode(value.as_str().unwrap_or_default()).unwrap_or_default()),
            Type::Time => time(value, false, out),
            Type::MicroTime => time(value, true, out),
            Type::Quantity => match value {
                Value::String(text) => out.bytes(1, text.as_bytes()),
                Value::Number(number) => out.bytes(1, number.to_string().as_bytes()),
                _ => out.bytes(1, b"0"),
            },
            Type::IntOrString => int_or_string(value, out),
            Type::Json if !value.is_null() => out.bytes(1, &value_bytes(value)),
            Type::Strings => strings(value, 1, out),
            Type::SchemaOrArray(id) => match value {
                Value::Array(items) => {
                    items.iter().rev().for_each(|item| self.value(Type::Message(id), 2, item, out));
                }
                schema => self.schema(id, 1, schema, out),
            },
            Type::SchemaOrBool(id) => {
                self.schema(id, 2, value, out);
                out.number(1, u64::from(!matches!(value, Value::Bool(false) | Value::Null)));
            }
            Type::SchemaOrStrings(id) => {
                strings(value, 2, out);
                self.schema(id, 1, value, out);
            }
            Type::Message(id) => match value {
                Value::Object(object) => self.message(id, object, out),
                _ => self.message(id, &Object::new(), out),
            },
            Type::Json | Type::Bool | Type::Int32 | Type::Int64 | Type::Double => {}
        }
        out.close(mark, number);
    }

    fn schema(&self, id: Id, number: u32, value: &Value, out: &mut Writer) {
        if value.is_object() {
            self.value(Type::Message(id), number, value, out);
        }
    }
}

fn integer(value: &Value) -> i64 {
    value.as_i64().or_else(|| value.as_f64().map(|float| float as i64)).unwrap_or(0)
}

fn strings(value: &Value, number: u32, out: &mut Writer) {
    for item in value.as_array().into_iter().flatten().rev() {
        out.bytes(number, item.as_str().unwrap_or_default().as_bytes());
    }
}

fn time(value: &Value, micro: bool, out: &mut Writer) {
    let Some(time) = value.as_str().and_then(|text| text.parse::<Timestamp>().ok()) else {
        return;
    };
    // Before 1970 jiff's fraction is negative; on the wire it is positive.
    let nanos = time.as_nanosecond();
    let seconds = i64::try_from(nanos.div_euclid(1_000_000_000)).unwrap_or(GO_ZERO);
    let nanos = if micro { nanos.rem_euclid(1_000_000_000) / 1000 * 1000 } else { 0 };
    if seconds == GO_ZERO && nanos == 0 {
        return;
    }
    out.number(2, u64::try_from(nanos).unwrap_or(0));
    out.number(1, seconds as u64);
}

fn int_or_string(value: &Value, out: &mut Writer) {
    let text = value.as_str();
    out.bytes(3, text.unwrap_or_default().as_bytes());
    out.number(2, integer(value) as u64);
    out.number(1, u64::from(text.is_some()));
}
