//! Reported state in the workload objects.

use serde_json::{Value, json};

use crate::reporting::{TIDE, WEB, downsync, fleet, label, only, web, works};
use crate::scene::{BINDINGS, CRDS, NAMESPACES, POLICIES, Scene, condition};

const COUNT: &str = "kubestellar.io/executing-count";
const COPIED: &str = "managed-by.kubestellar.io/singletonstatus";
const MERGED: &str = "managed-by.kubestellar.io/multiwecstatus";

async fn scene() -> Scene {
    let scene = Scene::start().await;
    scene.mailboxes().await;
    scene
}

fn error_of(policy: &Value) -> &str {
    let errors = policy["status"]["errors"].as_array().into_iter().flatten();
    let mut texts = errors.filter_map(Value::as_str);
    texts.find(|text| text.contains("Singleton reported status return is requested")).unwrap_or("")
}

/// KS-A-13, with KS-150, KS-151 and KS-064.
#[tokio::test(flavor = "multi_thread")]
async fn ks_a_13_singleton_status() {
    let scene = scene().await;
    scene.deployment("web").await;
    scene.tide(only("cluster1"), json!({"wantSingletonReportedState": true})).await;
    scene.wds.until(WEB, |it| label(it, COUNT) == "1").await;
    let up = |n: u32| json!({"replicas": n, "readyReplicas": n, "availableReplicas": n});
    scene.report("cluster1", up(1)).await;
    scene.wds.until(WEB, |it| it["status"] == up(1)).await;
    scene.report("cluster1", up(2)).await;
    let it = scene.wds.until(WEB, |it| it["status"]["availableReplicas"] == 2).await;
    assert_eq!(label(&it, COPIED), "true");

    scene.point("tide", only("nowhere")).await;
    let it = scene.wds.until(WEB, |it| it["status"] == json!({}) && label(it, COUNT) == "0").await;
    assert!(label(&it, COPIED).is_null());
    scene.wds.until(TIDE, |it| error_of(it).contains("\"NumWECs\":0")).await;
    scene.point("tide", fleet()).await;
    scene.wds.until(WEB, |it| it["status"] == json!({}) && label(it, COUNT) == "2").await;
    scene.wds.until(TIDE, |it| error_of(it).contains("\"NumWECs\":2")).await;
    scene.wds.patch(TIDE, json!({"spec": {"downsync": downsync(json!({}))}})).await;
    scene.wds.until(TIDE, |it| error_of(it).is_empty()).await;
    let it = scene.wds.until(WEB, |it| label(it, COUNT).is_null()).await;
    assert_eq!(it["status"], json!({}));
    scene.end().await;
}

/// KS-A-14.
#[tokio::test(flavor = "multi_thread")]
async fn ks_a_14_only_qualified_wecs_count() {
    let scene = scene().await;
    scene.deployment("web").await;
    scene.tide(fleet(), json!({})).await;
    let clause = downsync(json!({"wantSingletonReportedState": true}));
    scene.policy("solo", json!({"clusterSelectors": only("cluster1"), "downsync": clause})).await;
    scene.report("cluster2", json!({"replicas": 9})).await;
    scene.report("cluster1", json!({"replicas": 1})).await;
    scene.wds.until(WEB, |it| it["status"] == json!({"replicas": 1}) && label(it, COUNT) == "1").await;
    scene.point("solo", only("nowhere")).await;
    scene.wds.until(WEB, |it| it["status"] == json!({})).await;
    // KS-022: both clusters still run it.
    let both = |it: &Value| it["spec"]["destinations"].as_array().is_some_and(|all| all.len() == 2);
    scene.wds.until(&format!("{BINDINGS}/tide"), both).await;
    scene.end().await;
}

/// KS-A-15, with KS-152: a status that became void while the controller was down is cleared when it restarts,
/// and not before.
#[tokio::test(flavor = "multi_thread")]
async fn ks_a_15_status_survives_and_converges_over_a_crash() {
    let mut scene = scene().await;
    scene.deployment("web").await;
    scene.tide(only("cluster1"), json!({"wantSingletonReportedState": true})).await;
    scene.report("cluster1", json!({"replicas": 1})).await;
    scene.wds.until(WEB, |it| it["status"]["replicas"] == 1).await;
    scene.kill();
    scene.run_without_status().await;
    scene.point("tide", only("nowhere")).await;
    scene.wds.until(&format!("{BINDINGS}/tide"), |it| it["spec"].get("destinations").is_none()).await;
    assert_eq!(scene.wds.get(WEB).await.unwrap()["status"], json!({"replicas": 1}));
    scene.stop().await;
    scene.run().await;
    scene.wds.until(WEB, |it| it["status"] == json!({}) && label(it, COPIED).is_null()).await;
    scene.end().await;
}

/// KS-A-16, with KS-160, KS-161 and KS-168.
#[tokio::test(flavor = "multi_thread")]
async fn ks_a_16_multi_wec_status() {
    let scene = scene().await;
    scene.wds.patch(&format!("{NAMESPACES}/n"), json!({"metadata": {"labels": {"app": "tide"}}})).await;
    scene.deployment("web").await;
    scene.tide(fleet(), json!({"wantMultiWECReportedState": true})).await;
    let healthy = json!({"replicas": 1, "updatedReplicas": 1, "readyReplicas": 1, "availableReplicas": 1,
        "observedGeneration": 1});
    scene.report("cluster1", healthy.clone()).await;
    let broken =
        json!({"replicas": 1, "updatedReplicas": 1, "unavailableReplicas": 1, "observedGeneration": 1});
    scene.report("cluster2", broken.clone()).await;
    let it = scene.wds.until(WEB, |it| it["status"]["unavailableReplicas"] == 1).await;
    let ready = it["status"].get("readyReplicas").map_or(0, |it| it.as_i64().unwrap());
    assert_eq!((ready, &it["status"]["updatedReplicas"]), (0, &json!(1)));
    assert_eq!((label(&it, MERGED), label(&it, COPIED)), (&json!("true"), &Value::Null));
    assert!(label(&it, COUNT).is_null(), "KS-150: only where a single one is asked for");
    scene.report("cluster2", healthy).await;
    scene.wds.until(WEB, |it| it["status"]["readyReplicas"] == 1).await;

    scene.report("cluster2", broken.clone()).await;
    scene.point("tide", only("cluster2")).await;
    let it = scene.wds.until(WEB, |it| it["status"] == broken && label(it, MERGED).is_null()).await;
    assert_eq!(label(&it, COPIED), "true");

    // KS-158: a Namespace's status is its own, whatever clusters report.
    let source = json!({"group": "", "version": "v1", "resource": "namespaces", "kind": "Namespace", "namespace": "", "name": "n"});
    scene.work("cluster2", "ns", source).await;
    scene.report_as("cluster2", "ns", json!({"phase": "Terminating"})).await;
    scene.report("cluster2", json!({"replicas": 7})).await;
    scene.wds.until(WEB, |it| it["status"]["replicas"] == 7).await;
    let namespace = scene.wds.get(&format!("{NAMESPACES}/n")).await.unwrap();
    assert_eq!(namespace["status"], json!({"phase": "Active"}));
    assert_eq!((label(&namespace, COPIED), label(&namespace, MERGED)), (&Value::Null, &Value::Null));
    scene.end().await;
}

/// KS-A-26: reports of another WDS are ignored.
#[tokio::test(flavor = "multi_thread")]
async fn ks_149_reports_of_another_wds_change_nothing() {
    let scene = scene().await;
    scene.deployment("web").await;
    scene.tide(only("cluster1"), json!({"wantSingletonReportedState": true})).await;
    scene.report("cluster1", json!({"replicas": 1})).await;
    scene.wds.until(WEB, |it| it["status"]["replicas"] == 1).await;
    let theirs = json!({"metadata": {"labels": {"transport.kubestellar.io/originWdsName": "wds2"}}});
    scene.its.patch(&format!("{}/web", works("cluster1")), theirs).await;
    scene.wds.until(WEB, |it| it["status"] == json!({})).await;
    let nobodys = json!({"metadata": {"labels": null}});
    scene.its.patch(&format!("{}/web", works("cluster1")), nobodys).await;
    scene.wds.until(WEB, |it| it["status"]["replicas"] == 1).await;
    scene.end().await;
}

/// KS-154; KS-159: when the report is deleted, the status is removed.
#[tokio::test(flavor = "multi_thread")]
async fn ks_154_edits_of_a_returned_status_are_overwritten() {
    let scene = scene().await;
    scene.deployment("web").await;
    scene.tide(only("cluster1"), json!({"wantSingletonReportedState": true})).await;
    scene.report("cluster1", json!({"replicas": 1})).await;
    scene.wds.until(WEB, |it| it["status"]["replicas"] == 1).await;
    scene.wds.patch(&format!("{WEB}/status"), json!({"status": {"replicas": 5}})).await;
    scene.wds.until(WEB, |it| it["status"] == json!({"replicas": 1})).await;
    scene.its.delete(&format!("{}/web", works("cluster1"))).await;
    scene.wds.until(WEB, |it| it["status"] == json!({})).await;
    scene.end().await;
}

/// KS-156: a report costs one read of the object and one write; the event of that write costs nothing.
#[tokio::test(flavor = "multi_thread")]
async fn ks_156_a_report_costs_one_read() {
    let scene = scene().await;
    scene.deployment("web").await;
    scene.tide(only("cluster1"), json!({"wantSingletonReportedState": true})).await;
    let read = format!("GET {WEB}");
    let reads = || {
        let asked = scene.faults.asked.borrow();
        asked.iter().filter(|(it, _)| it.split('?').next() == Some(&read)).count()
    };
    // The Binding lists the object in its last version, so its event has been seen.
    let seen = async |replicas: u32| {
        scene.report("cluster1", json!({"replicas": replicas})).await;
        let it = scene.wds.until(WEB, |it| it["status"]["replicas"] == replicas).await;
        let version = it["metadata"]["resourceVersion"].clone();
        let listed = |it: &Value| it["spec"]["workload"]["namespaceScope"][0]["resourceVersion"] == version;
        scene.wds.until(&format!("{BINDINGS}/tide"), listed).await;
    };
    seen(1).await;
    seen(2).await;
    let before = reads();
    for replicas in 3..9 {
        seen(replicas).await;
    }
    assert_eq!(reads() - before, 6);
    // Changes by other clients are still noticed.
    scene.wds.patch(&format!("{WEB}/status"), json!({"status": {"replicas": 50}})).await;
    scene.wds.until(WEB, |it| it["status"] == json!({"replicas": 8})).await;
    let unlabelled = json!({"metadata": {"labels": {COPIED: null}}});
    scene.wds.patch(WEB, unlabelled).await;
    scene.wds.until(WEB, |it| label(it, COPIED) == "true").await;
    scene.end().await;
}

/// KS-155: without a status subresource the whole status is replaced. KS-158: also for cluster-scoped
/// objects.
#[tokio::test(flavor = "multi_thread")]
async fn ks_155_kinds_without_a_status_subresource() {
    let scene = scene().await;
    let schema = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let version =
        json!({"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}});
    let names =
        json!({"plural": "rockets", "singular": "rocket", "kind": "Rocket", "listKind": "RocketList"});
    let crd = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "rockets.example.org"},
        "spec": {"group": "example.org", "scope": "Cluster", "names": names, "versions": [version]},
    });
    scene.wds.post(CRDS, crd).await;
    let path = format!("{CRDS}/rockets.example.org");
    scene.wds.until(&path, |it| condition(it, "Established") == "True").await;
    let rocket = json!({
        "apiVersion": "example.org/v1", "kind": "Rocket",
        "metadata": {"name": "big", "labels": {"app": "tide"}}, "spec": {"stages": 3},
    });
    scene.wds.post("/apis/example.org/v1/rockets", rocket).await;
    scene.tide(only("cluster1"), json!({"wantSingletonReportedState": true})).await;
    let source = json!({"group": "example.org", "version": "v1", "resource": "rockets", "kind": "Rocket", "namespace": "", "name": "big"});
    scene.work("cluster1", "big", source).await;
    scene.report_as("cluster1", "big", json!({"up": true, "fuel": {"left": 1, "right": 2}})).await;
    let big = "/apis/example.org/v1/rockets/big";
    scene.wds.until(big, |it| it["status"] == json!({"up": true, "fuel": {"left": 1, "right": 2}})).await;
    scene.report_as("cluster1", "big", json!({"fuel": {"left": 1}})).await;
    let it = scene.wds.until(big, |it| it["status"] == json!({"fuel": {"left": 1}})).await;
    assert_eq!(it["spec"], json!({"stages": 3}));
    scene.end().await;
}

/// KS-148: policies become Bindings also while the ITS does not serve WorkStatus objects; once it does,
/// status returns.
#[tokio::test(flavor = "multi_thread")]
async fn ks_148_binding_does_not_wait_for_the_workstatus_api() {
    let mut scene = Scene::without_controllers().await;
    scene.mailboxes().await;
    let path = format!("{CRDS}/workstatuses.control.kubestellar.io");
    scene.its.delete(&path).await;
    scene.its.until_any(&path, |it| it.is_none()).await;
    scene.run().await;
    scene.wds.post(NAMESPACES, json!({"metadata": {"name": "n"}})).await;
    scene.deployment("web").await;
    scene.tide(only("cluster1"), json!({"wantSingletonReportedState": true})).await;
    scene.bound("tide", &["deployments/web"]).await;
    runtime::install(&scene.its.client, &apis::crds::work_status(), "test").await.unwrap();
    scene.work("cluster1", "web", web()).await;
    scene.report_as("cluster1", "web", json!({"replicas": 3})).await;
    scene.wds.until(WEB, |it| it["status"]["replicas"] == 3).await;
    assert!(scene.wds.get(&format!("{POLICIES}/tide")).await.is_some());
    scene.end().await;
}

/// KS-157: a write that lost a race, or that failed, is retried.
#[tokio::test(flavor = "multi_thread")]
async fn ks_157_conflicts_are_retried() {
    let scene = scene().await;
    scene.deployment("web").await;
    scene.tide(only("cluster1"), json!({"wantSingletonReportedState": true})).await;
    scene.faults.refuse("deployments/web/status", 409);
    scene.report("cluster1", json!({"replicas": 1})).await;
    // KS-153: the label is written first.
    let it = scene.wds.until(WEB, |it| label(it, COPIED) == "true").await;
    assert_eq!(it["status"], json!({}));
    scene.faults.heal();
    scene.wds.until(WEB, |it| it["status"] == json!({"replicas": 1})).await;
    scene.end().await;
}

/// A status that the WDS refuses is reported on the policy that requests it and in an Event, and is not
/// retried at once. Other objects get their status, and once the WDS accepts it the error disappears.
#[tokio::test(flavor = "multi_thread")]
async fn a_refused_status_is_told_on_its_policy() {
    let scene = scene().await;
    scene.deployment("web").await;
    scene.deployment("well").await;
    scene.tide(only("cluster1"), json!({"wantSingletonReportedState": true})).await;
    scene.faults.refuse("deployments/web/status", 422);
    scene.report("cluster1", json!({"replicas": 1})).await;
    let mut source = web();
    source["name"] = json!("well");
    scene.work("cluster1", "well", source).await;
    scene.report_as("cluster1", "well", json!({"replicas": 2})).await;
    let reported = |it: &Value| it["status"]["errors"].as_array().is_some_and(|all| all.len() == 1);
    let tide = scene.wds.until(TIDE, reported).await;
    let line = "deployments.apps n/web: the status that is reported for it is refused: refused by the test";
    assert_eq!(tide["status"]["errors"][0], line);
    let events = scene
        .wds
        .until("/api/v1/namespaces/default/events", |it| {
            it["items"].as_array().unwrap().iter().any(|it| it["message"] == line)
        })
        .await;
    assert!(events["items"].as_array().unwrap().iter().all(|it| it["involvedObject"]["name"] == "tide"));
    let well = "/apis/apps/v1/namespaces/n/deployments/well";
    scene.wds.until(well, |it| it["status"] == json!({"replicas": 2})).await;
    scene.faults.heal();
    scene.report("cluster1", json!({"replicas": 3})).await;
    scene.wds.until(WEB, |it| it["status"] == json!({"replicas": 3})).await;
    scene.wds.until(TIDE, |it| it["status"].get("errors").is_none()).await;
    scene.end().await;
}
