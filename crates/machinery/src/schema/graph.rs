//! The nodes of types, in an arena, so that types can be recursive and clones are cheap.

use std::sync::{Arc, OnceLock};

use serde_json::Value;

pub(crate) use super::types::{Id, Type};
use super::types::{ListType, MapType};
use super::validations::Validations;
use crate::rules::compiled::CompiledRules;

/// All nodes of a set of types.
#[derive(Debug, Default)]
pub(crate) struct Graph {
    pub(crate) nodes: Vec<Node>,
    /// Compiled CEL rules. The first validation compiles them.
    pub(crate) rules: OnceLock<Arc<CompiledRules>>,
    /// Whether this is the type of a custom resource.
    pub(crate) custom: bool,
    /// Set once all patterns and rules are compiled.
    pub(crate) prepared: OnceLock<()>,
}

/// How Go prints a field without a value (`omitempty` and pointers of its struct).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Presence {
    /// A pointer, omitted if nil. Every sent value is kept.
    #[default]
    Pointer,
    /// Omitted if it is the zero value.
    OmitEmpty,
    /// Always printed.
    Always,
    /// A pointer that is always printed; nil prints `null`.
    AlwaysNull,
}

/// A declared field of an object.
#[derive(Clone, Debug)]
pub(crate) struct Field {
    pub(crate) name: Box<str>,
    pub(crate) node: Id,
    pub(crate) presence: Presence,
}

/// One node: the type of a value.
#[derive(Clone, Debug, Default)]
pub(crate) struct Node {
    pub(crate) kind: Type,
    /// Full definition name, or kind; empty for anonymous nodes.
    pub(crate) name: Box<str>,
    /// The definition that this node refers to. Keywords of the node itself take precedence.
    pub(crate) target: Option<Id>,
    /// Sorted by name.
    pub(crate) fields: Vec<Field>,
    pub(crate) items: Option<Id>,
    pub(crate) additional: Option<Id>,
    /// Unknown fields may have any form (`additionalProperties: true`).
    pub(crate) open: bool,
    pub(crate) list_type: Option<ListType>,
    pub(crate) list_keys: Vec<String>,
    pub(crate) map_type: Option<MapType>,
    pub(crate) patch_strategy: Option<Box<str>>,
    pub(crate) patch_merge_key: Option<Box<str>>,
    pub(crate) preserve: bool,
    pub(crate) embedded: bool,
    pub(crate) nullable: bool,
    pub(crate) default: Option<Value>,
    /// Value validation of custom resources.
    pub(crate) checks: Option<Box<Validations>>,
    /// Indexes in `fields` of the fields with a default.
    pub(crate) defaulted: Vec<u32>,
    /// A node at or below this one has a default (or may have one, in recursive types).
    pub(crate) defaults_below: bool,
    /// A node at or below this one has a list or map that prints null if it is empty.
    pub(crate) empties_below: bool,
}

impl Graph {
    /// The node, without following its reference.
    pub(crate) fn node(&self, id: Id) -> &Node {
        // Only the builders of this module make ids, and all ids are in the arena.
        &self.nodes[id as usize]
    }

    /// The node with the structure: the referenced definition, if there is one.
    pub(crate) fn resolve(&self, id: Id) -> (Id, &Node) {
        let node = self.node(id);
        match node.target {
            Some(target) => (target, self.node(target)),
            None => (id, node),
        }
    }

    pub(crate) fn push(&mut self, node: Node) -> Id {
        self.nodes.push(node);
        (self.nodes.len() - 1) as Id
    }

    pub(crate) fn list_type(&self, id: Id) -> ListType {
        let own = self.node(id);
        own.list_type.or_else(|| self.resolve(id).1.list_type).unwrap_or(ListType::Atomic)
    }

    pub(crate) fn map_type(&self, id: Id) -> MapType {
        let own = self.node(id);
        own.map_type.or_else(|| self.resolve(id).1.map_type).unwrap_or(MapType::Granular)
    }
}

impl Node {
    pub(crate) fn field(&self, name: &str) -> Option<&Field> {
        let at = self.fields.binary_search_by(|f| (*f.name).cmp(name)).ok()?;
        self.fields.get(at)
    }

    /// The part of the definition name after the last dot (`DeploymentSpec`), for error texts.
    pub(crate) fn short_name(&self) -> &str {
        self.name.rsplit('.').next().unwrap_or_default()
    }
}

/// A path on the stack. Nothing is allocated unless an error prints it.
#[derive(Clone, Copy)]
pub(crate) struct StackPath<'a> {
    pub(crate) parent: Option<&'a StackPath<'a>>,
    pub(crate) step: Step<'a>,
}

#[derive(Clone, Copy)]
pub(crate) enum Step<'a> {
    Root,
    Field(&'a str),
    Index(usize),
}

impl<'a> StackPath<'a> {
    pub(crate) const ROOT: StackPath<'static> = StackPath { parent: None, step: Step::Root };

    pub(crate) fn field(&'a self, name: &'a str) -> StackPath<'a> {
        StackPath { parent: Some(self), step: Step::Field(name) }
    }

    pub(crate) fn index(&'a self, index: usize) -> StackPath<'a> {
        StackPath { parent: Some(self), step: Step::Index(index) }
    }

    /// `spec.containers[0].name`; without indexes (`spec.containers.name`) if `plain`.
    pub(crate) fn render(&self, plain: bool) -> String {
        let mut steps = Vec::new();
        let mut here = Some(self);
        while let Some(at) = here {
            steps.push(at.step);
            here = at.parent;
        }
        let mut out = String::new();
        for step in steps.into_iter().rev() {
            match step {
                Step::Root => {}
                Step::Field(name) => {
                    if !out.is_empty() {
                        out.push('.');
                    }
                    out.push_str(name);
                }
                Step::Index(_) if plain => {}
                Step::Index(index) => {
                    out.push('[');
                    out.push_str(&index.to_string());
                    out.push(']');
                }
            }
        }
        out
    }
}
