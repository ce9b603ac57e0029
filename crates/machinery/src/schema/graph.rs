//! The nodes that types are made of: an arena, so that recursive types and cheap clones come for free.

use std::sync::{Arc, OnceLock};

use serde_json::Value;

use super::checks::Checks;
pub(crate) use super::types::{Id, Type};
use super::types::{ListType, MapType};
use crate::rules::compiled::Compiled;

/// All nodes of one set of types.
#[derive(Debug, Default)]
pub(crate) struct Graph {
    pub(crate) nodes: Vec<Node>,
    /// Compiled CEL rules; filled by the first validation.
    pub(crate) rules: OnceLock<Arc<Compiled>>,
    /// Whether this is the type of a custom resource.
    pub(crate) custom: bool,
    /// Set once all patterns and rules are compiled.
    pub(crate) prepared: OnceLock<()>,
}

/// How Go prints a field that has no value (the `omitempty` and pointer marks of its struct).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Presence {
    /// A pointer, left out when nil: whatever is sent is kept.
    #[default]
    Pointer,
    /// Left out when it is the zero value.
    OmitEmpty,
    /// Always printed.
    Always,
    /// A pointer that is always printed, nil as `null`.
    AlwaysNull,
}

/// A declared field of an object.
#[derive(Clone, Debug)]
pub(crate) struct Field {
    pub(crate) name: Box<str>,
    pub(crate) node: Id,
    pub(crate) presence: Presence,
}

/// One type.
#[derive(Clone, Debug, Default)]
pub(crate) struct Node {
    pub(crate) kind: Type,
    /// Full definition name, or kind; empty for anonymous nodes.
    pub(crate) name: Box<str>,
    /// The definition that this node refers to; marks of the node itself come first.
    pub(crate) target: Option<Id>,
    /// Sorted by name.
    pub(crate) fields: Vec<Field>,
    pub(crate) items: Option<Id>,
    pub(crate) additional: Option<Id>,
    /// Unknown fields are of any form (`additionalProperties: true`).
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
    pub(crate) checks: Option<Box<Checks>>,
    /// Positions in `fields` of those with a default.
    pub(crate) defaulted: Vec<u32>,
    /// Some node at or below this one has a default (or may have: recursive types).
    pub(crate) defaults_below: bool,
    /// Some node at or below this one has a list or map that is printed as null when it is empty.
    pub(crate) empties_below: bool,
}

impl Graph {
    /// The node itself, without following its reference.
    pub(crate) fn node(&self, id: Id) -> &Node {
        // Ids are made by the builders of this module only, and always point into the arena.
        &self.nodes[id as usize]
    }

    /// The node that has the structure: the referred definition, if there is one.
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

    /// `v1.PodSpec` style name for error texts; `DeploymentSpec` is the part after the last dot.
    pub(crate) fn short_name(&self) -> &str {
        self.name.rsplit('.').next().unwrap_or_default()
    }
}

/// A step of a path that is kept on the stack, so that nothing is allocated unless something is wrong.
#[derive(Clone, Copy)]
pub(crate) struct At<'a> {
    pub(crate) parent: Option<&'a At<'a>>,
    pub(crate) step: Step<'a>,
}

#[derive(Clone, Copy)]
pub(crate) enum Step<'a> {
    Root,
    Field(&'a str),
    Index(usize),
}

impl<'a> At<'a> {
    pub(crate) const ROOT: At<'static> = At { parent: None, step: Step::Root };

    pub(crate) fn field(&'a self, name: &'a str) -> At<'a> {
        At { parent: Some(self), step: Step::Field(name) }
    }

    pub(crate) fn index(&'a self, index: usize) -> At<'a> {
        At { parent: Some(self), step: Step::Index(index) }
    }

    /// `spec.containers[0].name`; without indexes (`spec.containers.name`) when `plain`.
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
