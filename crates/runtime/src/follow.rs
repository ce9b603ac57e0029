//! List and watch of one collection, for whoever keeps it: [`crate::informer`] as objects, [`crate::feed`] as keys.

use std::{collections::BTreeSet, time::Duration};

use futures::{StreamExt, pin_mut};
use kube::{
    Client,
    core::{Status, WatchEvent},
};
use serde::{Deserialize, de::DeserializeOwned};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::{Backoff, failure};

/// What is followed.
pub(crate) struct Target {
    /// Path of the collection.
    pub(crate) path: String,
    /// Its name, for the log.
    pub(crate) resource: String,
    pub(crate) label_selector: Option<String>,
    pub(crate) field_selector: Option<String>,
    pub(crate) metadata_only: bool,
}

/// Takes in what is seen, on the follower's task.
pub(crate) trait Sink: Send {
    /// An object, decoded to what the keeper needs.
    type Item: DeserializeOwned + Clone + Send;
    /// What tells objects apart.
    type Key: Ord + Send;

    fn key(item: &Self::Item) -> Self::Key;
    fn version(item: &Self::Item) -> &str;
    /// It is there, in this form.
    fn put(&mut self, item: Self::Item);
    /// It was deleted.
    fn gone(&mut self, item: Self::Item);
    /// A list has ended; what was not in it is gone.
    fn complete(&mut self, seen: BTreeSet<Self::Key>);
    /// Why the collection can't be followed at the moment; none once it can.
    fn trouble(&mut self, _why: Option<String>) {}
}

/// Follows a collection until `stop` is cancelled.
///
/// Costs one watch. Starts with a streamed list where the server has that, else with a paged list; goes on
/// from where it was when a watch ends, and lists again when the server no longer knows that version.
/// An unreachable server is tried again with back-off, without end; so is one that forgets faster than it can be
/// listed.
pub(crate) async fn follow<S: Sink>(client: Client, target: Target, sink: S, stop: CancellationToken) {
    let mut follower = Follower { client, target, sink, version: None, streaming: true, told: None };
    let mut backoff = Backoff::for_server();
    loop {
        let turn = tokio::select! {
            turn = follower.turn(&mut backoff) => turn,
            () = stop.cancelled() => return,
        };
        let Err(error) = turn else { continue };
        let served = follower.report(&error);
        let pause = if served { backoff.pause() } else { backoff.pause().min(UNSERVED) };
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = stop.cancelled() => return,
        }
    }
}

struct Follower<S> {
    client: Client,
    target: Target,
    sink: S,
    /// Where the next watch goes on; none to list first.
    version: Option<String>,
    /// Whether the server is thought to have streaming lists.
    streaming: bool,
    /// What was said last about trouble, and when.
    told: Option<(String, Instant)>,
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
    /// What is not in a list is taken for gone, so what is none must not pass for an empty one.
    #[error("the answer is no list: it has no {0}")]
    NoList(&'static str),
}

#[derive(Deserialize)]
#[serde(bound(deserialize = "T: Deserialize<'de>"))]
struct List<T> {
    #[serde(default)]
    metadata: ListMeta,
    /// None if the answer has no such field: it is no list then.
    #[serde(default = "none", deserialize_with = "null_is_empty")]
    items: Option<Vec<T>>,
}

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct ListMeta {
    resource_version: String,
    #[serde(rename = "continue")]
    more: String,
}

fn none<T>() -> Option<T> {
    None
}

/// Servers written in Go write an empty list as null.
fn null_is_empty<'de, D: serde::Deserializer<'de>, T: Deserialize<'de>>(
    d: D,
) -> Result<Option<Vec<T>>, D::Error> {
    Ok(Some(Option::deserialize(d)?.unwrap_or_default()))
}

const PAGE: u32 = 500;
/// The client's connections give up after 295 s of silence; watches end before that.
const WATCH_SECONDS: u64 = 270;
/// A resource that isn't served yet is asked for this often: there is nothing that would tell.
const UNSERVED: Duration = Duration::from_secs(1);
/// The same trouble with the same resource is told this often.
const AGAIN: Duration = Duration::from_secs(600);
const END_OF_LIST: &str = "k8s.io/initial-events-end";

impl<S: Sink> Follower<S> {
    async fn turn(&mut self, backoff: &mut Backoff) -> Result<(), TurnError> {
        match self.version.clone() {
            None if self.streaming => self.watch(None, backoff).await,
            None => self.list().await,
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
        if !matches!(error, TurnError::Short | TurnError::Silent) && !matches!(code, Some(400 | 410 | 422)) {
            self.sink.trouble(Some(error.to_string()));
        }
        let resource = &self.target.resource;
        match code {
            Some(410) => self.version = None,
            Some(400 | 422) if self.version.is_none() && self.streaming => self.streaming = false,
            Some(404 | 405) => {
                tracing::debug!(resource, %error, "not served");
                self.version = None;
                return false;
            }
            _ => {
                // A server that can't make sense of the version any more, as after it was restored from a backup.
                if matches!(code, Some(400 | 422)) {
                    self.version = None;
                }
                let text = error.to_string();
                let known = |(told, at): &(String, Instant)| *told == text && at.elapsed() < AGAIN;
                if self.told.as_ref().is_some_and(known) {
                    tracing::debug!(resource, error = text, "watching; will be tried again");
                } else {
                    tracing::warn!(resource, error = text, "watching; will be tried again");
                    self.told = Some((text, Instant::now()));
                }
            }
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
            let page: List<S::Item> = match self.client.request(request).await {
                Err(error) if failure::is_gone(&error) && limit.is_some() => {
                    // The list took longer than the server remembers: all in one piece then.
                    (more, limit) = (String::new(), None);
                    seen.clear();
                    continue;
                }
                page => page?,
            };
            let items = page.items.ok_or(TurnError::NoList("items"))?;
            if page.metadata.resource_version.is_empty() {
                return Err(TurnError::NoList("resourceVersion"));
            }
            for item in items {
                seen.insert(S::key(&item));
                self.sink.put(item);
            }
            more = page.metadata.more;
            if more.is_empty() {
                self.version = Some(page.metadata.resource_version);
                self.sink.complete(seen);
                return Ok(());
            }
        }
    }

    /// Watches from `version`, or lists by watching first.
    async fn watch(&mut self, version: Option<String>, backoff: &mut Backoff) -> Result<(), TurnError> {
        let started = Instant::now();
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
        let events = self.client.request_events::<S::Item>(request).await?;
        if listing.is_none() {
            self.sink.trouble(None);
        }
        pin_mut!(events);
        loop {
            let next = tokio::time::timeout(Duration::from_secs(WATCH_SECONDS + 15), events.next());
            match next.await.map_err(|_| TurnError::Silent)? {
                Some(event) => {
                    let event = event?;
                    // A list is no sign of health yet: its version may be forgotten before it can be watched from.
                    if listing.is_none() && !matches!(event, WatchEvent::Error(_)) {
                        backoff.reset();
                        self.told = None;
                    }
                    self.apply(event, &mut listing)?;
                }
                None if listing.is_some() => return Err(TurnError::Short),
                // A server that ends watches at once must not be asked again at once.
                None if started.elapsed() < Duration::from_secs(1) => return Err(TurnError::Short),
                None => {
                    backoff.reset();
                    return Ok(());
                }
            }
        }
    }

    fn apply(
        &mut self,
        event: WatchEvent<S::Item>,
        listing: &mut Option<BTreeSet<S::Key>>,
    ) -> Result<(), TurnError> {
        match event {
            WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                if let Some(seen) = listing {
                    seen.insert(S::key(&object));
                } else {
                    self.version = Some(S::version(&object).to_owned());
                }
                self.sink.put(object);
            }
            WatchEvent::Deleted(object) => {
                if let Some(seen) = listing {
                    seen.remove(&S::key(&object));
                } else {
                    self.version = Some(S::version(&object).to_owned());
                }
                self.sink.gone(object);
            }
            WatchEvent::Bookmark(mark) => {
                if listing.is_none() {
                    self.version = Some(mark.metadata.resource_version);
                } else if mark.metadata.annotations.get(END_OF_LIST).is_some_and(|end| end == "true") {
                    if mark.metadata.resource_version.is_empty() {
                        return Err(TurnError::NoList("resourceVersion"));
                    }
                    self.version = Some(mark.metadata.resource_version);
                    if let Some(seen) = listing.take() {
                        self.sink.complete(seen);
                    }
                }
            }
            WatchEvent::Error(status) => return Err(TurnError::Ended(status)),
        }
        Ok(())
    }

    fn selectors(&self) -> Vec<(&'static str, String)> {
        let labels = self.target.label_selector.clone().map(|s| ("labelSelector", s));
        let fields = self.target.field_selector.clone().map(|s| ("fieldSelector", s));
        labels.into_iter().chain(fields).collect()
    }

    fn request(&self, query: &[(&str, String)], list: bool) -> Result<http::Request<Vec<u8>>, http::Error> {
        let mut uri = self.target.path.clone();
        for (index, (name, value)) in query.iter().enumerate() {
            uri.push(if index == 0 { '?' } else { '&' });
            uri.push_str(name);
            uri.push('=');
            escape(&mut uri, value);
        }
        let accept = match (self.target.metadata_only, list) {
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
