//! One space: its API server and its credentials.

use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::SystemTime;

use apiserver::admission::Admission;
use apiserver::authn::{Anonymous, Authenticator, AuthnConfig};
use apiserver::authz::Authorizer;
use apiserver::identity::{Caller, ReadAhead, UserInfo};
use apiserver::response::Body;
use apiserver::server::{ApiServer, ApiServerConfig, Limits, Service};
use apiserver::strategy::KindSettings;
use apiserver::tokens::{Issuer, TokenError};
use arc_swap::ArcSwap;
use futures::future::BoxFuture;
use http::{Request, Response};
use kube::Client;
use store::Engine;

use crate::pki::{self, SpaceKeys};

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SpaceError {
    #[error(transparent)]
    Store(#[from] store::StoreError),
    #[error(transparent)]
    Pki(#[from] pki::PkiError),
    #[error(transparent)]
    Authentication(#[from] apiserver::authn::AuthnError),
    #[error(transparent)]
    Server(#[from] apiserver::server::StartError),
    #[error("reading a client certificate: {0}")]
    Certificate(String),
}

/// Configuration of a space.
pub struct SpaceConfig<'a> {
    pub name: &'a str,
    /// Data directory of the installation. The keys are stored under it.
    pub data: &'a Path,
    /// URL for clients, `https://HOST:PORT/spaces/<name>`; also the issuer of its tokens.
    pub url: String,
    /// `HOST:PORT`.
    pub advertise: String,
}

/// A served space. [`Space::stop`] stops it.
pub struct Space {
    name: String,
    url: String,
    server: Arc<ApiServer>,
    keys: ArcSwap<SpaceKeys>,
}

/// The user of an in-process client.
#[derive(Clone, Debug)]
pub struct Identity {
    user: Arc<UserInfo>,
}

impl Identity {
    /// A component with this user name and groups. Authorization applies to it as to any user.
    pub fn component(name: &str, groups: &[&str]) -> Self {
        Self { user: Arc::new(UserInfo::internal(name, groups)) }
    }

    /// The administrator of the space.
    pub fn admin() -> Self {
        Self::component("kubernetes-admin", &["system:masters"])
    }
}

impl Space {
    /// Opens the space, and creates what is missing. Existing credentials are used unchanged (SP-042).
    ///
    /// # Errors
    /// The store, a key or the API server cannot be opened.
    pub async fn start(engine: &Engine, config: SpaceConfig<'_>) -> Result<Self, SpaceError> {
        Self::start_with(engine, config, None).await
    }

    /// [`Space::start`] with an admission of its own.
    ///
    /// # Errors
    /// As for [`Space::start`].
    pub fn start_with<'a>(
        engine: &'a Engine,
        config: SpaceConfig<'a>,
        admission: Option<Arc<dyn Admission>>,
    ) -> BoxFuture<'a, Result<Self, SpaceError>> {
        Box::pin(Self::open(engine, config, admission))
    }

    async fn open(
        engine: &Engine,
        config: SpaceConfig<'_>,
        admission: Option<Arc<dyn Admission>>,
    ) -> Result<Self, SpaceError> {
        let store = engine.space(config.name)?;
        let keys = pki::space(config.data, config.name, SystemTime::now())?;
        // A broken key is found now, not with the first token.
        pki::made_service_account_key(config.data, config.name)?;
        let issuer = Arc::new(token_issuer(config.data, config.name, &config.url, &[]));
        let authenticator = Authenticator::new(AuthnConfig {
            client_ca: Some(keys.client_ca.clone()),
            tokens: Vec::new(),
            service_accounts: Some(issuer.clone()),
            anonymous: Anonymous::Paths,
        })?;
        let server = ApiServer::start(ApiServerConfig {
            authorizer: Authorizer::rbac(store.clone()),
            store,
            authenticator: Arc::new(authenticator),
            tokens: Some(issuer),
            advertise: config.advertise,
            rbac_bootstrap: true,
            system_namespaces: true,
            limits: Limits::default(),
            kinds: KindSettings { unenforced_warnings: true, ..KindSettings::default() },
            admission,
        })
        .await?;
        let keys = ArcSwap::from_pointee(keys);
        Ok(Self { name: config.name.to_owned(), url: config.url, server, keys })
    }

    pub fn name(&self) -> &str {
        &self.name
    }

    pub fn url(&self) -> &str {
        &self.url
    }

    /// The current credentials.
    pub fn keys(&self) -> Arc<SpaceKeys> {
        self.keys.load_full()
    }

    /// Renews credentials near their end. Returns `true` if there were any. Certificates that were signed before stay
    /// valid, because the CA keeps its key.
    ///
    /// # Errors
    /// A key or certificate cannot be read or written.
    pub fn renew(&self, data: &Path, now: SystemTime) -> Result<bool, SpaceError> {
        let keys = pki::space(data, &self.name, now)?;
        let renewed = keys != *self.keys.load_full();
        self.keys.store(Arc::new(keys));
        Ok(renewed)
    }

    pub fn server(&self) -> &Arc<ApiServer> {
        &self.server
    }

    /// An in-process client: the same requests and the same authorization, without socket and TLS.
    pub fn client(&self, identity: &Identity) -> Client {
        self.in_process(Caller::Internal(identity.user.clone()), false)
    }

    /// [`Space::client`] for a component that writes only to spaces of the same engine. Its reads and writes do not
    /// wait for the disk (see [`store::SpaceStore::ahead`]).
    pub fn client_ahead(&self, identity: &Identity) -> Client {
        self.in_process(Caller::Internal(identity.user.clone()), true)
    }

    /// [`Space::client_ahead`] with a client certificate (PEM chain, leaf first) that is sent with each request.
    /// Chain, dates and subject are verified as for a TLS connection. The caller must have made sure that the
    /// component holds the key.
    ///
    /// # Errors
    /// The PEM cannot be parsed.
    pub fn client_ahead_by_certificate(&self, pem: &str) -> Result<Client, SpaceError> {
        use rustls_pki_types::{CertificateDer, pem::PemObject as _};
        let chain = CertificateDer::pem_slice_iter(pem.as_bytes())
            .collect::<Result<Vec<_>, _>>()
            .map_err(|error| SpaceError::Certificate(error.to_string()))?;
        Ok(self.in_process(Caller::Certificate(Arc::new(chain)), true))
    }

    fn in_process(&self, caller: Caller, read_ahead: bool) -> Client {
        Client::new(InProcess { service: self.server.service(), caller, read_ahead }, "default")
    }

    /// Ends watches and tasks of the API server.
    pub async fn stop(&self) {
        self.server.stop().await;
    }
}

/// The issuer of a space's service-account tokens. The key is created with the first token.
/// Tokens are for `audiences`; if there are none, for the URL.
pub fn token_issuer(data: &Path, space: &str, url: &str, audiences: &[String]) -> Issuer {
    let (data, space) = (data.to_owned(), space.to_owned());
    let make_key = || Issuer::generate_key().map_err(|error| error.to_string());
    let key = move || {
        pki::service_account_key(&data, &space, make_key).map_err(|error| TokenError::Key(error.to_string()))
    };
    Issuer::lazy(key, url, audiences)
}

/// Adds the caller to each request.
#[derive(Clone)]
struct InProcess {
    service: Service,
    caller: Caller,
    /// Requests read and write without waiting for the disk.
    read_ahead: bool,
}

impl tower::Service<Request<kube::client::Body>> for InProcess {
    type Response = Response<Body>;
    type Error = std::convert::Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<kube::client::Body>) -> Self::Future {
        request.extensions_mut().insert(self.caller.clone());
        if self.read_ahead {
            request.extensions_mut().insert(ReadAhead);
        }
        Box::pin(self.service.call(request))
    }
}
