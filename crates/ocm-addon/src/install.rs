//! Decides in which clusters an add-on is installed (OCM-110). Pure.

use std::collections::BTreeSet;

use apis::{
    constants::PLACEMENT_LABEL,
    ocm::{ClusterManagementAddOn, ManagedCluster, PlacementDecision, cluster::CONDITION_HUB_ACCEPTED},
};

use super::framework::is_managed;
use ocm_shared::cluster::status;

/// Returns the placements of an add-on that the general manager installs; `None` if it does not manage the
/// add-on.
pub fn placements(owner: &ClusterManagementAddOn) -> Option<Vec<(String, String)>> {
    if !is_managed(owner) || owner.metadata.deletion_timestamp.is_some() {
        return None;
    }
    let strategy = owner.spec.install_strategy.as_ref().filter(|s| s.type_ == "Placements")?;
    Some(strategy.placements.iter().map(|p| (p.namespace.clone(), p.name.clone())).collect())
}

/// Returns the clusters on the pages of a placement.
pub fn decided<'a>(
    decisions: impl Iterator<Item = &'a PlacementDecision>,
    namespace: &str,
    placement: &str,
) -> BTreeSet<String> {
    decisions
        .filter(|decision| {
            let meta = &decision.metadata;
            let label = meta.labels.as_ref().and_then(|all| all.get(PLACEMENT_LABEL)).map(String::as_str);
            meta.namespace.as_deref() == Some(namespace) && label == Some(placement)
        })
        .flat_map(|decision| decision.status.iter().flat_map(|status| &status.decisions))
        .map(|decision| decision.cluster_name.clone())
        .collect()
}

/// The clusters in which to install or remove an add-on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Clusters that lack it and can have it.
    pub add: BTreeSet<String>,
    /// Clusters that have it and should not.
    pub remove: BTreeSet<String>,
}

/// Compares the wanted with the existing clusters. A cluster can have an add-on once it is accepted, because
/// it has a mailbox then. The hub handles a cluster that is being deleted.
pub fn changes<'a>(
    wanted: &BTreeSet<String>,
    present: &BTreeSet<String>,
    cluster: impl Fn(&str) -> Option<&'a ManagedCluster>,
) -> Changes {
    let takes = |name: &&String| {
        cluster(name).is_some_and(|c| {
            c.metadata.deletion_timestamp.is_none() && status(c, CONDITION_HUB_ACCEPTED) == Some("True")
        })
    };
    Changes {
        add: wanted.difference(present).filter(takes).cloned().collect(),
        remove: present.difference(wanted).cloned().collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn owner(strategy: &Value, lifecycle: Option<&str>) -> ClusterManagementAddOn {
        let mut owner: ClusterManagementAddOn =
            serde_json::from_value(json!({"metadata": {"name": "a"}, "spec": {"installStrategy": strategy}}))
                .unwrap();
        let annotation = |who: &str| (apis::constants::ADDON_LIFECYCLE_ANNOTATION.to_owned(), who.to_owned());
        owner.metadata.annotations = lifecycle.map(|who| [annotation(who)].into());
        owner
    }

    #[test]
    fn ocm_110_who_installs() {
        let placed = json!({"type": "Placements", "placements": [{"namespace": "n", "name": "p"}]});
        let some = Some(vec![("n".to_owned(), "p".to_owned())]);
        assert_eq!(placements(&owner(&placed, None)), some);
        assert_eq!(placements(&owner(&placed, Some("addon-manager"))), some);
        assert_eq!(placements(&owner(&placed, Some("self"))), None);
        assert_eq!(placements(&owner(&json!({"type": "Manual"}), None)), None);
        assert_eq!(placements(&ClusterManagementAddOn::named("a")), None);
    }

    #[test]
    fn ocm_110_what_is_decided_is_installed_where_it_can_be() {
        let decision = |namespace: &str, placement: &str, clusters: &[&str]| -> PlacementDecision {
            let decisions: Vec<Value> =
                clusters.iter().map(|c| json!({"clusterName": c, "reason": ""})).collect();
            serde_json::from_value(json!({"metadata": {"name": "d", "namespace": namespace, "labels": {PLACEMENT_LABEL: placement}},
                "status": {"decisions": decisions}}))
            .unwrap()
        };
        let all = [
            decision("n", "p", &["c1", "c2"]),
            decision("n", "p", &["c3", "gone"]),
            decision("n", "q", &["c4"]),
            decision("m", "p", &["c5"]),
        ];
        let wanted = decided(all.iter(), "n", "p");
        let set = |names: &[&str]| -> BTreeSet<String> { names.iter().map(|n| (*n).to_owned()).collect() };
        assert_eq!(wanted, set(&["c1", "c2", "c3", "gone"]));
        let accepted = |name: &str| -> ManagedCluster {
            serde_json::from_value(json!({"metadata": {"name": name}, "status": {"conditions": [{"type": "HubAcceptedManagedCluster",
                "status": "True", "reason": "R", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}]}}))
            .unwrap()
        };
        let (c1, c2, c3) = (accepted("c1"), ManagedCluster::named("c2"), accepted("c3"));
        let known = |name: &str| {
            [("c1", &c1), ("c2", &c2), ("c3", &c3)].iter().find(|(n, _)| *n == name).map(|(_, c)| *c)
        };
        let made_by_hand = set(&["c3", "c9"]);
        assert_eq!(
            changes(&wanted, &made_by_hand, known),
            Changes { add: set(&["c1"]), remove: set(&["c9"]) }
        );
    }
}
