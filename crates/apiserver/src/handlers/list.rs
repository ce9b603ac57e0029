//! LIST: resource versions, pages, selectors (spec 4.2 to 4.4).

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::Bytes;
use http::{Response, StatusCode};
use machinery::selector::{FieldOp, FieldSelector, LabelSelector};
use serde::Deserialize;
use serde_json::{Value, json};
use store::{Entry, Only, Revision, StoreError, View};

use super::read::wait_for;
use super::store_access::store_error;
use super::{Presenter, RequestContext, output};
use crate::codec::negotiate::{Format, Media, Shape};
use crate::codec::protobuf;
use crate::descriptor::Descriptor;
use crate::encode;
use crate::error::{ApiError, Reason};
use crate::request::{ListOptions, Query, VersionMatch};
use crate::response::{self, Body};

/// Bytes of one chunk of a list body.
const CHUNK: usize = 256 << 10;
const TOKEN_VERSION: &str = "meta.k8s.io/v1";

/// Which objects a list or watch selects.
#[derive(Clone)]
pub(crate) struct Selection {
    pub labels: LabelSelector,
    pub fields: FieldSelector,
    /// The only name that can match, if there is one.
    pub name: Option<String>,
    /// A field requirement needs the content of the object.
    pub needs_value: bool,
}

impl Selection {
    pub(crate) fn parse(query: &Query, d: &Descriptor) -> Result<Self, ApiError> {
        let labels = LabelSelector::parse(query.get("labelSelector").unwrap_or_default())
            .map_err(|e| ApiError::bad_request(e.to_string()))?;
        let fields = FieldSelector::parse(query.get("fieldSelector").unwrap_or_default())
            .map_err(|e| ApiError::bad_request(e.to_string()))?;
        let mut name = None;
        let mut needs_value = false;
        for requirement in fields.requirements() {
            match requirement.field.as_str() {
                "metadata.name" => {
                    if requirement.op == FieldOp::Eq {
                        name = Some(requirement.value.clone());
                    }
                }
                "metadata.namespace" => {}
                label if is_known(d, label) => needs_value = true,
                label => return Err(unknown_field(d, label)),
            }
        }
        Ok(Self { labels, fields, name, needs_value })
    }

    pub(crate) fn is_everything(&self) -> bool {
        self.labels.is_everything() && self.fields.is_everything()
    }

    /// Restricts the selection to one object (deprecated watch of an item).
    pub(crate) fn only(mut self, name: &str) -> Self {
        if self.fields.is_everything() {
            self.fields = FieldSelector::parse(&format!("metadata.name={name}")).unwrap_or_default();
        }
        self.name = Some(name.to_owned());
        self
    }

    /// A condition that every selected object meets, so that the store skips the watch for other objects.
    pub(crate) fn store_filter(&self) -> Option<Only> {
        let label = || self.labels.exact().map(|(k, v)| Only::Label { key: k.into(), value: v.into() });
        self.name.as_deref().map(|name| Only::Name(name.into())).or_else(label)
    }

    /// Namespace and name of the only object that can match, if both are known.
    fn single_object<'a>(&'a self, d: &Descriptor, namespace: Option<&'a str>) -> Option<(&'a str, &'a str)> {
        let home = if d.namespaced { namespace? } else { "" };
        Some((home, self.name.as_deref()?))
    }

    /// Objects that may match. Visits as few as possible.
    pub(crate) fn candidates(&self, view: &View, d: &Descriptor, namespace: Option<&str>) -> Vec<Arc<Entry>> {
        match self.single_object(d, namespace) {
            Some((namespace, name)) => view.get(namespace, name).into_iter().cloned().collect(),
            None => view.iter(namespace, None).cloned().collect(),
        }
    }

    pub(crate) fn matches(&self, presenter: &Presenter, entry: &Entry) -> bool {
        if self.name.as_deref().is_some_and(|name| name != &*entry.key.name) {
            return false;
        }
        if !self.labels.is_everything()
            && !self.labels.matches(|key| entry.meta.labels.get(key).map(AsRef::as_ref))
        {
            return false;
        }
        if self.fields.is_everything() {
            return true;
        }
        let value = if self.needs_value { presenter.value(entry).ok() } else { None };
        let d = presenter.descriptor();
        self.fields.matches(|label| match label {
            "metadata.name" => Some(entry.key.name.to_string()),
            "metadata.namespace" => Some(entry.key.namespace.to_string()),
            label => value.as_ref().map(|value| field_value(d, value, label)),
        })
    }
}

fn is_known(d: &Descriptor, label: &str) -> bool {
    match &d.custom {
        Some(custom) => custom.selectable_fields.iter().any(|f| f.strip_prefix('.') == Some(label)),
        None => d.strategy.field_labels().contains(&label),
    }
}

fn unknown_field(d: &Descriptor, label: &str) -> ApiError {
    if d.is_custom() || d.strategy.facts().own_labels {
        ApiError::bad_request(format!("field label not supported: {label}"))
    } else {
        ApiError::bad_request(format!(
            "{label:?} is not a known field selector: only \"metadata.name\", \"metadata.namespace\""
        ))
    }
}

/// The value that a field selector compares with; empty if the object has none.
fn field_value(d: &Descriptor, value: &Value, label: &str) -> String {
    d.strategy.field_value(value, label).unwrap_or_default()
}

/// A page of a collection.
pub(crate) struct Page {
    pub revision: Revision,
    pub entries: Vec<Arc<Entry>>,
    pub continue_token: String,
    /// Number of objects after this page; `None` if it is not known.
    pub remaining: Option<usize>,
    /// Print `continue` even if it is empty, as Kubernetes does for deleted collections of custom resources.
    pub print_continue: bool,
}

#[derive(Deserialize)]
struct ContinueToken {
    #[serde(default)]
    v: String,
    #[serde(default)]
    rv: i64,
    #[serde(default)]
    start: String,
}

fn encode_token(revision: i64, namespaced_prefix: bool, last: &Entry) -> String {
    // As in Kubernetes: the next key relative to the listed prefix, just after the last object of the page.
    let start = match (namespaced_prefix, last.key.namespace.is_empty()) {
        (true, _) | (_, true) => format!("{}\0", last.key.name),
        (false, false) => format!("{}/{}\0", last.key.namespace, last.key.name),
    };
    URL_SAFE_NO_PAD.encode(json!({ "v": TOKEN_VERSION, "rv": revision, "start": start }).to_string())
}

fn decode_token(text: &str) -> Result<ContinueToken, ApiError> {
    let bad = |why: String| {
        ApiError::bad_request(format!("invalid continue token: continue key is not valid: {why}"))
    };
    let bytes = URL_SAFE_NO_PAD.decode(text.trim_end_matches('=')).map_err(|error| {
        let at = match error {
            base64::DecodeError::InvalidByte(at, _) | base64::DecodeError::InvalidLastSymbol(at, _) => at,
            // An incomplete group of four is reported at its start.
            _ => text.trim_end_matches('=').len() / 4 * 4,
        };
        bad(format!("illegal base64 data at input byte {at}"))
    })?;
    let token: ContinueToken = serde_json::from_slice(&bytes).map_err(|_| {
        let first = bytes.first().map_or(' ', |b| char::from(*b));
        bad(format!("invalid character '{first}' looking for beginning of value"))
    })?;
    if token.v != TOKEN_VERSION {
        return Err(bad(format!("server does not recognize this encoded version {}", token.v)));
    }
    if token.rv == 0 {
        return Err(bad(format!("incorrect encoded start resourceVersion (version {TOKEN_VERSION})")));
    }
    if token.start.is_empty() {
        return Err(bad(format!("encoded start key empty (version {TOKEN_VERSION})")));
    }
    Ok(token)
}

/// The snapshot and the start position of a list.
async fn view(
    cx: &RequestContext<'_>,
    options: &ListOptions,
) -> Result<(View, Option<(String, String)>), ApiError> {
    let store = cx.store;
    let collection = &cx.descriptor.collection;
    if !options.continue_token.is_empty() {
        if !matches!(options.resource_version.as_str(), "" | "0") {
            return Err(ApiError::bad_request(
                "specifying resource version is not allowed when using continue",
            ));
        }
        return continued(cx, options);
    }
    let revision = options.revision()?;
    match (revision, options.version_match) {
        (None | Some(0), _) => Ok((store.snapshot().view(collection), None)),
        (Some(asked), VersionMatch::Exact) => exact(cx, asked).await,
        (Some(asked), VersionMatch::Unset) if options.limit > 0 => exact(cx, asked).await,
        (Some(asked), _) => {
            wait_for(store, asked).await?;
            Ok((store.snapshot().view(collection), None))
        }
    }
}

async fn exact(cx: &RequestContext<'_>, asked: u64) -> Result<(View, Option<(String, String)>), ApiError> {
    let store = cx.store;
    wait_for(store, asked).await?;
    let view =
        store.collection_at(&cx.descriptor.collection, Revision(asked)).map_err(|e| store_error(&e))?;
    Ok((view, None))
}

fn continued(
    cx: &RequestContext<'_>,
    options: &ListOptions,
) -> Result<(View, Option<(String, String)>), ApiError> {
    let store = cx.store;
    let collection = &cx.descriptor.collection;
    let token = decode_token(&options.continue_token)?;
    let last = token.start.strip_suffix('\0').unwrap_or(&token.start);
    let start = match last.split_once('/') {
        Some((namespace, name)) => (namespace.to_owned(), name.to_owned()),
        None => (cx.namespace().to_owned(), last.to_owned()),
    };
    let Ok(revision) = u64::try_from(token.rv) else {
        return Ok((store.snapshot().view(collection), Some(start)));
    };
    match store.collection_at(collection, Revision(revision)) {
        Ok(view) => Ok((view, Some(start))),
        Err(StoreError::Compacted { .. }) => Err(expired_token(&token)),
        Err(other) => Err(store_error(&other)),
    }
}

/// 410 with a token that continues at the newest revision.
fn expired_token(token: &ContinueToken) -> ApiError {
    let message = "The provided continue parameter is too old to display a consistent list result. You can start a \
                   new list without the continue parameter, or use the continue token in this response to retrieve \
                   the remainder of the results. Continuing with the provided token results in an inconsistent list \
                   - objects that were created, modified, or deleted between the time the first chunk was returned \
                   and now may show up in the list.";
    let mut error = ApiError::new(410, Reason::Expired, message);
    let token = json!({ "v": TOKEN_VERSION, "rv": -1, "start": token.start });
    error.continue_token = Some(URL_SAFE_NO_PAD.encode(token.to_string()));
    error
}

/// Selects the objects of a page.
pub(crate) async fn page(
    cx: &RequestContext<'_>,
    options: &ListOptions,
    selection: &Selection,
    presenter: &Presenter,
) -> Result<Page, ApiError> {
    let (view, start) = view(cx, options).await?;
    let namespace = Some(cx.namespace()).filter(|n| !n.is_empty());
    let after = start.as_ref().map(|(namespace, name)| (namespace.as_str(), name.as_str()));
    // Version 0 means any version: the limit is ignored, as in answers from the cache of a stock server.
    let limit = if options.resource_version == "0" && start.is_none() { 0 } else { options.limit };
    let mut entries: Vec<Arc<Entry>> = Vec::new();
    let all = selection.is_everything();
    let mut more = false;
    if let (Some((home, name)), None) = (selection.single_object(cx.descriptor, namespace), after) {
        entries.extend(view.get(home, name).filter(|e| selection.matches(presenter, e)).cloned());
    } else {
        let mut iterator = view.iter(namespace, after);
        if all && limit == 0 {
            entries.reserve(iterator.len());
        }
        for entry in iterator.by_ref() {
            if !all && !selection.matches(presenter, entry) {
                continue;
            }
            if limit > 0 && entries.len() == limit {
                more = true;
                break;
            }
            entries.push(entry.clone());
        }
        if more && all {
            // The object that did not fit, and all objects after it.
            let remaining = iterator.len() + 1;
            return Ok(finish_page(view.revision(), namespace.is_some(), entries, Some(remaining)));
        }
    }
    if more {
        return Ok(finish_page(view.revision(), namespace.is_some(), entries, None));
    }
    Ok(Page {
        revision: view.revision(),
        entries,
        continue_token: String::new(),
        remaining: None,
        print_continue: false,
    })
}

fn finish_page(revision: Revision, prefix: bool, entries: Vec<Arc<Entry>>, remaining: Option<usize>) -> Page {
    let signed = i64::try_from(revision.0).unwrap_or(i64::MAX);
    let continue_token = entries.last().map(|last| encode_token(signed, prefix, last)).unwrap_or_default();
    Page { revision, entries, continue_token, remaining, print_continue: false }
}

impl Page {
    /// `metadata` of the list.
    pub(crate) fn metadata(&self) -> Value {
        let mut metadata = json!({ "resourceVersion": self.revision.to_string() });
        if let Some(map) = metadata.as_object_mut() {
            if self.print_continue || !self.continue_token.is_empty() {
                map.insert("continue".into(), self.continue_token.clone().into());
            }
            if let Some(remaining) = self.remaining {
                map.insert("remainingItemCount".into(), remaining.into());
            }
        }
        metadata
    }
}

/// GET of a collection.
pub(crate) async fn list(cx: &mut RequestContext<'_>) -> Result<Response<Body>, ApiError> {
    let media = cx.media_of(true)?;
    let options = ListOptions::parse(cx.query, false)?;
    let selection = Selection::parse(cx.query, cx.descriptor)?;
    let presenter = Presenter::new(cx.descriptor);
    let page = page(cx, &options, &selection, &presenter).await?;
    respond(cx, media, &page, &presenter)
}

/// Answers with a page in the negotiated representation.
pub(crate) fn respond(
    cx: &RequestContext<'_>,
    media: Media,
    page: &Page,
    presenter: &Presenter,
) -> Result<Response<Body>, ApiError> {
    let d = cx.descriptor;
    let metadata = page.metadata();
    if let Shape::Table { version } = media.shape {
        let objects: Vec<Value> =
            page.entries.iter().map(|entry| presenter.value(entry)).collect::<Result<_, _>>()?;
        return output::finish(StatusCode::OK, media, output::table(cx, &objects, &metadata, version)?);
    }
    let (kind, api_version) = match media.shape {
        Shape::MetadataList { version } => {
            ("PartialObjectMetadataList".to_owned(), format!("meta.k8s.io/{version}"))
        }
        _ => (d.list_kind.clone(), d.api_version()),
    };
    let items: Vec<Bytes> = match media.shape {
        Shape::MetadataList { version } => {
            page.entries.iter().map(|entry| output::partial(&presenter.present(entry), version)).collect()
        }
        _ => page.entries.iter().map(|entry| presenter.present(entry)).collect(),
    };
    if media.format == Format::Protobuf {
        let list = protobuf::encode_list(&api_version, &kind, &metadata, &items)?;
        return Ok(output::send(StatusCode::OK, media, list.into()));
    }
    let mut head = Vec::with_capacity(256);
    head.extend_from_slice(b"{\"kind\":");
    head.extend_from_slice(&encode::value_bytes(&kind.into()));
    head.extend_from_slice(b",\"apiVersion\":");
    head.extend_from_slice(&encode::value_bytes(&api_version.into()));
    head.extend_from_slice(b",\"metadata\":");
    head.extend_from_slice(&encode::value_bytes(&metadata));
    head.extend_from_slice(b",\"items\":[");
    let offset =
        if matches!(media.shape, Shape::MetadataList { .. }) { None } else { presenter.item_offset() };
    let body = ListBody::new(head, items, offset);
    let plain = media.format == Format::Json && !media.pretty && !media.gzip;
    if plain {
        return Ok(response::new(StatusCode::OK, media.content_type(), body.into_body()));
    }
    let text = body.into_body().into_bytes().unwrap_or_default();
    output::finish(StatusCode::OK, media, text)
}

/// The text of a list, made chunk by chunk from the stored bytes.
struct ListBody {
    head: Vec<u8>,
    items: std::vec::IntoIter<Bytes>,
    /// How many bytes of each item (apiVersion and kind) `{` replaces.
    offset: Option<usize>,
    first: bool,
    done: bool,
}

impl ListBody {
    fn new(head: Vec<u8>, items: Vec<Bytes>, offset: Option<usize>) -> Self {
        Self { head, items: items.into_iter(), offset, first: true, done: false }
    }

    fn length(&self) -> u64 {
        let items = self.items.as_slice();
        let cut = self.offset.map_or(0, |offset| offset - 1);
        let text: usize = items.iter().map(|item| item.len() - cut).sum();
        (self.head.len() + text + items.len().saturating_sub(1) + 2) as u64
    }

    fn into_body(self) -> Body {
        let remaining = self.length();
        Body::Chunks { chunks: Box::new(self), remaining }
    }
}

impl Iterator for ListBody {
    type Item = Bytes;

    fn next(&mut self) -> Option<Bytes> {
        if self.done {
            return None;
        }
        let mut out = std::mem::take(&mut self.head);
        out.reserve(
            CHUNK.min(self.items.as_slice().iter().map(|i| i.len() + 1).take(1024).sum::<usize>()) + 2,
        );
        for item in self.items.by_ref() {
            if !self.first {
                out.push(b',');
            }
            self.first = false;
            match self.offset {
                Some(offset) => {
                    out.push(b'{');
                    out.extend_from_slice(item.get(offset..).unwrap_or_default());
                }
                None => out.extend_from_slice(&item),
            }
            if out.len() >= CHUNK {
                return Some(out.into());
            }
        }
        out.extend_from_slice(b"]}");
        self.done = true;
        Some(out.into())
    }
}
