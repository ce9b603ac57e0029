use super::*;
use apis::ocm::cluster::ManagedClusterClaim;
use proptest::prelude::*;
use serde_json::Value;

fn read<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

fn cluster(name: &str, labels: &[(&str, &str)]) -> ManagedCluster {
    let mut cluster = ManagedCluster::named(name);
    let set = (apis::constants::CLUSTER_SET_LABEL.to_owned(), "default".to_owned());
    let labels = labels.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).chain([set]);
    cluster.metadata.labels = Some(labels.collect());
    cluster
}

fn placement(spec: Value) -> Placement {
    read(json!({"metadata": {"name": "p", "namespace": "n"}, "spec": spec}))
}

fn sets() -> [ManagedClusterSet; 2] {
    ocm_hub::sets::builtin().map(|(name, selector)| {
        read(json!({"metadata": {"name": name}, "spec": {"clusterSelector": selector}}))
    })
}

fn now() -> Timestamp {
    Timestamp::from_second(1_000_000).unwrap()
}

fn run(spec: Value, sets: &[&ManagedClusterSet], clusters: &[ManagedCluster], chosen: &[&str]) -> Selection {
    let clusters: Vec<&ManagedCluster> = clusters.iter().collect();
    let chosen = chosen.iter().map(|c| (*c).to_owned()).collect();
    select(&placement(spec), &Candidates { sets, clusters: &clusters, chosen: &chosen }, now())
}

fn names(selection: &Selection) -> Vec<&str> {
    selection.clusters.as_ref().unwrap().iter().map(String::as_str).collect()
}

fn satisfied(selection: &Selection) -> (&str, &str) {
    let found = selection.conditions.iter().find(|c| c.type_ == "PlacementSatisfied").unwrap();
    (found.status.as_str(), found.reason.as_str())
}

#[test]
fn ocm_013_who_is_selected_and_why_not() {
    let [default, global] = sets();
    let mut odd = cluster("c3", &[]);
    odd.metadata.labels = None;
    let clusters = [cluster("c1", &[("zone", "a")]), cluster("c2", &[("zone", "b")]), odd];
    let both = [&default, &global];
    let zone = json!({"predicates": [{"requiredClusterSelector": {"labelSelector": {"matchLabels": {"zone": "b"}}}}]});
    type Case<'a> = (Value, &'a [&'a ManagedClusterSet], &'a [&'a str], (&'a str, &'a str));
    let cases: Vec<Case<'_>> = vec![
        (json!({}), &both, &["c1", "c2", "c3"], ("True", "AllDecisionsScheduled")),
        (json!({"clusterSets": ["default"]}), &both, &["c1", "c2"], ("True", "AllDecisionsScheduled")),
        (json!({"clusterSets": ["default"]}), &[], &[], ("False", "NoManagedClusterSetBindings")),
        (json!({"clusterSets": ["other"]}), &both, &[], ("False", "NoIntersection")),
        (zone, &both, &["c2"], ("True", "AllDecisionsScheduled")),
        (
            json!({"predicates": [{"requiredClusterSelector": {"labelSelector": {"matchLabels": {"zone": "x"}}}}]}),
            &both,
            &[],
            ("False", "NoManagedClusterMatched"),
        ),
        (json!({"numberOfClusters": 1}), &both, &["c2"], ("True", "AllDecisionsScheduled")),
        (json!({"numberOfClusters": 5}), &both, &["c1", "c2", "c3"], ("False", "NotAllDecisionsScheduled")),
    ];
    for (spec, sets, wanted, why) in cases {
        let selection = run(spec.clone(), sets, &clusters, &["c2"]);
        assert_eq!(names(&selection), wanted, "{spec}");
        assert_eq!(satisfied(&selection), why, "{spec}");
    }
    assert_eq!(satisfied(&run(json!({}), &both, &[], &[])), ("False", "AllManagedClusterSetsEmpty"));
}

#[test]
fn ocm_013_predicates_are_alternatives_and_claims_count() {
    let [_, global] = sets();
    let mut claiming = cluster("c1", &[]);
    let claim = ManagedClusterClaim { name: "platform".into(), value: "edge".into() };
    claiming.status.get_or_insert_default().cluster_claims = vec![claim];
    let clusters = [claiming, cluster("c2", &[("zone", "a")]), cluster("c3", &[])];
    let claim = json!({"matchExpressions": [{"key": "platform", "operator": "In", "values": ["edge"]}]});
    let spec = json!({"predicates": [
        {"requiredClusterSelector": {"claimSelector": claim}},
        {"requiredClusterSelector": {"labelSelector": {"matchLabels": {"zone": "a"}}}}]});
    assert_eq!(names(&run(spec, &[&global], &clusters, &[])), ["c1", "c2"]);
}

/// An unsupported request is refused, and the decisions stay.
#[test]
fn ocm_013_unsupported_demands_are_told() {
    let [_, global] = sets();
    for spec in [
        json!({"predicates": [{"requiredClusterSelector": {"celSelector": {"celExpressions": ["true"]}}}]}),
        json!({"prioritizerPolicy": {"mode": "Exact", "configurations": [{"weight": 2}]}}),
        json!({"spreadPolicy": {"spreadConstraints": [{"topologyKey": "zone"}]}}),
        json!({"decisionStrategy": {"groupStrategy": {"decisionGroups": [{"groupName": "a"}]}}}),
    ] {
        let selection = run(spec.clone(), &[&global], &[cluster("c1", &[])], &[]);
        assert_eq!(selection.clusters, None, "{spec}");
        assert_eq!(selection.conditions[0].reason, "Misconfigured");
    }
    let usual = json!({"prioritizerPolicy": {"mode": "Additive"}, "decisionStrategy": {"groupStrategy": {"clustersPerDecisionGroup": "100%"}}});
    assert_eq!(names(&run(usual, &[&global], &[cluster("c1", &[])], &[])), ["c1"]);
}

/// Typed Go clients always send `celSelector`, empty if nobody set it.
#[test]
fn ocm_013_an_empty_cel_selector_asks_for_nothing() {
    let [_, global] = sets();
    for empty in [json!({}), json!({"celExpressions": []}), json!({"celExpressions": null})] {
        let spec = json!({"predicates": [{"requiredClusterSelector": {"celSelector": empty}}]});
        let selection = run(spec.clone(), &[&global], &[cluster("c1", &[])], &[]);
        assert_eq!(names(&selection), ["c1"], "{spec}");
    }
}

/// OCM-111: our own Placement keeps unreachable clusters; without tolerations they are deselected.
#[test]
fn ocm_111_taints_and_tolerations() {
    let [_, global] = sets();
    let taint = |key: &str, effect: &str, ago: i64| -> Taint {
        let at = now().as_second() - ago;
        read(
            json!({"key": key, "effect": effect, "timeAdded": Timestamp::from_second(at).unwrap().to_string()}),
        )
    };
    let unreachable = "cluster.open-cluster-management.io/unreachable";
    let limited = |seconds: i64| json!({"tolerations": [{"key": "k", "operator": "Exists", "tolerationSeconds": seconds}]});
    let cases: Vec<(Value, Taint, bool, bool, Option<u64>)> = vec![
        (json!({}), taint(unreachable, "NoSelect", 5), true, false, None),
        (global_spec(), taint(unreachable, "NoSelect", 5), false, true, None),
        (
            global_spec(),
            taint("cluster.open-cluster-management.io/unavailable", "NoSelect", 5),
            true,
            true,
            None,
        ),
        (global_spec(), taint("mine", "NoSelect", 5), true, false, None),
        (json!({}), taint("k", "NoSelectIfNew", 5), true, true, None),
        (json!({}), taint("k", "NoSelectIfNew", 5), false, false, None),
        (json!({}), taint("k", "PreferNoSelect", 5), false, true, None),
        (limited(30), taint("k", "NoSelect", 5), true, true, Some(25)),
        (limited(30), taint("k", "NoSelect", 31), true, false, None),
        (
            json!({"tolerations": [{"key": "k", "value": "other"}]}),
            taint("k", "NoSelect", 5),
            true,
            false,
            None,
        ),
        (json!({"tolerations": [{"key": "k"}]}), taint("k", "NoSelect", 5), true, true, None),
        (
            json!({"tolerations": [{"operator": "Exists", "effect": "NoSelectIfNew"}]}),
            taint("k", "NoSelect", 5),
            true,
            false,
            None,
        ),
    ];
    for (spec, taint, selected, stays, recheck) in cases {
        let mut tainted = cluster("c1", &[]);
        tainted.spec.taints = vec![taint.clone()];
        let chosen: &[&str] = if selected { &["c1"] } else { &[] };
        let selection = run(spec.clone(), &[&global], &[tainted], chosen);
        assert_eq!(!names(&selection).is_empty(), stays, "{spec} {taint:?} {selected}");
        assert_eq!(selection.recheck.map(|d| d.as_secs()), recheck, "{spec}");
    }
}

#[test]
fn ocm_013_pages_have_names_and_numbers() {
    assert_eq!(page_name("global", 3), "global-decision-3");
    assert_eq!(page_number("global", "global-decision-3"), Some(3));
    for other in ["global-decision-0", "global-decision-x", "globally-decision-1", "global", "x"] {
        assert_eq!(page_number("global", other), None, "{other}");
    }
    assert_eq!(pages(&BTreeMap::new(), &BTreeSet::new()).len(), 1);
}

proptest! {
    /// OCM-163: a cluster that stays selected stays on its page; every page has at most a hundred; no cluster
    /// is on two.
    #[test]
    fn ocm_163_no_cluster_changes_its_page(rounds in prop::collection::vec(prop::collection::btree_set(0u16..400, 0..350), 1..6)) {
        let mut old: BTreeMap<usize, BTreeSet<String>> = BTreeMap::new();
        for round in rounds {
            let chosen: BTreeSet<String> = round.iter().map(|n| format!("c{n}")).collect();
            let new = pages(&old, &chosen);
            let on = |pages: &BTreeMap<usize, BTreeSet<String>>| -> BTreeMap<String, usize> {
                pages.iter().flat_map(|(n, page)| page.iter().map(move |c| (c.clone(), *n))).collect()
            };
            let (before, after) = (on(&old), on(&new));
            prop_assert_eq!(after.keys().collect::<BTreeSet<_>>(), chosen.iter().collect::<BTreeSet<_>>());
            prop_assert_eq!(new.values().map(BTreeSet::len).sum::<usize>(), chosen.len());
            for (cluster, page) in &after {
                prop_assert!(before.get(cluster).is_none_or(|was| was == page));
            }
            prop_assert!(new.values().all(|page| page.len() <= PAGE));
            old = new;
        }
    }
}
