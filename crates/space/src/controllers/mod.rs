//! The generic controllers of a Kubernetes control plane.
//!
//! They share one watch of the space. Decisions are pure functions over a snapshot of the store (`gc`,
//! `namespaces`, `accounts`, [`certificates`], `expiry`, `protection`); `work` carries them out through the
//! API, under the same rules as any client.

mod accounts;
mod authentication;
pub mod certificates;
mod expiry;
mod gc;
mod namespaces;
mod protection;
mod work;

use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;
use jiff::Timestamp;
use parking_lot::Mutex;
use runtime::Queue;
use store::{Collection, Event, EventKind, Key, Snapshot, SpaceStore, StoreError};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

pub use certificates::{CsrSigner, SignError};
use gc::{Graph, Uid};

use crate::follow::{EventLoop, State};
use crate::kinds::Kinds;
use crate::local::InProcessApi;

/// Configuration of the controllers.
#[derive(Clone, Debug)]
pub struct Config {
    /// PEM of the CA that signed the serving certificate. Published in each namespace as `kube-root-ca.crt`.
    pub ca_bundle_pem: String,
    /// Signs client certificates. `None`: requests are not signed.
    pub csr_signer: Option<CsrSigner>,
}

/// Why the controllers ended by themselves.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    #[error("following the space: {0}")]
    Store(#[from] StoreError),
}

/// Most concurrent requests per space.
const WORKERS: usize = 4;

/// Runs the controllers until `stop` is cancelled. `ready` becomes true once all existing objects have been visited.
/// `client` must be allowed everything.
///
/// # Errors
/// The store of the space has ended.
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
    let queue = Queue::new(Duration::from_millis(20), Duration::from_secs(60));
    let state = Arc::new(Mutex::new(ControllerState::new(queue.clone())));
    let shell = Arc::new(work::Shell {
        local: InProcessApi::new(client, "kube-controller-manager"),
        store: store.clone(),
        state: state.clone(),
        config,
    });
    let act = move |task: Task| {
        let shell = shell.clone();
        async move { shell.act(task).await }
    };
    let events = EventLoop { name: "controllers", store, state, queue, workers: WORKERS, ready };
    Ok(events.run(act, stop).await?)
}

/// A key of the work queue.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Task {
    /// Garbage collection of an object with owners or dependents.
    Collect(Uid),
    /// Deletion of the content of a namespace that is being deleted.
    EmptyNamespace(Arc<str>),
    /// Creation of a standard namespace that is missing.
    RestoreNamespace(&'static str),
    /// Creation of the standard objects of a namespace.
    ProvisionNamespace(Arc<str>),
    /// Aggregation of all aggregated ClusterRoles.
    Aggregate,
    Certify(Arc<str>),
    /// Deletion of a CertificateSigningRequest that may be too old.
    DeleteRequest(Arc<str>),
    /// Deletion of an Event that may be too old.
    ExpireEvent(Arc<str>, Arc<str>),
    /// Removal of the finalizer of a claim or volume that may be unused.
    ReleaseProtection(Key),
}

/// What the controllers know from events.
pub(crate) struct ControllerState {
    pub(crate) graph: Graph,
    pub(crate) kinds: Kinds,
    /// Objects with owners of a kind that is not served, so that it is unknown whether the owners exist.
    pub(crate) unresolved: Vec<Uid>,
    /// Namespaces being deleted.
    terminating: std::collections::HashSet<Arc<str>>,
    /// Claims that are being deleted and that pods may use.
    claims: std::collections::HashSet<Key>,
    queue: Queue<Task>,
    places: WatchedCollections,
}

/// The collections that controllers watch.
struct WatchedCollections {
    namespaces: Collection,
    accounts: Collection,
    configmaps: Collection,
    roles: Collection,
    requests: Collection,
    events: Collection,
    claims: Collection,
    volumes: Collection,
    pods: Collection,
}

pub(crate) fn roles() -> Collection {
    Collection::new("rbac.authorization.k8s.io", "clusterroles")
}

pub(crate) fn requests() -> Collection {
    Collection::new("certificates.k8s.io", "certificatesigningrequests")
}

impl ControllerState {
    fn new(queue: Queue<Task>) -> Self {
        Self {
            graph: Graph::default(),
            kinds: Kinds::default(),
            unresolved: Vec::new(),
            terminating: std::collections::HashSet::new(),
            claims: std::collections::HashSet::new(),
            queue,
            places: WatchedCollections {
                namespaces: namespaces::collection(),
                accounts: Collection::new("", "serviceaccounts"),
                configmaps: Collection::new("", "configmaps"),
                roles: roles(),
                requests: requests(),
                events: expiry::collection(),
                claims: protection::claims(),
                volumes: protection::volumes(),
                pods: protection::pods(),
            },
        }
    }

    /// Queues the work that a change of a collection causes.
    fn notice(&mut self, kind: EventKind, entry: &store::Entry, enqueue: &mut dyn FnMut(Task)) {
        let Key { collection, namespace, name } = &entry.key;
        let gone = kind == EventKind::Deleted;
        if *collection == self.places.events {
            if !gone {
                let seen = expiry::last_seen(entry).unwrap_or_else(Timestamp::now);
                let pause = expiry::remaining(seen, Timestamp::now());
                self.queue.add_after(Task::ExpireEvent(namespace.clone(), name.clone()), pause);
            }
        } else if *collection == self.places.namespaces {
            self.notice_namespace(gone, entry, enqueue);
        } else if *collection == self.places.accounts {
            if gone && &**name == accounts::ACCOUNT {
                enqueue(Task::ProvisionNamespace(namespace.clone()));
            }
        } else if *collection == self.places.configmaps {
            let published = &**namespace == authentication::NAMESPACE && &**name == authentication::NAME;
            if &**name == accounts::ROOT_CA || published {
                enqueue(Task::ProvisionNamespace(namespace.clone()));
            }
        } else if *collection == self.places.roles {
            enqueue(Task::Aggregate);
        } else if *collection == self.places.requests && !gone {
            enqueue(Task::Certify(name.clone()));
            let request = serde_json::from_slice(&entry.value).unwrap_or_default();
            if let Some(due) = certificates::clean::deletion_time(&request) {
                let pause = certificates::clean::remaining(due, Timestamp::now());
                self.queue.add_after(Task::DeleteRequest(name.clone()), pause);
            }
        } else if *collection == self.places.claims || *collection == self.places.volumes {
            let waits = !gone && protection::is_waiting(entry);
            if !waits {
                self.claims.remove(&entry.key);
            } else if *collection == self.places.volumes || self.claims.insert(entry.key.clone()) {
                enqueue(Task::ReleaseProtection(entry.key.clone()));
            }
        } else if *collection == self.places.pods {
            for claim in self.claims.iter().filter(|claim| claim.namespace == *namespace) {
                enqueue(Task::ReleaseProtection(claim.clone()));
            }
        }
        if gone && self.terminating.contains(namespace) {
            enqueue(Task::EmptyNamespace(namespace.clone()));
        }
    }

    fn notice_namespace(&mut self, gone: bool, entry: &store::Entry, enqueue: &mut dyn FnMut(Task)) {
        let name = &entry.key.name;
        if gone {
            self.terminating.remove(name);
            if let Some(standard) = namespaces::STANDARD.into_iter().find(|standard| **standard == **name) {
                enqueue(Task::RestoreNamespace(standard));
            }
        } else if namespaces::is_terminating(&namespaces::parse(entry)) {
            self.terminating.insert(name.clone());
            enqueue(Task::EmptyNamespace(name.clone()));
        } else {
            enqueue(Task::ProvisionNamespace(name.clone()));
        }
    }
}

impl State for ControllerState {
    type Key = Task;

    fn start(&mut self, all: &Snapshot, enqueue: &mut dyn FnMut(Task)) {
        self.graph.clear();
        self.unresolved.clear();
        self.terminating.clear();
        self.claims.clear();
        self.kinds.start(all);
        let collections: Vec<Collection> = all.collections().cloned().collect();
        for collection in collections {
            for entry in all.view(&collection).iter(None, None) {
                self.graph.put(entry, &mut |uid| enqueue(Task::Collect(uid)));
                self.notice(EventKind::Created, entry, enqueue);
            }
        }
        let namespaces = all.view(&self.places.namespaces);
        for name in namespaces::STANDARD {
            if namespaces.get("", name).is_none() {
                enqueue(Task::RestoreNamespace(name));
            }
        }
    }

    fn observe(&mut self, event: &Event, enqueue: &mut dyn FnMut(Task)) {
        if self.kinds.observe(event) {
            for uid in self.unresolved.drain(..) {
                enqueue(Task::Collect(uid));
            }
        }
        let mut collect = |uid| enqueue(Task::Collect(uid));
        if event.kind == EventKind::Deleted {
            self.graph.remove(&event.entry.meta.uid, &mut collect);
        } else {
            self.graph.put(&event.entry, &mut collect);
        }
        self.notice(event.kind, &event.entry, enqueue);
    }
}
