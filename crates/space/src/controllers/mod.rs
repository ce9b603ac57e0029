//! The generic controllers of a space: what makes stored objects behave as in a Kubernetes control plane.
//!
//! All share one watch over the space. Decisions are pure functions over a snapshot of the store ([`gc`],
//! [`namespaces`], [`accounts`], [`certificates`], [`expiry`], [`protection`]); [`work`] carries them out through the API, under
//! the same rules as any client.

mod accounts;
mod authentication;
pub mod certificates;
mod expiry;
mod gc;
mod namespaces;
mod protection;
mod work;

pub(crate) use work::now;

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

use crate::follow::{self, State};
use crate::kinds::Kinds;
use crate::local::Local;

/// What the controllers need to know.
#[derive(Clone, Debug)]
pub struct Config {
    /// PEM of the CA that signed the serving certificate; published in each namespace as `kube-root-ca.crt`.
    pub ca_bundle_pem: String,
    /// Signs client certificates; without it requests stay unsigned.
    pub csr_signer: Option<CsrSigner>,
}

/// Why the controllers ended by themselves.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    #[error("following the space: {0}")]
    Store(#[from] StoreError),
}

/// Requests under way at once, per space.
const WORKERS: usize = 4;

/// Runs them until `stop`. `ready` becomes true once all existing objects were seen. `client` must be allowed
/// everything.
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
    let state = Arc::new(Mutex::new(Knowledge::new(queue.clone())));
    let shell = Arc::new(work::Shell {
        local: Local::new(client, "kube-controller-manager"),
        store: store.clone(),
        state: state.clone(),
        config,
    });
    let act = move |task: Task| {
        let shell = shell.clone();
        async move { shell.act(task).await }
    };
    Ok(follow::follow("controllers", store, state, queue, WORKERS, act, ready, stop).await?)
}

/// Something to look at.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Task {
    /// An object with owners or dependents.
    Collect(Uid),
    /// A namespace that is being deleted.
    Empty(Arc<str>),
    /// A standard namespace that is missing.
    Restore(&'static str),
    /// A namespace that may lack its standard objects.
    Provision(Arc<str>),
    /// All aggregated ClusterRoles.
    Aggregate,
    Certify(Arc<str>),
    /// A signing request that may be too old.
    Clear(Arc<str>),
    /// A core event that may be too old.
    Expire(Arc<str>, Arc<str>),
    /// A claim or volume on its way out that may be in use.
    Release(Key),
}

/// What the controllers know beyond the store.
pub(crate) struct Knowledge {
    pub(crate) graph: Graph,
    pub(crate) kinds: Kinds,
    /// Objects whose owners have a kind that is not served, so that it is not known whether the owners exist.
    pub(crate) unresolved: Vec<Uid>,
    /// Namespaces being deleted.
    terminating: std::collections::HashSet<Arc<str>>,
    /// Claims being deleted that pods may use.
    claims: std::collections::HashSet<Key>,
    queue: Queue<Task>,
    places: Places,
}

/// Collections that mean something here.
struct Places {
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

impl Knowledge {
    fn new(queue: Queue<Task>) -> Self {
        Self {
            graph: Graph::default(),
            kinds: Kinds::default(),
            unresolved: Vec::new(),
            terminating: std::collections::HashSet::new(),
            claims: std::collections::HashSet::new(),
            queue,
            places: Places {
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

    /// A change of a collection that one of the small controllers minds.
    fn notice(&mut self, kind: EventKind, entry: &store::Entry, look: &mut dyn FnMut(Task)) {
        let Key { collection, namespace, name } = &entry.key;
        let gone = kind == EventKind::Deleted;
        if *collection == self.places.events {
            if !gone {
                let seen = expiry::last_seen(entry).unwrap_or_else(Timestamp::now);
                let pause = expiry::remaining(seen, Timestamp::now());
                self.queue.add_after(Task::Expire(namespace.clone(), name.clone()), pause);
            }
        } else if *collection == self.places.namespaces {
            self.notice_namespace(gone, entry, look);
        } else if *collection == self.places.accounts {
            if gone && &**name == accounts::ACCOUNT {
                look(Task::Provision(namespace.clone()));
            }
        } else if *collection == self.places.configmaps {
            let published = &**namespace == authentication::NAMESPACE && &**name == authentication::NAME;
            if &**name == accounts::ROOT_CA || published {
                look(Task::Provision(namespace.clone()));
            }
        } else if *collection == self.places.roles {
            look(Task::Aggregate);
        } else if *collection == self.places.requests && !gone {
            look(Task::Certify(name.clone()));
            let request = serde_json::from_slice(&entry.value).unwrap_or_default();
            if let Some(due) = certificates::clean::due(&request) {
                let pause = certificates::clean::remaining(due, Timestamp::now());
                self.queue.add_after(Task::Clear(name.clone()), pause);
            }
        } else if *collection == self.places.claims || *collection == self.places.volumes {
            let waits = !gone && protection::is_waiting(entry);
            if !waits {
                self.claims.remove(&entry.key);
            } else if *collection == self.places.volumes || self.claims.insert(entry.key.clone()) {
                look(Task::Release(entry.key.clone()));
            }
        } else if *collection == self.places.pods {
            for claim in self.claims.iter().filter(|claim| claim.namespace == *namespace) {
                look(Task::Release(claim.clone()));
            }
        }
        if gone && self.terminating.contains(namespace) {
            look(Task::Empty(namespace.clone()));
        }
    }

    fn notice_namespace(&mut self, gone: bool, entry: &store::Entry, look: &mut dyn FnMut(Task)) {
        let name = &entry.key.name;
        if gone {
            self.terminating.remove(name);
            if let Some(standard) = namespaces::STANDARD.into_iter().find(|standard| **standard == **name) {
                look(Task::Restore(standard));
            }
        } else if namespaces::is_terminating(&namespaces::parse(entry)) {
            self.terminating.insert(name.clone());
            look(Task::Empty(name.clone()));
        } else {
            look(Task::Provision(name.clone()));
        }
    }
}

impl State for Knowledge {
    type Key = Task;

    fn start(&mut self, all: &Snapshot, look: &mut dyn FnMut(Task)) {
        self.graph.clear();
        self.unresolved.clear();
        self.terminating.clear();
        self.claims.clear();
        self.kinds.start(all);
        let collections: Vec<Collection> = all.collections().cloned().collect();
        for collection in collections {
            for entry in all.view(&collection).iter(None, None) {
                self.graph.put(entry, &mut |uid| look(Task::Collect(uid)));
                self.notice(EventKind::Created, entry, look);
            }
        }
        let namespaces = all.view(&self.places.namespaces);
        for name in namespaces::STANDARD {
            if namespaces.get("", name).is_none() {
                look(Task::Restore(name));
            }
        }
    }

    fn observe(&mut self, event: &Event, look: &mut dyn FnMut(Task)) {
        if self.kinds.observe(event) {
            for uid in self.unresolved.drain(..) {
                look(Task::Collect(uid));
            }
        }
        let mut collect = |uid| look(Task::Collect(uid));
        if event.kind == EventKind::Deleted {
            self.graph.remove(&event.entry.meta.uid, &mut collect);
        } else {
            self.graph.put(&event.entry, &mut collect);
        }
        self.notice(event.kind, &event.entry, look);
    }
}
