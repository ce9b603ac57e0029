//! Who answers a request: the space that it is for, or the process (SP-055, SP-056).

use apiserver::health;
use apiserver::identity::Caller;
use apiserver::response::{self, Body};
use http::uri::{PathAndQuery, Uri};
use http::{Request, Response, StatusCode, Version};
use hyper::body::Incoming;
use tower::Service as _;

use crate::addressed::{Addressed, Misdirected, addressed, server_name};
use crate::host::{HostFault, check_host};
use crate::router::Router;
use crate::unread::Unread;

/// Seconds after which clients of a stopped space may try again.
const PAUSED_RETRY: u16 = 10;

/// The answer to a request. `sni`: the server name of the TLS handshake.
pub(crate) async fn route(
    router: &Router,
    caller: Caller,
    sni: Option<&str>,
    mut request: Request<Incoming>,
) -> Response<Body> {
    if let Err(fault) = check_host(&request) {
        return doubtful_host(fault, request.version());
    }
    let (mut service, prefix) = match router.find(sni, &request) {
        Ok(Some(found)) => found,
        Ok(None) => return answer_outside_spaces(router, sni, &request),
        Err(misdirected) => return misdirected_request(&misdirected),
    };
    if prefix > 0 {
        match strip(request.uri(), prefix) {
            Some(uri) => *request.uri_mut() = uri,
            None => return space_not_found(&request),
        }
    }
    request.extensions_mut().insert(caller);
    let (request, unread) = Unread::lend(request);
    let mut response = match service.call(request).await {
        Ok(response) => response,
        Err(never) => match never {},
    };
    unread.settle(&mut response).await;
    response
}

/// Answers requests for the process, which are for its health only, and for spaces that do not exist.
fn answer_outside_spaces<B>(router: &Router, sni: Option<&str>, request: &Request<B>) -> Response<Body> {
    let uri = request.uri();
    if let Ok(Addressed { space: Some(space), .. }) = addressed(sni, request) {
        return if router.is_paused(&space) { space_paused() } else { space_not_found(request) };
    }
    let checks = router.checks(uri.path());
    match health::answer(uri.path(), uri.query().unwrap_or_default(), &checks) {
        Some(answer) => answer.map(Body::from),
        None => space_not_found(request),
    }
}

/// The answer of a space that is stopped for a while (SP-050).
fn space_paused() -> Response<Body> {
    let status = serde_json::json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": "the space is stopped", "reason": "ServiceUnavailable",
        "details": {"retryAfterSeconds": PAUSED_RETRY}, "code": 503,
    });
    let mut answer =
        response::new(StatusCode::SERVICE_UNAVAILABLE, "application/json", format!("{status}\n"));
    answer.headers_mut().insert(http::header::RETRY_AFTER, http::HeaderValue::from(PAUSED_RETRY));
    answer
}

/// The answer to a URL without the path of a space, or with an unknown space. It does not list the spaces, because the
/// caller is not authenticated.
fn space_not_found<B>(request: &Request<B>) -> Response<Body> {
    let authority = request.uri().authority().map(http::uri::Authority::as_str);
    let host = request.headers().get(http::header::HOST).and_then(|host| host.to_str().ok());
    let plain = |host: &&str| host.bytes().all(|b| b.is_ascii_alphanumeric() || b".:-[]".contains(&b));
    let host = authority.or(host).filter(plain).unwrap_or("HOST:PORT");
    let message = format!(
        "no space is served at this path; a space is served at https://{host}/spaces/<name>. Programs that replace the path of a \
         server's URL, such as kubectl get --raw and kubectl proxy, need it in front: kubectl get --raw /spaces/<name>/version, or a \
         kubeconfig whose cluster has tls-server-name: {}",
        server_name("<name>")
    );
    refusal(StatusCode::NOT_FOUND, "NotFound", &message)
}

/// The answer to a request whose host is doubtful, as Go's server words it. The connection ends, because a proxy in front may
/// see the next request elsewhere.
fn doubtful_host(fault: HostFault, version: Version) -> Response<Body> {
    let mut answer = response::new(
        StatusCode::BAD_REQUEST,
        "text/plain; charset=utf-8",
        format!("400 Bad Request: {fault}"),
    );
    if version <= Version::HTTP_11 {
        answer.headers_mut().insert(http::header::CONNECTION, http::HeaderValue::from_static("close"));
    }
    answer
}

/// The answer to a request that names two spaces.
fn misdirected_request(misdirected: &Misdirected) -> Response<Body> {
    refusal(StatusCode::MISDIRECTED_REQUEST, "MisdirectedRequest", &misdirected.to_string())
}

fn refusal(code: StatusCode, reason: &str, message: &str) -> Response<Body> {
    let status = serde_json::json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": message, "reason": reason, "details": {}, "code": code.as_u16(),
    });
    response::new(code, "application/json", format!("{status}\n"))
}

/// The URI without the first `prefix` bytes of its path.
fn strip(uri: &Uri, prefix: usize) -> Option<Uri> {
    let path = uri.path().get(prefix..)?;
    let path = if path.is_empty() { "/" } else { path };
    let whole = match uri.query() {
        Some(query) => format!("{path}?{query}"),
        None => path.to_owned(),
    };
    let mut parts = uri.clone().into_parts();
    parts.path_and_query = Some(PathAndQuery::try_from(whole).ok()?);
    Uri::from_parts(parts).ok()
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt as _;

    use super::*;
    use crate::testing::space_in;

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
        assert!(router.names_of("wds1").is_some() && router.names_of("wds2").is_none());
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
