//! `kubestellar space delete` (SP-111, SP-053).

use std::io::{BufRead as _, IsTerminal as _};
use std::time::Duration;

use apis::constants::CP_TYPE_LABEL;
use apis::tenancy::ControlPlane;
use runtime::rest::Removal;
use serde_json::Value;

use super::{Host, planes};
use crate::exit::{Exit, Failure, from_kube};
use crate::kubeconfig;
use crate::printer::Printer;
use crate::shape::Shape;

/// Delete spaces with all their data. What they delivered to clusters stays there.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  kubestellar space delete team-a\n  kubestellar space delete a b c --yes"
)]
pub(super) struct Args {
    /// Names of the spaces
    #[arg(required = true, value_name = "NAME")]
    names: Vec<String>,
    /// Do not ask
    #[arg(short, long)]
    yes: bool,
    /// Whether to wait until the data is gone
    #[arg(long, value_name = "BOOL", default_value_t = true, action = clap::ArgAction::Set)]
    wait: bool,
    /// Keep the contexts in the kubeconfig
    #[arg(long)]
    keep_context: bool,
    /// How long to wait
    #[arg(long, value_name = "DURATION", default_value = "1m", value_parser = crate::duration::parse)]
    timeout: Duration,
}

pub(super) async fn run(args: &Args, host: &Host, out: &Printer) -> Result<Exit, Failure> {
    const WHAT: &str = "deleting spaces";
    let list: Value = host.rest.list(&planes(), "", "").await.map_err(|error| from_kube(WHAT, &error))?;
    let all: Vec<ControlPlane> = serde_json::from_value(list.get("items").cloned().unwrap_or_default())
        .map_err(|error| Failure::new(Exit::Failed, WHAT, error))?;
    let mut doomed = Vec::new();
    for name in &args.names {
        let found = all.iter().find(|plane| plane.metadata.name.as_ref() == Some(name));
        let missing = || Failure::new(Exit::NotFound, format!("deleting {name}"), "there is no such space");
        doomed.push(found.ok_or_else(missing)?);
    }
    let lost: Vec<String> = doomed.iter().flat_map(|plane| hangs_on(plane, &all)).collect();
    if !args.yes {
        confirm(&args.names, &lost, out)?;
    }
    for plane in &doomed {
        let name = plane.metadata.name.as_deref().unwrap_or_default();
        let removal = Removal { uid: plane.metadata.uid.clone(), ..Removal::default() };
        let deleted = host.rest.delete(&planes(), "", name, &removal).await;
        deleted.map_err(|error| from_kube(format!("deleting {name}"), &error))?;
    }
    for plane in doomed {
        let name = plane.metadata.name.as_deref().unwrap_or_default();
        if args.wait {
            let is_gone =
                |found: Option<&ControlPlane>| found.is_none_or(|it| it.metadata.uid != plane.metadata.uid);
            host.until(&format!("deleting {name}"), name, args.timeout, &is_gone).await?;
        }
        if !args.keep_context {
            forget_context(host, name, out)?;
        }
        out.result(&format!("{name} deleted"));
    }
    Ok(Exit::Done)
}

/// What stops working without a space (SP-053).
fn hangs_on(plane: &ControlPlane, all: &[ControlPlane]) -> Vec<String> {
    let label = |plane: &ControlPlane| plane.metadata.labels.as_ref()?.get(CP_TYPE_LABEL).cloned();
    let name = |plane: &ControlPlane| plane.metadata.name.clone().unwrap_or_default();
    if label(plane).as_deref() != Some("its") {
        return Vec::new();
    }
    let its = name(plane);
    let only = all.iter().filter(|one| label(one).as_deref() == Some("its")).count() == 1;
    let uses = |wds: &&ControlPlane| match wds.spec.global_vars.get("ITSName").map(String::as_str) {
        None | Some("") => only,
        Some(named) => named == its,
    };
    let wdses = all.iter().filter(|one| label(one).as_deref() == Some("wds")).filter(uses);
    let clusters = format!("the clusters that have joined {its}: they would have to join again");
    wdses.map(|wds| format!("{}: it delivers through {its}", name(wds))).chain([clusters]).collect()
}

fn confirm(names: &[String], lost: &[String], out: &Printer) -> Result<(), Failure> {
    let what = format!("deleting {}", names.join(", "));
    if !std::io::stdin().is_terminal() {
        let affected =
            if lost.is_empty() { String::new() } else { format!("; affected: {}", lost.join("; ")) };
        let why = format!("the data would be gone for good, and nobody is there to confirm that{affected}");
        return Err(Failure::new(Exit::Usage, what, why).hint("confirm with --yes"));
    }
    for one in lost {
        out.note(&format!("affected: {one}"));
    }
    out.note(&format!("Delete {} with all data? [y/N]", names.join(", ")));
    let mut answer = String::new();
    // An answer that cannot be read is no consent.
    let _ = std::io::stdin().lock().read_line(&mut answer);
    match answer.trim() {
        "y" | "Y" | "yes" => Ok(()),
        _ => Err(Failure::new(Exit::Failed, what, "not confirmed")),
    }
}

/// Removes the context of a space of this machine's installation from the user's kubeconfig.
fn forget_context(host: &Host, name: &str, out: &Printer) -> Result<(), Failure> {
    let Some(data) = &host.data else { return Ok(()) };
    let Some(shape) = Shape::load(data)? else { return Ok(()) };
    for context in kubeconfig::remove_from(&host.files, &shape.installation, Some(name))? {
        out.note(&format!("context {context} is removed from the kubeconfig"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// SP-053: what hangs on an ITS is told before it is deleted.
    #[test]
    fn sp_053_what_hangs_on_an_its() {
        let plane = |name: &str, role: &str, its: &str| -> ControlPlane {
            serde_json::from_value(json!({"metadata": {"name": name, "labels": {CP_TYPE_LABEL: role}},
                "spec": {"type": "k8s", "globalVars": {"ITSName": its}}}))
            .unwrap()
        };
        let mut all = vec![plane("its1", "its", ""), plane("wds1", "wds", "its1"), plane("wds2", "wds", "")];
        let told = |all: &[ControlPlane], at: usize| hangs_on(&all[at], all).join("|");
        assert!(
            told(&all, 0)
                .starts_with("wds1: it delivers through its1|wds2: it delivers through its1|the clusters")
        );
        assert_eq!(told(&all, 1), "");
        all.push(plane("its2", "its", ""));
        assert!(told(&all, 0).starts_with("wds1: it delivers through its1|the clusters"));
        assert!(told(&all, 3).starts_with("the clusters"));
    }
}
