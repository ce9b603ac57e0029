//! The PlacementDecisions of a Placement: pages of at most a hundred clusters (OCM-013), and the order in which they are
//! written so that no selected cluster is missing from all of them in between (OCM-163).

use std::collections::{BTreeMap, BTreeSet};

use super::groups::Group;

/// Most clusters in one PlacementDecision.
pub const PAGE: usize = 100;

/// A wanted page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// Number of its group, from 0.
    pub group: usize,
    /// Its clusters.
    pub clusters: BTreeSet<String>,
}

/// A write of a page's clusters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write {
    /// Number of the page.
    pub number: usize,
    /// All clusters on it.
    pub clusters: BTreeSet<String>,
}

/// Distributes groups over pages, which are numbered from 1. Each group has as few pages as possible, and at least one.
/// Within its group a cluster keeps its page if that exists.
pub fn pages(groups: &[Group], old: &BTreeMap<usize, BTreeSet<String>>) -> BTreeMap<usize, Page> {
    let (mut pages, mut first) = (BTreeMap::new(), 1);
    for (index, group) in groups.iter().enumerate() {
        let next = first + group.clusters.len().div_ceil(PAGE).max(1);
        let mut parts: BTreeMap<usize, BTreeSet<String>> =
            (first..next).map(|n| (n, BTreeSet::new())).collect();
        let mut placed: BTreeSet<&String> = BTreeSet::new();
        for (number, listed) in old.range(first..next) {
            let stay = listed.iter().filter_map(|name| group.clusters.get(name));
            let stay = stay.filter(|name| !placed.contains(name)).take(PAGE).collect::<Vec<_>>();
            placed.extend(&stay);
            parts.insert(*number, stay.into_iter().cloned().collect());
        }
        let mut number = first;
        for name in group.clusters.iter().filter(|name| !placed.contains(name)) {
            while parts.get(&number).is_some_and(|page| page.len() >= PAGE) {
                number += 1;
            }
            parts.entry(number).or_default().insert(name.clone());
        }
        pages.extend(parts.into_iter().map(|(number, clusters)| (number, Page { group: index, clusters })));
        first = next;
    }
    pages
}

/// Returns the writes that lead from the `old` pages to the wanted ones. After each of them, every cluster that was and
/// stays selected is on a page: a cluster moves by being added to its new page before it is removed from the old one.
/// Where pages exchange clusters, one of them lists the clusters of both for a moment. Pages that are not wanted any more
/// can be deleted after the writes.
///
/// Cost: n log n in the number of clusters.
pub fn writes(old: &BTreeMap<usize, BTreeSet<String>>, wanted: &BTreeMap<usize, Page>) -> Vec<Write> {
    let empty = BTreeSet::new();
    let before = |number: usize| old.get(&number).unwrap_or(&empty);
    let mut moving = Moves::between(old, wanted);
    let changed = wanted.iter().filter(|(number, page)| old.get(number) != Some(&page.clusters));
    let mut pending: BTreeSet<usize> = changed.map(|(number, _)| *number).collect();
    let mut ready: BTreeSet<usize> = pending.iter().copied().filter(|n| moving.is_free(*n)).collect();
    let mut narrow = pending.clone();
    let mut writes = Vec::new();
    while let Some(page) = ready.first().or(narrow.first()).and_then(|number| wanted.get_key_value(number)) {
        let (number, page) = (*page.0, page.1);
        let mut clusters = page.clusters.clone();
        if ready.remove(&number) {
            pending.remove(&number);
        } else {
            // A circle of moves: this page keeps what leaves it until the other pages have it.
            clusters.extend(moving.leaving(number));
        }
        // Whatever was added here is free to be removed elsewhere.
        if narrow.remove(&number) {
            for name in page.clusters.difference(before(number)) {
                let freed = moving.arrived(name);
                ready.extend(freed.into_iter().filter(|number| pending.contains(number)));
            }
        }
        writes.push(Write { number, clusters });
    }
    writes
}

/// Which clusters have to be added to another page before a page may lose them.
struct Moves<'a> {
    leaving: BTreeMap<usize, BTreeSet<&'a String>>,
    from: BTreeMap<&'a String, Vec<usize>>,
}

impl<'a> Moves<'a> {
    fn between(old: &'a BTreeMap<usize, BTreeSet<String>>, wanted: &'a BTreeMap<usize, Page>) -> Self {
        let to: BTreeMap<&String, usize> =
            wanted.iter().flat_map(|(n, page)| page.clusters.iter().map(move |name| (name, *n))).collect();
        let mut leaving: BTreeMap<usize, BTreeSet<&String>> = BTreeMap::new();
        let mut from: BTreeMap<&String, Vec<usize>> = BTreeMap::new();
        for (number, names) in old {
            for name in names {
                let Some((name, target)) = to.get_key_value(name) else { continue };
                let there = old.get(target).is_some_and(|page| page.contains(*name));
                if target != number && !there {
                    leaving.entry(*number).or_default().insert(name);
                    from.entry(name).or_default().push(*number);
                }
            }
        }
        Self { leaving, from }
    }

    fn is_free(&self, page: usize) -> bool {
        self.leaving.get(&page).is_none_or(BTreeSet::is_empty)
    }

    fn leaving(&self, page: usize) -> impl Iterator<Item = String> {
        self.leaving.get(&page).into_iter().flatten().map(|name| (*name).clone())
    }

    /// A cluster is on its new page. Returns the pages that wait for nothing more.
    fn arrived(&mut self, name: &String) -> Vec<usize> {
        let mut freed = Vec::new();
        for page in self.from.remove(name).unwrap_or_default() {
            if let Some(leaving) = self.leaving.get_mut(&page)
                && leaving.remove(name)
                && leaving.is_empty()
            {
                freed.push(page);
            }
        }
        freed
    }
}

/// Returns the name of a page.
pub fn page_name(placement: &str, number: usize) -> String {
    format!("{placement}-decision-{number}")
}

/// Returns the number of a page, from its name.
pub fn page_number(placement: &str, name: &str) -> Option<usize> {
    name.strip_prefix(placement)?.strip_prefix("-decision-")?.parse().ok().filter(|n| *n > 0)
}
