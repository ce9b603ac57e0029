//! Children and attachments: order, versions, and when they are managed (MC §3.5, §4, §5.5, §6.1).

use serde_json::{Value, json};

use crate::{
    hook::{Hook, Reply, Seen},
    world::{
        DECORATORS, FOOS, MAPS, SECRETS, World, app, decorator, foo, found, gvr, in_place, map, versioned,
        when,
    },
};

async fn composite(hook: &Hook, children: Value, hooks: Value) -> World {
    World::with_composite(&hook.url, &["sync"], json!({"childResources": children, "hooks": hooks})).await
}

async fn parent(world: &World, spec: Value) -> Value {
    world.create(FOOS, foo("p", spec)).await
}

/// A child with the `spec.v` of its parent or target.
fn child(seen: &Seen, name: &str) -> Value {
    let of = seen.body.get("parent").unwrap_or(&seen.body["object"]);
    let v = &of["spec"]["v"];
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "labels": {"app": "x"}}, "data": {"v": v}})
}

/// MC-120, MC-124: undesired children are deleted first, by UID and in the background, except those that are
/// being deleted. A refused child does not stop the others. A desired object that exists with another owner
/// is left alone (MC-125).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mc_120_deletions_first_and_errors_collected() {
    let hook = Hook::start(|seen| {
        let names = seen.body["parent"]["spec"]["children"].as_array().unwrap().clone();
        let children: Vec<_> = names.iter().map(|name| child(seen, name.as_str().unwrap())).collect();
        Reply::Json(json!({"children": children, "status": {"wanted": names}}))
    })
    .await;
    let world = composite(&hook, json!([in_place("v1", "configmaps")]), json!({})).await;
    let theirs = world.create(MAPS, map("ns1", "theirs", json!({}), "theirs")).await;
    parent(&world, json!({"selector": app("x"), "v": "1", "children": ["old", "held"]})).await;
    world.has(MAPS, "ns1", vec!["held", "old", "theirs"]).await;
    world.merge(MAPS, "ns1", "held", json!({"metadata": {"finalizers": ["example.com/hold"]}})).await;
    world.delete(MAPS, "ns1", "held").await;
    let uid = world.get(MAPS, "ns1", "old").await.unwrap()["metadata"]["uid"].clone();
    hook.quiet().await;
    world.clear_writes();
    let wanted = json!(["Not_A_Name", "theirs", "new"]);
    world.merge(FOOS, "ns1", "p", json!({"spec": {"children": wanted}})).await;
    world.has(MAPS, "ns1", vec!["held", "new", "theirs"]).await;
    world.event("SyncError", "Not_A_Name").await;
    world.status(FOOS, "ns1", "p", json!({"observedGeneration": 2, "wanted": wanted})).await;
    let writes: Vec<_> =
        world.writes().into_iter().filter(|write| write.contains("configmaps")).take(4).collect();
    let ends = ["configmaps/old", "configmaps", "configmaps", "configmaps"];
    for (write, end) in writes.iter().zip(ends) {
        let path = write.split('?').next().unwrap();
        assert!(path.ends_with(end), "{writes:?}");
    }
    let [body] = &world.deletions()[..] else { panic!("{:?}", world.deletions()) };
    assert_eq!((&body["propagationPolicy"], &body["preconditions"]["uid"]), (&json!("Background"), &uid));
    assert_eq!(world.get(MAPS, "ns1", "theirs").await.unwrap(), theirs);
    assert!(
        world.events("SyncError").await.iter().all(|e| !e["message"].as_str().unwrap().contains("theirs"))
    );
    world.end().await;
}

/// MC-121: a child in another version than the declared one is the same child. MC-122: without a method, an
/// existing child is not changed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mc_121_another_version_is_the_same_child() {
    let hook = Hook::start(|seen| {
        let v = &seen.body["parent"]["spec"]["v"];
        let labels = json!({"app": "x"});
        Reply::Json(json!({"children": [
            {"apiVersion": "example.com/v2", "kind": "Doc", "metadata": {"name": "d", "labels": labels}, "spec": {"v": v}},
            {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s", "labels": labels}, "stringData": {"v": v}},
        ]}))
    })
    .await;
    let children = json!([in_place("example.com/v1", "docs"), {"apiVersion": "v1", "resource": "secrets"}]);
    let world = composite(&hook, children, json!({})).await;
    world.define(versioned("Doc", "docs", &["v1", "v2"])).await;
    parent(&world, json!({"selector": app("x"), "v": "1"})).await;
    let find =
        async || -> Option<Value> { world.rest.find(&gvr("example.com/v1/docs"), "ns1", "d").await.ok()? };
    let made = found("made", &find).await;
    let secret = world.sees("the secret", SECRETS, "ns1", "s", |_| true).await;
    assert_eq!(made["spec"]["v"], json!("1"));
    world.rests(&hook, (FOOS, "p"), "nothing differs").await;
    world.merge(FOOS, "ns1", "p", json!({"spec": {"v": "2"}})).await;
    let changed =
        found("changed in place", || async { find().await.filter(|doc| doc["spec"]["v"] == json!("2")) });
    assert_eq!(changed.await["metadata"]["uid"], made["metadata"]["uid"]);
    hook.quiet().await;
    assert!(!world.writes().iter().any(|write| write.starts_with("DELETE")));
    assert_eq!(world.get(SECRETS, "ns1", "s").await.unwrap(), secret, "OnDelete");
    world.end().await;
}

/// MC-118: when the labels of a namespace change, its objects are added or removed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mc_118_labels_of_namespaces_count() {
    let hook = Hook::start(|seen| match seen.path.as_str() {
        "/customize" => Reply::Json(json!({"relatedResources": [
            {"apiVersion": "v1", "resource": "secrets", "namespaceSelector": {"matchLabels": {"on": "yes"}}},
        ]})),
        _ => Reply::Json(json!({"children": []})),
    })
    .await;
    let customize =
        json!({"customize": {"version": "v2", "webhook": {"url": format!("{}/customize", hook.url)}}});
    let world = composite(&hook, json!([in_place("v1", "configmaps")]), customize).await;
    let far = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "far", "namespace": "ns2"}});
    world.create(SECRETS, far).await;
    parent(&world, json!({"selector": app("x")})).await;
    let last = || {
        hook.seen().into_iter().rfind(|seen| seen.path == "/sync").map(|seen| seen.body["related"].clone())
    };
    let shown =
        |wanted: bool| last().is_some_and(|related| related["Secret.v1"].get("ns2/far").is_some() == wanted);
    when("synced without it", || shown(false)).await;
    hook.quiet().await;
    world.merge("v1/namespaces", "", "ns2", json!({"metadata": {"labels": {"on": "yes"}}})).await;
    when("synced with it", || shown(true)).await;
    hook.quiet().await;
    world.merge("v1/namespaces", "", "ns2", json!({"metadata": {"labels": {"on": null}}})).await;
    when("synced without it again", || shown(false)).await;
    world.end().await;
}

/// MC-175: attachments of a target that is being deleted are managed only while it is being finalized.
/// Without any hook, the user is told.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mc_175_attachments_on_the_way_out() {
    let hook = Hook::start(|seen| {
        let leaving = seen.body["object"]["metadata"]["deletionTimestamp"].is_string();
        let names = match (leaving, seen.path.as_str()) {
            (false, _) => vec!["one"],
            (true, "/sync") => vec!["one", "more"],
            _ => vec!["last"],
        };
        let all: Vec<_> = names.iter().map(|name| child(seen, name)).collect();
        Reply::Json(json!({"attachments": all, "finalized": false}))
    })
    .await;
    let world = World::start().await;
    let url = |path: &str| json!({"webhook": {"url": format!("{}/{path}", hook.url)}});
    let foos = json!({"apiVersion": "example.com/v1", "resource": "foos"});
    world.create(DECORATORS, decorator("d1", &hook.url, &["sync"], foos)).await;
    let held = json!({"apiVersion": "example.com/v1", "kind": "Foo", "metadata": {"name": "p", "namespace": "ns1", "finalizers": ["example.com/hold"]}, "spec": {"v": "1"}});
    world.create(FOOS, held).await;
    world.has(MAPS, "ns1", vec!["one"]).await;
    world.delete(FOOS, "ns1", "p").await;
    let left = |seen: &Seen| seen.body["object"]["metadata"]["deletionTimestamp"].is_string();
    when("asked about what goes", || hook.seen().iter().any(left)).await;
    world.merge(FOOS, "ns1", "p", json!({"spec": {"v": "2"}})).await;
    hook.quiet().await;
    world.has(MAPS, "ns1", vec!["one"]).await;
    assert_eq!(world.get(MAPS, "ns1", "one").await.unwrap()["data"]["v"], json!("1"));
    world.merge(FOOS, "ns1", "p", json!({"metadata": {"finalizers": null}})).await;
    found("it is gone", || async { world.get(FOOS, "ns1", "p").await.is_none().then_some(()) }).await;
    // With a finalize hook they are managed to the end.
    let both = json!({"spec": {"hooks": {"sync": url("sync"), "finalize": url("finalize")}}});
    world.merge(DECORATORS, "", "d1", both).await;
    parent(&world, json!({"v": "1"})).await;
    let finalizer =
        |o: &Value| o["metadata"]["finalizers"] == json!(["metacontroller.io/decoratorcontroller-d1"]);
    world.sees("the finalizer", FOOS, "ns1", "p", finalizer).await;
    hook.quiet().await;
    world.delete(FOOS, "ns1", "p").await;
    world.sees("the last attachment", MAPS, "ns1", "last", |_| true).await;
    // No hook at all.
    let none = json!({"spec": {"hooks": {"sync": null, "finalize": null, "customize": url("customize")}}});
    world.merge(DECORATORS, "", "d1", none).await;
    world.create(FOOS, json!({"apiVersion": "example.com/v1", "kind": "Foo", "metadata": {"name": "q", "namespace": "ns1"}})).await;
    world.event("SyncError", "no enabled hooks found").await;
    world.end().await;
}
