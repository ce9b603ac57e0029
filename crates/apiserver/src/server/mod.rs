//! A space's API server: construction, the request pipeline, shutdown.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use bytes::{Bytes, BytesMut};
use futures::future::BoxFuture;
use http::header::{CACHE_CONTROL, HeaderValue, USER_AGENT};
use http::request::Parts;
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use parking_lot::Mutex;
use store::SpaceStore;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::admission::Admission;
use crate::authn::{self, Authenticator};
use crate::authz::Authorizer;
use crate::catalog::Catalog;
use crate::codec::negotiate::{self, Endpoint};
use crate::crd::{self, Follower, Following};
use crate::descriptor::Descriptor;
use crate::encode;
use crate::error::{ApiError, Details, Reason};
use crate::handlers::{self, Cx, LiveLookup, no_such_resource, output};
use crate::health::{self, Check, Faults};
use crate::identity::{Ahead, Caller, UserInfo};
use crate::metrics::{self, Labels, Metrics};
use crate::path::RequestInfo;
use crate::request::Query;
use crate::response::{self, Body};
use crate::tokens::Issuer;
use crate::work::{self, HeavyWork};
use crate::{bootstrap, discovery, openapi, version};

/// What an [`ApiServer`] is made of.
pub struct ApiServerConfig {
    pub store: SpaceStore,
    pub authenticator: Arc<Authenticator>,
    pub authorizer: Authorizer,
    /// Signs TokenRequests; without it the authenticator's issuer does.
    pub tokens: Option<Arc<Issuer>>,
    /// `host:port` as clients see this server (discovery's `serverAddress`).
    pub advertise: String,
    /// Write the RBAC bootstrap roles and bindings at start.
    pub rbac_bootstrap: bool,
    /// Create `default`, `kube-system`, `kube-public` and `kube-node-lease` at start.
    pub system_namespaces: bool,
    pub limits: Limits,
    /// What is demanded of writes beyond schemas and kinds.
    pub admission: Option<Arc<dyn Admission>>,
}

impl ApiServerConfig {
    /// A server without authorization, for tests and trusted callers.
    pub fn open(store: SpaceStore, authenticator: Arc<Authenticator>) -> Self {
        Self {
            store,
            authenticator,
            authorizer: Authorizer::always_allow(),
            tokens: None,
            advertise: "127.0.0.1:6443".into(),
            rbac_bootstrap: false,
            system_namespaces: true,
            limits: Limits::default(),
            admission: None,
        }
    }
}

fn writes(info: &RequestInfo) -> bool {
    !matches!(info.verb.as_str(), "get" | "list" | "watch")
}

/// Bounds on what clients can make the server hold (AS-070).
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Requests under way, watches not counted after their start.
    pub in_flight: usize,
    /// The same for `system:masters`, which must get through when all others are held up.
    pub in_flight_masters: usize,
    pub body_bytes: usize,
    pub request_timeout: Duration,
    /// Requests of one user that wait for a slot for heavy work (large bodies and objects, definitions, long lists); further
    /// ones are answered 429.
    pub heavy_waiting: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            in_flight: 600,
            in_flight_masters: 4800,
            body_bytes: 3 << 20,
            request_timeout: Duration::from_secs(60),
            heavy_waiting: 64,
        }
    }
}

/// Why a server did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    #[error("reading the space: {0}")]
    Store(#[from] store::StoreError),
    #[error("preparing the space: {0}")]
    Bootstrap(String),
}

/// What handlers share.
pub(crate) struct Shared {
    pub config: ApiServerConfig,
    pub stop: CancellationToken,
    /// Held while a number of a limited range (cluster IP, node port) is chosen and stored.
    pub allocation: tokio::sync::Mutex<()>,
    pub metrics: Metrics,
    pub work: HeavyWork,
}

/// A request that has been read and authorised.
#[derive(Clone, Copy)]
struct Taken<'r> {
    parts: &'r Parts,
    query: &'r Query,
    info: &'r RequestInfo,
    user: &'r UserInfo,
    catalog: &'r Arc<Catalog>,
}

impl Shared {
    pub(crate) fn issuer(&self) -> Option<&Arc<Issuer>> {
        self.config.tokens.as_ref().or_else(|| self.config.authenticator.issuer())
    }
}

/// The API of one space. [`ApiServer::stop`] ends it; it owns all its tasks.
pub struct ApiServer {
    shared: Arc<Shared>,
    catalog: Arc<ArcSwap<Catalog>>,
    openapi: openapi::Cache,
    in_flight: tokio::sync::Semaphore,
    in_flight_masters: tokio::sync::Semaphore,
    prepared: AtomicBool,
    draining: AtomicBool,
    following: Following,
    faults: Faults,
    follower: Mutex<Option<JoinHandle<()>>>,
    /// Whose users these are, to the work that all servers of the process share.
    number: u64,
}

impl ApiServer {
    /// Loads the catalog, writes what must exist, and starts following CustomResourceDefinitions.
    pub fn start(config: ApiServerConfig) -> BoxFuture<'static, Result<Arc<Self>, StartError>> {
        Box::pin(Self::boot(config))
    }

    async fn boot(config: ApiServerConfig) -> Result<Arc<Self>, StartError> {
        let catalog = Arc::new(ArcSwap::from(crate::builtin::catalog()));
        let stop = CancellationToken::new();
        let follower = Follower::new(config.store.clone(), catalog.clone(), config.admission.clone());
        follower.sync().await;
        let following = Following::up();
        let supervised = crd::supervise(
            follower,
            config.store.clone(),
            catalog.clone(),
            config.admission.clone(),
            following.clone(),
            stop.clone(),
        );
        let (rbac, namespaces) = (config.rbac_bootstrap, config.system_namespaces);
        let server = Arc::new(Self {
            in_flight: tokio::sync::Semaphore::new(config.limits.in_flight),
            in_flight_masters: tokio::sync::Semaphore::new(config.limits.in_flight_masters),
            shared: Arc::new(Shared {
                config,
                stop,
                allocation: tokio::sync::Mutex::new(()),
                metrics: Metrics::default(),
                work: HeavyWork::of_process(),
            }),
            catalog,
            openapi: openapi::Cache::default(),
            prepared: AtomicBool::new(false),
            draining: AtomicBool::new(false),
            following,
            faults: Faults::default(),
            follower: Mutex::new(Some(tokio::spawn(supervised))),
            number: work::server_number(),
        });
        let prepared = bootstrap::run(&server, namespaces, rbac).await;
        if let Err(error) = prepared {
            server.stop().await;
            return Err(StartError::Bootstrap(error));
        }
        server.prepared.store(true, Ordering::Release);
        Ok(server)
    }

    /// Answers one request. Never fails: errors are responses. The transport puts
    /// [`crate::identity::Caller`] into the request's extensions.
    pub async fn call<B>(self: &Arc<Self>, request: Request<B>) -> Response<Body>
    where
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: std::fmt::Display,
    {
        let (parts, body) = request.into_parts();
        let query = Query::parse(parts.uri.query().unwrap_or_default());
        let mut warnings = Vec::new();
        let info = RequestInfo::parse(&parts.method, parts.uri.path(), &query);
        let begun = Instant::now();
        let under_way = self.shared.metrics.begin(&info);
        let answer = self.serve(&parts, body, &query, &info, &mut warnings).await;
        drop(under_way);
        let mut response = answer.unwrap_or_else(|error| {
            if negotiate::protobuf_only(&parts.headers) {
                return response::error_protobuf(&error);
            }
            // Errors of routing are always indented.
            let routing = matches!(error.code, 404..=406 | 415)
                && error.details.as_deref().is_some_and(|d| *d == Details::default());
            response::error(&error, routing || negotiate::pretty(&parts.headers, &query))
        });
        let catalog = self.catalog.load();
        let labels = Labels::of(&info, &catalog);
        self.shared.metrics.answered(labels, &catalog, response.status().as_u16(), begun.elapsed());
        drop(catalog);
        response::add_warnings(&mut response, &warnings);
        let headers = response.headers_mut();
        headers.insert("audit-id", audit_id(&parts));
        headers.entry(CACHE_CONTROL).or_insert(HeaderValue::from_static("no-cache, private"));
        response
    }

    /// This server as a `tower::Service`, for listeners and in-process clients.
    pub fn service(self: &Arc<Self>) -> Service {
        Service(self.clone())
    }

    pub fn catalog(&self) -> Arc<Catalog> {
        self.catalog.load_full()
    }

    pub fn store(&self) -> &SpaceStore {
        &self.shared.config.store
    }

    /// Whether `/readyz` answers 200.
    pub fn ready(&self) -> bool {
        self.checks().iter().all(|check| check.healthy)
    }

    /// One check for all that `/readyz` looks at, with the reason that may be shown to everybody.
    pub fn readiness(&self, name: impl Into<String>) -> Check {
        let failed: Vec<Check> = self.checks().into_iter().filter(|check| !check.healthy).collect();
        let reason =
            failed.iter().find_map(|check| Some(format!("{}: {}", check.name, check.reason.as_ref()?)));
        Check { name: name.into(), healthy: failed.is_empty(), reason }
    }

    /// The port of the advertised address; 443 where it names none.
    pub(crate) fn advertised_port(&self) -> u16 {
        let port = self.shared.config.advertise.rsplit_once(':').map(|(_, port)| port);
        port.and_then(|port| port.parse().ok()).filter(|port| *port > 0).unwrap_or(443)
    }

    /// Makes `/readyz` fail while requests are still served: the first step of a graceful stop.
    pub fn drain(&self) {
        self.draining.store(true, Ordering::Release);
    }

    /// Ends watches and tasks, and waits for them.
    pub fn stop(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.end())
    }

    async fn end(&self) {
        self.drain();
        self.shared.stop.cancel();
        let follower = self.follower.lock().take();
        if let Some(follower) = follower
            && let Err(error) = follower.await
        {
            tracing::error!(%error, "following CustomResourceDefinitions ended badly");
        }
    }

    async fn serve<B>(
        self: &Arc<Self>,
        parts: &Parts,
        body: B,
        query: &Query,
        info: &RequestInfo,
        warnings: &mut Vec<String>,
    ) -> Result<Response<Body>, ApiError>
    where
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: std::fmt::Display,
    {
        let config = &self.shared.config;
        let lookup = LiveLookup(&config.store);
        let mut user = config.authenticator.authenticate(parts, &lookup)?;
        let attributes = info.attributes();
        if let Some(other) = authn::impersonate(&parts.headers, &user, &attributes, &config.authorizer)? {
            user = other;
        }
        let _permit = self.admit(&user, info)?;
        config.authorizer.authorize(&user, &attributes)?;
        let limit = timeout(query, config.limits.request_timeout)?;
        let answer = async {
            if info.is_resource {
                self.resource(parts, body, query, info, &user, warnings).await
            } else {
                self.other(parts, query, info, &user).await
            }
        };
        tokio::time::timeout(limit, answer).await.unwrap_or_else(|_| {
            let message = "Timeout: request did not complete within the allotted timeout";
            Err(ApiError::new(504, Reason::Timeout, message).with_details(Details::default()))
        })
    }

    /// A place among the requests under way. The mighty have places of their own; health checks need none.
    fn admit(
        &self,
        user: &UserInfo,
        info: &RequestInfo,
    ) -> Result<Option<tokio::sync::SemaphorePermit<'_>>, ApiError> {
        let health = ["/healthz", "/livez", "/readyz"].iter().any(|p| info.path.starts_with(p));
        if health {
            return Ok(None);
        }
        let masters = user.in_group("system:masters");
        let places = if masters { &self.in_flight_masters } else { &self.in_flight };
        places.try_acquire().map(Some).map_err(|_| ApiError::too_many_requests())
    }

    async fn resource<B>(
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
            return Err(if builtin { no_such_resource() } else { ApiError::page_not_found() });
        };
        let body = read_body(parts, body, self.shared.config.limits.body_bytes).await?;
        let client = self.client(parts, user);
        let (answer, told) = if self.is_heavy(parts, query, info, descriptor, &body) {
            let (server, parts, query, info, user) =
                (self.clone(), parts.clone(), query.clone(), info.clone(), user.clone());
            let (descriptor, catalog, here) = (descriptor.clone(), catalog.clone(), client.clone());
            // When the client has gone, the work ends before its next step.
            let gone = CancellationToken::new();
            let _waiting = gone.clone().drop_guard();
            let runtime = tokio::runtime::Handle::current();
            let work = move || {
                let request =
                    Taken { parts: &parts, query: &query, info: &info, user: &user, catalog: &catalog };
                let handled = server.handle(&request, &descriptor, body, &here, true);
                runtime.block_on(gone.run_until_cancelled(Box::pin(handled)))
            };
            let most = if client.internal { usize::MAX } else { self.shared.config.limits.heavy_waiting };
            let done = self.shared.work.run(&client, most, work).await?;
            done.ok_or_else(|| ApiError::internal("the request was given up"))?
        } else {
            let request = Taken { parts, query, info, user, catalog: &catalog };
            self.handle(&request, descriptor, body, &client, false).await
        };
        *warnings = told;
        answer
    }

    /// Who this request's heavy work is done for.
    fn client(&self, parts: &Parts, user: &UserInfo) -> work::Client {
        let internal = matches!(parts.extensions.get(), Some(Caller::Internal(own)) if own.name == user.name);
        work::Client { server: self.number, user: user.name.as_str().into(), internal }
    }

    /// Whether answering may keep a processor busy for longer than others should wait: by the sizes of what is sent and of
    /// what is stored.
    fn is_heavy(
        &self,
        parts: &Parts,
        query: &Query,
        info: &RequestInfo,
        descriptor: &Descriptor,
        body: &[u8],
    ) -> bool {
        if body.len() > work::LARGE {
            return true;
        }
        let snapshot = self.shared.config.store.snapshot();
        match info.verb.as_str() {
            // All of their patterns and rules are compiled.
            "create" | "update" | "patch" if crd::is_definition(descriptor) => true,
            "update" | "patch" => {
                let namespace = info.namespace_of_objects(descriptor.namespaced);
                let key = handlers::store_access::key(descriptor, namespace, &info.name);
                snapshot.get(&key).is_some_and(|entry| entry.value.len() > work::LARGE)
            }
            "list" => {
                let namespace = Some(info.namespace.as_str()).filter(|namespace| !namespace.is_empty());
                let accept = parts.headers.get(http::header::ACCEPT).and_then(|v| v.to_str().ok());
                // Custom resources also where a newer definition fills something in.
                let parsed = descriptor.is_custom()
                    || query.get("fieldSelector").is_some_and(|selector| !selector.is_empty())
                    || accept
                        .is_some_and(|a| ["as=", "yaml", "protobuf"].iter().any(|form| a.contains(form)));
                parsed && snapshot.view(&descriptor.collection).len(namespace) > work::MANY
            }
            _ => false,
        }
    }

    /// Runs the handler; its answer and warnings. `apart`: on a thread that has nothing else to do.
    async fn handle(
        self: &Arc<Self>,
        request: &Taken<'_>,
        descriptor: &Arc<Descriptor>,
        body: Bytes,
        client: &work::Client,
        apart: bool,
    ) -> (Result<Response<Body>, ApiError>, Vec<String>) {
        let Taken { parts, query, info, user, catalog } = *request;
        let store = &self.shared.config.store;
        let store = match parts.extensions.get::<Ahead>() {
            Some(Ahead) => store.ahead(),
            None if writes(info) => store.deciding(),
            None => store.clone(),
        };
        let mut cx = Cx {
            shared: &self.shared,
            store: &store,
            catalog,
            descriptor,
            info,
            query,
            headers: &parts.headers,
            user,
            client,
            apart,
            user_agent: parts.headers.get(USER_AGENT).and_then(|v| v.to_str().ok()).unwrap_or_default(),
            now: handlers::rfc3339(jiff::Timestamp::now()),
            warnings: Vec::new(),
        };
        let answer = handlers::handle(&mut cx, &parts.method, body).await;
        let warnings = cx.warnings;
        // Also a refusal tells of what it was decided on.
        match store.settle().await {
            Ok(()) => (answer, warnings),
            Err(error) => (Err(handlers::store_error(&error)), warnings),
        }
    }

    /// Paths outside the resources: discovery, health, OpenAPI, version.
    async fn other(
        self: &Arc<Self>,
        parts: &Parts,
        query: &Query,
        info: &RequestInfo,
        user: &UserInfo,
    ) -> Result<Response<Body>, ApiError> {
        let (path, headers) = (info.path.as_str(), &parts.headers);
        let raw_query = parts.uri.query().unwrap_or_default();
        let read = matches!(parts.method, Method::GET | Method::HEAD);
        let catalog = self.catalog.load_full();
        if read {
            if let Some(answer) = health::answer(path, raw_query, &self.checks_of(path)) {
                return Ok(answer.map(Body::from));
            }
            if path.starts_with("/openapi/")
                && let Some(answer) = self.openapi_document(&catalog, parts, path, user).await?
            {
                return Ok(answer.map(Body::from));
            }
        }
        if parts.method == Method::GET {
            if path == "/metrics" {
                let text = self.shared.metrics.text(self.store(), &catalog);
                return Ok(response::new(StatusCode::OK, metrics::CONTENT_TYPE, text));
            }
            let advertise = &self.shared.config.advertise;
            if let Some(answer) = discovery::answer(&catalog, path, headers, advertise) {
                return answer.map(|a| a.map(Body::from));
            }
        }
        let known = self.document(path)?;
        match known {
            Some((_, value)) if parts.method == Method::GET => {
                if path.ends_with("/jwks") {
                    return key_set(headers, &value);
                }
                let media = negotiate::negotiate(headers, query, Endpoint::Plain, false)?;
                output::value(StatusCode::OK, media, &value)
            }
            None if !is_known(path) => Err(ApiError::page_not_found()),
            _ => Err(handlers::method_not_allowed()),
        }
    }

    /// Off the async threads: making a document takes up to some hundred milliseconds.
    async fn openapi_document(
        self: &Arc<Self>,
        catalog: &Arc<Catalog>,
        parts: &Parts,
        path: &str,
        user: &UserInfo,
    ) -> Result<Option<Response<Bytes>>, ApiError> {
        let (server, catalog, path) = (self.clone(), catalog.clone(), path.to_owned());
        let (query, headers) = (parts.uri.query().unwrap_or_default().to_owned(), parts.headers.clone());
        let answer = move || server.openapi.answer(&catalog, &path, &query, &headers).transpose();
        self.shared.work.run(&self.client(parts, user), usize::MAX, answer).await?
    }

    fn document(&self, path: &str) -> Result<Option<(&'static str, serde_json::Value)>, ApiError> {
        let issuer = self.shared.issuer();
        Ok(match (path, issuer) {
            ("/version" | "/version/", _) => Some(("version", version::info())),
            ("/.well-known/openid-configuration", Some(issuer)) => {
                Some(("openid", issuer.openid_configuration()))
            }
            ("/openid/v1/jwks", Some(issuer)) => Some(("jwks", issuer.jwks().map_err(ApiError::internal)?)),
            _ => None,
        })
    }

    /// All checks, as they count for `/readyz` and `/healthz`.
    fn checks(&self) -> Vec<Check> {
        let draining = self.draining.load(Ordering::Acquire) || self.shared.stop.is_cancelled();
        let following = self.following.is_up();
        let checks = vec![
            Check::new("ping", true),
            Check::new("log", true),
            Check::of("etcd", self.shared.config.store.check().err().map(|error| one_line(&error))),
            Check::new("informer-sync", following),
            Check::new("poststarthook/start-apiextensions-controllers", following),
            Check::new("poststarthook/rbac/bootstrap-roles", self.prepared.load(Ordering::Acquire)),
            Check::new("shutdown", !draining),
        ];
        self.faults.observe(&checks);
        checks
    }

    /// The checks of a health endpoint (spec 1.2): a server that ends is alive until it has ended, and one with a
    /// fault for a while.
    fn checks_of(&self, path: &str) -> Vec<Check> {
        let mut checks = self.checks();
        if path.starts_with("/livez") {
            checks.retain(|check| !matches!(check.name.as_str(), "informer-sync" | "shutdown"));
            self.faults.forgive(&mut checks);
        }
        checks
    }
}

fn one_line(error: &dyn std::error::Error) -> String {
    error.to_string().lines().collect::<Vec<_>>().join("; ")
}

/// The key set has a media type of its own, and no other.
fn key_set(headers: &HeaderMap, keys: &serde_json::Value) -> Result<Response<Body>, ApiError> {
    const KIND: &str = "application/jwk-set+json";
    let accept = headers.get(http::header::ACCEPT).and_then(|v| v.to_str().ok()).unwrap_or("*/*");
    if !accept.split(',').any(|clause| clause.contains(KIND) || clause.trim().starts_with("*/*")) {
        let message = format!("406: Not Acceptable\n\nAvailable representations: {KIND}");
        return Err(ApiError::new(406, Reason::NotAcceptable, message).with_details(Details::default()));
    }
    Ok(response::new(StatusCode::OK, KIND, encode::value_bytes(keys)))
}

fn is_known(path: &str) -> bool {
    let path = path.trim_end_matches('/');
    matches!(
        path,
        "" | "/api" | "/apis" | "/version" | "/api/v1" | "/metrics" | "/openapi/v2" | "/openapi/v3"
    )
}

/// The client's `timeout` parameter, a Go duration, at most the server's own.
fn timeout(query: &Query, most: Duration) -> Result<Duration, ApiError> {
    let Some(text) = query.get("timeout").filter(|t| !t.is_empty()) else {
        return Ok(most);
    };
    match machinery::duration::parse(text) {
        Some(duration) if duration.is_zero() => Ok(most),
        Some(duration) => Ok(duration.min(most)),
        None => Err(ApiError::bad_request(format!(
            "invalid timeout specified in the request URL - time: invalid duration {text:?}"
        ))),
    }
}

/// The whole body, up to the limit (AS-038).
async fn read_body<B>(parts: &Parts, body: B, limit: usize) -> Result<Bytes, ApiError>
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: std::fmt::Display,
{
    if matches!(parts.method, Method::GET | Method::HEAD) {
        return Ok(Bytes::new());
    }
    let too_large = || {
        let message = format!("Request entity too large: limit is {limit}");
        ApiError::new(413, Reason::RequestEntityTooLarge, message)
    };
    if body.size_hint().lower() > limit as u64 {
        return Err(too_large());
    }
    let mut body = std::pin::pin!(body);
    let mut first: Option<Bytes> = None;
    let mut all = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| ApiError::bad_request(format!("reading the body: {error}")))?;
        let Ok(data) = frame.into_data() else { continue };
        let length = first.as_ref().map_or(all.len(), Bytes::len) + data.len();
        if length > limit {
            return Err(too_large());
        }
        // Most bodies come in one piece, which needs no copy.
        match first.take() {
            None if all.is_empty() => first = Some(data),
            None => all.extend_from_slice(&data),
            Some(before) => {
                all.extend_from_slice(&before);
                all.extend_from_slice(&data);
            }
        }
    }
    Ok(first.unwrap_or_else(|| all.freeze()))
}

/// The client's audit id where it sent one that may be echoed, else a new one.
fn audit_id(parts: &Parts) -> HeaderValue {
    let given = parts
        .headers
        .get("audit-id")
        .filter(|id| !id.is_empty() && id.len() <= 64 && id.as_bytes().iter().all(u8::is_ascii_graphic));
    given.cloned().unwrap_or_else(|| {
        let id = uuid::Uuid::new_v4().to_string();
        HeaderValue::from_str(&id).unwrap_or_else(|_| HeaderValue::from_static(""))
    })
}

/// See [`ApiServer::service`].
#[derive(Clone)]
pub struct Service(Arc<ApiServer>);

impl Service {
    /// [`ApiServer::readiness`].
    pub fn readiness(&self, name: impl Into<String>) -> Check {
        self.0.readiness(name)
    }
}

impl<B> tower::Service<Request<B>> for Service
where
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: std::fmt::Display,
{
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let server = self.0.clone();
        Box::pin(async move { Ok(server.call(request).await) })
    }
}
