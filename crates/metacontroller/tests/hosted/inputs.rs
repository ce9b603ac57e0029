//! Which objects are inputs, and when the hook is called for them (MC §2.3 to §2.7).

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::{
    hook::{Hook, Reply, copier, outputs},
    world::{FOOS, MAPS, SECRETS, World, app, map, versioned, when},
};

const A: &str = "configmaps/ns1/a";

fn nothing() -> Reply {
    Reply::Json(json!({"outputs": []}))
}

/// MC-004: the resource of the parents can be a resource of inputs, and so can cluster-scoped ones; no object
/// is an input of itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mc_004_parents_and_cluster_scoped_objects_as_inputs() {
    let hook = Hook::start(|_| nothing()).await;
    let world = World::start().await;
    let inputs = json!({"inputResources": [
        {"apiVersion": "v1", "resource": "configmaps"},
        {"apiVersion": "example.com/v1", "resource": "foos"},
        {"apiVersion": "example.com/v1", "resource": "things"},
    ]});
    world.controller("mc1", &hook.url, inputs).await;
    let foo = |name: &str, selects: &str| json!({"apiVersion": "example.com/v1", "kind": "Foo", "metadata": {"name": name, "namespace": "ns1", "labels": {"app": "x"}}, "spec": {"selector": app(selects)}});
    world.create(FOOS, foo("q", "nobody")).await;
    world.create(FOOS, foo("p", "x")).await;
    let thing = json!({"apiVersion": "example.com/v1", "kind": "Thing", "metadata": {"name": "t", "labels": {"app": "x"}}});
    world.create("example.com/v1/things", thing).await;
    world.input("a", json!({"app": "x"}), "1").await;
    let inputs = json!({"configmaps": {"total": 1}, "foos": {"total": 1}, "things": {"total": 1}});
    let status = json!({"observedGeneration": 1, "inputs": inputs, "outputs": {"configmaps": {"total": 0}}});
    world.status(FOOS, "ns1", "p", status).await;
    hook.quiet().await;
    let asked: BTreeSet<String> = hook
        .seen()
        .iter()
        .map(|seen| format!("{} {}", seen.body["parent"]["metadata"]["name"].as_str().unwrap(), seen.key()))
        .collect();
    let expected = ["p configmaps/ns1/a", "p foos.example.com/ns1/q", "p things.example.com//t"];
    assert_eq!(asked, expected.map(str::to_owned).into());
    world.end().await;
}

/// MC-012: one selector for all resources of inputs, one input for each call.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mc_012_one_selector_and_one_input_a_call() {
    let hook = Hook::start(|_| nothing()).await;
    let both = json!({"inputResources": [{"apiVersion": "v1", "resource": "configmaps"}, {"apiVersion": "v1", "resource": "secrets"}]});
    let world = World::with_parent(&hook.url, both).await;
    for (name, label) in [("same", "x"), ("other", "y")] {
        world.input(name, json!({"app": label}), "1").await;
        let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": "ns1", "labels": {"app": label}}});
        world.create(SECRETS, secret).await;
    }
    let inputs = json!({"configmaps": {"total": 1}, "secrets": {"total": 1}});
    let status = json!({"observedGeneration": 1, "inputs": inputs, "outputs": {"configmaps": {"total": 0}}});
    world.status(FOOS, "ns1", "p", status).await;
    hook.quiet().await;
    let mut asked: Vec<String> = hook
        .seen()
        .iter()
        .map(|seen| {
            assert!(seen.body["input"].is_object() && seen.body.get("inputs").is_none());
            format!("{} {}", seen.key(), seen.body["input"]["kind"].as_str().unwrap())
        })
        .collect();
    asked.sort();
    assert_eq!(asked, ["configmaps/ns1/same ConfigMap", "secrets/ns1/same Secret"]);
    world.end().await;
}

/// MC-015: an input that is being deleted is still mapped, and the hook can see that; its outputs are
/// detached only when it is gone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mc_015_an_input_on_its_way_out_is_still_mapped() {
    let hook = Hook::start(copier).await;
    let world = World::with_parent(&hook.url, json!({})).await;
    let mut held = map("ns1", "a", json!({"app": "x"}), "1");
    held["metadata"]["finalizers"] = json!(["example.com/hold"]);
    world.create(MAPS, held).await;
    world.has(MAPS, "ns1", vec!["a", "a-copy"]).await;
    world.delete(MAPS, "ns1", "a").await;
    when("shown as going", || {
        hook.calls("/map", A)
            .iter()
            .any(|seen| seen.body["input"]["metadata"]["deletionTimestamp"].is_string())
    })
    .await;
    // Its outputs follow it until then.
    world.merge(MAPS, "ns1", "a", json!({"data": {"v": "2"}})).await;
    world.sees("still mapped", MAPS, "ns1", "a-copy", |o| o["data"]["v"] == json!("2")).await;
    hook.quiet().await;
    assert_eq!(hook.paths("/tombstone"), 0);
    world.merge(MAPS, "ns1", "a", json!({"metadata": {"finalizers": null}})).await;
    world.has(MAPS, "ns1", vec![]).await;
    assert_eq!(hook.calls("/tombstone", A)[0].body["reason"], json!("InputDeleted"));
    world.end().await;
}

/// MC-042, MC-057: outputs that are being deleted are in the request, and are neither changed nor recreated
/// until they are gone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mc_042_outputs_on_their_way_out_are_shown() {
    let hook = Hook::start(copier).await;
    let world = World::with_parent(&hook.url, json!({})).await;
    world.input("a", json!({"app": "x"}), "1").await;
    world.has(MAPS, "ns1", vec!["a", "a-copy"]).await;
    world.merge(MAPS, "ns1", "a-copy", json!({"metadata": {"finalizers": ["example.com/hold"]}})).await;
    world.delete(MAPS, "ns1", "a-copy").await;
    let going = |list: Vec<Value>| list.iter().any(|o| o["metadata"]["deletionTimestamp"].is_string());
    when("shown as going", || hook.calls("/map", A).iter().any(|seen| going(outputs(seen)))).await;
    hook.quiet().await;
    world.clear_writes();
    world.merge(MAPS, "ns1", "a", json!({"data": {"v": "2"}})).await;
    let data = |seen: &crate::hook::Seen| seen.body["input"]["data"]["v"] == json!("2");
    when("asked", || hook.calls("/map", A).iter().any(data)).await;
    hook.quiet().await;
    assert_eq!(world.writes(), Vec::<String>::new());
    world.merge(MAPS, "ns1", "a-copy", json!({"metadata": {"finalizers": null}})).await;
    let anew = |o: &Value| o["data"]["v"] == json!("2") && o["metadata"].get("deletionTimestamp").is_none();
    world.sees("made anew", MAPS, "ns1", "a-copy", anew).await;
    world.end().await;
}

/// MC-047, MC-033, MC-046: there is one call at a time for one input, however often it changes meanwhile. One
/// more follows with the last state, also if the hook returns nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mc_047_calls_about_one_input_follow_each_other() {
    let (flying, overlapped) =
        (Arc::new(Mutex::new(BTreeSet::<String>::new())), Arc::new(AtomicBool::new(false)));
    let (mine, seen_twice) = (flying.clone(), overlapped.clone());
    let hook = Hook::start(move |seen| {
        // Answered at once, except for what is held: two concurrent calls of one key would show in the count
        // below.
        if !mine.lock().insert(seen.key().to_owned()) {
            seen_twice.store(true, Ordering::SeqCst);
        }
        mine.lock().remove(seen.key());
        nothing()
    })
    .await;
    let patient = json!({"parallelism": 8, "hooks": {"map": {"webhook": {"timeout": "1m"}}}});
    let world = World::with_parent(&hook.url, patient).await;
    hook.hold(&format!("/map {A}"));
    world.input("a", json!({"app": "x"}), "1").await;
    when("asked", || hook.count() == 1).await;
    for edit in 2..6 {
        world.merge(MAPS, "ns1", "a", json!({"data": {"v": edit.to_string()}})).await;
    }
    // The call for this input comes after all edits were seen.
    world.input("mark", json!({"app": "x"}), "1").await;
    when("the mark is asked about", || !hook.calls("/map", "configmaps/ns1/mark").is_empty()).await;
    assert_eq!(hook.calls("/map", A).len(), 1, "one at a time");
    hook.release();
    when("asked again", || hook.calls("/map", A).len() >= 2).await;
    hook.quiet().await;
    let calls = hook.calls("/map", A);
    assert_eq!((calls.len(), &calls[1].body["input"]["data"]["v"]), (2, &json!("5")));
    assert!(!overlapped.load(Ordering::SeqCst));
    world.end().await;
}

/// MC-A-61, MC-020: another served version of a resource is the same resource: nothing is detached, keys
/// stay.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mc_a_61_another_version_of_the_inputs() {
    let hook = Hook::start(|seen| match seen.path.as_str() {
        "/map" => Reply::Json(json!({"outputs": [{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "made"}, "data": {"v": "1"}}]})),
        _ => nothing(),
    })
    .await;
    let world = World::start().await;
    world.define(versioned("Doc", "docs", &["v1", "v2"])).await;
    let inputs =
        |version: &str| json!([{"apiVersion": format!("example.com/{version}"), "resource": "docs"}]);
    world.controller("mc1", &hook.url, json!({"inputResources": inputs("v1")})).await;
    world.foo("p", app("x")).await;
    let doc = json!({"apiVersion": "example.com/v1", "kind": "Doc", "metadata": {"name": "d", "namespace": "ns1", "labels": {"app": "x"}}});
    world.create("example.com/v1/docs", doc).await;
    let made = world.sees("made", MAPS, "ns1", "made", |_| true).await;
    hook.quiet().await;
    hook.clear();
    world
        .merge(crate::world::CONTROLLERS, "", "mc1", json!({"spec": {"inputResources": inputs("v2")}}))
        .await;
    when("asked in the other version", || {
        let calls = hook.calls("/map", "docs.example.com/ns1/d");
        calls.iter().any(|seen| seen.body["input"]["apiVersion"] == json!("example.com/v2"))
    })
    .await;
    hook.quiet().await;
    assert_eq!(hook.paths("/tombstone"), 0);
    assert!(hook.seen().iter().all(|seen| seen.key() == "docs.example.com/ns1/d"));
    assert_eq!(world.get(MAPS, "ns1", "made").await.unwrap(), made);
    world.end().await;
}
