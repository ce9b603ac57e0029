//! Dispatch of requests by method, subresource and kind.

use bytes::Bytes;
use http::{Method, Response};

use super::{
    RequestContext, binding, connect, create, delete, eviction, list, patch, pod_log, read, review, scale,
    token, update, watch_request,
};
use crate::descriptor::{Descriptor, SubresourceAction};
use crate::error::ApiError;
use crate::response::Body;

/// Answers a resource request that is authorised and whose descriptor is known (AS-001).
pub(crate) async fn handle(
    cx: &mut RequestContext<'_>,
    method: &Method,
    body: Bytes,
) -> Result<Response<Body>, ApiError> {
    let info = cx.info;
    let d = cx.descriptor.clone();
    warn_deprecated(cx);
    let proxied = d.subresources.get(&info.subresource).is_some_and(|sub| sub.action.is_proxy());
    if (!info.rest.is_empty() && !proxied) || (info.path_name().is_empty() && !info.subresource.is_empty()) {
        return Err(ApiError::no_such_resource());
    }
    let in_namespace = info.in_namespace();
    if d.is_custom() {
        let everywhere = matches!(info.verb.as_str(), "list" | "watch");
        if in_namespace != d.namespaced && (in_namespace || !everywhere) {
            return Err(ApiError::page_not_found());
        }
    } else if in_namespace && !d.namespaced {
        return Err(ApiError::no_such_resource());
    }
    if *method == Method::HEAD {
        return Err(ApiError::method_not_allowed());
    }
    if info.watch_prefix {
        if *method != Method::GET {
            return Err(ApiError::method_not_allowed());
        }
        return watch_request::watch(cx, Some(info.path_name()).filter(|n| !n.is_empty())).await;
    }
    if info.path_name().is_empty() {
        return collection(cx, method, body, in_namespace).await;
    }
    if d.namespaced && !in_namespace {
        return Err(ApiError::no_such_resource());
    }
    check_parameter("Name", info.path_name())?;
    if info.subresource.is_empty() {
        item(cx, method, body).await
    } else {
        subresource(cx, method, body).await
    }
}

/// Adds the warning for a deprecated kind or version.
fn warn_deprecated(cx: &mut RequestContext<'_>) {
    let d = cx.descriptor;
    let of_version = d.custom.as_ref().and_then(|custom| custom.deprecation_warning.clone());
    let text = of_version.or_else(|| d.strategy.facts().deprecated.map(str::to_owned));
    cx.warnings.extend(text);
}

/// Refuses a path parameter that could reach outside of its part of the store's key.
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

/// Whether the resource serves a verb. A custom resource whose definition is being deleted lists fewer verbs in discovery
/// than it still serves.
fn serves(d: &Descriptor, verb: &str) -> bool {
    d.is_custom() || d.has_verb(verb)
}

async fn collection(
    cx: &mut RequestContext<'_>,
    method: &Method,
    body: Bytes,
    in_namespace: bool,
) -> Result<Response<Body>, ApiError> {
    let d = cx.descriptor.clone();
    let one_collection = !d.namespaced || in_namespace;
    match *method {
        Method::GET if cx.info.verb == "watch" && serves(&d, "watch") => watch_request::watch(cx, None).await,
        Method::GET if serves(&d, "list") => list::list(cx).await,
        Method::POST if one_collection && serves(&d, "create") => match d.strategy.facts().review {
            Some(kind) => review::answer(cx, kind, &body),
            None => create::create(cx, &body).await,
        },
        Method::DELETE if one_collection && serves(&d, "deletecollection") => {
            delete::delete_collection(cx, &body).await
        }
        _ => Err(ApiError::method_not_allowed()),
    }
}

async fn item(cx: &mut RequestContext<'_>, method: &Method, body: Bytes) -> Result<Response<Body>, ApiError> {
    let d = cx.descriptor.clone();
    match *method {
        Method::GET if serves(&d, "get") => read::get(cx).await,
        Method::PUT if serves(&d, "update") => update::put(cx, &body, None).await,
        Method::PATCH if serves(&d, "patch") => patch::patch(cx, &body, None).await,
        Method::DELETE if serves(&d, "delete") => delete::delete(cx, &body).await,
        _ => Err(ApiError::method_not_allowed()),
    }
}

async fn subresource(
    cx: &mut RequestContext<'_>,
    method: &Method,
    body: Bytes,
) -> Result<Response<Body>, ApiError> {
    let d = cx.descriptor.clone();
    let Some(subresource) = d.subresources.get(&cx.info.subresource) else {
        return Err(if d.is_custom() {
            cx.not_found(cx.info.path_name())
        } else {
            ApiError::no_such_resource()
        });
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
        return Err(ApiError::method_not_allowed());
    }
    let name = cx.info.subresource.clone();
    match (subresource.action, verb) {
        (SubresourceAction::Scale, "get") => scale::get(cx),
        (SubresourceAction::Scale, "update") => scale::put(cx, &body).await,
        (SubresourceAction::Scale, "patch") => scale::patch(cx, &body).await,
        (SubresourceAction::Token, "create") => token::create(cx, &body),
        (SubresourceAction::Eviction, "create") => eviction::evict(cx, &body).await,
        (SubresourceAction::Binding, "create") => binding::bind(cx, &body).await,
        (SubresourceAction::PodLog, _) => pod_log::get(cx),
        (SubresourceAction::PodConnection | SubresourceAction::PodProxy, _) => connect::pod_connection(cx),
        (SubresourceAction::Proxy, _) => connect::proxy(cx),
        (SubresourceAction::Object, "get") => read::get(cx).await,
        (SubresourceAction::Object, "update") => update::put(cx, &body, Some(&name)).await,
        (SubresourceAction::Object, "patch") => patch::patch(cx, &body, Some(&name)).await,
        _ => Err(ApiError::method_not_allowed()),
    }
}
