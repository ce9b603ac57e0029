//! From Binding to object and from status to WorkStatus, with spaces in memory: transport controller, work
//! agent, status agent, enrolment.

use std::{future::Future, time::Duration};

use kube::{Client, core::PartialObjectMeta};
use kubestellar_ocm_hub::{self as hub, enroll};
use ocm_agent::work_agent;
use ocm_shared::rbac::Subject;
use runtime::{
    Source,
    feed::{Change, follow},
    rest::{Gvr, Removal, Rest},
};
use serde_json::{Value, json};
use space::{Identity, Space, SpaceConfig};
use tokio::{sync::Notify, task::JoinSet};
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

/// Waits for a result; asks again whenever something of these resources changes.
async fn until<T, F: Future<Output = Option<T>>>(
    what: &str,
    watched: &[(&Rest, &Gvr)],
    mut ask: impl FnMut() -> F,
) -> T {
    let (stop, changed) = (CancellationToken::new(), Notify::new());
    let sources: Vec<_> =
        watched.iter().map(|(rest, gvr)| (rest, Source::all((*gvr).clone()).metadata())).collect();
    let feeds = sources.iter().map(|(rest, source)| {
        follow(rest.client(), source, &stop, |_: Change<PartialObjectMeta>| {
            changed.notify_one();
        })
    });
    let wait = async {
        loop {
            if let Some(found) = ask().await {
                return found;
            }
            changed.notified().await;
        }
    };
    tokio::select! {
        found = tokio::time::timeout(Duration::from_secs(60), wait) => found.unwrap_or_else(|_| panic!("never: {what}")),
        _ = futures::future::join_all(feeds) => panic!("nothing to wait for"),
    }
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
            // A Namespace is deleted only when its controller has emptied it.
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
        // The agents have their own permissions only (OCM-044, OCM-132).
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

    /// Stops everything in an orderly way.
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
    let delivered = until("the ConfigMap", &[(&w.wec, &maps)], || get(&w.wec, &maps, "tide", "a")).await;
    assert_eq!(delivered["data"], json!({"a": "1"}));
    assert_eq!(delivered["metadata"]["ownerReferences"][0]["kind"], "AppliedManifestWork");
    let work = until("conditions", &[(&w.its, &works())], || async {
        get(&w.its, &works(), CLUSTER, "tide-wds1-0").await.filter(|w| w["status"]["conditions"].is_array())
    })
    .await;
    assert_eq!(work["metadata"]["labels"]["transport.kubestellar.io/originWdsName"], "wds1");
    assert_eq!(work["spec"]["workload"]["manifests"].as_array().map(Vec::len), Some(2));
    for condition in work["status"]["conditions"].as_array().expect("a list") {
        assert_eq!(condition["status"], "True", "{condition}");
    }
    let reports = gvr("control.kubestellar.io/v1alpha1/workstatuses");
    let report = until("a WorkStatus", &[(&w.its, &reports)], || async {
        let all: Value = w.its.list(&reports, CLUSTER, "").await.expect("a list");
        all["items"].as_array().and_then(|i| i.first()).filter(|r| r["status"].is_object()).cloned()
    })
    .await;
    assert_eq!(report["spec"]["sourceRef"]["kind"], "Namespace", "and none for the ConfigMap");
    assert_eq!(report["status"], json!({"phase": "Active"}));
    let bindings = gvr("control.kubestellar.io/v1alpha1/bindings");
    let status = until("the Binding's status", &[(&w.wds, &bindings)], || async {
        get(&w.wds, &bindings, "", "tide").await.filter(|b| b["status"].is_object())
    })
    .await;
    assert_eq!(status["status"], json!({"observedGeneration": 1}));
    assert_eq!(status["metadata"]["finalizers"], json!(["transport.kubestellar.io/object-cleanup"]));

    w.wds.delete(&bindings, "", "tide", &Removal::default()).await.expect("deleted");
    let (namespaces, works) = (gvr("v1/namespaces"), works());
    let places = [(&w.wec, &namespaces), (&w.wds, &bindings), (&w.its, &works), (&w.wec, &maps)];
    until("all gone", &places, || async {
        let left = get(&w.wec, &namespaces, "", "tide").await.is_some()
            || get(&w.wds, &bindings, "", "tide").await.is_some()
            || get(&w.its, &works, CLUSTER, "tide-wds1-0").await.is_some()
            || get(&w.wec, &maps, "tide", "a").await.is_some();
        (!left).then_some(())
    })
    .await;
    w.end().await;
}
