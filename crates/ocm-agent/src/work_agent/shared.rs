//! What all parts of a running work agent share: clients, settings, the state behind one lock, the queue.

use std::{sync::Arc, time::Duration};

use kube::Client;
use parking_lot::Mutex;
use runtime::{Queue, mapper::Mapper, rest::Rest};
use tokio::{sync::Notify, time::Instant};
use tokio_util::sync::CancellationToken;

use super::{
    completion::Rules,
    config::Config,
    names::HubNames,
    state::{Event, Item, State, Wake},
    turns::Turns,
};

/// A running work agent.
pub(crate) struct Agent {
    pub(crate) config: Config,
    pub(crate) hub: Rest,
    pub(crate) cluster: Rest,
    pub(crate) mapper: Mapper,
    /// Compiled rules.
    pub(crate) rules: Arc<Rules>,
    pub(crate) turns: Turns,
    /// Never locked across an await.
    pub(crate) state: Mutex<State>,
    pub(crate) queue: Queue<Item>,
    /// Wakes [`Agent::keep_feeds`] when other kinds are to be followed.
    pub(crate) feeds: Notify,
    /// Cancelled once all works and AppliedManifestWorks are known.
    pub(crate) started: CancellationToken,
    pub(crate) stop: CancellationToken,
}

impl Agent {
    pub(crate) fn new(hub: &Client, cluster: &Client, mut config: Config, stop: CancellationToken) -> Self {
        let names = HubNames::new(&config.hub_url);
        if config.agent_id.is_empty() {
            names.hash().clone_into(&mut config.agent_id);
        }
        let counted = config.metrics.queue("ManifestWorkAgent");
        let state = State::new(&config, names);
        Self {
            config,
            hub: Rest::new(hub.clone()),
            cluster: Rest::with_manager(cluster.clone(), "work-agent"),
            mapper: Mapper::new(cluster.clone()),
            rules: Arc::default(),
            turns: Turns::default(),
            state: Mutex::new(state),
            queue: Queue::new(Duration::from_millis(5), Duration::from_secs(120)).observed(counted),
            feeds: Notify::new(),
            started: CancellationToken::new(),
            stop,
        }
    }

    /// Takes in an event of a watch.
    pub(crate) fn note(&self, event: Event) {
        self.note_unless(&self.stop, event);
    }

    /// Takes in an event of a watch, unless that was told to end.
    pub(crate) fn note_unless(&self, ended: &CancellationToken, event: Event) {
        let mut state = self.state.lock();
        if ended.is_cancelled() {
            return;
        }
        let wakes = state.event(event, Instant::now());
        let complete = state.is_complete();
        drop(state);
        self.wake(wakes);
        if complete && !self.started.is_cancelled() {
            self.started.cancel();
        }
    }

    /// Enqueues what is to be processed.
    pub(crate) fn wake(&self, wakes: Vec<Wake>) {
        for Wake { item, after, anew } in wakes {
            if anew {
                self.queue.forget(&item);
            }
            self.queue.add_after(item, after);
        }
    }
}
