//! Lists, pages, selectors and watches over [`kubestellar_apiserver::server::ApiServer::call`].

use crate::common::{CM, TestServer, cm};
use serde_json::{Value, json};

async fn five(s: &TestServer) {
    for n in 0..5 {
        let labels = json!({"n": n.to_string(), "odd": (n % 2 == 1).to_string()});
        s.post(CM, json!({"metadata": {"name": format!("c{n}"), "labels": labels}})).await.expect(201);
    }
}

/// AS-023: limit and continue.
#[tokio::test]
async fn as_a_094_to_096_pages_show_one_state() {
    let s = TestServer::start().await;
    five(&s).await;
    let first = s.get(&format!("{CM}?limit=2")).await.expect(200);
    assert_eq!(first.names(), ["c0", "c1"]);
    assert_eq!(first.body["metadata"]["remainingItemCount"], 3);
    s.post(CM, cm("c2a", json!({}))).await.expect(201);
    s.delete(&format!("{CM}/c3")).await.expect(200);
    let token = first.body["metadata"]["continue"].as_str().unwrap_or_default().to_owned();
    let second = s.get(&format!("{CM}?limit=2&continue={token}")).await.expect(200);
    assert_eq!(second.names(), ["c2", "c3"]);
    assert_eq!(second.rv(), first.rv());
    let token = second.body["metadata"]["continue"].as_str().unwrap_or_default().to_owned();
    let third = s.get(&format!("{CM}?limit=2&continue={token}")).await.expect(200);
    assert_eq!(third.names(), ["c4"]);
    assert_eq!(third.body["metadata"].get("continue"), None);
    let versioned = s.get(&format!("{CM}?continue={token}&resourceVersion=5")).await.expect(400);
    assert_eq!(versioned.message(), "specifying resource version is not allowed when using continue");
    let garbage = s.get(&format!("{CM}?continue=garbage")).await.expect(400);
    assert!(garbage.message().starts_with("invalid continue token: continue key is not valid"));
    let selected = s.get(&format!("{CM}?limit=1&labelSelector=odd%3Dfalse")).await.expect(200);
    assert_eq!(selected.body["metadata"].get("remainingItemCount"), None);
    assert!(selected.body["metadata"]["continue"].is_string());
    let item = &first.body["items"][0];
    assert!(item.get("kind").is_none() && item.get("apiVersion").is_none(), "typed items name no kind");
    let all = s.get("/api/v1/configmaps?limit=3").await.expect(200);
    let token = all.body["metadata"]["continue"].as_str().unwrap_or_default().to_owned();
    assert_eq!(
        s.get(&format!("/api/v1/configmaps?continue={token}")).await.expect(200).names(),
        ["c2a", "c4"].map(|n| n)
    );
}

/// AS-022: resourceVersion and resourceVersionMatch of lists.
#[tokio::test]
async fn as_a_100_101_and_104_versions_of_lists() {
    let s = TestServer::start().await;
    let a = s.post(CM, cm("a", json!({}))).await.expect(201);
    s.post(CM, cm("b", json!({}))).await.expect(201);
    let rv = a.rv();
    let exact = s.get(&format!("{CM}?resourceVersion={rv}&resourceVersionMatch=Exact")).await.expect(200);
    assert_eq!((exact.names(), exact.rv()), (vec!["a"], rv));
    let newer =
        s.get(&format!("{CM}?resourceVersion={rv}&resourceVersionMatch=NotOlderThan")).await.expect(200);
    assert_eq!(newer.names(), ["a", "b"]);
    let bad = s.get(&format!("{CM}?resourceVersion=abc")).await.expect(400);
    assert!(bad.message().ends_with("strconv.ParseUint: parsing \"abc\": invalid syntax"));
    s.get(&format!("{CM}?resourceVersionMatch=Exact")).await.expect(422);
    s.get(&format!("{CM}?sendInitialEvents=true")).await.expect(422);
    let empty = s.get("/api/v1/namespaces/nowhere/configmaps").await.expect(200);
    assert_eq!(empty.body["items"], json!([]));
    assert!(empty.text.starts_with(r#"{"kind":"ConfigMapList","apiVersion":"v1","metadata":{"#));
}

/// AS-022: 504 for list and get.
#[tokio::test]
async fn as_a_101_future_versions_time_out() {
    let s = TestServer::start().await;
    s.post(CM, cm("a", json!({}))).await.expect(201);
    tokio::time::pause();
    for path in [CM.to_owned(), format!("{CM}/a")] {
        let future = s.get(&format!("{path}?resourceVersion=99999999")).await.expect(504);
        assert!(future.message().starts_with("Timeout: Too large resource version: 99999999, current: "));
        assert_eq!(future.body["details"]["causes"][0]["reason"], "ResourceVersionTooLarge");
        assert_eq!(future.body["details"]["retryAfterSeconds"], 1);
    }
}

/// AS-024: label and field selectors of lists.
#[tokio::test]
async fn as_a_102_and_103_selectors() {
    let s = TestServer::start().await;
    five(&s).await;
    let list = async |query: &str| s.get(&format!("{CM}?{query}")).await.expect(200).names().join(" ");
    assert_eq!(list("labelSelector=n%20in%20(1%2C2)").await, "c1 c2");
    assert_eq!(list("labelSelector=n%21%3D1").await, "c0 c2 c3 c4");
    assert_eq!(list("labelSelector=n%3E2").await, "c3 c4");
    assert_eq!(list("labelSelector=%21odd").await, "");
    assert_eq!(list("fieldSelector=metadata.name%3Dc3").await, "c3");
    assert_eq!(list("fieldSelector=metadata.name%21%3Dc3%2Cmetadata.namespace%3Dt").await, "c0 c1 c2 c4");
    let unknown = s.get(&format!("{CM}?fieldSelector=data.x%3D1")).await.expect(400);
    assert_eq!(
        unknown.message(),
        "\"data.x\" is not a known field selector: only \"metadata.name\", \"metadata.namespace\""
    );
    s.get(&format!("{CM}?labelSelector=a%20in%20b")).await.expect(400);
}

/// AS-025: events, selector transitions, a watch without resourceVersion. AS-020: no event for a write without change.
#[tokio::test]
async fn as_a_105_to_107_watch_shows_changes_and_selector_transitions() {
    let s = TestServer::start().await;
    let start = s.get(CM).await.rv();
    let mut all = s.watch(&format!("{CM}?watch=1&resourceVersion={start}")).await;
    let mut selected = s.watch(&format!("{CM}?watch=1&labelSelector=in%3Dyes&resourceVersion={start}")).await;
    let path = format!("{CM}/a");
    s.post(CM, json!({"metadata": {"name": "a", "labels": {"in": "yes"}}})).await.expect(201);
    s.patch("merge", &path, json!({"data": {"k": "1"}})).await.expect(200);
    s.patch("merge", &path, json!({"data": {"k": "1"}})).await.expect(200);
    let out = s.patch("merge", &path, json!({"metadata": {"labels": {"in": "no"}}})).await.expect(200);
    s.patch("merge", &path, json!({"metadata": {"labels": {"in": "yes"}}})).await.expect(200);
    let last = s.get(&path).await.rv();
    s.delete(&path).await.expect(200);
    for expected in ["ADDED a", "MODIFIED a", "MODIFIED a", "MODIFIED a"] {
        assert_eq!(all.brief().await, expected);
    }
    let deleted = all.next().await.unwrap_or_default();
    assert_eq!(deleted["type"], "DELETED");
    let version = |event: &Value| {
        event["object"]["metadata"]["resourceVersion"].as_str().and_then(|v| v.parse::<u64>().ok())
    };
    assert!(version(&deleted) > Some(last));
    assert_eq!(selected.brief().await, "ADDED a");
    assert_eq!(selected.brief().await, "MODIFIED a");
    let left = selected.next().await.unwrap_or_default();
    assert_eq!(
        (&left["type"], &left["object"]["metadata"]["labels"]["in"]),
        (&json!("DELETED"), &json!("yes"))
    );
    assert_eq!(version(&left), Some(out.rv()));
    assert_eq!(selected.brief().await, "ADDED a");
    assert_eq!(selected.brief().await, "DELETED a");

    s.post(CM, cm("b", json!({}))).await.expect(201);
    let mut unset = s.watch(&format!("{CM}?watch=true")).await;
    assert_eq!(unset.brief().await, "ADDED b");
    s.post(CM, cm("c", json!({}))).await.expect(201);
    assert_eq!(unset.brief().await, "ADDED c");
}

/// AS-027: a list as a watch, up to its bookmark and beyond.
#[tokio::test]
async fn as_a_111_and_112_streaming_lists() {
    let s = TestServer::start().await;
    five(&s).await;
    let query = "watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true";
    let mut stream = s.watch(&format!("{CM}?{query}")).await;
    for n in 0..5 {
        assert_eq!(stream.brief().await, format!("ADDED c{n}"));
    }
    let end = stream.next().await.unwrap_or_default();
    assert_eq!(end["type"], "BOOKMARK");
    assert_eq!(end["object"]["metadata"]["annotations"], json!({"k8s.io/initial-events-end": "true"}));
    assert_eq!(end["object"]["kind"], "ConfigMap");
    s.delete(&format!("{CM}/c0")).await.expect(200);
    assert_eq!(stream.brief().await, "DELETED c0");
    let refused = s.get(&format!("{CM}?watch=1&sendInitialEvents=true")).await.expect(422);
    assert!(
        refused
            .message()
            .ends_with("sendInitialEvents requires setting resourceVersionMatch to NotOlderThan")
    );
    s.get(&format!("{CM}?watch=1&resourceVersionMatch=NotOlderThan")).await.expect(422);
}

/// AS-025, AS-028: a watch of one object, and of metadata only.
#[tokio::test]
async fn as_a_114_and_118_narrow_watches() {
    let s = TestServer::start().await;
    let rv = s.post(CM, cm("a", json!({"x": "1"}))).await.expect(201).rv();
    let mut one =
        s.watch(&format!("{CM}?watch=1&fieldSelector=metadata.name%3Da&resourceVersion={rv}")).await;
    let mut old = s.watch(&format!("/api/v1/watch/namespaces/t/configmaps/a?resourceVersion={rv}")).await;
    let accept = [("accept", "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1")];
    let mut partial = s.watch_as(&format!("{CM}?watch=1&resourceVersion={rv}"), &accept).await;
    s.post(CM, cm("b", json!({}))).await.expect(201);
    s.patch("merge", &format!("{CM}/a"), json!({"data": {"x": "2"}})).await.expect(200);
    assert_eq!(one.brief().await, "MODIFIED a");
    assert_eq!(old.brief().await, "MODIFIED a");
    let b = partial.next().await.unwrap_or_default();
    assert_eq!(
        (&b["object"]["kind"], &b["object"]["metadata"]["name"]),
        (&json!("PartialObjectMetadata"), &json!("b"))
    );
    assert_eq!(b["object"].get("data"), None);
}

/// AS-025, AS-026: timeoutSeconds; bookmarks.
#[tokio::test]
async fn as_a_109_and_110_watches_end_in_time_and_send_bookmarks() {
    let s = TestServer::start().await;
    let rv = s.post(CM, cm("a", json!({}))).await.expect(201).rv();
    tokio::time::pause();
    let mut stream = s
        .watch(&format!("{CM}?watch=1&timeoutSeconds=90&allowWatchBookmarks=true&resourceVersion={rv}"))
        .await;
    for _ in 0..2 {
        let bookmark = stream.next().await.unwrap_or_default();
        assert_eq!(bookmark["type"], "BOOKMARK");
        assert_eq!(bookmark["object"]["metadata"], json!({"resourceVersion": rv.to_string()}));
    }
    assert_eq!(stream.brief().await, "end");
    let mut silent = s.watch(&format!("{CM}?watch=1&timeoutSeconds=3&resourceVersion={rv}")).await;
    assert_eq!(silent.brief().await, "end");
}

#[tokio::test]
async fn as_025_stopping_the_server_ends_watches() {
    let s = TestServer::start().await;
    let mut stream = s.watch(&format!("{CM}?watch=1")).await;
    s.server.stop().await;
    assert_eq!(stream.brief().await, "end");
}

/// AS-063, AS-025: a watch shows nothing that its user may not see any more, and ends when the right is lost, whether
/// a binding was deleted or a role was reduced; other changes of rights do not end it.
#[tokio::test]
async fn as_063_a_watch_ends_with_the_right_to_it() {
    const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1/namespaces/t";
    let s = TestServer::start_with_roles().await;
    let rules = |verbs: Value| json!([{"apiGroups": [""], "resources": ["configmaps"], "verbs": verbs}]);
    let seeing = rules(json!(["list", "watch"]));
    s.post(&format!("{RBAC}/roles"), json!({"metadata": {"name": "r"}, "rules": seeing})).await.expect(201);
    for (name, user) in [("one", "bob"), ("two", "bob"), ("three", "eve")] {
        let subjects = json!([{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}]);
        let role = json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "r"});
        let binding = json!({"metadata": {"name": name}, "roleRef": role, "subjects": subjects});
        s.post(&format!("{RBAC}/rolebindings"), binding).await.expect(201);
    }
    let (bob, eve) = ([("impersonate-user", "bob")], [("impersonate-user", "eve")]);
    let path = format!("{CM}?watch=1");
    let (mut bobs, mut eves) = (s.watch_as(&path, &bob).await, s.watch_as(&path, &eve).await);
    let mut masters = s.watch(&path).await;
    let make = async |name: &str| drop(s.post(CM, cm(name, json!({}))).await.expect(201));
    make("a").await;
    for stream in [&mut bobs, &mut eves, &mut masters] {
        assert_eq!(stream.brief().await, "ADDED a");
    }
    // Two bindings grant the right.
    s.delete(&format!("{RBAC}/rolebindings/one")).await.expect(200);
    make("b").await;
    for stream in [&mut bobs, &mut eves, &mut masters] {
        assert_eq!(stream.brief().await, "ADDED b");
    }
    s.delete(&format!("{RBAC}/rolebindings/two")).await.expect(200);
    make("c").await;
    assert_eq!(bobs.brief().await, "end");
    for stream in [&mut eves, &mut masters] {
        assert_eq!(stream.brief().await, "ADDED c");
    }
    let now = async |verbs: Value| {
        let patch = json!({"rules": rules(verbs)});
        s.patch("merge", &format!("{RBAC}/roles/r"), patch).await.expect(200);
    };
    now(json!(["watch"])).await;
    make("d").await;
    for stream in [&mut eves, &mut masters] {
        assert_eq!(stream.brief().await, "ADDED d");
    }
    now(json!(["list"])).await;
    make("e").await;
    assert_eq!((eves.brief().await.as_str(), masters.brief().await.as_str()), ("end", "ADDED e"));
    let again = s.send("GET", &path, &eve, "").await;
    assert_eq!(again.status, 403, "{}", again.text);
}

/// AS-029: gzip.
#[tokio::test]
async fn as_a_022_large_lists_are_compressed_when_asked() {
    let s = TestServer::start().await;
    for n in 0..40 {
        s.post(CM, cm(&format!("c{n}"), json!({"x": "y".repeat(5000)}))).await.expect(201);
    }
    let gzip = [("accept-encoding", "gzip")];
    let list = s.send("GET", CM, &gzip, "").await.expect(200);
    assert_eq!((list.header("content-encoding"), list.header("vary")), ("gzip", "Accept-Encoding"));
    let item = s.send("GET", &format!("{CM}/c0"), &gzip, "").await.expect(200);
    assert_eq!(item.header("content-encoding"), "");
    let plain = s.get(CM).await.expect(200);
    assert_eq!(plain.names().len(), 40);
}
