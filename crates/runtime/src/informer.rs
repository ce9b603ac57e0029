//! Follows one resource of one API server.

use std::{
    any::Any,
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use futures::{StreamExt, pin_mut};
use kube::{
    Client, Resource,
    api::{ApiResource, DynamicObject, TypeMeta},
    core::{Status, WatchEvent},
};
use serde::{Deserialize, de::DeserializeOwned};
use tokio_util::sync::CancellationToken;

use crate::{Backoff, ObjectKey, Store, failure};

/// What an informer can hold.
pub trait Watched: DeserializeOwned + Clone + Send + Sync + 'static {
    /// Namespace and name.
    fn key(&self) -> ObjectKey;
    /// `metadata.resourceVersion`.
    fn version(&self) -> &str;
    /// Told the kind, which lists don't repeat for each object.
    fn set_kind(&mut self, _: &ApiResource) {}
}

impl<K: Resource + DeserializeOwned + Clone + Send + Sync + 'static> Watched for K {
    fn key(&self) -> ObjectKey {
        let meta = self.meta();
        ObjectKey::new(meta.namespace.as_deref().unwrap_or(""), meta.name.as_deref().unwrap_or(""))
    }

    fn version(&self) -> &str {
        self.meta().resource_version.as_deref().unwrap_or("")
    }

    fn set_kind(&mut self, resource: &ApiResource) {
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
/// order of the server's events. The handler runs on the informer's task and must not block.
///
/// Costs one watch. Starts with a streamed list where the server has that, else with a paged list; goes on
/// from where it was when a watch ends, and lists again when the server no longer knows that version.
/// An unreachable server is tried again with back-off, without end.
pub async fn run<T: Watched>(
    client: Client,
    source: Source,
    store: Store<T>,
    mut handler: impl FnMut(Event<T>) + Send,
    stop: CancellationToken,
) {
    let mut informer =
        Informer { client, source, store, handler: &mut handler, version: None, streaming: true };
    let mut backoff = Backoff::for_server();
    loop {
        let turn = tokio::select! {
            turn = informer.turn(&mut backoff) => turn,
            () = stop.cancelled() => return,
        };
        let Err(error) = turn else { continue };
        let served = informer.report(&error);
        let pause = if served { backoff.pause() } else { backoff.pause().min(UNSERVED) };
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = stop.cancelled() => return,
        }
    }
}

struct Informer<'a, T, H> {
    client: Client,
    source: Source,
    store: Store<T>,
    handler: &'a mut H,
    /// Where the next watch goes on; none to list first.
    version: Option<String>,
    /// Whether the server is thought to have streaming lists.
    streaming: bool,
}

/// Why a turn ended badly.
#[derive(Debug, thiserror::Error)]
enum TurnError {
    #[error(transparent)]
    Kube(#[from] kube::Error),
    #[error("the server ended the watch: {0}")]
    Ended(Box<Status>),
    #[error("the watch ended before the list was complete")]
    Short,
    #[error("nothing came for longer than the watch should have lasted")]
    Silent,
    #[error("building a request: {0}")]
    Request(#[from] http::Error),
}

#[derive(Deserialize)]
#[serde(bound(deserialize = "T: Deserialize<'de>"))]
struct List<T> {
    #[serde(default)]
    metadata: ListMeta,
    #[serde(default = "Vec::new", deserialize_with = "null_is_empty")]
    items: Vec<T>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct ListMeta {
    resource_version: String,
    #[serde(rename = "continue")]
    more: String,
}

fn null_is_empty<'de, D: serde::Deserializer<'de>, T: Deserialize<'de>>(d: D) -> Result<Vec<T>, D::Error> {
    Ok(Option::deserialize(d)?.unwrap_or_default())
}

const PAGE: u32 = 500;
/// The client's connections give up after 295 s of silence; watches end before that.
const WATCH_SECONDS: u64 = 270;
/// A resource that isn't served yet is asked for this often: there is nothing that would tell.
const UNSERVED: Duration = Duration::from_secs(1);
const END_OF_LIST: &str = "k8s.io/initial-events-end";

impl<T: Watched, H: FnMut(Event<T>)> Informer<'_, T, H> {
    async fn turn(&mut self, backoff: &mut Backoff) -> Result<(), TurnError> {
        match self.version.clone() {
            None if self.streaming => self.watch(None, backoff).await,
            None => {
                self.list().await?;
                backoff.reset();
                Ok(())
            }
            Some(version) => self.watch(Some(version), backoff).await,
        }
    }

    /// Draws the lesson from an error. False if the resource isn't served.
    fn report(&mut self, error: &TurnError) -> bool {
        let code = match error {
            TurnError::Kube(error) => failure::code(error),
            TurnError::Ended(status) => Some(status.code),
            _ => None,
        };
        let resource = &self.source.resource.plural;
        if !matches!(error, TurnError::Short | TurnError::Silent) && !matches!(code, Some(400 | 410 | 422)) {
            self.store.set_trouble(Some(error.to_string()));
        }
        match code {
            Some(410) => self.version = None,
            Some(400 | 422) if self.version.is_none() && self.streaming => self.streaming = false,
            Some(404 | 405) => {
                tracing::debug!(resource, %error, "not served");
                self.version = None;
                return false;
            }
            _ => tracing::warn!(resource, %error, "watching; will be tried again"),
        }
        true
    }

    async fn list(&mut self) -> Result<(), TurnError> {
        let (mut more, mut seen, mut limit) = (String::new(), BTreeSet::new(), Some(PAGE));
        loop {
            let mut query = self.selectors();
            query.extend(limit.map(|limit| ("limit", limit.to_string())));
            if !more.is_empty() {
                query.push(("continue", more.clone()));
            }
            let request = self.request(&query, true)?;
            let page: List<T> = match self.client.request(request).await {
                Err(error) if failure::is_gone(&error) && limit.is_some() => {
                    // The list took longer than the server remembers: all in one piece then.
                    (more, limit) = (String::new(), None);
                    seen.clear();
                    continue;
                }
                page => page?,
            };
            for mut item in page.items {
                item.set_kind(&self.source.resource);
                seen.insert(item.key());
                self.put(item);
            }
            more = page.metadata.more;
            if more.is_empty() {
                self.version = Some(page.metadata.resource_version);
                self.complete(&seen);
                return Ok(());
            }
        }
    }

    /// Watches from `version`, or lists by watching first.
    async fn watch(&mut self, version: Option<String>, backoff: &mut Backoff) -> Result<(), TurnError> {
        let started = tokio::time::Instant::now();
        let mut query = self.selectors();
        query.push(("watch", "true".into()));
        query.push(("allowWatchBookmarks", "true".into()));
        query.push(("timeoutSeconds", WATCH_SECONDS.to_string()));
        let mut listing = version.is_none().then(BTreeSet::new);
        match version {
            Some(version) => query.push(("resourceVersion", version)),
            None => {
                query.push(("sendInitialEvents", "true".into()));
                query.push(("resourceVersionMatch", "NotOlderThan".into()));
                query.push(("resourceVersion", String::new()));
            }
        }
        let request = self.request(&query, false)?;
        let events = self.client.request_events::<T>(request).await?;
        if listing.is_none() {
            self.store.set_trouble(None);
        }
        pin_mut!(events);
        loop {
            let next = tokio::time::timeout(Duration::from_secs(WATCH_SECONDS + 15), events.next());
            match next.await.map_err(|_| TurnError::Silent)? {
                Some(event) => {
                    let event = event?;
                    backoff.reset();
                    self.apply(event, &mut listing)?;
                }
                None if listing.is_some() => return Err(TurnError::Short),
                // A server that ends watches at once must not be asked again at once.
                None if started.elapsed() < Duration::from_secs(1) => return Err(TurnError::Short),
                None => return Ok(()),
            }
        }
    }

    fn apply(
        &mut self,
        event: WatchEvent<T>,
        listing: &mut Option<BTreeSet<ObjectKey>>,
    ) -> Result<(), TurnError> {
        match event {
            WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                if let Some(seen) = listing {
                    seen.insert(object.key());
                } else {
                    self.version = Some(object.version().to_owned());
                }
                self.put(object);
            }
            WatchEvent::Deleted(object) => {
                let key = object.key();
                if let Some(seen) = listing {
                    seen.remove(&key);
                } else {
                    self.version = Some(object.version().to_owned());
                }
                if self.store.remove(&key).is_some() {
                    (self.handler)(Event::Deleted(Arc::new(object)));
                }
            }
            WatchEvent::Bookmark(mark) => {
                if listing.is_none() {
                    self.version = Some(mark.metadata.resource_version);
                } else if mark.metadata.annotations.get(END_OF_LIST).is_some_and(|end| end == "true") {
                    self.version = Some(mark.metadata.resource_version);
                    if let Some(seen) = listing.take() {
                        self.complete(&seen);
                    }
                }
            }
            WatchEvent::Error(status) => return Err(TurnError::Ended(status)),
        }
        Ok(())
    }

    fn put(&mut self, object: T) {
        let new = Arc::new(object);
        match self.store.put(new.clone()) {
            None => (self.handler)(Event::Added(new)),
            Some(old) if old.version() == new.version() => {}
            Some(old) => (self.handler)(Event::Updated { old, new }),
        }
    }

    /// Ends a list: what was not in it is gone.
    fn complete(&mut self, seen: &BTreeSet<ObjectKey>) {
        self.store.set_trouble(None);
        if self.store.len() != seen.len() {
            for key in self.store.keys().into_iter().filter(|key| !seen.contains(key)) {
                if let Some(last) = self.store.remove(&key) {
                    (self.handler)(Event::Deleted(last));
                }
            }
        }
        if !self.store.is_synced() {
            (self.handler)(Event::Synced);
            self.store.set_synced();
        }
    }

    fn selectors(&self) -> Vec<(&'static str, String)> {
        let labels = self.source.label_selector.clone().map(|s| ("labelSelector", s));
        let fields = self.source.field_selector.clone().map(|s| ("fieldSelector", s));
        labels.into_iter().chain(fields).collect()
    }

    fn request(&self, query: &[(&str, String)], list: bool) -> Result<http::Request<Vec<u8>>, http::Error> {
        let path = DynamicObject::url_path(&self.source.resource, self.source.namespace.as_deref());
        let mut uri = path;
        for (index, (name, value)) in query.iter().enumerate() {
            uri.push(if index == 0 { '?' } else { '&' });
            uri.push_str(name);
            uri.push('=');
            escape(&mut uri, value);
        }
        let accept = match (self.source.metadata_only, list) {
            (false, _) => "application/json",
            (true, true) => {
                "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json"
            }
            (true, false) => "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json",
        };
        http::Request::get(uri).header("accept", accept).body(Vec::new())
    }
}

/// Percent-encodes a query value.
fn escape(into: &mut String, value: &str) {
    for byte in value.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            into.push(char::from(byte));
        } else {
            into.push_str(&format!("%{byte:02X}"));
        }
    }
}
