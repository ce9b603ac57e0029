//! Clients against servers of this test: what is accepted, what is sent, and what an error says.

use std::{net::SocketAddr, sync::Arc};

use kube::config::{AuthInfo, ExecConfig};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::{
    ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer},
};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    net::TcpListener,
    task::JoinSet,
};
use tokio_rustls::TlsAcceptor;

use super::*;

/// A server that answers every request with what it was asked, and how.
struct Echo {
    address: SocketAddr,
    _tasks: JoinSet<()>,
}

impl Echo {
    async fn start(tls: Option<ServerConfig>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let acceptor = tls.map(|config| TlsAcceptor::from(Arc::new(config)));
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let acceptor = acceptor.clone();
                connections.spawn(async move {
                    match acceptor {
                        Some(acceptor) => {
                            if let Ok(stream) = acceptor.accept(stream).await {
                                let name = stream.get_ref().1.server_name().unwrap_or_default().to_owned();
                                let shown = stream.get_ref().1.peer_certificates().map_or(0, <[_]>::len);
                                answer(stream, &format!("{name} {shown}")).await;
                            }
                        }
                        None => answer(stream, "plain").await,
                    }
                });
            }
        });
        Self { address, _tasks: tasks }
    }
}

/// Answers requests without bodies: `text`, then the lines of the request, as one JSON string.
async fn answer(mut stream: impl AsyncRead + AsyncWrite + Unpin, text: &str) {
    let mut head = Vec::new();
    while let Ok(byte) = stream.read_u8().await {
        head.push(byte);
        if head.ends_with(b"\r\n\r\n") {
            let body = serde_json::json!(format!("{text}\n{}", String::from_utf8_lossy(&head))).to_string();
            let length = body.len();
            let answer = format!(
                "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
            );
            if stream.write_all(answer.as_bytes()).await.is_err() {
                return;
            }
            head.clear();
        }
    }
}

/// A certificate for `127.0.0.1` and `name.example` that says `CA:TRUE`, signed by itself.
fn self_signed(
    change: impl FnOnce(&mut CertificateParams),
) -> (CertificateDer<'static>, KeyPair, CertificateParams) {
    let names = ["127.0.0.1".to_owned(), "name.example".to_owned()];
    let mut params = CertificateParams::new(names).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    change(&mut params);
    let key = KeyPair::generate().unwrap();
    (params.self_signed(&key).unwrap().der().clone(), key, params)
}

fn serving(certificate: &CertificateDer<'static>, key: &KeyPair) -> ServerConfig {
    let builder = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_client_cert_verifier(Arc::new(Anybody));
    let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
    builder.with_single_cert(vec![certificate.clone()], key).unwrap()
}

/// Asks for a client certificate and takes any, unverified.
#[derive(Debug)]
struct Anybody;

impl rustls::server::danger::ClientCertVerifier for Anybody {
    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn root_hint_subjects(&self) -> &[rustls::DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: rustls::pki_types::UnixTime,
    ) -> Result<rustls::server::danger::ClientCertVerified, rustls::Error> {
        Ok(rustls::server::danger::ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        Ok(rustls::client::danger::HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &rustls::DigitallySignedStruct,
    ) -> Result<rustls::client::danger::HandshakeSignatureValid, rustls::Error> {
        Ok(rustls::client::danger::HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<rustls::SignatureScheme> {
        aws_lc_rs::default_provider().signature_verification_algorithms.supported_schemes()
    }
}

fn config(url: &str, root: Option<&CertificateDer<'static>>) -> Config {
    let mut config = Config::new(url.parse().unwrap());
    config.root_cert = root.map(|root| vec![root.to_vec()]);
    config.default_retry = false;
    config
}

/// `config`, changed.
fn with(mut config: Config, change: impl FnOnce(&mut Config)) -> Config {
    change(&mut config);
    config
}

/// The answer to a request, or the text of the error that the callers of a client see.
async fn ask(config: Config) -> Result<String, String> {
    let client = client(config).map_err(|error| error.to_string())?;
    let request = Request::get("/version").body(Vec::new()).unwrap();
    client.request::<String>(request).await.map_err(|error| error.to_string())
}

/// OCM-071: a kubeconfig may trust the very certificate that the server shows, as with Go's clients.
#[tokio::test]
async fn ocm_071_the_trusted_certificate_may_be_the_servers_own() {
    let (own, key, params) = self_signed(|_| ());
    let server = Echo::start(Some(serving(&own, &key))).await;
    let url = format!("https://{}/spaces/a", server.address);
    let said = ask(config(&url, Some(&own))).await.unwrap();
    assert!(said.contains("GET /spaces/a/version HTTP/1.1"), "{said}");
    // A certificate with the same names by another key is not it, and what the trusted one has signed is verified as ever.
    let (other, ..) = self_signed(|_| ());
    let refused = ask(config(&url, Some(&other))).await.unwrap_err();
    assert!(refused.contains("x509: certificate signed by unknown authority"), "{refused}");
    let leaf_key = KeyPair::generate().unwrap();
    let leaf = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
    let leaf = leaf.signed_by(&leaf_key, &Issuer::new(params, key)).unwrap().der().clone();
    let signed = Echo::start(Some(serving(&leaf, &leaf_key))).await;
    ask(config(&format!("https://{}", signed.address), Some(&own))).await.unwrap();
}

/// OCM-071: `tls-server-name` is what the server is asked for and what its certificate must be for; `insecure-skip-tls-verify` asks
/// for nothing.
#[tokio::test]
async fn ocm_071_names_of_servers_and_blind_trust() {
    let (own, key, _) = self_signed(|params| drop(params.subject_alt_names.remove(0)));
    let server = Echo::start(Some(serving(&own, &key))).await;
    let url = format!("https://{}", server.address);
    let refused = ask(config(&url, Some(&own))).await.unwrap_err();
    assert!(refused.contains("x509: certificate is valid for name.example, not 127.0.0.1"), "{refused}");
    let named = with(config(&url, Some(&own)), |it| it.tls_server_name = Some("name.example".into()));
    assert!(ask(named).await.unwrap().starts_with("name.example 0\n"));
    let blind = with(config(&url, None), |it| it.accept_invalid_certs = true);
    assert!(ask(blind).await.is_ok());
    let wrong = with(config(&url, Some(&own)), |it| it.tls_server_name = Some("no name".into()));
    assert!(ask(wrong).await.unwrap_err().contains("tls-server-name"));
}

/// MC-101, OCM-071: a user's certificate may be of X.509 version 1, from data or from files, and is shown.
#[tokio::test]
async fn ocm_071_certificates_of_users() {
    use base64::Engine as _;
    let (own, key, _) = self_signed(|_| ());
    let server = Echo::start(Some(serving(&own, &key))).await;
    let url = format!("https://{}", server.address);
    let encode = |pem: &str| base64::engine::general_purpose::STANDARD.encode(pem);
    let (old, old_key) = (include_str!("../tls/version_1.crt"), include_str!("../tls/version_1.key"));
    let mine = KeyPair::generate().unwrap();
    let new = CertificateParams::default().self_signed(&mine).unwrap().pem();
    for (certificate, key) in [(old, old_key.to_owned()), (&new, mine.serialize_pem())] {
        let mut showing = config(&url, Some(&own));
        showing.auth_info.client_certificate_data = Some(encode(certificate));
        showing.auth_info.client_key_data = Some(encode(&key).into());
        assert!(ask(showing).await.unwrap().starts_with(" 1\n"));
    }
    let mut stranger = config(&url, Some(&own));
    stranger.auth_info.client_certificate_data = Some(encode(old));
    stranger.auth_info.client_key_data = Some(encode(&mine.serialize_pem()).into());
    assert!(ask(stranger).await.unwrap_err().contains("another key"));
}

/// OCM-071: tokens of exec plugins, and a token file that changes.
#[tokio::test]
async fn ocm_071_credentials_that_are_fetched() {
    let server = Echo::start(None).await;
    let url = format!("http://{}", server.address);
    let mut exec = config(&url, None);
    let credential = r#"{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":{"token":"fetched"}}"#;
    exec.auth_info.exec = Some(ExecConfig {
        api_version: Some("client.authentication.k8s.io/v1".into()),
        command: Some("echo".into()),
        args: Some(vec![credential.into()]),
        interactive_mode: Some(kube::config::ExecInteractiveMode::Never),
        ..serde_json::from_value(serde_json::json!({})).unwrap()
    });
    let said = ask(exec).await.unwrap();
    assert!(said.to_lowercase().contains("authorization: bearer fetched"), "{said}");
    let dir = std::env::temp_dir().join(format!("kubestellar-connect-{}", uuid::Uuid::new_v4()));
    std::fs::write(&dir, "first").unwrap();
    let file = AuthInfo { token_file: Some(dir.display().to_string()), ..AuthInfo::default() };
    let said = ask(with(config(&url, None), |it| it.auth_info = file)).await.unwrap();
    assert!(said.to_lowercase().contains("authorization: bearer first"), "{said}");
    std::fs::remove_file(&dir).unwrap();
    let mut acting = config(&url, None);
    acting.auth_info.impersonate = Some("alice".into());
    assert!(ask(acting).await.unwrap().to_lowercase().contains("impersonate-user: alice"));
}

/// OCM-071: `proxy-url` is asked for a tunnel, with the credential of its URL.
#[tokio::test]
async fn ocm_071_a_proxy_is_asked_for_a_tunnel() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let proxy = listener.local_addr().unwrap();
    let asked = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await.unwrap());
        }
        stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.unwrap();
        answer(stream, "tunnelled").await;
        String::from_utf8(head).unwrap()
    });
    let through = with(config("http://hub.example:8080", None), |it| {
        it.proxy_url = Some(format!("http://user:pa%40ss@{proxy}").parse().unwrap());
    });
    assert!(ask(through).await.unwrap().starts_with("tunnelled\n"));
    let head = asked.await.unwrap();
    assert!(head.starts_with("CONNECT hub.example:8080 HTTP/1.1"), "{head}");
    assert!(head.to_lowercase().contains("proxy-authorization: basic dxnlcjpwyubzcw=="), "{head}");
    let other =
        with(config("http://a", None), |it| it.proxy_url = Some("socks5://127.0.0.1:1".parse().unwrap()));
    assert!(ask(other).await.unwrap_err().contains("socks5"));
}

/// Answers CONNECT requests by tunnels to where they ask, until `count` were made. Returns the hosts.
async fn tunnel_to(stream: impl AsyncRead + AsyncWrite + Unpin) -> String {
    let mut stream = stream;
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
    let head = String::from_utf8(head).unwrap();
    let target = head.split(' ').nth(1).unwrap().to_owned();
    let mut there = tokio::net::TcpStream::connect(&target).await.unwrap();
    stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.unwrap();
    let _ = tokio::io::copy_bidirectional(&mut stream, &mut there).await;
    target
}

/// OCM-071: a proxy that speaks HTTPS is verified like the server.
#[tokio::test]
async fn ocm_071_a_proxy_may_speak_https() {
    let (own, key, _) = self_signed(|_| ());
    let server = Echo::start(Some(serving(&own, &key))).await;
    let (proxys, proxy_key, _) = self_signed(|_| ());
    let acceptor = TlsAcceptor::from(Arc::new(serving(&proxys, &proxy_key)));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let proxy = listener.local_addr().unwrap();
    let proxying = tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            if let Ok(stream) = acceptor.accept(stream).await {
                return tunnel_to(stream).await;
            }
        }
    });
    let through = |roots: &[&CertificateDer<'static>]| {
        let roots = roots.iter().map(|root| root.to_vec()).collect();
        with(config(&format!("https://{}", server.address), None), |it| {
            it.root_cert = Some(roots);
            it.proxy_url = Some(format!("https://{proxy}").parse().unwrap());
        })
    };
    let refused = ask(through(&[&own])).await.unwrap_err();
    assert!(refused.contains("certificate signed by unknown authority"), "{refused}");
    assert!(ask(through(&[&own, &proxys])).await.unwrap().contains("GET /version"));
    assert_eq!(proxying.await.unwrap(), server.address.to_string());
}

/// OCM-071: the proxy of the environment is used unless NO_PROXY covers the server; the one of a kubeconfig always.
#[tokio::test]
async fn ocm_071_exceptions_are_for_the_proxy_of_the_environment() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let proxy = format!("http://{}", listener.local_addr().unwrap());
    let proxying = tokio::spawn(async move {
        let mut asked = Vec::new();
        for _ in 0..2 {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                head.push(stream.read_u8().await.unwrap());
            }
            asked.push(String::from_utf8(head).unwrap().split(' ').nth(1).unwrap().to_owned());
            stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await.unwrap();
        }
        asked
    });
    let environment = |none: &str| Proxies::new("", &proxy, none);
    let ask = |url: &str, own: Option<&str>, environment: Proxies| {
        let config = with(config(url, None), |it| it.proxy_url = own.map(|own| own.parse().unwrap()));
        async move {
            let client = connected(&config, &environment, Reach::Everywhere).unwrap();
            let request = Request::get("/version").body(Vec::new()).unwrap();
            client.request::<String>(request).await.map_err(|error| error.to_string())
        }
    };
    // What `kube` found in the environment, for a server that is covered: the name cannot be resolved.
    let direct = ask("https://hub.invalid:6443", Some(&proxy), environment(".invalid")).await.unwrap_err();
    assert!(!direct.contains("tls"), "{direct}");
    // For one that is not, and whose proxy `kube` did not find.
    let _ = ask("https://hub.invalid:6443", None, environment("other")).await;
    // A kubeconfig's own proxy, for a server that is covered.
    let _ = ask("https://hub.invalid:1", Some(&format!("{proxy}/own")), environment("*")).await;
    assert_eq!(proxying.await.unwrap(), ["hub.invalid:6443", "hub.invalid:1"]);
}

/// SP-038: a client with a bound refuses addresses and names beyond it, also that of a proxy, and says so.
#[tokio::test]
async fn sp_038_a_client_stays_within_its_reach() {
    let echo = Echo::start(None).await;
    let port = echo.address.port();
    let of = |url: &str, proxy: Option<&str>| {
        with(config(url, None), |it| it.proxy_url = proxy.map(|proxy| proxy.parse().unwrap()))
    };
    let ask_within = async |config: Config, reach: Reach| {
        let request = Request::get("/x").body(Vec::new()).unwrap();
        let answer: Result<String, _> = client_within(config, reach).unwrap().request(request).await;
        answer.map_err(|error| format!("{error}"))
    };
    let here = [format!("http://127.0.0.1:{port}"), format!("http://localhost:{port}")];
    for url in &here {
        assert!(ask_within(of(url, None), Reach::Servers).await.is_ok(), "{url}");
        let refused = ask_within(of(url, None), Reach::OtherMachines).await.unwrap_err();
        assert!(refused.contains("is an address of this machine, which is the pod itself"), "{refused}");
    }
    let proxied = of("http://hub.example", Some(&here[0]));
    let refused = ask_within(proxied, Reach::OtherMachines).await.unwrap_err();
    assert!(refused.contains("an address of this machine"), "{refused}");
    let cloud = ask_within(of("http://169.254.169.254", None), Reach::Servers).await.unwrap_err();
    assert!(cloud.contains("169.254.169.254 is a link-local address"), "{cloud}");
}

/// SP-084: an error names what failed, in the words of Go's clients.
#[tokio::test]
async fn sp_084_errors_of_connections_name_the_cause() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let free = listener.local_addr().unwrap();
    drop(listener);
    let said = ask(config(&format!("https://{free}"), None)).await.unwrap_err();
    assert!(said.contains(&format!("connecting to https://{free}: connection refused")), "{said}");
    let said = ask(config("https://no-such-host.invalid", None)).await.unwrap_err();
    assert!(said.contains("no-such-host.invalid: ") && !said.contains("client error"), "{said}");
    // A server without TLS answers a handshake so.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let plain = listener.local_addr().unwrap();
    let answering = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await.unwrap();
        stream
    });
    let said = ask(config(&format!("https://{plain}"), None)).await.unwrap_err();
    assert!(said.contains("tls: first record does not look like a TLS handshake"), "{said}");
    drop(answering.await.unwrap());
    let (old, key, _) = self_signed(|params| params.not_after = rcgen::date_time_ymd(2001, 1, 1));
    let server = Echo::start(Some(serving(&old, &key))).await;
    let said = ask(config(&format!("https://{}", server.address), Some(&old))).await.unwrap_err();
    assert!(said.contains("x509: certificate has expired or is not yet valid"), "{said}");
    assert!(!said.contains("client error"), "{said}");
}
