//! DecoratorController (§8.7).

use serde_json::{Value, json};

use crate::{
    hook::{Hook, Reply, Seen},
    world::{DECORATORS, FOOS, MAPS, World, decorator, found, tag, when},
};

/// Its hooks are below its name.
fn controller(name: &str, hook: &Hook, hooks: &[&str], resource: Value) -> Value {
    decorator(name, &format!("{}/{name}", hook.url), hooks, resource)
}

fn foos() -> Value {
    json!({"apiVersion": "example.com/v1", "resource": "foos", "annotationSelector": {"matchAnnotations": {"decorate": "yes, please!"}}})
}

fn attachments(seen: &Seen) -> Vec<String> {
    seen.body["attachments"]["ConfigMap.v1"].as_object().unwrap().keys().cloned().collect()
}

fn of(seen: &Seen) -> String {
    seen.path.split('/').nth(1).unwrap().to_owned()
}

fn attachment(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"a": "1"}})
}

async fn foo(world: &World, name: &str, annotations: Value) {
    let foo = json!({"apiVersion": "example.com/v1", "kind": "Foo", "metadata": {"name": name, "namespace": "ns1", "annotations": annotations}});
    world.create(FOOS, foo).await;
}

/// MC-A-77, MC-170 to MC-174: selection by annotation, labels, annotations, status, attachments, two
/// decorators, and opting out.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mc_a_77_decorations() {
    let hook = Hook::start(|seen| {
        let name = of(seen);
        if seen.path.ends_with("/finalize") {
            let left = attachments(seen);
            return Reply::Json(json!({"labels": {name: null}, "attachments": [], "finalized": left.is_empty()}));
        }
        let mut answer = json!({"labels": {&name: "on"}, "annotations": {"drop-me": null}, "attachments": [attachment(&format!("from-{name}"))]});
        if name == "d2" {
            answer["status"] = json!({"seen": true});
        }
        Reply::Json(answer)
    })
    .await;
    let world = World::start().await;
    world.create(DECORATORS, controller("d1", &hook, &["sync", "finalize"], foos())).await;
    world.create(DECORATORS, controller("d2", &hook, &["sync"], foos())).await;
    foo(&world, "plain", json!({"drop-me": "1"})).await;
    foo(&world, "p", json!({"decorate": "yes, please!", "drop-me": "1"})).await;
    world.has(MAPS, "ns1", vec!["from-d1", "from-d2"]).await;
    let whole = |o: &Value| {
        o["metadata"]["labels"] == json!({"d1": "on", "d2": "on"})
            && o["metadata"]["annotations"] == json!({"decorate": "yes, please!"})
            && o["status"] == json!({"seen": true})
            && o["metadata"]["finalizers"] == json!(["metacontroller.io/decoratorcontroller-d1"])
    };
    world.sees("decorated", FOOS, "ns1", "p", whole).await;
    let made = world.get(MAPS, "ns1", "from-d1").await.unwrap();
    assert_eq!(tag(&made, "decorator-controller"), "d1");
    hook.quiet().await;
    for seen in hook.seen() {
        let own = format!("from-{}", of(&seen));
        assert!(
            attachments(&seen).iter().all(|name| *name == own),
            "decorators see their own attachments only"
        );
        assert_eq!(seen.body["object"]["metadata"]["name"], json!("p"));
    }
    let fields: Vec<_> = hook.seen()[0].body.as_object().unwrap().keys().cloned().collect();
    assert_eq!(fields, ["attachments", "controller", "finalizing", "object", "related"]);
    // A changed attachment is restored; a deleted one is created again.
    world.merge(MAPS, "ns1", "from-d1", json!({"data": {"a": "drift"}})).await;
    world.sees("put right", MAPS, "ns1", "from-d1", |o| o["data"]["a"] == json!("1")).await;
    world.delete(MAPS, "ns1", "from-d2").await;
    world.has(MAPS, "ns1", vec!["from-d1", "from-d2"]).await;
    // Opting out: with a finalize hook everything is removed, without one the attachments stay.
    hook.quiet().await;
    hook.clear();
    world.merge(FOOS, "ns1", "p", json!({"metadata": {"annotations": {"decorate": null}}})).await;
    let out = |o: &Value| {
        o["metadata"]["labels"] == json!({"d2": "on"}) && o["metadata"].get("finalizers").is_none()
    };
    world.sees("opted out", FOOS, "ns1", "p", out).await;
    world.has(MAPS, "ns1", vec!["from-d2"]).await;
    assert!(
        hook.seen().iter().all(|seen| seen.path == "/d1/finalize" && seen.body["finalizing"] == json!(true))
    );
    world.end().await;
}

/// MC-174, MC-119: a target that is being deleted waits for the finalize hook.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mc_174_a_target_on_its_way_out_is_finalized() {
    let hook = Hook::start(|seen| {
        if seen.path.ends_with("/finalize") {
            return Reply::Json(json!({"attachments": [], "finalized": attachments(seen).is_empty()}));
        }
        Reply::Json(json!({"attachments": [attachment("a")]}))
    })
    .await;
    let world = World::start().await;
    world.create(DECORATORS, controller("d1", &hook, &["sync", "finalize"], foos())).await;
    foo(&world, "p", json!({"decorate": "yes, please!"})).await;
    world.has(MAPS, "ns1", vec!["a"]).await;
    world.delete(FOOS, "ns1", "p").await;
    found("the target is gone", || async { world.get(FOOS, "ns1", "p").await.is_none().then_some(()) }).await;
    world.has(MAPS, "ns1", vec![]).await;
    world.end().await;
}

/// MC-176, MC-143: built-in targets without status, hook failures and pauses.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mc_176_built_in_targets_and_failing_hooks() {
    let calls = std::sync::atomic::AtomicUsize::new(0);
    let hook = Hook::start(move |_| match calls.fetch_add(1, std::sync::atomic::Ordering::SeqCst) {
        0 => Reply::status(500, "not now"),
        1 => {
            Reply::Raw { status: 429, headers: vec![("retry-after", "1".into())], body: bytes::Bytes::new() }
        }
        2 => Reply::Json(json!({"labels": {"bad": 5}})),
        3 => Reply::Json(
            json!({"attachments": [{"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}}]}),
        ),
        _ => Reply::Json(json!({"labels": {"done": "yes"}})),
    })
    .await;
    let world = World::start().await;
    let secrets =
        json!({"apiVersion": "v1", "resource": "secrets", "labelSelector": {"matchLabels": {"a": "b"}}});
    world.create(DECORATORS, controller("d1", &hook, &["sync"], secrets)).await;
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s", "namespace": "ns1", "labels": {"a": "b"}}});
    world.create("v1/secrets", secret).await;
    world
        .sees("decorated in the end", "v1/secrets", "ns1", "s", |o| {
            o["metadata"]["labels"]["done"] == json!("yes")
        })
        .await;
    for text in [
        "unsupported status code: 500 body: not now",
        "labels must be a map of strings",
        "undeclared type Secret.v1",
    ] {
        world.event("SyncError", text).await;
    }
    let seen = hook.seen();
    assert!(seen[2].at - seen[1].at >= std::time::Duration::from_secs(1));
    when("no more", || hook.count() >= 5).await;
    world.end().await;
}
