//! Failing servers, and the requests they receive.

use std::{collections::BTreeSet, sync::atomic::Ordering};

use serde_json::{Value, json};
use testkit::wait::shows;

use crate::scene::{BINDINGS, CRDS, NAMESPACES, POLICIES, Scene, condition, config_map, names, set};

fn deployment() -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": "web", "namespace": "n", "labels": {"app": "x"}},
        "spec": {"selector": {"matchLabels": {"run": "web"}}, "template": {
            "metadata": {"labels": {"run": "web"}},
            "spec": {"containers": [{"name": "c", "image": "example.invalid/app:1"}]},
        }},
    })
}

/// KS-030: entries of Bindings about an API group whose discovery fails stay, whatever else changes and
/// across restarts, and the policy reports the failure. Once the group answers, its objects are followed
/// again.
#[tokio::test(flavor = "multi_thread")]
async fn ks_030_a_silent_group_loses_nothing() {
    let mut all = Scene::start().await;
    all.wds.post("/apis/apps/v1/namespaces/n/deployments", deployment()).await;
    all.config_map("a", json!({"app": "x"})).await;
    let spec =
        json!({"clusterSelectors": [{}], "downsync": [{"objectSelectors": [{"matchLabels": {"app": "x"}}]}]});
    all.policy("p", spec).await;
    all.bound("p", &["configmaps/a", "deployments/web"]).await;
    all.kill();
    all.faults.old_discovery.store(true, Ordering::SeqCst);
    all.faults.refuse("/apis/apps/v1", 503);
    all.run().await;
    all.config_map("b", json!({"app": "x"})).await;
    all.bound("p", &["configmaps/a", "configmaps/b", "deployments/web"]).await;
    let reported = |it: &Value| {
        it["status"]["errors"][0].as_str().is_some_and(|e| e.starts_with("*.apps can't be listed"))
    };
    all.wds.until(&format!("{POLICIES}/p"), reported).await;
    // Deleted while it cannot be observed.
    all.wds.delete("/apis/apps/v1/namespaces/n/deployments/web").await;
    all.config_map("c", json!({"app": "x"})).await;
    all.bound("p", &["configmaps/a", "configmaps/b", "configmaps/c", "deployments/web"]).await;
    all.faults.heal();
    all.bound("p", &["configmaps/a", "configmaps/b", "configmaps/c"]).await;
    all.wds.until(&format!("{POLICIES}/p"), |it| it["status"].get("errors").is_none()).await;
    all.end().await;
}

/// KS-030, KS-035: entries of a Binding about objects that cannot be listed stay as long as the objects may
/// exist. When their CRD is deleted the entries go, although the objects never could be listed, and the
/// policy has no error any more.
#[tokio::test(flavor = "multi_thread")]
async fn ks_030_what_could_not_be_listed_goes_with_its_definition() {
    let mut all = Scene::start().await;
    let schema = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let crd = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "things.example.org"},
        "spec": {"group": "example.org", "scope": "Namespaced",
            "names": {"plural": "things", "singular": "thing", "kind": "Thing", "listKind": "ThingList"},
            "versions": [{"name": "v1", "served": true, "storage": true, "schema": {"openAPIV3Schema": schema}}]},
    });
    all.wds.post(CRDS, crd).await;
    let definition = format!("{CRDS}/things.example.org");
    all.wds.until(&definition, |it| condition(it, "Established") == "True").await;
    let thing = json!({"apiVersion": "example.org/v1", "kind": "Thing",
        "metadata": {"name": "t", "labels": {"app": "x"}}});
    all.wds.post("/apis/example.org/v1/namespaces/n/things", thing).await;
    all.config_map("a", json!({"app": "x"})).await;
    let clause = json!({"objectSelectors": [{"matchLabels": {"app": "x"}}]});
    all.policy("p", json!({"clusterSelectors": [{}], "downsync": [clause]})).await;
    all.bound("p", &["configmaps/a", "things/t"]).await;
    all.stop().await;
    all.faults.refuse("/apis/example.org/v1/things", 500);
    all.run_impatient().await;
    all.config_map("b", json!({"app": "x"})).await;
    all.bound("p", &["configmaps/a", "configmaps/b", "things/t"]).await;
    let reported = |it: &Value| {
        it["status"]["errors"][0]
            .as_str()
            .is_some_and(|e| e.starts_with("things.example.org can't be listed"))
    };
    all.wds.until(&format!("{POLICIES}/p"), reported).await;
    all.wds.delete(&definition).await;
    all.bound("p", &["configmaps/a", "configmaps/b"]).await;
    all.wds.until(&format!("{POLICIES}/p"), |it| it["status"].get("errors").is_none()).await;
    all.end().await;
}

/// KS-048, KS-066: Namespaces that cannot be read do not end a match: nothing is written before they are
/// known.
#[tokio::test(flavor = "multi_thread")]
async fn ks_048_unreadable_namespaces_unmatch_nothing() {
    let mut all = Scene::start().await;
    all.wds.patch(&format!("{NAMESPACES}/n"), json!({"metadata": {"labels": {"team": "a"}}})).await;
    all.config_map("a", json!({})).await;
    let team = json!([{"matchLabels": {"team": "a"}}]);
    let clause = json!({"resources": ["configmaps"], "namespaceSelectors": team});
    all.policy("p", json!({"clusterSelectors": [{}], "downsync": [clause]})).await;
    let before = all.bound("p", &["configmaps/a"]).await;
    all.stop().await;
    all.faults.asked.send_replace(Vec::new());
    all.faults.refuse("/api/v1/namespaces?", 500);
    let mut ready = all.begin();
    // After some refusals nothing has been written.
    all.faults.until_asked(5, &["/api/v1/namespaces?"]).await;
    assert!(!*ready.borrow());
    all.faults.heal();
    shows("ready controllers", &mut ready, |yes| *yes).await;
    all.config_map("b", json!({})).await;
    let after = all.bound("p", &["configmaps/a", "configmaps/b"]).await;
    let generation = |it: &Value| it["metadata"]["generation"].as_i64().unwrap();
    assert_eq!(generation(&after), generation(&before) + 1);
    all.end().await;
}

/// KS-075, KS-031: exactly the resources that are served, watchable and not excluded are watched, once each.
/// KS-032: only metadata of their objects is watched.
#[tokio::test(flavor = "multi_thread")]
async fn ks_075_the_watches_are_exact() {
    let all = Scene::start().await;
    all.policy("p", json!({"clusterSelectors": [{}], "downsync": [{"apiGroup": "apps"}]})).await;
    all.wds.until(&format!("{BINDINGS}/p"), |_| true).await;
    let asked = all.faults.asked.borrow().clone();
    let mut seen = Vec::new();
    for (request, accept) in asked.iter().filter(|(request, _)| request.contains("watch=true")) {
        let path = request.trim_start_matches("GET ").split('?').next().unwrap();
        let parts: Vec<_> = path.trim_start_matches('/').split('/').collect();
        let (group, resource) = if parts[0] == "api" { ("", parts[2]) } else { (parts[1], parts[3]) };
        // The controller reads its own kinds and CRDs in full as well.
        let in_full = group == "control.kubestellar.io" || !accept.contains("PartialObjectMetadata");
        if in_full {
            assert!(
                group == "control.kubestellar.io" || resource == "customresourcedefinitions",
                "{request} is read in full"
            );
        } else {
            seen.push(format!("{resource}.{group}"));
        }
    }
    // The labels of Namespaces are followed separately.
    let twice: Vec<_> =
        seen.iter().filter(|it| seen.iter().filter(|other| other == it).count() > 1).collect();
    assert!(twice.iter().all(|it| *it == "namespaces."), "{twice:?}");
    let seen: BTreeSet<_> = seen.into_iter().collect();
    let mut expected = BTreeSet::new();
    for (group, resource, _) in served(&all).await {
        if !excluded(&group, &resource) {
            expected.insert(format!("{resource}.{group}"));
        }
    }
    assert_eq!(seen, expected);
    assert!(seen.contains("configmaps.") && seen.contains("pods.") && !seen.contains("events."));
    all.end().await;
}

/// KS-019, KS-021 for Bindings: two policies with the same objects and clusters have two Bindings; deleting
/// one policy leaves the other's Binding as it is.
#[tokio::test(flavor = "multi_thread")]
async fn ks_021_one_of_two_policies_goes() {
    let all = Scene::start().await;
    all.wds.post("/api/v1/namespaces/n/configmaps", config_map("n", "a", json!({}))).await;
    let spec = json!({"clusterSelectors": [{}], "downsync": [{"objectNames": ["a"]}]});
    all.policy("one", spec.clone()).await;
    all.policy("two", spec).await;
    let one = all.bound("one", &["configmaps/a"]).await;
    all.bound("two", &["configmaps/a"]).await;
    all.wds.delete(&format!("{POLICIES}/two")).await;
    all.wds.until_any(&format!("{BINDINGS}/two"), |it| it.is_none()).await;
    let still = all.wds.get(&format!("{BINDINGS}/one")).await.unwrap();
    assert_eq!((&still["spec"], names(&still)), (&one["spec"], set(&["configmaps/a"])));
    assert_eq!(still["metadata"]["generation"], one["metadata"]["generation"]);
    all.end().await;
}

/// Returns the resources that the WDS serves and that can be watched, in the preferred version: group,
/// resource, version.
pub(crate) async fn served(all: &Scene) -> Vec<(String, String, String)> {
    let mut groups = vec![(String::new(), vec!["v1".to_owned()])];
    let list = all.wds.get("/apis").await.unwrap();
    for group in list["groups"].as_array().unwrap() {
        let preferred = group["preferredVersion"]["version"].as_str().unwrap();
        let mut versions: Vec<_> = group["versions"]
            .as_array()
            .unwrap()
            .iter()
            .map(|it| it["version"].as_str().unwrap().to_owned())
            .collect();
        versions.sort_by_key(|version| version != preferred);
        groups.push((group["name"].as_str().unwrap().to_owned(), versions));
    }
    let mut found = Vec::new();
    for (group, versions) in groups {
        let mut known = BTreeSet::new();
        for version in versions {
            let path =
                if group.is_empty() { "/api/v1".to_owned() } else { format!("/apis/{group}/{version}") };
            let Some(list) = all.wds.get(&path).await else { continue };
            for resource in list["resources"].as_array().unwrap() {
                let name = resource["name"].as_str().unwrap();
                let verbs = resource["verbs"].as_array().unwrap();
                if !name.contains('/')
                    && verbs.contains(&json!("list"))
                    && verbs.contains(&json!("watch"))
                    && known.insert(name.to_owned())
                {
                    found.push((group.clone(), name.to_owned(), version.clone()));
                }
            }
        }
    }
    found
}

/// KS-031.
pub(crate) fn excluded(group: &str, resource: &str) -> bool {
    let groups = [
        "flowcontrol.apiserver.k8s.io",
        "discovery.k8s.io",
        "apiregistration.k8s.io",
        "coordination.k8s.io",
        "control.kubestellar.io",
    ];
    let resources = [
        "/events",
        "events.k8s.io/events",
        "/nodes",
        "/endpoints",
        "storage.k8s.io/csistoragecapacities",
        "storage.k8s.io/csinodes",
    ];
    groups.contains(&group) || resources.contains(&format!("{group}/{resource}").as_str())
}

/// A Binding may have thousands of entries. The server does not send them back after a write, and the
/// controller's state is right nevertheless.
#[tokio::test(flavor = "multi_thread")]
async fn a_binding_that_is_written_does_not_come_back() {
    let all = Scene::start().await;
    all.config_map("a", json!({})).await;
    all.policy("p", json!({"clusterSelectors": [{}], "downsync": [{"resources": ["configmaps"]}]})).await;
    let first = all.bound("p", &["configmaps/a"]).await;
    all.faults.asked.send_replace(Vec::new());
    all.config_map("b", json!({})).await;
    let second = all.bound("p", &["configmaps/a", "configmaps/b"]).await;
    // A change by another client after a write is noticed; the own write does not hide it.
    let path = format!("{BINDINGS}/p");
    all.wds.patch(&path, json!({"spec": {"workload": {"namespaceScope": null}}})).await;
    all.wds.until(&path, |it| it["spec"] == second["spec"]).await;
    all.config_map("c", json!({})).await;
    let last = all.bound("p", &["configmaps/a", "configmaps/b", "configmaps/c"]).await;
    assert_eq!(last["metadata"]["uid"], first["metadata"]["uid"]);
    let asked = all.faults.asked.borrow().clone();
    let written: Vec<_> =
        asked.iter().filter(|(it, _)| it.starts_with("PATCH") && it.contains("/bindings/p?")).collect();
    assert!(written.len() >= 3, "{asked:?}");
    assert!(written.iter().all(|(_, accept)| accept.contains("as=PartialObjectMetadata")), "{written:?}");
    all.end().await;
}
