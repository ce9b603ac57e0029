//! A persistent ordered set of entries: a two-level sorted vector whose parts are shared between versions.
//!
//! A clone is a pointer copy. A change of one entry copies one chunk (at most [`CHUNK`] pointers) and the
//! list of chunks, and only when an older version still shares them.

use std::cmp::Ordering;
use std::sync::Arc;

use crate::Entry;

/// Most entries of a chunk; a fuller one is split in two.
const CHUNK: usize = 256;

type Chunk = Vec<Arc<Entry>>;

/// Entries of one collection ordered by namespace, then name.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tree {
    /// Never holds an empty chunk.
    chunks: Arc<Vec<Arc<Chunk>>>,
}

/// Where an entry is or would be: chunk, place in the chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Position(usize, usize);

fn order(entry: &Entry, namespace: &str, name: &str) -> Ordering {
    (*entry.key.namespace).cmp(namespace).then_with(|| (*entry.key.name).cmp(name))
}

impl Tree {
    pub(crate) fn same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.chunks, &other.chunks) || (self.chunks.is_empty() && other.chunks.is_empty())
    }

    pub(crate) fn get(&self, namespace: &str, name: &str) -> Option<&Arc<Entry>> {
        let Position(chunk, at) = self.first_not(|entry| order(entry, namespace, name).is_lt());
        let found = self.chunks.get(chunk)?.get(at)?;
        order(found, namespace, name).is_eq().then_some(found)
    }

    /// Puts `entry` in its place and returns the one it replaces.
    pub(crate) fn insert(&mut self, entry: Arc<Entry>) -> Option<Arc<Entry>> {
        let Position(chunk, at) =
            self.first_not(|other| order(other, &entry.key.namespace, &entry.key.name).is_lt());
        let chunks = Arc::make_mut(&mut self.chunks);
        // After the last chunk means at the end of it, so that ascending inserts fill chunks.
        let (chunk, at) = match chunks.len() {
            0 => {
                chunks.push(Arc::new(vec![entry]));
                return None;
            }
            len if chunk == len => (len - 1, usize::MAX),
            _ => (chunk, at),
        };
        let slot = chunks.get_mut(chunk)?;
        let entries = Arc::make_mut(slot);
        if let Some(same) = entries.get_mut(at)
            && order(same, &entry.key.namespace, &entry.key.name).is_eq()
        {
            return Some(std::mem::replace(same, entry));
        }
        let at = at.min(entries.len());
        entries.insert(at, entry);
        if entries.len() > CHUNK {
            // An append leaves a full chunk behind; elsewhere both halves get room.
            let cut = if at == CHUNK { CHUNK } else { CHUNK / 2 };
            let upper = entries.split_off(cut);
            chunks.insert(chunk + 1, Arc::new(upper));
        }
        None
    }

    pub(crate) fn remove(&mut self, namespace: &str, name: &str) -> Option<Arc<Entry>> {
        let Position(chunk, at) = self.first_not(|entry| order(entry, namespace, name).is_lt());
        if !order(self.chunks.get(chunk)?.get(at)?, namespace, name).is_eq() {
            return None;
        }
        let chunks = Arc::make_mut(&mut self.chunks);
        let entries = Arc::make_mut(chunks.get_mut(chunk)?);
        let gone = entries.remove(at);
        let left = entries.len();
        if left == 0 {
            chunks.remove(chunk);
        } else if left < CHUNK / 4 {
            Self::merge(chunks, chunk);
        }
        Some(gone)
    }

    /// Joins a small chunk with the next when both fit into one, so that deletions do not leave many small ones.
    fn merge(chunks: &mut Vec<Arc<Chunk>>, small: usize) {
        let Some(next) = chunks.get(small + 1).cloned() else { return };
        let Some(slot) = chunks.get_mut(small) else { return };
        if slot.len() + next.len() <= CHUNK / 2 {
            Arc::make_mut(slot).extend(next.iter().cloned());
            chunks.remove(small + 1);
        }
    }

    /// First position whose entry does not satisfy `before` (which holds for a prefix of the order).
    fn first_not(&self, before: impl Fn(&Entry) -> bool) -> Position {
        let chunk = self.chunks.partition_point(|entries| entries.last().is_some_and(|last| before(last)));
        let at = self.chunks.get(chunk).map_or(0, |entries| entries.partition_point(|entry| before(entry)));
        Position(chunk, at)
    }

    fn range(&self, namespace: Option<&str>) -> (Position, Position) {
        match namespace {
            None => (Position(0, 0), Position(self.chunks.len(), 0)),
            Some(wanted) => (
                self.first_not(|entry| &*entry.key.namespace < wanted),
                self.first_not(|entry| &*entry.key.namespace <= wanted),
            ),
        }
    }

    /// Number of entries (of one namespace): adds up chunk sizes, touches no entry but at the borders.
    pub(crate) fn len(&self, namespace: Option<&str>) -> usize {
        let (from, to) = self.range(namespace);
        let chunks = self.chunks.get(from.0..to.0).unwrap_or_default();
        chunks.iter().map(|entries| entries.len()).sum::<usize>() + to.1 - from.1
    }

    /// Entries (of one namespace) in order, strictly after the given (namespace, name).
    pub(crate) fn iter(&self, namespace: Option<&str>, after: Option<(&str, &str)>) -> Iter<'_> {
        let (mut from, to) = self.range(namespace);
        if let Some((after_namespace, after_name)) = after {
            from = from.max(self.first_not(|entry| order(entry, after_namespace, after_name).is_le()));
        }
        let left = if from < to {
            let chunks = self.chunks.get(from.0..to.0).unwrap_or_default();
            chunks.iter().map(|entries| entries.len()).sum::<usize>() + to.1 - from.1
        } else {
            0
        };
        let (first, rest) = match self.chunks.get(from.0..).and_then(|chunks| chunks.split_first()) {
            Some((first, rest)) => (first.get(from.1..).unwrap_or_default(), rest),
            None => (&[][..], &[][..]),
        };
        Iter { chunk: first.iter(), rest: rest.iter(), left }
    }
}

/// Iterator over entries in order.
#[derive(Clone, Debug)]
pub struct Iter<'a> {
    chunk: std::slice::Iter<'a, Arc<Entry>>,
    rest: std::slice::Iter<'a, Arc<Chunk>>,
    left: usize,
}

impl<'a> Iterator for Iter<'a> {
    type Item = &'a Arc<Entry>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.left == 0 {
            return None;
        }
        self.left -= 1;
        loop {
            if let Some(entry) = self.chunk.next() {
                return Some(entry);
            }
            self.chunk = self.rest.next()?.iter();
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl ExactSizeIterator for Iter<'_> {}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use bytes::Bytes;
    use proptest::prelude::*;

    use super::*;
    use crate::{Collection, Key, Meta, Revision};

    fn entry(namespace: &str, name: &str, revision: u64) -> Arc<Entry> {
        Arc::new(Entry {
            key: Key { collection: Collection::new("", "x"), namespace: namespace.into(), name: name.into() },
            revision: Revision(revision),
            value: Bytes::new(),
            meta: Meta::default(),
        })
    }

    type Model = BTreeMap<(String, String), u64>;

    fn flat<'a>(entries: impl Iterator<Item = &'a Arc<Entry>>) -> Vec<((String, String), u64)> {
        entries.map(|e| ((e.key.namespace.to_string(), e.key.name.to_string()), e.revision.0)).collect()
    }

    fn check(tree: &Tree, model: &Model) {
        assert_eq!(flat(tree.iter(None, None)), model.clone().into_iter().collect::<Vec<_>>());
        assert_eq!(tree.len(None), model.len());
        for namespace in ["", "n0", "n1", "n2", "n9"] {
            let of: Vec<_> =
                model.iter().filter(|(k, _)| k.0 == namespace).map(|(k, v)| (k.clone(), *v)).collect();
            assert_eq!(tree.len(Some(namespace)), of.len());
            assert_eq!(flat(tree.iter(Some(namespace), None)), of);
            for after in [("n1", "50"), ("n0", ""), ("n1", "500"), ("zz", "")] {
                let rest: Vec<_> =
                    of.iter().filter(|(k, _)| (k.0.as_str(), k.1.as_str()) > after).cloned().collect();
                let iter = tree.iter(Some(namespace), Some(after));
                assert_eq!(iter.len(), rest.len());
                assert_eq!(flat(iter), rest);
            }
        }
        assert!(tree.chunks.iter().all(|chunk| !chunk.is_empty() && chunk.len() <= CHUNK));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]
        /// The tree behaves like an ordered map, and older versions of it stay as they were.
        #[test]
        fn behaves_like_an_ordered_map(ops in prop::collection::vec((0..3_u8, 0..700_u32, 0..4_u8), 0..2500)) {
            let mut tree = Tree::default();
            let mut model = Model::new();
            let mut kept: Option<(Tree, Model)> = None;
            for (revision, (namespace, name, op)) in (1..).zip(&ops) {
                let (namespace, name) = (format!("n{namespace}"), name.to_string());
                if *op == 0 {
                    let gone = tree.remove(&namespace, &name).map(|entry| entry.revision.0);
                    prop_assert_eq!(gone, model.remove(&(namespace, name)));
                } else {
                    let old = tree.insert(entry(&namespace, &name, revision)).map(|entry| entry.revision.0);
                    prop_assert_eq!(old, model.insert((namespace, name), revision));
                }
                if revision as usize == ops.len() / 2 {
                    kept = Some((tree.clone(), model.clone()));
                }
            }
            check(&tree, &model);
            if let Some((tree, model)) = kept {
                check(&tree, &model);
            }
            for ((namespace, name), revision) in &model {
                prop_assert_eq!(tree.get(namespace, name).map(|e| e.revision.0), Some(*revision));
            }
        }
    }

    #[test]
    fn ascending_inserts_fill_chunks_and_removals_empty_them() {
        let mut tree = Tree::default();
        for index in 0..10_000_u64 {
            tree.insert(entry("n0", &format!("{index:06}"), index));
        }
        assert!(tree.chunks.len() <= 10_000 / CHUNK + 1, "{} chunks", tree.chunks.len());
        for index in 0..10_000_u64 {
            assert!(tree.remove("n0", &format!("{index:06}")).is_some());
        }
        assert_eq!((tree.len(None), tree.chunks.len()), (0, 0));
    }
}
