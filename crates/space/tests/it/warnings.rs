//! What a space of an installation says that a real API server does not.

use serde_json::json;

use crate::workloads::{CORE, Cluster};

/// AS-073: who creates an object that a space stores and does not enforce is told so.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn as_073_a_space_says_what_it_does_not_enforce() {
    let s = Cluster::start().await;
    let quota = json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "few"}, "spec": {"hard": {"pods": "1"}}});
    let request =
        http::Request::post(format!("{CORE}/resourcequotas")).header("content-type", "application/json");
    let answer = s.client.send(request.body(quota.to_string().into_bytes().into()).unwrap()).await.unwrap();
    assert_eq!(answer.status(), 201);
    let warning = answer.headers().get("warning").and_then(|text| text.to_str().ok()).unwrap_or_default();
    assert!(warning.contains("not enforced by this API server"), "{warning:?}");
    s.stop().await;
}
