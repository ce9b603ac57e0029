//! `kubestellar cluster detach` (SP-118): the hub's side.

use std::fmt::Write as _;
use std::time::Duration;

use apis::constants::WORK_GROUP;
use runtime::failure::is_not_found;
use runtime::rest::{Gvr, Removal};
use serde_json::{Value, json};

use super::{Its, LOOK, managed_clusters};
use crate::exit::{Exit, Failure, from_kube};
use crate::printer::Printer;

/// Take clusters out of the inventory: their workload goes, then their mailbox.
///
/// The agent in the cluster removes the workload, so it must still run: end it afterwards, and remove what it had in the cluster
/// with `kubestellar cluster leave`. A cluster that left before, or is gone for good, removes nothing any more: take it out with
/// --force. Simulated clusters of `up` need no `leave`; `up --clusters N` brings them back.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  kubestellar cluster detach edge7\n  kubestellar cluster detach edge7 --force   # it has left already, or is gone for good"
)]
pub(super) struct Args {
    /// Names of the clusters
    #[arg(required = true, value_name = "NAME")]
    names: Vec<String>,
    /// Do not wait for the cluster to remove its workload: it has left already, or is gone for good
    #[arg(long)]
    force: bool,
    /// How long to wait for the cluster
    #[arg(long, value_name = "DURATION", default_value = "10m", value_parser = crate::duration::parse)]
    timeout: Duration,
}

pub(super) async fn run(args: &Args, its: &Its, out: &Printer) -> Result<Exit, Failure> {
    for name in &args.names {
        detach(args, its, name, out).await?;
        out.result(&format!("{name} detached"));
    }
    Ok(Exit::Done)
}

async fn detach(args: &Args, its: &Its, name: &str, out: &Printer) -> Result<(), Failure> {
    let what = || format!("detaching {name}");
    let failed = |error: kube::Error| from_kube(what(), &error);
    let asked = its.rest.delete(&managed_clusters(), "", name, &Removal::default()).await;
    asked.map_err(|error| super::failed(&what(), &error))?;
    let begun = tokio::time::Instant::now();
    let mut said = String::new();
    loop {
        let found: Option<Value> = its.rest.find(&managed_clusters(), "", name).await.map_err(failed)?;
        let Some(cluster) = found else { break };
        if args.force {
            release(its, name).await.map_err(failed)?;
        }
        let waits = waits_for(&cluster);
        if begun.elapsed() > args.timeout {
            return Err(Failure::new(Exit::TimedOut, what(), waits).hint(FORCE));
        }
        if begun.elapsed() > QUIET && waits != said {
            out.note(&format!("{name}: {waits}"));
            said = waits;
        }
        tokio::time::sleep(LOOK).await;
    }
    match its.rest.delete(&Gvr::new("", "v1", "namespaces"), "", name, &Removal::default()).await {
        Err(error) if !is_not_found(&error) => Err(failed(error)),
        _ => Ok(()),
    }
}

/// A departure that takes less is not talked about while it lasts.
const QUIET: Duration = Duration::from_secs(1);
const FORCE: &str = "if the cluster has left already, or is gone for good: --force";

/// Returns what the hub waits for, according to its conditions, and whether the cluster's agent can do it.
fn waits_for(cluster: &Value) -> String {
    let conditions = cluster.pointer("/status/conditions").and_then(Value::as_array);
    let condition =
        |type_: &str| conditions.into_iter().flatten().find(|c| c.get("type") == Some(&json!(type_)));
    let text = |type_: &str, field: &str| condition(type_)?.get(field)?.as_str();
    let message = text("Deleting", "message").filter(|message| !message.is_empty());
    let mut waits = message.unwrap_or("waiting for the hub to begin").to_owned();
    if text("ManagedClusterConditionAvailable", "status") != Some("True") {
        let _ = write!(waits, "; the cluster's agent does not answer: {FORCE}");
    }
    waits
}

/// Removes the finalizers of works that no agent will remove from the cluster any more.
async fn release(its: &Its, name: &str) -> Result<(), kube::Error> {
    let gvr = Gvr::new(WORK_GROUP, "v1", "manifestworks");
    let works: Value = its.rest.list(&gvr, name, "").await?;
    for work in works.get("items").and_then(Value::as_array).into_iter().flatten() {
        let Some(work) = work.pointer("/metadata/name").and_then(Value::as_str) else { continue };
        let patch = json!({"metadata": {"finalizers": null}});
        match its.rest.merge::<Value>(&gvr, name, work, &patch).await {
            Err(error) if !is_not_found(&error) => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// SP-118: the command says what the hub waits for, and that nobody can do it if the agent does not answer.
    #[test]
    fn sp_118_a_departure_that_waits_says_for_what() {
        let cluster = |available: &str| {
            let condition = |type_: &str, status: &str, message: &str| json!({"type": type_, "status": status, "message": message});
            json!({"status": {"conditions": [condition("Deleting", "False", "3 manifestworks remain"),
                condition("ManagedClusterConditionAvailable", available, "")]}})
        };
        assert_eq!(waits_for(&cluster("True")), "3 manifestworks remain");
        let lost = waits_for(&cluster("Unknown"));
        assert!(lost.starts_with("3 manifestworks remain; ") && lost.contains("--force"), "{lost}");
    }
}
