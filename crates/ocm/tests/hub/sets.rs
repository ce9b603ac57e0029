//! Cluster sets.

use runtime::rest::Removal;
use serde_json::{Value, json};

use crate::world::{World, condition, create, gvr, until};

/// OCM-A-30, OCM-011, OCM-012: the built-in sets are there, come back, and keep what users add.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ocm_a_30_sets() {
    let w = World::start(|_| ()).await;
    let (hub, sets) = (w.hub(), gvr("managedclustersets"));
    for name in ["default", "global"] {
        until(name, || w.exists("managedclustersets", "", name)).await;
    }
    let old: Value = hub.get(&sets, "", "global").await.expect("global");
    hub.delete(&sets, "", "global", &Removal::default()).await.expect("deleted");
    until("another", || async {
        let found: Option<Value> = hub.find(&sets, "", "global").await.expect("an answer");
        found.is_some_and(|s| s["metadata"]["uid"] != old["metadata"]["uid"])
    })
    .await;
    let narrowed = json!({"metadata": {"labels": {"mine": "yes"}}, "spec": {"clusterSelector": {"labelSelector": {"matchLabels": {"a": "b"}}}}});
    hub.merge::<Value>(&sets, "", "global", &narrowed).await.expect("narrowed");
    until("it is as it was", || async {
        let set: Value = hub.get(&sets, "", "global").await.expect("global");
        set["spec"]["clusterSelector"]["labelSelector"].as_object().is_none_or(serde_json::Map::is_empty)
    })
    .await;
    let set: Value = hub.get(&sets, "", "global").await.expect("global");
    assert_eq!(set["metadata"]["labels"]["mine"], "yes");
    let body = json!({"apiVersion": "cluster.open-cluster-management.io/v1beta2", "kind": "ManagedClusterSetBinding",
        "metadata": {"name": "global"}, "spec": {"clusterSet": "global"}});
    create(&hub, &gvr("managedclustersetbindings"), "default", body).await.expect("a binding");
    until("bound", || async {
        let binding: Value =
            hub.get(&gvr("managedclustersetbindings"), "default", "global").await.expect("it");
        condition(&binding, "Bound")["status"] == "True"
    })
    .await;
    let member = json!({"apiVersion": "cluster.open-cluster-management.io/v1", "kind": "ManagedCluster",
        "metadata": {"name": "c1"}, "spec": {"hubAcceptsClient": false}});
    create(&hub, &gvr("managedclusters"), "", member).await.expect("c1");
    until("one member", || async {
        let set: Value = hub.get(&sets, "", "global").await.expect("global");
        condition(&set, "ClusterSetEmpty")["message"] == "1 ManagedClusters selected"
    })
    .await;
    w.end().await;
}
