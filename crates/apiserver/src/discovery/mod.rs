//! Discovery documents (spec 1.3, 1.4).

use std::fmt::Write as _;
use std::sync::OnceLock;

use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE, ETAG, HeaderValue, IF_NONE_MATCH, VARY};
use http::{HeaderMap, Response, StatusCode};
use serde_json::{Value, json};
use sha2::{Digest, Sha512};

use crate::builtin;
use crate::catalog::{Catalog, Group};
use crate::descriptor::api_version;
use crate::error::{ApiError, Details, Reason};

pub(crate) mod accept;
mod resources;

use accept::Clause;

const AGGREGATED: &str = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

/// Answers GET of `/`, `/api`, `/api/v1`, `/apis`, `/apis/{group}` and `/apis/{group}/{version}`, also with a trailing
/// slash; `None` for other paths. `server_address` is `host:port` as clients see this server (AS-005, AS-006).
pub fn answer(
    catalog: &Catalog,
    path: &str,
    headers: &HeaderMap,
    server_address: &str,
) -> Option<Result<Response<Bytes>, ApiError>> {
    let path = path.strip_prefix('/')?;
    let path = path.strip_suffix('/').unwrap_or(path);
    let segments: Vec<&str> = path.split('/').collect();
    let document = match segments.as_slice() {
        [""] => Ok(root(catalog)),
        ["api"] => return Some(listing(catalog, true, headers, || versions(server_address))),
        ["apis"] => return Some(listing(catalog, false, headers, || groups(catalog))),
        ["api", version] => group_version(catalog, "", version),
        ["apis", name] => group(catalog, name),
        ["apis", group, version] => group_version(catalog, group, version),
        _ => return None,
    };
    Some(document.and_then(|document| plain(&document, headers)))
}

/// `404` as JSON: an unknown version or resource of a known group.
pub fn resource_not_found() -> ApiError {
    ApiError::new(404, Reason::NotFound, "the server could not find the requested resource")
        .with_details(Details::default())
}

fn root(catalog: &Catalog) -> Value {
    json!({"paths": paths(catalog)})
}

/// The paths outside the resources that the server answers, sorted.
pub fn paths(catalog: &Catalog) -> Vec<String> {
    const FIXED: [&str; 17] = [
        "/.well-known/openid-configuration",
        "/api",
        "/apis",
        "/apis/",
        "/healthz",
        "/healthz/etcd",
        "/healthz/log",
        "/healthz/ping",
        "/livez",
        "/livez/ping",
        "/metrics",
        "/openapi/v2",
        "/openapi/v3",
        "/openapi/v3/",
        "/openid/v1/jwks",
        "/readyz",
        "/version",
    ];
    let mut paths: Vec<String> = FIXED.iter().map(ToString::to_string).collect();
    for group in catalog.groups() {
        let base = if group.name.is_empty() { "/api".to_owned() } else { format!("/apis/{}", group.name) };
        paths.extend(group.versions.iter().map(|v| format!("{base}/{v}")));
        if !group.name.is_empty() {
            paths.push(base);
        }
    }
    paths.sort();
    paths
}

fn versions(server_address: &str) -> Value {
    json!({
        "kind": "APIVersions", "versions": ["v1"],
        "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": server_address}],
    })
}

fn groups(catalog: &Catalog) -> Value {
    let groups: Vec<Value> =
        catalog.groups().iter().filter(|g| !g.name.is_empty()).map(group_entry).collect();
    json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
}

fn group_entry(group: &Group) -> Value {
    let version = |v: &String| json!({"groupVersion": api_version(&group.name, v), "version": v});
    let mut out = json!({
        "name": group.name, "versions": group.versions.iter().map(version).collect::<Vec<_>>(),
    });
    if let Some(preferred) = group.versions.first() {
        out["preferredVersion"] = version(preferred);
    }
    out
}

fn group(catalog: &Catalog, name: &str) -> Result<Value, ApiError> {
    let group = catalog.group(name).filter(|g| !g.name.is_empty()).ok_or_else(ApiError::page_not_found)?;
    let mut out = group_entry(group);
    out["kind"] = "APIGroup".into();
    out["apiVersion"] = "v1".into();
    Ok(out)
}

fn group_version(catalog: &Catalog, group: &str, version: &str) -> Result<Value, ApiError> {
    let known = catalog.group(group).ok_or_else(ApiError::page_not_found)?;
    if !known.versions.iter().any(|v| v == version) {
        return Err(resource_not_found());
    }
    let mut out = json!({
        "kind": "APIResourceList", "groupVersion": api_version(group, version),
        "resources": resources::plain(catalog, group, version),
    });
    if !group.is_empty() {
        out["apiVersion"] = "v1".into();
    }
    Ok(out)
}

/// `/api` and `/apis`: the aggregated form for clients that prefer it, else the list of groups.
fn listing(
    catalog: &Catalog,
    core: bool,
    headers: &HeaderMap,
    old: impl FnOnce() -> Value,
) -> Result<Response<Bytes>, ApiError> {
    let wants_aggregated = |c: &Clause| {
        c.is_json()
            && c.param("g") == Some("apidiscovery.k8s.io")
            && c.param("v") == Some("v2")
            && c.param("as") == Some("APIGroupDiscoveryList")
    };
    for clause in accept::clauses(headers) {
        if wants_aggregated(&clause) {
            return Ok(aggregated(catalog, core, headers));
        }
        if clause.param("as").is_none() && serialization(&clause).is_some() {
            let mut response = plain(&old(), headers)?;
            response.headers_mut().insert(VARY, HeaderValue::from_static("Accept"));
            return Ok(response);
        }
    }
    Err(accept::not_acceptable())
}

#[derive(Clone)]
struct Document {
    body: Bytes,
    etag: String,
}

fn aggregated(catalog: &Catalog, core: bool, headers: &HeaderMap) -> Response<Bytes> {
    // Most spaces have no custom resources and share one document.
    static BUILTIN: [OnceLock<Document>; 2] = [OnceLock::new(), OnceLock::new()];
    let make = || {
        let body = Bytes::from(resources::aggregated(catalog, core).to_string());
        Document { etag: format!("\"{}\"", hash(&body)), body }
    };
    let document = match BUILTIN.get(usize::from(core)) {
        Some(shared) if std::ptr::eq(catalog, &raw const *builtin::catalog()) => {
            shared.get_or_init(make).clone()
        }
        _ => make(),
    };
    let matches = headers.get(IF_NONE_MATCH).is_some_and(|v| v.as_bytes() == document.etag.as_bytes());
    let mut response = Response::new(if matches { Bytes::new() } else { document.body });
    if matches {
        *response.status_mut() = StatusCode::NOT_MODIFIED;
    }
    let out = response.headers_mut();
    out.insert(CONTENT_TYPE, HeaderValue::from_static(AGGREGATED));
    out.insert(VARY, HeaderValue::from_static("Accept"));
    out.insert(CACHE_CONTROL, HeaderValue::from_static("public"));
    if let Ok(etag) = HeaderValue::from_str(&document.etag) {
        out.insert(ETAG, etag);
    }
    response
}

/// SHA-512 in upper-case hex, as Kubernetes uses for its documents.
pub(crate) fn hash(body: &[u8]) -> String {
    let mut out = String::with_capacity(128);
    for byte in Sha512::digest(body) {
        // Writing to a string cannot fail.
        let _ = write!(out, "{byte:02X}");
    }
    out
}

#[derive(Clone, Copy)]
enum Serialization {
    Json,
    Yaml,
}

fn serialization(clause: &Clause) -> Option<Serialization> {
    if clause.is_json() {
        return Some(Serialization::Json);
    }
    (clause.media == "application/yaml").then_some(Serialization::Yaml)
}

/// Answers with a document in the first form that the client accepts.
fn plain(document: &Value, headers: &HeaderMap) -> Result<Response<Bytes>, ApiError> {
    let chosen =
        accept::clauses(headers).iter().find_map(serialization).ok_or_else(accept::not_acceptable)?;
    let (body, content_type) = match chosen {
        Serialization::Json => (document.to_string(), "application/json"),
        Serialization::Yaml => {
            (machinery::yaml::to_string(document).map_err(ApiError::internal)?, "application/yaml")
        }
    };
    let mut response = Response::new(Bytes::from(body));
    let out = response.headers_mut();
    out.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    out.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache, private"));
    Ok(response)
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
