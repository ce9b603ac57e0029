//! Sets of field paths, and their FieldsV1 form.

use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::fmt::{self, Write as _};

use serde_json::{Map, Value};

use crate::schema::MapType;
use crate::schema::graph::{Graph, Id};

/// Most levels of FieldsV1. Real objects are not nested this deep, and hostile input must not exhaust the stack.
const MAX_DEPTH: usize = 100;

/// One step of a path.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Elem {
    /// A field of a struct or a key of a map.
    Field(Box<str>),
    /// An element of a keyed list, by its keys (sorted by name).
    Key(Vec<(Box<str>, Scalar)>),
    /// An element of a set.
    Value(Scalar),
    /// A position in a list.
    Index(i64),
}

/// A value of a key or of a set element, with a total order.
#[derive(Clone, Debug)]
pub(crate) struct Scalar(pub(crate) Value);

fn rank(value: &Value) -> u8 {
    match value {
        Value::Null => 0,
        Value::Bool(_) => 1,
        Value::Number(_) => 2,
        Value::String(_) => 3,
        Value::Array(_) => 4,
        Value::Object(_) => 5,
    }
}

/// The order of keys and of set elements.
pub(super) fn compare_scalars(a: &Value, b: &Value) -> Ordering {
    match (a, b) {
        (Value::String(a), Value::String(b)) => a.cmp(b),
        (Value::Bool(a), Value::Bool(b)) => a.cmp(b),
        (Value::Number(a), Value::Number(b)) => match (a.as_i64(), b.as_i64()) {
            (Some(a), Some(b)) => a.cmp(&b),
            _ => a.as_f64().unwrap_or_default().total_cmp(&b.as_f64().unwrap_or_default()),
        },
        (a, b) if rank(a) == rank(b) => a.to_string().cmp(&b.to_string()),
        _ => rank(a).cmp(&rank(b)),
    }
}

impl Ord for Scalar {
    fn cmp(&self, other: &Self) -> Ordering {
        compare_scalars(&self.0, &other.0)
    }
}

impl PartialOrd for Scalar {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Scalar {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Scalar {}

/// A set of paths, as a tree.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PathSet {
    pub(crate) nodes: BTreeMap<Elem, Node>,
}

/// The children of one step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Node {
    /// Whether the path up to here belongs to the set.
    pub(crate) member: bool,
    pub(crate) below: PathSet,
}

impl Node {
    fn is_empty(&self) -> bool {
        !self.member && self.below.is_empty()
    }
}

impl PathSet {
    pub(crate) fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// Adds one child, unless it is empty.
    pub(crate) fn attach(&mut self, elem: Elem, member: bool, below: PathSet) {
        if member || !below.is_empty() {
            let node = self.nodes.entry(elem).or_default();
            node.member |= member;
            if node.below.is_empty() {
                node.below = below;
            } else {
                node.below.extend(&below);
            }
        }
    }

    pub(crate) fn has(&self, elem: &Elem) -> bool {
        self.nodes.get(elem).is_some_and(|n| n.member)
    }

    pub(crate) fn below(&self, elem: &Elem) -> Option<&PathSet> {
        self.nodes.get(elem).map(|n| &n.below).filter(|b| !b.is_empty())
    }

    /// Adds all members of `other`.
    pub(crate) fn extend(&mut self, other: &Self) {
        for (elem, theirs) in &other.nodes {
            if let Some(ours) = self.nodes.get_mut(elem) {
                ours.member |= theirs.member;
                ours.below.extend(&theirs.below);
            } else {
                self.nodes.insert(elem.clone(), theirs.clone());
            }
        }
    }

    pub(crate) fn intersection(&self, other: &Self) -> Self {
        let mut out = Self::default();
        for (elem, ours) in &self.nodes {
            if let Some(theirs) = other.nodes.get(elem) {
                out.attach(
                    elem.clone(),
                    ours.member && theirs.member,
                    ours.below.intersection(&theirs.below),
                );
            }
        }
        out
    }

    /// Removes all members of `other`.
    pub(crate) fn subtract(&mut self, other: &Self) {
        if other.is_empty() {
            return;
        }
        self.nodes.retain(|elem, ours| {
            if let Some(theirs) = other.nodes.get(elem) {
                ours.member &= !theirs.member;
                ours.below.subtract(&theirs.below);
            }
            !ours.is_empty()
        });
    }

    /// Removes all members of `other`, with everything below them.
    pub(crate) fn subtract_deep(&mut self, other: &Self) {
        if other.is_empty() {
            return;
        }
        self.nodes.retain(|elem, ours| {
            let Some(theirs) = other.nodes.get(elem) else { return true };
            if theirs.member {
                return false;
            }
            ours.below.subtract_deep(&theirs.below);
            !ours.is_empty()
        });
    }

    /// The set of dotted field paths.
    pub(crate) fn of_fields<'a>(paths: impl IntoIterator<Item = &'a str>) -> Self {
        let mut out = Self::default();
        for path in paths {
            let mut here = &mut out;
            let mut steps = path.split('.').peekable();
            while let Some(step) = steps.next() {
                let node = here.nodes.entry(Elem::Field(step.into())).or_default();
                node.member |= steps.peek().is_none();
                here = &mut node.below;
            }
        }
        out
    }

    /// Adds declared fields that have a member below them, so that a field is removed with its content.
    pub(crate) fn with_named_fields(&self, graph: &Graph, id: Option<Id>) -> Self {
        let resolved = id.map(|id| graph.resolve(id).1);
        let mut out = Self::default();
        for (elem, node) in &self.nodes {
            let (declared, child) = match (elem, resolved) {
                (Elem::Field(name), Some(schema)) => match schema.field(name) {
                    Some(field) => (true, Some(field.node)),
                    None => (false, schema.additional),
                },
                (Elem::Field(_), None) => (false, None),
                (_, schema) => (false, schema.and_then(|s| s.items)),
            };
            let below = node.below.with_named_fields(graph, child);
            let member = node.member || (declared && !below.is_empty());
            out.attach(elem.clone(), member, below);
        }
        out
    }

    /// Parses the FieldsV1 form; `None` if it is malformed.
    pub(crate) fn parse(fields: &Value) -> Option<Self> {
        let mut out = Self::default();
        out.read(fields.as_object()?, 0)?;
        Some(out)
    }

    fn read(&mut self, fields: &Map<String, Value>, depth: usize) -> Option<()> {
        if depth > MAX_DEPTH {
            return None;
        }
        for (key, value) in fields {
            if key == "." {
                continue;
            }
            let elem = Elem::parse(key)?;
            let inner = value.as_object()?;
            let mut node =
                Node { member: inner.is_empty() || inner.contains_key("."), below: Self::default() };
            node.below.read(inner, depth + 1)?;
            self.nodes.insert(elem, node);
        }
        Some(())
    }

    /// The FieldsV1 form.
    pub(crate) fn to_fields(&self) -> Value {
        let mut out = Map::new();
        for (elem, node) in &self.nodes {
            let mut inner = match node.below.to_fields() {
                Value::Object(inner) => inner,
                _ => Map::new(),
            };
            if node.member && !inner.is_empty() {
                inner.insert(".".to_owned(), Value::Object(Map::new()));
            }
            out.insert(elem.encode(), Value::Object(inner));
        }
        Value::Object(out)
    }

    /// The member paths, printed as `.spec.containers[name="a"].image`, up to `room` bytes. Subtracts their length
    /// from `room`.
    pub(crate) fn paths(&self, room: &mut usize) -> Vec<String> {
        let mut out = Vec::new();
        self.collect(&mut String::new(), &mut out, room);
        out
    }

    fn collect(&self, prefix: &mut String, out: &mut Vec<String>, room: &mut usize) {
        for (elem, node) in &self.nodes {
            if *room == 0 {
                return;
            }
            let length = prefix.len();
            // Writing to a string cannot fail.
            let _ = write!(prefix, "{elem}");
            if node.member {
                *room = room.saturating_sub(prefix.len());
                out.push(prefix.clone());
            }
            node.below.collect(prefix, out, room);
            prefix.truncate(length);
        }
    }
}

impl Elem {
    fn parse(text: &str) -> Option<Self> {
        let (mark, rest) = (text.get(..2)?, text.get(2..)?);
        match mark {
            "f:" => Some(Self::Field(rest.into())),
            "v:" => Some(Self::Value(Scalar(serde_json::from_str(rest).ok()?))),
            "i:" => Some(Self::Index(rest.parse().ok()?)),
            "k:" => {
                let keys: Map<String, Value> = serde_json::from_str(rest).ok()?;
                Some(Self::Key(keys.into_iter().map(|(k, v)| (k.into(), Scalar(v))).collect()))
            }
            _ => None,
        }
    }

    pub(super) fn encode(&self) -> String {
        match self {
            Self::Field(name) => format!("f:{name}"),
            Self::Value(value) => format!("v:{}", value.0),
            Self::Index(index) => format!("i:{index}"),
            Self::Key(keys) => {
                let keys: Map<String, Value> =
                    keys.iter().map(|(k, v)| (k.to_string(), v.0.clone())).collect();
                format!("k:{}", Value::Object(keys))
            }
        }
    }
}

impl fmt::Display for Elem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Field(name) => write!(f, ".{name}"),
            Self::Value(value) => write!(f, "[={}]", value.0),
            Self::Index(index) => write!(f, "[{index}]"),
            Self::Key(keys) => {
                f.write_str("[")?;
                for (at, (key, value)) in keys.iter().enumerate() {
                    write!(f, "{}{key}={}", if at == 0 { "" } else { "," }, value.0)?;
                }
                f.write_str("]")
            }
        }
    }
}

/// Whether a map is owned as a whole.
pub(crate) fn atomic_map(graph: &Graph, id: Id) -> bool {
    graph.map_type(id) == MapType::Atomic
}
