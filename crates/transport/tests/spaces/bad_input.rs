//! Input that cannot be processed is reported on the Binding, and its cost is bounded.

use kubestellar_transport::{Config, shard::Limits};
use serde_json::{Value, json};

use crate::{faults::Fault, scene::*};

fn transform(name: &str, remove: Value) -> Value {
    json!({"apiVersion": "control.kubestellar.io/v1alpha1", "kind": "CustomTransform", "metadata": {"name": name},
        "spec": {"apiGroup": "", "resource": "configmaps", "remove": remove}})
}

/// KS-123, KS-127, KS-129: templates that expand to megabytes, that do not end, that cannot be parsed, and
/// that use a property whose name no template can contain. Each is reported in a line of its own, with the
/// object and the path in it. What was delivered stays, other Bindings are not affected, and properties with
/// valid names work beside the invalid ones.
#[tokio::test(flavor = "multi_thread")]
async fn ks_123_templates_that_run_away_are_told() {
    let all = Running::start().await;
    let properties = json!({"metadata": {"name": "atlas"},
        "data": {"site-id": "1", "0day": "2", "func": "3", "good": "4"}});
    all.its.post(PROPERTIES, properties).await;
    all.map("good", json!({TEMPLATED: "true"}), json!({"k": "{{.good}}"})).await;
    all.bind(&["good"], &["atlas"]).await;
    all.mailbox("atlas", |it| value(it, "good.k") == Some("4")).await;
    let before = all.versions("atlas").await;
    for (name, template) in [
        ("forever", "{{define \"a\"}}{{template \"a\" .}}{{end}}{{template \"a\" .}}"),
        ("huge", "{{printf \"%900000d%900000d\" 1 1}}"),
        ("name", "{{.site-id}}"),
        ("open", "{{.good"),
    ] {
        all.map(name, json!({TEMPLATED: "true"}), json!({"k": template})).await;
    }
    all.map("plain", json!({}), json!({"k": "1"})).await;
    all.bind(&["good", "plain", "forever", "huge", "name", "open"], &["atlas"]).await;
    let lines = all.errors(|errors| errors.len() == 4).await;
    for (line, name) in lines.iter().zip(["forever", "huge", "name", "open"]) {
        assert!(line.starts_with(&format!("template: atlas/ConfigMap(shop/{name}).data.k")), "{line}");
    }
    assert_eq!(all.versions("atlas").await, before, "KS-096: what was delivered stays as it is");
    let other = json!({"apiVersion": "control.kubestellar.io/v1alpha1", "kind": "Binding", "metadata": {"name": "c"},
        "spec": {"workload": {"namespaceScope": [{"group": "", "version": "v1", "resource": "configmaps",
            "namespace": "shop", "name": "plain", "resourceVersion": "1"}]}, "destinations": [{"clusterId": "atlas"}]}});
    all.wds.post(BINDINGS, other).await;
    all.mailbox("atlas", |it| it.get("c-wds1-0").is_some_and(|it| it.contains_key("plain"))).await;
    all.bind(&["good", "plain"], &["atlas"]).await;
    all.mailbox("atlas", |it| it.get("b-wds1-0").is_some_and(|it| it.contains_key("plain"))).await;
    assert!(all.observed().await.is_empty());
    all.end().await;
}

/// KS-105, KS-106, KS-108: a path that matches nothing is no error. A path that matches everything, that
/// would leave no object, or that cannot be parsed is reported on the CustomTransform; its other paths apply.
#[tokio::test(flavor = "multi_thread")]
async fn ks_108_paths_that_match_nothing_or_everything() {
    let all = Running::start().await;
    all.map("m", json!({}), json!({"secret": "1", "keep": "2"})).await;
    all.bind(&["m"], &["atlas"]).await;
    all.mailbox("atlas", |it| value(it, "m.secret") == Some("1")).await;
    let nothing = json!(["$.none", "$.data.none.deeper", "$.metadata.labels[\"a.b/c\"]"]);
    all.wds.post(TRANSFORMS, transform("nothing", nothing)).await;
    let calm = |it: &Value| it["status"]["observedGeneration"] == 1 && it["status"].get("errors").is_none();
    all.wds.until_any(&format!("{TRANSFORMS}/nothing"), |it| it.is_some_and(calm)).await;
    all.wds.delete(&format!("{TRANSFORMS}/nothing")).await;
    let much = json!(["$", "$.kind", "$.metadata.name", "$.data[*]", "$.data.secret"]);
    all.wds.post(TRANSFORMS, transform("much", much)).await;
    let mailbox = all.mailbox("atlas", |it| value(it, "m.secret").is_none()).await;
    assert_eq!(value(&mailbox, "m.keep"), Some("2"), "the rest arrives");
    let reported = |it: &Value| it["status"]["errors"].as_array().is_some_and(|all| all.len() == 4);
    let it = all.wds.until_any(&format!("{TRANSFORMS}/much"), |it| it.is_some_and(reported)).await.unwrap();
    let errors = it["status"]["errors"].as_array().unwrap();
    for (index, error) in errors.iter().enumerate() {
        assert!(error.as_str().unwrap().contains(&format!("spec.remove[{index}]")), "{errors:?}");
    }
    assert!(all.observed().await.is_empty(), "it is the CustomTransform that is wrong");
    all.end().await;
}

/// KS-088: a kind that is not served leaves a Binding's delivery unchanged, since its objects may be served
/// again soon; the Binding's status gives the reason. Once the Binding no longer lists them, the rest is
/// delivered.
#[tokio::test(flavor = "multi_thread")]
async fn ks_088_a_kind_that_is_not_served_is_told() {
    let all = Running::start().await;
    all.map("a", json!({}), json!({"k": "1"})).await;
    all.bind(&["a"], &["atlas"]).await;
    all.mailbox("atlas", |it| value(it, "a.k") == Some("1")).await;
    all.observed().await;
    all.map("b", json!({}), json!({"k": "1"})).await;
    let entry = |group: &str, resource: &str, name: &str| {
        json!({"group": group, "version": "v1", "resource": resource, "namespace": "shop", "name": name,
            "resourceVersion": "1"})
    };
    let entries = [entry("", "configmaps", "b"), entry("space.example", "rockets", "saturn")];
    let path = format!("{BINDINGS}/b");
    all.wds.patch(&path, json!({"spec": {"workload": {"namespaceScope": entries}}})).await;
    let lines = all.errors(|errors| !errors.is_empty()).await;
    assert!(lines.len() == 1 && lines[0].starts_with("the workload can't be read"), "{lines:?}");
    assert_eq!(objects(&all.mailbox("atlas", |_| true).await), ["a"], "nothing was taken away");
    all.bind(&["b"], &["atlas"]).await;
    let mailbox =
        all.mailbox("atlas", |it| value(it, "b.k") == Some("1") && value(it, "a.k").is_none()).await;
    assert_eq!(objects(&mailbox), ["b"]);
    assert!(all.errors(<[String]>::is_empty).await.is_empty());
    all.end().await;
}

/// KS-088: the same for objects that may not be read, one by one or as a list, with the name of the resource.
#[tokio::test(flavor = "multi_thread")]
async fn ks_088_what_may_not_be_read_is_told() {
    let all = Running::start().await;
    all.map("a", json!({}), json!({"k": "1"})).await;
    all.wds_faults.always("GET /api/v1/namespaces/shop/configmaps", "", Fault::Refuse(403));
    all.bind(&["a"], &["atlas"]).await;
    let line = |what: &str| {
        vec![format!("the workload can't be read, so nothing is changed: {what}: refused by the test")]
    };
    assert_eq!(all.errors(|errors| !errors.is_empty()).await, line("configmaps in shop a"));
    let entries: Vec<Value> = (0..60)
        .map(|n| {
            json!({"group": "", "version": "v1", "resource": "configmaps", "namespace": "shop",
                "name": format!("m{n}"), "resourceVersion": "1"})
        })
        .collect();
    let spec = json!({"spec": {"workload": {"namespaceScope": entries}}});
    all.wds.patch(&format!("{BINDINGS}/b"), spec).await;
    let reported = line("configmaps in shop");
    all.errors(|errors| *errors == reported).await;
    all.end().await;
}

/// KS-141: an object that is nested so deeply that no program could decode an envelope with it is reported by
/// name. The other objects are delivered, up to the greatest depth that is possible.
#[tokio::test(flavor = "multi_thread")]
async fn ks_141_an_object_that_is_nested_too_deeply_is_told() {
    let all = Running::start().await;
    for depth in [116, 117, 119] {
        let data = (2..depth).fold(json!({}), |inner, _| json!({"a": inner}));
        let revision = json!({"metadata": {"name": format!("deep-{depth}")}, "revision": 1, "data": data});
        all.wds.post("/apis/apps/v1/namespaces/shop/controllerrevisions", revision).await;
    }
    all.map("plain", json!({}), json!({"k": "1"})).await;
    let entry = |group: &str, resource: &str, name: &str| {
        json!({"group": group, "version": "v1", "resource": resource, "namespace": "shop", "name": name,
            "resourceVersion": "1"})
    };
    let deep = ["deep-116", "deep-117", "deep-119"].map(|name| entry("apps", "controllerrevisions", name));
    let entries = [&deep[..], &[entry("", "configmaps", "plain")]].concat();
    all.bind(&[], &["atlas"]).await;
    all.wds.patch(&format!("{BINDINGS}/b"), json!({"spec": {"workload": {"namespaceScope": entries}}})).await;
    let lines = all.errors(|errors| !errors.is_empty()).await;
    let line = |depth: usize| {
        format!(
            "ControllerRevision.apps(shop/deep-{depth}): nesting of {depth} levels exceeds the maximum 116"
        )
    };
    assert_eq!(lines, [line(117), line(119)]);
    let work = "/apis/work.open-cluster-management.io/v1/namespaces/atlas/manifestworks/b-wds1-0";
    let whole = |work: &Value| {
        let manifests = work["spec"]["workload"]["manifests"].as_array();
        manifests.is_some_and(|all| {
            all.iter().filter_map(|it| it["metadata"]["name"].as_str()).eq(["deep-116", "plain"])
        })
    };
    all.its.until_any(work, |it| it.is_some_and(whole)).await;
    all.end().await;
}

/// KS-126: of an object with more errors than a status can hold, some are reported together with the number
/// of the others. Errors of other objects have room beside them.
#[tokio::test(flavor = "multi_thread")]
async fn ks_126_a_flood_of_errors_is_told() {
    const TEXTS: usize = 20_000;
    let all = Running::start().await;
    let texts: serde_json::Map<String, Value> =
        (0..TEXTS).map(|n| (format!("text-{n:05}"), json!("{{.nothing}}"))).collect();
    all.map("flood", json!({TEMPLATED: "true"}), Value::Object(texts)).await;
    all.map("other", json!({TEMPLATED: "true"}), json!({"k": "{{.nothing}}"})).await;
    all.bind(&["flood", "other"], &["atlas"]).await;
    let lines = all.errors(|errors| !errors.is_empty()).await;
    assert_eq!(lines.len(), 101);
    assert!(lines[0].starts_with("template: atlas/ConfigMap(shop/flood).data.text-00000"), "{}", lines[0]);
    assert_eq!(lines[99], format!("template: atlas/ConfigMap(shop/flood): and {} more errors", TEXTS - 99));
    assert!(lines[100].starts_with("template: atlas/ConfigMap(shop/other).data.k"), "{}", lines[100]);
    all.bind(&[], &["atlas"]).await;
    assert!(all.errors(<[String]>::is_empty).await.is_empty());
    all.end().await;
}

/// KS-141: an object that was delivered and grows too large keeps its delivered form, also after a restart of
/// the controller. Other objects change, a cluster without an older form gets none, and objects that are no
/// longer listed are removed.
#[tokio::test(flavor = "multi_thread")]
async fn ks_141_an_object_that_grows_too_large_stays_as_it_was() {
    let small = |config| Config { limits: Limits::hard(100, 5000), ..config };
    let mut all = Running::with(small).await;
    for name in ["a", "b"] {
        all.map(name, json!({}), json!({"k": "1"})).await;
    }
    all.bind(&["a", "b"], &["atlas"]).await;
    all.mailbox("atlas", |it| value(it, "b.k") == Some("1")).await;
    let change = |name: &str, text: String| (format!("{MAPS}/{name}"), json!({"data": {"k": text}}));
    let (path, large) = change("b", "x".repeat(6000));
    all.wds.patch(&path, large).await;
    all.bind(&["a", "b"], &["atlas", "boreas"]).await;
    let errors = all.errors(|errors| !errors.is_empty()).await;
    assert!(errors.len() == 1 && errors[0].starts_with("ConfigMap(shop/b): size "), "{errors:?}");
    assert_eq!(objects(&all.mailbox("boreas", |it| !it.is_empty()).await), ["a"]);
    for (round, text) in ["2", "3"].into_iter().enumerate() {
        if round == 1 {
            all.restart(small).await;
        }
        let (path, other) = change("a", text.to_owned());
        all.wds.patch(&path, other).await;
        all.bind(&["a", "b"], &["atlas", "boreas"]).await;
        let mailbox = all.mailbox("atlas", |it| value(it, "a.k") == Some(text)).await;
        assert_eq!(value(&mailbox, "b.k"), Some("1"), "{round}");
    }
    // An envelope that another client deletes is created again with the older form.
    let work = "/apis/work.open-cluster-management.io/v1/namespaces/atlas/manifestworks/b-wds1-0";
    let uid = all.its.get(work).await.unwrap()["metadata"]["uid"].clone();
    all.its.delete(work).await;
    let anew = |it: Option<&Value>| it.is_some_and(|it| it["metadata"]["uid"] != uid);
    all.its.until_any(work, anew).await;
    all.mailbox("atlas", |it| value(it, "b.k") == Some("1") && value(it, "a.k") == Some("3")).await;
    let (path, fits) = change("b", "4".to_owned());
    all.wds.patch(&path, fits).await;
    all.bind(&["a", "b"], &["atlas", "boreas"]).await;
    for cluster in ["atlas", "boreas"] {
        all.mailbox(cluster, |it| value(it, "b.k") == Some("4")).await;
    }
    assert!(all.errors(<[String]>::is_empty).await.is_empty());
    let (path, large) = change("b", "x".repeat(6000));
    all.wds.patch(&path, large).await;
    all.bind(&["a", "b"], &["atlas"]).await;
    all.errors(|errors| !errors.is_empty()).await;
    all.bind(&["a"], &["atlas"]).await;
    let mailbox = all.mailbox("atlas", |it| value(it, "b.k").is_none()).await;
    assert_eq!(objects(&mailbox), ["a"]);
    all.end().await;
}

/// KS-141: an object that is too large in one destination only, because of its properties, is reported by
/// name, keeps its form there, and changes elsewhere; also after a restart, and (KS-093) if the controller
/// cannot find out then what was delivered.
#[tokio::test(flavor = "multi_thread")]
async fn ks_141_too_large_in_one_destination() {
    let small = |config| Config { limits: Limits::hard(100, 5000), ..config };
    let mut all = Running::with(small).await;
    let property = |cluster: &str, text: &str| json!({"metadata": {"name": cluster}, "data": {"text": text}});
    for cluster in ["atlas", "boreas"] {
        all.its.post(PROPERTIES, property(cluster, "1")).await;
    }
    all.map("site", json!({TEMPLATED: "true"}), json!({"k": "{{.text}}"})).await;
    all.bind(&["site"], &["atlas", "boreas"]).await;
    for cluster in ["atlas", "boreas"] {
        all.mailbox(cluster, |it| value(it, "site.k") == Some("1")).await;
    }
    all.its.patch(&format!("{PROPERTIES}/boreas"), property("boreas", &"x".repeat(6000))).await;
    let errors = all.errors(|errors| !errors.is_empty()).await;
    assert!(errors.len() == 1 && errors[0].starts_with("ConfigMap(shop/site): size "), "{errors:?}");
    assert!(errors[0].ends_with(" exceeds the maximum 5000 in boreas"), "{errors:?}");
    all.its.patch(&format!("{PROPERTIES}/atlas"), property("atlas", "2")).await;
    all.mailbox("atlas", |it| value(it, "site.k") == Some("2")).await;
    let boreas = all.mailbox("boreas", |_| true).await;
    assert_eq!(value(&boreas, "site.k"), Some("1"));
    all.its.patch(&format!("{PROPERTIES}/boreas"), property("boreas", "3")).await;
    all.mailbox("boreas", |it| value(it, "site.k") == Some("3")).await;
    assert!(all.errors(<[String]>::is_empty).await.is_empty());
    all.its.patch(&format!("{PROPERTIES}/boreas"), property("boreas", &"x".repeat(6000))).await;
    all.errors(|errors| errors.len() == 1).await;
    for (text, reported) in [("4", 1), ("5", 2)] {
        if reported == 2 {
            let reads = "GET /apis/work.open-cluster-management.io/v1/namespaces/boreas/manifestworks/";
            all.its_faults.always(reads, "", Fault::Refuse(403));
        }
        all.restart(small).await;
        all.its.patch(&format!("{PROPERTIES}/atlas"), property("atlas", text)).await;
        all.mailbox("atlas", |it| value(it, "site.k") == Some(text)).await;
        let errors = all.errors(|errors| errors.len() == reported).await;
        assert!(reported == 1 || errors[1] == "destination boreas: refused by the test", "{errors:?}");
        let boreas = all.mailbox("boreas", |_| true).await;
        assert_eq!(value(&boreas, "site.k"), Some("3"));
    }
    all.end().await;
}

/// KS-141, KS-021: of two Bindings with an object that has grown too large, the second takes over the form
/// that the first delivered, so that the object stays when the first Binding is deleted.
#[tokio::test(flavor = "multi_thread")]
async fn ks_141_a_neighbour_takes_over_what_was_delivered() {
    let all = Running::with(|config| Config { limits: Limits::hard(100, 5000), ..config }).await;
    all.map("m", json!({}), json!({"k": "1"})).await;
    all.bind(&["m"], &["atlas"]).await;
    all.mailbox("atlas", |it| value(it, "m.k") == Some("1")).await;
    all.wds.patch(&format!("{MAPS}/m"), json!({"data": {"k": "x".repeat(6000)}})).await;
    let binding = all.bind(&["m"], &["atlas"]).await;
    all.errors(|errors| errors.len() == 1).await;
    let mut other = binding["spec"].clone();
    other["destinations"] = json!([{"clusterId": "atlas"}, {"clusterId": "boreas"}]);
    let other = json!({"apiVersion": "control.kubestellar.io/v1alpha1", "kind": "Binding", "metadata": {"name": "c"},
        "spec": other});
    all.wds.post(BINDINGS, other).await;
    all.mailbox("atlas", |it| it.get("c-wds1-0").is_some_and(|it| it["m.k"] == "1")).await;
    all.wds.delete(&format!("{BINDINGS}/b")).await;
    let left = all.mailbox("atlas", |it| !it.contains_key("b-wds1-0")).await;
    assert_eq!(left["c-wds1-0"]["m.k"], "1");
    assert!(all.mailbox("boreas", |_| true).await.is_empty(), "it was never there");
    all.end().await;
}
