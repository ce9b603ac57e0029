//! Builds clients of API servers that accept what Go's clients accept of a TLS peer, and whose errors name the cause.
//!
//! `kube` builds its clients on webpki, which is stricter than Go's `crypto/x509`: see [`crate::tls`]. What is layered on the
//! connection is `kube`'s: the path of the server, retries, credentials (also exec plugins and token files that change) and
//! headers for impersonation.

mod failure;
mod identity;
mod reach;

use std::{
    sync::{Arc, Once, OnceLock},
    task::{Context, Poll},
};

use futures::future::BoxFuture;
use http::{Request, Response, Uri};
use hyper::body::Incoming;
use hyper_rustls::{FixedServerNameResolver, HttpsConnector, HttpsConnectorBuilder};
use hyper_timeout::TimeoutConnector;
use hyper_util::{
    client::legacy::{Client as Pool, connect::proxy::Tunnel},
    rt::TokioExecutor,
};
use kube::{
    Client, Config,
    client::{Body, ClientBuilder, ConfigExt, retry::RetryPolicy},
};
use rustls::{ClientConfig, crypto::aws_lc_rs, pki_types::ServerName};
use tower::{BoxError, Service, ServiceBuilder, retry::RetryLayer};

pub use failure::RequestError;
pub use reach::Reach;

use self::reach::Tcp;
use crate::{
    proxies::{Proxies, credential},
    tls::{ServerVerifier, TlsError},
};

/// A configuration cannot be used for connections.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// A credential or a certificate that `kube` refuses.
    #[error(transparent)]
    Config(#[from] kube::Error),
    /// A trusted certificate cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// `tls-server-name` is not a name.
    #[error("tls-server-name: {0:?} is not a name of a server")]
    ServerName(String),
    /// `proxy-url` names something else than an HTTP proxy.
    #[error("proxy-url: the proxy speaks {0:?}; only http and https are supported")]
    Proxy(String),
}

static PROXIES: OnceLock<Proxies> = OnceLock::new();

/// Sets the proxies of the environment, for all clients of this process that are made afterwards. Only the first call
/// counts.
pub fn set_proxies(proxies: Proxies) {
    // A second call would be one of the same program, with the same environment.
    let _ = PROXIES.set(proxies);
}

/// Returns a client for `config`.
///
/// The certificates of the system (without a CA in `config`) and the CA file of a pod, which changes, are verified by `kube`.
///
/// A proxy in the kubeconfig is always used. Otherwise the one of the environment ([`set_proxies`]) is, unless `NO_PROXY` covers
/// the server (OCM-071).
///
/// # Errors
/// If a certificate, a key, a credential, a name or the proxy of `config` cannot be used.
pub fn client(config: Config) -> Result<Client, ConnectError> {
    client_within(config, Reach::Everywhere)
}

/// [`client`] that connects to the addresses of `reach` only. What is behind a proxy is the proxy's to judge.
///
/// # Errors
/// As for [`client`].
pub fn client_within(config: Config, reach: Reach) -> Result<Client, ConnectError> {
    if rustls::crypto::CryptoProvider::get_default().is_none() {
        // It fails only if another thread was faster, and then there is a provider.
        let _ = aws_lc_rs::default_provider().install_default();
    }
    warn_of_blind_trust(&config);
    let none = Proxies::default();
    connected(&config, PROXIES.get().unwrap_or(&none), reach)
}

fn connected(config: &Config, environment: &Proxies, reach: Reach) -> Result<Client, ConnectError> {
    // `kube` puts HTTPS_PROXY where the kubeconfig names no proxy, and asks for no exceptions.
    let own = config.proxy_url.as_ref().filter(|proxy| !environment.is_of_environment(proxy));
    let Some(proxy) = own.or_else(|| environment.of(&config.cluster_url)) else {
        return layered(config, Tcp::new(reach));
    };
    match proxy.scheme_str() {
        Some("http") => layered(config, tunnel(proxy, Tcp::new(reach))),
        Some("https") => layered(config, tunnel(proxy, over_tls(config, reach)?)),
        other => Err(ConnectError::Proxy(other.unwrap_or_default().to_owned())),
    }
}

/// Says once in a process that a kubeconfig asks for no verification. Each agent makes several clients, and again when its
/// credential changes.
fn warn_of_blind_trust(config: &Config) {
    static ONCE: Once = Once::new();
    if config.accept_invalid_certs {
        ONCE.call_once(|| {
            tracing::warn!(
                server = %config.cluster_url,
                "the kubeconfig says insecure-skip-tls-verify: whoever answers at this address is trusted"
            );
        });
    }
}

/// Connects to a proxy that speaks HTTPS. As in Go, the proxy is verified like the server, by its own name.
fn over_tls(config: &Config, reach: Reach) -> Result<HttpsConnector<Tcp>, ConnectError> {
    let https = HttpsConnectorBuilder::new().with_tls_config(tls(config)?).https_only();
    Ok(https.enable_http1().wrap_connector(Tcp::new(reach)))
}

/// Connects through an HTTP proxy by CONNECT.
fn tunnel<C>(proxy: &Uri, connector: C) -> Tunnel<C> {
    let tunnel = Tunnel::new(proxy.clone(), connector);
    match credential(proxy) {
        Some(credential) => tunnel.with_auth(credential),
        None => tunnel,
    }
}

/// The layers of `kube`'s own client, over connections of ours.
fn layered<C>(config: &Config, connector: C) -> Result<Client, ConnectError>
where
    C: Service<Uri> + Clone + Send + Sync + 'static,
    C::Response: hyper::rt::Read
        + hyper::rt::Write
        + hyper_util::client::legacy::connect::Connection
        + Unpin
        + Send
        + 'static,
    C::Future: Send + 'static,
    C::Error: Into<BoxError>,
{
    let mut limited = TimeoutConnector::new(https(config, connector)?);
    limited.set_connect_timeout(config.connect_timeout);
    limited.set_read_timeout(config.read_timeout);
    limited.set_write_timeout(config.write_timeout);
    limited.set_reset_reader_on_write(config.reset_reader_on_write);
    let pool = Pool::builder(TokioExecutor::new()).build(limited);
    let transport = Transport { send: Arc::new(move |request| Box::pin(pool.request(request))) };
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(config.default_retry.then(|| RetryLayer::new(RetryPolicy::server_retry())))
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .map_err(BoxError::from)
        .service(transport);
    Ok(ClientBuilder::new(service, config.default_namespace.clone()).build())
}

type SendRequest = dyn Fn(Request<Body>) -> BoxFuture<'static, Result<Response<Incoming>, hyper_util::client::legacy::Error>>
    + Send
    + Sync;

/// Sends requests over pooled connections. Its errors name the cause.
#[derive(Clone)]
struct Transport {
    send: Arc<SendRequest>,
}

impl Service<Request<Body>> for Transport {
    type Response = Response<Incoming>;
    type Error = RequestError;
    type Future = BoxFuture<'static, Result<Response<Incoming>, RequestError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), RequestError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let target = request.uri().clone();
        let sent = (self.send)(request);
        Box::pin(async move { sent.await.map_err(|error| RequestError::new(&target, error)) })
    }
}

fn https<C>(config: &Config, connector: C) -> Result<HttpsConnector<C>, ConnectError> {
    let mut https = HttpsConnectorBuilder::new().with_tls_config(tls(config)?).https_or_http();
    if let Some(name) = &config.tls_server_name {
        let known = ServerName::try_from(name.clone()).map_err(|_| ConnectError::ServerName(name.clone()))?;
        https = https.with_server_name_resolver(FixedServerNameResolver::new(known));
    }
    Ok(https.enable_http1().wrap_connector(connector))
}

fn tls(config: &Config) -> Result<ClientConfig, ConnectError> {
    let mut tls = match config.rustls_client_config() {
        Ok(tls) => tls,
        Err(error) => identity::of_version_1(config, error)?,
    };
    if let (Some(roots), false, None) =
        (&config.root_cert, config.accept_invalid_certs, &config.root_cert_file)
    {
        let verifier = ServerVerifier::new(roots.iter().map(|der| der.clone().into()))?;
        tls.dangerous().set_certificate_verifier(Arc::new(verifier));
    }
    Ok(tls)
}

#[cfg(test)]
mod tests;
