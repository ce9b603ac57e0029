//! A hub with the mailbox of one cluster, the cluster, and the agents between them.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use kube::{Client, client::Body};
use kubestellar_ocm_agent::work_agent::{self, Config};
use runtime::{
    ObjectKey, Source, Watched,
    feed::{Change, follow},
    metrics::Metrics,
    rest::{Gvr, Removal, Rest},
};
use serde::Deserialize;
use serde_json::{Value, json};
use space::{Identity, Space, SpaceConfig};
use store::Engine;
use tokio::{sync::watch, task::JoinHandle};
use tokio_util::sync::CancellationToken;

use testkit::recorded::Requests;

/// Name of the cluster and of its mailbox.
pub(crate) const CLUSTER: &str = "cluster1";
/// Address of the hub, from which the names of AppliedManifestWorks are computed.
pub(crate) const HUB: &str = "https://hub.example:6443";
/// Far longer than anything takes, however loaded the machine is.
const DEADLINE: Duration = Duration::from_secs(60);

/// An object as it is.
#[derive(Clone)]
struct Whole(Value);

impl<'de> Deserialize<'de> for Whole {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Value::deserialize(deserializer).map(Self)
    }
}

impl Watched for Whole {
    fn key(&self) -> ObjectKey {
        let part = |name: &str| self.0["metadata"][name].as_str().unwrap_or_default();
        ObjectKey::new(part("namespace"), part("name"))
    }

    fn version(&self) -> &str {
        self.0["metadata"]["resourceVersion"].as_str().unwrap_or_default()
    }
}

/// Objects by namespace and name.
pub(crate) type Objects = BTreeMap<ObjectKey, Value>;

/// `group/version/plural`, or `version/plural`.
pub(crate) fn gvr(text: &str) -> Gvr {
    match text.split('/').collect::<Vec<_>>().as_slice() {
        [version, plural] => Gvr::new("", version, plural),
        [group, version, plural] => Gvr::new(group, version, plural),
        _ => panic!("group/version/plural"),
    }
}

pub(crate) const WORKS: &str = "work.open-cluster-management.io/v1/manifestworks";
pub(crate) const APPLIED: &str = "work.open-cluster-management.io/v1/appliedmanifestworks";
pub(crate) const MAPS: &str = "v1/configmaps";
pub(crate) const DEPLOYMENTS: &str = "apps/v1/deployments";
pub(crate) const REPORTS: &str = "control.kubestellar.io/v1alpha1/workstatuses";
pub(crate) const DEFINITIONS: &str = "apiextensions.k8s.io/v1/customresourcedefinitions";

/// One API server, seen by an administrator.
#[derive(Clone)]
pub(crate) struct Side(pub(crate) Rest);

impl Side {
    /// Waits until `ask` has a result for the objects of a resource.
    pub(crate) async fn until_all<T: Send>(
        &self,
        resource: &str,
        namespace: &str,
        what: &str,
        mut ask: impl FnMut(&Objects) -> Option<T> + Send,
    ) -> T {
        let mut answer = None;
        let mut answers = |objects: &Objects| {
            answer = ask(objects);
            answer.is_some()
        };
        self.follow_until(resource, namespace, what, &mut answers).await;
        answer.expect("an answer")
    }

    /// Not generic, so that following is compiled once and not for each question.
    async fn follow_until(
        &self,
        resource: &str,
        namespace: &str,
        what: &str,
        answers: &mut (dyn FnMut(&Objects) -> bool + Send),
    ) {
        let source = Source::all(gvr(resource)).namespaced(namespace);
        let stop = CancellationToken::new();
        let (mut objects, mut synced, mut answered) = (Objects::new(), false, false);
        let following = follow(self.0.client(), &source, &stop, |change: Change<Whole>| {
            match change {
                Change::Put(object) => drop(objects.insert(object.key(), object.0)),
                Change::Gone(key) => drop(objects.remove(&key)),
                Change::Synced => synced = true,
            }
            if synced && !answered {
                answered = answers(&objects);
                if answered {
                    stop.cancel();
                }
            }
        });
        let outcome = tokio::time::timeout(DEADLINE, following).await;
        assert!(answered, "never: {what} ({outcome:?}); there are {objects:#?}");
    }

    /// Waits until `ask` has a result for one object.
    pub(crate) async fn until<T: Send>(
        &self,
        resource: &str,
        namespace: &str,
        name: &str,
        what: &str,
        mut ask: impl FnMut(Option<&Value>) -> Option<T> + Send,
    ) -> T {
        let key = ObjectKey::new(namespace, name);
        self.until_all(resource, namespace, what, |all| ask(all.get(&key))).await
    }

    pub(crate) async fn until_there(&self, resource: &str, namespace: &str, name: &str) -> Value {
        self.until(resource, namespace, name, &format!("{name} is there"), |o| o.cloned()).await
    }

    pub(crate) async fn until_gone(&self, resource: &str, namespace: &str, name: &str) {
        self.until(resource, namespace, name, &format!("{name} is gone"), |o| o.is_none().then_some(()))
            .await;
    }

    pub(crate) async fn create(&self, resource: &str, namespace: &str, object: Value) -> Value {
        self.0.create(&gvr(resource), namespace, object.to_string().into_bytes()).await.expect("created")
    }

    pub(crate) async fn get(&self, resource: &str, namespace: &str, name: &str) -> Option<Value> {
        self.0.find(&gvr(resource), namespace, name).await.expect("an answer")
    }

    pub(crate) async fn merge(&self, resource: &str, namespace: &str, name: &str, patch: Value) -> Value {
        self.0.merge(&gvr(resource), namespace, name, &patch).await.expect("patched")
    }

    pub(crate) async fn merge_status(
        &self,
        resource: &str,
        namespace: &str,
        name: &str,
        patch: Value,
    ) -> Value {
        self.0.merge_status(&gvr(resource), namespace, name, &patch).await.expect("patched")
    }

    pub(crate) async fn delete(&self, resource: &str, namespace: &str, name: &str) {
        self.0.delete(&gvr(resource), namespace, name, &Removal::default()).await.expect("deleted");
    }
}

/// A connection to the hub that can be switched off and on.
#[derive(Clone)]
struct Line {
    hub: Arc<parking_lot::Mutex<Option<Client>>>,
    requests: Requests,
}

impl Line {
    fn client(&self) -> Client {
        let hub = self.hub.clone();
        let service = tower::service_fn(move |request: http::Request<Body>| {
            let hub = hub.lock().clone();
            async move {
                match hub {
                    Some(hub) => hub.send(request).await.map_err(tower::BoxError::from),
                    None => Err("the hub does not answer".into()),
                }
            }
        });
        self.requests.of("agent", Client::new(service, "default"))
    }
}

/// A running work agent.
pub(crate) struct Running {
    stop: CancellationToken,
    task: JoinHandle<()>,
    /// Closed once no part of it can send a request any more.
    alive: watch::Receiver<()>,
}

impl Running {
    pub(crate) async fn end(self) {
        self.stop.cancel();
        self.task.await.expect("no panic");
    }

    /// Kills it wherever it is.
    pub(crate) async fn kill(mut self) {
        self.task.abort();
        drop(self.task.await);
        // What only waits ends with it; its spawned tasks end a moment later.
        self.stop.cancel();
        let end = async { while self.alive.changed().await.is_ok() {} };
        tokio::time::timeout(DEADLINE, end).await.expect("its end");
    }
}

pub(crate) struct World {
    pub(crate) hub: Side,
    pub(crate) cluster: Side,
    /// The requests of agents to the cluster and to the hub.
    pub(crate) at_cluster: Requests,
    pub(crate) at_hub: Requests,
    /// Requests of agents to the cluster wait while their address contains this text.
    pub(crate) held: watch::Sender<Option<&'static str>>,
    engine: Engine,
    data: tempfile::TempDir,
    line: Line,
    spaces: parking_lot::Mutex<Vec<Arc<Space>>>,
    stop: CancellationToken,
    controllers: Option<JoinHandle<()>>,
    agents: AtomicUsize,
}

async fn space(engine: &Engine, data: &tempfile::TempDir, name: &str) -> Arc<Space> {
    let config = SpaceConfig {
        name,
        data: data.path(),
        url: format!("https://127.0.0.1:1/spaces/{name}"),
        advertise: "127.0.0.1:1".into(),
    };
    Arc::new(Space::start(engine, config).await.expect("a space"))
}

impl World {
    /// With the controllers that every cluster has.
    pub(crate) async fn start() -> Self {
        Self::with(true).await
    }

    /// Without garbage collection in the cluster.
    pub(crate) async fn bare() -> Self {
        Self::with(false).await
    }

    async fn with(controllers: bool) -> Self {
        let data = tempfile::tempdir().expect("a directory");
        let engine = Engine::in_memory();
        let hub = space(&engine, &data, "its1").await;
        let cluster = space(&engine, &data, CLUSTER).await;
        let admin = |space: &Space| space.client(&Identity::admin());
        let crds = [apis::crds::ocm_hub(), apis::crds::work_status()].concat();
        runtime::install(&admin(&hub), &crds, "test").await.expect("CRDs of the hub");
        runtime::install(&admin(&cluster), &apis::crds::ocm_spoke(), "test")
            .await
            .expect("CRDs of the cluster");
        let stop = CancellationToken::new();
        let controllers = controllers.then(|| {
            let (client, store, stop) = (admin(&cluster), cluster.server().store().clone(), stop.clone());
            let config = space::controllers::Config { ca_bundle_pem: String::new(), csr_signer: None };
            let ready = watch::Sender::new(false);
            tokio::spawn(async move {
                space::controllers::run(client, store, config, ready, stop).await.expect("controllers");
            })
        });
        let line =
            Line { hub: Arc::new(parking_lot::Mutex::new(Some(admin(&hub)))), requests: Requests::new() };
        let world = Self {
            hub: Side(Rest::new(admin(&hub))),
            cluster: Side(Rest::new(admin(&cluster))),
            at_cluster: Requests::new(),
            at_hub: line.requests.clone(),
            held: watch::Sender::new(None),
            engine,
            data,
            line,
            spaces: parking_lot::Mutex::new(vec![hub, cluster]),
            stop,
            controllers,
            agents: AtomicUsize::new(0),
        };
        let mailbox = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": CLUSTER}});
        world.hub.create("v1/namespaces", "", mailbox).await;
        let sea = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "sea"}});
        world.cluster.create("v1/namespaces", "", sea).await;
        world
    }

    pub(crate) fn config() -> Config {
        Config::new(CLUSTER, HUB)
    }

    /// A client of the cluster for an agent; its requests are recorded.
    pub(crate) fn cluster_client(&self, who: &Identity) -> Client {
        self.at_cluster.of("agent", self.spaces.lock()[1].client(who))
    }

    /// A client of the hub.
    pub(crate) fn hub_client(&self, who: &Identity) -> Client {
        self.spaces.lock()[0].client(who)
    }

    /// Starts a work agent with the permissions of an administrator, and waits until it is ready.
    pub(crate) async fn agent(&self, config: Config) -> Running {
        self.agent_as(&Identity::admin(), config).await
    }

    pub(crate) async fn agent_as(&self, who: &Identity, config: Config) -> Running {
        let running = self.agent_unready(who, config.clone());
        let mut ready = config.ready.subscribe();
        tokio::time::timeout(DEADLINE, ready.wait_for(|ready| *ready))
            .await
            .expect("ready")
            .expect("a sender");
        running
    }

    pub(crate) fn agent_unready(&self, who: &Identity, config: Config) -> Running {
        self.agents.fetch_add(1, Ordering::SeqCst);
        let (hub, inner, stop) = (self.line.client(), self.cluster_client(who), self.stop.child_token());
        let (held, alive) = watch::channel(());
        let slow = self.held.subscribe();
        let service = tower::service_fn(move |request: http::Request<Body>| {
            let (_held, inner, mut slow) = (&held, inner.clone(), slow.clone());
            async move {
                let address = request.uri().to_string();
                let _ = slow.wait_for(|held| held.is_none_or(|text| !address.contains(text))).await;
                inner.send(request).await.map_err(tower::BoxError::from)
            }
        });
        let (cluster, token) = (Client::new(service, "default"), stop.clone());
        let task = tokio::spawn(async move {
            work_agent::run(hub, cluster, config, token).await.expect("work agent");
        });
        Running { stop, task, alive }
    }

    /// Starts a status agent, and waits until it is ready.
    pub(crate) async fn status_agent(&self) -> Running {
        self.status_agent_as(status_addon::Config::new(CLUSTER)).await
    }

    pub(crate) async fn status_agent_with(&self, metrics: &Metrics) -> Running {
        let config = status_addon::Config::new(CLUSTER);
        self.status_agent_as(status_addon::Config { metrics: metrics.clone(), ..config }).await
    }

    pub(crate) async fn status_agent_as(&self, config: status_addon::Config) -> Running {
        let mut ready = config.ready.subscribe();
        let running = self.status_agent_unready(config);
        tokio::time::timeout(DEADLINE, ready.wait_for(|ready| *ready))
            .await
            .expect("ready")
            .expect("a sender");
        running
    }

    pub(crate) fn status_agent_unready(&self, config: status_addon::Config) -> Running {
        let (hub, cluster, stop) =
            (self.line.client(), self.cluster_client(&Identity::admin()), self.stop.child_token());
        let token = stop.clone();
        let task = tokio::spawn(async move {
            status_addon::run(cluster, hub, config, token).await.expect("status agent");
        });
        Running { stop, task, alive: watch::channel(()).1 }
    }

    /// Stops the hub's API server, with all its connections.
    pub(crate) async fn hub_goes(&self) {
        *self.line.hub.lock() = None;
        let hub = self.spaces.lock()[0].clone();
        hub.stop().await;
    }

    /// Starts it again with its data. Returns a view of it.
    pub(crate) async fn hub_returns(&self) -> Side {
        let hub = space(&self.engine, &self.data, "its1").await;
        let client = hub.client(&Identity::admin());
        *self.line.hub.lock() = Some(client.clone());
        self.spaces.lock()[0] = hub;
        Side(Rest::new(client))
    }

    pub(crate) async fn end(self) {
        self.stop.cancel();
        if let Some(controllers) = self.controllers {
            controllers.await.expect("no panic");
        }
        let spaces = std::mem::take(&mut *self.spaces.lock());
        for space in spaces {
            space.stop().await;
        }
    }

    /// Creates a work in the mailbox.
    pub(crate) async fn work(&self, name: &str, spec: Value) -> Value {
        self.hub.create(WORKS, CLUSTER, work(name, spec)).await
    }

    /// Replaces the spec of a work.
    pub(crate) async fn edit(&self, name: &str, spec: Value) -> Value {
        // A merge patch cannot remove a field from an object within the spec, so the whole spec is replaced;
        // the agent writes at the same time.
        loop {
            let mut object = self.hub.get(WORKS, CLUSTER, name).await.expect("a work");
            object["spec"] = spec.clone();
            let body = object.to_string().into_bytes();
            match self.hub.0.replace(&gvr(WORKS), CLUSTER, name, body).await {
                Err(error) if runtime::failure::is_clash(&error) => {}
                other => return other.expect("replaced"),
            }
        }
    }

    /// Waits until the agent has reported on the present generation of the work, and the report satisfies the
    /// condition.
    pub(crate) async fn reported(
        &self,
        name: &str,
        what: &str,
        ask: impl Fn(&Value) -> bool + Send + Sync,
    ) -> Value {
        self.hub
            .until(WORKS, CLUSTER, name, what, |work| {
                let work = work?;
                let applied = condition(&work["status"]["conditions"], "Applied")?;
                let current = applied["observedGeneration"] == work["metadata"]["generation"];
                (current && ask(work)).then(|| work.clone())
            })
            .await
    }

    /// Waits until every object of the work is applied and exists.
    pub(crate) async fn settled(&self, name: &str) -> Value {
        self.reported(name, "applied and available", |work| {
            let conditions = &work["status"]["conditions"];
            is(conditions, "Applied", "True") && is(conditions, "Available", "True")
        })
        .await
    }
}

/// Name of the AppliedManifestWork of a work.
pub(crate) fn applied_name(work: &str) -> String {
    format!("{}-{work}", work_agent::hub_hash(HUB))
}

pub(crate) fn work(name: &str, spec: Value) -> Value {
    json!({"apiVersion": "work.open-cluster-management.io/v1", "kind": "ManifestWork",
        "metadata": {"name": name, "namespace": CLUSTER}, "spec": spec})
}

/// A spec with these manifests.
pub(crate) fn holding(manifests: &[Value]) -> Value {
    json!({"workload": {"manifests": manifests}})
}

/// A spec with these manifests and one entry of `manifestConfigs` for ConfigMaps and Deployments by this name.
pub(crate) fn configured(manifests: &[Value], resource: &str, name: &str, options: Value) -> Value {
    let (group, plural) = resource.split_once('/').unwrap_or(("", resource));
    let mut config = options;
    config["resourceIdentifier"] =
        json!({"group": group, "resource": plural, "namespace": "sea", "name": name});
    let mut spec = holding(manifests);
    spec["manifestConfigs"] = json!([config]);
    spec
}

pub(crate) fn map(name: &str, value: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": "sea"},
        "data": {"a": value}})
}

pub(crate) fn deployment(name: &str, replicas: u32) -> Value {
    json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name, "namespace": "sea"},
        "spec": {"replicas": replicas, "selector": {"matchLabels": {"app": name}}, "template": {
            "metadata": {"labels": {"app": name}},
            "spec": {"containers": [{"name": "c", "image": "example.invalid/app:1"}]}}}})
}

/// A CRD of Buoys, in a group of its own for each test.
pub(crate) fn buoys(scope: &str, with_status: bool) -> Value {
    let subresources = if with_status { json!({"status": {}}) } else { json!({}) };
    json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "buoys.sea.example"}, "spec": {"group": "sea.example", "scope": scope,
            "names": {"kind": "Buoy", "plural": "buoys"}, "versions": [{"name": "v1", "served": true, "storage": true,
                "subresources": subresources, "schema": {"openAPIV3Schema": {"type": "object",
                    "x-kubernetes-preserve-unknown-fields": true}}}]}})
}

pub(crate) fn buoy(name: &str, namespace: Option<&str>, depth: u32) -> Value {
    let mut buoy = json!({"apiVersion": "sea.example/v1", "kind": "Buoy", "metadata": {"name": name},
        "spec": {"depth": depth}});
    if let Some(namespace) = namespace {
        buoy["metadata"]["namespace"] = namespace.into();
    }
    buoy
}

/// The condition of a type, from a list.
pub(crate) fn condition<'a>(list: &'a Value, type_: &str) -> Option<&'a Value> {
    list.as_array()?.iter().find(|c| c["type"] == type_)
}

pub(crate) fn is(list: &Value, type_: &str, status: &str) -> bool {
    condition(list, type_).is_some_and(|c| c["status"] == status)
}

/// The conditions of the manifest with this index.
pub(crate) fn manifest(work: &Value, ordinal: usize) -> &Value {
    &work["status"]["resourceStatus"]["manifests"][ordinal]["conditions"]
}

/// Message of the Applied condition of the manifest with this index.
pub(crate) fn failure(work: &Value, ordinal: usize) -> String {
    let applied = condition(manifest(work, ordinal), "Applied").expect("a condition");
    assert_eq!(applied["status"], "False", "{work:#}");
    applied["message"].as_str().expect("a message").to_owned()
}

pub(crate) fn uid(object: &Value) -> &str {
    object["metadata"]["uid"].as_str().expect("a UID")
}

/// Names of the AppliedManifestWorks that own an object.
pub(crate) fn owners(object: &Value) -> Vec<&str> {
    let all = object["metadata"]["ownerReferences"].as_array();
    all.into_iter().flatten().filter_map(|o| o["name"].as_str()).collect()
}

/// Names of the resources that an AppliedManifestWork lists.
pub(crate) fn listed(applied: &Value) -> Vec<&str> {
    let all = applied["status"]["appliedResources"].as_array();
    all.into_iter().flatten().filter_map(|r| r["name"].as_str()).collect()
}
