//! The clusters that a Placement selects, in which groups, and the pages on which they are listed (OCM-013). Pure; the
//! time is an argument.
//!
//! As in OCM: clusters of the bound sets, filtered by predicates and taints, ordered by prioritizers if there are more
//! than wanted, divided into groups. Spread constraints are stored and not read, as in OCM. Different from OCM:
//!
//! - The decisions of a Placement that is misconfigured stay as they are; OCM deselects all clusters.
//! - Within its group, a selected cluster stays on its page, and pages are written in such an order that it is never
//!   missing from all of them, because readers of decisions would take it for deselected (OCM-163).
//! - Among clusters with equal scores, those with a `PreferNoSelect` taint come last.
//! - CEL expressions of one Placement have a cost limit for all clusters together.
//! - A Placement is decided again when a score of an add-on expires.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use apis::ocm::{ManagedCluster, ManagedClusterSet, Placement};
use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Condition, jiff::Timestamp};
use serde_json::json;

pub mod candidates;
pub mod groups;
pub mod members;
pub mod pages;
pub mod predicates;
pub mod prioritizers;
pub mod tolerations;

use candidates::{Candidates, Misconfigured};
use groups::{Group, Rules};
use members::Members;
use predicates::Predicates;
use prioritizers::Weights;

/// The result of a Placement.
#[derive(Clone, Debug, PartialEq)]
pub struct Selection {
    /// The selected clusters; `None` if the Placement is misconfigured, and the decisions stay as they are.
    pub groups: Option<Vec<Group>>,
    /// PlacementSatisfied and PlacementMisconfigured.
    pub conditions: Vec<Condition>,
    /// Time until the result may change by itself.
    pub recheck: Option<Duration>,
}

/// Selects clusters (OCM-013). Cost: a look at each cluster of each set, for each predicate; and, if there are more
/// clusters than wanted, for each prioritizer. CEL expressions may take seconds, so a Placement with some must not be
/// decided on an async thread.
pub fn select(placement: &Placement, candidates: Candidates, now: Timestamp) -> Selection {
    let (bound, eligible) = (candidates.sets.len(), eligible(placement, &candidates.sets));
    let members = members(&eligible, &candidates.clusters);
    let names: BTreeSet<&str> = eligible.iter().filter_map(|set| set.metadata.name.as_deref()).collect();
    let names = names.into_iter().collect::<Vec<_>>().join(",");
    let no_members = members.is_empty();
    let outcome = Plan::of(placement, &candidates).and_then(|plan| plan.run(members, candidates, now));
    let missing = |chosen: usize| {
        let wanted = placement.spec.number_of_clusters.map_or(chosen, |n| usize::try_from(n).unwrap_or(0));
        wanted.saturating_sub(chosen)
    };
    let (satisfied, reason, message) = match &outcome {
        _ if bound == 0 => {
            let why = "No valid ManagedClusterSetBindings found in placement namespace";
            (false, "NoManagedClusterSetBindings", why.to_owned())
        }
        _ if eligible.is_empty() => {
            let asked = placement.spec.cluster_sets.join(",");
            let why = format!("None of ManagedClusterSets [{asked}] is bound to placement namespace");
            (false, "NoIntersection", why)
        }
        _ if no_members => {
            let why = format!("All ManagedClusterSets [{names}] have no member ManagedCluster");
            (false, "AllManagedClusterSetsEmpty", why)
        }
        Err(_) => {
            let why = "The placement is misconfigured; its decisions stay as they are";
            (false, "NotAllDecisionsScheduled", why.to_owned())
        }
        Ok(chosen) if chosen.count == 0 && !chosen.any => {
            let why = "No ManagedCluster matches any of the cluster predicate";
            (false, "NoManagedClusterMatched", why.to_owned())
        }
        Ok(chosen) if missing(chosen.count) > 0 => {
            let why = format!("{} cluster decisions unscheduled", missing(chosen.count));
            (false, "NotAllDecisionsScheduled", why)
        }
        Ok(_) => (true, "AllDecisionsScheduled", "All cluster decisions scheduled".to_owned()),
    };
    let well = match &outcome {
        Ok(_) => (false, "Succeedconfigured", "Placement configurations check pass".to_owned()),
        Err(why) => (true, "Misconfigured", why.to_string()),
    };
    let conditions = vec![
        condition("PlacementSatisfied", satisfied, reason, message, now),
        condition("PlacementMisconfigured", well.0, well.1, well.2, now),
    ];
    match outcome {
        Ok(chosen) => Selection { groups: Some(chosen.groups), conditions, recheck: chosen.recheck },
        Err(_) => Selection { groups: None, conditions, recheck: None },
    }
}

/// The sets that a Placement may use, of those that are bound.
fn eligible(placement: &Placement, bound: &[Arc<ManagedClusterSet>]) -> Vec<Arc<ManagedClusterSet>> {
    let asked = &placement.spec.cluster_sets;
    let is_asked = |set: &&Arc<ManagedClusterSet>| {
        asked.is_empty() || set.metadata.name.as_ref().is_some_and(|name| asked.contains(name))
    };
    bound.iter().filter(is_asked).cloned().collect()
}

/// The clusters of sets that are not being deleted.
fn members(sets: &[Arc<ManagedClusterSet>], clusters: &[Arc<ManagedCluster>]) -> Vec<Arc<ManagedCluster>> {
    let sets: Vec<Members<'_>> = sets.iter().filter_map(|set| Members::of(set)).collect();
    let here = |cluster: &&Arc<ManagedCluster>| {
        cluster.metadata.deletion_timestamp.is_none() && sets.iter().any(|set| set.has(cluster))
    };
    clusters.iter().filter(here).cloned().collect()
}

/// A Placement, parsed and checked.
struct Plan<'a> {
    placement: &'a Placement,
    predicates: Predicates,
    weights: Weights,
    rules: Rules<'a>,
}

/// Selected clusters.
struct Chosen {
    groups: Vec<Group>,
    count: usize,
    /// Whether any cluster could be selected.
    any: bool,
    recheck: Option<Duration>,
}

impl<'a> Plan<'a> {
    fn of(placement: &'a Placement, candidates: &Candidates) -> Result<Self, Misconfigured> {
        let predicates = Predicates::compile(placement, &candidates.scores)?;
        tolerations::check(&placement.spec.tolerations)?;
        let (weights, rules) = (Weights::of(placement)?, Rules::of(placement)?);
        Ok(Self { placement, predicates, weights, rules })
    }

    fn run(
        self,
        members: Vec<Arc<ManagedCluster>>,
        candidates: Candidates,
        now: Timestamp,
    ) -> Result<Chosen, Misconfigured> {
        let spec = &self.placement.spec;
        let name = |cluster: &ManagedCluster| cluster.metadata.name.clone().unwrap_or_default();
        let (mut fit, mut unloved, mut recheck) = (Vec::new(), BTreeSet::new(), None);
        for cluster in self.predicates.filter(members)? {
            let selected = candidates.chosen.contains(&name(&cluster));
            let verdict = tolerations::tolerated(&cluster.spec.taints, &spec.tolerations, selected, now);
            recheck = [recheck, verdict.until].into_iter().flatten().min();
            if verdict.fits {
                if verdict.unloved {
                    unloved.insert(name(&cluster));
                }
                fit.push(cluster);
            }
        }
        let any = !fit.is_empty();
        let wanted = spec.number_of_clusters.map_or(fit.len(), |n| usize::try_from(n).unwrap_or(0));
        if wanted < fit.len() {
            let (chosen, counts) = (&candidates.chosen, candidates.decisions);
            let scores = self.weights.score(&fit, chosen, counts, &candidates.scores, now);
            recheck = [recheck, scores.until].into_iter().flatten().min();
            fit.sort_by_cached_key(|cluster| {
                let name = name(cluster);
                let score = scores.sums.get(&name).copied().unwrap_or_default();
                (std::cmp::Reverse(score), unloved.contains(&name), name)
            });
            fit.truncate(wanted);
        }
        Ok(Chosen { groups: self.rules.divide(&fit), count: fit.len(), any, recheck })
    }
}

fn condition(type_: &str, status: bool, reason: &str, message: String, now: Timestamp) -> Condition {
    ocm_shared::conditions::condition(type_, if status { "True" } else { "False" }, reason, message, now)
}

/// Returns the spec of the Placement for all clusters, which tolerates unreachable ones (OCM-111).
pub fn global_spec() -> serde_json::Value {
    let key = |name: &str| {
        let key = format!("cluster.open-cluster-management.io/{name}");
        json!({"key": key, "operator": "Exists"})
    };
    json!({"clusterSets": ["global"],
        "predicates": [{"requiredClusterSelector": {"labelSelector": {}}}],
        "tolerations": [key("unreachable"), key("unavailable")]})
}

#[cfg(test)]
mod tests;
