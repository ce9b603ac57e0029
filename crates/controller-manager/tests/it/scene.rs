//! A WDS and an ITS in memory, with controllers that can be stopped, killed and given failing servers.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex},
    time::Duration,
};

use http::{HeaderValue, Request, Response, StatusCode, header};
use kube::{Client, client::Body};
use kubestellar_controller_manager::Config;
use serde_json::{Value, json};
use store::Engine;
use testkit::{
    side::Side,
    wait::{shows, within},
};
use tokio::{runtime::Runtime, sync::watch};
use tokio_util::sync::CancellationToken;

pub(crate) const POLICIES: &str = "/apis/control.kubestellar.io/v1alpha1/bindingpolicies";
pub(crate) const BINDINGS: &str = "/apis/control.kubestellar.io/v1alpha1/bindings";
pub(crate) const CRDS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
pub(crate) const CLUSTERS: &str = "/apis/cluster.open-cluster-management.io/v1/managedclusters";
pub(crate) const NAMESPACES: &str = "/api/v1/namespaces";
/// The faults of a server, and the requests it received.
#[derive(Default)]
pub(crate) struct Faults {
    /// Requests that get an error instead of the server's response.
    refuse: Mutex<Vec<(String, u16)>>,
    /// The server does not support aggregated discovery.
    pub(crate) old_discovery: std::sync::atomic::AtomicBool,
    /// `METHOD path?query` and the `Accept` header of all requests.
    pub(crate) asked: watch::Sender<Vec<(String, String)>>,
}

impl Faults {
    /// Answers requests whose path with query contains `part` with `code`, until [`heal`](Self::heal).
    pub(crate) fn refuse(&self, part: &str, code: u16) {
        self.refuse.lock().unwrap().push((part.to_owned(), code));
    }

    pub(crate) fn heal(&self) {
        self.refuse.lock().unwrap().clear();
    }

    /// Waits until at least `times` requests have contained all `parts` in their `METHOD path?query`.
    pub(crate) async fn until_asked(&self, times: usize, parts: &[&str]) {
        let what = format!("{times} requests with {parts:?}");
        shows(&what, &mut self.asked.subscribe(), |all| contain(all, parts) >= times).await;
    }

    /// A client that sends requests to `client` through these faults.
    fn client(self: &Arc<Self>, client: Client) -> Client {
        let faults = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let (faults, client) = (faults.clone(), client.clone());
            async move { faults.pass(client, request).await }
        });
        Client::new(service, "default")
    }

    async fn pass(&self, client: Client, mut request: Request<Body>) -> Result<Response<Body>, kube::Error> {
        let uri = request.uri().path_and_query().map(ToString::to_string).unwrap_or_default();
        let accept =
            request.headers().get(header::ACCEPT).and_then(|it| it.to_str().ok()).unwrap_or_default();
        let asked = (format!("{} {uri}", request.method()), accept.to_owned());
        if self.old_discovery.load(std::sync::atomic::Ordering::SeqCst) && accept.contains("apidiscovery") {
            request.headers_mut().insert(header::ACCEPT, HeaderValue::from_static("application/json"));
        }
        self.asked.send_modify(|all| all.push(asked));
        let refused =
            self.refuse.lock().unwrap().iter().find(|(part, _)| uri.contains(part)).map(|(_, code)| *code);
        let Some(code) = refused else { return client.send(request).await };
        let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code,
            "reason": "Refused", "message": "refused by the test"});
        let response = Response::builder().status(StatusCode::from_u16(code).unwrap());
        let response = response.header(header::CONTENT_TYPE, "application/json");
        Ok(response.body(Body::from(status.to_string().into_bytes())).unwrap())
    }
}

fn contain(asked: &[(String, String)], parts: &[&str]) -> usize {
    asked.iter().filter(|(it, _)| parts.iter().all(|part| it.contains(part))).count()
}

/// Controllers in a runtime of their own, so that they can be killed at any await.
struct Controllers {
    runtime: Runtime,
    stop: CancellationToken,
    task: tokio::task::JoinHandle<()>,
}

pub(crate) struct Scene {
    pub(crate) wds: Side,
    pub(crate) its: Side,
    pub(crate) faults: Arc<Faults>,
    controllers: Option<Controllers>,
    _data: tempfile::TempDir,
}

impl Scene {
    /// Two clusters and a namespace `n`, with running controllers.
    pub(crate) async fn start() -> Self {
        let mut scene = Self::without_controllers().await;
        scene.run().await;
        scene.wds.post(NAMESPACES, json!({"metadata": {"name": "n"}})).await;
        scene
    }

    pub(crate) async fn without_controllers() -> Self {
        let data = tempfile::tempdir().unwrap();
        let engine = Engine::in_memory();
        let wds = Side::start(&engine, data.path(), "wds1").await;
        let its = Side::start(&engine, data.path(), "its1").await;
        let crds = [apis::crds::ocm_hub(), apis::crds::work_status()].concat();
        runtime::install(&its.client, &crds, "test").await.unwrap();
        let scene = Self { wds, its, faults: Arc::default(), controllers: None, _data: data };
        for name in ["cluster1", "cluster2"] {
            scene.cluster(name, json!({"name": name, "fleet": "yes"})).await;
        }
        scene
    }

    pub(crate) async fn cluster(&self, name: &str, labels: Value) {
        let cluster = json!({
            "apiVersion": "cluster.open-cluster-management.io/v1", "kind": "ManagedCluster",
            "metadata": {"name": name, "labels": labels}, "spec": {"hubAcceptsClient": false},
        });
        self.its.post(CLUSTERS, cluster).await;
    }

    /// Starts the controllers and waits until they are ready.
    pub(crate) async fn run(&mut self) {
        let mut ready = self.begin();
        shows("ready controllers", &mut ready, |ready| *ready).await;
    }

    /// Starts the controllers.
    pub(crate) fn begin(&mut self) -> watch::Receiver<bool> {
        self.begin_with(Config::new("wds1", "its1"))
    }

    /// Starts the controllers with a short patience for resources that cannot be listed, and waits until they
    /// are ready.
    #[allow(dead_code, reason = "for the tests of the binding controller")]
    pub(crate) async fn run_impatient(&mut self) {
        let patience = Duration::from_millis(100);
        let mut ready = self.begin_with(Config { patience, ..Config::new("wds1", "its1") });
        shows("ready controllers", &mut ready, |ready| *ready).await;
    }

    /// Starts the binding controller alone and waits until it is ready.
    #[allow(dead_code, reason = "for the tests of the status controller")]
    pub(crate) async fn run_without_status(&mut self) {
        let mut ready = self.begin_with(Config { status: false, ..Config::new("wds1", "its1") });
        shows("ready controllers", &mut ready, |ready| *ready).await;
    }

    /// Starts the controllers with StatusCollectors that may read Secrets, and waits until they are ready.
    #[allow(dead_code, reason = "for the tests of the status controller")]
    pub(crate) async fn run_reading_secrets(&mut self) {
        let config = Config { collectors_read_secrets: true, ..Config::new("wds1", "its1") };
        let mut ready = self.begin_with(config);
        shows("ready controllers", &mut ready, |ready| *ready).await;
    }

    /// Starts the controllers with these metrics and waits until they are ready.
    #[allow(dead_code, reason = "for the tests of the status controller")]
    pub(crate) async fn run_counted(&mut self, metrics: runtime::metrics::Metrics) {
        let mut ready = self.begin_with(Config { metrics, ..Config::new("wds1", "its1") });
        shows("ready controllers", &mut ready, |ready| *ready).await;
    }

    fn begin_with(&mut self, config: Config) -> watch::Receiver<bool> {
        let (ready, stop) = (config.ready.subscribe(), CancellationToken::new());
        let (wds, its) = (self.faults.client(self.wds.client.clone()), self.its.client.clone());
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let token = stop.clone();
        let task = runtime.spawn(async move {
            kubestellar_controller_manager::run(wds, its, config, token).await.unwrap();
        });
        self.controllers = Some(Controllers { runtime, stop, task });
        ready
    }

    /// Stops the controllers in an orderly way.
    pub(crate) async fn stop(&mut self) {
        let Some(controllers) = self.controllers.take() else { return };
        controllers.stop.cancel();
        within("the end of the controllers", controllers.task).await.unwrap();
        controllers.runtime.shutdown_background();
    }

    /// Ends the process: drops everything in the middle of what it does.
    pub(crate) fn kill(&mut self) {
        if let Some(controllers) = self.controllers.take() {
            controllers.runtime.shutdown_background();
        }
    }

    pub(crate) async fn end(mut self) {
        self.stop().await;
        self.wds.space.stop().await;
        self.its.space.stop().await;
    }

    pub(crate) async fn policy(&self, name: &str, spec: Value) -> Value {
        self.wds.post(POLICIES, policy(name, spec)).await
    }

    pub(crate) async fn config_map(&self, name: &str, labels: Value) -> Value {
        self.wds.post("/api/v1/namespaces/n/configmaps", config_map("n", name, labels)).await
    }

    /// Waits until the Binding lists exactly these objects, by name, and returns it.
    pub(crate) async fn bound(&self, policy: &str, objects: &[&str]) -> Value {
        self.wds.until(&format!("{BINDINGS}/{policy}"), |it| names(it) == set(objects)).await
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        self.kill();
    }
}

pub(crate) fn policy(name: &str, spec: Value) -> Value {
    json!({
        "apiVersion": "control.kubestellar.io/v1alpha1", "kind": "BindingPolicy",
        "metadata": {"name": name}, "spec": spec,
    })
}

pub(crate) fn config_map(namespace: &str, name: &str, labels: Value) -> Value {
    json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": namespace, "labels": labels},
    })
}

pub(crate) fn set(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

/// Returns the entries of a Binding: `resource/name`, with the namespace before the name unless it is `n`.
pub(crate) fn names(binding: &Value) -> BTreeSet<String> {
    let scopes = ["clusterScope", "namespaceScope"].into_iter();
    let entries =
        scopes.flat_map(|scope| binding["spec"]["workload"][scope].as_array().into_iter().flatten());
    entries
        .map(|entry| {
            let (resource, name) = (entry["resource"].as_str().unwrap(), entry["name"].as_str().unwrap());
            match entry["namespace"].as_str() {
                None | Some("n") => format!("{resource}/{name}"),
                Some(namespace) => format!("{resource}/{namespace}/{name}"),
            }
        })
        .collect()
}

pub(crate) fn destinations(binding: &Value) -> BTreeSet<String> {
    let list = binding["spec"]["destinations"].as_array().into_iter().flatten();
    list.map(|it| it["clusterId"].as_str().unwrap().to_owned()).collect()
}

pub(crate) fn condition<'a>(object: &'a Value, type_: &str) -> &'a str {
    let conditions = object["status"]["conditions"].as_array().into_iter().flatten();
    conditions.filter(|it| it["type"] == type_).find_map(|it| it["status"].as_str()).unwrap_or("")
}
