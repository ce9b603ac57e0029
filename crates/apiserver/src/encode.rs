//! Encoding of objects: the text is made once, at the write, and served unchanged (spec 10, "encode once").
//!
//! Stored text begins with `{"apiVersion":…,"kind":…,"metadata":{"resourceVersion":"…"`. So the revision can be
//! inserted at commit and replaced in deletion events, and typed lists can drop the head, all without parsing.

use std::collections::BTreeMap;
use std::io;

use bytes::{BufMut, Bytes, BytesMut};
use serde::Serialize;
use serde_json::ser::Formatter;
use serde_json::{Map, Value};
use store::{Encoded, Meta, Revision};

const REVISION_KEY: &[u8] = b"\"metadata\":{\"resourceVersion\":\"";

/// Formats JSON as Go does: `<`, `>`, `&` and the line separators are escaped.
struct GoFormatter;

impl Formatter for GoFormatter {
    fn write_string_fragment<W: ?Sized + io::Write>(
        &mut self,
        writer: &mut W,
        fragment: &str,
    ) -> io::Result<()> {
        let bytes = fragment.as_bytes();
        if !bytes.iter().any(|b| matches!(b, b'<' | b'>' | b'&' | 0xe2)) {
            return writer.write_all(bytes);
        }
        for c in fragment.chars() {
            match c {
                '<' => writer.write_all(b"\\u003c")?,
                '>' => writer.write_all(b"\\u003e")?,
                '&' => writer.write_all(b"\\u0026")?,
                '\u{2028}' => writer.write_all(b"\\u2028")?,
                '\u{2029}' => writer.write_all(b"\\u2029")?,
                c => writer.write_all(c.encode_utf8(&mut [0; 4]).as_bytes())?,
            }
        }
        Ok(())
    }
}

/// Writes any value compactly. Writing JSON into memory cannot fail, because values have string keys and finite
/// numbers.
fn write(out: &mut Vec<u8>, value: &(impl Serialize + ?Sized)) {
    let mut serializer = serde_json::Serializer::with_formatter(out, GoFormatter);
    if let Err(error) = value.serialize(&mut serializer) {
        tracing::error!(%error, "a JSON value could not be written");
    }
}

/// Compact JSON, keys sorted.
pub fn value_bytes(value: &Value) -> Vec<u8> {
    let mut out = Vec::with_capacity(256);
    write(&mut out, value);
    out
}

fn write_entry(out: &mut Vec<u8>, key: &str, value: &Value) {
    if !matches!(out.last(), Some(b'{') | None) {
        out.push(b',');
    }
    write(out, key);
    out.push(b':');
    write(out, value);
}

/// Writes the members of `map` that `first` names, in that order, then the others.
fn write_ordered(out: &mut Vec<u8>, map: &Map<String, Value>, first: &[&str]) {
    out.push(b'{');
    for key in first {
        if let Some(value) = map.get(*key) {
            write_entry(out, key, value);
        }
    }
    for (key, value) in map {
        if !first.contains(&key.as_str()) {
            write_entry(out, key, value);
        }
    }
    out.push(b'}');
}

/// The text of a `Status`, in the order that Kubernetes prints.
pub fn status_bytes(status: &Value) -> Vec<u8> {
    let mut out = Vec::with_capacity(256);
    match status {
        Value::Object(map) => write_ordered(
            &mut out,
            map,
            &["kind", "apiVersion", "metadata", "status", "message", "reason", "details", "code"],
        ),
        other => write(&mut out, other),
    }
    out
}

/// The text of any other object that is not stored: `kind`, `apiVersion` and `metadata` come first.
pub fn object_bytes(object: &Value) -> Vec<u8> {
    let mut out = Vec::with_capacity(512);
    match object {
        Value::Object(map) => write_ordered(&mut out, map, &["kind", "apiVersion", "metadata"]),
        other => write(&mut out, other),
    }
    out
}

/// The beginning of an object's text up to its metadata: `{"apiVersion":"v1","kind":"ConfigMap",`.
pub fn prefix(api_version: &str, kind: &str) -> Vec<u8> {
    let mut out = Vec::with_capacity(64);
    out.extend_from_slice(b"{\"apiVersion\":");
    write(&mut out, api_version);
    out.extend_from_slice(b",\"kind\":");
    write(&mut out, kind);
    out.push(b',');
    out
}

/// The text of an object in the layout of stored values, split around its revision. Replaces `apiVersion`, `kind` and
/// `metadata.resourceVersion` of the value.
pub fn encode(object: &Value, api_version: &str, kind: &str) -> Encoded {
    let mut text = prefix(api_version, kind);
    text.reserve(512);
    text.extend_from_slice(REVISION_KEY);
    let split = text.len();
    text.push(b'"');
    let metadata = object.get("metadata").and_then(Value::as_object);
    for (key, value) in metadata.into_iter().flatten() {
        if key != "resourceVersion" {
            write_entry(&mut text, key, value);
        }
    }
    text.push(b'}');
    for (key, value) in object.as_object().into_iter().flatten() {
        if !matches!(key.as_str(), "apiVersion" | "kind" | "metadata") {
            write_entry(&mut text, key, value);
        }
    }
    text.push(b'}');
    let text = Bytes::from(text);
    Encoded { head: text.slice(..split), tail: text.slice(split..), meta: meta(object) }
}

/// The text of an object in the layout of stored values, with the revision that the object has. An object without a
/// revision gets no `resourceVersion`.
pub fn text(object: &Value, api_version: &str, kind: &str) -> Bytes {
    let revision = object.pointer("/metadata/resourceVersion").and_then(Value::as_str).unwrap_or_default();
    if !revision.is_empty() {
        return join(&encode(object, api_version, kind), revision);
    }
    let mut text = prefix(api_version, kind);
    if let Some(metadata) = object.get("metadata") {
        write_entry_raw(&mut text, "metadata", metadata);
    } else {
        text.extend_from_slice(b"\"metadata\":{}");
    }
    for (key, value) in object.as_object().into_iter().flatten() {
        if !matches!(key.as_str(), "apiVersion" | "kind" | "metadata") {
            write_entry(&mut text, key, value);
        }
    }
    text.push(b'}');
    text.into()
}

fn write_entry_raw(out: &mut Vec<u8>, key: &str, value: &Value) {
    write(out, key);
    out.push(b':');
    write(out, value);
}

/// Joins head, revision and tail.
pub fn join(encoded: &Encoded, revision: &str) -> Bytes {
    let mut out = BytesMut::with_capacity(encoded.head.len() + revision.len() + encoded.tail.len());
    out.put_slice(&encoded.head);
    out.put_slice(revision.as_bytes());
    out.put_slice(&encoded.tail);
    out.freeze()
}

/// The metadata fields that the store searches without parsing.
pub fn meta(object: &Value) -> Meta {
    let metadata = object.get("metadata");
    let uid = metadata.and_then(|m| m.get("uid")).and_then(Value::as_str).unwrap_or_default();
    let labels: BTreeMap<Box<str>, Box<str>> = metadata
        .and_then(|m| m.get("labels"))
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
        .filter_map(|(k, v)| Some((k.as_str().into(), v.as_str()?.into())))
        .collect();
    Meta { uid: uid.into(), labels }
}

/// Splits stored text around its revision. `None` for text that this module has not written.
pub fn split(text: &Bytes, meta: Meta) -> Option<Encoded> {
    let start = find(text, REVISION_KEY)? + REVISION_KEY.len();
    let length = text.get(start..)?.iter().position(|b| *b == b'"')?;
    Some(Encoded { head: text.slice(..start), tail: text.slice(start + length..), meta })
}

/// Stored text with another revision, for deletion events.
pub fn with_revision(text: &Bytes, revision: Revision) -> Bytes {
    match split(text, Meta::default()) {
        Some(encoded) => join(&encoded, &revision.to_string()),
        None => text.clone(),
    }
}

/// The `metadata` object inside stored text.
pub fn metadata_of(text: &Bytes) -> Option<Bytes> {
    let start = find(text, REVISION_KEY)? + b"\"metadata\":".len();
    let mut depth = 0usize;
    let mut in_string = false;
    let mut escaped = false;
    for (at, byte) in text.get(start..)?.iter().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            b'{' if !in_string => depth += 1,
            b'}' if !in_string => {
                depth -= 1;
                if depth == 0 {
                    return Some(text.slice(start..=start + at));
                }
            }
            _ => {}
        }
    }
    None
}

/// `metadata` is the third member, after two short strings that cannot contain quotes, so the first match is the right
/// one.
fn find(text: &[u8], needle: &[u8]) -> Option<usize> {
    text.windows(needle.len()).take(1024).position(|window| window == needle)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn object() -> Value {
        json!({
            "kind": "X", "apiVersion": "y", "data": {"a": "<&>"},
            "metadata": {"name": "n", "uid": "u", "labels": {"l": "1"}, "annotations": {"}": "\"{"}},
        })
    }

    /// AS-069: the text is made once; only the resourceVersion is put into it.
    #[test]
    fn as_069_text_is_split_around_the_revision() {
        let encoded = encode(&object(), "v1", "ConfigMap");
        let text = join(&encoded, "7");
        let expected = r#"{"apiVersion":"v1","kind":"ConfigMap","metadata":{"resourceVersion":"7","annotations":{"}":"\"{"},"labels":{"l":"1"},"name":"n","uid":"u"},"data":{"a":"\u003c\u0026\u003e"}}"#;
        assert_eq!(String::from_utf8_lossy(&text), expected);
        assert_eq!(encoded.meta.labels.len(), 1);
        let later = with_revision(&text, Revision(12));
        assert_eq!(String::from_utf8_lossy(&later), expected.replace("\"7\"", "\"12\""));
        let metadata = metadata_of(&later).expect("stored text");
        let metadata: Value = serde_json::from_slice(&metadata).expect("an object");
        assert_eq!(metadata["annotations"]["}"], "\"{");
    }

    /// AS-036: the answer to a dry run has no resourceVersion.
    #[test]
    fn as_a_072_text_without_revision_has_none() {
        let text = text(&object(), "v1", "ConfigMap");
        let value: Value = serde_json::from_slice(&text).expect("JSON");
        assert_eq!(value["metadata"].get("resourceVersion"), None);
        assert_eq!(value["kind"], "ConfigMap");
    }
}
