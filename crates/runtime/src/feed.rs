//! Lists and watches one collection as a stream of changes. Each object is decoded to the type that the
//! reader asks for, and only keys are stored.
//!
//! Cost: one list at the start, then one event per change. When a watch ends, the next one continues from its
//! version. The collection is listed again if the server has forgotten that version (410, or a refusal as
//! invalid), or did not serve the resource in between (404, 405). The feed remembers the keys of the existing
//! objects, so it can report objects that were deleted while no watch was open.

use std::{collections::BTreeSet, marker::PhantomData};

use kube::{Client, Resource};
use serde::{Deserialize, Deserializer, de::DeserializeOwned};
use tokio_util::sync::CancellationToken;

use crate::{
    ObjectKey,
    follow::{Seen, Sink},
    without_managed_fields,
};

pub use crate::source::Source;

/// Namespace (empty for cluster-scoped objects) and name.
pub type Key = (String, String);

/// An object that has a name.
pub trait Keyed {
    /// Namespace and name.
    fn key(&self) -> Key;
    /// Its resourceVersion.
    fn resource_version(&self) -> &str;
}

/// A typed object that is decoded without its `managedFields`.
#[derive(Clone, Debug)]
pub struct WithoutManagedFields<K>(pub K);

impl<'de, K: Deserialize<'de>> Deserialize<'de> for WithoutManagedFields<K> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        without_managed_fields::read(from).map(Self)
    }
}

impl<K: Resource> Keyed for WithoutManagedFields<K> {
    fn key(&self) -> Key {
        let metadata = self.0.meta();
        (metadata.namespace.clone().unwrap_or_default(), metadata.name.clone().unwrap_or_default())
    }

    fn resource_version(&self) -> &str {
        self.0.meta().resource_version.as_deref().unwrap_or_default()
    }
}

/// A change of a collection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change<T> {
    /// The object exists, in this state.
    Put(T),
    /// The object was deleted. Also reported for an object that was never `Put` because it could not be
    /// decoded.
    Gone(Key),
    /// Every object of a complete list has been reported: once at the start, and again after each further list.
    Synced,
}

/// Follows `source` until `stop` is cancelled. Retries errors with back-off, as described at `follow`.
///
/// Calls `on` in the order of the events; `on` must not block. An object that cannot be decoded as `T` is not
/// reported until it can be decoded or is deleted.
pub async fn follow<T, F>(client: &Client, source: &Source, stop: &CancellationToken, on: F)
where
    T: DeserializeOwned + Keyed + Send,
    F: FnMut(Change<T>) + Send,
{
    let mut keys = Keys { known: BTreeSet::new(), on, items: PhantomData };
    crate::follow::follow(client.clone(), source.clone(), &mut keys, stop.clone()).await;
}

/// The keys of the existing objects.
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
