//! A host space in memory, and embedded spaces as the server would run them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use kube::Client;
use kubestellar_space_manager::{
    self as manager, Access, Component, ComponentState, Role, Spaces, SpacesError,
};
use parking_lot::Mutex;
use runtime::rest::{Gvr, Rest};
use serde_json::{Value, json};
use space::{Identity, Space, SpaceConfig};
use tokio::sync::{broadcast, watch};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// Embedded spaces that are only names.
pub(crate) struct Pretended {
    pub(crate) open: Mutex<BTreeMap<String, u32>>,
    /// UID of the ControlPlane for which a space was opened last.
    pub(crate) owners: Mutex<BTreeMap<String, String>>,
    pub(crate) deleted: Mutex<Vec<String>>,
    /// Spaces that were reported as left without a ControlPlane although they were open.
    pub(crate) abandoned: Mutex<Vec<String>>,
    pub(crate) suspended: Mutex<BTreeSet<String>>,
    /// Components that were started, and whether they are ready.
    pub(crate) components: Mutex<BTreeMap<String, bool>>,
    /// The error of all calls.
    pub(crate) broken: Mutex<Option<String>>,
    pub(crate) space: Mutex<Option<Client>>,
    changes: broadcast::Sender<Arc<str>>,
}

impl Pretended {
    fn checked<T>(&self, then: impl FnOnce() -> T) -> Result<T, SpacesError> {
        match self.broken.lock().clone() {
            Some(why) => Err(SpacesError(why)),
            None => Ok(then()),
        }
    }

    pub(crate) fn ready(&self, component: &str, ready: bool) {
        self.components.lock().insert(component.to_owned(), ready);
        let space = component.split('/').next().unwrap_or_default();
        let _ = self.changes.send(space.into());
    }
}

impl Spaces for Pretended {
    fn open<'a>(
        &'a self,
        space: &'a str,
        owner: &'a str,
        _: Role,
    ) -> BoxFuture<'a, Result<Access, SpacesError>> {
        let outcome = self.checked(|| {
            self.suspended.lock().remove(space);
            self.owners.lock().insert(space.to_owned(), owner.to_owned());
            let mut open = self.open.lock();
            let next = 1 + open.values().max().copied().unwrap_or_default();
            let generation = *open.entry(space.to_owned()).or_insert(next);
            Access {
                server_name: None,
                url: format!("https://127.0.0.1:9443/spaces/{space}"),
                ca_pem: "CA".into(),
                certificate_pem: format!("CERT {generation}"),
                key_pem: "KEY".into(),
            }
        });
        async move { outcome }.boxed()
    }

    fn suspend<'a>(&'a self, space: &'a str) -> BoxFuture<'a, Result<(), SpacesError>> {
        let outcome = self.checked(|| {
            self.suspended.lock().insert(space.to_owned());
        });
        async move { outcome }.boxed()
    }

    fn delete<'a>(&'a self, space: &'a str, owner: &'a str) -> BoxFuture<'a, Result<(), SpacesError>> {
        let outcome = self.checked(|| {
            if let Some(known) = self.owners.lock().remove(space) {
                assert_eq!(known, owner, "the owner of {space}");
            }
            self.open.lock().remove(space);
            self.deleted.lock().push(space.to_owned());
        });
        async move { outcome }.boxed()
    }

    fn abandoned<'a>(&'a self, space: &'a str) -> BoxFuture<'a, Result<(), SpacesError>> {
        let outcome = self.checked(|| {
            if self.open.lock().remove(space).is_some() {
                self.abandoned.lock().push(space.to_owned());
            }
        });
        async move { outcome }.boxed()
    }

    fn run<'a>(
        &'a self,
        space: &'a str,
        component: &'a Component,
    ) -> BoxFuture<'a, Result<ComponentState, SpacesError>> {
        let its = match component {
            Component::ControllerManager { its } | Component::TransportController { its } => {
                format!("/{its}")
            }
            Component::OcmHub | Component::StatusAddon => String::new(),
        };
        let outcome = self.checked(|| {
            let ready = *self.components.lock().entry(format!("{space}/{component}{its}")).or_insert(true);
            ComponentState { ready, last_error: None }
        });
        async move { outcome }.boxed()
    }

    fn client<'a>(&'a self, _: &'a str) -> BoxFuture<'a, Result<Client, SpacesError>> {
        let client = self.space.lock().clone().ok_or_else(|| SpacesError("no space".into()));
        async move { client }.boxed()
    }

    fn changes(&self) -> broadcast::Receiver<Arc<str>> {
        self.changes.subscribe()
    }
}

pub(crate) struct World {
    pub(crate) host: Arc<Space>,
    /// A further API server: a space of a ControlPlane.
    pub(crate) other: Arc<Space>,
    pub(crate) spaces: Arc<Pretended>,
    pub(crate) rest: Rest,
    stop: CancellationToken,
    tasks: JoinSet<()>,
    _data: tempfile::TempDir,
}

impl World {
    /// A manager with embedded spaces.
    pub(crate) async fn start() -> Self {
        let mut world = Self::bare().await;
        prepare(&world).await;
        world.manage(true).await;
        world
    }

    /// A manager in a real hosting cluster, without embedded spaces.
    pub(crate) async fn in_cluster() -> Self {
        let mut world = Self::bare().await;
        world.manage(false).await;
        world
    }

    async fn bare() -> Self {
        let data = tempfile::tempdir().unwrap();
        let engine = store::Engine::in_memory();
        let mut spaces = Vec::new();
        for name in ["kubestellar", "other"] {
            let config = SpaceConfig {
                name,
                data: data.path(),
                url: format!("https://127.0.0.1:1/spaces/{name}"),
                advertise: "127.0.0.1:1".into(),
            };
            spaces.push(Arc::new(Space::start(&engine, config).await.unwrap()));
        }
        let (other, host) = (spaces.pop().unwrap(), spaces.pop().unwrap());
        let stop = CancellationToken::new();
        let mut tasks = JoinSet::new();
        for space in [&host, &other] {
            let config = space::controllers::Config { ca_bundle_pem: String::new(), csr_signer: None };
            let (client, store) = (space.client(&Identity::admin()), space.server().store().clone());
            let (ready, token) = (watch::Sender::new(false), stop.clone());
            tasks.spawn(async move {
                space::controllers::run(client, store, config, ready, token).await.unwrap();
            });
        }
        let pretended = Pretended {
            open: Mutex::default(),
            owners: Mutex::default(),
            deleted: Mutex::default(),
            abandoned: Mutex::default(),
            suspended: Mutex::default(),
            components: Mutex::default(),
            broken: Mutex::default(),
            space: Mutex::new(Some(other.client(&Identity::admin()))),
            changes: broadcast::channel(64).0,
        };
        let rest = Rest::new(host.client(&Identity::admin()));
        Self { host, other, spaces: Arc::new(pretended), rest, stop, tasks, _data: data }
    }

    async fn manage(&mut self, embedded: bool) {
        let ready = watch::Sender::new(false);
        let config = manager::Config {
            spaces: embedded.then(|| self.spaces.clone() as Arc<dyn Spaces>),
            host: manager::HostAddress {
                outside: "https://outside".into(),
                inside: "https://inside".into(),
                ca_pem: embedded.then(|| "HOST CA".into()),
            },
            reach: runtime::connect::Reach::Servers,
            metrics: runtime::metrics::Metrics::default(),
            ready: ready.clone(),
        };
        let (client, stop) = (self.host.client(&Identity::admin()), self.stop.clone());
        self.tasks.spawn(async move { manager::run(client, config, stop).await.unwrap() });
        let mut ready = ready.subscribe();
        tokio::time::timeout(Duration::from_secs(60), ready.wait_for(|yes| *yes)).await.unwrap().unwrap();
    }

    pub(crate) async fn end(mut self) {
        self.stop.cancel();
        while let Some(ended) = self.tasks.join_next().await {
            ended.unwrap();
        }
        self.host.stop().await;
        self.other.stop().await;
    }

    pub(crate) async fn create(&self, object: Value) {
        let gvr = gvr(object["kind"].as_str().unwrap());
        let namespace = object["metadata"]["namespace"].as_str().unwrap_or_default().to_owned();
        self.rest.create::<Value>(&gvr, &namespace, object.to_string().into_bytes()).await.unwrap();
    }

    pub(crate) async fn plane(&self, name: &str, spec: Value) {
        self.create(json!({"apiVersion": "tenancy.kflex.kubestellar.org/v1alpha1", "kind": "ControlPlane",
            "metadata": {"name": name}, "spec": spec}))
            .await;
    }

    pub(crate) async fn hook(&self, name: &str, more: Value, templates: Value) {
        let mut hook = json!({"apiVersion": "tenancy.kflex.kubestellar.org/v1alpha1", "kind": "PostCreateHook",
            "metadata": {"name": name}, "spec": {"templates": templates}});
        let fields = hook["metadata"].as_object_mut().unwrap();
        fields.extend(more.as_object().cloned().unwrap_or_default());
        self.create(hook).await;
    }

    pub(crate) async fn find(&self, kind: &str, namespace: &str, name: &str) -> Option<Value> {
        self.rest.find(&gvr(kind), namespace, name).await.unwrap()
    }

    /// Waits until the object is as it should be, and returns it.
    pub(crate) async fn until(
        &self,
        kind: &str,
        namespace: &str,
        name: &str,
        check: &(dyn Fn(Option<&Value>) -> bool + Sync),
    ) -> Option<Value> {
        let deadline = tokio::time::Instant::now() + Duration::from_secs(60);
        loop {
            let found = self.find(kind, namespace, name).await;
            if check(found.as_ref()) {
                return found;
            }
            assert!(tokio::time::Instant::now() < deadline, "{kind} {namespace}/{name}: {found:#?}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Waits for a condition of a ControlPlane: its status and reason. Returns the ControlPlane.
    pub(crate) async fn until_condition(&self, name: &str, type_: &str, status: &str, reason: &str) -> Value {
        let check = |found: Option<&Value>| {
            found
                .and_then(|found| condition(found, type_))
                .is_some_and(|c| c["status"] == status && c["reason"] == reason)
        };
        self.until("ControlPlane", "", name, &check).await.unwrap()
    }

    /// Waits until the message of a condition contains a text.
    pub(crate) async fn until_message(&self, name: &str, type_: &str, part: &str) -> Value {
        let check = |found: Option<&Value>| {
            found
                .and_then(|found| condition(found, type_))
                .is_some_and(|c| c["message"].as_str().is_some_and(|message| message.contains(part)))
        };
        self.until("ControlPlane", "", name, &check).await.unwrap()
    }

    pub(crate) async fn until_gone(&self, kind: &str, namespace: &str, name: &str) {
        self.until(kind, namespace, name, &|found| found.is_none()).await;
    }

    pub(crate) async fn patch(&self, kind: &str, namespace: &str, name: &str, patch: Value) {
        self.rest.merge::<Value>(&gvr(kind), namespace, name, &patch).await.unwrap();
    }

    pub(crate) async fn delete(&self, kind: &str, namespace: &str, name: &str) {
        self.rest.delete(&gvr(kind), namespace, name, &runtime::rest::Removal::default()).await.unwrap();
    }

    /// Waits for an Event about a ControlPlane with this reason, and returns its message.
    pub(crate) async fn until_event(&self, name: &str, reason: &str) -> String {
        let deadline = tokio::time::Instant::now() + Duration::from_secs(60);
        loop {
            let list: Value = self.rest.list(&Gvr::new("", "v1", "events"), "default", "").await.unwrap();
            let found = list["items"]
                .as_array()
                .unwrap()
                .iter()
                .find(|event| event["involvedObject"]["name"] == name && event["reason"] == reason);
            if let Some(event) = found {
                assert_eq!(event["source"]["component"], "kubeflex-controlplane-controller");
                return event["message"].as_str().unwrap_or_default().to_owned();
            }
            assert!(tokio::time::Instant::now() < deadline, "no Event {reason}: {list:#}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

async fn prepare(world: &World) {
    let config = manager::prepare::SystemConfig { domain: "localtest.me".into(), external_port: 9443 };
    manager::prepare::prepare_host(world.rest.client(), &config).await.unwrap();
}

pub(crate) fn gvr(kind: &str) -> Gvr {
    let tenancy = "tenancy.kflex.kubestellar.org";
    let rbac = "rbac.authorization.k8s.io";
    match kind {
        "ControlPlane" => Gvr::new(tenancy, "v1alpha1", "controlplanes"),
        "PostCreateHook" => Gvr::new(tenancy, "v1alpha1", "postcreatehooks"),
        "ClusterRole" => Gvr::new(rbac, "v1", "clusterroles"),
        "ClusterRoleBinding" => Gvr::new(rbac, "v1", "clusterrolebindings"),
        "Job" => Gvr::new("batch", "v1", "jobs"),
        "PriorityClass" => Gvr::new("scheduling.k8s.io", "v1", "priorityclasses"),
        core => Gvr::new("", "v1", &format!("{}s", core.to_lowercase())),
    }
}

pub(crate) fn condition<'a>(plane: &'a Value, type_: &str) -> Option<&'a Value> {
    plane["status"]["conditions"].as_array()?.iter().find(|one| one["type"] == type_)
}
