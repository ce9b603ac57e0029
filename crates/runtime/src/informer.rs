//! Follows one resource of one API server into a [`Store`].

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use kube::{Client, api::ApiResource};
use serde::Deserialize;
use tokio_util::sync::CancellationToken;

use crate::{
    ObjectKey, Source, Store, Watched,
    follow::{Seen, Sink, follow},
    watched::Decoded,
};

/// An object of which only the metadata that selectors and owners need is kept. The other fields are skipped
/// while the object is decoded.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct PartialObject {
    /// The metadata.
    pub metadata: PartialMeta,
}

/// The metadata of a [`PartialObject`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PartialMeta {
    /// Name.
    pub name: Box<str>,
    /// Namespace; empty for none.
    pub namespace: Box<str>,
    /// UID.
    pub uid: Box<str>,
    /// resourceVersion.
    pub resource_version: Box<str>,
    /// Labels.
    pub labels: BTreeMap<Box<str>, Box<str>>,
    /// Generation; 0 for none.
    pub generation: i64,
    /// When deletion began.
    pub deletion_timestamp: Option<Box<str>>,
}

impl Watched for PartialObject {
    fn key(&self) -> ObjectKey {
        ObjectKey::new(&self.metadata.namespace, &self.metadata.name)
    }

    fn version(&self) -> &str {
        &self.metadata.resource_version
    }
}

/// A change of an object, found by comparing with the store.
///
/// After a gap in the watch the informer computes the difference, so that every new object is `Added` once
/// and every deleted object is `Deleted` once.
#[derive(Clone, Debug)]
pub enum Event<T> {
    /// The object is new.
    Added(Arc<T>),
    /// The object has another resourceVersion.
    Updated { old: Arc<T>, new: Arc<T> },
    /// The object was deleted; this is its last known state.
    Deleted(Arc<T>),
    /// Every object that existed at the start has been `Added`. Sent once.
    Synced,
}

impl<T> Event<T> {
    /// Returns the current or last state of the object.
    pub fn object(&self) -> Option<&Arc<T>> {
        match self {
            Self::Added(object) | Self::Updated { new: object, .. } | Self::Deleted(object) => Some(object),
            Self::Synced => None,
        }
    }
}

/// Follows `source` until `stop` is cancelled.
///
/// Calls `handler` for each change, in the order of the server's events and after the change is in `store`.
/// The handler runs on the informer's task and must not block. An object that cannot be decoded as `T` stays
/// in the store in its last state until it can be decoded again or is deleted; other objects are not
/// affected.
///
/// Costs one watch. [`crate::feed`] is the form that stores no objects. Retries are described at `follow`.
pub async fn run<T: Watched>(
    client: Client,
    source: Source,
    store: Store<T>,
    handler: impl FnMut(Event<T>) + Send,
    stop: CancellationToken,
) {
    let mut cache = Cache { resource: source.resource.clone(), store, handler };
    follow(client, source, &mut cache, stop).await;
}

/// Updates the store and calls the handler with the differences.
struct Cache<T, H> {
    resource: ApiResource,
    store: Store<T>,
    handler: H,
}

impl<T: Watched, H: FnMut(Event<T>) + Send> Cache<T, H> {
    fn removed(&mut self, key: &ObjectKey, last: Option<T>) {
        if let Some(known) = self.store.remove(key) {
            (self.handler)(Event::Deleted(last.map_or(known, Arc::new)));
        }
    }
}

impl<T: Watched, H: FnMut(Event<T>) + Send> Sink for Cache<T, H> {
    fn put(&mut self, object: &str) -> Result<Seen, serde_json::Error> {
        let Decoded(mut object) = serde_json::from_str::<Decoded<T>>(object)?;
        let seen = Seen::of(&object);
        object.received(&self.resource);
        let new = Arc::new(object);
        match self.store.put(new.clone()) {
            None => (self.handler)(Event::Added(new)),
            Some(old) if old.version() == new.version() => {}
            Some(old) => (self.handler)(Event::Updated { old, new }),
        }
        Ok(seen)
    }

    fn deleted(&mut self, object: &str) -> Result<Seen, serde_json::Error> {
        let Decoded(object) = serde_json::from_str::<Decoded<T>>(object)?;
        let seen = Seen::of(&object);
        self.removed(&seen.key, Some(object));
        Ok(seen)
    }

    fn gone(&mut self, key: ObjectKey) {
        self.removed(&key, None);
    }

    fn watch_error(&mut self, why: Option<String>) {
        self.store.set_watch_error(why);
    }

    fn complete(&mut self, seen: BTreeSet<ObjectKey>) {
        self.store.set_watch_error(None);
        for key in self.store.keys_beyond(&seen) {
            self.gone(key);
        }
        if !self.store.is_synced() {
            // The store is marked first, so that the handler finds it synced. A reader that found it unsynced
            // is corrected by the event.
            self.store.set_synced();
            (self.handler)(Event::Synced);
        }
    }
}
