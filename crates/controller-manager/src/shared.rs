//! What the two controllers share.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use runtime::{ObjectKey, Queue, Store};
use tokio::sync::watch;

use crate::{
    binding::{Item, facts::BindingFacts, watches::Unknown, world::World},
    identity::{ObjectId, PolicyName},
    status::combined::Pair,
};

/// How long a policy's status may lag behind. Readiness comes and goes with every change of an object, and
/// nobody is helped by a write for each.
pub(crate) const STATUS_LAG: Duration = Duration::from_millis(200);

/// Work of the status controller.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum StatusItem {
    /// The status of a workload object.
    Object(ObjectId),
    /// The conditions of a Binding.
    Binding(PolicyName),
    /// A StatusCollector.
    Collector(Box<str>),
    /// The CombinedStatus of an object and a policy.
    Pair(Pair),
    /// A CombinedStatus that is there, whosever it is.
    Published(ObjectKey),
    /// Every CombinedStatus that is there.
    Sweep,
}

/// State of the one, and work for the other.
pub(crate) struct Shared {
    /// What is known of the WDS. Held for moments only, never across an await.
    pub(crate) world: Mutex<World>,
    /// The Bindings of the WDS.
    pub(crate) bindings: Store<BindingFacts>,
    /// Objects of which nothing is known; what says something about them is left as it is (KS-030).
    pub(crate) unknown: Mutex<Unknown>,
    /// Work for the binding controller.
    pub(crate) policies: Queue<Item>,
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
            unknown: Mutex::default(),
            policies: Queue::default(),
            status: with_status.then(Queue::default),
            complete: watch::Sender::new(false),
        })
    }

    /// Something that a policy's status tells may have changed.
    pub(crate) fn report(&self, policy: &str) {
        self.policies.add_after(Item::Status(policy.into()), STATUS_LAG);
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
