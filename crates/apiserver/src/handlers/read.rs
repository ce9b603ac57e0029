//! GET of one object, and conversion of stored bytes into answers.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Response, StatusCode};
use serde_json::Value;
use store::{Entry, Revision, SpaceStore};

use super::store_access::revision_too_large;
use super::{RequestContext, output};
use crate::descriptor::Descriptor;
use crate::encode;
use crate::error::ApiError;
use crate::request::ListOptions;
use crate::response::Body;

/// How long a read waits for a revision that does not exist yet (spec 4.1).
const FUTURE_WAIT: Duration = Duration::from_secs(3);
const FUTURE_STEP: Duration = Duration::from_millis(20);

/// Converts stored values into the requested version. Nearly all objects are served as stored.
#[derive(Clone)]
pub(crate) struct Presenter {
    descriptor: Arc<Descriptor>,
    api_version: String,
    prefix: Vec<u8>,
    /// Custom resources stored before this revision may lack defaults of the current schema.
    since: u64,
}

impl Presenter {
    pub(crate) fn new(descriptor: &Arc<Descriptor>) -> Self {
        let api_version = descriptor.api_version();
        Self {
            prefix: encode::prefix(&api_version, &descriptor.kind),
            since: descriptor.custom.as_ref().map_or(0, |c| c.schema_revision),
            api_version,
            descriptor: descriptor.clone(),
        }
    }

    /// The object's text in the requested version.
    pub(crate) fn present(&self, entry: &Entry) -> Bytes {
        if self.is_current(entry) { entry.value.clone() } else { self.rewrite(&entry.value) }
    }

    /// The object in the requested version.
    pub(crate) fn value(&self, entry: &Entry) -> Result<Value, ApiError> {
        let value: Value = serde_json::from_slice(&entry.value).map_err(ApiError::internal)?;
        Ok(if self.is_current(entry) { value } else { self.convert(value) })
    }

    /// Offset of an item's own members in the text of a typed list. `None` for custom resources, whose items show
    /// apiVersion and kind.
    pub(crate) fn item_offset(&self) -> Option<usize> {
        (!self.descriptor.is_custom()).then_some(self.prefix.len())
    }

    pub(crate) fn descriptor(&self) -> &Arc<Descriptor> {
        &self.descriptor
    }

    fn is_current(&self, entry: &Entry) -> bool {
        entry.revision.0 >= self.since && entry.value.starts_with(&self.prefix)
    }

    fn rewrite(&self, text: &Bytes) -> Bytes {
        match serde_json::from_slice::<Value>(text) {
            Ok(value) => encode::text(&self.convert(value), &self.api_version, &self.descriptor.kind),
            Err(_) => text.clone(),
        }
    }

    fn convert(&self, mut value: Value) -> Value {
        let d = &self.descriptor;
        let from = value.get("apiVersion").and_then(Value::as_str).unwrap_or_default().to_owned();
        if from != self.api_version {
            d.strategy.convert(&mut value, &from, &self.api_version);
        }
        if let Some(map) = value.as_object_mut() {
            map.insert("apiVersion".into(), self.api_version.clone().into());
            map.insert("kind".into(), d.kind.clone().into());
        }
        if d.is_custom() {
            d.schema.prune(&mut value);
            // Defaults beyond the size limit are left out of the answer.
            let _ = d.schema.default(&mut value);
        }
        value
    }
}

/// The object in the stored version of its collection.
pub(crate) fn to_storage<'a>(d: &Descriptor, object: &'a Value) -> Cow<'a, Value> {
    let api_version = d.api_version();
    if api_version == d.storage_api_version {
        return Cow::Borrowed(object);
    }
    let mut object = object.clone();
    d.strategy.convert(&mut object, &api_version, &d.storage_api_version);
    Cow::Owned(object)
}

/// Waits until the space has reached `revision`.
///
/// # Errors
/// 504 if it does not within [`FUTURE_WAIT`].
pub(crate) async fn wait_for(store: &SpaceStore, revision: u64) -> Result<(), ApiError> {
    let reached = async {
        // Polling is enough: requests for a future revision are rare and usually mistakes.
        let mut step = tokio::time::interval(FUTURE_STEP);
        while store.revision() < Revision(revision) {
            step.tick().await;
        }
    };
    tokio::time::timeout(FUTURE_WAIT, reached)
        .await
        .map_err(|_| revision_too_large(revision, store.revision().0))
}

/// GET of an object or of a subresource that shows the whole object (`status`).
pub(crate) async fn get(cx: &mut RequestContext<'_>) -> Result<Response<Body>, ApiError> {
    let media = cx.media_of(false)?;
    let options = ListOptions::parse_get(cx.query)?;
    let store = cx.store;
    if let Some(revision) = options {
        wait_for(store, revision).await?;
    }
    let name = cx.info.path_name();
    let entry = cx.stored(name)?;
    let text = Presenter::new(cx.descriptor).present(&entry);
    output::object(cx, StatusCode::OK, media, text)
}
