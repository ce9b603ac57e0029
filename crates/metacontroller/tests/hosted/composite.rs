//! CompositeController (§8.7).

use serde_json::{Value, json};

use crate::{
    hook::{Hook, Reply, Seen},
    world::{COMPOSITES, FOOS, MAPS, SECRETS, World, app, composite, foo, gvr, map, secret, tag, when},
};

const FINALIZER: &str = "metacontroller.io/compositecontroller-cc1";

/// One child `<parent>-child` with the parent's `spec.v`, labelled as the parent selects.
fn child(seen: &Seen) -> Value {
    let parent = &seen.body["parent"];
    let name = format!("{}-child", parent["metadata"]["name"].as_str().unwrap());
    let labels = parent["spec"]["selector"]["matchLabels"].clone();
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "labels": labels}, "data": {"v": parent["spec"]["v"]}})
}

fn sync(seen: &Seen) -> Reply {
    let count = seen.body["children"]["ConfigMap.v1"].as_object().unwrap().len();
    Reply::Json(json!({"status": {"children": count}, "children": [child(seen)]}))
}

async fn parent(world: &World, name: &str, spec: Value) -> Value {
    world.create(FOOS, foo(name, spec)).await
}

/// MC-A-70, MC-112, MC-142: the request, the child, the status. MC-053: changes in place.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mc_a_70_children_and_status() {
    let hook = Hook::start(sync).await;
    let children = json!([
        {"apiVersion": "v1", "resource": "configmaps", "updateStrategy": {"method": "InPlace"}},
        {"apiVersion": "v1", "resource": "secrets"},
    ]);
    let world = World::with_composite(&hook.url, &["sync"], json!({"childResources": children})).await;
    let parent = parent(&world, "p", json!({"selector": app("x"), "v": "1"})).await;
    let made = world.sees("the child", MAPS, "ns1", "p-child", |_| true).await;
    assert_eq!(made["metadata"]["ownerReferences"][0]["uid"], parent["metadata"]["uid"]);
    assert!(!tag(&made, "last-applied-configuration").is_empty());
    world.status(FOOS, "ns1", "p", json!({"children": 1, "observedGeneration": 1})).await;
    let request = hook.seen()[0].body.clone();
    let fields: Vec<_> = request.as_object().unwrap().keys().cloned().collect();
    assert_eq!(fields, ["children", "controller", "finalizing", "parent", "related"]);
    assert_eq!(request["children"], json!({"ConfigMap.v1": {}, "Secret.v1": {}}));
    assert_eq!((&request["related"], &request["finalizing"]), (&json!({}), &json!(false)));
    world.merge(FOOS, "ns1", "p", json!({"spec": {"v": "2"}})).await;
    world.sees("the change", MAPS, "ns1", "p-child", |o| o["data"]["v"] == json!("2")).await;
    world.status(FOOS, "ns1", "p", json!({"children": 1, "observedGeneration": 2})).await;
    world.delete(MAPS, "ns1", "p-child").await;
    world
        .sees("made anew", MAPS, "ns1", "p-child", |o| o["metadata"]["uid"] != made["metadata"]["uid"])
        .await;
    world.rests(&hook, (FOOS, "p"), "MC-059").await;
    // Absent children are an empty list (MC §3.5).
    hook.script(|_| Reply::Json(json!({})));
    world.merge(FOOS, "ns1", "p", json!({"spec": {"v": "3"}})).await;
    world.has(MAPS, "ns1", vec![]).await;
    world.end().await;
}

/// MC-A-71, MC-145, MC-147: orphans are adopted, children that no longer match are released, other objects
/// are ignored.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mc_a_71_claiming() {
    let hook = Hook::start(|seen| {
        let have = seen.body["children"]["ConfigMap.v1"].as_object().unwrap();
        Reply::Json(json!({"children": have.values().collect::<Vec<_>>()}))
    })
    .await;
    let world = World::with_composite(&hook.url, &["sync"], json!({})).await;
    let mut theirs = map("ns1", "theirs", json!({"app": "x"}), "1");
    theirs["metadata"]["ownerReferences"] =
        json!([{"apiVersion": "v1", "kind": "Q", "name": "q", "uid": "q", "controller": true}]);
    world.create(MAPS, theirs).await;
    let parent = parent(&world, "p", json!({"selector": app("x")})).await;
    world.create(MAPS, map("ns1", "orphan", json!({"app": "x"}), "1")).await;
    let ours = |o: &Value| o["metadata"]["ownerReferences"][0]["uid"] == parent["metadata"]["uid"];
    world.sees("adopted", MAPS, "ns1", "orphan", ours).await;
    when("seen by the hook", || {
        hook.seen().iter().any(|seen| seen.body["children"]["ConfigMap.v1"].get("orphan").is_some())
    })
    .await;
    world.merge(MAPS, "ns1", "orphan", json!({"metadata": {"labels": {"app": "y"}}})).await;
    let free = |o: &Value| o["metadata"]["ownerReferences"].as_array().is_none_or(Vec::is_empty);
    world.sees("let go", MAPS, "ns1", "orphan", free).await;
    assert!(hook.seen().iter().all(|seen| seen.body["children"]["ConfigMap.v1"].get("theirs").is_none()));
    world.end().await;
}

/// MC-A-72, MC-144, MC-146: a missing selector is an error unless one is generated; labels must match.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mc_a_72_selectors() {
    let hook = Hook::start(sync).await;
    let world = World::with_composite(&hook.url, &["sync"], json!({})).await;
    parent(&world, "p", json!({"selector": {}, "v": "1"})).await;
    world
        .event(
            "SyncError",
            "Sync error: .spec.selector must have either matchLabels, matchExpressions, or both",
        )
        .await;
    assert_eq!(hook.count(), 0);
    hook.script(|seen| {
        let mut child = child(seen);
        child["metadata"]["labels"] = json!({"app": "other"});
        Reply::Json(json!({"children": [child]}))
    });
    parent(&world, "q", json!({"selector": app("x"), "v": "1"})).await;
    world
        .event("SyncError", "labels on desired child ConfigMap ns1/q-child don't match parent selector")
        .await;
    assert_eq!(world.names(MAPS, "ns1").await, Vec::<String>::new());
    world.merge(COMPOSITES, "", "cc1", json!({"spec": {"generateSelector": true}})).await;
    let uid = world.get(FOOS, "ns1", "p").await.unwrap()["metadata"]["uid"].clone();
    world
        .sees("a child by UID", MAPS, "ns1", "p-child", |o| o["metadata"]["labels"]["controller-uid"] == uid)
        .await;
    world.end().await;
}

/// MC-A-73, MC-141: parents without status; controllers without hooks.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mc_a_73_refusals() {
    let hook = Hook::start(sync).await;
    let world = World::with_composite(
        &hook.url,
        &["sync"],
        json!({"parentResource": {"apiVersion": "v1", "resource": "configmaps"}}),
    )
    .await;
    world.event("SyncError", "does not have subresource 'Status' enabled").await;
    let made: Result<Value, _> = world
        .rest
        .create(&gvr(COMPOSITES), "", json!({"apiVersion": "metacontroller.k8s.io/v1alpha1", "kind": "CompositeController", "metadata": {"name": "hookless"}, "spec": {"parentResource": {"apiVersion": "example.com/v1", "resource": "foos"}}}).to_string().into_bytes())
        .await;
    made.unwrap();
    world.event("CreateError", "no hooks defined").await;
    assert_eq!(hook.count(), 0);
    world.end().await;
}

/// MC-A-74, MC-119: the finalizer is added first, and removed when the hook says so, after the children were
/// deleted in order.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mc_a_74_finalize_in_order() {
    let hook = Hook::start(|seen| {
        let have = seen.body["children"]["ConfigMap.v1"].as_object().unwrap();
        let names: Vec<&str> = match seen.path.as_str() {
            "/sync" => vec!["a", "b", "c"],
            // One at a time, the last first.
            _ => ["a", "b", "c"].into_iter().filter(|name| have.contains_key(*name)).collect::<Vec<_>>().split_last().map(|(_, rest)| rest.to_vec()).unwrap_or_default(),
        };
        let labels = seen.body["parent"]["spec"]["selector"]["matchLabels"].clone();
        let children: Vec<_> = names.iter().map(|name| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "labels": labels}})).collect();
        Reply::Json(json!({"children": children, "finalized": have.is_empty()}))
    })
    .await;
    let world = World::with_composite(&hook.url, &["sync", "finalize"], json!({})).await;
    parent(&world, "p", json!({"selector": app("x")})).await;
    world.has(MAPS, "ns1", vec!["a", "b", "c"]).await;
    assert_eq!(hook.seen()[0].body["parent"]["metadata"]["finalizers"], json!([FINALIZER]));
    hook.quiet().await;
    hook.clear();
    world.delete(FOOS, "ns1", "p").await;
    world.has(FOOS, "ns1", vec![]).await;
    assert_eq!(world.names(MAPS, "ns1").await, Vec::<String>::new());
    assert!(
        hook.seen().iter().all(|seen| seen.path == "/finalize" && seen.body["finalizing"] == json!(true))
    );
    let lengths: Vec<_> = hook
        .seen()
        .iter()
        .map(|seen| seen.body["children"]["ConfigMap.v1"].as_object().unwrap().len())
        .collect();
    assert!(lengths.windows(2).all(|pair| pair[0] >= pair[1]) && lengths.len() >= 4, "{lengths:?}");
    world.end().await;
}

/// MC-119: when a finalize hook is removed from the spec, the finalizer is removed; a deleted controller
/// reports the parents that still wait.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mc_119_finalizers_come_and_go() {
    let hook = Hook::start(sync).await;
    let world = World::with_composite(&hook.url, &["sync", "finalize"], json!({})).await;
    parent(&world, "p", json!({"selector": app("x"), "v": "1"})).await;
    let has = |o: &Value| o["metadata"]["finalizers"] == json!([FINALIZER]);
    world.sees("the finalizer", FOOS, "ns1", "p", has).await;
    world.merge(COMPOSITES, "", "cc1", json!({"spec": {"hooks": {"finalize": null}}})).await;
    world.sees("no finalizer", FOOS, "ns1", "p", |o| o["metadata"].get("finalizers").is_none()).await;
    let back =
        json!({"spec": {"hooks": {"finalize": {"webhook": {"url": format!("{}/finalize", hook.url)}}}}});
    world.merge(COMPOSITES, "", "cc1", back).await;
    world.sees("the finalizer", FOOS, "ns1", "p", has).await;
    world.delete(COMPOSITES, "", "cc1").await;
    world.event("FinalizersLeft", "1 object(s) keep the finalizer").await;
    world.end().await;
}

/// MC-A-78, MC-113 to MC-117: a change of an object reaches only the parent that requested it, and the hook
/// is called once per generation.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mc_a_78_related_objects() {
    let hook = Hook::start(|seen| match seen.path.as_str() {
        "/customize" => {
            let name = &seen.body["parent"]["spec"]["wants"];
            Reply::Json(json!({"relatedResources": [{"apiVersion": "v1", "resource": "secrets", "names": [name], "namespace": seen.body["parent"]["spec"]["from"]}]}))
        }
        _ => Reply::Json(json!({})),
    })
    .await;
    let world = World::with_composite(&hook.url, &["sync", "customize"], json!({})).await;
    let secret = |name: &str, value: &str| secret("ns1", name, json!({"v": value}));
    world.create(SECRETS, secret("s1", "1")).await;
    parent(&world, "p", json!({"selector": app("x"), "wants": "s1"})).await;
    parent(&world, "q", json!({"selector": app("y"), "wants": "s2"})).await;
    let syncs = |name: &str| {
        hook.seen()
            .into_iter()
            .filter(|s| s.path == "/sync" && s.body["parent"]["metadata"]["name"] == json!(name))
            .collect::<Vec<_>>()
    };
    when("both synced", || !syncs("p").is_empty() && !syncs("q").is_empty()).await;
    assert!(syncs("p").last().unwrap().body["related"]["Secret.v1"].get("s1").is_some());
    hook.quiet().await;
    hook.clear();
    world.merge(SECRETS, "ns1", "s1", json!({"stringData": {"v": "2"}})).await;
    when("p is synced", || !syncs("p").is_empty()).await;
    world.create(SECRETS, secret("unrelated", "1")).await;
    world.create(SECRETS, secret("s2", "1")).await;
    when("q is synced", || !syncs("q").is_empty()).await;
    hook.quiet().await;
    assert_eq!((syncs("p").len(), syncs("q").len(), hook.paths("/customize")), (1, 1, 0));
    assert!(syncs("q")[0].body["related"]["Secret.v1"].get("s2").is_some());
    // Another namespace requires v2.
    parent(&world, "r", json!({"selector": app("z"), "wants": "s3", "from": "ns2"})).await;
    world.event("SyncError", "hook version v2 allows it").await;
    world.merge(COMPOSITES, "", "cc1", json!({"spec": {"hooks": {"customize": {"version": "v2"}}}})).await;
    let far = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s3", "namespace": "ns2"}});
    world.create(SECRETS, far).await;
    when("r sees it", || syncs("r").iter().any(|s| s.body["related"]["Secret.v1"].get("ns2/s3").is_some()))
        .await;
    world.end().await;
}

/// MC-A-81: a change of the status causes no call, if the spec says so.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mc_a_81_status_changes_may_be_ignored() {
    let hook = Hook::start(|_| Reply::Json(json!({"status": {"x": 1}}))).await;
    let quiet = json!({"parentResource": {"apiVersion": "example.com/v1", "resource": "foos", "ignoreStatusChanges": true}});
    let world = World::with_composite(&hook.url, &["sync"], quiet).await;
    parent(&world, "p", json!({"selector": app("x")})).await;
    world.status(FOOS, "ns1", "p", json!({"x": 1, "observedGeneration": 1})).await;
    hook.quiet().await;
    hook.clear();
    world.merge_status(FOOS, "ns1", "p", json!({"status": {"y": 1}})).await;
    hook.quiet().await;
    assert_eq!(hook.count(), 0);
    world.merge(COMPOSITES, "", "cc1", json!({"spec": {"resyncPeriodSeconds": 1}})).await;
    when("periodic syncs", || hook.count() >= 3).await;
    world.end().await;
}

/// MC-A-79, MC-130: objects that the Go program created are taken over without a write.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mc_a_79_objects_of_the_original_are_picked_up() {
    let hook = Hook::start(sync).await;
    let world = World::start().await;
    let mut parent = json!({"apiVersion": "example.com/v1", "kind": "Foo", "metadata": {"name": "p", "namespace": "ns1", "finalizers": [FINALIZER]}, "spec": {"selector": app("x"), "v": "1"}});
    parent = world.create(FOOS, parent).await;
    world.merge_status(FOOS, "ns1", "p", json!({"status": {"children": 1, "observedGeneration": 1}})).await;
    let mut child = map("ns1", "p-child", json!({"app": "x"}), "1");
    let last = "{\"apiVersion\":\"v1\",\"data\":{\"v\":\"1\"},\"kind\":\"ConfigMap\",\"metadata\":{\"labels\":{\"app\":\"x\"},\"name\":\"p-child\",\"namespace\":\"ns1\"}}";
    child["metadata"]["annotations"] = json!({"metacontroller.k8s.io/last-applied-configuration": last});
    child["metadata"]["ownerReferences"] = json!([{"apiVersion": "example.com/v1", "kind": "Foo", "name": "p", "uid": parent["metadata"]["uid"], "controller": true, "blockOwnerDeletion": true}]);
    world.create(MAPS, child).await;
    world.create(COMPOSITES, composite(&hook.url, &["sync", "finalize"], json!({}))).await;
    when("synced", || hook.count() > 0).await;
    hook.quiet().await;
    assert_eq!(world.writes(), Vec::<String>::new());
    world.end().await;
}
