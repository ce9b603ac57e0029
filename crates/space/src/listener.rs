//! One TLS listener for all spaces of a process: `https://HOST:PORT/spaces/<name>` (SP-055), and
//! `https://<name>.localhost:PORT` (SP-056).

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use apiserver::authn::version_1;
use apiserver::health;
use apiserver::identity::{Caller, KnownCaller};
use apiserver::response::{self, Body};
use futures::future::BoxFuture;
use http::uri::{PathAndQuery, Uri};
use http::{Request, Response, StatusCode};
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{DigitallySignedStruct, DistinguishedName, ServerConfig, SignatureScheme};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tower::Service as _;

use crate::addressed::{Addressed, Misdirected, addressed, server_name};
use crate::by_name::ByName;
use crate::connections::{Admitted, ConnectionLimits, Connections, raise_file_limit};
use crate::unread::Unread;

pub use crate::certificate::Certificate;
pub use crate::router::Router;

const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
const HEADER_TIMEOUT: Duration = Duration::from_secs(30);
/// Seconds after which clients of a stopped space may try again.
const PAUSED_RETRY: u16 = 10;
/// How long connections may take to end after all spaces have stopped.
const DRAIN: Duration = Duration::from_secs(4);

/// A bound socket. It accepts no connections before [`Listener::serve`].
pub struct Listener {
    socket: TcpListener,
    address: SocketAddr,
}

impl Listener {
    /// Binds the socket.
    ///
    /// # Errors
    /// `AddrInUse` if the port is in use.
    pub async fn bind(address: SocketAddr) -> io::Result<Self> {
        let socket = TcpListener::bind(address).await?;
        let address = socket.local_addr()?;
        Ok(Self { socket, address })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves until `stop` is cancelled. Then requests in flight may end: without limit until `drain` is cancelled,
    /// and for a few seconds afterwards. Watches end when their space stops, so cancel `drain` after stopping the
    /// spaces: a connection that is cut earlier looks like a failure to the client of a watch.
    ///
    /// # Errors
    /// The TLS configuration is not usable.
    pub fn serve(
        self,
        certificate: Arc<Certificate>,
        router: Arc<Router>,
        stop: CancellationToken,
        drain: CancellationToken,
    ) -> BoxFuture<'static, Result<(), rustls::Error>> {
        Box::pin(self.accept_all(certificate, router, stop, drain))
    }

    async fn accept_all(
        self,
        certificate: Arc<Certificate>,
        router: Arc<Router>,
        stop: CancellationToken,
        drain: CancellationToken,
    ) -> Result<(), rustls::Error> {
        let by_name = ByName { certificate, router: router.clone() };
        let acceptor = TlsAcceptor::from(Arc::new(tls(Arc::new(by_name))?));
        let limits = ConnectionLimits::for_files(raise_file_limit());
        let permits = Arc::new(Semaphore::new(limits.most));
        let open = Arc::new(Connections::new(limits));
        let mut connections = JoinSet::new();
        loop {
            let accepted = tokio::select! {
                () = stop.cancelled() => break,
                accepted = accept(&self.socket, &permits) => accepted,
                Some(_) = connections.join_next() => continue,
            };
            let Some((stream, peer, permit)) = accepted else { continue };
            // The connection is closed at once, because its address has reached the limit of connections.
            let Some(admitted) = open.admit(peer.ip()) else { continue };
            let (acceptor, router, stop) = (acceptor.clone(), router.clone(), stop.clone());
            connections.spawn(async move {
                connection(stream, admitted, acceptor, router, stop).await;
                drop(permit);
            });
        }
        drop(self.socket);
        let patience = async {
            drain.cancelled().await;
            tokio::time::sleep(DRAIN).await;
        };
        tokio::select! {
            () = async { while connections.join_next().await.is_some() {} } => {}
            () = patience => tracing::info!("connections were still open after {DRAIN:?}"),
        }
        connections.shutdown().await;
        Ok(())
    }
}

async fn accept(
    socket: &TcpListener,
    permits: &Arc<Semaphore>,
) -> Option<(TcpStream, SocketAddr, tokio::sync::OwnedSemaphorePermit)> {
    let permit = permits.clone().acquire_owned().await.ok()?;
    match socket.accept().await {
        Ok((stream, peer)) => Some((stream, peer, permit)),
        Err(error) => {
            // Probably out of file descriptors: wait for connections to end instead of spinning.
            tracing::warn!(%error, "accepting a connection");
            tokio::time::sleep(Duration::from_millis(50)).await;
            None
        }
    }
}

async fn connection(
    stream: TcpStream,
    admitted: Admitted,
    acceptor: TlsAcceptor,
    router: Arc<Router>,
    stop: CancellationToken,
) {
    let _ = stream.set_nodelay(true);
    let handshake = tokio::time::timeout(HANDSHAKE_TIMEOUT, acceptor.accept(stream));
    let tls = tokio::select! {
        () = stop.cancelled() => return,
        done = handshake => match done {
            Ok(Ok(tls)) => tls,
            Ok(Err(error)) => return tracing::debug!(%error, "TLS handshake"),
            Err(_) => return,
        },
    };
    let caller = match tls.get_ref().1.peer_certificates() {
        Some(chain) => Caller::Certificate(Arc::new(chain.iter().map(|c| c.clone().into_owned()).collect())),
        None => Caller::Plain,
    };
    let sni: Option<Arc<str>> = tls.get_ref().1.server_name().map(Into::into);
    let admitted = Arc::new(admitted);
    let counted = admitted.clone();
    let service = hyper::service::service_fn(move |request: Request<Incoming>| {
        let (router, caller, sni) = (router.clone(), caller.clone(), sni.clone());
        let unanswered = Unanswered::begin(counted.clone());
        async move {
            let response = route(&router, caller, sni.as_deref(), request).await;
            unanswered.answered(&response);
            Ok::<_, Infallible>(response)
        }
    });
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(HEADER_TIMEOUT);
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(Duration::from_secs(30))
        .keep_alive_timeout(Duration::from_secs(20))
        .max_concurrent_streams(1000);
    let connection = builder.serve_connection_with_upgrades(TokioIo::new(tls), service);
    let mut connection = std::pin::pin!(connection);
    let outcome = tokio::select! {
        outcome = connection.as_mut() => outcome,
        () = stop.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
        () = admitted.expires() => {
            connection.as_mut().graceful_shutdown();
            let ended = tokio::time::timeout(DRAIN, connection).await;
            ended.unwrap_or_else(|_| Err("no request on it was authenticated".into()))
        }
    };
    if let Err(error) = outcome {
        tracing::debug!(%error, "connection");
    }
}

/// A request without a response, as its connection counts it.
struct Unanswered(Option<Arc<Admitted>>);

impl Unanswered {
    fn begin(connection: Arc<Admitted>) -> Self {
        connection.begin();
        Self(Some(connection))
    }

    fn answered(mut self, response: &Response<Body>) {
        if let Some(connection) = self.0.take() {
            connection.answered(response.extensions().get::<KnownCaller>().is_some());
        }
    }
}

impl Drop for Unanswered {
    /// Runs without a response if the client has disconnected before the response.
    fn drop(&mut self) {
        if let Some(connection) = self.0.take() {
            connection.answered(false);
        }
    }
}

async fn route(
    router: &Router,
    caller: Caller,
    sni: Option<&str>,
    mut request: Request<Incoming>,
) -> Response<Body> {
    let (mut service, prefix) = match router.find(sni, &request) {
        Ok(Some(found)) => found,
        Ok(None) => return answer_outside_spaces(router, sni, &request),
        Err(misdirected) => return misdirected_request(&misdirected),
    };
    if prefix > 0 {
        match strip(request.uri(), prefix) {
            Some(uri) => *request.uri_mut() = uri,
            None => return space_not_found(&request),
        }
    }
    request.extensions_mut().insert(caller);
    let (request, unread) = Unread::lend(request);
    let mut response = match service.call(request).await {
        Ok(response) => response,
        Err(never) => match never {},
    };
    unread.settle(&mut response).await;
    response
}

/// Answers requests for the process, which are for its health only, and for spaces that do not exist.
fn answer_outside_spaces<B>(router: &Router, sni: Option<&str>, request: &Request<B>) -> Response<Body> {
    let uri = request.uri();
    if let Ok(Addressed { space: Some(space), .. }) = addressed(sni, request) {
        return if router.is_paused(&space) { space_paused() } else { space_not_found(request) };
    }
    let checks = router.checks(uri.path());
    match health::answer(uri.path(), uri.query().unwrap_or_default(), &checks) {
        Some(answer) => answer.map(Body::from),
        None => space_not_found(request),
    }
}

/// The answer of a space that is stopped for a while (SP-050).
fn space_paused() -> Response<Body> {
    let status = serde_json::json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": "the space is stopped", "reason": "ServiceUnavailable",
        "details": {"retryAfterSeconds": PAUSED_RETRY}, "code": 503,
    });
    let mut answer =
        response::new(StatusCode::SERVICE_UNAVAILABLE, "application/json", format!("{status}\n"));
    answer.headers_mut().insert(http::header::RETRY_AFTER, http::HeaderValue::from(PAUSED_RETRY));
    answer
}

/// The answer to a URL without the path of a space, or with an unknown space. It does not list the spaces, because the
/// caller is not authenticated.
fn space_not_found<B>(request: &Request<B>) -> Response<Body> {
    let authority = request.uri().authority().map(http::uri::Authority::as_str);
    let host = request.headers().get(http::header::HOST).and_then(|host| host.to_str().ok());
    let plain = |host: &&str| host.bytes().all(|b| b.is_ascii_alphanumeric() || b".:-[]".contains(&b));
    let host = authority.or(host).filter(plain).unwrap_or("HOST:PORT");
    let message = format!(
        "no space is served at this path; a space is served at https://{host}/spaces/<name>. Programs that replace the path of a \
         server's URL, such as kubectl get --raw and kubectl proxy, need it in front: kubectl get --raw /spaces/<name>/version, or a \
         kubeconfig whose cluster has tls-server-name: {}",
        server_name("<name>")
    );
    refusal(StatusCode::NOT_FOUND, "NotFound", &message)
}

/// The answer to a request that names two spaces.
fn misdirected_request(misdirected: &Misdirected) -> Response<Body> {
    refusal(StatusCode::MISDIRECTED_REQUEST, "MisdirectedRequest", &misdirected.to_string())
}

fn refusal(code: StatusCode, reason: &str, message: &str) -> Response<Body> {
    let status = serde_json::json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": message, "reason": reason, "details": {}, "code": code.as_u16(),
    });
    response::new(code, "application/json", format!("{status}\n"))
}

/// The URI without the first `prefix` bytes of its path.
fn strip(uri: &Uri, prefix: usize) -> Option<Uri> {
    let path = uri.path().get(prefix..)?;
    let path = if path.is_empty() { "/" } else { path };
    let whole = match uri.query() {
        Some(query) => format!("{path}?{query}"),
        None => path.to_owned(),
    };
    let mut parts = uri.clone().into_parts();
    parts.path_and_query = Some(PathAndQuery::try_from(whole).ok()?);
    Uri::from_parts(parts).ok()
}

fn tls(certificates: Arc<ByName>) -> Result<ServerConfig, rustls::Error> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let verifier = Arc::new(AnyClientCertificate(provider.clone()));
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_client_cert_verifier(verifier)
        .with_cert_resolver(certificates);
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}

/// Accepts any client certificate whose key the client possesses. The required CA depends on the space, which is known
/// only after the path is read; authentication verifies the chain there.
#[derive(Debug)]
struct AnyClientCertificate(Arc<rustls::crypto::CryptoProvider>);

impl ClientCertVerifier for AnyClientCertificate {
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _now: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        version_1::verify_handshake_tls12(message, cert, dss, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        version_1::verify_handshake_tls13(message, cert, dss, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests;
