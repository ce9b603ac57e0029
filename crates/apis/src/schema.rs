//! Parts of schemas that several kinds share, and the conversion of a Rust type's schema to a structural
//! schema.

use std::collections::BTreeSet;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use schemars::{Schema, SchemaGenerator, generate::SchemaSettings, json_schema};
use serde_json::{Map, Value, json};

/// Pattern of label values (KS-005).
pub(crate) const LABEL_VALUE: &str = "^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$";
/// Pattern of label keys (KS-005).
pub(crate) const LABEL_KEY: &str = "^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]$";
/// Pattern of label selector operators (KS-005).
pub(crate) const OPERATOR: &str = "^(In|NotIn|Exists|DoesNotExist)$";

/// The epoch, for times that are absent.
pub(crate) fn epoch() -> Time {
    Time(k8s_openapi::jiff::Timestamp::UNIX_EPOCH)
}

/// A point in time.
pub(crate) fn time(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "string", "format": "date-time"})
}

/// Any JSON object.
pub(crate) fn any_object(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "object", "x-kubernetes-preserve-unknown-fields": true})
}

/// A list of JSON objects.
pub(crate) fn any_list(generator: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "array", "items": any_object(generator)})
}

/// Any JSON value.
pub(crate) fn any_value(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"x-kubernetes-preserve-unknown-fields": true})
}

/// Any JSON object that is owned as a whole.
pub(crate) fn atomic_object(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "object", "x-kubernetes-preserve-unknown-fields": true, "x-kubernetes-map-type": "atomic"})
}

/// A whole Kubernetes object.
pub(crate) fn embedded(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "x-kubernetes-preserve-unknown-fields": true,
        "x-kubernetes-embedded-resource": true,
    })
}

/// A list of whole Kubernetes objects.
pub(crate) fn embedded_list(generator: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "array", "items": embedded(generator)})
}

/// Bytes, base64.
pub(crate) fn bytes(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "string", "format": "byte"})
}

/// Resource name to quantity.
pub(crate) fn quantities(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "additionalProperties": {
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            "pattern": "^(\\+|-)?(([0-9]+(\\.[0-9]*)?)|(\\.[0-9]+))(([KMGTPE]i)|[numkMGTPE]|([eE](\\+|-)?(([0-9]+(\\.[0-9]*)?)|(\\.[0-9]+))))?$",
            "x-kubernetes-int-or-string": true,
        },
    })
}

fn selector(key: &Value, operator: &Value, value: &Value) -> Schema {
    json_schema!({
        "type": "object",
        "description": "All matchLabels and all matchExpressions must hold. An empty selector matches everything.",
        "properties": {
            "matchLabels": {"type": "object", "additionalProperties": value},
            "matchExpressions": {
                "type": "array",
                "x-kubernetes-list-type": "atomic",
                "items": {
                    "type": "object",
                    "required": ["key", "operator"],
                    "properties": {
                        "key": key,
                        "operator": operator,
                        "values": {"type": "array", "x-kubernetes-list-type": "atomic", "items": value},
                    },
                },
            },
        },
        "x-kubernetes-map-type": "atomic",
    })
}

/// A label selector.
pub(crate) fn label_selector(_: &mut SchemaGenerator) -> Schema {
    let string = json!({"type": "string"});
    selector(&string, &string, &string)
}

/// A list of label selectors.
pub(crate) fn label_selectors(generator: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "array", "items": label_selector(generator)})
}

/// A list of label selectors whose keys, operators and values are checked by the schema (KS-005).
pub(crate) fn checked_label_selectors(_: &mut SchemaGenerator) -> Schema {
    let checked = |pattern: &str| json!({"type": "string", "pattern": pattern});
    let items = selector(&checked(LABEL_KEY), &checked(OPERATOR), &checked(LABEL_VALUE));
    json_schema!({"type": "array", "items": items})
}

/// Conditions as most Kubernetes APIs have them, one for each type.
pub(crate) fn conditions(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array",
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["type"],
        "items": {
            "type": "object",
            "required": ["lastTransitionTime", "message", "reason", "status", "type"],
            "properties": {
                "lastTransitionTime": {"type": "string", "format": "date-time"},
                "message": {"type": "string", "maxLength": 32768},
                "observedGeneration": {"type": "integer", "format": "int64", "minimum": 0},
                "reason": {
                    "type": "string", "minLength": 1, "maxLength": 1024,
                    "pattern": "^[A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?$",
                },
                "status": {"type": "string", "enum": ["True", "False", "Unknown"]},
                "type": {
                    "type": "string", "maxLength": 316,
                    "pattern": "^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])$",
                },
            },
        },
    })
}

/// A generator whose output [`structural`] accepts.
pub(crate) fn generator() -> SchemaGenerator {
    SchemaSettings::draft07().with(|settings| settings.inline_subschemas = true).into_generator()
}

/// Converts the schema that schemars generates for a Rust type to the one that the original's generator makes
/// for its Go type: optional fields are not nullable, a Rust default is not an API default (`x-default` is),
/// integers have no sign or width besides int32/int64.
pub(crate) fn structural(value: Value) -> Value {
    match value {
        Value::Object(map) => Value::Object(object(map)),
        other => other,
    }
}

fn object(mut map: Map<String, Value>) -> Map<String, Value> {
    if let Some(Value::Array(options)) = map.get("anyOf")
        && let Some(index) = options.iter().position(|o| o == &json!({"type": "null"}))
    {
        let mut options = options.clone();
        options.remove(index);
        map.remove("anyOf");
        if let Some(Value::Object(only)) = options.into_iter().next() {
            for (key, value) in only {
                map.entry(key).or_insert(value);
            }
        }
    }
    if let Some(Value::Array(types)) = map.get("type") {
        let kept = types.iter().find(|t| t.as_str() != Some("null")).cloned();
        map.extend(kept.map(|kept| ("type".to_owned(), kept)));
    }
    for gone in ["$schema", "title", "default", "nullable", "readOnly", "writeOnly"] {
        map.remove(gone);
    }
    if map.get("additionalProperties") == Some(&Value::Bool(false)) {
        map.remove("additionalProperties");
    }
    for (ours, name) in [("x-default", "default"), ("x-nullable", "nullable")] {
        if let Some(value) = map.remove(ours) {
            map.insert(name.into(), value);
        }
    }
    if let Some(format) = map.get("format").and_then(Value::as_str)
        && (format.starts_with("uint") || format == "double")
    {
        map.remove("format");
        map.remove("minimum");
    }
    if let Some(Value::String(text)) = map.get("description") {
        let text = text.trim().to_owned();
        map.insert("description".into(), text.into());
    }
    if let Some(Value::Object(properties)) = map.remove("properties") {
        let (properties, required) = inner(properties, map.remove("required"));
        map.insert("properties".into(), Value::Object(properties));
        if !required.is_empty() {
            map.insert("required".into(), required.into_iter().collect());
        }
    }
    for nested in ["items", "additionalProperties"] {
        if let Some(schema) = map.remove(nested) {
            map.insert(nested.into(), structural(schema));
        }
    }
    map
}

/// Converts properties. Returns them with the names of the required ones: those that serde requires, and
/// those with `x-required`.
fn inner(properties: Map<String, Value>, required: Option<Value>) -> (Map<String, Value>, BTreeSet<String>) {
    let named = required.as_ref().and_then(Value::as_array).into_iter().flatten();
    let mut required: BTreeSet<String> = named.filter_map(Value::as_str).map(str::to_owned).collect();
    let properties = properties.into_iter().map(|(name, mut schema)| {
        if schema.as_object_mut().is_some_and(|schema| schema.remove("x-required").is_some()) {
            required.insert(name.clone());
        }
        (name, structural(schema))
    });
    (properties.collect(), required)
}
