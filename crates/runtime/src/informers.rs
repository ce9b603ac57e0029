//! A set of informers that are started and stopped at run time.

use std::{collections::HashMap, sync::Arc};

use kube::{Client, api::ApiResource};
use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use crate::{
    Source, Store, TaskPool, Watched,
    informer::{self, Event},
};

/// Called for each change of each informer of a set, with the resource. Must not block.
pub type Handler<T> = Arc<dyn Fn(&ApiResource, Event<T>) + Send + Sync>;

/// Informers by resource, for one API server and one handler.
///
/// The set owns its tasks: its owner must call [`shutdown`](Self::shutdown) before it returns.
pub struct InformerSet<T> {
    client: Client,
    handler: Handler<T>,
    tasks: TaskPool,
    running: Mutex<HashMap<ApiResource, Running<T>>>,
}

struct Running<T> {
    store: Store<T>,
    stop: CancellationToken,
}

impl<T: Watched> InformerSet<T> {
    /// An empty set, whose informers stop with `stop`.
    pub fn new(client: Client, stop: &CancellationToken, handler: Handler<T>) -> Self {
        Self { client, handler, tasks: TaskPool::new(stop), running: Mutex::default() }
    }

    /// Starts to follow `source`, unless its resource is followed already. Returns the store, and true if the
    /// informer is new.
    pub fn start(&self, source: Source) -> (Store<T>, bool) {
        let mut running = self.running.lock();
        let resource = source.resource.clone();
        if let Some(informer) = running.get(&resource) {
            return (informer.store.clone(), false);
        }
        let (store, stop) = (Store::default(), self.tasks.token().child_token());
        let handler = self.handler.clone();
        let (about, token) = (resource.clone(), stop.clone());
        let on_event = move |event| {
            if !token.is_cancelled() {
                handler(&about, event);
            }
        };
        let informer = informer::run(self.client.clone(), source, store.clone(), on_event, stop.clone());
        self.tasks.spawn(format!("watch of {}", resource.plural), informer);
        running.insert(resource, Running { store: store.clone(), stop });
        (store, true)
    }

    /// The tasks of the set. The stores are stale once an informer or the handler has panicked.
    pub fn tasks(&self) -> &TaskPool {
        &self.tasks
    }

    /// Stops following a resource and returns its last store. The handler is not called for that resource any
    /// more.
    pub fn stop(&self, resource: &ApiResource) -> Option<Store<T>> {
        let informer = self.running.lock().remove(resource)?;
        informer.stop.cancel();
        Some(informer.store)
    }

    /// Returns the store of a resource that is followed.
    pub fn get(&self, resource: &ApiResource) -> Option<Store<T>> {
        self.running.lock().get(resource).map(|informer| informer.store.clone())
    }

    /// Returns the resources that are followed.
    pub fn resources(&self) -> Vec<ApiResource> {
        self.running.lock().keys().cloned().collect()
    }

    /// Returns every store.
    pub fn stores(&self) -> Vec<(ApiResource, Store<T>)> {
        self.running.lock().iter().map(|(resource, it)| (resource.clone(), it.store.clone())).collect()
    }

    /// Stops all informers and waits for them.
    pub async fn shutdown(&self) {
        self.running.lock().clear();
        self.tasks.shutdown().await;
    }
}
