//! Watches and discovery that all hosted controllers share, and resources that disappear (MC §7.1, §7.5).

use serde_json::{Value, json};

use crate::{
    hook::{Hook, Reply, copier, keeper},
    world::{
        COMPOSITES, CONTROLLERS, FOOS, MAPS, SECRETS, World, app, composite, controller, foo, found, secret,
        versioned, when,
    },
};

const MAPS_PATH: &str = "/api/v1/configmaps";

/// MC-039, MC-190: one list and watch for a resource, for any number of controllers and roles; it continues
/// when one of them ends, and ends with the last.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mc_190_one_watch_for_a_resource() {
    let hook = Hook::start(|seen| match seen.body["controller"]["metadata"]["name"].as_str() {
        Some("mc1") => Reply::Json(json!({"outputs": []})),
        _ => copier(seen),
    })
    .await;
    let world = World::start().await;
    world.controller("mc1", &hook.url, json!({})).await;
    world.controller("mc2", &hook.url, json!({})).await;
    world.foo("p", app("x")).await;
    world.input("a", json!({"app": "x"}), "1").await;
    world.has(MAPS, "ns1", vec!["a", "a-copy"]).await;
    assert_eq!((world.watches(MAPS_PATH), world.watches("/apis/example.com/v1/foos")), (1, 1));
    let lists = || {
        let of_maps = world.reads().into_iter().filter(|uri| uri.split('?').next() == Some(MAPS_PATH));
        of_maps.filter(|uri| uri.contains("sendInitialEvents") || !uri.contains("watch=true")).count()
    };
    assert_eq!(lists(), 1, "four roles, one list");
    world.delete(CONTROLLERS, "", "mc1").await;
    world.event("Stopped", "Stopped controller: mc1").await;
    world.input("b", json!({"app": "x"}), "1").await;
    world.has(MAPS, "ns1", vec!["a", "a-copy", "b", "b-copy"]).await;
    assert_eq!((world.watches(MAPS_PATH), lists()), (1, 1));
    world.delete(CONTROLLERS, "", "mc2").await;
    when("nobody watches any more", || world.watches(MAPS_PATH) == 0).await;
    world.end().await;
}

/// MC-203: if discovery fails, in part or as a whole, running controllers continue with what they know, and a
/// new one waits.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mc_203_discovery_that_fails() {
    let (hook, world) = World::copying().await;
    world.break_some("GET", "/api/v1$", 503, usize::MAX);
    world.create(CONTROLLERS, controller("mc2", &hook.url, json!({}))).await;
    world.event("CreateError", "configmaps of v1").await;
    world.input("b", json!({"app": "x"}), "1").await;
    world.has(MAPS, "ns1", vec!["a", "a-copy", "b", "b-copy"]).await;
    world.reason("mc1", "Running").await;
    // A group that no controller here needs does not matter.
    world.break_some("GET", "/apis/batch/v1$", 503, usize::MAX);
    world.reason("mc2", "Running").await;
    world.end().await;
}

/// MC-018, MC-005: a CRD that is deleted while it is in use shows on the MapController. No other object is
/// deleted unless the hook says so, and once the CRD is back, work continues.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mc_018_a_definition_that_goes_while_in_use() {
    let hook = Hook::start(keeper).await;
    let mut world = World::start().await;
    world.collect_garbage().await;
    world.define(versioned("Wish", "wishes", &["v1"])).await;
    let wishes = json!({"inputResources": [{"apiVersion": "v1", "resource": "configmaps"}, {"apiVersion": "example.com/v1", "resource": "wishes"}]});
    world.controller("mc1", &hook.url, wishes).await;
    world.foo("p", app("x")).await;
    let wish = |name: &str| json!({"apiVersion": "example.com/v1", "kind": "Wish", "metadata": {"name": name, "namespace": "ns1", "labels": {"app": "x"}}});
    world.create("example.com/v1/wishes", wish("w")).await;
    world.input("a", json!({"app": "x"}), "1").await;
    world.sees("of the wish", MAPS, "ns1", "w-copy", |_| true).await;
    world.sees("of the map", MAPS, "ns1", "a-copy", |_| true).await;
    hook.quiet().await;
    let copies = (world.get(MAPS, "ns1", "w-copy").await, world.get(MAPS, "ns1", "a-copy").await);
    world.undefine("wishes.example.com").await;
    let broken = world.reason("mc1", "InputUnavailable").await;
    assert!(broken["status"]["conditions"][0]["message"].as_str().unwrap().contains("wishes.example.com"));
    // The other controllers continue.
    world.input("b", json!({"app": "x"}), "1").await;
    world.sees("of another map", MAPS, "ns1", "b-copy", |_| true).await;
    hook.quiet().await;
    assert_eq!((world.get(MAPS, "ns1", "w-copy").await, world.get(MAPS, "ns1", "a-copy").await), copies);
    assert!(world.deletions().is_empty());
    world.define(versioned("Wish", "wishes", &["v1"])).await;
    world.reason("mc1", "Running").await;
    world.create("example.com/v1/wishes", wish("v")).await;
    world.sees("work goes on", MAPS, "ns1", "v-copy", |_| true).await;
    world.end().await;
}

/// MC-050: the same for a CRD of outputs: the user sees why they cannot be created, and they are created once
/// that is possible.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mc_050_a_definition_of_outputs_that_goes() {
    let hook = Hook::start(|seen| {
        let wish = json!({"apiVersion": "example.com/v1", "kind": "Wish", "metadata": {"name": seen.body["input"]["metadata"]["name"]}});
        let mut answer = crate::hook::copy_of(seen, |name| format!("{name}-copy"));
        answer["outputs"].as_array_mut().unwrap().insert(0, wish);
        Reply::Json(answer)
    })
    .await;
    let mut world = World::start().await;
    world.collect_garbage().await;
    world.define(versioned("Wish", "wishes", &["v1"])).await;
    let wishes = json!({"outputResources": [{"apiVersion": "example.com/v1", "resource": "wishes"}, {"apiVersion": "v1", "resource": "configmaps"}]});
    world.controller("mc1", &hook.url, wishes).await;
    world.foo("p", app("x")).await;
    world.input("a", json!({"app": "x"}), "1").await;
    world.sees("made", "example.com/v1/wishes", "ns1", "a", |_| true).await;
    world.undefine("wishes.example.com").await;
    world.input("b", json!({"app": "x"}), "1").await;
    world.sees("the other kind is made", MAPS, "ns1", "b-copy", |_| true).await;
    world.event("SyncError", "creating Wish ns1/").await;
    world.define(versioned("Wish", "wishes", &["v1"])).await;
    let made = async |name: &str| {
        world.rest.find::<Value>(&crate::world::gvr("example.com/v1/wishes"), "ns1", name).await.ok()?
    };
    found("both are made", || async { made("a").await.and(made("b").await) }).await;
    assert!(world.deletions().is_empty());
    world.end().await;
}

/// MC-A-79: in a cluster with the CRDs of the Go program, and so without that of MapController, the other
/// controllers run; once that CRD exists, so do the MapControllers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mc_a_79_definitions_of_the_original_only() {
    let hook = Hook::start(|seen| match seen.path.as_str() {
        "/map" => copier(seen),
        _ => {
            let mut child = secret("ns1", "child", json!({}));
            child["metadata"]["labels"] = json!({"app": "c"});
            Reply::Json(json!({"children": [child]}))
        }
    })
    .await;
    let mut world = World::start().await;
    world.collect_garbage().await;
    world.stop_meta().await;
    world.undefine("mapcontrollers.metacontroller.k8s.io").await;
    world.restart().await;
    let secrets = json!({"childResources": [{"apiVersion": "v1", "resource": "secrets"}]});
    world.create(COMPOSITES, composite(&hook.url, &["sync"], secrets)).await;
    world.create(FOOS, foo("p", json!({"selector": app("c")}))).await;
    world.sees("the child", SECRETS, "ns1", "child", |_| true).await;
    let definitions = apis::crds::metacontroller().into_iter().map(|crd| serde_json::to_value(crd).unwrap());
    let is_it = |crd: &Value| crd["metadata"]["name"] == json!("mapcontrollers.metacontroller.k8s.io");
    let mut definition = definitions.into_iter().find(is_it).unwrap();
    definition["apiVersion"] = json!("apiextensions.k8s.io/v1");
    definition["kind"] = json!("CustomResourceDefinition");
    world.define(definition).await;
    world.controller("mc1", &hook.url, json!({})).await;
    world.input("a", json!({"app": "c"}), "1").await;
    world.sees("the copy", MAPS, "ns1", "a-copy", |_| true).await;
    world.end().await;
}
