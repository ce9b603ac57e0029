//! A server on an in-memory store, called without a socket.
#![allow(dead_code)]

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, Request};
use http_body_util::{BodyExt as _, Full};
use kubestellar_apiserver::authn::{Authenticator, AuthnConfig};
use kubestellar_apiserver::authz::Authorizer;
use kubestellar_apiserver::identity::{Caller, UserInfo};
use kubestellar_apiserver::response::Body;
use kubestellar_apiserver::server::{ApiServer, ApiServerConfig};
use serde_json::{Value, json};
use store::Engine;

/// An answer, read to its end.
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) text: String,
    pub(crate) body: Value,
}

impl Answer {
    pub(crate) fn message(&self) -> &str {
        self.body["message"].as_str().unwrap_or_default()
    }

    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).and_then(|v| v.to_str().ok()).unwrap_or_default()
    }

    pub(crate) fn warnings(&self) -> Vec<&str> {
        self.headers.get_all("warning").iter().filter_map(|v| v.to_str().ok()).collect()
    }

    /// `metadata.resourceVersion`.
    pub(crate) fn rv(&self) -> u64 {
        self.body["metadata"]["resourceVersion"].as_str().and_then(|v| v.parse().ok()).unwrap_or_default()
    }

    pub(crate) fn names(&self) -> Vec<&str> {
        let items = self.body["items"].as_array().into_iter().flatten();
        items.filter_map(|item| item["metadata"]["name"].as_str()).collect()
    }

    #[track_caller]
    pub(crate) fn expect(self, status: u16) -> Self {
        assert_eq!(self.status, status, "{}", self.text);
        self
    }
}

pub(crate) struct TestServer {
    pub(crate) server: Arc<ApiServer>,
    pub(crate) engine: Engine,
}

impl TestServer {
    /// Starts a server with namespace `t` besides the system namespaces.
    pub(crate) async fn start() -> Self {
        Self::start_with(|_| ()).await
    }

    /// Starts a server with RBAC. `tester` is in `system:masters` and may impersonate.
    pub(crate) async fn start_with_roles() -> Self {
        Self::start_with(|config| {
            config.authorizer = Authorizer::rbac(config.store.clone());
            config.rbac_bootstrap = true;
        })
        .await
    }

    pub(crate) async fn start_with(configure: impl FnOnce(&mut ApiServerConfig)) -> Self {
        let engine = Engine::in_memory();
        let store = engine.space("test").expect("a new space");
        let authenticator = Arc::new(Authenticator::new(AuthnConfig::default()).expect("no credentials"));
        let mut config = ApiServerConfig::open(store, authenticator);
        configure(&mut config);
        let server = ApiServer::start(config).await.expect("a server");
        let test = Self { server, engine };
        test.post("/api/v1/namespaces", json!({"metadata": {"name": "t"}})).await.expect(201);
        test
    }

    pub(crate) async fn send(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Bytes>,
    ) -> Answer {
        let response = self.raw(method, path, headers, body).await;
        let (parts, body) = response.into_parts();
        let bytes = body.into_bytes().expect("a finite answer");
        let text = String::from_utf8_lossy(&bytes).into_owned();
        let body = serde_json::from_str(&text).unwrap_or_default();
        Answer { status: parts.status.as_u16(), headers: parts.headers, text, body }
    }

    pub(crate) async fn raw(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Bytes>,
    ) -> http::Response<Body> {
        let user = UserInfo::internal("tester", &["system:masters"]);
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header("user-agent", "tester/1.0")
            .extension(Caller::Internal(Arc::new(user)));
        for (name, value) in headers {
            if *name == "user-agent" {
                request.headers_mut().expect("a good request").remove("user-agent");
            }
            request = request.header(*name, *value);
        }
        self.server.call(request.body(Full::new(body.into())).expect("a request")).await
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.send("GET", path, &[], "").await
    }

    pub(crate) async fn post(&self, path: &str, body: Value) -> Answer {
        self.send("POST", path, &[("content-type", "application/json")], body.to_string()).await
    }

    pub(crate) async fn put(&self, path: &str, body: Value) -> Answer {
        self.send("PUT", path, &[("content-type", "application/json")], body.to_string()).await
    }

    pub(crate) async fn patch(&self, kind: &str, path: &str, body: Value) -> Answer {
        let kind = match kind {
            "apply" => "application/apply-patch+yaml".to_owned(),
            "strategic" => "application/strategic-merge-patch+json".to_owned(),
            kind => format!("application/{kind}-patch+json"),
        };
        self.send("PATCH", path, &[("content-type", &kind)], body.to_string()).await
    }

    pub(crate) async fn delete(&self, path: &str) -> Answer {
        self.send("DELETE", path, &[], "").await
    }

    pub(crate) async fn watch(&self, path: &str) -> WatchStream {
        self.watch_as(path, &[]).await
    }

    pub(crate) async fn watch_as(&self, path: &str, headers: &[(&str, &str)]) -> WatchStream {
        let response = self.raw("GET", path, headers, "").await;
        assert_eq!(response.status(), 200);
        WatchStream { body: response.into_body(), buffer: Vec::new() }
    }
}

/// The frames of a watch.
pub(crate) struct WatchStream {
    body: Body,
    buffer: Vec<u8>,
}

impl WatchStream {
    /// The next event, `None` at the end of the stream.
    pub(crate) async fn next(&mut self) -> Option<Value> {
        loop {
            if let Some(end) = self.buffer.iter().position(|b| *b == b'\n') {
                let line: Vec<u8> = self.buffer.drain(..=end).collect();
                return Some(serde_json::from_slice(&line).expect("one JSON document a line"));
            }
            let frame = self.body.frame().await?.expect("no error");
            self.buffer.extend_from_slice(frame.data_ref().expect("data"));
        }
    }

    /// `TYPE name` of the next event.
    pub(crate) async fn brief(&mut self) -> String {
        match self.next().await {
            Some(event) => format!(
                "{} {}",
                event["type"].as_str().unwrap_or_default(),
                event["object"]["metadata"]["name"].as_str().unwrap_or_default()
            ),
            None => "end".to_owned(),
        }
    }
}

pub(crate) const CM: &str = "/api/v1/namespaces/t/configmaps";

pub(crate) fn cm(name: &str, data: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data})
}
