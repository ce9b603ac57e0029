//! Workload controllers, scheduler and kubelet of a simulated cluster: no containers run, but Deployments,
//! ReplicaSets, StatefulSets, DaemonSets, Jobs and Pods get to the status they would have in a healthy cluster.
//! Pods and the one node carry the annotation `kubestellar.io/simulated: "true"`.
//!
//! What to do is decided by pure functions from an object and what belongs to it to the next writes; [`shell`]
//! reads the one from the store and does the other through the API. One event costs a look at the object it is
//! about and at the one that controls it; to find what belongs to a controller, the labels of the pods (or ReplicaSets) of
//! its namespace are gone through. An idle space costs one watch of the store.
//!
//! What is simpler than in a real cluster:
//! * `minReadySeconds` counts as elapsed and `progressDeadlineSeconds` never does, as nothing takes time or stalls.
//! * Any pod finds room on the one node, whatever it asks for; only DaemonSets mind its labels.
//! * Volumes are not provided: claims of StatefulSets are made, and stay unbound.
//! * CronJobs, ReplicationControllers, and deadlines of Jobs (`activeDeadlineSeconds`) are not played.

mod daemonset;
mod deployment;
mod job;
mod node;
mod object;
mod pods;
mod progress;
mod replicaset;
mod revision;
mod rollout;
mod sets;
mod shell;
mod statefulset;
#[cfg(test)]
mod world;

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use runtime::Queue;
use store::{SpaceStore, StoreError};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::follow;

/// How workloads are played.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Name of the one simulated node.
    pub node_name: String,
}

/// Why the simulation ended by itself.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    #[error("following the space: {0}")]
    Store(#[from] StoreError),
}

/// Objects looked at at once, per space.
const WORKERS: usize = 4;

/// Plays until `stop`. `ready` becomes true once all existing objects were seen. `client` must be allowed everything.
/// Children of deleted objects are left to the garbage collector of [`crate::controllers`].
pub async fn run(
    client: kube::Client,
    store: SpaceStore,
    config: Config,
    ready: watch::Sender<bool>,
    stop: CancellationToken,
) -> Result<(), Error> {
    let queue = Queue::new(Duration::from_millis(10), Duration::from_secs(60));
    let state = Arc::new(Mutex::new(shell::Waiting::default()));
    let shell =
        Arc::new(shell::Shell::new(client, store.clone(), config.node_name, state.clone(), queue.clone()));
    let act = move |task: shell::Task| {
        let shell = shell.clone();
        async move { shell.act(task).await }
    };
    Ok(follow::follow("workloads", store, state, queue, WORKERS, act, ready, stop).await?)
}
