//! What agents need before they have joined: a namespace, an identity, a token, and few permissions
//! (OCM-018).

use std::time::Duration;

use apis::constants::{CLUSTER_GROUP, OCM_HUB_NAMESPACE, OCM_NAMESPACE};
use futures::future::BoxFuture;
use k8s_openapi::{
    api::{
        certificates::v1::CertificateSigningRequest,
        core::v1::{Namespace, ServiceAccount},
    },
    jiff::Timestamp,
};
use kube::core::{
    params::{Patch, PatchParams},
    request::Request,
};
use runtime::rest::{Gvr, Rest};
use serde_json::{Value, json};

use crate::rbac::{self, binding, role, rule, subject};

/// Role of clients that may ask to join.
pub const ROLE: &str = "open-cluster-management:bootstrap";
/// Service account whose token can be used for joining.
pub const ACCOUNT: &str = "agent-registration-bootstrap";
/// Group of clients that join with a bootstrap token.
pub const GROUP: &str = "system:bootstrappers:managedcluster";
/// Id of the bootstrap token.
pub const TOKEN_ID: &str = "ocmhub";

/// Returns the roles and bindings for joining.
pub fn rights() -> Vec<Value> {
    // OCM grants all ConfigMaps. Who joins reads one; the others may hold properties of clusters.
    let mut discovery = rule("", &["configmaps"], &["get"]);
    discovery["resourceNames"] = json!(["cluster-info"]);
    let rules = json!([
        discovery,
        rule("certificates.k8s.io", &["certificatesigningrequests"], &["create", "get", "list", "watch"]),
        rule(CLUSTER_GROUP, &["managedclusters"], &["get", "create", "list", "watch"]),
        rule(CLUSTER_GROUP, &["managedclustersets/join"], &["create"]),
    ]);
    let account = json!([{"kind": "ServiceAccount", "namespace": OCM_NAMESPACE, "name": ACCOUNT}]);
    vec![
        role("", ROLE, json!({}), rules),
        binding(
            "",
            "open-cluster-management:bootstrap:agent-registration",
            json!({}),
            ("ClusterRole", ROLE),
            account,
        ),
        binding(
            "",
            "open-cluster-management:bootstrap:managedcluster",
            json!({}),
            ("ClusterRole", ROLE),
            json!([subject("Group", GROUP)]),
        ),
    ]
}

/// Creates namespaces, service account, roles and bindings.
pub fn prepare(hub: &Rest) -> BoxFuture<'_, Result<(), kube::Error>> {
    Box::pin(make(hub))
}

async fn make(hub: &Rest) -> Result<(), kube::Error> {
    for name in [OCM_NAMESPACE, OCM_HUB_NAMESPACE] {
        let body = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
        hub.create_missing(&Gvr::of::<Namespace>(), "", &body).await?;
    }
    let body = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": ACCOUNT, "namespace": OCM_NAMESPACE}});
    hub.create_missing(&Gvr::of::<ServiceAccount>(), OCM_NAMESPACE, &body).await?;
    rbac::reconcile(hub, &rights()).await
}

/// Returns the Secret of a bootstrap token that is valid for `ttl` from `now`. `secret` is 16 lower-case
/// letters and digits.
pub fn token_secret(secret: &str, ttl: Duration, now: Timestamp) -> Value {
    let until = now.checked_add(ttl).unwrap_or(Timestamp::MAX).strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    json!({"apiVersion": "v1", "kind": "Secret", "type": "bootstrap.kubernetes.io/token",
        "metadata": {"name": format!("bootstrap-token-{TOKEN_ID}"), "namespace": "kube-system"},
        "stringData": {"token-id": TOKEN_ID, "token-secret": secret, "expiration": until,
            "usage-bootstrap-authentication": "true", "usage-bootstrap-signing": "true", "auth-extra-groups": GROUP}})
}

/// Adds a condition to a signing request, unless the request has changed in the meantime.
pub fn approve<'a>(
    hub: &'a Rest,
    request: &'a CertificateSigningRequest,
    verdict: Value,
) -> BoxFuture<'a, Result<(), kube::Error>> {
    Box::pin(judge(hub, request, verdict))
}

async fn judge(hub: &Rest, request: &CertificateSigningRequest, verdict: Value) -> Result<(), kube::Error> {
    let old = request.status.as_ref().and_then(|status| status.conditions.as_ref());
    let mut conditions = serde_json::to_value(old).unwrap_or_default();
    match conditions.as_array_mut() {
        Some(list) => list.push(verdict),
        None => conditions = json!([verdict]),
    }
    let name = request.metadata.name.as_deref().unwrap_or_default();
    let patch = json!({"metadata": {"uid": request.metadata.uid, "resourceVersion": request.metadata.resource_version},
        "status": {"conditions": conditions}});
    let gvr = Gvr::of::<CertificateSigningRequest>();
    let request = Request::new(gvr.path(""))
        .patch_subresource("approval", name, &PatchParams::default(), &Patch::Merge(patch))
        .map_err(kube::Error::BuildRequest)?;
    hub.client().request::<Value>(request).await.map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A token is valid for the given time, and for joining only.
    #[test]
    fn ocm_018_a_token_ends() {
        let secret = token_secret("0123456789abcdef", Duration::from_secs(3600), Timestamp::UNIX_EPOCH);
        assert_eq!(secret["stringData"]["expiration"], "1970-01-01T01:00:00Z");
        assert_eq!(secret["stringData"]["auth-extra-groups"], GROUP);
    }

    #[test]
    fn ocm_018_bootstrapping_changes_nothing_that_exists() {
        let role = &rights()[0];
        for rule in role["rules"].as_array().unwrap() {
            for verb in rule["verbs"].as_array().unwrap() {
                assert!(["get", "list", "watch", "create"].contains(&verb.as_str().unwrap()), "{rule}");
            }
        }
    }
}
