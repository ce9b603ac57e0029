//! What clients cannot make the server do, and order under concurrency.

mod common;

use std::sync::Arc;

use bytes::Bytes;
use common::{CM, TestServer, cm};
use http::Request;
use http_body_util::Full;
use kubestellar_apiserver::authn::{Authenticator, AuthnConfig};
use kubestellar_apiserver::identity::{Caller, UserInfo};
use kubestellar_apiserver::server::{ApiServer, ApiServerConfig, Limits};
use serde_json::json;
use store::Engine;

async fn limited() -> Arc<ApiServer> {
    let store = Engine::in_memory().space("limited").expect("a new space");
    let authenticator = Arc::new(Authenticator::new(AuthnConfig::default()).expect("no credentials"));
    let mut config = ApiServerConfig::open(store, authenticator);
    config.limits = Limits { in_flight: 0, ..Limits::default() };
    ApiServer::start(config).await.expect("a server")
}

async fn get(server: &Arc<ApiServer>, path: &str, groups: &[&str]) -> http::Response<String> {
    let user = Arc::new(UserInfo::internal("somebody", groups));
    let request =
        Request::builder().uri(path).extension(Caller::Internal(user)).body(Full::new(Bytes::new()));
    let response = server.call(request.expect("a request")).await;
    response.map(|body| String::from_utf8_lossy(&body.into_bytes().unwrap_or_default()).into_owned())
}

/// AS-070, overload: spec 10, point 6.
#[tokio::test]
async fn as_070_too_many_requests_are_refused_but_not_of_masters_or_probes() {
    let server = limited().await;
    let refused = get(&server, "/api/v1/namespaces", &[]).await;
    assert_eq!(refused.status(), 429);
    assert_eq!(refused.headers().get("retry-after").map(|v| v.as_bytes()), Some(&b"1"[..]));
    assert_eq!(refused.body(), "Too many requests, please try again later.");
    assert_eq!(get(&server, "/api/v1/namespaces", &["system:masters"]).await.status(), 200);
    assert_eq!(get(&server, "/readyz", &[]).await.body(), "ok");
}

#[tokio::test]
async fn as_070_a_bad_timeout_is_refused() {
    let s = TestServer::start().await;
    let bad = s.get(&format!("{CM}?timeout=abc")).await.expect(400);
    assert_eq!(
        bad.message(),
        "invalid timeout specified in the request URL - time: invalid duration \"abc\""
    );
    s.get(&format!("{CM}?timeout=1m30s")).await.expect(200);
}

/// AS-004: `/readyz` fails first.
#[tokio::test]
async fn as_a_002_readiness_ends_with_the_drain() {
    let s = TestServer::start().await;
    assert_eq!(s.get("/readyz").await.expect(200).text, "ok");
    s.server.drain();
    s.get("/readyz").await.expect(500);
    s.get(CM).await.expect(200);
}

/// AS-025, AS-069: two watches, eight writers.
#[tokio::test]
async fn as_a_113_all_watchers_see_one_order() {
    let s = TestServer::start().await;
    let rv = s.get(CM).await.rv();
    let path = format!("{CM}?watch=1&resourceVersion={rv}");
    let (mut one, mut two) = (s.watch(&path).await, s.watch(&path).await);
    let writers = (0..8).map(async |w| {
        for n in 0..20 {
            let name = format!("c{}", (w * 7 + n * 3) % 5);
            let answer = s.post(CM, cm(&name, json!({"w": w.to_string()}))).await;
            if answer.status == 409 {
                s.delete(&format!("{CM}/{name}")).await;
            }
        }
    });
    futures::future::join_all(writers).await;
    s.post(CM, cm("last", json!({}))).await.expect(201);
    let mut last = rv;
    loop {
        let (a, b) = (one.next().await.expect("open"), two.next().await.expect("open"));
        assert_eq!(a, b);
        let version =
            a["object"]["metadata"]["resourceVersion"].as_str().and_then(|v| v.parse().ok()).unwrap_or(0);
        assert!(version > last);
        last = version;
        if a["object"]["metadata"]["name"] == "last" {
            break;
        }
    }
}

/// AS-004: storage that accepts no writes is not ready, and after a while not alive.
#[tokio::test]
async fn as_004_health_tells_of_a_store_that_accepts_no_writes() {
    const FAULT: &str = "[-]etcd failed: reason withheld\n";
    let s = TestServer::start().await;
    assert!(s.server.ready());
    for path in ["/healthz", "/livez", "/readyz"] {
        assert_eq!(s.get(path).await.expect(200).text, "ok");
    }
    s.engine.close().await.expect("a closed engine");
    assert!(!s.server.ready());
    for path in ["/healthz", "/readyz"] {
        let text = s.get(path).await.expect(500).text;
        assert!(text.contains(FAULT) && text.contains("[+]ping ok\n"), "{text}");
    }
    s.get("/readyz/etcd").await.expect(500);
    s.get("/livez").await.expect(200);
    tokio::time::pause();
    tokio::time::advance(std::time::Duration::from_secs(31)).await;
    assert!(s.get("/livez").await.expect(500).text.contains(FAULT));
}

/// AS-004: a graceful stop is no reason to restart.
#[tokio::test]
async fn as_004_a_draining_server_is_alive() {
    let s = TestServer::start().await;
    s.server.drain();
    let text = s.get("/readyz").await.expect(500).text;
    assert!(
        text.contains("[-]shutdown failed") && text.contains("[+]poststarthook/rbac/bootstrap-roles ok"),
        "{text}"
    );
    s.get("/livez").await.expect(200);
    s.server.stop().await;
    s.get("/readyz/informer-sync").await.expect(500);
}
