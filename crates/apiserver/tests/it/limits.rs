//! Limits for clients, and order under concurrency.

use std::sync::Arc;
use std::task::{Context, Waker};

use crate::common::{CM, TestServer, cm};
use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use kubestellar_apiserver::authn::{Authenticator, AuthnConfig};
use kubestellar_apiserver::identity::{Caller, UserInfo};
use kubestellar_apiserver::server::{ApiServer, ApiServerConfig, Limits};
use serde_json::json;
use store::Engine;

async fn limited(limits: Limits) -> Arc<ApiServer> {
    let store = Engine::in_memory().space("limited").expect("a new space");
    let authenticator = Arc::new(Authenticator::new(AuthnConfig::default()).expect("no credentials"));
    let mut config = ApiServerConfig::open(store, authenticator);
    config.limits = limits;
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
    let server = limited(Limits { in_flight: 0, ..Limits::default() }).await;
    let refused = get(&server, "/api/v1/namespaces", &[]).await;
    assert_eq!(refused.status(), 429);
    assert_eq!(refused.headers().get("retry-after").map(|v| v.as_bytes()), Some(&b"1"[..]));
    assert_eq!(refused.body(), "Too many requests, please try again later.");
    assert_eq!(get(&server, "/api/v1/namespaces", &["system:masters"]).await.status(), 200);
    assert_eq!(get(&server, "/readyz", &[]).await.body(), "ok");
}

/// AS-070: requests of `system:masters` have a limit of their own.
#[tokio::test]
async fn as_070_requests_of_masters_are_bounded_too() {
    const MASTERS: &[&str] = &["system:masters"];
    let server = limited(Limits { in_flight_masters: 1, ..Limits::default() }).await;
    let path = "/api/v1/namespaces";
    // Waits for a future revision.
    let mut waiting = Box::pin(get(&server, "/api/v1/namespaces?resourceVersion=99999999", MASTERS));
    assert!(waiting.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    assert_eq!(get(&server, path, MASTERS).await.status(), 429);
    assert_eq!(get(&server, path, &[]).await.status(), 200);
    assert_eq!(get(&server, "/readyz", MASTERS).await.body(), "ok");
    drop(waiting);
    assert_eq!(get(&server, path, MASTERS).await.status(), 200);
}

/// AS-021: the objects of a collection are deleted concurrently.
#[tokio::test]
async fn as_021_objects_of_a_collection_are_deleted_side_by_side() {
    let s = TestServer::start().await;
    for n in 0..10 {
        s.post(CM, cm(&format!("c{n}"), json!({}))).await.expect(201);
    }
    let store = s.server.store().clone();
    let mut watch = store.watch_all(store.revision()).expect("a watch");
    let mut deleting = Box::pin(s.delete(CM));
    // Polled once: sequential deletion would write only the first object.
    let _ = deleting.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    let all = async {
        for _ in 0..10 {
            watch.next().await.expect("an event");
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(60), all).await.expect("in time");
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

/// AS-004, SP-107: a server whose store accepts no writes is not ready, and after a while not alive; the answer names
/// the cause.
#[tokio::test]
async fn as_004_health_tells_of_a_store_that_accepts_no_writes() {
    const FAULT: &str = "[-]etcd failed: the store is closed\n";
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

/// AS-009: metrics of requests, durations, watches and stored objects, in the text format.
#[tokio::test]
async fn as_009_metrics_count_requests_watches_and_objects() {
    let s = TestServer::start().await;
    s.post(CM, cm("a", json!({}))).await.expect(201);
    s.post(CM, cm("a", json!({}))).await.expect(409);
    s.get("/apis/nobody.example/v1/things/with-many-names").await.expect(404);
    s.send("BREW", "/api/v1/namespaces", &[], "").await;
    let rv = s.get(CM).await.expect(200).rv();
    let mut watch = s.watch(&format!("{CM}?watch=1&resourceVersion={rv}")).await;
    s.post(CM, cm("b", json!({}))).await.expect(201);
    assert_eq!(watch.brief().await, "ADDED b");
    let answer = s.get("/metrics").await.expect(200);
    assert_eq!(answer.header("content-type"), "text/plain; version=0.0.4; charset=utf-8");
    let has = |line: &str| assert!(answer.text.lines().any(|l| l == line), "no {line} in\n{}", answer.text);
    let maps = r#"group="",resource="configmaps",scope="namespace",subresource="",verb="POST",version="v1""#;
    has(&format!(r#"apiserver_request_total{{code="201",{maps}}} 2"#));
    has(&format!(r#"apiserver_request_total{{code="409",{maps}}} 1"#));
    has(&format!(r#"apiserver_request_duration_seconds_bucket{{{maps},le="+Inf"}} 3"#));
    has(&format!("apiserver_request_duration_seconds_count{{{maps}}} 3"));
    has("# TYPE apiserver_request_duration_seconds histogram");
    has(r#"apiserver_storage_objects{resource="configmaps"} 2"#);
    has(r#"apiserver_current_inflight_requests{request_kind="readOnly"} 1"#);
    has(r#"apiserver_current_inflight_requests{request_kind="mutating"} 0"#);
    let watches = maps.replace("POST", "WATCH");
    has(&format!("apiserver_longrunning_requests{{{watches}}} 1"));
    has(r#"apiserver_watch_events_total{group="",kind="ConfigMap",version="v1"} 1"#);
    assert!(!answer.text.contains("nobody.example"), "paths that lead nowhere make no series");
    drop(watch);
    let text = s.get("/metrics").await.expect(200).text;
    assert!(!text.contains("apiserver_longrunning_requests{"), "{text}");
    s.post("/metrics", json!({})).await.expect(405);
}
