//! Types of objects: one graph for built-in kinds and custom resources, and what is done with values by type.

pub(crate) mod checks;
mod decode;
mod default;
mod definitions;
mod formats;
pub(crate) mod former;
pub(crate) mod graph;
mod normalise;
mod prune;
mod structural;
mod structural_errors;
pub(crate) mod types;
mod unknown;
mod validate;

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
use graph::{At, Field, Graph, Id, Node, Type};
use unknown::Unknown;

/// A type. Cheap to clone; recursive types are fine.
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

    /// OpenAPI type: `object`, `array`, `string`, …; empty when any.
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

    /// Decodes a built-in object in place like Go does (AS-002): checks types, drops nulls and unknown fields and
    /// brings quantities, times and base64 into canonical form. After an error the object is half decoded.
    pub fn decode(&self, value: &mut Value) -> Result<Vec<UnknownField>, DecodeError> {
        let mut decoder = decode::Decoder::new(&self.graph, self.id);
        decoder.value(self.id, value, &At::ROOT, "")?;
        Ok(decoder.unknown.found)
    }

    /// Gives a decoded built-in object the form that Go prints: empty optional values vanish, and what is always
    /// printed appears (`status: {}`). Call it after defaulting; custom resources stay as they are.
    pub fn normalise(&self, value: &mut Value) {
        if !self.graph.custom {
            normalise::value(&self.graph, self.id, value);
        }
    }

    /// The last touch before a built-in object is stored: lists and maps that are always printed become null when they
    /// are empty (`rules: []` of a Role is owned by who sent it, but reads `rules: null`). To be called after ownership
    /// was tracked, on what [`Self::normalise`] has seen.
    pub fn store_form(&self, value: &mut Value) {
        if !self.graph.custom {
            normalise::store_form(&self.graph, self.id, value);
        }
    }

    /// An object of this type with nothing set, as it is printed; `{}` for custom resources.
    pub fn zero(&self) -> Value {
        if self.graph.custom { Value::Object(Map::new()) } else { normalise::zero(&self.graph, self.id, 0) }
    }

    /// Drops what the schema of a custom resource does not specify (AS-041), and prints whole numbers without a fraction.
    /// `metadata` is cut to what ObjectMeta has.
    pub fn prune(&self, value: &mut Value) -> Vec<UnknownField> {
        let mut unknown = Unknown::default();
        prune::value(&self.graph, self.id, value, &At::ROOT, &mut unknown);
        unknown.found
    }

    /// Fills in the defaults of the schema. In custom resources also drops nulls that are not nullable.
    ///
    /// # Errors
    ///
    /// When the defaults add more than [`DEFAULTS_MAX`] bytes; those beyond are not filled in.
    pub fn default(&self, value: &mut Value) -> Result<(), DefaultsError> {
        let mut room = DEFAULTS_MAX;
        default::value(&self.graph, self.id, value, &mut room);
        if room > 0 { Ok(()) } else { Err(DefaultsError) }
    }

    /// Whether [`Self::prepare`] has been called, or there is nothing to prepare.
    pub fn is_prepared(&self) -> bool {
        self.graph.prepared.get().is_some() || !self.graph.custom
    }

    /// Compiles the patterns and rules of the type, once for all its clones, so that what is validated later does not
    /// wait for it. Without it they are compiled where they are first needed. Costs up to milliseconds for each of them.
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

    /// OpenAPI value validation of a custom resource (AS-042; spec 6.3), without CEL (see [`crate::rules`]).
    pub fn validate(&self, value: &Value) -> Vec<field::Error> {
        validate::validate(&self.graph, self.id, value, None, None)
    }

    /// The same with ratcheting: faults of parts that `old` has equally are dropped.
    pub fn validate_update(&self, value: &Value, old: &Value) -> Vec<field::Error> {
        validate::validate(&self.graph, self.id, value, Some(old), None)
    }

    /// Validates a part of an object, such as `status` on its own endpoint: fields are printed below `prefix`, the
    /// texts name them relative to the part (as the original does).
    pub fn validate_part(&self, value: &Value, old: Option<&Value>, prefix: &str) -> Vec<field::Error> {
        validate::validate(&self.graph, self.id, value, old, Some(prefix))
    }
}

/// Full paths of the duplicate keys of a JSON text (`metadata.name`, `data.x`); empty for broken JSON.
pub fn duplicates(bytes: &[u8]) -> Vec<String> {
    crate::json::parse_strict(bytes).map(|(_, paths)| paths).unwrap_or_default()
}
