//! `kubestellar cluster list` (SP-114).

use std::collections::BTreeMap;
use std::time::Duration;

use apis::constants::WORK_GROUP;
use apis::ocm::ManagedCluster;
use k8s_openapi::jiff::Timestamp;
use runtime::rest::Gvr;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{Its, managed_clusters};
use crate::commands::status::age;
use crate::exit::{Exit, Failure, from_kube};
use crate::printer::{Format, Printer, table};

/// List the clusters of the inventory.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  kubestellar cluster list\n  kubestellar cluster list -l location-group=edge -o json"
)]
pub(super) struct Args {
    /// Output format
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
    /// Clusters with these labels only
    #[arg(short = 'l', long, value_name = "SELECTOR", default_value = "")]
    selector: String,
}

#[derive(Deserialize)]
struct Clusters {
    items: Vec<ManagedCluster>,
}

pub(super) async fn run(args: &Args, its: &Its, out: &Printer) -> Result<Exit, Failure> {
    let failed = |error: kube::Error| from_kube("listing the clusters", &error);
    let list: Clusters = its.rest.list(&managed_clusters(), "", &args.selector).await.map_err(failed)?;
    let works: Value =
        its.rest.list(&Gvr::new(WORK_GROUP, "v1", "manifestworks"), "", "").await.map_err(failed)?;
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for work in works.get("items").and_then(Value::as_array).into_iter().flatten() {
        let namespace = work.pointer("/metadata/namespace").and_then(Value::as_str).unwrap_or_default();
        *counts.entry(namespace).or_default() += 1;
    }
    match args.output {
        Format::Json | Format::Yaml => {
            let document = json!({"apiVersion": "cli.kubestellar.io/v1alpha1", "kind": "ClusterList", "items": list.items});
            out.document(&document, args.output)?;
        }
        Format::Name => {
            let name = |c: &ManagedCluster| {
                format!("managedcluster/{}", c.metadata.name.as_deref().unwrap_or_default())
            };
            out.result(&list.items.iter().map(name).collect::<Vec<_>>().join("\n"));
        }
        Format::Table | Format::Wide => {
            let now = Timestamp::now();
            let rows: Vec<Vec<String>> = list.items.iter().map(|c| row(c, &counts, now)).collect();
            let header = ["NAME", "ACCEPTED", "JOINED", "AVAILABLE", "LABELS", "WORKS", "AGE"];
            out.result(&table(&header, &rows));
        }
    }
    Ok(Exit::Done)
}

fn row(cluster: &ManagedCluster, works: &BTreeMap<&str, usize>, now: Timestamp) -> Vec<String> {
    let name = cluster.metadata.name.clone().unwrap_or_default();
    let condition = |type_: &str| {
        let conditions = cluster.status.as_ref().map(|s| s.conditions.as_slice()).unwrap_or_default();
        conditions.iter().find(|c| c.type_ == type_).map_or_else(|| "<none>".to_owned(), |c| c.status.clone())
    };
    let labels: Vec<String> = cluster
        .metadata
        .labels
        .iter()
        .flatten()
        .filter(|(key, _)| !key.contains("open-cluster-management.io/"))
        .map(|(key, value)| format!("{key}={value}"))
        .collect();
    let labels = if labels.is_empty() { "<none>".to_owned() } else { labels.join(",") };
    let made = cluster.metadata.creation_timestamp.as_ref();
    let old = made.map(|at| now.duration_since(at.0).unsigned_abs());
    vec![
        name.clone(),
        cluster.spec.hub_accepts_client.to_string(),
        condition("ManagedClusterJoined"),
        condition("ManagedClusterConditionAvailable"),
        labels,
        works.get(name.as_str()).copied().unwrap_or_default().to_string(),
        old.map_or_else(|| "<unknown>".to_owned(), |old: Duration| age(old)),
    ]
}
