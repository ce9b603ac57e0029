//! Subresources that connect to a running pod. A space runs no containers, so the answers are those for a pod without a node.

use http::Response;
use serde_json::Value;

use store::Collection;

use super::object::meta_str;
use super::{Presenter, RequestContext};
use crate::error::{ApiError, Reason};
use crate::request::Query;
use crate::response::Body;

/// Annotation of what controllers of a simulated cluster made: no container runs.
const SIMULATED: &str = "kubestellar.io/simulated";

/// `services/{name}/proxy`, `nodes/{name}/proxy`.
pub(crate) fn proxy(cx: &RequestContext<'_>) -> Result<Response<Body>, ApiError> {
    let object = stored_object(cx)?;
    let name = meta_str(&object, "name");
    if is_simulated(&object) || has_simulated_endpoints(cx, name) {
        let what = &cx.descriptor.singular;
        return Err(unavailable(format!(
            "this cluster is simulated: nothing runs behind {what} {name}, so there is nothing to connect to"
        )));
    }
    Err(unavailable(format!("no endpoints available for {name:?}")))
}

/// Whether a simulated cluster made the object.
pub(super) fn is_simulated(object: &Value) -> bool {
    let annotations = object.pointer("/metadata/annotations");
    annotations.and_then(|all| all.get(SIMULATED)).and_then(Value::as_str) == Some("true")
}

/// Whether a Service has Pods of a simulated cluster behind it.
fn has_simulated_endpoints(cx: &RequestContext<'_>, service: &str) -> bool {
    let snapshot = cx.store.snapshot();
    let found = snapshot.view(&Collection::new("", "endpoints")).get(cx.namespace(), service).cloned();
    let endpoints: Value =
        found.and_then(|entry| serde_json::from_slice(&entry.value).ok()).unwrap_or_default();
    let subsets = endpoints.get("subsets").and_then(Value::as_array);
    is_simulated(&endpoints) && subsets.is_some_and(|subsets| !subsets.is_empty())
}

/// `exec`, `attach`, `portforward` and `proxy` of a pod.
pub(crate) fn pod_connection(cx: &RequestContext<'_>) -> Result<Response<Body>, ApiError> {
    let pod = stored_object(cx)?;
    if matches!(cx.info.subresource.as_str(), "exec" | "attach") {
        container_of(cx.query, &pod)?;
    }
    let scheduled = pod.pointer("/spec/nodeName").and_then(Value::as_str).is_some_and(|n| !n.is_empty());
    if !scheduled {
        let name = cx.info.path_name();
        return Err(ApiError::bad_request(format!("pod {name} does not have a host assigned")));
    }
    let name = meta_str(&pod, "name");
    Err(unavailable(format!(
        "this cluster is simulated: no container of pod {name} runs, so there is nothing to connect to"
    )))
}

fn unavailable(message: impl Into<String>) -> ApiError {
    ApiError::new(503, Reason::ServiceUnavailable, message)
}

/// The object of the request.
pub(super) fn stored_object(cx: &RequestContext<'_>) -> Result<Value, ApiError> {
    let entry = cx.stored(cx.info.path_name())?;
    Presenter::new(cx.descriptor).value(&entry)
}

/// The names of the containers of one list of a pod.
fn names<'a>(pod: &'a Value, list: &str) -> Vec<&'a str> {
    let containers = pod.pointer(&format!("/spec/{list}")).and_then(Value::as_array);
    containers.into_iter().flatten().filter_map(|container| container.get("name")?.as_str()).collect()
}

/// The container that a request names. It may leave out the name if the pod has only one.
///
/// # Errors
/// 400 if there is no such container, or the choice is open.
pub(super) fn container_of(query: &Query, pod: &Value) -> Result<String, ApiError> {
    let [main, init, ephemeral] =
        ["containers", "initContainers", "ephemeralContainers"].map(|list| names(pod, list));
    let name = meta_str(pod, "name");
    if let Some(wanted) = query.get("container").filter(|wanted| !wanted.is_empty()) {
        if main.iter().chain(&init).chain(&ephemeral).any(|known| *known == wanted) {
            return Ok(wanted.to_owned());
        }
        return Err(ApiError::bad_request(format!("container {wanted} is not valid for pod {name}")));
    }
    if let [only] = main[..] {
        return Ok(only.to_owned());
    }
    let mut why = format!("a container name must be specified for pod {name}");
    if !main.is_empty() {
        why.push_str(&format!(", choose one of: [{}]", main.join(" ")));
        for (what, names) in [("init", init), ("ephemeral", ephemeral)] {
            if !names.is_empty() {
                why.push_str(&format!(" or one of the {what} containers: [{}]", names.join(" ")));
            }
        }
    }
    Err(ApiError::bad_request(why))
}
