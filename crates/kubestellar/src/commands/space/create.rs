//! `kubestellar space create` (SP-108).

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use apis::constants::TENANCY_GROUP;
use apis::tenancy::ControlPlane;
use runtime::failure::is_already_exists;
use serde_json::{Value, json};

use super::{Host, is_available, planes};
use crate::exit::{Exit, Failure, from_kube};
use crate::kubeconfig;
use crate::printer::Printer;
use crate::shape::{Shape, SpaceName};

/// What a space is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Role {
    /// An inventory and transport space: a hub that clusters join
    Its,
    /// A workload description space: objects and policies are put here
    Wds,
}

/// Create a space and wait until it can be used. Its context goes into the kubeconfig.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  kubestellar space create team-a --role wds\n  kubestellar space create its2 --role its\n  kubestellar space create scratch"
)]
pub(super) struct Args {
    /// Name of the space
    #[arg(value_name = "NAME")]
    name: SpaceName,
    /// Type of the ControlPlane
    #[arg(short, long = "type", value_name = "TYPE", default_value = "k8s", value_parser = ["k8s", "vcluster", "k3s", "ocm", "host"])]
    type_: String,
    /// Storage class of the ControlPlane
    #[arg(short, long, value_name = "BACKEND", default_value = "shared", value_parser = ["shared", "dedicated"])]
    backend: String,
    /// What the space is for; it chooses the hooks
    #[arg(long, value_enum)]
    role: Option<Role>,
    /// The inventory space that a workload description space delivers through [default: the only one]
    #[arg(long, value_name = "NAME")]
    its: Option<String>,
    /// API groups whose objects a workload description space delivers, separated by commas [default: all]
    #[arg(long, value_name = "GROUPS")]
    api_groups: Option<String>,
    /// A PostCreateHook to run, after those of the role; may be repeated
    #[arg(short, long, value_name = "HOOK")]
    postcreate_hook: Vec<String>,
    /// Variable of the hooks of this command line; may be repeated
    #[arg(short = 'e', long = "set", value_name = "NAME=VALUE", value_parser = variable)]
    set: Vec<(String, String)>,
    /// Variable of all hooks; may be repeated
    #[arg(long, value_name = "NAME=VALUE", value_parser = variable)]
    global_var: Vec<(String, String)>,
    /// Whether to wait for the hooks, too
    #[arg(long, value_name = "BOOL", default_value_t = true, action = clap::ArgAction::Set)]
    wait_hooks: bool,
    /// Whether to wait until the space can be used
    #[arg(long, value_name = "BOOL", default_value_t = true, action = clap::ArgAction::Set)]
    wait: bool,
    /// How long to wait
    #[arg(long, value_name = "DURATION", default_value = "1m", value_parser = crate::duration::parse)]
    timeout: Duration,
}

/// Reads `NAME=VALUE`.
fn variable(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("it is not NAME=VALUE")?;
    if name.is_empty() { Err("the name is empty".into()) } else { Ok((name.to_owned(), value.to_owned())) }
}

pub(super) async fn run(args: &Args, host: &Host, out: &Printer) -> Result<Exit, Failure> {
    let what = format!("creating the space {}", args.name);
    let (begun, name) = (Instant::now(), args.name.as_str());
    let body = control_plane(args).to_string().into_bytes();
    match host.rest.create::<ControlPlane>(&planes(), "", body).await {
        Ok(_) => {}
        Err(error) if is_already_exists(&error) => {
            return Err(Failure::new(Exit::Conflict, what, "a space of this name exists")
                .hint(format!("kubestellar space kubeconfig {name} prints its kubeconfig")));
        }
        Err(error) => return Err(from_kube(what, &error)),
    }
    if !args.wait {
        out.result(&format!("{name} created"));
        return Ok(Exit::Done);
    }
    host.until(&what, name, args.timeout, &|plane| plane.is_some_and(is_available)).await?;
    out.step(&format!("{name} ready"), Some(begun.elapsed()));
    if let Some(context) = merge_context(host, name)? {
        out.note(&format!("context {context} is in the kubeconfig"));
    }
    out.result(&format!("{name} created"));
    Ok(Exit::Done)
}

/// Puts the context of a space of this machine's installation into the user's kubeconfig. Returns the name of the context.
fn merge_context(host: &Host, name: &str) -> Result<Option<String>, Failure> {
    let Some(data) = &host.data else { return Ok(None) };
    let Some(shape) = Shape::load(data)? else { return Ok(None) };
    let own = kubeconfig::Kubeconfig::read(&data.kubeconfig())?.entries(&shape.installation);
    let entry: Vec<_> = own.into_iter().filter(|entry| entry.space == name).collect();
    if entry.is_empty() {
        return Ok(None);
    }
    let merged = kubeconfig::merge_into(&host.files, &shape.installation, &entry, None)?;
    Ok(Some(merged.renamed.first().map_or(name, |(_, context)| context).to_owned()))
}

/// The ControlPlane that the options ask for.
fn control_plane(args: &Args) -> Value {
    let of_role: &[&str] = match args.role {
        Some(Role::Its) => &["its-hub-init", "install-status-addon"],
        Some(Role::Wds) => &["kubestellar-controller", "transport-controller"],
        None => &[],
    };
    let set: BTreeMap<&str, &str> =
        args.set.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    let of_role = of_role.iter().map(|hook| json!({"hookName": hook, "vars": set}));
    let further = args.postcreate_hook.iter().map(|hook| json!({"hookName": hook, "vars": set}));
    let mut hooks: Vec<Value> = of_role.chain(further).collect();
    if set.is_empty() {
        for hook in hooks.iter_mut().filter_map(Value::as_object_mut) {
            hook.remove("vars");
        }
    }
    let mut vars: BTreeMap<&str, &str> = BTreeMap::new();
    if args.role == Some(Role::Wds) {
        vars.insert("ControlPlaneName", args.name.as_str());
        vars.insert("ITSName", args.its.as_deref().unwrap_or_default());
        vars.extend(args.api_groups.as_deref().map(|groups| ("APIGroups", groups)));
    }
    vars.extend(args.global_var.iter().map(|(name, value)| (name.as_str(), value.as_str())));
    let mut spec =
        json!({"type": args.type_, "backend": args.backend, "waitForPostCreateHooks": args.wait_hooks});
    if let Some(spec) = spec.as_object_mut() {
        if !hooks.is_empty() {
            spec.insert("postCreateHooks".into(), hooks.into());
        }
        if !vars.is_empty() {
            spec.insert("globalVars".into(), json!(vars));
        }
    }
    json!({"apiVersion": format!("{TENANCY_GROUP}/v1alpha1"), "kind": "ControlPlane",
        "metadata": {"name": args.name.as_str()}, "spec": spec})
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;

    #[derive(Debug, clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn made(line: &str) -> Value {
        let line = std::iter::once("create").chain(line.split_whitespace());
        control_plane(&Line::try_parse_from(line).unwrap().args)
    }

    /// SP-108: what the options make of a ControlPlane.
    #[test]
    fn sp_108_options_of_a_new_space() {
        let plain = made("a");
        assert_eq!(
            plain["spec"],
            json!({"type": "k8s", "backend": "shared", "waitForPostCreateHooks": true})
        );
        let its = made("its2 --role its --type vcluster");
        assert_eq!(its["spec"]["type"], "vcluster");
        assert_eq!(
            its["spec"]["postCreateHooks"],
            json!([{"hookName": "its-hub-init"}, {"hookName": "install-status-addon"}])
        );
        let wds = made(
            "w --role wds --its its2 --api-groups apps,batch -p mine -e a=b=c --global-var x= --wait-hooks false",
        );
        assert_eq!(wds["metadata"]["name"], "w");
        assert_eq!(wds["spec"]["waitForPostCreateHooks"], false);
        let vars = json!({"ControlPlaneName": "w", "ITSName": "its2", "APIGroups": "apps,batch", "x": ""});
        assert_eq!(wds["spec"]["globalVars"], vars);
        let hooks = wds["spec"]["postCreateHooks"].as_array().unwrap();
        let names: Vec<&str> = hooks.iter().map(|hook| hook["hookName"].as_str().unwrap()).collect();
        assert_eq!(names, ["kubestellar-controller", "transport-controller", "mine"]);
        assert!(hooks.iter().all(|hook| hook["vars"] == json!({"a": "b=c"})));
        for wrong in ["", "A_b", "a --type moon", "a -e x", "a -e =x", "kubeflex"] {
            let line = std::iter::once("create").chain(wrong.split_whitespace());
            assert!(Line::try_parse_from(line).is_err(), "{wrong}");
        }
    }
}
