//! `kubestellar space list` (SP-110).

use std::collections::BTreeMap;

use apis::constants::CP_TYPE_LABEL;
use apis::tenancy::ControlPlane;
use k8s_openapi::jiff::Timestamp;
use serde::Deserialize;
use serde_json::json;

use super::{Host, condition, planes};
use crate::commands::status::age;
use crate::control;
use crate::exit::{Exit, Failure, from_kube};
use crate::printer::{Format, Printer, table};

/// List the spaces.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  kubestellar space list\n  kubestellar space list -l kflex.kubestellar.io/cptype=wds -o name"
)]
pub(super) struct Args {
    /// Output format
    #[arg(short, long, value_enum, default_value_t)]
    output: Format,
    /// Spaces with these labels only
    #[arg(short = 'l', long, value_name = "SELECTOR", default_value = "")]
    selector: String,
}

#[derive(Deserialize)]
struct Planes {
    items: Vec<ControlPlane>,
}

pub(super) async fn run(args: &Args, host: &Host, out: &Printer) -> Result<Exit, Failure> {
    let list: Planes = host
        .rest
        .list(&planes(), "", &args.selector)
        .await
        .map_err(|error| from_kube("listing the spaces", &error))?;
    match args.output {
        Format::Json | Format::Yaml => {
            let document = json!({"apiVersion": "cli.kubestellar.io/v1alpha1", "kind": "SpaceList", "items": list.items});
            out.document(&document, args.output)?;
        }
        Format::Name => {
            let name = |plane: &ControlPlane| format!("controlplane/{}", name_of(plane));
            out.result(&list.items.iter().map(name).collect::<Vec<_>>().join("\n"));
        }
        Format::Table | Format::Wide => {
            let wide = args.output == Format::Wide;
            let objects = if wide { objects(host).await } else { BTreeMap::new() };
            let now = Timestamp::now();
            let rows: Vec<Vec<String>> =
                list.items.iter().map(|plane| row(plane, wide.then_some(&objects), now)).collect();
            let mut header = vec!["NAME", "ROLE", "TYPE", "SYNCED", "READY", "AGE"];
            if wide {
                header.extend(["URL", "OBJECTS", "HOOKS"]);
            }
            out.result(&table(&header, &rows));
        }
    }
    Ok(Exit::Done)
}

/// The number of objects of each space, as far as the server on this machine knows it.
async fn objects(host: &Host) -> BTreeMap<String, usize> {
    let Some(data) = &host.data else { return BTreeMap::new() };
    let status = control::status(data).await.ok();
    let spaces = status.into_iter().flat_map(|status| status.spaces);
    spaces.map(|space| (space.name, space.objects)).collect()
}

fn name_of(plane: &ControlPlane) -> &str {
    plane.metadata.name.as_deref().unwrap_or_default()
}

/// A row of the table; of the wide one with the numbers of objects.
fn row(plane: &ControlPlane, objects: Option<&BTreeMap<String, usize>>, now: Timestamp) -> Vec<String> {
    let text = |found: Option<&str>| found.unwrap_or("<none>").to_owned();
    let label = |name: &str| plane.metadata.labels.as_ref().and_then(|all| all.get(name)).map(String::as_str);
    let made = plane.metadata.creation_timestamp.as_ref();
    let old = made.map(|at| now.duration_since(at.0).unsigned_abs());
    let mut row = vec![
        name_of(plane).to_owned(),
        text(label(CP_TYPE_LABEL)),
        plane.spec.type_.clone(),
        text(condition(plane, "Synced")),
        text(condition(plane, "Ready")),
        old.map_or_else(|| "<unknown>".to_owned(), age),
    ];
    if let Some(objects) = objects {
        let annotations = plane.metadata.annotations.as_ref();
        let url = annotations.and_then(|all| all.get(space_manager::names::URL)).map(String::as_str);
        let hooks = plane.status.as_ref().map(|status| status.post_create_hook_completed.to_string());
        row.push(text(url));
        row.push(objects.get(name_of(plane)).map_or_else(|| "<unknown>".to_owned(), usize::to_string));
        row.push(text(hooks.as_deref()));
    }
    row
}

#[cfg(test)]
mod tests {
    use super::*;

    /// SP-110: what the table shows, and what it shows of a space that has just been made.
    #[test]
    fn sp_110_rows_of_the_table() {
        let plane = |labels: serde_json::Value, status: serde_json::Value| -> ControlPlane {
            let mut plane = json!({"metadata": {"name": "a", "labels": labels, "creationTimestamp": "1970-01-01T00:00:00Z",
                "annotations": {"space.kubestellar.io/url": "https://h/spaces/a"}}, "spec": {"type": "k8s"}});
            if !status.is_null() {
                plane["status"] = status;
            }
            serde_json::from_value(plane).unwrap()
        };
        let now = Timestamp::from_second(90).unwrap();
        let fresh = plane(json!({}), json!(null));
        assert_eq!(row(&fresh, None, now), ["a", "<none>", "k8s", "<none>", "<none>", "90s"]);
        let at = "1970-01-01T00:00:00Z";
        let condition = |type_: &str| json!({"type": type_, "status": "True", "reason": "", "message": "", "lastUpdateTime": at, "lastTransitionTime": at});
        let status = json!({"conditions": [condition("Ready"), condition("Synced")], "observedGeneration": 1,
            "postCreateHookCompleted": true});
        let ready = plane(json!({CP_TYPE_LABEL: "wds"}), status);
        let objects = BTreeMap::from([("a".to_owned(), 7)]);
        let wide = ["a", "wds", "k8s", "True", "True", "90s", "https://h/spaces/a", "7", "true"];
        assert_eq!(row(&ready, Some(&objects), now), wide);
    }
}
