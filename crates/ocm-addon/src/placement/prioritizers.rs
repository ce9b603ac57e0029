//! The order of clusters, if a Placement wants fewer than it could have: the weighted sum of the scores that
//! prioritizers give to each cluster.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use apis::ocm::{
    ManagedCluster, Placement,
    placement::{AddOnScore, PrioritizerConfig},
};
use k8s_openapi::{apimachinery::pkg::api::resource::Quantity as Text, jiff::Timestamp};
use machinery::quantity::Quantity;

use super::candidates::{CountDecisions, FindScores, Misconfigured};

/// The best score of one prioritizer; the worst is -100.
const BEST: i64 = 100;

/// What gives scores to clusters.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Prioritizer {
    /// Prefers clusters in few decisions of other Placements.
    Balance,
    /// Prefers clusters that are selected already.
    Steady,
    /// Prefers clusters with more of a resource for workloads.
    Allocatable(&'static str),
    /// Scores of an add-on.
    AddOn(AddOnScore),
}

/// The prioritizers of a Placement with their weights, none of which is 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Weights(BTreeMap<Prioritizer, i32>);

/// The scores of clusters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scores {
    /// Weighted sums, by name.
    pub sums: BTreeMap<String, i64>,
    /// Time until a score of an add-on expires.
    pub until: Option<Duration>,
}

/// Returns whether a Placement reads the resources of clusters.
pub fn reads_resources(placement: &Placement) -> bool {
    configurations(placement).iter().any(|config| {
        let named = config.score_coordinate.as_ref().map(|at| at.built_in.as_str());
        named.is_some_and(|name| name.starts_with("ResourceAllocatable"))
    })
}

/// Returns whether a Placement reads AddOnPlacementScores of this name.
pub fn reads_scores(placement: &Placement, name: &str) -> bool {
    configurations(placement).iter().any(|config| {
        let add_on = config.score_coordinate.as_ref().and_then(|at| at.add_on.as_ref());
        add_on.is_some_and(|score| score.resource_name == name)
    })
}

fn configurations(placement: &Placement) -> &[PrioritizerConfig] {
    placement.spec.prioritizer_policy.as_ref().map(|p| p.configurations.as_slice()).unwrap_or_default()
}

impl Weights {
    /// Reads the policy of a Placement. Without one, Balance and Steady have weight 1; the mode `Exact` drops those.
    ///
    /// # Errors
    ///
    /// The mode or a prioritizer is not known.
    pub fn of(placement: &Placement) -> Result<Self, Misconfigured> {
        let refused = |why: String| Misconfigured::new("", why);
        let mode = placement.spec.prioritizer_policy.as_ref().map(|p| p.mode.as_str()).unwrap_or_default();
        let mut weights = match mode {
            "Exact" => BTreeMap::new(),
            "" | "Additive" => [(Prioritizer::Balance, 1), (Prioritizer::Steady, 1)].into(),
            other => return Err(refused(format!("incorrect prioritizer policy mode: {other}"))),
        };
        for config in configurations(placement) {
            let Some(at) = &config.score_coordinate else {
                return Err(refused("scoreCoordinate field is required".into()));
            };
            let prioritizer = if at.type_ == "BuiltIn" {
                match at.built_in.as_str() {
                    "Balance" => Prioritizer::Balance,
                    "Steady" => Prioritizer::Steady,
                    "ResourceAllocatableCPU" => Prioritizer::Allocatable("cpu"),
                    "ResourceAllocatableMemory" => Prioritizer::Allocatable("memory"),
                    _ if config.weight == 0 => continue,
                    other => return Err(refused(format!("incorrect builtin prioritizer: {other}"))),
                }
            } else {
                match &at.add_on {
                    Some(score) => Prioritizer::AddOn(score.clone()),
                    None if config.weight == 0 => continue,
                    None => return Err(refused("addOn should not be empty".into())),
                }
            };
            weights.insert(prioritizer, config.weight);
        }
        weights.retain(|_, weight| *weight != 0);
        Ok(Self(weights))
    }

    /// Scores clusters. `chosen` are selected at present. Costs a look at each cluster for each prioritizer, and
    /// `decisions` once if Balance counts.
    pub fn score(
        &self,
        clusters: &[Arc<ManagedCluster>],
        chosen: &BTreeSet<String>,
        decisions: CountDecisions,
        scores: &FindScores,
        now: Timestamp,
    ) -> Scores {
        let mut all = Scores::default();
        let counts = if self.0.contains_key(&Prioritizer::Balance) { decisions() } else { BTreeMap::new() };
        for (prioritizer, weight) in &self.0 {
            let score: Box<dyn Fn(&ManagedCluster) -> i64> = match prioritizer {
                Prioritizer::Balance => Box::new(|cluster| balance(&counts, name_of(cluster))),
                Prioritizer::Steady => {
                    Box::new(|cluster| if chosen.contains(name_of(cluster)) { BEST } else { 0 })
                }
                Prioritizer::Allocatable(resource) => {
                    let range = range(clusters.iter().filter_map(|cluster| allocatable(cluster, resource)));
                    Box::new(move |cluster| allocatable(cluster, resource).map_or(0, |n| relative(n, range)))
                }
                Prioritizer::AddOn(wanted) => {
                    let (found, until) = add_on(clusters, wanted, scores, now);
                    all.until = [all.until, until].into_iter().flatten().min();
                    Box::new(move |cluster| found.get(name_of(cluster)).copied().unwrap_or(0))
                }
            };
            for cluster in clusters {
                let sum = all.sums.entry(name_of(cluster).to_owned()).or_default();
                *sum += score(cluster) * i64::from(*weight);
            }
        }
        all
    }
}

fn name_of(cluster: &ManagedCluster) -> &str {
    cluster.metadata.name.as_deref().unwrap_or_default()
}

/// 100 for a cluster in no decision, -100 for the one in most of them.
fn balance(counts: &BTreeMap<String, u32>, cluster: &str) -> i64 {
    let (Some(count), Some(most)) = (counts.get(cluster), counts.values().max()) else { return BEST };
    2 * truncated(100.0 * (0.5 - f64::from(*count) / f64::from((*most).max(1))))
}

/// A resource of which both the total and the part for workloads are known.
fn allocatable(cluster: &ManagedCluster, resource: &str) -> Option<f64> {
    let status = cluster.status.as_ref()?;
    let number = |text: &Text| Quantity::parse(&text.0).ok();
    status.capacity.get(resource).and_then(number)?;
    let found = number(status.allocatable.get(resource)?)?;
    // Thousandths of CPUs count, those of bytes do not.
    #[expect(clippy::cast_precision_loss, reason = "only ratios are used")]
    Some(if resource == "cpu" { found.milli_value() as f64 } else { found.value() as f64 })
}

/// The smallest and the largest number.
fn range(numbers: impl Iterator<Item = f64>) -> (f64, f64) {
    numbers.fold((f64::INFINITY, f64::NEG_INFINITY), |(least, most), n| (least.min(n), most.max(n)))
}

/// -100 for the least, 100 for the most, also if all are equal.
fn relative(number: f64, (least, most): (f64, f64)) -> i64 {
    if most > least { truncated(((number - least) / (most - least) - 0.5) * 2.0 * 100.0) } else { BEST }
}

#[expect(clippy::cast_possible_truncation, reason = "Go truncates, too; the number is between -100 and 100")]
fn truncated(number: f64) -> i64 {
    number as i64
}

/// The scores of an add-on by cluster, without expired ones, and the time until the next expires.
fn add_on(
    clusters: &[Arc<ManagedCluster>],
    wanted: &AddOnScore,
    scores: &FindScores,
    now: Timestamp,
) -> (BTreeMap<String, i64>, Option<Duration>) {
    let (mut found, mut until) = (BTreeMap::new(), None);
    for name in clusters.iter().map(|cluster| name_of(cluster)) {
        let Some(object) = scores(name, &wanted.resource_name) else { continue };
        let Some(status) = &object.status else { continue };
        if let Some(end) = &status.valid_until {
            if now > end.0 {
                continue;
            }
            let left = Duration::try_from(end.0.duration_since(now)).unwrap_or_default();
            until = [until, Some(left)].into_iter().flatten().min();
        }
        if let Some(score) = status.scores.iter().rfind(|score| score.name == wanted.score_name) {
            found.insert(name.to_owned(), i64::from(score.value));
        }
    }
    (found, until)
}
