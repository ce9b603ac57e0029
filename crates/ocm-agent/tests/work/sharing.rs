//! Objects that several works hold, or a work and another owner.

use serde_json::{Value, json};

use crate::world::*;

/// OCM-A-57; OCM-084, OCM-085, OCM-094: an object of two works stays until the last of them releases it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ocm_094_two_works_own_one_object() {
    let w = World::start().await;
    let agent = w.agent(World::config()).await;
    w.work("one", holding(&[map("cm", "1")])).await;
    w.settled("one").await;
    w.work("two", holding(&[map("cm", "1"), map("more", "1")])).await;
    w.settled("two").await;
    let both = |m: Option<&Value>| (owners(m?).len() == 2).then(|| m.cloned())?;
    let shared = w.cluster.until(MAPS, "sea", "cm", "two owners", both).await;
    w.hub.delete(WORKS, CLUSTER, "one").await;
    w.hub.until_gone(WORKS, CLUSTER, "one").await;
    let left = w.cluster.get(MAPS, "sea", "cm").await.expect("stays");
    assert_eq!((uid(&left), owners(&left)), (uid(&shared), vec![applied_name("two").as_str()]));
    w.edit("two", holding(&[map("more", "1")])).await;
    w.cluster.until_gone(MAPS, "sea", "cm").await;
    agent.end().await;
    w.end().await;
}

/// OCM-A-57; OCM-085: works that disagree about an object are both applied, both report that they disagree,
/// and do not overwrite each other all the time; when one gives way both report it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ocm_085_works_that_disagree_say_so() {
    let w = World::start().await;
    let agent = w.agent(World::config()).await;
    w.work("one", holding(&[map("cm", "1")])).await;
    w.settled("one").await;
    w.work("two", holding(&[map("cm", "2")])).await;
    for (name, other) in [("one", "two"), ("two", "one")] {
        let said = w.reported(name, "a conflict", |w| is(manifest(w, 0), "Conflicted", "True")).await;
        let message = condition(manifest(&said, 0), "Conflicted").expect("one")["message"].clone();
        assert!(message.as_str().expect("text").ends_with(other), "{message}");
        assert!(is(manifest(&said, 0), "Applied", "True"));
    }
    let writes = |line: &str| line.starts_with("agent PUT") && line.contains("/configmaps/cm");
    let before = w.at_cluster.count(writes);
    w.edit("two", holding(&[map("cm", "1")])).await;
    for name in ["one", "two"] {
        w.reported(name, "no conflict", |w| condition(manifest(w, 0), "Conflicted").is_none()).await;
    }
    assert!(w.at_cluster.count(writes) <= before + 2, "no fight");
    agent.end().await;
    w.end().await;
}

/// OCM-085, OCM-094: of two works that disagree about an object, the remaining one is applied as soon as the
/// other is deleted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ocm_085_who_stays_has_its_way() {
    let w = World::start().await;
    let agent = w.agent(World::config()).await;
    w.work("one", holding(&[map("cm", "1")])).await;
    w.settled("one").await;
    w.work("two", holding(&[map("cm", "2")])).await;
    let theirs = |m: Option<&Value>| (m?["data"]["a"] == "2").then_some(());
    w.cluster.until(MAPS, "sea", "cm", "what the later one says", theirs).await;
    w.reported("one", "a conflict", |w| is(manifest(w, 0), "Conflicted", "True")).await;
    w.hub.delete(WORKS, CLUSTER, "two").await;
    let ours = |m: Option<&Value>| (m?["data"]["a"] == "1").then_some(());
    w.cluster.until(MAPS, "sea", "cm", "what the other says", ours).await;
    w.reported("one", "no conflict", |w| condition(manifest(w, 0), "Conflicted").is_none()).await;
    agent.end().await;
    w.end().await;
}

/// OCM-161: one work more or less that shares an object causes no request for the others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ocm_161_sharing_costs_what_it_changes() {
    const SHARERS: usize = 16;
    let w = World::start().await;
    let agent = w.agent(World::config()).await;
    let about = |line: &str| {
        line.contains("/configmaps/cm") || line.starts_with("agent POST /api/v1/namespaces/sea/configmaps")
    };
    let names: Vec<String> = (0..SHARERS).map(|i| format!("w{i}")).collect();
    for name in &names {
        w.work(name, holding(&[map("cm", "1")])).await;
        w.settled(name).await;
    }
    let asked = w.at_cluster.count(about);
    assert!(asked <= 4 * SHARERS, "{asked} requests for {SHARERS} works");
    for name in names.iter().skip(1) {
        w.hub.delete(WORKS, CLUSTER, name).await;
        w.hub.until_gone(WORKS, CLUSTER, name).await;
    }
    let more = w.at_cluster.count(about) - asked;
    assert!(more <= 4 * SHARERS, "{more} requests to let go of it");
    let left = w.cluster.get(MAPS, "sea", "cm").await.expect("stays");
    assert_eq!(owners(&left), [applied_name("w0")]);
    agent.end().await;
    w.end().await;
}

/// OCM-A-55; OCM-082, OCM-085: two works apply different fields of one object under their own managers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ocm_085_two_field_managers() {
    let w = World::start().await;
    let agent = w.agent(World::config()).await;
    let part = |key: &str| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "cm", "namespace": "sea"}, "data": {key: "1"}});
    let managed = |manager: &str| json!({"updateStrategy": {"type": "ServerSideApply", "serverSideApply": {"fieldManager": manager}}});
    w.work("one", configured(&[part("a")], "configmaps", "cm", managed("work-agent"))).await;
    w.work("two", configured(&[part("b")], "configmaps", "cm", managed("work-agent-another"))).await;
    w.settled("one").await;
    w.settled("two").await;
    let whole = |m: Option<&Value>| {
        let m = m?;
        (m["data"] == json!({"a": "1", "b": "1"}) && owners(m).len() == 2).then_some(())
    };
    w.cluster.until(MAPS, "sea", "cm", "both parts, both owners", whole).await;
    w.hub.delete(WORKS, CLUSTER, "one").await;
    w.hub.until_gone(WORKS, CLUSTER, "one").await;
    let left = w.cluster.get(MAPS, "sea", "cm").await.expect("stays");
    assert_eq!(owners(&left), [applied_name("two")]);
    agent.end().await;
    w.end().await;
}

/// OCM-A-67; OCM-094: an owner that is not an AppliedManifestWork does not keep an object from being deleted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ocm_094_other_owners_do_not_protect() {
    let w = World::start().await;
    let agent = w.agent(World::config()).await;
    let boat = w.cluster.create(MAPS, "sea", map("boat", "1")).await;
    w.work("reef", holding(&[map("cm", "1")])).await;
    w.settled("reef").await;
    let mine = w.cluster.get(MAPS, "sea", "cm").await.expect("cm")["metadata"]["ownerReferences"][0].clone();
    let other = json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "boat", "uid": uid(&boat)});
    w.cluster.merge(MAPS, "sea", "cm", json!({"metadata": {"ownerReferences": [mine, other]}})).await;
    w.hub.delete(WORKS, CLUSTER, "reef").await;
    w.cluster.until_gone(MAPS, "sea", "cm").await;
    w.hub.until_gone(WORKS, CLUSTER, "reef").await;
    agent.end().await;
    w.end().await;
}
