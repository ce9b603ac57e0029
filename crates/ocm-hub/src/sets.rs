//! Cluster sets: the built-in ones, and the status of all sets (OCM-011, OCM-012).

use std::collections::BTreeMap;

use apis::{
    constants::{CLUSTER_GROUP, CLUSTER_SET_LABEL},
    ocm::{
        ManagedCluster, ManagedClusterSet, ManagedClusterSetBinding,
        cluster::{ConditionsStatus, ManagedClusterSelector},
    },
};
use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Condition, jiff::Timestamp};
use machinery::selector::LabelSelector;
use runtime::{Next, failure::is_clash, rest::Gvr};
use serde_json::{Value, json};

use super::{Hub, identity, name_of};
use ocm_shared::conditions::{self, condition};

/// Annotation: `"false"` keeps the hub from correcting a built-in set.
const AUTO_UPDATE: &str = "cluster.open-cluster-management.io/autoupdate";

/// Name and selector of the sets that every hub has.
pub fn builtin() -> [(&'static str, Value); 2] {
    [
        ("default", json!({"selectorType": "ExclusiveClusterSetLabel"})),
        ("global", json!({"selectorType": "LabelSelector", "labelSelector": {}})),
    ]
}

/// Returns whether a cluster with these labels is in the set. A selector that cannot be parsed selects
/// nothing.
pub fn contains(
    set: &str,
    selector: &ManagedClusterSelector,
    labels: Option<&BTreeMap<String, String>>,
) -> bool {
    let label = |key: &str| labels.and_then(|all| all.get(key)).map(String::as_str);
    if selector.selector_type != "LabelSelector" {
        return label(CLUSTER_SET_LABEL) == Some(set);
    }
    let Some(selector) = &selector.label_selector else { return false };
    serde_json::to_value(selector)
        .ok()
        .and_then(|object| LabelSelector::from_object(&object).ok())
        .is_some_and(|selector| selector.matches(label))
}

/// The condition of a set with this many clusters.
pub fn emptiness(members: usize, now: Timestamp) -> Condition {
    if members == 0 {
        return condition("ClusterSetEmpty", "True", "NoClusterMatched", "No ManagedCluster selected", now);
    }
    let message = format!("{members} ManagedClusters selected");
    condition("ClusterSetEmpty", "False", "ClustersSelected", message, now)
}

fn is_auto_updated(set: &ManagedClusterSet) -> bool {
    !set.metadata.annotations.iter().flatten().any(|(key, value)| key == AUTO_UPDATE && value == "false")
}

fn sets() -> Gvr {
    Gvr::of::<ManagedClusterSet>()
}

impl Hub {
    /// Creates the built-in sets, and corrects their selectors.
    pub(super) async fn builtin_sets(&self) -> Result<Next, kube::Error> {
        for (name, selector) in builtin() {
            let Some(set) = self.know.sets.get("", name) else {
                let body = json!({"apiVersion": format!("{CLUSTER_GROUP}/v1beta2"), "kind": "ManagedClusterSet",
                    "metadata": {"name": name}, "spec": {"clusterSelector": selector}});
                match self.rest.create::<Value>(&sets(), "", body.to_string().into_bytes()).await {
                    Err(error) if !is_clash(&error) => return Err(error),
                    _ => continue,
                }
            };
            let right = serde_json::from_value::<ManagedClusterSelector>(selector.clone())
                .is_ok_and(|wanted| wanted == set.spec.cluster_selector);
            if right || !is_auto_updated(&set) || set.metadata.deletion_timestamp.is_some() {
                continue;
            }
            let mut selector = selector;
            if selector.get("labelSelector").is_none() {
                selector["labelSelector"] = Value::Null;
            } else {
                // A merge patch would keep entries that another client added.
                selector["labelSelector"] = json!({"matchLabels": null, "matchExpressions": null});
            }
            let patch = json!({"metadata": identity(set.as_ref()), "spec": {"clusterSelector": selector}});
            self.rest.merge::<Value>(&sets(), "", name, &patch).await?;
        }
        Ok(Next::After(self.config.timers.sets))
    }

    pub(super) async fn set_status(&self, name: &str) -> Result<Next, kube::Error> {
        let Some(set) = self.know.sets.get("", name) else { return Ok(Next::OnChange) };
        let within =
            |c: &ManagedCluster| contains(name, &set.spec.cluster_selector, c.metadata.labels.as_ref());
        let members = self.know.clusters.list().iter().filter(|cluster| within(cluster)).count();
        let news = emptiness(members, self.now());
        let patch = changed(set.status.as_ref(), news);
        if let Some(status) = patch {
            let patch = json!({"metadata": identity(set.as_ref()), "status": status});
            self.rest.merge_status::<Value>(&sets(), "", name, &patch).await?;
        }
        Ok(Next::OnChange)
    }

    pub(super) async fn binding_status(&self, namespace: &str, name: &str) -> Result<Next, kube::Error> {
        let Some(binding) = self.know.bindings.get(namespace, name) else { return Ok(Next::OnChange) };
        let news = if self.know.sets.get("", &binding.spec.cluster_set).is_some() {
            condition("Bound", "True", "ClusterSetBound", "", self.now())
        } else {
            condition("Bound", "False", "ClusterSetNotFound", "", self.now())
        };
        if let Some(status) = changed(binding.status.as_ref(), news) {
            let gvr = Gvr::of::<ManagedClusterSetBinding>();
            let patch = json!({"metadata": identity(binding.as_ref()), "status": status});
            self.rest.merge_status::<Value>(&gvr, namespace, name_of(binding.as_ref()), &patch).await?;
        }
        Ok(Next::OnChange)
    }
}

fn changed(old: Option<&ConditionsStatus>, news: Condition) -> Option<Value> {
    let old = old.map(|status| status.conditions.clone()).unwrap_or_default();
    let mut list = old.clone();
    conditions::set(&mut list, news);
    (list != old).then(|| json!({"conditions": list}))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ocm_011_who_is_in_a_set() {
        let read = |value: Value| serde_json::from_value::<ManagedClusterSelector>(value).unwrap();
        let [(_, exclusive), (_, everything)] = builtin();
        let by_label =
            json!({"selectorType": "LabelSelector", "labelSelector": {"matchLabels": {"edge": "yes"}}});
        let odd = json!({"selectorType": "LabelSelector", "labelSelector": {"matchExpressions": [{"key": "a", "operator": "Huh"}]}});
        let none = json!({"selectorType": "LabelSelector"});
        let labels = |list: &[(&str, &str)]| -> BTreeMap<String, String> {
            list.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
        };
        let default = labels(&[(CLUSTER_SET_LABEL, "default")]);
        let edge = labels(&[("edge", "yes"), (CLUSTER_SET_LABEL, "other")]);
        for (selector, in_default, in_edge) in [
            (exclusive, true, false),
            (everything, true, true),
            (by_label, false, true),
            (odd, false, false),
            (none, false, false),
        ] {
            let selector = read(selector);
            assert_eq!(contains("default", &selector, Some(&default)), in_default, "{selector:?}");
            assert_eq!(contains("default", &selector, Some(&edge)), in_edge, "{selector:?}");
        }
    }
}
