//! SnapshotSchedule end to end (§8.1).

use std::sync::{
    Arc,
    atomic::{AtomicI64, Ordering},
};

use kube::core::params::PropagationPolicy;
use runtime::rest::Removal;
use serde_json::{Value, json};

use crate::{
    hook::{Hook, Reply, Seen},
    world::{CONTROLLERS, World, found, gvr, tag},
};

const SCHEDULES: &str = "backup.example.com/v1/snapshotschedules";
const SNAPSHOTS: &str = "snapshot.storage.k8s.io/v1/volumesnapshots";
const CLAIMS: &str = "v1/persistentvolumeclaims";

/// The whole program of the hook's author.
fn schedule(now: i64, seen: &Seen) -> Reply {
    let spec = &seen.body["parent"]["spec"];
    let snaps = seen.body["outputs"]["VolumeSnapshot.snapshot.storage.k8s.io/v1"]
        .as_object()
        .cloned()
        .unwrap_or_default();
    let taken =
        |snap: &Value| snap["metadata"]["annotations"]["taken-at"].as_str().unwrap().parse::<i64>().unwrap();
    let kept: Vec<&Value> =
        snaps.values().filter(|snap| now - taken(snap) <= spec["ttlSeconds"].as_i64().unwrap()).collect();
    let mut outputs: Vec<Value> = kept
        .iter()
        .map(|snap| json!({"apiVersion": snap["apiVersion"], "kind": snap["kind"], "metadata": {"name": snap["metadata"]["name"]}}))
        .collect();
    let newest = kept.iter().map(|snap| taken(snap)).max();
    let due = newest.is_none_or(|at| now - at >= spec["intervalSeconds"].as_i64().unwrap());
    if seen.path == "/map" && due {
        let name = seen.body["input"]["metadata"]["name"].as_str().unwrap();
        outputs.push(json!({
            "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshot",
            "metadata": {"name": format!("{name}-{now}"), "annotations": {"taken-at": now.to_string()}},
            "spec": {"source": {"persistentVolumeClaimName": name}},
        }));
    }
    Reply::Json(json!({"outputs": outputs}))
}

struct Backup {
    world: World,
    hook: Hook,
    now: Arc<AtomicI64>,
}

impl Backup {
    /// The set-up of MC-A-01.
    async fn start() -> Self {
        let world = World::start().await;
        let now = Arc::new(AtomicI64::new(0));
        let clock = now.clone();
        let hook = Hook::start(move |seen| schedule(clock.load(Ordering::SeqCst), seen)).await;
        let controller = json!({
            "apiVersion": "metacontroller.k8s.io/v1alpha1", "kind": "MapController", "metadata": {"name": "pvc-backup"},
            "spec": {
                "parentResource": {"apiVersion": "backup.example.com/v1", "resource": "snapshotschedules"},
                "inputResources": [{"apiVersion": "v1", "resource": "persistentvolumeclaims", "ignoreStatusChanges": true}],
                "outputResources": [{"apiVersion": "snapshot.storage.k8s.io/v1", "resource": "volumesnapshots"}],
                "resyncPeriodSeconds": 1,
                "hooks": {
                    "map": {"webhook": {"url": format!("{}/map", hook.url)}},
                    "tombstone": {"webhook": {"url": format!("{}/tombstone", hook.url)}},
                },
            },
        });
        world.create(CONTROLLERS, controller).await;
        for (name, labels) in
            [("data-0", json!({"app": "db"})), ("data-1", json!({"app": "db"})), ("other", json!({}))]
        {
            world.create(CLAIMS, claim(name, labels)).await;
        }
        let backup = Self { world, hook, now };
        backup.schedule().await;
        backup
    }

    async fn schedule(&self) -> Value {
        let schedule = json!({
            "apiVersion": "backup.example.com/v1", "kind": "SnapshotSchedule", "metadata": {"name": "s1", "namespace": "ns1"},
            "spec": {"selector": {"matchLabels": {"app": "db"}}, "intervalSeconds": 3600, "ttlSeconds": 10800},
        });
        self.world.create(SCHEDULES, schedule).await
    }

    async fn at(&self, now: i64, expected: &[&str]) {
        self.now.store(now, Ordering::SeqCst);
        self.world.has(SNAPSHOTS, "ns1", expected.to_vec()).await;
    }

    /// Deletes a claim; no finalizer protects it here.
    async fn forget(&self, name: &str) {
        self.world.delete(CLAIMS, "ns1", name).await;
        self.world.merge(CLAIMS, "ns1", name, json!({"metadata": {"finalizers": null}})).await;
    }

    async fn status(&self, expected: Value) {
        self.world.status(SCHEDULES, "ns1", "s1", expected).await;
    }

    /// Waits for `more` calls of a path for a key, from now.
    async fn calls(&self, path: &str, key: &str, more: usize) {
        let before = self.hook.calls(path, key).len();
        found(&format!("{path} of {key}"), || {
            std::future::ready((self.hook.calls(path, key).len() >= before + more).then_some(()))
        })
        .await;
    }
}

fn claim(name: &str, labels: Value) -> Value {
    json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name, "namespace": "ns1", "labels": labels},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
    })
}

const KEY: &str = "persistentvolumeclaims/ns1/data-0";

/// MC-A-01 to MC-A-07 with MC-001, MC-020, MC-022, MC-054, MC-058, MC-068, MC-081, MC-082: claims lead to
/// snapshots; a claim is deleted, its snapshots are kept until they expire, and the claim is recreated.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mc_a_01_to_07_snapshots_follow_claims() {
    let backup = Backup::start().await;
    let world = &backup.world;
    // MC-A-01
    backup.at(0, &["data-0-0", "data-1-0"]).await;
    let claim_uid = world.get(CLAIMS, "ns1", "data-0").await.unwrap()["metadata"]["uid"].clone();
    let schedule = world.get(SCHEDULES, "ns1", "s1").await.unwrap();
    let snapshot = world.get(SNAPSHOTS, "ns1", "data-0-0").await.unwrap();
    let owner = json!([{
        "apiVersion": "backup.example.com/v1", "kind": "SnapshotSchedule", "name": "s1", "uid": schedule["metadata"]["uid"],
        "controller": true, "blockOwnerDeletion": true,
    }]);
    assert_eq!(snapshot["metadata"]["ownerReferences"], owner);
    assert_eq!((tag(&snapshot, "map-key"), tag(&snapshot, "map-controller")), (KEY, "pvc-backup"));
    assert_eq!(
        (json!(tag(&snapshot, "map-input-uid")), tag(&snapshot, "map-depth")),
        (claim_uid.clone(), "")
    );
    let counts = |claims: usize, outputs: Value| json!({"observedGeneration": 1, "inputs": {"persistentvolumeclaims": {"total": claims}}, "outputs": {"volumesnapshots": outputs}});
    backup.status(counts(2, json!({"total": 2}))).await;
    // MC-A-02
    backup.at(3600, &["data-0-0", "data-0-3600", "data-1-0", "data-1-3600"]).await;
    backup
        .at(7200, &["data-0-0", "data-0-3600", "data-0-7200", "data-1-0", "data-1-3600", "data-1-7200"])
        .await;
    let shown = backup.hook.calls("/map", KEY).into_iter().map(|seen| {
        let snaps =
            seen.body["outputs"]["VolumeSnapshot.snapshot.storage.k8s.io/v1"].as_object().unwrap().clone();
        snaps.keys().cloned().collect::<Vec<_>>().join(" ")
    });
    assert!(shown.into_iter().any(|names| names == "data-0-0 data-0-3600"));
    let after = world.get(SNAPSHOTS, "ns1", "data-0-0").await.unwrap();
    assert_eq!(after["metadata"]["resourceVersion"], snapshot["metadata"]["resourceVersion"]);
    // MC-A-03
    let six = ["data-0-10801", "data-0-3600", "data-0-7200", "data-1-10801", "data-1-3600", "data-1-7200"];
    backup.at(10801, &six).await;
    // MC-A-04
    for (index, name) in six.iter().enumerate() {
        let ready = if index < 5 { "True" } else { "False" };
        world
            .merge_status(
                SNAPSHOTS,
                "ns1",
                name,
                json!({"status": {"conditions": [{"type": "Ready", "status": ready}]}}),
            )
            .await;
    }
    backup.status(counts(2, json!({"total": 6, "ready": 5}))).await;
    // MC-A-05
    backup.hook.clear();
    backup.forget("data-0").await;
    backup.calls("/tombstone", KEY, 1).await;
    let request = backup.hook.calls("/tombstone", KEY)[0].body.clone();
    let fields: Vec<_> = request.as_object().unwrap().keys().cloned().collect();
    assert_eq!(fields, ["controller", "mapKey", "outputs", "parent", "reason"]);
    assert_eq!(request["reason"], json!("InputDeleted"));
    assert_eq!(request["outputs"]["VolumeSnapshot.snapshot.storage.k8s.io/v1"].as_object().unwrap().len(), 3);
    backup.status(counts(1, json!({"total": 6, "ready": 5, "detached": 3}))).await;
    world.has(SNAPSHOTS, "ns1", six.to_vec()).await;
    // MC-A-07
    backup.hook.clear();
    world.create(CLAIMS, claim("data-0", json!({"app": "db"}))).await;
    backup.calls("/map", KEY, 1).await;
    let call = backup.hook.calls("/map", KEY)[0].clone();
    assert_ne!(call.body["input"]["metadata"]["uid"], claim_uid);
    let old = call.body["outputs"]["VolumeSnapshot.snapshot.storage.k8s.io/v1"].as_object().unwrap().clone();
    assert!(old.len() == 3 && old.values().all(|snap| json!(tag(snap, "map-input-uid")) == claim_uid));
    assert_eq!(backup.hook.calls("/tombstone", KEY).iter().filter(|seen| seen.at > call.at).count(), 0);
    backup.status(counts(2, json!({"total": 6, "ready": 5}))).await;
    // MC-A-06
    backup.forget("data-0").await;
    let rest = ["data-0-10801", "data-0-7200", "data-1-10801", "data-1-14401", "data-1-7200"];
    backup.at(14401, &rest).await;
    backup.at(30000, &["data-1-30000"]).await;
    backup.status(json!({"observedGeneration": 1, "inputs": {"persistentvolumeclaims": {"total": 1}}, "outputs": {"volumesnapshots": {"total": 1}}})).await;
    backup.hook.clear();
    backup.calls("/map", "persistentvolumeclaims/ns1/data-1", 3).await;
    assert_eq!(backup.hook.paths("/tombstone"), 0, "MC-068: an emptied group is forgotten");
    assert!(backup.hook.seen().iter().all(|seen| seen.key() != "persistentvolumeclaims/ns1/other"));
    backup.world.end().await;
}

/// MC-A-08 with MC-090, MC-091: the garbage collector deletes the snapshots with their schedule, or orphans
/// them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mc_a_08_deletion_of_the_parent_is_the_collectors_business() {
    let mut backup = Backup::start().await;
    backup.world.collect_garbage().await;
    backup.at(0, &["data-0-0", "data-1-0"]).await;
    backup.world.delete(SCHEDULES, "ns1", "s1").await;
    backup.world.has(SNAPSHOTS, "ns1", vec![]).await;
    let gone = tokio::time::Instant::now();
    assert_eq!(backup.world.names(CLAIMS, "ns1").await, ["data-0", "data-1", "other"]);
    backup.now.store(5, Ordering::SeqCst);
    backup.schedule().await;
    backup.at(5, &["data-0-5", "data-1-5"]).await;
    assert!(
        backup
            .hook
            .seen()
            .iter()
            .filter(|seen| seen.at > gone)
            .all(|seen| seen.body["parent"]["metadata"]["deletionTimestamp"].is_null())
    );
    let orphan = Removal { uid: None, propagation: Some(PropagationPolicy::Orphan) };
    backup.world.rest.delete(&gvr(SCHEDULES), "ns1", "s1", &orphan).await.unwrap();
    let left = |snap: &Value| snap["metadata"]["ownerReferences"].as_array().is_none_or(Vec::is_empty);
    let snap = backup.world.sees("left to nobody", SNAPSHOTS, "ns1", "data-0-5", left).await;
    assert_eq!(tag(&snap, "map-key"), KEY);
    found("the schedule is gone", || async {
        backup.world.get(SCHEDULES, "ns1", "s1").await.is_none().then_some(())
    })
    .await;
    backup.hook.clear();
    backup.now.store(9, Ordering::SeqCst);
    backup.schedule().await;
    backup.at(9, &["data-0-5", "data-0-9", "data-1-5", "data-1-9"]).await;
    let first = backup.hook.calls("/map", KEY)[0].clone();
    assert_eq!(first.body["outputs"]["VolumeSnapshot.snapshot.storage.k8s.io/v1"], json!({}));
    backup.world.end().await;
}

/// MC-A-09 with MC-017, MC-030: a selector that no longer matches detaches, and when it matches again
/// attaches.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mc_a_09_a_selector_moves_away_and_back() {
    let backup = Backup::start().await;
    backup.at(0, &["data-0-0", "data-1-0"]).await;
    let uid = backup.world.get(SNAPSHOTS, "ns1", "data-0-0").await.unwrap()["metadata"]["uid"].clone();
    backup
        .world
        .merge(SCHEDULES, "ns1", "s1", json!({"spec": {"selector": {"matchLabels": {"app": "web"}}}}))
        .await;
    backup.calls("/tombstone", KEY, 1).await;
    assert_eq!(backup.hook.calls("/tombstone", KEY)[0].body["reason"], json!("InputNotMatching"));
    backup.status(json!({"observedGeneration": 2, "inputs": {"persistentvolumeclaims": {"total": 0}}, "outputs": {"volumesnapshots": {"total": 2, "detached": 2}}})).await;
    backup
        .world
        .merge(SCHEDULES, "ns1", "s1", json!({"spec": {"selector": {"matchLabels": {"app": "db"}}}}))
        .await;
    backup.status(json!({"observedGeneration": 3, "inputs": {"persistentvolumeclaims": {"total": 2}}, "outputs": {"volumesnapshots": {"total": 2}}})).await;
    assert_eq!(backup.world.get(SNAPSHOTS, "ns1", "data-0-0").await.unwrap()["metadata"]["uid"], uid);
    backup.world.end().await;
}
