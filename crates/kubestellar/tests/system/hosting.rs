//! Components as a hosting cluster runs them: spaces found by their ControlPlanes, manifests and the rights in them.

use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use super::components::Bare;
use super::dropin::Component;
use super::leading::leaders;
use crate::support::{Installation, config_map, create, dynamic, namespace, policy, until_one};

/// The kubeconfig of one space, as a Secret of a ControlPlane holds it.
fn only(ks: &Installation, space: &str) -> String {
    let text = std::fs::read_to_string(ks.data().join("kubeconfig")).unwrap();
    let mut document: Value = serde_saphyr::from_str(&text).unwrap();
    document["current-context"] = json!(space);
    document.to_string()
}

async fn control_plane(hosting: &Bare, ks: &Installation, space: &str, role: &str) {
    let place = format!("{space}-system");
    create(&hosting.client, json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": place}}))
        .await;
    create(
        &hosting.client,
        json!({
            "apiVersion": TENANCY, "kind": "ControlPlane",
            "metadata": {"name": space, "labels": {"kflex.kubestellar.io/cptype": role}},
            "spec": {"type": "k8s", "backend": "shared"},
        }),
    )
    .await;
    provision(hosting, ks, space).await;
}

const TENANCY: &str = "tenancy.kflex.kubestellar.org/v1alpha1";

/// What KubeFlex does for a ControlPlane: its credentials, and the status that refers to them.
async fn provision(hosting: &Bare, ks: &Installation, space: &str) {
    let place = format!("{space}-system");
    create(
        &hosting.client,
        json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": {"name": "admin-kubeconfig", "namespace": place},
            "stringData": {"kubeconfig": only(ks, space), "kubeconfig-incluster": "not: this one\n"},
        }),
    )
    .await;
    let long_ago = "2026-01-01T00:00:00Z";
    let status = json!({"status": {
        "conditions": [{
            "type": "Ready", "status": "True", "reason": "Available", "message": "",
            "lastUpdateTime": long_ago, "lastTransitionTime": long_ago,
        }],
        "observedGeneration": 1,
        "secretRef": {"namespace": place, "name": "admin-kubeconfig", "key": "kubeconfig", "inClusterKey": "kubeconfig-incluster"},
    }});
    let planes = dynamic(&hosting.client, TENANCY, "ControlPlane", None);
    planes.patch_status(space, &PatchParams::default(), &Patch::Merge(status)).await.unwrap();
}

/// KS-214, KS-228: told nothing but the hosting cluster, the controller manager waits for the ControlPlanes and their
/// credentials, finds the only WDS and the only ITS, has its Lease beside its Deployment, and delivers.
#[tokio::test(flavor = "multi_thread")]
async fn ks_214_spaces_by_their_control_planes() {
    let ks = Installation::new();
    let serve = ["--listen", "127.0.0.1:0", "--clusters", "1", "--without", "controller-manager"];
    let server = ks.serve(&serve).await;
    let hosting = Bare::start(&ks, "hosting").await;
    // Started first of all: not even the kind is there.
    let arguments = ["--kubeconfig", hosting.file(), "controller-manager", "--leader-elect", "--wds-qps=-1"];
    let manager = Component::start(&ks, "manager", &arguments);
    assert_eq!(manager.get("probes", "/healthz").await.0, 200);
    hosting.define(apis::crds::tenancy()).await;
    control_plane(&hosting, &ks, "its1", "its").await;
    control_plane(&hosting, &ks, "wds1", "wds").await;

    let leases: Api<Lease> = Api::namespaced(hosting.client.clone(), "wds1-system");
    leaders(&leases, |holder| !holder.is_empty()).await;
    let (wds, wec) = (ks.client("wds1").await, ks.client("cluster1").await);
    create(&wds, namespace("pier")).await;
    create(&wds, config_map("pier", "a", "1")).await;
    create(&wds, policy("pier", ("location-group", "edge"), false)).await;
    until_one(&dynamic(&wec, "v1", "ConfigMap", Some("pier")), "a", "the delivery", |_| true).await;
    manager.server.stop().await;

    // A second WDS, and it is no longer clear which is meant.
    control_plane(&hosting, &ks, "cluster1", "wds").await;
    let off = ["--metrics-bind-address=0", "--pprof-bind-address=0", "--health-probe-bind-address="];
    let unclear = ks
        .run(&[&["--quiet", "--kubeconfig", hosting.file(), "controller-manager"], &off[..]].concat())
        .await;
    unclear.fails(1, &["more than one control plane of type wds was found and no name was specified"]);
    hosting.server.stop().await;
    server.stop().await;
}

/// KS-218, SP-127: the kubeconfig of one ControlPlane, by name or labels, to stdout or into a file; the exit codes of the
/// original.
#[tokio::test(flavor = "multi_thread")]
async fn ks_218_kubeconfig_of_a_control_plane() {
    let ks = Installation::new();
    let server = ks.serve(&["--listen", "127.0.0.1:0", "--clusters", "0"]).await;
    let hosting = Bare::start(&ks, "hosting").await;
    hosting.define(apis::crds::tenancy()).await;
    control_plane(&hosting, &ks, "its1", "its").await;
    let ask = ["--quiet", "--kubeconfig", hosting.file(), "get-kubeconfig"];
    let by_name = ["-control-plane-name=its1", "-in-cluster=false", "-output-file=-"];
    let shown = ks.must(&[&ask[..], &by_name].concat()).await;
    assert_eq!(shown.stdout.trim_end(), only(&ks, "its1"));
    let file = ks.path("its1.conf").display().to_string();
    let by_label =
        ["--control-plane-label-selector", "kflex.kubestellar.io/cptype=its", "--output-file", &file];
    ks.must(&[&ask[..], &by_label].concat()).await;
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "not: this one\n");

    let refused: [(&[&str], i32, &str); 5] = [
        (&["--output-file=-"], 1, "either"),
        (&["--control-plane-name=a", "--control-plane-label-selector=b", "--output-file=-"], 1, "exclude"),
        (&["--control-plane-name=its1"], 1, "--output-file"),
        (&["--control-plane-name=none", "--output-file=-", "--timeout=1s"], 86, "not ready in time"),
        (&["--control-plane-name=its1", "--output-file=/proc/none"], 99, "writing /proc/none"),
    ];
    for (arguments, code, text) in refused {
        ks.run(&[&ask[..], arguments].concat()).await.fails(code, &[text]);
    }
    let nowhere =
        ["--quiet", "--kubeconfig=none.conf", "get-kubeconfig", "--control-plane-name=a", "--output-file=-"];
    ks.run(&nowhere).await.fails(10, &["none.conf"]);
    hosting.server.stop().await;
    server.stop().await;
}

/// The kubeconfig of a service account, for the cluster that another is for.
async fn account(hosting: &Bare, ks: &Installation, place: &str, name: &str) -> String {
    let path = format!("/api/v1/namespaces/{place}/serviceaccounts/{name}/token");
    let body = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}});
    let request = http::Request::post(path).header("content-type", "application/json");
    let answer: Value =
        hosting.client.request(request.body(body.to_string().into_bytes()).unwrap()).await.unwrap();
    let text = std::fs::read_to_string(hosting.file()).unwrap();
    let mut document: Value = serde_json::from_str(&text).unwrap();
    document["users"][0]["user"] = json!({"token": answer["status"]["token"]});
    let file = ks.path(&format!("{name}.conf"));
    std::fs::write(&file, document.to_string()).unwrap();
    file.display().to_string()
}

/// KS-219, KS-227: the manifests that the values of the core chart amount to, applied to a hosting cluster; what they start, started
/// as they say, under the service accounts that they make: these rights are enough to deliver, and no more.
#[tokio::test(flavor = "multi_thread")]
async fn ks_219_manifests_and_their_rights_are_enough() {
    let ks = Installation::new();
    let without = "--without=controller-manager,transport-controller";
    let server = ks.serve(&["--listen", "127.0.0.1:0", "--clusters", "1", without]).await;
    let hosting = Bare::start(&ks, "hosting").await;
    hosting.define(apis::crds::tenancy()).await;
    let values = ks.path("values.yaml");
    let text =
        "verbosity: {default: 2}\nITSes: [{name: its1, type: vcluster}]\nWDSes: [{name: wds1, type: k8s}]\n";
    std::fs::write(&values, text).unwrap();
    let ask = ["manifests", "--values", values.to_str().unwrap(), "-o", "json"];
    let printed: Value = serde_json::from_str(&ks.must(&ask).await.stdout).unwrap();
    let items = printed["items"].as_array().unwrap();
    for item in items {
        let text = |path: &str| item.pointer(path).and_then(Value::as_str);
        let api = dynamic(
            &hosting.client,
            text("/apiVersion").unwrap(),
            text("/kind").unwrap(),
            text("/metadata/namespace"),
        );
        let applied = api
            .patch(text("/metadata/name").unwrap(), &PatchParams::apply("test"), &Patch::Apply(item))
            .await;
        applied.unwrap_or_else(|error| panic!("{item}: {error}"));
    }
    for space in ["its1", "wds1"] {
        provision(&hosting, &ks, space).await;
    }
    let yaml = ks.must(&ask[..3]).await.stdout;
    assert_eq!(yaml.matches("\n---\n").count() + 1, items.len(), "{yaml}");

    let arguments = |container: &Value| -> Vec<String> {
        let all = container["args"].as_array().unwrap().iter().map(|it| it.as_str().unwrap().to_owned());
        let place = format!("={}/", ks.path("").display().to_string().trim_end_matches('/'));
        all.map(|it| it.replace("=/kubeconfig/", &place)).collect()
    };
    let pod = |name: &str| {
        let found = items.iter().find(|it| it["kind"] == "Deployment" && it["metadata"]["name"] == name);
        found.unwrap()["spec"]["template"]["spec"].clone()
    };
    let (manager_file, transport_file) = (
        account(&hosting, &ks, "wds1-system", "kubestellar-controller-manager").await,
        account(&hosting, &ks, "wds1-system", "transport-controller").await,
    );
    for init in pod("transport-controller")["initContainers"].as_array().unwrap() {
        let mut line = vec!["--kubeconfig".to_owned(), transport_file.clone()];
        line.extend(arguments(init));
        line.push("--in-cluster=false".to_owned());
        ks.must(&line.iter().map(String::as_str).collect::<Vec<_>>()).await;
    }
    let start = |name: &str, file: &str| {
        let container = pod(name)["containers"][0].clone();
        let mut line = vec!["--kubeconfig".to_owned(), file.to_owned()];
        line.extend(arguments(&container));
        let line: Vec<&str> = line.iter().map(String::as_str).collect();
        Component::start(&ks, name, &line)
    };
    let transport = start("transport-controller", &transport_file);
    let manager = start("kubestellar-controller-manager", &manager_file);
    let leases: Api<Lease> = Api::namespaced(hosting.client.clone(), "wds1-system");
    leaders(&leases, |holder| !holder.is_empty()).await;
    let (wds, wec) = (ks.client("wds1").await, ks.client("cluster1").await);
    create(&wds, namespace("jetty")).await;
    create(&wds, config_map("jetty", "a", "1")).await;
    create(&wds, policy("jetty", ("location-group", "edge"), false)).await;
    until_one(&dynamic(&wec, "v1", "ConfigMap", Some("jetty")), "a", "the delivery", |_| true).await;

    // And no more.
    for file in [&manager_file, &transport_file] {
        let client = crate::support::client_of(std::path::Path::new(file), "hosting").await;
        let refused = |answer: Result<(), kube::Error>| {
            assert!(
                matches!(&answer, Err(kube::Error::Api(status)) if status.code == 403),
                "{file}: {answer:?}"
            );
        };
        let secrets = dynamic(&client, "v1", "Secret", Some("wds1-system"));
        secrets.get("admin-kubeconfig").await.unwrap();
        refused(secrets.get("another").await.map(drop));
        refused(secrets.list(&kube::api::ListParams::default()).await.map(drop));
        refused(
            dynamic(&client, "v1", "Secret", Some("kube-system")).get("admin-kubeconfig").await.map(drop),
        );
        refused(
            dynamic(&client, "apps/v1", "Deployment", Some("wds1-system")).get("manager").await.map(drop),
        );
        let planes = dynamic(&client, TENANCY, "ControlPlane", None);
        planes.get("wds1").await.unwrap();
        refused(planes.get("wds2").await.map(drop));
        refused(planes.list(&kube::api::ListParams::default()).await.map(drop));
        refused(planes.delete("wds1", &kube::api::DeleteParams::default()).await.map(drop));
    }
    for component in [manager, transport] {
        component.server.stop().await;
    }
    hosting.server.stop().await;
    server.stop().await;
}
