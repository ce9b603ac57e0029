//! What the binding controller and the status controller share.

use std::{sync::Arc, time::Duration};

use parking_lot::Mutex;
use runtime::{ObjectKey, Queue, Store, limiter::Rate};
use tokio::sync::watch;

use crate::{
    binding::{facts::BindingFacts, unknown::UnknownResources, world::World},
    identity::{ObjectId, PolicyName},
    status::combined::Pair,
};

/// How long a policy's status may lag behind. Readiness changes with every change of an object, and a write
/// for each would help nobody.
pub(crate) const STATUS_LAG: Duration = Duration::from_millis(200);

/// Rate limit of the retries of each controller, all items together; each item has its own back-off, too
/// (KS-038).
pub(crate) const RETRIES: Rate = Rate { qps: 50.0, burst: 300 };

/// A work item of the binding controller.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum BindingItem {
    /// A policy and its Binding.
    Policy(PolicyName),
    /// The status of a policy.
    Status(PolicyName),
}

/// A work item of the status controller.
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
    /// An existing CombinedStatus, which may belong to no pair.
    Published(ObjectKey),
    /// Every existing CombinedStatus.
    Sweep,
}

/// The state of the binding controller, and the queues of both.
pub(crate) struct Shared {
    /// What is known of the WDS. Locked for short times only, never across an await.
    pub(crate) world: Mutex<World>,
    /// The Bindings of the WDS.
    pub(crate) bindings: Store<BindingFacts>,
    /// Objects whose state is unknown; what refers to them is left unchanged (KS-030).
    pub(crate) unknown: Mutex<UnknownResources>,
    /// Work queue of the binding controller.
    pub(crate) policies: Queue<BindingItem>,
    /// Work queue of the status controller; `None` if that does not run.
    status: Option<Queue<StatusItem>>,
    /// True once every object that existed at the start is in `world`.
    pub(crate) complete: watch::Sender<bool>,
}

impl Shared {
    /// An empty state.
    pub(crate) fn new(with_status: bool) -> Arc<Self> {
        Arc::new(Self {
            world: Mutex::default(),
            bindings: Store::default(),
            unknown: Mutex::default(),
            policies: Queue::default().limited(RETRIES),
            status: with_status.then(|| Queue::default().limited(RETRIES)),
            complete: watch::Sender::new(false),
        })
    }

    /// Something that a policy's status shows may have changed.
    pub(crate) fn report(&self, policy: &str) {
        self.policies.add_after(BindingItem::Status(policy.into()), STATUS_LAG);
    }

    /// Enqueues an item for the status controller.
    pub(crate) fn enqueue_status(&self, item: StatusItem) {
        if let Some(queue) = &self.status {
            queue.add(item);
        }
    }

    /// The work queue of the status controller.
    pub(crate) fn status_queue(&self) -> Option<&Queue<StatusItem>> {
        self.status.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use std::{fmt::Debug, hash::Hash};

    use tokio::time::Instant;
    use tokio_util::sync::CancellationToken;

    use super::*;

    /// KS-038, for one queue: of 400 items that fail at the same time, 300 are retried at once and the others
    /// at 50 per second. Work that did not fail does not wait for them, and afterwards there is room for the
    /// next burst.
    async fn retries_keep_to_the_rate<K: Clone + Eq + Hash + Debug>(
        queue: &Queue<K>,
        item: impl Fn(u32) -> K,
    ) {
        let stop = CancellationToken::new();
        for burst in 0..2 {
            let start = Instant::now();
            for key in 0..400 {
                queue.retry(item(key));
            }
            queue.add(item(1000));
            assert_eq!(*queue.next(&stop).await.unwrap().key(), item(1000), "burst {burst}");
            let mut came = Vec::new();
            for _ in 0..400 {
                let lease = queue.next(&stop).await.unwrap();
                queue.forget(lease.key());
                came.push(start.elapsed());
            }
            assert!(came[299] < Duration::from_millis(20), "burst {burst}: {:?}", came[299]);
            assert!(came[300] >= Duration::from_millis(20), "burst {burst}: {:?}", came[300]);
            assert_eq!(came[399].as_secs(), 2, "burst {burst}");
            assert!(queue.is_idle());
            tokio::time::sleep(Duration::from_secs(300 / 50)).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn ks_038_retries_of_both_controllers_keep_to_a_rate() {
        let shared = Shared::new(true);
        retries_keep_to_the_rate(&shared.policies, |n| BindingItem::Policy(format!("policy-{n}").into()))
            .await;
        let status = shared.status_queue().unwrap();
        retries_keep_to_the_rate(status, |n| StatusItem::Binding(format!("policy-{n}").into())).await;
    }

    /// KS-038: the back-off of one item goes from 5 ms to 1000 s.
    #[tokio::test(start_paused = true)]
    async fn ks_038_an_item_that_fails_backs_off() {
        let (shared, stop) = (Shared::new(false), CancellationToken::new());
        let mut pauses = Vec::new();
        for _ in 0..20 {
            let start = Instant::now();
            shared.policies.retry(BindingItem::Policy("policy".into()));
            drop(shared.policies.next(&stop).await.unwrap());
            pauses.push(start.elapsed().as_millis());
        }
        assert_eq!(pauses[..4], [5, 10, 20, 40]);
        assert_eq!(pauses[17..], [655_360, 1_000_000, 1_000_000]);
    }
}
