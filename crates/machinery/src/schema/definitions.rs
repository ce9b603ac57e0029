//! Built-in types, from the table of definitions (`definitions` of builtin-types.json).

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use serde_json::{Map, Value};

use super::Schema;
use super::graph::{Field, Graph, Id, Node, Presence, Type};
use super::types::{ListType, MapType};

/// The definitions that built-in kinds are made of.
#[derive(Clone, Debug, Default)]
pub struct Definitions {
    graph: Arc<Graph>,
    names: Arc<BTreeMap<String, Id>>,
}

/// A table of definitions that cannot be parsed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("definition {name}: {fault}")]
pub struct DefinitionError {
    pub name: String,
    pub fault: String,
}

/// Where Go prints a field differently from its OpenAPI form: definition → code → fields. Codes: `p` pointer, `o`
/// omitted if empty, `a` always printed, `n` printed as null if nil, `z` omitted if zero.
const PRESENCE: &str = include_str!("presence.json");
type PresenceTable = BTreeMap<String, BTreeMap<String, Vec<String>>>;

/// The metadata types, for custom resources without a table of built-in types.
const META: &str = include_str!("meta.json");

/// Most nesting levels of a definition; protects against a hostile table.
const MAX_DEPTH: usize = 32;

impl Schema {
    /// One definition of a table. For several definitions use [`Definitions`], which parses the table once.
    pub fn builtin(definitions: &Value, name: &str) -> Option<Self> {
        Definitions::parse(definitions).ok()?.schema(name)
    }
}

impl Definitions {
    /// Parses the `definitions` table of the built-in types.
    ///
    /// # Errors
    /// The definition that is malformed.
    pub fn parse(definitions: &Value) -> Result<Self, DefinitionError> {
        let fault =
            |name: &str, fault: &str| DefinitionError { name: name.to_owned(), fault: fault.to_owned() };
        let Some(table) = definitions.as_object() else { return Err(fault("", "not an object")) };
        let presence: PresenceTable =
            serde_json::from_str(PRESENCE).map_err(|e| fault("presence", &e.to_string()))?;
        let mut builder = Builder { graph: Graph::default(), names: BTreeMap::new() };
        for name in table.keys() {
            let id = builder.graph.push(Node::default());
            builder.names.insert(name.clone(), id);
        }
        for (name, definition) in table {
            let Some(definition) = definition.as_object() else { return Err(fault(name, "not an object")) };
            let mut node = builder.node(definition, 0).map_err(|e| fault(name, &e))?;
            node.name = name.as_str().into();
            correct_json_forms(name, &mut node, &builder.names);
            presence_of(&mut node, definition, presence.get(name));
            if let Some(id) = builder.names.get(name) {
                builder.graph.nodes[*id as usize] = node;
            }
        }
        mark_descendants(&mut builder.graph);
        Ok(Self { graph: Arc::new(builder.graph), names: Arc::new(builder.names) })
    }

    /// The type with this full name (`io.k8s.api.core.v1.ConfigMap`).
    pub fn schema(&self, name: &str) -> Option<Schema> {
        self.names.get(name).map(|id| Schema::new(self.graph.clone(), *id))
    }

    /// `ObjectMeta` and the types that it refers to, for custom resources.
    pub(crate) fn meta() -> &'static Self {
        static META_TYPES: OnceLock<Definitions> = OnceLock::new();
        META_TYPES.get_or_init(|| {
            serde_json::from_str(META).ok().and_then(|table| Self::parse(&table).ok()).unwrap_or_default()
        })
    }

    pub(crate) fn graph(&self) -> &Graph {
        &self.graph
    }

    pub(crate) fn id(&self, name: &str) -> Option<Id> {
        self.names.get(name).copied()
    }
}

struct Builder {
    graph: Graph,
    names: BTreeMap<String, Id>,
}

impl Builder {
    fn node(&mut self, definition: &Map<String, Value>, depth: usize) -> Result<Node, String> {
        if depth > MAX_DEPTH {
            return Err("nested too deep".to_owned());
        }
        let mut node = Node { kind: kind(definition), ..Node::default() };
        read_merge_keywords(definition, &mut node);
        if let Some(target) = definition.get("ref").and_then(Value::as_str) {
            node.target = Some(*self.names.get(target).ok_or_else(|| format!("unknown ref {target}"))?);
        }
        for (name, property) in definition.get("properties").and_then(Value::as_object).into_iter().flatten()
        {
            let id = self.child(property, depth)?;
            node.fields.push(Field { name: name.as_str().into(), node: id, presence: Presence::Pointer });
        }
        if let Some(items) = definition.get("items") {
            node.items = Some(self.child(items, depth)?);
        }
        if let Some(additional) = definition.get("additionalProperties") {
            node.additional = Some(self.child(additional, depth)?);
        }
        Ok(node)
    }

    fn child(&mut self, property: &Value, depth: usize) -> Result<Id, String> {
        let property = property.as_object().ok_or("a property is not an object")?;
        // A field that is only a reference needs no node.
        if property.len() == 1
            && let Some(target) = property.get("ref").and_then(Value::as_str)
        {
            return self.names.get(target).copied().ok_or_else(|| format!("unknown ref {target}"));
        }
        let node = self.node(property, depth + 1)?;
        Ok(self.graph.push(node))
    }
}

/// How Go prints each field: derived from the OpenAPI form, then corrected by the table.
fn presence_of(
    node: &mut Node,
    definition: &Map<String, Value>,
    table: Option<&BTreeMap<String, Vec<String>>>,
) {
    let required: Vec<&str> = strings(definition.get("required"));
    let properties = definition.get("properties").and_then(Value::as_object);
    for field in &mut node.fields {
        let property = properties.and_then(|p| p.get(&*field.name));
        field.presence = if required.contains(&&*field.name) {
            Presence::Always
        } else {
            match property.and_then(|p| p.get("type")).and_then(Value::as_str) {
                Some("array" | "object" | "string") => Presence::OmitEmpty,
                _ => Presence::Pointer,
            }
        };
        for (code, names) in table.into_iter().flatten() {
            if names.iter().any(|n| **n == *field.name) {
                field.presence = match code.as_str() {
                    "o" | "z" => Presence::OmitEmpty,
                    "a" => Presence::Always,
                    "n" => Presence::AlwaysNull,
                    _ => Presence::Pointer,
                };
            }
        }
    }
}

fn strings(value: Option<&Value>) -> Vec<&str> {
    value.and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str).collect()
}

fn kind(definition: &Map<String, Value>) -> Type {
    if definition.get("x-kubernetes-int-or-string").and_then(Value::as_bool) == Some(true) {
        return Type::IntOrString;
    }
    let format = definition.get("format").and_then(Value::as_str).unwrap_or_default();
    match definition.get("type").and_then(Value::as_str) {
        Some("object") => Type::Object,
        Some("array") => Type::Array,
        Some("string") if format == "byte" => Type::Bytes,
        Some("string") => Type::String,
        Some("integer") if format == "int32" => Type::Int32,
        Some("integer") => Type::Int64,
        Some("number") => Type::Number,
        Some("boolean") => Type::Boolean,
        _ => Type::Any,
    }
}

/// Reads the `x-kubernetes-*` keywords about merging.
pub(super) fn read_merge_keywords(definition: &Map<String, Value>, node: &mut Node) {
    let text = |key: &str| definition.get(key).and_then(Value::as_str);
    node.patch_strategy = text("x-kubernetes-patch-strategy").map(Into::into);
    node.patch_merge_key = text("x-kubernetes-patch-merge-key").map(Into::into);
    node.list_keys =
        strings(definition.get("x-kubernetes-list-map-keys")).into_iter().map(str::to_owned).collect();
    node.list_type = match text("x-kubernetes-list-type") {
        Some("map") => Some(ListType::Map),
        Some("set") => Some(ListType::Set),
        Some(_) => Some(ListType::Atomic),
        None => None,
    };
    // Types without a list type have a patch strategy instead.
    if node.list_type.is_none() && node.kind == Type::Array {
        let merges = node.patch_strategy.as_deref().is_some_and(|s| s.split(',').any(|one| one == "merge"));
        match &node.patch_merge_key {
            Some(key) if merges => {
                node.list_keys = vec![key.to_string()];
                node.list_type = Some(ListType::Map);
            }
            None if merges => node.list_type = Some(ListType::Set),
            _ => {}
        }
    }
    node.map_type = text("x-kubernetes-map-type").map(|mark| match mark {
        "atomic" => MapType::Atomic,
        _ => MapType::Granular,
    });
    node.default = definition.get("default").cloned();
    node.preserve =
        definition.get("x-kubernetes-preserve-unknown-fields").and_then(Value::as_bool).unwrap_or_default();
    node.embedded =
        definition.get("x-kubernetes-embedded-resource").and_then(Value::as_bool).unwrap_or_default();
}

/// Corrects types whose JSON form differs from their OpenAPI form.
fn correct_json_forms(name: &str, node: &mut Node, names: &BTreeMap<String, Id>) {
    let schema =
        || names.get("io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaProps").copied();
    match node.short_name() {
        "Quantity" => node.kind = Type::Quantity,
        "Time" => node.kind = Type::Time,
        "MicroTime" => node.kind = Type::MicroTime,
        "JSONSchemaPropsOrBool" => (node.kind, node.items) = (Type::SchemaOrBool, schema()),
        "JSONSchemaPropsOrArray" => (node.kind, node.items) = (Type::SchemaOrArray, schema()),
        "RawExtension" if name.contains("k8s") => {
            node.open = true;
            // Managers own it as a whole.
            node.map_type = Some(MapType::Atomic);
        }
        "FieldsV1" | "Patch" | "JSON" if name.contains("k8s") => node.open = true,
        _ => {}
    }
}

/// Marks nodes with defaults, or with lists that are printed as null if empty, at or below them. Other nodes are
/// skipped later.
pub(super) fn mark_descendants(graph: &mut Graph) {
    for at in 0..graph.nodes.len() {
        let has_default = |field: &Field| {
            graph.node(field.node).default.is_some() || graph.resolve(field.node).1.default.is_some()
        };
        let fields = graph.nodes[at].fields.iter().enumerate();
        let defaulted =
            fields.filter(|(_, field)| has_default(field)).map(|(place, _)| place as u32).collect();
        graph.nodes[at].defaulted = defaulted;
    }
    let mut changed = true;
    while changed {
        changed = false;
        for at in 0..graph.nodes.len() {
            let node = &graph.nodes[at];
            let children = || {
                let fields = node.fields.iter().map(|f| f.node);
                fields.chain(node.items).chain(node.additional).chain(node.target).map(|id| graph.node(id))
            };
            let defaults = node.defaults_below || children().any(|c| c.default.is_some() || c.defaults_below);
            let empties = node.empties_below
                || node.fields.iter().any(|f| empties(graph, f))
                || children().any(|c| c.empties_below);
            if (defaults, empties) != (node.defaults_below, node.empties_below) {
                let node = &mut graph.nodes[at];
                (node.defaults_below, node.empties_below) = (defaults, empties);
                changed = true;
            }
        }
    }
}

/// Whether a field is a list or map that is always printed.
pub(super) fn empties(graph: &Graph, field: &Field) -> bool {
    let node = graph.resolve(field.node).1;
    field.presence == Presence::Always
        && (node.kind == Type::Array || (node.kind == Type::Object && node.fields.is_empty() && !node.open))
}
