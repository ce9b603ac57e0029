//! Ownership of objects, how they are changed, and what the status says (§8.6).

use kubestellar_metacontroller::Strategy;
use serde_json::{Value, json};

use crate::{
    hook::{Hook, Reply, copier, copy_of, keeper, outputs},
    world::{CONTROLLERS, FOOS, MAPS, SECRETS, World, app, controller, found, map, tag, when},
};

fn counts(inputs: Value, outputs: Value) -> Value {
    json!({"observedGeneration": 1, "inputs": {"configmaps": inputs}, "outputs": {"configmaps": outputs}})
}

fn strategy(method: &str) -> Value {
    json!({"outputResources": [{"apiVersion": "v1", "resource": "configmaps", "updateStrategy": {"method": method}}]})
}

/// MC-A-50, MC-052, MC-053: deleted outputs are created again; edited ones are handled by the method.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mc_a_50_outputs_are_kept_as_the_method_says() {
    for method in ["InPlace", "OnDelete", "Recreate"] {
        let hook = Hook::start(copier).await;
        let world = World::start().await;
        world.controller("mc1", &hook.url, strategy(method)).await;
        world.foo("p", app("x")).await;
        world.input("a", json!({"app": "x"}), "1").await;
        world.has(MAPS, "ns1", vec!["a", "a-copy"]).await;
        world.delete(MAPS, "ns1", "a-copy").await;
        world.has(MAPS, "ns1", vec!["a", "a-copy"]).await;
        hook.quiet().await;
        let uid = world.get(MAPS, "ns1", "a-copy").await.unwrap()["metadata"]["uid"].clone();
        hook.clear();
        world.merge(MAPS, "ns1", "a-copy", json!({"data": {"v": "edited", "theirs": "x"}})).await;
        when("asked", || hook.count() > 0).await;
        let same = |o: &Value| o["metadata"]["uid"] == uid;
        match method {
            "InPlace" => {
                let is = |o: &Value| o["data"] == json!({"v": "1", "theirs": "x"}) && same(o);
                world.sees("put right in place", MAPS, "ns1", "a-copy", is).await;
            }
            "OnDelete" => {
                hook.quiet().await;
                world
                    .sees("left alone", MAPS, "ns1", "a-copy", |o| {
                        o["data"]["v"] == json!("edited") && same(o)
                    })
                    .await;
            }
            _ => {
                let is = |o: &Value| o["data"] == json!({"v": "1"}) && !same(o);
                world.sees("made anew", MAPS, "ns1", "a-copy", is).await;
            }
        }
        world.end().await;
    }
}

/// MC-A-51, MC-055: objects of other owners are never changed, and the user is told.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mc_a_51_a_taken_name() {
    let hook = Hook::start(|seen| {
        let mut answer = copy_of(seen, |name| format!("{name}-copy"));
        let second = copy_of(seen, |name| format!("{name}-more"));
        answer["outputs"].as_array_mut().unwrap().push(second["outputs"][0].clone());
        Reply::Json(answer)
    })
    .await;
    let world = World::start().await;
    let theirs = world.create(MAPS, map("ns1", "a-copy", json!({}), "theirs")).await;
    world.controller("mc1", &hook.url, json!({})).await;
    world.foo("p", app("x")).await;
    world.input("a", json!({"app": "x"}), "1").await;
    world.event("OutputConflict", "output ConfigMap ns1/a-copy for configmaps/ns1/a belongs to nobody").await;
    world.status(FOOS, "ns1", "p", counts(json!({"total": 1, "failed": 1}), json!({"total": 1}))).await;
    assert_eq!(world.get(MAPS, "ns1", "a-copy").await.unwrap(), theirs);
    assert!(world.get(MAPS, "ns1", "a-more").await.is_some());
    world.delete(MAPS, "ns1", "a-copy").await;
    world.status(FOOS, "ns1", "p", counts(json!({"total": 1}), json!({"total": 2}))).await;
    world.end().await;
}

/// MC-A-52, MC-055.2: two inputs request the same output; when the first gives it up, the second takes it
/// over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mc_a_52_two_inputs_one_output() {
    let hook = Hook::start(|seen| match seen.path.as_str() {
        "/map" => Reply::Json(copy_of(seen, |_| "shared".into())),
        _ => keeper(seen),
    })
    .await;
    let world = World::start().await;
    world.controller("mc1", &hook.url, strategy("OnDelete")).await;
    world.foo("p", app("x")).await;
    for name in ["a", "b"] {
        world.input(name, json!({"app": "x"}), name).await;
    }
    world.event("OutputConflict", "ConfigMap ns1/shared").await;
    world.status(FOOS, "ns1", "p", counts(json!({"total": 2, "failed": 1}), json!({"total": 1}))).await;
    let shared = world.get(MAPS, "ns1", "shared").await.unwrap();
    let winner = tag(&shared, "map-key").rsplit('/').next().unwrap().to_owned();
    let loser = if winner == "a" { "b" } else { "a" };
    world.delete(MAPS, "ns1", &winner).await;
    let key = format!("configmaps/ns1/{loser}");
    let taken = world.sees("taken over", MAPS, "ns1", "shared", |o| tag(o, "map-key") == key).await;
    assert_eq!(taken["metadata"]["uid"], shared["metadata"]["uid"]);
    world.status(FOOS, "ns1", "p", counts(json!({"total": 1}), json!({"total": 1}))).await;
    world.end().await;
}

/// MC-A-53, MC-024, MC-055: removed tags are restored; objects without any evidence of ownership are not
/// taken over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mc_a_53_tags_are_repaired() {
    let hook = Hook::start(copier).await;
    let world = World::start().await;
    let foo = {
        world.controller("mc1", &hook.url, json!({})).await;
        world.foo("p", app("x")).await
    };
    world.input("a", json!({"app": "x"}), "1").await;
    world.has(MAPS, "ns1", vec!["a", "a-copy"]).await;
    let uid = world.get(MAPS, "ns1", "a-copy").await.unwrap()["metadata"]["uid"].clone();
    let whole = |o: &Value| tag(o, "map-key") == "configmaps/ns1/a" && tag(o, "map-controller") == "mc1";
    let both = ["metacontroller.k8s.io/map-key", "metacontroller.k8s.io/map-controller"];
    for gone in [vec![both[0]], vec![both[1]], both.to_vec()] {
        let none: serde_json::Map<String, Value> =
            gone.iter().map(|name| ((*name).to_owned(), Value::Null)).collect();
        world.merge(MAPS, "ns1", "a-copy", json!({"metadata": {"annotations": none}})).await;
        let back = world.sees(&format!("{gone:?} back"), MAPS, "ns1", "a-copy", whole).await;
        assert_eq!(back["metadata"]["uid"], uid);
    }
    // A child of a CompositeController on the same parent.
    let mut child = map("ns1", "b-copy", json!({}), "theirs");
    child["metadata"]["ownerReferences"] = json!([{"apiVersion": "example.com/v1", "kind": "Foo", "name": "p", "uid": foo["metadata"]["uid"], "controller": true}]);
    let child = world.create(MAPS, child).await;
    world.input("b", json!({"app": "x"}), "1").await;
    world.event("OutputConflict", "b-copy").await;
    assert_eq!(world.get(MAPS, "ns1", "b-copy").await.unwrap(), child);
    // A user tagged it as the output of another live input, whose answer does not have it: it is deleted, and
    // created again for its own input.
    let key = json!({"metadata": {"annotations": {both[0]: "configmaps/ns1/b"}}});
    world.merge(MAPS, "ns1", "a-copy", key).await;
    world.sees("made anew", MAPS, "ns1", "a-copy", |o| whole(o) && o["metadata"]["uid"] != uid).await;
    world.end().await;
}

/// MC-A-54, MC-044, MC-059, MC-129: a hook that echoes the objects of its request.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mc_a_54_echoes_settle() {
    let hook = Hook::start(|seen| match outputs(seen) {
        list if list.is_empty() => copier(seen),
        list => Reply::Json(json!({"outputs": list})),
    })
    .await;
    let world = World::start().await;
    world.controller("mc1", &hook.url, json!({})).await;
    world.foo("p", app("x")).await;
    world.input("a", json!({"app": "x"}), "1").await;
    world.has(MAPS, "ns1", vec!["a", "a-copy"]).await;
    hook.quiet().await;
    assert!(hook.count() <= 2, "{} calls", hook.count());
    let before = world.get(MAPS, "ns1", "a-copy").await.unwrap();
    world.merge(MAPS, "ns1", "a", json!({"data": {"v": "2"}})).await;
    hook.quiet().await;
    assert_eq!(world.get(MAPS, "ns1", "a-copy").await.unwrap(), before);
    world.end().await;
}

/// MC-A-55, MC-088: that a parent's schema drops the status is reported once, and the status is not written
/// without end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mc_a_55_a_status_that_is_pruned() {
    let hook = Hook::start(copier).await;
    let world = World::start().await;
    world.controller("mc1", &hook.url, json!({"parentResource": {"resource": "shuts"}})).await;
    let parent = json!({"apiVersion": "example.com/v1", "kind": "Shut", "metadata": {"name": "p", "namespace": "ns1"}, "spec": {"selector": app("x")}});
    world.create("example.com/v1/shuts", parent).await;
    world.event("StatusPruned", "status.inputs").await;
    hook.quiet().await;
    world.clear_writes();
    world.merge("example.com/v1/shuts", "ns1", "p", json!({"metadata": {"labels": {"a": "b"}}})).await;
    world.input("a", json!({"app": "x"}), "1").await;
    world.has(MAPS, "ns1", vec!["a", "a-copy"]).await;
    hook.quiet().await;
    let puts = || world.writes().iter().filter(|write| write.contains("/status")).count();
    when("a status is written", || puts() >= 1).await;
    world.quiet().await;
    let puts = puts();
    assert!((1..=3).contains(&puts), "{puts} writes for at most three computed statuses");
    assert_eq!(world.events("StatusPruned").await.len(), 1);
    world.end().await;
}

/// MC-A-56, MC-084, and the first half of MC-A-32: fields of other writers in the status stay, and cause no
/// hook call.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mc_a_56_the_rest_of_the_status_stays() {
    let hook = Hook::start(copier).await;
    let world = World::start().await;
    world.controller("mc1", &hook.url, json!({})).await;
    world.foo("p", app("x")).await;
    world.input("a", json!({"app": "x"}), "1").await;
    world.status(FOOS, "ns1", "p", counts(json!({"total": 1}), json!({"total": 1}))).await;
    hook.quiet().await;
    hook.clear();
    let theirs = json!({"conditions": [{"type": "Odd", "status": 5}], "phase": "x", "outputs": {"stale": {"total": 9}}});
    world.merge_status(FOOS, "ns1", "p", json!({"status": theirs})).await;
    let mut expected = counts(json!({"total": 1}), json!({"total": 1}));
    expected["conditions"] = theirs["conditions"].clone();
    expected["phase"] = theirs["phase"].clone();
    world.status(FOOS, "ns1", "p", expected).await;
    hook.quiet().await;
    assert_eq!(hook.count(), 0);
    world.end().await;
}

/// Another version of an input is the same input. (ConfigMaps have one version, so the controller is changed
/// and changed back to the same resource; keys contain no version.) MC-A-62, MC-085: two MapControllers share
/// a parent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mc_a_62_two_controllers_one_parent() {
    let hook = Hook::start(|seen| match seen.body["controller"]["metadata"]["name"].as_str().unwrap() {
        "mc1" => copier(seen),
        _ => Reply::Json(
            json!({"outputs": [{"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "from-mc2"}}]}),
        ),
    })
    .await;
    let world = World::start().await;
    world.controller("mc1", &hook.url, json!({})).await;
    world
        .controller(
            "mc2",
            &hook.url,
            json!({"outputResources": [{"apiVersion": "v1", "resource": "secrets"}]}),
        )
        .await;
    world.foo("p", app("x")).await;
    world.input("a", json!({"app": "x"}), "1").await;
    let union = json!({"observedGeneration": 1, "inputs": {"configmaps": {"total": 1}}, "outputs": {"configmaps": {"total": 1}, "secrets": {"total": 1}}});
    world.status(FOOS, "ns1", "p", union).await;
    hook.quiet().await;
    world.has(MAPS, "ns1", vec!["a", "a-copy"]).await;
    world.has(SECRETS, "ns1", vec!["from-mc2"]).await;
    world.end().await;
}

/// MC-055.4: an orphan with our tags is taken over by name, and is not recreated.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mc_055_an_orphan_with_our_tags_is_taken_back() {
    let hook = Hook::start(copier).await;
    let world = World::start().await;
    world.controller("mc1", &hook.url, json!({})).await;
    let foo = world.foo("p", app("x")).await;
    world.input("a", json!({"app": "x"}), "1").await;
    world.has(MAPS, "ns1", vec!["a", "a-copy"]).await;
    let uid = world.get(MAPS, "ns1", "a-copy").await.unwrap()["metadata"]["uid"].clone();
    world.merge(MAPS, "ns1", "a-copy", json!({"metadata": {"ownerReferences": null}})).await;
    let owned = |o: &Value| o["metadata"]["ownerReferences"][0]["uid"] == foo["metadata"]["uid"];
    let back = world.sees("taken back", MAPS, "ns1", "a-copy", owned).await;
    assert_eq!(back["metadata"]["uid"], uid);
    world.end().await;
}

/// MC-131, MC-132, MC-A-80: with server-side apply, changes are reverted, and nothing is sent when nothing
/// changed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mc_a_80_server_side_apply() {
    let hook = Hook::start(copier).await;
    let world = World::start_with(Strategy::ServerSide { manager: "mm".into() }).await;
    world.controller("mc1", &hook.url, json!({})).await;
    world.foo("p", app("x")).await;
    world.input("a", json!({"app": "x"}), "1").await;
    let made = world.sees("made", MAPS, "ns1", "a-copy", |_| true).await;
    assert_eq!((tag(&made, "map-key"), tag(&made, "last-applied-configuration")), ("configmaps/ns1/a", ""));
    assert_eq!(made["metadata"]["managedFields"][0]["manager"], json!("mm"));
    world.rests(&hook, (MAPS, "a"), "nothing differs").await;
    world.merge(MAPS, "ns1", "a-copy", json!({"data": {"v": "drift", "theirs": "x"}})).await;
    world.sees("put right", MAPS, "ns1", "a-copy", |o| o["data"] == json!({"v": "1", "theirs": "x"})).await;
    hook.quiet().await;
    let old =
        json!({"metadata": {"annotations": {"metacontroller.k8s.io/last-applied-configuration": "{}"}}});
    world.merge(MAPS, "ns1", "a-copy", old).await;
    world
        .sees("the annotation goes", MAPS, "ns1", "a-copy", |o| {
            tag(o, "last-applied-configuration").is_empty()
        })
        .await;
    world.end().await;
}

/// MC-094: a changed spec restarts the controller; a change of labels does not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mc_094_only_a_spec_change_restarts() {
    let (hook, world) = World::copying().await;
    hook.quiet().await;
    hook.clear();
    world.merge(CONTROLLERS, "", "mc1", json!({"metadata": {"labels": {"a": "b"}}})).await;
    // The controller object comes through another watch than the inputs: some may be mapped before it
    // arrives.
    let mut reported = false;
    for n in 0..500 {
        let name = format!("b{n}");
        world.input(&name, json!({"app": "x"}), "1").await;
        world.sees("mapped", MAPS, "ns1", &format!("{name}-copy"), |_| true).await;
        let call = &hook.calls("/map", &format!("configmaps/ns1/{name}"))[0];
        reported = call.body["controller"]["metadata"]["labels"] == json!({"a": "b"});
        if reported {
            break;
        }
    }
    assert!(reported, "hooks are told of the controller as it is");
    assert_eq!(hook.calls("/map", "configmaps/ns1/a").len(), 0);
    world.merge(CONTROLLERS, "", "mc1", json!({"spec": {"parallelism": 2}})).await;
    found("started anew", || async { (!hook.calls("/map", "configmaps/ns1/a").is_empty()).then_some(()) })
        .await;
    let kept = controller("mc1", &hook.url, json!({"parallelism": 2}));
    let live = world.reason("mc1", "Running").await;
    assert_eq!(live["spec"], kept["spec"], "MC-006");
    world.end().await;
}
