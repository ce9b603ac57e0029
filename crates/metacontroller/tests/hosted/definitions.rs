//! Definitions of kinds that come late, go and come back under running controllers.

use serde_json::{Value, json};

use crate::{
    hook::{Hook, Reply, Seen},
    world::{COMPOSITES, CRDS, MAPS, World, app, crd, map, open, until, when},
};

const LATES: &str = "example.com/v1/lates";

fn late(status: bool) -> Value {
    let mut definition = crd("Late", "lates", "example.com", "Namespaced", open());
    if !status {
        definition["spec"]["versions"][0]["subresources"] = json!({});
    }
    definition
}

fn of_lates() -> Value {
    json!({"parentResource": {"apiVersion": "example.com/v1", "resource": "lates"}})
}

/// A parent of `example.com` that selects `app=x`.
fn parent(kind: &str, name: &str) -> Value {
    json!({"apiVersion": "example.com/v1", "kind": kind, "metadata": {"name": name, "namespace": "ns1"}, "spec": {"selector": app("x")}})
}

/// One ConfigMap `<parent>-child`.
fn child(seen: &Seen) -> Reply {
    let name = format!("{}-child", seen.body["parent"]["metadata"]["name"].as_str().unwrap());
    Reply::Json(json!({"children": [map("ns1", &name, json!({"app": "x"}), "1")], "status": {"seen": true}}))
}

/// Waits until Metacontroller has asked for the kinds of `example.com` this many times more.
async fn asked(world: &World, times: usize) {
    let count = || world.reads().iter().filter(|path| **path == "/apis/example.com/v1").count();
    let wanted = count() + times;
    when("asked for again", || count() >= wanted).await;
}

/// MC-141: a parent resource that is not defined yet is waited for without a word, and nothing that is there is touched;
/// once it is defined, the controller starts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mc_141_a_missing_definition_is_waited_for() {
    let hook = Hook::start(child).await;
    let world = World::with_composite(&hook.url, &["sync"], of_lates()).await;
    let mut left = map("ns1", "left", json!({"app": "x"}), "1");
    left["metadata"]["ownerReferences"] = json!([{"apiVersion": "example.com/v1", "kind": "Late", "name": "p", "uid": "gone", "controller": true}]);
    let left = world.create(MAPS, left).await;
    asked(&world, 3).await;
    assert!(world.get(COMPOSITES, "", "cc1").await.unwrap().get("status").is_none());
    world.define(late(true)).await;
    world.event("Started", "Started controller: cc1").await;
    world.create(LATES, parent("Late", "p")).await;
    world.sees("the child", MAPS, "ns1", "p-child", |_| true).await;
    world.status(LATES, "ns1", "p", json!({"seen": true, "observedGeneration": 1})).await;
    for reason in ["CreateError", "SyncError"] {
        assert_eq!(world.events(reason).await, Vec::<Value>::new(), "{reason}");
    }
    assert_eq!(world.deletions(), Vec::<Value>::new());
    assert_eq!(world.get(MAPS, "ns1", "left").await.unwrap(), left);
    world.end().await;
}

/// MC-141: of parents without status the user is told once, however often that is looked for; with a status the
/// controller starts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mc_141_a_missing_status_is_said_once() {
    let hook = Hook::start(child).await;
    let world = World::start().await;
    world.define(late(false)).await;
    world.create(COMPOSITES, crate::world::composite(&hook.url, &["sync"], of_lates())).await;
    world.event("SyncError", "does not have subresource 'Status' enabled").await;
    asked(&world, 3).await;
    let mut with_status = late(true);
    with_status["spec"]["versions"][0]["name"] = json!("v1");
    world
        .merge(CRDS, "", "lates.example.com", json!({"spec": {"versions": with_status["spec"]["versions"]}}))
        .await;
    world.event("Started", "Started controller: cc1").await;
    let said = world.events("SyncError").await;
    assert_eq!(said.iter().map(|event| event["count"].as_u64().unwrap_or(1)).sum::<u64>(), 1, "{said:?}");
    assert_eq!(world.events("CreateError").await, Vec::<Value>::new());
    world.create(LATES, parent("Late", "p")).await;
    until("the child", || world.get(MAPS, "ns1", "p-child")).await;
    world.end().await;
}
