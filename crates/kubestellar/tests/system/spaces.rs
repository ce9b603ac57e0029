//! Spaces as ControlPlanes of the host space.

use std::collections::BTreeSet;

use kube::api::{Api, DeleteParams, DynamicObject, ListParams, Patch, PatchParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config, ResourceExt as _};
use serde_json::{Value, json};

use super::components::Bare;
use crate::support::{
    Installation, config_map, create, dynamic, namespace, policy, uid, until, until_one, within,
};

const TENANCY: &str = "tenancy.kflex.kubestellar.org/v1alpha1";

fn planes(host: &Client) -> Api<DynamicObject> {
    dynamic(host, TENANCY, "ControlPlane", None)
}

fn plane(name: &str, spec: Value) -> Value {
    json!({"apiVersion": TENANCY, "kind": "ControlPlane", "metadata": {"name": name}, "spec": spec})
}

fn is_ready(plane: &DynamicObject) -> bool {
    let conditions = plane.data["status"]["conditions"].as_array().cloned().unwrap_or_default();
    conditions.iter().any(|c| c["type"] == "Ready" && c["status"] == "True" && c["reason"] == "Available")
}

/// The kubeconfig in the Secret to which a ControlPlane refers.
async fn kubeconfig(host: &Client, plane: &DynamicObject) -> Kubeconfig {
    let at = &plane.data["status"]["secretRef"];
    let text = |field: &str| at[field].as_str().unwrap().to_owned();
    let secrets: Api<k8s_openapi::api::core::v1::Secret> = Api::namespaced(host.clone(), &text("namespace"));
    let secret = secrets.get(&text("name")).await.unwrap();
    let data = secret.data.unwrap();
    assert_eq!(data[&text("key")], data[&text("inClusterKey")]);
    Kubeconfig::from_yaml(std::str::from_utf8(&data[&text("key")].0).unwrap()).unwrap()
}

async fn client_of(kubeconfig: Kubeconfig) -> Client {
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await.unwrap();
    Client::try_from(config).unwrap()
}

/// SP-011, SP-012, SP-034, SP-042, SP-045, SP-049, SP-051, SP-061, SP-072 (SP-A-10, SP-A-11): what `up` made is there as
/// ControlPlanes; a ControlPlane becomes a space with an identity of its own, which outlives a restart and goes with its data.
#[tokio::test(flavor = "multi_thread")]
async fn sp_a_10_a_space_from_creation_to_deletion() {
    let ks = Installation::new();
    let server = ks.serve(&["--listen", "127.0.0.1:0", "--clusters", "1"]).await;
    let host = ks.client("kubestellar").await;
    let own =
        until(&planes(&host), "the spaces of `up`", |all| all.len() == 2 && all.values().all(is_ready)).await;
    for (name, role) in [("its1", "its"), ("wds1", "wds")] {
        let plane = &own[name];
        assert_eq!(plane.labels()["kflex.kubestellar.io/cptype"], role);
        let hooks = plane.data["status"]["postCreateHooks"].as_object().unwrap();
        assert!(hooks.len() == 2 && hooks.values().all(|applied| applied == true), "{hooks:?}");
        let inside = client_of(kubeconfig(&host, plane).await).await;
        inside.apiserver_version().await.unwrap();
    }
    let columns = table(&host).await;
    assert_eq!(columns, ["Name", "SYNCED", "READY", "TYPE", "AGE", "ROLE", "URL", "HOOKS"]);

    create(&host, plane("extra", json!({"type": "vcluster"}))).await;
    let extra = until_one(&planes(&host), "extra", "a new space", is_ready).await;
    let credentials = kubeconfig(&host, &extra).await;
    let inside = client_of(credentials.clone()).await;
    let made = create(&inside, config_map("default", "a", "1")).await;
    // Its administrator is nobody elsewhere.
    let mut elsewhere = credentials.clone();
    let other = kubeconfig(&host, &own["wds1"]).await;
    elsewhere.clusters[0].cluster = other.clusters[0].cluster.clone();
    let refused = client_of(elsewhere).await.list_core_api_versions().await.unwrap_err();
    assert!(matches!(&refused, kube::Error::Api(status) if status.code == 401), "{refused}");

    server.stop().await;
    let server = ks.serve(&[]).await;
    let host = ks.client("kubestellar").await;
    let again =
        until(&planes(&host), "the restart", |all| all.len() == 3 && all.values().all(is_ready)).await;
    assert_eq!(uid(&again["extra"]), uid(&extra));
    let inside = client_of(kubeconfig(&host, &again["extra"]).await).await;
    let maps = dynamic(&inside, "v1", "ConfigMap", Some("default"));
    assert_eq!(uid(&maps.get("a").await.unwrap()), uid(&made));

    planes(&host).delete("extra", &DeleteParams::default()).await.unwrap();
    until(&planes(&host), "the deletion", |all| !all.contains_key("extra")).await;
    assert!(!ks.data().join("spaces/extra").exists(), "its keys");
    let gone = maps.get("a").await.unwrap_err();
    assert!(matches!(&gone, kube::Error::Api(status) if status.code == 404), "{gone}");
    create(&host, plane("extra", json!({"type": "k8s"}))).await;
    let second = until_one(&planes(&host), "extra", "the same name again", is_ready).await;
    let inside = client_of(kubeconfig(&host, &second).await).await;
    let empty = dynamic(&inside, "v1", "ConfigMap", Some("default"));
    assert!(empty.get_opt("a").await.unwrap().is_none(), "the data of the first is gone");
    let old = client_of(credentials).await.list_core_api_versions().await;
    assert!(old.is_err(), "the credentials of the first are worth nothing");
    server.stop().await;
}

/// Names of the columns of `kubectl get controlplanes -o wide`.
async fn table(host: &Client) -> Vec<String> {
    let request = http::Request::get("/apis/tenancy.kflex.kubestellar.org/v1alpha1/controlplanes")
        .header("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io")
        .body(Vec::new())
        .unwrap();
    let table: Value = host.request(request).await.unwrap();
    let columns = table["columnDefinitions"].as_array().unwrap().iter();
    columns.map(|column| column["name"].as_str().unwrap().to_owned()).collect()
}

/// SP-010, SP-072 (SP-A-11): a second WDS by a ControlPlane delivers through the ITS of `up`; deleted, it leaves the other alone.
#[tokio::test(flavor = "multi_thread")]
async fn sp_a_11_a_wds_by_control_plane_delivers() {
    let ks = Installation::new();
    let server = ks.serve(&["--listen", "127.0.0.1:0", "--clusters", "1"]).await;
    let host = ks.client("kubestellar").await;
    let spec = json!({"type": "k8s", "waitForPostCreateHooks": true, "globalVars": {"ITSName": ""},
        "postCreateHooks": [{"hookName": "kubestellar-controller"}, {"hookName": "transport-controller"}]});
    create(&host, plane("wds2", spec)).await;
    let second = until_one(&planes(&host), "wds2", "a second WDS", is_ready).await;
    assert_eq!(second.labels()["kflex.kubestellar.io/cptype"], "wds");
    let wds = client_of(kubeconfig(&host, &second).await).await;
    create(&wds, namespace("pier")).await;
    create(&wds, config_map("pier", "a", "1")).await;
    create(&wds, policy("pier", ("location-group", "edge"), false)).await;
    let wec = ks.client("cluster1").await;
    until_one(&dynamic(&wec, "v1", "ConfigMap", Some("pier")), "a", "the delivery", |_| true).await;
    planes(&host).delete("wds2", &DeleteParams::default()).await.unwrap();
    until(&planes(&host), "the deletion", |all| all.len() == 2 && all.values().all(is_ready)).await;
    let first = ks.client("wds1").await;
    create(&first, namespace("quay")).await;
    create(&first, config_map("quay", "b", "1")).await;
    create(&first, policy("quay", ("location-group", "edge"), false)).await;
    until_one(&dynamic(&wec, "v1", "ConfigMap", Some("quay")), "b", "the other WDS works", |_| true).await;
    server.stop().await;
}

/// SP-041 (at once), SP-049: many ControlPlanes are created and deleted at the same time, also while they are being created.
#[tokio::test(flavor = "multi_thread")]
async fn sp_041_many_at_once() {
    const MANY: usize = 30;
    let ks = Installation::new();
    let server = ks.serve(&["--listen", "127.0.0.1:0", "--clusters", "0"]).await;
    let host = ks.client("kubestellar").await;
    let name = |n: usize| format!("many-{n:02}");
    let creating = (0..MANY).map(|n| create(&host, plane(&name(n), json!({"type": "k8s"}))));
    futures::future::join_all(creating).await;
    // Every third goes while it is being made.
    let params = DeleteParams::default();
    for n in (0..MANY).step_by(3) {
        planes(&host).delete(&name(n), &params).await.unwrap();
    }
    let all = until(&planes(&host), "what stays is ready", |all| {
        all.len() == 2 + MANY - MANY.div_ceil(3) && all.values().all(is_ready)
    })
    .await;
    let urls: BTreeSet<String> =
        all.values().map(|one| one.annotations()["space.kubestellar.io/url"].clone()).collect();
    assert_eq!(urls.len(), all.len());
    let many = planes(&host).list(&ListParams::default()).await.unwrap();
    for one in many.items.iter().filter(|one| one.name_any().starts_with("many")) {
        planes(&host).delete(&one.name_any(), &params).await.unwrap();
    }
    until(&planes(&host), "all are gone", |all| all.len() == 2).await;
    let left = std::fs::read_dir(ks.data().join("spaces")).unwrap().flatten();
    let left: BTreeSet<String> = left.map(|entry| entry.file_name().into_string().unwrap()).collect();
    assert_eq!(left, ["its1", "kubestellar", "wds1"].map(str::to_owned).into());
    server.stop().await;
}

/// SP-043, SP-053: names that are taken are refused on the object; an ITS may be deleted, and its WDS says what it waits for.
#[tokio::test(flavor = "multi_thread")]
async fn sp_053_an_its_that_is_used_may_go() {
    let ks = Installation::new();
    let server = ks.serve(&["--listen", "127.0.0.1:0", "--clusters", "1"]).await;
    let host = ks.client("kubestellar").await;
    for taken in ["cluster1", "kubestellar", "a.b"] {
        create(&host, plane(taken, json!({"type": "k8s"}))).await;
        until_one(&planes(&host), taken, "a refusal", |plane| {
            plane.data["status"].to_string().contains("ReconcileError")
        })
        .await;
        planes(&host).delete(taken, &DeleteParams::default()).await.unwrap();
        until(&planes(&host), "its deletion", |all| !all.contains_key(taken)).await;
    }
    ks.client("cluster1").await.apiserver_version().await.unwrap();
    planes(&host).delete("its1", &DeleteParams::default()).await.unwrap();
    until(&planes(&host), "the deletion", |all| !all.contains_key("its1")).await;
    until_one(&planes(&host), "wds1", "what it waits for", |plane| {
        plane.data["status"].to_string().contains("the ITS its1 is not there")
    })
    .await;
    // A restart without the ITS, and then another one of its name.
    server.stop().await;
    let server = ks.serve(&[]).await;
    let host = ks.client("kubestellar").await;
    let hooks = json!([{"hookName": "its-hub-init"}, {"hookName": "install-status-addon"}]);
    let spec = json!({"type": "k8s", "waitForPostCreateHooks": true, "postCreateHooks": hooks});
    assert_eq!(planes(&host).list(&ListParams::default()).await.unwrap().items.len(), 1);
    create(&host, plane("its1", spec)).await;
    until(&planes(&host), "both", |all| all.len() == 2 && all.values().all(is_ready)).await;
    server.stop().await;
}

/// SP-050: a suspended space is not served, and comes back with its data, also over a restart.
#[tokio::test(flavor = "multi_thread")]
async fn sp_050_suspend_over_a_restart() {
    let ks = Installation::new();
    let server = ks.serve(&["--listen", "127.0.0.1:0", "--clusters", "0"]).await;
    let host = ks.client("kubestellar").await;
    let made = create(&ks.client("wds1").await, config_map("default", "a", "1")).await;
    let suspend = |value: Value| {
        Patch::Merge(json!({"metadata": {"annotations": {"space.kubestellar.io/suspended": value}}}))
    };
    let params = PatchParams::default();
    planes(&host).patch("wds1", &params, &suspend(json!("true"))).await.unwrap();
    let is_paused = |plane: &DynamicObject| plane.data["status"].to_string().contains("ReconcilePaused");
    until_one(&planes(&host), "wds1", "suspended", is_paused).await;
    let shown = ks.status().await["server"]["spaces"].clone();
    let state = |name: &str| {
        let found = shown.as_array().unwrap().iter().find(|space| space["name"] == name).cloned().unwrap();
        (found["ready"] == true, found["suspended"] == true)
    };
    assert_eq!((state("its1"), state("wds1")), ((true, false), (false, true)), "{shown}");
    server.stop().await;
    let server = ks.serve(&[]).await;
    let host = ks.client("kubestellar").await;
    planes(&host).patch("wds1", &params, &suspend(Value::Null)).await.unwrap();
    until_one(&planes(&host), "wds1", "resumed", is_ready).await;
    let back = ks.client("wds1").await;
    let map = within("the data", dynamic(&back, "v1", "ConfigMap", Some("default")).get("a")).await.unwrap();
    assert_eq!(uid(&map), uid(&made));
    server.stop().await;
}

/// The kubeconfig of one context of the installation.
fn only(ks: &Installation, context: &str) -> String {
    let text = std::fs::read_to_string(ks.data().join("kubeconfig")).unwrap();
    let mut document: Value = serde_saphyr::from_str(&text).unwrap();
    document["current-context"] = json!(context);
    document.to_string()
}

/// Adopts `cluster1` as `edge`, and checks everything from the bootstrap Secret to the removal.
async fn adopt(ks: &Installation, host: &Client) {
    let bootstrap = json!({"apiVersion": "v1", "kind": "Secret",
        "metadata": {"name": "edge-bootstrap", "namespace": "default"},
        "stringData": {"kubeconfig-incluster": only(ks, "cluster1")}});
    create(host, bootstrap).await;
    let reference =
        json!({"name": "edge-bootstrap", "namespace": "default", "inClusterKey": "kubeconfig-incluster"});
    let spec = json!({"type": "external", "bootstrapSecretRef": reference, "tokenExpirationSeconds": 3600});
    create(host, plane("edge", spec)).await;
    let edge = until_one(&planes(host), "edge", "the adoption", is_ready).await;
    let secrets = dynamic(host, "v1", "Secret", Some("default"));
    assert!(secrets.get_opt("edge-bootstrap").await.unwrap().is_none(), "it has been used");
    let adopted = kubeconfig(host, &edge).await;
    assert_eq!(adopted.current_context.as_deref(), Some("edge"));
    let user = adopted.auth_infos[0].auth_info.clone().unwrap();
    assert!(user.token.is_some() && user.client_certificate_data.is_none(), "a token and nothing else");
    let inside = client_of(adopted).await;
    create(&inside, config_map("default", "by-token", "1")).await;

    let cluster = ks.client("cluster1").await;
    let accounts = dynamic(&cluster, "v1", "ServiceAccount", Some("kube-system"));
    assert!(accounts.get_opt("kubeflex").await.unwrap().is_some());
    planes(host).delete("edge", &DeleteParams::default()).await.unwrap();
    until(&planes(host), "the deletion", |all| !all.contains_key("edge")).await;
    let bindings = dynamic(&cluster, "rbac.authorization.k8s.io/v1", "ClusterRoleBinding", None);
    assert!(bindings.get_opt("kubeflex-clusterrolebinding").await.unwrap().is_none());
    until(&accounts, "the account goes", |all| !all.contains_key("kube-system/kubeflex")).await;
}

/// SP-038, SP-052 (SP-A-18): a cluster is adopted by a kubeconfig, and left clean.
#[tokio::test(flavor = "multi_thread")]
async fn sp_a_18_an_external_cluster() {
    let ks = Installation::new();
    let server = ks.serve(&["--listen", "127.0.0.1:0", "--clusters", "1"]).await;
    adopt(&ks, &ks.client("kubestellar").await).await;
    server.stop().await;
}

/// SP-126: `kubestellar space-manager` in a hosting cluster: adoption works there, and the types that need pods are refused on
/// the object.
#[tokio::test(flavor = "multi_thread")]
async fn sp_126_the_space_manager_as_a_process() {
    let ks = Installation::new();
    let server = ks.serve(&["--listen", "127.0.0.1:0", "--clusters", "1"]).await;
    let hosting = Bare::start(&ks, "hosting").await;
    let off = ["--metrics-bind-address=0", "--health-probe-bind-address=0"];
    let arguments = [&["--kubeconfig", hosting.file(), "space-manager"], &off[..]].concat();
    let manager = ks.spawn("space-manager", &arguments);
    let crds = dynamic(&hosting.client, "apiextensions.k8s.io/v1", "CustomResourceDefinition", None);
    until_one(&crds, "controlplanes.tenancy.kflex.kubestellar.org", "the kind", |crd| {
        crd.data["status"].to_string().contains("Established")
    })
    .await;
    create(&hosting.client, plane("wds1", json!({"type": "k8s"}))).await;
    until_one(&planes(&hosting.client), "wds1", "a refusal", |plane| {
        plane.data["status"].to_string().contains("use type external for an existing cluster")
    })
    .await;
    adopt(&ks, &hosting.client).await;
    manager.stop().await;
    hosting.server.stop().await;
    server.stop().await;
}
