//! The status controller: brings reported state back from the clusters (§5 of the behaviour that users know).
//!
//! * [`decision`]: what is to become of one object's `.status` and bookkeeping labels; pure (KS-150 … KS-159).
//! * `reports`: the WorkStatus objects by what they are about.
//! * `collectors`: the condition that tells whether a Binding's StatusCollectors are there (KS-172).
//!
//! Aggregation over several WECs (KS-160 ff.) enters as another answer to [`decision::Decision::Aggregate`];
//! CombinedStatus (KS-170 ff.) as another kind of [`StatusItem`], beside what is here. Neither is done
//! yet: an object that asks for aggregation over more than one WEC has its returned status cleared, and its
//! policy says so.
//!
//! One report costs one read of the object, and a write if its status differs; an event of an object that
//! neither has nor had to do with reported state costs nothing.

mod collectors;
pub mod decision;
mod objects;
mod reports;

use std::sync::Arc;

use apis::control::{StatusCollector, WorkStatus};
use kube::Client;
use runtime::{Source, Store, TaskError, Tasks, informer, work};
use tokio_util::sync::CancellationToken;

use crate::{
    Config,
    shared::{Shared, StatusItem},
};
use objects::Returner;
use reports::Reports;

const WORKERS: usize = 4;

/// Runs the status controller until `stop` is cancelled. It does nothing as long as the ITS doesn't serve
/// WorkStatus objects; the binding controller doesn't wait for it (KS-148).
pub(crate) async fn run(
    wds: Client,
    its: Client,
    config: Config,
    shared: Arc<Shared>,
    stop: CancellationToken,
) -> Result<(), TaskError> {
    let Some(queue) = shared.status_queue().cloned() else { return Ok(()) };
    let mut tasks = Tasks::new(&stop);
    let token = tasks.token().clone();
    let reports = Arc::new(Reports::new(&config.wds_name));
    let works = Store::default();
    let (index, teller) = (reports.clone(), shared.clone());
    let on_work = move |event| {
        for id in index.take(event) {
            teller.tell_status(StatusItem::Object(id));
        }
    };
    let source = Source::of::<WorkStatus>();
    tasks.spawn_endless(
        "WorkStatus informer",
        informer::run(its, source, works.clone(), on_work, token.clone()),
    );
    let (source, collectors, teller) = (Source::of::<StatusCollector>(), Store::default(), shared.clone());
    let on_collector = move |event: runtime::Event<StatusCollector>| {
        let name = event.object().and_then(|it| it.metadata.name.as_deref()).unwrap_or_default();
        let users = teller.world.lock().policies_with_collector(name);
        for policy in users {
            teller.tell_status(StatusItem::Binding(policy));
        }
    };
    let follow = informer::run(wds.clone(), source, collectors.clone(), on_collector, token.clone());
    tasks.spawn_endless("collector informer", follow);
    let returner = Arc::new(Returner::new(wds, shared.clone(), reports, works.clone(), collectors.clone()));
    let worker = async move {
        let ready = async {
            // The sender lives in `shared`, so the wait can't fail.
            let _ = shared.complete.subscribe().wait_for(|complete| *complete).await;
            works.synced().await;
            collectors.synced().await;
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
    tasks.finish().await
}
