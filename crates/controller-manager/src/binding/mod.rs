//! The binding controller (KS-030 … KS-075).
//!
//! The informers pass their events directly to [`world::World`]; the workers of a queue write the resulting
//! changes of Bindings. One changed object costs one write for each Binding that lists it; changes that
//! arrive together are written together ([`runtime::Coalescer`], KS-038).

mod events;
pub(crate) mod facts;
mod feed;
mod index;
pub mod matching;
pub mod modulation;
pub mod policy;
pub mod resolution;
pub mod resources;
mod sync;
#[cfg(test)]
mod tests;
pub(crate) mod unknown;
mod verdict;
mod watches;
pub mod world;
mod writes;

use std::{sync::Arc, time::Duration};

use apis::{control::BindingPolicy, ocm::ManagedCluster};
use k8s_openapi::{
    api::core::v1::Namespace, apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::Client;
use runtime::{Source, Store, TaskError, Tasks, informer, work};
use tokio_util::sync::CancellationToken;

use crate::{Config, shared::Shared};
use feed::Feed;
use resources::CrdFacts;
use sync::Syncer;
use watches::Watches;

const WORKERS: usize = 4;

/// Runs the binding controller until `stop` is cancelled.
pub(crate) async fn run(
    wds: Client,
    its: Client,
    config: Config,
    shared: Arc<Shared>,
    stop: CancellationToken,
) -> Result<(), TaskError> {
    let mut tasks = Tasks::new(&stop);
    let token = tasks.token().clone();
    let syncer = Arc::new(Syncer::new(wds.clone(), shared.clone()));
    syncer.queue().clone().observed(config.metrics.queue(&format!("Binding-{}", config.wds_name)));
    let feed = Arc::new(Feed::new(shared.clone(), syncer.clone()));
    let watches = Arc::new(Watches::new(wds.clone(), &config, feed.clone(), &token));
    let crds = Store::default();
    let inputs = Inputs::start(&mut tasks, &wds, &its, &feed, (&watches, &crds));
    let (finder, searching) = (watches.clone(), token.clone());
    tasks.spawn_endless("discovery", async move { finder.discover(&crds, &searching).await });
    let (broken, until) = (watches.broken(), token.clone());
    tasks.spawn("watches of the workload", async move {
        tokio::select! {
            () = broken.cancelled() => Err("one of them panicked"),
            () = until.cancelled() => Ok(()),
        }
    });
    let worker = async move {
        tokio::select! {
            () = inputs.synced(&watches, config.patience) => {}
            () = token.cancelled() => {
                watches.shutdown().await;
                return;
            }
        }
        feed.begin();
        shared.complete.send_replace(true);
        config.ready.send_replace(true);
        tracing::info!(wds = config.wds_name, "the binding controller works");
        let queue = syncer.queue().clone();
        work("binding", &queue, WORKERS, &token, move |item| {
            let syncer = syncer.clone();
            async move { syncer.sync(item).await }
        })
        .await;
        watches.shutdown().await;
    };
    tasks.spawn_endless("binding workers", worker);
    tasks.finish().await
}

/// The inputs other than the workload objects.
struct Inputs {
    stores: Vec<Box<dyn Synced>>,
}

/// An input that is complete some time after the start.
trait Synced: Send + Sync {
    fn wait(&self) -> futures::future::BoxFuture<'_, ()>;
}

impl<T: Send + Sync + 'static> Synced for Store<T> {
    fn wait(&self) -> futures::future::BoxFuture<'_, ()> {
        Box::pin(self.synced())
    }
}

impl Inputs {
    fn start(
        tasks: &mut Tasks,
        wds: &Client,
        its: &Client,
        feed: &Arc<Feed>,
        (watches, crds): (&Arc<Watches>, &Store<CrdFacts>),
    ) -> Self {
        let (policies, bindings) = (feed.policies().clone(), feed.bindings().clone());
        let (clusters, namespaces, crds) = (Store::default(), Store::default(), crds.clone());
        let inputs = Self {
            stores: vec![
                Box::new(policies.clone()),
                Box::new(bindings.clone()),
                Box::new(clusters.clone()),
                Box::new(namespaces.clone()),
                Box::new(crds.clone()),
            ],
        };
        let stop = tasks.token().clone();
        let (wds, its) = (wds.clone(), its.clone());
        let (f, source) = (feed.clone(), Source::of::<BindingPolicy>());
        let follow = informer::run(wds.clone(), source, policies, move |e| f.on_policy(e), stop.clone());
        tasks.spawn_endless("policy informer", follow);
        let (f, source) = (feed.clone(), Source::of::<apis::control::Binding>());
        let follow = informer::run(wds.clone(), source, bindings, move |e| f.on_binding(e), stop.clone());
        tasks.spawn_endless("binding informer", follow);
        let (f, source) = (feed.clone(), Source::of::<ManagedCluster>().metadata());
        let follow = informer::run(its, source, clusters, move |e| f.on_cluster(e), stop.clone());
        tasks.spawn_endless("cluster informer", follow);
        let (f, source) = (feed.clone(), Source::of::<Namespace>().metadata());
        let follow = informer::run(wds.clone(), source, namespaces, move |e| f.on_namespace(e), stop.clone());
        tasks.spawn_endless("namespace informer", follow);
        let (w, source) = (watches.clone(), Source::of::<CustomResourceDefinition>());
        let follow = informer::run(wds, source, crds, move |e| w.on_crd(e), stop);
        tasks.spawn_endless("CRD informer", follow);
        inputs
    }

    /// Waits until every object that existed at the start is known (KS-066).
    async fn synced(&self, watches: &Watches, patience: Duration) {
        for store in &self.stores {
            store.wait().await;
        }
        watches.synced(patience).await;
    }
}
