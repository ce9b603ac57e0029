//! Requests of a space's own controllers: plain JSON over the in-process client.

use http::header::{CONTENT_TYPE, USER_AGENT};
use http::{Method, Request};
use serde_json::Value;

/// Content type of merge patches.
pub(crate) const MERGE: &str = "application/merge-patch+json";
const JSON: &str = "application/json";

/// An in-process client. `agent` becomes the field manager.
#[derive(Clone)]
pub(crate) struct InProcessApi {
    client: kube::Client,
    agent: &'static str,
}

/// An answer that is not a success.
#[derive(Debug, thiserror::Error)]
#[error("{method} {path}: {source}")]
pub(crate) struct ErrorResponse {
    method: Method,
    path: String,
    source: kube::Error,
}

impl ErrorResponse {
    fn code(&self) -> u16 {
        match &self.source {
            kube::Error::Api(status) => status.code,
            _ => 0,
        }
    }

    pub(crate) fn is_not_found(&self) -> bool {
        self.code() == 404
    }

    pub(crate) fn is_forbidden(&self) -> bool {
        self.code() == 403
    }

    /// Whether the object is gone, was replaced or has changed. An event about that will come.
    pub(crate) fn is_overtaken(&self) -> bool {
        matches!(self.code(), 404 | 409)
    }
}

/// Ignores an error of an object that [was overtaken](ErrorResponse::is_overtaken).
pub(crate) fn unless_overtaken(result: Result<Value, ErrorResponse>) -> Result<(), ErrorResponse> {
    match result {
        Err(refused) if !refused.is_overtaken() => Err(refused),
        _ => Ok(()),
    }
}

impl InProcessApi {
    pub(crate) fn new(client: kube::Client, agent: &'static str) -> Self {
        Self { client, agent }
    }

    pub(crate) async fn post(&self, path: &str, object: &Value) -> Result<Value, ErrorResponse> {
        self.send(Method::POST, path, JSON, Some(object)).await
    }

    pub(crate) async fn put(&self, path: &str, object: &Value) -> Result<Value, ErrorResponse> {
        self.send(Method::PUT, path, JSON, Some(object)).await
    }

    pub(crate) async fn patch(&self, path: &str, kind: &str, patch: &Value) -> Result<Value, ErrorResponse> {
        self.send(Method::PATCH, path, kind, Some(patch)).await
    }

    pub(crate) async fn delete(&self, path: &str, options: &Value) -> Result<Value, ErrorResponse> {
        self.send(Method::DELETE, path, JSON, Some(options)).await
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        content: &str,
        body: Option<&Value>,
    ) -> Result<Value, ErrorResponse> {
        let refused = |source| ErrorResponse { method: method.clone(), path: path.to_owned(), source };
        let bytes = match body {
            Some(value) => {
                serde_json::to_vec(value).map_err(|error| refused(kube::Error::SerdeError(error)))?
            }
            None => Vec::new(),
        };
        let request = Request::builder()
            .method(method.clone())
            .uri(path)
            .header(USER_AGENT, self.agent)
            .header(CONTENT_TYPE, content)
            .body(bytes)
            .map_err(|error| refused(kube::Error::HttpError(error)))?;
        self.client.request(request).await.map_err(refused)
    }
}
