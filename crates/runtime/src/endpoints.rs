//! The HTTP endpoints of a component: metrics, probes and profiling pages.
//!
//! ```no_run
//! # use kubestellar_runtime as runtime; use runtime::{endpoints::{Bind, Endpoint, Pages}, metrics::Metrics};
//! # async fn example(metrics: Metrics, stop: tokio_util::sync::CancellationToken) -> std::io::Result<()> {
//! let bind: Bind = ":8080".parse().unwrap();
//! if let Some(endpoint) = Endpoint::open(&bind, Pages::metrics(metrics)).await? {
//!     tracing::info!(address = %endpoint.address(), "serving metrics");
//!     endpoint.serve(stop).await;
//! }
//! # Ok(())
//! # }
//! ```

use std::{convert::Infallible, fmt, io, net::SocketAddr, str::FromStr, sync::Arc, time::Duration};

use bytes::Bytes;
use futures::future::BoxFuture;
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpListener,
    sync::Semaphore,
    task::JoinSet,
};
use tokio_rustls::{TlsAcceptor, rustls::ServerConfig};
use tokio_util::sync::CancellationToken;

use crate::{Ready, metrics::Metrics};

/// Most connections at a time; further ones wait to be accepted.
const CONNECTIONS: usize = 64;
/// How long a client may take to send its request.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(10);

/// The address to listen on, in the syntax of the Go programs: `:8080` means all interfaces, `host:port`
/// means one of them, `0` or an empty string means not to listen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bind(Option<String>);

impl Bind {
    /// Not to listen.
    pub const OFF: Self = Self(None);

    /// Returns whether listening is switched off.
    pub fn is_off(&self) -> bool {
        self.0.is_none()
    }
}

impl fmt::Display for Bind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.as_deref().unwrap_or_default())
    }
}

impl FromStr for Bind {
    type Err = String;

    fn from_str(raw: &str) -> Result<Self, String> {
        if raw.is_empty() || raw == "0" {
            return Ok(Self::OFF);
        }
        let (host, port) =
            raw.rsplit_once(':').ok_or("it has no port: write HOST:PORT, :PORT, or 0 for off")?;
        port.parse::<u16>().map_err(|_| format!("{port:?} is not a port"))?;
        let bracketed = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
        if bracketed.is_none() && host.contains([':', '[', ']']) {
            return Err("an IPv6 address is written in brackets".to_owned());
        }
        Ok(Self(Some(raw.to_owned())))
    }
}

/// The pages to serve: a function from the request to the response. It must not block.
#[derive(Clone)]
pub struct Pages(Arc<dyn Fn(&http::request::Parts) -> Page + Send + Sync>);

/// A response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// HTTP status code.
    pub status: StatusCode,
    /// Media type of the body.
    pub content_type: &'static str,
    /// The body.
    pub body: String,
}

const PLAIN: &str = "text/plain; charset=utf-8";

impl Page {
    /// A response with a plain text.
    pub fn text(status: StatusCode, body: impl Into<String>) -> Self {
        Self { status, content_type: PLAIN, body: body.into() }
    }

    fn missing() -> Self {
        Self::text(StatusCode::NOT_FOUND, "404 page not found\n")
    }
}

impl Pages {
    /// Pages that `answer` computes.
    pub fn new(answer: impl Fn(&http::request::Parts) -> Page + Send + Sync + 'static) -> Self {
        Self(Arc::new(answer))
    }

    /// `/metrics`, in the format that the client prefers (KS-220 … KS-225).
    pub fn metrics(metrics: Metrics) -> Self {
        Self::new(move |request| {
            if request.uri.path() != "/metrics" {
                return Page::missing();
            }
            let accepts = request.headers.get(header::ACCEPT).and_then(|it| it.to_str().ok()).unwrap_or("");
            let (content_type, body) = if accepts.contains("application/openmetrics-text") {
                ("application/openmetrics-text; version=1.0.0; charset=utf-8", metrics.openmetrics())
            } else {
                ("text/plain; version=0.0.4; charset=utf-8", metrics.text())
            };
            Page { status: StatusCode::OK, content_type, body }
        })
    }

    /// Probes that always succeed, on any path, as those of KubeStellar's Go programs do: a process that
    /// waits for something, or that does not lead, is healthy (KS-210, KS-211). With `?verbose` the response
    /// says whether the component is ready (KS-228).
    pub fn always_well(ready: &Ready) -> Self {
        let ready = ready.subscribe();
        Self::new(move |request| {
            if request.uri.query() != Some("verbose") {
                return Page::text(StatusCode::OK, "ok\r\n");
            }
            Page::text(StatusCode::OK, format!("{}\r\nok\r\n", state(*ready.borrow())))
        })
    }

    /// `/healthz`, `/livez` and `/readyz`, which always answer `ok` (OCM-133).
    pub fn ping() -> Self {
        Self::new(|request| match request.uri.path() {
            "/healthz" | "/healthz/" | "/livez" | "/readyz" | "/readyz/" | "/healthz/ping"
            | "/readyz/ping" => Page::text(StatusCode::OK, "ok"),
            _ => Page::missing(),
        })
    }

    /// `/readyz?verbose`, which says whether the component is ready, with status 200 in either case.
    pub fn readiness(ready: &Ready) -> Self {
        let ready = ready.subscribe();
        Self::new(move |request| match (request.uri.path(), request.uri.query()) {
            ("/readyz" | "/readyz/", Some("verbose")) => {
                Page::text(StatusCode::OK, format!("{}\nok", state(*ready.borrow())))
            }
            _ => Page::missing(),
        })
    }

    /// `/debug/pprof/` (KS-226). The index exists, so that scrapers of it do not fail. The profiles are those
    /// of the Go runtime, which this program does not have; a request for one is answered with an error that
    /// says so.
    pub fn pprof() -> Self {
        Self::new(|request| {
            match request.uri.path() {
            "/debug/pprof" | "/debug/pprof/" => Page {
                status: StatusCode::OK,
                content_type: "text/html; charset=utf-8",
                body: "<html><head><title>/debug/pprof/</title></head><body>/debug/pprof/<p>\
                       No profiles: this program has no Go runtime. Use perf(1) on the process.</p></body></html>\n"
                    .to_owned(),
            },
            path if path.starts_with("/debug/pprof/") => {
                Page::text(StatusCode::NOT_FOUND, "no such profile: this program has no Go runtime\n")
            }
            _ => Page::missing(),
        }
        })
    }

    /// Serves these pages first, and those of `other` where these answer 404.
    pub fn or(self, other: Self) -> Self {
        Self::new(move |request| match (self.0)(request) {
            page if page.status == StatusCode::NOT_FOUND => (other.0)(request),
            page => page,
        })
    }

    fn answer(&self, request: &http::request::Parts) -> Page {
        if matches!(request.method, Method::GET | Method::HEAD) {
            (self.0)(request)
        } else {
            Page::text(StatusCode::METHOD_NOT_ALLOWED, "only GET is served here\n")
        }
    }
}

fn state(ready: bool) -> &'static str {
    if ready { "working" } else { "not working yet: waiting for what it needs; the log names it" }
}

/// Decides whether a request is served: `None` if so, otherwise the response that refuses it.
pub type Guard = Arc<dyn Fn(&http::request::Parts) -> BoxFuture<'static, Option<Page>> + Send + Sync>;

/// A listening socket. It speaks plain HTTP, as the ports of KubeStellar's Go programs do, so the pages must
/// not be secret. [`secured`](Self::secured) adds TLS and a guard, as OCM's programs have them.
pub struct Endpoint {
    listener: TcpListener,
    address: SocketAddr,
    pages: Pages,
    tls: Option<TlsAcceptor>,
    guard: Option<Guard>,
}

impl Endpoint {
    /// Starts to listen. Returns `None` if listening is switched off.
    ///
    /// # Errors
    ///
    /// If the address cannot be resolved or bound.
    pub fn open(bind: &Bind, pages: Pages) -> BoxFuture<'_, io::Result<Option<Self>>> {
        Box::pin(Self::listen(bind, pages))
    }

    async fn listen(bind: &Bind, pages: Pages) -> io::Result<Option<Self>> {
        let Some(address) = &bind.0 else { return Ok(None) };
        let listener = match address.strip_prefix(':') {
            // All interfaces, IPv4 and IPv6 where the machine has both.
            Some(port) => match TcpListener::bind(format!("[::]:{port}")).await {
                Err(error) if error.kind() != io::ErrorKind::AddrInUse => {
                    TcpListener::bind(format!("0.0.0.0:{port}")).await?
                }
                bound => bound?,
            },
            None => TcpListener::bind(address.as_str()).await?,
        };
        let address = listener.local_addr()?;
        Ok(Some(Self { listener, address, pages, tls: None, guard: None }))
    }

    /// Serves over TLS, and only the requests that `guard` lets pass.
    pub fn secured(self, tls: Arc<ServerConfig>, guard: Guard) -> Self {
        Self { tls: Some(tls.into()), guard: Some(guard), ..self }
    }

    /// The address that the socket listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves until `stop` is cancelled, and closes the connections that are open then.
    pub fn serve(self, stop: CancellationToken) -> BoxFuture<'static, ()> {
        Box::pin(self.accept_all(stop))
    }

    async fn accept_all(self, stop: CancellationToken) {
        let permits = Arc::new(Semaphore::new(CONNECTIONS));
        let mut connections = JoinSet::new();
        loop {
            let accepted = tokio::select! {
                () = stop.cancelled() => return,
                Some(_) = connections.join_next() => continue,
                accepted = accept(&self.listener, &permits) => accepted,
            };
            let Some((stream, permit)) = accepted else { continue };
            let (pages, tls, guard) = (self.pages.clone(), self.tls.clone(), self.guard.clone());
            let stop = stop.clone();
            connections.spawn(async move {
                let connection = async {
                    let Some(tls) = tls else { return serve_connection(stream, pages, guard).await };
                    match tokio::time::timeout(CLIENT_TIMEOUT, tls.accept(stream)).await {
                        Ok(Ok(stream)) => serve_connection(stream, pages, guard).await,
                        Ok(Err(error)) => {
                            tracing::debug!(%error, "a TLS handshake with the endpoints failed");
                        }
                        Err(_) => {
                            tracing::debug!("a TLS handshake with the endpoints took too long");
                        }
                    }
                };
                tokio::select! {
                    () = connection => {}
                    () = stop.cancelled() => {}
                }
                drop(permit);
            });
        }
    }
}

/// Serves the requests of one connection.
async fn serve_connection(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    pages: Pages,
    guard: Option<Guard>,
) {
    let service = service_fn(move |request: Request<Incoming>| {
        let (pages, guard) = (pages.clone(), guard.clone());
        async move {
            let (request, _) = request.into_parts();
            let refused = match &guard {
                Some(guard) => guard(&request).await,
                None => None,
            };
            Ok::<_, Infallible>(respond(refused.unwrap_or_else(|| pages.answer(&request))))
        }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(CLIENT_TIMEOUT)
        .serve_connection(TokioIo::new(stream), service);
    if let Err(error) = connection.await {
        tracing::debug!(%error, "a connection to the endpoints ended");
    }
}

fn respond(page: Page) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::from(page.body)));
    *response.status_mut() = page.status;
    let content_type = header::HeaderValue::from_static(page.content_type);
    response.headers_mut().insert(header::CONTENT_TYPE, content_type);
    let nosniff = header::HeaderValue::from_static("nosniff");
    response.headers_mut().insert(header::X_CONTENT_TYPE_OPTIONS, nosniff);
    response
}

async fn accept(
    listener: &TcpListener,
    permits: &Arc<Semaphore>,
) -> Option<(tokio::net::TcpStream, tokio::sync::OwnedSemaphorePermit)> {
    let permit = permits.clone().acquire_owned().await.ok()?;
    match listener.accept().await {
        Ok((stream, _)) => Some((stream, permit)),
        Err(error) => {
            tracing::warn!(%error, "accepting a connection");
            // Most likely the process has no file descriptors left; trying again at once would only use
            // processor time.
            tokio::time::sleep(Duration::from_millis(100)).await;
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn get(pages: &Pages, uri: &str, accept: &str) -> (u16, String, String) {
        let request = Request::get(uri).header(header::ACCEPT, accept).body(()).unwrap();
        let (parts, ()) = request.into_parts();
        let page = (pages.0)(&parts);
        (page.status.as_u16(), page.content_type.to_owned(), page.body)
    }

    /// KS-210: addresses have the syntax of the Go programs.
    #[test]
    fn ks_210_bind_addresses() {
        for off in ["", "0"] {
            assert!(off.parse::<Bind>().unwrap().is_off(), "{off:?}");
        }
        for on in [":8080", "127.0.0.1:0", "localhost:80", "[::1]:9", "0.0.0.0:65535"] {
            assert_eq!(on.parse::<Bind>().unwrap().to_string(), on);
        }
        for bad in ["8080", "localhost", ":x", ":65536", "::1:80", "[::1:80"] {
            assert!(bad.parse::<Bind>().is_err(), "{bad:?}");
        }
    }

    /// KS-210: probes succeed on any path.
    #[test]
    fn ks_210_any_probe_succeeds() {
        let ready = Ready::new(false);
        let pages = Pages::always_well(&ready);
        for path in ["/healthz", "/readyz", "/", "/anything"] {
            assert_eq!(get(&pages, path, ""), (200, PLAIN.to_owned(), "ok\r\n".to_owned()));
        }
        assert!(get(&pages, "/readyz?verbose", "").2.contains("not working yet"));
        ready.send_replace(true);
        assert_eq!(get(&pages, "/readyz?verbose", "").2, "working\r\nok\r\n");
    }

    /// KS-226, OCM-133: the index is served, and a profile is answered with 404.
    #[test]
    fn ks_226_profiling_paths() {
        let pages = Pages::pprof();
        assert_eq!(get(&pages, "/debug/pprof/", "").0, 200);
        assert_eq!(get(&pages, "/debug/pprof/heap", "").0, 404);
        assert_eq!(get(&pages, "/", "").0, 404);
    }

    /// SP-137: the client receives the format it asked for.
    #[test]
    fn sp_137_format_by_accept() {
        let pages = Pages::metrics(Metrics::default());
        let (code, kind, body) =
            get(&pages, "/metrics", "application/openmetrics-text;version=1.0.0,*/*;q=0.1");
        assert!(code == 200 && kind.starts_with("application/openmetrics-text") && body.ends_with("# EOF\n"));
        let (code, kind, body) = get(&pages, "/metrics", "*/*");
        assert!(code == 200 && kind.starts_with("text/plain; version=0.0.4") && !body.contains("# EOF"));
        assert_eq!(get(&pages, "/", "").0, 404);
    }

    /// OCM-133: probes succeed from the start, as with the Go program; who asks verbosely learns more.
    #[test]
    fn ocm_133_readiness_is_told_verbosely() {
        let ready = Ready::new(false);
        let pages = Pages::readiness(&ready).or(Pages::ping());
        assert_eq!(
            (get(&pages, "/readyz", "").2.as_str(), get(&pages, "/healthz?verbose", "").2.as_str()),
            ("ok", "ok")
        );
        let (code, _, body) = get(&pages, "/readyz?verbose", "");
        assert!(code == 200 && body.starts_with("not working yet") && body.ends_with("ok"), "{body}");
        ready.send_replace(true);
        assert_eq!(get(&pages, "/readyz?verbose", "").2, "working\nok");
    }

    #[tokio::test]
    async fn served_over_http_until_stopped() {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let stop = CancellationToken::new();
        let bind = "127.0.0.1:0".parse().unwrap();
        let endpoint = Endpoint::open(&bind, Pages::ping()).await.unwrap().unwrap();
        let address = endpoint.address();
        let serving = tokio::spawn(endpoint.serve(stop.clone()));
        let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
        stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n").await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("\r\n\r\nok"), "{answer}");
        // A client that sends nothing does not delay the shutdown.
        let silent = tokio::net::TcpStream::connect(address).await.unwrap();
        stop.cancel();
        serving.await.unwrap();
        // The open connection is closed. Another process may listen on the port by now, so the port is not
        // checked.
        let mut silent = silent;
        let mut rest = Vec::new();
        let end = silent.read_to_end(&mut rest).await;
        assert!(end.is_err() || rest.is_empty(), "{rest:?}");
    }
}
