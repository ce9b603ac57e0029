//! The permissions of an enrolled cluster's agents, on the hub and in their cluster, as the API servers of
//! whole spaces in memory decide.

use std::time::Duration;

use kube::Error;
use kubestellar_ocm_hub::{self as hub, enroll};
use ocm_shared::rbac::{self as rights, Subject};
use runtime::failure::code_of;
use runtime::rest::{Gvr, Removal, Rest};
use serde_json::{Value, json};
use space::{Identity, Space};
use testkit::{side, wait::until};
use tokio::{sync::watch, task::JoinSet};
use tokio_util::sync::CancellationToken;

const CLUSTERS: [&str; 2] = ["cluster1", "cluster10"];
const OWN: &str = CLUSTERS[0];
const OTHER: &str = CLUSTERS[1];
const WORK_RIGHTS: &str = "open-cluster-management:managedcluster:cluster1:work";

struct World {
    /// The hub, then the clusters.
    spaces: Vec<Space>,
    ready: Vec<watch::Receiver<bool>>,
    /// Ends the enrolments.
    stop: CancellationToken,
    hub_stop: CancellationToken,
    tasks: JoinSet<()>,
    _data: tempfile::TempDir,
}

impl World {
    async fn start() -> Self {
        let data = tempfile::tempdir().expect("a directory");
        let engine = store::Engine::in_memory();
        let mut spaces = Vec::new();
        for name in ["its1"].into_iter().chain(CLUSTERS) {
            spaces.push(side::space(&engine, data.path(), name).await);
        }
        let crds = [apis::crds::ocm_hub(), apis::crds::work_status()].concat();
        runtime::install(&spaces[0].client(&Identity::admin()), &crds, "test").await.expect("CRDs");
        let (stop, mut tasks, ready) = (CancellationToken::new(), JoinSet::new(), Vec::new());
        let hub_stop = CancellationToken::new();
        let timers = hub::Timers {
            linger: Duration::from_secs(3),
            requeue: Duration::from_millis(200),
            ..hub::Timers::default()
        };
        let config = hub::Config { timers, ..hub::Config::default() };
        let (client, token) = (spaces[0].client(&Identity::admin()), hub_stop.clone());
        tasks.spawn(async move { hub::run(client, config, token).await.expect("the hub") });
        let mut world = Self { spaces, ready, stop, hub_stop, tasks, _data: data };
        for index in [1, 2] {
            world.enrol(index).await;
        }
        world
    }

    async fn enrol(&mut self, index: usize) {
        let config = enroll::Config::new(CLUSTERS[index - 1]);
        let mut ready = config.accepted.subscribe();
        let admin = |i: usize| self.spaces[i].client(&Identity::admin());
        let (hub, cluster, stop) = (admin(0), admin(index), self.stop.clone());
        self.tasks.spawn(async move { enroll::run(hub, cluster, config, stop).await.expect("enrolment") });
        ready.wait_for(|yes| *yes).await.expect("enrolled");
        self.ready.push(ready);
    }

    fn admin(&self, space: usize) -> Rest {
        Rest::new(self.spaces[space].client(&Identity::admin()))
    }

    fn acting(&self, space: usize, who: &Subject) -> Rest {
        let groups: Vec<&str> = who.groups.iter().map(String::as_str).collect();
        Rest::new(self.spaces[space].client(&Identity::component(&who.user, &groups)))
    }

    async fn end(mut self) {
        self.stop.cancel();
        self.hub_stop.cancel();
        while let Some(joined) = self.tasks.join_next().await {
            joined.expect("no panic");
        }
        for space in &self.spaces {
            space.stop().await;
        }
    }
}

fn works() -> Gvr {
    Gvr::new("work.open-cluster-management.io", "v1", "manifestworks")
}

fn reports() -> Gvr {
    Gvr::new("control.kubestellar.io", "v1alpha1", "workstatuses")
}

fn clusters() -> Gvr {
    Gvr::new("cluster.open-cluster-management.io", "v1", "managedclusters")
}

fn rbac(plural: &str) -> Gvr {
    Gvr::new("rbac.authorization.k8s.io", "v1", plural)
}

fn maps() -> Gvr {
    Gvr::new("", "v1", "configmaps")
}

fn work(name: &str) -> Value {
    json!({"apiVersion": "work.open-cluster-management.io/v1", "kind": "ManifestWork", "metadata": {"name": name},
        "spec": {"workload": {"manifests": []}}})
}

fn report(name: &str) -> Value {
    json!({"apiVersion": "control.kubestellar.io/v1alpha1", "kind": "WorkStatus", "metadata": {"name": name},
        "spec": {"sourceRef": {"group": "", "version": "v1", "namespace": "", "kind": "Namespace", "resource": "namespaces", "name": "tide"}}})
}

fn map(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}})
}

async fn create(rest: &Rest, gvr: &Gvr, namespace: &str, object: Value) -> Result<Value, Error> {
    rest.create(gvr, namespace, object.to_string().into_bytes()).await
}

async fn delete(rest: &Rest, gvr: &Gvr, namespace: &str, name: &str) -> Result<(), Error> {
    rest.delete(gvr, namespace, name, &Removal::default()).await
}

#[track_caller]
fn refused<T: std::fmt::Debug>(what: &str, answer: Result<T, Error>) {
    assert_eq!(answer.as_ref().err().map(code_of), Some(403), "{what}: {answer:?}");
}

/// OCM-044: a work agent has access to its mailbox and its ManagedCluster, to no others, and cannot create
/// works.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ocm_044_a_work_agent_is_confined_to_its_mailbox() {
    let w = World::start().await;
    let hub = w.admin(0);
    for cluster in CLUSTERS {
        create(&hub, &works(), cluster, work("reef")).await.expect("a work");
    }
    let agent = w.acting(0, &Subject::klusterlet(OWN, "work-agent"));
    agent.get::<Value>(&works(), OWN, "reef").await.expect("its work");
    agent.list::<Value>(&works(), OWN, "").await.expect("its works");
    let touch = json!({"metadata": {"annotations": {"seen": "yes"}}});
    agent.merge::<Value>(&works(), OWN, "reef", &touch).await.expect("its work");
    let status = json!({"status": {"conditions": []}});
    agent.merge_status::<Value>(&works(), OWN, "reef", &status).await.expect("its work's status");
    agent.get::<Value>(&clusters(), "", OWN).await.expect("its cluster");
    refused("another's work", agent.get::<Value>(&works(), OTHER, "reef").await);
    refused("another's works", agent.list::<Value>(&works(), OTHER, "").await);
    refused("all works", agent.list::<Value>(&works(), "", "").await);
    refused("another's status", agent.merge_status::<Value>(&works(), OTHER, "reef", &status).await);
    refused("another cluster", agent.get::<Value>(&clusters(), "", OTHER).await);
    refused("the inventory", agent.list::<Value>(&clusters(), "", "").await);
    refused("a work made", create(&agent, &works(), OWN, work("more")).await);
    refused("a work deleted", delete(&agent, &works(), OWN, "reef").await);
    refused("reports", agent.list::<Value>(&reports(), OWN, "").await);
    refused("secrets", agent.list::<Value>(&Gvr::new("", "v1", "secrets"), OWN, "").await);
    let labels = json!({"metadata": {"labels": {"role": "prod"}}});
    refused("labels of its cluster", agent.merge::<Value>(&clusters(), "", OWN, &labels).await);
    w.end().await;
}

/// KS-207, OCM-132: the status agent writes WorkStatuses in its mailbox, and reads its cluster.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ocm_132_a_status_agent_writes_reports_only() {
    let w = World::start().await;
    let agent = w.acting(0, &Subject::status_addon(OWN));
    create(&agent, &reports(), OWN, report("a")).await.expect("a report");
    let status = json!([{"op": "add", "path": "/status", "value": {"phase": "Active"}}]);
    agent.json_patch_status::<Value>(&reports(), OWN, "a", status).await.expect("its status");
    agent.list::<Value>(&works(), OWN, "").await.expect("its works");
    delete(&agent, &reports(), OWN, "a").await.expect("a report");
    refused("another's report", create(&agent, &reports(), OTHER, report("a")).await);
    refused("another's reports", agent.list::<Value>(&reports(), OTHER, "").await);
    refused("a work", create(&agent, &works(), OWN, work("reef")).await);
    refused("its cluster", agent.get::<Value>(&clusters(), "", OWN).await);

    let admin = w.admin(1);
    create(&admin, &maps(), "default", map("a")).await.expect("a map");
    let agent = w.acting(1, &Subject::status_agent_account());
    agent.get::<Value>(&maps(), "default", "a").await.expect("a map");
    let applied = Gvr::new("work.open-cluster-management.io", "v1", "appliedmanifestworks");
    agent.list::<Value>(&applied, "", "").await.expect("applied works");
    refused("a map made", create(&agent, &maps(), "default", map("b")).await);
    refused("a map changed", agent.merge::<Value>(&maps(), "default", "a", &json!({"data": {}})).await);
    refused("a map deleted", delete(&agent, &maps(), "default", "a").await);
    let namespaces = Gvr::new("", "v1", "namespaces");
    let patch = json!({"status": {}});
    refused("a status", agent.merge_status::<Value>(&namespaces, "", "default", &patch).await);
    w.end().await;
}

/// An administrator of a cluster may narrow the permissions of the work agent there, and enrolling again does
/// not change that.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ocm_132_the_work_agents_rights_in_its_cluster_can_be_narrowed() {
    let mut w = World::start().await;
    let agent = w.acting(1, &Subject::work_agent_account());
    create(&agent, &maps(), "default", map("a")).await.expect("a map");
    let rules = json!({"rules": [{"apiGroups": ["apps"], "resources": ["*"], "verbs": ["*"]}]});
    let execution = rights::WORK_EXECUTION_ROLE;
    w.admin(1).merge::<Value>(&rbac("clusterroles"), "", execution, &rules).await.expect("narrowed");
    refused("a map", create(&agent, &maps(), "default", map("b")).await);
    w.enrol(1).await;
    refused("a map", create(&agent, &maps(), "default", map("b")).await);
    let applied = Gvr::new("work.open-cluster-management.io", "v1", "appliedmanifestworks");
    agent.list::<Value>(&applied, "", "").await.expect("its own books stay open to it");
    w.end().await;
}

/// OCM-044: the next change of the cluster restores roles and bindings.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ocm_044_drift_is_put_right() {
    let w = World::start().await;
    let hub = w.admin(0);
    let shared = "open-cluster-management:managedcluster:work";
    let wide = json!({"rules": [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]});
    hub.merge::<Value>(&rbac("clusterroles"), "", shared, &wide).await.expect("widened");
    let other = json!({"metadata": {"finalizers": null}});
    hub.merge::<Value>(&rbac("rolebindings"), OWN, WORK_RIGHTS, &other).await.expect("patched");
    let agent = w.acting(0, &Subject::klusterlet(OWN, "work-agent"));
    // The enrolment may still be processing the events of its own start, and restore this at once.
    until("no right to its works", || async {
        if let Err(error) = delete(&hub, &rbac("rolebindings"), OWN, WORK_RIGHTS).await {
            assert_eq!(code_of(&error), 404, "{error}");
        }
        agent.list::<Value>(&works(), OWN, "").await.is_err()
    })
    .await;
    let touch = json!({"metadata": {"labels": {"touched": "yes"}}});
    hub.merge::<Value>(&clusters(), "", OWN, &touch).await.expect("touched");
    until("the right to its works", || async { agent.list::<Value>(&works(), OWN, "").await.is_ok() }).await;
    let secrets = Gvr::new("", "v1", "secrets");
    until("no right to secrets", || async { agent.list::<Value>(&secrets, OWN, "").await.is_err() }).await;
    refused("secrets", agent.list::<Value>(&secrets, OWN, "").await);
    w.end().await;
}

/// OCM-058: a denied cluster keeps the permission for its works until they are gone, then can read only that
/// it is denied; accepted again it has its permissions back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ocm_058_denial_takes_rights_away() {
    let w = World::start().await;
    let hub = w.admin(0);
    create(&hub, &works(), OWN, work("reef")).await.expect("a work");
    let agent = w.acting(0, &Subject::klusterlet(OWN, "work-agent"));
    let accept = |yes: bool| json!({"spec": {"hubAcceptsClient": yes}});
    hub.merge::<Value>(&clusters(), "", OWN, &accept(false)).await.expect("denied");
    let registration = "open-cluster-management:managedcluster:cluster1:registration";
    let leases = Gvr::new("coordination.k8s.io", "v1", "leases");
    until("no right to leases", || async { agent.list::<Value>(&leases, OWN, "").await.is_err() }).await;
    assert!(hub.find::<Value>(&rbac("rolebindings"), OWN, registration).await.expect("an answer").is_none());
    agent.list::<Value>(&works(), OWN, "").await.expect("its works, as long as there are any");
    delete(&hub, &works(), OWN, "reef").await.expect("deleted");
    until("no right to works", || async { agent.list::<Value>(&works(), OWN, "").await.is_err() }).await;
    until("the condition", || async {
        let cluster: Value = agent.get(&clusters(), "", OWN).await.expect("still visible");
        cluster["status"]["conditions"].as_array().into_iter().flatten().any(|c| {
            c["type"] == "HubAcceptedManagedCluster"
                && c["reason"] == "HubClusterAdminDenied"
                && c["status"] == "False"
        })
    })
    .await;
    until("no agents", || async { !*w.ready[0].borrow() }).await;
    hub.merge::<Value>(&clusters(), "", OWN, &accept(true)).await.expect("accepted");
    until("the right to works", || async { agent.list::<Value>(&works(), OWN, "").await.is_ok() }).await;
    w.end().await;
}

/// OCM-058: when the process that serves a cluster restarts, an administrator's decision in between stands.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ocm_058_a_denial_survives_a_restart() {
    let mut w = World::start().await;
    let hub = w.admin(0);
    hub.merge::<Value>(&clusters(), "", OWN, &json!({"spec": {"hubAcceptsClient": false}}))
        .await
        .expect("denied");
    w.stop.cancel();
    for _ in CLUSTERS {
        // The enrolments have ended; the hub continues.
        w.tasks.join_next().await.expect("a task").expect("no panic");
    }
    w.stop = CancellationToken::new();
    let config = enroll::Config::new(OWN);
    let (mut ready, accepted) = (config.ready.subscribe(), config.accepted.subscribe());
    let admin = |i: usize| w.spaces[i].client(&Identity::admin());
    let (to_hub, to_cluster, stop) = (admin(0), admin(1), w.stop.clone());
    w.tasks.spawn(async move { enroll::run(to_hub, to_cluster, config, stop).await.expect("enrolment") });
    ready.wait_for(|yes| *yes).await.expect("settled");
    assert!(!*accepted.borrow());
    let cluster: Value = hub.get(&clusters(), "", OWN).await.expect("the cluster");
    assert_eq!(cluster["spec"]["hubAcceptsClient"], false);
    w.end().await;
}

/// OCM-059: no permission of a deleted cluster is left, and the other cluster keeps its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ocm_059_deletion_takes_rights_away() {
    let w = World::start().await;
    let hub = w.admin(0);
    create(&hub, &reports(), OWN, report("left")).await.expect("a report");
    let hold =
        json!({"metadata": {"finalizers": [apis::constants::CLUSTER_API_FINALIZER, "example.com/hold"]}});
    hub.merge::<Value>(&clusters(), "", OWN, &hold).await.expect("held");
    delete(&hub, &clusters(), "", OWN).await.expect("deleted");
    until("the end of the enrolment", || async {
        let cluster: Value = hub.get(&clusters(), "", OWN).await.expect("held");
        cluster["metadata"]["finalizers"] == json!(["example.com/hold"])
    })
    .await;
    let agent = w.acting(0, &Subject::klusterlet(OWN, "x"));
    refused("a cluster", agent.get::<Value>(&clusters(), "", OWN).await);
    // A controller that had not seen the deletion yet. The cluster's agent holds the work until its objects are gone.
    let mut late = work("late");
    late["metadata"]["finalizers"] = json!(["example.com/agent"]);
    create(&hub, &works(), OWN, late).await.expect("a work");
    let release = json!({"metadata": {"finalizers": null}});
    hub.merge::<Value>(&clusters(), "", OWN, &release).await.expect("released");
    until("the cluster's end", || async {
        hub.find::<Value>(&clusters(), "", OWN).await.expect("an answer").is_none()
    })
    .await;
    // The hub saw the end, whatever removed the finalizers, and removes what came late.
    until("the end of the late work to begin", || async {
        let late: Value = hub.get(&works(), OWN, "late").await.expect("held");
        late["metadata"]["deletionTimestamp"].is_string()
    })
    .await;
    agent.list::<Value>(&works(), OWN, "").await.expect("its works, as long as there are any");
    hub.merge::<Value>(&works(), OWN, "late", &release).await.expect("released");
    for plural in ["roles", "rolebindings", "clusterroles", "clusterrolebindings"] {
        let label = "open-cluster-management.io/cluster-name=cluster1";
        until(plural, || async {
            let left: Value = hub.list(&rbac(plural), "", label).await.expect("a list");
            left["items"] == json!([])
        })
        .await;
    }
    let left: Value = hub.list(&reports(), OWN, "").await.expect("a list");
    assert_eq!(left["items"], json!([]));
    w.acting(0, &Subject::klusterlet(OTHER, "x"))
        .list::<Value>(&works(), OTHER, "")
        .await
        .expect("its works");
    w.end().await;
}
