//! `kubestellar space stop` and `start` (SP-050).

use std::time::Duration;

use apis::tenancy::ControlPlane;
use serde_json::{Value, json};
use space_manager::names::SUSPENDED;

use super::{Host, is_available, planes};
use crate::exit::{Exit, Failure, from_kube};
use crate::printer::Printer;

/// Stop spaces and keep their data. Requests to them are answered with 503 until they are started.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  kubestellar space stop team-a")]
pub(super) struct StopArgs {
    #[command(flatten)]
    which: Which,
}

/// Start spaces that were stopped.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  kubestellar space start team-a")]
pub(super) struct StartArgs {
    #[command(flatten)]
    which: Which,
}

#[derive(Debug, clap::Args)]
struct Which {
    /// Names of the spaces
    #[arg(required = true, value_name = "NAME")]
    names: Vec<String>,
    /// How long to wait
    #[arg(long, value_name = "DURATION", default_value = "1m", value_parser = crate::duration::parse)]
    timeout: Duration,
}

pub(super) async fn stop(args: &StopArgs, host: &Host, out: &Printer) -> Result<Exit, Failure> {
    annotate(&args.which, host, &json!("true"), ("stopping", "stopped"), &is_paused, out).await
}

pub(super) async fn start(args: &StartArgs, host: &Host, out: &Printer) -> Result<Exit, Failure> {
    annotate(&args.which, host, &Value::Null, ("starting", "started"), &is_available, out).await
}

async fn annotate(
    which: &Which,
    host: &Host,
    value: &Value,
    (doing, done): (&str, &str),
    reached: &(dyn Fn(&ControlPlane) -> bool + Sync),
    out: &Printer,
) -> Result<Exit, Failure> {
    for name in &which.names {
        let what = format!("{doing} {name}");
        host.get(&what, name).await?;
        let patch = json!({"metadata": {"annotations": {SUSPENDED: value}}});
        let patched = host.rest.merge::<Value>(&planes(), "", name, &patch).await;
        patched.map_err(|error| from_kube(&what, &error))?;
        host.until(&what, name, which.timeout, &|plane| plane.is_some_and(reached)).await?;
        out.result(&format!("{name} {done}"));
    }
    Ok(Exit::Done)
}

fn is_paused(plane: &ControlPlane) -> bool {
    let conditions = plane.status.iter().flat_map(|status| &status.conditions);
    conditions.into_iter().any(|one| one.type_ == "Synced" && one.reason == "ReconcilePaused")
}
