use std::{collections::BTreeMap, sync::Arc};

use super::{
    candidates::FindScores,
    pages::{PAGE, page_name, page_number, pages, writes},
    *,
};
use apis::ocm::{
    AddOnPlacementScore,
    cluster::{ManagedClusterClaim, Taint},
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
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

/// What a decision depends on beside the Placement.
#[derive(Default)]
struct Scene {
    sets: Vec<Arc<ManagedClusterSet>>,
    clusters: Vec<Arc<ManagedCluster>>,
    chosen: BTreeSet<String>,
    /// How often clusters are in decisions of other Placements.
    decisions: BTreeMap<String, u32>,
    scores: Vec<AddOnPlacementScore>,
}

impl Scene {
    /// Clusters in the global set.
    fn of(clusters: impl IntoIterator<Item = ManagedCluster>) -> Self {
        let [_, global] = sets();
        let clusters = clusters.into_iter().map(Arc::new).collect();
        Self { sets: vec![Arc::new(global)], clusters, ..Self::default() }
    }

    fn named(names: &[&str]) -> Self {
        Self::of(names.iter().map(|name| cluster(name, &[])))
    }

    fn chosen(mut self, names: &[&str]) -> Self {
        self.chosen = names.iter().map(|name| (*name).to_owned()).collect();
        self
    }

    fn score(mut self, cluster: &str, object: &str, name: &str, value: i32, until: Option<i64>) -> Self {
        let until =
            until.map(|seconds| Timestamp::from_second(now().as_second() + seconds).unwrap().to_string());
        self.scores.push(read(json!({"metadata": {"name": object, "namespace": cluster},
            "status": {"scores": [{"name": name, "value": value}], "validUntil": until}})));
        self
    }

    fn select(&self, spec: Value) -> Selection {
        let scores: BTreeMap<(String, String), Arc<AddOnPlacementScore>> = self
            .scores
            .iter()
            .map(|score| {
                let (meta, found) = (&score.metadata, Arc::new(score.clone()));
                ((meta.namespace.clone().unwrap(), meta.name.clone().unwrap()), found)
            })
            .collect();
        let scores: FindScores =
            Arc::new(move |c, name| scores.get(&(c.to_owned(), name.to_owned())).cloned());
        let decisions = self.decisions.clone();
        let candidates = Candidates {
            sets: self.sets.clone(),
            clusters: self.clusters.clone(),
            chosen: self.chosen.clone(),
            decisions: Box::new(move || decisions),
            scores,
        };
        select(&placement(spec), candidates, now())
    }
}

fn run(spec: Value, sets: &[&ManagedClusterSet], clusters: &[ManagedCluster], chosen: &[&str]) -> Selection {
    let sets = sets.iter().map(|set| Arc::new((*set).clone())).collect();
    Scene { sets, ..Scene::of(clusters.to_vec()).chosen(chosen) }.select(spec)
}

fn names(selection: &Selection) -> Vec<&str> {
    let mut names: Vec<&str> =
        selection.groups.iter().flatten().flat_map(|group| &group.clusters).map(String::as_str).collect();
    names.sort_unstable();
    names
}

/// The message of PlacementMisconfigured, if it is true; then the decisions stay.
fn misconfigured(selection: &Selection) -> Option<&str> {
    let found = selection.conditions.iter().find(|c| c.type_ == "PlacementMisconfigured").unwrap();
    let yes = found.status == "True";
    assert_eq!(found.reason, if yes { "Misconfigured" } else { "Succeedconfigured" });
    assert_eq!(selection.groups.is_none(), yes);
    yes.then_some(found.message.as_str())
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

/// A Placement that cannot be decided says why, in the words of OCM.
#[test]
fn ocm_013_misconfigured_placements_say_why() {
    let scene = Scene::named(&["c1"]).chosen(&["c1"]);
    let cel = |text: &str| json!({"predicates": [{"requiredClusterSelector": {"celSelector": {"celExpressions": [text]}}}]});
    let group = |value: Value| json!({"decisionStrategy": {"groupStrategy": value}});
    let weights = |value: Value| json!({"prioritizerPolicy": value});
    let bad = json!({"matchExpressions": [{"key": "k", "operator": "Near"}]});
    for (spec, wanted) in [
        (
            cel("xxxx.expression"),
            "Predicate:compilation failed: ERROR: <input>:1:1: undeclared reference to 'xxxx'",
        ),
        (cel("managedCluster.nothing("), "Predicate:compilation failed: "),
        (json!({"predicates": [{"requiredClusterSelector": {"labelSelector": bad}}]}), "Predicate:"),
        (json!({"predicates": [{"requiredClusterSelector": {"claimSelector": bad}}]}), "Predicate:"),
        (
            json!({"tolerations": [{"key": "k", "operator": "Exists", "value": "v"}]}),
            "TaintToleration:If the operator is Exists, the value should be empty.",
        ),
        (
            json!({"tolerations": [{"operator": "Equal", "value": "v"}]}),
            "TaintToleration:If the key is empty, operator must be Exists.",
        ),
        (weights(json!({"mode": "Best"})), ":incorrect prioritizer policy mode: Best"),
        (weights(json!({"configurations": [{"weight": 2}]})), ":scoreCoordinate field is required"),
        (
            weights(json!({"configurations": [{"scoreCoordinate": {"type": "BuiltIn", "builtIn": "Luck"}}]})),
            ":incorrect builtin prioritizer: Luck",
        ),
        (
            weights(json!({"configurations": [{"scoreCoordinate": {"type": "AddOn"}}]})),
            ":addOn should not be empty",
        ),
        (group(json!({"clustersPerDecisionGroup": "two"})), ":two invalid type: string is not a percentage"),
        (group(json!({"clustersPerDecisionGroup": "x%"})), ":x% invalid type: string is not a percentage"),
        (
            group(
                json!({"decisionGroups": [{"groupName": "g", "groupClusterSelector": {"labelSelector": bad}}]}),
            ),
            ":",
        ),
    ] {
        let selection = scene.select(spec.clone());
        let said = misconfigured(&selection).unwrap_or_else(|| panic!("{spec} was taken"));
        assert!(said.starts_with(wanted), "{spec}: {said}");
        assert_eq!(satisfied(&selection), ("False", "NotAllDecisionsScheduled"), "{spec}");
    }
    for spec in [
        json!({"prioritizerPolicy": {"mode": "Additive"}}),
        json!({"spreadPolicy": {"spreadConstraints": [{"topologyKey": "zone", "topologyKeyType": "Label"}]}}),
        group(json!({"clustersPerDecisionGroup": 0})),
        weights(
            json!({"configurations": [{"weight": 0, "scoreCoordinate": {"type": "BuiltIn", "builtIn": "Luck"}}]}),
        ),
    ] {
        let selection = scene.select(spec.clone());
        assert_eq!((misconfigured(&selection), names(&selection)), (None, vec!["c1"]), "{spec}");
    }
}

/// CEL expressions see the cluster, its scores and JSON in texts; those that fail do not select.
#[test]
fn ocm_013_cel_expressions_select_clusters() {
    let mut third = cluster("c3", &[("zone", "b")]);
    let claim = ManagedClusterClaim { name: "json".into(), value: r#"{"gpus": 4, "kinds": ["a"]}"#.into() };
    third.status.get_or_insert_default().cluster_claims = vec![claim];
    third.status.get_or_insert_default().version.kubernetes = "v1.31.2".into();
    let scene = Scene::of([cluster("c1", &[("zone", "a")]), cluster("c2", &[("zone", "a")]), third])
        .score("c1", "demo", "cpu", 70, None)
        .score("c2", "demo", "cpu", 90, None);
    let claims = "managedCluster.status.clusterClaims";
    for (expressions, wanted) in [
        (vec!["true".to_owned()], vec!["c1", "c2", "c3"]),
        (vec!["managedCluster.metadata.labels['zone'] == 'a'".into()], vec!["c1", "c2"]),
        (
            vec![
                "managedCluster.metadata.labels.zone == 'a'".into(),
                "managedCluster.metadata.name != 'c1'".into(),
            ],
            vec!["c2"],
        ),
        (
            vec!["managedCluster.scores('demo').filter(s, s.name == 'cpu').all(e, e.value > 80)".into()],
            vec!["c2"],
        ),
        (vec!["managedCluster.scores('demo').exists(s, s.value >= 70)".into()], vec!["c1", "c2"]),
        (vec!["managedCluster.scores('none').size() == 0".into()], vec![]),
        (vec![format!("{claims}.exists(c, c.name == 'json' && c.value.parseJSON().gpus > 3)")], vec!["c3"]),
        (vec![format!("{claims}.exists(c, c.value.parseJSON().kinds[0] == 'a')")], vec!["c3"]),
        (vec!["'not json'.parseJSON().x == 1".into()], vec![]),
        (
            vec![
                "semver(managedCluster.status.version.kubernetes, true).isGreaterThan(semver('1.30.0'))"
                    .into(),
            ],
            vec!["c3"],
        ),
        (vec!["managedCluster.metadata.name.matches('^c[12]$')".into()], vec!["c1", "c2"]),
        // Not a truth value.
        (vec!["managedCluster.metadata.name".into()], vec![]),
    ] {
        let spec = json!({"predicates": [{"requiredClusterSelector": {"celSelector": {"celExpressions": expressions}}}]});
        let selection = scene.select(spec.clone());
        assert_eq!(misconfigured(&selection), None, "{spec}");
        assert_eq!(names(&selection), wanted, "{spec}");
    }
    // The labels of a predicate count, too; other predicates are alternatives.
    let spec = json!({"predicates": [
        {"requiredClusterSelector": {"labelSelector": {"matchLabels": {"zone": "b"}}, "celSelector": {"celExpressions": ["false"]}}},
        {"requiredClusterSelector": {"labelSelector": {"matchLabels": {"zone": "a"}},
            "celSelector": {"celExpressions": ["managedCluster.metadata.name == 'c1'"]}}}]});
    assert_eq!(names(&scene.select(spec)), ["c1"]);
}

/// Expressions have a cost limit each, and one together: beyond the first a cluster does not match, beyond the second
/// the Placement is misconfigured.
#[test]
fn ocm_013_cel_expressions_have_a_cost_limit() {
    let heavy = "lists.range(2000).all(a, lists.range(2000).all(b, a + b >= 0))";
    let spec = |many: usize| json!({"predicates": [{"requiredClusterSelector": {"celSelector": {"celExpressions": vec![heavy; many]}}}]});
    let one = Scene::named(&["c1"]).select(spec(1));
    assert_eq!((misconfigured(&one), names(&one)), (None, vec![]));
    let clusters: Vec<ManagedCluster> = (0..40).map(|n| cluster(&format!("c{n}"), &[])).collect();
    let all = Scene::of(clusters).select(spec(1));
    assert!(misconfigured(&all).is_some_and(|why| why.contains("cost more than 10000000")), "{all:?}");
}

fn sized(name: &str, cpu: [&str; 2], memory: [&str; 2]) -> ManagedCluster {
    let mut cluster = cluster(name, &[]);
    let status = cluster.status.get_or_insert_default();
    for (resource, [allocatable, capacity]) in [("cpu", cpu), ("memory", memory)] {
        status.allocatable.insert(resource.into(), Quantity(allocatable.into()));
        status.capacity.insert(resource.into(), Quantity(capacity.into()));
    }
    cluster
}

/// The scores of OCM, and what they select when fewer clusters are wanted than there are.
#[test]
fn ocm_013_prioritizers_order_clusters() {
    let clusters = || {
        [
            sized("c1", ["10", "10"], ["50", "100"]),
            sized("c2", ["7", "10"], ["90", "100"]),
            sized("c3", ["9", "10"], ["80", "100"]),
        ]
    };
    let built_in = |name: &str, weight: i32| json!({"scoreCoordinate": {"type": "BuiltIn", "builtIn": name}, "weight": weight});
    let add_on = json!({"scoreCoordinate": {"type": "AddOn", "addOn": {"resourceName": "demo", "scoreName": "demo"}}, "weight": 1});
    let (cpu, memory) = (built_in("ResourceAllocatableCPU", 1), built_in("ResourceAllocatableMemory", 1));
    let asked = |mode: &str, all: &[&Value]| json!({"numberOfClusters": 2, "prioritizerPolicy": {"mode": mode, "configurations": all}});
    let plain = || Scene::of(clusters());
    let with = |counts: &[(&str, u32)], chosen: &[&str]| Scene {
        decisions: counts.iter().map(|(name, n)| ((*name).to_owned(), *n)).collect(),
        ..plain().chosen(chosen)
    };
    let scored = plain().score("c1", "demo", "demo", 80, Some(30)).score("c2", "demo", "demo", 90, Some(60));
    let scored = scored.score("c3", "demo", "demo", 100, None).score("c1", "other", "demo", 100, None);
    let expired = plain().score("c1", "demo", "demo", -5, None).score("c3", "demo", "demo", 100, Some(-1));
    let cases: Vec<(Scene, Value, [&str; 2], Option<u64>)> = vec![
        (plain(), json!({"numberOfClusters": 2}), ["c1", "c2"], None),
        (plain(), asked("Exact", &[&cpu, &memory]), ["c1", "c3"], None),
        (plain(), asked("Additive", &[&built_in("Steady", 3), &cpu, &memory]), ["c1", "c3"], None),
        (with(&[("c2", 1)], &["c1", "c3"]), json!({"numberOfClusters": 2}), ["c1", "c3"], None),
        (with(&[], &["c2", "c3"]), json!({"numberOfClusters": 2}), ["c2", "c3"], None),
        // Without the defaults, what is selected counts no more.
        (with(&[], &["c2", "c3"]), asked("Exact", &[]), ["c1", "c2"], None),
        (with(&[], &["c2", "c3"]), asked("", &[&built_in("Steady", 0)]), ["c1", "c2"], None),
        (with(&[("c1", 1)], &[]), asked("Exact", &[&built_in("Balance", 2), &cpu]), ["c2", "c3"], None),
        (
            with(&[("c1", 3), ("c2", 2), ("x", 4)], &[]),
            asked("Exact", &[&built_in("Balance", 1)]),
            ["c2", "c3"],
            None,
        ),
        (with(&[("c1", 1)], &[]), asked("Exact", &[&built_in("Balance", -1)]), ["c1", "c2"], None),
        (scored, asked("Exact", &[&add_on]), ["c2", "c3"], Some(30)),
        (expired, asked("Exact", &[&add_on]), ["c2", "c3"], None),
    ];
    for (scene, spec, wanted, recheck) in cases {
        let selection = scene.select(spec.clone());
        assert_eq!(names(&selection), wanted, "{spec}");
        assert_eq!(selection.recheck.map(|pause| pause.as_secs()), recheck, "{spec}");
    }
}

/// Single scores, as OCM computes them.
#[test]
fn ocm_013_scores_are_those_of_ocm() {
    type Row<'a> = (&'a str, Vec<ManagedCluster>, &'a [(&'a str, u32)], &'a [i64]);
    let plain = || ["c1", "c2", "c3"].map(|name| cluster(name, &[])).to_vec();
    let cpu =
        |all: [&str; 3]| [1, 2, 3].map(|n| sized(&format!("c{n}"), [all[n - 1], "10"], ["1", "1"])).to_vec();
    let rows: Vec<Row<'_>> = vec![
        ("Balance", plain(), &[], &[100, 100, 100]),
        ("Balance", plain(), &[("c1", 1)], &[-100, 100, 100]),
        ("Balance", plain(), &[("c1", 2), ("c2", 1)], &[-100, 0, 100]),
        ("Balance", plain(), &[("c1", 3), ("c2", 1)], &[-100, 32, 100]),
        ("ResourceAllocatableCPU", cpu(["10", "6", "2"]), &[], &[100, 0, -100]),
        ("ResourceAllocatableCPU", cpu(["5", "5", "5"]), &[], &[100, 100, 100]),
        ("ResourceAllocatableCPU", cpu(["100m", "0.2", "1"]), &[], &[-100, -77, 100]),
        ("ResourceAllocatableCPU", plain(), &[], &[0, 0, 0]),
    ];
    for (name, clusters, counts, wanted) in rows {
        let spec = json!({"prioritizerPolicy": {"mode": "Exact",
            "configurations": [{"scoreCoordinate": {"type": "BuiltIn", "builtIn": name}}]}});
        let weights = Weights::of(&placement(spec)).unwrap();
        let clusters: Vec<Arc<ManagedCluster>> = clusters.into_iter().map(Arc::new).collect();
        let counts = counts.iter().map(|(name, n)| ((*name).to_owned(), *n)).collect();
        let none: FindScores = Arc::new(|_, _| None);
        let scores = weights.score(&clusters, &BTreeSet::new(), Box::new(|| counts), &none, now());
        assert_eq!(scores.sums.values().copied().collect::<Vec<_>>(), wanted, "{name}");
    }
}

/// Groups by rules first, in their order; each cut at the size; the others without a name.
#[test]
fn ocm_013_decisions_are_grouped() {
    let vendor = |name: &str, vendor: &str| cluster(name, &[("vendor", vendor)]);
    let clusters =
        [vendor("c1", "x"), vendor("c2", "y"), vendor("c3", "x"), vendor("c4", "z"), vendor("c5", "x")];
    let scene = Scene::of(clusters);
    let rule = |name: &str, vendor: &str| json!({"groupName": name, "groupClusterSelector": {"labelSelector": {"matchLabels": {"vendor": vendor}}}});
    let all = json!({"groupName": "all", "groupClusterSelector": {}});
    type Groups<'a> = Vec<(&'a str, Vec<&'a str>)>;
    let cases: Vec<(Value, Groups<'_>)> = vec![
        (json!({}), vec![("", vec!["c1", "c2", "c3", "c4", "c5"])]),
        (
            json!({"clustersPerDecisionGroup": 2}),
            vec![("", vec!["c1", "c2"]), ("", vec!["c3", "c4"]), ("", vec!["c5"])],
        ),
        (
            json!({"clustersPerDecisionGroup": "41%"}),
            vec![("", vec!["c1", "c2", "c3"]), ("", vec!["c4", "c5"])],
        ),
        (json!({"clustersPerDecisionGroup": 9}), vec![("", vec!["c1", "c2", "c3", "c4", "c5"])]),
        (
            json!({"decisionGroups": [rule("canary", "x")], "clustersPerDecisionGroup": 2}),
            vec![("canary", vec!["c1", "c3"]), ("canary", vec!["c5"]), ("", vec!["c2", "c4"])],
        ),
        (
            json!({"decisionGroups": [rule("first", "z"), rule("none", "q"), all, rule("late", "x")]}),
            vec![("first", vec!["c4"]), ("all", vec!["c1", "c2", "c3", "c5"])],
        ),
    ];
    for (strategy, wanted) in cases {
        let selection = scene.select(json!({"decisionStrategy": {"groupStrategy": strategy}}));
        let groups = selection.groups.unwrap();
        let found: Groups<'_> = groups
            .iter()
            .map(|group| (group.name.as_str(), group.clusters.iter().map(String::as_str).collect()))
            .collect();
        assert_eq!(found, wanted, "{strategy}");
    }
    let none =
        Scene::named(&[]).select(json!({"decisionStrategy": {"groupStrategy": {"decisionGroups": [all]}}}));
    assert_eq!(none.groups, Some(vec![Group::default()]));
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
    assert_eq!(pages(&[Group::default()], &BTreeMap::new()).len(), 1);
}

fn clusters(numbers: &BTreeSet<u16>) -> BTreeSet<String> {
    numbers.iter().map(|n| format!("c{n}")).collect()
}

proptest! {
    /// OCM-163: every selected cluster is on one page of its group; no page has more than a hundred; the numbers have no
    /// gap; where a group keeps its pages, its clusters do. And after each single write every cluster that was and stays
    /// selected is on a page.
    #[test]
    fn ocm_163_no_cluster_is_missing_in_between(
        rounds in prop::collection::vec(
            prop::collection::vec(prop::collection::btree_set(0u16..300, 0..160), 1..4), 1..5),
    ) {
        let mut old: BTreeMap<usize, BTreeSet<String>> = BTreeMap::new();
        for round in rounds {
            let mut seen = BTreeSet::new();
            let groups: Vec<Group> = round.iter().map(|part| {
                let clusters = clusters(part).into_iter().filter(|name| seen.insert(name.clone())).collect();
                Group { name: String::new(), clusters }
            }).collect();
            let new = pages(&groups, &old);
            prop_assert!(new.keys().copied().eq(1..=new.len()));
            for (index, group) in groups.iter().enumerate() {
                let own: Vec<_> = new.values().filter(|page| page.group == index).collect();
                prop_assert_eq!(own.len(), group.clusters.len().div_ceil(PAGE).max(1));
                let listed: Vec<&String> = own.iter().flat_map(|page| &page.clusters).collect();
                prop_assert_eq!(listed.len(), group.clusters.len());
                prop_assert_eq!(listed.into_iter().collect::<BTreeSet<_>>(), group.clusters.iter().collect());
            }
            prop_assert!(new.values().all(|page| page.clusters.len() <= PAGE));
            for (number, page) in &old {
                let Some(now) = new.get(number) else { continue };
                for name in page.intersection(&groups[now.group].clusters) {
                    prop_assert!(now.clusters.contains(name), "{} left page {}", name, number);
                }
            }
            let on = |pages: &BTreeMap<usize, BTreeSet<String>>| -> BTreeSet<String> { pages.values().flatten().cloned().collect() };
            let staying: BTreeSet<String> = on(&old).intersection(&seen).cloned().collect();
            let steps = writes(&old, &new);
            let mut present = old.clone();
            for step in &steps {
                present.insert(step.number, step.clusters.clone());
                prop_assert!(on(&present).is_superset(&staying), "{:?}", step);
            }
            prop_assert!(steps.len() <= 2 * new.len());
            present.retain(|number, _| new.contains_key(number));
            prop_assert_eq!(&present, &new.into_iter().map(|(number, page)| (number, page.clusters)).collect());
            old = present;
        }
    }
}

/// Two pages that exchange clusters: one has the clusters of both for a moment.
#[test]
fn ocm_163_pages_that_exchange_clusters() {
    let page = |names: &[&str]| -> BTreeSet<String> { names.iter().map(|name| (*name).to_owned()).collect() };
    let old = BTreeMap::from([(1, page(&["a", "b"])), (2, page(&["c", "d"]))]);
    let group = |names: &[&str]| Group { name: String::new(), clusters: page(names) };
    let new = pages(&[group(&["a", "c"]), group(&["b", "d"])], &old);
    let steps: Vec<(usize, BTreeSet<String>)> =
        writes(&old, &new).into_iter().map(|write| (write.number, write.clusters)).collect();
    assert_eq!(steps, [(1, page(&["a", "b", "c"])), (2, page(&["b", "d"])), (1, page(&["a", "c"]))]);
}
