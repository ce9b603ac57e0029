//! Add-ons that are being deleted: their hooks run first.

use std::{collections::BTreeMap, sync::Arc};

use apis::{
    constants::ADDON_PRE_DELETE,
    ocm::{ManagedCluster, ManagedClusterAddOn},
};
use ocm_shared::conditions::{self, condition};
use runtime::{Next, failure::is_not_found};
use serde_json::json;

use super::{
    Addon, Manager,
    deploy::{self, Common, HOOK_COMPLETED, hook_name},
    name_of,
    pass::AddonState,
};

/// Prefix of the finalizers that older releases set.
const OLD_FINALIZERS: &str = "cluster.open-cluster-management.io/";

impl Manager {
    /// Handles an add-on that is being deleted: its hooks run first, and its works are deleted with it.
    pub(super) async fn part(
        &self,
        addon: &Arc<ManagedClusterAddOn>,
        cluster: Option<&ManagedCluster>,
    ) -> Result<Next, kube::Error> {
        let all = addon.metadata.finalizers.clone().unwrap_or_default();
        let old = |finalizer: &str| finalizer.starts_with(OLD_FINALIZERS) && finalizer.contains("addon");
        let without = |drop_hook: bool| -> Vec<&String> {
            all.iter().filter(|f| !(old(f) || drop_hook && *f == ADDON_PRE_DELETE)).collect()
        };
        let status = addon.status.clone().unwrap_or_default();
        let owner = self.know.owners.get("", name_of(addon.as_ref()));
        let own = self.own(owner.as_deref(), addon, &status.config_references);
        let held = all.iter().any(|f| f == ADDON_PRE_DELETE);
        let waiting = match (own, cluster) {
            (Some(own), Some(cluster)) if held => {
                let addon_state = self.addon_state(own.as_ref(), addon, cluster, &status);
                self.run_hooks(own.as_ref(), &addon_state).await?
            }
            // The finalizer of another manager.
            (None, Some(_)) => held,
            // No agent is left that could run the hooks.
            _ => false,
        };
        let left = without(!waiting);
        if left.len() == all.len() {
            return Ok(Next::OnChange);
        }
        match self.patch(addon, json!({"metadata": {"finalizers": left}})).await {
            Err(error) if is_not_found(&error) => Ok(Next::OnChange),
            other => other.map(|()| Next::OnChange),
        }
    }

    /// Returns whether hooks are still running.
    async fn run_hooks(&self, own: &dyn Addon, addon_state: &AddonState<'_>) -> Result<bool, kube::Error> {
        let (cluster, name) = (name_of(addon_state.cluster), name_of(addon_state.addon));
        let hooks = match addon_state.objects(own) {
            Ok((_, hooks)) => hooks,
            Err(why) => {
                tracing::warn!(cluster, addon = name, why, "the add-on is deleted without running its hooks");
                Vec::new()
            }
        };
        if hooks.is_empty() {
            return Ok(false);
        }
        let hashes = BTreeMap::new();
        let common = Common { addon: addon_state.addon, hashes: &hashes, configs: &[] };
        let wanted = common.hook_work(hooks.clone());
        let works = addon_state.works();
        let found = works.iter().find(|work| name_of(**work) == hook_name(name));
        let left = match found {
            None => {
                self.make_work(cluster, &wanted).await?;
                hooks.iter().map(|hook| hook["metadata"]["name"].to_string()).collect()
            }
            Some(work) => deploy::unfinished(work, &hooks),
        };
        let old = addon_state.addon.status.clone().unwrap_or_default();
        let mut status = old.clone();
        let now = self.now();
        let news = if left.is_empty() {
            condition(HOOK_COMPLETED, "True", "HookManifestIsCompleted", "hook manifest is completed", now)
        } else {
            let list: Vec<String> = left.into_iter().collect();
            let message = format!("hook manifest is not completed: {}", list.join(", "));
            condition(HOOK_COMPLETED, "False", "HookManifestIsNotCompleted", message, now)
        };
        let running = news.status != "True";
        conditions::set(&mut status.conditions, news);
        if old != status {
            self.write(addon_state.addon, &old, &status).await?;
            // The finalizer is removed from the version that has the condition.
            return Ok(true);
        }
        Ok(running)
    }
}
