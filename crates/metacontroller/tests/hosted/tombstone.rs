//! Outputs whose input is gone (§8.3).

use std::time::Duration;

use bytes::Bytes;
use serde_json::{Value, json};

use crate::{
    hook::{Hook, Reply, copier, keeper, outputs},
    world::{CONTROLLERS, FOOS, MAPS, World, app, tag, when},
};

const A: &str = "configmaps/ns1/a";
const MARK: &str = "configmaps/ns1/mark";

/// Two inputs `a` and `b` with a copy each.
async fn two(hook: &Hook, more: Value) -> World {
    let world = World::with_parent(&hook.url, more).await;
    for name in ["a", "b"] {
        world.input(name, json!({"app": "x"}), "1").await;
    }
    world.has(MAPS, "ns1", vec!["a", "a-copy", "b", "b-copy"]).await;
    hook.quiet().await;
    hook.clear();
    world
}

/// Creates an input whose call comes after all earlier work.
async fn mark(world: &World, hook: &Hook) {
    world.input("mark", json!({"app": "x"}), "1").await;
    when("the mark is mapped", || !hook.calls("/map", MARK).is_empty()).await;
}

/// MC-A-20, MC-060: without a tombstone hook, detached outputs are deleted at once without a call.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mc_a_20_without_a_hook_detached_outputs_go() {
    let hook = Hook::start(copier).await;
    let world = two(&hook, json!({"hooks": {"tombstone": null}})).await;
    world.delete(MAPS, "ns1", "a").await;
    world.has(MAPS, "ns1", vec!["b", "b-copy"]).await;
    mark(&world, &hook).await;
    assert!(hook.seen().iter().all(|seen| seen.key() != A));
    world.end().await;
}

/// MC-A-21, MC-061, MC-067: an empty list keeps nothing; an answer that is not a list keeps everything and is
/// retried.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mc_a_21_only_a_list_deletes() {
    let hook = Hook::start(copier).await;
    let world = two(&hook, json!({"hooks": {"tombstone": {"webhook": {"timeout": "300ms"}}}})).await;
    let answers: [fn() -> Reply; 5] = [
        || Reply::Json(json!({})),
        || Reply::Json(json!([])),
        || Reply::Raw { status: 200, headers: vec![], body: Bytes::from_static(b"not json") },
        || Reply::status(500, "oh"),
        || Reply::Hang,
    ];
    let turn = std::sync::atomic::AtomicUsize::new(0);
    hook.script(move |seen| match seen.path.as_str() {
        "/map" => copier(seen),
        _ => answers[turn.fetch_add(1, std::sync::atomic::Ordering::SeqCst) % 5](),
    });
    world.delete(MAPS, "ns1", "a").await;
    when("every bad answer was tried", || hook.calls("/tombstone", A).len() >= 6).await;
    assert!(world.get(MAPS, "ns1", "a-copy").await.is_some());
    let calls = hook.calls("/tombstone", A);
    let gap = |i: usize| calls[i + 1].at - calls[i].at;
    assert!(gap(3) > gap(0) && gap(0) >= Duration::from_millis(200), "{:?} {:?}", gap(0), gap(3));
    world.event("SyncError", "tombstone hook failed").await;
    hook.script(
        |seen| if seen.path == "/map" { copier(seen) } else { Reply::Json(json!({"outputs": null})) },
    );
    world.has(MAPS, "ns1", vec!["b", "b-copy"]).await;
    world.end().await;
}

/// MC-A-22, MC-062: the hook names the outputs to keep; it can neither change them nor create any.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mc_a_22_kept_outputs_stay_as_they_are() {
    let hook = Hook::start(|seen| {
        let name = |n: &str| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": n}, "data": {"v": "changed"}});
        let names: &[&str] = if seen.path == "/map" { &["a-1", "a-2", "a-3"] } else { &["a-2", "unknown"] };
        Reply::Json(json!({"outputs": names.iter().map(|n| name(n)).collect::<Vec<_>>()}))
    })
    .await;
    let world = World::start().await;
    world.controller("mc1", &hook.url, json!({})).await;
    world.foo("p", app("x")).await;
    world.input("a", json!({"app": "x"}), "1").await;
    world.has(MAPS, "ns1", vec!["a", "a-1", "a-2", "a-3"]).await;
    let before = world.get(MAPS, "ns1", "a-2").await.unwrap();
    world.delete(MAPS, "ns1", "a").await;
    world.has(MAPS, "ns1", vec!["a-2"]).await;
    world.status(FOOS, "ns1", "p", json!({"observedGeneration": 1, "inputs": {"configmaps": {"total": 0}}, "outputs": {"configmaps": {"total": 1, "detached": 1}}})).await;
    assert_eq!(world.get(MAPS, "ns1", "a-2").await.unwrap(), before);
    world.end().await;
}

/// MC-A-23, MC-063, MC-064: the hook is called again when a kept output changes, and not otherwise. MC-A-25,
/// MC-096: also after a restart, from the annotations alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mc_a_23_and_25_asked_again_on_change_and_after_a_restart() {
    let hook = Hook::start(keeper).await;
    let mut world = two(&hook, json!({})).await;
    world.delete(MAPS, "ns1", "a").await;
    when("asked", || hook.calls("/tombstone", A).len() == 1).await;
    mark(&world, &hook).await;
    hook.quiet().await;
    assert_eq!(hook.calls("/tombstone", A).len(), 1);
    world.merge(MAPS, "ns1", "a-copy", json!({"data": {"v": "edited"}})).await;
    when("asked again", || hook.calls("/tombstone", A).len() == 2).await;
    hook.quiet().await;
    assert_eq!(hook.calls("/tombstone", A).len(), 2);
    hook.clear();
    world.clear_writes();
    world.restart().await;
    when("asked after the restart", || {
        hook.calls("/tombstone", A).len() == 1 && hook.calls("/map", MARK).len() == 1
    })
    .await;
    hook.quiet().await;
    assert_eq!(world.writes(), Vec::<String>::new());
    assert_eq!(tag(&world.get(MAPS, "ns1", "a-copy").await.unwrap(), "map-key"), A);
    world.end().await;
}

/// MC-A-24, MC-065, MC-066: an input that comes back during the call keeps its outputs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mc_a_24_an_input_that_comes_back_saves_its_outputs() {
    let hook = Hook::start(copier).await;
    let world = two(&hook, json!({})).await;
    let before = world.get(MAPS, "ns1", "a-copy").await.unwrap();
    hook.hold("/tombstone");
    world.delete(MAPS, "ns1", "a").await;
    when("asked", || hook.calls("/tombstone", A).len() == 1).await;
    world.input("a", json!({"app": "x"}), "1").await;
    mark(&world, &hook).await;
    hook.release();
    when("mapped again", || hook.calls("/map", A).len() == 1).await;
    hook.quiet().await;
    assert_eq!(world.get(MAPS, "ns1", "a-copy").await.unwrap(), before);
    world.end().await;
}

/// MC-A-26, MC-018, MC-005: inputs that cannot be listed do not count as gone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mc_a_26_an_unreadable_resource_detaches_nothing() {
    let hook = Hook::start(copier).await;
    let mut world = World::start().await;
    let secrets = json!({"inputResources": [{"apiVersion": "v1", "resource": "secrets"}]});
    world.controller("mc1", &hook.url, secrets).await;
    world.foo("p", json!(null)).await;
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s", "namespace": "ns1"}, "data": {}});
    world.create("v1/secrets", secret).await;
    world.has(MAPS, "ns1", vec!["s-copy"]).await;
    hook.quiet().await;
    hook.clear();
    // A start without permission to list: nothing is known, so nothing is decided.
    world.break_requests("/api/v1/secrets", 403);
    world.restart().await;
    let condition = world.reason("mc1", "InputUnavailable").await["status"]["conditions"][0].clone();
    assert_eq!(condition["status"], json!("False"));
    assert!(condition["message"].as_str().unwrap().contains("secrets"), "{condition}");
    assert_eq!(hook.count(), 0);
    assert!(world.get(MAPS, "ns1", "s-copy").await.is_some());
    world.mend_requests();
    world.reason("mc1", "Running").await;
    when("goes on", || hook.calls("/map", "secrets/ns1/s").len() == 1).await;
    assert_eq!(hook.paths("/tombstone"), 0);
    world.end().await;
}

/// MC-A-60, MC-094, MC-027: outputs are detached from an input resource that is no longer declared; an output
/// resource that is no longer declared is left alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mc_a_60_resources_leave_the_spec() {
    let hook = Hook::start(keeper).await;
    let world = two(&hook, json!({})).await;
    let rules = json!({"spec": {"inputResources": [{"apiVersion": "v1", "resource": "secrets"}]}});
    world.merge(CONTROLLERS, "", "mc1", rules).await;
    when("both are asked about", || {
        ["a", "b"].iter().all(|n| hook.calls("/tombstone", &format!("configmaps/ns1/{n}")).len() == 1)
    })
    .await;
    assert!(
        hook.seen()
            .iter()
            .all(|seen| seen.body["reason"] == json!("InputResourceRemoved") && outputs(seen).len() == 1)
    );
    world.status(FOOS, "ns1", "p", json!({"observedGeneration": 1, "inputs": {"secrets": {"total": 0}}, "outputs": {"configmaps": {"total": 2, "detached": 2}}})).await;
    let rules = json!({"spec": {"outputResources": [{"apiVersion": "v1", "resource": "secrets"}]}});
    world.merge(CONTROLLERS, "", "mc1", rules).await;
    world.status(FOOS, "ns1", "p", json!({"observedGeneration": 1, "inputs": {"secrets": {"total": 0}}, "outputs": {"secrets": {"total": 0}}})).await;
    world.has(MAPS, "ns1", vec!["a", "a-copy", "b", "b-copy"]).await;
    world.end().await;
}
