//! Elements of type nodes.

use serde_json::{Map, Value};

/// Most nesting levels of a schema; keeps hostile ones from exhausting the stack.
pub(super) const MAX_DEPTH: usize = 64;

/// Position of a node in its graph.
pub(crate) type Id = u32;

/// What kind of value a node describes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Type {
    /// Any type.
    #[default]
    Any,
    Object,
    Array,
    String,
    /// Base64 text.
    Bytes,
    Int32,
    Int64,
    /// An integer of a custom resource, of any size.
    Integer,
    Number,
    Boolean,
    IntOrString,
    Quantity,
    Time,
    MicroTime,
    /// `JSONSchemaProps` or a boolean.
    SchemaOrBool,
    /// `JSONSchemaProps` or a list of them.
    SchemaOrArray,
}

/// How lists of a type are merged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListType {
    Atomic,
    Set,
    Map,
}

/// How maps and structs of a type are merged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapType {
    Granular,
    Atomic,
}

impl Type {
    /// The type that the keywords of a schema name.
    pub(super) fn of(definition: &Map<String, Value>) -> Self {
        if definition.get("x-kubernetes-int-or-string").and_then(Value::as_bool) == Some(true) {
            return Self::IntOrString;
        }
        match definition.get("type").and_then(Value::as_str) {
            Some("object") => Self::Object,
            Some("array") => Self::Array,
            Some("string") => Self::String,
            Some("integer") => Self::Integer,
            Some("number") => Self::Number,
            Some("boolean") => Self::Boolean,
            _ => Self::Any,
        }
    }
}
