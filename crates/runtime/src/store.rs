//! The objects that an informer knows.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use parking_lot::RwLock;
use tokio::sync::watch;

use crate::object_key::{ObjectKey, Pair};
use crate::watched::Watched;

/// The objects of one resource as an informer knows them. Cheap to clone. A reader sees each change before
/// the informer's handler is called for it.
pub struct Store<T>(Arc<Inner<T>>);

struct Inner<T> {
    objects: RwLock<BTreeMap<ObjectKey, Arc<T>>>,
    synced: watch::Sender<bool>,
    watch_error: watch::Sender<Option<Arc<str>>>,
}

impl<T> Clone for Store<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T> Default for Store<T> {
    fn default() -> Self {
        Self(Arc::new(Inner {
            objects: RwLock::default(),
            synced: watch::Sender::new(false),
            watch_error: watch::Sender::new(None),
        }))
    }
}

impl<T> Store<T> {
    /// Returns the object of this name; `namespace` is empty for a cluster-scoped object.
    pub fn get(&self, namespace: &str, name: &str) -> Option<Arc<T>> {
        let key: &dyn Pair = &(namespace, name);
        self.0.objects.read().get(key).cloned()
    }

    /// Returns the object of this key.
    pub fn get_key(&self, key: &ObjectKey) -> Option<Arc<T>> {
        self.0.objects.read().get(key).cloned()
    }

    /// Returns all objects, ordered by namespace and name.
    pub fn list(&self) -> Vec<Arc<T>> {
        self.0.objects.read().values().cloned().collect()
    }

    /// Returns the objects of one namespace, ordered by name.
    pub fn list_namespace(&self, namespace: &str) -> Vec<Arc<T>> {
        let from = ObjectKey::new(namespace, "");
        let objects = self.0.objects.read();
        let here = objects.range(from..).take_while(|(key, _)| &*key.namespace == namespace);
        here.map(|(_, object)| object.clone()).collect()
    }

    /// Returns the keys of all objects.
    pub fn keys(&self) -> Vec<ObjectKey> {
        self.0.objects.read().keys().cloned().collect()
    }

    /// Returns the keys of the objects that are not in `these`.
    pub(crate) fn keys_beyond(&self, these: &BTreeSet<ObjectKey>) -> Vec<ObjectKey> {
        self.0.objects.read().keys().filter(|key| !these.contains(*key)).cloned().collect()
    }

    /// Number of objects.
    pub fn len(&self) -> usize {
        self.0.objects.read().len()
    }

    /// Returns true if there are no objects.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns whether every object that existed at the start is in the store.
    pub fn is_synced(&self) -> bool {
        *self.0.synced.borrow()
    }

    /// Waits until every object that existed at the start is in the store.
    pub async fn synced(&self) {
        // The sender lives in `self`, so the wait cannot fail.
        let _ = self.0.synced.subscribe().wait_for(|synced| *synced).await;
    }

    /// Reports why the informer cannot follow its resource at present, `None` if it can. The store holds the
    /// last known state meanwhile.
    pub fn watch_error(&self) -> watch::Receiver<Option<Arc<str>>> {
        self.0.watch_error.subscribe()
    }

    pub(crate) fn set_watch_error(&self, why: Option<String>) {
        let why = why.map(Arc::from);
        self.0.watch_error.send_if_modified(|known| {
            let changed = *known != why;
            *known = why;
            changed
        });
    }

    pub(crate) fn set_synced(&self) {
        self.0.synced.send_if_modified(|synced| !std::mem::replace(synced, true));
    }

    pub(crate) fn remove(&self, key: &ObjectKey) -> Option<Arc<T>> {
        self.0.objects.write().remove(key)
    }
}

impl<T: Watched> Store<T> {
    /// Stores an object and returns the one it replaces.
    pub(crate) fn put(&self, object: Arc<T>) -> Option<Arc<T>> {
        self.0.objects.write().insert(object.key(), object)
    }

    /// A synced store of these objects, for tests.
    pub fn of(objects: impl IntoIterator<Item = T>) -> Self {
        let store = Self::default();
        for object in objects {
            store.put(Arc::new(object));
        }
        store.set_synced();
        store
    }
}
