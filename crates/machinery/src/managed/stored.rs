//! Changes of entries in their stored form.
//!
//! A write to an object with ten thousand list elements moves the ownership of a few of them. Parsing all entries into
//! sets and encoding them again would dominate the cost of the write. Here the cost is proportional to the change.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::entries::{Entry, MAX_UPDATERS, Order, never_owned};
use super::set::{Node, PathSet};
use super::typed::Comparison;
use super::writer::{Operation, Writer};

/// Entries in the form that [`Managers::write`](super::entries::Managers::write) writes.
pub(super) struct StoredEntries(Vec<Value>);

impl StoredEntries {
    /// Whether this writer can change the entries in place: they are well-formed, and there is room for one more.
    pub(super) fn is_open_to(fields: &Value, writer: &Writer) -> bool {
        let Some(entries) = fields.as_array() else { return false };
        let well_formed = |entry: &Value| {
            matches!(text(entry, "operation"), "Apply" | "Update")
                && !text(entry, "apiVersion").is_empty()
                && text(entry, "fieldsType") == "FieldsV1"
                && entry.get("fieldsV1").is_some_and(Value::is_object)
        };
        let updaters = entries.iter().filter(|entry| text(entry, "operation") == "Update").count();
        let own = entries.iter().filter(|entry| is_of(entry, writer)).count();
        let room = updaters < MAX_UPDATERS || own == 1 && updaters == MAX_UPDATERS;
        !entries.is_empty() && own < 2 && room && entries.iter().all(well_formed)
    }

    pub(super) fn new(fields: Value) -> Self {
        match fields {
            Value::Array(entries) => Self(entries),
            _ => Self(Vec::new()),
        }
    }

    /// Moves changed fields to the writer, and removes removed fields from all entries.
    pub(super) fn update(&mut self, comparison: Comparison, writer: &Writer) {
        let Comparison { removed, modified, added } = comparison;
        let mut taken = modified;
        taken.extend(&added);
        let mut lost = removed;
        lost.extend(&taken);
        let lost = RemovedPaths::of(&lost);
        for fields in self.0.iter_mut().filter_map(fields_mut) {
            subtract(fields, &lost);
        }
        taken.subtract(never_owned());
        if !taken.is_empty() {
            self.give(taken, writer);
        }
        self.0.retain_mut(|entry| fields_mut(entry).is_some_and(|fields| !fields.is_empty()));
        self.0.sort_by(|a, b| order(a).cmp(&order(b)));
    }

    fn give(&mut self, taken: PathSet, writer: &Writer) {
        match self.0.iter_mut().find(|entry| is_of(entry, writer)).and_then(Value::as_object_mut) {
            Some(own) => {
                if let Some(Value::Object(fields)) = own.get_mut("fieldsV1") {
                    extend(fields, &taken);
                }
                match writer.time() {
                    Some(time) => drop(own.insert("time".to_owned(), Value::String(time))),
                    None => drop(own.remove("time")),
                }
            }
            None => self.0.push(Entry { time: writer.time(), ..Entry::new(writer, taken) }.encode()),
        }
    }

    /// Writes the entries into an object. Without entries, leaves the field out.
    pub(super) fn write(self, object: &mut Value) {
        if self.0.is_empty() {
            return;
        }
        let Some(object) = object.as_object_mut() else { return };
        let meta = object.entry("metadata").or_insert_with(|| Value::Object(Map::new()));
        if let Some(meta) = meta.as_object_mut() {
            meta.insert("managedFields".to_owned(), Value::Array(self.0));
        }
    }
}

fn text<'a>(entry: &'a Value, key: &str) -> &'a str {
    entry.get(key).and_then(Value::as_str).unwrap_or_default()
}

fn order(entry: &Value) -> Order<'_> {
    let of = |key| text(entry, key);
    (of("operation") == "Update", of("time"), of("manager"), of("apiVersion"), of("subresource"))
}

fn fields_mut(entry: &mut Value) -> Option<&mut Map<String, Value>> {
    entry.get_mut("fieldsV1").and_then(Value::as_object_mut)
}

/// Like [`Entry::same_owner`].
fn is_of(entry: &Value, writer: &Writer) -> bool {
    text(entry, "manager") == writer.manager
        && text(entry, "operation") == writer.operation.as_str()
        && text(entry, "subresource") == writer.subresource
        && (writer.operation == Operation::Apply || text(entry, "apiVersion") == writer.api_version)
}

/// Removes the membership mark of a node; an empty node is a member as well.
fn take_mark(inner: &mut Map<String, Value>) -> bool {
    inner.is_empty() || inner.remove(".").is_some()
}

fn mark(inner: &mut Map<String, Value>, member: bool) {
    if member && !inner.is_empty() {
        inner.insert(".".to_owned(), Value::Object(Map::new()));
    }
}

fn extend(fields: &mut Map<String, Value>, set: &PathSet) {
    for (elem, node) in &set.nodes {
        let key = elem.encode();
        if let Some(inner) = fields.get_mut(&key).and_then(Value::as_object_mut) {
            let member = take_mark(inner) || node.member;
            extend(inner, &node.below);
            mark(inner, member);
        } else {
            let mut inner = Map::new();
            extend(&mut inner, &node.below);
            mark(&mut inner, node.member);
            fields.insert(key, Value::Object(inner));
        }
    }
}

/// The removed paths, encoded once for all entries.
#[derive(Default)]
struct RemovedPaths(BTreeMap<String, RemovedNode>);

struct RemovedNode {
    member: bool,
    below: RemovedPaths,
}

impl RemovedPaths {
    fn of(set: &PathSet) -> Self {
        let node = |node: &Node| RemovedNode { member: node.member, below: Self::of(&node.below) };
        Self(set.nodes.iter().map(|(elem, below)| (elem.encode(), node(below))).collect())
    }
}

/// Subtracts paths. Iterates over the smaller side, so that many small entries do not cost the size of the change
/// each.
fn subtract(fields: &mut Map<String, Value>, lost: &RemovedPaths) {
    if fields.len() < lost.0.len() {
        let both: Vec<String> = fields.keys().filter(|key| lost.0.contains_key(*key)).cloned().collect();
        for key in &both {
            subtract_one(fields, key, lost.0.get(key));
        }
    } else {
        for (key, node) in &lost.0 {
            subtract_one(fields, key, Some(node));
        }
    }
}

fn subtract_one(fields: &mut Map<String, Value>, key: &str, lost: Option<&RemovedNode>) {
    let (Some(lost), Some(inner)) = (lost, fields.get_mut(key).and_then(Value::as_object_mut)) else {
        return;
    };
    let member = take_mark(inner) && !lost.member;
    subtract(inner, &lost.below);
    if inner.is_empty() && !member {
        fields.remove(key);
    } else {
        mark(inner, member);
    }
}
