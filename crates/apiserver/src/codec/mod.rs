//! Conversion between bytes on the wire and JSON values.

pub mod decode;
pub(crate) mod media;
pub mod negotiate;
pub mod pretty;
pub mod protobuf;
