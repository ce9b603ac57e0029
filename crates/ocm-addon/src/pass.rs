//! Processes one add-on in one cluster: owner, configuration, identity and permissions, works, health; at
//! most one write of its status.

use std::{collections::BTreeMap, sync::Arc};

use apis::{
    constants::{ADDON_GROUP, ADDON_NAME_LABEL, ADDON_PRE_DELETE},
    ocm::{
        AddOnDeploymentConfig, ClusterManagementAddOn, ManagedCluster, ManagedClusterAddOn, ManifestWork,
        addon::{ConfigGroupResource, ManagedClusterAddOnStatus},
        cluster::CONDITION_AVAILABLE,
    },
};
use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Condition, jiff::Timestamp};
use runtime::{
    Next,
    failure::{is_clash, is_not_found, message_of},
    rest::Removal,
};
use serde_json::{Map, Value, json};

use super::{
    Addon, Manager, addons, config,
    deploy::{self, AppliedReport, Common, MANIFEST_APPLIED, hook_name, work_name, work_number},
    framework::{Health, REGISTRATION_APPLIED, Target, inherited, is_built_in, is_managed, is_owned},
    health, identity, name_of, namespace_of,
    presence::owner_reference,
    tokens, works,
};
use ocm_shared::{
    cluster::status as cluster_status,
    conditions::{self, condition},
};

/// The state of an add-on in a cluster.
pub(super) struct AddonState<'a> {
    pub(super) addon: &'a ManagedClusterAddOn,
    pub(super) cluster: &'a ManagedCluster,
    namespace: String,
    config: Option<AddOnDeploymentConfig>,
    works: Vec<Arc<ManifestWork>>,
    built_in: bool,
}

impl AddonState<'_> {
    pub(super) fn works(&self) -> Vec<&ManifestWork> {
        self.works.iter().map(AsRef::as_ref).collect()
    }

    fn target(&self) -> Target<'_> {
        Target {
            cluster: self.cluster,
            addon: self.addon,
            namespace: &self.namespace,
            config: self.config.as_ref(),
        }
    }

    /// Returns the regular objects, and the hooks.
    pub(super) fn objects(&self, own: &dyn Addon) -> Result<(Vec<Value>, Vec<Value>), String> {
        if self.built_in {
            return Ok((Vec::new(), Vec::new()));
        }
        let (hooks, rest) = own.manifests(&self.target())?.into_iter().partition(deploy::is_hook);
        Ok((rest, hooks))
    }

    /// Reports what its works say about the add-on. `wanted` is the number of works that there should be.
    fn report_works(
        &self,
        wanted: usize,
        health: Option<&Health>,
        conditions: &mut Vec<Condition>,
        now: Timestamp,
    ) {
        let name = name_of(self.addon);
        let deploying: Vec<&ManifestWork> =
            self.works().into_iter().filter(|work| work_number(name, name_of(*work)).is_some()).collect();
        let old = conditions.iter().find(|c| c.type_ == MANIFEST_APPLIED);
        match deploy::applied(&deploying, wanted, old, now) {
            AppliedReport::Now(news) => conditions::set(conditions, news),
            AppliedReport::Nothing => conditions.retain(|c| c.type_ != MANIFEST_APPLIED),
            AppliedReport::AsBefore => {}
        }
        if let Some(health) = health
            && cluster_status(self.cluster, CONDITION_AVAILABLE) != Some("Unknown")
        {
            conditions::set(conditions, health::by_work(name, &deploying, health, now));
        }
    }

    fn has_finalizer(&self) -> bool {
        self.addon.metadata.finalizers.iter().flatten().any(|have| have == ADDON_PRE_DELETE)
    }
}

impl Manager {
    pub(super) async fn settle(&self, cluster: &str, name: &str) -> Result<Next, kube::Error> {
        let Some(addon) = self.know.addons.get(cluster, name) else {
            return self.clear_rights(cluster, name, &[]).await.map(|()| Next::OnChange);
        };
        let member = self.cluster(cluster);
        if addon.metadata.deletion_timestamp.is_some() {
            return self.part(&addon, member.as_deref()).await;
        }
        let (Some(owner), Some(member)) = (self.know.owners.get("", name), member) else {
            return Ok(Next::OnChange);
        };
        if owner.metadata.deletion_timestamp.is_some() || member.metadata.deletion_timestamp.is_some() {
            return Ok(Next::OnChange);
        }
        let general = self.config.general && is_managed(&owner);
        if general && let Some(patch) = claim(&addon, &owner, &member) {
            return self.patch(&addon, patch).await.map(|()| Next::OnChange);
        }
        let old = addon.status.clone().unwrap_or_default();
        let mut status = old.clone();
        if general {
            self.configure(&owner, &addon, &mut status);
        }
        let own = self.own(Some(&owner), &addon, &status.config_references).filter(|_| is_owned(&addon));
        let mut outcome = Ok(Next::OnChange);
        if let Some(own) = &own {
            if !member.spec.hub_accepts_client {
                self.take_rights(own.as_ref(), cluster).await?;
                return Ok(Next::OnChange);
            }
            let addon_state = self.addon_state(own.as_ref(), &addon, &member, &status);
            outcome = self.manage(own.as_ref(), &owner, &addon_state, &mut status).await;
            if matches!(&outcome, Err(error) if is_clash(error)) {
                return outcome;
            }
        }
        if general {
            let built_in = own.is_some() && is_built_in(&member, name);
            self.note_progress(&addon, &mut status, !built_in);
        }
        self.write(&addon, &old, &status).await?;
        outcome
    }

    pub(super) fn addon_state<'a>(
        &self,
        own: &dyn Addon,
        addon: &'a ManagedClusterAddOn,
        cluster: &'a ManagedCluster,
        status: &ManagedClusterAddOnStatus,
    ) -> AddonState<'a> {
        let reference = status
            .config_references
            .iter()
            .find(|r| r.group == ADDON_GROUP && r.resource == "addondeploymentconfigs");
        let config = reference
            .and_then(|r| self.know.configs.get(&r.namespace, &r.name))
            .and_then(|found| serde_json::to_value(found.as_ref()).ok())
            .and_then(|found| serde_json::from_value::<AddOnDeploymentConfig>(found).ok());
        AddonState {
            namespace: own.namespace(addon, config.as_ref()),
            config,
            works: self.works_of(addon),
            built_in: is_built_in(cluster, name_of(addon)),
            addon,
            cluster,
        }
    }

    fn works_of(&self, addon: &ManagedClusterAddOn) -> Vec<Arc<ManifestWork>> {
        let theirs = |work: &Arc<ManifestWork>| {
            let label = work.metadata.labels.as_ref().and_then(|all| all.get(ADDON_NAME_LABEL));
            label.is_some_and(|label| label == name_of(addon))
        };
        self.know.works.list_namespace(namespace_of(addon)).into_iter().filter(theirs).collect()
    }

    /// Determines the configuration (4.7).
    fn configure(
        &self,
        owner: &ClusterManagementAddOn,
        addon: &ManagedClusterAddOn,
        status: &mut ManagedClusterAddOnStatus,
    ) {
        let within =
            |namespace: &str, name: &str| self.decided(namespace, name).contains(namespace_of(addon));
        match config::desired(owner, addon, within) {
            Ok(desired) => {
                let well = "Configurations configured";
                let news =
                    condition(config::CONFIGURED, "True", "ConfigurationsConfigured", well, self.now());
                conditions::set(&mut status.conditions, news);
                status.config_references =
                    config::references(&desired, &status.config_references, |config| self.digest(config));
            }
            Err(why) => {
                let news =
                    condition(config::PROGRESSING, "False", "ConfigurationUnsupported", why, self.now());
                conditions::set(&mut status.conditions, news);
            }
        }
    }

    fn note_progress(
        &self,
        addon: &ManagedClusterAddOn,
        status: &mut ManagedClusterAddOnStatus,
        deployed: bool,
    ) {
        let unsupported =
            |c: &Condition| c.type_ == config::PROGRESSING && c.reason == "ConfigurationUnsupported";
        let desired = self.know.owners.get("", name_of(addon)).is_some_and(|owner| {
            config::desired(&owner, addon, |n, p| self.decided(n, p).contains(namespace_of(addon))).is_err()
        });
        if desired && status.conditions.iter().any(unsupported) {
            return;
        }
        let all = self.works_of(addon);
        let all: Vec<&ManifestWork> = all
            .iter()
            .map(AsRef::as_ref)
            .filter(|work| work_number(name_of(addon), name_of(*work)).is_some())
            .collect();
        let (news, arrived) =
            config::progress(&status.conditions, &status.config_references, &all, deployed, self.now());
        conditions::set(&mut status.conditions, news);
        if arrived {
            for reference in &mut status.config_references {
                reference.last_applied_config.clone_from(&reference.desired_config);
            }
        }
    }

    /// Does the part of the add-on's own manager.
    async fn manage(
        &self,
        own: &dyn Addon,
        owner: &ClusterManagementAddOn,
        addon_state: &AddonState<'_>,
        status: &mut ManagedClusterAddOnStatus,
    ) -> Result<Next, kube::Error> {
        let now = self.now();
        let cluster = name_of(addon_state.cluster);
        let configured =
            status.conditions.iter().any(|c| c.type_ == config::CONFIGURED && c.status == "True");
        if own.waits_for_configuration() && !configured {
            return Ok(Next::OnChange);
        }
        let kinds = |kind: &apis::ocm::addon::ConfigMeta| ConfigGroupResource {
            group: kind.group.clone(),
            resource: kind.resource.clone(),
        };
        status.supported_configs = owner.spec.supported_configs.iter().map(kinds).collect();
        if let Some(why) = own.obstacle() {
            let failed = format!("Failed to set permission for hub agent: {why}");
            let news = condition(REGISTRATION_APPLIED, "False", "SetPermissionFailed", failed, now);
            conditions::set(&mut status.conditions, news);
            let failed = format!("failed to get manifest from agent interface: {why}");
            let news = condition(MANIFEST_APPLIED, "False", "ManifestWorkApplyFailed", failed, now);
            conditions::set(&mut status.conditions, news);
            return Ok(Next::OnChange);
        }
        if let Err(error) = self.give_rights(own, addon_state.addon).await {
            let why = format!("Failed to set permission for hub agent: {}", message_of(&error));
            let news = condition(REGISTRATION_APPLIED, "False", "SetPermissionFailed", why, now);
            conditions::set(&mut status.conditions, news);
            return Err(error);
        }
        status.registrations = own.identities(cluster, &status.registrations);
        if tokens::is_by_token(addon_state.addon) {
            tokens::identify(&mut status.registrations, cluster, own.name());
        }
        status.namespace.clone_from(&addon_state.namespace);
        let well = "Registration of the addon agent is configured";
        let news = condition(REGISTRATION_APPLIED, "True", "SetPermissionApplied", well, now);
        conditions::set(&mut status.conditions, news);
        let rendered = addon_state.objects(own);
        let objects = rendered.as_ref().map(|(objects, _)| objects.as_slice()).unwrap_or_default();
        let health = own.health(&addon_state.namespace, objects).filter(|_| !addon_state.built_in);
        status.health_check.mode = if health.is_some() { "Customized" } else { "Lease" }.into();

        let (objects, hooks) = match rendered {
            Ok(both) => both,
            Err(why) => {
                let why = format!("failed to get manifest from agent interface: {why}");
                let news = condition(MANIFEST_APPLIED, "False", "ManifestWorkApplyFailed", why, now);
                conditions::set(&mut status.conditions, news);
                return Ok(Next::OnChange);
            }
        };
        if !hooks.is_empty() && !addon_state.has_finalizer() {
            // Added before anything exists that the hooks would have to clean up.
            let mut all = addon_state.addon.metadata.finalizers.clone().unwrap_or_default();
            all.push(ADDON_PRE_DELETE.into());
            self.patch(addon_state.addon, json!({"metadata": {"finalizers": all}})).await?;
            return Ok(Next::Retry);
        }
        let hashes = config::hashes(&status.config_references);
        let configs = health.as_ref().map(|health| health.configs.as_slice()).unwrap_or_default();
        let common = Common { addon: addon_state.addon, hashes: &hashes, configs };
        let wanted = match self.deploy(addon_state, &common, objects).await {
            Ok(wanted) => wanted,
            Err(error) => {
                let why = format!("failed to apply the works of the addon: {}", message_of(&error));
                let news = condition(MANIFEST_APPLIED, "False", "ManifestWorkApplyFailed", why, now);
                conditions::set(&mut status.conditions, news);
                return Err(error);
            }
        };
        addon_state.report_works(wanted, health.as_ref(), &mut status.conditions, now);
        Ok(Next::OnChange)
    }

    /// Writes the works. Returns how many there should be.
    async fn deploy(
        &self,
        addon_state: &AddonState<'_>,
        common: &Common<'_>,
        objects: Vec<Value>,
    ) -> Result<usize, kube::Error> {
        let (cluster, name) = (name_of(addon_state.cluster), name_of(addon_state.addon));
        let existing = addon_state.works();
        let packed = deploy::pack(&deploy::held(name, &existing), objects, deploy::FILL);
        let count = packed.len();
        let mut wanted: BTreeMap<String, Value> = BTreeMap::new();
        for (number, held) in packed {
            let of = work_name(name, number);
            let work = common.work(&of, held);
            wanted.insert(of, work);
        }
        for (of, work) in &wanted {
            match existing.iter().find(|have| name_of(**have) == of) {
                None => self.make_work(cluster, work).await?,
                Some(have) if have.metadata.deletion_timestamp.is_none() => {
                    if let Some(patch) = deploy::correction(have, work) {
                        self.rest.merge::<Value>(&works(), cluster, of, &patch).await?;
                    }
                }
                // The work is created again when it is gone.
                Some(_) => {}
            }
        }
        for have in &existing {
            let of = name_of(*have);
            let stale =
                (work_number(name, of).is_some() || of == hook_name(name)) && !wanted.contains_key(of);
            if stale && have.metadata.deletion_timestamp.is_none() {
                self.delete_work(cluster, of).await?;
            }
        }
        Ok(count)
    }

    pub(super) async fn make_work(&self, cluster: &str, work: &Value) -> Result<(), kube::Error> {
        self.rest.create::<Value>(&works(), cluster, work.to_string().into_bytes()).await.map(drop)
    }

    async fn delete_work(&self, cluster: &str, name: &str) -> Result<(), kube::Error> {
        match self.rest.delete(&works(), cluster, name, &Removal::default()).await {
            Err(error) if !is_not_found(&error) => Err(error),
            _ => Ok(()),
        }
    }

    pub(super) async fn patch(
        &self,
        addon: &ManagedClusterAddOn,
        mut patch: Value,
    ) -> Result<(), kube::Error> {
        let mut metadata = identity(addon);
        if let (Some(all), Some(more)) = (metadata.as_object_mut(), patch["metadata"].as_object()) {
            all.extend(more.clone());
        }
        patch["metadata"] = metadata;
        self.rest.merge::<Value>(&addons(), namespace_of(addon), name_of(addon), &patch).await.map(drop)
    }

    /// Writes the changed parts of a status (OCM-004).
    pub(super) async fn write(
        &self,
        addon: &ManagedClusterAddOn,
        old: &ManagedClusterAddOnStatus,
        new: &ManagedClusterAddOnStatus,
    ) -> Result<(), kube::Error> {
        let Some(status) = difference(old, new) else { return Ok(()) };
        let patch = json!({"metadata": identity(addon), "status": status});
        self.rest
            .merge_status::<Value>(&addons(), namespace_of(addon), name_of(addon), &patch)
            .await
            .map(drop)
    }
}

/// Returns the changed parts, with null for removed ones.
fn difference(old: &ManagedClusterAddOnStatus, new: &ManagedClusterAddOnStatus) -> Option<Value> {
    let read = |status: &ManagedClusterAddOnStatus| match serde_json::to_value(status) {
        Ok(Value::Object(map)) => map,
        _ => Map::new(),
    };
    let (old, new) = (read(old), read(new));
    let mut changes: Map<String, Value> = new
        .iter()
        .filter(|(key, value)| old.get(*key) != Some(value))
        .map(|(k, v)| (k.clone(), v.clone()))
        .collect();
    changes.extend(old.keys().filter(|key| !new.contains_key(*key)).map(|key| (key.clone(), Value::Null)));
    (!changes.is_empty()).then_some(Value::Object(changes))
}

/// Returns the patch that makes the definition the owner of an add-on, with the annotations of its cluster;
/// `None` if nothing changes (OCM-112).
fn claim(
    addon: &ManagedClusterAddOn,
    owner: &ClusterManagementAddOn,
    cluster: &ManagedCluster,
) -> Option<Value> {
    let mut metadata = Map::new();
    let owners = addon.metadata.owner_references.clone().unwrap_or_default();
    let mine =
        owners.iter().any(|o| Some(&o.uid) == owner.metadata.uid.as_ref() && o.controller == Some(true));
    if !mine {
        let kept =
            owners.iter().filter(|o| !(o.kind == "ClusterManagementAddOn" && o.name == name_of(owner)));
        // An object has only one controller.
        let mut reference = owner_reference(owner);
        if kept.clone().any(|o| o.controller == Some(true)) {
            reference["controller"] = false.into();
        }
        let known = owners.iter().any(|o| Some(&o.uid) == owner.metadata.uid.as_ref());
        if !(known && reference["controller"] == false) {
            let mut all: Vec<Value> = kept.filter_map(|o| serde_json::to_value(o).ok()).collect();
            all.push(reference);
            metadata.insert("ownerReferences".into(), all.into());
        }
    }
    let have = addon.metadata.annotations.as_ref();
    let missing: Map<String, Value> = inherited(&cluster.metadata)
        .filter(|(key, value)| have.and_then(|all| all.get(*key)) != Some(value))
        .map(|(key, value)| (key.clone(), value.clone().into()))
        .collect();
    if !missing.is_empty() {
        metadata.insert("annotations".into(), missing.into());
    }
    (!metadata.is_empty()).then(|| json!({"metadata": metadata}))
}

#[cfg(test)]
mod tests {
    use super::*;
    use apis::ocm::addon::ConfigReference;

    fn owner() -> ClusterManagementAddOn {
        let mut owner = ClusterManagementAddOn::named("a");
        owner.metadata.uid = Some("u1".into());
        owner
    }

    #[test]
    fn ocm_112_an_addon_gets_its_owner_once() {
        let (mut addon, mut cluster) =
            (ManagedClusterAddOn::namespaced("c1", "a"), ManagedCluster::named("c1"));
        let patch = claim(&addon, &owner(), &cluster).unwrap();
        assert_eq!(patch["metadata"]["ownerReferences"][0]["uid"], "u1");
        assert_eq!(patch["metadata"]["ownerReferences"][0]["controller"], true);
        addon.metadata.owner_references =
            serde_json::from_value(patch["metadata"]["ownerReferences"].clone()).unwrap();
        assert_eq!(claim(&addon, &owner(), &cluster), None);
        // Recreated under the same name.
        let mut renewed = owner();
        renewed.metadata.uid = Some("u2".into());
        let patch = claim(&addon, &renewed, &cluster).unwrap();
        assert_eq!(patch["metadata"]["ownerReferences"].as_array().map(Vec::len), Some(1));
        cluster.metadata.annotations = Some(
            [("addon.open-cluster-management.io/x", "y"), ("other", "z")]
                .map(|(k, v)| (k.to_owned(), v.to_owned()))
                .into(),
        );
        let patch = claim(&addon, &owner(), &cluster).unwrap();
        assert_eq!(patch, json!({"metadata": {"annotations": {"addon.open-cluster-management.io/x": "y"}}}));
    }

    /// Only changes are written, and removed parts are null.
    #[test]
    fn ocm_113_a_status_write_has_the_changes_only() {
        let mut old = ManagedClusterAddOnStatus {
            namespace: "n".into(),
            kube_client_driver: "csr".into(),
            ..Default::default()
        };
        old.config_references = vec![ConfigReference::default()];
        let mut new = old.clone();
        assert_eq!(difference(&old, &new), None);
        new.namespace = "m".into();
        new.config_references.clear();
        assert_eq!(difference(&old, &new), Some(json!({"namespace": "m", "configReferences": null})));
    }
}
