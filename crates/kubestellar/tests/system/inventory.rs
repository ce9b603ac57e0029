//! Inventories and clusters that come, go and come again, and what a user sees of it.

use kube::Client;
use kube::api::{Api, DeleteParams, DynamicObject, Patch, PatchParams};
use serde_json::{Value, json};

use crate::support::{Installation, config_map, create, dynamic, found, namespace, policy, until, until_one};

fn planes(host: &Client) -> Api<DynamicObject> {
    dynamic(host, "tenancy.kflex.kubestellar.org/v1alpha1", "ControlPlane", None)
}

/// The context names in the user's kubeconfig.
fn contexts(ks: &Installation) -> Vec<String> {
    let document: Value = serde_saphyr::from_str(&ks.kubeconfig_text()).expect("YAML");
    let list = document["contexts"].as_array().cloned().unwrap_or_default();
    list.iter().map(|context| context["name"].as_str().unwrap().to_owned()).collect()
}

/// The components of a space, with their errors.
async fn components(ks: &Installation, space: &str) -> Vec<(String, String)> {
    let status = ks.status().await;
    let all = status["server"]["components"].as_array().unwrap().clone();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let of = all.iter().filter(|one| one["space"] == space);
    of.map(|one| (text(&one["name"]), text(&one["lastError"]))).collect()
}

/// Waits until a value is in the cluster.
async fn delivered(cluster: &Client, value: &str) {
    let maps = dynamic(cluster, "v1", "ConfigMap", Some("shop"));
    until_one(&maps, "prices", "the delivered ConfigMap", |map| map.data["data"]["value"] == value).await;
}

async fn set(wds: &Client, value: &str) {
    let patch = Patch::Merge(json!({"data": {"value": value}}));
    let maps = dynamic(wds, "v1", "ConfigMap", Some("shop"));
    maps.patch("prices", &PatchParams::default(), &patch).await.expect("it is written");
}

async fn shop(wds: &Client) {
    create(wds, namespace("shop")).await;
    create(wds, config_map("shop", "prices", "1")).await;
    create(wds, policy("shop", ("location-group", "edge"), false)).await;
}

/// SP-094, SP-102, OCM-033: an ITS that was deleted leaves no context behind, and status says what is missing; made again by `up`
/// it has its clusters and its WDS back, delivers, and is there after a restart.
#[tokio::test(flavor = "multi_thread")]
async fn sp_102_an_its_that_was_deleted_is_made_again() {
    let ks = Installation::new();
    ks.must(&["up", "--listen", "127.0.0.1:0", "--clusters", "1"]).await;
    let (wds, cluster) = (ks.client("wds1").await, ks.client("cluster1").await);
    shop(&wds).await;
    delivered(&cluster, "1").await;
    planes(&ks.client("kubestellar").await).delete("its1", &DeleteParams::default()).await.unwrap();
    found("the context goes", async || (!contexts(&ks).contains(&"its1".to_owned())).then_some(())).await;
    assert!(contexts(&ks).contains(&"wds1".to_owned()));
    for (space, component) in [("cluster1", "enrolment"), ("wds1", "controller-manager")] {
        let shown = components(&ks, space).await;
        let (_, error) = shown.iter().find(|(name, _)| name == component).expect("it is shown");
        assert!(error.contains("its1 does not exist") && error.contains("up --its its1"), "{error}");
    }

    ks.must(&["up", "--its", "its1"]).await;
    assert!(contexts(&ks).contains(&"its1".to_owned()));
    set(&wds, "2").await;
    delivered(&cluster, "2").await;
    let errors: Vec<_> =
        components(&ks, "cluster1").await.into_iter().filter(|(_, e)| !e.is_empty()).collect();
    assert!(errors.is_empty(), "{errors:?}");
    let its = ks.config("its1").await;
    Client::try_from(its).unwrap().apiserver_version().await.unwrap();

    ks.must(&["down"]).await;
    ks.must(&["up"]).await;
    let status = ks.status().await;
    let spaces: Vec<_> =
        status["server"]["spaces"].as_array().unwrap().iter().map(|s| s["name"].clone()).collect();
    assert!(spaces.contains(&json!("its1")), "{spaces:?}");
    set(&ks.client("wds1").await, "3").await;
    delivered(&ks.client("cluster1").await, "3").await;
}

/// SP-102, SP-118: a simulated cluster that was taken out stays out, also over restarts, without agents and their objects; it comes
/// back when it is asked for.
#[tokio::test(flavor = "multi_thread")]
async fn sp_118_a_simulated_cluster_stays_out() {
    let ks = Installation::new();
    ks.must(&["up", "--listen", "127.0.0.1:0", "--clusters", "2"]).await;
    let wds = ks.client("wds1").await;
    shop(&wds).await;
    delivered(&ks.client("cluster2").await, "1").await;
    ks.must(&["cluster", "detach", "cluster2"]).await;
    ks.must(&["down"]).await;
    ks.must(&["up"]).await;
    let cluster = ks.client("cluster2").await;
    let spaces = dynamic(&cluster, "v1", "Namespace", None);
    until(&spaces, "the agents' namespaces go", |all| {
        !all.keys().any(|name| name.starts_with("open-cluster-management") || name == "shop")
    })
    .await;
    let shown: Vec<String> = components(&ks, "cluster2").await.into_iter().map(|(name, _)| name).collect();
    assert!(!shown.iter().any(|name| name.ends_with("-agent") || name == "enrolment"), "{shown:?}");
    let listed = ks.must(&["cluster", "list"]).await.stdout;
    assert!(listed.contains("cluster1") && !listed.contains("cluster2"), "{listed}");

    ks.must(&["up", "--clusters", "2"]).await;
    let listed = ks.must(&["cluster", "list"]).await.stdout;
    assert!(listed.contains("cluster2"), "{listed}");
    delivered(&cluster, "1").await;
}

/// SP-107: a suspended space is in the status.
#[tokio::test(flavor = "multi_thread")]
async fn sp_107_suspended_spaces_are_shown() {
    let ks = Installation::new();
    let server = ks.serve(&["--listen", "127.0.0.1:0", "--clusters", "0"]).await;
    let suspend =
        Patch::Merge(json!({"metadata": {"annotations": {"space.kubestellar.io/suspended": "true"}}}));
    let planes = planes(&ks.client("kubestellar").await);
    planes.patch("wds1", &PatchParams::default(), &suspend).await.unwrap();
    let is_shown = async || {
        let status = ks.status().await;
        let spaces = status["server"]["spaces"].as_array().unwrap().clone();
        spaces.iter().any(|one| one["name"] == "wds1" && one["suspended"] == true && one["role"] == "wds")
    };
    found("wds1 is shown as suspended", async || is_shown().await.then_some(())).await;
    assert!(
        ks.must(&["status"]).await.stdout.lines().any(|l| l.starts_with("wds1") && l.contains("Suspended"))
    );
    server.stop().await;
    let server = ks.serve(&[]).await;
    assert!(is_shown().await, "at once after a restart");
    server.stop().await;
}

/// OCM-060: `cluster leave` does not act on whatever context is the current one.
#[tokio::test(flavor = "multi_thread")]
async fn ocm_060_leaving_needs_a_named_cluster() {
    let ks = Installation::new();
    ks.put_kubeconfig("apiVersion: v1\nkind: Config\ncurrent-context: prod\ncontexts: [{name: prod, context: {cluster: c, user: u}}]\n");
    let refused = ks.run(&["cluster", "leave"]).await;
    refused.fails(2, &["which cluster leaves"]);
    assert!(refused.stderr.contains("--context prod"), "{}", refused.stderr);
}
