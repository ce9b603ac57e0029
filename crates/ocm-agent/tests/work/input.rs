//! Invalid works that users write nevertheless.

use serde_json::{Value, json};

use crate::world::*;

/// OCM-A-47; OCM-075, OCM-076, OCM-087, OCM-089, OCM-093: a manifest of an unknown kind does not delay the
/// others, and nothing is removed before it is resolved.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ocm_093_an_unknown_kind_isolates() {
    let w = World::start().await;
    let agent = w.agent(World::config()).await;
    let bad = json!({"apiVersion": "no.example/v1", "kind": "Nothing", "metadata": {"name": "x", "namespace": "sea"}});
    w.work("reef", holding(&[map("a", "1"), map("b", "1")])).await;
    w.settled("reef").await;
    w.edit("reef", holding(&[bad, map("a", "2"), map("c", "1")])).await;
    let report =
        w.reported("reef", "one fails", |w| is(&w["status"]["conditions"], "Applied", "False")).await;
    assert_eq!(
        failure(&report, 0),
        "Failed to apply manifest: the server doesn't have a resource type \"Nothing\""
    );
    let available = condition(manifest(&report, 0), "Available").expect("one");
    assert_eq!(
        (&available["status"], &available["reason"]),
        (&json!("Unknown"), &json!("IncompleteResourceMeta"))
    );
    for ordinal in [1, 2] {
        assert!(is(manifest(&report, ordinal), "Applied", "True"));
    }
    assert_eq!(w.cluster.get(MAPS, "sea", "a").await.expect("a")["data"]["a"], "2");
    // The list is updated after a pass and contains all of this one.
    let list = |a: Option<&Value>| (listed(a?) == ["a", "b", "c"]).then_some(());
    w.cluster.until(APPLIED, "", &applied_name("reef"), "all listed", list).await;
    assert!(w.cluster.get(MAPS, "sea", "b").await.is_some(), "not removed yet");
    w.edit("reef", holding(&[map("a", "2"), map("c", "1")])).await;
    w.cluster.until_gone(MAPS, "sea", "b").await;
    agent.end().await;
    w.end().await;
}

/// OCM-075, OCM-076, OCM-087: each manifest that cannot be applied has a condition with the reason; the
/// correct manifests beside it are applied, and so are other works.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ocm_087_bad_manifests_say_why() {
    let w = World::start().await;
    let agent = w.agent(World::config()).await;
    let without_name = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"namespace": "sea"}});
    let generated = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"generateName": "x-", "namespace": "sea"}});
    let nowhere = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "nowhere"}});
    let mut lost = map("lost", "1");
    lost["metadata"]["namespace"] = json!("atlantis");
    let misplaced = json!({"apiVersion": "v1", "kind": "Namespace",
        "metadata": {"name": "placed", "namespace": "sea"}});
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s", "namespace": "sea"},
        "data": {"k": "MQ=="}, "stringData": {"k": "2"}});
    let mut invalid = deployment("invalid", 1);
    invalid["spec"].as_object_mut().expect("a spec").remove("selector");
    let cases = [
        (without_name, "resource name may not be empty"),
        (generated, "resource name may not be empty"),
        (nowhere, "an empty namespace may not be set when a resource name is provided"),
        (lost, "namespaces \"atlantis\" not found"),
        (map("twice", "2"), "duplicate manifest for resource sea/twice with resource type v1.ConfigMap"),
        (secret, "Secret.stringData[k] conflicts with Secret.data[k]"),
        (invalid, "spec.selector"),
    ];
    let mut manifests = vec![map("twice", "1"), misplaced, map("good", "1")];
    manifests.extend(cases.iter().map(|(manifest, _)| manifest.clone()));
    w.work("bad", holding(&manifests)).await;
    w.work("good", holding(&[map("other", "1")])).await;
    let report = w.reported("bad", "a report", |w| is(&w["status"]["conditions"], "Applied", "False")).await;
    for (ordinal, (_, text)) in cases.iter().enumerate() {
        let message = failure(&report, 3 + ordinal);
        assert!(message.starts_with("Failed to apply manifest: ") && message.contains(text), "{message}");
    }
    for ordinal in 0..3 {
        assert!(is(manifest(&report, ordinal), "Applied", "True"), "{ordinal}: {report:#}");
    }
    let placed = &report["status"]["resourceStatus"]["manifests"][1]["resourceMeta"];
    assert_eq!(placed["namespace"], "", "a Namespace is in none");
    assert_eq!(
        w.cluster.get(MAPS, "sea", "twice").await.expect("there")["data"]["a"],
        "1",
        "the first counts"
    );
    w.settled("good").await;
    agent.end().await;
    w.end().await;
}

/// OCM-086, OCM-087: a name that is the address of another object has no access to that object: it is neither
/// read (through the feedback of a read-only manifest), nor written, nor deleted with the work.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ocm_086_names_that_are_addresses() {
    let w = World::start().await;
    let secret =
        json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "data": {"k": "MQ=="}});
    let before = w.cluster.create("v1/secrets", "sea", secret).await;
    let agent = w.agent(World::config()).await;
    let at = |namespace: &str, name: &str| {
        let mut object = map(name, "1");
        object["metadata"]["namespace"] = namespace.into();
        object
    };
    let cases = [
        (at("sea/secrets/s?", "x"), "invalid namespace \"sea/secrets/s?\": [may not contain '/']"),
        (at("sea", "../secrets/s"), "\"../secrets/s\""),
        (at("sea", "..%2fsecrets%2fs"), "\"..%2fsecrets%2fs\""),
        (at("sea", ".."), "\"..\""),
        (at("sea", "a?dryRun=All"), "metadata.name: Invalid value: \"a?dryRun=All\""),
        (at("sea", "a#b"), "metadata.name: Invalid value: \"a#b\""),
    ];
    let mut manifests: Vec<Value> = cases.iter().map(|(manifest, _)| manifest.clone()).collect();
    manifests.push(map("good", "1"));
    w.work("bad", holding(&manifests)).await;
    let report = w.reported("bad", "a report", |w| is(&w["status"]["conditions"], "Applied", "False")).await;
    for (ordinal, (_, text)) in cases.iter().enumerate() {
        let message = failure(&report, ordinal);
        assert!(message.contains(text), "{message}");
    }
    assert!(is(manifest(&report, cases.len()), "Applied", "True"), "{report:#}");
    let paths = json!([{"name": "k", "path": ".data.k"}]);
    let look = json!({"updateStrategy": {"type": "ReadOnly"}, "feedbackRules": [{"type": "JSONPaths", "jsonPaths": paths}]});
    let mut spec = holding(&[at("sea/secrets/s?", "x")]);
    let mut config = look;
    config["resourceIdentifier"] =
        json!({"group": "", "resource": "configmaps", "namespace": "*", "name": "x"});
    spec["manifestConfigs"] = json!([config]);
    w.work("spy", spec).await;
    let spied = w
        .reported("spy", "no answer", |w| {
            condition(manifest(w, 0), "Available").is_some_and(|c| c["status"] != "True")
        })
        .await;
    assert_eq!(
        spied["status"]["resourceStatus"]["manifests"][0]["statusFeedback"]["values"],
        Value::Null,
        "{spied:#}"
    );
    for name in ["bad", "spy"] {
        w.hub.delete(WORKS, CLUSTER, name).await;
        w.hub.until_gone(WORKS, CLUSTER, name).await;
    }
    assert_eq!(w.cluster.get("v1/secrets", "sea", "s").await, Some(before));
    assert_eq!(w.at_cluster.count(|line| line.contains("/secrets")), 0);
    agent.end().await;
    w.end().await;
}

/// OCM-014, OCM-087: a manifest that is not an object is refused by the hub or, if the hub accepts it, by the
/// agent; the others are applied.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ocm_014_what_is_no_object_is_refused() {
    let w = World::start().await;
    let agent = w.agent(World::config()).await;
    let cases = [
        (json!({"apiVersion": "v1", "metadata": {"name": "x"}}), "Object 'Kind' is missing in '{"),
        (json!({"kind": "ConfigMap", "metadata": {"name": "x"}}), "Object 'apiVersion' is missing in '{"),
    ];
    for (at, (bad, text)) in cases.into_iter().enumerate() {
        let name = format!("bad{at}");
        let body = work(&name, holding(&[bad.clone(), map(&name, "1")])).to_string().into_bytes();
        let answer: Result<Value, _> = w.hub.0.create(&gvr(WORKS), CLUSTER, body).await;
        if let Err(error) = answer {
            assert_eq!(runtime::failure::code_of(&error), 422, "{bad}: {error}");
            continue;
        }
        let report = w.reported(&name, "the fault", |w| is(manifest(w, 0), "Applied", "False")).await;
        assert!(failure(&report, 0).starts_with(&format!("Failed to apply manifest: {text}")), "{report:#}");
        w.cluster.until_there(MAPS, "sea", &name).await;
    }
    let body = work("text", holding(&[json!("text")])).to_string().into_bytes();
    let answer: Result<Value, _> = w.hub.0.create(&gvr(WORKS), CLUSTER, body).await;
    assert_eq!(answer.map_err(|e| runtime::failure::code_of(&e)), Err(422));
    agent.end().await;
    w.end().await;
}

/// AS-002, OCM-078: an object of the greatest depth that fits into an envelope is updated like any other,
/// although its managed fields are deeper than the object may be.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn as_002_the_deepest_object_is_changed() {
    let w = World::start().await;
    let agent = w.agent(World::config()).await;
    w.cluster.create(DEFINITIONS, "", buoys("Namespaced", false)).await;
    for (depth, round) in [(116, 1), (116, 2), (10, 3)] {
        let mut deep = buoy("deep", Some("sea"), round);
        deep["data"] = (1..depth - 1).fold(json!({"round": round}), |inner, _| json!({"a": inner}));
        match round {
            1 => drop(w.work("deep", holding(&[deep])).await),
            _ => drop(w.edit("deep", holding(&[deep])).await),
        }
        let there = |it: Option<&Value>| (it?["spec"]["depth"] == round).then_some(());
        w.cluster.until("sea.example/v1/buoys", "sea", "deep", "the change", there).await;
        w.settled("deep").await;
    }
    agent.end().await;
    w.end().await;
}

/// OCM-076, OCM-099: a work of 2 MB is applied like any other, and delays none.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ocm_076_a_large_work() {
    let w = World::start().await;
    let agent = w.agent(World::config()).await;
    let large: Vec<Value> = (0..40).map(|i| map(&format!("large{i}"), &"x".repeat(50_000))).collect();
    w.work("large", holding(&large)).await;
    w.work("small", holding(&[map("small", "1")])).await;
    w.settled("small").await;
    w.settled("large").await;
    let count = |all: &Objects| {
        let large = all.keys().filter(|key| key.name.starts_with("large")).count();
        (large == 40).then_some(())
    };
    w.cluster.until_all(MAPS, "sea", "all of it", count).await;
    agent.end().await;
    w.end().await;
}

/// OCM-014, OCM-015: a work whose name is too long for its AppliedManifestWork reports that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ocm_015_a_name_that_is_too_long() {
    let w = World::start().await;
    let agent = w.agent(World::config()).await;
    let name = "n".repeat(200);
    w.work(&name, holding(&[map("a", "1")])).await;
    let report = w.reported(&name, "the fault", |w| is(&w["status"]["conditions"], "Applied", "False")).await;
    let message = condition(&report["status"]["conditions"], "Applied").expect("one")["message"].clone();
    assert!(message.as_str().expect("text").contains("no more than 253"), "{message}");
    agent.end().await;
    w.end().await;
}
