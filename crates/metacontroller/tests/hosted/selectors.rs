//! What a parent selects, and which specs are rejected (§8.2).

use serde_json::{Value, json};

use crate::{
    hook::{Hook, Reply, copier, copy_of, keeper},
    world::{BARS, CONTROLLERS, FOOS, MAPS, SECRETS, World, app, controller, found, map, tag, when},
};

/// MC-A-10, MC-011: without a selector, everything in the namespace is selected and nothing else.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mc_a_10_no_selector_selects_all_of_the_namespace() {
    let hook = Hook::start(|_| Reply::Json(json!({"outputs": []}))).await;
    let world = World::start().await;
    for name in ["a", "b", "c"] {
        world.input(name, json!({"n": name}), "1").await;
    }
    world.create(MAPS, map("ns2", "far", json!({}), "1")).await;
    world.controller("mc1", &hook.url, json!({})).await;
    for (index, selector) in [json!(null), json!({}), json!({"matchLabels": {}})].into_iter().enumerate() {
        hook.clear();
        let name = format!("p{index}");
        world.foo(&name, selector).await;
        world.status(FOOS, "ns1", &name, json!({"observedGeneration": 1, "inputs": {"configmaps": {"total": 3}}, "outputs": {"configmaps": {"total": 0}}})).await;
        let mut keys: Vec<_> = hook.seen().iter().map(|seen| seen.key().to_owned()).collect();
        keys.sort_unstable();
        assert_eq!(keys, ["configmaps/ns1/a", "configmaps/ns1/b", "configmaps/ns1/c"]);
    }
    world.end().await;
}

/// MC-A-11, MC-013: a selector that cannot be parsed never counts as "nothing matches".
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mc_a_11_an_unreadable_selector_stops_everything() {
    let (hook, world) = World::copying().await;
    hook.quiet().await;
    hook.clear();
    for bad in
        [json!({"matchLabels": null, "matchExpressions": [{"key": "a", "operator": "Foo"}]}), json!("x")]
    {
        world.merge(FOOS, "ns1", "p", json!({"spec": {"selector": bad}})).await;
    }
    world.event("SyncError", "invalid spec.selector: must be an object").await;
    world.event("SyncError", "invalid spec.selector: matchExpressions").await;
    world.delete(MAPS, "ns1", "a").await;
    hook.quiet().await;
    assert_eq!(hook.count(), 0);
    assert!(world.get(MAPS, "ns1", "a-copy").await.is_some());
    world.input("b", json!({"app": "x"}), "1").await;
    world.merge(FOOS, "ns1", "p", json!({"spec": {"selector": app("x")}})).await;
    world.has(MAPS, "ns1", vec!["b", "b-copy"]).await;
    world.end().await;
}

/// MC-A-12, MC-014: the outputs of a parent are not its inputs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mc_a_12_outputs_are_no_inputs_of_their_parent() {
    let hook = Hook::start(|seen| {
        let mut answer = copy_of(seen, |name| format!("{name}-copy"));
        answer["outputs"][0]["metadata"]["labels"] = seen.body["input"]["metadata"]["labels"].clone();
        Reply::Json(answer)
    })
    .await;
    let world = World::start().await;
    world.controller("mc1", &hook.url, json!({})).await;
    world.foo("p", json!({})).await;
    world.input("a", json!({"l": "1"}), "1").await;
    world.input("b", json!({"l": "1"}), "1").await;
    world.status(FOOS, "ns1", "p", json!({"observedGeneration": 1, "inputs": {"configmaps": {"total": 2}}, "outputs": {"configmaps": {"total": 2}}})).await;
    hook.quiet().await;
    assert!(hook.seen().iter().all(|seen| !seen.key().ends_with("-copy")));
    world.has(MAPS, "ns1", vec!["a", "a-copy", "b", "b-copy"]).await;
    world.end().await;
}

/// MC-A-13, MC-016: two parents whose outputs are inputs of the other come to an end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mc_a_13_parents_that_feed_each_other_stop_at_depth_eight() {
    let hook = Hook::start(|seen| {
        let parent = seen.body["parent"]["metadata"]["name"].as_str().unwrap().to_owned();
        Reply::Json(copy_of(seen, |name| format!("{parent}-{name}")))
    })
    .await;
    let world = World::start().await;
    world.controller("mc1", &hook.url, json!({})).await;
    world.foo("a", json!({})).await;
    world.foo("b", json!({})).await;
    world.input("x", json!({}), "1").await;
    world.event("RecursionLimit", "made of inputs too often").await;
    hook.quiet().await;
    let depth = |o: &Value| tag(o, "map-depth").parse::<u32>().unwrap_or(0);
    let deepest = world.list(MAPS, "ns1").await.iter().map(depth).max();
    assert_eq!(deepest, Some(8));
    world.end().await;
}

/// MC-A-14, MC-020: two kinds with the same name are kept apart.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mc_a_14_one_name_two_kinds() {
    let hook = Hook::start(|seen| {
        let kind = seen.body["input"]["kind"].as_str().unwrap_or_default().to_lowercase();
        Reply::Json(copy_of(seen, |name| format!("{name}-{kind}")))
    })
    .await;
    let world = World::start().await;
    let inputs =
        json!([{"apiVersion": "v1", "resource": "configmaps"}, {"apiVersion": "v1", "resource": "secrets"}]);
    world.controller("mc1", &hook.url, json!({"inputResources": inputs})).await;
    world.foo("p", app("x")).await;
    world.input("n", json!({"app": "x"}), "1").await;
    world.create(SECRETS, json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "n", "namespace": "ns1", "labels": {"app": "x"}}})).await;
    world.has(MAPS, "ns1", vec!["n", "n-configmap", "n-secret"]).await;
    let key = |o: Option<Value>| tag(&o.unwrap(), "map-key").to_owned();
    assert_eq!(key(world.get(MAPS, "ns1", "n-configmap").await), "configmaps/ns1/n");
    assert_eq!(key(world.get(MAPS, "ns1", "n-secret").await), "secrets/ns1/n");
    world.delete(SECRETS, "ns1", "n").await;
    world.has(MAPS, "ns1", vec!["n", "n-configmap"]).await;
    world.end().await;
}

/// MC-A-15, MC-011, MC-041, MC-043: a cluster-scoped parent sees all namespaces; outputs are created in the
/// namespace of their input.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mc_a_15_a_cluster_scoped_parent() {
    let hook = Hook::start(copier).await;
    let world = World::start().await;
    let mut spec = controller("mc1", &hook.url, json!({}));
    spec["spec"]["parentResource"]["resource"] = json!("bars");
    world.create(CONTROLLERS, spec).await;
    for namespace in ["ns1", "ns2"] {
        world.create(MAPS, map(namespace, "n", json!({"app": "x"}), namespace)).await;
    }
    world.create(BARS, json!({"apiVersion": "example.com/v1", "kind": "Bar", "metadata": {"name": "p"}, "spec": {"selector": app("x")}})).await;
    world.has(MAPS, "ns1", vec!["n", "n-copy"]).await;
    world.has(MAPS, "ns2", vec!["n", "n-copy"]).await;
    assert_eq!(world.get(MAPS, "ns2", "n-copy").await.unwrap()["data"]["v"], json!("ns2"));
    world.merge(MAPS, "ns2", "n", json!({"data": {"v": "2"}})).await;
    let named = |seen: &crate::hook::Seen| seen.body["outputs"]["ConfigMap.v1"].get("ns2/n-copy").is_some();
    when("the output is shown by namespace and name", || {
        hook.calls("/map", "configmaps/ns2/n").iter().any(named)
    })
    .await;
    world.end().await;
}

/// MC-A-16, MC-003: an invalid spec is reported in the condition, and works once it is corrected.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mc_a_16_impossible_specs_are_refused() {
    let hook = Hook::start(copier).await;
    let world = World::start().await;
    world.foo("p", json!({})).await;
    let maps = json!({"apiVersion": "v1", "resource": "configmaps"});
    let cases = [
        (
            "wide",
            json!({"outputResources": [{"apiVersion": "example.com/v1", "resource": "things"}]}),
            "InvalidSpec",
            "cluster-scoped",
        ),
        (
            "self",
            json!({"outputResources": [{"apiVersion": "example.com/v1", "resource": "foos"}]}),
            "InvalidSpec",
            "the resource of the parents",
        ),
        ("twice", json!({"inputResources": [maps, maps]}), "InvalidSpec", "twice"),
        (
            "nowhere",
            json!({"inputResources": [{"apiVersion": "no.example.com/v1", "resource": "things"}]}),
            "ResourceNotFound",
            "not served",
        ),
        (
            "mute",
            json!({"parentResource": {"apiVersion": "v1", "resource": "configmaps"}, "outputResources": [{"apiVersion": "v1", "resource": "secrets"}]}),
            "NoStatusSubresource",
            "does not have subresource 'Status' enabled",
        ),
        (
            "hookless",
            json!({"hooks": {"map": {"webhook": {"url": null}}}}),
            "HookConfigError",
            "invalid webhook config:",
        ),
        (
            "secretless",
            json!({"hooks": {"map": {"webhook": {"authorization": {"secretRef": {"name": "s", "namespace": "ns1", "key": "k"}}}}}}),
            "HookConfigError",
            "not found",
        ),
    ];
    for (name, more, reason, text) in cases {
        world.create(CONTROLLERS, controller(name, &hook.url, more)).await;
        let refused = world.reason(name, reason).await;
        let condition = &refused["status"]["conditions"][0];
        assert_eq!(condition["status"], json!("False"), "{name}");
        assert!(condition["message"].as_str().unwrap().contains(text), "{name}: {condition}");
        let event = world.event("CreateError", text).await;
        assert_eq!(
            (&event["type"], &event["source"]["component"]),
            (&json!("Warning"), &json!("metacontroller"))
        );
    }
    assert_eq!(hook.count(), 0);
    // Problems that may disappear are retried; the others once the spec changes.
    world.create(SECRETS, json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s", "namespace": "ns1"}, "stringData": {"k": "token"}})).await;
    world.reason("secretless", "Running").await;
    world.merge(CONTROLLERS, "", "twice", json!({"spec": {"inputResources": [maps]}})).await;
    let running = world.reason("twice", "Running").await;
    assert_eq!(running["status"]["conditions"][0]["status"], json!("True"));
    world.end().await;
}

/// MC-002: the schema rejects what can be decided without a look at the cluster.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mc_002_the_schema_refuses() {
    let world = World::start().await;
    for more in [
        json!({"parentResource": null}),
        json!({"inputResources": []}),
        json!({"outputResources": null}),
        json!({"hooks": {"map": null}}),
        json!({"outputResources": [{"apiVersion": "v1", "resource": "configmaps", "updateStrategy": {"method": "RollingInPlace"}}]}),
        json!({"parallelism": 0}),
    ] {
        let object = controller("bad", "http://x", more.clone());
        let made: Result<Value, _> =
            world.rest.create(&crate::world::gvr(CONTROLLERS), "", object.to_string().into_bytes()).await;
        let error = made.expect_err(&more.to_string());
        assert_eq!(runtime::failure::code_of(&error), 422, "{more}: {error}");
    }
    world.end().await;
}

/// MC-A-17, MC-014: an input that the parent begins to control is detached.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mc_a_17_an_input_taken_over_by_the_parent_is_detached() {
    let hook = Hook::start(keeper).await;
    let world = World::start().await;
    world.controller("mc1", &hook.url, json!({})).await;
    let foo = world.foo("p", app("x")).await;
    world.input("a", json!({"app": "x"}), "1").await;
    world.has(MAPS, "ns1", vec!["a", "a-copy"]).await;
    let owner = json!([{"apiVersion": "example.com/v1", "kind": "Foo", "name": "p", "uid": foo["metadata"]["uid"], "controller": true}]);
    world.merge(MAPS, "ns1", "a", json!({"metadata": {"ownerReferences": owner}})).await;
    when("asked what to keep", || !hook.calls("/tombstone", "configmaps/ns1/a").is_empty()).await;
    assert_eq!(hook.calls("/tombstone", "configmaps/ns1/a")[0].body["reason"], json!("InputNotMatching"));
    world.end().await;
}

/// MC-A-18, MC-045: an answer for an outdated state is not applied.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mc_a_18_out_and_in_while_the_hook_thinks() {
    let (hook, world) = World::copying().await;
    hook.quiet().await;
    let before = world.get(MAPS, "ns1", "a-copy").await.unwrap();
    hook.hold("/map");
    hook.clear();
    world.merge(MAPS, "ns1", "a", json!({"data": {"v": "2"}})).await;
    when("asked", || hook.count() == 1).await;
    world.merge(MAPS, "ns1", "a", json!({"metadata": {"labels": {"app": "y"}}})).await;
    world.merge(MAPS, "ns1", "a", json!({"metadata": {"labels": {"app": "x"}}, "data": {"v": "3"}})).await;
    hook.release();
    let after = world.sees("the last state", MAPS, "ns1", "a-copy", |o| o["data"]["v"] == json!("3")).await;
    assert_eq!(after["metadata"]["uid"], before["metadata"]["uid"]);
    hook.quiet().await;
    world.has(MAPS, "ns1", vec!["a", "a-copy"]).await;
    world.end().await;
}

/// MC-010: parents that the MapController does not select are left alone, with their outputs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mc_010_parents_by_label() {
    let hook = Hook::start(copier).await;
    let world = World::start().await;
    world
        .controller(
            "mc1",
            &hook.url,
            json!({"parentResource": {"labelSelector": {"matchLabels": {"on": "yes"}}}}),
        )
        .await;
    world.foo("p", app("x")).await;
    world.input("a", json!({"app": "x"}), "1").await;
    world.merge(FOOS, "ns1", "p", json!({"metadata": {"labels": {"on": "yes"}}})).await;
    world.has(MAPS, "ns1", vec!["a", "a-copy"]).await;
    hook.quiet().await;
    let status = world.get(FOOS, "ns1", "p").await.unwrap()["status"].clone();
    world.merge(FOOS, "ns1", "p", json!({"metadata": {"labels": {"on": null}}})).await;
    hook.clear();
    world.delete(MAPS, "ns1", "a").await;
    hook.quiet().await;
    assert_eq!(hook.count(), 0);
    world.has(MAPS, "ns1", vec!["a-copy"]).await;
    assert_eq!(world.get(FOOS, "ns1", "p").await.unwrap()["status"], status);
    world.end().await;
}

/// Without a label selector all controllers run.
/// MC-A-59, MC-025, MC-055, MC-093.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mc_a_59_a_controller_that_goes_leaves_everything() {
    let (hook, world) = World::copying().await;
    hook.quiet().await;
    world.quiet().await;
    let (copy, foo) = (world.get(MAPS, "ns1", "a-copy").await, world.get(FOOS, "ns1", "p").await);
    world.delete(CONTROLLERS, "", "mc1").await;
    world.event("Stopped", "Stopped controller: mc1").await;
    hook.clear();
    world.input("b", json!({"app": "x"}), "1").await;
    hook.quiet().await;
    assert_eq!(hook.count(), 0);
    assert_eq!(
        (world.get(MAPS, "ns1", "a-copy").await, world.get(FOOS, "ns1", "p").await),
        (copy.clone(), foo)
    );
    // The same name continues with the same objects (MC-025).
    world.controller("mc1", &hook.url, json!({})).await;
    world.has(MAPS, "ns1", vec!["a", "a-copy", "b", "b-copy"]).await;
    assert_eq!(world.get(MAPS, "ns1", "a-copy").await, copy);
    // Another name takes over the objects of the old one (MC-055.3).
    hook.quiet().await;
    world.delete(CONTROLLERS, "", "mc1").await;
    found("it is gone", || async { world.get(CONTROLLERS, "", "mc1").await.is_none().then_some(()) }).await;
    world.controller("mc2", &hook.url, json!({})).await;
    let taken = world.sees("taken over", MAPS, "ns1", "a-copy", |o| tag(o, "map-controller") == "mc2").await;
    assert_eq!(taken["metadata"]["uid"], copy.unwrap()["metadata"]["uid"]);
    world.end().await;
}
