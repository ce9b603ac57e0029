//! Leases, clocks, taints, and the add-ons of clusters with an expired lease.

use std::{collections::BTreeMap, time::Duration};

use apis::{
    constants::{ADDON_FEATURE_LABEL_PREFIX, CLUSTER_LEASE, CLUSTER_NAME_LABEL},
    ocm::{
        ManagedCluster, ManagedClusterAddOn,
        cluster::{CONDITION_AVAILABLE, CONDITION_HUB_ACCEPTED},
    },
};
use k8s_openapi::{
    api::{coordination::v1::Lease, events::v1::Event},
    apimachinery::pkg::apis::meta::v1::Condition,
};
use runtime::{Next, rest::Gvr};
use serde_json::{Value, json};

use super::{
    Hub, addons,
    availability::{self, LeaseState},
    identity, name_of,
};
use ocm_shared::{
    cluster::{grace, micro, status},
    conditions,
};

impl Hub {
    fn grace(&self, cluster: &ManagedCluster) -> Duration {
        grace(cluster, self.config.timers.grace_factor)
    }

    /// Creates the lease of a cluster, and reports when it has expired (OCM-045, OCM-047, OCM-049).
    pub(super) async fn presence(&self, name: &str) -> Result<Next, kube::Error> {
        let Some(cluster) = self.know.cluster(name) else { return Ok(Next::OnChange) };
        if status(&cluster, CONDITION_HUB_ACCEPTED).is_none() {
            return Ok(Next::OnChange);
        }
        let grace = self.grace(&cluster);
        let lease = self.know.leases.get(name, CLUSTER_LEASE);
        if lease.is_none() && cluster.metadata.deletion_timestamp.is_none() {
            self.make_lease(name).await?;
            return Ok(Next::After(grace));
        }
        let renewed = lease.and_then(|lease| lease.spec.as_ref()?.renew_time.as_ref().map(|time| time.0));
        // A lease without a time counts as expired, and so does the missing lease of a leaving cluster.
        let now = self.now();
        let renewed = renewed.map(|at| self.ahead.lock().heard_at(name, at, now));
        let lease_state =
            renewed.map_or(LeaseState::Stopped, |at| availability::lease_state(at, self.since, grace, now));
        match lease_state {
            LeaseState::Until(left) => Ok(Next::After(left)),
            LeaseState::Stopped => {
                if status(&cluster, CONDITION_AVAILABLE) != Some("Unknown") {
                    let unknown = availability::unknown(self.now());
                    let note = unknown.message.clone();
                    self.report(&cluster, vec![unknown]).await?;
                    self.tell(name, &note).await;
                }
                Ok(Next::After(grace))
            }
        }
    }

    async fn make_lease(&self, cluster: &str) -> Result<(), kube::Error> {
        let body = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease",
            "metadata": {"name": CLUSTER_LEASE, "namespace": cluster, "labels": {CLUSTER_NAME_LABEL: cluster}},
            "spec": {"holderIdentity": CLUSTER_LEASE, "renewTime": micro(self.now())}});
        let gvr = Gvr::of::<Lease>();
        self.rest.create_missing(&gvr, cluster, &body).await.map(drop)
    }

    /// Emits an Event in the mailbox; a lost Event does no harm.
    async fn tell(&self, cluster: &str, note: &str) {
        let body = json!({"apiVersion": "events.k8s.io/v1", "kind": "Event",
            "metadata": {"generateName": format!("{cluster}."), "namespace": cluster},
            "eventTime": micro(self.now()), "type": "Warning", "reason": "AvailableUnknown", "action": "AvailableUnknown",
            "note": note, "reportingController": super::MANAGER, "reportingInstance": super::MANAGER,
            "regarding": {"apiVersion": "cluster.open-cluster-management.io/v1", "kind": "ManagedCluster",
                "name": cluster, "namespace": cluster}});
        let gvr = Gvr::of::<Event>();
        if let Err(error) = self.rest.create::<Value>(&gvr, cluster, body.to_string().into_bytes()).await {
            tracing::debug!(cluster, %error, "no event");
        }
    }

    /// Compares the clocks, after a renewal (OCM-052).
    pub(super) async fn clock(&self, name: &str) -> Result<Next, kube::Error> {
        let (Some(cluster), Some(lease)) =
            (self.know.cluster(name), self.know.leases.get(name, CLUSTER_LEASE))
        else {
            return Ok(Next::OnChange);
        };
        let renewed = lease.spec.as_ref().and_then(|spec| spec.renew_time.as_ref()).map(|time| time.0);
        if let Some(renewed) = renewed {
            let news = availability::clock(&cluster, renewed, self.grace(&cluster), self.now());
            self.report(&cluster, vec![news]).await?;
        }
        Ok(Next::OnChange)
    }

    /// Sets and removes the taints about availability (OCM-053).
    pub(super) async fn taints(&self, name: &str) -> Result<Next, kube::Error> {
        let Some(cluster) = self.know.cluster(name) else { return Ok(Next::OnChange) };
        if cluster.metadata.deletion_timestamp.is_none()
            && let Some(taints) = availability::taints(&cluster)
        {
            self.patch(&cluster, json!({"spec": {"taints": taints}})).await?;
        }
        Ok(Next::OnChange)
    }

    /// Sets the labels of the cluster about its add-ons (4.7), and the status of add-ons of a cluster with an
    /// expired lease (4.6).
    pub(super) async fn features(&self, name: &str) -> Result<Next, kube::Error> {
        let Some(cluster) = self.know.cluster(name) else { return Ok(Next::OnChange) };
        let conditions = cluster.status.as_ref().map(|s| s.conditions.as_slice()).unwrap_or_default();
        let available = conditions.iter().find(|c| c.type_ == CONDITION_AVAILABLE);
        let Some(available) = available.filter(|_| cluster.metadata.deletion_timestamp.is_none()) else {
            return Ok(Next::OnChange);
        };
        let addons = self.know.addons.list_namespace(name);
        let wanted = feature_labels(addons.iter().map(AsRef::as_ref));
        if let Some(changed) = label_changes(&cluster, &wanted) {
            self.patch(&cluster, json!({"metadata": {"labels": changed}})).await?;
        }
        if available.status == "Unknown" {
            for addon in &addons {
                self.silence(addon, available).await?;
            }
        }
        Ok(Next::OnChange)
    }

    async fn silence(&self, addon: &ManagedClusterAddOn, cause: &Condition) -> Result<(), kube::Error> {
        let old = addon.status.as_ref().map(|status| status.conditions.clone()).unwrap_or_default();
        let mut list = old.clone();
        let news = Condition { type_: "Available".into(), observed_generation: None, ..cause.clone() };
        conditions::set(&mut list, news);
        if list == old {
            return Ok(());
        }
        let patch = json!({"metadata": identity(addon), "status": {"conditions": list}});
        let namespace = addon.metadata.namespace.as_deref().unwrap_or_default();
        self.rest.merge_status::<Value>(&addons(), namespace, name_of(addon), &patch).await.map(drop)
    }
}

/// Returns the labels about the state of a cluster's add-ons.
fn feature_labels<'a>(
    addons: impl Iterator<Item = &'a ManagedClusterAddOn>,
) -> BTreeMap<String, &'static str> {
    let state = |addon: &ManagedClusterAddOn| {
        let conditions = addon.status.as_ref().map(|s| s.conditions.as_slice()).unwrap_or_default();
        match conditions.iter().find(|c| c.type_ == "Available").map(|c| c.status.as_str()) {
            Some("True") => "available",
            Some("False") => "unhealthy",
            _ => "unreachable",
        }
    };
    addons
        .filter(|addon| addon.metadata.deletion_timestamp.is_none())
        .map(|addon| (format!("{ADDON_FEATURE_LABEL_PREFIX}{}", name_of(addon)), state(addon)))
        .collect()
}

/// Returns the changed labels, with null for removed ones (OCM-006); labels of other writers are not changed.
fn label_changes(cluster: &ManagedCluster, wanted: &BTreeMap<String, &'static str>) -> Option<Value> {
    let empty = BTreeMap::new();
    let have = cluster.metadata.labels.as_ref().unwrap_or(&empty);
    let mut changes = serde_json::Map::new();
    for (key, value) in wanted {
        if have.get(key).map(String::as_str) != Some(value) {
            changes.insert(key.clone(), (*value).into());
        }
    }
    for key in have.keys().filter(|k| k.starts_with(ADDON_FEATURE_LABEL_PREFIX) && !wanted.contains_key(*k)) {
        changes.insert(key.clone(), Value::Null);
    }
    (!changes.is_empty()).then_some(Value::Object(changes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ocm_006_only_changed_feature_labels_are_written() {
        let mut cluster = ManagedCluster::named("c1");
        let label = |addon: &str| format!("{ADDON_FEATURE_LABEL_PREFIX}{addon}");
        cluster.metadata.labels = Some(
            [
                ("mine".to_owned(), "x".to_owned()),
                (label("a"), "available".into()),
                (label("gone"), "available".into()),
            ]
            .into(),
        );
        let wanted = [(label("a"), "available"), (label("b"), "unhealthy")].into();
        assert_eq!(
            label_changes(&cluster, &wanted),
            Some(json!({label("b"): "unhealthy", label("gone"): null}))
        );
        cluster.metadata.labels =
            Some([(label("a"), "available".to_owned()), (label("b"), "unhealthy".into())].into());
        assert_eq!(label_changes(&cluster, &wanted), None);
    }
}
