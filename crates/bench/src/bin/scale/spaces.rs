//! The spaces, and what can be seen in them.

use std::{
    collections::{BTreeMap, HashMap},
    path::Path,
    time::Duration,
};

use anyhow::{Context, Result, anyhow};
use futures::{StreamExt, TryStreamExt, stream};
use kube::{
    Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
};
use runtime::{
    ObjectKey, Source, Watched,
    failure::is_clash,
    feed::{Change, follow},
    rest::{Gvr, Rest},
};
use serde::Deserialize;
use serde_json::Value;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// Writers at a time.
const WRITERS: usize = 16;
pub(crate) const NAMESPACE: &str = "scale";

pub(crate) struct Spaces {
    kubeconfig: Kubeconfig,
    pub(crate) wds: Rest,
    pub(crate) its: Rest,
    pub(crate) timeout: Duration,
}

impl Spaces {
    pub(crate) async fn connect(file: &Path, timeout: u64) -> Result<Self> {
        let kubeconfig = Kubeconfig::read_from(file).context("reading the kubeconfig")?;
        let wds = Rest::new(client(&kubeconfig, "wds1").await?);
        let its = Rest::new(client(&kubeconfig, "its1").await?);
        Ok(Self { kubeconfig, wds, its, timeout: Duration::from_secs(timeout) })
    }

    pub(crate) async fn cluster(&self, number: usize) -> Result<Rest> {
        Ok(Rest::new(client(&self.kubeconfig, &format!("cluster{number}")).await?))
    }

    /// Waits until the kinds of KubeStellar are served and the clusters have joined.
    pub(crate) async fn ready(&self, clusters: usize) -> Result<()> {
        let condition = |object: &Seen, kind: &str| {
            let conditions = object.rest.get("status").and_then(|status| status["conditions"].as_array());
            let mut all = conditions.into_iter().flatten();
            all.any(|it| it["type"] == kind && it["status"] == "True").to_string()
        };
        let definitions = Source::all(Gvr::new("apiextensions.k8s.io", "v1", "customresourcedefinitions"));
        let kinds = View::of(&self.wds, definitions, move |it| condition(it, "Established"));
        let fleet = View::of(&self.its, Source::all(managed_clusters()), move |it| {
            condition(it, "ManagedClusterConditionAvailable")
        });
        let yes = |all: &HashMap<String, String>, name: &str| all.get(name).is_some_and(|it| it == "true");
        let plurals = ["bindings", "bindingpolicies", "statuscollectors", "combinedstatuses"];
        let ready = async {
            let served = |plural: &str| format!("{plural}.{}", apis::constants::CONTROL_GROUP);
            kinds.until(|all| plurals.iter().all(|plural| yes(all, &served(plural)))).await?;
            fleet.until(|all| (1..=clusters).all(|number| yes(all, &format!("cluster{number}")))).await
        };
        self.within("the kinds and the clusters", ready).await
    }

    pub(crate) async fn within<T>(&self, what: &str, work: impl Future<Output = Result<T>>) -> Result<T> {
        tokio::time::timeout(self.timeout, work).await.map_err(|_| anyhow!("{what}: not in time"))?
    }
}

async fn client(kubeconfig: &Kubeconfig, context: &str) -> Result<Client> {
    let options = KubeConfigOptions { context: Some(context.to_owned()), ..KubeConfigOptions::default() };
    let config = Config::from_custom_kubeconfig(kubeconfig.clone(), &options).await?;
    Client::try_from(config).with_context(|| format!("a client for {context}"))
}

/// Creates objects, many at a time; those that are there already stay as they are.
pub(crate) async fn create_all(
    rest: &Rest,
    gvr: &Gvr,
    objects: impl IntoIterator<Item = Value>,
) -> Result<()> {
    let creations: Vec<_> = objects.into_iter().map(|object| create(rest, gvr, object)).collect();
    stream::iter(creations).buffer_unordered(WRITERS).try_collect().await
}

pub(crate) async fn create(rest: &Rest, gvr: &Gvr, object: Value) -> Result<()> {
    let namespace = object["metadata"]["namespace"].as_str().unwrap_or_default().to_owned();
    match rest.create::<Value>(gvr, &namespace, object.to_string().into_bytes()).await {
        Err(error) if !is_clash(&error) => Err(error).context(format!("creating {}", object["metadata"])),
        _ => Ok(()),
    }
}

/// An object as it arrives.
#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct Seen {
    metadata: Metadata,
    #[serde(flatten)]
    pub(crate) rest: BTreeMap<String, Value>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Metadata {
    name: String,
    namespace: String,
    resource_version: String,
}

impl Watched for Seen {
    fn key(&self) -> ObjectKey {
        ObjectKey::new(&self.metadata.namespace, &self.metadata.name)
    }

    fn version(&self) -> &str {
        &self.metadata.resource_version
    }
}

/// A collection as one watch sees it: for each object the text that counts.
pub(crate) struct View {
    seen: watch::Receiver<HashMap<String, String>>,
    _stop: tokio_util::sync::DropGuard,
}

impl View {
    /// Follows a collection; `text` makes of each object what is looked at.
    pub(crate) fn of(
        rest: &Rest,
        source: Source,
        text: impl Fn(&Seen) -> String + Send + Sync + 'static,
    ) -> Self {
        let (sender, seen) = watch::channel(HashMap::new());
        let stop = CancellationToken::new();
        let (client, token) = (rest.client().clone(), stop.clone());
        tokio::spawn(async move {
            follow(&client, &source, &token, |change: Change<Seen>| match change {
                Change::Put(object) => {
                    let text = text(&object);
                    sender.send_modify(|all| drop(all.insert(object.metadata.name, text)));
                }
                Change::Gone(key) => sender.send_modify(|all| drop(all.remove(key.name.as_ref()))),
                Change::Synced => {}
            })
            .await;
        });
        Self { seen, _stop: stop.drop_guard() }
    }

    pub(crate) async fn until(&self, enough: impl Fn(&HashMap<String, String>) -> bool) -> Result<()> {
        self.seen.clone().wait_for(|all| enough(all)).await?;
        Ok(())
    }
}

/// ConfigMaps of the one namespace, by their one value.
pub(crate) fn config_maps(rest: &Rest) -> View {
    let source = Source::all(maps()).namespaced(NAMESPACE).labels("scale");
    View::of(rest, source, |object| {
        object.rest.get("data").and_then(|data| data["value"].as_str()).unwrap_or_default().to_owned()
    })
}

pub(crate) fn maps() -> Gvr {
    Gvr::new("", "v1", "configmaps")
}

pub(crate) fn namespaces() -> Gvr {
    Gvr::new("", "v1", "namespaces")
}

pub(crate) fn control(plural: &str) -> Gvr {
    Gvr::new(apis::constants::CONTROL_GROUP, "v1alpha1", plural)
}

pub(crate) fn managed_clusters() -> Gvr {
    Gvr::new(apis::constants::CLUSTER_GROUP, "v1", "managedclusters")
}
