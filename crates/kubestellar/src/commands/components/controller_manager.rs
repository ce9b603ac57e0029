//! `kubestellar controller-manager` (KS-210, KS-211, KS-213, KS-214, KS-215).

use std::path::{Path, PathBuf};

use controller_manager::{AllowedGroups, Config};
use kube::Client;
use runtime::election::LeaseLock;

use crate::exit::{Exit, Failure};

use super::connection::{Caller, Connection, connection_flags};
use super::election::OptionalElection;
use super::goflags::KlogFlags;
use super::process::{Probes, Process, endpoint_flags};
use super::spaces::{self, Role};

/// Run the binding and status controllers of one WDS.
///
/// Finds the WDS and the ITS by their ControlPlanes in the hosting cluster (--kubeconfig, or the cluster this runs in),
/// or takes them from kubeconfigs; installs the control CRDs in the WDS, turns BindingPolicies into Bindings and
/// brings reported status back.
#[derive(Debug, clap::Args)]
#[command(
    args_override_self = true,
    after_help = "Examples:\n  kubestellar controller-manager --wds-name wds1 --wds-kubeconfig wds.conf --its-name its1 --its-kubeconfig its.conf\n  kubestellar controller-manager --wds-name wds1 --wds-context wds1 --its-name its1 --its-context its1\n  kubestellar controller-manager --wds-name wds1 --its-name its1 --kubeconfig hosting.conf --leader-elect"
)]
pub(crate) struct Args {
    /// Name of the WDS; part of the names and labels of what is delivered [default: that of the only WDS]
    #[arg(long, value_name = "NAME", default_value = "")]
    wds_name: String,
    /// Name of the ITS [default: that of the only ITS]
    #[arg(long, value_name = "NAME", default_value = "")]
    its_name: String,
    /// API groups to look at, comma separated; empty for all; an empty element or "core" is the core group
    #[arg(long, value_name = "GROUPS", default_value = "")]
    api_groups: String,
    /// Controllers to run, of binding and status; empty for all
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    controllers: Vec<String>,
    /// Label the Secrets of Helm releases as their charts' objects are, so that policies deliver them, too
    ///
    /// Secrets of type helm.sh/release.v1 get app.kubernetes.io/managed-by=Helm and app.kubernetes.io/instance=RELEASE in
    /// place of any other values; then `helm list` shows in a cluster what policies with these labels brought there. In the WDS this takes the
    /// right to list, watch and patch Secrets.
    #[arg(long)]
    label_helm_releases: bool,
    /// Let StatusCollectors read the contents of Secrets, as the original does
    ///
    /// Expressions of StatusCollectors run with the rights of this controller, and everybody who may read
    /// CombinedStatus objects sees the results. Without this flag they see only apiVersion, kind and metadata of a Secret.
    #[arg(long)]
    collectors_read_secrets: bool,
    #[command(flatten)]
    election: OptionalElection,
    #[command(flatten)]
    endpoints: EndpointFlags,
    #[command(flatten)]
    wds: WdsFlags,
    #[command(flatten)]
    its: ItsFlags,
    #[command(flatten)]
    pub(crate) logging: KlogFlags,
}

connection_flags!(WdsFlags, "wds", "the WDS", "wds-qps" = "5", "wds-burst" = 10);
connection_flags!(ItsFlags, "its", "the ITS", "its-qps" = "5", "its-burst" = 10);
endpoint_flags!(EndpointFlags, metrics = ":8080", pprof = ":8082", probes = ":8081");

const NAME: &str = "controller manager";

pub(crate) async fn run(args: &Args, hosting: Option<&PathBuf>) -> Result<Exit, Failure> {
    let status = with_status(&args.controllers)?;
    let (wds, its) = (args.wds.connection(), args.its.connection());
    if wds.is_named() && args.wds_name.is_empty() {
        let why = "a WDS that is given by kubeconfig needs a name";
        return Err(Failure::new(Exit::Usage, "finding the WDS", why).hint("name it with --wds-name"));
    }
    // Logged before the first wait.
    args.election.lock("default", NAME)?;
    let process = Process::start(NAME, args.endpoints.endpoints(), Probes::Any, &args.logging).await?;
    let caller = Caller { agent: "controller-manager", metrics: &process.metrics };
    let connecting = connect(args, &wds, &its, hosting.map(PathBuf::as_path), &caller);
    let connected = match process.first(connecting).await {
        Ok(Some(connected)) => connected,
        ended => {
            process.close().await;
            return ended.map(|_| Exit::Done);
        }
    };
    let Connected { wds_name, its_name, wds, its, lock } = connected;
    let config = Config {
        api_groups: AllowedGroups::parse(&args.api_groups),
        status,
        label_helm_releases: args.label_helm_releases,
        collectors_read_secrets: args.collectors_read_secrets,
        ready: process.ready.clone(),
        metrics: process.metrics.clone(),
        ..Config::new(wds_name, its_name)
    };
    process.run(lock, |stop| controller_manager::run(wds, its, config, stop)).await
}

/// Returns whether the status controller is to run (KS-210).
fn with_status(controllers: &[String]) -> Result<bool, Failure> {
    let failed = |why: String| Failure::new(Exit::Failed, "choosing the controllers", why);
    let named: Vec<&str> = controllers.iter().map(|it| it.as_str()).filter(|it| !it.is_empty()).collect();
    if let Some(unknown) = named.iter().find(|it| !matches!(**it, "binding" | "status")) {
        return Err(failed(format!("there is no controller {unknown:?}; there are binding and status")));
    }
    match (named.contains(&"binding"), named.contains(&"status")) {
        (false, true) => Err(failed("the status controller needs the binding controller".to_owned())),
        (binding, status) => Ok(status || !binding),
    }
}

struct Connected {
    wds_name: String,
    its_name: String,
    wds: Client,
    its: Client,
    lock: Option<(Client, LeaseLock)>,
}

async fn connect(
    args: &Args,
    wds: &Connection,
    its: &Connection,
    hosting: Option<&Path>,
    caller: &Caller<'_>,
) -> Result<Connected, Failure> {
    let in_hosting = Connection { file: hosting.map(Path::to_owned), ..Connection::default() };
    let (wds_name, wds_client) = space(args, wds, Role::Wds, &in_hosting, caller).await?;
    let (its_name, its_client) = space(args, its, Role::Its, &in_hosting, caller).await?;
    // The Lease is where the Deployment would be; without a hosting cluster it is in the WDS.
    let lease = format!("controller-manager-{wds_name}");
    let (place, namespace) = if wds.is_named() {
        (wds, "kube-system".to_owned())
    } else {
        (&in_hosting, format!("{wds_name}-system"))
    };
    let lock = place.to_lead(caller, args.election.lock(&namespace, &lease)?).await?;
    Ok(Connected { wds_name, its_name, wds: wds_client, its: its_client, lock })
}

/// Finds a space by its kubeconfig flag, or else by its ControlPlane.
async fn space(
    args: &Args,
    connection: &Connection,
    role: Role,
    hosting: &Connection,
    caller: &Caller<'_>,
) -> Result<(String, Client), Failure> {
    let name = match role {
        Role::Wds => &args.wds_name,
        Role::Its => &args.its_name,
    };
    if connection.is_named() {
        return Ok((name.clone(), connection.client(caller, Some(role.as_str())).await?));
    }
    let in_cluster = kube::Config::incluster().is_ok();
    let found = spaces::find(&hosting.client(caller, None).await?, role, name, in_cluster).await?;
    let client = connection.config_of(found.kubeconfig).client(caller, Some(role.as_str())).await?;
    Ok((found.name, client))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// KS-210: all without a choice; an unknown name and the status controller alone end the program with 1.
    #[test]
    fn ks_210_choice_of_controllers() {
        let of = |names: &[&str]| with_status(&names.iter().map(ToString::to_string).collect::<Vec<_>>());
        let cases: [(&[&str], bool); 4] =
            [(&[], true), (&["binding"], false), (&["binding", "status"], true), (&[""], true)];
        for (names, status) in cases {
            assert_eq!(of(names).unwrap(), status, "{names:?}");
        }
        for (bad, text) in [(&["Binding"][..], "\"Binding\""), (&["status"][..], "needs the binding")] {
            let failure = of(bad).unwrap_err();
            assert_eq!(failure.exit, Exit::Failed);
            assert!(failure.to_string().contains(text), "{failure}");
        }
    }
}
