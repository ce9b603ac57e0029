//! The groups of a decision.

use std::{collections::BTreeSet, sync::Arc};

use apis::ocm::{ManagedCluster, Placement, placement::GroupStrategy};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;

use super::{candidates::Misconfigured, predicates::Selector};

/// A group of selected clusters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Group {
    /// Its name; empty for the clusters that no rule names.
    pub name: String,
    /// Its clusters.
    pub clusters: BTreeSet<String>,
}

/// The rules of a Placement about groups, parsed once.
pub struct Rules<'a> {
    named: Vec<(&'a str, Selector)>,
    size: Size,
}

/// Most clusters in a group.
enum Size {
    All,
    Clusters(usize),
    Percent(f64),
}

impl<'a> Rules<'a> {
    /// Reads the strategy of a Placement.
    ///
    /// # Errors
    ///
    /// A selector or the size cannot be parsed.
    pub fn of(placement: &'a Placement) -> Result<Self, Misconfigured> {
        let Some(strategy) = placement.spec.decision_strategy.as_ref().map(|all| &all.group_strategy) else {
            return Ok(Self { named: Vec::new(), size: Size::All });
        };
        let mut named = Vec::new();
        for rule in &strategy.decision_groups {
            let asked = &rule.group_cluster_selector;
            let selector = Selector::parse(&asked.label_selector, asked.claim_selector.as_ref())
                .map_err(|why| Misconfigured::new("", why))?;
            named.push((rule.group_name.as_str(), selector));
        }
        Ok(Self { named, size: size(strategy)? })
    }

    /// Divides clusters into groups: those of each rule, in the order of the rules, then the others. Each is ordered by
    /// name and cut at the size. There is always one group.
    pub fn divide(&self, selected: &[Arc<ManagedCluster>]) -> Vec<Group> {
        let name = |cluster: &ManagedCluster| cluster.metadata.name.clone().unwrap_or_default();
        let length = self.length(selected.len());
        let (mut groups, mut left) = (Vec::new(), selected.iter().collect::<Vec<_>>());
        for (group, selector) in &self.named {
            let (matching, others) = left.into_iter().partition(|cluster| selector.matches(cluster));
            left = others;
            cut(&mut groups, group, matching.into_iter().map(|cluster| name(cluster)), length);
        }
        cut(&mut groups, "", left.into_iter().map(|cluster| name(cluster)), length);
        if groups.is_empty() {
            groups.push(Group::default());
        }
        groups
    }

    /// Most clusters in a group of `total` clusters. Percentages are rounded up.
    fn length(&self, total: usize) -> usize {
        let length = match self.size {
            Size::All => total,
            Size::Clusters(length) => length,
            #[expect(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)]
            Size::Percent(percent) => (percent / 100.0 * total as f64).ceil() as usize,
        };
        if length == 0 || length > total { total } else { length }
    }
}

fn size(strategy: &GroupStrategy) -> Result<Size, Misconfigured> {
    match &strategy.clusters_per_decision_group {
        None => Ok(Size::All),
        Some(IntOrString::Int(length)) => Ok(Size::Clusters(usize::try_from(*length).unwrap_or(0))),
        Some(IntOrString::String(text)) => {
            let percent = text.strip_suffix('%').and_then(|number| number.parse().ok()).map(Size::Percent);
            let why = || format!("{text} invalid type: string is not a percentage");
            percent.ok_or_else(|| Misconfigured::new("", why()))
        }
    }
}

fn cut(groups: &mut Vec<Group>, name: &str, clusters: impl Iterator<Item = String>, length: usize) {
    let mut clusters = clusters.collect::<BTreeSet<_>>().into_iter();
    loop {
        let part: BTreeSet<String> = clusters.by_ref().take(length).collect();
        if part.is_empty() {
            return;
        }
        groups.push(Group { name: name.to_owned(), clusters: part });
    }
}
