//! Results of expressions.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use kube_cel::cel::Value as Cel;
use serde_json::Value as Json;

use super::runtime_type::TypeName;
use super::text::seconds;

/// The value of an expression.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    Null,
    Bool(bool),
    Int(i64),
    Uint(u64),
    Double(f64),
    String(String),
    /// Base64.
    Bytes(String),
    /// RFC 3339, UTC.
    Timestamp(String),
    /// Seconds with suffix `s`.
    Duration(String),
    /// A JSON array.
    List(Json),
    /// A JSON object.
    Map(Json),
}

impl Value {
    /// `None` for types without JSON form, such as optional values. A type becomes its name.
    pub(super) fn of(cel: Cel) -> Option<Self> {
        Some(match cel {
            Cel::Null => Self::Null,
            Cel::Bool(value) => Self::Bool(value),
            Cel::Int(value) => Self::Int(value),
            Cel::UInt(value) => Self::Uint(value),
            Cel::Float(value) => Self::Double(value),
            Cel::String(text) => Self::String(text.to_string()),
            Cel::Bytes(bytes) => Self::Bytes(BASE64_STANDARD.encode(bytes.as_slice())),
            Cel::Timestamp(time) => {
                Self::Timestamp(time.to_utc().format("%Y-%m-%dT%H:%M:%S%.fZ").to_string())
            }
            Cel::Duration(duration) => {
                Self::Duration(seconds(duration.num_seconds(), duration.subsec_nanos()))
            }
            Cel::List(items) => {
                let items = items.iter().map(|one| Self::of(one.clone()).map(Self::into_json));
                Self::List(Json::Array(items.collect::<Option<_>>()?))
            }
            Cel::Map(map) => {
                let entries = map.map.iter().map(|(key, one)| {
                    Self::of(one.clone()).map(|value| (key.to_string(), value.into_json()))
                });
                Self::Map(Json::Object(entries.collect::<Option<_>>()?))
            }
            Cel::Opaque(other) => Self::String(other.downcast_ref::<TypeName>()?.0.clone()),
            Cel::Function(..) => return None,
        })
    }

    /// The JSON form. Numbers that JSON cannot express become null.
    pub fn into_json(self) -> Json {
        match self {
            Self::Null => Json::Null,
            Self::Bool(value) => value.into(),
            Self::Int(value) => value.into(),
            Self::Uint(value) => value.into(),
            Self::Double(value) => value.into(),
            Self::String(text) | Self::Bytes(text) | Self::Timestamp(text) | Self::Duration(text) => {
                text.into()
            }
            Self::List(json) | Self::Map(json) => json,
        }
    }

    /// The CEL name of the value's type.
    pub fn type_name(&self) -> &'static str {
        match self {
            Self::Null => "null_type",
            Self::Bool(_) => "bool",
            Self::Int(_) => "int",
            Self::Uint(_) => "uint",
            Self::Double(_) => "double",
            Self::String(_) => "string",
            Self::Bytes(_) => "bytes",
            Self::Timestamp(_) => "google.protobuf.Timestamp",
            Self::Duration(_) => "google.protobuf.Duration",
            Self::List(_) => "list",
            Self::Map(_) => "map",
        }
    }
}
