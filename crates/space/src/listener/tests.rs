use std::time::SystemTime;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use rustls::{RootCertStore, SignatureScheme};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::*;
use crate::testing::space_in;
use crate::{Space, pki};

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
    let serve = listener.serve(certificate.clone(), Arc::default(), stop.clone(), CancellationToken::new());
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
            include_str!(concat!("../../../apiserver/src/authn/version_1/", $name))
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
    Arc::new(CertifiedKey::new(vec![CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap()], key))
}

/// Reads one answer with a `Content-Length`, and returns its head and its body.
async fn answer_on(tls: &mut tokio_rustls::client::TlsStream<TcpStream>) -> (String, String) {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(tls.read_u8().await.expect("an answer"));
    }
    let head = String::from_utf8(head).unwrap();
    let length = head.lines().find_map(|l| l.to_lowercase().strip_prefix("content-length: ")?.parse().ok());
    let mut body = vec![0; length.expect("a length")];
    tls.read_exact(&mut body).await.unwrap();
    (head, String::from_utf8(body).unwrap())
}
