//! ClusterProfiles: the clusters of the sets that are bound to a namespace, shown there in the inventory API of
//! the Multicluster SIG (OCM-165; gate ClusterProfile).
//!
//! The unit of work is one cluster in one namespace. [`decide`] is pure.

use std::collections::BTreeMap;

use apis::{
    constants::{
        CLUSTER_NAME_LABEL, CLUSTER_SET_LABEL, MULTICLUSTER_GROUP, PROFILE_MANAGER_LABEL, PROFILE_SET_LABEL,
    },
    ocm::{
        ClusterProfile, ManagedCluster, ManagedClusterSetBinding,
        cluster::{CONDITION_AVAILABLE, CONDITION_JOINED},
        cluster_profile::{CONDITION_HEALTHY, ClusterProfileStatus, Property},
    },
};
use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Condition, jiff::Timestamp};
use ocm_shared::{
    conditions,
    object::{identity, name_of},
};
use runtime::{
    Next,
    failure::is_not_found,
    rest::{Gvr, Removal},
};
use serde_json::{Value, json};

use super::{Hub, sets::contains};

/// The name of this cluster manager in profiles, the same as OCM's.
const MANAGER: &str = "open-cluster-management";
/// Conditions of a ManagedCluster that a profile shows, and their names there.
const SHOWN: [(&str, &str); 2] = [(CONDITION_AVAILABLE, CONDITION_HEALTHY), (CONDITION_JOINED, "Joined")];

/// What is to be done about one cluster in one namespace.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Nothing.
    Nothing,
    /// Create the profile with these labels.
    Create(BTreeMap<&'static str, String>),
    /// Write these fields of the status.
    Status(Value),
    /// Write these labels.
    Label(BTreeMap<&'static str, String>),
    /// Delete the profile.
    Delete,
    /// The name is taken by the profile of another cluster manager.
    Taken,
}

/// Decides about `cluster` in a namespace. `cluster` is `None` if the cluster does not exist or is not in a set
/// that is bound to the namespace. One write at a time: the event of the first one leads to the next.
pub fn decide(cluster: Option<&ManagedCluster>, profile: Option<&ClusterProfile>, now: Timestamp) -> Step {
    let cluster = cluster.filter(|cluster| cluster.metadata.deletion_timestamp.is_none());
    match (cluster, profile) {
        (None, None) => Step::Nothing,
        (Some(cluster), None) => Step::Create(labels(cluster)),
        (cluster, Some(profile)) if profile.spec.cluster_manager.name != MANAGER => {
            if cluster.is_some() {
                Step::Taken
            } else {
                Step::Nothing
            }
        }
        (_, Some(profile)) if profile.metadata.deletion_timestamp.is_some() => Step::Nothing,
        (None, Some(_)) => Step::Delete,
        (Some(cluster), Some(profile)) => {
            if let Some(status) = status(cluster, profile, now) {
                return Step::Status(status);
            }
            let mut wanted = labels(cluster);
            let have = profile.metadata.labels.as_ref();
            wanted.retain(|key, value| have.and_then(|all| all.get(*key)) != Some(value));
            if wanted.is_empty() { Step::Nothing } else { Step::Label(wanted) }
        }
    }
}

/// The labels of a profile. The one of a cluster in no set is empty, as in OCM.
fn labels(cluster: &ManagedCluster) -> BTreeMap<&'static str, String> {
    let set = cluster.metadata.labels.as_ref().and_then(|all| all.get(CLUSTER_SET_LABEL));
    BTreeMap::from([
        (PROFILE_MANAGER_LABEL, MANAGER.to_owned()),
        (PROFILE_SET_LABEL, set.cloned().unwrap_or_default()),
        (CLUSTER_NAME_LABEL, name_of(cluster).to_owned()),
    ])
}

/// Returns the fields of the status that differ from what the cluster reports.
fn status(cluster: &ManagedCluster, profile: &ClusterProfile, now: Timestamp) -> Option<Value> {
    let from = cluster.status.clone().unwrap_or_default();
    let empty = ClusterProfileStatus::default();
    let have = profile.status.as_ref().unwrap_or(&empty);
    let mut patch = serde_json::Map::new();
    if have.version != from.version {
        let version = Some(from.version.kubernetes).filter(|version| !version.is_empty());
        patch.insert("version".into(), json!({"kubernetes": version}));
    }
    let claims = from.cluster_claims.into_iter();
    let properties: Vec<Property> =
        claims.map(|c| Property { name: c.name, value: c.value, last_observed_time: None }).collect();
    if have.properties != properties {
        patch.insert("properties".into(), json!(properties));
    }
    let mut list = have.conditions.clone();
    for (theirs, ours) in SHOWN {
        if let Some(found) = from.conditions.iter().find(|condition| condition.type_ == theirs) {
            let shown = Condition {
                type_: ours.into(),
                observed_generation: None,
                last_transition_time: k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(now),
                ..found.clone()
            };
            conditions::set(&mut list, shown);
        }
    }
    if list != have.conditions {
        patch.insert("conditions".into(), json!(list));
    }
    (!patch.is_empty()).then(|| patch.into())
}

/// Returns whether a change of a cluster may change its profiles.
pub(super) fn is_shown(old: &ManagedCluster, new: &ManagedCluster) -> bool {
    let facts = |cluster: &ManagedCluster| {
        let status = cluster.status.clone().unwrap_or_default();
        let shown = |condition: &Condition| SHOWN.iter().any(|(type_, _)| condition.type_ == *type_);
        let conditions: Vec<Condition> = status.conditions.into_iter().filter(shown).collect();
        (status.version, status.cluster_claims, conditions)
    };
    old.metadata.labels != new.metadata.labels
        || old.metadata.deletion_timestamp != new.metadata.deletion_timestamp
        || facts(old) != facts(new)
}

fn is_bound(binding: &ManagedClusterSetBinding) -> bool {
    let conditions = binding.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    conditions.iter().any(|condition| condition.type_ == "Bound" && condition.status == "True")
}

fn profiles() -> Gvr {
    Gvr::new(MULTICLUSTER_GROUP, "v1alpha1", "clusterprofiles")
}

impl Hub {
    /// Handles one cluster in one namespace. Costs a look at the bindings of the namespace, and at most one write.
    pub(super) async fn profile(&self, namespace: &str, name: &str) -> Result<Next, kube::Error> {
        let cluster = self.know.cluster(name).filter(|cluster| self.is_bound_to(namespace, cluster));
        let profile = self.know.profiles.get(namespace, name);
        let step = decide(cluster.as_deref(), profile.as_deref(), self.now());
        match (step, profile) {
            (Step::Create(labels), _) => self.create_profile(namespace, name, labels).await?,
            (Step::Status(status), Some(profile)) => {
                let patch = json!({"metadata": identity(profile.as_ref()), "status": status});
                self.rest.merge_status::<Value>(&profiles(), namespace, name, &patch).await?;
            }
            (Step::Label(labels), Some(profile)) => {
                let mut patch = json!({"metadata": identity(profile.as_ref())});
                patch["metadata"]["labels"] = json!(labels);
                self.rest.merge::<Value>(&profiles(), namespace, name, &patch).await?;
            }
            (Step::Delete, Some(profile)) => {
                let removal = Removal { uid: profile.metadata.uid.clone(), ..Removal::default() };
                match self.rest.delete(&profiles(), namespace, name, &removal).await {
                    Err(error) if !is_not_found(&error) => return Err(error),
                    _ => {}
                }
            }
            (Step::Taken, _) => tracing::warn!(
                namespace,
                cluster = name,
                "another cluster manager has a ClusterProfile of this name: the cluster is not shown there"
            ),
            _ => {}
        }
        Ok(Next::OnChange)
    }

    /// Returns whether a set with the cluster is bound to the namespace.
    fn is_bound_to(&self, namespace: &str, cluster: &ManagedCluster) -> bool {
        self.know.bindings.list_namespace(namespace).iter().filter(|binding| is_bound(binding)).any(
            |binding| {
                let set = self.know.sets.get("", &binding.spec.cluster_set);
                set.is_some_and(|set| {
                    contains(
                        name_of(set.as_ref()),
                        &set.spec.cluster_selector,
                        cluster.metadata.labels.as_ref(),
                    )
                })
            },
        )
    }

    async fn create_profile(
        &self,
        namespace: &str,
        name: &str,
        labels: BTreeMap<&'static str, String>,
    ) -> Result<(), kube::Error> {
        let body = json!({"apiVersion": profiles().api_version(), "kind": "ClusterProfile",
            "metadata": {"name": name, "namespace": namespace, "labels": labels},
            "spec": {"displayName": name, "clusterManager": {"name": MANAGER}}});
        let made = self.rest.create::<Value>(&profiles(), namespace, body.to_string().into_bytes()).await;
        let Err(error) = made else { return Ok(()) };
        // A namespace that is being deleted takes no new objects, and its bindings are deleted after or before.
        let found: Option<Value> = self.rest.find(&Gvr::new("", "v1", "namespaces"), "", namespace).await?;
        let remains = found.is_some_and(|it| it.pointer("/metadata/deletionTimestamp").is_none());
        if remains { Err(error) } else { Ok(()) }
    }
}

/// Returns whether a change of a binding may change profiles.
pub(super) fn is_rebound(old: &ManagedClusterSetBinding, new: &ManagedClusterSetBinding) -> bool {
    old.spec != new.spec || is_bound(old) != is_bound(new)
}

#[cfg(test)]
mod tests {
    use apis::ocm::cluster::{ManagedClusterClaim, ManagedClusterStatus, ManagedClusterVersion};
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use ocm_shared::conditions::condition;

    use super::*;

    const NOW: Timestamp = Timestamp::UNIX_EPOCH;

    fn cluster(set: Option<&str>) -> ManagedCluster {
        let mut cluster = ManagedCluster::named("c1");
        cluster.metadata.labels = set.map(|set| [(CLUSTER_SET_LABEL.to_owned(), set.to_owned())].into());
        cluster.status = Some(ManagedClusterStatus {
            version: ManagedClusterVersion { kubernetes: "v1.30.0".into() },
            cluster_claims: vec![ManagedClusterClaim { name: "cloud".into(), value: "mine".into() }],
            conditions: vec![
                condition(CONDITION_AVAILABLE, "True", "ManagedClusterAvailable", "it is", NOW),
                condition(CONDITION_JOINED, "True", "ManagedClusterJoined", "it has", NOW),
                condition("HubAcceptedManagedCluster", "True", "x", "", NOW),
            ],
            ..ManagedClusterStatus::default()
        });
        cluster
    }

    /// What the server has after these steps.
    fn settled(cluster: &ManagedCluster) -> ClusterProfile {
        let mut profile = ClusterProfile::namespaced("ns", "c1");
        profile.spec.cluster_manager.name = MANAGER.into();
        for _ in 0..3 {
            match decide(Some(cluster), Some(&profile), NOW) {
                Step::Status(patch) => {
                    let mut status = json!(profile.status.clone().unwrap_or_default());
                    for (key, value) in patch.as_object().unwrap() {
                        status[key] = value.clone();
                    }
                    profile.status = serde_json::from_value(status).unwrap();
                }
                Step::Label(labels) => {
                    let all = labels.into_iter().map(|(key, value)| (key.to_owned(), value));
                    profile.metadata.labels.get_or_insert_default().extend(all);
                }
                Step::Nothing => return profile,
                other => panic!("{other:?}"),
            }
        }
        panic!("the decisions do not settle")
    }

    /// OCM-165: when a profile is created, deleted, left alone.
    #[test]
    fn ocm_165_who_gets_a_profile() {
        let one = cluster(Some("blue"));
        let Step::Create(labels) = decide(Some(&one), None, NOW) else { panic!("no profile") };
        assert_eq!(labels[PROFILE_MANAGER_LABEL], "open-cluster-management");
        assert_eq!((labels[PROFILE_SET_LABEL].as_str(), labels[CLUSTER_NAME_LABEL].as_str()), ("blue", "c1"));
        assert_eq!(decide(None, None, NOW), Step::Nothing);
        let mut leaving = one.clone();
        leaving.metadata.deletion_timestamp = Some(Time(NOW));
        assert_eq!(decide(Some(&leaving), None, NOW), Step::Nothing);
        let ours = settled(&one);
        assert_eq!(decide(Some(&leaving), Some(&ours), NOW), Step::Delete);
        assert_eq!(decide(None, Some(&ours), NOW), Step::Delete);
        let mut going = ours.clone();
        going.metadata.deletion_timestamp = Some(Time(NOW));
        assert_eq!(decide(None, Some(&going), NOW), Step::Nothing);
        let mut theirs = ours;
        theirs.spec.cluster_manager.name = "karmada".into();
        assert_eq!(decide(None, Some(&theirs), NOW), Step::Nothing);
        assert_eq!(decide(Some(&one), Some(&theirs), NOW), Step::Taken);
    }

    /// OCM-165: status and labels follow the cluster; what others write stays.
    #[test]
    fn ocm_165_a_profile_shows_its_cluster() {
        let mut one = cluster(Some("blue"));
        let mut profile = settled(&one);
        let status = profile.status.clone().unwrap();
        assert_eq!(status.version.kubernetes, "v1.30.0");
        assert_eq!(
            (status.properties[0].name.as_str(), status.properties[0].value.as_str()),
            ("cloud", "mine")
        );
        let shown: Vec<_> = status.conditions.iter().map(|c| (c.type_.as_str(), c.reason.as_str())).collect();
        assert_eq!(
            shown,
            [("ControlPlaneHealthy", "ManagedClusterAvailable"), ("Joined", "ManagedClusterJoined")]
        );
        profile.status.as_mut().unwrap().access_providers = Some(json!([{"name": "theirs"}]));
        profile.metadata.labels.as_mut().unwrap().insert("theirs".into(), "yes".into());
        assert_eq!(decide(Some(&one), Some(&profile), NOW), Step::Nothing);
        one.metadata.labels = None;
        assert_eq!(
            decide(Some(&one), Some(&profile), NOW),
            Step::Label(BTreeMap::from([(PROFILE_SET_LABEL, String::new())]))
        );
        let before = one.clone();
        one.status = None;
        assert!(is_shown(&before, &one));
        assert_eq!(
            decide(Some(&one), Some(&profile), NOW),
            Step::Status(json!({"version": {"kubernetes": null}, "properties": []})),
            "conditions stay, as in OCM"
        );
        let mut renewed = before.clone();
        renewed.status.as_mut().unwrap().conditions[2].reason = "other".into();
        assert!(!is_shown(&before, &renewed));
    }
}
