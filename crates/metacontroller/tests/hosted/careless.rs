//! Controllers and hooks with typical mistakes of users.

use serde_json::{Value, json};
use tokio::time::Instant;

use crate::{
    hook::{Hook, Reply, Seen},
    world::{COMPOSITES, DECORATORS, FOOS, MAPS, World, app, composite, decorator, foo, in_place, map, when},
};

/// One ConfigMap `child`.
fn child(field: &'static str) -> impl Fn(&Seen) -> Reply {
    move |_| Reply::Json(json!({field: [map("ns1", "child", json!({"app": "x"}), "1")]}))
}

/// MC-120, MC-122: a kind of children that is declared twice works: neither rule deletes the other's objects.
/// Declared in two versions, it is rejected.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mc_122_a_kind_that_is_declared_twice() {
    let hook = Hook::start(child("children")).await;
    let twice = json!([{"apiVersion": "v1", "resource": "configmaps"}, in_place("v1", "configmaps")]);
    let world = World::with_composite(&hook.url, &["sync"], json!({"childResources": twice})).await;
    world.create(FOOS, foo("p", json!({"selector": app("x")}))).await;
    let made = world.sees("the child", MAPS, "ns1", "child", |_| true).await;
    // The method that changes something counts.
    world.merge(MAPS, "ns1", "child", json!({"data": {"v": "2"}})).await;
    world.sees("mended", MAPS, "ns1", "child", |o| o["data"]["v"] == json!("1")).await;
    hook.quiet().await;
    let now = world.get(MAPS, "ns1", "child").await.unwrap();
    assert_eq!((&now["metadata"]["uid"], world.deletions()), (&made["metadata"]["uid"], Vec::new()));
    let versions = json!([
        {"apiVersion": "discovery.k8s.io/v1", "resource": "endpointslices"},
        {"apiVersion": "example.com/v1", "resource": "tells"},
        {"apiVersion": "example.com/v2", "resource": "tells"},
    ]);
    world.define(crate::world::versioned("Tell", "tells", &["v1", "v2"])).await;
    world.merge(COMPOSITES, "", "cc1", json!({"spec": {"childResources": versions}})).await;
    world.event("CreateError", "tells.example.com is declared in two versions").await;
    world.end().await;
}

/// MC-170: the same with targets and attachments of a DecoratorController.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mc_170_targets_and_attachments_that_are_declared_twice() {
    let hook = Hook::start(child("attachments")).await;
    let world = World::start().await;
    let foos = json!({"apiVersion": "example.com/v1", "resource": "foos"});
    let mut object = decorator("dc1", &hook.url, &["sync"], foos.clone());
    object["spec"]["resources"] = json!([foos, foos]);
    object["spec"]["attachments"] = json!([in_place("v1", "configmaps"), in_place("v1", "configmaps")]);
    world.create(DECORATORS, object).await;
    world.create(FOOS, foo("p", json!({}))).await;
    world.sees("the attachment", MAPS, "ns1", "child", |_| true).await;
    hook.quiet().await;
    assert_eq!(world.deletions(), Vec::<Value>::new());
    assert_eq!(hook.most(), 1, "no target is synced twice at a time");
    world.end().await;
}

/// Waits for many calls since `began`: a hundred at once, and then ten per second.
async fn slowed(hook: &Hook, began: Instant) {
    when("many calls", || hook.count() >= 130).await;
    let most = 110.0 + 10.0 * began.elapsed().as_secs_f64();
    assert!(hook.count() as f64 <= most, "{} {:?}", hook.count(), began.elapsed());
}

/// A hook that never returns the same answer twice does not keep everything busy.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mc_143_a_hook_that_changes_its_mind_all_the_time_is_slowed() {
    let count = std::sync::atomic::AtomicU64::new(0);
    let next = move || count.fetch_add(1, std::sync::atomic::Ordering::SeqCst).to_string();
    let hook = Hook::start(move |_| {
        Reply::Json(json!({"children": [map("ns1", "child", json!({"app": "x"}), &next())]}))
    })
    .await;
    let world = World::start().await;
    world.create(COMPOSITES, composite(&hook.url, &["sync"], json!({}))).await;
    let began = Instant::now();
    world.create(FOOS, foo("p", json!({"selector": app("x")}))).await;
    slowed(&hook, began).await;
    world.end().await;
}
