//! The event stream of one watch: stored bytes in frames, made when the connection asks for more.
//!
//! Nothing is buffered for a slow reader. It falls behind in the store's ring, and its watch ends when the ring has
//! dropped events that it needs.
//!
//! A watch ends when its user loses the right to watch, at the latest before the next event is sent.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde_json::{Value, json};
use store::{Entry, Event, EventKind, Only, Revision, Scope, StoreError, Watch};
use tokio::time::{Instant, Interval, MissedTickBehavior};
use tokio_util::sync::CancellationToken;

use crate::authz::Authorizer;
use crate::codec::protobuf;
use crate::crd;
use crate::encode;
use crate::error::ApiError;
use crate::handlers::list::Selection;
use crate::handlers::store_access::key_of;
use crate::handlers::{Presenter, RequestContext, output};
use crate::identity::UserInfo;
use crate::metrics::{OpenWatch, RequestLabels};
use crate::path::RequestInfo;
use crate::request::ListOptions;
use crate::table::{self, IncludeObject};

/// Frames are batched up to this many bytes if several events are ready.
const BATCH: usize = 64 << 10;
const BOOKMARK_EVERY: Duration = Duration::from_secs(60);
/// How long before the end of a watch the last bookmark is sent.
const BOOKMARK_BEFORE_END: Duration = Duration::from_secs(2);

/// The form of the objects in a watch.
#[derive(Clone, Copy, Debug)]
pub(crate) enum FrameFormat {
    Objects,
    Metadata { version: &'static str },
    Tables { version: &'static str, include: IncludeObject },
}

/// The start of a watch.
pub(crate) struct WatchStart {
    pub watch: Result<Watch, ApiError>,
    pub initial: Vec<Arc<Entry>>,
    /// Revision of `initial`, or the revision after which events are sent.
    pub revision: Revision,
    /// Send a bookmark after the initial objects.
    pub announce_end: bool,
}

/// A watch being served.
pub(crate) struct WatchStream {
    watch: Option<Watch>,
    error: Option<ApiError>,
    initial: VecDeque<Arc<Entry>>,
    announce_end: bool,
    revision: Revision,
    selection: Selection,
    presenter: Presenter,
    frames: FrameFormat,
    /// Frames are binary, with a length prefix.
    protobuf: bool,
    bookmarks: Option<Interval>,
    last_bookmark: Option<Instant>,
    deadline: Instant,
    stop: CancellationToken,
    /// The name of a custom resource's definition and a watch of it. A change of its spec ends the watch.
    definition: Option<(String, Watch)>,
    columns_sent: bool,
    ended: bool,
    counted: OpenWatch,
    access: AccessCheck,
}

impl WatchStream {
    pub(crate) fn new(
        cx: &RequestContext<'_>,
        start: WatchStart,
        selection: Selection,
        presenter: Presenter,
        frames: FrameFormat,
        options: &ListOptions,
        lifetime: Duration,
    ) -> Self {
        let (watch, error) = match start.watch {
            Ok(watch) => (Some(watch), None),
            Err(error) => (None, Some(error)),
        };
        let now = Instant::now();
        let deadline = now + lifetime;
        let bookmarks = options.bookmarks.then(|| {
            let mut interval = tokio::time::interval_at(now + BOOKMARK_EVERY, BOOKMARK_EVERY);
            interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
            interval
        });
        let last_bookmark =
            (options.bookmarks && lifetime > BOOKMARK_BEFORE_END).then(|| deadline - BOOKMARK_BEFORE_END);
        let definition = cx.descriptor.custom.as_ref().and_then(|custom| {
            let only = Some(Only::Name(custom.crd.as_str().into()));
            let scope = Scope { only, ..Scope::all(crd::collection()) };
            let store = &cx.state.config.store;
            Some((custom.crd.clone(), store.watch(scope, store.revision()).ok()?))
        });
        // Checked after subscribing, so that a later removal is noticed.
        let deadline = if definition_exists(cx) { deadline } else { now };
        Self {
            watch,
            error,
            initial: start.initial.into(),
            announce_end: start.announce_end && options.bookmarks,
            revision: start.revision,
            selection,
            presenter,
            frames,
            protobuf: false,
            bookmarks,
            last_bookmark,
            deadline,
            stop: cx.state.stop.clone(),
            definition,
            columns_sent: false,
            ended: false,
            counted: cx.state.metrics.watch(RequestLabels::of(cx.info, cx.catalog), cx.descriptor),
            access: AccessCheck::of(cx),
        }
    }

    /// Sends frames in protobuf instead of JSON lines (AS-030).
    pub(crate) fn in_protobuf(mut self, protobuf: bool) -> Self {
        self.protobuf = protobuf;
        self
    }

    /// The stream of chunks. Each chunk has whole frames.
    pub(crate) fn into_stream(self) -> impl futures::Stream<Item = Bytes> + Send + 'static {
        futures::stream::unfold(self, |mut stream| async move {
            let chunk = stream.chunk().await?;
            Some((chunk, stream))
        })
    }

    async fn chunk(&mut self) -> Option<Bytes> {
        if self.ended {
            return None;
        }
        if let Some(error) = self.error.take() {
            self.ended = true;
            return Some(error_frame(&error, self.protobuf));
        }
        if !self.access.holds() {
            return None;
        }
        if let Some(chunk) = self.initial_chunk() {
            return Some(chunk);
        }
        loop {
            let wake = self.wait().await;
            if !self.access.holds() {
                return None;
            }
            match wake {
                Wakeup::Event(event) => {
                    let mut out = Vec::new();
                    self.write(&event, &mut out);
                    self.drain(&mut out);
                    if !out.is_empty() {
                        return Some(out.into());
                    }
                }
                Wakeup::Bookmark => {
                    if let Some(frame) = self.progress_frame() {
                        return Some(frame);
                    }
                }
                Wakeup::Expired => {
                    self.ended = true;
                    return None;
                }
                Wakeup::Stop => return None,
            }
        }
    }

    /// The next chunk of initial objects; after them the bookmark.
    fn initial_chunk(&mut self) -> Option<Bytes> {
        let mut out = Vec::new();
        while let Some(entry) = self.initial.pop_front() {
            if self.selection.matches(&self.presenter, &entry) {
                let text = self.presenter.present(&entry);
                self.frame(&mut out, "ADDED", &text);
            }
            if out.len() >= BATCH {
                return Some(out.into());
            }
        }
        if self.announce_end {
            self.announce_end = false;
            let text = self.bookmark_text(self.revision, true);
            self.bookmark_frame(&mut out, &text);
        }
        (!out.is_empty()).then(|| out.into())
    }

    async fn wait(&mut self) -> Wakeup {
        let Some(watch) = self.watch.as_mut() else {
            return Wakeup::Stop;
        };
        tokio::select! {
            biased;
            () = self.stop.cancelled() => Wakeup::Stop,
            () = definition_changed(&mut self.definition) => Wakeup::Stop,
            event = watch.next() => match event {
                Ok(event) => Wakeup::Event(event),
                Err(StoreError::Compacted { .. }) => Wakeup::Expired,
                Err(_) => Wakeup::Stop,
            },
            () = tokio::time::sleep_until(self.deadline) => Wakeup::Stop,
            () = at(self.last_bookmark) => {
                self.last_bookmark = None;
                Wakeup::Bookmark
            }
            () = tick(self.bookmarks.as_mut()) => Wakeup::Bookmark,
        }
    }

    /// Adds the events that are ready, up to the batch size.
    fn drain(&mut self, out: &mut Vec<u8>) {
        while out.len() < BATCH {
            match self.watch.as_mut().map(Watch::try_next) {
                Some(Ok(Some(event))) => self.write(&event, out),
                // The next wait returns the error again.
                _ => return,
            }
        }
    }

    /// Adds the frame of an event, if the watch shows it. Handles objects that begin or cease to match the selector.
    fn write(&mut self, event: &Event, out: &mut Vec<u8>) {
        self.revision = event.entry.revision;
        if self.selection.is_everything() {
            let kind = match event.kind {
                EventKind::Created => "ADDED",
                EventKind::Updated => "MODIFIED",
                EventKind::Deleted => "DELETED",
            };
            let text = self.presenter.present(&event.entry);
            self.frame(out, kind, &text);
            return;
        }
        let before = event.previous.as_ref().is_some_and(|old| self.selection.matches(&self.presenter, old));
        let after = event.kind != EventKind::Deleted && self.selection.matches(&self.presenter, &event.entry);
        match (before, after) {
            (false, true) => {
                let text = self.presenter.present(&event.entry);
                self.frame(out, "ADDED", &text);
            }
            (true, true) => {
                let text = self.presenter.present(&event.entry);
                self.frame(out, "MODIFIED", &text);
            }
            (true, false) if event.kind == EventKind::Deleted => {
                let text = self.presenter.present(&event.entry);
                self.frame(out, "DELETED", &text);
            }
            (true, false) => {
                if let Some(old) = &event.previous {
                    // The old content with the revision of the change.
                    let text = encode::with_revision(&self.presenter.present(old), event.entry.revision);
                    self.frame(out, "DELETED", &text);
                }
            }
            (false, false) => {}
        }
    }

    fn frame(&mut self, out: &mut Vec<u8>, kind: &str, text: &Bytes) {
        self.counted.sent();
        if self.protobuf {
            return self.protobuf_frame(out, kind, text);
        }
        out.reserve(text.len() + 40);
        out.extend_from_slice(b"{\"type\":\"");
        out.extend_from_slice(kind.as_bytes());
        out.extend_from_slice(b"\",\"object\":");
        match self.frames {
            FrameFormat::Objects => out.extend_from_slice(text),
            FrameFormat::Metadata { version } => output::write_partial(out, text, version),
            FrameFormat::Tables { version, include } => {
                let object = serde_json::from_slice(text).unwrap_or_default();
                let table = self.table(object, version, include);
                out.extend_from_slice(&encode::object_bytes(&table));
            }
        }
        out.extend_from_slice(b"}\n");
    }

    fn protobuf_frame(&self, out: &mut Vec<u8>, kind: &str, text: &Bytes) {
        let text = match self.frames {
            FrameFormat::Metadata { version } => &output::partial(text, version),
            // Tables have no protobuf form, so they are never negotiated with protobuf.
            FrameFormat::Objects | FrameFormat::Tables { .. } => text,
        };
        let object = serde_json::from_slice(text).unwrap_or_default();
        match protobuf::watch_frame(kind, &object) {
            Ok(frame) => out.extend_from_slice(&frame),
            Err(error) => tracing::error!(%error, "an event could not be written"),
        }
    }

    fn table(&mut self, object: Value, version: &str, include: IncludeObject) -> Value {
        let revision = object.pointer("/metadata/resourceVersion").cloned().unwrap_or_default();
        let metadata = json!({ "resourceVersion": revision });
        let first = !std::mem::replace(&mut self.columns_sent, true);
        let descriptor = self.presenter.descriptor();
        let mut table =
            table::render(descriptor, &[object], &metadata, include, first, jiff::Timestamp::now());
        output::set_table_version(&mut table, version);
        table
    }

    /// A bookmark at a revision up to which every event has been sent.
    fn progress_frame(&mut self) -> Option<Bytes> {
        let progress = self.watch.as_mut()?.progress()?;
        self.revision = self.revision.max(progress);
        let text = self.bookmark_text(self.revision, false);
        let mut out = Vec::new();
        self.bookmark_frame(&mut out, &text);
        Some(out.into())
    }

    fn bookmark_text(&self, revision: Revision, end_of_initial: bool) -> Bytes {
        let mut metadata = json!({ "resourceVersion": revision.to_string() });
        if end_of_initial {
            metadata["annotations"] = json!({ "k8s.io/initial-events-end": "true" });
        }
        let d = self.presenter.descriptor();
        encode::text(&json!({ "metadata": metadata }), &d.api_version(), &d.kind)
    }

    fn bookmark_frame(&mut self, out: &mut Vec<u8>, text: &Bytes) {
        self.frame(out, "BOOKMARK", text);
    }
}

enum Wakeup {
    Event(Arc<Event>),
    Bookmark,
    /// The reader was too slow.
    Expired,
    Stop,
}

fn error_frame(error: &ApiError, protobuf: bool) -> Bytes {
    if protobuf {
        return protobuf::watch_frame("ERROR", &error.status()).unwrap_or_default().into();
    }
    let mut out = b"{\"type\":\"ERROR\",\"object\":".to_vec();
    out.extend_from_slice(&encode::status_bytes(&error.status()));
    out.extend_from_slice(b"}\n");
    out.into()
}

async fn at(instant: Option<Instant>) {
    match instant {
        Some(instant) => tokio::time::sleep_until(instant).await,
        None => std::future::pending().await,
    }
}

async fn tick(interval: Option<&mut Interval>) {
    match interval {
        Some(interval) => {
            interval.tick().await;
        }
        None => std::future::pending().await,
    }
}

/// Whether the definition of a custom resource still exists. The catalog may lag behind, and nothing would end a watch
/// on a removed definition.
fn definition_exists(cx: &RequestContext<'_>) -> bool {
    let Some(custom) = &cx.descriptor.custom else { return true };
    let key = key_of(&crd::collection(), "", &custom.crd);
    let Some(entry) = cx.state.config.store.snapshot().get(&key) else { return false };
    let meta = encode::metadata_of(&entry.value);
    let meta = meta.and_then(|text| serde_json::from_slice::<Value>(&text).ok());
    meta.is_none_or(|meta| meta.get("uid").and_then(Value::as_str) == Some(&*custom.crd_uid))
}

/// Returns when the spec of the definition has changed, or the definition is gone.
async fn definition_changed(definition: &mut Option<(String, Watch)>) {
    let Some((name, watch)) = definition else {
        return std::future::pending().await;
    };
    loop {
        match watch.next().await {
            Ok(event) if *event.entry.key.name == **name => {
                let old = event.previous.as_ref().and_then(|old| spec(old));
                if event.kind == EventKind::Deleted || spec(&event.entry) != old {
                    return;
                }
            }
            Ok(_) => {}
            Err(_) => return,
        }
    }
}

fn spec(entry: &Entry) -> Option<Value> {
    let mut value: Value = serde_json::from_slice(&entry.value).ok()?;
    value.get_mut("spec").map(Value::take)
}

/// Checks the right to a watch again when roles or bindings have changed. Costs a comparison per chunk, and a decision
/// per change of roles or bindings, however many watches there are.
struct AccessCheck {
    authorizer: Authorizer,
    user: UserInfo,
    info: RequestInfo,
    /// The value of [`Authorizer::changes`] at the last positive decision.
    seen: Option<u64>,
}

impl AccessCheck {
    fn of(cx: &RequestContext<'_>) -> Self {
        let authorizer = cx.state.config.authorizer.clone();
        Self { authorizer, user: cx.user.clone(), info: cx.info.clone(), seen: None }
    }

    fn holds(&mut self) -> bool {
        let now = self.authorizer.changes(&self.user);
        if self.seen == Some(now) {
            return true;
        }
        let allowed = self.authorizer.allows(&self.user, &self.info.attributes());
        self.seen = allowed.then_some(now);
        allowed
    }
}
