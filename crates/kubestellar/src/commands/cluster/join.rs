//! `kubestellar cluster join` (SP-116): this process is the cluster's agent, beside the cluster.

use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use kube::config::AuthInfo;
use ocm_agent::registration::{self, Endpoint};
use ocm_shared::reserved::{complaint, reserved};

use super::member::Member;
use crate::clients;
use crate::commands::components::ocm::{WorkSide, agent};
use crate::exit::{Exit, Failure, OrFail, chain};
use crate::printer::Printer;
use crate::signals::stop_token;

/// Join a cluster to an inventory space and be its agent until stopped.
///
/// Installs definitions, namespaces and roles in the cluster, asks the hub for a certificate, and, once an administrator
/// of the hub has accepted the cluster, applies there what the hub has for it. Started again, it goes on with the
/// certificate it has: the token is needed only as long as that is good.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  kubestellar cluster join edge7 --context edge7 --hub-token TOKEN --hub-apiserver https://hub:9443/spaces/its1 --ca-file ca.crt\n  kubestellar cluster token --print-for kubestellar   # on the hub: prints the line to use"
)]
pub(super) struct Args {
    /// Name of the cluster in the inventory
    #[arg(value_parser = cluster_name)]
    name: String,
    /// Context of the cluster that joins [default: current]
    #[arg(long, value_name = "CONTEXT")]
    context: Option<String>,
    /// Token to ask with
    #[arg(long, value_name = "TOKEN", env = "KUBESTELLAR_HUB_TOKEN", hide_env_values = true)]
    hub_token: String,
    /// Address of the hub
    #[arg(long, value_name = "URL", value_parser = hub_address)]
    hub_apiserver: String,
    /// File with the certificates that sign the hub's, PEM
    #[arg(long, value_name = "FILE", conflicts_with = "ca_data")]
    ca_file: Option<PathBuf>,
    /// The same as base64 of PEM
    #[arg(long, value_name = "BASE64")]
    ca_data: Option<String>,
}

/// Checks a name as the hub does: it becomes the name of a namespace there.
fn cluster_name(name: &str) -> Result<String, String> {
    if let Some(fault) = machinery::names::dns1123_label(name).into_iter().next() {
        return Err(fault);
    }
    reserved(name).map_or_else(|| Ok(name.to_owned()), |why| Err(complaint(name, why)))
}

/// Refuses addresses without TLS: the token would be readable on the network, and the agent could not use its certificate.
fn hub_address(url: &str) -> Result<String, String> {
    let host = url.strip_prefix("https://").unwrap_or_default();
    if host.is_empty() || host.starts_with('/') {
        return Err("it must begin with https:// and a host".to_owned());
    }
    Ok(url.to_owned())
}

pub(super) async fn run(args: &Args, kubeconfig: Option<&Path>, out: &Printer) -> Result<Exit, Failure> {
    let what = || format!("joining {}", args.name);
    let ca = match (&args.ca_file, &args.ca_data) {
        (Some(file), _) => std::fs::read_to_string(file).or_fail(format!("reading {}", file.display()))?,
        (None, Some(data)) => {
            let bytes = STANDARD.decode(data).or_fail("reading --ca-data")?;
            String::from_utf8(bytes).or_fail("reading --ca-data")?
        }
        (None, None) => String::new(),
    };
    let endpoint = Endpoint::new(args.hub_apiserver.trim_end_matches('/'), &ca);
    let auth = AuthInfo { token: Some(args.hub_token.clone().into()), ..AuthInfo::default() };
    let bootstrap = registration::client(&endpoint, auth).await.or_fail(what())?;
    out.note(&format!("the cluster that joins: {}", Member::find(kubeconfig, args.context.as_deref())?));
    let spoke = clients::client(kubeconfig, args.context.as_deref()).await?;
    ocm_hub::enroll::prepare(&spoke, &args.name)
        .await
        .map_err(|error| Failure::new(Exit::Failed, what(), chain(&error)))?;
    let work = WorkSide::plain(&spoke);
    let config =
        registration::Config { cluster_name: Some(args.name.clone()), ..registration::Config::new(endpoint) };
    let (mut joined, mut ready) = (config.joined.subscribe(), config.ready.subscribe());
    out.result(&format!(
        "{} asks to join; accept it with: kubestellar cluster accept {}",
        args.name, args.name
    ));
    let tell = async {
        if joined.wait_for(|yes| *yes).await.is_ok() {
            out.result(&format!("{} has a certificate", args.name));
        }
        if ready.wait_for(|yes| *yes).await.is_ok() {
            out.result(&format!("{} has joined", args.name));
        }
        std::future::pending::<()>().await;
    };
    tokio::select! {
        outcome = agent(bootstrap, spoke, config, work, stop_token()) => outcome.map(|()| Exit::Done),
        () = tell => Ok(Exit::Done),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// SP-116, OCM-032: a name that no hub takes is refused before anything is done; an empty one is not taken for the name of
    /// whoever joined from there before.
    #[test]
    fn sp_116_only_names_that_can_join() {
        assert_eq!(cluster_name("edge7").as_deref(), Ok("edge7"));
        let long = "a".repeat(64);
        for name in ["", "a.b", "Edge", "../x", "a/b", &long, "default", "kube-system"] {
            assert!(cluster_name(name).is_err(), "{name:?}");
        }
        assert!(hub_address("https://hub:9443/spaces/its1").is_ok());
        for url in ["http://hub:9443", "hub:9443", "https://", "https:///x", ""] {
            assert!(hub_address(url).is_err(), "{url:?}");
        }
    }
}
