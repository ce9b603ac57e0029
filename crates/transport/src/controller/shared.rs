//! What the tasks of the controller share: the state behind its one lock, and the queues.

use parking_lot::Mutex;
use runtime::Queue;
use tokio_util::sync::CancellationToken;

use super::{
    config::Config,
    gauges::{Gauges, count},
    state::{Input, State},
    work::{Todo, Work, queue},
};

/// What the tasks of the controller share.
pub(super) struct Shared {
    pub(super) config: Config,
    /// Locked for short times only, never across an await.
    state: Mutex<State>,
    pub(super) queue: Queue<Work>,
    /// Bindings whose annotations may have to be refreshed.
    pub(super) refreshes: Queue<String>,
    pub(super) gauges: Gauges,
    /// Cancelled once every input is completely listed.
    pub(super) complete: CancellationToken,
}

impl Shared {
    pub(super) fn new(config: Config) -> Self {
        Self {
            state: Mutex::new(State::new(&config.wds_name)),
            queue: queue().observed(config.metrics.queue("transport-controller")),
            refreshes: Queue::default(),
            gauges: Gauges::new(&config.metrics),
            complete: CancellationToken::new(),
            config,
        }
    }

    /// Looks at the state or changes it, without consequences.
    pub(super) fn with<T>(&self, look: impl FnOnce(&mut State) -> T) -> T {
        look(&mut self.state.lock())
    }

    /// Takes in an event: counts the objects, and enqueues what the event makes necessary.
    pub(super) fn event(&self, event: impl FnOnce(&mut State) -> Todo) {
        let todo = self.with(|state| {
            let todo = event(state);
            let (adaptation, gauges) = (state.adaptation(), &self.gauges);
            gauges.bindings.set(count(state.bindings()));
            gauges.wrapped_objects.set(count(state.envelopes().len()));
            gauges.transforms.set(count(adaptation.transforms()));
            gauges.wecs.set(count(adaptation.properties.wecs()));
            gauges.prop_maps.set(count(adaptation.properties.maps()));
            todo
        });
        todo.enqueue(&self.queue);
    }

    /// An input is completely listed.
    pub(super) fn listed(&self, input: Input) {
        if self.with(|state| state.listed(input)) {
            self.complete.cancel();
        }
    }
}
