//! `kubestellar cluster detach` (SP-118): the hub's side.

use std::time::Duration;

use apis::constants::WORK_GROUP;
use runtime::failure::is_not_found;
use runtime::rest::{Gvr, Removal};
use serde_json::{Value, json};

use super::{Its, LOOK, managed_clusters};
use crate::exit::{Exit, Failure, from_kube};
use crate::printer::Printer;

/// Take clusters out of the inventory: their workload goes, then their mailbox.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  kubestellar cluster detach edge7\n  kubestellar cluster detach edge7 --force"
)]
pub(super) struct Args {
    /// Names of the clusters
    #[arg(required = true, value_name = "NAME")]
    names: Vec<String>,
    /// Do not wait for the cluster to remove its workload: it is gone for good
    #[arg(long)]
    force: bool,
    /// How long to wait for the cluster
    #[arg(long, value_name = "DURATION", default_value = "10m", value_parser = crate::duration::parse)]
    timeout: Duration,
}

pub(super) async fn run(args: &Args, its: &Its, out: &Printer) -> Result<Exit, Failure> {
    for name in &args.names {
        detach(args, its, name).await?;
        out.result(&format!("{name} detached"));
    }
    Ok(Exit::Done)
}

async fn detach(args: &Args, its: &Its, name: &str) -> Result<(), Failure> {
    let what = || format!("detaching {name}");
    let failed = |error: kube::Error| from_kube(what(), &error);
    its.rest.delete(&managed_clusters(), "", name, &Removal::default()).await.map_err(failed)?;
    let deadline = tokio::time::Instant::now() + args.timeout;
    loop {
        let found: Option<Value> = its.rest.find(&managed_clusters(), "", name).await.map_err(failed)?;
        let Some(cluster) = found else { break };
        if args.force {
            release(its, name).await.map_err(failed)?;
        }
        if tokio::time::Instant::now() > deadline {
            return Err(Failure::new(Exit::TimedOut, what(), waits_for(&cluster))
                .hint("if the cluster is gone for good: --force"));
        }
        tokio::time::sleep(LOOK).await;
    }
    match its.rest.delete(&Gvr::new("", "v1", "namespaces"), "", name, &Removal::default()).await {
        Err(error) if !is_not_found(&error) => Err(failed(error)),
        _ => Ok(()),
    }
}

/// Returns what the hub waits for, according to its conditions.
fn waits_for(cluster: &Value) -> String {
    let conditions = cluster.pointer("/status/conditions").and_then(Value::as_array);
    let deleting = conditions.into_iter().flatten().find(|c| c.get("type") == Some(&json!("Deleting")));
    let message = deleting.and_then(|c| c.get("message")).and_then(Value::as_str);
    message.unwrap_or("the cluster has not gone").to_owned()
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
