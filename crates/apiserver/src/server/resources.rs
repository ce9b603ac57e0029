//! Requests for resources: resolve the resource, read the body, run the handler.

use std::sync::Arc;

use bytes::Bytes;
use http::Response;
use http::header::USER_AGENT;
use http::request::Parts;
use tokio_util::sync::CancellationToken;

use super::ApiServer;
use super::body::read_body;
use crate::catalog::Catalog;
use crate::descriptor::Descriptor;
use crate::error::ApiError;
use crate::handlers::{self, RequestContext};
use crate::identity::{Caller, ReadAhead, UserInfo};
use crate::path::RequestInfo;
use crate::request::Query;
use crate::response::Body;
use crate::work;

/// The answer of a handler, and the texts for `Warning` headers.
type Handled = (Result<Response<Body>, ApiError>, Vec<String>);

/// A request that has been parsed and authorised.
#[derive(Clone, Copy)]
struct AuthorizedRequest<'r> {
    parts: &'r Parts,
    query: &'r Query,
    info: &'r RequestInfo,
    user: &'r UserInfo,
    catalog: &'r Arc<Catalog>,
}

impl ApiServer {
    /// Answers a request for a resource; `warnings` are the texts for `Warning` headers.
    pub(super) async fn resource<B>(
        self: &Arc<Self>,
        parts: &Parts,
        body: B,
        query: &Query,
        info: &RequestInfo,
        user: &UserInfo,
        warnings: &mut Vec<String>,
    ) -> Result<Response<Body>, ApiError>
    where
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: std::fmt::Display,
    {
        let catalog = self.catalog.load_full();
        let Some(descriptor) = catalog.resource(&info.group, &info.version, &info.resource) else {
            let builtin = catalog.in_version(&info.group, &info.version).any(|d| !d.is_custom());
            return Err(if builtin { ApiError::no_such_resource() } else { ApiError::page_not_found() });
        };
        let bounds = self.bounds_of(user);
        let body_bytes = self.state.config.limits.body_bytes;
        let body = read_body(parts, body, body_bytes, &bounds.uploads, &user.name).await?;
        let _place = bounds.take(user)?;
        let client = self.client(parts, user);
        let request = AuthorizedRequest { parts, query, info, user, catalog: &catalog };
        let (answer, of_handler) = if self.is_heavy(&request, descriptor, &body) {
            self.handle_as_heavy_work(&request, descriptor, body, client).await?
        } else {
            self.handle(&request, descriptor, body, &client, false).await
        };
        *warnings = of_handler;
        answer
    }

    /// Runs the handler on a thread that serves no other request, once the client has a slot for heavy work.
    ///
    /// If this future is dropped because the client has disconnected, the handler ends at its next cancellation point.
    async fn handle_as_heavy_work(
        self: &Arc<Self>,
        request: &AuthorizedRequest<'_>,
        descriptor: &Arc<Descriptor>,
        body: Bytes,
        client: work::Client,
    ) -> Result<Handled, ApiError> {
        let AuthorizedRequest { parts, query, info, user, catalog } = *request;
        let (server, descriptor, catalog) = (self.clone(), descriptor.clone(), catalog.clone());
        let (parts, query, info, user) = (parts.clone(), query.clone(), info.clone(), user.clone());
        let queued_for = client.clone();
        let disconnected = CancellationToken::new();
        let _cancel_on_drop = disconnected.clone().drop_guard();
        let runtime = tokio::runtime::Handle::current();
        let work = move || {
            let request = AuthorizedRequest {
                parts: &parts,
                query: &query,
                info: &info,
                user: &user,
                catalog: &catalog,
            };
            let handled = server.handle(&request, &descriptor, body, &client, true);
            runtime.block_on(disconnected.run_until_cancelled(Box::pin(handled)))
        };
        let most_waiting =
            if queued_for.internal { usize::MAX } else { self.state.config.limits.heavy_waiting };
        let done = self.state.work.run(&queued_for, most_waiting, work).await?;
        done.ok_or_else(|| ApiError::internal("the request was given up"))
    }

    /// For whom heavy work of a request is queued.
    pub(super) fn client(&self, parts: &Parts, user: &UserInfo) -> work::Client {
        let internal = matches!(parts.extensions.get(), Some(Caller::Internal(own)) if own.name == user.name);
        work::Client { server: self.number, user: user.name.as_str().into(), internal }
    }

    /// Whether the request may keep a processor busy for longer than other requests should wait: by the size of its body, of
    /// the stored object or of the list.
    fn is_heavy(&self, request: &AuthorizedRequest<'_>, descriptor: &Descriptor, body: &[u8]) -> bool {
        let AuthorizedRequest { parts, query, info, .. } = *request;
        if body.len() > work::HEAVY_BYTES {
            return true;
        }
        let snapshot = self.state.config.store.snapshot();
        match info.verb.as_str() {
            "create" | "update" | "patch" if descriptor.strategy.heavy_to_write() => true,
            "update" | "patch" => {
                let namespace = info.namespace_of_objects(descriptor.namespaced);
                let key = handlers::store_access::key(descriptor, namespace, &info.name);
                snapshot.get(&key).is_some_and(|entry| entry.value.len() > work::HEAVY_BYTES)
            }
            "list" => {
                let namespace = Some(info.namespace.as_str()).filter(|namespace| !namespace.is_empty());
                let accept = parts.headers.get(http::header::ACCEPT).and_then(|v| v.to_str().ok());
                // A custom resource may also need pruning and defaults of a newer definition.
                let parsed = descriptor.is_custom()
                    || query.get("fieldSelector").is_some_and(|selector| !selector.is_empty())
                    || accept
                        .is_some_and(|a| ["as=", "yaml", "protobuf"].iter().any(|form| a.contains(form)));
                parsed && snapshot.view(&descriptor.collection).len(namespace) > work::HEAVY_OBJECTS
            }
            _ => false,
        }
    }

    /// Runs the handler, and waits until all that the answer was decided on is durable.
    async fn handle(
        self: &Arc<Self>,
        request: &AuthorizedRequest<'_>,
        descriptor: &Arc<Descriptor>,
        body: Bytes,
        client: &work::Client,
        on_worker_thread: bool,
    ) -> Handled {
        let AuthorizedRequest { parts, query, info, user, catalog } = *request;
        let store = &self.state.config.store;
        let store = match parts.extensions.get::<ReadAhead>() {
            Some(ReadAhead) => store.ahead(),
            None if is_write(info) => store.deciding(),
            None => store.clone(),
        };
        let mut cx = RequestContext {
            state: &self.state,
            store: &store,
            catalog,
            descriptor,
            info,
            query,
            headers: &parts.headers,
            user,
            client,
            on_worker_thread,
            user_agent: parts.headers.get(USER_AGENT).and_then(|v| v.to_str().ok()).unwrap_or_default(),
            now: machinery::time::now(),
            warnings: Vec::new(),
        };
        let answer = handlers::handle(&mut cx, &parts.method, body).await;
        let warnings = cx.warnings;
        // An error response, too, shows the state that it was decided on.
        match store.settle().await {
            Ok(()) => (answer, warnings),
            Err(error) => (Err(handlers::store_error(&error)), warnings),
        }
    }
}

pub(super) fn is_write(info: &RequestInfo) -> bool {
    !matches!(info.verb.as_str(), "get" | "list" | "watch")
}
