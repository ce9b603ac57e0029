//! Metacontroller: controllers as a service. What a controller decides is asked of webhooks; watching, owning, applying,
//! retrying and reporting are done here. Compatible with the Go program of the same name, and with a MapController
//! beside its Composite- and DecoratorController.
//!
//! * [`map`]: the MapController.
//! * [`sync`]: Composite- and DecoratorController.
//! * [`host`]: which controllers run.
//! * [`hooks`], [`wire`]: webhooks and what is said to them.
//! * [`apply`], [`writes`]: from wanted to real objects.
//! * [`cache`], [`selecting`], [`lanes`], [`pace`], [`board`], [`metrics`], [`conditions`],
//!   [`definitions`]: what controllers share.
//!
//! Decisions are pure (`map::{answer, group, key, parents, selector, status}`, [`apply`], [`lanes`], [`selecting`], [`wire`]);
//! the rest is a shell around them.

pub mod apply;
pub mod board;
pub mod cache;
pub mod conditions;
pub mod definitions;
pub mod hooks;
pub mod host;
pub mod lanes;
pub mod map;
pub mod metrics;
pub mod object;
pub mod pace;
pub mod resource;
pub mod selecting;
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

pub use hooks::Proxies;
pub use metrics::Metrics;
pub use writes::Strategy;

/// Events of one object: one in five minutes, 25 at once (MC-200).
const EVENTS: Rate = Rate { qps: 1.0 / 300.0, burst: 25 };

/// How Metacontroller runs (MC-200).
pub struct Config {
    /// Items at a time for each hosted controller.
    pub workers: usize,
    /// Longest pause before something that isn't served is asked for again.
    pub discovery_interval: Duration,
    /// How often everything is looked at though nothing changed.
    pub cache_flush_interval: Option<Duration>,
    /// Events of one object.
    pub events: Rate,
    /// Which controller objects are run.
    pub target: LabelSelector,
    /// How wanted objects are brought about.
    pub strategy: Strategy,
    /// Children and attachments that no rule declares are made all the same (MC-149).
    pub undeclared_children: bool,
    /// Between us and hooks.
    pub proxies: Proxies,
    /// What is counted.
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
            proxies: Proxies::default(),
            metrics: Metrics::default(),
            ready: Ready::new(false),
        }
    }
}

/// Runs until `stop` is cancelled; everything it started has ended when it returns. The CRDs must be there, or be
/// installed some time.
pub fn run(
    client: Client,
    config: Config,
    stop: CancellationToken,
) -> BoxFuture<'static, Result<(), runtime::TaskError>> {
    Box::pin(drive(client, config, stop))
}

async fn drive(client: Client, config: Config, stop: CancellationToken) -> Result<(), runtime::TaskError> {
    let mut tasks = Tasks::new(&stop);
    let stop = tasks.token().clone();
    let rest = Rest::with_manager(client.clone(), "metacontroller");
    let (events, inbox) = Events::new();
    let caches = cache::Caches::new(client.clone(), &stop);
    let board = Arc::new(board::Board::new(rest.clone(), events.clone()));
    let shared = Arc::new(host::Shared {
        caches: caches.clone(),
        writer: Arc::new(writes::Writer::new(rest.clone(), config.strategy)),
        mapper: Mapper::new(client.clone()),
        undeclared_children: config.undeclared_children,
        events,
        board: board.clone(),
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
    tasks.spawn_endless("parent status", board.run(stop.clone()));
    let broken = caches.broken().clone();
    tasks.spawn("watches", async move {
        tokio::select! {
            () = broken.cancelled() => Err("one of them panicked"),
            () = stop.cancelled() => Ok(()),
        }
    });
    let ready = config.ready;
    tasks.spawn_endless("controllers", async move {
        host.run(|| _ = ready.send_replace(true)).await;
        caches.shutdown().await;
        // Only now has everybody said what there was to say.
        silence.cancel();
    });
    tasks.finish().await
}
