//! The state of one space at one revision.

use std::sync::Arc;

use crate::tree::{Iter, Tree};
use crate::{Collection, Entry, Key, Revision};

#[derive(Clone, Debug)]
pub(crate) struct Content {
    pub(crate) collection: Collection,
    pub(crate) tree: Tree,
}

impl Content {
    /// Makes the entry share the memory of the collection and namespace names with other entries.
    pub(crate) fn share(&self, mut entry: Entry) -> Arc<Entry> {
        entry.key.collection = self.collection.clone();
        if let Some(neighbour) = self.tree.iter(Some(&entry.key.namespace), None).next() {
            entry.key.namespace = neighbour.key.namespace.clone();
        }
        Arc::new(entry)
    }
}

/// All collections of a space at one revision. Cloning copies one pointer per collection.
#[derive(Clone, Debug, Default)]
pub(crate) struct State {
    pub(crate) revision: Revision,
    /// Ordered by collection.
    contents: Vec<Content>,
}

impl State {
    pub(crate) fn content(&self, collection: &Collection) -> Option<&Content> {
        let at = self.contents.binary_search_by(|content| content.collection.cmp(collection)).ok()?;
        self.contents.get(at)
    }

    /// The same content at another revision.
    pub(crate) fn at(&self, revision: Revision) -> Self {
        Self { revision, contents: self.contents.clone() }
    }

    pub(crate) fn contents(&self) -> impl Iterator<Item = &Content> {
        self.contents.iter()
    }

    /// The content of a collection for changes, created if absent.
    pub(crate) fn content_mut(&mut self, collection: &Collection) -> Option<&mut Content> {
        let at = match self.contents.binary_search_by(|content| content.collection.cmp(collection)) {
            Ok(at) => at,
            Err(at) => {
                self.contents.insert(at, Content { collection: collection.clone(), tree: Tree::default() });
                at
            }
        };
        self.contents.get_mut(at)
    }

    pub(crate) fn get(&self, key: &Key) -> Option<&Arc<Entry>> {
        self.content(&key.collection)?.tree.get(&key.namespace, &key.name)
    }
}

/// A space at one revision. Taking a snapshot copies a pointer; reading it takes no lock and always returns the same.
#[derive(Clone, Debug)]
pub struct Snapshot {
    pub(crate) state: Arc<State>,
}

impl Snapshot {
    /// The snapshot contains every write up to this revision, and none after it.
    pub fn revision(&self) -> Revision {
        self.state.revision
    }

    pub fn get(&self, key: &Key) -> Option<Arc<Entry>> {
        self.state.get(key).cloned()
    }

    /// One collection; empty if nothing was ever stored in it.
    pub fn view(&self, collection: &Collection) -> View {
        View {
            revision: self.state.revision,
            tree: self.state.content(collection).map(|content| content.tree.clone()).unwrap_or_default(),
        }
    }

    /// Collections that have or had an object, in order.
    pub fn collections(&self) -> impl Iterator<Item = &Collection> {
        self.state.contents.iter().map(|content| &content.collection)
    }
}

/// One collection at one revision.
#[derive(Clone, Debug)]
pub struct View {
    pub(crate) revision: Revision,
    pub(crate) tree: Tree,
}

impl View {
    pub fn revision(&self) -> Revision {
        self.revision
    }

    /// Number of objects (of one namespace). Does not walk over them.
    pub fn len(&self, namespace: Option<&str>) -> usize {
        self.tree.len(namespace)
    }

    pub fn is_empty(&self) -> bool {
        self.tree.len(None) == 0
    }

    /// Objects (of one namespace), sorted by namespace, then name, bytewise; strictly after the given (namespace,
    /// name).
    pub fn iter(&self, namespace: Option<&str>, after: Option<(&str, &str)>) -> Iter<'_> {
        self.tree.iter(namespace, after)
    }

    pub fn get(&self, namespace: &str, name: &str) -> Option<&Arc<Entry>> {
        self.tree.get(namespace, name)
    }

    /// Whether the collection is unchanged between two views. Compares pointers, so it may return `false` for equal
    /// content, but never `true` for different content.
    pub fn same(&self, other: &View) -> bool {
        self.tree.same(&other.tree)
    }
}
