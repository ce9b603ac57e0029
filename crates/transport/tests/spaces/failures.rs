//! How the transport controller handles failing servers, errors of users, and changes by other clients.

use std::collections::BTreeSet;

use kubestellar_transport::{Config, shard::Limits};
use runtime::metrics::Metrics;
use serde_json::{Value, json};
use testkit::wait::when;

use crate::{
    faults::{Fault, Faults},
    scene::*,
};

const WORKS: &str = "/apis/work.open-cluster-management.io/v1/namespaces";
const WORK: &str = "/apis/work.open-cluster-management.io/v1/namespaces/atlas/manifestworks/b-wds1-0";

fn sound(_: &Faults, _: &Faults) {}

/// The ITS answers lists, and then reports no more changes of any work.
fn deaf(_: &Faults, its: &Faults) {
    // A streamed list would be a watch.
    its.always(
        "GET /apis/work.open-cluster-management.io/v1/manifestworks",
        "sendInitialEvents",
        Fault::Refuse(400),
    );
    its.always("GET /apis/work.open-cluster-management.io/v1/manifestworks", "watch=true", Fault::Hang);
}

/// KS-081: the controller waits for a hub that does not serve works yet. It is not ready until the hub does,
/// and then delivers.
#[tokio::test(flavor = "multi_thread")]
async fn ks_081_the_hub_may_come_later() {
    let all = Running::begin(|config| config, sound, false).await;
    all.map("a", json!({}), json!({"k": "1"})).await;
    all.bind(&["a"], &["atlas"]).await;
    all.its_faults.until_asked(2, "GET /apis/work.open-cluster-management.io").await;
    assert!(!*all.config.ready.borrow(), "nothing can be delivered yet");
    let binding = all.wds.get(&format!("{BINDINGS}/b")).await.unwrap();
    assert!(binding["metadata"].get("finalizers").is_none(), "nothing was begun");
    set_up_hub(&all.its).await;
    all.ready().await;
    all.mailbox("atlas", |it| value(it, "a.k") == Some("1")).await;
    // The first delivery may have begun before the mailboxes existed.
    all.errors(<[String]>::is_empty).await;
    all.end().await;
}

/// KS-086, KS-079: a work whose creation was never answered, and which no watch has reported, is deleted with
/// its Binding.
#[tokio::test(flavor = "multi_thread")]
async fn ks_086_an_unanswered_creation_leaves_nothing_behind() {
    let all = Running::with_faults(|config| config, deaf).await;
    all.its_faults.next(1, "POST", "namespaces/atlas/manifestworks", Fault::Lose);
    // The next try would find it.
    all.its_faults.always("POST", "namespaces/atlas/manifestworks", Fault::Refuse(503));
    all.map("a", json!({}), json!({"k": "1"})).await;
    all.bind(&["a"], &["atlas"]).await;
    all.mailbox("atlas", |it| !it.is_empty()).await;
    let reported = all.errors(|errors| !errors.is_empty()).await;
    assert!(reported[0].starts_with("destination atlas: "), "{reported:?}");
    all.wds.delete(&format!("{BINDINGS}/b")).await;
    all.wds.until_any(&format!("{BINDINGS}/b"), |it| it.is_none()).await;
    assert!(all.mailbox("atlas", |_| true).await.is_empty());
    all.end().await;
}

/// KS-087: the same if the destination is removed instead of the Binding.
#[tokio::test(flavor = "multi_thread")]
async fn ks_087_an_unanswered_creation_does_not_outlive_its_destination() {
    let all = Running::start().await;
    all.map("a", json!({}), json!({"k": "1"})).await;
    all.its_faults.always("POST", "namespaces/atlas/manifestworks", Fault::Lose);
    all.its_faults.always("GET", "namespaces/atlas/manifestworks/", Fault::Refuse(503));
    all.bind(&["a"], &["atlas"]).await;
    all.mailbox("atlas", |it| !it.is_empty()).await;
    all.bind(&["a"], &["boreas"]).await;
    all.mailbox("boreas", |it| !it.is_empty()).await;
    all.mailbox("atlas", Mailbox::is_empty).await;
    all.end().await;
}

/// KS-089: the object is delivered in its present version, also if that is newer than the one the Binding
/// lists. When the Binding has caught up, nothing is left to do (KS-078).
#[tokio::test(flavor = "multi_thread")]
async fn ks_089_the_current_version_is_shipped() {
    let all = Running::start().await;
    all.map("a", json!({}), json!({"k": "old"})).await;
    let old = all.wds.get(&format!("{MAPS}/a")).await.unwrap()["metadata"]["resourceVersion"].clone();
    all.wds.patch(&format!("{MAPS}/a"), json!({"data": {"k": "new"}})).await;
    let entry = json!({"group": "", "version": "v1", "resource": "configmaps", "namespace": "shop", "name": "a",
        "resourceVersion": old});
    let spec = json!({"workload": {"namespaceScope": [entry]}, "destinations": [{"clusterId": "atlas"}]});
    let body = json!({"apiVersion": "control.kubestellar.io/v1alpha1", "kind": "Binding",
        "metadata": {"name": "b"}, "spec": spec});
    all.wds.post(BINDINGS, body).await;
    let mailbox = all.mailbox("atlas", |it| !it.is_empty()).await;
    assert_eq!(value(&mailbox, "a.k"), Some("new"));
    all.observed().await;
    let (before, reads) =
        (all.its.space.server().store().revision(), all.wds_faults.asked("GET", "configmaps/a"));
    let binding = all.bind(&["a"], &["atlas"]).await;
    assert_ne!(binding["spec"]["workload"]["namespaceScope"][0]["resourceVersion"], old);
    all.observed().await;
    assert_eq!(all.its.space.server().store().revision(), before, "no write");
    assert_eq!(all.wds_faults.asked("GET", "configmaps/a"), reads, "and no read");
    all.end().await;
}

/// KS-090: an update replaces spec, labels and annotations, and keeps finalizers and the object. KS-095: a
/// write by another client in between does not make the update fail, and is not overwritten blindly.
#[tokio::test(flavor = "multi_thread")]
async fn ks_090_an_update_keeps_finalizers_and_minds_the_version() {
    let all = Running::with_faults(|config| config, deaf).await;
    all.map("a", json!({}), json!({"k": "1"})).await;
    all.bind(&["a"], &["atlas"]).await;
    all.mailbox("atlas", |it| value(it, "a.k") == Some("1")).await;
    all.observed().await;
    // As the work agent writes. The controller does not see this write.
    let theirs = json!({"metadata": {"finalizers": ["cluster.open-cluster-management.io/manifest-work-cleanup"],
        "labels": {"more": "x"}, "annotations": {"more": "x"}}});
    let before = all.its.patch(WORK, theirs).await;
    all.wds.patch(&format!("{MAPS}/a"), json!({"data": {"k": "2"}})).await;
    let binding = all.bind(&["a"], &["atlas"]).await;
    all.mailbox("atlas", |it| value(it, "a.k") == Some("2")).await;
    assert_eq!(all.its_faults.asked(&format!("PUT {WORK}"), ""), 2, "the first met with a conflict");
    let after = all.its.get(WORK).await.unwrap();
    assert_eq!(after["metadata"]["uid"], before["metadata"]["uid"]);
    assert_eq!(after["metadata"]["finalizers"], before["metadata"]["finalizers"]);
    assert_eq!(
        after["metadata"]["labels"],
        json!({"transport.kubestellar.io/originOwnerReferenceBindingKey": "b",
            "transport.kubestellar.io/originWdsName": "wds1"})
    );
    assert_eq!(
        after["metadata"]["annotations"],
        json!({"transport.kubestellar.io/originOwnerReferenceBindingGeneration":
            binding["metadata"]["generation"].to_string()})
    );
    assert!(all.observed().await.is_empty());
    all.its.patch(WORK, json!({"metadata": {"finalizers": null}})).await;
    all.end().await;
}

/// KS-095: conflicts on the finalizer and the status of a Binding, and on the status of a CustomTransform,
/// are retried.
#[tokio::test(flavor = "multi_thread")]
async fn ks_095_conflicts_are_retried() {
    let conflicts = |wds: &Faults, _: &Faults| {
        wds.next(2, "PATCH", "/bindings/b?", Fault::Refuse(409));
        wds.next(2, "PATCH", "/bindings/b/status?", Fault::Refuse(409));
        wds.next(2, "PATCH", "/customtransforms/t/status?", Fault::Refuse(409));
    };
    let all = Running::with_faults(|config| config, conflicts).await;
    all.map("a", json!({}), json!({"k": "1"})).await;
    let transform = json!({"apiVersion": "control.kubestellar.io/v1alpha1", "kind": "CustomTransform",
        "metadata": {"name": "t"}, "spec": {"apiGroup": "", "resource": "configmaps", "remove": ["$"]}});
    all.wds.post(TRANSFORMS, transform).await;
    all.wds
        .until_any(&format!("{TRANSFORMS}/t"), |it| it.is_some_and(|it| it["status"]["errors"].is_array()))
        .await;
    all.bind(&["a"], &["atlas"]).await;
    all.mailbox("atlas", |it| value(it, "a.k") == Some("1")).await;
    assert!(all.observed().await.is_empty());
    all.wds_faults.next(2, "PATCH", "/bindings/b?", Fault::Refuse(409));
    all.wds.delete(&format!("{BINDINGS}/b")).await;
    all.wds.until_any(&format!("{BINDINGS}/b"), |it| it.is_none()).await;
    assert!(all.wds_faults.is_sound(), "all these conflicts were met");
    all.end().await;
}

/// KS-097: an object that cannot be expanded for several destinations is reported for the first one only;
/// each object is reported separately.
#[tokio::test(flavor = "multi_thread")]
async fn ks_097_the_first_troubled_destination_is_told() {
    let all = Running::start().await;
    let property = |cluster: &str, data: Value| json!({"metadata": {"name": cluster}, "data": data});
    all.its.post(PROPERTIES, property("atlas", json!({"here": "1"}))).await;
    all.map("both", json!({TEMPLATED: "true"}), json!({"a": "{{.nothing}}", "b": "{{.none}}"})).await;
    all.map("second", json!({TEMPLATED: "true"}), json!({"a": "{{.here}}"})).await;
    all.bind(&["both", "second"], &["boreas", "atlas"]).await;
    let lines = all.errors(|errors| errors.len() == 3).await;
    let about = |line: &str, parts: &[&str]| {
        assert!(
            line.starts_with(parts[0]) && parts.iter().all(|part| line.contains(part)),
            "{line}: {parts:?}"
        );
    };
    about(&lines[0], &["template: atlas/ConfigMap(shop/both)", ".data.a", "nothing"]);
    about(&lines[1], &["template: atlas/ConfigMap(shop/both)", ".data.b", "none"]);
    about(&lines[2], &["template: boreas/ConfigMap(shop/second)", ".data.a", "here"]);
    all.its.post(PROPERTIES, property("boreas", json!({"here": "2"}))).await;
    all.errors(|errors| errors.len() == 2 && errors.iter().all(|line| line.contains("atlas"))).await;
    all.end().await;
}

/// KS-125, KS-124: as long as no object requests customisation, all destinations get the same envelopes. If
/// one does, the envelopes are computed for each destination, and a destination with larger objects gets more
/// of them.
#[tokio::test(flavor = "multi_thread")]
async fn ks_125_envelopes_are_shared_unless_something_is_customised() {
    let all = Running::with(|config| Config { limits: Limits::hard(100, 3000), ..config }).await;
    let property = |cluster: &str, text: &str| json!({"metadata": {"name": cluster}, "data": {"text": text}});
    all.its.post(PROPERTIES, property("atlas", "short")).await;
    all.its.post(PROPERTIES, property("boreas", &"long ".repeat(300))).await;
    let names = ["a", "b", "c", "d"];
    for name in names {
        // The text looks like a template, but the object does not request expansion.
        all.map(name, json!({}), json!({"k": "{{.text}}"})).await;
    }
    all.bind(&names, &["atlas", "boreas"]).await;
    let atlas = all.mailbox("atlas", |it| objects(it).len() == 4).await;
    let boreas = all.mailbox("boreas", |it| objects(it).len() == 4).await;
    assert_eq!(atlas, boreas, "the same envelopes with the same contents");
    assert_eq!((atlas.len(), value(&atlas, "a.k")), (1, Some("{{.text}}")));
    for name in names {
        let wants = json!({"metadata": {"annotations": {TEMPLATED: "true"}}});
        all.wds.patch(&format!("{MAPS}/{name}"), wants).await;
    }
    all.bind(&names, &["atlas", "boreas"]).await;
    let expanded = |it: &Mailbox, text: &str| {
        objects(it).len() == 4 && names.iter().all(|name| value(it, &format!("{name}.k")) == Some(text))
    };
    let atlas = all.mailbox("atlas", |it| expanded(it, "short")).await;
    let boreas = all.mailbox("boreas", |it| expanded(it, &"long ".repeat(300))).await;
    assert_eq!(atlas.len(), 1);
    assert!(boreas.len() > 1, "the boundaries differ: {:?}", boreas.keys());
    let once: BTreeSet<_> = objects(&boreas).into_iter().collect();
    assert_eq!(once, BTreeSet::from(names));
    assert!(all.observed().await.is_empty());
    all.end().await;
}

/// KS-135: the namespace of property ConfigMaps is created even if that fails at first, and nothing waits for
/// it.
#[tokio::test(flavor = "multi_thread")]
async fn ks_135_the_namespace_of_properties_comes_sooner_or_later() {
    let place = "/api/v1/namespaces/customization-properties";
    let fail = |_: &Faults, its: &Faults| its.next(1, &format!("GET {place}"), "", Fault::Refuse(500));
    let all = Running::begin(|config| config, fail, true).await;
    all.map("a", json!({}), json!({"k": "1"})).await;
    all.bind(&["a"], &["atlas"]).await;
    all.mailbox("atlas", |it| value(it, "a.k") == Some("1")).await;
    all.its.until_any(place, |it| it.is_some()).await;
    assert!(all.its_faults.is_sound(), "the first try had failed");
    all.end().await;
}

/// KS-077, KS-098, KS-144: every envelope carries the two labels, the generation of its Binding and the right
/// name, for any number of objects per envelope, and after objects were added and removed. KS-076: together
/// the envelopes hold each object of the workload once.
#[tokio::test(flavor = "multi_thread")]
async fn ks_077_labels_annotation_and_names_of_all_envelopes() {
    let mut all = Running::with(|config| Config { limits: Limits::hard(1, 512_000), ..config }).await;
    for name in ["a", "b", "c", "d"] {
        all.map(name, json!({}), json!({"k": "1"})).await;
    }
    let mut binding = all.bind(&["a", "b", "c"], &["atlas", "boreas"]).await;
    let mut expected: Vec<String> = Vec::new();
    for name in ["a", "b", "c"] {
        let uid = text(&all.wds.get(&format!("{MAPS}/{name}")).await.unwrap()["metadata"]["uid"]);
        expected.push(format!("{}-wds1-{uid}", text(&binding["metadata"]["uid"])));
    }
    expected.sort();
    let mut every = vec!["a", "b", "c"];
    for (round, limit) in [1, 2, 1].into_iter().enumerate() {
        if round > 0 {
            all.restart(|config| Config { limits: Limits::hard(limit, 512_000), ..config }).await;
        }
        if limit == 2 {
            expected = vec!["b-wds1-0".into(), "b-wds1-1".into()];
        } else if round == 2 {
            // One object is added and one is removed.
            all.wds.delete(&format!("{MAPS}/a")).await;
            every = vec!["b", "c", "d"];
            binding = all.bind(&every, &["atlas", "boreas"]).await;
            expected.clear();
            for name in &every {
                let uid = text(&all.wds.get(&format!("{MAPS}/{name}")).await.unwrap()["metadata"]["uid"]);
                expected.push(format!("{}-wds1-{uid}", text(&binding["metadata"]["uid"])));
            }
            expected.sort();
        }
        for cluster in ["atlas", "boreas"] {
            let mailbox = all.mailbox(cluster, |it| it.keys().eq(&expected)).await;
            let mut held = objects(&mailbox);
            held.sort_unstable();
            assert_eq!(held, every, "{cluster}, {limit} in each");
            let list = all.its.get(&format!("{WORKS}/{cluster}/manifestworks")).await.unwrap();
            for work in list["items"].as_array().unwrap() {
                let metadata = &work["metadata"];
                assert_eq!(
                    metadata["labels"],
                    json!({"transport.kubestellar.io/originOwnerReferenceBindingKey": "b",
                        "transport.kubestellar.io/originWdsName": "wds1"})
                );
                let of = &metadata["annotations"]["transport.kubestellar.io/originOwnerReferenceBindingGeneration"];
                let generation: i64 = text(of).parse().unwrap();
                assert!((1..=binding["metadata"]["generation"].as_i64().unwrap()).contains(&generation));
                assert_eq!(metadata["annotations"].as_object().unwrap().len(), 1);
            }
        }
    }
    all.end().await;
}

/// KS-221: five gauges show the number of objects of each kind. KS-222: three histograms show the sizes of
/// processed Bindings, with the buckets of the original.
#[tokio::test(flavor = "multi_thread")]
async fn ks_221_gauges_and_ks_222_histograms() {
    let metrics = Metrics::default();
    let all = Running::with(|config| Config { metrics: metrics.clone(), ..config }).await;
    let find = |text: &str, name: &str| -> u64 {
        let name = format!("kubestellar_transport_controller_{name} ");
        let found = text.lines().find_map(|line| line.strip_prefix(&name)?.parse().ok());
        found.unwrap_or_else(|| panic!("no {name} in {text}"))
    };
    let shown = |name: &str| find(&metrics.text(), name);
    let gauges = || ["wecs", "bindings", "transforms", "prop_maps", "wrapped_objects"].map(shown);
    assert_eq!(gauges(), [2, 0, 0, 0, 0]);
    for name in ["a", "b", "c"] {
        all.map(name, json!({}), json!({"k": "1"})).await;
    }
    all.its.post(PROPERTIES, json!({"metadata": {"name": "atlas"}, "data": {"x": "1"}})).await;
    let transform = json!({"apiVersion": "control.kubestellar.io/v1alpha1", "kind": "CustomTransform",
        "metadata": {"name": "t"}, "spec": {"apiGroup": "", "resource": "secrets", "remove": ["$.data"]}});
    all.wds.post(TRANSFORMS, transform).await;
    all.bind(&["a", "b", "c"], &["atlas", "boreas"]).await;
    // Nothing reports a change of a gauge, but the event that causes it is on its way.
    let reaches = |wanted: [u64; 5]| async move { when("the gauges", || gauges() == wanted).await };
    reaches([2, 1, 1, 1, 2]).await;
    all.observed().await;
    // One consistent reading: the Binding may be processed in the meantime.
    let text = metrics.text();
    for (name, below, at) in [("whats", "2.0", "5.0"), ("wheres", "1.0", "2.0"), ("areas", "3.0", "10.0")] {
        let bucket = |le: &str| find(&text, &format!("binding_{name}_bucket{{le=\"{le}\"}}"));
        let looks = find(&text, &format!("binding_{name}_count"));
        assert!(looks >= 1, "{name}");
        assert_eq!((bucket(below), bucket(at)), (0, looks), "{name}");
    }
    for (name, last) in [("whats", "1000.0"), ("wheres", "5000.0"), ("areas", "30000.0")] {
        shown(&format!("binding_{name}_bucket{{le=\"{last}\"}}"));
    }
    all.wds.delete(&format!("{BINDINGS}/b")).await;
    all.wds.delete(&format!("{TRANSFORMS}/t")).await;
    all.its.delete(&format!("{PROPERTIES}/atlas")).await;
    all.its.delete(&format!("{CLUSTERS}/boreas")).await;
    reaches([1, 0, 0, 0, 0]).await;
    all.end().await;
}
