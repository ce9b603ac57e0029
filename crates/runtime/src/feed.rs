//! List and watch of one collection as a stream of changes, each item decoded to just what the reader needs.
//!
//! Cost: one list per start (or per lost watch), then one event per change. The feed remembers the keys it has
//! reported, so that a reader hears of objects that vanished while no watch was open.

use std::{collections::HashSet, time::Duration};

use futures::{StreamExt, pin_mut};
use kube::{
    Client, Error,
    core::{
        WatchEvent,
        params::{ListParams, WatchParams},
        request::Request,
    },
};
use serde::{Deserialize, de::DeserializeOwned};
use tokio::time::{Instant, sleep, timeout_at};
use tokio_util::sync::CancellationToken;

use crate::{
    Backoff,
    rest::{Gvr, code_of},
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

/// What happened to a collection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change<T> {
    /// It is there, in this form.
    Put(T),
    /// It is gone.
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

/// Follows `source` until `stop`; errors are retried with back-off. `on` is called in order and must not block.
pub async fn follow<T, F>(client: &Client, source: &Source, stop: &CancellationToken, mut on: F)
where
    T: DeserializeOwned + Clone + Keyed + Send,
    F: FnMut(Change<T>) + Send,
{
    let mut feed = Feed { client, source, known: HashSet::new() };
    let mut backoff = Backoff::new(Duration::from_millis(20), Duration::from_secs(30));
    while !stop.is_cancelled() {
        let outcome = tokio::select! {
            () = stop.cancelled() => return,
            outcome = feed.round(&mut on, &mut backoff) => outcome,
        };
        if let Err(error) = outcome {
            let pause = backoff.pause();
            tracing::debug!(resource = %source.gvr.plural, %error, ?pause, "watch interrupted");
            tokio::select! {
                () = stop.cancelled() => return,
                () = sleep(pause) => {}
            }
        }
    }
}

struct Feed<'a> {
    client: &'a Client,
    source: &'a Source,
    known: HashSet<Key>,
}

#[derive(Deserialize)]
struct Page<T> {
    #[serde(default)]
    metadata: PageMeta,
    #[serde(default = "Vec::new")]
    items: Vec<T>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct PageMeta {
    #[serde(default)]
    resource_version: String,
    #[serde(default, rename = "continue")]
    next: String,
}

impl Feed<'_> {
    /// One list and the watches that follow it. Returns when a new list is needed.
    async fn round<T, F>(&mut self, on: &mut F, backoff: &mut Backoff) -> Result<(), Error>
    where
        T: DeserializeOwned + Clone + Keyed + Send,
        F: FnMut(Change<T>) + Send,
    {
        let mut version = self.list(on).await?;
        loop {
            let opened = Instant::now();
            match self.watch(&mut version, on, backoff).await {
                Ok(()) if opened.elapsed() < Duration::from_millis(200) => {
                    sleep(Duration::from_millis(100)).await;
                }
                Ok(()) => {}
                Err(error) if code_of(&error) == 410 => return Ok(()),
                Err(error) if code_of(&error) == 404 || code_of(&error) == 403 => return Err(error),
                Err(error) => {
                    let pause = backoff.pause();
                    tracing::debug!(resource = %self.source.gvr.plural, %error, ?pause, "watch ended");
                    sleep(pause).await;
                }
            }
        }
    }

    async fn list<T, F>(&mut self, on: &mut F) -> Result<String, Error>
    where
        T: DeserializeOwned + Clone + Keyed + Send,
        F: FnMut(Change<T>) + Send,
    {
        let request = Request::new(self.source.gvr.path(&self.source.namespace));
        let mut params = ListParams { limit: Some(5000), ..ListParams::default() };
        params.label_selector = some(&self.source.labels);
        params.field_selector = some(&self.source.fields);
        let mut seen = HashSet::new();
        loop {
            let request = if self.source.metadata_only {
                request.list_metadata(&params)
            } else {
                request.list(&params)
            };
            let page: Page<T> = self.client.request(request.map_err(Error::BuildRequest)?).await?;
            for item in page.items {
                seen.insert(item.key());
                on(Change::Put(item));
            }
            if page.metadata.next.is_empty() {
                for key in self.known.difference(&seen) {
                    on(Change::Gone(key.clone()));
                }
                self.known = seen;
                on(Change::Synced);
                return Ok(page.metadata.resource_version);
            }
            params.continue_token = Some(page.metadata.next);
        }
    }

    async fn watch<T, F>(
        &mut self,
        version: &mut String,
        on: &mut F,
        backoff: &mut Backoff,
    ) -> Result<(), Error>
    where
        T: DeserializeOwned + Clone + Keyed + Send,
        F: FnMut(Change<T>) + Send,
    {
        let params = WatchParams {
            label_selector: some(&self.source.labels),
            field_selector: some(&self.source.fields),
            timeout: Some(290),
            bookmarks: true,
            send_initial_events: false,
        };
        // The server ends the watch after 290 s; a connection that is silent for longer is dead.
        let deadline = Instant::now() + Duration::from_secs(300);
        let request = Request::new(self.source.gvr.path(&self.source.namespace));
        let request = if self.source.metadata_only {
            request.watch_metadata(&params, version)
        } else {
            request.watch(&params, version)
        };
        let events = self.client.request_events::<T>(request.map_err(Error::BuildRequest)?).await?;
        pin_mut!(events);
        backoff.reset();
        while let Ok(Some(event)) = timeout_at(deadline, events.next()).await {
            match event? {
                WatchEvent::Added(item) | WatchEvent::Modified(item) => {
                    item.resource_version().clone_into(version);
                    self.known.insert(item.key());
                    on(Change::Put(item));
                }
                WatchEvent::Deleted(item) => {
                    item.resource_version().clone_into(version);
                    let key = item.key();
                    self.known.remove(&key);
                    on(Change::Gone(key));
                }
                WatchEvent::Bookmark(mark) => *version = mark.metadata.resource_version,
                WatchEvent::Error(status) => return Err(Error::Api(status)),
            }
        }
        Ok(())
    }
}

fn some(selector: &str) -> Option<String> {
    (!selector.is_empty()).then(|| selector.to_owned())
}
