//! Update strategies.

use serde_json::{Value, json};

use crate::world::*;

fn server_side(options: Value) -> Value {
    json!({"updateStrategy": {"type": "ServerSideApply", "serverSideApply": options}})
}

async fn replicas(w: &World, name: &str) -> i64 {
    let live = w.cluster.get(DEPLOYMENTS, "sea", name).await.expect("a Deployment");
    live["spec"]["replicas"].as_i64().expect("a number")
}

/// Another manager takes over a field by force.
async fn take(w: &World, object: Value, manager: &str) {
    let name = object["metadata"]["name"].as_str().expect("a name").to_owned();
    let rest = &w.cluster.0;
    let _: Value =
        rest.apply(&gvr(DEPLOYMENTS), "sea", &name, &object, manager, true).await.expect("applied");
}

fn only_replicas(name: &str, replicas: u32) -> Value {
    json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name, "namespace": "sea"},
        "spec": {"replicas": replicas}})
}

/// OCM-A-52; OCM-081, OCM-084: a create-only object is never changed, except for its owner.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ocm_081_create_only() {
    let w = World::start().await;
    let agent = w.agent(World::config()).await;
    let once = json!({"updateStrategy": {"type": "CreateOnly"}});
    let spec = |replicas| configured(&[deployment("web", replicas)], "apps/deployments", "web", once.clone());
    w.work("reef", spec(1)).await;
    w.settled("reef").await;
    let before = w.cluster.get(DEPLOYMENTS, "sea", "web").await;
    assert_eq!(owners(before.as_ref().expect("there")), [applied_name("reef")]);
    w.edit("reef", spec(5)).await;
    w.settled("reef").await;
    assert_eq!(w.cluster.get(DEPLOYMENTS, "sea", "web").await, before, "not touched");
    let mut orphan = spec(5);
    orphan["deleteOption"] = json!({"propagationPolicy": "Orphan"});
    w.edit("reef", orphan).await;
    w.cluster.until(DEPLOYMENTS, "sea", "web", "disowned", |d| owners(d?).is_empty().then_some(())).await;
    assert_eq!(replicas(&w, "web").await, 1);
    agent.end().await;
    w.end().await;
}

/// OCM-A-53; OCM-083, OCM-089, OCM-090: a read-only object is reported when it is created, changed and
/// deleted, and is never owned.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ocm_083_read_only() {
    let w = World::start().await;
    let agent = w.agent(World::config()).await;
    let look = json!({"updateStrategy": {"type": "ReadOnly"},
        "feedbackRules": [{"type": "JSONPaths", "jsonPaths": [{"name": "test", "path": ".data.test"}]}]});
    let bare =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "own", "namespace": "sea"}});
    w.work("reef", configured(std::slice::from_ref(&bare), "configmaps", "own", look)).await;
    let absent =
        |w: &Value| is(manifest(w, 0), "Applied", "True") && is(manifest(w, 0), "Available", "False");
    let report = w.reported("reef", "absent", absent).await;
    assert_eq!(condition(manifest(&report, 0), "Available").expect("one")["reason"], "ResourceNotAvailable");
    let mut own = bare;
    own["data"] = json!({"test": "first"});
    w.cluster.create(MAPS, "sea", own).await;
    let says = |value: &'static str| {
        move |w: &Value| {
            let values = &w["status"]["resourceStatus"]["manifests"][0]["statusFeedback"]["values"];
            values[0]["fieldValue"]["string"] == value && is(manifest(w, 0), "Available", "True")
        }
    };
    w.reported("reef", "the first value", says("first")).await;
    w.cluster.merge(MAPS, "sea", "own", json!({"data": {"test": "second"}})).await;
    w.reported("reef", "the second value", says("second")).await;
    let live = w.cluster.get(MAPS, "sea", "own").await.expect("there");
    assert!(owners(&live).is_empty());
    w.hub.delete(WORKS, CLUSTER, "reef").await;
    w.hub.until_gone(WORKS, CLUSTER, "reef").await;
    assert_eq!(w.cluster.get(MAPS, "sea", "own").await, Some(live), "stays");
    agent.end().await;
    w.end().await;
}

/// OCM-A-54; OCM-076, OCM-082: a conflict is reported and waits for a change of the work; `force`, or giving
/// up the field, ends it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ocm_082_server_side_apply_conflicts() {
    let w = World::start().await;
    let agent = w.agent(World::config()).await;
    let spec = |object: Value, force| {
        configured(&[object], "apps/deployments", "web", server_side(json!({ "force": force })))
    };
    w.work("reef", spec(deployment("web", 1), false)).await;
    w.settled("reef").await;
    take(&w, only_replicas("web", 2), "scaler").await;
    w.edit("reef", spec(deployment("web", 3), false)).await;
    let conflict = w.reported("reef", "a conflict", |w| is(manifest(w, 0), "Applied", "False")).await;
    let message = failure(&conflict, 0);
    assert!(message.contains("conflict") && message.contains("scaler"), "{message}");
    assert_eq!(condition(manifest(&conflict, 0), "Applied").expect("one")["reason"], "AppliedManifestFailed");
    assert!(is(manifest(&conflict, 0), "Available", "True"));
    assert_eq!(replicas(&w, "web").await, 2);
    let mut giving_way = deployment("web", 0);
    giving_way["spec"].as_object_mut().expect("a spec").remove("replicas");
    w.edit("reef", spec(giving_way, false)).await;
    w.settled("reef").await;
    assert_eq!(replicas(&w, "web").await, 2);
    w.edit("reef", spec(deployment("web", 4), true)).await;
    w.settled("reef").await;
    assert_eq!(replicas(&w, "web").await, 4);
    agent.end().await;
    w.end().await;
}

/// OCM-A-56; OCM-082: fields that are ignored as soon as the object exists, in three languages.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ocm_082_fields_ignored_on_presence() {
    let w = World::start().await;
    let agent = w.agent(World::config()).await;
    let languages = [
        json!({"jsonPaths": [".spec.replicas"]}),
        json!({"jsonPointers": ["/spec/replicas"]}),
        json!({"jqPathExpressions": [".spec.replicas"]}),
    ];
    for (at, mut ignore) in languages.into_iter().enumerate() {
        let name = format!("web{at}");
        ignore["condition"] = json!("OnSpokePresent");
        let options = server_side(json!({"ignoreFields": [ignore]}));
        let spec = |object| configured(&[object], "apps/deployments", &name, options.clone());
        w.work(&name, spec(deployment(&name, 1))).await;
        w.settled(&name).await;
        assert_eq!(replicas(&w, &name).await, 1, "it counts when the object is made");
        take(&w, only_replicas(&name, 5), "scaler").await;
        let mut other = deployment(&name, 1);
        other["spec"]["template"]["spec"]["containers"][0]["image"] = json!("example.invalid/app:2");
        w.edit(&name, spec(other)).await;
        w.settled(&name).await;
        let live = w.cluster.get(DEPLOYMENTS, "sea", &name).await.expect("there");
        let image = &live["spec"]["template"]["spec"]["containers"][0]["image"];
        assert_eq!((&live["spec"]["replicas"], image), (&json!(5), &json!("example.invalid/app:2")));
    }
    agent.end().await;
    w.end().await;
}

/// OCM-A-56; OCM-082: local changes stay until the manifest itself changes; invalid expressions are reported.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ocm_082_fields_ignored_on_change_and_bad_expressions() {
    let w = World::start().await;
    let agent = w.agent(World::config()).await;
    let ignore = json!({"condition": "OnSpokeChange", "jsonPaths": [".spec.replicas"]});
    let options = server_side(json!({"force": true, "ignoreFields": [ignore]}));
    let spec = |replicas, other: &str| {
        configured(
            &[deployment("web", replicas), map("m", other)],
            "apps/deployments",
            "web",
            options.clone(),
        )
    };
    w.work("reef", spec(1, "1")).await;
    w.settled("reef").await;
    take(&w, only_replicas("web", 5), "scaler").await;
    w.edit("reef", spec(1, "2")).await;
    w.settled("reef").await;
    assert_eq!(replicas(&w, "web").await, 5, "another manifest changed");
    w.edit("reef", spec(2, "2")).await;
    w.settled("reef").await;
    assert_eq!(replicas(&w, "web").await, 2, "this manifest changed");

    let bad = json!({"condition": "OnSpokePresent", "jqPathExpressions": [".spec["]});
    let options = server_side(json!({"ignoreFields": [bad]}));
    w.work("bad", configured(&[deployment("bad", 1), map("good", "1")], "apps/deployments", "bad", options))
        .await;
    let report = w.reported("bad", "the fault", |w| is(manifest(w, 0), "Applied", "False")).await;
    let applied = condition(manifest(&report, 0), "Applied").expect("one");
    assert_eq!(applied["reason"], "AppliedManifestSSAIgnoreFieldError");
    let message = applied["message"].as_str().expect("text");
    assert!(
        message.starts_with("Failed to process ignoreFields: JQ expression error in '.spec['"),
        "{message}"
    );
    w.cluster.until_there(MAPS, "sea", "good").await;
    agent.end().await;
    w.end().await;
}
