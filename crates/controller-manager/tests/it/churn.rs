//! Random changes by users, of clusters and of CRDs, with controllers that are stopped and killed, compared
//! with a naive evaluator.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex},
};

use serde_json::{Value, json};

use crate::{
    faults::{excluded, served},
    scene::{BINDINGS, CLUSTERS, CRDS, NAMESPACES, POLICIES, Scene, config_map, destinations, names, policy},
};

const ROUNDS: u64 = 10;
const STEPS: u64 = 15;
/// Overridden by `KUBESTELLAR_TEST_SEED`.
const SEED: u64 = 20_261_121;
const ANCHORS: [&str; 3] = ["anchor-0", "anchor-1", "anchor-2"];

/// SplitMix64.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % bound
    }

    fn pick<T: Clone>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize].clone()
    }

    fn labels(&mut self) -> Value {
        let mut labels = json!({});
        for key in ["app", "env"] {
            if self.below(3) > 0 {
                labels[key] = json!(self.pick(&["1", "2"]));
            }
        }
        labels
    }

    fn selectors(&mut self) -> Value {
        let mut list = Vec::new();
        for _ in 0..=self.below(2) {
            let key = self.pick(&["app", "env"]);
            list.push(match self.below(5) {
                0 => json!({"matchExpressions": [{"key": key, "operator": "Exists"}]}),
                1 => json!({"matchExpressions": [{"key": key, "operator": "NotIn", "values": ["1"]}]}),
                2 => json!({}),
                _ => json!({"matchLabels": {key: self.pick(&["1", "2"])}}),
            });
        }
        json!(list)
    }

    fn clause(&mut self) -> Value {
        // Always at least one criterion.
        let mut clause = json!({"namespaces": ["*"], "createOnly": self.below(2) == 0});
        if self.below(3) == 0 {
            clause["apiGroup"] = json!(self.pick(&["", "example.org"]));
        }
        if self.below(3) == 0 {
            clause["resources"] = json!([self.pick(&["configmaps", "things", "namespaces", "*"])]);
        }
        if self.below(3) == 0 {
            clause["namespaces"] = json!([self.pick(&["n1", "n2", ""])]);
        }
        if self.below(3) == 0 {
            clause["objectNames"] = json!([self.pick(&["x0", "x1", "x2"]), "n1"]);
        }
        if self.below(2) == 0 {
            clause["objectSelectors"] = self.selectors();
        }
        if self.below(3) == 0 {
            clause["namespaceSelectors"] = self.selectors();
        }
        if self.below(4) == 0 {
            clause["statusCollectors"] = json!([self.pick(&["s1", "s2"])]);
        }
        clause
    }

    fn spec(&mut self) -> Value {
        let clauses: Vec<_> = (0..=self.below(2)).map(|_| self.clause()).collect();
        json!({"clusterSelectors": self.selectors(), "downsync": clauses})
    }
}

/// KS-A-07 (the randomised part), KS-A-24, KS-001, KS-059, KS-067, KS-069, KS-071, KS-075: whatever users do
/// to objects, labels, namespaces, clusters, CRDs and policies, and whenever the controllers are stopped,
/// killed and started, each Binding ends as a naive evaluation computes it. KS-066: in between, no published
/// Binding lacks an object or a cluster that was selected all the time.
#[tokio::test(flavor = "multi_thread")]
async fn ks_071_bindings_follow_the_naive_evaluation_through_churn() {
    let seed = std::env::var("KUBESTELLAR_TEST_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(SEED);
    println!("KUBESTELLAR_TEST_SEED={seed}");
    let mut random = Random(seed);
    let mut all = Scene::start().await;
    for name in ["n1", "n2"] {
        all.wds.post(NAMESPACES, json!({"metadata": {"name": name}})).await;
    }
    for name in ANCHORS {
        all.config_map(name, json!({"anchor": "yes"})).await;
    }
    all.policy("anchor", anchored(json!([]))).await;
    all.wds.until(&format!("{BINDINGS}/anchor"), |it| lacks(it).is_empty()).await;
    let broken = Arc::new(Mutex::new(Vec::new()));
    let watching = tokio::spawn(guard(all.wds.client.clone(), broken.clone()));
    for round in 0..ROUNDS {
        for _ in 0..STEPS {
            step(&mut random, &mut all).await;
        }
        all.stop().await;
        all.run().await;
        check(&all, round).await;
        assert_eq!(*broken.lock().unwrap(), Vec::<String>::new(), "seed {seed}, round {round}");
    }
    watching.abort();
    all.end().await;
}

/// The policy whose Binding must always list the anchors and the first cluster, with more clauses.
fn anchored(more: Value) -> Value {
    let mut clauses = more.as_array().cloned().unwrap_or_default();
    clauses.push(json!({"objectSelectors": [{"matchLabels": {"anchor": "yes"}}]}));
    json!({"clusterSelectors": [{"matchLabels": {"name": "cluster1"}}], "downsync": clauses})
}

/// Returns what the Binding of the anchors lacks.
fn lacks(binding: &Value) -> Vec<String> {
    let (has, clusters) = (names(binding), destinations(binding));
    let mut lacks: Vec<_> =
        ANCHORS.iter().map(|name| format!("configmaps/{name}")).filter(|name| !has.contains(name)).collect();
    if !clusters.contains("cluster1") {
        lacks.push("cluster1".into());
    }
    lacks
}

/// Records every published version of the anchors' Binding that lacks something.
async fn guard(client: kube::Client, broken: Arc<Mutex<Vec<String>>>) {
    use futures::StreamExt;
    let path = format!("{BINDINGS}?watch=true&fieldSelector=metadata.name%3Danchor");
    loop {
        let request = http::Request::get(&path).body(Vec::new()).unwrap();
        let Ok(events) = client.request_events::<Value>(request).await else { continue };
        let mut events = Box::pin(events);
        while let Some(Ok(event)) = events.next().await {
            match event {
                kube::core::WatchEvent::Added(it) | kube::core::WatchEvent::Modified(it) => {
                    let lacks = lacks(&it);
                    if !lacks.is_empty() {
                        broken
                            .lock()
                            .unwrap()
                            .push(format!("generation {}: {lacks:?}", it["metadata"]["generation"]));
                    }
                }
                kube::core::WatchEvent::Deleted(_) => broken.lock().unwrap().push("it was deleted".into()),
                _ => {}
            }
        }
    }
}

/// Does one random change. A change that the server refuses, because the object exists or does not exist, has
/// no effect.
async fn step(random: &mut Random, all: &mut Scene) {
    let (namespace, name) = (random.pick(&["n1", "n2"]), random.pick(&["x0", "x1", "x2"]));
    let thing = random.below(3) == 0;
    let collection = if thing {
        format!("/apis/example.org/v1/namespaces/{namespace}/things")
    } else {
        format!("/api/v1/namespaces/{namespace}/configmaps")
    };
    let labels = random.labels();
    let merge = "application/merge-patch+json";
    let (method, path, content, body) = match random.below(24) {
        0..7 => {
            let mut object = config_map(namespace, name, labels);
            if thing {
                object["apiVersion"] = json!("example.org/v1");
                object["kind"] = json!("Thing");
            }
            ("POST", collection, "application/json", object)
        }
        7..10 => {
            let relabel = json!({"metadata": {"labels": {"app": labels["app"], "env": labels["env"]}}});
            ("PATCH", format!("{collection}/{name}"), merge, relabel)
        }
        10..13 => ("DELETE", format!("{collection}/{name}"), "application/json", json!({})),
        13 => {
            let relabel = json!({"metadata": {"labels": {"app": labels["app"], "env": labels["env"]}}});
            ("PATCH", format!("{NAMESPACES}/{namespace}"), merge, relabel)
        }
        14 => {
            let relabel = json!({"metadata": {"labels": {"app": labels["app"], "env": labels["env"]}}});
            let path = format!("{CLUSTERS}/cluster2");
            drop(all.its.send("PATCH", &path, merge, &relabel).await);
            return;
        }
        15..17 => {
            ("POST", POLICIES.to_owned(), "application/json", policy(random.pick(&["p", "q"]), random.spec()))
        }
        17 => {
            let spec = random.spec();
            ("PATCH", format!("{POLICIES}/{}", random.pick(&["p", "q"])), merge, json!({"spec": spec}))
        }
        18 => {
            let spec = anchored(json!([random.clause()]));
            ("PATCH", format!("{POLICIES}/anchor"), merge, json!({"spec": spec}))
        }
        19 => ("DELETE", format!("{POLICIES}/{}", random.pick(&["p", "q"])), "application/json", json!({})),
        20 => ("POST", CRDS.to_owned(), "application/json", definition(random.pick(&[false, true]))),
        21 => {
            let versions = definition(random.pick(&[false, true]))["spec"]["versions"].clone();
            ("PATCH", format!("{CRDS}/things.example.org"), merge, json!({"spec": {"versions": versions}}))
        }
        22 => {
            if random.below(2) == 0 {
                ("DELETE", format!("{CRDS}/things.example.org"), "application/json", json!({}))
            } else {
                all.stop().await;
                return;
            }
        }
        _ => {
            all.kill();
            if random.below(4) > 0 {
                // Half of the time it is killed again before it works.
                drop(all.begin());
            }
            return;
        }
    };
    drop(all.wds.send(method, &path, content, &body).await);
}

fn definition(second: bool) -> Value {
    let version = |name: &str, served: bool, storage: bool| {
        json!({"name": name, "served": served, "storage": storage, "schema": {"openAPIV3Schema": {
            "type": "object", "x-kubernetes-preserve-unknown-fields": true,
        }}})
    };
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "things.example.org"},
        "spec": {
            "group": "example.org", "scope": "Namespaced",
            "names": {"plural": "things", "singular": "thing", "kind": "Thing", "listKind": "ThingList"},
            "versions": [version("v1", true, true), version("v2", second, false)],
        },
    })
}

/// Waits until each policy has the Binding that the naive evaluation computes, and no other Binding exists.
async fn check(all: &Scene, round: u64) {
    // Objects that are being deleted go after some time: CRDs with their objects, policies with their
    // Bindings.
    let stays = |it: &Value| it["metadata"].get("deletionTimestamp").is_none();
    for path in [CRDS, POLICIES] {
        all.wds.until(path, |it| it["items"].as_array().unwrap().iter().all(stays)).await;
    }
    let policies = all.wds.get(POLICIES).await.unwrap();
    // A policy that was deleted while the controllers were down exists until they remove its finalizer.
    let policies: BTreeMap<String, Value> = policies["items"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|it| it["metadata"].get("deletionTimestamp").is_none())
        .map(|it| (it["metadata"]["name"].as_str().unwrap().to_owned(), it["spec"].clone()))
        .collect();
    let everything = everything(all).await;
    let clusters = all.its.get(CLUSTERS).await.unwrap();
    for (name, spec) in &policies {
        let expected = evaluate(spec, &everything, clusters["items"].as_array().unwrap());
        println!("round {round}: {name}: {} entries", expected.0.len());
        all.wds.until(&format!("{BINDINGS}/{name}"), |it| (entries(it), destinations(it)) == expected).await;
        let synced = |it: &Value| it["status"]["observedGeneration"] == it["metadata"]["generation"];
        all.wds.until(&format!("{POLICIES}/{name}"), synced).await;
    }
    all.wds
        .until(BINDINGS, |it| {
            it["items"]
                .as_array()
                .unwrap()
                .iter()
                .all(|it| policies.contains_key(it["metadata"]["name"].as_str().unwrap()))
        })
        .await;
}

/// Returns everything that can match: group, version, resource, object.
async fn everything(all: &Scene) -> Vec<(String, String, String, Value)> {
    let mut found = Vec::new();
    for (group, resource, version) in served(all).await.into_iter().filter(|(g, r, _)| !excluded(g, r)) {
        let root = if group.is_empty() { "/api/v1".to_owned() } else { format!("/apis/{group}/{version}") };
        let Some(list) = all.wds.get(&format!("{root}/{resource}")).await else { continue };
        for object in list["items"].as_array().into_iter().flatten() {
            found.push((group.clone(), version.clone(), resource.clone(), object.clone()));
        }
    }
    found
}

/// Returns the entries of a Binding as text.
fn entries(binding: &Value) -> BTreeSet<String> {
    let scopes = ["clusterScope", "namespaceScope"].into_iter();
    let entries =
        scopes.flat_map(|scope| binding["spec"]["workload"][scope].as_array().into_iter().flatten());
    entries
        .map(|it| {
            let text = |key: &str| it[key].as_str().unwrap_or_default().to_owned();
            let collectors: Vec<_> =
                it["statusCollectors"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
            let (group, version, resource) = (text("group"), text("version"), text("resource"));
            let (namespace, name, at) = (text("namespace"), text("name"), text("resourceVersion"));
            let once = it["createOnly"] == json!(true);
            format!("{group}/{version} {resource} {namespace}/{name} at {at} {once} {collectors:?}")
        })
        .collect()
}

fn evaluate(
    spec: &Value,
    everything: &[(String, String, String, Value)],
    clusters: &[Value],
) -> (BTreeSet<String>, BTreeSet<String>) {
    let clauses: Vec<_> = spec["downsync"].as_array().cloned().unwrap_or_default();
    let mut entries = BTreeSet::new();
    for (group, version, resource, object) in everything {
        let matching: Vec<_> =
            clauses.iter().filter(|it| matches(it, group, resource, object, everything)).collect();
        if matching.is_empty() {
            continue;
        }
        let once = matching.iter().any(|it| it["createOnly"] == json!(true));
        let collectors: BTreeSet<_> = matching
            .iter()
            .flat_map(|it| it["statusCollectors"].as_array().into_iter().flatten().filter_map(Value::as_str))
            .collect();
        let collectors: Vec<_> = collectors.into_iter().collect();
        let meta = &object["metadata"];
        let (namespace, name) =
            (meta["namespace"].as_str().unwrap_or_default(), meta["name"].as_str().unwrap());
        let at = meta["resourceVersion"].as_str().unwrap();
        entries
            .insert(format!("{group}/{version} {resource} {namespace}/{name} at {at} {once} {collectors:?}"));
    }
    let chosen = clusters.iter().filter(|it| any(&spec["clusterSelectors"], &it["metadata"]["labels"]));
    (entries, chosen.map(|it| it["metadata"]["name"].as_str().unwrap().to_owned()).collect())
}

fn matches(
    clause: &Value,
    group: &str,
    resource: &str,
    object: &Value,
    everything: &[(String, String, String, Value)],
) -> bool {
    let meta = &object["metadata"];
    let namespace = meta["namespace"].as_str().unwrap_or_default();
    let listed = |key: &str, value: &str| match clause[key].as_array() {
        None => true,
        Some(list) => list.is_empty() || list.contains(&json!("*")) || list.contains(&json!(value)),
    };
    let labelled = |key: &str, labels: &Value| match clause[key].as_array() {
        None => true,
        Some(list) => list.is_empty() || any(&clause[key], labels),
    };
    let in_namespace = match clause["namespaceSelectors"].as_array() {
        Some(list) if !list.is_empty() && !list.contains(&json!({})) => {
            let found = everything.iter().find(|(g, _, r, it)| {
                g.is_empty() && r == "namespaces" && it["metadata"]["name"] == json!(namespace)
            });
            found.is_some_and(|(.., it)| any(&clause["namespaceSelectors"], &it["metadata"]["labels"]))
        }
        _ => true,
    };
    clause["apiGroup"].as_str().is_none_or(|wanted| wanted == group)
        && listed("resources", resource)
        && listed("namespaces", namespace)
        && listed("objectNames", meta["name"].as_str().unwrap())
        && labelled("objectSelectors", &meta["labels"])
        && in_namespace
}

/// Returns whether one of the selectors matches.
fn any(selectors: &Value, labels: &Value) -> bool {
    selectors.as_array().into_iter().flatten().any(|selector| {
        let exact = selector["matchLabels"].as_object().into_iter().flatten().all(|(k, v)| labels[k] == *v);
        exact
            && selector["matchExpressions"].as_array().into_iter().flatten().all(|it| {
                let has = &labels[it["key"].as_str().unwrap()];
                match it["operator"].as_str().unwrap() {
                    "Exists" => !has.is_null(),
                    "NotIn" => has.is_null() || !it["values"].as_array().unwrap().contains(has),
                    other => panic!("{other}"),
                }
            })
    })
}
