//! Cost follows change (§8.4). The numbers are a tenth to a hundredth of those in the scenarios; the example
//! `map-scale` has the full sizes.

use std::{collections::BTreeSet, time::Duration};

use serde_json::{Value, json};

use crate::{
    hook::{Hook, Reply, Seen, copier, copy_of},
    world::{FOOS, MAPS, World, app, when},
};

const MANY: usize = 300;

async fn many(hook: &Hook, more: Value) -> World {
    let world = World::with_parent(&hook.url, more).await;
    for i in 0..MANY {
        world.input(&format!("i{i}"), json!({"app": "x"}), "1").await;
    }
    world.status(FOOS, "ns1", "p", json!({"observedGeneration": 1, "inputs": {"configmaps": {"total": MANY}}, "outputs": {"configmaps": {"total": MANY}}})).await;
    hook.quiet().await;
    world
}

/// Returns the keys with more than one call, and the times of those calls.
fn again(hook: &Hook) -> Vec<String> {
    let seen = hook.seen();
    let begun = seen[0].at;
    let twice = seen.iter().filter(|one| hook.calls("/map", one.key()).len() > 1);
    twice.map(|one| format!("{} after {:?}", one.key(), one.at - begun)).collect()
}

/// MC-A-30, MC-033, MC-037, MC-087: exactly one call for each of many inputs; concurrency and status writes.
/// MC-A-31: one edit causes one call, and one more for the output it changed. MC-A-32: a change of the parent
/// causes one call for every input. MC-A-33, MC-096: so does a restart, without a write.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mc_a_30_to_33_cost_follows_change() {
    let hook = Hook::start(copier).await;
    let begun = tokio::time::Instant::now();
    // Long enough for a loaded machine: a call that times out is repeated.
    let patient = json!({"parallelism": 20, "hooks": {"map": {"webhook": {"timeout": "1m"}}}});
    let mut world = many(&hook, patient).await;
    assert_eq!(again(&hook), Vec::<String>::new());
    assert_eq!(hook.count(), MANY);
    assert!(hook.most() <= 20);
    let statuses = world.writes().iter().filter(|write| write.contains("/status")).count();
    assert!(statuses as u64 <= begun.elapsed().as_secs() + 2, "{statuses} status writes");
    let creates = world.writes().iter().filter(|write| write.starts_with("POST")).count();
    assert_eq!(creates, MANY);
    // MC-A-31
    hook.clear();
    world.merge(MAPS, "ns1", "i7", json!({"metadata": {"annotations": {"poke": "1"}}})).await;
    when("the call", || hook.count() >= 1).await;
    hook.quiet().await;
    assert_eq!((hook.calls("/map", "configmaps/ns1/i7").len(), hook.count()), (1, 1));
    hook.clear();
    world.merge(MAPS, "ns1", "i7", json!({"data": {"v": "2"}})).await;
    when("both calls", || hook.count() >= 2).await;
    hook.quiet().await;
    assert_eq!((hook.calls("/map", "configmaps/ns1/i7").len(), hook.count()), (2, 2));
    // MC-A-32
    hook.clear();
    world.merge_status(FOOS, "ns1", "p", json!({"status": {"mine": 1}})).await;
    hook.quiet().await;
    assert_eq!(hook.count(), 0);
    world.merge(FOOS, "ns1", "p", json!({"metadata": {"annotations": {"poke": "1"}}})).await;
    when("all calls", || hook.count() >= MANY).await;
    hook.quiet().await;
    assert_eq!(hook.count(), MANY);
    // MC-A-33
    hook.clear();
    world.clear_writes();
    world.restart().await;
    when("all calls", || hook.count() >= MANY).await;
    hook.quiet().await;
    assert_eq!(again(&hook), Vec::<String>::new());
    assert_eq!(hook.count(), MANY);
    assert_eq!(world.writes(), Vec::<String>::new());
    // MC-A-36
    hook.clear();
    let gone = MANY / 10;
    world.clear_writes();
    for i in 0..gone {
        world.delete(MAPS, "ns1", &format!("i{i}")).await;
    }
    let left = MANY - gone;
    world.status(FOOS, "ns1", "p", json!({"mine": 1, "observedGeneration": 1, "inputs": {"configmaps": {"total": left}}, "outputs": {"configmaps": {"total": left}}})).await;
    hook.quiet().await;
    let mapped: Vec<_> =
        hook.seen().iter().filter(|seen| seen.path == "/map").map(|seen| seen.key().to_owned()).collect();
    assert_eq!((mapped, world.events("SyncError").await), (vec![], vec![]));
    let deletes = world.writes().iter().filter(|write| write.starts_with("DELETE")).count();
    assert_eq!(deletes, gone);
    world.end().await;
}

/// MC-037: outputs that are created as the hook answered cause no further call, also several of one input.
/// What the server adds, and changes by other clients, do.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mc_037_only_news_asks_again() {
    let hook = Hook::start(|seen| {
        let mut answer = copy_of(seen, |name| format!("{name}-copy"));
        let list = answer["outputs"].as_array_mut().unwrap();
        let name = seen.body["input"]["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        let mut more = list[0].clone();
        more["metadata"]["name"] = json!(format!("{name}-more"));
        list.push(more);
        // The server chooses the type of a Secret.
        if name == "chosen" {
            list.push(json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "chosen"}}));
        }
        Reply::Json(answer)
    })
    .await;
    let world = World::start().await;
    let both = json!({"outputResources": [{"apiVersion": "v1", "resource": "configmaps", "updateStrategy": {"method": "InPlace"}}, {"apiVersion": "v1", "resource": "secrets"}],
        "hooks": {"map": {"webhook": {"timeout": "1m"}}}});
    world.controller("mc1", &hook.url, both).await;
    world.foo("p", app("x")).await;
    for i in 0..50 {
        world.input(&format!("i{i}"), json!({"app": "x"}), "1").await;
    }
    world.status(FOOS, "ns1", "p", json!({"observedGeneration": 1, "inputs": {"configmaps": {"total": 50}}, "outputs": {"configmaps": {"total": 100}, "secrets": {"total": 0}}})).await;
    hook.quiet().await;
    assert_eq!((again(&hook), hook.count()), (vec![], 50));
    hook.clear();
    world.input("chosen", json!({"app": "x"}), "1").await;
    let shown = |seen: &Seen| seen.body["outputs"]["Secret.v1"].get("chosen").is_some();
    when("what the server chose is shown", || hook.seen().iter().any(shown)).await;
    hook.quiet().await;
    assert_eq!((hook.calls("/map", "configmaps/ns1/chosen").len(), hook.count()), (2, 2));
    // A change and a deletion by another client.
    hook.clear();
    world.merge(MAPS, "ns1", "i3-copy", json!({"data": {"v": "drift"}})).await;
    world.sees("put right", MAPS, "ns1", "i3-copy", |o| o["data"]["v"] == json!("1")).await;
    world.delete(MAPS, "ns1", "i4-more").await;
    world.sees("made anew", MAPS, "ns1", "i4-more", |_| true).await;
    hook.quiet().await;
    let asked: BTreeSet<_> = hook.seen().iter().map(|seen| seen.key().to_owned()).collect();
    assert_eq!(asked, ["configmaps/ns1/i3", "configmaps/ns1/i4"].map(str::to_owned).into());
    // Another client writes before the event of our own write arrives: the answer is held back, so the run
    // ends after that write.
    hook.clear();
    hook.hold("/map configmaps/ns1/late");
    world.input("late", json!({"app": "x"}), "1").await;
    when("asked", || hook.count() == 1).await;
    world.merge(MAPS, "ns1", "late", json!({"data": {"v": "2"}})).await;
    hook.release();
    world.sees("the newer state", MAPS, "ns1", "late-copy", |o| o["data"]["v"] == json!("2")).await;
    world.end().await;
}

/// MC-A-34, MC-038: an input causes calls only for the parents that select it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mc_a_34_disjoint_selectors() {
    let hook = Hook::start(|_| Reply::Json(json!({"outputs": []}))).await;
    let world = World::start().await;
    world.controller("mc1", &hook.url, json!({})).await;
    for p in 0..20 {
        world.foo(&format!("p{p}"), app(&p.to_string())).await;
        for i in 0..5 {
            world.input(&format!("i{p}-{i}"), json!({"app": p.to_string()}), "1").await;
        }
    }
    // An input that is created while its parent is processed may cause two calls, but never one for another
    // parent.
    let asked = || -> BTreeSet<(String, String)> {
        let name = |seen: &Seen| seen.body["parent"]["metadata"]["name"].as_str().unwrap().to_owned();
        hook.seen().iter().map(|seen| (name(seen), seen.key().to_owned())).collect()
    };
    let pair = |p: usize, i: usize| (format!("p{p}"), format!("configmaps/ns1/i{p}-{i}"));
    let all: BTreeSet<_> = (0..20).flat_map(|p| (0..5).map(move |i| pair(p, i))).collect();
    when("all are mapped", || asked().len() >= all.len()).await;
    hook.quiet().await;
    assert_eq!(asked(), all);
    hook.clear();
    world.merge(MAPS, "ns1", "i3-3", json!({"data": {"v": "2"}})).await;
    when("mapped", || hook.count() >= 1).await;
    hook.quiet().await;
    assert_eq!(asked(), BTreeSet::from([pair(3, 3)]));
    world.end().await;
}

/// MC-A-35, MC-036: a resync causes one call for each input in a period, spread over it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mc_a_35_resync_is_spread() {
    let hook = Hook::start(|_| Reply::Json(json!({"outputs": []}))).await;
    let world = World::start().await;
    for i in 0..100 {
        world.input(&format!("i{i}"), json!({"app": "x"}), "1").await;
    }
    world.controller("mc1", &hook.url, json!({"resyncPeriodSeconds": 3})).await;
    world.foo("p", app("x")).await;
    when("some periods", || hook.count() >= 400).await;
    let seen = hook.seen();
    let (first, last) = (seen[100].at, seen[399].at);
    assert!(last - first >= Duration::from_secs(4), "three periods took {:?}", last - first);
    world.end().await;
}

/// MC-A-63, MC-040: only the input whose answer requests it is processed again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mc_a_63_resync_after_seconds() {
    let hook = Hook::start(|seen| {
        let after = match seen.key() {
            "configmaps/ns1/soon" => json!(1.5),
            "configmaps/ns1/never" => json!(-1),
            _ => json!(null),
        };
        Reply::Json(json!({"outputs": [], "resyncAfterSeconds": after}))
    })
    .await;
    let world = World::start().await;
    world.controller("mc1", &hook.url, json!({})).await;
    world.foo("p", app("x")).await;
    for name in ["soon", "never", "plain"] {
        world.input(name, json!({"app": "x"}), "1").await;
    }
    when("again", || hook.calls("/map", "configmaps/ns1/soon").len() >= 3).await;
    let calls = hook.calls("/map", "configmaps/ns1/soon");
    assert!(calls[1].at - calls[0].at >= Duration::from_millis(1500));
    assert_eq!(hook.count() - hook.calls("/map", "configmaps/ns1/soon").len(), 2);
    let fields: Vec<_> = calls[0].body.as_object().unwrap().keys().cloned().collect();
    assert_eq!(fields, ["controller", "input", "mapKey", "outputs", "parent"]);
    let body = &calls[0].body;
    assert_eq!(body["controller"]["kind"], json!("MapController"));
    assert!(
        body["input"]["metadata"].get("managedFields").is_none()
            && body["parent"]["metadata"].get("managedFields").is_none()
    );
    world.end().await;
}

/// MC-031: a change of the status alone is ignored, if the rule says so.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mc_031_status_changes_of_inputs_may_be_ignored() {
    let hook = Hook::start(|_| Reply::Json(json!({"outputs": []}))).await;
    let world = World::start().await;
    let claims = json!({"inputResources": [{"apiVersion": "v1", "resource": "persistentvolumeclaims", "ignoreStatusChanges": true}]});
    world.controller("mc1", &hook.url, claims).await;
    world.foo("p", json!({})).await;
    let claim = json!({"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "c", "namespace": "ns1"}, "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}});
    world.create("v1/persistentvolumeclaims", claim).await;
    when("mapped", || hook.count() == 1).await;
    world.merge_status("v1/persistentvolumeclaims", "ns1", "c", json!({"status": {"phase": "Bound"}})).await;
    world.merge("v1/persistentvolumeclaims", "ns1", "c", json!({"metadata": {"labels": {"a": "b"}}})).await;
    when("mapped again", || hook.count() >= 2).await;
    hook.quiet().await;
    assert_eq!(hook.count(), 2);
    world.end().await;
}
