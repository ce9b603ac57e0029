//! The permissions of add-ons' agents on the hub.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use apis::{
    constants::{ADDON_GROUP, ADDON_NAME_LABEL, CLUSTER_NAME_LABEL},
    ocm::ManagedClusterAddOn,
};
use k8s_openapi::api::rbac::v1::RoleBinding;
use ocm_shared::rbac;
use runtime::{
    PartialObject,
    failure::{is_clash, is_not_found},
    rest::{Gvr, Removal},
};
use serde_json::{Value, json};

use super::{Addon, Manager, Rights, name_of, namespace_of, template::registration::TEMPLATE_LABEL, tokens};

impl Manager {
    /// Writes roles and bindings on the hub, unless they are known to be right.
    pub(super) async fn give_rights(
        &self,
        own: &dyn Addon,
        addon: &ManagedClusterAddOn,
    ) -> Result<(), kube::Error> {
        let cluster = namespace_of(addon);
        let place = (cluster.to_owned(), own.name().to_owned());
        let rights = own.rights(cluster);
        let by_token = tokens::is_by_token(addon);
        let rights = if by_token { tokens::with_account(rights, cluster, own.name()) } else { rights };
        let wanted = owned(rights, addon);
        let given = Rights::Given(digest_of(&wanted));
        if self.rights.lock().get(&place) == Some(&given) {
            return Ok(());
        }
        rbac::reconcile(&self.rest, &wanted).await?;
        self.clear_rights(cluster, own.name(), &wanted).await?;
        self.rights.lock().insert(place, given);
        Ok(())
    }

    /// Removes the permissions of an add-on whose cluster is not accepted (OCM-058).
    pub(super) async fn take_rights(&self, own: &dyn Addon, cluster: &str) -> Result<(), kube::Error> {
        let place = (cluster.to_owned(), own.name().to_owned());
        if self.rights.lock().get(&place) == Some(&Rights::Taken) {
            return Ok(());
        }
        rbac::withdraw(&self.rest, &own.rights(cluster)).await?;
        self.clear_rights(cluster, own.name(), &[]).await?;
        self.rights.lock().insert(place, Rights::Taken);
        Ok(())
    }

    /// Deletes bindings that a template once requested and that are not in `kept`. No other controller would
    /// delete them, because they may be in any namespace. Costs a look at all bindings of add-ons, when the
    /// permissions of one change and when it is deleted.
    pub(super) async fn clear_rights(
        &self,
        cluster: &str,
        addon: &str,
        kept: &[Value],
    ) -> Result<(), kube::Error> {
        let is = |light: &PartialObject, label: &str, value: &str| {
            light.metadata.labels.get(label).is_some_and(|have| &**have == value)
        };
        let is_kept = |light: &PartialObject| {
            kept.iter().any(|binding| {
                binding["metadata"]["name"] == *light.metadata.name
                    && binding["metadata"]["namespace"] == *light.metadata.namespace
            })
        };
        let stale = self.know.role_bindings.list().into_iter().filter(|light| {
            is(light, ADDON_NAME_LABEL, addon)
                && is(light, CLUSTER_NAME_LABEL, cluster)
                && light.metadata.labels.contains_key(TEMPLATE_LABEL)
                && !is_kept(light)
        });
        let gvr = Gvr::of::<RoleBinding>();
        for light in stale {
            let removal = Removal { uid: Some(light.metadata.uid.to_string()), propagation: None };
            match self.rest.delete(&gvr, &light.metadata.namespace, &light.metadata.name, &removal).await {
                Err(error) if !is_not_found(&error) && !is_clash(&error) => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }
}

/// A digest for comparisons within this process.
fn digest_of(objects: &[Value]) -> u64 {
    let mut hasher = DefaultHasher::new();
    for object in objects {
        object.to_string().hash(&mut hasher);
    }
    hasher.finish()
}

/// Makes the add-on the owner of the roles and bindings in its namespace, as OCM's framework does, so that
/// they are deleted with it.
fn owned(mut rights: Vec<Value>, addon: &ManagedClusterAddOn) -> Vec<Value> {
    for right in &mut rights {
        let metadata = &mut right["metadata"];
        if metadata["namespace"] == namespace_of(addon) && metadata["ownerReferences"].is_null() {
            metadata["ownerReferences"] = json!([{"apiVersion": format!("{ADDON_GROUP}/v1alpha1"),
                "kind": "ManagedClusterAddOn", "name": name_of(addon), "uid": addon.metadata.uid}]);
        }
    }
    rights
}

#[cfg(test)]
mod tests {
    use super::*;

    /// OCM-130: permissions in the mailbox are owned by the add-on; an existing owner stays; objects in other
    /// namespaces cannot be owned.
    #[test]
    fn ocm_130_rights_belong_to_their_addon() {
        let mut addon = ManagedClusterAddOn::namespaced("c1", "a");
        addon.metadata.uid = Some("u1".into());
        let (here, there) = (
            json!({"metadata": {"name": "r", "namespace": "c1"}}),
            json!({"metadata": {"name": "r", "namespace": "n"}}),
        );
        let mut kept = here.clone();
        kept["metadata"]["ownerReferences"] = json!([{"uid": "other"}]);
        let all = owned(vec![here, there.clone(), kept.clone()], &addon);
        assert_eq!(all[0]["metadata"]["ownerReferences"][0]["uid"], "u1");
        assert_eq!(all[0]["metadata"]["ownerReferences"][0]["kind"], "ManagedClusterAddOn");
        assert_eq!(all[1..], [there, kept]);
    }
}
