//! ClusterProfiles.

use runtime::rest::Removal;
use serde_json::{Value, json};

use crate::world::{AVAILABLE, World, create, gvr, until};

const SET: &str = "cluster.open-cluster-management.io/clusterset";

async fn profile(w: &World) -> Option<Value> {
    w.hub().find(&gvr("clusterprofiles"), "team", "c1").await.expect("an answer")
}

async fn put_in_set(w: &World, set: &str) {
    let patch = json!({"metadata": {"labels": {SET: set}}});
    w.hub().merge::<Value>(&gvr("managedclusters"), "", "c1", &patch).await.expect("labelled");
}

/// OCM-165: a cluster has a profile in each namespace that one of its sets is bound to, as long as that is so.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ocm_165_profiles_follow_sets_bindings_and_clusters() {
    let w = World::start(|config| config.cluster_profiles = true).await;
    let hub = w.hub();
    let v1 = |kind: &str| json!({"apiVersion": "cluster.open-cluster-management.io/v1beta2", "kind": kind});
    let make = async |plural: &str, namespace: &str, mut body: Value, name: &str, spec: Value| {
        body["metadata"] = json!({"name": name});
        body["spec"] = spec;
        create(&hub, &gvr(plural), namespace, body).await.expect(name)
    };
    make("namespaces", "", json!({"apiVersion": "v1", "kind": "Namespace"}), "team", json!({})).await;
    let binding = || {
        make(
            "managedclustersetbindings",
            "team",
            v1("ManagedClusterSetBinding"),
            "blue",
            json!({"clusterSet": "blue"}),
        )
    };
    binding().await;
    let by_label = json!({"clusterSelector": {"selectorType": "ExclusiveClusterSetLabel"}});
    make("managedclustersets", "", v1("ManagedClusterSet"), "blue", by_label).await;
    let body = json!({"apiVersion": "cluster.open-cluster-management.io/v1", "kind": "ManagedCluster"});
    make("managedclusters", "", body, "c1", json!({"hubAcceptsClient": true})).await;
    put_in_set(&w, "blue").await;
    until("a profile", || async { profile(&w).await.is_some() }).await;
    let made = profile(&w).await.expect("it");
    assert_eq!(
        made["spec"],
        json!({"displayName": "c1", "clusterManager": {"name": "open-cluster-management"}})
    );
    assert_eq!(made["metadata"]["labels"]["multicluster.x-k8s.io/clusterset"], "blue");

    let told = json!({"status": {"version": {"kubernetes": "v1.33.1"}, "clusterClaims": [{"name": "a", "value": "b"}],
        "conditions": [{"type": AVAILABLE, "status": "True", "reason": "ManagedClusterAvailable", "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z"}]}});
    hub.merge_status::<Value>(&gvr("managedclusters"), "", "c1", &told).await.expect("told");
    until("its status", || async {
        let status = profile(&w).await.expect("it")["status"].clone();
        status["version"]["kubernetes"] == "v1.33.1"
            && status["properties"] == json!([{"name": "a", "value": "b"}])
            && status["conditions"].as_array().is_some_and(|all| {
                all.iter()
                    .any(|c| c["type"] == "ControlPlaneHealthy" && c["reason"] == "ManagedClusterAvailable")
            })
    })
    .await;
    // Whatever others change is corrected.
    let foreign = json!({"metadata": {"labels": {"x-k8s.io/cluster-manager": "nobody"}}});
    hub.merge::<Value>(&gvr("clusterprofiles"), "team", "c1", &foreign).await.expect("changed");
    until("its label", || async {
        profile(&w).await.expect("it")["metadata"]["labels"]["x-k8s.io/cluster-manager"]
            == "open-cluster-management"
    })
    .await;

    put_in_set(&w, "green").await;
    until("no profile: the cluster left the set", || async { profile(&w).await.is_none() }).await;
    put_in_set(&w, "blue").await;
    until("a profile again", || async { profile(&w).await.is_some() }).await;
    hub.delete(&gvr("managedclustersetbindings"), "team", "blue", &Removal::default())
        .await
        .expect("unbound");
    until("no profile: the set is not bound", || async { profile(&w).await.is_none() }).await;
    binding().await;
    until("a profile once more", || async { profile(&w).await.is_some() }).await;
    let all = json!({"spec": {"clusterSelector": {"selectorType": "LabelSelector", "labelSelector": {"matchLabels": {"no": "one"}}}}});
    hub.merge::<Value>(&gvr("managedclustersets"), "", "blue", &all).await.expect("selects nobody");
    until("no profile: the set selects others", || async { profile(&w).await.is_none() }).await;
    let all = json!({"spec": {"clusterSelector": {"labelSelector": {"matchLabels": null}}}});
    hub.merge::<Value>(&gvr("managedclustersets"), "", "blue", &all).await.expect("selects all");
    until("a profile by label", || async { profile(&w).await.is_some() }).await;
    hub.delete(&gvr("managedclusters"), "", "c1", &Removal::default()).await.expect("deleted");
    until("no profile: no cluster", || async { profile(&w).await.is_none() }).await;
    w.end().await;
}

/// OCM-165: without the gate the kind is not even defined.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ocm_165_the_gate_is_off() {
    let w = World::start(|_| ()).await;
    let name = "clusterprofiles.multicluster.x-k8s.io";
    assert!(!w.exists("customresourcedefinitions", "", name).await);
    w.end().await;
}
