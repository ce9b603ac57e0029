//! CRDs that are created late, deleted and recreated while controllers run.

use serde_json::{Value, json};

use crate::{
    hook::{Hook, Reply, Seen, copy_of, keeper},
    world::{
        COMPOSITES, CONTROLLERS, CRDS, DECORATORS, MAPS, World, app, composite, controller, crd, decorator,
        found, in_place, map, open, when,
    },
};

const LATES: &str = "example.com/v1/lates";
const KIDS: &str = "example.com/v1/kids";
const AIDS: &str = "example.com/v1/aids";

fn late(status: bool) -> Value {
    let mut definition = crd("Late", "lates", "example.com", "Namespaced", open());
    if !status {
        definition["spec"]["versions"][0]["subresources"] = json!({});
    }
    definition
}

fn of_lates() -> Value {
    json!({"parentResource": {"apiVersion": "example.com/v1", "resource": "lates"}})
}

/// A parent of `example.com` that selects `app=x`.
fn parent(kind: &str, name: &str) -> Value {
    json!({"apiVersion": "example.com/v1", "kind": kind, "metadata": {"name": name, "namespace": "ns1"}, "spec": {"selector": app("x")}})
}

/// One ConfigMap `<parent>-child`.
fn child(seen: &Seen) -> Reply {
    let name = format!("{}-child", seen.body["parent"]["metadata"]["name"].as_str().unwrap());
    Reply::Json(json!({"children": [map("ns1", &name, json!({"app": "x"}), "1")], "status": {"seen": true}}))
}

/// Waits until Metacontroller has sent this many more discovery requests for `example.com`.
async fn asked(world: &World, times: usize) {
    let count = || world.reads().iter().filter(|path| **path == "/apis/example.com/v1").count();
    let wanted = count() + times;
    when("asked for again", || count() >= wanted).await;
}

/// MC-141: a missing CRD of a parent resource is waited for without a report, and no existing object is
/// changed; once it exists, the controller starts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mc_141_a_missing_definition_is_waited_for() {
    let hook = Hook::start(child).await;
    let world = World::with_composite(&hook.url, &["sync"], of_lates()).await;
    let mut left = map("ns1", "left", json!({"app": "x"}), "1");
    left["metadata"]["ownerReferences"] = json!([{"apiVersion": "example.com/v1", "kind": "Late", "name": "p", "uid": "gone", "controller": true}]);
    let left = world.create(MAPS, left).await;
    asked(&world, 3).await;
    assert!(world.get(COMPOSITES, "", "cc1").await.unwrap().get("status").is_none());
    world.define(late(true)).await;
    world.event("Started", "Started controller: cc1").await;
    world.create(LATES, parent("Late", "p")).await;
    world.sees("the child", MAPS, "ns1", "p-child", |_| true).await;
    world.status(LATES, "ns1", "p", json!({"seen": true, "observedGeneration": 1})).await;
    for reason in ["CreateError", "SyncError"] {
        assert_eq!(world.events(reason).await, Vec::<Value>::new(), "{reason}");
    }
    assert_eq!(world.deletions(), Vec::<Value>::new());
    assert_eq!(world.get(MAPS, "ns1", "left").await.unwrap(), left);
    world.end().await;
}

/// MC-141: that parents have no status is reported once, however often it is checked; with a status the
/// controller starts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mc_141_a_missing_status_is_said_once() {
    let hook = Hook::start(child).await;
    let world = World::start().await;
    world.define(late(false)).await;
    world.create(COMPOSITES, composite(&hook.url, &["sync"], of_lates())).await;
    world.event("SyncError", "does not have subresource 'Status' enabled").await;
    asked(&world, 3).await;
    let mut with_status = late(true);
    with_status["spec"]["versions"][0]["name"] = json!("v1");
    world
        .merge(CRDS, "", "lates.example.com", json!({"spec": {"versions": with_status["spec"]["versions"]}}))
        .await;
    world.event("Started", "Started controller: cc1").await;
    let said = world.events("SyncError").await;
    assert_eq!(said.iter().map(|event| event["count"].as_u64().unwrap_or(1)).sum::<u64>(), 1, "{said:?}");
    assert_eq!(world.events("CreateError").await, Vec::<Value>::new());
    world.create(LATES, parent("Late", "p")).await;
    found("the child", || world.get(MAPS, "ns1", "p-child")).await;
    world.end().await;
}

fn plain(kind: &str, plural: &str) -> Value {
    crd(kind, plural, "example.com", "Namespaced", open())
}

/// A world whose CRDs can be deleted: those of parents, children and related objects.
async fn world_of_three() -> World {
    let mut world = World::start().await;
    world.collect_garbage().await;
    for (kind, plural) in [("Late", "lates"), ("Kid", "kids"), ("Aid", "aids")] {
        world.define(plain(kind, plural)).await;
    }
    world
}

/// Deletes a CRD and waits until Metacontroller has noticed that its objects are not served.
async fn remove(world: &World, plural: &str) {
    let path = format!("/apis/example.com/v1/{plural}?");
    let lists = || {
        let reads = world.reads();
        reads.iter().filter(|read| read.starts_with(&path) && read.contains("sendInitialEvents")).count()
    };
    let before = lists();
    world.undefine(&format!("{plural}.example.com")).await;
    // The watch is started again only after it was refused.
    when("the watch is begun anew", || lists() > before).await;
}

/// A Kid and a ConfigMap for each parent, named after it, with its related object.
fn both(seen: &Seen, parent: &str, children: &str) -> Reply {
    if seen.path == "/customize" {
        let aids = json!({"apiVersion": "example.com/v1", "resource": "aids"});
        return Reply::Json(json!({"relatedResources": [aids]}));
    }
    let name = seen.body[parent]["metadata"]["name"].as_str().unwrap();
    let related = seen.body["related"]["Aid.example.com/v1"].as_object().map_or(0, |aids| aids.len());
    let kid = json!({"apiVersion": "example.com/v1", "kind": "Kid", "metadata": {"name": name, "labels": {"app": "x"}}});
    let map = map("ns1", name, json!({"app": "x"}), "1");
    Reply::Json(json!({children: [kid, map], "status": {"related": related}}))
}

fn aid(name: &str) -> Value {
    json!({"apiVersion": "example.com/v1", "kind": "Aid", "metadata": {"name": name, "namespace": "ns1"}})
}

/// Deletes the CRDs one after the other, that of the children first, and recreates them: other objects stay
/// unchanged, the hook is not called without end, and everything works again. `hook` answers like [`both`].
async fn comes_and_goes(world: &World, hook: &Hook) {
    let synced = |related: usize| move |o: &Value| o["status"]["related"] == json!(related);
    world.create(LATES, parent("Late", "p")).await;
    let kept = world.sees("the ConfigMap", MAPS, "ns1", "p", |_| true).await;
    world.sees("the Kid", KIDS, "ns1", "p", |_| true).await;
    world.sees("the status", LATES, "ns1", "p", synced(0)).await;
    hook.quiet().await;

    hook.clear();
    remove(world, "kids").await;
    assert_eq!(world.get(MAPS, "ns1", "p").await.unwrap()["metadata"]["uid"], kept["metadata"]["uid"]);
    world.define(plain("Kid", "kids")).await;
    world.sees("the Kid", KIDS, "ns1", "p", |_| true).await;
    hook.quiet().await;
    assert!(hook.count() < 100, "{}", hook.count());

    hook.clear();
    remove(world, "aids").await;
    world.merge(LATES, "ns1", "p", json!({"spec": {"more": 1}})).await;
    world.event("SyncError", "aids of example.com/v1 is not served").await;
    world.define(plain("Aid", "aids")).await;
    world.create(AIDS, aid("one")).await;
    world.sees("what is related", LATES, "ns1", "p", synced(1)).await;
    hook.quiet().await;
    assert!(hook.count() < 100, "{}", hook.count());
    assert_eq!(world.get(MAPS, "ns1", "p").await.unwrap()["metadata"]["uid"], kept["metadata"]["uid"]);

    hook.clear();
    remove(world, "lates").await;
    // The garbage collector handles its children.
    hook.quiet().await;
    assert!(hook.count() < 100, "{}", hook.count());
    world.define(plain("Late", "lates")).await;
    world.create(LATES, parent("Late", "q")).await;
    world.sees("the ConfigMap", MAPS, "ns1", "q", |_| true).await;
    world.sees("the Kid", KIDS, "ns1", "q", |_| true).await;
    world.sees("the status", LATES, "ns1", "q", synced(1)).await;
    assert_eq!(world.deletions(), Vec::<Value>::new(), "nobody wanted any");
}

/// MC-142, MC-145: the CRDs of parents, children and related objects of a CompositeController are deleted and
/// recreated.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mc_142_definitions_go_and_come_back_composite() {
    let world = world_of_three().await;
    let hook = Hook::start(|seen| both(seen, "parent", "children")).await;
    let children = [in_place("example.com/v1", "kids"), in_place("v1", "configmaps")];
    let more = json!({"parentResource": {"apiVersion": "example.com/v1", "resource": "lates"}, "childResources": children});
    world.create(COMPOSITES, composite(&hook.url, &["sync", "customize"], more)).await;
    comes_and_goes(&world, &hook).await;
    world.end().await;
}

/// MC-170, MC-176: the same with a DecoratorController.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mc_176_definitions_go_and_come_back_decorator() {
    let world = world_of_three().await;
    let hook = Hook::start(|seen| both(seen, "object", "attachments")).await;
    let lates = json!({"apiVersion": "example.com/v1", "resource": "lates"});
    let mut object = decorator("dc1", &hook.url, &["sync", "customize"], lates);
    object["spec"]["attachments"] = json!([in_place("example.com/v1", "kids"), in_place("v1", "configmaps")]);
    world.create(DECORATORS, object).await;
    comes_and_goes(&world, &hook).await;
    world.end().await;
}

/// MC-005, MC-018: the CRDs of outputs, inputs and parents of a MapController are deleted and recreated. Its
/// condition names what is missing. Outputs that its tombstone hook keeps stay, although the inputs were
/// deleted with their CRD.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mc_018_definitions_go_and_come_back_map() {
    let world = world_of_three().await;
    let hook = Hook::start(|seen| match seen.path.as_str() {
        "/map" => {
            let parent = seen.body["parent"]["metadata"]["name"].as_str().unwrap();
            Reply::Json(copy_of(seen, |name| format!("{parent}-{name}")))
        }
        _ => keeper(seen),
    })
    .await;
    let more = json!({
        "parentResource": {"apiVersion": "example.com/v1", "resource": "lates"},
        "inputResources": [{"apiVersion": "example.com/v1", "resource": "aids"}],
        "outputResources": [in_place("v1", "configmaps")],
    });
    world.create(CONTROLLERS, controller("mc1", &hook.url, more)).await;
    world.reason("mc1", "Running").await;
    world.create(LATES, parent("Late", "p")).await;
    let mut input = aid("one");
    input["metadata"]["labels"] = json!({"app": "x"});
    world.create(AIDS, input.clone()).await;
    let kept = world.sees("the output", MAPS, "ns1", "p-one", |_| true).await;
    let detached =
        |n: u64| move |o: &Value| o["status"]["outputs"]["configmaps"]["detached"].as_u64().unwrap_or(0) == n;
    hook.quiet().await;

    hook.clear();
    remove(&world, "aids").await;
    let why = world.reason("mc1", "InputUnavailable").await;
    assert!(
        why["status"]["conditions"][0]["message"].as_str().unwrap().contains("aids.example.com"),
        "{why}"
    );
    world.sees("it is counted as detached", LATES, "ns1", "p", detached(1)).await;
    world.define(plain("Aid", "aids")).await;
    world.reason("mc1", "Running").await;
    world.create(AIDS, input).await;
    world.sees("it is mapped again", LATES, "ns1", "p", detached(0)).await;
    let now = world.get(MAPS, "ns1", "p-one").await.unwrap();
    assert_eq!(now["metadata"]["uid"], kept["metadata"]["uid"]);
    hook.quiet().await;
    assert!(hook.count() < 100, "{}", hook.count());

    hook.clear();
    remove(&world, "lates").await;
    world.reason("mc1", "InputUnavailable").await;
    world.define(plain("Late", "lates")).await;
    world.reason("mc1", "Running").await;
    world.create(LATES, parent("Late", "q")).await;
    world.sees("the output", MAPS, "ns1", "q-one", |_| true).await;
    hook.quiet().await;
    assert!(hook.count() < 100, "{}", hook.count());
    assert_eq!(world.deletions(), Vec::<Value>::new(), "nobody wanted any");
    world.end().await;
}

/// MC-141, MC-142: a CRD that is recreated with another definition is used in its new form.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mc_142_a_definition_comes_back_otherwise() {
    let world = world_of_three().await;
    let hook = Hook::start(child).await;
    world.create(COMPOSITES, composite(&hook.url, &["sync"], of_lates())).await;
    world.create(LATES, parent("Late", "p")).await;
    world.sees("the child", MAPS, "ns1", "p-child", |_| true).await;
    remove(&world, "lates").await;
    world.define(late(false)).await;
    world.event("SyncError", "does not have subresource 'Status' enabled").await;
    let versions = late(true)["spec"]["versions"].clone();
    world.merge(CRDS, "", "lates.example.com", json!({"spec": {"versions": versions}})).await;
    found("started again", || async { (started(&world).await >= 2).then_some(()) }).await;
    world.create(LATES, parent("Late", "q")).await;
    world.status(LATES, "ns1", "q", json!({"seen": true, "observedGeneration": 1})).await;
    assert_eq!(world.deletions(), Vec::<Value>::new());
    world.end().await;
}

/// Returns how often a controller has started.
async fn started(world: &World) -> u64 {
    world.events("Started").await.iter().map(|event| event["count"].as_u64().unwrap_or(1)).sum()
}
