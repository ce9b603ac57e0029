//! Namespaces that cluster sets request in their clusters, as written to each cluster's status (OCM-056,
//! 1.2).

use std::collections::BTreeSet;

use apis::ocm::{ManagedCluster, ManagedClusterSet, cluster::ManagedNamespace};
use runtime::Next;
use serde_json::{Value, json};

use super::{Hub, clusters, identity, name_of, sets::contains};

/// Returns the union of the requests of a cluster's sets, by set and name. What the agent reported about an
/// entry stays.
pub fn wanted<'a>(
    cluster: &ManagedCluster,
    sets: impl Iterator<Item = &'a ManagedClusterSet>,
) -> Vec<ManagedNamespace> {
    let have = cluster.status.as_ref().map(|status| status.managed_namespaces.as_slice()).unwrap_or_default();
    let labels = cluster.metadata.labels.as_ref();
    let entries: BTreeSet<(String, String)> = sets
        .filter(|set| set.metadata.deletion_timestamp.is_none())
        .filter(|set| contains(name_of(*set), &set.spec.cluster_selector, labels))
        .flat_map(|set| {
            let name = name_of(set).to_owned();
            set.spec.managed_namespaces.iter().map(move |namespace| (name.clone(), namespace.name.clone()))
        })
        .collect();
    let reported = |set: &str, name: &str| {
        let entry = have.iter().find(|entry| entry.cluster_set == set && entry.name == name);
        entry.map(|entry| entry.conditions.clone()).unwrap_or_default()
    };
    entries
        .into_iter()
        .map(|(cluster_set, name)| {
            let conditions = reported(&cluster_set, &name);
            ManagedNamespace { name, cluster_set, conditions }
        })
        .collect()
}

impl Hub {
    /// Writes the requested namespaces to a cluster's status. Costs a scan of all sets, and a write if
    /// something changed.
    pub(super) async fn managed_namespaces(&self, name: &str) -> Result<Next, kube::Error> {
        let Some(cluster) = self.know.cluster(name) else { return Ok(Next::OnChange) };
        if cluster.metadata.deletion_timestamp.is_some() {
            return Ok(Next::OnChange);
        }
        let sets = self.know.sets.list();
        let wanted = wanted(&cluster, sets.iter().map(AsRef::as_ref));
        let have = cluster.status.as_ref().map(|s| s.managed_namespaces.as_slice()).unwrap_or_default();
        if have != wanted {
            let patch =
                json!({"metadata": identity(cluster.as_ref()), "status": {"managedNamespaces": wanted}});
            self.rest.merge_status::<Value>(&clusters(), "", name, &patch).await?;
        }
        Ok(Next::OnChange)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use apis::constants::CLUSTER_SET_LABEL;

    /// OCM-056: the entries come from every set of the cluster, and the agent's report about an entry stays
    /// as long as the entry.
    #[test]
    fn ocm_056_what_a_cluster_is_told() {
        let set = |name: &str, selector: Value, namespaces: &[&str]| -> ManagedClusterSet {
            let namespaces: Vec<Value> = namespaces.iter().map(|name| json!({"name": name})).collect();
            serde_json::from_value(json!({"metadata": {"name": name},
                "spec": {"clusterSelector": selector, "managedNamespaces": namespaces}}))
            .unwrap()
        };
        let exclusive = || json!({"selectorType": "ExclusiveClusterSetLabel"});
        let everything = || json!({"selectorType": "LabelSelector", "labelSelector": {}});
        let mut cluster = ManagedCluster::named("c1");
        cluster.metadata.labels = Some([(CLUSTER_SET_LABEL.to_owned(), "blue".to_owned())].into());
        let said: ManagedNamespace =
            serde_json::from_value(json!({"name": "b", "clusterSet": "blue", "conditions": [
            {"type": "NamespaceAvailable", "status": "True", "reason": "NamespaceApplied", "message": "",
                "lastTransitionTime": "2026-01-01T00:00:00Z"}]}))
            .unwrap();
        let gone = ManagedNamespace { name: "gone".into(), ..said.clone() };
        cluster.status.get_or_insert_default().managed_namespaces = vec![gone, said.clone()];
        let all = [
            set("blue", exclusive(), &["b", "a"]),
            set("red", exclusive(), &["r"]),
            set("global", everything(), &["a"]),
        ];
        let reported = wanted(&cluster, all.iter());
        let names: Vec<(&str, &str)> =
            reported.iter().map(|entry| (entry.cluster_set.as_str(), entry.name.as_str())).collect();
        assert_eq!(names, [("blue", "a"), ("blue", "b"), ("global", "a")]);
        assert_eq!(reported[1], said);
        assert_eq!(reported[0].conditions, []);
    }
}
