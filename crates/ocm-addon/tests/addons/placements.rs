//! Placements in a hub: what wakes them, and what they write.

use serde_json::{Value, json};

use crate::world::{World, condition, create, gvr, until};

/// Where the status add-on's own binding of the global set is.
const HOME: &str = "open-cluster-management";
const GROUP: &str = "cluster.open-cluster-management.io";

async fn cluster(w: &World, name: &str, vendor: &str) {
    let cluster = json!({"apiVersion": format!("{GROUP}/v1"), "kind": "ManagedCluster",
        "metadata": {"name": name, "labels": {"vendor": vendor}}, "spec": {"hubAcceptsClient": true}});
    create(&w.hub(), &gvr("managedclusters"), "", cluster).await;
}

async fn score(w: &World, cluster: &str, value: i32) {
    let (hub, scores) = (w.hub(), gvr("addonplacementscores"));
    let body = json!({"apiVersion": format!("{GROUP}/v1alpha1"), "kind": "AddOnPlacementScore",
        "metadata": {"name": "demo", "namespace": cluster}});
    until("the mailbox", || async { hub.create_missing(&scores, cluster, &body).await.is_ok() }).await;
    let status = json!({"status": {"scores": [{"name": "cpu", "value": value}]}});
    hub.merge_status::<Value>(&scores, cluster, "demo", &status).await.expect("written");
}

/// Waits for the namespace of the Placements.
async fn defined(w: &World) {
    until("the definition of the add-on", || async {
        w.hub().find::<Value>(&gvr("namespaces"), "", HOME).await.expect("an answer").is_some()
    })
    .await;
}

async fn placement(w: &World, name: &str, spec: Value) {
    let placement = json!({"apiVersion": format!("{GROUP}/v1beta1"), "kind": "Placement",
        "metadata": {"name": name, "namespace": HOME}, "spec": spec});
    create(&w.hub(), &gvr("placements"), HOME, placement).await;
}

/// The pages of a Placement: name, number and name of the group, clusters.
async fn pages(w: &World, placement: &str) -> Vec<(String, String, String, Vec<String>)> {
    let label = format!("{GROUP}/placement={placement}");
    let list: Value = w.hub().list(&gvr("placementdecisions"), HOME, &label).await.expect("a list");
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let page = |page: &Value| {
        let labels = &page["metadata"]["labels"];
        let clusters = page["status"]["decisions"].as_array().into_iter().flatten();
        (
            text(&page["metadata"]["name"]),
            text(&labels[format!("{GROUP}/decision-group-index")]),
            text(&labels[format!("{GROUP}/decision-group-name")]),
            clusters.map(|decision| text(&decision["clusterName"])).collect(),
        )
    };
    list["items"].as_array().expect("items").iter().map(page).collect()
}

async fn until_pages(w: &World, placement: &str, wanted: &[(&str, &str, &str, &[&str])]) {
    let wanted: Vec<_> = wanted
        .iter()
        .map(|(name, index, group, clusters)| {
            let clusters = clusters.iter().map(|cluster| (*cluster).to_owned()).collect::<Vec<_>>();
            ((*name).to_owned(), (*index).to_owned(), (*group).to_owned(), clusters)
        })
        .collect();
    until(&format!("{wanted:?}"), || async { pages(w, placement).await == wanted }).await;
}

/// OCM-013: groups have pages with labels; a cluster that moves to another group moves to its page; the status lists all.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ocm_013_groups_of_decisions() {
    let w = World::start(0).await;
    let manager = w.manager(|_| ());
    for (name, vendor) in [("c1", "x"), ("c2", "y"), ("c3", "y")] {
        cluster(&w, name, vendor).await;
    }
    let canary = json!({"groupName": "canary", "groupClusterSelector": {"labelSelector": {"matchLabels": {"vendor": "x"}}}});
    let tolerations = json!([{"operator": "Exists"}]);
    let spec = json!({"tolerations": tolerations, "decisionStrategy": {"groupStrategy":
        {"clustersPerDecisionGroup": 1, "decisionGroups": [canary]}}});
    defined(&w).await;
    placement(&w, "p", spec).await;
    let (first, second, third) = ("p-decision-1", "p-decision-2", "p-decision-3");
    until_pages(
        &w,
        "p",
        &[(first, "0", "canary", &["c1"]), (second, "1", "", &["c2"]), (third, "2", "", &["c3"])],
    )
    .await;
    let label = json!({"metadata": {"labels": {"vendor": "x"}}});
    w.hub().merge::<Value>(&gvr("managedclusters"), "", "c3", &label).await.expect("labelled");
    until_pages(
        &w,
        "p",
        &[(first, "0", "canary", &["c1"]), (second, "1", "canary", &["c3"]), (third, "2", "", &["c2"])],
    )
    .await;
    let more = json!({"spec": {"decisionStrategy": {"groupStrategy": {"clustersPerDecisionGroup": "100%"}}}});
    w.hub().merge::<Value>(&gvr("placements"), HOME, "p", &more).await.expect("changed");
    until_pages(&w, "p", &[(first, "0", "canary", &["c1", "c3"]), (second, "1", "", &["c2"])]).await;
    until("the status", || async {
        let found: Value = w.hub().get(&gvr("placements"), HOME, "p").await.expect("it");
        let wanted = json!([
            {"decisionGroupIndex": 0, "decisionGroupName": "canary", "decisions": [first], "clusterCount": 2},
            {"decisionGroupIndex": 1, "decisionGroupName": "", "decisions": [second], "clusterCount": 1}]);
        found["status"]["decisionGroups"] == wanted && found["status"]["numberOfSelectedClusters"] == 3
    })
    .await;
    manager.end().await;
    w.end().await;
}

/// OCM-013: a Placement is decided again when scores that it reads change, by prioritizers or expressions. One that is
/// misconfigured says so, and keeps its decisions.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ocm_013_scores_decide() {
    let w = World::start(0).await;
    let manager = w.manager(|_| ());
    for name in ["c1", "c2"] {
        cluster(&w, name, "x").await;
        score(&w, name, if name == "c1" { 10 } else { 20 }).await;
    }
    let tolerations = json!([{"operator": "Exists"}]);
    let at = json!({"type": "AddOn", "addOn": {"resourceName": "demo", "scoreName": "cpu"}});
    let best = json!({"numberOfClusters": 1, "tolerations": tolerations,
        "prioritizerPolicy": {"mode": "Exact", "configurations": [{"scoreCoordinate": at}]}});
    let cel = |text: &str| json!([{"requiredClusterSelector": {"celSelector": {"celExpressions": [text]}}}]);
    let high = cel("managedCluster.scores('demo').all(s, s.value > 15)");
    defined(&w).await;
    placement(&w, "best", best).await;
    placement(&w, "high", json!({"tolerations": tolerations, "predicates": high})).await;
    until_pages(&w, "best", &[("best-decision-1", "0", "", &["c2"])]).await;
    until_pages(&w, "high", &[("high-decision-1", "0", "", &["c2"])]).await;
    score(&w, "c1", 30).await;
    until_pages(&w, "best", &[("best-decision-1", "0", "", &["c1"])]).await;
    until_pages(&w, "high", &[("high-decision-1", "0", "", &["c1", "c2"])]).await;

    let broken = json!({"spec": {"predicates": cel("managedCluster.scores(")}});
    w.hub().merge::<Value>(&gvr("placements"), HOME, "high", &broken).await.expect("changed");
    until("the reason", || async {
        let found: Value = w.hub().get(&gvr("placements"), HOME, "high").await.expect("it");
        let told = condition(&found, "PlacementMisconfigured");
        told["message"].as_str().is_some_and(|why| why.starts_with("Predicate:compilation failed: "))
            && condition(&found, "PlacementSatisfied")["status"] == "False"
    })
    .await;
    until_pages(&w, "high", &[("high-decision-1", "0", "", &["c1", "c2"])]).await;
    manager.end().await;
    w.end().await;
}
