//! OpenAPI v2 and v3 documents (spec 1.5, 1.6).

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use http::header::{
    ACCEPT_RANGES, CACHE_CONTROL, CONTENT_TYPE, ETAG, EXPIRES, HeaderValue, IF_NONE_MATCH, LOCATION, VARY,
};
use http::{HeaderMap, Response, StatusCode};
use parking_lot::Mutex;

use crate::builtin;
use crate::catalog::Catalog;
use crate::descriptor::Descriptor;
use crate::discovery::{accept, hash};
use crate::error::ApiError;

mod describe;
mod documents;
mod gnostic;
mod operations;
mod schemas;

/// Media types of the v2 document as protobuf: the current one, and one that clients still request.
const V2_PROTOBUF: [&str; 2] = [
    "application/com.github.proto-openapi.spec.v2.v1.0+protobuf",
    "application/com.github.proto-openapi.spec.v2@v1.0+protobuf",
];

/// `Expires` of documents that are requested by hash: one year.
const IMMUTABLE_SECONDS: i64 = 365 * 24 * 3600;

/// A finished document.
pub(crate) struct Document {
    body: Bytes,
    /// SHA-512 in upper-case hex.
    hash: String,
}

impl Document {
    fn new(value: &serde_json::Value) -> Arc<Self> {
        let body = Bytes::from(value.to_string());
        Arc::new(Self { hash: hash(&body), body })
    }
}

/// Documents by path below `/openapi/v3/`.
type Documents = BTreeMap<String, Arc<Document>>;

/// The documents of a group version with custom resources, and what they were made from.
struct CustomGroupVersion {
    resources: Vec<Arc<Descriptor>>,
    document: Arc<Document>,
}

/// Documents of a space with custom resources, for one state of its catalog.
struct CustomDocuments {
    generation: u64,
    custom: BTreeMap<String, CustomGroupVersion>,
    /// Documents of groups that only custom resources have.
    groups: Documents,
    v2: OnceLock<Arc<Document>>,
    v2_protobuf: OnceLock<Arc<Document>>,
}

/// Documents of one space. Documents of built-in groups are made once and shared by all spaces of the process.
/// Documents with custom resources are made on request, and again when the definition has changed (AS-007, AS-008).
#[derive(Default)]
pub struct Cache {
    own: Mutex<Option<Arc<CustomDocuments>>>,
}

/// Documents of the built-in groups.
fn shared() -> &'static Documents {
    static SHARED: OnceLock<Documents> = OnceLock::new();
    SHARED.get_or_init(|| {
        let catalog = builtin::catalog();
        let mut out = documents::fixed();
        for group in catalog.groups() {
            if !group.name.is_empty() {
                out.insert(format!("apis/{}", group.name), documents::group(&group.name));
            }
            for version in &group.versions {
                let resources: Vec<_> = catalog.in_version(&group.name, version).cloned().collect();
                let document = documents::group_version(&group.name, version, &resources);
                out.insert(documents::path(&group.name, version), document);
            }
        }
        out
    })
}

fn shared_v2() -> Arc<Document> {
    static SHARED: OnceLock<Arc<Document>> = OnceLock::new();
    SHARED.get_or_init(|| Document::new(&documents::v2(builtin::catalog().all()))).clone()
}

fn shared_v2_protobuf() -> Arc<Document> {
    static SHARED: OnceLock<Arc<Document>> = OnceLock::new();
    let encoded = || {
        let body = Bytes::from(gnostic::encode(&documents::v2(builtin::catalog().all())));
        Arc::new(Document { hash: hash(&body), body })
    };
    SHARED.get_or_init(encoded).clone()
}

impl CustomDocuments {
    fn new(catalog: &Catalog, old: Option<&Self>) -> Self {
        let mut custom = BTreeMap::new();
        let mut groups = Documents::new();
        for group in catalog.groups() {
            for version in &group.versions {
                let resources: Vec<_> = catalog.in_version(&group.name, version).cloned().collect();
                if !resources.iter().any(|d| d.is_custom()) {
                    continue;
                }
                let path = documents::path(&group.name, version);
                let known = old.and_then(|o| o.custom.get(&path)).filter(|c| same(&c.resources, &resources));
                let document = match known {
                    Some(known) => known.document.clone(),
                    None => documents::group_version(&group.name, version, &resources),
                };
                custom.insert(path, CustomGroupVersion { resources, document });
            }
            let path = format!("apis/{}", group.name);
            if !group.name.is_empty() && !shared().contains_key(&path) {
                groups.insert(path, documents::group(&group.name));
            }
        }
        Self {
            generation: catalog.generation,
            custom,
            groups,
            v2: OnceLock::new(),
            v2_protobuf: OnceLock::new(),
        }
    }
}

fn same(a: &[Arc<Descriptor>], b: &[Arc<Descriptor>]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| Arc::ptr_eq(a, b))
}

impl Cache {
    /// Answers GET and HEAD of `/openapi/v2`, `/openapi/v3` and below; `None` for other paths. The first answer of a
    /// process takes some hundred milliseconds, so it must not run on an async thread.
    pub fn answer(
        &self,
        catalog: &Catalog,
        path: &str,
        query: &str,
        headers: &HeaderMap,
    ) -> Option<Result<Response<Bytes>, ApiError>> {
        let rest = path.strip_prefix("/openapi/")?;
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        let accepted = accept::clauses(headers);
        if !accepted.iter().any(accept::Clause::is_json) {
            if rest == "v2" && accepted.iter().any(|c| V2_PROTOBUF.contains(&c.media.as_str())) {
                return Some(Ok(self.v2_protobuf(catalog, headers)));
            }
            // v3 is offered as JSON only.
            return (rest == "v2" || rest.starts_with("v3")).then(|| Ok(empty(StatusCode::NOT_ACCEPTABLE)));
        }
        if rest == "v2" {
            return Some(Ok(self.v2(catalog, headers)));
        }
        if rest == "v3" {
            return Some(Ok(self.index(catalog, headers)));
        }
        let document = self.document(catalog, rest.strip_prefix("v3/")?);
        Some(document.map(|d| respond(&d, query, headers)).ok_or_else(ApiError::page_not_found))
    }

    /// `None` for a space without custom resources.
    fn own(&self, catalog: &Catalog) -> Option<Arc<CustomDocuments>> {
        if std::ptr::eq(catalog, &raw const *builtin::catalog()) {
            return None;
        }
        let mut own = self.own.lock();
        match &*own {
            Some(current) if current.generation == catalog.generation => Some(current.clone()),
            old => {
                let new = Arc::new(CustomDocuments::new(catalog, old.as_deref()));
                *own = Some(new.clone());
                Some(new)
            }
        }
    }

    fn document(&self, catalog: &Catalog, path: &str) -> Option<Arc<Document>> {
        let own = self.own(catalog);
        let own = own.as_deref();
        own.and_then(|o| o.custom.get(path).map(|c| &c.document).or_else(|| o.groups.get(path)))
            .or_else(|| shared().get(path))
            .cloned()
    }

    fn index(&self, catalog: &Catalog, headers: &HeaderMap) -> Response<Bytes> {
        let own = self.own(catalog);
        let mut all: BTreeMap<&str, &Document> = shared().iter().map(|(k, v)| (k.as_str(), &**v)).collect();
        if let Some(own) = own.as_deref() {
            all.extend(own.groups.iter().map(|(k, v)| (k.as_str(), &**v)));
            all.extend(own.custom.iter().map(|(k, v)| (k.as_str(), &*v.document)));
        }
        let paths: serde_json::Map<String, serde_json::Value> = all
            .into_iter()
            .map(|(path, document)| {
                let url = format!("/openapi/v3/{path}?hash={}", document.hash);
                (path.to_owned(), serde_json::json!({"serverRelativeURL": url}))
            })
            .collect();
        let body = Bytes::from(serde_json::json!({"paths": paths}).to_string());
        let document = Document { hash: hash(&body), body };
        let mut response = conditional(&document, headers);
        // The media type that a stock server gives to this JSON.
        let text = HeaderValue::from_static("text/plain; charset=utf-8");
        response.headers_mut().insert(CONTENT_TYPE, text);
        response
    }

    fn v2(&self, catalog: &Catalog, headers: &HeaderMap) -> Response<Bytes> {
        let document = match self.own(catalog) {
            Some(own) => own.v2.get_or_init(|| Document::new(&documents::v2(catalog.all()))).clone(),
            None => shared_v2(),
        };
        Self::v2_response(&document, headers)
    }

    /// The v2 document in protobuf. Built-in kinds are encoded once per process; a space adds its custom resources.
    fn v2_protobuf(&self, catalog: &Catalog, headers: &HeaderMap) -> Response<Bytes> {
        let document = match self.own(catalog) {
            Some(own) => own
                .v2_protobuf
                .get_or_init(|| {
                    let mut body = shared_v2_protobuf().body.to_vec();
                    body.extend(gnostic::encode(&documents::v2(catalog.all().filter(|d| d.is_custom()))));
                    let body = Bytes::from(body);
                    Arc::new(Document { hash: hash(&body), body })
                })
                .clone(),
            None => shared_v2_protobuf(),
        };
        let mut response = Self::v2_response(&document, headers);
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(V2_PROTOBUF[0]));
        response
    }

    fn v2_response(document: &Document, headers: &HeaderMap) -> Response<Bytes> {
        let mut response = conditional(document, headers);
        response.headers_mut().append(VARY, HeaderValue::from_static("Accept-Encoding"));
        response.headers_mut().insert(ACCEPT_RANGES, HeaderValue::from_static("bytes"));
        response
    }
}

fn empty(status: StatusCode) -> Response<Bytes> {
    let mut response = Response::new(Bytes::new());
    *response.status_mut() = status;
    response
}

/// 200, or 304 if the client has the document.
fn conditional(document: &Document, headers: &HeaderMap) -> Response<Bytes> {
    let etag = format!("\"{}\"", document.hash);
    let known = headers.get(IF_NONE_MATCH).is_some_and(|v| v.as_bytes() == etag.as_bytes());
    let mut response =
        if known { empty(StatusCode::NOT_MODIFIED) } else { Response::new(document.body.clone()) };
    let out = response.headers_mut();
    out.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    out.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache, private"));
    out.insert(VARY, HeaderValue::from_static("Accept"));
    insert(out, ETAG, &etag);
    response
}

/// Inserts a header. Hashes, times and paths are valid header values.
fn insert(headers: &mut HeaderMap, name: http::HeaderName, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        headers.insert(name, value);
    }
}

/// Answers with a document. A request with the right hash can be cached for ever; one with a wrong hash is redirected.
fn respond(document: &Document, query: &str, headers: &HeaderMap) -> Response<Bytes> {
    let asked = query.split('&').find_map(|pair| pair.strip_prefix("hash=")).filter(|h| !h.is_empty());
    let Some(asked) = asked else { return conditional(document, headers) };
    if asked != document.hash {
        let mut response = empty(StatusCode::MOVED_PERMANENTLY);
        let out = response.headers_mut();
        // Relative to the request's path, because this server does not know the path before `/openapi`.
        insert(out, LOCATION, &format!("?hash={}", document.hash));
        insert(out, ETAG, &format!("\"{}\"", document.hash));
        out.insert(VARY, HeaderValue::from_static("Accept"));
        return response;
    }
    let mut response = conditional(document, headers);
    let out = response.headers_mut();
    out.insert(CACHE_CONTROL, HeaderValue::from_static("public, immutable"));
    let until = jiff::Timestamp::now().checked_add(jiff::SignedDuration::from_secs(IMMUTABLE_SECONDS));
    if let Ok(until) = until {
        insert(out, EXPIRES, &until.strftime("%a, %d %b %Y %H:%M:%S GMT").to_string());
    }
    response
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
