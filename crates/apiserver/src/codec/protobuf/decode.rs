//! Decodes messages into the values that Go's JSON form of the same object has (AS-030).

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::{SignedDuration, Timestamp};
use machinery::json::{DEPTH_MAX, depth as nesting};
use serde_json::{Map, Number, Value};

use super::error::ProtobufError;
use super::table::{Field, Id, Repeat, Table, Type};
use super::wire::{Payload, Reader};

/// Seconds of Go's zero time, 0001-01-01T00:00:00Z.
pub(super) const GO_ZERO: i64 = -62_135_596_800;
/// The years that RFC 3339 can express.
const YEARS: std::ops::RangeInclusive<i64> = -62_167_219_200..=253_402_300_799;

type Object = Map<String, Value>;

/// A field as it occurs in a message.
#[derive(Clone, Copy)]
struct Occurrence<'a> {
    field: &'a Field,
    payload: Payload<'a>,
    /// The depth of the message's object in the document.
    depth: usize,
}

impl Occurrence<'_> {
    /// The same field with another payload, as an element one level below.
    fn element<'b>(&'b self, payload: Payload<'b>) -> Occurrence<'b> {
        Occurrence { field: self.field, payload, depth: self.depth + 1 }
    }
}

pub(super) struct Decoder {
    table: &'static Table,
}

impl Decoder {
    pub(super) fn new() -> Self {
        Self { table: Table::get() }
    }

    /// The fields of a whole message.
    pub(super) fn object(&self, id: Id, bytes: &[u8]) -> Result<Object, ProtobufError> {
        let mut object = Object::new();
        self.message(id, bytes, &mut object, 1)?;
        Ok(object)
    }

    /// Adds the fields of a message to an object. `depth` is the depth of the object in the document.
    fn message(&self, id: Id, bytes: &[u8], object: &mut Object, depth: usize) -> Result<(), ProtobufError> {
        if depth > DEPTH_MAX {
            return Err(ProtobufError::Deep);
        }
        let mut reader = Reader::new(bytes);
        while let Some((number, payload)) = reader.next()? {
            let Some(field) = self.table.field(id, number) else { continue };
            let found = Occurrence { field, payload, depth };
            match field.repeat {
                Repeat::One => self.one(found, object)?,
                Repeat::List => self.list(found, object)?,
                Repeat::Map => self.map(found, object)?,
            }
        }
        Ok(())
    }

    fn one(&self, found: Occurrence<'_>, object: &mut Object) -> Result<(), ProtobufError> {
        let Occurrence { field, payload, depth } = found;
        if let Type::Message(id) = field.r#type {
            let bytes = bytes(field, payload)?;
            if field.inline {
                return self.message(id, bytes, object, depth);
            }
            // A message field that occurs twice is merged.
            let slot = slot(object, field)?;
            return self.message(id, bytes, slot, depth + 1);
        }
        let value = self.value(found)?;
        if field.omit_zero && is_zero(&value) {
            object.remove(field.name);
        } else {
            object.insert(field.name.to_owned(), value);
        }
        Ok(())
    }

    fn list(&self, found: Occurrence<'_>, object: &mut Object) -> Result<(), ProtobufError> {
        let Occurrence { field, payload, .. } = found;
        let Value::Array(items) = object.entry(field.name).or_insert_with(|| Value::Array(Vec::new())) else {
            return Err(ProtobufError::Wire { number: field.number, wire: payload.wire_type() });
        };
        let (Payload::Bytes(packed), Type::Bool | Type::Int32 | Type::Int64 | Type::Double) =
            (payload, field.r#type)
        else {
            items.push(self.value(found.element(payload))?);
            return Ok(());
        };
        let mut reader = Reader::new(packed);
        while !reader.is_empty() {
            let payload = match field.r#type {
                Type::Double => Payload::Fixed64(reader.fixed64()?),
                _ => Payload::Varint(reader.varint()?),
            };
            items.push(self.value(found.element(payload))?);
        }
        Ok(())
    }

    fn map(&self, found: Occurrence<'_>, object: &mut Object) -> Result<(), ProtobufError> {
        let Occurrence { field, payload, .. } = found;
        let mut key = String::new();
        let mut value = None;
        let mut reader = Reader::new(bytes(field, payload)?);
        while let Some((number, payload)) = reader.next()? {
            match number {
                1 => key = text(bytes(field, payload)?),
                2 => value = Some(self.value(found.element(payload))?),
                _ => {}
            }
        }
        let value = match value {
            Some(value) => value,
            None => self.zero(found)?,
        };
        slot(object, field)?.insert(key, value);
        Ok(())
    }

    /// The value of a map entry that has only a key.
    fn zero(&self, found: Occurrence<'_>) -> Result<Value, ProtobufError> {
        let payload = match found.field.r#type {
            Type::Bool | Type::Int32 | Type::Int64 => Payload::Varint(0),
            Type::Double => Payload::Fixed64(0),
            _ => Payload::Bytes(&[]),
        };
        self.value(found.element(payload))
    }

    /// One value.
    fn value(&self, found: Occurrence<'_>) -> Result<Value, ProtobufError> {
        let Occurrence { field, payload, depth } = found;
        Ok(match (field.r#type, payload) {
            (Type::Bool, Payload::Varint(n)) => Value::Bool(n != 0),
            (Type::Int32, Payload::Varint(n)) => Value::from(n as i32),
            (Type::Int64, Payload::Varint(n)) => Value::from(n as i64),
            (Type::Double, Payload::Fixed64(bits)) => double(f64::from_bits(bits))?,
            (_, Payload::Bytes(bytes)) => self.framed(field, bytes, depth)?,
            (_, other) => return Err(ProtobufError::Wire { number: field.number, wire: other.wire_type() }),
        })
    }

    /// A value with a length prefix.
    fn framed(&self, field: &Field, bytes: &[u8], depth: usize) -> Result<Value, ProtobufError> {
        Ok(match field.r#type {
            Type::String => Value::String(text(bytes)),
            Type::Bytes => Value::String(STANDARD.encode(bytes)),
            Type::Time => time(bytes, false)?,
            Type::MicroTime => time(bytes, true)?,
            Type::Quantity => quantity(bytes)?,
            Type::IntOrString => int_or_string(bytes)?,
            Type::Json => json(last(bytes, 1)?.unwrap_or_default(), depth)?,
            Type::Strings => Value::Array(strings(bytes, 1)?),
            Type::SchemaOrArray(id) => {
                let items = self.messages(id, bytes, 2, depth + 2)?;
                if items.is_empty() { self.schema(id, bytes, 1, depth)? } else { Value::Array(items) }
            }
            Type::SchemaOrBool(id) => match self.schema(id, bytes, 2, depth)? {
                Value::Null => Value::Bool(varint(bytes, 1)? != 0),
                schema => schema,
            },
            Type::SchemaOrStrings(id) => {
                let names = strings(bytes, 2)?;
                if names.is_empty() { self.schema(id, bytes, 1, depth)? } else { Value::Array(names) }
            }
            Type::Message(id) => {
                let mut object = Object::new();
                self.message(id, bytes, &mut object, depth + 1)?;
                Value::Object(object)
            }
            Type::Bool | Type::Int32 | Type::Int64 | Type::Double => {
                return Err(ProtobufError::Wire { number: field.number, wire: 2 });
            }
        })
    }

    /// The schema in a field of a message, or null.
    fn schema(&self, id: Id, bytes: &[u8], number: u32, depth: usize) -> Result<Value, ProtobufError> {
        let schema = self.messages(id, bytes, number, depth + 1)?.pop();
        Ok(schema.unwrap_or_default())
    }

    fn messages(&self, id: Id, bytes: &[u8], number: u32, depth: usize) -> Result<Vec<Value>, ProtobufError> {
        let mut found = Vec::new();
        let mut reader = Reader::new(bytes);
        while let Some((at, payload)) = reader.next()? {
            if let (true, Payload::Bytes(bytes)) = (at == number, payload) {
                let mut object = Object::new();
                self.message(id, bytes, &mut object, depth)?;
                found.push(Value::Object(object));
            }
        }
        Ok(found)
    }
}

/// The object that the field has so far.
fn slot<'o>(object: &'o mut Object, field: &Field) -> Result<&'o mut Object, ProtobufError> {
    let value = object.entry(field.name).or_insert_with(|| Value::Object(Object::new()));
    value.as_object_mut().ok_or(ProtobufError::Wire { number: field.number, wire: 2 })
}

fn bytes<'a>(field: &Field, payload: Payload<'a>) -> Result<&'a [u8], ProtobufError> {
    match payload {
        Payload::Bytes(bytes) => Ok(bytes),
        other => Err(ProtobufError::Wire { number: field.number, wire: other.wire_type() }),
    }
}

/// Text with replacement characters for bytes that are not UTF-8, as Go prints it.
pub(super) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The last value of a bytes field.
fn last(message: &[u8], number: u32) -> Result<Option<&[u8]>, ProtobufError> {
    let mut found = None;
    let mut reader = Reader::new(message);
    while let Some((at, payload)) = reader.next()? {
        if let (true, Payload::Bytes(bytes)) = (at == number, payload) {
            found = Some(bytes);
        }
    }
    Ok(found)
}

/// The last value of a number field, or zero.
fn varint(message: &[u8], number: u32) -> Result<u64, ProtobufError> {
    let mut found = 0;
    let mut reader = Reader::new(message);
    while let Some((at, payload)) = reader.next()? {
        if let (true, Payload::Varint(value)) = (at == number, payload) {
            found = value;
        }
    }
    Ok(found)
}

fn strings(message: &[u8], number: u32) -> Result<Vec<Value>, ProtobufError> {
    let mut found = Vec::new();
    let mut reader = Reader::new(message);
    while let Some((at, payload)) = reader.next()? {
        if let (true, Payload::Bytes(bytes)) = (at == number, payload) {
            found.push(Value::String(text(bytes)));
        }
    }
    Ok(found)
}

/// Prints whole numbers without a fraction.
fn double(float: f64) -> Result<Value, ProtobufError> {
    const EXACT: f64 = 9_007_199_254_740_992.0;
    if float.fract() == 0.0 && float.abs() <= EXACT {
        return Ok(Value::from(float as i64));
    }
    let number = Number::from_f64(float).ok_or(ProtobufError::Number)?;
    Ok(Value::Number(number))
}

fn time(message: &[u8], micro: bool) -> Result<Value, ProtobufError> {
    if message.is_empty() {
        return Ok(Value::Null);
    }
    let seconds = varint(message, 1)? as i64;
    let nanos = if micro { i64::from(varint(message, 2)? as i32) / 1000 * 1000 } else { 0 };
    if seconds == GO_ZERO && nanos == 0 {
        return Ok(Value::Null);
    }
    if !YEARS.contains(&seconds) {
        return Err(ProtobufError::Year);
    }
    let time = Timestamp::from_second(seconds).and_then(|t| t.checked_add(SignedDuration::from_nanos(nanos)));
    let time = time.map_err(|_| ProtobufError::Year)?;
    Ok(Value::String(if micro { machinery::time::format_micro(time) } else { machinery::time::format(time) }))
}

fn quantity(message: &[u8]) -> Result<Value, ProtobufError> {
    Ok(last(message, 1)?.map_or_else(|| Value::from("0"), |bytes| Value::String(text(bytes))))
}

fn int_or_string(message: &[u8]) -> Result<Value, ProtobufError> {
    match varint(message, 1)? {
        0 => Ok(Value::from(varint(message, 2)? as i32)),
        1 => Ok(Value::String(last(message, 3)?.map(text).unwrap_or_default())),
        _ => Err(ProtobufError::IntOrString),
    }
}

fn json(raw: &[u8], depth: usize) -> Result<Value, ProtobufError> {
    if raw.is_empty() {
        return Ok(Value::Null);
    }
    let value: Value = serde_json::from_slice(raw).map_err(|error| ProtobufError::Json(error.to_string()))?;
    if depth + nesting(&value) > DEPTH_MAX { Err(ProtobufError::Deep) } else { Ok(value) }
}

fn is_zero(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::String(text) => text.is_empty(),
        Value::Number(number) => number.as_f64() == Some(0.0),
        _ => false,
    }
}
