//! Errors of protobuf messages.

/// Malformed bytes, or an object that has no protobuf form.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProtobufError {
    #[error("empty data")]
    Empty,
    #[error("provided data does not appear to be a protobuf message, expected prefix [107 56 115 0]")]
    Prefix,
    #[error("empty body")]
    EmptyBody,
    #[error("unexpected EOF")]
    Eof,
    #[error("proto: integer overflow")]
    Overflow,
    #[error("proto: illegal tag {number} (wire type {wire})")]
    Tag { number: u32, wire: u8 },
    #[error("proto: wrong wireType = {wire} for field {number}")]
    Wire { number: u32, wire: u8 },
    #[error("proto: exceeded max depth")]
    Deep,
    #[error("unsupported value: not a finite number")]
    Number,
    #[error("Time.MarshalJSON: year outside of range [0,9999]")]
    Year,
    #[error("impossible IntOrString.Type")]
    IntOrString,
    #[error("raw JSON: {0}")]
    Json(String),
    #[error("no protobuf form of kind {kind:?} in version {api_version:?}")]
    UnknownKind { api_version: String, kind: String },
}
