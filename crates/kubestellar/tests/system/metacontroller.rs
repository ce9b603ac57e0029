//! Metacontroller: as a part of `up`, and as a process of its own against a kubeconfig.

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

/// MC-A-84, MC-A-85, MC-134, MC-200, MC-202, MC-208: the process alone: flags, metrics, probes, its share of the
/// controllers, a lease.
#[tokio::test(flavor = "multi_thread")]
async fn mc_a_84_a_process_of_its_own() {
    let ks = Installation::new();
    ks.must(&["up", "--listen", "127.0.0.1:0", "--clusters", "0", "--metacontroller"]).await;
    let its = ks.client("its1").await;
    for crd in apis::crds::metacontroller() {
        let mut value = serde_json::to_value(&crd).unwrap();
        (value["apiVersion"], value["kind"]) =
            (json!("apiextensions.k8s.io/v1"), json!("CustomResourceDefinition"));
        create(&its, value).await;
    }
    parents(&its).await;
    let refused = ks.run(&["metacontroller", "--context", "its1", "--apply-strategy", "magic"]).await;
    refused.fails(2, &["magic"]);
    let kubeconfig = ks.kubeconfig().display().to_string();
    let free = || TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let (metrics, probes) = (free(), free());
    let server = ks.spawn(
        "metacontroller",
        &[
            "metacontroller",
            "--kubeconfig",
            &kubeconfig,
            "--context",
            "its1",
            "--metrics-address",
            &metrics,
            "--health-probe-bind-address",
            &probes,
            "--target-label-selector",
            "run=yes",
            "--leader-election",
            "--leader-election-namespace",
            "default",
            "--client-go-qps",
            "100",
            "--client-go-burst",
            "100",
        ],
    );
    let url = hook();
    controller(&its, "no", &url, json!({})).await;
    controller(&its, "mc1", &url, json!({"run": "yes"})).await;
    let maps = dynamic(&its, "v1", "ConfigMap", Some("default"));
    let copy = until_one(&maps, "s-copy", "copied", |_| true).await;
    assert_eq!(copy.data["data"]["by"], json!("mc1"));
    let lines = get(&metrics, "/metrics");
    let wanted = format!(
        "metacontroller_map_requests_total{{code=\"200\",url=\"{url}/\",controller_name=\"mc1\",controller_type=\"MapController\",method=\"post\"}}"
    );
    assert!(lines.contains(&wanted), "{lines}");
    assert!(
        lines.contains("workqueue_depth{name=\"MapController-mc1\"}")
            && lines.contains("leader_election_master_status")
    );
    for page in ["/healthz", "/readyz"] {
        assert!(get(&probes, page).starts_with("HTTP/1.1 200"), "{page}");
    }
    let controllers = dynamic(&its, "metacontroller.k8s.io/v1alpha1", "MapController", None);
    assert!(controllers.get("no").await.unwrap().data.get("status").is_none(), "not selected, not started");
    server.stop().await;
    ks.must(&["down"]).await;
}

fn get(address: &str, path: &str) -> String {
    use std::io::{Read, Write};
    let mut stream = std::net::TcpStream::connect(address).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    text
}
