//! A hub, four clusters, and their components.

use std::{sync::Arc, time::Duration};

use kube::Client;
use kubestellar_ocm_addon::{self as addon, Addon, status::StatusAddon};
use ocm_agent::{
    registration::{self, BuiltIn, Endpoint},
    work_agent,
};
use ocm_hub as hub;
use runtime::rest::{Gvr, Removal, Rest};
use serde_json::{Value, json};
use space::{Identity, Space};
pub(crate) use testkit::ocm::{condition, gvr};
pub(crate) use testkit::wait::until;
use tokio::task::{JoinHandle, JoinSet};
use tokio_util::sync::CancellationToken;

use testkit::{recorded::Requests, side};

pub(crate) const HUB: &str = "https://127.0.0.1:1/spaces/its1";
pub(crate) const BOOTSTRAP: &str = "system:bootstrap:ocmhub";
pub(crate) const AGENTS: &str = "open-cluster-management-agent-addon";
pub(crate) const STATUS: &str = "addon-status";

pub(crate) struct World {
    /// The hub, then clusters.
    pub(crate) spaces: Vec<Arc<Space>>,
    /// The requests of add-on managers to the hub.
    pub(crate) requests: Requests,
    pub(crate) stop: CancellationToken,
    tasks: JoinSet<()>,
    _data: tempfile::TempDir,
}

/// A component that runs until it is stopped.
pub(crate) struct Running {
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl Running {
    pub(crate) async fn end(self) {
        self.stop.cancel();
        self.task.await.expect("no panic");
    }
}

/// A cluster's agents.
pub(crate) struct Agent {
    pub(crate) registration: Running,
    pub(crate) work: Option<Running>,
}

impl Agent {
    pub(crate) async fn end(self) {
        if let Some(work) = self.work {
            work.end().await;
        }
        self.registration.end().await;
    }
}

impl World {
    /// Spaces and a hub that accepts every cluster, without an add-on manager.
    pub(crate) async fn start(clusters: usize) -> Self {
        let data = tempfile::tempdir().expect("a directory");
        let engine = store::Engine::in_memory();
        let (mut spaces, mut tasks, stop) = (Vec::new(), JoinSet::new(), CancellationToken::new());
        for index in 0..=clusters {
            let name = if index == 0 { "its1".to_owned() } else { format!("wec{index}") };
            let space = Arc::new(side::space(&engine, data.path(), &name).await);
            let (client, signer) = (space.client(&Identity::admin()), side::signer(&space));
            tasks.spawn(side::controllers(&space, client, Some(signer), stop.clone()).0);
            spaces.push(space);
        }
        let mut world = Self { spaces, requests: Requests::new(), stop, tasks, _data: data };
        let fast = Duration::from_millis(200);
        let mut config = hub::Config {
            timers: hub::Timers { requeue: fast, sets: fast, linger: fast, ..hub::Timers::default() },
            auto_accept: true,
            ..hub::Config::default()
        };
        config.approval.approved_users = vec![BOOTSTRAP.into()];
        let mut ready = config.ready.subscribe();
        let (client, token) = (world.spaces[0].client(&Identity::admin()), world.stop.clone());
        world.tasks.spawn(async move { hub::run(client, config, token).await.expect("the hub") });
        ready.wait_for(|yes| *yes).await.expect("the hub works");
        for index in 1..=clusters {
            let client = world.spaces[index].client(&Identity::admin());
            ocm_hub::enroll::prepare(&client, &format!("c{index}")).await.expect("prepared");
        }
        world
    }

    /// Starts the add-on manager, with the status add-on deployed from an image.
    pub(crate) fn manager(&self, configure: impl FnOnce(&mut addon::Config)) -> Running {
        let status = StatusAddon { image: Some("registry.example/agent:1".into()), ..StatusAddon::default() };
        let mut config = addon::Config::with_status_addon(status);
        config.timers.confirm = Duration::from_millis(300);
        configure(&mut config);
        let client = self.requests.of("manager", self.spaces[0].client(&Identity::admin()));
        let stop = self.stop.child_token();
        let token = stop.clone();
        let task = tokio::spawn(async move { addon::run(client, config, token).await.expect("the manager") });
        Running { stop, task }
    }

    pub(crate) fn admin(&self, space: usize) -> Rest {
        Rest::new(self.spaces[space].client(&Identity::admin()))
    }

    pub(crate) fn hub(&self) -> Rest {
        self.admin(0)
    }

    pub(crate) fn spoke(&self, space: usize) -> Client {
        let who = ocm_shared::rbac::Subject::registration_account();
        let groups: Vec<&str> = who.groups.iter().map(String::as_str).collect();
        self.spaces[space].client(&Identity::component(&who.user, &groups))
    }

    /// Starts the registration agent of `c<space>` with its permissions there, optionally with a work agent.
    pub(crate) fn agent(&self, space: usize, works: bool, built_in: Vec<BuiltIn>) -> Agent {
        self.agent_with(space, works, |config| config.built_in = built_in)
    }

    /// The same with other settings.
    pub(crate) fn agent_with(
        &self,
        space: usize,
        works: bool,
        configure: impl FnOnce(&mut registration::Config),
    ) -> Agent {
        let its = self.spaces[0].clone();
        let cluster = format!("c{space}");
        let fast = Duration::from_millis(500);
        let mut config = registration::Config {
            cluster_name: Some(cluster.clone()),
            connect: Arc::new(move |credential| {
                let client =
                    its.client_ahead_by_certificate(&credential.certificate).map_err(|e| e.to_string());
                Box::pin(async move { client })
            }),
            timers: registration::Timers { secret: fast, health: fast, ..registration::Timers::default() },
            ..registration::Config::new(Endpoint::new(HUB, "CA"))
        };
        configure(&mut config);
        let (connection, mut joined) = (config.connection.clone(), config.joined.subscribe());
        let stop = self.stop.child_token();
        let bootstrap =
            self.spaces[0].client(&Identity::component(BOOTSTRAP, &["system:bootstrappers:managedcluster"]));
        let (spoke, token) = (self.spoke(space), stop.clone());
        let task = tokio::spawn(async move {
            registration::run(bootstrap, spoke, config, token).await.expect("the agent");
        });
        let registration = Running { stop, task };
        let work = works.then(|| {
            let stop = self.stop.child_token();
            let (hub, wec, token) =
                (connection.client(), self.spaces[space].client(&Identity::admin()), stop.clone());
            let config = work_agent::Config::new(&cluster, HUB);
            let task = tokio::spawn(async move {
                let go = tokio::select! {
                    waited = joined.wait_for(|yes| *yes) => waited.is_ok(),
                    () = token.cancelled() => false,
                };
                if go {
                    work_agent::run(hub, wec, config, token).await.expect("the work agent");
                }
            });
            Running { stop, task }
        });
        Agent { registration, work }
    }

    /// Writes the status of the status agent's Deployment as a kubelet would, as soon as it exists.
    pub(crate) async fn deployment_runs(&self, space: usize, ready: i64) {
        let deployments = Gvr::new("apps", "v1", "deployments");
        let wec = self.admin(space);
        until("the Deployment", || async {
            wec.find::<Value>(&deployments, AGENTS, "status-agent").await.expect("an answer").is_some()
        })
        .await;
        let status = json!({"status": {"replicas": 1, "readyReplicas": ready, "availableReplicas": ready}});
        wec.merge_status::<Value>(&deployments, AGENTS, "status-agent", &status).await.expect("a status");
    }

    pub(crate) async fn addon(&self, cluster: &str, name: &str) -> Option<Value> {
        self.hub().find(&gvr("managedclusteraddons"), cluster, name).await.expect("an answer")
    }

    pub(crate) async fn until_addon(
        &self,
        cluster: &str,
        name: &str,
        type_: &str,
        status: &str,
        reason: &str,
    ) {
        until(&format!("{type_}={status} {reason} of {name} in {cluster}"), || async {
            let found =
                self.addon(cluster, name).await.map(|addon| condition(&addon, type_)).unwrap_or_default();
            found["status"] == status && found["reason"] == reason
        })
        .await;
    }

    pub(crate) async fn until_cluster(&self, cluster: &str, type_: &str, status: &str) {
        until(&format!("{type_}={status} of {cluster}"), || async {
            let found: Option<Value> =
                self.hub().find(&gvr("managedclusters"), "", cluster).await.expect("an answer");
            found.is_some_and(|c| condition(&c, type_)["status"] == status)
        })
        .await;
    }

    pub(crate) async fn secret(&self, space: usize, namespace: &str, name: &str) -> Option<Value> {
        self.admin(space).find(&gvr("secrets"), namespace, name).await.expect("an answer")
    }

    pub(crate) async fn until_secret(&self, space: usize, namespace: &str, name: &str) -> Value {
        until(&format!("the Secret {name}"), || async {
            self.secret(space, namespace, name).await.is_some()
        })
        .await;
        self.secret(space, namespace, name).await.expect("a secret")
    }

    /// Signing requests for add-ons of a cluster.
    pub(crate) async fn requests(&self, cluster: &str) -> Vec<Value> {
        let label = format!(
            "open-cluster-management.io/cluster-name={cluster},open-cluster-management.io/addon-name"
        );
        let list: Value =
            self.hub().list(&gvr("certificatesigningrequests"), "", &label).await.expect("a list");
        list["items"].as_array().cloned().unwrap_or_default()
    }

    pub(crate) async fn label(&self, cluster: &str, addon: &str) -> Value {
        let found: Value = self.hub().get(&gvr("managedclusters"), "", cluster).await.expect("a cluster");
        found["metadata"]["labels"][format!("feature.open-cluster-management.io/addon-{addon}")].clone()
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

/// An add-on for tests: a ConfigMap and, optionally, a hook and another identity.
#[derive(Default)]
pub(crate) struct Plain {
    pub(crate) hook: bool,
    pub(crate) signer: Option<&'static str>,
}

impl Addon for Plain {
    fn name(&self) -> &'static str {
        "plain"
    }

    fn rights(&self, _cluster: &str) -> Vec<Value> {
        Vec::new()
    }

    fn further_identities(&self, _cluster: &str) -> Vec<apis::ocm::addon::RegistrationConfig> {
        let made = |signer: &&str| {
            serde_json::from_value(json!({"signerName": signer,
                "subject": {"user": "someone", "groups": ["a"], "organizationUnit": ["unit"]}}))
            .expect("a registration")
        };
        self.signer.iter().map(made).collect()
    }

    fn manifests(&self, target: &addon::framework::Target<'_>) -> Result<Vec<Value>, String> {
        let mut all = vec![json!({"apiVersion": "v1", "kind": "ConfigMap",
            "metadata": {"name": "plain", "namespace": target.namespace}, "data": {"cluster": target.cluster_name()}})];
        if self.hook {
            let template =
                json!({"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "x"}]}});
            all.push(json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "bye", "namespace": target.namespace,
                "annotations": {"addon.open-cluster-management.io/addon-pre-delete": ""}}, "spec": {"template": template}}));
        }
        Ok(all)
    }
}

pub(crate) async fn create(rest: &Rest, gvr: &Gvr, namespace: &str, object: Value) -> Value {
    rest.create(gvr, namespace, object.to_string().into_bytes()).await.expect("created")
}

pub(crate) fn owner(name: &str, strategy: &Value) -> Value {
    json!({"apiVersion": "addon.open-cluster-management.io/v1alpha1", "kind": "ClusterManagementAddOn",
        "metadata": {"name": name}, "spec": {"installStrategy": strategy}})
}

pub(crate) fn member(name: &str) -> Value {
    json!({"apiVersion": "addon.open-cluster-management.io/v1alpha1", "kind": "ManagedClusterAddOn",
        "metadata": {"name": name}, "spec": {}})
}

pub(crate) async fn delete(rest: &Rest, gvr: &Gvr, namespace: &str, name: &str) {
    rest.delete(gvr, namespace, name, &Removal::default()).await.expect("deleted");
}
