//! The list and watch of one collection, shared by [`crate::informer`] (which stores objects) and
//! [`crate::feed`] (which stores keys).

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    time::Duration,
};

use futures::{StreamExt, future::BoxFuture, pin_mut};
use kube::{Client, core::Status};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::value::RawValue;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::{
    Backoff, ObjectKey, Watched,
    escape::with_query,
    failure,
    log_once::LogOnce,
    page::{NoList, Page, Paging},
    source::Source,
    watch_event::{Bookmark, BookmarkMeta, EventType, WatchEvent, is_end, lines},
};

/// Receives what the follower observes, on the follower's task.
pub(crate) trait Sink: Send {
    /// Takes in an object that is there. Nothing happens when it can't be read.
    fn put(&mut self, object: &str) -> Result<Seen, serde_json::Error>;
    /// It is there, but can't be read, and the log says why. What is known of it stays as the last that is known, until it can
    /// be read again or is gone.
    fn unreadable(&mut self, _key: &ObjectKey) {}
    /// An object was deleted; this is how it was then. Nothing happens when it can't be read.
    fn deleted(&mut self, object: &str) -> Result<Seen, serde_json::Error>;
    /// It was deleted, and how it was then can't be read.
    fn gone(&mut self, key: ObjectKey);
    /// A list has ended; what was not in it is gone. What could not be read was in it.
    fn complete(&mut self, seen: BTreeSet<ObjectKey>);
    /// Why the collection can't be followed at the moment; none once it can.
    fn watch_error(&mut self, _why: Option<String>) {}
}

/// An object as a [`Sink`] has read it.
pub(crate) struct Seen {
    pub(crate) key: ObjectKey,
    /// Its resourceVersion; empty if it has none.
    pub(crate) version: String,
}

impl Seen {
    pub(crate) fn of(object: &impl Watched) -> Self {
        Self { key: object.key(), version: object.version().to_owned() }
    }
}

/// Follows a collection until `stop` is cancelled.
///
/// Costs one watch. Starts with a streamed list if the server supports it, otherwise with a paged list. When
/// a watch ends, the next one continues from its version. When the server has forgotten that version, the
/// collection is listed again.
///
/// Retries without end and with back-off when the server is unreachable, or when it forgets versions faster
/// than the collection can be listed. An object that cannot be decoded does not keep other objects from being
/// seen.
pub(crate) fn follow(
    client: Client,
    source: Source,
    sink: &mut dyn Sink,
    stop: CancellationToken,
) -> BoxFuture<'_, ()> {
    let follower = Follower {
        client,
        source,
        sink,
        version: None,
        streaming: true,
        unread: BTreeMap::new(),
        unserved: None,
        logged: LogOnce::default(),
    };
    Box::pin(follower.run(stop))
}

struct Follower<'s> {
    client: Client,
    source: Source,
    sink: &'s mut dyn Sink,
    /// Where the next watch goes on; none to list first.
    version: Option<String>,
    /// Whether the server is assumed to support streamed lists.
    streaming: bool,
    /// The objects that cannot be decoded, with the version for which that was logged.
    unread: BTreeMap<ObjectKey, String>,
    /// Since when the resource is not served.
    unserved: Option<Instant>,
    /// What the log was told last.
    logged: LogOnce,
}

/// Why a list or watch failed.
#[derive(Debug, thiserror::Error)]
enum FollowError {
    #[error(transparent)]
    Kube(#[from] kube::Error),
    #[error("the watch was interrupted: {0}")]
    Broken(#[source] io::Error),
    #[error("the server ended the watch: {0}")]
    Ended(Box<Status>),
    #[error("the watch ended before the list was complete")]
    Short,
    #[error("no data came for longer than a watch, or a pause in a list, may last")]
    Silent,
    #[error("building a request: {0}")]
    Request(#[from] http::Error),
    #[error(transparent)]
    NoList(#[from] NoList),
    /// An object that is missing from a list counts as deleted, so an object without a readable name must not
    /// be skipped.
    #[error("an object cannot be decoded, and has no readable name: {0}")]
    Nameless(serde_json::Error),
}

/// The part of an undecodable object that must be readable.
#[derive(Deserialize)]
struct NameOnly {
    metadata: NameOnlyMeta,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct NameOnlyMeta {
    namespace: Option<String>,
    name: String,
    resource_version: Option<String>,
}

/// An object of a list or an event.
fn read<T: DeserializeOwned>(text: &RawValue) -> Result<T, kube::Error> {
    serde_json::from_str(text.get()).map_err(kube::Error::SerdeError)
}

/// The key and version of an object that can't be read (`why`), if that much can.
fn bare(text: &RawValue, why: serde_json::Error) -> Result<(Seen, serde_json::Error), FollowError> {
    let Ok(NameOnly { metadata }) = serde_json::from_str(text.get()) else {
        return Err(FollowError::Nameless(why));
    };
    let key = ObjectKey::new(&metadata.namespace.unwrap_or_default(), &metadata.name);
    Ok((Seen { key, version: metadata.resource_version.unwrap_or_default() }, why))
}

const PAGE: u32 = 500;
/// Connections of the client time out after 295 s without data; watches end before that.
const WATCH_SECONDS: u64 = 270;
/// A server that streams a list does so without pauses. A server that takes the request for an ordinary watch
/// sends its objects soon, and then nothing as long as nothing changes.
const STREAM_PAUSE: Duration = Duration::from_secs(30);
/// A resource that is not served for this long is named in the log.
const NOTABLE: Duration = Duration::from_secs(5);
/// How often to ask for a resource that is not served yet; no watch reports when that changes.
const UNSERVED: Duration = Duration::from_secs(1);
const END_OF_LIST: &str = "k8s.io/initial-events-end";

impl Follower<'_> {
    async fn run(mut self, stop: CancellationToken) {
        let mut backoff = Backoff::for_server();
        loop {
            let turn = tokio::select! {
                turn = self.list_or_watch(&mut backoff) => turn,
                () = stop.cancelled() => return,
            };
            let Err(error) = turn else { continue };
            let served = self.report(&error);
            let pause = if served { backoff.pause() } else { backoff.pause().min(UNSERVED) };
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = stop.cancelled() => return,
            }
        }
    }

    async fn list_or_watch(&mut self, backoff: &mut Backoff) -> Result<(), FollowError> {
        match self.version.clone() {
            None if self.streaming => self.watch(None, backoff).await,
            None => self.list().await,
            Some(version) => self.watch(Some(version), backoff).await,
        }
    }

    /// Logs an error and adapts the next try to it. Returns false if the resource is not served.
    fn report(&mut self, error: &FollowError) -> bool {
        let code = match error {
            FollowError::Kube(error) => failure::code_of(error),
            FollowError::Ended(status) => status.code,
            _ => 0,
        };
        if !matches!(error, FollowError::Short | FollowError::Silent) && !matches!(code, 400 | 410 | 422) {
            self.sink.watch_error(Some(error.to_string()));
        }
        if matches!(error, FollowError::Short | FollowError::Silent) && self.version.is_none() {
            // The server does not support streamed lists and takes the request for an ordinary watch.
            self.streaming = false;
        }
        let resource = &self.source.resource.plural;
        match code {
            410 => self.version = None,
            400 | 422 if self.version.is_none() && self.streaming => self.streaming = false,
            404 | 405 => {
                self.version = None;
                // A resource that is defined at this moment is not worth a word.
                let since = *self.unserved.get_or_insert_with(Instant::now);
                if since.elapsed() >= NOTABLE && self.logged.should_log("not served") {
                    tracing::warn!(resource, %error, "waiting: the API server does not serve this resource; is its CustomResourceDefinition missing?");
                } else {
                    tracing::debug!(resource, %error, "not served");
                }
                return false;
            }
            _ => {
                // The server does not accept the version any more, for example because it was restored from a
                // backup.
                if matches!(code, 400 | 422) {
                    self.version = None;
                }
                let text = error.to_string();
                if self.logged.should_log(&text) {
                    tracing::warn!(resource, error = text, "watching; will be tried again");
                } else {
                    tracing::debug!(resource, error = text, "watching; will be tried again");
                }
            }
        }
        true
    }

    async fn list(&mut self) -> Result<(), FollowError> {
        let (mut paging, mut seen) = (Paging::new(PAGE), BTreeSet::new());
        loop {
            let mut query = self.source.selectors();
            query.extend(paging.limit().map(|limit| ("limit", limit.to_string())));
            if !paging.token().is_empty() {
                query.push(("continue", paging.token().to_owned()));
            }
            let request = self.request(&query, true)?;
            let page: Page = match self.client.request(request).await {
                Err(error) if paging.begins_anew(&error) => {
                    seen.clear();
                    continue;
                }
                page => page?,
            };
            let goes_on = paging.goes_on(&page.more);
            for item in page.items {
                seen.insert(self.put(&item)?.key);
            }
            if !goes_on {
                self.version = Some(page.version);
                self.complete(seen);
                return Ok(());
            }
        }
    }

    /// Watches from `version`, or starts with a streamed list if that is `None`.
    async fn watch(&mut self, version: Option<String>, backoff: &mut Backoff) -> Result<(), FollowError> {
        let started = Instant::now();
        let mut query = self.source.selectors();
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
        let lines = lines(&self.client, request).await?;
        if listing.is_none() {
            self.sink.watch_error(None);
        }
        pin_mut!(lines);
        loop {
            let patience =
                if listing.is_some() { STREAM_PAUSE } else { Duration::from_secs(WATCH_SECONDS + 15) };
            let next = tokio::time::timeout(patience, lines.next());
            match next.await.map_err(|_| FollowError::Silent)? {
                Some(Ok(text)) => {
                    let Some(watch_event) = WatchEvent::read(&text)? else { continue };
                    // A list does not prove that the server works: its version may expire before it can be
                    // watched from.
                    if listing.is_none() && watch_event.what != EventType::Error {
                        backoff.reset();
                        self.logged.clear();
                    }
                    self.apply(&watch_event, &mut listing)?;
                }
                Some(Err(error)) if !is_end(&error) => return Err(FollowError::Broken(error)),
                _ if listing.is_some() => return Err(FollowError::Short),
                // A server that ends watches at once must not be asked again at once.
                _ if started.elapsed() < Duration::from_secs(1) => return Err(FollowError::Short),
                _ => {
                    backoff.reset();
                    return Ok(());
                }
            }
        }
    }

    fn apply(
        &mut self,
        watch_event: &WatchEvent<'_>,
        listing: &mut Option<BTreeSet<ObjectKey>>,
    ) -> Result<(), FollowError> {
        match watch_event.what {
            EventType::Added | EventType::Modified => {
                let object = self.put(watch_event.object)?;
                match listing {
                    Some(seen) => {
                        seen.insert(object.key);
                    }
                    None => self.advance(&object.version),
                }
            }
            EventType::Deleted => {
                let object = self.deleted(watch_event.object)?;
                match listing {
                    Some(seen) => {
                        seen.remove(&object.key);
                    }
                    None => self.advance(&object.version),
                }
            }
            EventType::Bookmark => self.mark(read(watch_event.object)?, listing)?,
            EventType::Error => return Err(FollowError::Ended(read(watch_event.object)?)),
        }
        Ok(())
    }

    fn mark(&mut self, mark: Bookmark, listing: &mut Option<BTreeSet<ObjectKey>>) -> Result<(), FollowError> {
        let BookmarkMeta { resource_version: version, annotations } = mark.metadata;
        if listing.is_some() {
            if annotations.get(END_OF_LIST).is_none_or(|end| end != "true") {
                return Ok(());
            }
            if version.is_empty() {
                return Err(NoList("resourceVersion").into());
            }
        }
        self.version = Some(version);
        if let Some(seen) = listing.take() {
            self.complete(seen);
        }
        Ok(())
    }

    /// Sets the version from which the next watch continues. An object that cannot be decoded may have no
    /// version.
    fn advance(&mut self, version: &str) {
        if !version.is_empty() {
            self.version = Some(version.to_owned());
        }
    }

    fn put(&mut self, object: &RawValue) -> Result<Seen, FollowError> {
        match self.sink.put(object.get()) {
            Ok(seen) => {
                self.unread.remove(&seen.key);
                Ok(seen)
            }
            Err(why) => {
                let (seen, why) = bare(object, why)?;
                if self.unread.get(&seen.key) != Some(&seen.version) {
                    let (resource, object, version) =
                        (&self.source.resource.plural, &seen.key, &seen.version);
                    tracing::warn!(resource, %object, version, error = %why, "an object cannot be decoded; its last known state stays");
                    self.unread.insert(seen.key.clone(), seen.version.clone());
                }
                self.sink.unreadable(&seen.key);
                Ok(seen)
            }
        }
    }

    fn deleted(&mut self, object: &RawValue) -> Result<Seen, FollowError> {
        let seen = match self.sink.deleted(object.get()) {
            Ok(seen) => seen,
            Err(why) => {
                let (seen, _) = bare(object, why)?;
                self.sink.gone(seen.key.clone());
                seen
            }
        };
        self.unread.remove(&seen.key);
        Ok(seen)
    }

    fn complete(&mut self, seen: BTreeSet<ObjectKey>) {
        self.unserved = None;
        self.unread.retain(|key, _| seen.contains(key));
        self.sink.complete(seen);
    }

    fn request(&self, query: &[(&str, String)], list: bool) -> Result<http::Request<Vec<u8>>, http::Error> {
        let uri = with_query(self.source.path(), query);
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
