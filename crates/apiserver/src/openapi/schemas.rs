//! Schemas of OpenAPI, from the compact table of built-in types and from CustomResourceDefinitions.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::OnceLock;

use serde_json::{Map, Value, json};

use super::describe;
use crate::builtin;
use crate::descriptor::Descriptor;

/// The OpenAPI version of a document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Version {
    V2,
    V3,
}

impl Version {
    pub(super) fn reference(self, name: &str) -> Value {
        match self {
            Self::V2 => json!({"$ref": format!("#/definitions/{name}")}),
            Self::V3 => json!({"$ref": format!("#/components/schemas/{name}")}),
        }
    }
}

/// The table of built-in types.
pub(super) struct Table {
    definitions: Map<String, Value>,
    /// Definition of (group, version, kind).
    by_kind: HashMap<(String, String, String), String>,
}

/// The table, parsed once.
pub(super) fn table() -> &'static Table {
    static TABLE: OnceLock<Table> = OnceLock::new();
    TABLE.get_or_init(|| {
        // The data is part of the program; a parse error is a defect of the build that the tests show.
        let definitions = match builtin::raw_definitions() {
            Ok(Value::Object(map)) => map,
            _ => Map::new(),
        };
        let mut by_kind = HashMap::new();
        for (name, definition) in &definitions {
            for gvk in kinds(definition) {
                by_kind.insert(gvk, name.clone());
            }
        }
        Table { definitions, by_kind }
    })
}

/// The (group, version, kind)s of a definition.
fn kinds(definition: &Value) -> Vec<(String, String, String)> {
    let list = definition.get("gvk").and_then(Value::as_array).into_iter().flatten();
    list.filter_map(|gvk| {
        let mut parts = gvk.as_str()?.split('/');
        let group = parts.next()?;
        let group = if group == "core" { "" } else { group };
        Some((group.to_owned(), parts.next()?.to_owned(), parts.next()?.to_owned()))
    })
    .collect()
}

pub(super) fn gvk(group: &str, version: &str, kind: &str) -> Value {
    json!({"group": group, "version": version, "kind": kind})
}

impl Table {
    /// Name of the definition of a built-in kind.
    pub(super) fn name(&self, group: &str, version: &str, kind: &str) -> Option<&str> {
        let key = (group.to_owned(), version.to_owned(), kind.to_owned());
        self.by_kind.get(&key).map(String::as_str)
    }

    /// The OpenAPI form of a definition.
    fn schema(&self, name: &str, to: Version) -> Option<Value> {
        let definition = self.definitions.get(name)?;
        let mut out = convert(definition, None, to);
        let kinds = kinds(definition);
        if let (Some((group, version, kind)), Some(out)) = (kinds.first(), out.as_object_mut()) {
            if !out.contains_key("description") {
                out.insert("description".into(), describe::kind(group, version, kind).into());
            }
            let list: Vec<Value> = kinds.iter().map(|(g, v, k)| gvk(g, v, k)).collect();
            out.insert("x-kubernetes-group-version-kind".into(), list.into());
        }
        Some(out)
    }

    /// Adds the built-in types `names` and all types that they refer to.
    pub(super) fn add(
        &self,
        names: impl IntoIterator<Item = String>,
        to: Version,
        schemas: &mut BTreeMap<String, Value>,
    ) {
        let mut open: Vec<String> = names.into_iter().collect();
        while let Some(name) = open.pop() {
            if schemas.contains_key(&name) {
                continue;
            }
            let Some(schema) = self.schema(&name, to) else { continue };
            if let Some(definition) = self.definitions.get(&name) {
                let mut refs = BTreeSet::new();
                collect_refs(definition, &mut refs);
                open.extend(refs);
            }
            schemas.insert(name, schema);
        }
    }
}

fn collect_refs(node: &Value, refs: &mut BTreeSet<String>) {
    if let Some(name) = node.get("ref").and_then(Value::as_str) {
        refs.insert(name.to_owned());
    }
    for key in ["items", "additionalProperties"] {
        if let Some(inner) = node.get(key) {
            collect_refs(inner, refs);
        }
    }
    for inner in node.get("properties").and_then(Value::as_object).into_iter().flat_map(Map::values) {
        collect_refs(inner, refs);
    }
}

/// Converts one node of the table. `property` is the name of the field with this type.
fn convert(node: &Value, property: Option<&str>, to: Version) -> Value {
    let Some(node) = node.as_object() else { return json!({}) };
    let mut out = Map::new();
    let mut reference = None;
    for (key, value) in node {
        match key.as_str() {
            "ref" => reference = value.as_str().map(|name| to.reference(name)),
            "gvk" => {}
            "type" if value.is_array() => match to {
                Version::V2 => drop(out.insert("type".into(), "string".into())),
                Version::V3 => {
                    let types = value.as_array().into_iter().flatten();
                    let choices: Vec<Value> = types.map(|t| json!({"type": t})).collect();
                    out.insert("oneOf".into(), choices.into());
                }
            },
            "x-kubernetes-int-or-string" => {
                out.insert("format".into(), "int-or-string".into());
                match to {
                    Version::V2 => out.insert("type".into(), "string".into()),
                    Version::V3 => {
                        out.insert("oneOf".into(), json!([{"type": "integer"}, {"type": "string"}]))
                    }
                };
            }
            "items" | "additionalProperties" => drop(out.insert(key.clone(), convert(value, None, to))),
            "properties" => {
                let fields = value.as_object().into_iter().flatten();
                let fields: Map<String, Value> =
                    fields.map(|(name, field)| (name.clone(), convert(field, Some(name), to))).collect();
                out.insert(key.clone(), fields.into());
            }
            _ => drop(out.insert(key.clone(), value.clone())),
        }
    }
    if let Some(text) = property.and_then(describe::field) {
        out.insert("description".into(), text.into());
    }
    match (reference, to) {
        (Some(reference), _) if out.is_empty() => return reference,
        (Some(reference), Version::V3) => drop(out.insert("allOf".into(), json!([reference]))),
        (Some(Value::Object(reference)), Version::V2) => out.extend(reference),
        _ => {}
    }
    Value::Object(out)
}

const PRESERVE: &str = "x-kubernetes-preserve-unknown-fields";
const OBJECT_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";
const LIST_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ListMeta";

/// The name of a kind's schema. That of a custom kind is made of the reversed group, version and kind.
pub(super) fn name(d: &Descriptor) -> String {
    if d.is_custom() { custom_name(d, &d.kind) } else { d.definition.clone() }
}

pub(super) fn list_name(d: &Descriptor) -> String {
    if d.is_custom() { custom_name(d, &d.list_kind) } else { d.list_definition.clone() }
}

fn custom_name(d: &Descriptor, kind: &str) -> String {
    let reversed: Vec<&str> = d.group.rsplit('.').collect();
    format!("{}.{}.{kind}", reversed.join("."), d.version)
}

/// Adds the types of a custom resource and the built-in types that they refer to.
pub(super) fn add_custom(d: &Descriptor, to: Version, schemas: &mut BTreeMap<String, Value>) {
    let Some(custom) = &d.custom else { return };
    let reference = |name: &str, field: &str| {
        let mut out = Map::new();
        if let Some(text) = describe::field(field) {
            out.insert("description".into(), text.into());
        }
        match (to, to.reference(name)) {
            (Version::V3, reference) => drop(out.insert("allOf".into(), json!([reference]))),
            (Version::V2, Value::Object(reference)) => out.extend(reference),
            (Version::V2, _) => {}
        }
        Value::Object(out)
    };
    let string = |field: &str| json!({"type": "string", "description": describe::field(field)});
    let kept = custom.open_api.get(PRESERVE) == Some(&Value::Bool(true));
    let mut schema = match (to, custom.open_api.clone()) {
        // Clients take the listed properties for complete, so a kind that preserves unknown fields lists none.
        (Version::V2, _) if kept => Value::Null,
        (Version::V2, schema) => for_v2(schema),
        (Version::V3, schema) => schema,
    };
    if let Value::Object(schema) = &mut schema
        && let Some(properties) = schema.entry("properties").or_insert_with(|| json!({})).as_object_mut()
    {
        properties.insert("apiVersion".into(), string("apiVersion"));
        properties.insert("kind".into(), string("kind"));
        properties.insert("metadata".into(), reference(OBJECT_META, "metadata"));
    }
    let mut schema = match schema {
        Value::Object(schema) => schema,
        _ => Map::from_iter([("type".to_owned(), Value::from("object"))]),
    };
    let mark = "x-kubernetes-group-version-kind";
    schema.insert(mark.into(), json!([gvk(&d.group, &d.version, &d.kind)]));
    schemas.insert(name(d), Value::Object(schema));
    let list = json!({
        "type": "object", "description": describe::kind(&d.group, &d.version, &d.list_kind), "required": ["items"],
        "properties": {
            "apiVersion": string("apiVersion"), "kind": string("kind"),
            "metadata": reference(LIST_META, "metadata"),
            "items": {"type": "array", "description": describe::field("items"), "items": to.reference(&name(d))},
        },
        mark: [gvk(&d.group, &d.version, &d.list_kind)],
    });
    schemas.insert(list_name(d), list);
    table().add([OBJECT_META.to_owned(), LIST_META.to_owned()], to, schemas);
}

/// A structural schema without keywords that v2 does not have.
fn for_v2(schema: Value) -> Value {
    let Value::Object(mut schema) = schema else { return schema };
    let marked = |key: &str| schema.get(key) == Some(&Value::Bool(true));
    let open = marked(PRESERVE) || marked("x-kubernetes-int-or-string");
    let nullable = marked("nullable");
    for key in ["oneOf", "anyOf", "allOf", "not", "nullable", "default", "x-kubernetes-validations"] {
        schema.remove(key);
    }
    if open || nullable {
        // Clients that trust the document would refuse objects that the server accepts.
        for key in ["type", "items", "properties", "additionalProperties", "required"] {
            schema.remove(key);
        }
    }
    for key in ["items", "additionalProperties"] {
        if let Some(inner) = schema.get_mut(key) {
            *inner = for_v2(inner.take());
        }
    }
    if let Some(Value::Object(properties)) = schema.get_mut("properties") {
        for inner in properties.values_mut() {
            *inner = for_v2(inner.take());
        }
    }
    Value::Object(schema)
}
