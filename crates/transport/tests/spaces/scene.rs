//! A WDS and an ITS in memory, the transport controller between them, and fault injection in front of both.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use kubestellar_transport::Config;
use serde_json::{Value, json};
use store::Engine;
pub(crate) use testkit::side::Side;
use testkit::wait::shows;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::faults::Faults;

pub(crate) const MAPS: &str = "/api/v1/namespaces/shop/configmaps";
pub(crate) const PROPERTIES: &str = "/api/v1/namespaces/customization-properties/configmaps";
pub(crate) const BINDINGS: &str = "/apis/control.kubestellar.io/v1alpha1/bindings";
pub(crate) const TRANSFORMS: &str = "/apis/control.kubestellar.io/v1alpha1/customtransforms";
pub(crate) const CLUSTERS: &str = "/apis/cluster.open-cluster-management.io/v1/managedclusters";
pub(crate) const ORIGIN: &str = "labelSelector=transport.kubestellar.io%2ForiginOwnerReferenceBindingKey";

/// Sets up what a hub serves, with two clusters.
pub(crate) async fn set_up_hub(its: &Side) {
    runtime::install(&its.client, &apis::crds::ocm_hub(), "test").await.unwrap();
    for name in ["atlas", "boreas"] {
        its.post(
            CLUSTERS,
            json!({
                "apiVersion": "cluster.open-cluster-management.io/v1", "kind": "ManagedCluster",
                "metadata": {"name": name}, "spec": {"hubAcceptsClient": true},
            }),
        )
        .await;
        its.post("/api/v1/namespaces", json!({"metadata": {"name": name}})).await;
    }
}

pub(crate) struct Running {
    pub(crate) wds: Side,
    pub(crate) its: Side,
    /// The faults between the controller and the WDS, and between the controller and the ITS.
    pub(crate) wds_faults: Arc<Faults>,
    pub(crate) its_faults: Arc<Faults>,
    pub(crate) config: Config,
    pub(crate) stop: CancellationToken,
    task: JoinHandle<()>,
    _data: tempfile::TempDir,
}

/// The content of a mailbox: envelopes by name, each with the texts of its ConfigMaps by `name.key`.
pub(crate) type Mailbox = BTreeMap<String, BTreeMap<String, String>>;

impl Running {
    pub(crate) async fn start() -> Self {
        Self::with(|config| config).await
    }

    /// Refreshes of annotations are off, so that only real changes cause writes.
    pub(crate) async fn with(adapt: impl FnOnce(Config) -> Config) -> Self {
        Self::with_faults(adapt, |_, _| ()).await
    }

    /// The same, with faults of the WDS and the ITS from the start.
    pub(crate) async fn with_faults(
        adapt: impl FnOnce(Config) -> Config,
        fail: impl FnOnce(&Faults, &Faults),
    ) -> Self {
        let all = Self::begin(adapt, fail, true).await;
        all.ready().await;
        all
    }

    /// Starts the controller without waiting for it. A hub that is not `set_up` serves neither clusters nor
    /// works.
    pub(crate) async fn begin(
        adapt: impl FnOnce(Config) -> Config,
        fail: impl FnOnce(&Faults, &Faults),
        set_up: bool,
    ) -> Self {
        let data = tempfile::tempdir().unwrap();
        let engine = Engine::in_memory();
        let wds = Side::start(&engine, data.path(), "wds1").await;
        let its = Side::start(&engine, data.path(), "its1").await;
        runtime::install(&wds.client, &apis::crds::control(), "test").await.unwrap();
        if set_up {
            set_up_hub(&its).await;
        }
        wds.post("/api/v1/namespaces", json!({"metadata": {"name": "shop"}})).await;
        let config = adapt(Config { refresh_after: Duration::from_secs(3600), ..Config::new("wds1") });
        let (wds_faults, its_faults) = (Arc::<Faults>::default(), Arc::<Faults>::default());
        fail(&wds_faults, &its_faults);
        let stop = CancellationToken::new();
        let task = tokio::spawn(std::future::ready(()));
        let mut all = Self { wds, its, wds_faults, its_faults, config, stop, task, _data: data };
        all.run();
        all
    }

    fn run(&mut self) {
        self.stop = CancellationToken::new();
        let wds = self.wds_faults.client(self.wds.client.clone());
        let its = self.its_faults.client(self.its.client.clone());
        let all = kubestellar_transport::run(wds, its, self.config.clone(), self.stop.clone());
        self.task = tokio::spawn(async move { all.await.unwrap() });
    }

    /// Waits until the controller is ready.
    pub(crate) async fn ready(&self) {
        let mut ready = self.config.ready.subscribe();
        shows("a ready controller", &mut ready, |ready| *ready).await;
        if self.its_faults.is_sound() {
            self.its.until_any("/api/v1/namespaces/customization-properties", |it| it.is_some()).await;
        }
    }

    pub(crate) async fn restart(&mut self, adapt: impl FnOnce(Config) -> Config) {
        self.stop.cancel();
        (&mut self.task).await.unwrap();
        self.config = adapt(Config { ready: tokio::sync::watch::Sender::new(false), ..self.config.clone() });
        self.run();
        self.ready().await;
    }

    pub(crate) async fn end(self) {
        self.stop.cancel();
        self.task.await.unwrap();
        self.wds.space.stop().await;
        self.its.space.stop().await;
    }

    pub(crate) async fn map(&self, name: &str, annotations: Value, data: Value) {
        let metadata = json!({"name": name, "annotations": annotations});
        self.wds.post(MAPS, json!({"metadata": metadata, "data": data})).await;
    }

    /// Creates the Binding `b`, or updates the versions of the ConfigMaps that it lists.
    pub(crate) async fn bind(&self, maps: &[&str], destinations: &[&str]) -> Value {
        let mut entries = Vec::new();
        for name in maps {
            let version = match self.wds.get(&format!("{MAPS}/{name}")).await {
                Some(map) => map["metadata"]["resourceVersion"].clone(),
                None => json!("1"),
            };
            entries.push(json!({"group": "", "version": "v1", "resource": "configmaps", "namespace": "shop",
                "name": name, "resourceVersion": version}));
        }
        let destinations: Vec<Value> = destinations.iter().map(|d| json!({"clusterId": d})).collect();
        let spec = json!({"workload": {"namespaceScope": entries}, "destinations": destinations});
        let path = format!("{BINDINGS}/b");
        if self.wds.get(&path).await.is_some() {
            return self.wds.patch(&path, json!({"spec": spec})).await;
        }
        let body = json!({"apiVersion": "control.kubestellar.io/v1alpha1", "kind": "Binding",
            "metadata": {"name": "b"}, "spec": spec});
        self.wds.post(BINDINGS, body).await
    }

    /// Waits until the transport controller has processed the present generation of the Binding, and returns
    /// its errors.
    pub(crate) async fn observed(&self) -> Vec<String> {
        self.errors(|_| true).await
    }

    pub(crate) async fn errors(&self, done: impl Fn(&[String]) -> bool) -> Vec<String> {
        let list = |binding: &Value| -> Vec<String> {
            serde_json::from_value(binding["status"]["errors"].clone()).unwrap_or_default()
        };
        let observed = |binding: &Value| {
            binding["status"]["observedGeneration"] == binding["metadata"]["generation"]
                && done(&list(binding))
        };
        let binding =
            self.wds.until_any(&format!("{BINDINGS}/b"), |it| it.is_some_and(observed)).await.unwrap();
        list(&binding)
    }

    pub(crate) async fn mailbox(&self, cluster: &str, done: impl Fn(&Mailbox) -> bool) -> Mailbox {
        let found =
            self.its.until_any(&works(cluster), |it| it.is_some_and(|list| done(&contents(list)))).await;
        contents(&found.unwrap())
    }

    pub(crate) async fn versions(&self, cluster: &str) -> BTreeMap<String, String> {
        let list = self.its.get(&works(cluster)).await.unwrap();
        let items = list["items"].as_array().unwrap().iter();
        items
            .map(|work| {
                let metadata = &work["metadata"];
                (text(&metadata["name"]), text(&metadata["resourceVersion"]))
            })
            .collect()
    }
}

pub(crate) fn works(cluster: &str) -> String {
    format!("/apis/work.open-cluster-management.io/v1/namespaces/{cluster}/manifestworks?{ORIGIN}")
}

pub(crate) fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

pub(crate) fn contents(list: &Value) -> Mailbox {
    let works = list["items"].as_array().into_iter().flatten();
    works
        .map(|work| {
            let mut all = BTreeMap::new();
            for object in work["spec"]["workload"]["manifests"].as_array().into_iter().flatten() {
                let name = text(&object["metadata"]["name"]);
                all.insert(name.clone(), String::new());
                for (key, value) in object["data"].as_object().into_iter().flatten() {
                    all.insert(format!("{name}.{key}"), text(value));
                }
            }
            (text(&work["metadata"]["name"]), all)
        })
        .collect()
}

pub(crate) fn objects(mailbox: &Mailbox) -> Vec<&str> {
    mailbox.values().flat_map(|all| all.keys()).filter(|key| !key.contains('.')).map(String::as_str).collect()
}

pub(crate) fn value<'a>(mailbox: &'a Mailbox, key: &str) -> Option<&'a str> {
    mailbox.values().find_map(|all| all.get(key)).map(String::as_str)
}

pub(crate) const TEMPLATED: &str = "control.kubestellar.io/expand-templates";
