//! The status controller returns reported state from the clusters (§5 of the published behaviour).
//!
//! * [`decision`]: decides about one object's `.status` and bookkeeping labels; pure (KS-150 … KS-159).
//! * [`aggregate`]: aggregates the statuses of many WECs into one; pure (KS-160 … KS-169).
//! * [`query`]: validates and compiles StatusCollectors and evaluates them for one WEC; pure (KS-170 …
//!   KS-178).
//! * [`sight`]: how much of an object the expressions may see; pure (KS-176).
//! * [`combine`]: combines the rows into the answers of a CombinedStatus; pure (KS-179 … KS-186). [`table`]
//!   keeps the rows between events, [`combined`] renders the other parts of the object.
//! * `reports`: indexes WorkStatus objects by the object they are about. `collectors`: the StatusCollectors,
//!   and the condition about missing ones. `settled`: remembers which objects are as they should be as long
//!   as nothing changes.
//! * `objects` and `results` are the shell.
//!
//! Cost of one report: if the status of its object is requested, one read of the object, and a write if its
//! status differs; if StatusCollectors are requested, one row for each of them, and a write if an answer
//! differs. An event of an object without reported state, now or before, costs nothing.

pub mod aggregate;
mod collectors;
pub mod combine;
pub mod combined;
pub mod decision;
mod error;
#[cfg(test)]
mod examples;
mod objects;
pub mod query;
mod reports;
mod results;
mod settled;
pub mod sight;
pub mod table;

use std::{sync::Arc, time::Duration};

use apis::{
    constants::STATUS_MANAGER,
    control::{CombinedStatus, StatusCollector, WorkStatus},
};
use kube::Client;
use runtime::{Backoff, Event, Inputs, Source, Store, Tasks, rest::Rest, work};
use tokio_util::sync::CancellationToken;

use crate::{
    Config,
    shared::{Shared, StatusItem},
};
use collectors::Collectors;
use objects::StatusReturner;
use reports::{Reports, WorkFacts};
use results::Combiner;

const WORKERS: usize = 4;

/// Starts the status controller, unless it is switched off. It does nothing as long as the ITS does not serve
/// WorkStatus objects; the binding controller does not wait for it (KS-148).
pub(crate) fn start(tasks: &mut Tasks, wds: Client, its: &Client, config: Config, shared: Arc<Shared>) {
    let Some(queue) = shared.status_queue().cloned() else { return };
    queue.clone().observed(config.metrics.queue(&format!("Status-{}", config.wds_name)));
    let token = tasks.token().clone();
    let (reports, collectors) = (Arc::new(Reports::new(&config.wds_name)), Arc::new(Collectors::default()));
    let (specs, published) = (Store::default(), Store::default());
    let combiner = Arc::new(Combiner::new(
        wds.clone(),
        shared.clone(),
        reports.clone(),
        collectors.clone(),
        published.clone(),
        config.collectors_read_secrets,
    ));

    let mut inputs = Inputs::new(tasks);
    let (index, to, combined) = (reports.clone(), shared.clone(), combiner.clone());
    inputs.follow(its, Source::of::<WorkStatus>(), &Store::default(), move |event: Event<WorkFacts>| {
        for id in index.take(event) {
            combined.reported(&id);
            to.enqueue_status(StatusItem::Object(id));
        }
    });
    let to = shared.clone();
    inputs.follow(&wds, Source::of::<StatusCollector>(), &specs, move |event: Event<StatusCollector>| {
        if let Some(name) = event.object().and_then(|it| it.metadata.name.as_deref()) {
            to.enqueue_status(StatusItem::Collector(name.into()));
        }
    });
    let combined = combiner.clone();
    inputs.follow(&wds, Source::of::<CombinedStatus>(), &published, move |event| combined.seen(&event));
    let synced = inputs.synced();

    let (rest, waiting) = (Rest::with_manager(wds.clone(), STATUS_MANAGER), token.clone());
    tasks.spawn_endless("report namespace", async move { report_namespace(&rest, &waiting).await });

    let returner =
        Arc::new(StatusReturner::new(wds, shared.clone(), reports, collectors, specs.clone(), combiner));
    let worker = async move {
        let ready = async {
            // The sender lives in `shared`, so the wait cannot fail.
            let _ = shared.complete.subscribe().wait_for(|complete| *complete).await;
            synced.await;
        };
        tokio::select! {
            () = ready => {}
            () = token.cancelled() => return,
        }
        returner.begin();
        tracing::info!(wds = config.wds_name, "the status controller works");
        work("status", &queue, WORKERS, &token, move |item| {
            let returner = returner.clone();
            async move { returner.sync(item).await }
        })
        .await;
    };
    tasks.spawn_endless("status workers", worker);
}

/// Creates the namespace for CombinedStatus objects about cluster-scoped objects, once.
async fn report_namespace(rest: &Rest, stop: &CancellationToken) {
    let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(60));
    while let Err(error) = results::ensure_namespace(rest).await {
        tracing::warn!(%error, "creating the namespace of reports; will be tried again");
        tokio::select! {
            () = tokio::time::sleep(backoff.pause()) => {}
            () = stop.cancelled() => return,
        }
    }
}
