//! The shell of the work agent: watches bring events into the state, workers take items from the queue.
//!
//! Cost of a changed work with K manifests: O(K) in memory, the requests for what differs, one status patch
//! on the hub and at most two in the cluster. An event of an applied object costs one look at that object.

use std::sync::Arc;

use apis::ocm::{AppliedManifestWork, ManifestWork};
use futures::future::BoxFuture;
use kube::Client;
use runtime::{
    Next, Source, TaskPool, Tasks, Watched,
    feed::{Change, follow},
    work,
};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{
    config::{Config, Error},
    leaving::PENDING,
    objects::{applied_manifest_works, manifest_works},
    shared::Agent,
    state::{Event, Item},
};

/// Runs until `stop` is cancelled. Returns after every task it started has ended.
///
/// # Errors
///
/// If a task of the agent panics.
pub fn run(
    hub: Client,
    cluster: Client,
    config: Config,
    stop: CancellationToken,
) -> BoxFuture<'static, Result<(), Error>> {
    Box::pin(drive(hub, cluster, config, stop))
}

async fn drive(hub: Client, cluster: Client, config: Config, stop: CancellationToken) -> Result<(), Error> {
    let mut tasks = Tasks::new(&stop);
    let agent = Arc::new(Agent::new(&hub, &cluster, config, tasks.token().clone()));
    let works = Source::all(manifest_works()).namespaced(&agent.config.cluster_name);
    tasks.spawn_endless("ManifestWorks", agent.clone().follow_into(hub, works, work_event));
    let applied = Source::all(applied_manifest_works());
    tasks.spawn_endless("AppliedManifestWorks", agent.clone().follow_into(cluster, applied, applied_event));
    // Drift of a kind would not be corrected if its watch panicked, so the agent ends with it.
    let watches = TaskPool::new(tasks.token());
    tasks.depend_on("watches of applied kinds", &watches);
    tasks.spawn_endless("the choice of watches", agent.clone().keep_feeds(watches));
    tasks.spawn_endless("works", agent.work());
    Ok(tasks.finish().await?)
}

fn work_event(change: Change<ManifestWork>) -> Event {
    match change {
        Change::Put(work) => Event::Work(Box::new(work)),
        Change::Gone(key) => Event::WorkGone(key.name.to_string()),
        Change::Synced => Event::WorksListed,
    }
}

fn applied_event(change: Change<AppliedManifestWork>) -> Event {
    match change {
        Change::Put(applied) => Event::Applied(Box::new(applied)),
        Change::Gone(key) => Event::AppliedGone(key.name.to_string()),
        Change::Synced => Event::AppliedListed,
    }
}

impl Agent {
    /// Follows a resource of a server into the state.
    async fn follow_into<K: Watched>(
        self: Arc<Self>,
        server: Client,
        source: Source,
        event: fn(Change<K>) -> Event,
    ) {
        follow(&server, &source, &self.stop, |change| self.note(event(change))).await;
    }

    async fn work(self: Arc<Self>) {
        tokio::select! {
            () = self.stop.cancelled() => return,
            () = self.started.cancelled() => {}
        }
        self.config.ready.send_replace(true);
        let me = self.clone();
        work("works", &self.queue, self.config.workers, &self.stop, move |item: Item| {
            let me = me.clone();
            async move {
                match &item {
                    Item::Work(name) => me.handle(name).await,
                    Item::Foreign(name) => me.foreign_applied(name).await,
                }
            }
        })
        .await;
    }

    async fn handle(&self, name: &str) -> Result<Next, kube::Error> {
        let todo = self.state.lock().begin(name, Instant::now());
        let Some(mut todo) = todo else { return Ok(self.rest(name)) };
        match self.sync(name, &mut todo).await {
            Ok(Next::OnChange) => Ok(self.rest(name)),
            Ok(next) => {
                self.state.lock().set_leaving(name, Some(PENDING));
                Ok(next)
            }
            Err(error) => {
                self.state.lock().failed(name, todo);
                Err(error)
            }
        }
    }

    fn rest(&self, name: &str) -> Next {
        self.state.lock().rest(name, Instant::now())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registration::Connection;
    use apis::constants::MANIFEST_WORK_FINALIZER;
    use serde_json::json;
    use std::time::Duration;

    /// OCM-073: when the time for another pass comes, a complete work is left alone, and not processed again
    /// and again.
    #[tokio::test]
    async fn ocm_073_a_complete_work_is_at_rest() {
        let nowhere = Connection::default().client();
        let config = Config { reapply: Duration::ZERO, ..Config::new("c1", "https://hub") };
        let agent = Agent::new(&nowhere, &nowhere, config, CancellationToken::new());
        agent.state.lock().passed("w", true, Instant::now());
        let complete = json!([{"type": "Complete", "status": "True", "reason": "ConditionRulesAggregated",
            "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}]);
        let work = serde_json::from_value(json!({
            "apiVersion": "work.open-cluster-management.io/v1", "kind": "ManifestWork",
            "metadata": {"name": "w", "namespace": "c1", "uid": "a", "finalizers": [MANIFEST_WORK_FINALIZER]},
            "spec": {"workload": {"manifests": []}}, "status": {"conditions": complete},
        }));
        agent.note(Event::Work(work.unwrap()));
        for _ in 0..2 {
            assert_eq!(agent.handle("w").await.unwrap(), Next::OnChange);
        }
    }
}
