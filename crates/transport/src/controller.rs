//! The transport controller: its parts, and how they run together.
//!
//! * [`state`] is what the controller knows: one plain struct; each event returns the work that it makes
//!   necessary. [`adaptation`], [`memory`] and [`crate::wrapped`] are its parts. [`shared`] has the one lock
//!   around it, and the queues.
//! * [`inputs`] are the watches, [`sync`] the workers: one Binding is processed by one worker at a time.
//! * [`packing`], [`expansion`], [`older_forms`] and [`layout`] decide what belongs into the envelopes,
//!   [`mailbox_plan`] and [`crate::plan`] what is written into one mailbox. They are pure.
//! * [`deliver`] and [`mailbox`] carry the plans out, several mailboxes at a time. In debug builds every plan
//!   is checked before ([`crate::plan::check_plan`]).
//!
//! Cost of one event of a Binding with N objects and M destinations, in requests: the changed objects, plus
//! the envelopes whose contents changed (M for one object), plus one status write. In memory the cost is O(N
//! log N + M), as long as no other client changes the envelopes and no object requests customisation.

mod adaptation;
mod config;
mod deliver;
mod expansion;
mod fitting;
mod gauges;
mod inputs;
mod layout;
mod mailbox;
mod mailbox_plan;
mod memory;
mod older_forms;
mod packing;
mod refresh;
mod shared;
mod state;
mod sync;
mod watched;
mod work;

use std::sync::Arc;

use apis::constants::{PROPERTIES_NAMESPACE, TRANSPORT_MANAGER};
use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::Namespace;
use kube::Client;
use runtime::{
    TaskError, Tasks,
    rest::{Gvr, Rest},
    retry_until_done, work as run_workers,
};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::write::Writer;
use mailbox::Mailboxes;
use shared::Shared;
use sync::Syncer;

pub use config::Config;

/// Runs until `stop` is cancelled. Returns after every task it started has ended.
///
/// # Errors
///
/// If a task of the controller panics.
pub fn run(
    wds: Client,
    its: Client,
    config: Config,
    stop: CancellationToken,
) -> BoxFuture<'static, Result<(), TaskError>> {
    Tasks::run(stop, move |tasks| start(tasks, wds, its, config))
}

fn start(tasks: &mut Tasks, wds: Client, its: Client, config: Config) {
    let stop = tasks.token().clone();
    let hub = Rest::with_manager(its.clone(), TRANSPORT_MANAGER);
    let writer = Writer::new(hub.clone(), config.transport.kind());
    let shared = Arc::new(Shared::new(config));
    tasks.spawn_endless("Bindings", inputs::follow_bindings(shared.clone(), wds.clone(), stop.clone()));
    tasks.spawn_endless(
        "CustomTransforms",
        inputs::follow_transforms(shared.clone(), wds.clone(), stop.clone()),
    );
    tasks
        .spawn_endless("ManagedClusters", inputs::follow_clusters(shared.clone(), its.clone(), stop.clone()));
    tasks
        .spawn_endless("properties", inputs::follow_property_maps(shared.clone(), its.clone(), stop.clone()));
    tasks.spawn_endless(
        "envelopes",
        inputs::follow_envelopes(shared.clone(), its, writer.clone(), stop.clone()),
    );
    tasks.spawn_endless("namespace of properties", ensure_properties_namespace(hub, stop.clone()));
    tasks.spawn_endless(
        "refreshes",
        refresh::refresh_annotations(shared.clone(), writer.clone(), stop.clone()),
    );
    let syncer =
        Syncer::new(Rest::with_manager(wds, TRANSPORT_MANAGER), Mailboxes { shared: shared.clone(), writer });
    tasks.spawn_endless("workers", process(shared, syncer, stop));
}

/// Processes the queue, once every input is completely listed.
async fn process(shared: Arc<Shared>, syncer: Syncer, stop: CancellationToken) {
    tokio::select! {
        () = stop.cancelled() => return,
        () = shared.complete.cancelled() => {}
    }
    shared.config.ready.send_replace(true);
    let syncer = Arc::new(syncer);
    run_workers("transport", &shared.queue, shared.config.concurrency, &stop, move |work| {
        let syncer = syncer.clone();
        async move { syncer.process(work).await }
    })
    .await;
}

/// KS-135: creates the namespace of property ConfigMaps, with retries. Nothing waits for it.
async fn ensure_properties_namespace(its: Rest, stop: CancellationToken) {
    let gvr = Gvr::of::<Namespace>();
    let body = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": PROPERTIES_NAMESPACE}});
    let make = || its.ensure(&gvr, "", PROPERTIES_NAMESPACE, &body);
    retry_until_done("the namespace of property ConfigMaps", &stop, make).await;
}
