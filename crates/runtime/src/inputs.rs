//! The inputs of a controller: followed by tasks of one owner, waited for together.

use futures::future::{BoxFuture, FutureExt, join_all};
use kube::Client;

use crate::{Event, Source, Store, Tasks, Watched, informer};

/// Informers of one controller. A controller decides nothing before all of them are synced: what is missing in an
/// incomplete list would count as deleted.
pub struct Inputs<'t> {
    tasks: &'t mut Tasks,
    synced: Vec<BoxFuture<'static, ()>>,
}

impl<'t> Inputs<'t> {
    /// Inputs that are followed by tasks of this set.
    pub fn new(tasks: &'t mut Tasks) -> Self {
        Self { tasks, synced: Vec::new() }
    }

    /// Follows `source` into `store`, as [`informer::run`] does, until the set of tasks ends. The task has the name of the
    /// resource.
    pub fn follow<T: Watched>(
        &mut self,
        client: &Client,
        source: Source,
        store: &Store<T>,
        handler: impl FnMut(Event<T>) + Send + 'static,
    ) {
        let name = format!("informer of {}", source.resource.plural);
        let follow =
            informer::run(client.clone(), source, store.clone(), handler, self.tasks.token().clone());
        self.tasks.spawn_endless(name, follow);
        let store = store.clone();
        self.synced.push(async move { store.synced().await }.boxed());
    }

    /// Waits until every object that existed at the start is in its store. The wait lasts as long as one resource cannot be
    /// listed.
    pub fn synced(self) -> BoxFuture<'static, ()> {
        join_all(self.synced).map(drop).boxed()
    }
}
