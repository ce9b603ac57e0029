//! Hooks that require mutual TLS (MC §5.1).

use std::{
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use bytes::Bytes;
use http::Response;
use http_body_util::Full;
use hyper_util::rt::TokioIo;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::{RootCertStore, ServerConfig, crypto::aws_lc_rs, server::WebPkiClientVerifier};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject as _};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
    task::JoinHandle,
};
use tokio_rustls::TlsAcceptor;

use crate::world::{CONTROLLERS, FOOS, MAPS, SECRETS, World, app, controller, when};

/// A server that answers clients with a certificate of its CA.
struct Guarded {
    url: String,
    ca: String,
    client: (String, String),
    calls: Arc<AtomicUsize>,
    task: JoinHandle<()>,
}

fn authority() -> CertifiedIssuer<'static, KeyPair> {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

impl Guarded {
    async fn start() -> Self {
        let ca = authority();
        let leaf = |name: &str| {
            let key = KeyPair::generate().unwrap();
            let params = CertificateParams::new(vec![name.to_owned()]).unwrap();
            (params.signed_by(&key, &ca).unwrap().pem(), key.serialize_pem())
        };
        let ((certificate, key), client) = (leaf("127.0.0.1"), leaf("metacontroller"));
        let provider = Arc::new(aws_lc_rs::default_provider());
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(ca.pem().as_bytes()).unwrap()).unwrap();
        let verifier =
            WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone()).build().unwrap();
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_client_cert_verifier(verifier)
            .with_single_cert(
                vec![CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap()],
                PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap(),
            )
            .unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("https://{}", listener.local_addr().unwrap());
        let calls = Arc::new(AtomicUsize::new(0));
        let task = tokio::spawn(serve(listener, TlsAcceptor::from(Arc::new(config)), calls.clone()));
        Self { url, ca: ca.pem(), client, calls, task }
    }
}

async fn serve(listener: TcpListener, acceptor: TlsAcceptor, calls: Arc<AtomicUsize>) {
    let mut connections = tokio::task::JoinSet::new();
    loop {
        let Ok((stream, _)) = listener.accept().await else { continue };
        let (acceptor, calls) = (acceptor.clone(), calls.clone());
        connections.spawn(async move {
            let Ok(stream) = acceptor.accept(stream).await else { return };
            let service = hyper::service::service_fn(move |_| {
                calls.fetch_add(1, Ordering::SeqCst);
                let body = Full::new(Bytes::from_static(b"{\"outputs\": []}"));
                std::future::ready(Ok::<_, Infallible>(Response::new(body)))
            });
            let _ = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service)
                .await;
        });
    }
}

/// MC-A-83, MC-105, MC-100: a hook with mutual TLS. The controller does not start while the Secret is
/// missing. The call succeeds with the certificate, and fails without it or with another CA.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mc_a_83_certificates_of_both_sides() {
    let hook = Guarded::start().await;
    let world = World::start().await;
    let trust = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "trust", "namespace": "ns2"}, "data": {"ca.crt": hook.ca}});
    world.create(MAPS, trust).await;
    let webhook = json!({
        "caBundle": {"configMapRef": {"name": "trust", "namespace": "ns2"}},
        "clientTLS": {"secretRef": {"name": "client", "namespace": "ns2"}},
    });
    let spec = json!({"hooks": {"map": {"webhook": webhook}, "tombstone": null}});
    world.create(CONTROLLERS, controller("mc1", &hook.url, spec)).await;
    world.reason("mc1", "HookConfigError").await;
    world.event("CreateError", "secret ns2/client not found").await;
    world.foo("p", app("x")).await;
    world.input("a", json!({"app": "x"}), "1").await;
    let (certificate, key) = &hook.client;
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "client", "namespace": "ns2"}, "stringData": {"tls.crt": certificate, "tls.key": key}});
    world.create(SECRETS, secret).await;
    world.reason("mc1", "Running").await;
    let counts = |inputs: Value| json!({"observedGeneration": 1, "inputs": {"configmaps": inputs}, "outputs": {"configmaps": {"total": 0}}});
    world.status(FOOS, "ns1", "p", counts(json!({"total": 1}))).await;
    when("called", || hook.calls.load(Ordering::SeqCst) >= 1).await;
    // Without a client certificate, and with another CA for the server's certificate.
    for without in [
        json!({"clientTLS": null}),
        json!({"clientTLS": webhook["clientTLS"], "caBundle": {"configMapRef": null, "inline": authority().pem()}}),
    ] {
        let patch = json!({"spec": {"hooks": {"map": {"webhook": without}}}});
        world.merge(CONTROLLERS, "", "mc1", patch).await;
        world.status(FOOS, "ns1", "p", counts(json!({"total": 1, "failed": 1}))).await;
        world.event("SyncError", "http error: ").await;
        let whole = json!({"spec": {"hooks": {"map": {"webhook": {"clientTLS": webhook["clientTLS"], "caBundle": {"configMapRef": webhook["caBundle"]["configMapRef"], "inline": null}}}}}});
        world.merge(CONTROLLERS, "", "mc1", whole).await;
        world.status(FOOS, "ns1", "p", counts(json!({"total": 1}))).await;
    }
    world.end().await;
    hook.task.abort();
}

/// Answers in HTTP/1.0 and closes the connection without `close_notify`.
async fn answer_and_close(listener: TcpListener, acceptor: TlsAcceptor) {
    let mut connections = tokio::task::JoinSet::new();
    loop {
        let Ok((stream, _)) = listener.accept().await else { continue };
        let acceptor = acceptor.clone();
        connections.spawn(async move {
            let mut stream = acceptor.accept(stream).await?;
            // The whole request has come once its JSON is complete: data that is not read would reset the connection.
            let mut request = Vec::new();
            let complete = |request: &[u8]| {
                let head = request.windows(4).position(|part| part == b"\r\n\r\n");
                head.is_some_and(|at| serde_json::from_slice::<Value>(&request[at + 4..]).is_ok())
            };
            while !complete(&request) {
                request.push(stream.read_u8().await?);
            }
            let answer = b"HTTP/1.0 200 OK\r\nContent-Type: application/json\r\n\r\n{\"outputs\": []}";
            stream.write_all(answer).await?;
            stream.flush().await
        });
    }
}

/// MC-101: a hook whose self-signed CA certificate is its own and that ends its answers by closing the connection works, as
/// with Go.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mc_101_a_hook_made_by_hand_works() {
    let key = KeyPair::generate().unwrap();
    let mut params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let own = params.self_signed(&key).unwrap();
    let config = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(
            vec![own.der().clone()],
            PrivateKeyDer::from_pem_slice(key.serialize_pem().as_bytes()).unwrap(),
        )
        .unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("https://{}", listener.local_addr().unwrap());
    let task = tokio::spawn(answer_and_close(listener, TlsAcceptor::from(Arc::new(config))));
    let world = World::start().await;
    let webhook = json!({"caBundle": {"inline": own.pem()}});
    let spec = json!({"hooks": {"map": {"webhook": webhook}, "tombstone": null}});
    world.create(CONTROLLERS, controller("mc1", &url, spec)).await;
    world.reason("mc1", "Running").await;
    world.foo("p", app("x")).await;
    world.input("a", json!({"app": "x"}), "1").await;
    let counts = json!({"observedGeneration": 1, "inputs": {"configmaps": {"total": 1}}, "outputs": {"configmaps": {"total": 0}}});
    world.status(FOOS, "ns1", "p", counts).await;
    world.end().await;
    task.abort();
}
