//! Writes the conditions of add-ons.

use apis::ocm::ManagedClusterAddOn;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use ocm_shared::conditions;
use runtime::rest::Rest;
use serde_json::{Value, json};

use super::addon_api::Version;

/// Writes a condition of an add-on, if it changed (OCM-004).
pub(super) async fn report(
    hub: &Rest,
    api: Version,
    addon: &ManagedClusterAddOn,
    news: Condition,
) -> Result<(), kube::Error> {
    let old = addon.status.as_ref().map(|s| s.conditions.clone()).unwrap_or_default();
    let mut list = old.clone();
    conditions::set(&mut list, news);
    if list == old {
        return Ok(());
    }
    let meta = &addon.metadata;
    let patch = json!({"metadata": {"uid": meta.uid, "resourceVersion": meta.resource_version},
        "status": {"conditions": list}});
    let (namespace, name) =
        (meta.namespace.as_deref().unwrap_or_default(), meta.name.as_deref().unwrap_or_default());
    hub.merge_status::<Value>(&api.members(), namespace, name, &patch).await.map(drop)
}
