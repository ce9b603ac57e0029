//! The protobuf form of built-in kinds (AS-030): an envelope that names apiVersion and kind around the message of the
//! kind. Custom resources have none.

mod decode;
mod encode;
mod error;
mod table;
mod wire;

#[cfg(test)]
mod tests;

use bytes::Bytes;
use serde_json::Value;

pub use super::media::{MEDIA_TYPE, WATCH_MEDIA_TYPE};
pub use error::ProtobufError;

use decode::Decoder;
use encode::Encoder;
use table::Table;
use wire::{Payload, Reader, Writer};

use crate::error::{ApiError, Reason};

/// The first bytes of every enveloped object.
const PREFIX: &[u8] = b"k8s\0";

impl From<ProtobufError> for ApiError {
    /// Converts an encoding error into the answer to a client that wants protobuf.
    fn from(error: ProtobufError) -> Self {
        match error {
            ProtobufError::UnknownKind { .. } => {
                Self::new(406, Reason::NotAcceptable, super::media::SERIALIZERS)
            }
            other => Self::bad_request(other.to_string()),
        }
    }
}

/// An object in its envelope, not yet decoded.
#[derive(Debug)]
pub struct Envelope<'a> {
    /// Empty if the sender left it out.
    pub api_version: String,
    pub kind: String,
    message: &'a [u8],
}

impl<'a> Envelope<'a> {
    pub fn open(body: &'a [u8]) -> Result<Self, ProtobufError> {
        if body.is_empty() {
            return Err(ProtobufError::Empty);
        }
        let unknown = body.strip_prefix(PREFIX).ok_or(ProtobufError::Prefix)?;
        if unknown.is_empty() {
            return Err(ProtobufError::EmptyBody);
        }
        let mut envelope = Self { api_version: String::new(), kind: String::new(), message: &[] };
        let mut reader = Reader::new(unknown);
        while let Some((number, payload)) = reader.next()? {
            match (number, payload) {
                (1, Payload::Bytes(bytes)) => envelope.type_meta(bytes)?,
                (2, Payload::Bytes(bytes)) => envelope.message = bytes,
                (1 | 2, other) => return Err(ProtobufError::Wire { number, wire: other.wire_type() }),
                _ => {}
            }
        }
        Ok(envelope)
    }

    fn type_meta(&mut self, bytes: &[u8]) -> Result<(), ProtobufError> {
        let mut reader = Reader::new(bytes);
        while let Some((number, payload)) = reader.next()? {
            match (number, payload) {
                (1, Payload::Bytes(bytes)) => self.api_version = decode::text(bytes),
                (2, Payload::Bytes(bytes)) => self.kind = decode::text(bytes),
                _ => {}
            }
        }
        Ok(())
    }

    /// Decodes the object into its JSON form. The arguments replace what the envelope leaves out. For a kind that is
    /// not built in, the object has only apiVersion and kind, and the caller must refuse it.
    ///
    /// # Errors
    /// The message is malformed.
    pub fn decode(mut self, api_version: &str, kind: &str) -> Result<Value, ProtobufError> {
        if self.api_version.is_empty() {
            self.api_version = api_version.to_owned();
        }
        if self.kind.is_empty() {
            self.kind = kind.to_owned();
        }
        let mut object = match Table::get().kind(&self.api_version, &self.kind) {
            Some(id) => Decoder::new().object(id, self.message)?,
            None => serde_json::Map::new(),
        };
        object.insert("apiVersion".into(), self.api_version.into());
        object.insert("kind".into(), self.kind.into());
        Ok(Value::Object(object))
    }
}

/// Encodes an object, with apiVersion and kind in the envelope.
///
/// # Errors
/// The kind has no message.
pub fn encode(value: &Value) -> Result<Vec<u8>, ProtobufError> {
    let text = |key: &str| value.get(key).and_then(Value::as_str).unwrap_or_default();
    let (api_version, kind) = (text("apiVersion"), text("kind"));
    let id = message(api_version, kind)?;
    Ok(envelope(api_version, kind, &Encoder::new().object(id, value)))
}

/// Encodes a list. The items are JSON texts, which are encoded one by one.
pub fn encode_list(
    api_version: &str,
    kind: &str,
    metadata: &Value,
    items: &[Bytes],
) -> Result<Vec<u8>, ProtobufError> {
    let id = message(api_version, kind)?;
    let (table, encoder) = (Table::get(), Encoder::new());
    let mut list = Vec::with_capacity(64 + items.iter().map(Bytes::len).sum::<usize>() / 2);
    if let Some(field) = table.named(id, "metadata") {
        list.extend_from_slice(&encoder.single(field, metadata));
    }
    if let Some(field) = table.named(id, "items") {
        for item in items {
            let item: Value = serde_json::from_slice(item).map_err(|e| ProtobufError::Json(e.to_string()))?;
            list.extend_from_slice(&encoder.single(field, &item));
        }
    }
    Ok(envelope(api_version, kind, &list))
}

/// One event of a watch: its length in four bytes, then the message. `object` has apiVersion and kind.
///
/// # Errors
/// The kind has no message.
pub fn watch_frame(event: &str, object: &Value) -> Result<Vec<u8>, ProtobufError> {
    let object = encode(object)?;
    let mut out = Writer::default();
    let mark = out.mark();
    out.bytes(1, &object);
    out.close(mark, 2);
    out.bytes(1, event.as_bytes());
    let message = out.finish();
    let length = u32::try_from(message.len()).map_err(|_| ProtobufError::Overflow)?;
    let mut frame = Vec::with_capacity(message.len() + 4);
    frame.extend_from_slice(&length.to_be_bytes());
    frame.extend_from_slice(&message);
    Ok(frame)
}

fn message(api_version: &str, kind: &str) -> Result<table::Id, ProtobufError> {
    Table::get().kind(api_version, kind).ok_or_else(|| ProtobufError::UnknownKind {
        api_version: api_version.to_owned(),
        kind: kind.to_owned(),
    })
}

fn envelope(api_version: &str, kind: &str, message: &[u8]) -> Vec<u8> {
    let mut out = Writer::default();
    // Content encoding and content type, which Go writes although they are empty.
    out.bytes(4, b"");
    out.bytes(3, b"");
    out.bytes(2, message);
    let mark = out.mark();
    out.bytes(2, kind.as_bytes());
    out.bytes(1, api_version.as_bytes());
    out.close(mark, 1);
    out.raw(PREFIX);
    out.finish()
}
