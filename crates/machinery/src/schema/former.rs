//! Which element of a former list an element of the new one was.

use std::cell::OnceCell;
use std::collections::HashMap;

use serde_json::{Map, Value};

use super::graph::{Graph, Id, Node};
use super::types::ListType;

/// The former elements of a list whose elements have keys.
///
/// An element is looked for at its own index first, so that a list of which little changed needs no index; else by a
/// hash of its keys, made once.
pub(crate) struct Former<'a> {
    graph: &'a Graph,
    node: &'a Node,
    old: &'a [Value],
    by_keys: OnceCell<HashMap<Keys<'a>, Vec<usize>>>,
}

/// The values of the keys of an element, defaults counted in, in the order in which the type names the keys.
type Keys<'a> = Vec<Option<&'a Value>>;

impl<'a> Former<'a> {
    /// `list` is the type of the list; `old` what was there before, if anything.
    pub(crate) fn new(graph: &'a Graph, list: Id, old: Option<&'a Value>) -> Self {
        let keyed = graph.list_type(list) == ListType::Map;
        let old = old.filter(|_| keyed).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        Self { graph, node: graph.resolve(list).1, old, by_keys: OnceCell::new() }
    }

    /// The former element with the keys of this one; of several the one that is nearest to the index of this one.
    pub(crate) fn of(&self, index: usize, item: &Value) -> Option<&'a Value> {
        let item = item.as_object().filter(|_| !self.old.is_empty())?;
        let here = self.old.get(index);
        if here.and_then(Value::as_object).is_some_and(|map| self.same_keys(map, item)) {
            return here;
        }
        let by_keys = self.by_keys.get_or_init(|| self.index());
        let places = by_keys.get(&self.keys(item))?;
        let after = places.partition_point(|place| *place < index);
        let (next, last) = (places.get(after), after.checked_sub(1).and_then(|before| places.get(before)));
        // Equally far away, the later one counts: distances are those from the gap in front of `index`.
        let nearest = match (next, last) {
            (Some(next), Some(last)) if index - last <= next - index => last,
            (Some(next), _) => next,
            (None, last) => last?,
        };
        self.old.get(*nearest)
    }

    fn index(&self) -> HashMap<Keys<'a>, Vec<usize>> {
        let mut out: HashMap<_, Vec<_>> = HashMap::with_capacity(self.old.len());
        for (place, one) in self.old.iter().enumerate() {
            if let Some(map) = one.as_object() {
                out.entry(self.keys(map)).or_default().push(place);
            }
        }
        out
    }

    fn keys<'v>(&self, item: &'v Map<String, Value>) -> Keys<'v>
    where
        'a: 'v,
    {
        self.node.list_keys.iter().map(|key| self.key(item, key)).collect()
    }

    fn same_keys(&self, a: &Map<String, Value>, b: &Map<String, Value>) -> bool {
        // The last key tells most elements apart: names come after namespaces and groups.
        self.node.list_keys.iter().rev().all(|key| self.key(a, key) == self.key(b, key))
    }

    fn key<'v>(&self, item: &'v Map<String, Value>, key: &str) -> Option<&'v Value>
    where
        'a: 'v,
    {
        item.get(key).or_else(|| self.default_of(key))
    }

    fn default_of(&self, key: &str) -> Option<&'a Value> {
        let element = self.graph.resolve(self.node.items?).1;
        self.graph.node(element.field(key)?.node).default.as_ref()
    }
}
