//! Correlation of the elements of a keyed list with those of the old list.

use std::cell::OnceCell;
use std::collections::HashMap;

use serde_json::{Map, Value};

use super::graph::{Graph, Id, Node};
use super::types::ListType;

/// The old elements of a keyed list.
///
/// An element is looked up at its own index first, so that lists with few changes need no hash index; otherwise by the
/// hash of its keys. The hash index is built once.
pub(crate) struct OldElements<'a> {
    graph: &'a Graph,
    node: &'a Node,
    old: &'a [Value],
    by_keys: OnceCell<HashMap<Keys<'a>, Vec<usize>>>,
}

/// The values of an element's keys, with defaults, in the order of the type.
type Keys<'a> = Vec<Option<&'a Value>>;

impl<'a> OldElements<'a> {
    /// `list` is the type of the list, `old` the old list.
    pub(crate) fn new(graph: &'a Graph, list: Id, old: Option<&'a Value>) -> Self {
        let keyed = graph.list_type(list) == ListType::Map;
        let old = old.filter(|_| keyed).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        Self { graph, node: graph.resolve(list).1, old, by_keys: OnceCell::new() }
    }

    /// The old element with the same keys. Of several, the one nearest to `index`.
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
        // Of two equally near elements the later one wins: distances are measured from the gap before `index`.
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
        // The last key differs most often: names come after namespaces and groups.
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
