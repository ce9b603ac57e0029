//! `kubestellar cluster label` and `kubestellar cluster props`.

use apis::constants::PROPERTIES_NAMESPACE;
use runtime::failure::is_clash;
use runtime::rest::Gvr;
use serde_json::{Map, Value, json};

use super::{Its, failed, managed_clusters};
use crate::exit::{Exit, Failure, from_kube};
use crate::printer::Printer;

/// Change labels of a cluster, by which policies select it.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  kubestellar cluster label edge7 location-group=edge\n  kubestellar cluster label edge7 location-group-"
)]
pub(super) struct LabelArgs {
    /// Name of the cluster
    name: String,
    /// KEY=VALUE to set, KEY- to remove
    #[arg(required = true, value_name = "CHANGE", value_parser = change)]
    changes: Vec<(String, Option<String>)>,
    /// Change labels that have another value
    #[arg(long)]
    overwrite: bool,
}

/// Set properties of a cluster, for the expansion of templates.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  kubestellar cluster props edge7 clusterURL=https://edge7.example:6443")]
pub(super) struct PropsArgs {
    /// Name of the cluster
    name: String,
    /// KEY=VALUE to set, KEY- to remove
    #[arg(required = true, value_name = "CHANGE", value_parser = change)]
    changes: Vec<(String, Option<String>)>,
}

fn change(text: &str) -> Result<(String, Option<String>), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), Some(value.to_owned()))),
        None if text.len() > 1 && text.ends_with('-') => Ok((text.trim_end_matches('-').to_owned(), None)),
        _ => Err(format!("{text:?} is neither KEY=VALUE nor KEY-")),
    }
}

fn patch_of(changes: &[(String, Option<String>)]) -> Value {
    let all: Map<String, Value> = changes
        .iter()
        .map(|(key, value)| (key.clone(), value.clone().map_or(Value::Null, Value::from)))
        .collect();
    Value::Object(all)
}

pub(super) async fn label(args: &LabelArgs, its: &Its, out: &Printer) -> Result<Exit, Failure> {
    let (name, what) = (args.name.as_str(), format!("labelling {}", args.name));
    let cluster: Value =
        its.rest.get(&managed_clusters(), "", name).await.map_err(|error| failed(&what, &error))?;
    let have = cluster.pointer("/metadata/labels");
    for (key, value) in &args.changes {
        let old = have.and_then(|labels| labels.get(key)).and_then(Value::as_str);
        if let (Some(old), Some(new), false) = (old, value.as_deref(), args.overwrite)
            && old != new
        {
            return Err(Failure::new(Exit::Conflict, what, format!("{key} is {old:?} already"))
                .hint("change it with --overwrite"));
        }
    }
    let patch = json!({"metadata": {"labels": patch_of(&args.changes)}});
    its.rest
        .merge::<Value>(&managed_clusters(), "", name, &patch)
        .await
        .map_err(|error| from_kube(&what, &error))?;
    out.result(&format!("managedcluster/{name} labeled"));
    Ok(Exit::Done)
}

pub(super) async fn props(args: &PropsArgs, its: &Its, out: &Printer) -> Result<Exit, Failure> {
    let (name, what) = (args.name.as_str(), format!("setting properties of {}", args.name));
    let failed = |error: kube::Error| from_kube(&what, &error);
    its.rest
        .get::<Value>(&managed_clusters(), "", name)
        .await
        .map_err(|error| super::failed(&what, &error))?;
    let (namespaces, maps) = (Gvr::new("", "v1", "namespaces"), Gvr::new("", "v1", "configmaps"));
    for (gvr, namespace, body) in [
        (
            &namespaces,
            "",
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": PROPERTIES_NAMESPACE}}),
        ),
        (
            &maps,
            PROPERTIES_NAMESPACE,
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}}),
        ),
    ] {
        match its.rest.create::<Value>(gvr, namespace, body.to_string().into_bytes()).await {
            Err(error) if !is_clash(&error) => return Err(failed(error)),
            _ => {}
        }
    }
    let patch = json!({"data": patch_of(&args.changes)});
    its.rest.merge::<Value>(&maps, PROPERTIES_NAMESPACE, name, &patch).await.map_err(failed)?;
    out.result(&format!("configmap/{name} in {PROPERTIES_NAMESPACE} changed"));
    Ok(Exit::Done)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sp_114_changes_are_as_in_kubectl() {
        assert_eq!(change("a=b"), Ok(("a".into(), Some("b".into()))));
        assert_eq!(change("a="), Ok(("a".into(), Some(String::new()))));
        assert_eq!(change("a-"), Ok(("a".into(), None)));
        for bad in ["", "-", "=b", "a"] {
            assert!(change(bad).is_err(), "{bad}");
        }
    }
}
