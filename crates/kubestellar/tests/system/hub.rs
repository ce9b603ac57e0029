//! Inventory spaces and the agents that join them, as processes.

use kube::api::{DynamicObject, PostParams};
use serde_json::{Value, json};

use super::components::Bare;
use super::dropin::Component;
use crate::support::{Installation, config_map, dynamic, until, until_one};

const ADDON: &str = "addon.open-cluster-management.io";

fn condition<'a>(object: &'a DynamicObject, type_: &str) -> Option<&'a Value> {
    let all = object.data["status"]["conditions"].as_array();
    all.into_iter().flatten().find(|condition| condition["type"] == type_)
}

/// OCM-001, OCM-002, OCM-016, OCM-A-32: an add-on says the same in both versions of its API, and our agent speaks the newer one
/// where there is a choice.
#[tokio::test(flavor = "multi_thread")]
async fn ocm_a_32_an_addon_in_both_versions() {
    let ks = Installation::new();
    let server = ks.serve(&["--listen", "127.0.0.1:0", "--clusters", "1"]).await;
    let its = ks.client("its1").await;
    let of =
        |version: &str| dynamic(&its, &format!("{ADDON}/{version}"), "ManagedClusterAddOn", Some("cluster1"));
    let is_well = |it: &DynamicObject| {
        let is_true = |type_: &str| condition(it, type_).is_some_and(|c| c["status"] == "True");
        is_true("Available") && is_true("ClusterCertificateRotated")
    };
    let new = until_one(&of("v1beta1"), "addon-status", "its health", is_well).await;
    let old = until_one(&of("v1alpha1"), "addon-status", "its health", is_well).await;
    for type_ in ["Available", "ClusterCertificateRotated"] {
        assert_eq!(condition(&new, type_), condition(&old, type_));
    }
    assert_eq!(old.data["status"]["kubeClientDriver"], "csr");
    let identity = &new.data["status"]["registrations"][0];
    assert_eq!(identity["type"], "kubeClient");
    assert_eq!(identity["kubeClient"]["driver"], "csr");
    let user = &old.data["status"]["registrations"][0]["subject"]["user"];
    assert_eq!(identity["kubeClient"]["subject"]["user"], *user);
    let managers = new.metadata.managed_fields.unwrap_or_default();
    let agents = managers.iter().filter(|entry| entry.manager.as_deref() == Some("registration-agent"));
    let versions: Vec<_> = agents.filter_map(|entry| entry.api_version.clone()).collect();
    assert!(!versions.is_empty());
    assert!(versions.iter().all(|version| *version == format!("{ADDON}/v1beta1")), "{versions:?}");
    server.stop().await;
}

/// OCM-A-14: an agent that was told a wrong way to its hub lives and is well by its probe, and has no credential; once the way
/// is mended it joins, without being started again. Its cluster had nothing of what agents need.
#[tokio::test(flavor = "multi_thread")]
async fn ocm_a_14_a_wrong_way_to_the_hub_is_mended() {
    let ks = Installation::new();
    let server = ks.serve(&["--listen", "127.0.0.1:0", "--clusters", "0"]).await;
    let edge = Bare::start(&ks, "edge9").await;
    let printed = ks.must(&["cluster", "token", "--print-for", "kubestellar"]).await.stdout;
    let line = printed.lines().find(|l| l.starts_with("kubestellar ")).expect("our line");
    let said = |flag: &str| {
        let (_, rest) = line.split_once(&format!("{flag} ")).expect("a flag");
        rest.split(' ').next().unwrap_or_default().to_owned()
    };
    let way = |address: &str| {
        json!({"apiVersion": "v1", "kind": "Config", "current-context": "hub",
            "clusters": [{"name": "hub", "cluster": {"server": address, "certificate-authority-data": said("--ca-data")}}],
            "contexts": [{"name": "hub", "context": {"cluster": "hub", "user": "hub"}}],
            "users": [{"name": "hub", "user": {"token": said("--hub-token")}}]})
        .to_string()
    };
    let file = ks.path("join.conf");
    std::fs::write(&file, way("https://127.0.0.1:1/spaces/its1")).unwrap();
    let arguments = [
        "ocm",
        "agent",
        "--spoke-cluster-name=edge9",
        "--bootstrap-kubeconfig",
        file.to_str().unwrap(),
        "--spoke-kubeconfig",
        edge.file(),
    ];
    let agent = Component::start(&ks, "agent", &arguments);
    for kind in apis::crds::ocm_spoke() {
        edge.defined(kind.metadata.name.as_deref().unwrap_or_default()).await;
    }
    let namespaces = dynamic(&edge.client, "v1", "Namespace", None);
    for name in ["open-cluster-management-agent", "open-cluster-management-agent-addon"] {
        until_one(&namespaces, name, "what agents need", |_| true).await;
    }
    assert_eq!(agent.get("probes", "/healthz").await.0, 200);
    let secrets = dynamic(&edge.client, "v1", "Secret", Some("open-cluster-management-agent"));
    assert!(secrets.get_opt("hub-kubeconfig-secret").await.unwrap().is_none());

    std::fs::write(&file, way(&said("--hub-apiserver"))).unwrap();
    ks.must(&["cluster", "accept", "edge9", "--wait"]).await;
    until(&secrets, "a credential", |all| all.keys().any(|key| key.ends_with("/hub-kubeconfig-secret")))
        .await;
    let its = ks.client("its1").await;
    let works = dynamic(&its, "work.open-cluster-management.io/v1", "ManifestWork", Some("edge9"));
    let work: DynamicObject =
        serde_json::from_value(json!({"apiVersion": "work.open-cluster-management.io/v1",
        "kind": "ManifestWork", "metadata": {"name": "reef"},
        "spec": {"workload": {"manifests": [config_map("default", "reef", "1")]}}}))
        .unwrap();
    works.create(&PostParams::default(), &work).await.unwrap();
    let there = dynamic(&edge.client, "v1", "ConfigMap", Some("default"));
    until_one(&there, "reef", "the delivery", |_| true).await;
    agent.server.stop().await;
    edge.server.stop().await;
    server.stop().await;
}
