//! A client of the hub whose credential can be replaced while it is in use (OCM-057).

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use futures::future::BoxFuture;
use http::{Request, Response};
use kube::{
    Client,
    client::Body,
    config::{
        AuthInfo, Context as KubeContext, KubeConfigOptions, Kubeconfig, NamedAuthInfo, NamedCluster,
        NamedContext,
    },
};
use parking_lot::RwLock;

use super::identity::Endpoint;

/// A client certificate and its key, PEM.
#[derive(Clone, PartialEq, Eq)]
pub struct Credential {
    /// Certificate chain, leaf first.
    pub certificate: String,
    /// Private key.
    pub key: String,
}

/// Creates a client of the hub from a credential.
pub type Connect = Arc<dyn Fn(Credential) -> BoxFuture<'static, Result<Client, String>> + Send + Sync>;

/// Connects over TLS.
pub fn over_tls(endpoint: Endpoint) -> Connect {
    Arc::new(move |credential: Credential| {
        let endpoint = endpoint.clone();
        Box::pin(async move {
            use base64::Engine as _;
            let encode = |pem: &str| base64::engine::general_purpose::STANDARD.encode(pem);
            let auth = AuthInfo {
                client_certificate_data: Some(encode(&credential.certificate)),
                client_key_data: Some(encode(&credential.key).into()),
                ..AuthInfo::default()
            };
            client(&endpoint, auth).await
        })
    })
}

/// Creates a client of the hub that authenticates with `auth`.
///
/// # Errors
///
/// A text, if the credentials or certificates are invalid.
pub fn client(endpoint: &Endpoint, auth: AuthInfo) -> BoxFuture<'_, Result<Client, String>> {
    Box::pin(connect(endpoint, auth))
}

async fn connect(endpoint: &Endpoint, auth: AuthInfo) -> Result<Client, String> {
    let name = || endpoint.name.clone();
    let context = KubeContext { cluster: name(), user: Some("agent".into()), ..KubeContext::default() };
    let config = Kubeconfig {
        clusters: vec![NamedCluster {
            name: name(),
            cluster: Some(endpoint.cluster.clone()),
            ..NamedCluster::default()
        }],
        contexts: vec![NamedContext { name: name(), context: Some(context), ..NamedContext::default() }],
        auth_infos: vec![NamedAuthInfo {
            name: "agent".into(),
            auth_info: Some(auth),
            ..NamedAuthInfo::default()
        }],
        current_context: Some(name()),
        ..Kubeconfig::default()
    };
    let config = kube::Config::from_custom_kubeconfig(config, &KubeConfigOptions::default())
        .await
        .map_err(|error| error.to_string())?;
    runtime::connect::client(config).map_err(|error| error.to_string())
}

/// The agent's connection to the hub, shared by all components that use the agent's identity. Requests that
/// begin after [`Connection::set`] use the new credential; those in progress end with the old one.
#[derive(Clone, Default)]
pub struct Connection(Arc<RwLock<Option<Client>>>);

/// There is no credential yet.
#[derive(Debug, thiserror::Error)]
#[error("not joined yet: there is no credential for the hub")]
struct NotJoined;

impl Connection {
    /// Replaces the underlying client.
    pub fn set(&self, client: Option<Client>) {
        *self.0.write() = client;
    }

    /// Returns a client that follows the replacements.
    pub fn client(&self) -> Client {
        Client::new(self.clone(), "default")
    }
}

impl tower::Service<Request<Body>> for Connection {
    type Response = Response<Body>;
    type Error = Box<dyn std::error::Error + Send + Sync>;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let current = self.0.read().clone();
        Box::pin(async move {
            let Some(client) = current else { return Err(NotJoined.into()) };
            Ok(client.send(request).await?)
        })
    }
}
