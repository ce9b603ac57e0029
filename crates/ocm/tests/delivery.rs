//! Binding to object and status to WorkStatus, over spaces in memory: transport, work agent, status agent, enrolment.

use std::{future::Future, time::Duration};

use kube::Client;
use kubestellar_ocm::{enroll, hub, rbac::Subject, work_agent};
use runtime::rest::{Gvr, Removal, Rest};
use serde_json::{Value, json};
use space::{Identity, Space, SpaceConfig};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

struct World {
    wds: Rest,
    its: Rest,
    wec: Rest,
    stop: CancellationToken,
    tasks: JoinSet<()>,
    spaces: Vec<Space>,
    _data: tempfile::TempDir,
}

const CLUSTER: &str = "cluster1";

fn gvr(text: &str) -> Gvr {
    let parts: Vec<&str> = text.split('/').collect();
    match parts.as_slice() {
        [version, plural] => Gvr::new("", version, plural),
        [group, version, plural] => Gvr::new(group, version, plural),
        _ => panic!("group/version/plural"),
    }
}

fn works() -> Gvr {
    gvr("work.open-cluster-management.io/v1/manifestworks")
}

async fn until<T, F: Future<Output = Option<T>>>(what: &str, mut ask: impl FnMut() -> F) -> T {
    let wait = async {
        loop {
            if let Some(found) = ask().await {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), wait).await.unwrap_or_else(|_| panic!("never: {what}"))
}

impl World {
    async fn start() -> Self {
        let data = tempfile::tempdir().expect("a directory");
        let engine = store::Engine::in_memory();
        let mut spaces = Vec::new();
        for name in ["wds1", "its1", CLUSTER] {
            let config = SpaceConfig {
                name,
                data: data.path(),
                url: format!("https://127.0.0.1:1/spaces/{name}"),
                advertise: "127.0.0.1:1".into(),
            };
            spaces.push(Space::start(&engine, config).await.expect("a space"));
        }
        let client = |i: usize| -> Client { spaces[i].client(&Identity::admin()) };
        let (wds, its, wec) = (client(0), client(1), client(2));
        runtime::install(&wds, &apis::crds::control(), "test").await.expect("CRDs of the WDS");
        let mut hub = apis::crds::ocm_hub();
        hub.extend(apis::crds::work_status());
        runtime::install(&its, &hub, "test").await.expect("CRDs of the ITS");
        let stop = CancellationToken::new();
        let mut tasks = JoinSet::new();
        for space in &spaces {
            // A Namespace goes only when its controller has emptied it.
            let (client, store) = (space.client(&Identity::admin()), space.server().store().clone());
            let config = space::controllers::Config { ca_bundle_pem: String::new(), csr_signer: None };
            let (ready, s) = (tokio::sync::watch::Sender::new(false), stop.clone());
            tasks.spawn(async move {
                space::controllers::run(client, store, config, ready, s).await.expect("controllers");
            });
        }
        let (client, token) = (its.clone(), stop.clone());
        tasks.spawn(async move {
            hub::run(client, hub::Config::default(), token).await.expect("the hub");
        });
        let member = enroll::Config::new(CLUSTER);
        let mut enrolled = member.accepted.subscribe();
        let (hub, cluster, token) = (its.clone(), wec.clone(), stop.clone());
        tasks.spawn(async move { enroll::run(hub, cluster, member, token).await.expect("enrolment") });
        enrolled.wait_for(|ready| *ready).await.expect("enrolled");
        // The agents have their own rights only (OCM-044, OCM-132).
        let as_agent = |index: usize, who: &Subject| -> Client {
            let groups: Vec<&str> = who.groups.iter().map(String::as_str).collect();
            spaces[index].client(&Identity::component(&who.user, &groups))
        };
        let agent = work_agent::Config::new(CLUSTER, "https://127.0.0.1:1/spaces/its1");
        let hub = as_agent(1, &Subject::klusterlet(CLUSTER, "work-agent"));
        let (cluster, token) = (as_agent(2, &Subject::work_agent_account()), stop.clone());
        tasks.spawn(async move { work_agent::run(hub, cluster, agent, token).await.expect("work agent") });
        let hub = as_agent(1, &Subject::status_addon(CLUSTER));
        let (cluster, token) = (as_agent(2, &Subject::status_agent_account()), stop.clone());
        let status = status_addon::Config::new(CLUSTER);
        tasks.spawn(
            async move { status_addon::run(cluster, hub, status, token).await.expect("status agent") },
        );
        let (w, i, s) = (wds.clone(), its.clone(), stop.clone());
        let config = transport::Config::new("wds1");
        tasks.spawn(async move { transport::run(w, i, config, s).await.expect("transport") });
        Self {
            wds: Rest::new(wds),
            its: Rest::new(its),
            wec: Rest::new(wec),
            stop,
            tasks,
            spaces,
            _data: data,
        }
    }

    /// Everything ends when asked to.
    async fn end(mut self) {
        self.stop.cancel();
        while let Some(joined) = self.tasks.join_next().await {
            joined.expect("no panic");
        }
        for space in &self.spaces {
            space.stop().await;
        }
    }
}

async fn create(rest: &Rest, resource: &str, namespace: &str, object: Value) -> Value {
    rest.create(&gvr(resource), namespace, object.to_string().into_bytes()).await.expect("created")
}

async fn get(rest: &Rest, resource: &Gvr, namespace: &str, name: &str) -> Option<Value> {
    rest.find(resource, namespace, name).await.expect("an answer")
}

fn config_map(name: &str, value: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": "tide"}, "data": {"a": value}})
}

fn entry(object: &Value, resource: &str) -> Value {
    json!({"group": "", "version": "v1", "resource": resource, "namespace": object["metadata"]["namespace"],
        "name": object["metadata"]["name"], "resourceVersion": object["metadata"]["resourceVersion"]})
}

/// KS-012, KS-079, KS-082, KS-085, KS-086, KS-087, KS-094, KS-200, KS-205, OCM-095 in one life of a Binding.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ks_085_a_binding_is_delivered_followed_and_withdrawn() {
    let w = World::start().await;
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "tide"}});
    let namespace = create(&w.wds, "v1/namespaces", "", namespace).await;
    let a = create(&w.wds, "v1/configmaps", "tide", config_map("a", "1")).await;
    let mut cluster_entry = entry(&namespace, "namespaces");
    cluster_entry.as_object_mut().expect("a map").remove("namespace");
    let binding = json!({"apiVersion": "control.kubestellar.io/v1alpha1", "kind": "Binding", "metadata": {"name": "tide"},
        "spec": {"destinations": [{"clusterId": CLUSTER}], "workload": {"clusterScope": [cluster_entry],
            "namespaceScope": [entry(&a, "configmaps")]}}});
    create(&w.wds, "control.kubestellar.io/v1alpha1/bindings", "", binding).await;

    let maps = gvr("v1/configmaps");
    let delivered = until("the ConfigMap", || get(&w.wec, &maps, "tide", "a")).await;
    assert_eq!(delivered["data"], json!({"a": "1"}));
    assert_eq!(delivered["metadata"]["ownerReferences"][0]["kind"], "AppliedManifestWork");
    let work = until("conditions", || async {
        get(&w.its, &works(), CLUSTER, "tide-wds1-0").await.filter(|w| w["status"]["conditions"].is_array())
    })
    .await;
    assert_eq!(work["metadata"]["labels"]["transport.kubestellar.io/originWdsName"], "wds1");
    assert_eq!(work["spec"]["workload"]["manifests"].as_array().map(Vec::len), Some(2));
    for condition in work["status"]["conditions"].as_array().expect("a list") {
        assert_eq!(condition["status"], "True", "{condition}");
    }
    let report = until("a WorkStatus", || async {
        let all: Value = w
            .its
            .list(&gvr("control.kubestellar.io/v1alpha1/workstatuses"), CLUSTER, "")
            .await
            .expect("a list");
        all["items"].as_array().and_then(|i| i.first()).filter(|r| r["status"].is_object()).cloned()
    })
    .await;
    assert_eq!(report["spec"]["sourceRef"]["kind"], "Namespace", "and none for the ConfigMap");
    assert_eq!(report["status"], json!({"phase": "Active"}));
    let bindings = gvr("control.kubestellar.io/v1alpha1/bindings");
    let status = until("the Binding's status", || async {
        get(&w.wds, &bindings, "", "tide").await.filter(|b| b["status"].is_object())
    })
    .await;
    assert_eq!(status["status"], json!({"observedGeneration": 1}));
    assert_eq!(status["metadata"]["finalizers"], json!(["transport.kubestellar.io/object-cleanup"]));

    w.wds.delete(&bindings, "", "tide", &Removal::default()).await.expect("deleted");
    until("all gone", || async {
        let left = get(&w.wec, &gvr("v1/namespaces"), "", "tide").await.is_some()
            || get(&w.wds, &bindings, "", "tide").await.is_some()
            || get(&w.its, &works(), CLUSTER, "tide-wds1-0").await.is_some()
            || get(&w.wec, &maps, "tide", "a").await.is_some();
        (!left).then_some(())
    })
    .await;
    w.end().await;
}

/// OCM-076, OCM-089, OCM-A-47: a bad kind does not hold up the others, and nothing is removed meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ocm_089_an_unknown_kind_is_isolated() {
    let w = World::start().await;
    let work = json!({"apiVersion": "work.open-cluster-management.io/v1", "kind": "ManifestWork",
        "metadata": {"name": "reef", "namespace": CLUSTER}, "spec": {"workload": {"manifests": [
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "tide"}},
            {"apiVersion": "no.example/v1", "kind": "Nothing", "metadata": {"name": "x", "namespace": "tide"}},
            config_map("a", "1")]}}});
    create(&w.its, "work.open-cluster-management.io/v1/manifestworks", CLUSTER, work).await;
    let work = until("conditions", || async {
        get(&w.its, &works(), CLUSTER, "reef").await.filter(|w| w["status"]["conditions"].is_array())
    })
    .await;
    let texts = |list: &Value| -> Vec<String> {
        let mut all: Vec<String> = list
            .as_array()
            .expect("conditions")
            .iter()
            .map(|c| {
                format!("{} {} {}", c["type"], c["reason"], c["message"])
                    .replace("\\\"", "'")
                    .replace('"', "")
            })
            .collect();
        all.sort();
        all
    };
    assert_eq!(
        texts(&work["status"]["conditions"]),
        [
            "Applied AppliedManifestWorkFailed Failed to apply manifest work",
            "Available ResourcesStatusUnknown 1 of 3 resources have unknown status",
        ]
    );
    let bad = &work["status"]["resourceStatus"]["manifests"][1];
    assert_eq!(
        texts(&bad["conditions"]),
        [
            "Applied AppliedManifestFailed Failed to apply manifest: the server doesn't have a resource type 'Nothing'",
            "Available IncompleteResourceMeta Resource meta is incomplete",
        ]
    );
    assert!(get(&w.wec, &gvr("v1/configmaps"), "tide", "a").await.is_some());
    w.end().await;
}

/// OCM-093: what leaves the work leaves the cluster; OCM-073: drift is put right by its own event.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ocm_093_removal_and_drift() {
    let w = World::start().await;
    let manifests = |maps: &[&str]| {
        let mut all = vec![json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "tide"}})];
        all.extend(maps.iter().map(|name| config_map(name, "1")));
        json!({"workload": {"manifests": all}})
    };
    let work = json!({"apiVersion": "work.open-cluster-management.io/v1", "kind": "ManifestWork",
        "metadata": {"name": "reef", "namespace": CLUSTER}, "spec": manifests(&["a", "b"])});
    create(&w.its, "work.open-cluster-management.io/v1/manifestworks", CLUSTER, work).await;
    let maps = gvr("v1/configmaps");
    until("b", || get(&w.wec, &maps, "tide", "b")).await;
    until("applied", || async {
        get(&w.its, &works(), CLUSTER, "reef").await.filter(|w| w["status"]["conditions"].is_array())
    })
    .await;
    let patch = json!({"data": {"a": "by hand"}});
    w.wec.merge::<Value>(&maps, "tide", "a", &patch).await.expect("patched");
    until("a put right", || async {
        get(&w.wec, &maps, "tide", "a").await.filter(|a| a["data"]["a"] == "1").map(|_| ())
    })
    .await;
    let patch = json!({"spec": manifests(&["a"])});
    w.its.merge::<Value>(&works(), CLUSTER, "reef", &patch).await.expect("patched");
    until("b gone", || async { get(&w.wec, &maps, "tide", "b").await.is_none().then_some(()) }).await;
    assert!(get(&w.wec, &maps, "tide", "a").await.is_some());
    w.end().await;
}
