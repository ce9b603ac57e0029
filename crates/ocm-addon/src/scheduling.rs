//! Decides Placements and writes their pages and status (OCM-013).
//!
//! Cost: what [`placement::select`] costs, a write for each page that changes, and one of the status if it changes.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use apis::{
    constants::{CLUSTER_GROUP, PLACEMENT_LABEL},
    ocm::{
        ManagedClusterSet, Placement, PlacementDecision,
        cluster::{DecisionGroup, PlacementStatus},
    },
};
use ocm_shared::conditions;
use runtime::{
    Next,
    failure::is_not_found,
    rest::{Gvr, Removal},
};
use serde_json::{Value, json};

use super::{
    Manager, decisions, identity, name_of, namespace_of,
    placement::{
        self, Selection,
        candidates::Candidates,
        groups::Group,
        pages::{self, Page, page_name, page_number},
        predicates::has_expressions,
    },
};

/// Annotation of a Placement that this controller must not decide.
const DISABLED: &str = "cluster.open-cluster-management.io/experimental-scheduling-disable";
/// Labels of a page.
const GROUP_INDEX: &str = "cluster.open-cluster-management.io/decision-group-index";
const GROUP_NAME: &str = "cluster.open-cluster-management.io/decision-group-name";

/// The PlacementDecisions of a Placement.
struct Written {
    /// Those with a number in their name.
    pages: BTreeMap<usize, Arc<PlacementDecision>>,
    /// Names of the others.
    odd: Vec<Arc<PlacementDecision>>,
}

impl Manager {
    /// Decides a Placement and writes its pages, additions before removals (OCM-163).
    pub(super) async fn decide(&self, namespace: &str, name: &str) -> Result<Next, kube::Error> {
        let found = self.know.placements.get(namespace, name);
        let Some(placement) = found.filter(|p| p.metadata.deletion_timestamp.is_none()) else {
            return Ok(Next::OnChange);
        };
        let disabled = placement.metadata.annotations.as_ref().and_then(|all| all.get(DISABLED));
        if disabled.is_some_and(|value| value == "true") {
            return Ok(Next::OnChange);
        }
        let written = self.written(namespace, name);
        let Some(selection) = self.select(&placement, &written).await else { return Ok(Next::Retry) };
        let groups = match &selection.groups {
            Some(groups) => groups.clone(),
            // There is always a first page.
            None if written.pages.is_empty() => vec![Group::default()],
            None => {
                self.report_placement(&placement, &selection, None).await?;
                return Ok(Next::OnChange);
            }
        };
        let listed = written.listed();
        let wanted = pages::pages(&groups, &listed);
        self.write_pages(&placement, &groups, &wanted, &written, &listed).await?;
        self.report_placement(&placement, &selection, Some((&groups, &wanted))).await?;
        Ok(selection.recheck.map_or(Next::OnChange, |pause| Next::After(pause + Duration::from_secs(1))))
    }

    /// `None` if the selection could not be finished.
    async fn select(&self, placement: &Arc<Placement>, written: &Written) -> Option<Selection> {
        let (candidates, now) = (self.candidates(placement, written), self.now());
        if !has_expressions(placement) {
            return Some(placement::select(placement, candidates, now));
        }
        let placement = placement.clone();
        let decided =
            tokio::task::spawn_blocking(move || placement::select(&placement, candidates, now)).await;
        decided.map_err(|error| tracing::error!(%error, "deciding a Placement")).ok()
    }

    fn candidates(&self, placement: &Placement, written: &Written) -> Candidates {
        let (namespace, name) = (namespace_of(placement).to_owned(), name_of(placement).to_owned());
        let bindings = self.know.bindings.list_namespace(&namespace);
        let sets: BTreeMap<&String, Arc<ManagedClusterSet>> = bindings
            .iter()
            .filter_map(|b| Some((&b.spec.cluster_set, self.know.sets.get("", &b.spec.cluster_set)?)))
            .collect();
        let (decisions, scores) = (self.know.decisions.clone(), self.know.scores.clone());
        Candidates {
            sets: sets.into_values().collect(),
            clusters: self.know.clusters.list(),
            chosen: written.all().flat_map(clusters_on).map(str::to_owned).collect(),
            decisions: Box::new(move || count(&decisions.list(), &namespace, &name)),
            scores: Arc::new(move |cluster, scores_of| scores.get(cluster, scores_of)),
        }
    }

    fn written(&self, namespace: &str, placement: &str) -> Written {
        let (mut pages, mut odd) = (BTreeMap::new(), Vec::new());
        for page in self.know.decisions.list_namespace(namespace) {
            if placement_of(&page) != Some(placement) {
                continue;
            }
            match page_number(placement, name_of(page.as_ref())) {
                Some(number) => drop(pages.insert(number, page)),
                None => odd.push(page),
            }
        }
        Written { pages, odd }
    }

    async fn write_pages(
        &self,
        placement: &Placement,
        groups: &[Group],
        wanted: &BTreeMap<usize, Page>,
        written: &Written,
        listed: &BTreeMap<usize, BTreeSet<String>>,
    ) -> Result<(), kube::Error> {
        let group = |number: usize| {
            let index = wanted.get(&number).map_or(0, |page| page.group);
            let name = groups.get(index).map(|group| group.name.as_str()).unwrap_or_default();
            json!({PLACEMENT_LABEL: name_of(placement), GROUP_INDEX: index.to_string(), GROUP_NAME: name})
        };
        let mut first = BTreeSet::new();
        for write in pages::writes(listed, wanted) {
            let old = written.pages.get(&write.number).map(AsRef::as_ref);
            let expected = match old {
                Some(old) if first.insert(write.number) => identity(old),
                // A page is written twice if others wait for its clusters.
                Some(old) => json!({"uid": old.metadata.uid}),
                None => json!({}),
            };
            let (number, labels) = (write.number, group(write.number));
            if old.is_none() && first.insert(number) {
                self.create_page(placement, number, labels).await?;
            }
            self.fill_page(placement, number, &write.clusters, expected).await?;
        }
        for (number, page) in written.pages.iter().filter(|(number, _)| wanted.contains_key(number)) {
            self.label_page(page, group(*number)).await?;
        }
        let surplus = written.pages.iter().filter(|(number, _)| !wanted.contains_key(number));
        for page in surplus.map(|(_, page)| page).chain(&written.odd) {
            let removal = Removal { uid: page.metadata.uid.clone(), propagation: None };
            let (namespace, name) = (namespace_of(page.as_ref()), name_of(page.as_ref()));
            match self.rest.delete(&decisions(), namespace, name, &removal).await {
                Err(error) if !is_not_found(&error) => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    async fn create_page(
        &self,
        placement: &Placement,
        number: usize,
        labels: Value,
    ) -> Result<(), kube::Error> {
        let (namespace, name) = (namespace_of(placement), page_name(name_of(placement), number));
        let body = json!({"apiVersion": format!("{CLUSTER_GROUP}/v1beta1"), "kind": "PlacementDecision",
            "metadata": {"name": name, "namespace": namespace, "labels": labels,
                "ownerReferences": [{"apiVersion": format!("{CLUSTER_GROUP}/v1beta1"), "kind": "Placement",
                    "name": name_of(placement), "uid": placement.metadata.uid,
                    "controller": true, "blockOwnerDeletion": true}]}});
        self.rest.create_missing(&decisions(), namespace, &body).await.map(drop)
    }

    /// Writes the clusters of a page that has the `expected` identity.
    async fn fill_page(
        &self,
        placement: &Placement,
        number: usize,
        page: &BTreeSet<String>,
        expected: Value,
    ) -> Result<(), kube::Error> {
        let (namespace, name) = (namespace_of(placement), page_name(name_of(placement), number));
        let list: Vec<Value> =
            page.iter().map(|cluster| json!({"clusterName": cluster, "reason": ""})).collect();
        let patch = json!({"metadata": expected, "status": {"decisions": list}});
        self.rest.merge_status::<Value>(&decisions(), namespace, &name, &patch).await.map(drop)
    }

    /// Writes the labels of a page, apart from its status, if they are not what they should be.
    async fn label_page(&self, page: &PlacementDecision, labels: Value) -> Result<(), kube::Error> {
        let present = page.metadata.labels.as_ref();
        let is_there = |(key, value): (&String, &Value)| {
            present.and_then(|all| all.get(key)).map(String::as_str) == value.as_str()
        };
        if labels.as_object().into_iter().flatten().all(is_there) {
            return Ok(());
        }
        let patch = json!({"metadata": {"uid": page.metadata.uid, "labels": labels}});
        let (namespace, name) = (namespace_of(page), name_of(page));
        self.rest.merge::<Value>(&decisions(), namespace, name, &patch).await.map(drop)
    }

    async fn report_placement(
        &self,
        placement: &Placement,
        selection: &Selection,
        decided: Option<(&[Group], &BTreeMap<usize, Page>)>,
    ) -> Result<(), kube::Error> {
        let old = placement.status.clone().unwrap_or_default();
        let mut new = old.clone();
        for condition in selection.conditions.clone() {
            conditions::set(&mut new.conditions, condition);
        }
        if let Some((groups, pages)) = decided {
            let number = |n: usize| i32::try_from(n).unwrap_or(i32::MAX);
            let names = |index: usize| {
                let pages = pages.iter().filter(move |(_, page)| page.group == index);
                pages.map(|(number, _)| page_name(name_of(placement), *number)).collect()
            };
            let groups = groups.iter().enumerate();
            new.decision_groups = groups
                .map(|(index, group)| DecisionGroup {
                    decision_group_index: number(index),
                    decision_group_name: group.name.clone(),
                    decisions: names(index),
                    cluster_count: number(group.clusters.len()),
                })
                .collect();
            new.number_of_selected_clusters =
                new.decision_groups.iter().fold(0, |sum: i32, group| sum.saturating_add(group.cluster_count));
        }
        if placement.status.as_ref() == Some(&new) {
            return Ok(());
        }
        let status: &PlacementStatus = &new;
        let patch = json!({"metadata": identity(placement), "status": status});
        let (namespace, name) = (namespace_of(placement), name_of(placement));
        let placements = Gvr::of::<Placement>();
        self.rest.merge_status::<Value>(&placements, namespace, name, &patch).await.map(drop)
    }
}

impl Written {
    /// The clusters on each page that has a status.
    fn listed(&self) -> BTreeMap<usize, BTreeSet<String>> {
        let written = self.pages.iter().filter(|(_, page)| page.status.is_some());
        written.map(|(number, page)| (*number, clusters_on(page).map(str::to_owned).collect())).collect()
    }

    fn all(&self) -> impl Iterator<Item = &PlacementDecision> {
        self.pages.values().chain(&self.odd).map(AsRef::as_ref)
    }
}

/// Counts in how many decisions of other Placements each cluster is.
fn count(pages: &[Arc<PlacementDecision>], namespace: &str, placement: &str) -> BTreeMap<String, u32> {
    let mut counts: BTreeMap<String, u32> = BTreeMap::new();
    let own =
        |page: &PlacementDecision| namespace_of(page) == namespace && placement_of(page) == Some(placement);
    for cluster in pages.iter().filter(|page| !own(page)).flat_map(|page| clusters_on(page)) {
        *counts.entry(cluster.to_owned()).or_default() += 1;
    }
    counts
}

fn placement_of(page: &PlacementDecision) -> Option<&str> {
    page.metadata.labels.as_ref()?.get(PLACEMENT_LABEL).map(String::as_str)
}

fn clusters_on(page: &PlacementDecision) -> impl Iterator<Item = &str> {
    page.status.iter().flat_map(|status| &status.decisions).map(|decision| decision.cluster_name.as_str())
}
