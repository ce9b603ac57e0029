//! Changes that users make to policies.

use serde_json::{Value, json};
use testkit::wait::within;

use crate::scene::{
    BINDINGS, CLUSTERS, CRDS, NAMESPACES, POLICIES, Scene, condition, config_map, destinations, names,
    policy, set,
};

const FINALIZER: &str = "bindingpolicy.kubestellar.io/kscontroller";

fn version(object: &Value) -> u64 {
    object["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap()
}

/// KS-055: the finalizer is set before the Binding is created. KS-009, KS-073: a removed finalizer is set
/// again.
#[tokio::test(flavor = "multi_thread")]
async fn ks_055_the_finalizer_comes_first() {
    let all = Scene::start().await;
    let store = all.wds.space.server().store().clone();
    let mut changes = store.watch_all(store.revision()).unwrap();
    all.policy("p", json!({"clusterSelectors": [{}], "downsync": [{"resources": ["configmaps"]}]})).await;
    let path = format!("{POLICIES}/p");
    let has = |it: &Value| it["metadata"]["finalizers"] == json!([FINALIZER]);
    // The events of a space have the order of its writes.
    let first = within("a Binding", async {
        loop {
            let event = changes.next().await.unwrap();
            let text = format!("{event:?}");
            if text.contains("bindings") && !text.contains("bindingpolicies") {
                return all.wds.get(&path).await.unwrap();
            }
        }
    });
    assert!(has(&first.await));
    all.wds.until(&path, has).await;
    all.wds.patch(&path, json!({"metadata": {"finalizers": null}})).await;
    let seen = |it: &Value| it["status"]["observedGeneration"] == it["metadata"]["generation"];
    all.wds.until(&path, |it: &Value| has(it) && seen(it)).await;
    all.end().await;
}

/// KS-052: each policy has its own modulation and its own Binding. KS-051: within one policy the modulations
/// of clauses are united.
#[tokio::test(flavor = "multi_thread")]
async fn ks_052_policies_do_not_merge() {
    let all = Scene::start().await;
    all.config_map("a", json!({"app": "x"})).await;
    let clause = |more: Value| {
        let mut clause =
            json!({"resources": ["configmaps"], "objectSelectors": [{"matchLabels": {"app": "x"}}]});
        clause.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        clause
    };
    let to = |name: &str| json!([{"matchLabels": {"name": name}}]);
    let first = [clause(json!({"createOnly": true})), clause(json!({"statusCollectors": ["b", "a"]}))];
    all.policy("one", json!({"clusterSelectors": to("cluster1"), "downsync": first})).await;
    all.policy("two", json!({"clusterSelectors": to("cluster2"), "downsync": [clause(json!({}))]})).await;
    let one = all.bound("one", &["configmaps/a"]).await;
    let two = all.bound("two", &["configmaps/a"]).await;
    let entry = |it: &Value| it["spec"]["workload"]["namespaceScope"][0].clone();
    assert_eq!(
        (entry(&one)["createOnly"].clone(), entry(&one)["statusCollectors"].clone()),
        (json!(true), json!(["a", "b"]))
    );
    assert!(entry(&two).get("createOnly").is_none() && entry(&two).get("statusCollectors").is_none());
    assert_eq!((destinations(&one), destinations(&two)), (set(&["cluster1"]), set(&["cluster2"])));
    all.end().await;
}

/// KS-057: a cluster is selected by its labels alone, whether accepted, available and tainted or not.
#[tokio::test(flavor = "multi_thread")]
async fn ks_057_conditions_of_clusters_do_not_matter() {
    let all = Scene::start().await;
    let lost = json!({"status": {"conditions": [{
        "type": "ManagedClusterConditionAvailable", "status": "False", "reason": "Lost", "message": "",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }]}});
    all.its.patch(&format!("{CLUSTERS}/cluster1/status"), lost).await;
    let taint = json!([{"key": "a", "effect": "NoSelect", "timeAdded": "2026-01-01T00:00:00Z"}]);
    all.its.patch(&format!("{CLUSTERS}/cluster2"), json!({"spec": {"taints": taint}})).await;
    all.policy("p", json!({"clusterSelectors": [{"matchLabels": {"fleet": "yes"}}]})).await;
    let both = set(&["cluster1", "cluster2"]);
    all.wds.until(&format!("{BINDINGS}/p"), |it| destinations(it) == both).await;
    all.its.delete(&format!("{CLUSTERS}/cluster2")).await;
    all.wds.until(&format!("{BINDINGS}/p"), |it| destinations(it) == set(&["cluster1"])).await;
    all.end().await;
}

/// KS-058, KS-072: a policy that was recreated under the same name while the controller was down owns the
/// Binding with its new UID.
#[tokio::test(flavor = "multi_thread")]
async fn ks_058_a_policy_made_anew_owns_its_binding() {
    let mut all = Scene::start().await;
    all.config_map("a", json!({})).await;
    all.config_map("b", json!({})).await;
    let names = |name: &str| json!({"clusterSelectors": [{}], "downsync": [{"objectNames": [name]}]});
    all.policy("p", names("a")).await;
    all.policy("orphan", names("a")).await;
    all.bound("p", &["configmaps/a"]).await;
    all.bound("orphan", &["configmaps/a"]).await;
    all.stop().await;
    for name in ["p", "orphan"] {
        let path = format!("{POLICIES}/{name}");
        all.wds.patch(&path, json!({"metadata": {"finalizers": null}})).await;
        all.wds.delete(&path).await;
    }
    let anew = all.policy("p", names("b")).await;
    all.run().await;
    let owned = |it: &Value| it["metadata"]["ownerReferences"][0]["uid"] == anew["metadata"]["uid"];
    let binding = all.wds.until(&format!("{BINDINGS}/p"), |it| owned(it)).await;
    assert_eq!(crate::scene::names(&binding), set(&["configmaps/b"]));
    assert_eq!(binding["metadata"]["ownerReferences"].as_array().unwrap().len(), 1, "KS-011");
    all.wds.until_any(&format!("{BINDINGS}/orphan"), |it| it.is_none()).await;
    all.end().await;
}

/// KS-070: a Binding that exceeds the server's limit is reported on its policy. KS-068: it does not delay
/// others. The previous Binding stays, and the new one is written when it fits again.
#[tokio::test(flavor = "multi_thread")]
async fn ks_070_a_binding_too_large_is_reported() {
    let all = Scene::start().await;
    for n in 0..120 {
        all.config_map(&format!("m-{n}"), json!({"app": "x"})).await;
    }
    let clause = |collectors: usize| {
        let names: Vec<_> = (0..collectors).map(|n| format!("{n:06}{}", "c".repeat(240))).collect();
        json!({"clusterSelectors": [{}], "downsync": [{
            "resources": ["configmaps"], "objectSelectors": [{"matchLabels": {"app": "x"}}], "statusCollectors": names,
        }]})
    };
    all.policy("big", clause(1)).await;
    let path = format!("{BINDINGS}/big");
    let before = all.wds.until(&path, |it| names(it).len() == 120).await;
    all.wds.patch(&format!("{POLICIES}/big"), json!({"spec": clause(200)})).await;
    let errors = |it: &Value| it["status"]["errors"].as_array().cloned().unwrap_or_default();
    let would =
        |it: &Value| errors(it).iter().any(|e| e.as_str().unwrap().starts_with("Binding would exceed "));
    let policy = all.wds.until(&format!("{POLICIES}/big"), would).await;
    assert_eq!(condition(&policy, "Synced"), "False");
    assert_eq!(all.wds.get(&path).await.unwrap()["spec"], before["spec"]);
    all.policy("other", clause(0)).await;
    all.wds.until(&format!("{BINDINGS}/other"), |it| names(it).len() == 120).await;
    all.wds.patch(&format!("{POLICIES}/big"), json!({"spec": clause(2)})).await;
    let two = |it: &Value| {
        it["spec"]["workload"]["namespaceScope"][0]["statusCollectors"].as_array().map(Vec::len) == Some(2)
    };
    all.wds.until(&path, two).await;
    all.wds.until(&format!("{POLICIES}/big"), |it| !would(it)).await;
    all.end().await;
}

/// KS-007, KS-047: errors of a policy are shown in its status and in an Event.
#[tokio::test(flavor = "multi_thread")]
async fn ks_047_errors_of_a_policy_are_shown() {
    let all = Scene::start().await;
    all.config_map("a", json!({"app": "x"})).await;
    let bad = json!({"matchExpressions": [{"key": "app", "operator": "In", "values": []}]});
    let spec = json!({"clusterSelectors": [{}], "downsync": [
        {"resources": ["configmaps"], "objectSelectors": [bad, {"matchLabels": {"app": "x"}}]},
    ]});
    let made = all.policy("p", spec).await;
    all.bound("p", &["configmaps/a"]).await;
    let reported = |it: &Value| {
        it["status"]["errors"][0].as_str().is_some_and(|e| e.starts_with("downsync[0].objectSelectors[0]: "))
    };
    let seen = all.wds.until(&format!("{POLICIES}/p"), reported).await;
    assert_eq!(condition(&seen, "Synced"), "False");
    let selector =
        format!("fieldSelector=involvedObject.uid%3D{}", made["metadata"]["uid"].as_str().unwrap());
    let path = format!("/api/v1/events?{selector}");
    let events = all.wds.until(&path, |it| it["items"].as_array().is_some_and(|all| !all.is_empty())).await;
    let event = &events["items"][0];
    assert_eq!((&event["type"], &event["message"]), (&json!("Warning"), &seen["status"]["errors"][0]));
    assert_eq!(event["involvedObject"]["kind"], json!("BindingPolicy"));

    let all_of_it = json!({"spec": {"downsync": [{"resources": ["*"], "namespaces": ["*"]}]}});
    all.wds.patch(&format!("{POLICIES}/p"), all_of_it).await;
    let vacuous = json!(["downsync[0]: every criterion matches all objects"]);
    all.wds.until(&format!("{POLICIES}/p"), |it| it["status"]["errors"] == vacuous).await;
    all.wds.until(&format!("{BINDINGS}/p"), |it| names(it).len() > 5).await;
    all.end().await;
}

/// KS-047, KS-068: selectors that cannot be parsed and clauses that match nothing do not affect the rest: the
/// Binding lists the objects of the other clauses and the clusters of the other selectors, and each error is
/// reported.
#[tokio::test(flavor = "multi_thread")]
async fn ks_047_the_rest_of_a_faulty_policy_is_bound() {
    let all = Scene::start().await;
    all.config_map("a", json!({"app": "x"})).await;
    let wrong = json!({"matchExpressions": [{"key": "app", "operator": "In", "values": []}]});
    let spec = json!({
        "clusterSelectors": [wrong, {"matchLabels": {"name": "cluster2"}}],
        "downsync": [
            {"objectSelectors": [wrong, {"matchLabels": {"app": "x"}}]},
            {"objectSelectors": [{"matchExpressions": [{"key": "app", "operator": "Exists", "values": ["x"]}]}]},
            {"resources": ["configmap"], "namespaces": ["nowhere"], "objectNames": ["w*"]},
            {"resources": ["namespaces"], "namespaces": ["n"]},
        ],
    });
    all.policy("faulty", spec).await;
    all.policy("well", json!({"clusterSelectors": [{}], "downsync": [{"objectNames": ["a"]}]})).await;
    all.bound("well", &["configmaps/a"]).await;
    let binding = all.bound("faulty", &["configmaps/a"]).await;
    assert_eq!(destinations(&binding), set(&["cluster2"]));
    let reported = |it: &Value| it["status"]["errors"].as_array().is_some_and(|all| all.len() == 3);
    let it = all.wds.until(&format!("{POLICIES}/faulty"), reported).await;
    let errors: Vec<_> =
        it["status"]["errors"].as_array().unwrap().iter().map(|it| it.as_str().unwrap()).collect();
    for (error, place) in errors.iter().zip([
        "clusterSelectors[0]: ",
        "downsync[0].objectSelectors[0]: ",
        "downsync[1].objectSelectors[0]: ",
    ]) {
        assert!(error.starts_with(place), "{errors:?}");
    }
    assert_eq!(condition(&it, "Synced"), "False");
    all.end().await;
}

/// KS-A-08, KS-003, KS-006, KS-022: what a strict server rejects and accepts.
#[tokio::test(flavor = "multi_thread")]
async fn ks_a_08_policies_are_validated() {
    let all = Scene::start().await;
    let near = json!({"matchExpressions": [{"key": "a", "operator": "Near", "values": ["x"]}]});
    let cases = [
        ("an unknown field", json!({"junk": 1}), false),
        ("an unknown field of a clause", json!({"downsync": [{"resources": ["*"], "junq": true}]}), false),
        ("no criterion", json!({"downsync": [{"createOnly": true}]}), false),
        ("an obsolete field", json!({"downsync": [{"resources": ["*"], "statusCollection": {}}]}), false),
        ("an obsolete field", json!({"wantSingletonReportedState": true}), false),
        ("an obsolete field", json!({"numberOfClusters": 1}), false),
        ("an operator", json!({"clusterSelectors": [near]}), false),
        ("a label value", json!({"clusterSelectors": [{"matchLabels": {"a": "a b"}}]}), false),
        ("a star", json!({"downsync": [{"resources": ["*"]}]}), true),
        ("nothing at all", json!({}), true),
        ("an empty group", json!({"downsync": [{"apiGroup": ""}]}), true),
    ];
    for (n, (why, spec, taken)) in cases.into_iter().enumerate() {
        let body = policy(&format!("p{n}"), spec.clone());
        let path = format!("{POLICIES}?fieldValidation=Strict");
        let answer = all.wds.send("POST", &path, "application/json", &body).await;
        assert_eq!(answer.is_ok(), taken, "{why}: {spec}: {answer:?}");
    }
    // Without strict validation unknown fields are dropped.
    let loose = all.wds.post(POLICIES, policy("loose", json!({"junk": 1, "clusterSelectors": [{}]}))).await;
    assert_eq!(loose["spec"], json!({"clusterSelectors": [{}]}));
    all.end().await;
}

/// KS-020: the kinds before BindingPolicy are not served. KS-004: short names.
#[tokio::test(flavor = "multi_thread")]
async fn ks_020_kinds_and_their_names() {
    let all = Scene::start().await;
    let served = all.wds.get("/apis/control.kubestellar.io/v1alpha1").await.unwrap();
    let resources = served["resources"].as_array().unwrap();
    let mut kinds: Vec<_> = resources
        .iter()
        .filter(|it| !it["name"].as_str().unwrap().contains('/'))
        .map(|it| {
            let short = it["shortNames"][0].as_str().unwrap_or("-");
            format!("{} {short} {}", it["kind"].as_str().unwrap(), it["namespaced"])
        })
        .collect();
    kinds.sort();
    assert_eq!(
        kinds,
        [
            "Binding bdg false",
            "BindingPolicy bp false",
            "CombinedStatus cs true",
            "CustomTransform ct false",
            "StatusCollector sc false",
        ]
    );
    assert!(all.wds.get("/apis/edge.kubestellar.io/v1alpha1").await.is_none());
    all.end().await;
}

/// KS-A-07, KS-040 to KS-046, KS-049: the effect of every field of a clause on the Binding.
#[tokio::test(flavor = "multi_thread")]
async fn ks_a_07_every_clause_field() {
    let all = Scene::start().await;
    all.wds.post(NAMESPACES, json!({"metadata": {"name": "n1", "labels": {"zone": "l", "set": "t"}}})).await;
    all.wds.post(NAMESPACES, json!({"metadata": {"name": "n2", "labels": {"set": "t"}}})).await;
    for (namespace, name) in [("n1", "one"), ("n2", "one"), ("n2", "two")] {
        let path = format!("/api/v1/namespaces/{namespace}/configmaps");
        all.wds.post(&path, config_map(namespace, name, json!({"set": "t"}))).await;
    }
    let role = json!({"metadata": {"name": "cr1", "labels": {"set": "t"}}});
    all.wds.post("/apis/rbac.authorization.k8s.io/v1/clusterroles", role).await;
    let zone = json!([{"matchLabels": {"zone": "l"}}]);
    let cases = [
        (json!({"namespaces": ["n1"]}), vec!["configmaps/n1/one"]),
        (json!({"namespaces": ["*"], "resources": ["clusterroles"]}), vec!["clusterroles/cr1"]),
        (json!({"namespaceSelectors": zone}), vec!["configmaps/n1/one"]),
        (
            json!({"namespaceSelectors": [{}], "resources": ["clusterroles", "configmaps"]}),
            vec!["clusterroles/cr1", "configmaps/n1/one", "configmaps/n2/one", "configmaps/n2/two"],
        ),
        (
            json!({"apiGroup": ""}),
            vec![
                "configmaps/n1/one",
                "configmaps/n2/one",
                "configmaps/n2/two",
                "namespaces/n1",
                "namespaces/n2",
            ],
        ),
        (json!({"apiGroup": "rbac.authorization.k8s.io"}), vec!["clusterroles/cr1"]),
        (
            json!({"objectNames": ["one", "cr1"]}),
            vec!["clusterroles/cr1", "configmaps/n1/one", "configmaps/n2/one"],
        ),
        (json!({"resources": ["configmap"]}), vec![]),
        (json!({"objectNames": ["o*"]}), vec![]),
        (json!({"resources": ["namespaces"], "objectNames": ["n1"]}), vec!["namespaces/n1"]),
    ];
    // Objects and policies are watched separately: the first policy may be seen before the objects.
    let labelled = json!({"objectSelectors": [{"matchLabels": {"set": "t"}}]});
    all.policy("known", json!({"clusterSelectors": [{}], "downsync": [labelled]})).await;
    let known = [
        "clusterroles/cr1",
        "configmaps/n1/one",
        "configmaps/n2/one",
        "configmaps/n2/two",
        "namespaces/n1",
        "namespaces/n2",
    ];
    all.bound("known", &known).await;
    for (n, (mut clause, expected)) in cases.into_iter().enumerate() {
        // A space has other objects; those of this test have a label.
        clause["objectSelectors"] = json!([{"matchLabels": {"set": "t"}}]);
        let name = format!("p{n}");
        all.policy(&name, json!({"clusterSelectors": [{}], "downsync": [clause]})).await;
        let binding = all.wds.until(&format!("{BINDINGS}/{name}"), |_| true).await;
        // A policy is evaluated as a whole, so the first Binding is right.
        assert_eq!(names(&binding), set(&expected), "{clause}");
    }
    all.wds.patch(&format!("{NAMESPACES}/n2"), json!({"metadata": {"labels": {"zone": "l"}}})).await;
    all.bound("p2", &["configmaps/n1/one", "configmaps/n2/one", "configmaps/n2/two"]).await;
    all.wds.patch(&format!("{NAMESPACES}/n1"), json!({"metadata": {"labels": {"zone": null}}})).await;
    all.bound("p2", &["configmaps/n2/one", "configmaps/n2/two"]).await;
    all.end().await;
}

/// A CRD of `things.example.org` with these versions, served or not.
fn crd(versions: &[(&str, bool)]) -> Value {
    let version = |(n, (name, served)): (usize, &(&str, bool))| {
        json!({"name": name, "served": served, "storage": n == 0, "schema": {"openAPIV3Schema": {
            "type": "object", "x-kubernetes-preserve-unknown-fields": true,
        }}})
    };
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "things.example.org"},
        "spec": {
            "group": "example.org", "scope": "Namespaced",
            "names": {"plural": "things", "singular": "thing", "kind": "Thing", "listKind": "ThingList"},
            "versions": versions.iter().enumerate().map(version).collect::<Vec<_>>(),
        },
    })
}

/// KS-033, KS-035, KS-036, KS-037: deleting a CRD removes its objects from the Binding and nothing else.
/// Another version means the same objects. A version that is not served is never watched. All of it works
/// repeatedly.
#[tokio::test(flavor = "multi_thread")]
async fn ks_035_definitions_come_change_and_go() {
    let all = Scene::start().await;
    let things = "/apis/example.org/v1/namespaces/n/things";
    let app = json!({"app": "x"});
    all.policy(
        "p",
        json!({"clusterSelectors": [{}], "downsync": [{"objectSelectors": [{"matchLabels": app}]}]}),
    )
    .await;
    all.config_map("a", app.clone()).await;
    let path = format!("{CRDS}/things.example.org");
    for round in 0..3 {
        all.wds.post(CRDS, crd(&[("v1", true), ("v2", false)])).await;
        all.wds.until(&path, |it| condition(it, "Established") == "True").await;
        let thing = json!({"apiVersion": "example.org/v1", "kind": "Thing", "metadata": {"name": "t", "labels": app}});
        all.wds.post(things, thing).await;
        let binding = all.bound("p", &["configmaps/a", "things/t"]).await;
        let version_of = |it: &Value| {
            let entries = it["spec"]["workload"]["namespaceScope"].as_array().cloned().unwrap_or_default();
            entries.into_iter().find(|it| it["resource"] == "things").map(|it| it["version"].clone())
        };
        assert_eq!(version_of(&binding), Some(json!("v1")));
        let both = crd(&[("v1", true), ("v2", true)]);
        all.wds.patch(&path, json!({"spec": {"versions": both["spec"]["versions"]}})).await;
        all.wds.until(&format!("{BINDINGS}/p"), |it| version_of(it) == Some(json!("v2"))).await;
        let two_asked = all.faults.asked.borrow().iter().any(|(it, _)| it.contains("example.org/v2/things"));
        assert!(two_asked);
        all.wds.delete(&path).await;
        all.bound("p", &["configmaps/a"]).await;
        let name = format!("after-{round}");
        all.config_map(&name, app.clone()).await;
        all.bound("p", &["configmaps/a", &format!("configmaps/{name}")]).await;
        all.wds.delete(&format!("/api/v1/namespaces/n/configmaps/{name}")).await;
        all.wds.until_any(&path, |it| it.is_none()).await;
    }
    let policy = all.wds.get(&format!("{POLICIES}/p")).await.unwrap();
    assert!(policy["status"].get("errors").is_none(), "{policy}");
    assert!(version(&policy) > 0);
    all.end().await;
}

/// KS-A-29, KS-061, KS-062: changes by other clients are undone. A changed object changes the Binding, an
/// unchanged one does not.
#[tokio::test(flavor = "multi_thread")]
async fn ks_a_29_tampering_is_undone() {
    let all = Scene::start().await;
    all.config_map("a", json!({})).await;
    all.policy("p", json!({"clusterSelectors": [{}], "downsync": [{"objectNames": ["a"]}]})).await;
    let first = all.bound("p", &["configmaps/a"]).await;
    let path = format!("{BINDINGS}/p");
    for harm in [
        json!({"spec": {"destinations": [{"clusterId": "other"}]}}),
        json!({"spec": {"workload": {"namespaceScope": null}}}),
        json!({"metadata": {"ownerReferences": null}}),
    ] {
        all.wds.patch(&path, harm.clone()).await;
        let undone = |it: &Value| {
            it["spec"] == first["spec"]
                && it["metadata"]["ownerReferences"] == first["metadata"]["ownerReferences"]
        };
        let mended = all.wds.until(&path, undone).await;
        assert_eq!(mended["metadata"]["uid"], first["metadata"]["uid"], "{harm}");
    }
    all.wds.delete(&path).await;
    let again = all.wds.until(&path, |it| it["metadata"]["uid"] != first["metadata"]["uid"]).await;
    assert_eq!(again["spec"], first["spec"]);
    all.end().await;
}
