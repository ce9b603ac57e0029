//! The listener with a space behind it, as clients from outside meet it.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use apiserver::authn::{Authenticator, AuthnConfig};
use apiserver::server::{ApiServer, ApiServerConfig};
use bytes::Bytes;
use futures::stream;
use http_body_util::StreamBody;
use hyper::body::Frame;
use hyper_util::rt::{TokioExecutor, TokioIo};
use kube::Client;
use kubestellar_space::listener::{Certificate, Listener, Router};
use kubestellar_space::{Identity, Space, SpaceConfig, pki};
use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use serde_json::{Value, json};
use store::Engine;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::{JoinHandle, JoinSet};
use tokio_rustls::client::TlsStream;
use tokio_util::sync::CancellationToken;

/// A listener with the spaces `wds1` and `its1`.
struct Front {
    address: SocketAddr,
    ca: String,
    router: Arc<Router>,
    spaces: Vec<Space>,
    stop: CancellationToken,
    drain: CancellationToken,
    task: JoinHandle<Result<(), rustls::Error>>,
    _data: tempfile::TempDir,
}

impl Front {
    async fn open() -> Self {
        let data = tempfile::tempdir().unwrap();
        let engine = Engine::in_memory();
        let mut spaces = Vec::new();
        for name in ["wds1", "its1"] {
            let url = format!("https://127.0.0.1:9443/spaces/{name}");
            let config = SpaceConfig { name, data: data.path(), url, advertise: "127.0.0.1:9443".into() };
            spaces.push(Space::start(&engine, config).await.unwrap());
        }
        let router = Router::default();
        for space in &spaces {
            router.add(space.name(), space.server().service());
        }
        Self::serve(data, router, spaces).await
    }

    async fn serve(data: tempfile::TempDir, router: Router, spaces: Vec<Space>) -> Self {
        let serving = pki::serving(data.path(), &[], SystemTime::now()).unwrap();
        let router = Arc::new(router);
        let listener = Listener::bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let (address, stop, drain) = (listener.address(), CancellationToken::new(), CancellationToken::new());
        let certificate = Arc::new(Certificate::new(&serving).unwrap());
        let task = tokio::spawn(listener.serve(certificate, router.clone(), stop.clone(), drain.clone()));
        Self { address, ca: serving.ca_pem, router, spaces, stop, drain, task, _data: data }
    }

    async fn close(self) {
        self.stop.cancel();
        for space in &self.spaces {
            space.stop().await;
        }
        self.drain.cancel();
        self.task.await.unwrap().unwrap();
    }

    fn admin(&self) -> Client {
        self.spaces[0].client(&Identity::admin())
    }

    /// A connection that asks for the server name, or for the address.
    async fn connect(&self, name: Option<&str>, protocol: &str) -> TlsStream<TcpStream> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(self.ca.as_bytes()).unwrap()).unwrap();
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let mut config = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = vec![protocol.as_bytes().to_vec()];
        let name = match name {
            Some(name) => ServerName::try_from(name.to_owned()).unwrap(),
            None => ServerName::IpAddress(self.address.ip().into()),
        };
        let stream = TcpStream::connect(self.address).await.unwrap();
        tokio_rustls::TlsConnector::from(Arc::new(config)).connect(name, stream).await.unwrap()
    }

    /// The status and the body of the answer to a GET.
    async fn get(&self, sni: Option<&str>, host: &str, path: &str) -> (u16, String) {
        self.get_with(sni, path, &format!("Host: {host}\r\n")).await
    }

    /// [`Front::get`] with these header lines.
    async fn get_with(&self, sni: Option<&str>, path: &str, headers: &str) -> (u16, String) {
        let mut tls = self.connect(sni, "http/1.1").await;
        let request = format!("GET {path} HTTP/1.1\r\n{headers}Connection: close\r\n\r\n");
        tls.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        tls.read_to_string(&mut answer).await.unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
    }
}

/// SP-056: a space is served by server name to clients that lose the path of a URL, with a certificate that carries the
/// name; a request that names two spaces is refused.
#[tokio::test(flavor = "multi_thread")]
async fn sp_056_a_space_is_served_by_server_name() {
    let front = Front::open().await;
    let named = "wds1.localhost:9443";
    for (sni, host, path, wanted) in [
        // TLS server name only: kubectl with tls-server-name in its kubeconfig.
        (Some("wds1.localhost"), "127.0.0.1:9443", "/version", 200),
        (Some("wds1.localhost"), "127.0.0.1:9443", "/spaces/wds1/version", 200),
        (Some("wds1.localhost"), named, "/version", 200),
        (Some("WDS1.localtest.me"), "wds1.localtest.me", "/version", 200),
        (None, named, "/version", 200),
        (None, "127.0.0.1:9443", "/spaces/wds1/version", 200),
        (Some("localhost"), "localhost", "/readyz", 200),
        (Some("wds1.localhost"), "its1.localhost:9443", "/version", 421),
        (Some("wds1.localhost"), "127.0.0.1:9443", "/spaces/its1/version", 421),
        (None, named, "/spaces/its1/version", 421),
        (None, "127.0.0.1:9443", "/version", 404),
        (None, "none.localhost", "/version", 404),
        (None, "none.localhost", "/readyz", 404),
        // The paths of other spaces are none of this space.
        (Some("wds1.localhost"), named, "/api/v1/namespaces", 401),
    ] {
        let (status, body) = front.get(sni, host, path).await;
        assert_eq!(status, wanted, "{sni:?} {host} {path}: {body}");
        if wanted == 421 {
            assert!(body.contains("its1") && body.contains("wds1"), "{body}");
        }
    }
    let first = front.connect(Some("wds1.localhost"), "http/1.1").await;
    let second = front.connect(Some("wds1.localhost"), "http/1.1").await;
    let certificate = |tls: &TlsStream<TcpStream>| tls.get_ref().1.peer_certificates().unwrap()[0].to_vec();
    assert_eq!(certificate(&first), certificate(&second), "issued once");
    drop((first, second));
    front.close().await;
}

/// SP-056: a request whose host is doubtful is refused, as by Go's server.
#[tokio::test(flavor = "multi_thread")]
async fn sp_056_a_doubtful_host_is_a_bad_request() {
    let front = Front::open().await;
    for headers in [
        "",
        "Host: wds1.localhost\r\nHost: its1.localhost\r\n",
        "Host: wds1.localhost\r\nHost: wds1.localhost\r\n",
        "Host: its1.localhost/\r\n",
        "Host: its1.localhost its1.localhost\r\n",
    ] {
        let (status, body) = front.get_with(Some("wds1.localhost"), "/version", headers).await;
        assert_eq!(status, 400, "{headers}: {body}");
        assert!(body.starts_with("400 Bad Request: "), "{body}");
    }
    let tls = front.connect(Some("wds1.localhost"), "h2").await;
    let (mut send, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(tls)).await.unwrap();
    let serving = tokio::spawn(connection);
    for (host, wanted) in [(None, 200), (Some("wds1.localhost"), 200), (Some("its1.localhost"), 400)] {
        let mut request = http::Request::get("https://wds1.localhost/version");
        if let Some(host) = host {
            request = request.header("host", host);
        }
        let request = request.body(http_body_util::Empty::<Bytes>::new()).unwrap();
        assert_eq!(send.send_request(request).await.unwrap().status().as_u16(), wanted, "{host:?}");
    }
    drop(send);
    serving.await.unwrap().unwrap();
    front.close().await;
}

/// SP-056: the certificate of a server name goes with its space.
#[tokio::test(flavor = "multi_thread")]
async fn sp_056_the_certificate_of_a_name_goes_with_its_space() {
    let front = Front::open().await;
    let shown = async || {
        let tls = front.connect(Some("wds1.localhost"), "http/1.1").await;
        tls.get_ref().1.peer_certificates().unwrap()[0].to_vec()
    };
    let first = shown().await;
    front.router.pause("wds1");
    assert_eq!(shown().await, first, "clients of a paused space are told so");
    front.router.remove("wds1");
    front.router.add("wds1", front.spaces[0].server().service());
    assert_ne!(shown().await, first, "another space of the same name");
    front.close().await;
}

/// AS-070: a client that does not read loses its connection when its user needs the bytes that it holds.
#[tokio::test(flavor = "multi_thread")]
async fn as_070_a_client_that_does_not_read_gives_way() {
    const OBJECTS: usize = 24;
    let authenticator = Authenticator::new(AuthnConfig::default()).unwrap();
    let store = Engine::in_memory().space("x").unwrap();
    let mut config = ApiServerConfig::open(store, Arc::new(authenticator));
    // A list counts an eighth.
    config.limits.downloads.bytes_per_user = (OBJECTS << 20) / 5;
    config.limits.downloads.slow = Duration::ZERO;
    let server = ApiServer::start(config).await.unwrap();
    let router = Router::default();
    router.set_root(server.service());
    let front = Front::serve(tempfile::tempdir().unwrap(), router, Vec::new()).await;
    let path = "/api/v1/namespaces/default/configmaps";
    let text = "x".repeat(1_000_000);
    for n in 0..OBJECTS {
        let object = json!({"metadata": {"name": format!("c{n}")}, "data": {"x": &text}}).to_string();
        let request = http::Request::post(path).header("content-type", "application/json");
        let request = request.body(http_body_util::Full::new(Bytes::from(object))).unwrap();
        assert_eq!(server.call(request).await.status().as_u16(), 201);
    }
    // Waits until the response has begun.
    let ask = async || {
        let mut tls = front.connect(None, "http/1.1").await;
        let request = format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
        tls.write_all(request.as_bytes()).await.unwrap();
        assert_eq!(tls.read_u8().await.unwrap(), b'H');
        tls
    };
    let mut unread = ask().await;
    let mut read = ask().await;
    let (mut whole, mut part) = (Vec::new(), Vec::new());
    read.read_to_end(&mut whole).await.unwrap();
    assert!(whole.len() > OBJECTS * text.len(), "{} bytes", whole.len());
    // What the system has taken already still comes.
    let _ = unread.read_to_end(&mut part).await;
    assert!(part.len() < whole.len(), "the first client got its response");
    server.stop().await;
    front.close().await;
}

const TOKEN: &str = "abcdef.0123456789abcdef";

/// A bootstrap token that may do nothing but create certificate requests.
async fn bootstrap_token(client: &Client) {
    let secret = json!({
        "metadata": {"name": "bootstrap-token-abcdef", "namespace": "kube-system"},
        "type": "bootstrap.kubernetes.io/token",
        "stringData": {"token-id": "abcdef", "token-secret": "0123456789abcdef", "usage-bootstrap-authentication": "true"},
    });
    create(client, "/api/v1/namespaces/kube-system/secrets", &secret).await;
    let binding = json!({
        "metadata": {"name": "joining"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "system:node-bootstrapper"},
        "subjects": [{"kind": "Group", "name": "system:bootstrappers", "apiGroup": "rbac.authorization.k8s.io"}],
    });
    create(client, "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", &binding).await;
}

async fn create(client: &Client, path: &str, object: &Value) {
    let request = http::Request::post(path).header("content-type", "application/json");
    let created = client.request::<Value>(request.body(object.to_string().into_bytes()).unwrap()).await;
    created.unwrap();
}

const REQUESTS: &str = "/spaces/wds1/apis/certificates.k8s.io/v1/certificatesigningrequests";

/// AS-070: hundreds of clients that send their bodies slowly, by HTTP/1.1 and by HTTP/2, keep nobody else waiting: neither
/// another user nor the same one.
#[tokio::test(flavor = "multi_thread")]
async fn as_070_slow_bodies_keep_nobody_waiting() {
    let front = Front::open().await;
    bootstrap_token(&front.admin()).await;
    let mut slow = JoinSet::new();
    let head = format!(
        "POST {REQUESTS} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {TOKEN}\r\nContent-Type: application/json\r\n"
    );
    let mut opened = Vec::new();
    for _ in 0..120 {
        let mut tls = front.connect(None, "http/1.1").await;
        tls.write_all(format!("{head}Content-Length: 1000\r\n\r\n{{").as_bytes()).await.unwrap();
        tls.flush().await.unwrap();
        opened.push(tls);
    }
    for tls in &mut opened {
        // Neither answered nor closed so far, or refused: none of both matters.
        let _ = tls.write_all(b" ").await;
    }
    let tls = TokioIo::new(front.connect(None, "h2").await);
    let (mut requests, connection) =
        hyper::client::conn::http2::handshake(TokioExecutor::new(), tls).await.unwrap();
    slow.spawn(async move { drop(connection.await) });
    for _ in 0..600 {
        let request = http::Request::post(format!("https://a{REQUESTS}"));
        let request = request.header("authorization", format!("Bearer {TOKEN}"));
        let request = request.header("content-type", "application/json");
        let never = StreamBody::new(stream::pending::<Result<Frame<Bytes>, std::io::Error>>());
        requests.ready().await.unwrap();
        let answer = requests.send_request(request.body(never).unwrap());
        slow.spawn(async move { drop(answer.await) });
    }
    // Others are served at once.
    let list = || http::Request::get("/api/v1/namespaces").body(Vec::new()).unwrap();
    front.admin().request::<Value>(list()).await.unwrap();
    let quiet = Identity::component("quiet", &[]);
    match front.spaces[0].client(&quiet).request::<Value>(list()).await {
        Err(kube::Error::Api(status)) => assert_eq!(status.code, 403, "not 429: {status:?}"),
        other => panic!("{other:?}"),
    }
    // So is another client with the same token whose body arrives.
    let deadline = tokio::time::Instant::now() + Duration::from_secs(60);
    loop {
        let mut tls = front.connect(None, "http/1.1").await;
        let body = r#"{"spec": {}}"#;
        let request = format!("{head}Connection: close\r\nContent-Length: {}\r\n\r\n{body}", body.len());
        tls.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        tls.read_to_string(&mut answer).await.unwrap();
        if answer.starts_with("HTTP/1.1 422 ") {
            break;
        }
        // The slow ones of this user are young: they lose their places after two seconds.
        assert!(answer.starts_with("HTTP/1.1 429 "), "{answer}");
        assert!(tokio::time::Instant::now() < deadline, "never served");
    }
    drop((opened, requests));
    front.close().await;
    slow.shutdown().await;
}
