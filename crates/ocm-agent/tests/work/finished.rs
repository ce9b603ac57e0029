//! Works whose time to live is over.

use ocm_hub as hub;
use serde_json::{Value, json};
use space::Identity;
use tokio_util::sync::CancellationToken;

use crate::world::*;

fn job(name: &str) -> Value {
    json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name, "namespace": "sea"},
        "spec": {"template": {"spec": {"restartPolicy": "Never",
            "containers": [{"name": "c", "image": "example.invalid/app:1"}]}}}})
}

/// A work that is complete with its Job, and is then deleted at once.
fn finite(name: &str) -> Value {
    let rules = json!({"conditionRules": [{"condition": "Complete", "type": "WellKnownConditions"}]});
    let mut spec = configured(&[job(name)], "batch/jobs", name, rules);
    spec["deleteOption"] = json!({"propagationPolicy": "Foreground", "ttlSecondsAfterFinished": 0});
    spec
}

async fn finish(w: &World, name: &str) {
    let now = "2026-01-01T00:00:00Z";
    let condition = |type_: &str| json!({"type": type_, "status": "True", "lastTransitionTime": now});
    let status = json!({"status": {"startTime": now, "completionTime": now, "succeeded": 1,
        "conditions": [condition("SuccessCriteriaMet"), condition("Complete")]}});
    w.cluster.merge_status("batch/v1/jobs", "sea", name, status).await;
}

/// OCM-A-61, OCM-097: with the gate on, a complete work is deleted with its objects when its time is over. A
/// work of a ManifestWorkReplicaSet, and one that is not complete, stay.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ocm_097_complete_works_go() {
    let w = World::start().await;
    let cluster = json!({"apiVersion": "cluster.open-cluster-management.io/v1", "kind": "ManagedCluster",
        "metadata": {"name": CLUSTER}, "spec": {"hubAcceptsClient": true}});
    w.hub.create("cluster.open-cluster-management.io/v1/managedclusters", "", cluster).await;
    let config = hub::Config { clean_completed: true, ..hub::Config::default() };
    let (mut ready, stop) = (config.ready.subscribe(), CancellationToken::new());
    let (client, token) = (w.hub_client(&Identity::admin()), stop.clone());
    let running = tokio::spawn(async move { hub::run(client, config, token).await.expect("the hub") });
    ready.wait_for(|yes| *yes).await.expect("the hub works");
    let agent = w.agent(World::config()).await;
    w.work("running", finite("running")).await;
    w.work("over", finite("over")).await;
    let mut kept = work("kept", finite("kept"));
    kept["metadata"]["labels"] = json!({"work.open-cluster-management.io/manifestworkreplicaset": "ns.set"});
    w.hub.create(WORKS, CLUSTER, kept).await;
    for name in ["running", "over", "kept"] {
        w.settled(name).await;
    }
    finish(&w, "kept").await;
    w.reported("kept", "complete", |w| is(&w["status"]["conditions"], "Complete", "True")).await;
    finish(&w, "over").await;
    w.hub.until_gone(WORKS, CLUSTER, "over").await;
    assert!(w.cluster.get("batch/v1/jobs", "sea", "over").await.is_none());
    for name in ["running", "kept"] {
        let work = w.hub.get(WORKS, CLUSTER, name).await.expect("stays");
        assert!(work["metadata"]["deletionTimestamp"].is_null(), "{work:#}");
    }
    agent.end().await;
    stop.cancel();
    running.await.expect("no panic");
    w.end().await;
}
