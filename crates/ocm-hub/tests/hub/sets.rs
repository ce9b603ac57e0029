//! Cluster sets.

use runtime::rest::Removal;
use serde_json::{Value, json};

use crate::world::{World, condition, create, gvr, until};

/// OCM-A-30, OCM-011, OCM-012: the built-in sets exist, are recreated, and keep what users add.
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

/// OCM-056: a namespace that a set requests is created in its clusters and labelled, and the hub's status
/// shows that. When it is no longer requested, it stays and its label says so.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ocm_056_managed_namespaces() {
    let (w, agent) = World::joined().await;
    let sets = gvr("managedclustersets");
    let want = |names: &'static [&'static str]| {
        let names: Vec<Value> = names.iter().map(|name| json!({"name": name})).collect();
        json!({"spec": {"managedNamespaces": names}})
    };
    w.hub().merge::<Value>(&sets, "", "global", &want(&["reef", "cove"])).await.expect("wanted");
    let mark = async |name: &str| {
        let found: Option<Value> = w.admin(1).find(&gvr("namespaces"), "", name).await.expect("an answer");
        let labels = found.and_then(|it| it["metadata"]["labels"].as_object().cloned()).unwrap_or_default();
        let ours =
            labels.into_iter().find(|(key, _)| key.starts_with("clusterset.open-cluster-management.io/"));
        ours.map(|(_, value)| value)
    };
    let reported = async || {
        let cluster = w.cluster("c1").await.expect("c1");
        let entries = cluster["status"]["managedNamespaces"].as_array().cloned().unwrap_or_default();
        let one = |e: &Value| json!([e["clusterSet"], e["name"], e["conditions"][0]["reason"]]);
        entries.iter().map(one).collect::<Vec<_>>()
    };
    let good = |name: &str| json!(["global", name, "NamespaceApplied"]);
    until("both", || async { reported().await == [good("cove"), good("reef")] }).await;
    assert_eq!(mark("reef").await, Some("true".into()));
    assert_eq!(mark("cove").await, Some("true".into()));
    w.hub().merge::<Value>(&sets, "", "global", &want(&["cove"])).await.expect("wanted");
    until("one is given back", || async { mark("reef").await == Some("false".into()) }).await;
    until("it is told of no more", || async { reported().await == [good("cove")] }).await;
    w.hub().merge::<Value>(&sets, "", "global", &want(&[])).await.expect("wanted");
    until("the other too", || async { mark("cove").await == Some("false".into()) }).await;
    agent.end().await;
    w.end().await;
}
