//! Scenarios in which other programs stand around KubeStellar, and what a change costs (KS-A).

use std::collections::BTreeMap;

use kube::Client;
use kube::ResourceExt;
use kube::api::{DynamicObject, ListParams, Patch, PatchParams};
use serde_json::{Value, json};

use super::components::Bare;
use super::scenarios::{
    BINDING, CLUSTER, CRD, DEPLOYMENT, EDGE, POLICY, Spaces, WECS, WORK, delete, labelled, of, patch, policy,
};
use crate::support::{
    Installation, apply_status, config_map, create, deployment, dynamic, namespace, uid, until, until_one,
};

const SECRET: (&str, &str) = ("v1", "Secret");

/// KS-A-00: what there is to see right after the start: the inventory, the mailboxes and the namespace of properties, the five
/// kinds, and the namespace of reports.
#[tokio::test(flavor = "multi_thread")]
async fn ks_a_00_look_around() {
    let ks = Installation::new();
    let server = ks.serve(&["--listen", "127.0.0.1:0"]).await;
    let all = Spaces::of(&ks).await;
    let inventory = dynamic(&all.its, CLUSTER.0, CLUSTER.1, None);
    let listed = inventory.list(&ListParams::default().labels("location-group=edge")).await.unwrap();
    assert_eq!(listed.iter().map(ResourceExt::name_any).collect::<Vec<_>>(), WECS);
    let namespaces = dynamic(&all.its, "v1", "Namespace", None);
    for name in [WECS[0], WECS[1], "customization-properties"] {
        until_one(&namespaces, name, "a namespace of the ITS", |_| true).await;
    }
    let definitions = dynamic(&all.wds, CRD.0, CRD.1, None);
    for plural in ["bindings", "bindingpolicies", "customtransforms", "statuscollectors", "combinedstatuses"]
    {
        let name = format!("{plural}.control.kubestellar.io");
        until_one(&definitions, &name, "a definition", |it| {
            let conditions = it.data["status"]["conditions"].as_array();
            conditions.into_iter().flatten().any(|it| it["type"] == "Established" && it["status"] == "True")
        })
        .await;
    }
    until_one(&dynamic(&all.wds, "v1", "Namespace", None), "kubestellar-report", "its namespace", |_| true)
        .await;
    server.stop().await;
}

/// What Argo CD's built-in check makes of a Deployment.
fn health(deployment: &DynamicObject) -> &'static str {
    let (spec, status) = (&deployment.data["spec"], &deployment.data["status"]);
    let number = |value: &Value| value.as_i64().unwrap_or(0);
    if deployment.metadata.generation.unwrap_or(0) > number(&status["observedGeneration"]) {
        return "Progressing";
    }
    let conditions = status["conditions"].as_array().into_iter().flatten();
    let mut late = conditions.filter(|it| it["type"] == "Progressing");
    if late.any(|it| it["reason"] == "ProgressDeadlineExceeded") {
        return "Degraded";
    }
    let (updated, all) = (number(&status["updatedReplicas"]), number(&status["replicas"]));
    if updated < number(&spec["replicas"]) || all > updated || number(&status["availableReplicas"]) < updated
    {
        return "Progressing";
    }
    "Healthy"
}

/// KS-A-25: Argo CD syncs an application of a Namespace, a ServiceAccount and a Deployment into the WDS again and again: it
/// is delivered once, no tokens pile up anywhere, and with the statuses of all clusters Argo CD's check says how it is.
#[tokio::test(flavor = "multi_thread")]
async fn ks_a_25_an_application_of_argo_cd() {
    const INSTANCE: &str = "argocd.argoproj.io/instance";
    let ks = Installation::new();
    let server = ks.serve(&["--listen", "127.0.0.1:0", "--simulate-workloads=false"]).await;
    let all = Spaces::of(&ks).await;
    let selector = json!([{"matchLabels": {INSTANCE: "guestbook"}}]);
    let clause = json!({"objectSelectors": selector, "wantMultiWECReportedState": true});
    create(&all.wds, policy("guestbook", &of(EDGE.0, EDGE.1), clause)).await;
    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount",
        "metadata": {"name": "guestbook", "namespace": "guestbook"}});
    let mut web = deployment("guestbook", "web");
    web["spec"]["template"]["spec"]["serviceAccountName"] = json!("guestbook");
    let mut application = vec![namespace("guestbook"), account, web];
    for object in &mut application {
        object["metadata"]["labels"] = json!({INSTANCE: "guestbook"});
        object["metadata"]["annotations"] = json!({
            "argocd.argoproj.io/tracking-id": format!("guestbook:{}/{}", object["kind"], object["metadata"]["name"]),
            "argocd.argoproj.io/sync-wave": "0",
        });
    }
    for _ in 0..5 {
        for object in &application {
            apply(&all.wds, object, "argocd-controller").await;
        }
    }
    let labels = format!("{INSTANCE}=guestbook");
    all.arrive(&WECS, DEPLOYMENT, &labels, &["guestbook/web"]).await;
    all.arrive(&WECS, ("v1", "ServiceAccount"), &labels, &["guestbook/guestbook"]).await;
    all.arrive(&WECS, ("v1", "Namespace"), &labels, &["guestbook"]).await;
    let mut before = BTreeMap::new();
    for (name, wec) in &all.wecs {
        before.insert(
            *name,
            uid(&dynamic(wec, DEPLOYMENT.0, DEPLOYMENT.1, Some("guestbook")).get("web").await.unwrap()),
        );
    }

    let says = async |wec: &str, status: Value| {
        apply_status(&all.wecs[wec], &application[2], status).await;
    };
    let up = json!({"observedGeneration": 1, "replicas": 2, "updatedReplicas": 2, "readyReplicas": 2, "availableReplicas": 2});
    let here = dynamic(&all.wds, DEPLOYMENT.0, DEPLOYMENT.1, Some("guestbook"));
    assert_eq!(health(&here.get("web").await.unwrap()), "Progressing", "nobody has said anything yet");
    says("cluster1", up.clone()).await;
    says("cluster2", up.clone()).await;
    until_one(&here, "web", "Healthy", |it| health(it) == "Healthy").await;
    let mut late =
        json!({"observedGeneration": 1, "replicas": 2, "updatedReplicas": 2, "unavailableReplicas": 2});
    late["conditions"] = json!([{"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded",
        "message": "the image can't be pulled", "lastUpdateTime": "2026-01-02T03:04:05Z",
        "lastTransitionTime": "2026-01-02T03:04:05Z"}]);
    says("cluster2", late).await;
    until_one(&here, "web", "Degraded", |it| health(it) == "Degraded").await;
    says(
        "cluster2",
        json!({"conditions": null, "unavailableReplicas": null, "readyReplicas": 2, "availableReplicas": 2}),
    )
    .await;
    until_one(&here, "web", "Healthy again", |it| health(it) == "Healthy").await;

    // Argo CD finds what it wants, status and labels of ours notwithstanding: syncing again changes nothing.
    for _ in 0..5 {
        for object in &application {
            apply(&all.wds, object, "argocd-controller").await;
        }
    }
    let mut last = config_map("guestbook", "last", "1");
    last["metadata"]["labels"] = json!({INSTANCE: "guestbook"});
    apply(&all.wds, &last, "argocd-controller").await;
    all.arrive(&WECS, ("v1", "ConfigMap"), &labels, &["guestbook/last"]).await;
    for (name, client) in all.wecs.iter().map(|(name, client)| (*name, client)).chain([("wds1", &all.wds)]) {
        let secrets = dynamic(client, SECRET.0, SECRET.1, Some("guestbook"))
            .list(&ListParams::default())
            .await
            .unwrap();
        assert!(secrets.items.is_empty(), "{name}: {secrets:?}");
        let account =
            dynamic(client, "v1", "ServiceAccount", Some("guestbook")).get("guestbook").await.unwrap();
        assert!(account.data.get("secrets").is_none_or(|it| it == &json!([])), "{name}: {account:?}");
        if let Some(uid_before) = before.get(name) {
            let there =
                dynamic(client, DEPLOYMENT.0, DEPLOYMENT.1, Some("guestbook")).get("web").await.unwrap();
            assert_eq!(uid(&there), *uid_before, "{name}");
        }
    }
    server.stop().await;
}

/// Server-side apply, as GitOps tools do it.
async fn apply(client: &Client, object: &Value, manager: &str) {
    let text = |path: &str| object.pointer(path).and_then(Value::as_str);
    let api =
        dynamic(client, text("/apiVersion").unwrap(), text("/kind").unwrap(), text("/metadata/namespace"));
    let params = PatchParams::apply(manager).force();
    api.patch(text("/metadata/name").unwrap(), &params, &Patch::Apply(object)).await.unwrap();
}

/// KS-A-28: one cluster is hosting cluster, WDS and ITS at once. Custom resources are delivered; what the system has there is
/// left alone unless it is selected; a WorkStatus is never workload, whatever its labels; statuses return without a fight.
#[tokio::test(flavor = "multi_thread")]
async fn ks_a_28_a_wds_of_type_host() {
    let ks = Installation::new();
    let host = Bare::start(&ks, "host").await;
    host.define([apis::crds::ocm_hub(), apis::crds::work_status()].concat()).await;
    for object in [
        json!({"apiVersion": CLUSTER.0, "kind": CLUSTER.1, "metadata": {"name": "edge9", "labels": {"where": "far"}},
            "spec": {"hubAcceptsClient": true}}),
        json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "edge9"}}),
        json!({"apiVersion": CRD.0, "kind": CRD.1, "metadata": {"name": "rockets.space.example"},
            "spec": {"group": "space.example", "scope": "Namespaced",
                "names": {"plural": "rockets", "singular": "rocket", "kind": "Rocket", "listKind": "RocketList"},
                "versions": [{"name": "v1", "served": true, "storage": true, "subresources": {"status": {}},
                    "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}]}}),
    ] {
        create(&host.client, object).await;
    }
    host.defined("rockets.space.example").await;
    let free = ["--metrics-bind-address=0", "--pprof-bind-address=0", "--health-probe-bind-address="];
    let file = host.file();
    let transport =
        ["transport-controller", "--wds-name=host", "--wds-kubeconfig", file, "--transport-kubeconfig", file];
    let manager = [
        "controller-manager",
        "--wds-name=host",
        "--wds-kubeconfig",
        file,
        "--its-name=host",
        "--its-kubeconfig",
        file,
    ];
    let (one, two) = (
        ks.spawn("transport", &[&transport[..], &free].concat()),
        ks.spawn("manager", &[&manager[..], &free].concat()),
    );
    host.defined("bindingpolicies.control.kubestellar.io").await;

    create(&host.client, namespace("launch")).await;
    let everything =
        json!({"objectSelectors": [{"matchLabels": {"crew": "one"}}], "wantSingletonReportedState": true});
    create(&host.client, policy("launch", &of("where", "far"), everything)).await;
    let rocket = |name: &str| {
        json!({"apiVersion": "space.example/v1", "kind": "Rocket",
            "metadata": {"name": name, "namespace": "launch", "labels": {"crew": "one"}}, "spec": {"stages": 3}})
    };
    create(&host.client, rocket("saturn")).await;
    let works = dynamic(&host.client, WORK.0, WORK.1, Some("edge9"));
    let carried = |all: &BTreeMap<String, DynamicObject>| -> Vec<String> {
        let works = all.values().filter_map(|work| work.data["spec"]["workload"]["manifests"].as_array());
        let mut names: Vec<_> =
            works.flatten().map(|it| format!("{}/{}", it["kind"], it["metadata"]["name"])).collect();
        names.sort();
        names
    };
    until(&works, "the rocket", |all| carried(all) == ["\"Rocket\"/\"saturn\""]).await;

    // What the agent would report, with the labels that make workload of other objects.
    let report = json!({"apiVersion": "control.kubestellar.io/v1alpha1", "kind": "WorkStatus",
        "metadata": {"name": "saturn", "namespace": "edge9",
            "labels": {"crew": "one", "transport.kubestellar.io/originWdsName": "host"}},
        "spec": {"sourceRef": {"group": "space.example", "version": "v1", "resource": "rockets", "kind": "Rocket",
            "namespace": "launch", "name": "saturn"}}});
    create(&host.client, report.clone()).await;
    apply_status(&host.client, &report, json!({"fuel": 7})).await;
    let rockets = dynamic(&host.client, "space.example/v1", "Rocket", Some("launch"));
    until_one(&rockets, "saturn", "its status", |it| it.data["status"] == json!({"fuel": 7})).await;
    create(&host.client, rocket("later")).await;
    let both = ["\"Rocket\"/\"later\"", "\"Rocket\"/\"saturn\""];
    until(&works, "the other rocket", |all| carried(all) == both).await;
    let binding = dynamic(&host.client, BINDING.0, BINDING.1, None).get("launch").await.unwrap();
    let listed: Vec<_> = binding.data["spec"]["workload"]["namespaceScope"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| &it["resource"])
        .collect();
    assert_eq!(listed, ["rockets", "rockets"], "no WorkStatus among them");
    assert!(binding.data["spec"]["workload"].get("clusterScope").is_none());

    delete(&host.client, POLICY, None, "launch").await;
    until(&works, "the end of the works", |all| all.is_empty()).await;
    let still = rockets.get("saturn").await.unwrap();
    assert!(still.metadata.deletion_timestamp.is_none(), "the workload itself stays");
    for component in [one, two] {
        component.stop().await;
    }
    host.server.stop().await;
}

/// KS-A-29: what is done by hand to what KubeStellar keeps is undone: destinations of a Binding, the Binding itself, a
/// ManifestWork, what it contains, a CombinedStatus. In the end the clusters have what they had.
#[tokio::test(flavor = "multi_thread")]
async fn ks_a_29_manual_tampering() {
    let ks = Installation::new();
    let server = ks.serve(&["--listen", "127.0.0.1:0"]).await;
    let all = Spaces::of(&ks).await;
    let collector = json!({"apiVersion": POLICY.0, "kind": "StatusCollector", "metadata": {"name": "n"},
        "spec": {"limit": 5, "combinedFields": [{"name": "n", "type": "COUNT"}]}});
    create(&all.wds, collector).await;
    let clause =
        json!({"objectSelectors": of("app.kubernetes.io/part-of", "dock"), "statusCollectors": ["n"]});
    create(&all.wds, policy("dock", &of(EDGE.0, EDGE.1), clause)).await;
    create(&all.wds, namespace("dock")).await;
    create(&all.wds, config_map("dock", "a", "1")).await;
    let (maps, labels) = (("v1", "ConfigMap"), "app.kubernetes.io/part-of=dock");
    all.arrive(&WECS, maps, labels, &["dock/a"]).await;

    let bindings = dynamic(&all.wds, BINDING.0, BINDING.1, None);
    patch(&all.wds, BINDING, None, "dock", json!({"spec": {"destinations": [{"clusterId": "cluster2"}]}}))
        .await;
    let two =
        |it: &DynamicObject| it.data["spec"]["destinations"].as_array().is_some_and(|all| all.len() == 2);
    let before = until_one(&bindings, "dock", "both destinations again", two).await;
    delete(&all.wds, BINDING, None, "dock").await;
    until_one(&bindings, "dock", "another Binding", |it| uid(it) != uid(&before) && two(it)).await;
    all.arrive(&WECS, maps, labels, &["dock/a"]).await;

    let works = dynamic(&all.its, WORK.0, WORK.1, Some("cluster1"));
    let ours = |all: &BTreeMap<String, DynamicObject>| {
        let mut works = all.values().filter(|it| {
            it.labels()
                .get("transport.kubestellar.io/originOwnerReferenceBindingKey")
                .is_some_and(|it| it == "dock")
                && it.metadata.deletion_timestamp.is_none()
        });
        works.next().cloned()
    };
    let work = ours(&until(&works, "the work", |all| ours(all).is_some()).await).unwrap();
    delete(&all.its, WORK, Some("cluster1"), &work.name_any()).await;
    let again = until(&works, "another work", |all| ours(all).is_some_and(|it| uid(&it) != uid(&work))).await;
    let again = ours(&again).unwrap();
    let other = json!({"spec": {"workload": {"manifests": [config_map("dock", "forged", "x")]}}});
    patch(&all.its, WORK, Some("cluster1"), &again.name_any(), other).await;
    until(&works, "its contents", |all| {
        ours(all).is_some_and(|it| it.data["spec"]["workload"] == again.data["spec"]["workload"])
    })
    .await;

    let map = dynamic(&all.wds, maps.0, maps.1, Some("dock")).get("a").await.unwrap();
    let owner = dynamic(&all.wds, POLICY.0, POLICY.1, None).get("dock").await.unwrap();
    let name = format!("{}.{}", uid(&map), uid(&owner));
    let kind = (POLICY.0, "CombinedStatus");
    let combined = dynamic(&all.wds, kind.0, kind.1, Some("dock"));
    let counted = |it: &DynamicObject| it.data["results"][0]["rows"][0]["columns"][0]["float"] == "2";
    let before = until_one(&combined, &name, "the answer", counted).await;
    delete(&all.wds, kind, Some("dock"), &name).await;
    until_one(&combined, &name, "another answer", |it| uid(it) != uid(&before) && counted(it)).await;

    for (name, wec) in &all.wecs {
        let there = dynamic(wec, maps.0, maps.1, Some("dock"));
        until(&there, name, |all| {
            let ours: Vec<_> = all.iter().filter(|(_, it)| labelled(it, labels)).collect();
            ours.len() == 1 && ours[0].0 == "dock/a" && ours[0].1.data["data"]["value"] == "1"
        })
        .await;
    }
    server.stop().await;
}

/// How often something was written, by name.
type Writes = BTreeMap<String, i64>;

/// Generations of Bindings and works, and versions of what is in the clusters.
async fn written(all: &Spaces) -> (i64, Writes, Writes) {
    let binding = dynamic(&all.wds, BINDING.0, BINDING.1, None).get("many").await.unwrap();
    let (mut works, mut objects) = (Writes::new(), Writes::new());
    for work in dynamic(&all.its, WORK.0, WORK.1, None).list(&ListParams::default()).await.unwrap() {
        works
            .insert(format!("{:?}/{}", work.namespace(), work.name_any()), work.metadata.generation.unwrap());
    }
    for (name, wec) in &all.wecs {
        for map in dynamic(wec, "v1", "ConfigMap", Some("many")).list(&ListParams::default()).await.unwrap() {
            let version = map.resource_version().unwrap().parse().unwrap();
            objects.insert(format!("{name}/{}", map.name_any()), version);
        }
    }
    (binding.metadata.generation.unwrap(), works, objects)
}

fn changed<'a>(before: &Writes, after: &'a Writes) -> Vec<(&'a String, i64)> {
    let moved = after.iter().map(|(name, now)| (name, now - before.get(name).copied().unwrap_or(0)));
    moved.filter(|(_, by)| *by != 0).collect()
}

/// KS-091, KS-078: one changed object costs one write of the Binding, and for each of M clusters one of a work and one of the
/// object: 1 + 2M, however many others sit there.
#[tokio::test(flavor = "multi_thread")]
async fn ks_091_a_change_costs_1_and_2m_writes_whatever_n() {
    let ks = Installation::new();
    let server = ks.serve(&["--listen", "127.0.0.1:0"]).await;
    let all = Spaces::of(&ks).await;
    create(&all.wds, namespace("many")).await;
    let clause = json!({"objectSelectors": of("app.kubernetes.io/part-of", "many")});
    create(&all.wds, policy("many", &of(EDGE.0, EDGE.1), clause)).await;
    let mut there = 0;
    for total in [5, 300] {
        for number in there..total {
            create(&all.wds, config_map("many", &format!("m{number:03}"), "0")).await;
        }
        there = total;
        quiet(&all, total).await;
        let (bindings, works, objects) = written(&all).await;
        let value = json!({"data": {"value": format!("of {total}")}});
        patch(&all.wds, ("v1", "ConfigMap"), Some("many"), "m003", value.clone()).await;
        for (name, wec) in &all.wecs {
            let maps = dynamic(wec, "v1", "ConfigMap", Some("many"));
            until_one(&maps, "m003", name, |it| it.data["data"] == value["data"]).await;
        }
        quiet(&all, total).await;
        let (bindings_now, works_now, objects_now) = written(&all).await;
        assert_eq!(bindings_now - bindings, 1, "of {total}: one write of the Binding");
        let works = changed(&works, &works_now);
        assert!(works.len() == WECS.len() && works.iter().all(|(_, by)| *by == 1), "of {total}: {works:?}");
        let objects: Vec<_> =
            changed(&objects, &objects_now).into_iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(objects, ["cluster1/m003", "cluster2/m003"], "of {total}");
    }
    server.stop().await;
}

/// Waits until everything is there and the transport has seen the last state of the Binding.
async fn quiet(all: &Spaces, objects: usize) {
    let bindings = dynamic(&all.wds, BINDING.0, BINDING.1, None);
    until_one(&bindings, "many", "the transport's word", |it| {
        let entries = it.data["spec"]["workload"]["namespaceScope"].as_array().map_or(0, Vec::len);
        entries == objects && it.data["status"]["observedGeneration"].as_i64() == it.metadata.generation
    })
    .await;
    for (name, wec) in &all.wecs {
        let maps = dynamic(wec, "v1", "ConfigMap", Some("many"));
        until(&maps, name, |all| all.keys().filter(|name| name.starts_with("many/m")).count() == objects)
            .await;
    }
}

/// KS-A-10: what is delivered create-only stays in the clusters as it was first delivered, whatever becomes of it in the WDS; the
/// Namespace beside it is an ordinary object; a clause that does not ask for it takes nothing from one that does.
#[tokio::test(flavor = "multi_thread")]
async fn ks_a_10_create_only() {
    let ks = Installation::new();
    let server = ks.serve(&["--listen", "127.0.0.1:0"]).await;
    let all = Spaces::of(&ks).await;
    let selector = of("app.kubernetes.io/part-of", "once");
    let mut once = policy(
        "once",
        &of(EDGE.0, EDGE.1),
        json!({"resources": ["namespaces"], "objectSelectors": selector}),
    );
    let clauses = once["spec"]["downsync"].as_array_mut().unwrap();
    clauses.push(json!({"resources": ["deployments"], "objectSelectors": selector, "createOnly": true}));
    clauses.push(json!({"resources": ["deployments"], "objectNames": ["cart"]}));
    create(&all.wds, once).await;
    create(&all.wds, namespace("once")).await;
    create(&all.wds, deployment("once", "cart")).await;
    let labels = "app.kubernetes.io/part-of=once";
    all.arrive(&WECS, DEPLOYMENT, labels, &["once/cart"]).await;
    let binding = dynamic(&all.wds, BINDING.0, BINDING.1, None).get("once").await.unwrap();
    let workload = &binding.data["spec"]["workload"];
    assert_eq!(workload["namespaceScope"][0]["createOnly"], true);
    assert!(workload["clusterScope"][0].get("createOnly").is_none());
    let mut before = BTreeMap::new();
    for (name, wec) in &all.wecs {
        before.insert(
            *name,
            uid(&dynamic(wec, DEPLOYMENT.0, DEPLOYMENT.1, Some("once")).get("cart").await.unwrap()),
        );
    }
    patch(&all.wds, DEPLOYMENT, Some("once"), "cart", json!({"spec": {"replicas": 3}})).await;
    for name in ["late", "later"] {
        create(&all.wds, deployment("once", name)).await;
    }
    all.arrive(&WECS, DEPLOYMENT, labels, &["once/cart", "once/late", "once/later"]).await;
    for (name, wec) in &all.wecs {
        // The new ones came with, or after, the change.
        let there = dynamic(wec, DEPLOYMENT.0, DEPLOYMENT.1, Some("once")).get("cart").await.unwrap();
        assert_eq!((&uid(&there), &there.data["spec"]["replicas"]), (&before[name], &json!(2)), "{name}");
    }
    server.stop().await;
}

/// KS-A-20: what an API server gave an object stays with that server: a Service gets addresses and ports of its own in each cluster
/// unless it asks to keep the port, a headless one stays headless, and a Job runs, selector and labels of the WDS's notwithstanding.
#[tokio::test(flavor = "multi_thread")]
async fn ks_a_20_what_a_server_adds_does_not_travel() {
    let ks = Installation::new();
    let server = ks.serve(&["--listen", "127.0.0.1:0"]).await;
    let all = Spaces::of(&ks).await;
    create(
        &all.wds,
        policy(
            "clean",
            &of(EDGE.0, EDGE.1),
            json!({"objectSelectors": of("app.kubernetes.io/part-of", "clean")}),
        ),
    )
    .await;
    create(&all.wds, namespace("clean")).await;
    let service = |name: &str, annotations: Value, spec: Value| {
        json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": "clean",
            "labels": {"app.kubernetes.io/part-of": "clean"}, "annotations": annotations}, "spec": spec})
    };
    let node_port = || json!({"type": "NodePort", "selector": {"a": "b"}, "ports": [{"port": 80}]});
    let hello = create(&all.wds, service("hello", json!({}), node_port())).await;
    let kept = create(
        &all.wds,
        service("kept", json!({"control.kubestellar.io/preserve": "nodeport"}), node_port()),
    )
    .await;
    create(&all.wds, service("headless", json!({}), json!({"clusterIP": "None", "selector": {"a": "b"}})))
        .await;
    let port = |it: &DynamicObject| it.data["spec"]["ports"][0]["nodePort"].as_i64();
    assert!(port(&hello).is_some() && hello.data["spec"]["clusterIP"].is_string(), "{hello:?}");
    let job = json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"generateName": "once-", "namespace": "clean",
        "labels": {"app.kubernetes.io/part-of": "clean"}}, "spec": {"template": {"spec": {"restartPolicy": "Never",
            "containers": [{"name": "main", "image": "registry.example/job:1"}]}}}});
    let job = create(&all.wds, job).await;
    assert!(job.data["spec"]["selector"].is_object(), "the WDS has added a selector: {job:?}");
    for (name, wec) in &all.wecs {
        let services = dynamic(wec, "v1", "Service", Some("clean"));
        let there = until(&services, name, |all| all.len() == 3).await;
        let spec = &there["clean/hello"].data["spec"];
        assert!(
            port(&there["clean/hello"]).is_some()
                && spec["clusterIP"].as_str().is_some_and(|it| it != "None"),
            "{spec}"
        );
        assert_eq!(port(&there["clean/kept"]), port(&kept), "{name}");
        assert_eq!(there["clean/headless"].data["spec"]["clusterIP"], "None");
        let jobs = dynamic(wec, "batch/v1", "Job", Some("clean"));
        let there = until_one(&jobs, &job.name_any(), name, |it| it.data["status"]["succeeded"] == 1).await;
        assert_ne!(there.data["spec"]["selector"], job.data["spec"]["selector"], "its own");
    }
    for work in dynamic(&all.its, WORK.0, WORK.1, None).list(&ListParams::default()).await.unwrap() {
        for manifest in work.data["spec"]["workload"]["manifests"].as_array().into_iter().flatten() {
            let (kind, name) = (&manifest["kind"], &manifest["metadata"]["name"]);
            if kind == "Service" && name != "headless" {
                assert!(manifest["spec"].get("clusterIP").is_none(), "{manifest}");
                assert_eq!(
                    manifest["spec"]["ports"][0].get("nodePort").is_some(),
                    name == "kept",
                    "{manifest}"
                );
            }
            if kind == "Job" {
                assert!(manifest["spec"].get("selector").is_none(), "{manifest}");
            }
        }
    }
    server.stop().await;
}
