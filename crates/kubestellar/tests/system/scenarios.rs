//! What users do with policies, labels, clusters and definitions, from end to end (KS-A).

use std::collections::BTreeMap;

use kube::api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams};
use kube::{Client, ResourceExt};
use serde_json::{Value, json};

use crate::support::{
    Installation, config_map, create, deployment, dynamic, namespace, uid, until, until_one,
};

const APP: &str = "app.kubernetes.io/part-of";
pub(super) const POLICY: (&str, &str) = ("control.kubestellar.io/v1alpha1", "BindingPolicy");
pub(super) const BINDING: (&str, &str) = ("control.kubestellar.io/v1alpha1", "Binding");
pub(super) const CLUSTER: (&str, &str) = ("cluster.open-cluster-management.io/v1", "ManagedCluster");
pub(super) const WORK: (&str, &str) = ("work.open-cluster-management.io/v1", "ManifestWork");
pub(super) const CRD: (&str, &str) = ("apiextensions.k8s.io/v1", "CustomResourceDefinition");
pub(super) const DEPLOYMENT: (&str, &str) = ("apps/v1", "Deployment");
pub(super) const EDGE: (&str, &str) = ("location-group", "edge");
pub(super) const WECS: [&str; 2] = ["cluster1", "cluster2"];

/// The spaces of one installation.
pub(super) struct Spaces {
    pub(super) wds: Client,
    pub(super) its: Client,
    pub(super) wecs: BTreeMap<&'static str, Client>,
}

impl Spaces {
    pub(super) async fn of(ks: &Installation) -> Self {
        let mut wecs = BTreeMap::new();
        for name in WECS {
            wecs.insert(name, ks.client(name).await);
        }
        Self { wds: ks.client("wds1").await, its: ks.client("its1").await, wecs }
    }

    /// Waits until the objects of a kind with these labels are exactly these, by `namespace/name`, in each of `clusters`.
    pub(super) async fn arrive(
        &self,
        clusters: &[&str],
        kind: (&str, &str),
        labels: &str,
        expected: &[&str],
    ) {
        for (name, client) in self.wecs.iter().filter(|(name, _)| clusters.contains(name)) {
            let what = format!("{expected:?} of kind {} in {name}", kind.1);
            until(&dynamic(client, kind.0, kind.1, None), &what, |all| {
                let ours = all.iter().filter(|(_, it)| labelled(it, labels));
                ours.map(|(name, _)| name.as_str()).eq(expected.iter().copied())
            })
            .await;
        }
    }

    async fn binding(&self, name: &str, what: &str, enough: impl Fn(&Value) -> bool) -> DynamicObject {
        until_one(&dynamic(&self.wds, BINDING.0, BINDING.1, None), name, what, |it| enough(&it.data["spec"]))
            .await
    }
}

pub(super) fn labelled(object: &DynamicObject, label: &str) -> bool {
    let (key, value) = label.split_once('=').unwrap();
    object.labels().get(key).map(String::as_str) == Some(value)
}

pub(super) async fn patch(
    client: &Client,
    kind: (&str, &str),
    namespace: Option<&str>,
    name: &str,
    body: Value,
) {
    let api = dynamic(client, kind.0, kind.1, namespace);
    let params = PatchParams::default();
    api.patch(name, &params, &Patch::Merge(body)).await.unwrap_or_else(|e| panic!("{kind:?} {name}: {e}"));
}

pub(super) async fn delete(client: &Client, kind: (&str, &str), namespace: Option<&str>, name: &str) {
    let api = dynamic(client, kind.0, kind.1, namespace);
    api.delete(name, &DeleteParams::default()).await.unwrap_or_else(|e| panic!("{kind:?} {name}: {e}"));
}

async fn gone(client: &Client, kind: (&str, &str), what: &str, name: &str) {
    until(&dynamic(client, kind.0, kind.1, None), what, |all| !all.contains_key(name)).await;
}

pub(super) fn policy(name: &str, clusters: &Value, clause: Value) -> Value {
    json!({
        "apiVersion": POLICY.0, "kind": POLICY.1, "metadata": {"name": name},
        "spec": {"clusterSelectors": clusters, "downsync": [clause]},
    })
}

pub(super) fn of(key: &str, value: &str) -> Value {
    json!([{"matchLabels": {key: value}}])
}

fn app(name: &str) -> Value {
    json!({"objectSelectors": of(APP, name)})
}

fn clusters(spec: &Value) -> Vec<&str> {
    spec["destinations"].as_array().into_iter().flatten().filter_map(|it| it["clusterId"].as_str()).collect()
}

/// KS-A-01, KS-A-02, KS-A-03, KS-A-04 in a row, as one user does them; and what `get status` and `explain` say meanwhile
/// (SP-A-02, SP-119, SP-120). KS-004: names of kinds.
#[tokio::test(flavor = "multi_thread")]
async fn ks_a_01_to_04_deliver_update_select_relabel() {
    let ks = Installation::new();
    let server = ks.serve(&["--listen", "127.0.0.1:0"]).await;
    let all = Spaces::of(&ks).await;
    let here = dynamic(&all.its, CLUSTER.0, CLUSTER.1, None);
    let listed = here.list(&ListParams::default().labels("location-group=edge")).await.unwrap();
    assert_eq!(listed.iter().map(ResourceExt::name_any).collect::<Vec<_>>(), WECS, "KS-A-00");

    // KS-A-01: the policy first for one application, the workload first for the other.
    create(&all.wds, policy("shop", &of(EDGE.0, EDGE.1), app("shop"))).await;
    for name in ["shop", "late"] {
        create(&all.wds, namespace(name)).await;
        create(&all.wds, deployment(name, "cart")).await;
    }
    create(&all.wds, policy("late", &of(EDGE.0, EDGE.1), app("late"))).await;
    for name in ["shop", "late"] {
        let cart = format!("{name}/cart");
        all.arrive(&WECS, DEPLOYMENT, &format!("{APP}={name}"), &[&cart]).await;
        let binding = all
            .binding(name, "both objects", |spec| {
                spec["workload"]["namespaceScope"].as_array().is_some_and(|it| it.len() == 1)
            })
            .await;
        let spec = &binding.data["spec"];
        assert_eq!(clusters(spec), WECS);
        assert_eq!(spec["workload"]["clusterScope"][0]["name"], name);
        let entry = &spec["workload"]["namespaceScope"][0];
        assert_eq!((&entry["group"], &entry["resource"]), (&json!("apps"), &json!("deployments")));
        assert!(binding.finalizers().contains(&"transport.kubestellar.io/object-cleanup".to_owned()));
        let owner = &binding.owner_references()[0];
        assert_eq!((owner.kind.as_str(), owner.name.as_str()), ("BindingPolicy", name));
    }
    let pods = dynamic(&all.wds, "v1", "Pod", None).list(&ListParams::default()).await.unwrap();
    assert!(pods.items.is_empty(), "nothing runs in a WDS");
    views(&ks).await;

    // KS-A-02: an update, and a deletion.
    patch(&all.wds, DEPLOYMENT, Some("shop"), "cart", json!({"spec": {"replicas": 3}})).await;
    for (name, wec) in &all.wecs {
        let carts = dynamic(wec, DEPLOYMENT.0, DEPLOYMENT.1, Some("shop"));
        until_one(&carts, "cart", &format!("the update in {name}"), |it| it.data["spec"]["replicas"] == 3)
            .await;
    }

    // KS-A-04: off and on by the object's label; the Namespace stays.
    patch(&all.wds, DEPLOYMENT, Some("shop"), "cart", json!({"metadata": {"labels": {APP: "other"}}})).await;
    all.arrive(&WECS, DEPLOYMENT, &format!("{APP}=shop"), &[]).await;
    all.arrive(&WECS, ("v1", "Namespace"), &format!("{APP}=shop"), &["shop"]).await;
    let told = ks.run(&["explain", "deploy/cart", "-n", "shop"]).await;
    assert_eq!(told.code, 0, "{}{}", told.stdout, told.stderr);
    assert!(told.stdout.contains("no member of objectSelectors matches its labels"), "{}", told.stdout);
    assert!(told.stdout.contains("no policy matches it"), "{}", told.stdout);
    patch(&all.wds, DEPLOYMENT, Some("shop"), "cart", json!({"metadata": {"labels": {APP: "shop"}}})).await;
    all.arrive(&WECS, DEPLOYMENT, &format!("{APP}=shop"), &["shop/cart"]).await;

    // KS-A-03: off and on by the policy's selector.
    patch(&all.wds, POLICY, None, "shop", json!({"spec": {"downsync": [app("nobody")]}})).await;
    all.arrive(&WECS, DEPLOYMENT, &format!("{APP}=shop"), &[]).await;
    all.arrive(&WECS, ("v1", "Namespace"), &format!("{APP}=shop"), &[]).await;
    patch(&all.wds, POLICY, None, "shop", json!({"spec": {"downsync": [app("shop")]}})).await;
    all.arrive(&WECS, DEPLOYMENT, &format!("{APP}=shop"), &["shop/cart"]).await;

    // KS-A-02: the object goes, then the policy.
    delete(&all.wds, DEPLOYMENT, Some("shop"), "cart").await;
    all.arrive(&WECS, DEPLOYMENT, &format!("{APP}=shop"), &[]).await;
    all.binding("shop", "no namespaced object", |spec| spec["workload"].get("namespaceScope").is_none())
        .await;
    delete(&all.wds, POLICY, None, "shop").await;
    gone(&all.wds, BINDING, "the end of the Binding", "shop").await;
    all.arrive(&WECS, ("v1", "Namespace"), &format!("{APP}=shop"), &[]).await;
    all.arrive(&WECS, DEPLOYMENT, &format!("{APP}=late"), &["late/cart"]).await;
    assert!(dynamic(&all.wds, "v1", "Namespace", None).get("shop").await.is_ok());
    server.stop().await;
}

/// The views on a delivered policy, in all their forms (SP-081, SP-083, SP-084, SP-119, SP-120).
async fn views(ks: &Installation) {
    let applied = async {
        // The agents report a moment after they apply.
        loop {
            let shown = ks.run(&["get", "status", "shop", "--exit-code"]).await;
            match shown.code {
                0 => return shown,
                9 => tokio::task::yield_now().await,
                code => panic!("exit {code}: {}{}", shown.stdout, shown.stderr),
            }
        }
    };
    let shown = crate::support::within("get status", applied).await.stdout;
    let lines: Vec<&str> = shown.lines().collect();
    assert_eq!(lines[0].split_whitespace().collect::<Vec<_>>(), ["OBJECT", "CLUSTER1", "CLUSTER2"]);
    assert!(
        lines[1].starts_with("Namespace shop") && lines[2].starts_with("Deployment shop/cart"),
        "{shown}"
    );
    assert_eq!(shown.matches("Applied").count(), 4, "{shown}");

    let json = ks.must(&["get", "status", "shop", "-o", "json"]).await.stdout;
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!((&json["kind"], &json["policy"]), (&json!("DeliveryStatus"), &json!("shop")));
    assert_eq!(json["objects"][1]["clusters"][0]["state"], "Applied");
    let every = ks.must(&["get", "status", "-o", "json"]).await.stdout;
    let every: Value = serde_json::from_str(&every).unwrap();
    assert_eq!((&every["kind"], every["items"].as_array().unwrap().len()), (&json!("List"), 2));
    let wide = ks.must(&["get", "status", "shop", "-o", "wide"]).await.stdout;
    assert_eq!(wide.lines().count(), 5, "{wide}");
    let names = ks.must(&["get", "status", "shop", "-o", "name"]).await.stdout;
    assert_eq!(names, "namespaces/shop\ndeployments.apps/cart\n");
    ks.run(&["get", "status", "nothing"]).await.fails(3, &["nothing", "no such BindingPolicy"]);
    ks.run(&["get", "status", "shop", "--wds", "wds9"]).await.fails(3, &["wds9"]);

    let told = ks.must(&["explain", "deploy/cart", "-n", "shop"]).await.stdout;
    assert!(told.contains("Policy shop matches it by downsync[0]:"), "{told}");
    assert!(told.contains("It is applied in cluster1, cluster2."), "{told}");
    assert!(told.contains("Policy late does not match it:"), "{told}");
    let told = ks.must(&["explain", "Deployment/cart", "-n", "shop", "-o", "json"]).await.stdout;
    let told: Value = serde_json::from_str(&told).unwrap();
    assert_eq!((&told["kind"], &told["delivered"]), (&json!("Explanation"), &json!(true)));
    ks.run(&["explain", "deploy/nothing", "-n", "shop"]).await.fails(3, &["no such object"]);
    ks.run(&["explain", "rocket/saturn"]).await.fails(3, &["no such kind"]);
    assert_eq!(ks.run(&["explain", "cart"]).await.code, 2);
}

/// KS-A-05, KS-A-06, KS-A-09: clusters come and go by their labels, selectors of all sorts, and two policies for the same
/// objects. KS-021: what two policies deliver stays, with its UID, when one of them goes. KS-022, KS-064: a singleton that
/// goes to two clusters goes to both, and the policy says what is wrong.
#[tokio::test(flavor = "multi_thread")]
async fn ks_a_05_06_09_clusters_selectors_and_overlaps() {
    let ks = Installation::new();
    let server = ks.serve(&["--listen", "127.0.0.1:0"]).await;
    let all = Spaces::of(&ks).await;
    create(&all.wds, namespace("shop")).await;
    for (name, labels) in [("one", json!({"a": "x"})), ("two", json!({"a": "x", "b": "y"}))] {
        let mut map = config_map("shop", name, "v");
        map["metadata"]["labels"] = labels;
        map["metadata"]["labels"]["set"] = json!("multi");
        create(&all.wds, map).await;
    }
    // The Namespace goes everywhere, so that the rest can come and go.
    create(
        &all.wds,
        policy("base", &json!([{}]), json!({"resources": ["namespaces"], "objectNames": ["shop"]})),
    )
    .await;

    // KS-A-05.
    let wanted =
        json!({"resources": ["configmaps"], "objectSelectors": [{"matchLabels": {"a": "x", "b": "y"}}]});
    create(&all.wds, policy("ring", &of("ring", "canary"), wanted)).await;
    all.binding("ring", "objects without destinations", |spec| {
        clusters(spec).is_empty()
            && spec["workload"]["namespaceScope"].as_array().is_some_and(|it| it.len() == 1)
    })
    .await;
    let maps = ("v1", "ConfigMap");
    let label = |value: Value| json!({"metadata": {"labels": {"ring": value}}});
    patch(&all.its, CLUSTER, None, "cluster1", label(json!("canary"))).await;
    all.arrive(&["cluster1"], maps, "set=multi", &["shop/two"]).await;
    all.arrive(&["cluster2"], maps, "set=multi", &[]).await;
    patch(&all.its, CLUSTER, None, "cluster2", label(json!("canary"))).await;
    all.arrive(&WECS, maps, "set=multi", &["shop/two"]).await;
    patch(&all.its, CLUSTER, None, "cluster1", label(Value::Null)).await;
    all.arrive(&["cluster1"], maps, "set=multi", &[]).await;
    all.arrive(&["cluster2"], maps, "set=multi", &["shop/two"]).await;

    // KS-A-06: the policy moves to the other cluster, to both, and to other objects.
    let spec = |clusters: Value, selectors: Value| {
        json!({"spec": {"clusterSelectors": clusters,
            "downsync": [{"resources": ["configmaps"], "objectSelectors": selectors}]}})
    };
    let two = json!([{"matchLabels": {"a": "x", "b": "y"}}]);
    patch(&all.wds, POLICY, None, "ring", spec(of("name", "cluster1"), two)).await;
    all.arrive(&["cluster1"], maps, "set=multi", &["shop/two"]).await;
    all.arrive(&["cluster2"], maps, "set=multi", &[]).await;
    let either = json!([
        {"matchLabels": {"name": "cluster1"}},
        {"matchExpressions": [{"key": "name", "operator": "In", "values": ["cluster1", "cluster2", "cluster9"]}]},
    ]);
    let union = json!([{"matchLabels": {"b": "y"}}, {"matchExpressions": [{"key": "b", "operator": "DoesNotExist"}], "matchLabels": {"a": "x"}}]);
    patch(&all.wds, POLICY, None, "ring", spec(either, union)).await;
    all.arrive(&WECS, maps, "set=multi", &["shop/one", "shop/two"]).await;

    // KS-A-09: an identical policy, and the first one goes.
    let uids = |all: &BTreeMap<String, DynamicObject>| {
        let ours = all.iter().filter(|(_, it)| labelled(it, "set=multi"));
        ours.map(|(name, it)| (name.clone(), uid(it))).collect::<BTreeMap<_, _>>()
    };
    let mut before = BTreeMap::new();
    for (name, wec) in &all.wecs {
        let there = until(&dynamic(wec, maps.0, maps.1, None), "both", |all| uids(all).len() == 2).await;
        before.insert(*name, uids(&there));
    }
    let again = json!({"resources": ["configmaps"], "objectSelectors": of("set", "multi"), "wantSingletonReportedState": true});
    create(&all.wds, policy("again", &of(EDGE.0, EDGE.1), again)).await;
    let singleton =
        until_one(&dynamic(&all.wds, POLICY.0, POLICY.1, None), "again", "the singleton error", |it| {
            it.data["status"]["errors"][0].as_str().is_some_and(|error| error.contains("\"NumWECs\":2"))
        })
        .await;
    assert_eq!(singleton.data["status"]["errors"].as_array().unwrap().len(), 1, "{singleton:?}");
    for cluster in WECS {
        // Applied by the second policy's work, too.
        let works = dynamic(&all.its, WORK.0, WORK.1, Some(cluster));
        until(&works, "the second policy's work", |all| {
            all.values().any(|it| {
                let of = it.labels().get("transport.kubestellar.io/originOwnerReferenceBindingKey");
                of.map(String::as_str) == Some("again")
                    && it.data["status"]["resourceStatus"]["manifests"]
                        .as_array()
                        .is_some_and(|it| it.len() == 2)
            })
        })
        .await;
    }
    delete(&all.wds, POLICY, None, "ring").await;
    gone(&all.wds, BINDING, "the end of the Binding", "ring").await;
    for cluster in WECS {
        let works = dynamic(&all.its, WORK.0, WORK.1, Some(cluster));
        until(&works, "the end of the first policy's work", |all| {
            all.values().all(|it| {
                it.labels().get("transport.kubestellar.io/originOwnerReferenceBindingKey").map(String::as_str)
                    != Some("ring")
            })
        })
        .await;
    }
    for (name, wec) in &all.wecs {
        let there = dynamic(wec, maps.0, maps.1, None).list(&ListParams::default()).await.unwrap();
        let there =
            there.items.into_iter().map(|it| (format!("{}/{}", it.namespace().unwrap(), it.name_any()), it));
        assert_eq!(uids(&there.collect()), before[name], "{name}");
    }
    delete(&all.wds, POLICY, None, "again").await;
    all.arrive(&WECS, maps, "set=multi", &[]).await;
    server.stop().await;
}

/// KS-A-11, KS-034, KS-035: a kind that is defined after the start, delivered with its definition and the rights to handle
/// it, and what remains when its definition goes.
#[tokio::test(flavor = "multi_thread")]
async fn ks_a_11_a_kind_of_the_users_own() {
    let ks = Installation::new();
    let server = ks.serve(&["--listen", "127.0.0.1:0"]).await;
    let all = Spaces::of(&ks).await;
    create(&all.wds, policy("space", &of(EDGE.0, EDGE.1), app("space"))).await;
    create(&all.wds, namespace("space")).await;
    let schema = json!({"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}});
    let version = |name: &str, served: bool, storage: bool| json!({"name": name, "served": served, "storage": storage, "schema": schema});
    create(
        &all.wds,
        json!({
            "apiVersion": CRD.0, "kind": CRD.1,
            "metadata": {"name": "rockets.space.example", "labels": {APP: "space"}},
            "spec": {
                "group": "space.example", "scope": "Namespaced",
                "names": {"plural": "rockets", "singular": "rocket", "kind": "Rocket", "listKind": "RocketList"},
                "versions": [version("v1", true, true), version("v1beta1", true, false), version("v2", false, false)],
            },
        }),
    )
    .await;
    create(
        &all.wds,
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
            "metadata": {"name": "rockets-for-work-agent", "labels": {
                APP: "space", "open-cluster-management.io/aggregate-to-work": "true",
            }},
            "rules": [{"apiGroups": ["space.example"], "resources": ["rockets"], "verbs": ["*"]}],
        }),
    )
    .await;
    let definitions = dynamic(&all.wds, CRD.0, CRD.1, None);
    until_one(&definitions, "rockets.space.example", "the definition", |it| {
        let conditions = it.data["status"]["conditions"].as_array();
        conditions.into_iter().flatten().any(|it| it["type"] == "Established" && it["status"] == "True")
    })
    .await;
    create(
        &all.wds,
        json!({
            "apiVersion": "space.example/v1", "kind": "Rocket",
            "metadata": {"name": "saturn", "namespace": "space", "labels": {APP: "space"}}, "spec": {"stages": 3},
        }),
    )
    .await;
    for (name, wec) in &all.wecs {
        // Its definition arrives on the way.
        until_one(&dynamic(wec, CRD.0, CRD.1, None), "rockets.space.example", name, |_| true).await;
        let rockets = dynamic(wec, "space.example/v1", "Rocket", Some("space"));
        let there = until_one(&rockets, "saturn", &format!("the rocket in {name}"), |_| true).await;
        assert_eq!(there.data["spec"]["stages"], 3);
    }
    let binding = all
        .binding("space", "one entry for the rocket", |spec| {
            spec["workload"]["namespaceScope"].as_array().is_some_and(|it| !it.is_empty())
        })
        .await;
    let entries = &binding.data["spec"]["workload"]["namespaceScope"];
    let rockets: Vec<_> =
        entries.as_array().unwrap().iter().filter(|it| it["resource"] == "rockets").collect();
    assert_eq!((rockets.len(), &rockets[0]["version"]), (1, &json!("v1")), "KS-036");
    delete(&all.wds, CRD, None, "rockets.space.example").await;
    all.binding("space", "the rocket to leave the Binding", |spec| {
        spec["workload"].get("namespaceScope").is_none()
    })
    .await;
    create(&all.wds, config_map("space", "log", "still here")).await;
    all.arrive(&WECS, ("v1", "ConfigMap"), &format!("{APP}=space"), &["space/log"]).await;
    server.stop().await;
}

/// KS-A-26: two WDSes with policies of the same name do not get in each other's way.
#[tokio::test(flavor = "multi_thread")]
async fn ks_a_26_two_description_spaces() {
    let ks = Installation::new();
    let server = ks.serve(&["--listen", "127.0.0.1:0", "--wds", "wds1", "--wds", "wds2"]).await;
    let all = Spaces::of(&ks).await;
    let second = ks.client("wds2").await;
    for (wds, name) in [(&all.wds, "shop"), (&second, "bank")] {
        create(wds, policy("same", &of(EDGE.0, EDGE.1), app(name))).await;
        create(wds, namespace(name)).await;
        create(wds, config_map(name, "settings", "v")).await;
    }
    for name in ["shop", "bank"] {
        all.arrive(&WECS, ("v1", "ConfigMap"), &format!("{APP}={name}"), &[&format!("{name}/settings")])
            .await;
    }
    let told = ks.must(&["explain", "cm/settings", "-n", "bank", "--wds", "wds2"]).await.stdout;
    assert!(told.contains("Policy same matches it"), "{told}");
    delete(&all.wds, POLICY, None, "same").await;
    all.arrive(&WECS, ("v1", "ConfigMap"), &format!("{APP}=shop"), &[]).await;
    all.arrive(&WECS, ("v1", "Namespace"), &format!("{APP}=shop"), &[]).await;
    all.arrive(&WECS, ("v1", "ConfigMap"), &format!("{APP}=bank"), &["bank/settings"]).await;
    let works = dynamic(&all.its, WORK.0, WORK.1, None);
    until(&works, "works of the second space alone, in each cluster", |all| {
        let of = |it: &DynamicObject| it.labels().get("transport.kubestellar.io/originWdsName").cloned();
        all.len() == 2 && all.values().all(|it| of(it).as_deref() == Some("wds2"))
    })
    .await;
    server.stop().await;
}
