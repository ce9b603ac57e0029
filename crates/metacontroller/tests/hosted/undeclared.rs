//! Children that no rule declares (MC-149).

use kubestellar_metacontroller::Config;
use serde_json::{Value, json};

use crate::{
    hook::{Hook, Reply, Seen},
    world::{DECORATORS, FOOS, MAPS, SECRETS, World, app, decorator, foo, map, secret, when},
};

/// A regular child, one of a kind that no rule declares, and one in another namespace.
fn three(seen: &Seen) -> Reply {
    let labels = json!({"app": "x"});
    let mut undeclared = secret("", "undeclared", json!({"a": "1"}));
    undeclared["metadata"]["labels"] = labels.clone();
    let all = json!([map("ns1", "child", labels.clone(), "1"), undeclared, map("ns2", "far", labels, "1")]);
    let field = if seen.body.get("object").is_some() { "attachments" } else { "children" };
    Reply::Json(json!({field: all}))
}

fn owner(object: &Value) -> Option<&str> {
    object["metadata"]["ownerReferences"][0]["uid"].as_str()
}

/// MC-149: such an answer is rejected as a whole, and the user sees why. Where it is allowed, the children
/// are created as the Go program creates them, once, and never looked at again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mc_149_refused_unless_allowed() {
    let hook = Hook::start(three).await;
    let mut world = World::with_composite(&hook.url, &["sync"], json!({})).await;
    let p = world.create(FOOS, foo("p", json!({"selector": app("x")}))).await;
    world.event("SyncError", "children[1]: undeclared type Secret.v1").await;
    assert_eq!(world.names(MAPS, "ns1").await, Vec::<String>::new());
    world.stop_meta().await;
    let (stop, allowing) = world.another(Config { undeclared_children: true, ..Config::default() });
    let uid = p["metadata"]["uid"].as_str();
    let made = world.sees("of an undeclared kind", SECRETS, "ns1", "undeclared", |_| true).await;
    assert_eq!(owner(&made), uid);
    let far = world.sees("in another namespace", MAPS, "ns2", "far", |_| true).await;
    assert_eq!(owner(&far), None, "who would be its owner is not there");
    world.sees("the child", MAPS, "ns1", "child", |o| owner(o) == uid).await;
    hook.quiet().await;
    assert!(hook.seen().iter().all(|seen| seen.body["children"].get("Secret.v1").is_none()));
    // Changes of these children have no effect until the parent is synced for another reason.
    hook.clear();
    let edited = world.merge(SECRETS, "ns1", "undeclared", json!({"stringData": {"a": "2"}})).await;
    world.delete(MAPS, "ns2", "far").await;
    world.merge(FOOS, "ns1", "p", json!({"metadata": {"annotations": {"poke": "1"}}})).await;
    world.sees("made again", MAPS, "ns2", "far", |o| o["metadata"]["uid"] != far["metadata"]["uid"]).await;
    when("synced once", || hook.count() == 1).await;
    assert_eq!(world.get(SECRETS, "ns1", "undeclared").await.unwrap(), edited);
    assert!(world.deletions().is_empty());
    // A kind that is not served is reported.
    hook.script(|_| Reply::Json(json!({"children": [{"apiVersion": "nowhere/v1", "kind": "Ghost", "metadata": {"name": "g", "labels": {"app": "x"}}}]})));
    world.merge(FOOS, "ns1", "p", json!({"metadata": {"annotations": {"poke": "2"}}})).await;
    world.event("SyncError", "creating undeclared Ghost g: nowhere/v1 has no kind Ghost").await;
    stop.cancel();
    allowing.await.unwrap();
    world.end().await;
}

/// MC-149, MC-171: the same for attachments of a decorator, which carry its name.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mc_149_attachments() {
    let hook = Hook::start(three).await;
    let mut world = World::start().await;
    let foos = json!({"apiVersion": "example.com/v1", "resource": "foos"});
    world.create(DECORATORS, decorator("d1", &hook.url, &["sync"], foos)).await;
    world.create(FOOS, foo("p", json!({}))).await;
    world.event("SyncError", "attachments[1]: undeclared type Secret.v1").await;
    world.stop_meta().await;
    let (stop, allowing) = world.another(Config { undeclared_children: true, ..Config::default() });
    let named =
        |o: &Value| o["metadata"]["annotations"]["metacontroller.k8s.io/decorator-controller"] == json!("d1");
    world.sees("of an undeclared kind", SECRETS, "ns1", "undeclared", named).await;
    world.sees("declared", MAPS, "ns1", "child", named).await;
    stop.cancel();
    allowing.await.unwrap();
    world.end().await;
}
