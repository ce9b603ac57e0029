//! The components alone, each against kubeconfigs (SP-126, KS-215): what runs inside `up` is the same code.

pub(crate) mod controller_manager;
pub(crate) mod ocm;
pub(crate) mod status_agent;
pub(crate) mod transport_controller;
pub(crate) mod work_agent;

use std::future::Future;

use tokio_util::sync::CancellationToken;

use crate::exit::{Exit, Failure, chain};
use crate::signals::stop_token;

/// Runs a component until Ctrl-C or SIGTERM, and returns once everything it started has ended.
async fn until_stopped<F, E>(
    name: &str,
    component: impl FnOnce(CancellationToken) -> F,
) -> Result<Exit, Failure>
where
    F: Future<Output = Result<(), E>>,
    E: std::error::Error + 'static,
{
    let stop = stop_token();
    tracing::info!(component = name, "starting");
    let outcome = component(stop).await;
    tracing::info!(component = name, "stopped");
    outcome
        .map(|()| Exit::Done)
        .map_err(|error| Failure::new(Exit::Failed, format!("running the {name}"), chain(&error)))
}

/// Says in the log when a component is ready.
fn announce(name: &'static str) -> (tokio::sync::watch::Sender<bool>, impl Future<Output = ()>) {
    let (sender, mut receiver) = tokio::sync::watch::channel(false);
    let announced = async move {
        if receiver.wait_for(|ready| *ready).await.is_ok() {
            tracing::info!(component = name, "ready");
        }
        std::future::pending::<()>().await;
    };
    (sender, announced)
}

/// Runs both; the first is what counts.
async fn with<T>(main: impl Future<Output = T>, beside: impl Future<Output = ()>) -> T {
    tokio::select! {
        outcome = main => outcome,
        () = beside => unreachable!("announcements never end"),
    }
}
