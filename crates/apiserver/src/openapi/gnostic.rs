//! The OpenAPI v2 document as protobuf, the only form that client-go's OpenAPI v2 client requests (AS-008).
//!
//! Field numbers are those of the `openapi.v2.Document` message of gnostic. Two encoded documents, concatenated, are
//! one document with the paths and definitions of both, because protobuf merges messages that occur twice.

use serde_json::{Map, Value};

/// Encodes a v2 document. Leaves out what the message has no field for.
pub(super) fn encode(document: &Value) -> Vec<u8> {
    let mut out = Writer::default();
    out.text(1, document, "swagger");
    if let Some(info) = document.get("info") {
        out.message(2, |w| {
            w.text(1, info, "title");
            w.text(2, info, "version");
            w.text(3, info, "description");
        });
    }
    if let Some(paths) = document.get("paths").and_then(Value::as_object) {
        out.message(8, |w| {
            for (path, item) in paths {
                w.named(2, path, |w| path_item(w, item));
            }
        });
    }
    if let Some(definitions) = document.get("definitions").and_then(Value::as_object) {
        out.message(9, |w| {
            for (name, definition) in definitions {
                w.named(1, name, |w| schema(w, definition));
            }
        });
    }
    out.0
}

fn path_item(w: &mut Writer, item: &Value) {
    let verbs =
        [(2, "get"), (3, "put"), (4, "post"), (5, "delete"), (6, "options"), (7, "head"), (8, "patch")];
    for (number, verb) in verbs {
        if let Some(found) = item.get(verb) {
            w.message(number, |w| operation(w, found));
        }
    }
    for parameter in array(item, "parameters") {
        w.message(9, |w| parameters_item(w, parameter));
    }
    extensions(w, 10, item);
}

fn operation(w: &mut Writer, o: &Value) {
    w.texts(1, o, "tags");
    w.text(2, o, "summary");
    w.text(3, o, "description");
    w.text(5, o, "operationId");
    w.texts(6, o, "produces");
    w.texts(7, o, "consumes");
    for parameter in array(o, "parameters") {
        w.message(8, |w| parameters_item(w, parameter));
    }
    if let Some(responses) = o.get("responses").and_then(Value::as_object) {
        w.message(9, |w| {
            for (code, response) in responses {
                w.named(1, code, |w| {
                    w.message(1, |w| {
                        w.text(1, response, "description");
                        if let Some(body) = response.get("schema") {
                            w.message(2, |w| w.message(1, |w| schema(w, body)));
                        }
                    });
                });
            }
        });
    }
    w.texts(10, o, "schemes");
    w.flag(11, o, "deprecated");
    extensions(w, 13, o);
}

fn parameters_item(w: &mut Writer, p: &Value) {
    if p.get("$ref").is_some() {
        w.message(2, |w| {
            w.text(1, p, "$ref");
            w.text(2, p, "description");
        });
        return;
    }
    w.message(1, |w| match p.get("in").and_then(Value::as_str) {
        Some("body") => w.message(1, |w| {
            w.text(1, p, "description");
            w.text(2, p, "name");
            w.text(3, p, "in");
            w.flag(4, p, "required");
            if let Some(body) = p.get("schema") {
                w.message(5, |w| schema(w, body));
            }
            extensions(w, 6, p);
        }),
        place => w.message(2, |w| non_body(w, p, place.unwrap_or("query"))),
    });
}

/// Parameters outside the body. Their field numbers depend on their place: query and form parameters have one more
/// field, `allowEmptyValue`.
fn non_body(w: &mut Writer, p: &Value, place: &str) {
    let (kind, shift) = match place {
        "header" => (1, 0),
        "formData" => (2, 1),
        "path" => (4, 0),
        _ => (3, 1),
    };
    w.message(kind, |w| {
        w.flag(1, p, "required");
        w.text(2, p, "in");
        w.text(3, p, "description");
        w.text(4, p, "name");
        w.text(5 + shift, p, "type");
        w.text(6 + shift, p, "format");
        w.text(16 + shift, p, "pattern");
        w.flag(19 + shift, p, "uniqueItems");
        for value in array(p, "enum") {
            w.message(20 + shift, |w| any(w, value));
        }
    });
}

fn schema(w: &mut Writer, s: &Value) {
    w.text(1, s, "$ref");
    w.text(2, s, "format");
    w.text(3, s, "title");
    w.text(4, s, "description");
    if let Some(default) = s.get("default") {
        w.message(5, |w| any(w, default));
    }
    w.double(6, s, "multipleOf");
    w.double(7, s, "maximum");
    w.flag(8, s, "exclusiveMaximum");
    w.double(9, s, "minimum");
    w.flag(10, s, "exclusiveMinimum");
    w.integer(11, s, "maxLength");
    w.integer(12, s, "minLength");
    w.text(13, s, "pattern");
    w.integer(14, s, "maxItems");
    w.integer(15, s, "minItems");
    w.flag(16, s, "uniqueItems");
    w.integer(17, s, "maxProperties");
    w.integer(18, s, "minProperties");
    w.texts(19, s, "required");
    for value in array(s, "enum") {
        w.message(20, |w| any(w, value));
    }
    match s.get("additionalProperties") {
        Some(Value::Bool(allowed)) => w.message(21, |w| w.boolean(2, *allowed)),
        Some(inner) => w.message(21, |w| w.message(1, |w| schema(w, inner))),
        None => {}
    }
    match s.get("type") {
        Some(Value::String(_)) => w.message(22, |w| w.text(1, s, "type")),
        Some(_) => w.message(22, |w| w.texts(1, s, "type")),
        None => {}
    }
    if let Some(items) = s.get("items") {
        w.message(23, |w| w.message(1, |w| schema(w, items)));
    }
    for part in array(s, "allOf") {
        w.message(24, |w| schema(w, part));
    }
    if let Some(properties) = s.get("properties").and_then(Value::as_object) {
        w.message(25, |w| {
            for (name, property) in properties {
                w.named(1, name, |w| schema(w, property));
            }
        });
    }
    w.flag(27, s, "readOnly");
    if let Some(example) = s.get("example") {
        w.message(30, |w| any(w, example));
    }
    extensions(w, 31, s);
}

fn extensions(w: &mut Writer, number: u32, of: &Value) {
    let none = Map::new();
    let all = of.as_object().unwrap_or(&none);
    for (name, value) in all.iter().filter(|(name, _)| name.starts_with("x-")) {
        w.named(number, name, |w| any(w, value));
    }
}

/// Any value as YAML text. JSON is YAML.
fn any(w: &mut Writer, value: &Value) {
    w.bytes(2, value.to_string().as_bytes());
}

fn array<'a>(of: &'a Value, key: &str) -> &'a [Value] {
    of.get(key).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// The protobuf wire format, as far as it is needed here. Default values are not written.
#[derive(Default)]
struct Writer(Vec<u8>);

impl Writer {
    fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push((value as u8 & 0x7f) | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    fn tag(&mut self, number: u32, wire_type: u32) {
        self.varint(u64::from(number << 3 | wire_type));
    }

    fn bytes(&mut self, number: u32, bytes: &[u8]) {
        self.tag(number, 2);
        self.varint(bytes.len() as u64);
        self.0.extend_from_slice(bytes);
    }

    fn message(&mut self, number: u32, fill: impl FnOnce(&mut Self)) {
        let mut inner = Self::default();
        fill(&mut inner);
        self.bytes(number, &inner.0);
    }

    /// A map entry in a list: the name in field 1, the value in field 2.
    fn named(&mut self, number: u32, name: &str, fill: impl FnOnce(&mut Self)) {
        self.message(number, |w| {
            w.bytes(1, name.as_bytes());
            w.message(2, fill);
        });
    }

    fn text(&mut self, number: u32, of: &Value, key: &str) {
        if let Some(text) = of.get(key).and_then(Value::as_str).filter(|t| !t.is_empty()) {
            self.bytes(number, text.as_bytes());
        }
    }

    fn texts(&mut self, number: u32, of: &Value, key: &str) {
        for text in array(of, key).iter().filter_map(Value::as_str) {
            self.bytes(number, text.as_bytes());
        }
    }

    fn boolean(&mut self, number: u32, value: bool) {
        self.tag(number, 0);
        self.varint(u64::from(value));
    }

    fn flag(&mut self, number: u32, of: &Value, key: &str) {
        if of.get(key).and_then(Value::as_bool) == Some(true) {
            self.boolean(number, true);
        }
    }

    fn integer(&mut self, number: u32, of: &Value, key: &str) {
        if let Some(value) = of.get(key).and_then(Value::as_i64).filter(|v| *v != 0) {
            self.tag(number, 0);
            self.varint(value as u64);
        }
    }

    fn double(&mut self, number: u32, of: &Value, key: &str) {
        if let Some(value) = of.get(key).and_then(Value::as_f64).filter(|v| *v != 0.0) {
            self.tag(number, 1);
            self.0.extend_from_slice(&value.to_le_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Decodes one level: field numbers with their payloads.
    fn fields(mut bytes: &[u8]) -> Vec<(u64, Vec<u8>)> {
        fn varint(bytes: &mut &[u8]) -> u64 {
            let mut value = 0;
            for shift in (0..).step_by(7) {
                let (first, rest) = bytes.split_first().unwrap();
                *bytes = rest;
                value |= u64::from(first & 0x7f) << shift;
                if first & 0x80 == 0 {
                    break;
                }
            }
            value
        }
        let mut out = Vec::new();
        while !bytes.is_empty() {
            let tag = varint(&mut bytes);
            let length = match tag & 7 {
                0 => {
                    let value = varint(&mut bytes);
                    out.push((tag >> 3, value.to_le_bytes().to_vec()));
                    continue;
                }
                1 => 8,
                _ => varint(&mut bytes) as usize,
            };
            let (payload, rest) = bytes.split_at(length);
            out.push((tag >> 3, payload.to_vec()));
            bytes = rest;
        }
        out
    }

    /// AS-008: the parts of a definition that kubectl reads are in the right fields.
    #[test]
    fn as_008_definition_as_protobuf() {
        let document = json!({
            "swagger": "2.0",
            "definitions": {"a.B": {
                "type": "object", "required": ["x"],
                "properties": {"x": {"type": "array", "items": {"$ref": "#/definitions/C"}}},
                "x-kubernetes-group-version-kind": [{"group": "", "kind": "B", "version": "v1"}],
            }},
        });
        let top = fields(&encode(&document));
        assert_eq!(top[0], (1, b"2.0".to_vec()));
        let definitions = fields(&top[1].1);
        let entry = fields(&definitions[0].1);
        assert_eq!(entry[0], (1, b"a.B".to_vec()));
        let schema = fields(&entry[1].1);
        let numbers: Vec<u64> = schema.iter().map(|(n, _)| *n).collect();
        assert_eq!(numbers, [19, 22, 25, 31]);
        let extension = fields(&schema[3].1);
        assert_eq!(extension[0].1, b"x-kubernetes-group-version-kind");
        let any = fields(&extension[1].1);
        assert_eq!(any[0], (2, br#"[{"group":"","kind":"B","version":"v1"}]"#.to_vec()));
    }
}
