//! Opens connections to hooks, through proxies if configured, and measures their phases (MC-101, MC-204).

use std::{
    error::Error,
    future::Future,
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use futures::future::BoxFuture;
use http::{HeaderValue, Uri};
use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_rustls::{HttpsConnector, MaybeHttpsStream};
use hyper_util::{
    client::legacy::connect::{
        Connected, Connection, HttpConnector,
        dns::{GaiAddrs, GaiResolver, Name},
        proxy::Tunnel,
    },
    rt::TokioIo,
};
use runtime::proxies::{Proxies, credential};
use tokio::{net::TcpStream, time::Instant};
use tower::Service;

use super::counters::HookMetrics;

type BoxError = Box<dyn Error + Send + Sync>;

/// Returns the credential for a plain HTTP request through a proxy. A tunnel has the credential in its own request.
pub(super) fn authorization(proxies: &Proxies, target: &Uri) -> Option<HeaderValue> {
    if target.scheme_str() != Some("http") {
        return None;
    }
    credential(proxies.of(target)?)
}

/// A connection and the times at which its phases ended.
pub(super) struct Plain {
    io: TokioIo<TcpStream>,
    /// Whether requests must carry the whole URL, because they go to a proxy.
    proxied: bool,
    begun: Instant,
    connected: Instant,
}

impl Connection for Plain {
    fn connected(&self) -> Connected {
        self.io.connected().proxy(self.proxied)
    }
}

impl Read for Plain {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_read(context, buffer)
    }
}

impl Write for Plain {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(context)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(context, slices)
    }
}

/// Opens connections to the hook or to a proxy.
#[derive(Clone)]
pub(super) struct Connector {
    tcp: HttpConnector<TimedResolver>,
    proxies: Proxies,
}

impl Connector {
    pub(super) fn new(proxies: Proxies, metrics: Arc<HookMetrics>) -> Self {
        let mut tcp = HttpConnector::new_with_resolver(TimedResolver { inner: GaiResolver::new(), metrics });
        tcp.enforce_http(false);
        tcp.set_nodelay(true);
        Self { tcp, proxies }
    }
}

impl Service<Uri> for Connector {
    type Response = Plain;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Plain, BoxError>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.tcp.poll_ready(context).map_err(Into::into)
    }

    fn call(&mut self, target: Uri) -> Self::Future {
        let (begun, proxy) = (Instant::now(), self.proxies.of(&target).cloned());
        let secure = target.scheme_str() == Some("https");
        let mut tcp = self.tcp.clone();
        Box::pin(async move {
            let io = match proxy {
                None => tcp.call(target).await?,
                Some(proxy) if proxy.scheme_str() != Some("http") => {
                    let scheme = proxy.scheme_str().unwrap_or_default();
                    return Err(format!("the proxy speaks {scheme}; only http is supported").into());
                }
                Some(proxy) if secure => {
                    let credential = credential(&proxy);
                    let tunnel = Tunnel::new(proxy, tcp);
                    let mut tunnel = match credential {
                        Some(credential) => tunnel.with_auth(credential),
                        None => tunnel,
                    };
                    let io = tunnel.call(target).await?;
                    return Ok(Plain { io, proxied: false, begun, connected: Instant::now() });
                }
                Some(proxy) => {
                    let io = tcp.call(proxy).await?;
                    return Ok(Plain { io, proxied: true, begun, connected: Instant::now() });
                }
            };
            Ok(Plain { io, proxied: false, begun, connected: Instant::now() })
        })
    }
}

/// Resolves names and measures the duration.
#[derive(Clone)]
pub(super) struct TimedResolver {
    inner: GaiResolver,
    metrics: Arc<HookMetrics>,
}

impl Service<Name> for TimedResolver {
    type Response = GaiAddrs;
    type Error = io::Error;
    type Future = BoxFuture<'static, Result<GaiAddrs, io::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, name: Name) -> Self::Future {
        let (metrics, begun) = (self.metrics.clone(), Instant::now());
        metrics.dns[0].observe(0.0);
        let found = self.inner.call(name);
        Box::pin(async move {
            let found = found.await;
            metrics.dns[1].observe(begun.elapsed().as_secs_f64());
            found
        })
    }
}

/// Measures the TLS handshake from the start of the connection on, as Go's traces do.
#[derive(Clone)]
pub(super) struct TimedTls {
    pub(super) inner: HttpsConnector<Connector>,
    pub(super) metrics: Arc<HookMetrics>,
}

impl Service<Uri> for TimedTls {
    type Response = HookStream;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Self::Response, BoxError>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, target: Uri) -> Self::Future {
        let (metrics, connecting) = (self.metrics.clone(), self.inner.call(target));
        Box::pin(timed(metrics, connecting))
    }
}

async fn timed(
    metrics: Arc<HookMetrics>,
    connecting: impl Future<Output = Result<MaybeHttpsStream<Plain>, BoxError>>,
) -> Result<HookStream, BoxError> {
    let stream = connecting.await?;
    if let MaybeHttpsStream::Https(tls) = &stream {
        let plain = tls.inner().get_ref().0.inner();
        metrics.tls[0].observe((plain.connected - plain.begun).as_secs_f64());
        metrics.tls[1].observe(plain.begun.elapsed().as_secs_f64());
    }
    Ok(HookStream(stream))
}

/// A connection that may end without the `close_notify` of TLS, as Go allows.
///
/// A hook that answers in HTTP/1.0 ends its answer by closing the connection, and many do not say so in TLS first. An answer
/// with a length is not affected: hyper notices when it is cut.
pub(super) struct HookStream(MaybeHttpsStream<Plain>);

impl Connection for HookStream {
    fn connected(&self) -> Connected {
        self.0.connected()
    }
}

impl Read for HookStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        match Pin::new(&mut self.0).poll_read(context, buffer) {
            // Nothing was read, which is how hyper is told the end.
            Poll::Ready(Err(error)) if error.kind() == io::ErrorKind::UnexpectedEof => Poll::Ready(Ok(())),
            other => other,
        }
    }
}

impl Write for HookStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }

    fn is_write_vectored(&self) -> bool {
        self.0.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write_vectored(context, slices)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// MC-101: a plain request through a proxy carries the proxy's credential; one through a tunnel does not.
    #[test]
    fn mc_101_credentials_go_with_plain_requests() {
        let proxies = Proxies::new("http://user:word@plain:3128", "http://user:word@plain:3128", "internal");
        let of = |text: &str| authorization(&proxies, &text.parse().unwrap());
        assert_eq!(of("http://hook.example/").unwrap(), "Basic dXNlcjp3b3Jk");
        assert!(of("https://hook.example/").is_none() && of("http://internal/").is_none());
    }
}
