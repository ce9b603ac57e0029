//! How objects are written, and which are left alone (MC §2.8, §2.11, §2.12, §7.3).

use std::time::Duration;

use kubestellar_metacontroller::{Config, Strategy};
use machinery::selector::LabelSelector;
use serde_json::{Value, json};

use crate::{
    hook::{Hook, Reply, copier},
    world::{COMPOSITES, CONTROLLERS, FOOS, MAPS, World, app, composite, controller, found, map, when},
};

fn counts(inputs: Value, outputs: Value) -> Value {
    json!({"observedGeneration": 1, "inputs": {"configmaps": inputs}, "outputs": {"configmaps": outputs}})
}

/// MC-051: deletions name a UID and run in the background. A deletion that conflicts with a change is
/// retried; one of an object that is gone is done.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mc_051_deletions() {
    let hook = Hook::start(copier).await;
    let world = World::with_parent(&hook.url, json!({"hooks": {"tombstone": null}})).await;
    for name in ["a", "b", "c"] {
        world.input(name, json!({"app": "x"}), "1").await;
    }
    world.status(FOOS, "ns1", "p", counts(json!({"total": 3}), json!({"total": 3}))).await;
    let uid = world.get(MAPS, "ns1", "a-copy").await.unwrap()["metadata"]["uid"].clone();
    world.delete(MAPS, "ns1", "a").await;
    world.has(MAPS, "ns1", vec!["b", "b-copy", "c", "c-copy"]).await;
    let [body] = &world.deletions()[..] else { panic!("{:?}", world.deletions()) };
    assert_eq!((&body["propagationPolicy"], &body["preconditions"]["uid"]), (&json!("Background"), &uid));
    // Two conflicts, then the deletion succeeds.
    world.break_some("DELETE", "configmaps/b-copy$", 409, 2);
    world.delete(MAPS, "ns1", "b").await;
    world.has(MAPS, "ns1", vec!["c", "c-copy"]).await;
    assert_eq!((world.left_to_break(), world.deletions().len()), (0, 4));
    // The server says that the object is gone, so there is nothing to retry.
    world.break_some("DELETE", "configmaps/c-copy$", 404, 1);
    world.delete(MAPS, "ns1", "c").await;
    when("asked to delete it", || world.left_to_break() == 0).await;
    world.quiet().await;
    assert_eq!(world.deletions().len(), 5);
    world.end().await;
}

/// MC-056: no object is adopted because of its labels or tags alone, and none is released because of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mc_056_no_adoption_by_selector_and_no_release() {
    let hook = Hook::start(copier).await;
    let world = World::with_parent(&hook.url, json!({})).await;
    let mut stray = map("ns1", "stray", json!({}), "theirs");
    stray["metadata"]["annotations"] = json!({"metacontroller.k8s.io/map-controller": "mc1", "metacontroller.k8s.io/map-key": "configmaps/ns1/a"});
    let stray = world.create(MAPS, stray).await;
    let foo = world.get(FOOS, "ns1", "p").await.unwrap();
    world.input("a", json!({"app": "x"}), "1").await;
    world.sees("made", MAPS, "ns1", "a-copy", |_| true).await;
    // An object that the parent controls is its output, even if it is labelled as an input.
    world.merge(MAPS, "ns1", "a-copy", json!({"metadata": {"labels": {"app": "x"}}})).await;
    world.status(FOOS, "ns1", "p", counts(json!({"total": 1}), json!({"total": 1}))).await;
    hook.quiet().await;
    let copy = world.get(MAPS, "ns1", "a-copy").await.unwrap();
    assert_eq!(copy["metadata"]["ownerReferences"][0]["uid"], foo["metadata"]["uid"]);
    world.delete(MAPS, "ns1", "a").await;
    world.has(MAPS, "ns1", vec!["stray"]).await;
    assert_eq!(world.get(MAPS, "ns1", "stray").await.unwrap(), stray);
    world.end().await;
}

/// MC-086: a status write first reads from the server, is retried on conflicts, and is skipped if it would
/// change nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mc_086_status_writes() {
    let hook = Hook::start(copier).await;
    let world = World::start().await;
    world.controller("mc1", &hook.url, json!({})).await;
    world.break_some("PUT", "/foos/p/status$", 409, 3);
    world.foo("p", app("x")).await;
    world.status(FOOS, "ns1", "p", counts(json!({"total": 0}), json!({"total": 0}))).await;
    assert_eq!(world.left_to_break(), 0);
    let puts = || world.writes().iter().filter(|write| write.contains("foos/p/status")).count();
    let looks = world.reads().iter().filter(|read| read.ends_with("/foos/p")).count();
    assert!(puts() == 4 && looks >= 4, "{} writes, {looks} looks", puts());
    world.input("a", json!({"app": "x"}), "1").await;
    let status = counts(json!({"total": 1}), json!({"total": 1}));
    world.status(FOOS, "ns1", "p", status.clone()).await;
    hook.quiet().await;
    world.clear_writes();
    world.merge(MAPS, "ns1", "a", json!({"data": {"v": "2"}})).await;
    world.sees("copied", MAPS, "ns1", "a-copy", |o| o["data"]["v"] == json!("2")).await;
    world.quiet().await;
    assert_eq!(puts(), 0, "the same numbers");
    // A field of another writer stays, and ours is restored.
    world.merge_status(FOOS, "ns1", "p", json!({"status": {"inputs": null, "theirs": 1}})).await;
    let mut expected = status;
    expected["theirs"] = json!(1);
    world.status(FOOS, "ns1", "p", expected).await;
    world.end().await;
}

/// MC-089, MC-090: a parent that is being deleted gets no status any more, and its outputs are not managed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mc_089_no_status_on_the_way_out() {
    let hook = Hook::start(copier).await;
    let world = World::with_parent(&hook.url, json!({})).await;
    for name in ["a", "b"] {
        world.input(name, json!({"app": "x"}), "1").await;
    }
    world.status(FOOS, "ns1", "p", counts(json!({"total": 2}), json!({"total": 2}))).await;
    world.merge(FOOS, "ns1", "p", json!({"metadata": {"finalizers": ["example.com/hold"]}})).await;
    world.delete(FOOS, "ns1", "p").await;
    // The call for another parent comes after the event of the first.
    world.foo("q", app("y")).await;
    world.input("c", json!({"app": "y"}), "1").await;
    world.sees("the other's output", MAPS, "ns1", "c-copy", |_| true).await;
    world.clear_writes();
    world.delete(MAPS, "ns1", "a-copy").await;
    world.delete(MAPS, "ns1", "b").await;
    world.input("d", json!({"app": "y"}), "1").await;
    world.status(FOOS, "ns1", "q", counts(json!({"total": 2}), json!({"total": 2}))).await;
    world.quiet().await;
    assert!(!world.writes().iter().any(|write| write.contains("foos/p") || write.contains("/a-copy")));
    world.has(MAPS, "ns1", vec!["a", "b-copy", "c", "c-copy", "d", "d-copy"]).await;
    world.end().await;
}

/// MC-093: deleting a MapController ends its calls and watches, and leaves every object as it is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mc_093_deletion_ends_calls_and_watches() {
    let hook = Hook::start(copier).await;
    let world =
        World::with_parent(&hook.url, json!({"hooks": {"map": {"webhook": {"timeout": "10m"}}}})).await;
    world.input("a", json!({"app": "x"}), "1").await;
    world.status(FOOS, "ns1", "p", counts(json!({"total": 1}), json!({"total": 1}))).await;
    let before = (world.get(MAPS, "ns1", "a-copy").await, world.get(FOOS, "ns1", "p").await);
    hook.hold("/map configmaps/ns1/b");
    world.input("b", json!({"app": "x"}), "1").await;
    when("asked", || !hook.calls("/map", "configmaps/ns1/b").is_empty()).await;
    world.delete(CONTROLLERS, "", "mc1").await;
    world.event("Stopped", "Stopped controller: mc1").await;
    when("its watches end", || {
        world.watches("/apis/example.com/v1/foos") == 0 && world.watches("/api/v1/configmaps") == 0
    })
    .await;
    hook.release();
    hook.quiet().await;
    world.has(MAPS, "ns1", vec!["a", "a-copy", "b"]).await;
    let after = world.get(FOOS, "ns1", "p").await;
    assert_eq!(world.get(MAPS, "ns1", "a-copy").await, before.0);
    // Its status may have counted the new input before the end; nothing else changed.
    assert_eq!(after.unwrap()["metadata"]["uid"], before.1.unwrap()["metadata"]["uid"]);
    world.end().await;
}

/// MC-095: a MapController has no finalize and no customize hook: the server drops the fields.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mc_095_hooks_it_does_not_have_are_dropped() {
    let hook = Hook::start(copier).await;
    let world = World::start().await;
    let more = json!({"webhook": {"url": format!("{}/more", hook.url)}});
    world.controller("mc1", &hook.url, json!({"hooks": {"finalize": more, "customize": more}})).await;
    world.foo("p", app("x")).await;
    world.input("a", json!({"app": "x"}), "1").await;
    world.has(MAPS, "ns1", vec!["a", "a-copy"]).await;
    let live = world.get(CONTROLLERS, "", "mc1").await.unwrap();
    let hooks: Vec<_> = live["spec"]["hooks"].as_object().unwrap().keys().cloned().collect();
    assert_eq!(hooks, ["map", "tombstone"]);
    assert_eq!(hook.paths("/more"), 0);
    world.end().await;
}

/// MC-097: two at the same time, as for a moment when the leader changes, create nothing twice and do not
/// disturb each other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mc_097_two_at_once_make_nothing_twice() {
    let hook = Hook::start(copier).await;
    let world =
        World::with_parent(&hook.url, json!({"hooks": {"map": {"webhook": {"timeout": "1m"}}}})).await;
    let (stop, other) =
        world.another(Config { discovery_interval: Duration::from_secs(1), ..Config::default() });
    for i in 0..40 {
        world.input(&format!("i{i}"), json!({"app": "x"}), "1").await;
    }
    world.status(FOOS, "ns1", "p", counts(json!({"total": 40}), json!({"total": 40}))).await;
    hook.quiet().await;
    stop.cancel();
    other.await.unwrap();
    assert_eq!(world.names(MAPS, "ns1").await.len(), 80);
    assert_eq!((world.events("OutputConflict").await, world.events("SyncError").await), (vec![], vec![]));
    assert!(!world.writes().iter().any(|write| write.starts_with("DELETE")));
    world.end().await;
}

/// MC-140, MC-A-85: only controllers with the selected labels run; one that loses them is stopped.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mc_a_85_controllers_by_label() {
    let hook = Hook::start(copier).await;
    let mut world = World::start().await;
    world.stop_meta().await;
    world.create(CONTROLLERS, controller("mc2", &hook.url, json!({}))).await;
    let mut ours = controller("mc1", &hook.url, json!({}));
    ours["metadata"]["labels"] = json!({"team": "a"});
    world.create(CONTROLLERS, ours).await;
    let target = LabelSelector::parse("team=a").unwrap();
    let (stop, other) =
        world.another(Config { discovery_interval: Duration::from_secs(1), target, ..Config::default() });
    world.reason("mc1", "Running").await;
    world.foo("p", app("x")).await;
    world.input("a", json!({"app": "x"}), "1").await;
    world.has(MAPS, "ns1", vec!["a", "a-copy"]).await;
    // A change of labels alone restarts nothing (MC-140).
    world.merge(CONTROLLERS, "", "mc1", json!({"metadata": {"labels": {"more": "b"}}})).await;
    world.merge(MAPS, "ns1", "a", json!({"data": {"v": "2"}})).await;
    world.sees("followed", MAPS, "ns1", "a-copy", |o| o["data"]["v"] == json!("2")).await;
    world.event("Started", "Started controller: mc1").await;
    assert_eq!(world.events("Started").await.len(), 1);
    assert!(world.get(CONTROLLERS, "", "mc2").await.unwrap().get("status").is_none());
    world.merge(CONTROLLERS, "", "mc1", json!({"metadata": {"labels": {"team": null}}})).await;
    world.event("Stopped", "Stopped controller: mc1").await;
    hook.clear();
    world.input("b", json!({"app": "x"}), "1").await;
    hook.quiet().await;
    assert_eq!(hook.count(), 0);
    world.merge(CONTROLLERS, "", "mc2", json!({"metadata": {"labels": {"team": "a"}}})).await;
    world.sees("mapped", MAPS, "ns1", "b-copy", |_| true).await;
    stop.cancel();
    other.await.unwrap();
    world.end().await;
}

/// MC-207: events of the life of a controller, with the texts of the original, about the controller and in
/// `default`; a repeated Event increases its count.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mc_207_events() {
    let hook = Hook::start(|_| Reply::status(500, "broken")).await;
    let world = World::start().await;
    let mc = world.controller("mc1", &hook.url, json!({})).await;
    let started = world.event("Started", "Started controller: mc1").await;
    world.event("Starting", "Starting controller: mc1").await;
    assert_eq!(started["metadata"]["namespace"], json!("default"));
    assert_eq!(started["source"]["component"], json!("metacontroller"));
    assert_eq!(started["type"], json!("Normal"));
    let about = &started["involvedObject"];
    assert_eq!((&about["kind"], &about["uid"]), (&json!("MapController"), &mc["metadata"]["uid"]));
    let refused = json!({"inputResources": [{"apiVersion": "v1", "resource": "configmaps"}, {"apiVersion": "v1", "resource": "configmaps"}]});
    world.create(CONTROLLERS, controller("bad", &hook.url, refused)).await;
    let refused = world.event("CreateError", "Cannot create new controller: ").await;
    assert_eq!(refused["type"], json!("Warning"));
    world.create(COMPOSITES, composite(&hook.url, &["sync"], json!({}))).await;
    world.foo("p", app("nobody")).await;
    let text = "Sync error: sync hook: unsupported status code: 500 body: broken";
    let again = found("counted up", || async {
        let all = world.events("SyncError").await;
        all.into_iter().find(|event| event["message"] == json!(text) && event["count"].as_u64() >= Some(3))
    })
    .await;
    assert_eq!(again["metadata"]["namespace"], json!("ns1"));
    assert_eq!(again["involvedObject"]["name"], json!("p"));
    assert_eq!(world.events("SyncError").await.len(), 1);
    world.delete(CONTROLLERS, "", "mc1").await;
    world.event("Stopping", "Stopping controller: mc1").await;
    world.event("Stopped", "Stopped controller: mc1").await;
    world.end().await;
}

/// MC-133: with server-side apply, `OnDelete` leaves an existing object alone. `Recreate` does a dry run,
/// deletes what would change, and nothing if the server refuses the dry run.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mc_133_methods_of_server_side_apply() {
    for method in ["OnDelete", "Recreate"] {
        let hook = Hook::start(copier).await;
        let world = World::start_with(Strategy::ServerSide { manager: "mm".into() }).await;
        let outputs = json!({"outputResources": [{"apiVersion": "v1", "resource": "configmaps", "updateStrategy": {"method": method}}]});
        world.controller("mc1", &hook.url, outputs).await;
        world.foo("p", app("x")).await;
        world.input("a", json!({"app": "x"}), "1").await;
        let made = world.sees("made", MAPS, "ns1", "a-copy", |_| true).await;
        hook.quiet().await;
        world.quiet().await;
        world.clear_writes();
        let ask = async |value: &str| {
            hook.clear();
            world.merge(MAPS, "ns1", "a", json!({"data": {"v": value}})).await;
            when("asked", || hook.count() > 0).await;
            hook.quiet().await;
            world.quiet().await;
            world.get(MAPS, "ns1", "a-copy").await.unwrap()
        };
        // Nothing in the answer changed: at most a dry run is sent.
        world.merge(MAPS, "ns1", "a", json!({"metadata": {"annotations": {"poke": "1"}}})).await;
        hook.quiet().await;
        let real = |write: &String| !write.contains("dryRun=All");
        assert!(!world.writes().iter().any(real), "{method}: {:?}", world.writes());
        let after = ask("2").await;
        if method == "OnDelete" {
            assert_eq!(after, made);
        } else {
            assert_eq!(after["data"]["v"], json!("2"));
            assert_ne!(after["metadata"]["uid"], made["metadata"]["uid"]);
            world.break_some("PATCH", "dryRun=All", 403, usize::MAX);
            assert_eq!(ask("3").await, after, "it can't be judged, so it stays");
            world.mend_requests();
            assert_eq!(ask("4").await["data"]["v"], json!("4"));
        }
        world.end().await;
    }
}
