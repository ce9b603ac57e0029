//! Rolling updates and their revisions (MC §3.6).

use serde_json::{Value, json};

use crate::{
    hook::{Hook, Reply, Seen},
    world::{FOOS, SECRETS, World, app, foo, found, secret, when},
};

const SNAPSHOTS: &str = "snapshot.storage.k8s.io/v1/volumesnapshots";
const REVISIONS: &str = "metacontroller.k8s.io/v1alpha1/controllerrevisions";

async fn parent(world: &World, spec: Value) -> Value {
    world.create(FOOS, foo("p", spec)).await
}

async fn ready(world: &World, name: &str) {
    world
        .merge_status(
            SNAPSHOTS,
            "ns1",
            name,
            json!({"status": {"conditions": [{"type": "Ready", "status": "True"}]}}),
        )
        .await;
}

fn updated(reason: &'static str) -> impl Fn(&Value) -> bool {
    move |parent| {
        let list = parent["status"]["conditions"].as_array().cloned().unwrap_or_default();
        list.iter().any(|one| one["type"] == json!("Updated") && one["reason"] == json!(reason))
    }
}

/// Three children `a`, `b`, `c` with the parent's template and size.
fn three(seen: &Seen) -> Reply {
    let parent = &seen.body["parent"];
    let labels = &parent["spec"]["selector"]["matchLabels"];
    let children: Vec<_> = ["a", "b", "c"]
        .iter()
        .map(|name| {
            json!({"apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshot",
                "metadata": {"name": name, "labels": labels, "annotations": {"size": parent["spec"]["size"]}},
                "spec": {"v": parent["spec"]["template"]["v"]}})
        })
        .collect();
    Reply::Json(json!({"children": children, "status": {"seen": true}}))
}

/// MC-A-75, MC-A-76, MC-150 to MC-156: one child at a time, each after the previous one is ready. A child
/// that is deleted in between comes back at its old revision. Other fields apply at once and create no
/// revision. Tested with both versions of hooks, whose names of children differ.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mc_a_75_rolling_recreate() {
    for version in ["v1", "v2"] {
        let hook = Hook::start(three).await;
        let strategy = json!({"method": "RollingRecreate", "statusChecks": {"conditions": [{"type": "Ready", "status": "True"}]}});
        let more = json!({
            "parentResource": {"apiVersion": "example.com/v1", "resource": "foos", "revisionHistory": {"fieldPaths": ["spec.template"]}},
            "childResources": [{"apiVersion": "snapshot.storage.k8s.io/v1", "resource": "volumesnapshots", "updateStrategy": strategy}],
            "hooks": {"sync": {"version": version, "webhook": {"url": format!("{}/sync", hook.url)}}},
        });
        let world = World::with_composite(&hook.url, &[], more).await;
        parent(&world, json!({"selector": app("x"), "size": "s", "template": {"v": "1"}})).await;
        world.has(SNAPSHOTS, "ns1", vec!["a", "b", "c"]).await;
        for name in ["a", "b", "c"] {
            ready(&world, name).await;
        }
        world.sees("all at the latest", FOOS, "ns1", "p", updated("OnLatestRevision")).await;
        assert_eq!(world.names(REVISIONS, "ns1").await.len(), 1);
        hook.quiet().await;
        world.merge(FOOS, "ns1", "p", json!({"spec": {"template": {"v": "2"}}})).await;
        let at = |v: &'static str| move |o: &Value| o["spec"]["v"] == json!(v);
        world.sees("a is moved", SNAPSHOTS, "ns1", "a", at("2")).await;
        world.sees("waiting for a", FOOS, "ns1", "p", updated("RolloutWaiting")).await;
        let revisions = world.list(REVISIONS, "ns1").await;
        assert_eq!(revisions.len(), 2);
        let mut held: Vec<_> =
            revisions.iter().map(|r| r["children"][0]["names"].as_array().unwrap().len()).collect();
        held.sort_unstable();
        assert_eq!(held, [1, 2]);
        let lost = world.get(SNAPSHOTS, "ns1", "c").await.unwrap();
        world.delete(SNAPSHOTS, "ns1", "c").await;
        let back = world
            .sees("c is back", SNAPSHOTS, "ns1", "c", |o| o["metadata"]["uid"] != lost["metadata"]["uid"])
            .await;
        assert_eq!(back["spec"]["v"], json!("1"));
        ready(&world, "c").await;
        hook.quiet().await;
        assert_eq!(world.get(SNAPSHOTS, "ns1", "b").await.unwrap()["spec"]["v"], json!("1"));
        ready(&world, "a").await;
        world.sees("b is moved", SNAPSHOTS, "ns1", "b", at("2")).await;
        hook.quiet().await;
        assert_eq!(world.get(SNAPSHOTS, "ns1", "c").await.unwrap()["spec"]["v"], json!("1"));
        ready(&world, "b").await;
        world.sees("c is moved", SNAPSHOTS, "ns1", "c", at("2")).await;
        ready(&world, "c").await;
        let done = world.sees("all at the latest", FOOS, "ns1", "p", updated("OnLatestRevision")).await;
        assert_eq!(done["status"]["seen"], json!(true));
        world.has(REVISIONS, "ns1", vec![world.names(REVISIONS, "ns1").await.last().unwrap()]).await;
        world.end().await;
    }
}

/// MC-A-76, MC-150, MC-155: fields outside of the revision apply to all children at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mc_a_76_other_fields_apply_at_once() {
    let hook = Hook::start(three).await;
    let more = json!({
        "parentResource": {"apiVersion": "example.com/v1", "resource": "foos", "revisionHistory": {"fieldPaths": ["spec.template"]}},
        "childResources": [{"apiVersion": "snapshot.storage.k8s.io/v1", "resource": "volumesnapshots", "updateStrategy": {"method": "RollingInPlace"}}],
    });
    let world = World::with_composite(&hook.url, &["sync"], more).await;
    parent(&world, json!({"selector": app("x"), "size": "s", "template": {"v": "1"}})).await;
    world.has(SNAPSHOTS, "ns1", vec!["a", "b", "c"]).await;
    world.sees("all at the latest", FOOS, "ns1", "p", updated("OnLatestRevision")).await;
    hook.quiet().await;
    let revision = world.names(REVISIONS, "ns1").await;
    world.merge(FOOS, "ns1", "p", json!({"spec": {"size": "m"}})).await;
    for name in ["a", "b", "c"] {
        world
            .sees("the new size", SNAPSHOTS, "ns1", name, |o| {
                o["metadata"]["annotations"]["size"] == json!("m")
            })
            .await;
    }
    hook.quiet().await;
    assert_eq!(world.names(REVISIONS, "ns1").await, revision);
    world.merge(FOOS, "ns1", "p", json!({"spec": {"template": {"v": "2"}}})).await;
    for name in ["a", "b", "c"] {
        world.sees("the new template", SNAPSHOTS, "ns1", name, |o| o["spec"]["v"] == json!("2")).await;
    }
    world.sees("all at the latest", FOOS, "ns1", "p", updated("OnLatestRevision")).await;
    found("one revision", || async { (world.names(REVISIONS, "ns1").await.len() == 1).then_some(()) }).await;
    world.end().await;
}

/// A CompositeController whose children are rolled one after the other when the template of their parent
/// changes, each after the previous one is ready.
fn rolling() -> Value {
    let strategy = json!({"method": "RollingRecreate", "statusChecks": {"conditions": [{"type": "Ready", "status": "True"}]}});
    json!({
        "parentResource": {"revisionHistory": {"fieldPaths": ["spec.template"]}},
        "childResources": [{"apiVersion": "snapshot.storage.k8s.io/v1", "resource": "volumesnapshots", "updateStrategy": strategy}],
    })
}

/// MC-150, MC-145: a new parent that adopts the orphaned children of a former parent also adopts the revision
/// they are at, and continues from there: one child after the other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mc_150_orphaned_revisions_are_taken_back() {
    let hook = Hook::start(three).await;
    let world = World::start().await;
    let template = json!({"spec": {"template": {"v": "1"}}});
    let claims =
        json!([{"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "names": ["a", "b", "c"]}]);
    let labels = json!({"app": "x", "metacontroller.k8s.io/apiGroup": "example.com", "metacontroller.k8s.io/resource": "foos"});
    let revision = |name: &str, labels: &Value| json!({"apiVersion": "metacontroller.k8s.io/v1alpha1", "kind": "ControllerRevision", "metadata": {"name": name, "namespace": "ns1", "labels": labels}, "parentPatch": template, "children": claims});
    world.create(REVISIONS, revision("left", &labels)).await;
    world.create(REVISIONS, revision("unrelated", &json!({"app": "x"}))).await;
    for name in ["a", "b", "c"] {
        let left = json!({"apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshot", "metadata": {"name": name, "namespace": "ns1", "labels": {"app": "x"}}, "spec": {"v": "1"}});
        world.create(SNAPSHOTS, left).await;
        ready(&world, name).await;
    }
    world.create(crate::world::COMPOSITES, crate::world::composite(&hook.url, &["sync"], rolling())).await;
    let p = parent(&world, json!({"selector": app("x"), "size": "s", "template": {"v": "2"}})).await;
    world.sees("a is moved", SNAPSHOTS, "ns1", "a", |o| o["spec"]["v"] == json!("2")).await;
    world.sees("waiting for a", FOOS, "ns1", "p", updated("RolloutWaiting")).await;
    hook.quiet().await;
    for name in ["b", "c"] {
        assert_eq!(world.get(SNAPSHOTS, "ns1", name).await.unwrap()["spec"]["v"], json!("1"), "{name}");
    }
    let left = world.get(REVISIONS, "ns1", "left").await.unwrap();
    assert_eq!(left["metadata"]["ownerReferences"][0]["uid"], p["metadata"]["uid"]);
    assert_eq!(left["children"][0]["names"], json!(["b", "c"]));
    let other = world.get(REVISIONS, "ns1", "unrelated").await.unwrap();
    assert!(other["metadata"].get("ownerReferences").is_none());
    world.end().await;
}

/// MC-150, MC-145: a revision that no longer has the labels is released and stays unchanged, and its children
/// go to the latest revision. The latest revision itself is repaired, because its name cannot be used twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mc_150_revisions_that_do_not_match_are_let_go() {
    let hook = Hook::start(three).await;
    let world = World::with_composite(&hook.url, &["sync"], rolling()).await;
    let template = |v: &str| json!({"v": v, "metadata": {"labels": {"app": "x"}}});
    let p = parent(&world, json!({"selector": app("x"), "size": "s", "template": template("1")})).await;
    world.has(SNAPSHOTS, "ns1", vec!["a", "b", "c"]).await;
    for name in ["a", "b", "c"] {
        ready(&world, name).await;
    }
    world.sees("all at the latest", FOOS, "ns1", "p", updated("OnLatestRevision")).await;
    let old = world.names(REVISIONS, "ns1").await.remove(0);
    world.merge(FOOS, "ns1", "p", json!({"spec": {"template": template("2")}})).await;
    world.sees("waiting for a", FOOS, "ns1", "p", updated("RolloutWaiting")).await;
    let owner = |o: &Value| o["metadata"]["ownerReferences"][0]["uid"].clone();
    assert_eq!(owner(&world.get(REVISIONS, "ns1", &old).await.unwrap()), p["metadata"]["uid"]);
    let strange = json!({"metadata": {"labels": {"app": null}}});
    let stranger = world.merge(REVISIONS, "ns1", &old, strange.clone()).await;
    let poke = |n: &'static str| world.merge(FOOS, "ns1", "p", json!({"spec": {"size": n}}));
    poke("m").await;
    let free = world.sees("let go", REVISIONS, "ns1", &old, |o| owner(o).is_null()).await;
    assert_eq!((&free["children"], &free["parentPatch"]), (&stranger["children"], &stranger["parentPatch"]));
    // A child that was at the latest revision before is recreated with the other size: only that one stays.
    let latest =
        |o: &Value| o["spec"]["v"] == json!("2") && o["metadata"]["annotations"]["size"] == json!("m");
    for name in ["a", "b", "c"] {
        world.sees("at the latest", SNAPSHOTS, "ns1", name, latest).await;
        ready(&world, name).await;
    }
    world.sees("all at the latest", FOOS, "ns1", "p", updated("OnLatestRevision")).await;
    let latest = world.names(REVISIONS, "ns1").await.into_iter().find(|name| *name != old).unwrap();
    world.merge(REVISIONS, "ns1", &latest, strange).await;
    poke("l").await;
    let repaired = world
        .sees("repaired", REVISIONS, "ns1", &latest, |o| o["metadata"]["labels"]["app"] == json!("x"))
        .await;
    assert_eq!(owner(&repaired), p["metadata"]["uid"]);
    world.sees("all at the latest", FOOS, "ns1", "p", updated("OnLatestRevision")).await;
    assert!(owner(&world.get(REVISIONS, "ns1", &old).await.unwrap()).is_null());
    world.end().await;
}

/// MC-151, MC-109: the call for each revision has the related objects that the parent requested at that
/// revision.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mc_151_each_revision_has_its_own_related_objects() {
    let hook = Hook::start(|seen| match seen.path.as_str() {
        "/customize" => {
            let name = format!("s{}", seen.body["parent"]["spec"]["template"]["v"].as_str().unwrap());
            Reply::Json(
                json!({"relatedResources": [{"apiVersion": "v1", "resource": "secrets", "names": [name]}]}),
            )
        }
        _ => three(seen),
    })
    .await;
    let world = World::with_composite(&hook.url, &["sync", "customize"], rolling()).await;
    for name in ["s1", "s2"] {
        world.create(SECRETS, secret("ns1", name, json!({"v": name}))).await;
    }
    parent(&world, json!({"selector": app("x"), "size": "s", "template": {"v": "1"}})).await;
    world.has(SNAPSHOTS, "ns1", vec!["a", "b", "c"]).await;
    for name in ["a", "b", "c"] {
        ready(&world, name).await;
    }
    world.sees("all at the latest", FOOS, "ns1", "p", updated("OnLatestRevision")).await;
    hook.quiet().await;
    hook.clear();
    world.merge(FOOS, "ns1", "p", json!({"spec": {"template": {"v": "2"}}})).await;
    world.sees("waiting for a", FOOS, "ns1", "p", updated("RolloutWaiting")).await;
    let related = |v: &str| {
        let at =
            |seen: &Seen| seen.path == "/sync" && seen.body["parent"]["spec"]["template"]["v"] == json!(v);
        let calls = hook.seen().into_iter().filter(at);
        calls.map(|seen| seen.body["related"]["Secret.v1"].clone()).collect::<Vec<_>>()
    };
    for (v, name) in [("1", "s1"), ("2", "s2")] {
        let all = related(v);
        let only = |related: &Value| related.as_object().unwrap().keys().eq([name]);
        assert!(!all.is_empty() && all.iter().all(only), "{v}: {all:?}");
    }
    // A change of an object that only the old revision requests also brings the parent back.
    let before = related("1").len();
    world.merge(SECRETS, "ns1", "s1", json!({"stringData": {"v": "new"}})).await;
    when("asked again", || related("1").len() > before).await;
    world.end().await;
}
