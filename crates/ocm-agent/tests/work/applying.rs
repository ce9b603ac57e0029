//! Creation, change and correction of works.

use std::time::Duration;

use kubestellar_ocm_agent::work_agent::Config;
use serde_json::{Value, json};

use crate::world::*;

/// OCM-A-40; OCM-014, OCM-015, OCM-071, OCM-072, OCM-074, OCM-084, OCM-087, OCM-089: the effects of a new
/// work.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ocm_074_a_work_is_applied_and_accounted_for() {
    let w = World::start().await;
    let agent = w.agent(World::config()).await;
    let mut labelled = work("reef", holding(&[map("cm2", "2"), map("cm1", "1")]));
    labelled["metadata"]["labels"] = json!({"ship": "ferry"});
    w.hub.create(WORKS, CLUSTER, labelled).await;
    let done = w.settled("reef").await;
    assert_eq!(
        done["metadata"]["finalizers"],
        json!(["cluster.open-cluster-management.io/manifest-work-cleanup"])
    );
    let applied = w
        .cluster
        .until(APPLIED, "", &applied_name("reef"), "all listed with their UIDs", |a| {
            let all = a?["status"]["appliedResources"].as_array()?;
            all.iter().all(|r| r["uid"].is_string()).then(|| a.cloned())?
        })
        .await;
    assert_eq!(
        applied["metadata"]["finalizers"],
        json!(["cluster.open-cluster-management.io/applied-manifest-work-cleanup"])
    );
    assert_eq!(applied["metadata"]["labels"], json!({"ship": "ferry"}));
    assert_eq!(applied["spec"]["manifestWorkName"], "reef");
    assert_eq!(applied["spec"]["agentID"], applied["spec"]["hubHash"]);
    assert_eq!(listed(&applied), ["cm1", "cm2"], "sorted");
    for name in ["cm1", "cm2"] {
        let object = w.cluster.get(MAPS, "sea", name).await.expect("applied");
        let owner = json!([{"apiVersion": "work.open-cluster-management.io/v1", "kind": "AppliedManifestWork",
            "name": applied["metadata"]["name"], "uid": applied["metadata"]["uid"]}]);
        assert_eq!(object["metadata"]["ownerReferences"], owner);
        let listed = applied["status"]["appliedResources"].as_array().expect("a list");
        assert!(listed.iter().any(|r| r["uid"] == object["metadata"]["uid"]));
    }
    let conditions = &done["status"]["conditions"];
    for (type_, reason) in [("Applied", "AppliedManifestWorkComplete"), ("Available", "ResourcesAvailable")] {
        let condition = condition(conditions, type_).expect("a condition");
        assert_eq!((&condition["reason"], &condition["observedGeneration"]), (&json!(reason), &json!(1)));
    }
    for (ordinal, name) in [(0, "cm2"), (1, "cm1")] {
        let meta = &done["status"]["resourceStatus"]["manifests"][ordinal]["resourceMeta"];
        assert_eq!((&meta["ordinal"], &meta["name"]), (&json!(ordinal), &json!(name)), "in the work's order");
    }
    agent.end().await;
    w.end().await;
}

/// OCM-A-41, OCM-A-51; OCM-078, OCM-087, OCM-088, OCM-093: a changed work changes exactly what differs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ocm_093_a_changed_work_is_followed() {
    let w = World::start().await;
    let agent = w.agent(World::config()).await;
    w.work("reef", holding(&[map("cm0", "0"), map("cm1", "1"), map("cm2", "2")])).await;
    let first = w.settled("reef").await;
    let (cm0, cm2) = (w.cluster.get(MAPS, "sea", "cm0").await, w.cluster.get(MAPS, "sea", "cm2").await);
    let (cm0, cm2) = (cm0.expect("cm0"), cm2.expect("cm2"));
    w.edit("reef", holding(&[map("cm0", "0"), map("cm3", "3"), map("cm2", "two")])).await;
    let second = w.settled("reef").await;
    w.cluster.until_gone(MAPS, "sea", "cm1").await;
    w.cluster.until_there(MAPS, "sea", "cm3").await;
    assert_eq!(w.cluster.get(MAPS, "sea", "cm0").await.as_ref(), Some(&cm0), "not even written");
    let changed = w.cluster.get(MAPS, "sea", "cm2").await.expect("cm2");
    assert_eq!((uid(&changed), &changed["data"]["a"]), (uid(&cm2), &json!("two")));
    w.cluster
        .until(APPLIED, "", &applied_name("reef"), "the list follows", |a| {
            (listed(a?) == ["cm0", "cm2", "cm3"]).then_some(())
        })
        .await;
    for ordinal in 0..3 {
        let applied = condition(manifest(&second, ordinal), "Applied").expect("a condition");
        assert_eq!(applied["observedGeneration"], 2);
    }
    let time = |work: &serde_json::Value| {
        condition(&work["status"]["conditions"], "Available").expect("one")["lastTransitionTime"].clone()
    };
    assert_eq!(time(&first), time(&second), "nothing became unavailable");
    agent.end().await;
    w.end().await;
}

/// OCM-A-45, OCM-A-46; OCM-075: in any order of the manifests, each is applied after what it needs, and the
/// status keeps the order of the manifests. A CRD and its objects in one work need no second cycle of
/// minutes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ocm_075_bad_order_and_definitions() {
    let w = World::start().await;
    let agent = w.agent(World::config()).await;
    let reef = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "reef"}});
    let mut inside = map("inside", "1");
    inside["metadata"]["namespace"] = json!("reef");
    let mut marked = buoy("b", Some("reef"), 3);
    marked["metadata"]["annotations"] = json!({"ours": "1"});
    w.work("reef", holding(&[marked.clone(), buoys("Namespaced", true), reef.clone(), inside.clone()])).await;
    let done = w.settled("reef").await;
    let kinds: Vec<_> = (0..4)
        .map(|at| done["status"]["resourceStatus"]["manifests"][at]["resourceMeta"]["kind"].clone())
        .collect();
    assert_eq!(kinds, ["Buoy", "CustomResourceDefinition", "Namespace", "ConfigMap"]);
    // Annotations of other clients stay when the object is written again.
    let own = json!({"metadata": {"annotations": {"theirs": "2"}}});
    w.cluster.merge("sea.example/v1/buoys", "reef", "b", own).await;
    marked["spec"]["depth"] = json!(4);
    w.edit("reef", holding(&[marked, buoys("Namespaced", true), reef, inside])).await;
    let live = w
        .cluster
        .until("sea.example/v1/buoys", "reef", "b", "written again", |b| {
            (b?["spec"]["depth"] == 4).then(|| b.cloned())?
        })
        .await;
    assert_eq!(live["metadata"]["annotations"], json!({"ours": "1", "theirs": "2"}));
    w.hub.delete(WORKS, CLUSTER, "reef").await;
    w.hub.until_gone(WORKS, CLUSTER, "reef").await;
    w.cluster.until_gone(DEFINITIONS, "", "buoys.sea.example").await;
    agent.end().await;
    w.end().await;
}

/// OCM-A-46; OCM-076: an object whose CRD is created later by another client is applied as soon as the CRD is
/// served.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ocm_076_a_definition_that_comes_later() {
    let w = World::start().await;
    let agent = w.agent(World::config()).await;
    w.work("reef", holding(&[buoy("b", Some("sea"), 3), map("a", "1")])).await;
    let failed =
        w.reported("reef", "one fails", |w| is(&w["status"]["conditions"], "Applied", "False")).await;
    assert!(failure(&failed, 0).contains("the server doesn't have a resource type \"Buoy\""));
    w.cluster.create(DEFINITIONS, "", buoys("Namespaced", true)).await;
    w.settled("reef").await;
    w.cluster.until_there("sea.example/v1/buoys", "sea", "b").await;
    agent.end().await;
    w.end().await;
}

/// OCM-A-48: an immutable field fails for its manifest only.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ocm_078_an_immutable_field() {
    let w = World::start().await;
    let agent = w.agent(World::config()).await;
    let binding = |role: &str| {
        json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
            "metadata": {"name": "crew", "namespace": "sea"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": role}})
    };
    w.work("reef", holding(&[binding("mate"), map("a", "1")])).await;
    w.settled("reef").await;
    w.edit("reef", holding(&[binding("captain"), map("a", "2")])).await;
    let after = w.reported("reef", "refused", |w| is(manifest(w, 0), "Applied", "False")).await;
    assert!(failure(&after, 0).contains("roleRef"), "{after:#}");
    assert!(is(manifest(&after, 0), "Available", "True") && is(manifest(&after, 1), "Applied", "True"));
    assert_eq!(w.cluster.get(MAPS, "sea", "a").await.expect("a")["data"]["a"], "2");
    agent.end().await;
    w.end().await;
}

/// OCM-A-49; OCM-073: changes by other clients, and deletions, are corrected at once, and no condition
/// changes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ocm_073_drift_is_corrected_at_once() {
    let w = World::start().await;
    let agent = w.agent(World::config()).await;
    w.work("reef", holding(&[map("cm1", "1"), deployment("web", 2)])).await;
    let before = w.settled("reef").await;
    for value in ["by hand", "again", "and again"] {
        w.cluster.merge(MAPS, "sea", "cm1", json!({"data": {"a": value, "more": "x"}})).await;
        w.cluster
            .until(MAPS, "sea", "cm1", "put right", |m| (m?["data"] == json!({"a": "1"})).then_some(()))
            .await;
    }
    w.cluster.merge(DEPLOYMENTS, "sea", "web", json!({"spec": {"replicas": 7}})).await;
    let right = |d: Option<&serde_json::Value>| (d?["spec"]["replicas"] == 2).then_some(());
    w.cluster.until(DEPLOYMENTS, "sea", "web", "put right", right).await;
    let old = w.cluster.get(MAPS, "sea", "cm1").await.expect("cm1");
    w.cluster.delete(MAPS, "sea", "cm1").await;
    let new = |m: Option<&serde_json::Value>| m.filter(|m| uid(m) != uid(&old)).map(|_| ());
    w.cluster.until(MAPS, "sea", "cm1", "made anew", new).await;
    let owner = json!({"metadata": {"ownerReferences": null}});
    w.cluster.merge(MAPS, "sea", "cm1", owner).await;
    w.cluster.until(MAPS, "sea", "cm1", "owned again", |m| (!owners(m?).is_empty()).then_some(())).await;
    let after = w.hub.get(WORKS, CLUSTER, "reef").await.expect("the work");
    assert_eq!(after["status"], before["status"], "lastTransitionTimes too");
    agent.end().await;
    w.end().await;
}

/// OCM-A-49; OCM-161: without permission to watch, the agent still corrects drift and updates feedback,
/// periodically.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ocm_161_without_the_right_to_watch() {
    let w = World::start().await;
    let (name, group) = ("blind", "rbac.authorization.k8s.io");
    let role = json!({"apiVersion": format!("{group}/v1"), "kind": "ClusterRole", "metadata": {"name": name}, "rules": [
        {"apiGroups": ["work.open-cluster-management.io"], "resources": ["*"], "verbs": ["*"]},
        {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["create", "get", "update", "patch", "delete"]}]});
    let binding = json!({"apiVersion": format!("{group}/v1"), "kind": "ClusterRoleBinding", "metadata": {"name": name},
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": name},
        "subjects": [{"apiGroup": group, "kind": "User", "name": name}]});
    w.cluster.create("rbac.authorization.k8s.io/v1/clusterroles", "", role).await;
    w.cluster.create("rbac.authorization.k8s.io/v1/clusterrolebindings", "", binding).await;
    let config = Config {
        reapply: Duration::from_millis(300),
        status_sync: Duration::from_millis(100),
        ..World::config()
    };
    let agent = w.agent_as(&space::Identity::component(name, &[]), config).await;
    let rules = json!({"feedbackRules": [{"type": "JSONPaths", "jsonPaths": [{"name": "v", "path": ".data.v"}]}],
        "updateStrategy": {"type": "CreateOnly"}});
    w.work("reef", configured(&[map("cm1", "1"), map("seen", "1")], "configmaps", "seen", rules)).await;
    w.settled("reef").await;
    w.cluster.merge(MAPS, "sea", "cm1", json!({"data": {"a": "by hand"}})).await;
    w.cluster.until(MAPS, "sea", "cm1", "put right", |m| (m?["data"]["a"] == "1").then_some(())).await;
    w.cluster.merge(MAPS, "sea", "seen", json!({"data": {"v": "news"}})).await;
    w.reported("reef", "the news", |w| {
        w["status"]["resourceStatus"]["manifests"][1]["statusFeedback"]["values"][0]["fieldValue"]["string"]
            == "news"
    })
    .await;
    // A kind that it may not write at all is reported, and delays nothing.
    w.edit("reef", holding(&[map("cm1", "1"), deployment("web", 1), map("late", "1")])).await;
    let after = w.reported("reef", "refused", |w| is(manifest(w, 1), "Applied", "False")).await;
    let applied = condition(&after["status"]["conditions"], "Applied").expect("one");
    assert_eq!(applied["reason"], "AppliedManifestWorkFailed");
    assert!(
        applied["message"].as_str().expect("text").ends_with("may not write deployments.apps"),
        "{applied}"
    );
    w.cluster.until_there(MAPS, "sea", "late").await;
    agent.end().await;
    w.end().await;
}

/// OCM-A-50; OCM-079, OCM-080, OCM-082: passes over correct objects change nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ocm_080_no_spurious_writes() {
    let w = World::start().await;
    let agent = w.agent(Config { reapply: Duration::from_millis(100), ..World::config() }).await;
    let strategy = json!({"updateStrategy": {"type": "ServerSideApply"}});
    let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "web", "namespace": "sea"},
        "spec": {"selector": {"app": "web"}, "ports": [{"port": 80}]}});
    let mut timed = deployment("ssa", 1);
    timed["metadata"]["creationTimestamp"] = json!(null);
    timed["spec"]["template"]["metadata"]["creationTimestamp"] = json!(null);
    w.work("reef", configured(&[map("a", "1"), service, timed], "apps/deployments", "ssa", strategy)).await;
    w.settled("reef").await;
    let mut before = Vec::new();
    for (resource, name) in [(MAPS, "a"), ("v1/services", "web"), (DEPLOYMENTS, "ssa")] {
        before.push((resource, name, w.cluster.get(resource, "sea", name).await));
    }
    let work = w.hub.get(WORKS, CLUSTER, "reef").await;
    let looks = |line: &str| line.starts_with("agent GET") && line.contains("/configmaps/a");
    w.at_cluster.more(3, looks).await;
    for (resource, name, object) in before {
        assert_eq!(w.cluster.get(resource, "sea", name).await, object, "{name}");
    }
    assert_eq!(w.hub.get(WORKS, CLUSTER, "reef").await, work);
    agent.end().await;
    w.end().await;
}

/// OCM-A-68; OCM-079: a status that another client writes into an object without a status subresource stays.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ocm_079_a_status_without_subresource_survives() {
    let w = World::start().await;
    let agent = w.agent(Config { reapply: Duration::from_millis(100), ..World::config() }).await;
    w.cluster.create(DEFINITIONS, "", buoys("Namespaced", false)).await;
    w.work("reef", holding(&[buoy("b", Some("sea"), 3)])).await;
    w.settled("reef").await;
    w.cluster.merge("sea.example/v1/buoys", "sea", "b", json!({"status": {"lit": true}})).await;
    w.at_cluster.more(4, |line| line.starts_with("agent GET") && line.contains("/buoys/b")).await;
    w.edit("reef", holding(&[buoy("b", Some("sea"), 5)])).await;
    let live = w
        .cluster
        .until("sea.example/v1/buoys", "sea", "b", "written", |b| {
            (b?["spec"]["depth"] == 5).then(|| b.cloned())?
        })
        .await;
    assert_eq!(live["status"], json!({"lit": true}));
    agent.end().await;
    w.end().await;
}

fn marked(labels: Value, annotations: Value) -> Value {
    let mut map = map("cm", "1");
    (map["metadata"]["labels"], map["metadata"]["annotations"]) = (labels, annotations);
    map
}

/// OCM-078: a label or annotation that an earlier form of the manifest set goes with it, also when the agent did not run in
/// between; what others set, or changed since, stays.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ocm_078_labels_that_a_manifest_drops_go() {
    let w = World::start().await;
    let agent = w.agent(World::config()).await;
    let first = marked(json!({"a": "1", "b": "1", "changed": "1"}), json!({"note": "1", "kept": "1"}));
    w.work("reef", holding(&[first])).await;
    w.settled("reef").await;
    w.edit("reef", holding(&[marked(json!({"b": "1", "changed": "1"}), json!({"kept": "2"}))])).await;
    w.settled("reef").await;
    let now = w.cluster.get(MAPS, "sea", "cm").await.expect("cm");
    assert_eq!(now["metadata"]["labels"], json!({"b": "1", "changed": "1"}), "{now:#}");
    assert_eq!(now["metadata"]["annotations"], json!({"kept": "2"}), "{now:#}");
    agent.end().await;

    let others = json!({"metadata": {"labels": {"changed": "by-hand", "users": "1"}}});
    w.cluster.merge(MAPS, "sea", "cm", others).await;
    w.edit("reef", holding(&[map("cm", "1")])).await;
    let agent = w.agent(World::config()).await;
    w.settled("reef").await;
    let now = w.cluster.get(MAPS, "sea", "cm").await.expect("cm");
    assert_eq!(now["metadata"]["labels"], json!({"changed": "by-hand", "users": "1"}), "{now:#}");
    assert!(now["metadata"].get("annotations").is_none_or(|all| *all == json!({})), "{now:#}");
    agent.end().await;
    w.end().await;
}

/// OCM-078, OCM-085: of an object that two works hold, neither removes what the other set.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ocm_078_labels_of_a_shared_object_stay() {
    let w = World::start().await;
    let agent = w.agent(World::config()).await;
    w.work("one", holding(&[marked(json!({"one": "1"}), json!({}))])).await;
    w.settled("one").await;
    w.work("two", holding(&[marked(json!({"two": "1"}), json!({}))])).await;
    w.settled("two").await;
    w.edit("one", holding(&[marked(json!({"one": "2"}), json!({}))])).await;
    w.settled("one").await;
    let now = w.cluster.get(MAPS, "sea", "cm").await.expect("cm");
    assert_eq!(now["metadata"]["labels"], json!({"one": "2", "two": "1"}), "{now:#}");
    agent.end().await;
    w.end().await;
}

/// OCM-076: requests about one object that take long hold up neither the other objects of its work nor other works.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ocm_076_a_slow_object_holds_up_no_other() {
    let w = World::start().await;
    let mire = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "mire"}});
    w.cluster.create("v1/namespaces", "", mire).await;
    w.held.send_replace(Some("/namespaces/mire/configmaps"));
    let agent = w.agent(World::config()).await;
    let mut slow = map("slow", "1");
    slow["metadata"]["namespace"] = "mire".into();
    let mut manifests = vec![slow];
    manifests.extend((0..40).map(|n| map(&format!("quick{n}"), "1")));
    w.work("reef", holding(&manifests)).await;
    let all = |all: &Objects| (all.len() == 40).then_some(());
    w.cluster.until_all(MAPS, "sea", "all but the slow one", all).await;
    for value in ["1", "2"] {
        let name = format!("other{value}");
        w.work(&name, holding(&[map(&name, value)])).await;
        w.settled(&name).await;
    }
    assert!(w.cluster.get(MAPS, "mire", "slow").await.is_none());
    w.held.send_replace(None);
    w.settled("reef").await;
    w.cluster.until_there(MAPS, "mire", "slow").await;
    agent.end().await;
    w.end().await;
}
