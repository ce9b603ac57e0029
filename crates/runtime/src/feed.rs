//! Lists and watches one collection as a stream of changes. Each object is decoded to the type that the
//! reader asks for, and only keys are stored.
//!
//! Cost: one list at the start, then one event per change. When a watch ends, the next one continues from its
//! version. The collection is listed again if the server has forgotten that version (410, or a refusal as
//! invalid), or did not serve the resource in between (404, 405). The feed remembers the keys of the existing
//! objects, so it can report objects that were deleted while no watch was open.

use std::{collections::BTreeSet, marker::PhantomData};

use kube::{Client, api::ApiResource};
use tokio_util::sync::CancellationToken;

use crate::{
    ObjectKey, Source, Watched,
    follow::{Seen, Sink},
    watched::Decoded,
};

/// A change of a collection. Unlike an [`Event`](crate::Event), it has no earlier or last state of the object:
/// a feed keeps no objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change<T> {
    /// The object exists, in this state.
    Put(T),
    /// The object was deleted. Also reported for an object that was never `Put` because it could not be
    /// decoded.
    Gone(ObjectKey),
    /// Every object of a complete list has been reported: once at the start, and again after each further list.
    Synced,
}

/// Follows `source` until `stop` is cancelled. Retries errors with back-off, as described at `follow`.
///
/// Calls `on` in the order of the events; `on` must not block. An object that cannot be decoded as `T` is not
/// reported until it can be decoded or is deleted.
pub async fn follow<T, F>(client: &Client, source: &Source, stop: &CancellationToken, on: F)
where
    T: Watched,
    F: FnMut(Change<T>) + Send,
{
    let mut keys = Keys { resource: source.resource.clone(), known: BTreeSet::new(), on, items: PhantomData };
    crate::follow::follow(client.clone(), source.clone(), &mut keys, stop.clone()).await;
}

/// The keys of the existing objects.
struct Keys<T, F> {
    resource: ApiResource,
    known: BTreeSet<ObjectKey>,
    on: F,
    items: PhantomData<fn(T)>,
}

impl<T, F> Sink for Keys<T, F>
where
    T: Watched,
    F: FnMut(Change<T>) + Send,
{
    fn put(&mut self, object: &str) -> Result<Seen, serde_json::Error> {
        let Decoded(mut item) = serde_json::from_str::<Decoded<T>>(object)?;
        let seen = Seen::of(&item);
        item.received(&self.resource);
        self.known.insert(seen.key.clone());
        (self.on)(Change::Put(item));
        Ok(seen)
    }

    fn unreadable(&mut self, key: &ObjectKey) {
        // The reader may have heard of it from elsewhere, so its end is told in any case.
        self.known.insert(key.clone());
    }

    fn deleted(&mut self, object: &str) -> Result<Seen, serde_json::Error> {
        let seen = Seen::of(&serde_json::from_str::<Decoded<T>>(object)?.0);
        self.gone(seen.key.clone());
        Ok(seen)
    }

    fn gone(&mut self, key: ObjectKey) {
        self.known.remove(&key);
        (self.on)(Change::Gone(key));
    }

    fn complete(&mut self, seen: BTreeSet<ObjectKey>) {
        for key in self.known.difference(&seen) {
            (self.on)(Change::Gone(key.clone()));
        }
        self.known = seen;
        (self.on)(Change::Synced);
    }
}
