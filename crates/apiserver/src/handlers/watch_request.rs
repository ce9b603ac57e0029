//! WATCH requests: where the stream starts, and in which representation (spec 4.5).

use std::time::Duration;

use http::{Response, StatusCode};
use store::{Revision, Scope, StoreError};

use super::list::Selection;
use super::read::wait_for;
use super::store_access::store_error;
use super::{Presenter, RequestContext};
use crate::codec::negotiate::{Endpoint, Format, Shape};
use crate::codec::protobuf;
use crate::error::{ApiError, Reason};
use crate::request::ListOptions;
use crate::response::{self, Body};
use crate::table::IncludeObject;
use crate::watch::{FrameFormat, WatchStart, WatchStream};

/// Least seconds of a watch without `timeoutSeconds`. A random time of up to the same length is added.
const MIN_DURATION: u64 = 1800;

/// GET with `watch`. `only` names the object of the deprecated watch of one item.
pub(crate) async fn watch(
    cx: &mut RequestContext<'_>,
    only: Option<&str>,
) -> Result<Response<Body>, ApiError> {
    let media = cx.media(Endpoint::Watch)?;
    if media.format == Format::Yaml {
        return Err(ApiError::new(
            406,
            Reason::NotAcceptable,
            "only the following media types are accepted: application/json;stream=watch, \
             application/vnd.kubernetes.protobuf;stream=watch",
        ));
    }
    let options = ListOptions::parse(cx.query, true)?;
    let mut selection = Selection::parse(cx.query, cx.descriptor)?;
    if let Some(name) = only {
        selection = selection.only(name);
    }
    let frames = match media.shape {
        Shape::Object | Shape::MetadataList { .. } => FrameFormat::Objects,
        Shape::Metadata { version } => FrameFormat::Metadata { version },
        Shape::Table { version } => FrameFormat::Tables {
            version,
            include: IncludeObject::parse(cx.query.get("includeObject").unwrap_or_default())?,
        },
    };
    let start = start(cx, &options, &selection).await?;
    let stream = WatchStream::new(
        cx,
        start,
        selection,
        Presenter::new(cx.descriptor),
        frames,
        &options,
        lifetime(&options),
    );
    let protobuf = media.format == Format::Protobuf;
    let content_type = if protobuf { protobuf::WATCH_MEDIA_TYPE } else { media.content_type() };
    let stream = stream.in_protobuf(protobuf).into_stream();
    Ok(response::new(StatusCode::OK, content_type, Body::stream(stream)))
}

fn lifetime(options: &ListOptions) -> Duration {
    let seconds = options.timeout_seconds.unwrap_or_else(|| {
        let spread = uuid::Uuid::new_v4().as_u64_pair().0 % MIN_DURATION;
        MIN_DURATION + spread
    });
    Duration::from_secs(seconds)
}

/// Starts the store's watch, and collects the objects to send before its events.
async fn start(
    cx: &RequestContext<'_>,
    options: &ListOptions,
    selection: &Selection,
) -> Result<WatchStart, ApiError> {
    let store = cx.store;
    let namespace = Some(cx.namespace()).filter(|n| !n.is_empty());
    let scope = Scope {
        collection: cx.descriptor.collection.clone(),
        namespace: namespace.map(Into::into),
        only: selection.store_filter(),
    };
    let revision = options.watch_revision()?.filter(|r| *r != 0);
    let initial = match options.send_initial_events {
        Some(send) => send,
        None => revision.is_none(),
    };
    if initial {
        if let Some(revision) = revision {
            wait_for(store, revision).await?;
        }
        let snapshot = store.snapshot();
        let watch = store.watch(scope, snapshot.revision()).map_err(|e| store_error(&e))?;
        let view = snapshot.view(&cx.descriptor.collection);
        let initial = selection.candidates(&view, cx.descriptor, namespace);
        return Ok(WatchStart {
            watch: Ok(watch),
            initial,
            revision: snapshot.revision(),
            announce_end: options.send_initial_events == Some(true),
        });
    }
    let after = revision.map_or_else(|| store.revision(), Revision);
    let watch = match store.watch(scope, after) {
        Ok(watch) => Ok(watch),
        // Sent as an event of the stream, where clients expect it.
        Err(StoreError::Compacted { asked, oldest }) => {
            Err(ApiError::new(410, Reason::Expired, format!("too old resource version: {asked} ({oldest})")))
        }
        Err(other) => return Err(store_error(&other)),
    };
    Ok(WatchStart { watch, initial: Vec::new(), revision: after, announce_end: false })
}
