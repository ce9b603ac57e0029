//! Hooks that fail, hang, and return invalid answers (§8.5).

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use serde_json::json;
use testkit::wait::until;
use tokio::net::TcpListener;

use crate::{
    hook::{Hook, Reply, Seen, copier, copy_of, keeper},
    world::{FOOS, MAPS, SECRETS, World, app, when},
};

const A: &str = "configmaps/ns1/a";

/// MC-A-40, MC-070, MC-072, MC-074: a hook that is down causes no storm of calls, and work continues when it
/// is up again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mc_a_40_a_hook_that_is_down() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let world = World::start().await;
    world.controller("mc1", &format!("http://{address}"), json!({})).await;
    world.foo("p", app("x")).await;
    for i in 0..10 {
        world.input(&format!("i{i}"), json!({"app": "x"}), "1").await;
    }
    world.event("SyncError", "map hook failed for").await;
    world.status(FOOS, "ns1", "p", json!({"observedGeneration": 1, "inputs": {"configmaps": {"total": 10, "failed": 10}}, "outputs": {"configmaps": {"total": 0}}})).await;
    assert_eq!(world.events("SyncError").await.len(), 1, "one event in ten seconds");
    let hook = Hook::serve(TcpListener::bind(address).await.unwrap(), copier);
    world.status(FOOS, "ns1", "p", json!({"observedGeneration": 1, "inputs": {"configmaps": {"total": 10}}, "outputs": {"configmaps": {"total": 10}}})).await;
    drop(hook);
    world.end().await;
}

/// MC-A-41, MC-071: a failure affects one input only.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mc_a_41_one_failing_input() {
    let hook = Hook::start(copier).await;
    let world = World::with_parent(&hook.url, json!({})).await;
    world.input("a", json!({"app": "x"}), "1").await;
    world.has(MAPS, "ns1", vec!["a", "a-copy"]).await;
    hook.quiet().await;
    let copy = world.get(MAPS, "ns1", "a-copy").await;
    hook.script(|seen| if seen.key() == A { Reply::status(500, "broken") } else { copier(seen) });
    world.merge(MAPS, "ns1", "a", json!({"data": {"v": "2"}})).await;
    world.event("SyncError", "unsupported status code: 500 body: broken").await;
    for name in ["b", "c", "d"] {
        world.input(name, json!({"app": "x"}), "1").await;
    }
    world.status(FOOS, "ns1", "p", json!({"observedGeneration": 1, "inputs": {"configmaps": {"total": 4, "failed": 1}}, "outputs": {"configmaps": {"total": 4}}})).await;
    assert_eq!(world.get(MAPS, "ns1", "a-copy").await, copy);
    hook.script(copier);
    world.sees("mended", MAPS, "ns1", "a-copy", |o| o["data"]["v"] == json!("2")).await;
    world.end().await;
}

/// MC-A-42, MC-035, MC-075: hanging calls end, and do not delay the others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mc_a_42_hanging_inputs_do_not_starve_others() {
    let hook = Hook::start(|seen| if seen.key().contains("hang") { Reply::Hang } else { copier(seen) }).await;
    let slow = json!({"parallelism": 4, "hooks": {"map": {"webhook": {"timeout": "2s"}}}});
    let world = World::with_parent(&hook.url, slow).await;
    for i in 0..5 {
        world.input(&format!("hang{i}"), json!({"app": "x"}), "1").await;
    }
    when("all slots hang", || hook.count() >= 4).await;
    for i in 0..100 {
        world.input(&format!("i{i}"), json!({"app": "x"}), "1").await;
    }
    world.status(FOOS, "ns1", "p", json!({"observedGeneration": 1, "inputs": {"configmaps": {"total": 105, "failed": 5}}, "outputs": {"configmaps": {"total": 100}}})).await;
    world.event("SyncError", "no answer within 2s").await;
    world.end().await;
}

/// MC-A-43, MC-061, MC-070, MC-102: invalid answers change nothing.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mc_a_43_nonsense_changes_nothing() {
    let hook = Hook::start(copier).await;
    let world = World::with_parent(&hook.url, json!({})).await;
    world.input("a", json!({"app": "x"}), "1").await;
    world.has(MAPS, "ns1", vec!["a", "a-copy"]).await;
    hook.quiet().await;
    let text = |body: &'static str| move || Reply::status(200, body);
    let answers: Vec<Box<dyn Fn() -> Reply + Send + Sync>> = vec![
        Box::new(text("")),
        Box::new(text("null")),
        Box::new(text("[]")),
        Box::new(text("{}")),
        Box::new(text("{\"outputs\":{}}")),
        Box::new(text("{\"outputs\":[1]}")),
        Box::new(text("{\"outputs\":[")),
        Box::new(text("<html>welcome</html>")),
        Box::new(|| Reply::status(204, "")),
        Box::new(|| Reply::Raw {
            status: 301,
            headers: vec![("location", "/map".into())],
            body: Bytes::new(),
        }),
        Box::new(|| Reply::Raw {
            status: 307,
            headers: vec![("location", "/map".into())],
            body: Bytes::new(),
        }),
    ];
    let (count, turn) = (answers.len(), Arc::new(AtomicUsize::new(0)));
    let next = turn.clone();
    hook.script(move |_| answers[next.fetch_add(1, Ordering::SeqCst) % answers.len()]());
    world.clear_writes();
    hook.clear();
    // Each edit causes the next try at once.
    let mut edit = 1;
    while turn.load(Ordering::SeqCst) < count + 12 {
        edit += 1;
        let before = turn.load(Ordering::SeqCst);
        world.merge(MAPS, "ns1", "a", json!({"data": {"v": edit.to_string()}})).await;
        when("another call", || turn.load(Ordering::SeqCst) > before).await;
    }
    world.status(FOOS, "ns1", "p", json!({"observedGeneration": 1, "inputs": {"configmaps": {"total": 1, "failed": 1}}, "outputs": {"configmaps": {"total": 1}}})).await;
    assert!(world.writes().iter().all(|write| write.contains("/status")), "{:?}", world.writes());
    hook.script(copier);
    // After so many failures the next retry may be minutes away.
    edit += 1;
    world.merge(MAPS, "ns1", "a", json!({"data": {"v": edit.to_string()}})).await;
    world.sees("mended", MAPS, "ns1", "a-copy", |o| o["data"]["v"] == json!(edit.to_string())).await;
    world.end().await;
}

/// MC-A-43, MC-070: endless bodies and bodies of 100 MiB are cut off.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mc_a_43_huge_bodies_are_cut_off() {
    let big = Bytes::from(vec![b' '; 100 << 20]);
    let endless = Arc::new(AtomicBool::new(false));
    let flag = endless.clone();
    let hook = Hook::start(move |_| {
        if flag.load(Ordering::SeqCst) {
            Reply::Endless
        } else {
            Reply::Raw { status: 200, headers: vec![], body: big.clone() }
        }
    })
    .await;
    let world =
        World::with_parent(&hook.url, json!({"hooks": {"map": {"webhook": {"timeout": "50s"}}}})).await;
    world.input("a", json!({"app": "x"}), "1").await;
    world.event("SyncError", "larger than 64 MiB").await;
    endless.store(true, Ordering::SeqCst);
    let before = hook.count();
    when("an endless one ends", || hook.count() >= before + 2).await;
    world.has(MAPS, "ns1", vec!["a"]).await;
    world.end().await;
}

/// MC-A-44, MC-043: an error rejects valid siblings as well, and the user sees which one it is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mc_a_44_a_fault_rejects_the_whole_answer() {
    let hook = Hook::start(|seen| {
        let mut answer = copy_of(seen, |name| format!("{name}-copy"));
        let list = answer["outputs"].as_array_mut().unwrap();
        list.push(json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}}));
        Reply::Json(answer)
    })
    .await;
    let world = World::with_parent(&hook.url, json!({})).await;
    world.input("a", json!({"app": "x"}), "1").await;
    world.event("SyncError", "outputs[1]: undeclared output type Secret.v1").await;
    world.has(MAPS, "ns1", vec!["a"]).await;
    world.end().await;
}

/// MC-A-45, MC-073: 429 is not reported as a failure, and the requested pause is kept.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mc_a_45_too_many_requests() {
    let first = AtomicUsize::new(0);
    let hook = Hook::start(move |seen| match first.fetch_add(1, Ordering::SeqCst) {
        0 => Reply::Raw { status: 429, headers: vec![("retry-after", "2".into())], body: Bytes::new() },
        1 => {
            let at = jiff::Timestamp::now() + jiff::SignedDuration::from_secs(2);
            let date = at.strftime("%a, %d %b %Y %H:%M:%S GMT").to_string();
            Reply::Raw { status: 429, headers: vec![("retry-after", date)], body: Bytes::new() }
        }
        2 => Reply::status(429, ""),
        _ => copier(seen),
    })
    .await;
    let world = World::with_parent(&hook.url, json!({})).await;
    world.input("a", json!({"app": "x"}), "1").await;
    world.has(MAPS, "ns1", vec!["a", "a-copy"]).await;
    let calls = hook.calls("/map", A);
    let gap = |i: usize| calls[i + 1].at - calls[i].at;
    assert!(gap(0) >= Duration::from_secs(2), "{:?}", gap(0));
    assert!(gap(1) >= Duration::from_millis(900), "{:?}", gap(1));
    assert!(gap(2) >= Duration::from_millis(200), "{:?}", gap(2));
    assert_eq!(world.events("SyncError").await.len(), 0);
    world.end().await;
}

/// MC-A-46: strictness by version and by mode.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mc_a_46_unknown_fields() {
    let hook = Hook::start(|seen| {
        let mut answer = copy_of(seen, |name| format!("{name}-copy"));
        answer["status"] = json!({"not": "yours"});
        Reply::Json(answer)
    })
    .await;
    let world = World::with_parent(&hook.url, json!({"hooks": {"map": {"version": "v2"}}})).await;
    world.input("a", json!({"app": "x"}), "1").await;
    world.event("SyncError", "unknown fields [status]").await;
    world.has(MAPS, "ns1", vec!["a"]).await;
    let loose = json!({"spec": {"hooks": {"map": {"webhook": {"responseUnMarshallMode": "loose"}}}}});
    world.merge(crate::world::CONTROLLERS, "", "mc1", loose).await;
    world.has(MAPS, "ns1", vec!["a", "a-copy"]).await;
    world.merge(MAPS, "ns1", "a", json!({"data": {"v": "2"}})).await;
    let named = |seen: &Seen| seen.body["outputs"]["ConfigMap.v1"].get("ns1/a-copy").is_some();
    when("v2 names with namespace", || hook.calls("/map", A).iter().any(named)).await;
    world.end().await;
}

/// MC-A-47, MC-108, MC-109: each input has its own cached answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mc_a_47_etags() {
    let hook = Hook::start(|seen| {
        let tag = if seen.key() == A { "\"e1\"" } else { "\"e2\"" };
        match seen.headers.get("if-none-match").map(|v| v.to_str().unwrap()) {
            Some(sent) if sent == tag => Reply::status(if seen.key() == A { 304 } else { 412 }, ""),
            Some(other) => panic!("{} was sent for {}", other, seen.key()),
            None if seen.key().ends_with("/c") => Reply::status(304, ""),
            None => {
                Reply::with(200, vec![("etag", tag.into())], &copy_of(seen, |name| format!("{name}-copy")))
            }
        }
    })
    .await;
    let etag =
        json!({"hooks": {"map": {"webhook": {"etag": {"enabled": true, "cacheTimeoutSeconds": 600}}}}});
    let world = World::with_parent(&hook.url, etag).await;
    for name in ["a", "b"] {
        world.input(name, json!({"app": "x"}), name).await;
    }
    world.has(MAPS, "ns1", vec!["a", "a-copy", "b", "b-copy"]).await;
    hook.quiet().await;
    // The cached answer is that of the first call, so the old data is restored.
    world.merge(MAPS, "ns1", "a-copy", json!({"data": {"v": "drift"}})).await;
    world.merge(MAPS, "ns1", "b-copy", json!({"data": {"v": "drift"}})).await;
    world.sees("a's own answer", MAPS, "ns1", "a-copy", |o| o["data"]["v"] == json!("a")).await;
    world.sees("b's own answer", MAPS, "ns1", "b-copy", |o| o["data"]["v"] == json!("b")).await;
    world.input("c", json!({"app": "x"}), "c").await;
    world.event("SyncError", "unsupported status code: 304").await;
    world.end().await;
}

/// MC-A-48, MC-A-49, MC-045, MC-090: objects that are deleted during the hook call get nothing more.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mc_a_48_answers_for_what_is_gone_are_dropped() {
    let hook = Hook::start(keeper).await;
    let world = World::with_parent(&hook.url, json!({})).await;
    hook.hold("/map configmaps/ns1/a");
    world.input("a", json!({"app": "x"}), "1").await;
    when("asked", || hook.count() == 1).await;
    world.delete(MAPS, "ns1", "a").await;
    // The call for this input comes after the earlier events of inputs were seen.
    world.input("b", json!({"app": "x"}), "1").await;
    when("the next is asked about", || !hook.calls("/map", "configmaps/ns1/b").is_empty()).await;
    hook.release();
    world.has(MAPS, "ns1", vec!["b", "b-copy"]).await;
    // MC-A-49: a parent that is being deleted.
    world.merge(FOOS, "ns1", "p", json!({"metadata": {"finalizers": ["example.com/hold"]}})).await;
    hook.quiet().await;
    hook.clear();
    hook.hold("/map configmaps/ns1/c");
    world.input("c", json!({"app": "x"}), "1").await;
    when("asked", || hook.calls("/map", "configmaps/ns1/c").len() == 1).await;
    world.delete(FOOS, "ns1", "p").await;
    // Likewise, the call for this parent comes after the earlier events of parents were seen.
    world.foo("q", app("y")).await;
    world.input("e", json!({"app": "y"}), "1").await;
    world.sees("the other parent's output", MAPS, "ns1", "e-copy", |_| true).await;
    hook.release();
    world.input("d", json!({"app": "x"}), "1").await;
    hook.quiet().await;
    assert_eq!(hook.calls("/map", "configmaps/ns1/d").len(), 0);
    world.has(MAPS, "ns1", vec!["b", "b-copy", "c", "d", "e", "e-copy"]).await;
    world.end().await;
}

/// MC-A-83, MC-101, MC-105, MC-106: the header reaches the hook, and a changed Secret takes effect without a
/// restart.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mc_a_83_credentials_reach_the_hook_and_are_renewed() {
    let hook = Hook::start(copier).await;
    let world = World::start().await;
    let secret = |token: &str| json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s", "namespace": "ns2"}, "stringData": {"token": token, "username": "u", "password": "p"}});
    world.create(SECRETS, secret(" one ")).await;
    let bearer = json!({"hooks": {"map": {"webhook": {"authorization": {"secretRef": {"name": "s", "namespace": "ns2", "key": "token"}}}}}});
    world.controller("mc1", &hook.url, bearer).await;
    world.foo("p", app("x")).await;
    world.input("a", json!({"app": "x"}), "1").await;
    let sent = |text: &str| {
        hook.seen()
            .iter()
            .any(|seen| seen.headers.get("authorization").is_some_and(|v| v.as_bytes() == text.as_bytes()))
    };
    when("the token is sent", || sent("Bearer one")).await;
    world.merge(SECRETS, "ns2", "s", json!({"stringData": {"token": "two"}})).await;
    // The next call after the change of the Secret has been noticed sends the new token.
    let mut edit = 0;
    let resend = async || {
        edit += 1;
        world.merge(MAPS, "ns1", "a", json!({"data": {"v": edit.to_string()}})).await;
        sent("Bearer two")
    };
    until("the new token is sent", resend).await;
    let basic = json!({"spec": {"hooks": {"map": {"webhook": {"authorization": null, "basicAuth": {"secretRef": {"name": "s", "namespace": "ns2"}}}}}}});
    world.merge(crate::world::CONTROLLERS, "", "mc1", basic).await;
    when("user and password are sent", || sent("Basic dTpw")).await;
    world.end().await;
}
