//! The clusters in which add-ons are installed; the summary of an add-on over all clusters.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use apis::{
    constants::{ADDON_GROUP, PLACEMENT_LABEL},
    ocm::{
        ClusterManagementAddOn, ManagedCluster, ManagedClusterAddOn, PlacementDecision,
        addon::ClusterManagementAddOnStatus,
    },
};
use runtime::{
    Next,
    failure::{is_clash, is_not_found},
    rest::{Gvr, Removal, items},
};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{
    Manager, addons, config, decisions, framework::inherited, identity, install, name_of, namespace_of,
};

impl Manager {
    /// Installs an add-on in the wanted clusters, and removes it from the others (OCM-110, OCM-163).
    pub(super) async fn install(&self, addon: &str) -> Result<Next, kube::Error> {
        let Some(owner) = self.know.owners.get("", addon) else { return Ok(Next::OnChange) };
        let Some(placements) = install::placements(&owner) else { return Ok(Next::OnChange) };
        let known = placements.iter().filter(|(namespace, name)| {
            let found = self.know.placements.get(namespace, name).is_some();
            if !found {
                tracing::debug!(addon, namespace, placement = name, "the Placement does not exist");
            }
            found
        });
        let wanted: BTreeSet<String> =
            known.flat_map(|(namespace, name)| self.decided(namespace, name)).collect();
        let present: BTreeSet<String> = self
            .know
            .addons
            .keys()
            .into_iter()
            .filter(|key| &*key.name == addon)
            .map(|key| key.namespace.to_string())
            .collect();
        let clusters: BTreeMap<String, Arc<ManagedCluster>> =
            wanted.iter().filter_map(|name| Some((name.clone(), self.cluster(name)?))).collect();
        let changes = install::changes(&wanted, &present, |name| clusters.get(name).map(AsRef::as_ref));
        for cluster in &changes.add {
            if let Some(cluster) = clusters.get(cluster) {
                self.add(&owner, cluster).await?;
            }
        }
        self.unwanted.lock().retain(|(cluster, name), _| name != addon || changes.remove.contains(cluster));
        let (due, again) = self.due(addon, &changes.remove);
        self.remove(addon, due, &placements).await?;
        Ok(again.map_or(Next::OnChange, Next::After))
    }

    /// Returns the clusters whose add-on has been unwanted long enough, and the time until the next one.
    fn due(&self, addon: &str, unwanted: &BTreeSet<String>) -> (BTreeSet<String>, Option<Duration>) {
        let (mut due, mut again, now) = (BTreeSet::new(), None, Instant::now());
        for cluster in unwanted {
            let leaving = self.cluster(cluster).is_some_and(|c| c.metadata.deletion_timestamp.is_some());
            let gone =
                self.know.addons.get(cluster, addon).is_none_or(|a| a.metadata.deletion_timestamp.is_some());
            if leaving || gone {
                continue;
            }
            let place = (cluster.clone(), addon.to_owned());
            let since = *self.unwanted.lock().entry(place).or_insert(now);
            let left = self.config.timers.confirm.saturating_sub(now.duration_since(since));
            if left.is_zero() {
                due.insert(cluster.clone());
            } else {
                again = [again, Some(left)].into_iter().flatten().min();
            }
        }
        (due, again)
    }

    async fn add(&self, owner: &ClusterManagementAddOn, cluster: &ManagedCluster) -> Result<(), kube::Error> {
        let annotations: BTreeMap<&String, &String> = inherited(&cluster.metadata).collect();
        let body = json!({"apiVersion": format!("{ADDON_GROUP}/v1alpha1"), "kind": "ManagedClusterAddOn",
            "metadata": {"name": name_of(owner), "namespace": name_of(cluster), "annotations": annotations,
                "ownerReferences": [owner_reference(owner)]},
            "spec": {}});
        match self.rest.create_missing(&addons(), name_of(cluster), &body).await {
            // The mailbox is being deleted or does not exist yet: the next event of the cluster brings the
            // add-on back.
            Err(error) if is_not_found(&error) || runtime::failure::code_of(&error) == 403 => {
                tracing::debug!(%error, cluster = name_of(cluster), "no mailbox for the add-on");
                Ok(())
            }
            other => other.map(drop),
        }
    }

    /// Removes an add-on from clusters after the server itself confirms that it is still unwanted, because
    /// the informers may lag behind and pages are written one by one. Costs one list per Placement, and a
    /// deletion per cluster.
    async fn remove(
        &self,
        addon: &str,
        mut due: BTreeSet<String>,
        placements: &[(String, String)],
    ) -> Result<(), kube::Error> {
        for (namespace, placement) in placements {
            if due.is_empty() {
                return Ok(());
            }
            let label = format!("{PLACEMENT_LABEL}={placement}");
            let mut listed: Value = self.rest.list(&decisions(), namespace, &label).await?;
            let pages = items(&mut listed, &decisions())?;
            let pages: Vec<PlacementDecision> =
                serde_json::from_value(Value::Array(pages)).map_err(kube::Error::SerdeError)?;
            for cluster in install::decided(pages.iter(), namespace, placement) {
                // The Placement was decided again in the meantime; the event is on its way.
                if due.remove(&cluster) {
                    self.unwanted.lock().remove(&(cluster, addon.to_owned()));
                }
            }
        }
        let mut outcome = Ok(());
        for cluster in due {
            tracing::info!(addon, cluster, "the add-on is not wanted there any more");
            // An add-on that was recreated under the name must not be deleted.
            let uid = self.know.addons.get(&cluster, addon).and_then(|judged| judged.metadata.uid.clone());
            let removal = Removal { uid, propagation: None };
            match self.rest.delete(&addons(), &cluster, addon, &removal).await {
                Err(error) if !is_not_found(&error) && !is_clash(&error) => outcome = Err(error),
                // Done; if it is unwanted again, the time starts anew.
                _ => drop(self.unwanted.lock().remove(&(cluster, addon.to_owned()))),
            }
        }
        outcome
    }

    /// Writes the progress of the placements to the definition of an add-on.
    pub(super) async fn summarise(&self, addon: &str) -> Result<Next, kube::Error> {
        let Some(owner) = self.know.owners.get("", addon) else { return Ok(Next::OnChange) };
        let Some(placements) = install::placements(&owner) else { return Ok(Next::OnChange) };
        let decided: Vec<((String, String), BTreeSet<String>)> =
            placements.into_iter().map(|place| (place.clone(), self.decided(&place.0, &place.1))).collect();
        let present = self.know.addons.list();
        let mine: Vec<(BTreeSet<(String, String)>, &ManagedClusterAddOn)> = present
            .iter()
            .filter(|a| name_of(a.as_ref()) == addon)
            .map(|a| {
                let cluster = namespace_of(a.as_ref());
                let places = decided.iter().filter(|(_, clusters)| clusters.contains(cluster));
                (places.map(|(place, _)| place.clone()).collect(), a.as_ref())
            })
            .collect();
        let (default_config_references, install_progressions) =
            config::summary(&owner, &mine, |config| self.digest(config), self.now());
        let new = ClusterManagementAddOnStatus { default_config_references, install_progressions };
        if owner.status.clone().unwrap_or_default() == new {
            return Ok(Next::OnChange);
        }
        let gvr = Gvr::of::<ClusterManagementAddOn>();
        let body = json!({"metadata": identity(owner.as_ref()), "status": {
            "defaultconfigReferences": new.default_config_references,
            "installProgressions": new.install_progressions}});
        self.rest.merge_status::<Value>(&gvr, "", addon, &body).await.map(|_| Next::OnChange)
    }
}

/// The owner reference with which an add-on is deleted together with its definition.
pub(super) fn owner_reference(owner: &ClusterManagementAddOn) -> Value {
    json!({"apiVersion": format!("{ADDON_GROUP}/v1alpha1"), "kind": "ClusterManagementAddOn",
        "name": name_of(owner), "uid": owner.metadata.uid, "controller": true, "blockOwnerDeletion": true})
}
