//! The generic resource handler: one for all kinds, parameterised by a [`Descriptor`].

mod connect;
mod create;
mod delete;
pub(crate) mod list;
mod metadata;
mod object;
pub(crate) mod output;
mod patch;
mod read;
mod scale;
pub(crate) mod store_access;
mod update;
pub(crate) mod watch_request;

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, Method, Response};

use crate::authz::Attributes;
use crate::catalog::Catalog;
use crate::codec::negotiate::{self, Endpoint, Media, Shape};
use crate::descriptor::Descriptor;
use crate::error::{ApiError, Details, Reason};
use crate::identity::UserInfo;
use crate::path::RequestInfo;
use crate::request::Query;
use crate::response::Body;
use crate::reviews;
use crate::server::Shared;

pub(crate) use metadata::rfc3339;
pub(crate) use read::Presenter;
pub(crate) use store_access::{LiveLookup, StoreLookup, store_error};

/// One request on its way through a handler.
pub(crate) struct Cx<'a> {
    pub shared: &'a Arc<Shared>,
    /// What is durable, for who only reads; what is decided, for writes and for callers that are ahead.
    pub store: &'a store::SpaceStore,
    pub catalog: &'a Arc<Catalog>,
    pub descriptor: &'a Arc<Descriptor>,
    pub info: &'a RequestInfo,
    pub query: &'a Query,
    pub headers: &'a HeaderMap,
    pub user: &'a UserInfo,
    /// Who heavy work is done for.
    pub client: &'a crate::work::Client,
    /// All of this request is heavy work already, and has a thread of its own.
    pub apart: bool,
    pub user_agent: &'a str,
    /// RFC 3339, seconds.
    pub now: String,
    /// Texts for `Warning` headers, also of refused requests.
    pub warnings: Vec<String>,
}

impl Cx<'_> {
    pub(crate) fn media(&self, endpoint: Endpoint) -> Result<Media, ApiError> {
        negotiate::negotiate(self.headers, self.query, endpoint, self.descriptor.is_custom())
    }

    /// The representation of one object or of a list; the metadata-only forms must fit which it is.
    pub(crate) fn media_of(&self, list: bool) -> Result<Media, ApiError> {
        let media = self.media(if list { Endpoint::List } else { Endpoint::Item })?;
        let d = self.descriptor;
        let package = if d.group.is_empty() { "core" } else { d.group.split('.').next().unwrap_or_default() };
        let type_name = |kind: &str| {
            if d.is_custom() { "*unstructured.Unstructured".to_owned() } else { format!("*{package}.{kind}") }
        };
        let refused = match (media.shape, list) {
            (Shape::Metadata { .. }, true) => format!(
                "you requested PartialObjectMetadata, but the requested object is a list ({})",
                type_name(&d.list_kind)
            ),
            (Shape::MetadataList { .. }, false) => format!(
                "you requested PartialObjectMetadataList, but the requested object is not a list ({})",
                type_name(&d.kind)
            ),
            _ => return Ok(media),
        };
        Err(ApiError::new(406, Reason::NotAcceptable, refused))
    }

    pub(crate) fn namespace(&self) -> &str {
        self.info.namespace_of_objects(self.descriptor.namespaced)
    }

    /// The object of this request's resource and namespace as stored now, or the 404 that says it is not there.
    pub(crate) fn stored(&self, name: &str) -> Result<Arc<store::Entry>, ApiError> {
        let key = store_access::key(self.descriptor, self.namespace(), name);
        self.store.snapshot().get(&key).ok_or_else(|| self.not_found(name))
    }

    /// Whether writing the object may take a number of a limited range.
    pub(crate) fn allocates(&self) -> bool {
        self.descriptor.plural == "services" && self.descriptor.group.is_empty()
    }

    pub(crate) fn not_found(&self, name: &str) -> ApiError {
        ApiError::not_found(&self.descriptor.group, &self.descriptor.plural, name)
    }

    pub(crate) fn modified(&self, name: &str) -> ApiError {
        ApiError::modified(&self.descriptor.group, &self.descriptor.plural, name)
    }

    pub(crate) fn forbidden(&self, name: &str, why: &str) -> ApiError {
        ApiError::forbidden(&self.descriptor.group, &self.descriptor.plural, name, why)
    }

    /// Between two steps of a request: heavy work whose client has gone ends here.
    pub(crate) async fn step(&self) {
        if self.apart {
            tokio::task::yield_now().await;
        }
    }

    /// Checks a right that the request line does not show (`create` for a PUT or apply that creates).
    pub(crate) fn authorize(&self, verb: &str) -> Result<(), ApiError> {
        let attributes = Attributes {
            verb,
            group: &self.info.group,
            version: &self.info.version,
            resource: &self.info.resource,
            subresource: &self.info.subresource,
            namespace: &self.info.namespace,
            name: &self.info.name,
            path: &self.info.path,
            resource_request: true,
        };
        self.shared.config.authorizer.authorize(self.user, &attributes)
    }
}

/// 405 from routing.
pub(crate) fn method_not_allowed() -> ApiError {
    ApiError::new(
        405,
        Reason::MethodNotAllowed,
        "the server does not allow this method on the requested resource",
    )
    .with_details(Details::default())
}

/// 404 for an unknown resource of a known group and version.
pub(crate) fn no_such_resource() -> ApiError {
    ApiError::new(404, Reason::NotFound, "the server could not find the requested resource")
        .with_details(Details::default())
}

/// Answers a resource request that is authorised and whose descriptor is known (AS-001).
pub(crate) async fn handle(
    cx: &mut Cx<'_>,
    method: &Method,
    body: Bytes,
) -> Result<Response<Body>, ApiError> {
    let info = cx.info;
    let d = cx.descriptor.clone();
    warn_deprecated(cx);
    let connects = matches!(info.subresource.as_str(), "proxy") && d.subresources.contains_key("proxy");
    if (!info.rest.is_empty() && !connects) || (info.path_name().is_empty() && !info.subresource.is_empty()) {
        return Err(no_such_resource());
    }
    let in_namespace = info.in_namespace();
    if d.is_custom() {
        let everywhere = matches!(info.verb.as_str(), "list" | "watch");
        if in_namespace != d.namespaced && (in_namespace || !everywhere) {
            return Err(ApiError::page_not_found());
        }
    } else if in_namespace && !d.namespaced {
        return Err(no_such_resource());
    }
    if *method == Method::HEAD {
        return Err(method_not_allowed());
    }
    if info.watch_prefix {
        return watch_request::watch(cx, Some(info.path_name()).filter(|n| !n.is_empty())).await;
    }
    if info.path_name().is_empty() {
        return collection(cx, method, body, in_namespace).await;
    }
    if d.namespaced && !in_namespace {
        return Err(no_such_resource());
    }
    check_parameter("Name", info.path_name())?;
    if info.subresource.is_empty() {
        item(cx, method, body).await
    } else {
        subresource(cx, method, body).await
    }
}

/// Kinds and versions whose days are counted.
fn warn_deprecated(cx: &mut Cx<'_>) {
    let d = cx.descriptor;
    if let Some(text) = d.custom.as_ref().and_then(|c| c.deprecation_warning.clone()) {
        cx.warnings.push(text);
        return;
    }
    let text = match (d.group.as_str(), d.plural.as_str()) {
        ("", "endpoints") => "v1 Endpoints is deprecated in v1.33+; use discovery.k8s.io/v1 EndpointSlice",
        ("", "componentstatuses") => "v1 ComponentStatus is deprecated in v1.19+",
        _ => return,
    };
    cx.warnings.push(text.to_owned());
}

/// Path parameters that could escape their place in the store's key.
fn check_parameter(what: &str, value: &str) -> Result<(), ApiError> {
    let why = match value {
        "." => "may not be '.'",
        ".." => "may not be '..'",
        v if v.contains('/') => "may not contain '/'",
        v if v.contains('%') => "may not contain '%'",
        _ => return Ok(()),
    };
    Err(ApiError::bad_request(format!("{what} parameter invalid: {value:?}: {why}")))
}

/// Whether the resource has a verb. A custom resource that is going away shows fewer than it still serves.
fn serves(d: &Descriptor, verb: &str) -> bool {
    d.is_custom() || d.has_verb(verb)
}

async fn collection(
    cx: &mut Cx<'_>,
    method: &Method,
    body: Bytes,
    in_namespace: bool,
) -> Result<Response<Body>, ApiError> {
    let d = cx.descriptor.clone();
    let whole = !d.namespaced || in_namespace;
    match *method {
        Method::GET if cx.info.verb == "watch" && serves(&d, "watch") => watch_request::watch(cx, None).await,
        Method::GET if serves(&d, "list") => list::list(cx).await,
        Method::POST if whole && serves(&d, "create") => {
            if reviews::is_review(&d.group, &d.plural) {
                return review(cx, &body);
            }
            create::create(cx, &body).await
        }
        Method::DELETE if whole && serves(&d, "deletecollection") => {
            delete::delete_collection(cx, &body).await
        }
        _ => Err(method_not_allowed()),
    }
}

async fn item(cx: &mut Cx<'_>, method: &Method, body: Bytes) -> Result<Response<Body>, ApiError> {
    let d = cx.descriptor.clone();
    match *method {
        Method::GET if serves(&d, "get") => read::get(cx).await,
        Method::PUT if serves(&d, "update") => update::put(cx, &body, None).await,
        Method::PATCH if serves(&d, "patch") => patch::patch(cx, &body, None).await,
        Method::DELETE if serves(&d, "delete") => delete::delete(cx, &body).await,
        _ => Err(method_not_allowed()),
    }
}

async fn subresource(cx: &mut Cx<'_>, method: &Method, body: Bytes) -> Result<Response<Body>, ApiError> {
    let d = cx.descriptor.clone();
    let Some(subresource) = d.subresources.get(&cx.info.subresource) else {
        return Err(if d.is_custom() { cx.not_found(cx.info.path_name()) } else { no_such_resource() });
    };
    let verb = match *method {
        Method::GET => "get",
        Method::POST => "create",
        Method::PUT => "update",
        Method::PATCH => "patch",
        Method::DELETE => "delete",
        _ => "",
    };
    if !subresource.verbs.iter().any(|v| v == verb) {
        return Err(method_not_allowed());
    }
    let name = cx.info.subresource.clone();
    match (name.as_str(), verb) {
        ("scale", "get") => scale::get(cx),
        ("scale", "update") => scale::put(cx, &body).await,
        ("scale", "patch") => scale::patch(cx, &body).await,
        ("token", "create") => token(cx, &body),
        ("eviction", "create") => delete::evict(cx, &body).await,
        ("binding", "create") => update::bind(cx, &body).await,
        ("log" | "exec" | "attach" | "portforward" | "proxy", _) => connect::answer(cx),
        (_, "get") => read::get(cx).await,
        (_, "update") => update::put(cx, &body, Some(&name)).await,
        (_, "patch") => patch::patch(cx, &body, Some(&name)).await,
        _ => Err(method_not_allowed()),
    }
}

/// Kinds that are questions are answered, not stored.
fn review(cx: &mut Cx<'_>, body: &[u8]) -> Result<Response<Body>, ApiError> {
    let media = cx.media(Endpoint::Plain)?;
    let object = create::decode_review(cx, body)?;
    let lookup = StoreLookup::new(cx.store);
    let review = reviews::ReviewContext {
        user: cx.user,
        authorizer: &cx.shared.config.authorizer,
        authenticator: &cx.shared.config.authenticator,
        lookup: &lookup,
        namespace: cx.namespace(),
        now: &cx.now,
    };
    let answer = reviews::create(&review, &cx.descriptor.group, &cx.descriptor.plural, object)?;
    output::value(http::StatusCode::CREATED, media, &answer)
}

/// `serviceaccounts/{name}/token`.
fn token(cx: &mut Cx<'_>, body: &[u8]) -> Result<Response<Body>, ApiError> {
    let Some(issuer) = cx.shared.issuer().cloned() else {
        return Err(no_such_resource());
    };
    let media = cx.media(Endpoint::Plain)?;
    let object = create::decode_token_request(cx, body)?;
    let lookup = StoreLookup::new(cx.store);
    let answer =
        issuer.request(&lookup, cx.namespace(), cx.info.path_name(), object, jiff::Timestamp::now())?;
    output::value(http::StatusCode::CREATED, media, &answer)
}
