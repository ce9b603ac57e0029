//! Credentials of an embedded cluster's agents for a hub that is no more.

use anyhow::Context as _;
use apis::constants::{OCM_ADDON_NAMESPACE, OCM_AGENT_NAMESPACE};
use k8s_openapi::api::core::v1::Secret;
use kube::api::{DeleteParams, ListParams, Preconditions};
use kube::{Api, Client, ResourceExt as _};
use ocm_agent::registration::identity;
use runtime::failure::{code_of, is_clash, is_not_found};
use serde_json::{Value, json};
use space::{Identity, Space};

/// Prefix of the users that agents are on a hub.
const AGENTS: &str = "system:open-cluster-management:";

/// Removes the credentials that the inventory space does not accept, so that the agents ask for new ones: those for a deleted space
/// that had the same name. An agent alone cannot tell such a hub from one that refuses it for a while.
/// Returns whether the hub accepts one: then the cluster has been in this inventory.
///
/// Cost: two lists in the cluster, and a request to the hub for each credential.
pub(super) async fn forget_refused(cluster: &Space, hub: &Space, me: &Identity) -> anyhow::Result<bool> {
    let client = cluster.client(me);
    let mut accepted = false;
    for namespace in [OCM_AGENT_NAMESPACE, OCM_ADDON_NAMESPACE] {
        let secrets: Api<Secret> = Api::namespaced(client.clone(), namespace);
        let all = secrets.list(&ListParams::default()).await.context("listing the credentials")?;
        for secret in &all.items {
            let Some(certificate) = agents_certificate(secret) else { continue };
            let Ok(as_agent) = hub.client_ahead_by_certificate(&certificate) else { continue };
            if !is_refused(as_agent).await? {
                accepted = true;
                continue;
            }
            let name = secret.name_any();
            tracing::info!(
                cluster = cluster.name(),
                hub = hub.name(),
                secret = name,
                "the hub does not know the credential"
            );
            let seen = Preconditions { uid: secret.uid(), resource_version: secret.resource_version() };
            let params = DeleteParams { preconditions: Some(seen), ..DeleteParams::default() };
            match secrets.delete(&name, &params).await {
                Err(error) if !is_not_found(&error) && !is_clash(&error) => {
                    return Err(error).context("removing a credential");
                }
                _ => {}
            }
        }
    }
    Ok(accepted)
}

/// The certificate in a Secret, if it is an agent's for a hub.
fn agents_certificate(secret: &Secret) -> Option<String> {
    let pem = &secret.data.as_ref()?.get(identity::CERTIFICATE)?.0;
    let facts = identity::facts(pem)?;
    let is_agents = facts.subject.common_name.starts_with(AGENTS);
    is_agents.then(|| String::from_utf8(pem.clone()).ok())?
}

/// Asks a hub who the holder of a credential is, and returns whether it does not know.
async fn is_refused(client: Client) -> anyhow::Result<bool> {
    let review = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"});
    let request = http::Request::post("/apis/authentication.k8s.io/v1/selfsubjectreviews")
        .header("Content-Type", "application/json")
        .body(review.to_string().into_bytes())?;
    match client.request::<Value>(request).await {
        Err(error) if code_of(&error) == 401 => Ok(true),
        Err(error) => Err(error).context("asking the hub about a credential"),
        Ok(_) => Ok(false),
    }
}
