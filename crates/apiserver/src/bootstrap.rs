//! The objects that a space has from the start: system namespaces, RBAC roles and bindings.

use std::sync::Arc;

use bytes::Bytes;
use futures::future::join_all;
use http::header::CONTENT_TYPE;
use http::{Method, Request};
use http_body_util::Full;
use serde_json::{Value, json};

use crate::authz;
use crate::identity::{Caller, UserInfo};
use crate::server::ApiServer;

const NAMESPACES: [&str; 4] = ["kube-system", "kube-public", "default", "kube-node-lease"];

/// Creates the objects that are missing, through the API like any client. Requests run concurrently, so that they
/// share a few disk transactions; namespaces are created before the roles in them.
pub(crate) async fn run(server: &Arc<ApiServer>, namespaces: bool, rbac: bool) -> Result<(), String> {
    let roles = if rbac { authz::bootstrap::objects() } else { Vec::new() };
    let (inside, cluster): (Vec<Value>, Vec<Value>) =
        roles.into_iter().partition(|object| object.pointer("/metadata/namespace").is_some());
    ensure_all(server, cluster).await?;
    if namespaces {
        for name in NAMESPACES {
            let object = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name } });
            ensure(server, "/api/v1/namespaces".to_owned(), object, false).await?;
        }
        let services = "/api/v1/namespaces/default/services".to_owned();
        ensure(server, services, own_service(server.advertised_port()), false).await?;
    }
    ensure_all(server, inside).await
}

async fn ensure_all(server: &Arc<ApiServer>, objects: Vec<Value>) -> Result<(), String> {
    let all = objects.into_iter().map(|object| ensure(server, collection(&object), object, true));
    join_all(all).await.into_iter().collect()
}

/// The Service under which pods would reach this server.
fn own_service(port: u16) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": { "name": "kubernetes", "labels": { "component": "apiserver", "provider": "kubernetes" } },
        "spec": { "ports": [{ "name": "https", "port": 443, "protocol": "TCP", "targetPort": port }] },
    })
}

fn collection(object: &Value) -> String {
    let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    let plural = format!("{}s", text("/kind").to_lowercase());
    match text("/metadata/namespace") {
        "" => format!("/apis/{}/{plural}", text("/apiVersion")),
        namespace => format!("/apis/{}/namespaces/{namespace}/{plural}", text("/apiVersion")),
    }
}

/// Creates an object. If it exists and `reconcile` is set, adds what it lacks.
async fn ensure(
    server: &Arc<ApiServer>,
    collection: String,
    object: Value,
    reconcile: bool,
) -> Result<(), String> {
    let name = object.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
    let name = percent_encoding::utf8_percent_encode(name, percent_encoding::NON_ALPHANUMERIC);
    let path = format!("{collection}/{name}");
    let (status, existing) = send(server, Method::GET, &path, None).await?;
    match status {
        404 => match send(server, Method::POST, &collection, Some(&object)).await? {
            (201 | 409, _) => Ok(()),
            (status, answer) => Err(format!("{path}: {status}: {answer}")),
        },
        200 if reconcile => match authz::bootstrap::reconcile(&existing, &object) {
            None => Ok(()),
            Some(wanted) => match send(server, Method::PUT, &path, Some(&wanted)).await? {
                // A role reference cannot change, so the binding is deleted and created.
                (422, _) => recreate(server, &collection, &path, &object).await,
                (200 | 409, _) => Ok(()),
                (status, answer) => Err(format!("{path}: {status}: {answer}")),
            },
        },
        200 => Ok(()),
        status => Err(format!("{path}: {status}: {existing}")),
    }
}

async fn recreate(
    server: &Arc<ApiServer>,
    collection: &str,
    path: &str,
    object: &Value,
) -> Result<(), String> {
    send(server, Method::DELETE, path, None).await?;
    match send(server, Method::POST, collection, Some(object)).await? {
        (201 | 409, _) => Ok(()),
        (status, answer) => Err(format!("{path}: {status}: {answer}")),
    }
}

async fn send(
    server: &Arc<ApiServer>,
    method: Method,
    path: &str,
    body: Option<&Value>,
) -> Result<(u16, Value), String> {
    let user = UserInfo::internal("system:apiserver", &["system:masters"]);
    let body = body.map(Value::to_string).unwrap_or_default();
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header(CONTENT_TYPE, "application/json")
        .header("user-agent", "kubestellar/bootstrap")
        .extension(Caller::Internal(Arc::new(user)))
        .body(Full::new(Bytes::from(body)))
        .map_err(|error| error.to_string())?;
    let response = server.call(request).await;
    let status = response.status().as_u16();
    let text = response.into_body().into_bytes().unwrap_or_default();
    Ok((status, serde_json::from_slice(&text).unwrap_or_default()))
}
