//! Metacontroller as a part of `up`, and as a process of its own beside a space.

use std::net::TcpListener;

use k8s_openapi::api::coordination::v1::Lease;
use kube::{
    Api, Client,
    api::{Patch, PatchParams},
};
use machinery::yaml;
use serde_json::{Value, json};

use super::dropin::Component;
use crate::support::{Installation, create, dynamic, until_one, within};

/// A hook server that answers each request with a ConfigMap named after the input.
fn hook() -> String {
    answering(|request| {
        let name = format!("{}-copy", request["input"]["metadata"]["name"].as_str().unwrap());
        json!({"outputs": [{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"by": request["controller"]["metadata"]["name"]}}]})
    })
}

/// A hook server on a thread of its own.
fn answering(answer: impl Fn(&Value) -> Value + Send + 'static) -> String {
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
            let answer = answer(&serde_json::from_slice(&body).unwrap()).to_string();
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

/// Metacontroller alone, with the rights of a kubeconfig, spelled as a Deployment of the Go program does.
fn alone(ks: &Installation, name: &str, kubeconfig: &str, more: &[&str]) -> Component {
    let flags = [
        "metacontroller",
        "--kubeconfig",
        kubeconfig,
        "-metrics-address=127.0.0.1:0",
        "-pprof-address",
        "127.0.0.1:0",
        "--health-probe-bind-address=127.0.0.1:0",
        "-client-go-qps=1000",
        "-client-go-burst=1000",
    ];
    Component { server: ks.spawn(name, &[&flags[..], more].concat()) }
}

/// The definitions of the kinds, as an administrator applies them.
async fn define(client: &Client) {
    for crd in apis::crds::metacontroller() {
        let mut crd = serde_json::to_value(crd).unwrap();
        crd["apiVersion"] = json!("apiextensions.k8s.io/v1");
        crd["kind"] = json!("CustomResourceDefinition");
        let name = crd["metadata"]["name"].as_str().unwrap().to_owned();
        create(client, crd).await;
        served(client, &name).await;
    }
}

async fn served(client: &Client, name: &str) {
    let crds = dynamic(client, "apiextensions.k8s.io/v1", "CustomResourceDefinition", None);
    let served = |crd: &kube::api::DynamicObject| {
        let conditions = crd.data["status"]["conditions"].as_array().cloned().unwrap_or_default();
        conditions.iter().any(|c| c["type"] == "Established" && c["status"] == "True")
    };
    until_one(&crds, name, "served", served).await;
}

fn input(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": "default", "labels": {"copy": "me"}}})
}

/// A scrape that Prometheus takes: each family is described once.
fn check_families(page: &str) {
    let mut described: Vec<&str> =
        page.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()).collect();
    let all = described.len();
    described.sort_unstable();
    described.dedup();
    assert_eq!(described.len(), all, "a family is described twice in {page}");
}

/// MC-201, MC-202, MC-205, MC-107, MC-200, MC-A-84: the process alone against a served space: a MapController works,
/// metrics and probes answer, SIGTERM ends it cleanly, and neither that nor a crash loses anything. Bodies are logged at
/// level 6 only, credentials never.
#[tokio::test(flavor = "multi_thread")]
async fn mc_201_the_process_alone() {
    let ks = Installation::new();
    let server = ks.serve(&["--listen", "127.0.0.1:0", "--clusters", "0"]).await;
    let wds = ks.client("wds1").await;
    define(&wds).await;
    parents(&wds).await;
    let token = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "token", "namespace": "default"}, "stringData": {"token": "hush-hush"}});
    create(&wds, token).await;
    let authorization = json!({"secretRef": {"name": "token", "namespace": "default", "key": "token"}});
    let mc = json!({
        "apiVersion": "metacontroller.k8s.io/v1alpha1", "kind": "MapController", "metadata": {"name": "mc"},
        "spec": {
            "parentResource": {"apiVersion": "example.com/v1", "resource": "copiers"},
            "inputResources": [{"apiVersion": "v1", "resource": "secrets"}],
            "outputResources": [{"apiVersion": "v1", "resource": "configmaps"}],
            "hooks": {"map": {"webhook": {"url": hook(), "authorization": authorization}}},
        },
    });
    create(&wds, mc).await;
    let kubeconfig = ks.data().join("kubeconfig").display().to_string();
    let first = alone(&ks, "first", &kubeconfig, &["--context=wds1", "-zap-log-level=5"]);
    let maps = dynamic(&wds, "v1", "ConfigMap", Some("default"));
    let copied = until_one(&maps, "s-copy", "copied", |_| true).await;
    let page = first.metric("metacontroller_map_inputs{controller_name=\"mc\"}", |value| value > 0.5).await;
    check_families(&page);
    for line in [
        "metacontroller_map_requests_total{code=\"200\",",
        "workqueue_adds_total{name=\"MapController-mc\"}",
        "workqueue_retries_total{name=\"MapController-mc\"}",
        "workqueue_queue_duration_seconds_count{name=\"MapController-mc\"}",
        "workqueue_work_duration_seconds_count{name=\"MapController-mc\"}",
        "workqueue_unfinished_work_seconds{name=\"MapController-mc\"}",
        "controller_runtime_reconcile_total{controller=\"map-metacontroller\"",
        "workqueue_depth{name=\"MapController-mc\"} 0",
        "process_resident_memory_bytes",
        "rest_client_requests_total",
    ] {
        assert!(page.contains(line), "no {line} in {page}");
    }
    for path in ["/healthz", "/readyz"] {
        let (code, body) = first.get("probes", path).await;
        assert_eq!((code, body.trim()), (200, "ok"), "{path}");
    }
    assert_eq!(first.get("profiles", "/debug/pprof/").await.0, 200);
    assert!(!first.server.log().contains("mapKey"), "level 5 has no bodies: {}", first.server.log());
    first.server.stop().await;
    // What happens while nobody looks is not lost, and what is there stays.
    create(&wds, input("t")).await;
    let second = alone(&ks, "second", &kubeconfig, &["--context=wds1", "--zap-log-level=6"]);
    until_one(&maps, "t-copy", "copied after a restart", |_| true).await;
    let log = second.server.log();
    assert!(
        log.contains("mapKey") && !log.contains("hush-hush"),
        "level 6 has bodies, but no credentials: {log}"
    );
    second.server.kill().await;
    create(&wds, input("u")).await;
    let third = alone(&ks, "third", &kubeconfig, &["--context=wds1"]);
    until_one(&maps, "u-copy", "copied after a crash", |_| true).await;
    let still = until_one(&maps, "s-copy", "the first", |_| true).await;
    assert_eq!(
        (still.metadata.uid, still.metadata.resource_version),
        (copied.metadata.uid, copied.metadata.resource_version)
    );
    third.server.stop().await;
    server.stop().await;
}

/// MC-201, MC-134, MC-200: what can't work ends with a code that says so.
#[tokio::test(flavor = "multi_thread")]
async fn mc_201_ends_that_are_none_of_ours() {
    let ks = Installation::new();
    let nowhere = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "x",
        "clusters": [{"name": "x", "cluster": {"server": "http://127.0.0.1:1"}}],
        "contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}],
        "users": [{"name": "x", "user": {}}],
    });
    let path = ks.path("nowhere");
    std::fs::write(&path, nowhere.to_string()).unwrap();
    let path = path.display().to_string();
    for (flag, said) in [("--no-such-flag", "no-such-flag"), ("-apply-strategy=magic", "magic")] {
        let refused = ks.run(&["metacontroller", "--kubeconfig", &path, flag]).await;
        assert!(refused.code == 2 && refused.stderr.contains(said), "{}: {}", refused.code, refused.stderr);
    }
    let mut lost = alone(&ks, "lost", &path, &[]);
    let status = within("six tries", lost.server.wait()).await;
    let log = lost.server.log();
    assert_eq!(status.code(), Some(1), "{log}");
    assert_eq!(log.matches("can't be reached").count(), 6, "{log}");
}

/// A kubeconfig with the rights of a service account of a space.
async fn as_account(ks: &Installation, namespace: &str, name: &str) -> String {
    let wds = ks.client("wds1").await;
    let asked = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"audiences": [], "expirationSeconds": 3600}});
    let path = format!("/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token");
    let request = http::Request::post(path).body(asked.to_string().into_bytes()).unwrap();
    let given: Value = wds.request(request).await.expect("a token");
    let mut config: Value =
        yaml::parse_one(&std::fs::read_to_string(ks.data().join("kubeconfig")).unwrap()).unwrap();
    let context =
        config["contexts"].as_array().unwrap().iter().find(|one| one["name"] == "wds1").unwrap().clone();
    config["users"] = json!([{"name": "account", "user": {"token": given["status"]["token"]}}]);
    config["contexts"] =
        json!([{"name": "wds1", "context": {"cluster": context["context"]["cluster"], "user": "account"}}]);
    config["current-context"] = json!("wds1");
    let file = ks.path("account.kubeconfig");
    std::fs::write(&file, config.to_string()).unwrap();
    file.display().to_string()
}

fn manifest(path: &str) -> Vec<Value> {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/metacontroller/");
    yaml::parse_all(&std::fs::read_to_string(format!("{root}{path}")).unwrap()).unwrap()
}

/// A hook that makes one snapshot of each claim, and keeps all.
fn snapshots() -> String {
    answering(|request| {
        let Some(claim) = request["input"]["metadata"]["name"].as_str() else {
            let kept: Vec<_> = request["outputs"]["VolumeSnapshot.snapshot.storage.k8s.io/v1"]
                .as_object()
                .unwrap()
                .values()
                .cloned()
                .collect();
            return json!({"outputs": kept});
        };
        json!({"outputs": [{"apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshot", "metadata": {"name": format!("{claim}-0")},
            "spec": {"source": {"persistentVolumeClaimName": claim}}}]})
    })
}

/// MC-209, MC-208, MC-202: the manifests for a cluster, applied to a space as they are: with the rights of their service
/// account and no more, the snapshot example works, by the leader of two; the other answers probes, and takes over.
#[tokio::test(flavor = "multi_thread")]
async fn mc_209_manifests_and_their_rights() {
    let ks = Installation::new();
    let server = ks.serve(&["--listen", "127.0.0.1:0", "--clusters", "0"]).await;
    let wds = ks.client("wds1").await;
    define(&wds).await;
    let deploy =
        ["deploy/metacontroller.yaml", "deploy/snapshotschedule-rights.yaml", "snapshotschedule/crds.yaml"];
    let mut args = Vec::new();
    for object in deploy.iter().flat_map(|path| manifest(path)) {
        if object["kind"] == "Deployment" {
            let container = &object["spec"]["template"]["spec"]["containers"][0];
            args.extend(
                container["args"].as_array().unwrap().iter().map(|arg| arg.as_str().unwrap().to_owned()),
            );
        }
        let name = object["metadata"]["name"].as_str().unwrap().to_owned();
        let is_crd = object["kind"] == "CustomResourceDefinition";
        create(&wds, object).await;
        if is_crd {
            served(&wds, &name).await;
        }
    }
    let url = snapshots();
    for path in
        ["snapshotschedule/controller.yaml", "snapshotschedule/claims.yaml", "snapshotschedule/schedule.yaml"]
    {
        for object in manifest(path) {
            let text = object.to_string().replace("HOOK", &url);
            create(&wds, serde_json::from_str(&text).unwrap()).await;
        }
    }
    let kubeconfig = as_account(&ks, "metacontroller", "metacontroller").await;
    // As the Deployment starts it, but that its namespace is not this machine's.
    assert_eq!(args.first().map(String::as_str), Some("metacontroller"));
    let more: Vec<&str> = args
        .iter()
        .skip(1)
        .map(String::as_str)
        .chain(["--leader-election-namespace=metacontroller"])
        .collect();
    let first = alone(&ks, "first", &kubeconfig, &more);
    let made = dynamic(&wds, "snapshot.storage.k8s.io/v1", "VolumeSnapshot", Some("default"));
    for name in ["data-0-0", "data-1-0"] {
        until_one(&made, name, "a snapshot", |_| true).await;
    }
    let schedules = dynamic(&wds, "backup.example.com/v1", "SnapshotSchedule", Some("default"));
    let counted = |schedule: &kube::api::DynamicObject| {
        schedule.data["status"]["outputs"]["volumesnapshots"]["total"] == json!(2)
            && schedule.data["status"]["inputs"]["persistentvolumeclaims"]["total"] == json!(2)
    };
    until_one(&schedules, "hourly", "counted", counted).await;
    let controllers = dynamic(&wds, "metacontroller.k8s.io/v1alpha1", "MapController", None);
    let running =
        |mc: &kube::api::DynamicObject| mc.data["status"]["conditions"][0]["reason"] == json!("Running");
    until_one(&controllers, "pvc-backup", "running", running).await;
    let leads = "leader_election_master_status{name=\"metacontroller\"}";
    first.metric(leads, |value| value > 0.5).await;
    let second = alone(&ks, "second", &kubeconfig, &more);
    second.metric(leads, |value| value < 0.5).await;
    assert_eq!(second.get("probes", "/readyz").await.0, 200, "also who doesn't lead");
    assert!(!first.server.log().contains("forbidden"), "{}", first.server.log());
    first.server.kill().await;
    // Its term counts from when the Lease was last seen changed; nobody needs to wait that out.
    let leases: Api<Lease> = Api::namespaced(wds.clone(), "metacontroller");
    let short = Patch::Merge(json!({"spec": {"leaseDurationSeconds": 1}}));
    leases.patch("metacontroller", &PatchParams::default(), &short).await.unwrap();
    let claim = manifest("snapshotschedule/claims.yaml").swap_remove(0);
    let text = claim.to_string().replace("data-0", "data-9");
    create(&wds, serde_json::from_str(&text).unwrap()).await;
    until_one(&made, "data-9-0", "a snapshot by the other", |_| true).await;
    assert!(!second.server.log().contains("forbidden"), "{}", second.server.log());
    second.server.stop().await;
    server.stop().await;
}
