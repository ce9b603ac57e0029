//! Subresources that would reach into a running pod. A space runs none: the answers are those for a pod without a node.

use http::{Response, StatusCode};
use serde_json::Value;

use super::object::meta_str;
use super::{Cx, Presenter};
use crate::error::{ApiError, Reason};
use crate::response::Body;

/// `log`, `exec`, `attach`, `portforward`, `proxy`.
pub(crate) fn answer(cx: &Cx<'_>) -> Result<Response<Body>, ApiError> {
    let name = cx.info.path_name();
    let entry = cx.stored(name)?;
    let object = Presenter::new(cx.descriptor).value(&entry)?;
    if cx.descriptor.plural != "pods" {
        let message = format!("no endpoints available for {:?}", meta_str(&object, "name"));
        return Err(ApiError::new(503, Reason::ServiceUnavailable, message));
    }
    if let Some(container) = cx.query.get("container").filter(|c| !c.is_empty()) {
        check_container(&object, container)?;
    }
    let placed = object.pointer("/spec/nodeName").and_then(Value::as_str).is_some_and(|n| !n.is_empty());
    match (cx.info.subresource.as_str(), placed) {
        // Nothing has run, so nothing was written.
        ("log", _) => {
            let mut response = Response::new(Body::empty());
            *response.status_mut() = StatusCode::NO_CONTENT;
            Ok(response)
        }
        (_, false) => Err(ApiError::bad_request(format!("pod {name} does not have a host assigned"))),
        (_, true) => {
            let message = "this space simulates its nodes: nothing runs in its pods";
            Err(ApiError::new(503, Reason::ServiceUnavailable, message))
        }
    }
}

fn check_container(pod: &Value, container: &str) -> Result<(), ApiError> {
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
