//! Deletion of works and of objects.

use serde_json::{Value, json};

use crate::world::*;

fn held(name: &str) -> Value {
    let mut held = map(name, "1");
    held["metadata"]["finalizers"] = json!(["sea.example/anchor"]);
    held
}

async fn release(w: &World, name: &str) {
    w.cluster.merge(MAPS, "sea", name, json!({"metadata": {"finalizers": null}})).await;
}

fn deleting(object: Option<&Value>) -> Option<()> {
    object?["metadata"]["deletionTimestamp"].is_string().then_some(())
}

/// OCM-A-42; OCM-094, OCM-095: a work waits for its objects, and names them; then its AppliedManifestWork is
/// deleted, then the work.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ocm_095_a_work_waits_for_its_objects() {
    let w = World::start().await;
    let agent = w.agent(World::config()).await;
    w.work("reef", holding(&[held("anchored"), map("free", "1")])).await;
    w.settled("reef").await;
    w.hub.delete(WORKS, CLUSTER, "reef").await;
    let said = w
        .hub
        .until(WORKS, CLUSTER, "reef", "what it waits for", |w| {
            condition(&w?["status"]["conditions"], "Deleting").cloned()
        })
        .await;
    assert_eq!((&said["status"], &said["reason"]), (&json!("True"), &json!("WorkDeleting")));
    assert!(said["observedGeneration"].is_i64(), "{said:#}");
    assert_eq!(said["message"], "ManifestWork is being deleted; waiting for configmaps sea/anchored");
    w.cluster.until_gone(MAPS, "sea", "free").await;
    let applied = w.cluster.get(APPLIED, "", &applied_name("reef")).await.expect("not before its objects");
    assert_eq!(listed(&applied), ["anchored"]);
    assert!(w.hub.get(WORKS, CLUSTER, "reef").await.is_some(), "not before its objects");
    release(&w, "anchored").await;
    w.hub.until_gone(WORKS, CLUSTER, "reef").await;
    assert!(w.cluster.get(APPLIED, "", &applied_name("reef")).await.is_none(), "gone before the work");
    assert!(w.cluster.get(MAPS, "sea", "anchored").await.is_none());
    agent.end().await;
    w.end().await;
}

/// OCM-A-43; OCM-093: an object that a work released and that cannot be deleted yet stays listed until it is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ocm_093_a_stale_object_with_a_finalizer() {
    let w = World::start().await;
    let agent = w.agent(World::config()).await;
    w.work("reef", holding(&[held("anchored"), map("a", "1")])).await;
    w.settled("reef").await;
    w.edit("reef", holding(&[map("a", "1")])).await;
    w.settled("reef").await;
    w.cluster.until(MAPS, "sea", "anchored", "deleting", deleting).await;
    let list = |names: &'static [&str]| move |a: Option<&Value>| (listed(a?) == names).then_some(());
    w.cluster.until(APPLIED, "", &applied_name("reef"), "both listed", list(&["a", "anchored"])).await;
    release(&w, "anchored").await;
    w.cluster.until(APPLIED, "", &applied_name("reef"), "one listed", list(&["a"])).await;
    agent.end().await;
    w.end().await;
}

/// OCM-A-44; OCM-072, OCM-095: works that are deleted right after their creation leave nothing behind.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ocm_095_deletion_right_after_creation() {
    let w = World::start().await;
    let agent = w.agent(World::config()).await;
    for round in 0..20 {
        let name = format!("reef{round}");
        w.work(&name, holding(&[map(&name, "1"), map(&format!("{name}-b"), "1")])).await;
        w.hub.delete(WORKS, CLUSTER, &name).await;
    }
    let none = |all: &Objects| all.is_empty().then_some(());
    w.hub.until_all(WORKS, CLUSTER, "all works gone", none).await;
    w.cluster.until_all(APPLIED, "", "all AppliedManifestWorks gone", none).await;
    let leaked = |all: &Objects| all.keys().all(|key| !key.name.starts_with("reef")).then_some(());
    w.cluster.until_all(MAPS, "sea", "nothing left", leaked).await;
    agent.end().await;
    w.end().await;
}

/// OCM-A-58; OCM-084, OCM-093, OCM-094: objects that should be orphaned stay.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ocm_084_orphans() {
    let w = World::start().await;
    let agent = w.agent(World::config()).await;
    let with = |mut spec: Value, option: Value| {
        spec["deleteOption"] = option;
        spec
    };
    let orphan = json!({"propagationPolicy": "Orphan"});
    let rule = json!({"group": "", "resource": "configmaps", "namespace": "sea", "name": "cm1"});
    let selective =
        json!({"propagationPolicy": "SelectivelyOrphan", "selectivelyOrphans": {"orphaningRules": [rule]}});
    let both = || holding(&[map("cm1", "1"), map("cm2", "1")]);

    w.work("all", with(both(), orphan)).await;
    w.settled("all").await;
    w.hub.delete(WORKS, CLUSTER, "all").await;
    w.hub.until_gone(WORKS, CLUSTER, "all").await;
    for name in ["cm1", "cm2"] {
        assert!(owners(&w.cluster.get(MAPS, "sea", name).await.expect("stays")).is_empty());
    }

    w.work("some", with(both(), selective.clone())).await;
    w.settled("some").await;
    w.hub.delete(WORKS, CLUSTER, "some").await;
    w.hub.until_gone(WORKS, CLUSTER, "some").await;
    assert!(w.cluster.get(MAPS, "sea", "cm1").await.is_some());
    assert!(w.cluster.get(MAPS, "sea", "cm2").await.is_none());

    w.work("less", with(both(), selective.clone())).await;
    w.settled("less").await;
    w.edit("less", with(holding(&[map("cm2", "1")]), selective.clone())).await;
    let list = |a: Option<&Value>| (listed(a?) == ["cm2"]).then_some(());
    w.cluster.until(APPLIED, "", &applied_name("less"), "one listed", list).await;
    assert!(w.cluster.get(MAPS, "sea", "cm1").await.is_some(), "left behind");

    // Switched back, the work owns it again.
    w.edit("less", both()).await;
    w.settled("less").await;
    w.cluster.until(MAPS, "sea", "cm1", "owned", |m| (!owners(m?).is_empty()).then_some(())).await;
    w.hub.delete(WORKS, CLUSTER, "less").await;
    w.hub.until_gone(WORKS, CLUSTER, "less").await;
    assert!(w.cluster.get(MAPS, "sea", "cm1").await.is_none());
    agent.end().await;
    w.end().await;
}

/// OCM-095: an administrator who deletes an AppliedManifestWork removes what it applied; the existing work is
/// applied again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ocm_095_an_applied_work_deleted_by_hand() {
    let w = World::start().await;
    let agent = w.agent(World::config()).await;
    w.work("reef", holding(&[map("cm", "1")])).await;
    w.settled("reef").await;
    let old = w.cluster.get(MAPS, "sea", "cm").await.expect("cm");
    w.cluster.delete(APPLIED, "", &applied_name("reef")).await;
    let new = |m: Option<&Value>| m.filter(|m| uid(m) != uid(&old)).map(|_| ());
    w.cluster.until(MAPS, "sea", "cm", "made anew", new).await;
    let again = |a: Option<&Value>| (listed(a?) == ["cm"] && deleting(a).is_none()).then_some(());
    w.cluster.until(APPLIED, "", &applied_name("reef"), "accounted for", again).await;
    agent.end().await;
    w.end().await;
}

/// A CRD of Buoys in two versions, of which one is served.
fn moved_on(served: &str) -> Value {
    let mut definition = buoys("Namespaced", false);
    let version = definition["spec"]["versions"][0].clone();
    let named = |name: &str| {
        let mut version = version.clone();
        version["name"] = name.into();
        version["served"] = (name == served || served == "both").into();
        version["storage"] = (name == "v2").into();
        version
    };
    definition["spec"]["versions"] = json!([named("v1"), named("v2")]);
    definition
}

/// OCM-094: an object whose recorded version is not served any more is found in another version of its kind,
/// and removed. As long as a work holds it in the old version it does not count as gone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ocm_094_a_version_that_is_not_served_any_more() {
    const V2: &str = "sea.example/v2/buoys";
    let w = World::start().await;
    w.cluster.create(DEFINITIONS, "", moved_on("both")).await;
    let established =
        |d: Option<&Value>| is(&d?["status"]["conditions"], "Established", "True").then_some(());
    w.cluster.until(DEFINITIONS, "", "buoys.sea.example", "established", established).await;
    let agent = w.agent(World::config()).await;
    let both = [buoy("left", Some("sea"), 1), buoy("kept", Some("sea"), 1), map("a", "1")];
    w.work("reef", holding(&both)).await;
    w.settled("reef").await;
    let left = w.cluster.get(V2, "sea", "left").await.expect("served in both");
    w.cluster.merge(DEFINITIONS, "", "buoys.sea.example", json!({"spec": moved_on("v2")["spec"]})).await;
    let old = gvr("sea.example/v1/buoys");
    while w.cluster.0.find::<Value>(&old, "sea", "left").await.is_ok() {
        tokio::task::yield_now().await;
    }

    // The agent may know only the old version; its 404 says nothing about the object.
    w.edit("reef", holding(&[buoy("left", Some("sea"), 2), buoy("kept", Some("sea"), 1), map("a", "2")]))
        .await;
    let report = w.reported("reef", "one fails", |w| is(manifest(w, 0), "Applied", "False")).await;
    assert!(is(manifest(&report, 2), "Applied", "True"), "{report:#}");
    assert_eq!(uid(&w.cluster.get(V2, "sea", "left").await.expect("not removed")), uid(&left));

    // Without a manifest, it must be removed.
    w.edit("reef", holding(&[map("a", "3")])).await;
    for name in ["left", "kept"] {
        w.cluster.until_gone(V2, "sea", name).await;
    }
    w.settled("reef").await;
    let list = |a: Option<&Value>| (listed(a?) == ["a"]).then_some(());
    w.cluster.until(APPLIED, "", &applied_name("reef"), "one listed", list).await;
    agent.end().await;
    w.end().await;
}

/// OCM-094, OCM-095: objects that the cluster refuses to delete are named in the work's status, delay nothing
/// else, and are retried.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ocm_094_a_refused_removal_is_reported() {
    let w = World::start().await;
    let agent = w.agent(World::config()).await;
    let immortal = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "default"}});
    w.work("reef", holding(&[immortal, map("a", "1"), map("b", "1")])).await;
    w.settled("reef").await;
    w.edit("reef", holding(&[map("a", "1")])).await;
    let refused = |w: &Value| is(&w["status"]["conditions"], "RemovalRefused", "True");
    let report = w.reported("reef", "what was refused", refused).await;
    let said = condition(&report["status"]["conditions"], "RemovalRefused").expect("a condition");
    let text = "Failed to remove namespaces default: namespaces \"default\" is forbidden: this namespace may not be deleted";
    assert_eq!((&said["reason"], &said["message"]), (&json!("AppliedResourceNotRemoved"), &json!(text)));
    assert!(is(&report["status"]["conditions"], "Applied", "True"), "what is held is applied");
    w.cluster.until_gone(MAPS, "sea", "b").await;
    let list = |a: Option<&Value>| (listed(a?) == ["a", "default"]).then_some(());
    w.cluster.until(APPLIED, "", &applied_name("reef"), "still accounted for", list).await;

    w.hub.delete(WORKS, CLUSTER, "reef").await;
    let waiting = |w: Option<&Value>| {
        let said = condition(&w?["status"]["conditions"], "Deleting")?["message"].as_str()?.to_owned();
        said.contains("may not be deleted").then_some(said)
    };
    let said = w.hub.until(WORKS, CLUSTER, "reef", "what holds it up", waiting).await;
    assert!(said.starts_with("ManifestWork is being deleted; waiting for namespaces default ("), "{said}");
    w.cluster.until_gone(MAPS, "sea", "a").await;
    // An administrator of the cluster removes our owner reference; the next try finds that.
    w.cluster.merge("v1/namespaces", "", "default", json!({"metadata": {"ownerReferences": null}})).await;
    w.hub.until_gone(WORKS, CLUSTER, "reef").await;
    assert!(w.cluster.get("v1/namespaces", "", "default").await.is_some());
    agent.end().await;
    w.end().await;
}
