//! One TLS listener for all spaces of a process: `https://HOST:PORT/spaces/<name>` (SP-055), and
//! `https://<name>.localhost:PORT` (SP-056).

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use apiserver::identity::{Caller, KnownCaller};
use apiserver::response::Body;
use apiserver::server::ConnectionDownloads;
use futures::future::BoxFuture;
use http::{Request, Response};
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use crate::by_name::ByName;
use crate::connections::{Admitted, ConnectionLimits, Connections, raise_file_limit};
use crate::route::route;
use crate::timer::PatientTimer;
use crate::tls::server_config;

pub use crate::certificate::Certificate;
pub use crate::router::Router;

const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
const HEADER_TIMEOUT: Duration = Duration::from_secs(30);
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
        let acceptor = TlsAcceptor::from(Arc::new(server_config(Arc::new(by_name))?));
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
            // Closed at once: the address has more connections than it may have.
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
        () = admitted.displaced() => return,
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
    let downloads = Arc::new(ConnectionDownloads::default());
    let unread = downloads.clone();
    let service = hyper::service::service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(downloads.clone());
        let (router, caller, sni) = (router.clone(), caller.clone(), sni.clone());
        let unanswered = Unanswered::begin(counted.clone());
        async move {
            let response = route(&router, caller, sni.as_deref(), request).await;
            unanswered.answered(&response);
            Ok::<_, Infallible>(response)
        }
    });
    let mut builder = auto::Builder::new(TokioExecutor::new());
    builder.http1().timer(PatientTimer).header_read_timeout(HEADER_TIMEOUT);
    builder
        .http2()
        .timer(PatientTimer)
        .keep_alive_interval(Duration::from_secs(30))
        .keep_alive_timeout(Duration::from_secs(20))
        .max_concurrent_streams(1000);
    let connection = builder.serve_connection_with_upgrades(TokioIo::new(tls), service);
    let mut connection = std::pin::pin!(connection);
    let mut must_end = std::pin::pin!(async {
        tokio::select! {
            () = admitted.displaced() => "a newer connection of its address needs the place",
            () = unread.stalled() => "the client does not read its responses",
        }
    });
    let outcome = tokio::select! {
        outcome = connection.as_mut() => outcome,
        why = must_end.as_mut() => Err(why.into()),
        () = stop.cancelled() => {
            connection.as_mut().graceful_shutdown();
            tokio::select! {
                outcome = connection => outcome,
                why = must_end => Err(why.into()),
            }
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
    /// The client has given the request up.
    fn drop(&mut self) {
        if let Some(connection) = self.0.take() {
            connection.answered(false);
        }
    }
}

#[cfg(test)]
mod tests;
