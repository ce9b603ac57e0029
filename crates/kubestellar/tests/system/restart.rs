//! Restarts that nobody in the clusters should notice, and stops under load.

use std::collections::BTreeMap;

use futures::StreamExt;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams, WatchParams};
use kube::core::WatchEvent;
use kube::{Api, Client};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::support::{
    Installation, config_map, create, deployment, dynamic, names, namespace, policy, resource_version, uid,
    until, until_one, within,
};

type Traces = BTreeMap<String, (String, u64, Value)>;

/// UID, resourceVersion and, to explain a failure, the status of everything that has to do with a delivery, but for the probe's, by space and kind.
async fn traces(ks: &Installation) -> Traces {
    let mut all = BTreeMap::new();
    for (space, version, kind) in TRACES {
        let api = dynamic(&ks.client(space).await, version, kind, None);
        let found = names(&until(&api, "a list", |_| true).await, |o| {
            (uid(o), resource_version(o), o.data["status"].clone())
        });
        assert!(!found.is_empty(), "no {kind} in {space}");
        let found = found.into_iter().map(|(name, of)| (format!("{space}: {kind} {name}"), of));
        all.extend(found.filter(|(name, _)| !name.contains("probe")));
    }
    all
}

const POLICY: (&str, &str) = ("control.kubestellar.io/v1alpha1", "BindingPolicy");

const TRACES: [(&str, &str, &str); 16] = [
    ("wds1", POLICY.0, POLICY.1),
    ("wds1", "control.kubestellar.io/v1alpha1", "Binding"),
    ("wds1", "v1", "ConfigMap"),
    ("wds1", "apps/v1", "Deployment"),
    ("its1", "work.open-cluster-management.io/v1", "ManifestWork"),
    ("its1", "control.kubestellar.io/v1alpha1", "WorkStatus"),
    ("cluster1", "v1", "Namespace"),
    ("cluster1", "v1", "ConfigMap"),
    ("cluster1", "apps/v1", "Deployment"),
    ("cluster1", "v1", "Pod"),
    ("cluster1", "work.open-cluster-management.io/v1", "AppliedManifestWork"),
    ("cluster2", "v1", "Namespace"),
    ("cluster2", "v1", "ConfigMap"),
    ("cluster2", "apps/v1", "Deployment"),
    ("cluster2", "v1", "Pod"),
    ("cluster2", "work.open-cluster-management.io/v1", "AppliedManifestWork"),
];

/// Design "restart of any component: nothing deleted, nothing rewritten", SP-042: after a stop, after a kill -9, and after
/// a move to another port, all that was delivered, and all on the way there, has the same UIDs and resourceVersions.
/// OCM-015, OCM-095: what was delivered before the moves goes with its policy.
#[tokio::test(flavor = "multi_thread")]
async fn sp_042_restart_rewrites_nothing() {
    let ks = Installation::new();
    let mut server = ks.serve(&["--listen", "127.0.0.1:0"]).await;
    let wds = ks.client("wds1").await;
    for app in ["tide", "probe"] {
        create(&wds, policy(app, ("location-group", "edge"), false)).await;
        create(&wds, namespace(app)).await;
    }
    for n in 0..20 {
        create(&wds, config_map("tide", &format!("settings-{n}"), "one")).await;
    }
    create(&wds, deployment("tide", "web")).await;
    let (same, other): (&[&str], &[&str]) = (&[], &["--listen", "127.0.0.1:0"]);
    for (how, listen) in [("a stop", same), ("a kill", same), ("a move", other), ("a kill and a move", other)]
    {
        for cluster in ["cluster1", "cluster2"] {
            settled(&ks, cluster, &format!("the delivery to {cluster} before {how}")).await;
        }
        let before = quiet(&ks, &format!("before-{}", how.replace(' ', "-"))).await;
        if how.contains("kill") {
            server.kill().await;
        } else {
            server.stop().await;
        }
        server = ks.serve(listen).await;
        // Something new goes all the way: whatever wanted to be done about the old had its turn.
        probe(&ks, &format!("after-{}", how.replace(' ', "-"))).await;
        let after = traces(&ks).await;
        let differs = |of: &Traces, from: &Traces| -> Vec<_> {
            let names = of
                .iter()
                .filter(|(name, known)| from.get(*name).is_none_or(|f| (&f.0, f.1) != (&known.0, known.1)));
            names.map(|(name, known)| format!("{name} {known:?}")).collect()
        };
        let (was, is) = (differs(&before, &after), differs(&after, &before));
        assert!(was.is_empty() && is.is_empty(), "{how} changed\n{was:#?}\nto\n{is:#?}");
    }
    let policies = dynamic(&ks.client("wds1").await, POLICY.0, POLICY.1, None);
    policies.delete("tide", &DeleteParams::default()).await.expect("the policy goes");
    for cluster in ["cluster1", "cluster2"] {
        let cluster = ks.client(cluster).await;
        for (version, kind) in [("v1", "ConfigMap"), ("apps/v1", "Deployment")] {
            let all = dynamic(&cluster, version, kind, Some("tide"));
            let left = |name: &String| name.starts_with("tide/settings-") || name.ends_with("/web");
            until(&all, "what the policy sent goes", |all| !all.keys().any(left)).await;
        }
    }
    server.stop().await;
}

/// SP-102: the labels of a cluster's ManagedCluster are its users' after enrolment: no restart brings back what they took away or
/// changed. Labels that `up` is asked for later are given then, whether it runs or not; and the address follows the port.
#[tokio::test(flavor = "multi_thread")]
async fn sp_102_labels_belong_to_users() {
    let ks = Installation::new();
    let mut server = ks.serve(&["--listen", "127.0.0.1:0", "--clusters", "1"]).await;
    let inventory =
        |its: &Client| dynamic(its, "cluster.open-cluster-management.io/v1", "ManagedCluster", None);
    let edit =
        Patch::Merge(json!({"metadata": {"labels": {"location-group": null, "name": "mine", "own": "1"}}}));
    let clusters = inventory(&ks.client("its1").await);
    clusters.patch("cluster1", &PatchParams::default(), &edit).await.expect("relabelled");
    let url = async |ks: &Installation| ks.config("cluster1").await.cluster_url.to_string();
    for (more, env) in [(&[][..], None), (&["--label", "cluster1=env=prod"][..], Some("prod"))] {
        server.stop().await;
        server = ks.serve(&[&["--listen", "127.0.0.1:0"], more].concat()).await;
        let cluster = inventory(&ks.client("its1").await).get("cluster1").await.expect("it is there");
        let label =
            |key: &str| cluster.metadata.labels.as_ref().and_then(|all| all.get(key)).map(String::as_str);
        assert_eq!(["location-group", "name", "own", "env"].map(label), [None, Some("mine"), Some("1"), env]);
        assert_eq!(cluster.data["spec"]["managedClusterClientConfigs"], json!([{"url": url(&ks).await}]));
    }
    ks.must(&["up", "--label", "cluster1=env=test"]).await;
    let clusters = inventory(&ks.client("its1").await);
    let given =
        |cluster: &DynamicObject| cluster.metadata.labels.as_ref().is_some_and(|all| all["env"] == "test");
    until_one(&clusters, "cluster1", "the label", given).await;
    server.stop().await;
}

/// Sends something new all the way.
async fn probe(ks: &Installation, name: &str) {
    create(&ks.client("wds1").await, config_map("probe", name, "new")).await;
    for cluster in ["cluster1", "cluster2"] {
        let maps = dynamic(&ks.client(cluster).await, "v1", "ConfigMap", Some("probe"));
        until(&maps, "the probe", |all| all.contains_key(&format!("probe/{name}"))).await;
    }
}

/// The traces once nothing about them moves any more while a probe goes all the way.
async fn quiet(ks: &Installation, name: &str) -> Traces {
    let settling = async {
        let mut before = traces(ks).await;
        for round in 0.. {
            probe(ks, &format!("{name}-{round}")).await;
            let now = traces(ks).await;
            if now == before {
                break;
            }
            before = now;
        }
        before
    };
    within("an end of all writes", settling).await
}

/// All there, ready, and reported: nothing is left to be written.
async fn settled(ks: &Installation, name: &str, what: &str) {
    let (cluster, its) = (ks.client(name).await, ks.client("its1").await);
    let maps = dynamic(&cluster, "v1", "ConfigMap", Some("tide"));
    until(&maps, what, |all| all.keys().filter(|k| k.starts_with("tide/settings-")).count() == 20).await;
    let pods = dynamic(&cluster, "v1", "Pod", Some("tide"));
    until(&pods, what, |all| all.len() == 2 && all.values().all(|p| p.data["status"]["phase"] == "Running"))
        .await;
    let web = dynamic(&cluster, "apps/v1", "Deployment", Some("tide"));
    let live = until_one(&web, "web", what, |web| {
        web.data["status"]["availableReplicas"] == 2
            && condition(web, "Progressing") == "NewReplicaSetAvailable"
    })
    .await;
    let reports = dynamic(&its, "control.kubestellar.io/v1alpha1", "WorkStatus", Some(name));
    until(&reports, what, |all| all.values().any(|r| r.data["status"] == live.data["status"])).await;
    let works = dynamic(&its, "work.open-cluster-management.io/v1", "ManifestWork", Some(name));
    until(&works, what, |all| {
        let manifests: usize = all.values().map(|w| len(w, "/status/resourceStatus/manifests")).sum();
        // 20 ConfigMaps, a Deployment and two Namespaces, and the probes so far.
        let done = |w: &DynamicObject| {
            !condition(w, "Applied").is_empty() && condition(w, "Available") == "ResourcesAvailable"
        };
        manifests >= 23 && all.values().all(done)
    })
    .await;
    let wds = ks.client("wds1").await;
    let bindings = dynamic(&wds, "control.kubestellar.io/v1alpha1", "Binding", None);
    until(&bindings, what, |all| {
        let seen =
            |b: &DynamicObject| b.data["status"]["observedGeneration"].as_i64() == b.metadata.generation;
        all.len() == 2 && all.values().all(seen)
    })
    .await;
    let policies = dynamic(&wds, "control.kubestellar.io/v1alpha1", "BindingPolicy", None);
    until(&policies, what, |all| all.values().all(|p| !condition(p, "Ready").is_empty())).await;
}

fn len(object: &DynamicObject, path: &str) -> usize {
    object.data.pointer(path).and_then(Value::as_array).map_or(0, Vec::len)
}

/// The reason of a condition that is true.
fn condition<'a>(object: &'a DynamicObject, kind: &str) -> &'a str {
    let all = object.data["status"]["conditions"].as_array().map_or(&[][..], Vec::as_slice);
    let found = all.iter().find(|c| c["type"] == kind && c["status"] == "True");
    found.and_then(|c| c["reason"].as_str()).unwrap_or_default()
}

/// SP-087 (SP-A-25): SIGTERM under load ends with exit 0, watches end cleanly, and every write that was answered is
/// there afterwards.
#[tokio::test(flavor = "multi_thread")]
async fn sp_087_sigterm_under_load() {
    let ks = Installation::new();
    let mut server = ks.serve(&["--listen", "127.0.0.1:0", "--clusters", "1"]).await;
    let wds = ks.client("wds1").await;
    create(&wds, policy("tide", ("location-group", "edge"), false)).await;
    create(&wds, namespace("tide")).await;
    let (answered, mut written) = tokio::sync::mpsc::channel(4096);
    let mut writers = JoinSet::new();
    for writer in 0..8 {
        let (client, answered) = (ks.client("wds1").await, answered.clone());
        writers.spawn(async move {
            let maps: Api<ConfigMap> = Api::namespaced(client, "tide");
            for n in 0.. {
                let name = format!("w{writer}-{n}");
                let map = serde_json::from_value(config_map("tide", &name, &name)).unwrap();
                match maps.create(&kube::api::PostParams::default(), &map).await {
                    Ok(created) => answered.send((name, resource_version(&created))).await.unwrap(),
                    Err(_) => return,
                }
            }
        });
    }
    drop(answered);
    let mut watches = JoinSet::new();
    for _ in 0..4 {
        let maps: Api<ConfigMap> = Api::namespaced(ks.client("wds1").await, "tide");
        let mut events = maps.watch(&WatchParams::default(), "0").await.unwrap().boxed();
        watches.spawn(async move {
            let mut seen = 0;
            while let Some(event) = events.next().await {
                match event {
                    Ok(WatchEvent::Error(status)) => return Err(format!("{status:?}")),
                    Ok(_) => seen += 1,
                    Err(error) => return Err(format!("{error:?}")),
                }
            }
            Ok(seen)
        });
    }
    let mut acknowledged = BTreeMap::new();
    let load = async {
        while acknowledged.len() < 200 {
            let (name, version) = written.recv().await.expect("writers go on");
            acknowledged.insert(name, version);
        }
    };
    within("the load", load).await;
    server.terminate().await;
    let status = server.ended().await;
    assert_eq!(status.code(), Some(0), "{}", server.log());
    while let Some((name, version)) = within("the writers", written.recv()).await {
        acknowledged.insert(name, version);
    }
    while let Some(ended) = within("the ends of the watches", watches.join_next()).await {
        let ended = ended.unwrap();
        assert!(ended.as_ref().is_ok_and(|seen| *seen > 0), "a watch was cut off: {ended:?}");
    }
    let server = ks.serve(&[]).await;
    let maps: Api<ConfigMap> = Api::namespaced(ks.client("wds1").await, "tide");
    let there = names(&until(&maps, "what was written", |_| true).await, resource_version);
    for (name, version) in &acknowledged {
        assert_eq!(there.get(&format!("tide/{name}")), Some(version), "{name} was acknowledged");
    }
    server.stop().await;
}

/// OCM-058, OCM-043: what an administrator of the inventory decided about a cluster stands, whatever is started again: a
/// denied one stays denied, `up` does not wait for it, and accepted again it works.
#[tokio::test(flavor = "multi_thread")]
async fn ocm_058_a_denial_survives_a_restart_of_everything() {
    let ks = Installation::new();
    let server = ks.serve(&["--listen", "127.0.0.1:0", "--clusters", "1"]).await;
    let accept = |yes: bool| kube::api::Patch::Merge(serde_json::json!({"spec": {"hubAcceptsClient": yes}}));
    let parameters = kube::api::PatchParams::default();
    let accepted = |o: &DynamicObject, wanted: &str| {
        let conditions = o.data["status"]["conditions"].as_array().cloned().unwrap_or_default();
        conditions.iter().any(|c| c["type"] == "HubAcceptedManagedCluster" && c["status"] == wanted)
    };
    let kind = "cluster.open-cluster-management.io/v1";
    let clusters = dynamic(&ks.client("its1").await, kind, "ManagedCluster", None);
    clusters.patch("cluster1", &parameters, &accept(false)).await.unwrap();
    until_one(&clusters, "cluster1", "the denial", |o| accepted(o, "False")).await;
    server.stop().await;
    let server = ks.serve(&[]).await;
    let clusters = dynamic(&ks.client("its1").await, kind, "ManagedCluster", None);
    let denied = clusters.get("cluster1").await.unwrap();
    assert_eq!(denied.data["spec"]["hubAcceptsClient"], false);
    assert!(accepted(&denied, "False"));
    clusters.patch("cluster1", &parameters, &accept(true)).await.unwrap();
    until_one(&clusters, "cluster1", "acceptance", |o| accepted(o, "True")).await;
    let wds = ks.client("wds1").await;
    create(&wds, policy("tide", ("location-group", "edge"), false)).await;
    create(&wds, namespace("tide")).await;
    create(&wds, config_map("tide", "settings", "one")).await;
    let maps = dynamic(&ks.client("cluster1").await, "v1", "ConfigMap", Some("tide"));
    until_one(&maps, "settings", "the delivery", |_| true).await;
    server.stop().await;
}
