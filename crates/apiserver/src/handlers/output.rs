//! Answers in the negotiated representation.

use bytes::Bytes;
use http::header::{CONTENT_ENCODING, VARY};
use http::{HeaderValue, Response, StatusCode};
use serde_json::{Value, json};

use super::RequestContext;
use crate::codec::negotiate::{Format, Media, Shape};
use crate::codec::{pretty, protobuf};
use crate::encode;
use crate::error::ApiError;
use crate::response::{self, Body};
use crate::table::{self, IncludeObject};

/// Bodies above this size are compressed for clients that ask (spec 4.6).
const GZIP_ABOVE: usize = 128 << 10;

/// Answers with one object, given as JSON text.
pub(crate) fn object(
    cx: &RequestContext<'_>,
    status: StatusCode,
    media: Media,
    text: Bytes,
) -> Result<Response<Body>, ApiError> {
    let text = match media.shape {
        Shape::Object | Shape::MetadataList { .. } => text,
        Shape::Metadata { version } => partial(&text, version),
        Shape::Table { version } => {
            let object: Value = serde_json::from_slice(&text).map_err(ApiError::internal)?;
            let metadata = json!({ "resourceVersion": super::object::meta_str(&object, "resourceVersion") });
            table(cx, &[object], &metadata, version)?
        }
    };
    finish(status, media, text)
}

/// Answers with a value that is not stored: review, Scale, Status.
pub(crate) fn value(status: StatusCode, media: Media, value: &Value) -> Result<Response<Body>, ApiError> {
    finish(status, media, encode::object_bytes(value).into())
}

/// The success `Status` that answers `binding` and `eviction`.
pub(crate) fn success(code: u16) -> Value {
    json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": code,
    })
}

/// Answers with JSON text, converted to the negotiated format.
pub(crate) fn finish(status: StatusCode, media: Media, text: Bytes) -> Result<Response<Body>, ApiError> {
    let text = match media.format {
        Format::Json if media.pretty => pretty::indent(&text).into(),
        Format::Json => text,
        Format::Protobuf => {
            let value: Value = serde_json::from_slice(&text).map_err(ApiError::internal)?;
            protobuf::encode(&value)?.into()
        }
        Format::Yaml => {
            let value: Value = serde_json::from_slice(&text).map_err(ApiError::internal)?;
            Bytes::from(machinery::yaml::to_string(&value).map_err(ApiError::internal)?)
        }
    };
    Ok(send(status, media, text))
}

/// Answers with finished bytes, compressed if the client accepts it and they are large.
pub(crate) fn send(status: StatusCode, media: Media, text: Bytes) -> Response<Body> {
    if media.gzip && text.len() > GZIP_ABOVE && status == StatusCode::OK {
        return compressed(status, media, &text);
    }
    response::new(status, media.content_type(), text)
}

fn compressed(status: StatusCode, media: Media, text: &[u8]) -> Response<Body> {
    let mut response = response::new(status, media.content_type(), gzip(text));
    response.headers_mut().insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    response.headers_mut().insert(VARY, HeaderValue::from_static("Accept-Encoding"));
    response
}

fn gzip(text: &[u8]) -> Vec<u8> {
    use std::io::Write as _;
    let mut encoder =
        flate2::write::GzEncoder::new(Vec::with_capacity(text.len() / 4), flate2::Compression::new(1));
    // Writing into memory cannot fail.
    let _ = encoder.write_all(text);
    encoder.finish().unwrap_or_default()
}

/// The metadata-only form of an object's text.
pub(crate) fn partial(text: &Bytes, version: &str) -> Bytes {
    let mut out = Vec::with_capacity(text.len().min(1024) + 80);
    write_partial(&mut out, text, version);
    out.into()
}

/// Appends the metadata-only form.
pub(crate) fn write_partial(out: &mut Vec<u8>, text: &Bytes, version: &str) {
    out.extend_from_slice(b"{\"kind\":\"PartialObjectMetadata\",\"apiVersion\":\"meta.k8s.io/");
    out.extend_from_slice(version.as_bytes());
    out.extend_from_slice(b"\",\"metadata\":");
    match encode::metadata_of(text) {
        Some(metadata) => out.extend_from_slice(&metadata),
        // Text without a revision (dry run) has another layout.
        None => {
            let object: Value = serde_json::from_slice(text).unwrap_or_default();
            out.extend_from_slice(&encode::value_bytes(object.get("metadata").unwrap_or(&json!({}))));
        }
    }
    out.push(b'}');
}

/// The Table form of objects.
pub(crate) fn table(
    cx: &RequestContext<'_>,
    objects: &[Value],
    metadata: &Value,
    version: &str,
) -> Result<Bytes, ApiError> {
    let include = IncludeObject::parse(cx.query.get("includeObject").unwrap_or_default())?;
    let mut table = table::render(cx.descriptor, objects, metadata, include, true, jiff::Timestamp::now());
    set_table_version(&mut table, version);
    Ok(encode::object_bytes(&table).into())
}

pub(crate) fn set_table_version(table: &mut Value, version: &str) {
    if let Some(map) = table.as_object_mut() {
        map.insert("apiVersion".into(), format!("meta.k8s.io/{version}").into());
    }
}
