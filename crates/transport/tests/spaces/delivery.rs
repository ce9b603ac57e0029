//! What appears in the mailboxes and what does not.

use std::{sync::Arc, time::Duration};

use kubestellar_transport::{
    Config,
    plugin::{Transport, bundle::Bundle},
    shard::Limits,
};
use serde_json::{Value, json};
use testkit::wait::until;

use crate::scene::*;

/// KS-A-19: a CustomTransform created, changed and deleted after delivery (KS-092, KS-104), its errors
/// (KS-115, KS-116), and a second one for the same resource (KS-117). The WDS object is not changed (KS-107).
#[tokio::test(flavor = "multi_thread")]
async fn ks_092_custom_transforms_change_what_is_delivered() {
    let all = Running::start().await;
    all.map("m", json!({"note/x": "1"}), json!({"keep": "1", "secret": "2", "other": "3"})).await;
    all.bind(&["m"], &["atlas", "boreas"]).await;
    all.mailbox("atlas", |it| value(it, "m.secret") == Some("2")).await;
    let body = |name: &str, remove: Value| {
        json!({"apiVersion": "control.kubestellar.io/v1alpha1", "kind": "CustomTransform",
            "metadata": {"name": name}, "spec": {"apiGroup": "", "resource": "configmaps", "remove": remove}})
    };
    all.wds.post(TRANSFORMS, body("strip-a", json!(["$.data.secret"]))).await;
    for cluster in ["atlas", "boreas"] {
        let mailbox = all.mailbox(cluster, |it| value(it, "m.secret").is_none()).await;
        assert_eq!(value(&mailbox, "m.other"), Some("3"));
    }
    all.wds.post(TRANSFORMS, body("strip-b", json!(["$", "$.data.a[0]", "$.data.other"]))).await;
    all.mailbox("boreas", |it| value(it, "m.secret").is_none() && value(it, "m.other").is_none()).await;
    let warned = |it: Option<&Value>| {
        it.is_some_and(|it| {
            it["status"]["warnings"][0].as_str().is_some_and(|w| w.contains("strip-a, strip-b"))
        })
    };
    all.wds.until_any(&format!("{TRANSFORMS}/strip-a"), warned).await;
    let second = all.wds.until_any(&format!("{TRANSFORMS}/strip-b"), warned).await.unwrap();
    assert_eq!(
        second["status"]["errors"],
        json!([
            "Invalid spec.remove[0]: it identifies the whole object",
            "Error in spec.remove[1]: syntax error at 9: expected open quote, got '0'"
        ])
    );
    assert_eq!(second["status"]["observedGeneration"], second["metadata"]["generation"]);
    let original = all.wds.get(&format!("{MAPS}/m")).await.unwrap();
    assert_eq!(original["data"], json!({"keep": "1", "secret": "2", "other": "3"}));
    all.wds.delete(&format!("{TRANSFORMS}/strip-a")).await;
    all.mailbox("atlas", |it| value(it, "m.secret") == Some("2") && value(it, "m.other").is_none()).await;
    let calm = |it: Option<&Value>| it.is_some_and(|it| it["status"].get("warnings").is_none());
    all.wds.until_any(&format!("{TRANSFORMS}/strip-b"), calm).await;
    let path = format!("{TRANSFORMS}/strip-b");
    all.wds.patch(&path, json!({"spec": {"resource": "secrets"}})).await;
    all.mailbox("atlas", |it| value(it, "m.other") == Some("3")).await;
    assert!(all.observed().await.is_empty());
    all.end().await;
}

/// KS-A-21: expansion with a property ConfigMap, its precedence, a change in one WEC only (KS-133), a missing
/// property that freezes the delivery (KS-096, KS-127) and the return of that property.
#[tokio::test(flavor = "multi_thread")]
async fn ks_096_template_errors_freeze_and_properties_propagate() {
    let all = Running::start().await;
    let property = |cluster: &str, data: Value| json!({"metadata": {"name": cluster}, "data": data});
    all.its.post(PROPERTIES, property("atlas", json!({"siteId": "a17"}))).await;
    all.its.post(PROPERTIES, property("boreas", json!({"siteId": "b42"}))).await;
    let url = json!({"url": "https://{{.clusterName}}-{{.siteId}}.example/"});
    all.map("site", json!({TEMPLATED: "true"}), url.clone()).await;
    all.map("raw", json!({TEMPLATED: "yes"}), url).await;
    all.bind(&["raw", "site"], &["atlas", "boreas"]).await;
    let site = |it: &Mailbox, url: &str| value(it, "site.url") == Some(url);
    let atlas = all.mailbox("atlas", |it| site(it, "https://atlas-a17.example/")).await;
    assert_eq!(value(&atlas, "raw.url"), Some("https://{{.clusterName}}-{{.siteId}}.example/"));
    all.mailbox("boreas", |it| site(it, "https://boreas-b42.example/")).await;
    assert!(all.observed().await.is_empty());

    let untouched = all.versions("boreas").await;
    all.its.patch(&format!("{PROPERTIES}/atlas"), json!({"data": {"siteId": "a18"}})).await;
    all.mailbox("atlas", |it| site(it, "https://atlas-a18.example/")).await;
    let atlas = format!("{CLUSTERS}/atlas");
    all.its.patch(&atlas, json!({"metadata": {"labels": {"siteId": "label"}}})).await;
    all.its.patch(&atlas, json!({"metadata": {"annotations": {"siteId": "annotation"}}})).await;
    all.its.patch(&format!("{PROPERTIES}/atlas"), json!({"data": {"siteId": null}})).await;
    all.mailbox("atlas", |it| site(it, "https://atlas-annotation.example/")).await;
    all.its.patch(&atlas, json!({"metadata": {"annotations": {"siteId": null}}})).await;
    all.mailbox("atlas", |it| site(it, "https://atlas-label.example/")).await;
    assert_eq!(all.versions("boreas").await, untouched, "not concerned, not written");

    all.its.delete(&format!("{PROPERTIES}/boreas")).await;
    let errors = all.errors(|errors| !errors.is_empty()).await;
    assert_eq!(errors.len(), 1);
    for part in ["boreas", "ConfigMap(shop/site)", ".data.url", "siteId"] {
        assert!(errors[0].contains(part), "{part}: {}", errors[0]);
    }
    all.map("unrelated", json!({}), json!({"a": "1"})).await;
    all.bind(&["raw", "site", "unrelated"], &["atlas", "boreas"]).await;
    assert_eq!(all.observed().await.len(), 1);
    let frozen = all.mailbox("atlas", |_| true).await;
    assert!(site(&frozen, "https://atlas-label.example/") && value(&frozen, "unrelated").is_none());
    assert_eq!(all.versions("boreas").await, untouched, "what was there stays");
    all.bind(&["raw", "site", "unrelated"], &["boreas"]).await;
    all.mailbox("atlas", Mailbox::is_empty).await;

    all.its.post(PROPERTIES, property("boreas", json!({"siteId": "back"}))).await;
    all.mailbox("boreas", |it| {
        site(it, "https://boreas-back.example/") && value(it, "unrelated.a").is_some()
    })
    .await;
    assert!(all.errors(<[String]>::is_empty).await.is_empty());
    all.end().await;
}

/// KS-A-22: two objects in each envelope, then another destination, then none; KS-146: other options after a
/// restart; KS-142: a removal moves no other object.
#[tokio::test(flavor = "multi_thread")]
async fn ks_142_sharding_is_stable_and_converges() {
    let names: Vec<String> = (0..10).map(|n| format!("m{n}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut all = Running::with(|config| Config { limits: Limits::hard(1, 512_000), ..config }).await;
    for name in &names {
        all.map(name, json!({}), json!({"text": "x".repeat(500)})).await;
    }
    all.bind(&names, &["atlas"]).await;
    let singles = all.mailbox("atlas", |it| it.len() == 10).await;
    assert!(singles.keys().all(|name| name.len() == 36 + 6 + 36 && name.contains("-wds1-")), "named by UIDs");
    all.restart(|config| Config { limits: Limits::hard(2, 512_000), ..config }).await;
    let pairs = all.mailbox("atlas", |it| it.len() == 5).await;
    assert_eq!(objects(&pairs).len(), 10);
    assert!(pairs.keys().all(|name| name.starts_with("b-wds1-")));

    let before = all.versions("atlas").await;
    all.wds.delete(&format!("{MAPS}/m0")).await;
    all.bind(&names[1..], &["atlas"]).await;
    let after = all.mailbox("atlas", |it| objects(it).len() == 9).await;
    for (name, held) in &after {
        let stays: Vec<_> = pairs[name].keys().filter(|key| !key.starts_with("m0")).collect();
        assert_eq!(held.keys().collect::<Vec<_>>(), stays, "{name}: nobody moved");
    }
    let written = all.versions("atlas").await.into_iter().filter(|(name, v)| before.get(name) != Some(v));
    assert_eq!(written.count(), 1);

    all.bind(&names[1..], &["boreas"]).await;
    all.mailbox("atlas", Mailbox::is_empty).await;
    all.mailbox("boreas", |it| it.len() == 5).await;
    all.restart(|config| Config { limits: Limits::hard(512_000, 1000), ..config }).await;
    all.mailbox("boreas", |it| it.len() == 9).await;
    all.wds.delete(&format!("{BINDINGS}/b")).await;
    all.wds.until_any(&format!("{BINDINGS}/b"), |it| it.is_none()).await;
    all.mailbox("boreas", Mailbox::is_empty).await;
    all.end().await;
}

/// KS-078, KS-091, KS-144: one changed object of many costs one write for each destination. A restart or a
/// mere change of the generation costs none. Annotations follow later.
#[tokio::test(flavor = "multi_thread")]
async fn ks_091_a_change_costs_one_write_for_each_destination() {
    let names: Vec<String> = (0..150).map(|n| format!("m{n:03}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut all = Running::start().await;
    for name in &names {
        all.map(name, json!({}), json!({"a": "1"})).await;
    }
    all.bind(&names, &["atlas", "boreas"]).await;
    for cluster in ["atlas", "boreas"] {
        let mailbox = all.mailbox(cluster, |it| objects(it).len() == 150).await;
        assert!(mailbox.len() > 2, "several envelopes");
    }
    all.observed().await;
    let revision = || all.its.space.server().store().revision().0;
    let before = revision();
    all.wds.patch(&format!("{MAPS}/m077"), json!({"data": {"a": "2"}})).await;
    all.bind(&names, &["atlas", "boreas"]).await;
    all.observed().await;
    assert_eq!(revision(), before + 2, "one envelope for each of two destinations");
    all.wds
        .patch(
            &format!("{MAPS}/m078"),
            json!({"metadata": {"annotations": {"kubectl.kubernetes.io/last-applied-configuration": "x"}}}),
        )
        .await;
    let binding = all.bind(&names, &["boreas", "atlas"]).await;
    all.observed().await;
    assert_eq!(revision(), before + 2, "nothing changed but the generation");
    let generation = binding["metadata"]["generation"].to_string();
    let annotation = "transport.kubestellar.io/originOwnerReferenceBindingGeneration";
    let old = all.its.get(&works("atlas")).await.unwrap();
    let of = |work: &Value| text(&work["metadata"]["annotations"][annotation]);
    assert!(old["items"].as_array().unwrap().iter().all(|work| !of(work).is_empty()), "KS-144");
    all.restart(|config| Config {
        refresh_after: Duration::from_millis(20),
        refresh_pause: Duration::from_millis(1),
        ..config
    })
    .await;
    let current =
        |it: &Value| it["items"].as_array().is_some_and(|works| works.iter().all(|w| of(w) == generation));
    for cluster in ["atlas", "boreas"] {
        all.its.until_any(&works(cluster), |it| it.is_some_and(current)).await;
    }
    all.end().await;
}

/// KS-084: any change of an envelope by another client is repaired, also in a mailbox that was in order.
/// KS-093: a missing mailbox does not stop the others. KS-141: an object that is too large is reported, and
/// the others arrive. KS-088: an object that no longer exists is left out.
#[tokio::test(flavor = "multi_thread")]
async fn ks_084_tampering_is_repaired_and_ks_093_failures_are_apart() {
    let all = Running::with(|config| Config { limits: Limits::hard(100, 5000), ..config }).await;
    all.map("a", json!({}), json!({"k": "1"})).await;
    all.map("large", json!({}), json!({"k": "x".repeat(6000)})).await;
    all.bind(&["a", "large", "vanished"], &["atlas", "boreas", "nowhere"]).await;
    let mailbox = all.mailbox("boreas", |it| !it.is_empty()).await;
    assert_eq!(objects(&mailbox), ["a"]);
    let errors = all.errors(|errors| errors.len() == 2).await;
    assert!(errors[0].starts_with("ConfigMap(shop/large): size "), "{errors:?}");
    assert!(errors[0].ends_with(" exceeds the maximum 5000"), "{errors:?}");
    assert!(errors[1].starts_with("destination nowhere: ") && errors[1].contains("nowhere"), "{errors:?}");
    all.bind(&["a"], &["atlas", "boreas"]).await;
    assert!(all.observed().await.is_empty());

    let work = "/apis/work.open-cluster-management.io/v1/namespaces/boreas/manifestworks/b-wds1-0";
    let right = |it: Option<&Value>| {
        it.is_some_and(|it| {
            it["spec"]["workload"]["manifests"][0]["data"] == json!({"k": "1"})
                && it["metadata"]["labels"].as_object().is_some_and(|labels| labels.len() == 2)
                && it["spec"].get("deleteOption").is_none()
        })
    };
    all.its.until_any(work, right).await;
    let other =
        json!([{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "namespace": "shop"}}]);
    for tampering in [
        json!({"spec": {"workload": {"manifests": other}}}),
        json!({"metadata": {"labels": {"more": "x"}}}),
        json!({"spec": {"deleteOption": {"propagationPolicy": "Orphan"}}}),
    ] {
        all.its.patch(work, tampering).await;
        all.its.until_any(work, right).await;
    }
    let uid = all.its.get(work).await.unwrap()["metadata"]["uid"].clone();
    all.its.delete(work).await;
    all.its.until_any(work, |it| right(it) && it.is_some_and(|it| it["metadata"]["uid"] != uid)).await;
    all.end().await;
}

/// A mailbox that its hub empties, because the cluster is being deleted, is not filled again until the
/// cluster is back (KS-057, KS-084).
#[tokio::test(flavor = "multi_thread")]
async fn ks_084_the_mailbox_of_a_cluster_that_goes_stays_empty() {
    let all = Running::start().await;
    all.map("a", json!({}), json!({"k": "1"})).await;
    all.bind(&["a"], &["atlas", "boreas"]).await;
    all.mailbox("atlas", |it| !it.is_empty()).await;
    all.mailbox("boreas", |it| !it.is_empty()).await;
    let atlas = format!("{CLUSTERS}/atlas");
    all.its.patch(&atlas, json!({"metadata": {"finalizers": ["example.com/hold"]}})).await;
    all.its.delete(&atlas).await;
    // The test deletes in place of the hub. The controller may still know an older state of the cluster, so
    // this is repeated until the mailbox stays empty.
    let path = "/apis/work.open-cluster-management.io/v1/namespaces/atlas/manifestworks/b-wds1-0";
    until("a report that the envelope is being deleted", async || {
        if all.its.get(path).await.is_some() {
            all.its.delete(path).await;
        }
        let status = all.wds.get(&format!("{BINDINGS}/b")).await.unwrap()["status"]["errors"].clone();
        let errors = serde_json::from_value::<Vec<String>>(status).unwrap_or_default();
        errors.iter().any(|line| line.contains("is being deleted"))
    })
    .await;
    all.map("more", json!({}), json!({"k": "1"})).await;
    all.bind(&["a", "more"], &["atlas", "boreas"]).await;
    all.mailbox("boreas", |it| value(it, "more").is_some()).await;
    assert_eq!(
        all.observed().await,
        ["destination atlas: its ManagedCluster is being deleted; nothing new goes there"]
    );
    assert!(all.mailbox("atlas", |_| true).await.is_empty());
    all.its.patch(&atlas, json!({"metadata": {"finalizers": null}})).await;
    all.mailbox("atlas", |it| value(it, "more").is_some()).await;
    assert!(all.errors(<[String]>::is_empty).await.is_empty());
    all.end().await;
}

/// KS-080: another plugin in the same controller: delivery, change, repair and removal with ConfigMaps.
#[tokio::test(flavor = "multi_thread")]
async fn ks_080_the_bundle_plugin_delivers_config_maps() {
    let all = Running::with(|config| Config { transport: Arc::new(Bundle), ..config }).await;
    all.map("a", json!({}), json!({"k": "1"})).await;
    all.bind(&["a"], &["atlas"]).await;
    let path = "/api/v1/namespaces/atlas/configmaps/b-wds1-0";
    let holds = |text: &'static str| {
        move |it: Option<&Value>| {
            it.is_some_and(|it| it["data"]["objects.json"].as_str().is_some_and(|list| list.contains(text)))
        }
    };
    let bundle = all.its.until_any(path, holds(r#""k":"1""#)).await.unwrap();
    let read = Bundle.unwrap(&bundle).unwrap();
    assert_eq!(read.items.len(), 1);
    assert!(all.observed().await.is_empty());
    all.wds.patch(&format!("{MAPS}/a"), json!({"data": {"k": "2"}})).await;
    all.bind(&["a"], &["atlas"]).await;
    all.its.until_any(path, holds(r#""k":"2""#)).await;
    all.its.patch(path, json!({"data": {"objects.json": "{}"}})).await;
    all.its.until_any(path, holds(r#""k":"2""#)).await;
    all.wds.delete(&format!("{BINDINGS}/b")).await;
    all.wds.until_any(&format!("{BINDINGS}/b"), |it| it.is_none()).await;
    all.its.until_any(path, |it| it.is_none()).await;
    all.end().await;
}

/// KS-085, KS-013: the finalizer is set before the first envelope is written, and fields of other writers in
/// the status stay. KS-087: an envelope in a mailbox that is no destination is deleted. KS-086, KS-079: a
/// deletion of the Binding deletes every object that carries its labels, in any mailbox. KS-083: the
/// envelopes of another WDS stay.
#[tokio::test(flavor = "multi_thread")]
async fn ks_086_nothing_of_a_deleted_binding_stays() {
    let all = Running::start().await;
    all.map("a", json!({}), json!({"k": "1"})).await;
    all.bind(&["a"], &["atlas"]).await;
    all.mailbox("atlas", |it| !it.is_empty()).await;
    let binding = all.wds.get(&format!("{BINDINGS}/b")).await.unwrap();
    assert_eq!(binding["metadata"]["finalizers"], json!(["transport.kubestellar.io/object-cleanup"]));
    all.observed().await;
    let condition = json!({"type": "X", "status": "True", "reason": "R", "message": "",
        "lastTransitionTime": "2024-01-01T00:00:00Z"});
    all.wds.patch(&format!("{BINDINGS}/b/status"), json!({"status": {"conditions": [condition]}})).await;
    let foreign = |name: &str, wds: &str| {
        json!({"apiVersion": "work.open-cluster-management.io/v1", "kind": "ManifestWork",
            "metadata": {"name": name, "labels": {
                "transport.kubestellar.io/originOwnerReferenceBindingKey": "b",
                "transport.kubestellar.io/originWdsName": wds}},
            "spec": {"workload": {"manifests": []}}})
    };
    let boreas = "/apis/work.open-cluster-management.io/v1/namespaces/boreas/manifestworks";
    all.its.post(boreas, foreign("other", "wds2")).await;
    all.its.post(boreas, foreign("stray", "wds1")).await;
    all.mailbox("boreas", |it| it.keys().eq(["other"])).await;
    all.bind(&["a"], &["boreas", "atlas"]).await;
    all.mailbox("boreas", |it| it.contains_key("b-wds1-0")).await;
    all.observed().await;
    let binding = all.wds.get(&format!("{BINDINGS}/b")).await.unwrap();
    assert_eq!(binding["status"]["conditions"][0]["type"], "X");
    all.wds.delete(&format!("{BINDINGS}/b")).await;
    all.wds.until_any(&format!("{BINDINGS}/b"), |it| it.is_none()).await;
    all.mailbox("atlas", Mailbox::is_empty).await;
    assert!(all.mailbox("boreas", |_| true).await.keys().eq(["other"]));
    all.end().await;
}

/// KS-A-10 in the ITS: the envelope marks a create-only object, and only that (KS-082). KS-147: another
/// Binding that delivers the object differently is reported on both Bindings until they agree.
#[tokio::test(flavor = "multi_thread")]
async fn ks_147_create_only_and_double_delivery() {
    let all = Running::start().await;
    all.map("a", json!({}), json!({"k": "1"})).await;
    all.map("z", json!({}), json!({"k": "1"})).await;
    let spec = |once: bool| {
        let entry = |name: &str, once: bool| {
            json!({"group": "", "version": "v1", "resource": "configmaps", "namespace": "shop", "name": name,
                "resourceVersion": "1", "createOnly": once})
        };
        json!({"workload": {"namespaceScope": [entry("a", once), entry("z", false)]},
            "destinations": [{"clusterId": "atlas"}]})
    };
    let body = |name: &str, once: bool| {
        json!({"apiVersion": "control.kubestellar.io/v1alpha1", "kind": "Binding", "metadata": {"name": name},
            "spec": spec(once)})
    };
    all.wds.post(BINDINGS, body("b", true)).await;
    all.mailbox("atlas", |it| it.contains_key("b-wds1-0")).await;
    let work = "/apis/work.open-cluster-management.io/v1/namespaces/atlas/manifestworks/b-wds1-0";
    let configs = all.its.get(work).await.unwrap()["spec"]["manifestConfigs"].clone();
    assert_eq!(configs.as_array().map(Vec::len), Some(1));
    assert_eq!(configs[0]["resourceIdentifier"]["name"], "a");
    assert_eq!(configs[0]["updateStrategy"], json!({"type": "CreateOnly"}));
    assert!(all.observed().await.is_empty());
    all.wds.post(BINDINGS, body("c", false)).await;
    let lines = all.errors(|errors| !errors.is_empty()).await;
    assert_eq!(lines, ["ConfigMap(shop/a) is also delivered to atlas by Binding c of WDS wds1"]);
    let reported = |it: Option<&Value>| {
        it.is_some_and(|it| {
            it["status"]["errors"]
                == json!(["ConfigMap(shop/a) is also delivered to atlas by Binding b of WDS wds1"])
        })
    };
    all.wds.until_any(&format!("{BINDINGS}/c"), reported).await;
    all.wds.patch(&format!("{BINDINGS}/c"), json!({"spec": spec(true)})).await;
    assert!(all.errors(<[String]>::is_empty).await.is_empty());
    all.end().await;
}
