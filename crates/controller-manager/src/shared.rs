//! What the two controllers share.

use std::sync::Arc;

use parking_lot::Mutex;
use runtime::{Queue, Store};
use tokio::sync::watch;

use crate::{
    binding::{facts::BindingFacts, world::World},
    identity::{ObjectId, PolicyName},
};

/// Work of the status controller.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum StatusItem {
    /// The status of a workload object.
    Object(ObjectId),
    /// The conditions of a Binding.
    Binding(PolicyName),
}

/// State of the one, and work for the other.
pub(crate) struct Shared {
    /// What is known of the WDS. Held for moments only, never across an await.
    pub(crate) world: Mutex<World>,
    /// The Bindings of the WDS.
    pub(crate) bindings: Store<BindingFacts>,
    /// Work for the status controller, unless it doesn't run.
    status: Option<Queue<StatusItem>>,
    /// True once everything that was there at the start is in `world`.
    pub(crate) complete: watch::Sender<bool>,
}

impl Shared {
    /// An empty world.
    pub(crate) fn new(with_status: bool) -> Arc<Self> {
        Arc::new(Self {
            world: Mutex::default(),
            bindings: Store::default(),
            status: with_status.then(Queue::default),
            complete: watch::Sender::new(false),
        })
    }

    /// Gives work to the status controller.
    pub(crate) fn tell_status(&self, item: StatusItem) {
        if let Some(queue) = &self.status {
            queue.add(item);
        }
    }

    /// The work of the status controller.
    pub(crate) fn status_queue(&self) -> Option<&Queue<StatusItem>> {
        self.status.as_ref()
    }
}
