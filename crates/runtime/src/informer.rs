//! Follows one resource of one API server.

use std::{
    any::Any,
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use kube::{
    Client, Resource,
    api::{ApiResource, DynamicObject, TypeMeta},
};
use serde::{Deserialize, Deserializer, de::DeserializeOwned};
use tokio_util::sync::CancellationToken;

use crate::{
    ObjectKey, Store,
    follow::{Seen, Sink, Target, follow},
    unmanaged,
};

/// What an informer can hold.
pub trait Watched: DeserializeOwned + Clone + Send + Sync + 'static {
    /// Namespace and name.
    fn key(&self) -> ObjectKey;
    /// `metadata.resourceVersion`.
    fn version(&self) -> &str;
    /// Reads it as it arrives: the place to pass over what nobody will ask for.
    fn read<'de, D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        Self::deserialize(from)
    }
    /// Called before it is kept, with its kind, which lists don't repeat for each object: the place to fill that in.
    fn received(&mut self, _: &ApiResource) {}
}

impl<K: Resource + DeserializeOwned + Clone + Send + Sync + 'static> Watched for K {
    fn key(&self) -> ObjectKey {
        let meta = self.meta();
        ObjectKey::new(meta.namespace.as_deref().unwrap_or(""), meta.name.as_deref().unwrap_or(""))
    }

    fn version(&self) -> &str {
        self.meta().resource_version.as_deref().unwrap_or("")
    }

    /// Who manages which fields nobody asks an informer; it would be the larger part of what is kept.
    fn read<'de, D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        unmanaged::read(from)
    }

    fn received(&mut self, resource: &ApiResource) {
        if let Some(object) = (self as &mut dyn Any).downcast_mut::<DynamicObject>()
            && object.types.is_none()
        {
            let (api_version, kind) = (resource.api_version.clone(), resource.kind.clone());
            object.types = Some(TypeMeta { api_version, kind });
        }
    }
}

/// The few facts of an object that matching needs; the rest is skipped while it is read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct Light {
    /// The facts.
    pub metadata: LightMeta,
}

/// Facts of an object's metadata.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct LightMeta {
    /// Name.
    pub name: Box<str>,
    /// Namespace; empty for none.
    pub namespace: Box<str>,
    /// UID.
    pub uid: Box<str>,
    /// Version.
    pub resource_version: Box<str>,
    /// Labels.
    pub labels: BTreeMap<Box<str>, Box<str>>,
    /// Generation; 0 for none.
    pub generation: i64,
    /// When deletion began.
    pub deletion_timestamp: Option<Box<str>>,
}

impl Watched for Light {
    fn key(&self) -> ObjectKey {
        ObjectKey::new(&self.metadata.namespace, &self.metadata.name)
    }

    fn version(&self) -> &str {
        &self.metadata.resource_version
    }
}

/// What happened to an object, as seen by comparing with the store.
///
/// After a gap in the watch the difference is worked out, so that every object that came is `Added` once
/// and every one that went is `Deleted` once.
#[derive(Clone, Debug)]
pub enum Event<T> {
    /// It is new.
    Added(Arc<T>),
    /// It has another version.
    Updated { old: Arc<T>, new: Arc<T> },
    /// It is gone; this was its last known state.
    Deleted(Arc<T>),
    /// Everything that was there at the start has been `Added`. Comes once.
    Synced,
}

impl<T> Event<T> {
    /// The object as it is now or was last.
    pub fn object(&self) -> Option<&Arc<T>> {
        match self {
            Self::Added(object) | Self::Updated { new: object, .. } | Self::Deleted(object) => Some(object),
            Self::Synced => None,
        }
    }
}

/// What an informer follows.
#[derive(Clone, Debug)]
pub struct Source {
    /// The resource.
    pub resource: ApiResource,
    /// One namespace only.
    pub namespace: Option<String>,
    /// Objects with these labels only.
    pub label_selector: Option<String>,
    /// Objects with these fields only.
    pub field_selector: Option<String>,
    /// Ask the server for metadata only. `T` must be [`Light`] or another type that makes do with that.
    pub metadata_only: bool,
}

impl Source {
    /// Everything of a resource.
    pub fn all(resource: ApiResource) -> Self {
        Self { resource, namespace: None, label_selector: None, field_selector: None, metadata_only: false }
    }

    /// Everything of a statically known kind.
    pub fn of<K: Resource<DynamicType = ()>>() -> Self {
        Self::all(ApiResource::erase::<K>(&()))
    }

    /// One namespace only.
    pub fn namespaced(mut self, namespace: impl Into<String>) -> Self {
        self.namespace = Some(namespace.into());
        self
    }

    /// Objects with these labels only.
    pub fn labels(mut self, selector: impl Into<String>) -> Self {
        self.label_selector = Some(selector.into());
        self
    }

    /// Objects with these fields only.
    pub fn fields(mut self, selector: impl Into<String>) -> Self {
        self.field_selector = Some(selector.into());
        self
    }

    /// Metadata only.
    pub fn metadata(mut self) -> Self {
        self.metadata_only = true;
        self
    }
}

/// Follows `source` until `stop` is cancelled. Each delta is in `store` when `handler` is told of it, in the
/// order of the server's events. The handler runs on the informer's task and must not block. An object that can't be read as
/// `T` stays in the store as it was when it could, until it can again or is deleted; the rest goes on.
///
/// Costs one watch; see [`crate::feed`] for the form that keeps no objects. How lists and watches go on is in `follow`.
pub async fn run<T: Watched>(
    client: Client,
    source: Source,
    store: Store<T>,
    handler: impl FnMut(Event<T>) + Send,
    stop: CancellationToken,
) {
    let target = Target {
        path: DynamicObject::url_path(&source.resource, source.namespace.as_deref()),
        resource: source.resource.plural.clone(),
        label_selector: source.label_selector,
        field_selector: source.field_selector,
        metadata_only: source.metadata_only,
    };
    let mut cache = Cache { resource: source.resource, store, handler };
    follow(client, target, &mut cache, stop).await;
}

/// An object as it arrives.
struct Arrived<T>(T);

impl<'de, T: Watched> Deserialize<'de> for Arrived<T> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        T::read(from).map(Self)
    }
}

/// Keeps the store, and tells the handler what differs.
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

fn seen<T: Watched>(object: &T) -> Seen {
    Seen { key: object.key(), version: object.version().to_owned() }
}

impl<T: Watched, H: FnMut(Event<T>) + Send> Sink for Cache<T, H> {
    fn put(&mut self, object: &str) -> Result<Seen, serde_json::Error> {
        let Arrived(mut object) = serde_json::from_str::<Arrived<T>>(object)?;
        let seen = seen(&object);
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
        let Arrived(object) = serde_json::from_str::<Arrived<T>>(object)?;
        let seen = seen(&object);
        self.removed(&seen.key, Some(object));
        Ok(seen)
    }

    fn gone(&mut self, key: ObjectKey) {
        self.removed(&key, None);
    }

    fn trouble(&mut self, why: Option<String>) {
        self.store.set_trouble(why);
    }

    fn complete(&mut self, seen: BTreeSet<ObjectKey>) {
        self.store.set_trouble(None);
        for key in self.store.keys_beyond(&seen) {
            self.gone(key);
        }
        if !self.store.is_synced() {
            // First, so that who is told finds it so: what was looked up as unsynced is corrected by the event.
            self.store.set_synced();
            (self.handler)(Event::Synced);
        }
    }
}
