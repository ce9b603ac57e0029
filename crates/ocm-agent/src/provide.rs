//! Creates in a cluster what an agent needs before it can start, as far as permissions allow. Existing
//! objects are not changed: they may belong to another klusterlet or to an administrator.
//!
//! Roles are not included: an agent has the permissions of its kubeconfig. `ocm_hub::enroll::prepare` is for
//! administrators.
//!
//! Cost: at start, one request for each namespace and each API group, and one or two for each missing object.

use apis::constants::{OCM_ADDON_NAMESPACE, OCM_AGENT_NAMESPACE};
use futures::future::BoxFuture;
use k8s_openapi::{
    api::core::v1::Namespace, apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{Client, ResourceExt as _};
use runtime::{
    failure::{code_of, is_clash},
    install::{InstallError, install},
    rest::{Gvr, Rest},
};
use serde_json::{Value, json};

/// Why an agent cannot start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProvideError {
    /// The agent has no permission to create what it needs.
    #[error(
        "the cluster lacks {0}, and this identity may not create it; an administrator of the cluster can, by hand or by starting \
         the agent once"
    )]
    Missing(String),
    /// A CRD could not be installed.
    #[error(transparent)]
    Install(#[from] InstallError),
    /// A request failed.
    #[error("checking what the agent needs in its cluster")]
    Request(#[from] Box<kube::Error>),
}

/// Creates missing namespaces and CRDs that the agent of a cluster needs, and the CRDs of `optional` kinds. If those that only add-ons and
/// claims need cannot be created, that is logged; add-ons and claims start when they exist.
///
/// # Errors
///
/// If something that every agent needs cannot be created.
pub fn provide<'a>(
    cluster: &'a Client,
    optional: &'a [CustomResourceDefinition],
) -> BoxFuture<'a, Result<(), ProvideError>> {
    Box::pin(provide_all(cluster, optional))
}

async fn provide_all(cluster: &Client, optional: &[CustomResourceDefinition]) -> Result<(), ProvideError> {
    let rest = Rest::with_manager(cluster.clone(), "klusterlet");
    let mut missing = Vec::new();
    for (name, needed) in [(OCM_AGENT_NAMESPACE, true), (OCM_ADDON_NAMESPACE, false)] {
        if !has_namespace(&rest, name).await.map_err(Box::new)? {
            missing.push((format!("the namespace {name}"), needed));
        }
    }
    for kind in apis::crds::ocm_spoke().iter().chain(optional) {
        let needed = kind.spec.names.kind == "AppliedManifestWork";
        if !has_kind(cluster, kind).await? {
            missing.push((format!("the kind {} ({})", kind.spec.names.kind, kind.name_any()), needed));
        }
    }
    for (what, _) in missing.iter().filter(|(_, needed)| !needed) {
        tracing::warn!("the cluster lacks {what}, and this identity may not create it");
    }
    let needed: Vec<String> =
        missing.into_iter().filter(|(_, needed)| *needed).map(|(what, _)| what).collect();
    if needed.is_empty() { Ok(()) } else { Err(ProvideError::Missing(needed.join(" and "))) }
}

/// Returns whether the namespace exists. If there is no permission to read it, it is assumed to exist: the
/// next read in it will tell.
async fn has_namespace(rest: &Rest, name: &str) -> Result<bool, kube::Error> {
    let gvr = Gvr::of::<Namespace>();
    match rest.find::<Value>(&gvr, "", name).await {
        Ok(Some(_)) => return Ok(true),
        Ok(None) => {}
        Err(error) if code_of(&error) == 403 => return Ok(true),
        Err(error) => return Err(error),
    }
    let mut body = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
    if name == OCM_ADDON_NAMESPACE {
        body["metadata"]["labels"] = json!({"addon.open-cluster-management.io/namespace": "true"});
    }
    match rest.create::<Value>(&gvr, "", body.to_string().into_bytes()).await {
        Ok(_) => {
            tracing::info!(namespace = name, "created a namespace that agents need");
            Ok(true)
        }
        Err(error) if is_clash(&error) => Ok(true),
        Err(error) if code_of(&error) == 403 => Ok(false),
        Err(error) => Err(error),
    }
}

/// Returns whether the resource is served, in any version.
async fn has_kind(cluster: &Client, kind: &CustomResourceDefinition) -> Result<bool, ProvideError> {
    let version = kind.spec.versions.first().map(|version| version.name.as_str()).unwrap_or_default();
    let path = format!("/apis/{}/{version}", kind.spec.group);
    let Ok(request) = http::Request::get(path).body(Vec::new()) else { return Ok(false) };
    let served = match cluster.request::<Value>(request).await {
        Ok(list) => list.get("resources").and_then(Value::as_array).is_some_and(|all| {
            all.iter().any(|one| one.get("name").is_some_and(|name| *name == *kind.spec.names.plural))
        }),
        Err(error) if code_of(&error) == 404 => false,
        Err(error) => return Err(Box::new(error).into()),
    };
    if served {
        return Ok(true);
    }
    match install(cluster, std::slice::from_ref(kind), "klusterlet").await {
        Ok(()) => {
            tracing::info!(kind = kind.spec.names.kind, "installed a CRD that agents need");
            Ok(true)
        }
        Err(InstallError::Refused { source, .. }) if code_of(&source) == 403 => Ok(false),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{convert::Infallible, sync::Arc};

    use parking_lot::Mutex;

    /// A cluster without any write permission; attempted writes are recorded.
    fn closed(has: bool) -> (Client, Arc<Mutex<Vec<String>>>) {
        let tried: Arc<Mutex<Vec<String>>> = Arc::default();
        let notes = tried.clone();
        let service = tower::service_fn(move |request: http::Request<kube::client::Body>| {
            let path = request.uri().path().to_owned();
            let looks = request.method() == http::Method::GET && !path.contains("customresourcedefinitions");
            if !looks {
                notes.lock().push(format!("{} {path}", request.method()));
            }
            let code = if !looks {
                403
            } else if has {
                200
            } else {
                404
            };
            let body = if code == 200 {
                json!({"kind": "X", "apiVersion": "v1", "metadata": {"name": "x"},
                    "resources": [{"name": "appliedmanifestworks"}, {"name": "clusterclaims"}]})
            } else {
                let reason = if code == 404 { "NotFound" } else { "Forbidden" };
                let name = path.rsplit('/').next().unwrap_or_default();
                json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": reason,
                    "message": reason, "details": {"name": name}})
            };
            let body = kube::client::Body::from(body.to_string().into_bytes());
            let answer = http::Response::builder().status(code).body(body).unwrap();
            async move { Ok::<_, Infallible>(answer) }
        });
        (Client::new(service, "default"), tried)
    }

    /// Existing objects are left alone; the error names missing objects that cannot be created, if they are
    /// necessary.
    #[tokio::test]
    async fn what_is_missing_is_named() {
        let (cluster, tried) = closed(true);
        provide(&cluster, &[]).await.unwrap();
        assert_eq!(*tried.lock(), Vec::<String>::new());
        let (cluster, tried) = closed(false);
        let Err(ProvideError::Missing(what)) = provide(&cluster, &[]).await else {
            panic!("nothing is missing")
        };
        assert_eq!(
            what,
            "the namespace open-cluster-management-agent and the kind AppliedManifestWork \
             (appliedmanifestworks.work.open-cluster-management.io)"
        );
        assert!(tried.lock().contains(&"POST /api/v1/namespaces".to_owned()));
    }
}
