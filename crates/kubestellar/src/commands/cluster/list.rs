//! `kubestellar cluster list` (SP-114).

use std::collections::BTreeMap;
use std::time::Duration;

use apis::constants::{CLUSTER_SET_LABEL, WORK_GROUP};
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
            let header = ["NAME", "ACCEPTED", "JOINED", "AVAILABLE", "CLUSTERSET", "LABELS", "WORKS", "AGE"];
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
        set_of(cluster).unwrap_or("<none>").to_owned(),
        labels,
        works.get(name.as_str()).copied().unwrap_or_default().to_string(),
        old.map_or_else(|| "<unknown>".to_owned(), |old: Duration| age(old)),
    ]
}

/// The ManagedClusterSet that a cluster is in.
pub(super) fn set_of(cluster: &ManagedCluster) -> Option<&str> {
    cluster.metadata.labels.as_ref()?.get(CLUSTER_SET_LABEL).map(String::as_str).filter(|set| !set.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// SP-114, OCM-042: who may come into a set is decided by who accepts clusters, so the set is seen.
    #[test]
    fn sp_114_the_set_of_a_cluster_is_shown() {
        let cluster = |labels: Value| -> ManagedCluster {
            serde_json::from_value(json!({"apiVersion": "cluster.open-cluster-management.io/v1",
                "kind": "ManagedCluster", "metadata": {"name": "edge7", "labels": labels}}))
            .unwrap()
        };
        let shown = |labels: Value| row(&cluster(labels), &BTreeMap::new(), Timestamp::UNIX_EPOCH);
        let member = shown(json!({CLUSTER_SET_LABEL: "payments", "env": "prod"}));
        assert_eq!((member[4].as_str(), member[5].as_str()), ("payments", "env=prod"));
        assert_eq!(shown(json!({}))[4], "<none>");
    }
}
