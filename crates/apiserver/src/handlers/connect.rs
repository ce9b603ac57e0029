//! Subresources that connect to a running pod. A space runs no containers, so the answers are those for a pod without a node.

use http::{Response, StatusCode};
use serde_json::Value;

use super::object::meta_str;
use super::{Presenter, RequestContext};
use crate::error::{ApiError, Reason};
use crate::response::Body;

/// `services/{name}/proxy`, `nodes/{name}/proxy`.
pub(crate) fn proxy(cx: &RequestContext<'_>) -> Result<Response<Body>, ApiError> {
    let object = stored_object(cx)?;
    Err(unavailable(format!("no endpoints available for {:?}", meta_str(&object, "name"))))
}

/// `pods/{name}/log`: empty, because no container has run.
pub(crate) fn pod_log(cx: &RequestContext<'_>) -> Result<Response<Body>, ApiError> {
    check_container(cx, &stored_object(cx)?)?;
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::NO_CONTENT;
    Ok(response)
}

/// `exec`, `attach`, `portforward` and `proxy` of a pod.
pub(crate) fn pod_connection(cx: &RequestContext<'_>) -> Result<Response<Body>, ApiError> {
    let pod = stored_object(cx)?;
    check_container(cx, &pod)?;
    let scheduled = pod.pointer("/spec/nodeName").and_then(Value::as_str).is_some_and(|n| !n.is_empty());
    if !scheduled {
        let name = cx.info.path_name();
        return Err(ApiError::bad_request(format!("pod {name} does not have a host assigned")));
    }
    Err(unavailable("this space simulates its nodes: nothing runs in its pods"))
}

fn unavailable(message: impl Into<String>) -> ApiError {
    ApiError::new(503, Reason::ServiceUnavailable, message)
}

fn stored_object(cx: &RequestContext<'_>) -> Result<Value, ApiError> {
    let entry = cx.stored(cx.info.path_name())?;
    Presenter::new(cx.descriptor).value(&entry)
}

/// Refuses a `container` parameter that names no container of the pod.
fn check_container(cx: &RequestContext<'_>, pod: &Value) -> Result<(), ApiError> {
    let Some(container) = cx.query.get("container").filter(|name| !name.is_empty()) else { return Ok(()) };
    let lists = ["containers", "initContainers", "ephemeralContainers"];
    let known = lists.iter().any(|list| {
        let containers = pod.pointer(&format!("/spec/{list}")).and_then(Value::as_array);
        containers.into_iter().flatten().any(|c| c.get("name").and_then(Value::as_str) == Some(container))
    });
    if known {
        return Ok(());
    }
    let name = meta_str(pod, "name");
    Err(ApiError::bad_request(format!("container {container} is not valid for pod {name}")))
}
