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

use std::sync::Arc;

use apis::{
    control::{Binding, BindingPolicy},
    ocm::ManagedCluster,
};
use k8s_openapi::{
    api::core::v1::Namespace, apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::Client;
use runtime::{Inputs, Source, Store, Tasks, work};

use crate::{Config, shared::Shared};
use feed::Feed;
use resources::CrdFacts;
use sync::Syncer;
use watches::Watches;

const WORKERS: usize = 4;

/// Starts the binding controller.
pub(crate) fn start(tasks: &mut Tasks, wds: &Client, its: &Client, config: Config, shared: Arc<Shared>) {
    let token = tasks.token().clone();
    let syncer = Arc::new(Syncer::new(wds.clone(), shared.clone()));
    syncer.queue().clone().observed(config.metrics.queue(&format!("Binding-{}", config.wds_name)));
    let feed = Arc::new(Feed::new(shared.clone(), syncer.clone()));
    let watches = Arc::new(Watches::new(wds.clone(), &config, feed.clone(), &token));
    let crds = Store::default();
    let inputs = follow(tasks, (wds, its), &feed, &watches, &crds).synced();
    let (finder, searching) = (watches.clone(), token.clone());
    tasks.spawn_endless("discovery", async move { finder.discover(&crds, &searching).await });
    tasks.depend_on("watches of the workload", watches.tasks());
    let worker = async move {
        // Every object that existed at the start is known (KS-066).
        let synced = async {
            inputs.await;
            watches.synced(config.patience).await;
        };
        tokio::select! {
            () = synced => {}
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
}

/// Follows the inputs other than the workload objects.
fn follow<'t>(
    tasks: &'t mut Tasks,
    (wds, its): (&Client, &Client),
    feed: &Arc<Feed>,
    watches: &Arc<Watches>,
    crds: &Store<CrdFacts>,
) -> Inputs<'t> {
    let mut inputs = Inputs::new(tasks);
    let to = feed.clone();
    inputs.follow(wds, Source::of::<BindingPolicy>(), feed.policies(), move |e| to.on_policy(e));
    let to = feed.clone();
    inputs.follow(wds, Source::of::<Binding>(), feed.bindings(), move |e| to.on_binding(e));
    let to = feed.clone();
    let clusters = Source::of::<ManagedCluster>().metadata();
    inputs.follow(its, clusters, &Store::default(), move |e| to.on_cluster(e));
    let to = feed.clone();
    let namespaces = Source::of::<Namespace>().metadata();
    inputs.follow(wds, namespaces, &Store::default(), move |e| to.on_namespace(e));
    let to = watches.clone();
    inputs.follow(wds, Source::of::<CustomResourceDefinition>(), crds, move |e| to.on_crd(e));
    inputs
}
