//! The controllers in a whole space in memory, as clients see them.

#![allow(clippy::unwrap_used, reason = "helpers of tests are tests")]

use std::ops::Deref;

use kubestellar_space::{Identity, controllers};
use serde_json::{Value, json};
use store::Engine;
use testkit::side::Side;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

struct Running {
    side: Side,
    stop: CancellationToken,
    tasks: JoinSet<()>,
    _data: tempfile::TempDir,
}

impl Deref for Running {
    type Target = Side;

    fn deref(&self) -> &Side {
        &self.side
    }
}

impl Running {
    async fn start() -> Self {
        let data = tempfile::tempdir().unwrap();
        let engine = Engine::in_memory();
        let side = Side::start(&engine, data.path(), "test").await;
        let (space, client) = (&side.space, side.client.clone());
        let store = engine.space("test").unwrap();
        let signer =
            controllers::CsrSigner::new(&space.keys().client_ca, &space.keys().client_ca_key).unwrap();
        let config = controllers::Config { ca_bundle_pem: "PEM".into(), csr_signer: Some(signer) };
        let stop = CancellationToken::new();
        let mut tasks = JoinSet::new();
        let (ready, mut is_ready) = watch::channel(false);
        let generic = controllers::run(client.clone(), store.clone(), config, ready, stop.clone());
        tasks.spawn(async move { generic.await.unwrap() });
        is_ready.wait_for(|ready| *ready).await.unwrap();
        Self { side, stop, tasks, _data: data }
    }

    async fn stop(mut self) {
        self.stop.cancel();
        while let Some(ended) = self.tasks.join_next().await {
            ended.unwrap();
        }
        self.side.space.stop().await;
    }
}

fn config_map(name: &str, metadata: Value) -> Value {
    let mut metadata = metadata;
    metadata["name"] = json!(name);
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata})
}

fn owned_by(owner: &Value, block: bool) -> Value {
    json!({"ownerReferences": [{
        "apiVersion": "v1", "kind": "ConfigMap", "name": owner["metadata"]["name"], "uid": owner["metadata"]["uid"],
        "blockOwnerDeletion": block,
    }]})
}

/// A request of `O=group-a, O=group-b, CN=agent` (PEM in base64, as in the API).
const CSR_BASE64: &str = "LS0tLS1CRUdJTiBDRVJUSUZJQ0FURSBSRVFVRVNULS0tLS0KTUlIdk1JR1dBZ0VBTURReEVEQU9CZ05WQkFvTUIyZHliM1Z3TFdFeEVEQU9CZ05WQkFvTUIyZHliM1Z3TFdJeApEakFNQmdOVkJBTU1CV0ZuWlc1ME1Ga3dFd1lIS29aSXpqMENBUVlJS29aSXpqMERBUWNEUWdBRTNXQ3BlS05GCm5mdExxcHZWaDM3VllsUmxHUC9GNkFJa1ZNNW0rK2JsUDFyZHZ4c05BR3kzcUtoVGl4YXR3UjhLYVVmcEptVVkKMjZyVXphRHdkRjl0NDZBQU1Bb0dDQ3FHU000OUJBTUNBMGdBTUVVQ0lRQ3RzYUZHWFlLWjFCd2YvaFdTZmpJTgo5aXhHdndBSXdUVDhNZ1J4WWhCY2lBSWdVL0tjZEppb1B4OENVNCtBUVNicVhuaXdrUHdYeGZGNXFTbll6R0VLCmFkcz0KLS0tLS1FTkQgQ0VSVElGSUNBVEUgUkVRVUVTVC0tLS0tCg==";

const MAPS: &str = "/api/v1/namespaces/default/configmaps";

#[tokio::test]
async fn as_050_as_052_a_namespace_is_provisioned_and_goes_with_its_content() {
    let s = Running::start().await;
    s.post(
        "/api/v1/namespaces",
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop"}}),
    )
    .await;
    s.until("/api/v1/namespaces/shop/serviceaccounts/default", |_| true).await;
    let ca = "/api/v1/namespaces/shop/configmaps/kube-root-ca.crt";
    s.until(ca, |found| found["data"]["ca.crt"] == "PEM").await;
    s.patch(ca, json!({"data": {"ca.crt": "forged", "more": "x"}})).await;
    s.until(ca, |found| found["data"] == json!({"ca.crt": "PEM"})).await;
    s.delete_with("/api/v1/namespaces/shop/serviceaccounts/default", json!({})).await;
    s.until("/api/v1/namespaces/shop/serviceaccounts/default", |_| true).await;

    let held = config_map("held", json!({"finalizers": ["example.com/hold"]}));
    s.post("/api/v1/namespaces/shop/configmaps", held).await;
    s.delete_with("/api/v1/namespaces/shop", json!({})).await;
    let going = s
        .until("/api/v1/namespaces/shop", |found| {
            let conditions = &found["status"]["conditions"];
            conditions[4]["status"] == "True"
                && conditions[3]["message"]
                    == "Some resources are remaining: configmaps. has 1 resource instances"
        })
        .await;
    assert_eq!(going["status"]["phase"], "Terminating");
    s.patch("/api/v1/namespaces/shop/configmaps/held", json!({"metadata": {"finalizers": null}})).await;
    s.until_gone("/api/v1/namespaces/shop").await;
    s.stop().await;
}

#[tokio::test]
async fn as_051_background_foreground_and_orphan() {
    let s = Running::start().await;
    for (policy, gone) in [("Background", true), ("Foreground", true), ("Orphan", false)] {
        let owner = s.post(MAPS, config_map("owner", json!({}))).await;
        s.post(MAPS, config_map("child", owned_by(&owner, true))).await;
        s.delete_with(&format!("{MAPS}/owner"), json!({"propagationPolicy": policy})).await;
        s.until_gone(&format!("{MAPS}/owner")).await;
        if gone {
            s.until_gone(&format!("{MAPS}/child")).await;
        } else {
            let child = s.until(&format!("{MAPS}/child"), |_| true).await;
            assert_eq!(child["metadata"].get("ownerReferences"), None);
        }
    }
    s.stop().await;
}

#[tokio::test]
async fn as_051_foreground_is_held_up_by_a_blocking_dependent() {
    let s = Running::start().await;
    let owner = s.post(MAPS, config_map("owner", json!({}))).await;
    let mut metadata = owned_by(&owner, true);
    metadata["finalizers"] = json!(["example.com/hold"]);
    s.post(MAPS, config_map("child", metadata)).await;
    s.delete_with(&format!("{MAPS}/owner"), json!({"propagationPolicy": "Foreground"})).await;
    let child = format!("{MAPS}/child");
    s.until(&child, |found| found["metadata"].get("deletionTimestamp").is_some()).await;
    let owner = s.get(&format!("{MAPS}/owner")).await.unwrap();
    assert_eq!(owner["metadata"]["finalizers"], json!(["foregroundDeletion"]));
    s.patch(&child, json!({"metadata": {"finalizers": null}})).await;
    s.until_gone(&child).await;
    s.until_gone(&format!("{MAPS}/owner")).await;
    s.stop().await;
}

#[tokio::test]
async fn as_054_an_approved_request_is_signed_and_opens_the_space() {
    let s = Running::start().await;
    let requests = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
    let request = json!({
        "apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest", "metadata": {"name": "agent"},
        "spec": {
            "signerName": "kubernetes.io/kube-apiserver-client", "usages": ["client auth", "digital signature"],
            "request": CSR_BASE64,
        },
    });
    let made = s.post(requests, request).await;
    let mut approved = made.clone();
    approved["status"] =
        json!({"conditions": [{"type": "Approved", "status": "True", "reason": "Test", "message": ""}]});
    let approval = format!("{requests}/agent/approval");
    s.send("PUT", &approval, "application/json", &approved).await.unwrap();
    let issued = |found: &Value| found["status"]["certificate"].as_str().is_some_and(|text| !text.is_empty());
    let signed = s.until(&format!("{requests}/agent"), issued).await;
    assert_eq!(signed["status"]["conditions"][0]["type"], "Approved");
    s.stop().await;
}

/// AS-054, OCM-040: requests that were decided more than an hour ago are deleted, newer ones stay, whether they become
/// old before or after the start of the controllers.
#[tokio::test]
async fn as_054_old_requests_are_cleared_away() {
    let s = Running::start().await;
    let requests = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
    let now = jiff::Timestamp::now();
    let old = now - jiff::SignedDuration::from_secs(2 * 60 * 60);
    for (name, verdict, at) in
        [("new", "Denied", now), ("denied", "Denied", old), ("approved", "Approved", old)]
    {
        let request = json!({
            "apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest", "metadata": {"name": name},
            "spec": {"signerName": "example.com/nobody", "usages": ["client auth"], "request": CSR_BASE64},
        });
        let mut decided = s.post(requests, request).await;
        let at = at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        decided["status"] = json!({"conditions": [
            {"type": verdict, "status": "True", "reason": "Test", "message": "", "lastUpdateTime": at}]});
        let approval = format!("{requests}/{name}/approval");
        s.send("PUT", &approval, "application/json", &decided).await.unwrap();
    }
    s.until_gone(&format!("{requests}/denied")).await;
    s.until_gone(&format!("{requests}/approved")).await;
    assert!(s.get(&format!("{requests}/new")).await.is_some());
    s.stop().await;
}

/// AS-055: a kubelet's first certificate is approved automatically once its user has the right.
#[tokio::test]
async fn as_055_a_kubelet_is_let_in_by_right() {
    use base64::Engine as _;
    let s = Running::start().await;
    let rbac = "/apis/rbac.authorization.k8s.io/v1";
    let subject = json!([{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "boot"}]);
    let bind = |name: &str, role: &str| {
        json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": {"name": name},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
            "subjects": subject.clone()})
    };
    s.post(&format!("{rbac}/clusterrolebindings"), bind("boot", "system:node-bootstrapper")).await;
    let mut params = rcgen::CertificateParams::default();
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(rcgen::DnType::OrganizationName, "system:nodes");
    params.distinguished_name.push(rcgen::DnType::CommonName, "system:node:n1");
    let key = rcgen::KeyPair::generate().unwrap();
    let pem = params.serialize_request(&key).unwrap().pem().unwrap();
    let request = json!({
        "apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest", "metadata": {"name": "n1"},
        "spec": {"signerName": "kubernetes.io/kube-apiserver-client-kubelet",
            "usages": ["client auth", "digital signature"],
            "request": base64::engine::general_purpose::STANDARD.encode(pem)},
    });
    let requests = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
    let boot = s.space.client(&Identity::component("boot", &[]));
    let body = serde_json::to_vec(&request).unwrap();
    let asked = http::Request::post(requests).header("content-type", "application/json").body(body).unwrap();
    let made: Value = boot.request(asked).await.unwrap();
    assert_eq!(made["spec"]["username"], "boot");
    // Nobody approves it; granting the right leads to the certificate.
    let role = "system:certificates.k8s.io:certificatesigningrequests:nodeclient";
    s.post(&format!("{rbac}/clusterrolebindings"), bind("nodes", role)).await;
    let issued = |found: &Value| found["status"]["certificate"].as_str().is_some_and(|text| !text.is_empty());
    let signed = s.until(&format!("{requests}/n1"), issued).await;
    assert_eq!(signed["status"]["conditions"][0]["reason"], "AutoApproved");
    s.stop().await;
}

#[tokio::test]
async fn as_056_an_aggregated_role_follows_its_parts() {
    let s = Running::start().await;
    let roles = "/apis/rbac.authorization.k8s.io/v1/clusterroles";
    let role = |name: &str, rest: Value| {
        let mut role = json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": {"name": name},
        });
        role.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
        role
    };
    let selector = json!({"clusterRoleSelectors": [{"matchLabels": {"example.com/part": "yes"}}]});
    s.post(roles, role("whole", json!({"aggregationRule": selector, "rules": []}))).await;
    let rules = json!([{"apiGroups": [""], "resources": ["widgets"], "verbs": ["get"]}]);
    let mut part = role("part", json!({"rules": rules}));
    part["metadata"]["labels"] = json!({"example.com/part": "yes"});
    s.post(roles, part).await;
    s.until(&format!("{roles}/whole"), |found| found["rules"] == rules).await;
    s.delete_with(&format!("{roles}/part"), json!({})).await;
    s.until(&format!("{roles}/whole"), |found| found["rules"].as_array().is_none_or(Vec::is_empty)).await;
    s.stop().await;
}

#[tokio::test]
async fn as_050_a_standard_namespace_comes_back_and_custom_content_goes_too() {
    let s = Running::start().await;
    let definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "widgets.example.com"},
        "spec": {
            "group": "example.com", "scope": "Namespaced",
            "names": {"plural": "widgets", "singular": "widget", "kind": "Widget", "listKind": "WidgetList"},
            "versions": [{
                "name": "v1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}},
            }],
        },
    });
    s.post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition).await;
    let widgets = "/apis/example.com/v1/namespaces/shop/widgets";
    s.post(
        "/api/v1/namespaces",
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop"}}),
    )
    .await;
    let widget = json!({"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "w"}});
    let made =
        s.found("served", async || s.send("POST", widgets, "application/json", &widget).await.ok()).await;
    // A custom resource may own a built-in one.
    let owner = json!({"apiVersion": "example.com/v1", "kind": "Widget", "name": "w", "uid": made["metadata"]["uid"]});
    let child = config_map("child", json!({"ownerReferences": [owner]}));
    s.post("/api/v1/namespaces/shop/configmaps", child).await;
    s.delete_with(&format!("{widgets}/w"), json!({})).await;
    s.until_gone("/api/v1/namespaces/shop/configmaps/child").await;
    s.post(widgets, widget).await;
    s.delete_with("/api/v1/namespaces/shop", json!({})).await;
    s.until_gone("/api/v1/namespaces/shop").await;

    s.delete_with("/api/v1/namespaces/kube-node-lease", json!({})).await;
    s.found("a new kube-node-lease", async || {
        let found = s.get("/api/v1/namespaces/kube-node-lease").await?;
        found["metadata"].get("deletionTimestamp").is_none().then_some(())
    })
    .await;
    s.stop().await;
}

/// A deleted claim stays while a pod uses it; likewise a volume.
#[tokio::test]
async fn claims_and_volumes_go_once_nothing_uses_them() {
    let s = Running::start().await;
    let claims = "/api/v1/namespaces/default/persistentvolumeclaims";
    let claim = |name: &str| {
        json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name},
            "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}})
    };
    s.post(claims, claim("free")).await;
    s.post(claims, claim("used")).await;
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {
        "containers": [{"name": "c", "image": "i"}],
        "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "used"}}],
    }});
    s.post("/api/v1/namespaces/default/pods", pod).await;
    s.delete_with(&format!("{claims}/used"), json!({})).await;
    s.delete_with(&format!("{claims}/free"), json!({})).await;
    s.until_gone(&format!("{claims}/free")).await;
    assert!(s.get(&format!("{claims}/used")).await.is_some());
    s.delete_with("/api/v1/namespaces/default/pods/p", json!({"gracePeriodSeconds": 0})).await;
    s.until_gone(&format!("{claims}/used")).await;
    let volume = json!({"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "v"}, "spec": {
        "capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "hostPath": {"path": "/v"},
    }});
    s.post("/api/v1/persistentvolumes", volume).await;
    s.delete_with("/api/v1/persistentvolumes/v", json!({})).await;
    s.until_gone("/api/v1/persistentvolumes/v").await;
    s.stop().await;
}

/// ConfigMap `extension-apiserver-authentication` has the CA of client certificates, is restored, and can be read by
/// extension API servers.
#[tokio::test]
async fn how_clients_are_known_is_published() {
    let s = Running::start().await;
    let path = "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication";
    let ca = s.space.keys().client_ca.replace('\r', "");
    let same =
        |found: &Value| found["data"]["client-ca-file"].as_str().is_some_and(|text| text.trim() == ca.trim());
    let found = s.until(path, same).await;
    assert_eq!(found["data"]["requestheader-username-headers"], "[\"X-Remote-User\"]");
    let proxies = &found["data"]["requestheader-client-ca-file"];
    assert_ne!(*proxies, found["data"]["client-ca-file"], "clients of the space are no proxies");
    s.patch(path, json!({"data": {"client-ca-file": "other"}})).await;
    let mended = s.until(path, same).await;
    assert_eq!(mended["data"]["requestheader-client-ca-file"], *proxies);
    s.delete_with(path, json!({})).await;
    s.until(path, same).await;

    let group = "rbac.authorization.k8s.io";
    s.post(
        &format!("/apis/{group}/v1/namespaces/kube-system/rolebindings"),
        json!({"apiVersion": format!("{group}/v1"), "kind": "RoleBinding", "metadata": {"name": "reader"},
            "roleRef": {"apiGroup": group, "kind": "Role", "name": "extension-apiserver-authentication-reader"},
            "subjects": [{"apiGroup": group, "kind": "User", "name": "extension"}]}),
    )
    .await;
    let extension = s.space.client(&Identity::component("extension", &[]));
    let read = async |path: &str| {
        extension.request::<Value>(http::Request::get(path).body(Vec::new()).unwrap()).await
    };
    assert!(same(&read(path).await.unwrap()));
    let other = read("/api/v1/namespaces/kube-system/configmaps/kube-root-ca.crt").await;
    assert!(matches!(other, Err(kube::Error::Api(status)) if status.code == 403));
    s.stop().await;
}

/// Clients that wait for the disk and clients that do not write to the same space concurrently: each reads its writes,
/// no update is lost, and no address is allocated twice.
#[tokio::test(flavor = "multi_thread")]
async fn as_071_clients_ahead_and_others_write_together() {
    let s = Running::start().await;
    let clients = [s.client.clone(), s.space.client_ahead(&Identity::admin())];
    s.post(MAPS, config_map("shared", json!({}))).await;
    let mut writers = JoinSet::new();
    for (number, client) in clients.into_iter().enumerate() {
        writers.spawn(async move {
            let send = async |method: &str, path: String, body: Value| {
                let content =
                    if method == "PATCH" { "application/merge-patch+json" } else { "application/json" };
                let request =
                    http::Request::builder().method(method).uri(path).header("content-type", content);
                let request = request.body(body.to_string().into_bytes()).unwrap();
                client.request::<Value>(request).await.unwrap()
            };
            let mut addresses = Vec::new();
            for round in 0..20 {
                let name = format!("of-{number}-{round}");
                let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
                send("POST", "/api/v1/namespaces".into(), namespace).await;
                let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web"},
                    "spec": {"ports": [{"port": 80}]}});
                let service = send("POST", format!("/api/v1/namespaces/{name}/services"), service).await;
                addresses.push(service["spec"]["clusterIP"].as_str().unwrap().to_owned());
                send("PATCH", format!("{MAPS}/shared"), json!({"data": {(name): "here"}})).await;
            }
            addresses
        });
    }
    let mut addresses: Vec<_> = writers.join_all().await.concat();
    addresses.sort();
    addresses.dedup();
    assert_eq!(addresses.len(), 40);
    let shared = s.get(&format!("{MAPS}/shared")).await.unwrap();
    assert_eq!(shared["data"].as_object().unwrap().len(), 40, "{shared}");
    s.stop().await;
}
