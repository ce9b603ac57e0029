//! What the host space has before any ControlPlane (SP-032, SP-069), and the ControlPlanes of an installation's own spaces.

use std::collections::BTreeMap;

use apis::constants::{CP_TYPE_LABEL, TENANCY_GROUP};
use apis::tenancy::{ControlPlane, PostCreateHook};
use futures::future::BoxFuture;
use kube::{Client, Error};
use runtime::install::InstallError;
use runtime::rest::{Gvr, Rest};
use serde_json::{Value, json};

use crate::hooks::builtin;
use crate::names::{SYSTEM_CONFIG, SYSTEM_LABEL, SYSTEM_NAMESPACE};

/// Field manager of what is prepared.
const MANAGER: &str = "kubestellar";

/// Why a host space could not be prepared.
#[derive(Debug, thiserror::Error)]
pub enum PrepareError {
    /// The CRDs.
    #[error(transparent)]
    Kinds(#[from] InstallError),
    /// An object.
    #[error("creating {what}: {source}")]
    Object {
        /// Kind and name.
        what: String,
        /// The server's answer.
        source: Box<Error>,
    },
}

/// The values of ConfigMap `kubeflex-config`.
#[derive(Clone, Debug)]
pub struct SystemConfig {
    /// Domain of host names.
    pub domain: String,
    /// Port of the spaces.
    pub external_port: u16,
}

/// Defines the kinds of an embedded host space and creates its namespace, ConfigMap and hooks. An existing hook stays as it
/// is.
///
/// # Errors
///
/// A request is refused.
pub fn prepare_host<'a>(
    client: &'a Client,
    config: &'a SystemConfig,
) -> BoxFuture<'a, Result<(), PrepareError>> {
    Box::pin(prepare(client, config))
}

async fn prepare(client: &Client, config: &SystemConfig) -> Result<(), PrepareError> {
    runtime::install(client, &apis::crds::tenancy(), MANAGER).await?;
    let rest = Rest::with_manager(client.clone(), MANAGER);
    let labels = json!({SYSTEM_LABEL: "true"});
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace",
        "metadata": {"name": SYSTEM_NAMESPACE, "labels": labels}});
    ensure(&rest, &Gvr::new("", "v1", "namespaces"), "", &namespace).await?;
    let values = json!({"domain": config.domain, "externalPort": config.external_port.to_string(),
        "isOpenShift": "false", "hostContainer": ""});
    let map = json!({"apiVersion": "v1", "kind": "ConfigMap", "data": values,
        "metadata": {"name": SYSTEM_CONFIG, "namespace": SYSTEM_NAMESPACE, "labels": labels}});
    let maps = Gvr::new("", "v1", "configmaps");
    if !ensure(&rest, &maps, SYSTEM_NAMESPACE, &map).await? {
        let patched =
            rest.merge::<Value>(&maps, SYSTEM_NAMESPACE, SYSTEM_CONFIG, &json!({"data": values})).await;
        patched.map_err(|source| PrepareError::Object { what: shown(&map), source: Box::new(source) })?;
    }
    for hook in builtin::objects() {
        ensure(&rest, &Gvr::of::<PostCreateHook>(), "", &hook).await?;
    }
    Ok(())
}

/// Creates the ControlPlane of a space that runs already, unless there is one.
///
/// # Errors
///
/// A request is refused.
pub fn ensure_control_plane<'a>(
    client: &Client,
    plane: &'a Value,
) -> BoxFuture<'a, Result<bool, PrepareError>> {
    let rest = Rest::with_manager(client.clone(), MANAGER);
    Box::pin(async move { ensure(&rest, &Gvr::of::<ControlPlane>(), "", plane).await })
}

async fn ensure(rest: &Rest, gvr: &Gvr, namespace: &str, object: &Value) -> Result<bool, PrepareError> {
    let name = object["metadata"]["name"].as_str().unwrap_or_default();
    rest.ensure(gvr, namespace, name, object)
        .await
        .map_err(|source| PrepareError::Object { what: shown(object), source: Box::new(source) })
}

fn shown(object: &Value) -> String {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    format!("{} {}", text(&object["kind"]), text(&object["metadata"]["name"]))
}

/// The ControlPlane of an ITS of the installation, as the original's chart makes it.
pub fn its(name: &str) -> Value {
    control_plane(name, "its", &["its-hub-init", "install-status-addon"], BTreeMap::new())
}

/// The ControlPlane of a WDS of the installation.
pub fn wds(name: &str, its: &str) -> Value {
    let vars = BTreeMap::from([("ControlPlaneName", name), ("ITSName", its)]);
    control_plane(name, "wds", &["kubestellar-controller", "transport-controller"], vars)
}

fn control_plane(name: &str, role: &str, hooks: &[&str], vars: BTreeMap<&str, &str>) -> Value {
    let hooks: Vec<Value> = hooks.iter().map(|hook| json!({"hookName": hook})).collect();
    let mut spec = json!({"type": "k8s", "backend": "shared", "waitForPostCreateHooks": true,
        "postCreateHooks": hooks});
    if !vars.is_empty() {
        spec["globalVars"] = json!(vars);
    }
    json!({"apiVersion": format!("{TENANCY_GROUP}/v1alpha1"), "kind": "ControlPlane",
        "metadata": {"name": name, "labels": {CP_TYPE_LABEL: role}}, "spec": spec})
}
