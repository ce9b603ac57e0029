//! Works and objects on their way out.

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

/// OCM-A-42; OCM-094, OCM-095: a work waits for its objects, and says for which; then its AppliedManifestWork goes, then
/// the work.
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

/// OCM-A-43; OCM-093: an object that a work let go of and that can't go yet stays listed until it does.
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

/// OCM-A-44; OCM-072, OCM-095: works that are deleted as soon as they are there go, and leave nothing.
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
    let leaked = |all: &Objects| all.keys().all(|(_, name)| !name.starts_with("reef")).then_some(());
    w.cluster.until_all(MAPS, "sea", "nothing left", leaked).await;
    agent.end().await;
    w.end().await;
}

/// OCM-A-58; OCM-084, OCM-093, OCM-094: what is to be left behind is.
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

    // Switched back, it is ours again.
    w.edit("less", both()).await;
    w.settled("less").await;
    w.cluster.until(MAPS, "sea", "cm1", "owned", |m| (!owners(m?).is_empty()).then_some(())).await;
    w.hub.delete(WORKS, CLUSTER, "less").await;
    w.hub.until_gone(WORKS, CLUSTER, "less").await;
    assert!(w.cluster.get(MAPS, "sea", "cm1").await.is_none());
    agent.end().await;
    w.end().await;
}

/// OCM-095: an administrator who deletes an AppliedManifestWork purges what it applied; the work, still wanted, is
/// applied anew.
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
