//! Types of objects: one graph for built-in kinds and custom resources, and the operations on values by type.

mod decode;
mod default;
mod definitions;
mod formats;
pub(crate) mod graph;
mod normalise;
pub(crate) mod old_elements;
mod prune;
mod structural;
mod structural_errors;
pub(crate) mod types;
mod unknown;
mod validate;
pub(crate) mod validations;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use serde_json::{Map, Value};

pub use decode::DecodeError;
pub use default::{DEFAULTS_MAX, DefaultsError};
pub use definitions::{DefinitionError, Definitions};
pub use structural_errors::{PATTERNS_MAX, Patterns, structural_errors};
pub use types::{ListType, MapType};
pub use unknown::UnknownField;

use crate::field;
use graph::{Field, Graph, Id, Node, StackPath, Type};
use unknown::Unknown;

/// A type. Cheap to clone. Types may be recursive.
#[derive(Clone, Debug)]
pub struct Schema {
    graph: Arc<Graph>,
    id: Id,
}

impl Schema {
    pub(crate) fn new(graph: Arc<Graph>, id: Id) -> Self {
        Self { graph, id }
    }

    pub(crate) fn graph(&self) -> &Graph {
        &self.graph
    }

    pub(crate) fn id(&self) -> Id {
        self.id
    }

    fn own(&self) -> &Node {
        self.graph.node(self.id)
    }

    fn node(&self) -> &Node {
        self.graph.resolve(self.id).1
    }

    fn at(&self, id: Id) -> Self {
        Self { graph: self.graph.clone(), id }
    }

    /// A declared field.
    pub fn field(&self, name: &str) -> Option<Self> {
        self.node().field(name).map(|f| self.at(f.node))
    }

    /// Declared fields, sorted by name.
    pub fn fields(&self) -> Vec<(String, Self)> {
        let pair = |f: &Field| (f.name.to_string(), self.at(f.node));
        self.node().fields.iter().map(pair).collect()
    }

    /// Type of the elements of a list.
    pub fn items(&self) -> Option<Self> {
        let node = self.node();
        if matches!(node.kind, Type::Array) { node.items.map(|id| self.at(id)) } else { None }
    }

    /// Type of the values of a map.
    pub fn additional(&self) -> Option<Self> {
        self.node().additional.map(|id| self.at(id))
    }

    pub fn list_type(&self) -> ListType {
        self.graph.list_type(self.id)
    }

    /// Keys of a list of type map.
    pub fn list_keys(&self) -> &[String] {
        let own = self.own();
        if own.list_keys.is_empty() { &self.node().list_keys } else { &own.list_keys }
    }

    pub fn map_type(&self) -> MapType {
        self.graph.map_type(self.id)
    }

    /// `x-kubernetes-patch-strategy` of this field (`merge`, `retainKeys`, `merge,retainKeys`, `replace`).
    pub fn patch_strategy(&self) -> Option<&str> {
        self.own().patch_strategy.as_deref()
    }

    pub fn patch_merge_key(&self) -> Option<&str> {
        self.own().patch_merge_key.as_deref()
    }

    /// Name of the definition, or the kind of a custom resource; empty for anonymous nodes.
    pub fn type_name(&self) -> &str {
        &self.node().name
    }

    /// OpenAPI type: `object`, `array`, `string`, …; empty for any type.
    pub fn json_type(&self) -> &'static str {
        match self.node().kind {
            Type::Object => "object",
            Type::Array => "array",
            Type::String | Type::Bytes | Type::Time | Type::MicroTime | Type::Quantity => "string",
            Type::Int32 | Type::Int64 | Type::Integer => "integer",
            Type::Number => "number",
            Type::Boolean => "boolean",
            Type::Any | Type::IntOrString | Type::SchemaOrBool | Type::SchemaOrArray => "",
        }
    }

    pub fn is_int_or_string(&self) -> bool {
        self.node().kind == Type::IntOrString
    }

    pub fn preserves_unknown(&self) -> bool {
        self.own().preserve || self.node().preserve
    }

    /// Whether this is the type of a custom resource.
    pub fn is_custom(&self) -> bool {
        self.graph.custom
    }

    /// Decodes a built-in object in place, like Go does (AS-002): checks types, drops nulls and unknown fields, and
    /// brings quantities, times and base64 into canonical form. Returns the unknown fields.
    ///
    /// # Errors
    /// The first value that does not fit. The object is partly decoded then.
    pub fn decode(&self, value: &mut Value) -> Result<Vec<UnknownField>, DecodeError> {
        let mut decoder = decode::Decoder::new(&self.graph, self.id);
        decoder.value(self.id, value, &StackPath::ROOT, "")?;
        Ok(decoder.unknown.found)
    }

    /// Gives a decoded built-in object the form that Go prints: drops empty optional values and adds fields that are
    /// always printed (`status: {}`). Must be called after defaulting. Does nothing for custom resources.
    pub fn normalise(&self, value: &mut Value) {
        if !self.graph.custom {
            normalise::value(&self.graph, self.id, value);
        }
    }

    /// The form in which a built-in object is stored: lists and maps that are always printed become null if they are
    /// empty. (The sender of `rules: []` in a Role owns the field, but it reads `rules: null`.) Must be called after
    /// [`Self::normalise`] and after ownership was tracked.
    pub fn store_form(&self, value: &mut Value) {
        if !self.graph.custom {
            normalise::store_form(&self.graph, self.id, value);
        }
    }

    /// An object of this type with nothing set, as Go prints it; `{}` for custom resources.
    pub fn zero(&self) -> Value {
        if self.graph.custom { Value::Object(Map::new()) } else { normalise::zero(&self.graph, self.id, 0) }
    }

    /// Drops fields that the schema of a custom resource does not specify (AS-041), and prints whole numbers without a
    /// fraction. `metadata` keeps the fields of ObjectMeta. Returns the dropped fields.
    pub fn prune(&self, value: &mut Value) -> Vec<UnknownField> {
        let mut unknown = Unknown::default();
        prune::value(&self.graph, self.id, value, &StackPath::ROOT, &mut unknown);
        unknown.found
    }

    /// Fills in the defaults of the schema. In custom resources also drops nulls that are not nullable.
    ///
    /// # Errors
    /// The defaults are larger than [`DEFAULTS_MAX`] bytes; the rest is not filled in.
    pub fn default(&self, value: &mut Value) -> Result<(), DefaultsError> {
        let mut room = DEFAULTS_MAX;
        default::value(&self.graph, self.id, value, &mut room);
        if room > 0 { Ok(()) } else { Err(DefaultsError) }
    }

    /// Whether [`Self::prepare`] has been called, or has nothing to do.
    pub fn is_prepared(&self) -> bool {
        self.graph.prepared.get().is_some() || !self.graph.custom
    }

    /// Compiles the patterns and rules of the type, once for all clones. Otherwise the first validation that needs
    /// them compiles them. Costs up to milliseconds for each of them.
    pub fn prepare(&self) {
        self.graph.prepared.get_or_init(|| {
            self.graph
                .nodes
                .iter()
                .filter_map(|node| node.checks.as_ref())
                .for_each(|checks| checks.prepare());
            crate::rules::build::compiled(&self.graph);
        });
    }

    /// Validates a custom resource by its OpenAPI schema (AS-042; spec 6.3), without CEL rules (see [`crate::rules`]).
    pub fn validate(&self, value: &Value) -> Vec<field::Error> {
        validate::validate(&self.graph, self.id, value, None, None)
    }

    /// [`Self::validate`] with ratcheting: drops errors of parts that are unchanged since `old`.
    pub fn validate_update(&self, value: &Value, old: &Value) -> Vec<field::Error> {
        validate::validate(&self.graph, self.id, value, Some(old), None)
    }

    /// Validates a part of an object, such as `status` on its own endpoint. Paths begin with `prefix`; the texts name
    /// fields relative to the part (as in Kubernetes).
    pub fn validate_part(&self, value: &Value, old: Option<&Value>, prefix: &str) -> Vec<field::Error> {
        validate::validate(&self.graph, self.id, value, old, Some(prefix))
    }
}

/// Full paths of the duplicate keys of a JSON text (`metadata.name`, `data.x`); empty for malformed JSON.
pub fn duplicates(bytes: &[u8]) -> Vec<String> {
    crate::json::parse_strict(bytes).map(|(_, paths)| paths).unwrap_or_default()
}
