//! The hub's controllers and registration agents, over whole spaces in memory: real signing requests, real certificates.

use std::{
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

use kube::Client;
use kubestellar_ocm::{
    hub,
    registration::{self, Connection, Endpoint},
};
use runtime::rest::{Gvr, Removal, Rest, code_of};
use serde_json::{Value, json};
use space::{Identity, Space, SpaceConfig, controllers::CsrSigner};
use tokio::{sync::watch, task::JoinHandle, task::JoinSet};
use tokio_util::sync::CancellationToken;

const HUB: &str = "https://127.0.0.1:1/spaces/its1";
const BOOTSTRAP: &str = "system:bootstrap:ocmhub";

struct World {
    /// The hub, then clusters.
    spaces: Vec<Arc<Space>>,
    stop: CancellationToken,
    tasks: JoinSet<()>,
    _data: tempfile::TempDir,
}

/// A registration agent as it runs.
struct Agent {
    stop: CancellationToken,
    task: JoinHandle<()>,
    connection: Connection,
    joined: watch::Receiver<bool>,
    /// How far its clock is ahead, in seconds.
    ahead: Arc<AtomicI64>,
}

impl Agent {
    async fn end(self) {
        self.stop.cancel();
        self.task.await.expect("no panic");
    }

    fn rest(&self) -> Rest {
        Rest::new(self.connection.client())
    }
}

impl World {
    async fn start(configure: impl FnOnce(&mut hub::Config)) -> Self {
        let data = tempfile::tempdir().expect("a directory");
        let engine = store::Engine::in_memory();
        let (mut spaces, mut tasks, stop) = (Vec::new(), JoinSet::new(), CancellationToken::new());
        for name in ["its1", "wec1", "wec2"] {
            let config = SpaceConfig {
                name,
                data: data.path(),
                url: format!("https://127.0.0.1:1/spaces/{name}"),
                advertise: "127.0.0.1:1".into(),
            };
            let space = Arc::new(Space::start(&engine, config).await.expect("a space"));
            let signer =
                CsrSigner::new(&space.keys().client_ca, &space.keys().client_ca_key).expect("a signer");
            let config =
                space::controllers::Config { ca_bundle_pem: String::new(), csr_signer: Some(signer) };
            let (client, store) = (space.client(&Identity::admin()), space.server().store().clone());
            let (ready, token) = (watch::Sender::new(false), stop.clone());
            tasks.spawn(async move {
                space::controllers::run(client, store, config, ready, token).await.expect("controllers");
            });
            spaces.push(space);
        }
        let mut world = Self { spaces, stop, tasks, _data: data };
        let fast = Duration::from_millis(200);
        let mut config = hub::Config {
            timers: hub::Timers { requeue: fast, sets: fast, linger: fast, ..hub::Timers::default() },
            ..hub::Config::default()
        };
        configure(&mut config);
        let mut ready = config.ready.subscribe();
        let (client, token) = (world.spaces[0].client(&Identity::admin()), world.stop.clone());
        world.tasks.spawn(async move { hub::run(client, config, token).await.expect("the hub") });
        ready.wait_for(|yes| *yes).await.expect("the hub works");
        for index in [1, 2] {
            let client = world.spaces[index].client(&Identity::admin());
            runtime::install(&client, &apis::crds::ocm_spoke(), "test").await.expect("CRDs");
            for name in ["open-cluster-management-agent", "open-cluster-management-agent-addon"] {
                let body = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
                create(&Rest::new(client.clone()), &gvr("namespaces"), "", body).await.expect("a namespace");
            }
            kubestellar_ocm::rbac::create_missing(&Rest::new(client), &kubestellar_ocm::rbac::in_cluster())
                .await
                .expect("roles");
        }
        world
    }

    fn admin(&self, space: usize) -> Rest {
        Rest::new(self.spaces[space].client(&Identity::admin()))
    }

    fn hub(&self) -> Rest {
        self.admin(0)
    }

    fn bootstrap(&self) -> Client {
        self.spaces[0].client(&Identity::component(BOOTSTRAP, &["system:bootstrappers:managedcluster"]))
    }

    /// Starts an agent for `cluster` in the space of this number, with the rights it has in a cluster.
    fn agent(&self, space: usize, cluster: &str, configure: impl FnOnce(&mut registration::Config)) -> Agent {
        let its = self.spaces[0].clone();
        let ahead = Arc::new(AtomicI64::new(0));
        let clock = ahead.clone();
        let fast = Duration::from_millis(300);
        let mut config = registration::Config {
            cluster_name: Some(cluster.into()),
            connect: Arc::new(move |credential| {
                let client = its.client_by_certificate(&credential.certificate).map_err(|e| e.to_string());
                Box::pin(async move { client })
            }),
            timers: registration::Timers { secret: fast, health: fast, ..registration::Timers::default() },
            clock: Arc::new(move || {
                let ahead = jiff::SignedDuration::from_secs(clock.load(Ordering::SeqCst));
                jiff::Timestamp::now() + ahead
            }),
            ..registration::Config::new(Endpoint::new(HUB, "CA"))
        };
        configure(&mut config);
        let (connection, joined) = (config.connection.clone(), config.joined.subscribe());
        let stop = self.stop.child_token();
        let who = kubestellar_ocm::rbac::Subject::registration_account();
        let groups: Vec<&str> = who.groups.iter().map(String::as_str).collect();
        let spoke = self.spaces[space].client(&Identity::component(&who.user, &groups));
        let (bootstrap, token) = (self.bootstrap(), stop.clone());
        let task = tokio::spawn(async move {
            registration::run(bootstrap, spoke, config, token).await.expect("the agent");
        });
        Agent { stop, task, connection, joined, ahead }
    }

    async fn accept(&self, cluster: &str, yes: bool) {
        let patch = json!({"spec": {"hubAcceptsClient": yes}});
        self.hub().merge::<Value>(&gvr("managedclusters"), "", cluster, &patch).await.expect("decided");
    }

    async fn requests(&self, cluster: &str) -> Vec<Value> {
        let label = format!("open-cluster-management.io/cluster-name={cluster}");
        let list: Value =
            self.hub().list(&gvr("certificatesigningrequests"), "", &label).await.expect("a list");
        list["items"].as_array().cloned().unwrap_or_default()
    }

    /// Approves, as an administrator, the only request of a cluster.
    async fn approve(&self, cluster: &str) {
        let mut found = Value::Null;
        until("a signing request", || async { !self.requests(cluster).await.is_empty() }).await;
        for request in self.requests(cluster).await {
            found = request;
        }
        let request = serde_json::from_value(found).expect("a request");
        let verdict = json!({"type": "Approved", "status": "True", "reason": "Admin", "message": "",
            "lastUpdateTime": null, "lastTransitionTime": null});
        hub::bootstrap::approve(&self.hub(), &request, verdict).await.expect("approved");
    }

    async fn cluster(&self, name: &str) -> Option<Value> {
        self.hub().find(&gvr("managedclusters"), "", name).await.expect("an answer")
    }

    async fn until_condition(&self, cluster: &str, type_: &str, status: &str) {
        until(&format!("{type_}={status} of {cluster}"), || async {
            self.cluster(cluster).await.is_some_and(|c| condition(&c, type_)["status"] == status)
        })
        .await;
    }

    async fn secret(&self, space: usize) -> Option<Value> {
        let (namespace, name) = ("open-cluster-management-agent", "hub-kubeconfig-secret");
        self.admin(space).find(&gvr("secrets"), namespace, name).await.expect("an answer")
    }

    async fn exists(&self, plural: &str, namespace: &str, name: &str) -> bool {
        self.hub().find::<Value>(&gvr(plural), namespace, name).await.expect("an answer").is_some()
    }

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

fn gvr(plural: &str) -> Gvr {
    let (group, version) = match plural {
        "namespaces" | "secrets" | "configmaps" => ("", "v1"),
        "managedclusters" => ("cluster.open-cluster-management.io", "v1"),
        "clusterclaims" => ("cluster.open-cluster-management.io", "v1alpha1"),
        "managedclustersets" | "managedclustersetbindings" => {
            ("cluster.open-cluster-management.io", "v1beta2")
        }
        "manifestworks" => ("work.open-cluster-management.io", "v1"),
        "managedclusteraddons" => ("addon.open-cluster-management.io", "v1alpha1"),
        "certificatesigningrequests" => ("certificates.k8s.io", "v1"),
        "leases" => ("coordination.k8s.io", "v1"),
        _ => ("rbac.authorization.k8s.io", "v1"),
    };
    Gvr::new(group, version, plural)
}

async fn create(rest: &Rest, gvr: &Gvr, namespace: &str, object: Value) -> Result<Value, kube::Error> {
    rest.create(gvr, namespace, object.to_string().into_bytes()).await
}

fn work(name: &str, finalizers: &[&str], priority: &str) -> Value {
    json!({"apiVersion": "work.open-cluster-management.io/v1", "kind": "ManifestWork",
        "metadata": {"name": name, "finalizers": finalizers,
            "annotations": {"open-cluster-management.io/cleanup-priority": priority}},
        "spec": {"workload": {"manifests": []}}})
}

fn condition(object: &Value, type_: &str) -> Value {
    let all = object.pointer("/status/conditions").and_then(Value::as_array);
    all.into_iter().flatten().find(|c| c["type"] == type_).cloned().unwrap_or_default()
}

fn taints(cluster: &Value) -> Vec<String> {
    let all = cluster.pointer("/spec/taints").and_then(Value::as_array);
    all.into_iter().flatten().map(|t| t["key"].as_str().unwrap_or_default().to_owned()).collect()
}

async fn until<F: Future<Output = bool>>(what: &str, mut ask: impl FnMut() -> F) {
    let wait = async {
        while !ask().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), wait).await.unwrap_or_else(|_| panic!("never: {what}"));
}

const ACCEPTED: &str = "HubAcceptedManagedCluster";
const JOINED: &str = "ManagedClusterJoined";
const AVAILABLE: &str = "ManagedClusterConditionAvailable";
const CLOCK: &str = "ManagedClusterConditionClockSynced";
const UNREACHABLE: &str = "cluster.open-cluster-management.io/unreachable";

fn trusting(config: &mut hub::Config) {
    config.approval.approved_users = vec![BOOTSTRAP.into()];
    config.auto_accept = true;
}

const RIGHTS: [(&str, &str, &str); 6] = [
    ("clusterroles", "", "open-cluster-management:managedcluster:c1"),
    ("clusterrolebindings", "", "open-cluster-management:managedcluster:c1"),
    ("clusterroles", "", "open-cluster-management:managedcluster:registration"),
    ("clusterroles", "", "open-cluster-management:managedcluster:work"),
    ("rolebindings", "c1", "open-cluster-management:managedcluster:c1:registration"),
    ("rolebindings", "c1", "open-cluster-management:managedcluster:c1:work"),
];

/// OCM-A-01, OCM-030, OCM-035, OCM-036, OCM-044, OCM-045, OCM-046, OCM-047, OCM-053: join with manual approval, both
/// opt-ins by an administrator.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ocm_a_01_join_with_manual_approval() {
    let w = World::start(|_| ()).await;
    let agent = w.agent(1, "c1", |config| {
        let annotations = [("agent.open-cluster-management.io/foo", "bar"), ("other", "x")];
        config.annotations = annotations.map(|(k, v)| (k.to_owned(), v.to_owned())).into();
    });
    until("the taint and the finalizer", || async {
        w.cluster("c1").await.is_some_and(|c| {
            taints(&c) == [UNREACHABLE]
                && c["metadata"]["finalizers"]
                    == json!(["cluster.open-cluster-management.io/resource-cleanup"])
        })
    })
    .await;
    let cluster = w.cluster("c1").await.expect("c1");
    assert_eq!(cluster["spec"]["hubAcceptsClient"], false);
    assert_eq!(condition(&cluster, ACCEPTED), Value::Null);
    assert_eq!(
        cluster["metadata"]["annotations"],
        json!({"agent.open-cluster-management.io/foo": "bar"}),
        "OCM-A-31"
    );
    until("a request", || async { w.requests("c1").await.len() == 1 }).await;
    let request = w.requests("c1").await.remove(0);
    let name = request["metadata"]["name"].as_str().expect("a name");
    assert!(name.starts_with("c1-") && name.len() == 8, "{name}");
    assert_eq!(request["spec"]["signerName"], "kubernetes.io/kube-apiserver-client");
    assert_eq!(request["spec"]["usages"], json!(["digital signature", "key encipherment", "client auth"]));
    assert_eq!(request["spec"]["username"], BOOTSTRAP);
    assert!(request["status"].get("conditions").is_none());
    assert!(!w.exists("namespaces", "", "c1").await);

    w.accept("c1", true).await;
    w.until_condition("c1", ACCEPTED, "True").await;
    for (plural, namespace, name) in RIGHTS {
        assert!(w.exists(plural, namespace, name).await, "{plural} {name}");
    }
    let mailbox: Value = w.hub().get(&gvr("namespaces"), "", "c1").await.expect("a mailbox");
    assert_eq!(mailbox["metadata"]["labels"]["open-cluster-management.io/cluster-name"], "c1");
    until("a lease", || w.exists("leases", "c1", "managed-cluster-lease")).await;
    let lease: Value = w.hub().get(&gvr("leases"), "c1", "managed-cluster-lease").await.expect("a lease");
    assert_eq!(lease["metadata"]["labels"]["open-cluster-management.io/cluster-name"], "c1");
    assert_eq!(lease["spec"]["holderIdentity"], "managed-cluster-lease");
    assert!(w.secret(1).await.is_none());

    w.approve("c1").await;
    w.until_condition("c1", AVAILABLE, "True").await;
    w.until_condition("c1", JOINED, "True").await;
    w.until_condition("c1", CLOCK, "True").await;
    until("no taint", || async { taints(&w.cluster("c1").await.expect("c1")).is_empty() }).await;
    let secret = w.secret(1).await.expect("a secret");
    let keys: Vec<&String> = secret["data"].as_object().expect("data").keys().collect();
    assert_eq!(keys, ["agent-name", "cluster-name", "kubeconfig", "tls.crt", "tls.key"]);
    assert_eq!(w.requests("c1").await.len(), 1);
    let version = w.cluster("c1").await.expect("c1")["status"]["version"]["kubernetes"].clone();
    assert!(version.as_str().is_some_and(|v| v.starts_with('v')), "{version}");

    // OCM-A-11: started again, it goes on with what it kept.
    let before = w.secret(1).await;
    agent.end().await;
    let mut again = w.agent(1, "c1", |_| ());
    again.joined.wait_for(|yes| *yes).await.expect("joined");
    again.rest().get::<Value>(&gvr("managedclusters"), "", "c1").await.expect("its credential is good");
    assert_eq!(w.secret(1).await, before);
    assert_eq!(w.requests("c1").await.len(), 1);
    again.end().await;
    w.end().await;
}

/// OCM-A-02, OCM-A-03: the certificate comes first, and nothing is reported until the cluster is accepted; and a
/// cluster that an administrator made beforehand is joined as it is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ocm_a_02_either_order() {
    let w = World::start(|_| ()).await;
    let mut agent = w.agent(1, "c1", |_| ());
    w.approve("c1").await;
    agent.joined.wait_for(|yes| *yes).await.expect("a certificate");
    assert_eq!(condition(&w.cluster("c1").await.expect("c1"), JOINED), Value::Null);
    w.accept("c1", true).await;
    w.until_condition("c1", AVAILABLE, "True").await;

    let made = json!({"apiVersion": "cluster.open-cluster-management.io/v1", "kind": "ManagedCluster",
        "metadata": {"name": "c2", "labels": {"mine": "yes"}}, "spec": {"hubAcceptsClient": true}});
    let made = create(&w.hub(), &gvr("managedclusters"), "", made).await.expect("c2");
    let second = w.agent(2, "c2", |_| ());
    w.approve("c2").await;
    w.until_condition("c2", AVAILABLE, "True").await;
    let joined = w.cluster("c2").await.expect("c2");
    assert_eq!(joined["metadata"]["uid"], made["metadata"]["uid"]);
    assert_eq!(joined["metadata"]["labels"]["mine"], "yes");
    agent.end().await;
    second.end().await;
    w.end().await;
}

/// OCM-A-04, OCM-A-25, OCM-043, OCM-058: joined without a human; denied, it stays denied and sees only that; accepted
/// again, everything comes back without a restart of the agent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ocm_a_25_denied_and_accepted_again() {
    let w = World::start(trusting).await;
    let agent = w.agent(1, "c1", |_| ());
    w.until_condition("c1", AVAILABLE, "True").await;
    let request = w.requests("c1").await.remove(0);
    assert_eq!(request["status"]["conditions"][0]["reason"], "AutoApprovedByHubCSRApprovingController");
    let cluster = w.cluster("c1").await.expect("c1");
    let stamp = &cluster["metadata"]["annotations"]["open-cluster-management.io/automatically-accepted-on"];
    stamp.as_str().expect("a time").parse::<jiff::Timestamp>().expect("a time");

    w.accept("c1", false).await;
    w.until_condition("c1", ACCEPTED, "False").await;
    let role: Value = w.hub().get(&gvr("clusterroles"), "", RIGHTS[0].2).await.expect("the role");
    assert_eq!(
        role["rules"],
        json!([{"apiGroups": ["cluster.open-cluster-management.io"], "resources": ["managedclusters"],
            "resourceNames": ["c1"], "verbs": ["get", "list", "watch"]}])
    );
    assert!(w.exists("clusterrolebindings", "", RIGHTS[1].2).await);
    assert!(
        !w.exists("rolebindings", "c1", RIGHTS[4].2).await
            && !w.exists("rolebindings", "c1", RIGHTS[5].2).await
    );
    let denied = w.cluster("c1").await.expect("c1");
    assert_eq!(condition(&denied, ACCEPTED)["reason"], "HubClusterAdminDenied");
    assert_eq!(condition(&denied, JOINED)["status"], "True");
    assert_eq!(denied["spec"]["hubAcceptsClient"], false, "not accepted again by itself");
    let mine = agent.rest();
    mine.get::<Value>(&gvr("managedclusters"), "", "c1").await.expect("it sees that it is denied");
    let lease = mine.get::<Value>(&gvr("leases"), "c1", "managed-cluster-lease").await;
    assert_eq!(lease.as_ref().err().map(code_of), Some(403));

    // OCM-A-06: a renewal is not asked for, and not approved.
    let asked = create(&mine, &gvr("certificatesigningrequests"), "", json!({})).await;
    assert_eq!(asked.as_ref().err().map(code_of), Some(403));

    w.accept("c1", true).await;
    w.until_condition("c1", ACCEPTED, "True").await;
    mine.get::<Value>(&gvr("leases"), "c1", "managed-cluster-lease").await.expect("its lease");
    agent.end().await;
    w.end().await;
}

/// OCM-A-26, OCM-A-27, OCM-059: denial waits for works, deletion goes in order, and nothing of a deleted cluster's rights is left.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ocm_a_27_departure_in_order() {
    let w = World::start(trusting).await;
    let agent = w.agent(1, "c1", |_| ());
    w.until_condition("c1", AVAILABLE, "True").await;
    let hub = w.hub();
    let hold = "example.com/hold";
    create(&hub, &gvr("manifestworks"), "c1", work("w0", &[hold], "")).await.expect("a work");
    w.accept("c1", false).await;
    until("the binding to be on its way", || async {
        let found: Option<Value> =
            hub.find(&gvr("rolebindings"), "c1", RIGHTS[5].2).await.expect("an answer");
        found.is_some_and(|b| b.pointer("/metadata/deletionTimestamp").is_some())
    })
    .await;
    assert_eq!(condition(&w.cluster("c1").await.expect("c1"), ACCEPTED)["status"], "True");
    agent
        .rest()
        .list::<Value>(&gvr("manifestworks"), "c1", "")
        .await
        .expect("its works, while there are any");
    let free = json!({"metadata": {"finalizers": null}});
    hub.merge::<Value>(&gvr("manifestworks"), "c1", "w0", &free).await.expect("free");
    hub.delete(&gvr("manifestworks"), "c1", "w0", &Removal::default()).await.expect("deleted");
    w.until_condition("c1", ACCEPTED, "False").await;
    assert!(!w.exists("rolebindings", "c1", RIGHTS[5].2).await);
    w.accept("c1", true).await;
    w.until_condition("c1", ACCEPTED, "True").await;

    let addon = json!({"apiVersion": "addon.open-cluster-management.io/v1alpha1", "kind": "ManagedClusterAddOn",
        "metadata": {"name": "addon1", "finalizers": [hold]}, "spec": {}});
    create(&hub, &gvr("managedclusteraddons"), "c1", addon).await.expect("an add-on");
    for (name, priority) in [("w1", ""), ("w3", "20"), ("w2", "100")] {
        create(&hub, &gvr("manifestworks"), "c1", work(name, &[hold], priority)).await.expect("a work");
    }
    hub.delete(&gvr("managedclusters"), "", "c1", &Removal::default()).await.expect("deleted");
    let order = [
        ("managedclusteraddons", "addon1"),
        ("manifestworks", "w1"),
        ("manifestworks", "w3"),
        ("manifestworks", "w2"),
    ];
    for (index, (plural, name)) in order.iter().enumerate() {
        until(name, || async {
            let one: Value = hub.get(&gvr(plural), "c1", name).await.expect("held");
            one.pointer("/metadata/deletionTimestamp").is_some()
        })
        .await;
        for (plural, later) in order.iter().skip(index + 1) {
            let one: Value = hub.get(&gvr(plural), "c1", later).await.expect("there");
            assert!(one.pointer("/metadata/deletionTimestamp").is_none(), "{later} before {name} is gone");
        }
        until("the condition", || async {
            let deleting = condition(&w.cluster("c1").await.expect("c1"), "Deleting");
            deleting["reason"] == "ResourceRemaining" && deleting["message"].to_string().contains(plural)
        })
        .await;
        hub.merge::<Value>(&gvr(plural), "c1", name, &free).await.expect("free");
    }
    until("the cluster's end", || async { w.cluster("c1").await.is_none() }).await;
    for plural in ["clusterroles", "clusterrolebindings", "rolebindings"] {
        until(plural, || async {
            let label = "open-cluster-management.io/cluster-name";
            let left: Value = hub.list(&gvr(plural), "", label).await.expect("a list");
            left["items"] == json!([])
        })
        .await;
    }
    let mailbox: Value = hub.get(&gvr("namespaces"), "", "c1").await.expect("the mailbox stays");
    assert_eq!(mailbox["status"]["phase"], "Active");
    agent.end().await;
    w.end().await;
}

/// OCM-A-07, OCM-037, OCM-039, OCM-057: near its end the certificate is renewed by the agent itself, approved by the hub, and
/// used. OCM-A-15, OCM-034: once past its end, the agent joins anew within the process.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ocm_a_07_rotation_and_expiry() {
    let w = World::start(trusting).await;
    let mut agent = w.agent(1, "c1", |config| config.certificate_seconds = Some(3600));
    w.until_condition("c1", AVAILABLE, "True").await;
    let first = w.secret(1).await.expect("a secret");
    // 3900 s of life with what it is backdated by; less than a fifth of that is left.
    agent.ahead.store(3000, Ordering::SeqCst);
    until("another certificate", || async {
        w.secret(1).await.expect("a secret")["data"]["tls.crt"] != first["data"]["tls.crt"]
    })
    .await;
    let requests = w.requests("c1").await;
    let own = requests.iter().filter(|r| r["spec"]["username"].to_string().contains(":c1:")).count();
    assert!(own >= 1, "renewed under its own name: {requests:?}");
    w.until_condition("c1", "ClusterCertificateRotated", "True").await;
    let second = w.secret(1).await.expect("a secret");
    assert_eq!(second["data"]["agent-name"], first["data"]["agent-name"]);
    assert_ne!(second["data"]["tls.key"], first["data"]["tls.key"]);
    agent.rest().get::<Value>(&gvr("managedclusters"), "", "c1").await.expect("the new one is good");

    agent.ahead.store(0, Ordering::SeqCst);
    let by_bootstrap = |all: &[Value]| all.iter().filter(|r| r["spec"]["username"] == BOOTSTRAP).count();
    let before = by_bootstrap(&w.requests("c1").await);
    agent.ahead.store(10_000, Ordering::SeqCst);
    until("a request by the bootstrap identity", || async { by_bootstrap(&w.requests("c1").await) > before })
        .await;
    agent.ahead.store(0, Ordering::SeqCst);
    agent.joined.wait_for(|yes| *yes).await.expect("joined");
    until("it works again", || async {
        agent.rest().get::<Value>(&gvr("managedclusters"), "", "c1").await.is_ok()
    })
    .await;
    agent.end().await;
    w.end().await;
}

/// OCM-A-08, OCM-A-09, OCM-A-10, OCM-038: ten undecided requests are enough; a denied one is waited on; one that is gone is asked anew,
/// with another key.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ocm_a_09_requests_that_come_to_nothing() {
    let w = World::start(|_| ()).await;
    let agent = w.agent(1, "c1", |_| ());
    until("a request", || async { w.requests("c1").await.len() == 1 }).await;
    let first = w.requests("c1").await.remove(0);
    let name = first["metadata"]["name"].as_str().expect("a name");
    let request = serde_json::from_value(first.clone()).expect("a request");
    let verdict = json!({"type": "Denied", "status": "True", "reason": "Admin", "message": "no"});
    hub::bootstrap::approve(&w.hub(), &request, verdict).await.expect("denied");
    // Some looks of the agent later there is still this one only; the hub's mark is what we wait for instead of time.
    for _ in 0..3 {
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert_eq!(w.requests("c1").await.len(), 1);
    }
    w.hub().delete(&gvr("certificatesigningrequests"), "", name, &Removal::default()).await.expect("deleted");
    until("another request", || async { w.requests("c1").await.len() == 1 }).await;
    let second = w.requests("c1").await.remove(0);
    assert_ne!(second["spec"]["request"], first["spec"]["request"]);
    agent.end().await;

    for _ in 0..10 {
        let mut copy = second.clone();
        copy["metadata"] =
            json!({"generateName": "c2-", "labels": {"open-cluster-management.io/cluster-name": "c2"}});
        copy["status"] = json!({});
        create(&w.hub(), &gvr("certificatesigningrequests"), "", copy).await.expect("a request");
    }
    let agent = w.agent(2, "c2", |_| ());
    until("the ManagedCluster", || async { w.cluster("c2").await.is_some() }).await;
    for _ in 0..3 {
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert_eq!(w.requests("c2").await.len(), 10);
    }
    let one = w.requests("c2").await.remove(0);
    let name = one["metadata"]["name"].as_str().expect("a name");
    w.hub().delete(&gvr("certificatesigningrequests"), "", name, &Removal::default()).await.expect("deleted");
    until("a request of the agent", || async {
        w.requests("c2").await.iter().any(|r| r["spec"]["username"] == BOOTSTRAP)
    })
    .await;
    agent.end().await;
    w.end().await;
}

/// OCM-A-18, OCM-A-19, OCM-049, OCM-050: a cluster that falls silent is Unknown and tainted, and its add-ons with it; heard again, it is available.
/// A deleted lease is made again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ocm_a_18_silence_and_return() {
    let w = World::start(trusting).await;
    let agent = w.agent(1, "c1", |_| ());
    w.until_condition("c1", AVAILABLE, "True").await;
    let hub = w.hub();
    let lease = gvr("leases");
    let old: Value = hub.get(&lease, "c1", "managed-cluster-lease").await.expect("a lease");
    hub.delete(&lease, "c1", "managed-cluster-lease", &Removal::default()).await.expect("deleted");
    until("another lease", || async {
        let found: Option<Value> = hub.find(&lease, "c1", "managed-cluster-lease").await.expect("an answer");
        found.is_some_and(|l| l["metadata"]["uid"] != old["metadata"]["uid"])
    })
    .await;
    let addon = json!({"apiVersion": "addon.open-cluster-management.io/v1alpha1", "kind": "ManagedClusterAddOn",
        "metadata": {"name": "addon1"}, "spec": {}});
    create(&hub, &gvr("managedclusteraddons"), "c1", addon).await.expect("an add-on");
    let short = json!({"spec": {"leaseDurationSeconds": 1}});
    hub.merge::<Value>(&gvr("managedclusters"), "", "c1", &short).await.expect("shorter");
    agent.end().await;
    w.until_condition("c1", AVAILABLE, "Unknown").await;
    let silent = w.cluster("c1").await.expect("c1");
    assert_eq!(condition(&silent, AVAILABLE)["reason"], "ManagedClusterLeaseUpdateStopped");
    until("the taint", || async { taints(&w.cluster("c1").await.expect("c1")) == [UNREACHABLE] }).await;
    until("the add-on", || async {
        let addon: Value = hub.get(&gvr("managedclusteraddons"), "c1", "addon1").await.expect("it");
        condition(&addon, "Available")["reason"] == "ManagedClusterLeaseUpdateStopped"
    })
    .await;
    let label = "feature.open-cluster-management.io/addon-addon1";
    until("the label", || async {
        w.cluster("c1").await.expect("c1")["metadata"]["labels"][label] == "unreachable"
    })
    .await;
    let again = w.agent(1, "c1", |_| ());
    w.until_condition("c1", AVAILABLE, "True").await;
    until("no taint", || async { taints(&w.cluster("c1").await.expect("c1")).is_empty() }).await;
    again.end().await;
    w.end().await;
}

/// OCM-A-21, OCM-052: an agent whose clock is an hour off is told so and keeps quiet; told to, the hub looks away.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ocm_a_21_a_clock_an_hour_off() {
    let w = World::start(trusting).await;
    let agent = w.agent(1, "c1", |config| config.certificate_seconds = Some(86_400));
    let short = json!({"spec": {"leaseDurationSeconds": 1}});
    w.until_condition("c1", CLOCK, "True").await;
    agent.ahead.store(3600, Ordering::SeqCst);
    w.hub().merge::<Value>(&gvr("managedclusters"), "", "c1", &short).await.expect("shorter");
    w.until_condition("c1", CLOCK, "False").await;
    let skip = json!({"metadata": {"annotations": {"registration.open-cluster-management.io/skip-clock-sync-check": "true"}}});
    w.hub().merge::<Value>(&gvr("managedclusters"), "", "c1", &skip).await.expect("annotated");
    w.until_condition("c1", CLOCK, "True").await;
    agent.end().await;
    w.end().await;
}

/// OCM-003, OCM-018, OCM-A-35: what the credentials of an agent and of those who want to join do not reach: every verb in every foreign namespace,
/// and everything that would let them in by themselves.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ocm_044_a_credential_is_good_for_its_own_mailbox_only() {
    let w = World::start(trusting).await;
    let (one, two) = (w.agent(1, "c1", |_| ()), w.agent(2, "c10", |_| ()));
    w.until_condition("c1", AVAILABLE, "True").await;
    w.until_condition("c10", AVAILABLE, "True").await;
    let allowed = |who: Rest,
                   verb: &'static str,
                   gvr: Gvr,
                   sub: &'static str,
                   namespace: &'static str,
                   name: &'static str| async move {
        let review = json!({"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": {"verb": verb, "group": gvr.group, "resource": gvr.plural,
                "subresource": sub, "namespace": namespace, "name": name}}});
        let reviews = Gvr::new("authorization.k8s.io", "v1", "selfsubjectaccessreviews");
        let answer = create(&who, &reviews, "", review).await.expect("an answer");
        answer["status"]["allowed"] == true
    };
    let agent = one.rest();
    let verbs = ["get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"];
    for namespace in ["c10", "default", "kube-system", "open-cluster-management"] {
        for plural in
            ["manifestworks", "managedclusteraddons", "leases", "secrets", "configmaps", "rolebindings"]
        {
            for verb in verbs {
                assert!(
                    !allowed(agent.clone(), verb, gvr(plural), "", namespace, "").await,
                    "{verb} {plural} in {namespace}"
                );
            }
        }
    }
    for verb in verbs {
        assert!(!allowed(agent.clone(), verb, gvr("managedclusters"), "", "", "c10").await, "{verb} c10");
        assert!(!allowed(agent.clone(), verb, gvr("secrets"), "", "c1", "").await, "{verb} secrets");
    }
    // OCM-020: what it is to have.
    for (verb, plural, sub, namespace, name) in [
        ("get", "certificatesigningrequests", "", "", ""),
        ("watch", "certificatesigningrequests", "", "", ""),
        ("update", "managedclusters", "", "", "c1"),
        ("watch", "managedclusters", "", "", "c1"),
        ("patch", "managedclusters", "status", "", "c1"),
        ("update", "leases", "", "c1", "managed-cluster-lease"),
        ("update", "manifestworks", "", "c1", ""),
        ("patch", "manifestworks", "status", "c1", ""),
    ] {
        assert!(allowed(agent.clone(), verb, gvr(plural), sub, namespace, name).await, "{verb} {plural}");
    }
    assert!(!allowed(agent.clone(), "create", gvr("leases"), "", "c1", "").await, "the hub makes the lease");
    let boot = Rest::new(w.bootstrap());
    for (verb, plural) in [
        ("create", "managedclusters"),
        ("get", "managedclusters"),
        ("create", "certificatesigningrequests"),
        ("watch", "certificatesigningrequests"),
    ] {
        assert!(allowed(boot.clone(), verb, gvr(plural), "", "", "").await, "{verb} {plural}");
    }
    for (verb, plural, sub) in [
        ("update", "managedclusters", ""),
        ("patch", "managedclusters", ""),
        ("update", "managedclusters", "status"),
        ("update", "certificatesigningrequests", "approval"),
        ("delete", "managedclusters", ""),
        ("list", "secrets", ""),
    ] {
        assert!(!allowed(boot.clone(), verb, gvr(plural), sub, "", "").await, "{verb} {plural}/{sub}");
    }
    one.end().await;
    two.end().await;
    w.end().await;
}

/// OCM-A-12, OCM-A-16: a second agent under a cluster's name gets a certificate of its own and disturbs nobody's; started under another
/// cluster's name an agent joins as that; a corrupted Secret is mended.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ocm_a_12_other_names() {
    let w = World::start(trusting).await;
    let (one, mut two) = (w.agent(1, "c1", |_| ()), w.agent(2, "c1", |_| ()));
    w.until_condition("c1", AVAILABLE, "True").await;
    two.joined.wait_for(|yes| *yes).await.expect("joined");
    let name = |secret: Option<Value>| secret.expect("a secret")["data"]["agent-name"].clone();
    assert_ne!(name(w.secret(1).await), name(w.secret(2).await));
    let broken = json!({"data": {"kubeconfig": "Pz8="}});
    let namespace = "open-cluster-management-agent";
    let before = w.secret(1).await.expect("a secret");
    w.admin(1)
        .merge::<Value>(&gvr("secrets"), namespace, "hub-kubeconfig-secret", &broken)
        .await
        .expect("broken");
    until("it is mended", || async {
        w.secret(1).await.expect("a secret")["data"]["kubeconfig"] == before["data"]["kubeconfig"]
    })
    .await;
    two.end().await;
    let two = w.agent(2, "c2", |_| ());
    w.until_condition("c2", AVAILABLE, "True").await;
    let requests = w.requests("c2").await;
    assert_eq!(requests.len(), 1);
    one.end().await;
    two.end().await;
    w.end().await;
}

/// OCM-A-30, OCM-011, OCM-012: the built-in sets are there, come back, and keep what users add.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ocm_a_30_sets() {
    let w = World::start(|_| ()).await;
    let (hub, sets) = (w.hub(), gvr("managedclustersets"));
    for name in ["default", "global"] {
        until(name, || w.exists("managedclustersets", "", name)).await;
    }
    let old: Value = hub.get(&sets, "", "global").await.expect("global");
    hub.delete(&sets, "", "global", &Removal::default()).await.expect("deleted");
    until("another", || async {
        let found: Option<Value> = hub.find(&sets, "", "global").await.expect("an answer");
        found.is_some_and(|s| s["metadata"]["uid"] != old["metadata"]["uid"])
    })
    .await;
    let narrowed = json!({"metadata": {"labels": {"mine": "yes"}}, "spec": {"clusterSelector": {"labelSelector": {"matchLabels": {"a": "b"}}}}});
    hub.merge::<Value>(&sets, "", "global", &narrowed).await.expect("narrowed");
    until("it is as it was", || async {
        let set: Value = hub.get(&sets, "", "global").await.expect("global");
        set["spec"]["clusterSelector"]["labelSelector"].as_object().is_none_or(serde_json::Map::is_empty)
    })
    .await;
    let set: Value = hub.get(&sets, "", "global").await.expect("global");
    assert_eq!(set["metadata"]["labels"]["mine"], "yes");
    let body = json!({"apiVersion": "cluster.open-cluster-management.io/v1beta2", "kind": "ManagedClusterSetBinding",
        "metadata": {"name": "global"}, "spec": {"clusterSet": "global"}});
    create(&hub, &gvr("managedclustersetbindings"), "default", body).await.expect("a binding");
    until("bound", || async {
        let binding: Value =
            hub.get(&gvr("managedclustersetbindings"), "default", "global").await.expect("it");
        condition(&binding, "Bound")["status"] == "True"
    })
    .await;
    let member = json!({"apiVersion": "cluster.open-cluster-management.io/v1", "kind": "ManagedCluster",
        "metadata": {"name": "c1"}, "spec": {"hubAcceptsClient": false}});
    create(&hub, &gvr("managedclusters"), "", member).await.expect("c1");
    until("one member", || async {
        let set: Value = hub.get(&sets, "", "global").await.expect("global");
        condition(&set, "ClusterSetEmpty")["message"] == "1 ManagedClusters selected"
    })
    .await;
    w.end().await;
}

/// OCM-A-23, OCM-A-24: claims reach the hub once the cluster has joined, and follow.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ocm_a_23_claims() {
    let w = World::start(trusting).await;
    let claim = |name: &str, value: &str| {
        json!({"apiVersion": "cluster.open-cluster-management.io/v1alpha1", "kind": "ClusterClaim",
            "metadata": {"name": name}, "spec": {"value": value}})
    };
    let spoke = w.admin(1);
    create(&spoke, &gvr("clusterclaims"), "", claim("zone", "north")).await.expect("a claim");
    let agent = w.agent(1, "c1", |_| ());
    let claims = || async { w.cluster("c1").await.unwrap_or_default()["status"]["clusterClaims"].clone() };
    until("the claim", || async { claims().await == json!([{"name": "zone", "value": "north"}]) }).await;
    create(&spoke, &gvr("clusterclaims"), "", claim("id.k8s.io", "x")).await.expect("a claim");
    until("both", || async {
        claims().await == json!([{"name": "id.k8s.io", "value": "x"}, {"name": "zone", "value": "north"}])
    })
    .await;
    spoke.delete(&gvr("clusterclaims"), "", "zone", &Removal::default()).await.expect("deleted");
    until("one", || async { claims().await == json!([{"name": "id.k8s.io", "value": "x"}]) }).await;
    agent.end().await;
    w.end().await;
}
