//! Metacontroller runs controllers whose decisions are made by webhooks. Watching, owning, applying, retrying
//! and reporting are done here. It is compatible with the Go program of the same name, and adds a
//! MapController to its Composite- and DecoratorController.
//!
//! * [`map`]: the MapController.
//! * [`sync`]: Composite- and DecoratorController.
//! * [`host`]: decides which controllers run; [`shared`]: what it gives to each of them.
//! * [`hooks`], [`wire`]: webhooks and the form of their requests.
//! * [`apply`], [`writes`]: bring objects into the desired state.
//! * [`cache`], [`selector_index`], [`lanes`], [`rate_limit`], [`status_board`], [`metrics`], [`histogram`],
//!   [`conditions`], [`definitions`]: what controllers share.
//!
//! Decisions are pure (`map::{answer, group, key, parents, selector, status}`, [`apply`], [`lanes`],
//! [`selector_index`], [`wire`]); the rest does the I/O for them.

pub mod apply;
pub mod cache;
pub mod conditions;
pub mod definitions;
pub mod histogram;
pub mod hooks;
pub mod host;
pub mod lanes;
pub mod map;
pub mod metrics;
pub mod object;
pub mod rate_limit;
pub mod resource;
pub mod selector_index;
pub mod shared;
pub mod status_board;
pub mod sync;
pub mod wire;
pub mod writes;

use std::{sync::Arc, time::Duration};

use futures::future::BoxFuture;
use kube::Client;
use machinery::selector::LabelSelector;
use runtime::{
    Ready, Tasks,
    events::{self, Events, Recorder},
    limiter::Rate,
    mapper::Mapper,
    rest::Rest,
};
use tokio_util::sync::CancellationToken;

pub use metrics::Metrics;
pub use writes::Strategy;

/// Rate limit for the Events of one object: one in five minutes, 25 at once (MC-200).
const EVENTS: Rate = Rate { qps: 1.0 / 300.0, burst: 25 };

/// The settings of Metacontroller (MC-200).
pub struct Config {
    /// Number of workers of each hosted controller.
    pub workers: usize,
    /// Longest pause before a resource that is not served is asked for again.
    pub discovery_interval: Duration,
    /// How often every item is processed although nothing changed.
    pub cache_flush_interval: Option<Duration>,
    /// Rate limit for the Events of one object.
    pub events: Rate,
    /// Selects the controller objects to run.
    pub target: LabelSelector,
    /// How desired objects are written.
    pub strategy: Strategy,
    /// Whether children and attachments that no rule declares are created (MC-149).
    pub undeclared_children: bool,
    /// The proxies for hooks.
    pub proxies: runtime::proxies::Proxies,
    /// Receives the metrics.
    pub metrics: Metrics,
    /// Set once all controller objects are known.
    pub ready: Ready,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            workers: 5,
            discovery_interval: Duration::from_secs(30),
            cache_flush_interval: Some(Duration::from_secs(30 * 60)),
            events: EVENTS,
            target: LabelSelector::everything(),
            strategy: Strategy::default(),
            undeclared_children: false,
            proxies: runtime::proxies::Proxies::default(),
            metrics: Metrics::default(),
            ready: Ready::new(false),
        }
    }
}

/// Runs until `stop` is cancelled; every task it started has ended when it returns. The CRDs may be installed
/// before or later.
///
/// # Errors
///
/// If a task fails or panics.
pub fn run(
    client: Client,
    config: Config,
    stop: CancellationToken,
) -> BoxFuture<'static, Result<(), runtime::TaskError>> {
    Tasks::run(stop, move |tasks| start(tasks, client, config))
}

fn start(tasks: &mut Tasks, client: Client, config: Config) {
    let stop = tasks.token().clone();
    let rest = Rest::with_manager(client.clone(), "metacontroller");
    let (events, inbox) = Events::new();
    let caches = cache::Caches::new(client.clone(), &stop);
    let status_board = Arc::new(status_board::StatusBoard::new(rest.clone(), events.clone()));
    let shared = Arc::new(shared::Shared {
        caches: caches.clone(),
        writer: Arc::new(writes::Writer::new(rest.clone(), config.strategy)),
        mapper: Mapper::new(client.clone()),
        undeclared_children: config.undeclared_children,
        events,
        board: status_board.clone(),
        metrics: config.metrics,
        proxies: config.proxies,
        workers: config.workers.max(1),
        flush: config.cache_flush_interval,
        again: config.discovery_interval,
        stop: stop.clone(),
    });
    let host = host::Host::new(shared, rest.clone(), config.target, config.discovery_interval);
    let said = CancellationToken::new();
    let silence = said.clone();
    let recorder = Recorder::new(rest, "metacontroller", config.events);
    tasks.spawn_endless("events", events::write(recorder, inbox, said));
    tasks.spawn_endless("parent status", status_board.run(stop.clone()));
    tasks.depend_on("watches", caches.tasks());
    let ready = config.ready;
    tasks.spawn_endless("controllers", async move {
        host.run(|| _ = ready.send_replace(true)).await;
        caches.shutdown().await;
        // Only now have all tasks emitted their last Events.
        silence.cancel();
    });
}
