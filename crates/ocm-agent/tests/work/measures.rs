//! The metrics of the agents, and their field managers.

use kubestellar_ocm_agent::work_agent::Config;
use runtime::metrics::Metrics;
use serde_json::{Value, json};
use testkit::wait::when;

use crate::world::*;

/// Returns the value of a sample from `/metrics`.
fn sample(metrics: &Metrics, name: &str) -> Option<i64> {
    let text = metrics.text();
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok())
}

/// Waits until a sample satisfies `ask`.
async fn until(metrics: &Metrics, name: &str, ask: impl Fn(i64) -> bool) {
    when(name, || sample(metrics, name).is_some_and(&ask)).await;
}

/// OCM-164: applying, reporting, manifests by state, evictions; and the writes of the status agent with their
/// delay.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ocm_164_what_metrics_show() {
    let w = World::start().await;
    let (works, reports) = (Metrics::default(), Metrics::default());
    let agent = w.agent(Config { metrics: works.clone(), ..World::config() }).await;
    let reporter = w.status_agent_with(&reports).await;
    let mut good = work("good", holding(&[map("a", "1"), deployment("web", 1)]));
    good["metadata"]["labels"] = json!({"transport.kubestellar.io/originWdsName": "wds1"});
    w.hub.create(WORKS, CLUSTER, good).await;
    w.settled("good").await;
    let nameless = json!({"apiVersion": "sea.example/v1", "kind": "Wreck", "metadata": {"name": "w", "namespace": "sea"}});
    w.work("bad", holding(&[map("b", "1"), nameless])).await;
    w.reported("bad", "a failure", |w| is(&w["status"]["conditions"], "Applied", "False")).await;
    until(&works, "ocm_manifests{state=\"available\"}", |n| n == 3).await;
    until(&works, "ocm_manifests{state=\"failed\"}", |n| n == 1).await;
    until(&works, "ocm_manifestwork_apply_seconds_count{result=\"success\"}", |n| n >= 1).await;
    until(&works, "ocm_manifestwork_apply_seconds_count{result=\"failure\"}", |n| n >= 1).await;
    until(&works, "ocm_manifestwork_status_lag_seconds_count", |n| n >= 2).await;
    until(&reports, "ksstatus_workstatus_writes_total{result=\"success\"}", |n| n >= 1).await;
    until(&reports, "ksstatus_lag_seconds_count", |n| n >= 1).await;
    let before = sample(&reports, "ksstatus_lag_seconds_count").expect("a sample");
    let status = json!({"status": {"replicas": 1, "readyReplicas": 1, "availableReplicas": 1}});
    w.cluster.merge_status(DEPLOYMENTS, "sea", "web", status).await;
    until(&reports, "ksstatus_lag_seconds_count", |n| n > before).await;
    w.hub.delete(WORKS, CLUSTER, "bad").await;
    until(&works, "ocm_manifests{state=\"failed\"}", |n| n == 0).await;

    // A work that disappeared without its finalizer: its objects wait for eviction.
    assert_eq!(sample(&works, "ocm_eviction_pending"), Some(0));
    agent.end().await;
    w.hub.delete(WORKS, CLUSTER, "good").await;
    w.hub.merge(WORKS, CLUSTER, "good", json!({"metadata": {"finalizers": null}})).await;
    w.hub.until_gone(WORKS, CLUSTER, "good").await;
    let works = Metrics::default();
    let agent = w.agent(Config { metrics: works.clone(), ..World::config() }).await;
    until(&works, "ocm_eviction_pending", |n| n == 1).await;
    w.work("good", holding(&[map("a", "1")])).await;
    until(&works, "ocm_eviction_pending", |n| n == 0).await;
    agent.end().await;
    reporter.end().await;
    w.end().await;
}

/// OCM-070: `work-agent` is the field manager of the agent's writes in the cluster.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ocm_070_fields_belong_to_the_work_agent() {
    let w = World::start().await;
    let agent = w.agent(World::config()).await;
    for value in ["1", "2"] {
        let spec = holding(&[map("a", value)]);
        if value == "1" {
            w.work("reef", spec).await
        } else {
            w.edit("reef", spec).await
        };
        w.settled("reef").await;
    }
    let live = w.cluster.until_there(MAPS, "sea", "a").await;
    let managers: Vec<&Value> =
        live["metadata"]["managedFields"].as_array().into_iter().flatten().map(|f| &f["manager"]).collect();
    assert_eq!(managers, ["work-agent"], "{live:#}");
    agent.end().await;
    w.end().await;
}
