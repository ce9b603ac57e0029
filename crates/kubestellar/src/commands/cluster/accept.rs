//! `kubestellar cluster accept` (SP-117).

use std::time::Duration;

use apis::constants::CLUSTER_NAME_LABEL;
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::jiff::Timestamp;
use ocm_hub as hub;
use ocm_shared::{bootstrap, csr};
use runtime::failure::is_clash;
use runtime::rest::Gvr;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{Its, LOOK, list::set_of, managed_clusters};
use crate::exit::{Exit, Failure, from_kube};
use crate::printer::Printer;

/// Accept clusters that ask to join: approve their certificates and let them in.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  kubestellar cluster accept edge7\n  kubestellar cluster accept edge7 edge8 --wait\n  kubestellar cluster accept --all-pending"
)]
pub(super) struct Args {
    /// Names of the clusters
    #[arg(value_name = "NAME", required_unless_present = "all_pending")]
    names: Vec<String>,
    /// Every cluster that asks and is not accepted
    #[arg(long, conflicts_with = "names")]
    all_pending: bool,
    /// Wait for clusters that have not asked yet
    #[arg(long)]
    wait: bool,
    /// How long to wait
    #[arg(long, value_name = "DURATION", default_value = "10m", value_parser = crate::duration::parse)]
    timeout: Duration,
}

#[derive(Deserialize)]
struct Requests {
    items: Vec<CertificateSigningRequest>,
}

#[derive(Deserialize)]
struct Clusters {
    items: Vec<apis::ocm::ManagedCluster>,
}

pub(super) async fn run(args: &Args, its: &Its, out: &Printer) -> Result<Exit, Failure> {
    let names = if args.all_pending { pending(its).await? } else { args.names.clone() };
    let deadline = tokio::time::Instant::now() + args.timeout;
    for name in &names {
        out.result(&format!("Starting approve csrs for the cluster {name}"));
        loop {
            if accept(its, name, out).await? {
                break;
            }
            if args.all_pending && !args.wait {
                out.note(&format!("{name} does not ask to join"));
                break;
            }
            if !args.wait {
                return Err(Failure::new(
                    Exit::NotFound,
                    format!("accepting {name}"),
                    "it does not ask to join",
                )
                .hint("join it first, or wait for it with --wait"));
            }
            if tokio::time::Instant::now() > deadline {
                return Err(Failure::new(
                    Exit::TimedOut,
                    format!("accepting {name}"),
                    "it still does not ask to join",
                ));
            }
            tokio::time::sleep(LOOK).await;
        }
    }
    Ok(Exit::Done)
}

async fn pending(its: &Its) -> Result<Vec<String>, Failure> {
    let list: Clusters = its
        .rest
        .list(&managed_clusters(), "", "")
        .await
        .map_err(|e| from_kube("listing the clusters", &e))?;
    Ok(list.items.into_iter().filter(is_pending).filter_map(|cluster| cluster.metadata.name).collect())
}

/// Returns whether nobody has decided about a cluster yet. A cluster that was denied, or is leaving, is accepted by name only.
fn is_pending(cluster: &apis::ocm::ManagedCluster) -> bool {
    !cluster.spec.hub_accepts_client
        && !hub::is_denied(cluster)
        && cluster.metadata.deletion_timestamp.is_none()
}

/// Returns whether a request comes from an identity that may make it: a bootstrap identity, or the agent itself.
fn is_from_the_right_one(request: &CertificateSigningRequest, wanted: &csr::Requested) -> bool {
    let user = request.spec.username.as_deref().unwrap_or_default();
    let account = format!("system:serviceaccount:{}:{}", apis::constants::OCM_NAMESPACE, bootstrap::ACCOUNT);
    user == account || user.starts_with("system:bootstrap:") || user == wanted.common_name
}

/// Accepts one cluster. False if it does not ask.
async fn accept(its: &Its, name: &str, out: &Printer) -> Result<bool, Failure> {
    let what = || format!("accepting {name}");
    let failed = |error: kube::Error| from_kube(what(), &error);
    let gvr = Gvr::new("certificates.k8s.io", "v1", "certificatesigningrequests");
    let label = format!("{CLUSTER_NAME_LABEL}={name}");
    let Some(cluster): Option<apis::ocm::ManagedCluster> =
        its.rest.find(&managed_clusters(), "", name).await.map_err(failed)?
    else {
        return Ok(false);
    };
    let requests: Requests = its.rest.list(&gvr, "", &label).await.map_err(failed)?;
    let mut asked = false;
    for request in requests.items {
        let Some(wanted) = csr::recognise(&request).filter(|w| w.cluster == name) else { continue };
        if !is_from_the_right_one(&request, &wanted) || request.spec.signer_name != csr::CLIENT_SIGNER {
            continue;
        }
        asked = true;
        if csr::is_decided(&request) {
            continue;
        }
        let now = Timestamp::now().to_string();
        let verdict = json!({"type": "Approved", "status": "True", "reason": "KubeStellarApprove",
            "message": "This CSR was approved by kubestellar cluster accept.", "lastUpdateTime": now, "lastTransitionTime": now});
        match bootstrap::approve(&its.rest, &request, verdict).await {
            // It changed meanwhile. The next try reads it again.
            Err(error) if is_clash(&error) => return Ok(false),
            other => other.map_err(failed)?,
        }
        let csr = request.metadata.name.unwrap_or_default();
        out.result(&format!("CSR {csr} approved"));
    }
    let joined = cluster.status.iter().flat_map(|s| &s.conditions).any(|c| c.type_ == "ManagedClusterJoined");
    if !asked && !joined {
        return Ok(false);
    }
    if !cluster.spec.hub_accepts_client {
        let patch = json!({"spec": {"hubAcceptsClient": true}});
        its.rest.merge::<Value>(&managed_clusters(), "", name, &patch).await.map_err(failed)?;
        out.result(&format!("set hubAcceptsClient to true for managed cluster {name}"));
        // The cluster that asks to join chooses its set.
        if let Some(set) = set_of(&cluster) {
            out.note(&format!("{name} is in the cluster set {set}"));
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// SP-117: `--all-pending` lets in who asks, and nobody who was denied or is leaving.
    #[test]
    fn sp_117_denied_clusters_are_not_pending() {
        let cluster = |accepted: bool, reason: &str, leaving: bool| {
            let mut metadata = json!({"name": "edge7"});
            if leaving {
                metadata["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
            }
            let condition = json!({"type": "HubAcceptedManagedCluster", "status": "False", "reason": reason,
                "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"});
            let conditions = if reason.is_empty() { vec![] } else { vec![condition] };
            let cluster = json!({"apiVersion": "cluster.open-cluster-management.io/v1", "kind": "ManagedCluster",
                "metadata": metadata, "spec": {"hubAcceptsClient": accepted}, "status": {"conditions": conditions}});
            serde_json::from_value::<apis::ocm::ManagedCluster>(cluster).unwrap()
        };
        assert!(is_pending(&cluster(false, "", false)));
        assert!(!is_pending(&cluster(true, "", false)));
        assert!(!is_pending(&cluster(false, "HubClusterAdminDenied", false)));
        assert!(!is_pending(&cluster(false, "", true)));
    }
}
