//! Metacontroller as a part of `up`.

use std::net::TcpListener;

use kube::Client;
use serde_json::{Value, json};

use crate::support::{Installation, create, dynamic, until_one};

/// A hook server that answers each request with a ConfigMap named after the input, on a thread of its own.
fn hook() -> String {
    use std::io::{BufRead, BufReader, Read, Write};
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { continue };
            let mut reader = BufReader::new(stream.try_clone().unwrap());
            let (mut length, mut line) = (0, String::new());
            while reader.read_line(&mut line).is_ok_and(|read| read > 2) {
                if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                    length = value.trim().parse().unwrap();
                }
                line.clear();
            }
            let mut body = vec![0; length];
            if length == 0 || reader.read_exact(&mut body).is_err() {
                continue;
            }
            let request: Value = serde_json::from_slice(&body).unwrap();
            let name = format!("{}-copy", request["input"]["metadata"]["name"].as_str().unwrap());
            let copy = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"by": request["controller"]["metadata"]["name"]}});
            let answer = json!({"outputs": [copy]}).to_string();
            let head =
                "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length:";
            let _ = write!(stream, "{head} {}\r\n\r\n{answer}", answer.len());
        }
    });
    url
}

/// A MapController that makes a ConfigMap of each selected Secret.
async fn controller(client: &Client, name: &str, url: &str, labels: Value) {
    let controller = json!({
        "apiVersion": "metacontroller.k8s.io/v1alpha1", "kind": "MapController", "metadata": {"name": name, "labels": labels},
        "spec": {
            "parentResource": {"apiVersion": "example.com/v1", "resource": "copiers"},
            "inputResources": [{"apiVersion": "v1", "resource": "secrets"}],
            "outputResources": [{"apiVersion": "v1", "resource": "configmaps"}],
            "hooks": {"map": {"webhook": {"url": url}}},
        },
    });
    create(client, controller).await;
}

async fn parents(client: &Client) {
    let open = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": "copiers.example.com"},
        "spec": {
            "group": "example.com", "scope": "Namespaced",
            "names": {"kind": "Copier", "plural": "copiers", "singular": "copier", "listKind": "CopierList"},
            "versions": [{"name": "v1", "served": true, "storage": true, "subresources": {"status": {}},
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": open, "status": open}}}}],
        },
    });
    create(client, definition).await;
    let crds = dynamic(client, "apiextensions.k8s.io/v1", "CustomResourceDefinition", None);
    let served = |crd: &kube::api::DynamicObject| {
        let conditions = crd.data["status"]["conditions"].as_array().cloned().unwrap_or_default();
        conditions.iter().any(|c| c["type"] == "Established" && c["status"] == "True")
    };
    until_one(&crds, "copiers.example.com", "served", served).await;
    let parent = json!({"apiVersion": "example.com/v1", "kind": "Copier", "metadata": {"name": "p", "namespace": "default"}, "spec": {"selector": {"matchLabels": {"copy": "me"}}}});
    create(client, parent).await;
    let input = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s", "namespace": "default", "labels": {"copy": "me"}}});
    create(client, input).await;
}

/// `up --metacontroller` runs it in the WDS, with its definitions and rights, also after a restart; without the flag
/// nothing of it is there, and a second `up` adds it.
#[tokio::test(flavor = "multi_thread")]
async fn mc_209_up_with_metacontroller() {
    let ks = Installation::new();
    ks.must(&["up", "--listen", "127.0.0.1:0", "--clusters", "0"]).await;
    ks.must(&["up", "--metacontroller"]).await;
    let wds = ks.client("wds1").await;
    parents(&wds).await;
    controller(&wds, "mc", &hook(), json!({})).await;
    let maps = dynamic(&wds, "v1", "ConfigMap", Some("default"));
    until_one(&maps, "s-copy", "copied", |_| true).await;
    let copiers = dynamic(&wds, "example.com/v1", "Copier", Some("default"));
    let counted = |copier: &kube::api::DynamicObject| {
        copier.data["status"]["outputs"]["configmaps"]["total"] == json!(1)
            && copier.data["status"]["inputs"]["secrets"]["total"] == json!(1)
    };
    until_one(&copiers, "p", "counted", counted).await;
    ks.must(&["down"]).await;
    ks.must(&["up"]).await;
    let wds = ks.client("wds1").await;
    let input = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "t", "namespace": "default", "labels": {"copy": "me"}}});
    create(&wds, input).await;
    let maps = dynamic(&wds, "v1", "ConfigMap", Some("default"));
    until_one(&maps, "t-copy", "copied after a restart", |_| true).await;
    ks.must(&["down"]).await;
}
