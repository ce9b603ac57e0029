//! List and watch of one collection as a stream of changes, each item decoded to just what the reader needs.
//!
//! Cost: one list per start, then one event per change; a watch that ends goes on from where it was. It is listed again where the
//! server no longer knows that version (410, or refused as none), or did not serve the resource meanwhile (404, 405). The feed
//! remembers the keys of what is there, so that a reader hears of objects that vanished while no watch was open.

use std::{collections::BTreeSet, marker::PhantomData};

use kube::{Client, Resource};
use serde::{Deserialize, Deserializer, de::DeserializeOwned};
use tokio_util::sync::CancellationToken;

use crate::{
    ObjectKey,
    follow::{Seen, Sink, Target},
    rest::Gvr,
    unmanaged,
};

/// Namespace (empty for cluster-scoped objects) and name.
pub type Key = (String, String);

/// Something with a name.
pub trait Keyed {
    /// Namespace and name.
    fn key(&self) -> Key;
    /// Its resourceVersion.
    fn resource_version(&self) -> &str;
}

/// An object of a kind with a type, read without its `managedFields`.
#[derive(Clone, Debug)]
pub struct Lean<K>(pub K);

impl<'de, K: Deserialize<'de>> Deserialize<'de> for Lean<K> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        unmanaged::read(from).map(Self)
    }
}

impl<K: Resource> Keyed for Lean<K> {
    fn key(&self) -> Key {
        let metadata = self.0.meta();
        (metadata.namespace.clone().unwrap_or_default(), metadata.name.clone().unwrap_or_default())
    }

    fn resource_version(&self) -> &str {
        self.0.meta().resource_version.as_deref().unwrap_or_default()
    }
}

/// What happened to a collection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change<T> {
    /// It is there, in this form.
    Put(T),
    /// It is gone. Also told of one that was never put, since it could not be read.
    Gone(Key),
    /// Everything that was there at some moment has been reported.
    Synced,
}

/// What to follow.
#[derive(Clone, Debug)]
pub struct Source {
    /// The resource.
    pub gvr: Gvr,
    /// One namespace, or all when empty.
    pub namespace: String,
    /// Label selector, empty for all.
    pub labels: String,
    /// Field selector, empty for all.
    pub fields: String,
    /// Ask for `PartialObjectMetadata` only.
    pub metadata_only: bool,
}

impl Source {
    /// All objects of a resource.
    pub fn all(gvr: Gvr) -> Self {
        Self {
            gvr,
            namespace: String::new(),
            labels: String::new(),
            fields: String::new(),
            metadata_only: false,
        }
    }

    /// Only those in one namespace.
    pub fn within(mut self, namespace: &str) -> Self {
        self.namespace = namespace.into();
        self
    }

    /// Only those with these labels.
    pub fn labelled(mut self, selector: &str) -> Self {
        self.labels = selector.into();
        self
    }

    /// Metadata instead of whole objects.
    pub fn metadata(mut self) -> Self {
        self.metadata_only = true;
        self
    }
}

/// Follows `source` until `stop`; errors are retried with back-off. `on` is called in order and must not block. Of an object
/// that can't be read as `T` nothing is told until it can, or until it is gone. How lists and watches go on is in `follow`.
pub async fn follow<T, F>(client: &Client, source: &Source, stop: &CancellationToken, on: F)
where
    T: DeserializeOwned + Keyed + Send,
    F: FnMut(Change<T>) + Send,
{
    let some = |selector: &String| (!selector.is_empty()).then(|| selector.clone());
    let target = Target {
        path: source.gvr.path(&source.namespace),
        resource: source.gvr.plural.clone(),
        label_selector: some(&source.labels),
        field_selector: some(&source.fields),
        metadata_only: source.metadata_only,
    };
    let mut keys = Keys { known: BTreeSet::new(), on, items: PhantomData };
    crate::follow::follow(client.clone(), target, &mut keys, stop.clone()).await;
}

/// Remembers what is there.
struct Keys<T, F> {
    known: BTreeSet<ObjectKey>,
    on: F,
    items: PhantomData<fn(T)>,
}

fn seen<T: Keyed>(item: &T) -> Seen {
    let (namespace, name) = item.key();
    Seen { key: ObjectKey::new(&namespace, &name), version: item.resource_version().to_owned() }
}

fn pair(key: &ObjectKey) -> Key {
    (key.namespace.as_ref().to_owned(), key.name.as_ref().to_owned())
}

impl<T, F> Sink for Keys<T, F>
where
    T: DeserializeOwned + Keyed + Send,
    F: FnMut(Change<T>) + Send,
{
    fn put(&mut self, object: &str) -> Result<Seen, serde_json::Error> {
        let item: T = serde_json::from_str(object)?;
        let seen = seen(&item);
        self.known.insert(seen.key.clone());
        (self.on)(Change::Put(item));
        Ok(seen)
    }

    fn unreadable(&mut self, key: &ObjectKey) {
        // The reader may have heard of it from elsewhere, so its end is told in any case.
        self.known.insert(key.clone());
    }

    fn deleted(&mut self, object: &str) -> Result<Seen, serde_json::Error> {
        let seen = seen(&serde_json::from_str::<T>(object)?);
        self.gone(seen.key.clone());
        Ok(seen)
    }

    fn gone(&mut self, key: ObjectKey) {
        self.known.remove(&key);
        (self.on)(Change::Gone(pair(&key)));
    }

    fn complete(&mut self, seen: BTreeSet<ObjectKey>) {
        for key in self.known.difference(&seen) {
            (self.on)(Change::Gone(pair(key)));
        }
        self.known = seen;
        (self.on)(Change::Synced);
    }
}
