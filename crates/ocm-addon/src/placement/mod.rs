//! The clusters that a Placement selects, and the pages on which they are listed (OCM-013). Pure; the time is
//! an argument.
//!
//! A selected cluster stays on its page. If it moved, it could be on no page for a moment, and readers of
//! decisions would take it for deselected (OCM-163).

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use apis::{
    constants::CLUSTER_SET_LABEL,
    ocm::{
        ManagedCluster, ManagedClusterSet, Placement,
        cluster::{ClusterSelector, Taint},
    },
};
use k8s_openapi::{api::core::v1::Toleration, apimachinery::pkg::apis::meta::v1::Condition, jiff::Timestamp};
use machinery::selector::LabelSelector;
use serde_json::json;

/// Most clusters in one PlacementDecision.
pub const PAGE: usize = 100;

/// What a Placement selects from.
pub struct Candidates<'a> {
    /// Existing sets that are bound to the Placement's namespace.
    pub sets: &'a [&'a ManagedClusterSet],
    /// All clusters.
    pub clusters: &'a [&'a ManagedCluster],
    /// Clusters that are selected at present.
    pub chosen: &'a BTreeSet<String>,
}

/// The result of a Placement.
#[derive(Clone, Debug, PartialEq)]
pub struct Selection {
    /// The selected clusters; `None` if the Placement requests something unsupported, and the decisions stay
    /// as they are.
    pub clusters: Option<BTreeSet<String>>,
    /// PlacementSatisfied and PlacementMisconfigured.
    pub conditions: Vec<Condition>,
    /// Time until a toleration ends.
    pub recheck: Option<Duration>,
}

/// Selects clusters (OCM-013). Cost: a look at each cluster of each set.
pub fn select(placement: &Placement, candidates: &Candidates<'_>, now: Timestamp) -> Selection {
    if let Some(why) = misconfigured(placement) {
        let conditions = vec![condition("PlacementMisconfigured", true, "Misconfigured", why, now)];
        return Selection { clusters: None, conditions, recheck: None };
    }
    let well = "Placement configurations check pass".to_owned();
    let mut conditions = vec![condition("PlacementMisconfigured", false, "Succeedconfigured", well, now)];
    let spec = &placement.spec;
    let name = |set: &&&ManagedClusterSet| set.metadata.name.clone().unwrap_or_default();
    let sets: Vec<&&ManagedClusterSet> = candidates
        .sets
        .iter()
        .filter(|set| spec.cluster_sets.is_empty() || spec.cluster_sets.contains(&name(set)))
        .collect();
    let of_sets: Vec<Members<'_>> = sets.iter().filter_map(|set| Members::of(set)).collect();
    let within = |cluster: &ManagedCluster| of_sets.iter().any(|set| set.has(cluster));
    let predicates = Predicates::of(placement);
    let members: Vec<&&ManagedCluster> = candidates
        .clusters
        .iter()
        .filter(|cluster| cluster.metadata.deletion_timestamp.is_none() && within(cluster))
        .collect();
    let mut recheck: Option<Duration> = None;
    let mut fit: Vec<(bool, bool, String)> = Vec::new();
    for cluster in members.iter().filter(|cluster| predicates.hold(cluster)) {
        let name = cluster.metadata.name.clone().unwrap_or_default();
        let selected = candidates.chosen.contains(&name);
        let verdict = tolerated(&cluster.spec.taints, &spec.tolerations, selected, now);
        recheck = [recheck, verdict.until].into_iter().flatten().min();
        if verdict.fits {
            fit.push((verdict.unloved, !selected, name));
        }
    }
    fit.sort();
    let wanted = spec.number_of_clusters.map_or(fit.len(), |n| usize::try_from(n).unwrap_or(0));
    let missing = wanted.saturating_sub(fit.len());
    let set_names = || sets.iter().map(name).collect::<Vec<_>>().join(",");
    let (satisfied, reason, message) = if candidates.sets.is_empty() {
        let why = "No valid ManagedClusterSetBindings found in placement namespace";
        (false, "NoManagedClusterSetBindings", why.to_owned())
    } else if sets.is_empty() {
        let asked = spec.cluster_sets.join(",");
        (
            false,
            "NoIntersection",
            format!("None of ManagedClusterSets [{asked}] is bound to placement namespace"),
        )
    } else if members.is_empty() {
        let why = format!("All ManagedClusterSets [{}] have no member ManagedCluster", set_names());
        (false, "AllManagedClusterSetsEmpty", why)
    } else if fit.is_empty() {
        let why = "No ManagedCluster matches any of the cluster predicate";
        (false, "NoManagedClusterMatched", why.to_owned())
    } else if missing > 0 {
        (false, "NotAllDecisionsScheduled", format!("{missing} cluster decisions unscheduled"))
    } else {
        (true, "AllDecisionsScheduled", "All cluster decisions scheduled".to_owned())
    };
    conditions.insert(0, condition("PlacementSatisfied", satisfied, reason, message, now));
    let clusters = fit.into_iter().take(wanted).map(|(.., name)| name).collect();
    Selection { clusters: Some(clusters), conditions, recheck }
}

/// Returns why a Placement is not supported. It is refused, so that its users do not get other clusters than
/// requested.
fn misconfigured(placement: &Placement) -> Option<String> {
    let spec = &placement.spec;
    let filled = |value: Option<&serde_json::Value>, key: &str| {
        value
            .and_then(|v| v.get(key))
            .is_some_and(|v| !v.is_null() && !v.as_array().is_some_and(Vec::is_empty))
    };
    let expressions = |selector: &ClusterSelector| filled(selector.cel_selector.as_ref(), "celExpressions");
    if spec.predicates.iter().any(|p| expressions(&p.required_cluster_selector)) {
        return Some("celSelector is not supported by this hub".into());
    }
    if filled(spec.prioritizer_policy.as_ref(), "configurations") {
        return Some("prioritizerPolicy.configurations is not supported by this hub".into());
    }
    if filled(spec.spread_policy.as_ref(), "spreadConstraints") {
        return Some("spreadPolicy.spreadConstraints is not supported by this hub".into());
    }
    let group = spec.decision_strategy.as_ref().and_then(|strategy| strategy.get("groupStrategy"));
    if group
        .is_some_and(|g| g.get("decisionGroups").is_some_and(|d| !d.as_array().is_some_and(Vec::is_empty)))
    {
        return Some("decisionStrategy.groupStrategy.decisionGroups is not supported by this hub".into());
    }
    None
}

/// The predicates of a Placement, parsed once.
struct Predicates(Vec<Option<(LabelSelector, Option<LabelSelector>)>>);

impl Predicates {
    /// A predicate that cannot be parsed selects nothing.
    fn of(placement: &Placement) -> Self {
        let read = |object: &serde_json::Value| LabelSelector::from_object(object).ok();
        let all = placement.spec.predicates.iter().map(|predicate| {
            let selector = &predicate.required_cluster_selector;
            let labels = read(&serde_json::to_value(&selector.label_selector).ok()?)?;
            match &selector.claim_selector {
                Some(claims) => Some((labels, Some(read(claims)?))),
                None => Some((labels, None)),
            }
        });
        Self(all.collect())
    }

    /// Returns whether one predicate matches; true if there are none.
    fn hold(&self, cluster: &ManagedCluster) -> bool {
        let labels = cluster.metadata.labels.as_ref();
        let claims = cluster.status.as_ref().map(|s| s.cluster_claims.as_slice()).unwrap_or_default();
        let label = |key: &str| labels.and_then(|all| all.get(key)).map(String::as_str);
        let claim = |key: &str| claims.iter().find(|c| c.name == key).map(|c| c.value.as_str());
        self.0.is_empty()
            || self.0.iter().flatten().any(|(by_label, by_claim)| {
                by_label.matches(label) && by_claim.as_ref().is_none_or(|selector| selector.matches(claim))
            })
    }
}

/// The members of a set, with its selector parsed once.
enum Members<'a> {
    Labelled(&'a str),
    Selected(LabelSelector),
}

impl<'a> Members<'a> {
    fn of(set: &'a ManagedClusterSet) -> Option<Self> {
        let selector = &set.spec.cluster_selector;
        if selector.selector_type != "LabelSelector" {
            return set.metadata.name.as_deref().map(Self::Labelled);
        }
        let object = serde_json::to_value(selector.label_selector.as_ref()?).ok()?;
        LabelSelector::from_object(&object).ok().map(Self::Selected)
    }

    fn has(&self, cluster: &ManagedCluster) -> bool {
        let labels = cluster.metadata.labels.as_ref();
        let label = |key: &str| labels.and_then(|all| all.get(key)).map(String::as_str);
        match self {
            Self::Labelled(name) => label(CLUSTER_SET_LABEL) == Some(*name),
            Self::Selected(selector) => selector.matches(label),
        }
    }
}

struct Tolerance {
    fits: bool,
    /// The cluster has a taint that makes other clusters preferable.
    unloved: bool,
    until: Option<Duration>,
}

fn tolerated(taints: &[Taint], tolerations: &[Toleration], selected: bool, now: Timestamp) -> Tolerance {
    let mut answer = Tolerance { fits: true, unloved: false, until: None };
    for taint in taints {
        let covering = tolerations.iter().filter(|t| covers(t, taint));
        match covering.map(|t| holds(t, taint, now)).max().unwrap_or(Holds::No) {
            Holds::Forever => {}
            Holds::For(left) => answer.until = [answer.until, Some(left)].into_iter().flatten().min(),
            Holds::No => match taint.effect.as_str() {
                "PreferNoSelect" => answer.unloved = true,
                "NoSelectIfNew" => answer.fits &= selected,
                _ => answer.fits = false,
            },
        }
    }
    answer
}

fn covers(toleration: &Toleration, taint: &Taint) -> bool {
    let (key, value) = (toleration.key.as_deref().unwrap_or(""), toleration.value.as_deref().unwrap_or(""));
    let effect = toleration.effect.as_deref().unwrap_or("");
    if !effect.is_empty() && effect != taint.effect {
        return false;
    }
    match toleration.operator.as_deref().unwrap_or("") {
        "Exists" => key.is_empty() || key == taint.key,
        "" | "Equal" => key == taint.key && value == taint.value,
        _ => false,
    }
}

/// How long a toleration holds, in ascending order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Holds {
    No,
    For(Duration),
    Forever,
}

fn holds(toleration: &Toleration, taint: &Taint, now: Timestamp) -> Holds {
    let (Some(seconds), Some(added)) = (toleration.toleration_seconds, taint.time_added.as_ref()) else {
        return Holds::Forever;
    };
    let left = added.0.as_second().saturating_add(seconds).saturating_sub(now.as_second());
    match u64::try_from(left) {
        Ok(left) if left > 0 => Holds::For(Duration::from_secs(left)),
        _ => Holds::No,
    }
}

fn condition(type_: &str, status: bool, reason: &str, message: String, now: Timestamp) -> Condition {
    ocm_shared::conditions::condition(type_, if status { "True" } else { "False" }, reason, message, now)
}

/// Distributes clusters over pages: a listed cluster keeps its page, a new one goes to a page with room.
/// There is always a first page.
pub fn pages(
    old: &BTreeMap<usize, BTreeSet<String>>,
    chosen: &BTreeSet<String>,
) -> BTreeMap<usize, BTreeSet<String>> {
    let mut pages: BTreeMap<usize, BTreeSet<String>> = BTreeMap::new();
    let mut placed: BTreeSet<&String> = BTreeSet::new();
    for (number, members) in old {
        for name in members.iter().filter(|name| chosen.contains(*name)) {
            if placed.insert(name) {
                pages.entry(*number).or_default().insert(name.clone());
            }
        }
    }
    let mut number = 1;
    for name in chosen.iter().filter(|name| !placed.contains(name)) {
        while pages.get(&number).is_some_and(|page| page.len() >= PAGE) {
            number += 1;
        }
        pages.entry(number).or_default().insert(name.clone());
    }
    pages.entry(1).or_default();
    pages
}

/// Returns the name of a page.
pub fn page_name(placement: &str, number: usize) -> String {
    format!("{placement}-decision-{number}")
}

/// Returns the number of a page, from its name.
pub fn page_number(placement: &str, name: &str) -> Option<usize> {
    name.strip_prefix(placement)?.strip_prefix("-decision-")?.parse().ok().filter(|n| *n > 0)
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
