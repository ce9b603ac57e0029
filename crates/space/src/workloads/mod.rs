//! Workload controllers, scheduler and kubelet of a simulated cluster. No containers run, but Deployments,
//! ReplicaSets, StatefulSets, DaemonSets, Jobs and Pods get the status that they would have in a healthy cluster, Services
//! their Endpoints and EndpointSlices, and users the Events. Pods, Endpoints and the one node have the annotation `kubestellar.io/simulated: "true"`.
//!
//! Pure functions decide the next writes from an object and its dependents; `shell` reads the store and writes
//! through the API. One event costs a visit of its object and of the object that controls it; the dependents of a
//! controller are found by scanning the labels of the pods (or ReplicaSets) of its namespace. A pod's event is compared with
//! the selectors of the Services of its namespace, and changes of many pods of one Service share a visit. An idle space
//! costs one watch of the store.
//!
//! Simplifications:
//!
//! * `minReadySeconds` counts as elapsed and `progressDeadlineSeconds` never elapses, because nothing takes time or
//!   stalls.
//! * Every pod fits on the one node, whatever it requests; only DaemonSets respect the node's labels.
//! * A claim is bound to a volume that is made for it or that it names; volumes that somebody made by hand are not searched for one
//!   that fits. Nothing is stored.
//! * Ephemeral containers end at once, so that `kubectl debug` shows their log, which says that nothing runs.
//! * Services of type LoadBalancer get the address of the node.
//! * CronJobs, ReplicationControllers, and deadlines of Jobs (`activeDeadlineSeconds`) are not simulated.

mod claims;
mod daemonset;
mod deployment;
mod endpoints;
mod job;
mod node;
mod notes;
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

use futures::future::BoxFuture;
use parking_lot::Mutex;
use runtime::Queue;
use runtime::events::{self, Recorder};
use runtime::rest::Rest;
use store::{SpaceStore, StoreError};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::follow;

/// Configuration of the simulation.
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

/// Most objects that are visited concurrently, per space.
const WORKERS: usize = 4;

/// Simulates until `stop` is cancelled. `ready` becomes true once all existing objects have been visited. `client`
/// must be allowed everything. The garbage collector of [`crate::controllers`] deletes dependents of deleted objects.
pub fn run(
    client: kube::Client,
    store: SpaceStore,
    config: Config,
    ready: watch::Sender<bool>,
    stop: CancellationToken,
) -> BoxFuture<'static, Result<(), Error>> {
    Box::pin(drive(client, store, config, ready, stop))
}

async fn drive(
    client: kube::Client,
    store: SpaceStore,
    config: Config,
    ready: watch::Sender<bool>,
    stop: CancellationToken,
) -> Result<(), Error> {
    let queue = Queue::new(Duration::from_millis(10), Duration::from_secs(60));
    let state = Arc::new(Mutex::new(shell::Known::new(queue.clone())));
    let (notes, inbox) = notes::Notes::new();
    let recorder = Recorder::new(Rest::new(client.clone()), "kubestellar-simulator", notes::OBJECT);
    let node = config.node_name;
    let shell = shell::Shell::new(client, store.clone(), node, state.clone(), queue.clone(), notes);
    let shell = Arc::new(shell);
    let act = move |task: shell::Task| {
        let shell = shell.clone();
        async move { shell.act(task).await }
    };
    let stop = stop.child_token();
    let following = async {
        let outcome =
            follow::follow("workloads", store, state, queue, WORKERS, act, ready, stop.clone()).await;
        stop.cancel();
        outcome
    };
    let (outcome, ()) = tokio::join!(following, events::write(recorder, inbox, stop.clone()));
    Ok(outcome?)
}
