//! Expensive requests of one user do not delay other users, and multiplying bodies are refused.

use std::sync::Arc;
use std::time::Duration;

use crate::common::{Answer, CM, TestServer, cm};
use bytes::Bytes;
use kubestellar_apiserver::server::Limits;
use serde_json::{Value, json};

/// Longest wait for an answer that should come at once.
const DEADLINE: Duration = Duration::from_secs(60);
const STRATEGIC: &str = "application/strategic-merge-patch+json";

/// Sends a request of an external user.
async fn send_as(
    server: &TestServer,
    user: &str,
    method: &str,
    path: &str,
    kind: &str,
    body: Bytes,
) -> Answer {
    let headers = [("content-type", kind), ("impersonate-user", user)];
    server.send(method, path, &headers, body).await
}

fn finalizers(count: usize) -> Value {
    (0..count).map(|n| Value::from(format!("a.b/f{n}"))).collect()
}

/// Creates an object with `count` finalizers; returns a patch that deletes them all.
async fn large(server: &TestServer, name: &str, count: usize) -> Bytes {
    let mut object = cm(name, json!({}));
    object["metadata"]["finalizers"] = finalizers(count);
    server.post(CM, object).await.expect(201);
    json!({"metadata": {"$deleteFromPrimitiveList/finalizers": finalizers(count)}}).to_string().into()
}

/// AS-070: while four patches of 60,000 elements from one user run, other users are answered: one of another space,
/// and one of the same space whose request is heavy as well.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn as_070_large_patches_of_one_user_keep_nobody_else_waiting() {
    let attacked = Arc::new(TestServer::start().await);
    let other = Arc::new(TestServer::start().await);
    let mut work = Vec::new();
    for n in 0..4 {
        let name = format!("m{n}");
        work.push((format!("{CM}/{name}"), large(&attacked, &name, 60_000).await));
    }
    let mut patches = tokio::task::JoinSet::new();
    for (path, patch) in work {
        let attacked = attacked.clone();
        patches.spawn(async move { send_as(&attacked, "mallory", "PATCH", &path, STRATEGIC, patch).await });
    }
    // A task of its own, because it needs a runtime thread, which the patches must not block.
    let reads = tokio::spawn(async move {
        for _ in 0..5 {
            other.get("/api/v1/namespaces/t").await.expect(200);
            attacked.get("/api/v1/namespaces/t").await.expect(200);
        }
        let body = cm("big", json!({"a": "x".repeat(100_000)})).to_string().into();
        send_as(&attacked, "alice", "POST", CM, "application/json", body).await.expect(201);
    });
    tokio::time::timeout(DEADLINE, reads)
        .await
        .expect("answers while the patches are under way")
        .expect("answers");
    assert!(patches.try_join_next().is_none(), "a patch was done before the reads");
    while let Some(patched) = patches.join_next().await {
        let patched = patched.expect("a patch").expect(200);
        assert_eq!(patched.body["metadata"].get("finalizers"), None);
    }
}

/// AS-070: a user with a full queue gets 429; other users do not.
#[tokio::test]
async fn as_070_a_full_queue_of_one_user_is_no_elses() {
    let limits = Limits { heavy_waiting: 1, ..Limits::default() };
    let server = TestServer::start_with(|config| config.limits = limits).await;
    let patch = large(&server, "m", 3000).await;
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get).max(2);
    let path = format!("{CM}/m?dryRun=All");
    // Half of the cores work, and one request waits.
    let requests =
        (0..cores / 2 + 4).map(|_| send_as(&server, "mallory", "PATCH", &path, STRATEGIC, patch.clone()));
    let other = async {
        let body = cm("big", json!({"a": "x".repeat(100_000)})).to_string().into();
        send_as(&server, "alice", "POST", CM, "application/json", body).await
    };
    let (answers, other) = futures::future::join(futures::future::join_all(requests), other).await;
    other.expect(201);
    let refused: Vec<&Answer> = answers.iter().filter(|answer| answer.status == 429).collect();
    assert_eq!(refused.len(), 3);
    assert!(refused.iter().all(|answer| answer.header("retry-after") == "1"));
    assert!(answers.iter().all(|answer| matches!(answer.status, 200 | 429)));
}

/// YAML that expands to 9 to the power of 9 elements.
fn bomb() -> String {
    let mut text = String::from(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: bomb}\ndata:\n  a0: &a0 [x,x,x,x,x,x,x,x,x]\n",
    );
    for n in 1..9 {
        let aliases = vec![format!("*a{}", n - 1); 9].join(",");
        text.push_str(&format!("  a{n}: &a{n} [{aliases}]\n"));
    }
    text
}

/// CVE-2019-11253: multiplying YAML aliases are refused wherever YAML is parsed.
#[tokio::test]
async fn cve_2019_11253_yaml_that_multiplies_is_refused() {
    let server = TestServer::start().await;
    let sent = async {
        for (method, path, kind) in [
            ("POST", CM.to_owned(), "application/yaml"),
            ("PATCH", format!("{CM}/bomb?fieldManager=m"), "application/apply-patch+yaml"),
        ] {
            let answer = server.send(method, &path, &[("content-type", kind)], bomb()).await.expect(400);
            assert!(answer.text.len() < 100_000, "{} bytes", answer.text.len());
        }
    };
    tokio::time::timeout(DEADLINE, sent).await.expect("refused at once");
}

/// CVE-2019-11254: YAML that took the parser of Kubernetes minutes is parsed or refused quickly.
#[tokio::test]
async fn cve_2019_11254_yaml_that_is_slow_to_read_is_not() {
    let server = TestServer::start().await;
    let head = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: slow}\ndata:\n";
    let texts = [
        format!("{head}  a: {}", "\"\\x41\" ".repeat(20_000)),
        format!("{head}{}", "? ".repeat(50_000)),
        format!("{head}  a: |\n{}", "    x\n\n\n".repeat(20_000)),
        format!("{head}  a: {}", "- ".repeat(100_000)),
        format!("{head}  a: '{}", "''".repeat(100_000)),
    ];
    let sent = async {
        for text in texts {
            let yaml = [("content-type", "application/yaml")];
            let answer = server.send("POST", CM, &yaml, text).await;
            assert!(matches!(answer.status, 201 | 400), "{}", answer.status);
            server.delete(&format!("{CM}/slow")).await;
        }
    };
    tokio::time::timeout(DEADLINE, sent).await.expect("answered in time");
}

/// CVE-2019-11253 for JSON patches: doubling copies are refused (with the limits of Kubernetes), and so are repeated
/// moves of a large part to a greater depth.
#[tokio::test]
async fn cve_2019_11253_json_patches_that_multiply_are_refused() {
    let server = TestServer::start().await;
    server.post(CM, cm("m", json!({"a": "x".repeat(1000)}))).await.expect(201);
    let double: Vec<Value> =
        (0..60).map(|n| json!({"op": "copy", "from": "/data", "path": format!("/data/c{n}")})).collect();
    let answer = server.patch("json", &format!("{CM}/m"), json!(double)).await;
    assert!(matches!(answer.status, 413 | 422), "{}", answer.text);
    let many: Value =
        (0..5000).map(|n| (format!("k{n}"), json!("x"))).collect::<serde_json::Map<_, _>>().into();
    server.post(CM, cm("wide", many)).await.expect(201);
    let turns = |n: usize| match n % 2 {
        0 => json!({"op": "move", "from": "/data", "path": "/metadata/x"}),
        _ => json!({"op": "move", "from": "/metadata/x", "path": "/data"}),
    };
    let moves: Vec<Value> = (0..10_000).map(turns).collect();
    let answer = server.patch("json", &format!("{CM}/wide"), json!(moves)).await.expect(413);
    assert!(answer.message().starts_with("Unable to complete the move"), "{}", answer.message());
}

/// A name of a megabyte above ten thousand errors is not repeated ten thousand times.
#[tokio::test]
async fn as_002_answers_about_faults_are_bounded() {
    let server = TestServer::start().await;
    let inner: serde_json::Map<String, Value> = (0..20_000).map(|n| (format!("u{n}"), json!(1))).collect();
    let schema = json!({"type": "object", "properties": {"x".repeat(500_000): Value::Object(inner)}});
    let definition = json!({"metadata": {"name": "things.ex.com"}, "spec": {"group": "ex.com", "scope": "Cluster",
        "names": {"plural": "things", "kind": "Thing"},
        "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}}]}});
    let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions?fieldValidation=Strict";
    let answer = server.post(path, definition).await.expect(400);
    assert!(answer.text.len() < 20 << 20, "{} bytes", answer.text.len());
}

/// AS-009: no text of a client becomes a label of the metrics.
///
/// CVE-2020-8552: the name of the client was a label of the request counter of kube-apiserver, so that requests filled its memory.
#[tokio::test]
async fn as_009_cve_2020_8552_no_client_chooses_labels_of_the_metrics() {
    let server = TestServer::start().await;
    for n in 0..300 {
        let odd = format!("zz-{n}");
        let agent =
            [("user-agent", odd.as_str()), ("content-type", "application/json"), ("accept", odd.as_str())];
        for path in [
            CM.to_owned(),
            format!("{CM}/{odd}"),
            format!("{CM}/a/{odd}"),
            format!("/api/v1/{odd}"),
            format!("/apis/{odd}/v1/pods"),
            format!("/apis/apps/{odd}/deployments"),
            format!("/{odd}"),
            format!("/healthz/{odd}"),
            format!("/api/v1/namespaces/{odd}/pods?{odd}={odd}&labelSelector={odd}"),
        ] {
            server.send("GET", &path, &agent, "").await;
        }
        server.send(&format!("ZZ{n}"), CM, &agent, "").await;
        server
            .send("PATCH", &format!("{CM}/a"), &[("content-type", &format!("application/{odd}"))], "{}")
            .await;
    }
    let metrics = server.get("/metrics").await.expect(200);
    assert!(metrics.text.contains("apiserver_request_total"));
    assert!(!metrics.text.to_lowercase().contains("zz"), "{}", metrics.text);
}
