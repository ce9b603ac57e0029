//! A space's API server: the request pipeline up to the handlers, and shutdown.

mod body;
mod config;
mod documents;
mod downloads;
mod places;
mod readiness;
mod resources;
mod start;
mod uploads;

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use bytes::Bytes;
use futures::future::BoxFuture;
use http::header::{CACHE_CONTROL, HeaderValue};
use http::request::Parts;
use http::{Request, Response};
use parking_lot::Mutex;
use store::SpaceStore;
use tokio::task::JoinHandle;

pub use self::config::{ApiServerConfig, Limits};
pub use self::downloads::{ConnectionDownloads, DownloadLimits};
use self::downloads::{Downloads, Recipient};
use self::places::{Place, Places};
pub use self::start::StartError;
pub use self::uploads::UploadLimits;
use self::uploads::Uploads;

use crate::authn;
use crate::catalog::Catalog;
use crate::codec::negotiate;
use crate::crd::FollowerHealth;
use crate::error::{ApiError, Details, Reason};
use crate::handlers::LiveLookup;
use crate::health::{Check, FailingChecks};
use crate::identity::{KnownCaller, UserInfo};
use crate::metrics::RequestLabels;
use crate::openapi;
use crate::path::RequestInfo;
use crate::request::Query;
use crate::response::{self, Body};
use crate::state::ServerState;

/// The API of one space. It owns its tasks; [`ApiServer::stop`] ends them.
pub struct ApiServer {
    state: Arc<ServerState>,
    catalog: Arc<ArcSwap<Catalog>>,
    openapi: openapi::Cache,
    bounds: Bounds,
    /// The same for `system:masters`.
    bounds_of_masters: Bounds,
    prepared: AtomicBool,
    draining: AtomicBool,
    follower_health: FollowerHealth,
    failing_checks: FailingChecks,
    follower: Mutex<Option<JoinHandle<()>>>,
    /// Tells the users of this server from those of other servers in the process, which share
    /// [`HeavyWork`](crate::work::HeavyWork).
    number: u64,
}

/// What the requests of some users share.
struct Bounds {
    in_flight: Places,
    uploads: Uploads,
    downloads: Downloads,
}

/// What is known about the caller of a request when it is answered.
#[derive(Default)]
struct Answered {
    known: bool,
    user: Option<UserInfo>,
}

impl Bounds {
    /// # Errors
    /// 429 if the user's requests, or those of all users, have reached their limit.
    fn take(&self, user: &UserInfo) -> Result<Place<'_>, ApiError> {
        self.in_flight.take(&user.name).ok_or_else(ApiError::too_many_requests)
    }
}

impl ApiServer {
    /// Answers one request. Errors are responses. The transport puts [`crate::identity::Caller`] into the extensions
    /// of the request.
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
        let in_flight = self.state.metrics.begin(&info);
        let mut caller = Answered::default();
        let answer = self.serve(&parts, body, &query, &info, &mut warnings, &mut caller).await;
        drop(in_flight);
        let in_words = |error: ApiError| {
            if negotiate::protobuf_only(&parts.headers) {
                return response::error_protobuf(&error);
            }
            // Kubernetes always indents errors of routing.
            let routing = matches!(error.code, 404..=406 | 415)
                && error.details.as_deref().is_some_and(|d| *d == Details::default());
            response::error(&error, routing || negotiate::pretty(&parts.headers, &query))
        };
        let mut response = answer.unwrap_or_else(in_words);
        if let Some(user) = &caller.user {
            response = self.deliver(&parts, &info, user, response).unwrap_or_else(in_words);
        }
        let catalog = self.catalog.load();
        let labels = RequestLabels::of(&info, &catalog);
        self.state.metrics.answered(labels, &catalog, response.status().as_u16(), begun.elapsed());
        drop(catalog);
        response::add_warnings(&mut response, &warnings);
        if caller.known {
            response.extensions_mut().insert(KnownCaller);
        }
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
        &self.state.config.store
    }

    /// The port of the advertised address; 443 if the address has none.
    pub(crate) fn advertised_port(&self) -> u16 {
        let port = self.state.config.advertise.rsplit_once(':').map(|(_, port)| port);
        port.and_then(|port| port.parse().ok()).filter(|port| *port > 0).unwrap_or(443)
    }

    /// Makes `/readyz` fail while requests are still served. The first step of a graceful stop.
    pub fn drain(&self) {
        self.draining.store(true, Ordering::Release);
    }

    /// Ends watches and tasks, and waits for the tasks.
    pub fn stop(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.end())
    }

    async fn end(&self) {
        self.drain();
        self.state.stop.cancel();
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
        caller: &mut Answered,
    ) -> Result<Response<Body>, ApiError>
    where
        B: http_body::Body<Data = Bytes> + Send + 'static,
        B::Error: std::fmt::Display,
    {
        let config = &self.state.config;
        let lookup = LiveLookup(&config.store);
        let mut user = config.authenticator.authenticate(parts, &lookup)?;
        caller.known = user.in_group("system:authenticated");
        let attributes = info.attributes();
        if let Some(other) = authn::impersonate(&parts.headers, &user, &attributes, &config.authorizer)? {
            user = other;
        }
        let bounds = self.bounds_of(&user);
        let counts = !["/healthz", "/livez", "/readyz"].iter().any(|p| info.path.starts_with(p));
        let user = &*caller.user.insert(user);
        if counts && !bounds.in_flight.has(&user.name) {
            return Err(ApiError::too_many_requests());
        }
        if counts && parts.extensions.get::<Arc<ConnectionDownloads>>().is_some() {
            bounds.downloads.make_room(&user.name)?;
        }
        config.authorizer.authorize(user, &attributes)?;
        // Where everybody may do this, everybody is known.
        caller.known |= info.is_resource;
        let limit = timeout(query, config.limits.request_timeout)?;
        let answer = async {
            if info.is_resource {
                self.resource(parts, body, query, info, user, warnings).await
            } else {
                let _place = counts.then(|| bounds.take(user)).transpose()?;
                self.non_resource(parts, query, info, user).await
            }
        };
        tokio::time::timeout(limit, answer).await.unwrap_or_else(|_| {
            let message = "Timeout: request did not complete within the allotted timeout";
            Err(ApiError::new(504, Reason::Timeout, message).with_details(Details::default()))
        })
    }

    /// Counts the response until the client has read it.
    fn deliver(
        &self,
        parts: &Parts,
        info: &RequestInfo,
        user: &UserInfo,
        response: Response<Body>,
    ) -> Result<Response<Body>, ApiError> {
        let Some(connection) = parts.extensions.get::<Arc<ConnectionDownloads>>() else {
            return Ok(response);
        };
        let recipient = Recipient { user: user.name.as_str().into(), connection: connection.clone() };
        let of_write = info.is_resource && resources::is_write(info);
        self.bounds_of(user).downloads.deliver(response, &recipient, of_write)
    }

    /// The limits that the user's requests count against. Those of `system:masters` have separate ones.
    fn bounds_of(&self, user: &UserInfo) -> &Bounds {
        if user.in_group("system:masters") { &self.bounds_of_masters } else { &self.bounds }
    }
}

/// The client's `timeout` parameter (a Go duration), at most `most`.
fn timeout(query: &Query, most: Duration) -> Result<Duration, ApiError> {
    let Some(text) = query.get("timeout").filter(|t| !t.is_empty()) else {
        return Ok(most);
    };
    match machinery::duration::parse(text) {
        Some(duration) if duration.is_zero() => Ok(most),
        Some(duration) => Ok(duration.min(most)),
        None => Err(ApiError::bad_request(format!(
            "invalid timeout specified in the request URL - {}",
            machinery::duration::fault(text)
        ))),
    }
}

/// The client's audit id if it may be echoed, else a new one.
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

/// An [`ApiServer`] as `tower::Service`; see [`ApiServer::service`].
#[derive(Clone)]
pub struct Service(Arc<ApiServer>);

impl Service {
    /// See [`ApiServer::readiness`].
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
