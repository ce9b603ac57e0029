//! Types of custom resources from their OpenAPI schema.

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::{Map, Value};

use super::Schema;
use super::definitions::{Definitions, mark_descendants, read_merge_keywords};
use super::graph::{Field, Graph, Id, Node, Presence, Type};
use super::types::MAX_DEPTH;
use super::validations::Validations;
use crate::field::{self, Path};

const OBJECT_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";

impl Schema {
    /// The type of a custom resource version from its `openAPIV3Schema` (AS-041).
    ///
    /// # Errors
    /// The schema is not an object, is nested too deep, or has a pattern that does not compile.
    pub fn structural(
        openapi: &Value,
        _group: &str,
        version: &str,
        kind: &str,
    ) -> Result<Self, Vec<field::Error>> {
        build(openapi, version, kind)
    }

    /// The type of a part of a schema.
    pub(crate) fn node_of(definition: &Map<String, Value>) -> Result<Self, String> {
        build_part(definition)
    }
}

fn build(openapi: &Value, version: &str, kind: &str) -> Result<Schema, Vec<field::Error>> {
    let mut builder = Builder { graph: Graph { custom: true, ..Graph::default() }, meta: None };
    let fail = |fault: &str| vec![field::Error::invalid_omitted(&Path::field("openAPIV3Schema"), fault)];
    let Some(definition) = openapi.as_object() else { return Err(fail("must be an object")) };
    let mut root = builder.node(definition, 0).map_err(|fault| fail(&fault))?;
    root.name = format!("{version}.{kind}").into();
    root.embedded = true;
    builder.embed(&mut root);
    let id = builder.graph.push(root);
    mark_descendants(&mut builder.graph);
    Ok(Schema::new(Arc::new(builder.graph), id))
}

/// The type of a part of a schema. The part is not a resource by itself.
fn build_part(definition: &Map<String, Value>) -> Result<Schema, String> {
    let mut builder = Builder { graph: Graph { custom: true, ..Graph::default() }, meta: None };
    let node = builder.node(definition, 0)?;
    let id = builder.graph.push(node);
    mark_descendants(&mut builder.graph);
    Ok(Schema::new(Arc::new(builder.graph), id))
}

struct Builder {
    graph: Graph,
    meta: Option<Id>,
}

impl Builder {
    fn node(&mut self, definition: &Map<String, Value>, depth: usize) -> Result<Node, String> {
        if depth > MAX_DEPTH {
            return Err("nested too deep".to_owned());
        }
        let mut node = Node { kind: Type::of(definition), ..Node::default() };
        read_merge_keywords(definition, &mut node);
        node.nullable = definition.get("nullable").and_then(Value::as_bool).unwrap_or_default();
        node.checks = Validations::parse(definition)?.map(Box::new);
        for (name, property) in definition.get("properties").and_then(Value::as_object).into_iter().flatten()
        {
            let id = self.child(property, depth)?;
            node.fields.push(Field { name: name.as_str().into(), node: id, presence: Presence::Pointer });
        }
        match definition.get("items") {
            Some(items) => node.items = Some(self.child(items, depth)?),
            None if node.kind == Type::Array => node.items = Some(self.graph.push(Node::default())),
            None => {}
        }
        match definition.get("additionalProperties") {
            Some(Value::Bool(open)) => node.open = *open,
            Some(element @ Value::Object(_)) => node.additional = Some(self.child(element, depth)?),
            _ => {}
        }
        if node.embedded {
            self.embed(&mut node);
        }
        Ok(node)
    }

    fn child(&mut self, property: &Value, depth: usize) -> Result<Id, String> {
        let property = property.as_object().ok_or("a schema is not an object")?;
        let node = self.node(property, depth + 1)?;
        Ok(self.graph.push(node))
    }

    /// Adds apiVersion, kind and metadata, whatever the schema declares for them.
    fn embed(&mut self, node: &mut Node) {
        let meta = self.object_meta();
        for name in ["apiVersion", "kind", "metadata"] {
            let declared = node.fields.binary_search_by(|f| (*f.name).cmp(name));
            let id = match (name, declared) {
                ("metadata", Ok(at)) => self.restricted_meta(meta, node.fields.get(at).map(|f| f.node)),
                ("metadata", Err(_)) => meta,
                (_, Ok(_)) => continue,
                (_, Err(_)) => self.graph.push(Node { kind: Type::String, ..Node::default() }),
            };
            match declared {
                Ok(at) => {
                    if let Some(field) = node.fields.get_mut(at) {
                        field.node = id;
                    }
                }
                Err(at) => {
                    node.fields
                        .insert(at, Field { name: name.into(), node: id, presence: Presence::Pointer });
                }
            }
        }
        if node.kind == Type::Any {
            node.kind = Type::Object;
        }
    }

    /// ObjectMeta with the value validations of the schema for name and generateName.
    fn restricted_meta(&mut self, meta: Id, declared: Option<Id>) -> Id {
        let Some(declared) = declared else { return meta };
        let declared = self.graph.node(declared).clone();
        let mut node = self.graph.node(meta).clone();
        node.checks = declared.checks;
        for field in declared.fields {
            if let Ok(at) = node.fields.binary_search_by(|f| f.name.cmp(&field.name))
                && let Some(own) = node.fields.get_mut(at)
            {
                own.node = field.node;
            }
        }
        self.graph.push(node)
    }

    /// Copies ObjectMeta and the types that it refers to into this graph, once.
    fn object_meta(&mut self) -> Id {
        if let Some(id) = self.meta {
            return id;
        }
        let source = Definitions::meta();
        let Some(start) = source.id(OBJECT_META) else { return self.graph.push(Node::default()) };
        let mut copied = HashMap::new();
        let id = self.copy(source.graph(), start, &mut copied);
        self.meta = Some(id);
        id
    }

    fn copy(&mut self, source: &Graph, id: Id, copied: &mut HashMap<Id, Id>) -> Id {
        if let Some(done) = copied.get(&id) {
            return *done;
        }
        let here = self.graph.push(Node::default());
        copied.insert(id, here);
        let mut node = source.node(id).clone();
        // The defaults of metadata are Go's zero values and are not filled in.
        node.default = None;
        (node.defaults_below, node.empties_below) = (false, false);
        for field in &mut node.fields {
            field.node = self.copy(source, field.node, copied);
        }
        node.items = node.items.map(|i| self.copy(source, i, copied));
        node.additional = node.additional.map(|i| self.copy(source, i, copied));
        node.target = node.target.map(|i| self.copy(source, i, copied));
        if let Some(slot) = self.graph.nodes.get_mut(here as usize) {
            *slot = node;
        }
        here
    }
}
