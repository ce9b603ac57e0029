//! A hub and two clusters, each a space in memory, and the agents in them.

use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

use kube::Client;
use kubestellar_ocm_hub as hub;
use ocm_agent::registration::{self, Connection, Endpoint};
use runtime::rest::{Gvr, Rest};
use serde_json::{Value, json};
use space::{Identity, Space, SpaceConfig, controllers::CsrSigner};
pub(crate) use testkit::wait::until;
use tokio::{sync::watch, task::JoinHandle, task::JoinSet};
use tokio_util::sync::CancellationToken;

use testkit::recorded::Requests;

pub(crate) const HUB: &str = "https://127.0.0.1:1/spaces/its1";
pub(crate) const BOOTSTRAP: &str = "system:bootstrap:ocmhub";

pub(crate) struct World {
    /// The hub, then clusters.
    pub(crate) spaces: Vec<Arc<Space>>,
    /// The requests to the hub: from its controllers, from those of its space, and from agents that have
    /// joined.
    pub(crate) requests: Requests,
    stop: CancellationToken,
    tasks: JoinSet<()>,
    _data: tempfile::TempDir,
}

/// A running registration agent.
pub(crate) struct Agent {
    stop: CancellationToken,
    task: JoinHandle<()>,
    connection: Connection,
    pub(crate) joined: watch::Receiver<bool>,
    /// How far its clock is ahead, in seconds.
    pub(crate) ahead: Arc<AtomicI64>,
    /// How often it read its clock. While it bootstraps, that is once for each check of Secret and requests.
    looks: watch::Receiver<u64>,
}

impl Agent {
    pub(crate) async fn end(self) {
        self.stop.cancel();
        self.task.await.expect("no panic");
    }

    pub(crate) fn rest(&self) -> Rest {
        Rest::new(self.connection.client())
    }

    /// Waits for a whole check from beginning to end, while it bootstraps.
    pub(crate) async fn looked(&mut self) {
        let before = *self.looks.borrow();
        // The present check may have begun before; the next one has ended when the third begins.
        let again = self.looks.wait_for(|count| *count >= before + 3);
        tokio::time::timeout(Duration::from_secs(60), again).await.expect("it looks").expect("it runs");
    }
}

/// Settings of the spaces.
#[derive(Clone, Copy, Default)]
pub(crate) struct Setting {
    /// Lifetime and backdating of certificates from now on, in seconds; `None` for the defaults.
    pub(crate) certificates: Option<(u64, u64)>,
    /// The clusters have no controllers, so nothing else cleans up there.
    pub(crate) bare: bool,
}

impl World {
    pub(crate) async fn start(configure: impl FnOnce(&mut hub::Config)) -> Self {
        Self::start_as(Setting::default(), configure).await
    }

    /// A hub that accepts its clusters, of which the first has joined.
    pub(crate) async fn joined() -> (Self, Agent) {
        let world = Self::start(trusting).await;
        let agent = world.agent(1, "c1", |_| ());
        world.until_condition("c1", AVAILABLE, "True").await;
        (world, agent)
    }

    pub(crate) async fn start_as(setting: Setting, configure: impl FnOnce(&mut hub::Config)) -> Self {
        let data = tempfile::tempdir().expect("a directory");
        let engine = store::Engine::in_memory();
        let (mut spaces, mut tasks, stop) = (Vec::new(), JoinSet::new(), CancellationToken::new());
        let requests = Requests::new();
        for name in ["its1", "wec1", "wec2"] {
            let config = SpaceConfig {
                name,
                data: data.path(),
                url: format!("https://127.0.0.1:1/spaces/{name}"),
                advertise: "127.0.0.1:1".into(),
            };
            let space = Arc::new(Space::start(&engine, config).await.expect("a space"));
            let mut signer =
                CsrSigner::new(&space.keys().client_ca, &space.keys().client_ca_key).expect("a signer");
            if let Some((life, before)) = setting.certificates {
                signer = signer.lasting(Duration::from_secs(life), Duration::from_secs(before));
            }
            if setting.bare && name != "its1" {
                spaces.push(space);
                continue;
            }
            let config =
                space::controllers::Config { ca_bundle_pem: String::new(), csr_signer: Some(signer) };
            let (mut client, store) = (space.client(&Identity::admin()), space.server().store().clone());
            if name == "its1" {
                client = requests.of("space", client);
            }
            let (ready, token) = (watch::Sender::new(false), stop.clone());
            spaces.push(space);
            tasks.spawn(async move {
                space::controllers::run(client, store, config, ready, token).await.expect("controllers");
            });
        }
        let mut world = Self { spaces, requests, stop, tasks, _data: data };
        let fast = Duration::from_millis(200);
        let mut config = hub::Config {
            timers: hub::Timers { requeue: fast, sets: fast, linger: fast, ..hub::Timers::default() },
            ..hub::Config::default()
        };
        configure(&mut config);
        let mut ready = config.ready.subscribe();
        let client = world.requests.of("hub", world.spaces[0].client(&Identity::admin()));
        let token = world.stop.clone();
        world.tasks.spawn(async move { hub::run(client, config, token).await.expect("the hub") });
        ready.wait_for(|yes| *yes).await.expect("the hub works");
        for index in [1, 2] {
            let client = world.spaces[index].client(&Identity::admin());
            runtime::install(&client, &apis::crds::ocm_spoke(), "test").await.expect("CRDs");
            for name in ["open-cluster-management-agent", "open-cluster-management-agent-addon"] {
                let body = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
                create(&Rest::new(client.clone()), &gvr("namespaces"), "", body).await.expect("a namespace");
            }
            ocm_shared::rbac::create_missing(&Rest::new(client), &ocm_shared::rbac::in_cluster())
                .await
                .expect("roles");
        }
        world
    }

    pub(crate) fn admin(&self, space: usize) -> Rest {
        Rest::new(self.spaces[space].client(&Identity::admin()))
    }

    pub(crate) fn hub(&self) -> Rest {
        self.admin(0)
    }

    pub(crate) fn bootstrap(&self) -> Client {
        self.spaces[0].client(&Identity::component(BOOTSTRAP, &["system:bootstrappers:managedcluster"]))
    }

    /// Starts an agent for `cluster` in the space of this number, with the permissions it has in a cluster.
    pub(crate) fn agent(
        &self,
        space: usize,
        cluster: &str,
        configure: impl FnOnce(&mut registration::Config),
    ) -> Agent {
        let its = self.spaces[0].clone();
        let (requests, who) = (self.requests.clone(), cluster.to_owned());
        let ahead = Arc::new(AtomicI64::new(0));
        let (clock, (look, looks)) = (ahead.clone(), watch::channel(0));
        let fast = Duration::from_millis(300);
        let mut config = registration::Config {
            cluster_name: Some(cluster.into()),
            connect: Arc::new(move |credential| {
                let client =
                    its.client_ahead_by_certificate(&credential.certificate).map_err(|e| e.to_string());
                let client = client.map(|client| requests.of(&who, client));
                Box::pin(async move { client })
            }),
            timers: registration::Timers { secret: fast, health: fast, ..registration::Timers::default() },
            clock: Arc::new(move || {
                look.send_modify(|count| *count += 1);
                let ahead = jiff::SignedDuration::from_secs(clock.load(Ordering::SeqCst));
                jiff::Timestamp::now() + ahead
            }),
            ..registration::Config::new(Endpoint::new(HUB, "CA"))
        };
        configure(&mut config);
        let (connection, joined) = (config.connection.clone(), config.joined.subscribe());
        let stop = self.stop.child_token();
        let who = ocm_shared::rbac::Subject::registration_account();
        let groups: Vec<&str> = who.groups.iter().map(String::as_str).collect();
        let spoke = self.spaces[space].client(&Identity::component(&who.user, &groups));
        let (bootstrap, token) = (self.bootstrap(), stop.clone());
        let task = tokio::spawn(async move {
            registration::run(bootstrap, spoke, config, token).await.expect("the agent");
        });
        Agent { stop, task, connection, joined, ahead, looks }
    }

    pub(crate) async fn accept(&self, cluster: &str, yes: bool) {
        let patch = json!({"spec": {"hubAcceptsClient": yes}});
        self.hub().merge::<Value>(&gvr("managedclusters"), "", cluster, &patch).await.expect("decided");
    }

    pub(crate) async fn requests(&self, cluster: &str) -> Vec<Value> {
        let label = format!("open-cluster-management.io/cluster-name={cluster}");
        let list: Value =
            self.hub().list(&gvr("certificatesigningrequests"), "", &label).await.expect("a list");
        list["items"].as_array().cloned().unwrap_or_default()
    }

    /// Approves the only request of a cluster, as an administrator.
    pub(crate) async fn approve(&self, cluster: &str) {
        let mut found = Value::Null;
        until("a signing request", || async { !self.requests(cluster).await.is_empty() }).await;
        for request in self.requests(cluster).await {
            found = request;
        }
        let request = serde_json::from_value(found).expect("a request");
        let verdict = json!({"type": "Approved", "status": "True", "reason": "Admin", "message": "",
            "lastUpdateTime": null, "lastTransitionTime": null});
        ocm_shared::bootstrap::approve(&self.hub(), &request, verdict).await.expect("approved");
    }

    pub(crate) async fn cluster(&self, name: &str) -> Option<Value> {
        self.hub().find(&gvr("managedclusters"), "", name).await.expect("an answer")
    }

    pub(crate) async fn until_condition(&self, cluster: &str, type_: &str, status: &str) {
        until(&format!("{type_}={status} of {cluster}"), || async {
            self.cluster(cluster).await.is_some_and(|c| condition(&c, type_)["status"] == status)
        })
        .await;
    }

    pub(crate) async fn secret(&self, space: usize) -> Option<Value> {
        let (namespace, name) = ("open-cluster-management-agent", "hub-kubeconfig-secret");
        self.admin(space).find(&gvr("secrets"), namespace, name).await.expect("an answer")
    }

    pub(crate) async fn exists(&self, plural: &str, namespace: &str, name: &str) -> bool {
        self.hub().find::<Value>(&gvr(plural), namespace, name).await.expect("an answer").is_some()
    }

    pub(crate) async fn end(mut self) {
        self.stop.cancel();
        while let Some(joined) = self.tasks.join_next().await {
            joined.expect("no panic");
        }
        for space in &self.spaces {
            space.stop().await;
        }
    }
}

pub(crate) fn gvr(plural: &str) -> Gvr {
    let (group, version) = match plural {
        "namespaces" | "secrets" | "configmaps" | "events" => ("", "v1"),
        // Virtual, and a second group with the same plural.
        "register managedclusters" => {
            return Gvr::new("register.open-cluster-management.io", "v1", "managedclusters");
        }
        "events.k8s.io events" => return Gvr::new("events.k8s.io", "v1", "events"),
        "managedclusters" => ("cluster.open-cluster-management.io", "v1"),
        "clusterclaims" => ("cluster.open-cluster-management.io", "v1alpha1"),
        "managedclustersets" | "managedclustersetbindings" => {
            ("cluster.open-cluster-management.io", "v1beta2")
        }
        "clusterprofiles" => ("multicluster.x-k8s.io", "v1alpha1"),
        "customresourcedefinitions" => ("apiextensions.k8s.io", "v1"),
        "placements" | "placementdecisions" => ("cluster.open-cluster-management.io", "v1beta1"),
        "clustermanagementaddons" => ("addon.open-cluster-management.io", "v1alpha1"),
        "workstatuses" => ("control.kubestellar.io", "v1alpha1"),
        "manifestworks" | "appliedmanifestworks" => ("work.open-cluster-management.io", "v1"),
        "managedclusteraddons" => ("addon.open-cluster-management.io", "v1alpha1"),
        "certificatesigningrequests" => ("certificates.k8s.io", "v1"),
        "leases" => ("coordination.k8s.io", "v1"),
        _ => ("rbac.authorization.k8s.io", "v1"),
    };
    Gvr::new(group, version, plural)
}

pub(crate) async fn create(
    rest: &Rest,
    gvr: &Gvr,
    namespace: &str,
    object: Value,
) -> Result<Value, kube::Error> {
    rest.create(gvr, namespace, object.to_string().into_bytes()).await
}

pub(crate) fn work(name: &str, finalizers: &[&str], priority: &str) -> Value {
    json!({"apiVersion": "work.open-cluster-management.io/v1", "kind": "ManifestWork",
        "metadata": {"name": name, "finalizers": finalizers,
            "annotations": {"open-cluster-management.io/cleanup-priority": priority}},
        "spec": {"workload": {"manifests": []}}})
}

pub(crate) fn condition(object: &Value, type_: &str) -> Value {
    let all = object.pointer("/status/conditions").and_then(Value::as_array);
    all.into_iter().flatten().find(|c| c["type"] == type_).cloned().unwrap_or_default()
}

pub(crate) fn taints(cluster: &Value) -> Vec<String> {
    let all = cluster.pointer("/spec/taints").and_then(Value::as_array);
    all.into_iter().flatten().map(|t| t["key"].as_str().unwrap_or_default().to_owned()).collect()
}

/// A ConfigMap in `default`, as a manifest.
pub(crate) fn map(name: &str, value: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": "default"},
        "data": {"a": value}})
}

/// A ManifestWork with these manifests.
pub(crate) fn holding(name: &str, manifests: &[Value]) -> Value {
    json!({"apiVersion": "work.open-cluster-management.io/v1", "kind": "ManifestWork",
        "metadata": {"name": name}, "spec": {"workload": {"manifests": manifests}}})
}

pub(crate) const ACCEPTED: &str = "HubAcceptedManagedCluster";
pub(crate) const JOINED: &str = "ManagedClusterJoined";
pub(crate) const AVAILABLE: &str = "ManagedClusterConditionAvailable";
pub(crate) const CLOCK: &str = "ManagedClusterConditionClockSynced";
pub(crate) const UNREACHABLE: &str = "cluster.open-cluster-management.io/unreachable";

pub(crate) fn trusting(config: &mut hub::Config) {
    config.approval.approved_users = vec![BOOTSTRAP.into()];
    config.auto_accept = true;
}

pub(crate) const RIGHTS: [(&str, &str, &str); 6] = [
    ("clusterroles", "", "open-cluster-management:managedcluster:c1"),
    ("clusterrolebindings", "", "open-cluster-management:managedcluster:c1"),
    ("clusterroles", "", "open-cluster-management:managedcluster:registration"),
    ("clusterroles", "", "open-cluster-management:managedcluster:work"),
    ("rolebindings", "c1", "open-cluster-management:managedcluster:c1:registration"),
    ("rolebindings", "c1", "open-cluster-management:managedcluster:c1:work"),
];
