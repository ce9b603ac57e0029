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
mod tests {
    use std::time::SystemTime;

    use http_body_util::BodyExt as _;
    use rustls::RootCertStore;
    use rustls::pki_types::pem::PemObject;
    use store::Engine;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use rustls::pki_types::PrivateKeyDer;
    use rustls::sign::CertifiedKey;

    use super::*;
    use crate::{Space, SpaceConfig, pki};

    /// A space called `test`, in memory.
    async fn space_in(data: &std::path::Path) -> Space {
        let config = SpaceConfig {
            name: "test",
            data,
            url: "https://127.0.0.1:9443/spaces/test".into(),
            advertise: "127.0.0.1:9443".into(),
        };
        Space::start(&Engine::in_memory(), config).await.expect("a space")
    }

    fn roots(ca: &str) -> RootCertStore {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(ca.as_bytes()).unwrap()).unwrap();
        roots
    }

    async fn open(
        address: SocketAddr,
        config: rustls::ClientConfig,
    ) -> io::Result<tokio_rustls::client::TlsStream<TcpStream>> {
        let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
        let stream = TcpStream::connect(address).await?;
        connector.connect(rustls::pki_types::ServerName::IpAddress(address.ip().into()), stream).await
    }

    /// A connection to the listener of a client with the CA.
    async fn connected(address: SocketAddr, ca: &str) -> tokio_rustls::client::TlsStream<TcpStream> {
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = rustls::ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots(ca))
            .with_no_client_auth();
        open(address, config).await.unwrap()
    }

    /// The certificate that the listener shows to a client with the CA.
    async fn shown(address: SocketAddr, ca: &str) -> CertificateDer<'static> {
        let tls = connected(address, ca).await;
        tls.get_ref().1.peer_certificates().unwrap()[0].clone().into_owned()
    }

    /// SP-062: a renewed certificate is used without a restart, under the same CA.
    #[tokio::test]
    async fn sp_062_a_renewed_certificate_is_shown_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let first = pki::serving(dir.path(), &[], SystemTime::now()).unwrap();
        let certificate = Arc::new(Certificate::new(&first).unwrap());
        let listener = Listener::bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let (address, stop) = (listener.address(), CancellationToken::new());
        let serve =
            listener.serve(certificate.clone(), Arc::default(), stop.clone(), CancellationToken::new());
        let serving = tokio::spawn(serve);
        assert_eq!(shown(address, &first.ca_pem).await, first.chain[0]);
        // Replaces the certificate instead of waiting for its renewal.
        std::fs::remove_file(dir.path().join("pki/serving.crt")).unwrap();
        let second = pki::serving(dir.path(), &[], SystemTime::now()).unwrap();
        certificate.replace(&second).unwrap();
        assert_ne!(second.chain, first.chain);
        assert_eq!(shown(address, &first.ca_pem).await, second.chain[0]);
        stop.cancel();
        serving.await.unwrap().unwrap();
    }

    /// A listener that serves the space `test`.
    struct Served {
        address: SocketAddr,
        ca: String,
        space: Space,
        stop: CancellationToken,
        drain: CancellationToken,
        task: tokio::task::JoinHandle<Result<(), rustls::Error>>,
    }

    impl Served {
        async fn start(data: &std::path::Path) -> Self {
            let serving = pki::serving(data, &[], SystemTime::now()).unwrap();
            let space = space_in(data).await;
            let router = Arc::new(Router::default());
            router.add("test", space.server().service());
            let listener = Listener::bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
            let address = listener.address();
            let (stop, drain) = (CancellationToken::new(), CancellationToken::new());
            let certificate = Arc::new(Certificate::new(&serving).unwrap());
            let task = tokio::spawn(listener.serve(certificate, router, stop.clone(), drain.clone()));
            Self { address, ca: serving.ca_pem, space, stop, drain, task }
        }

        /// A connection with a version of TLS and a client certificate.
        async fn connect(
            &self,
            version: &'static rustls::SupportedProtocolVersion,
            shown: Arc<dyn rustls::client::ResolvesClientCert>,
        ) -> io::Result<tokio_rustls::client::TlsStream<TcpStream>> {
            let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
            let builder = rustls::ClientConfig::builder_with_provider(provider)
                .with_protocol_versions(&[version])
                .unwrap()
                .with_root_certificates(roots(&self.ca));
            open(self.address, builder.with_client_cert_resolver(shown)).await
        }

        async fn stop(self) {
            self.stop.cancel();
            self.space.stop().await;
            self.drain.cancel();
            self.task.await.unwrap().unwrap();
        }
    }

    /// AS-038: a request that is refused before its body is read leaves a connection that works.
    #[tokio::test]
    async fn as_038_a_refused_body_does_not_break_the_connection() {
        let data = tempfile::tempdir().expect("a directory");
        let served = Served::start(data.path()).await;
        let mut tls = connected(served.address, &served.ca).await;
        let body = vec![b' '; 1 << 20];
        for _ in 0..3 {
            let head = format!(
                "POST /spaces/test/api/v1/namespaces/a/secrets HTTP/1.1\r\nHost: a\r\nContent-Length: {}\r\n\r\n",
                body.len()
            );
            tls.write_all(head.as_bytes()).await.unwrap();
            tls.write_all(&body).await.unwrap();
            tls.flush().await.unwrap();
            let (answer, _) = answer_on(&mut tls).await;
            assert!(answer.starts_with("HTTP/1.1 401 "), "{answer}");
            assert!(!answer.to_lowercase().contains("connection: close"), "{answer}");
        }
        drop(tls);
        served.stop().await;
    }

    /// AS-061: a client certificate of X.509 version 1 is accepted, with either version of TLS and keys of either kind, but not
    /// without its key.
    #[tokio::test]
    async fn as_061_a_client_may_show_a_certificate_of_version_1() {
        macro_rules! pem {
            ($name:literal) => {
                include_str!(concat!("../../apiserver/src/authn/version_1/", $name))
            };
        }
        let data = tempfile::tempdir().expect("a directory");
        let keys = data.path().join("spaces/test");
        std::fs::create_dir_all(&keys).unwrap();
        std::fs::write(keys.join("client-ca.crt"), pem!("ca.crt")).unwrap();
        std::fs::write(keys.join("client-ca.key"), pem!("ca.key")).unwrap();
        let served = Served::start(data.path()).await;
        let review = "POST /spaces/test/apis/authentication.k8s.io/v1/selfsubjectreviews HTTP/1.1\r\nHost: a\r\n\
            Content-Type: application/json\r\nContent-Length: 72\r\n\r\n\
            {\"kind\":\"SelfSubjectReview\",\"apiVersion\":\"authentication.k8s.io/v1\"}    ";
        for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
            for (certificate, key) in
                [(pem!("client.crt"), pem!("client.key")), (pem!("rsa.crt"), pem!("rsa.key"))]
            {
                let shown = runtime::tls::identity(certificate.as_bytes(), key.as_bytes()).unwrap();
                let mut tls = served.connect(version, shown).await.unwrap();
                tls.write_all(review.as_bytes()).await.unwrap();
                let (head, body) = answer_on(&mut tls).await;
                assert!(head.starts_with("HTTP/1.1 201 "), "{version:?}: {head}");
                assert!(body.contains("\"username\":\"alice\"") && body.contains("\"devs\""), "{body}");
            }
            // With TLS 1.3 the client learns only when it reads that it was refused.
            let stolen = Arc::new(Thief(certified_with(pem!("client.crt"), pem!("ca.key"))));
            let refused = match served.connect(version, stolen).await {
                Ok(mut tls) => tls.read_u8().await.is_err(),
                Err(_) => true,
            };
            assert!(refused, "{version:?}: shown without its key");
        }
        served.stop().await;
    }

    /// Shows a certificate with the key of another one.
    #[derive(Debug)]
    struct Thief(Arc<CertifiedKey>);

    impl rustls::client::ResolvesClientCert for Thief {
        fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
            Some(self.0.clone())
        }

        fn has_certs(&self) -> bool {
            true
        }
    }

    fn certified_with(certificate: &str, key: &str) -> Arc<CertifiedKey> {
        let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap();
        let key = rustls::crypto::aws_lc_rs::sign::any_supported_type(&key).unwrap();
        Arc::new(CertifiedKey::new(
            vec![CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap()],
            key,
        ))
    }

    /// Reads one answer with a `Content-Length`, and returns its head and its body.
    async fn answer_on(tls: &mut tokio_rustls::client::TlsStream<TcpStream>) -> (String, String) {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(tls.read_u8().await.expect("an answer"));
        }
        let head = String::from_utf8(head).unwrap();
        let length =
            head.lines().find_map(|l| l.to_lowercase().strip_prefix("content-length: ")?.parse().ok());
        let mut body = vec![0; length.expect("a length")];
        tls.read_exact(&mut body).await.unwrap();
        (head, String::from_utf8(body).unwrap())
    }

    /// SP-055: the paths of a space begin after its name.
    #[test]
    fn sp_055_prefix_is_stripped() {
        let cases = [
            ("https://h:1/spaces/wds1/api/v1?watch=1", 12, "/api/v1?watch=1"),
            ("/spaces/wds1", 12, "/"),
            ("/spaces/wds1/api/v1/namespaces/a%2Fb", 12, "/api/v1/namespaces/a%2Fb"),
        ];
        for (uri, prefix, wanted) in cases {
            let stripped = strip(&uri.parse().unwrap(), prefix).unwrap();
            assert_eq!(stripped.path_and_query().unwrap().as_str(), wanted);
        }
    }

    async fn ask(router: &Router, uri: &'static str) -> (u16, String) {
        let request = Request::get(uri).header("host", "hub:9443").body(()).expect("a request");
        let answer = answer_outside_spaces(router, None, &request);
        let status = answer.status().as_u16();
        let body = answer.into_body().collect().await.expect("a body").to_bytes();
        (status, String::from_utf8_lossy(&body).into_owned())
    }

    /// SP-139: the process is ready when its spaces are, and names those that are not; stopping a space does not
    /// affect liveness.
    #[tokio::test]
    async fn sp_139_the_process_is_ready_when_its_spaces_are() {
        let data = tempfile::tempdir().expect("a directory");
        let space = space_in(data.path()).await;
        let router = Router::default();
        router.add("test", space.server().service());
        assert_eq!(ask(&router, "/readyz").await, (200, "ok".into()));
        let verbose = "[+]ping ok\n[+]space/test ok\nreadyz check passed\n";
        assert_eq!(ask(&router, "/readyz?verbose").await, (200, verbose.into()));
        space.stop().await;
        let unready = "[+]ping ok\n[-]space/test failed: reason withheld\nreadyz check failed\n";
        assert_eq!(ask(&router, "/readyz").await, (500, unready.into()));
        assert_eq!(ask(&router, "/livez").await, (200, "ok".into()));
        assert_eq!(ask(&router, "/healthz").await, (200, "ok".into()));
    }

    /// SP-055, SP-065: outside the spaces nothing is served to anybody but the health of the process.
    ///
    /// CVE-2026-39429: kcp served its cache of all workspaces before it authenticated.
    #[tokio::test]
    async fn sp_065_cve_2026_39429_nothing_is_served_before_authentication() {
        let data = tempfile::tempdir().expect("a directory");
        let space = space_in(data.path()).await;
        let router = Router::default();
        router.add("test", space.server().service());
        for path in [
            "/",
            "/api",
            "/api/v1/secrets",
            "/apis",
            "/metrics",
            "/version",
            "/openapi/v2",
            "/debug/pprof/",
            "/logs",
            "/spaces",
            "/spaces/",
            "/spaces//api",
            "/spaces/none/api",
            "/spaces/Test/api",
            "/spaces/test%2fapi",
            "/clusters/root/api",
            "/services/cache/shards/root/clusters/root/apis",
            "/services/apiexport/root/test/clusters/*/api/v1/configmaps",
            "/register",
            "/enroll",
            "/control",
        ] {
            let (status, body) = ask(&router, path).await;
            assert_eq!(status, 404, "{path}: {body}");
        }
        // In a space, callers without a credential read nothing but version and health.
        for path in [
            "/spaces/test/metrics",
            "/spaces/test/api/v1/secrets",
            "/spaces/test/apis",
            "/spaces/test/openapi/v2",
        ] {
            let request = Request::get(path).body(()).expect("a request");
            let (mut service, prefix) = router.find(None, &request).ok().flatten().expect("a space");
            let request = Request::get(strip(&path.parse().unwrap(), prefix).unwrap());
            let request = request.extension(Caller::Plain).body(http_body_util::Empty::<bytes::Bytes>::new());
            let answer = service.call(request.expect("a request")).await.expect("an answer");
            assert!(matches!(answer.status().as_u16(), 401 | 403), "{path}: {}", answer.status());
        }
        space.stop().await;
    }

    /// SP-050: a space that is stopped for a while says so, by path and by name; one that does not exist is not found.
    #[tokio::test]
    async fn sp_050_a_stopped_space_is_unavailable() {
        let router = Router::default();
        router.pause("wds1");
        for (path, host, code) in [
            ("/spaces/wds1/api", "127.0.0.1:9443", 503),
            ("/api", "wds1.localhost:9443", 503),
            ("/spaces/wds2/api", "127.0.0.1:9443", 404),
            ("/api", "wds2.localhost:9443", 404),
        ] {
            let request = Request::get(path).header("host", host).body(()).expect("a request");
            let answer = answer_outside_spaces(&router, None, &request);
            assert_eq!(answer.status().as_u16(), code, "{host}{path}");
            assert_eq!(answer.headers().contains_key("retry-after"), code == 503, "{host}{path}");
        }
        // Else clients by name would fail in the handshake, before they are told.
        assert!(router.serves_by_name("wds1") && !router.serves_by_name("wds2"));
    }

    /// SP-055: a request without the path of a space is told the right form, and nothing about existing spaces.
    #[tokio::test]
    async fn sp_055_a_path_without_a_space_is_explained() {
        let router = Router::default();
        for (path, host, said) in [
            ("/api", "hub:9443", "https://hub:9443/spaces/<name>"),
            ("/spaces/no", "\"<b>", "https://HOST:PORT/spaces"),
        ] {
            let request = Request::get(path).header("host", host).body(()).expect("a request");
            let answer = answer_outside_spaces(&router, None, &request);
            assert_eq!(answer.status().as_u16(), 404);
            let body = answer.into_body().collect().await.expect("a body").to_bytes();
            let status: serde_json::Value = serde_json::from_slice(&body).expect("JSON");
            assert_eq!((&status["kind"], &status["code"]), (&"Status".into(), &404.into()));
            let message = status["message"].as_str().expect("a message");
            assert!(message.contains(said) && message.contains("--raw /spaces/<name>/version"), "{message}");
        }
    }
}
