//! The worked examples of the published behaviour (KS-198), and general properties of results.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use apis::control::{NamedStatusCombination, StatusCollectorSpec};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::{
    collectors::{Collectors, availability},
    combine::{fit, same},
    combined::{Asked, Pair},
    query::Query,
    sight::Sight,
    table::{Inputs, Report, Table},
};
use crate::identity::{ClusterName, GroupResource, ObjectId};

fn query(spec: &Value) -> Arc<Query> {
    let spec: StatusCollectorSpec = serde_json::from_value(spec.clone()).unwrap();
    let verdict = Query::compile(&spec);
    Arc::new(verdict.query.unwrap_or_else(|| panic!("{:?}", verdict.errors)))
}

#[allow(clippy::unnecessary_wraps, reason = "as it stands in the inputs")]
fn report(status: Value) -> Option<Arc<Report>> {
    Some(Arc::new(Report { status: Some(Arc::new(status)), updated: Some("2026-01-02T03:04:05Z".into()) }))
}

/// atlas is green, boreas amber, cygnus has reported nothing; the Deployment `web` wants three replicas.
fn situation(collectors: &[(&str, Value)]) -> Inputs {
    Inputs {
        queries: collectors.iter().map(|(name, spec)| ((*name).into(), query(spec))).collect(),
        reports: [
            ("atlas".into(), report(json!({"replicas": 3, "availableReplicas": 3, "phase": "Green"}))),
            ("boreas".into(), report(json!({"replicas": 3, "availableReplicas": 1, "phase": "Amber"}))),
            ("cygnus".into(), None),
        ]
        .into(),
        object: Some(Arc::new(json!({"metadata": {"name": "web"}, "spec": {"replicas": 3}}))),
        sight: Sight::Whole,
    }
}

fn results(inputs: &Inputs) -> Vec<NamedStatusCombination> {
    let mut table = Table::default();
    table.refresh(inputs);
    table.results()
}

/// The results as an API server would return them.
fn shown(collectors: &[(&str, Value)]) -> Value {
    json!(results(&situation(collectors)))
}

fn number(text: &str) -> Value {
    json!({"type": "Number", "float": text})
}

fn string(text: &str) -> Value {
    json!({"type": "String", "string": text})
}

fn row(columns: &[Value]) -> Value {
    json!({"columns": columns})
}

const SHORT: &str = "obj.spec.replicas != returned.status.availableReplicas";

fn listing(filter: &str) -> Value {
    json!({"filter": filter, "limit": 10, "select": [{"name": "place", "def": "inventory.name"},
        {"name": "have", "def": "returned.status.availableReplicas"}]})
}

fn one(name: &str, type_: &str, subject: &str) -> Value {
    json!({"name": name, "type": type_, "subject": subject})
}

#[test]
fn ks_198_e1_count_destinations() {
    let n = json!({"combinedFields": [{"name": "total", "type": "COUNT"}], "limit": 10});
    assert_eq!(
        shown(&[("n", n)]),
        json!([{"name": "n", "columnNames": ["total"], "rows": [row(&[number("3")])]}])
    );
}

#[test]
fn ks_198_e2_plain_listing_with_filter() {
    let filter = format!("has(returned.status.availableReplicas) && {SHORT}");
    assert_eq!(
        shown(&[("short", listing(&filter))]),
        json!([{"name": "short", "columnNames": ["place", "have"], "rows": [row(&[string("boreas"), number("1")])]}])
    );
}

#[test]
fn ks_198_e3_a_filter_that_fails() {
    assert_eq!(
        shown(&[("short", listing(SHORT))]),
        json!([{"name": "short", "columnNames": ["place", "have"], "rows": [row(&[string("boreas"), number("1")])],
            "rowErrors": [{"wec": {"clusterId": "cygnus"}, "columnName": "",
                "error": "failed to evaluate expression: no such key: availableReplicas"}]}])
    );
}

#[test]
fn ks_198_e4_histogram() {
    let def = "has(returned.status.availableReplicas) ? returned.status.availableReplicas : -1";
    let histo = json!({"groupBy": [{"name": "avail", "def": def}],
        "combinedFields": [{"name": "wecs", "type": "COUNT"}], "limit": 10});
    let counted = |avail: &str| row(&[number(avail), number("1")]);
    assert_eq!(
        shown(&[("histo", histo)]),
        json!([{"name": "histo", "columnNames": ["avail", "wecs"], "rows": [counted("-1"), counted("1"), counted("3")]}])
    );
}

#[test]
fn ks_198_e5_numeric_aggregates() {
    let have = "returned.status.availableReplicas";
    let spec = json!({"filter": "has(returned.status.availableReplicas)", "limit": 10, "combinedFields":
        [one("s", "SUM", have), one("a", "AVG", have), one("lo", "MIN", have), one("hi", "MAX", have)]});
    let values = ["4", "2", "1", "3"].map(number);
    assert_eq!(
        shown(&[("x", spec)]),
        json!([{"name": "x", "columnNames": ["s", "a", "lo", "hi"], "rows": [row(&values)]}])
    );
}

fn over_nothing() -> Value {
    json!({"filter": "false", "limit": 10, "combinedFields": [{"name": "count", "type": "COUNT"},
        one("max", "MAX", "2"), one("min", "MIN", "2"), one("sum", "SUM", "2"), one("avg", "AVG", "2")]})
}

#[test]
fn ks_198_e6_aggregation_over_nothing() {
    let values = ["0", "-Inf", "+Inf", "0", "NaN"].map(number);
    assert_eq!(
        shown(&[("x", over_nothing())]),
        json!([{"name": "x", "columnNames": ["count", "max", "min", "sum", "avg"], "rows": [row(&values)],
            "aggregationErrors": [{"columnName": "avg", "error": "no values to average"}]}])
    );
}

#[test]
fn ks_198_e7_groups_of_nothing() {
    let mut spec = over_nothing();
    spec["groupBy"] = json!([{"name": "g", "def": "1"}]);
    assert_eq!(
        shown(&[("x", spec)]),
        json!([{"name": "x", "columnNames": ["g", "count", "max", "min", "sum", "avg"]}])
    );
}

#[test]
fn ks_198_e8_bad_subject() {
    let subject = "has(returned.status.phase) ? returned.status.phase : \"7\"";
    let spec = json!({"limit": 10, "combinedFields": [one("s", "SUM", subject), one("a", "AVG", subject)]});
    let error = |column: &str| {
        json!({"columnName": column, "error":
            "for WEC atlas, failed to parse combinedField subject as a float: strconv.ParseFloat: parsing \"Green\": invalid syntax"})
    };
    assert_eq!(
        shown(&[("x", spec)]),
        json!([{"name": "x", "columnNames": ["s", "a"], "rows": [row(&[number("7"), number("2.3333333333333335")])],
            "aggregationErrors": [error("s"), error("a")]}])
    );
}

fn whole(limit: u32) -> Value {
    json!({"limit": limit, "select": [{"name": "wec", "def": "inventory.name"}, {"name": "st", "def": "returned.status"},
        {"name": "at", "def": "propagation.lastReturnedUpdateTimestamp"}]})
}

fn whole_rows() -> [Value; 3] {
    let place = |wec: &str, status: Value, at: &str| {
        row(&[string(wec), json!({"type": "Object", "object": status}), string(at)])
    };
    [
        place(
            "atlas",
            json!({"replicas": 3, "availableReplicas": 3, "phase": "Green"}),
            "2026-01-02T03:04:05Z",
        ),
        place(
            "boreas",
            json!({"replicas": 3, "availableReplicas": 1, "phase": "Amber"}),
            "2026-01-02T03:04:05Z",
        ),
        place("cygnus", json!({}), "0001-01-01T00:00:00Z"),
    ]
}

#[test]
fn ks_198_e9_whole_status_and_time() {
    assert_eq!(
        shown(&[("x", whole(10))]),
        json!([{"name": "x", "columnNames": ["wec", "st", "at"], "rows": whole_rows()}])
    );
}

#[test]
fn ks_198_e10_limit() {
    assert_eq!(
        shown(&[("x", whole(2))]),
        json!([{"name": "x", "columnNames": ["wec", "st", "at"], "rows": whole_rows()[..2]}])
    );
}

/// KS-192.
#[test]
fn ks_198_e11_missing_collector() {
    let collectors = Collectors::default();
    let n = json!({"metadata": {"name": "n"}, "spec":
        {"combinedFields": [{"name": "total", "type": "COUNT"}], "limit": 10}});
    collectors.put("n", Some(&serde_json::from_value(n).unwrap()));
    let asked: BTreeSet<Box<str>> = ["n".into(), "ghost".into()].into();
    let inputs = Inputs { queries: collectors.queries(&asked), ..situation(&[]) };
    let results = json!(results(&inputs));
    assert_eq!((results.as_array().unwrap().len(), &results[0]["name"]), (1, &json!("n")));
    let epoch =
        k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(k8s_openapi::jiff::Timestamp::UNIX_EPOCH);
    let condition = availability(&collectors.missing(&asked), epoch);
    assert_eq!(
        (condition.type_.as_str(), condition.status.as_str(), condition.message.as_str()),
        ("StatusCollectorsAvailable", "False", "Missing StatusCollector(s) [ghost]")
    );
}

#[test]
fn ks_198_e12_cluster_scoped_object() {
    let resource = Arc::new(GroupResource::new("", "namespaces"));
    let pair = Pair { policy: "shop-edge".into(), object: ObjectId::new(resource, "", "shop") };
    let asked = Asked {
        uid: "n1".into(),
        version: "1".into(),
        api_version: "v1".into(),
        kind: "Namespace".into(),
        policy_uid: "p1".into(),
        collectors: BTreeSet::new(),
        destinations: BTreeSet::new(),
    };
    let shown = json!(asked.render(&pair, vec![]));
    let metadata = &shown["metadata"];
    assert_eq!((&metadata["name"], &metadata["namespace"]), (&json!("n1.p1"), &json!("kubestellar-report")));
    assert_eq!(
        metadata["labels"],
        json!({
            "status.kubestellar.io/api-group": "", "status.kubestellar.io/resource": "namespaces",
            "status.kubestellar.io/namespace": "", "status.kubestellar.io/name": "shop",
            "status.kubestellar.io/binding-policy": "shop-edge",
        })
    );
}

/// KS-175: there is one row for each destination. A destination that reported nothing or has no status has an
/// empty map as returned value, and counts.
#[test]
fn ks_175_one_row_for_each_destination() {
    let count = json!({"limit": 10, "combinedFields": [{"name": "n", "type": "COUNT"}]});
    let empty = json!({"limit": 10, "select": [{"name": "w", "def": "inventory.name"},
        {"name": "e", "def": "returned.status == {}"}]});
    let mut inputs = situation(&[("count", count), ("empty", empty)]);
    let unsaid = Report { status: None, updated: Some("2026-01-02T03:04:05Z".into()) };
    inputs.reports.insert("dorado".into(), Some(Arc::new(unsaid)));
    let found = json!(results(&inputs));
    assert_eq!(found[0]["rows"], json!([row(&[number("4")])]));
    let is = |wec: &str, yes: bool| row(&[string(wec), json!({"type": "Bool", "bool": yes})]);
    assert_eq!(
        found[1]["rows"],
        json!([is("atlas", false), is("boreas", false), is("cygnus", true), is("dorado", true)])
    );
    inputs.reports.remove("atlas");
    assert_eq!(json!(results(&inputs))[0]["rows"], json!([row(&[number("3")])]), "it left the Binding");
    inputs.reports.clear();
    let found = json!(results(&inputs));
    assert_eq!(found[0]["rows"], json!([row(&[number("0")])]));
    assert!(found[1].get("rows").is_none());
}

/// KS-183: at most the requested number of rows, those that come first; 0 means 20; groups count, too.
#[test]
fn ks_183_the_limit_is_enforced_after_ordering() {
    let places = |limit: i64| json!({"limit": limit, "select": [{"name": "w", "def": "inventory.name"}]});
    let groups = json!({"limit": 2, "groupBy": [{"name": "n", "def": "returned.status.n"}],
        "combinedFields": [{"name": "c", "type": "COUNT"}]});
    let mut inputs =
        situation(&[("five", places(5)), ("groups", groups), ("many", places(100)), ("usual", places(0))]);
    // In another order than that of the names.
    inputs.reports =
        (0..25).rev().map(|n| (format!("w{n:02}").into(), report(json!({"n": 24 - n})))).collect();
    let found = json!(results(&inputs));
    let first = |at: usize| -> Vec<String> {
        let rows = found[at]["rows"].as_array().unwrap().iter();
        rows.map(|row| row["columns"][0]["string"].as_str().unwrap().to_owned()).collect()
    };
    let names: Vec<String> = (0..25).map(|n| format!("w{n:02}")).collect();
    assert_eq!(first(0), names[..5]);
    assert_eq!(found[1]["rows"], json!([row(&[number("0"), number("1")]), row(&[number("1"), number("1")])]));
    assert_eq!(first(2), names);
    assert_eq!(first(3), names[..20]);
}

/// KS-182: the form of values of each type; KS-016: a number is a text under `float`.
#[test]
fn ks_182_values_as_they_are_shown() {
    for (def, expected) in [
        ("'a'", string("a")),
        ("7", number("7")),
        ("7u", number("7")),
        ("1000000", number("1000000")),
        ("1000000.0", number("1e+06")),
        ("true", json!({"type": "Bool", "bool": true})),
        ("null", json!({"type": "Null"})),
        ("[1, 'a']", json!({"type": "Array", "array": [1, "a"]})),
        ("{'a': 1}", json!({"type": "Object", "object": {"a": 1}})),
        ("timestamp('2026-01-02T03:04:05Z')", string("2026-01-02T03:04:05Z")),
        ("duration('1m')", string("60s")),
        ("b'hi'", string("aGk=")),
    ] {
        let spec = json!({"limit": 1, "select": [{"name": "a", "def": def}]});
        assert_eq!(shown(&[("x", spec)])[0]["rows"][0]["columns"][0], expected, "{def}");
    }
}

/// KS-180, KS-185: unusable values, and which WEC is named for them.
#[test]
fn ks_180_subjects_that_are_no_numbers() {
    let spec = json!({"limit": 9, "combinedFields": [one("lo", "MIN", "returned.status == {} ? null : returned.status.n"),
        one("n", "SUM", "inventory.name == 'atlas' ? [[1], 2][0] : 2")]});
    let mut inputs = situation(&[("x", spec)]);
    inputs.reports.insert("atlas".into(), report(json!({"n": "1e2"})));
    inputs.reports.insert("boreas".into(), report(json!({"n": 2.5})));
    assert_eq!(
        json!(results(&inputs)),
        json!([{"name": "x", "columnNames": ["lo", "n"], "rows": [row(&[number("2.5"), number("4")])],
        "aggregationErrors": [
            {"columnName": "lo", "error": "for WEC cygnus, combinedField subject has unexpected type null_type"},
            {"columnName": "n", "error": "for WEC atlas, combinedField subject has unexpected type list"},
        ]}])
    );
}

/// KS-179: ints and doubles of equal value are one group; KS-184: null, bool, number, string in this order.
#[test]
fn ks_184_groups_are_in_order() {
    let wecs = ["a", "b", "c", "d", "e", "f", "g", "h"];
    let values =
        [json!("x"), json!(2.0), json!(true), json!(null), json!(10), json!(2), json!(-0.5), json!(false)];
    let spec = json!({"limit": 20, "groupBy": [{"name": "v", "def": "returned.status.v"}],
        "combinedFields": [{"name": "n", "type": "COUNT"}]});
    let reports = wecs.iter().zip(values).map(|(wec, value)| ((*wec).into(), report(json!({"v": value}))));
    let inputs = Inputs { reports: reports.collect(), ..situation(&[("x", spec)]) };
    let found = json!(results(&inputs));
    let shown = found[0]["rows"].as_array().unwrap().iter().map(|row| row["columns"].clone());
    let bool = |value: bool| json!({"type": "Bool", "bool": value});
    assert_eq!(
        shown.collect::<Vec<_>>(),
        [
            json!([{"type": "Null"}, number("1")]),
            json!([bool(false), number("1")]),
            json!([bool(true), number("1")]),
            json!([number("-0.5"), number("1")]),
            json!([number("2"), number("2")]),
            json!([number("10"), number("1")]),
            json!([string("x"), number("1")]),
        ]
    );
}

/// KS-185: one error for each column, of the first WEC; KS-195: other collectors are not affected.
#[test]
fn ks_185_errors_of_rows() {
    let bad = json!({"limit": 9, "select": [{"name": "a", "def": "returned.status.replicas"},
        {"name": "b", "def": "returned.status.nothing"}]});
    let good = json!({"limit": 9, "combinedFields": [{"name": "n", "type": "COUNT"}]});
    let error = |wec: &str, column: &str, key: &str| {
        let error = format!("failed to evaluate expression: no such key: {key}");
        json!({"wec": {"clusterId": wec}, "columnName": column, "error": error})
    };
    let empty = json!({"type": "Null"});
    let found = shown(&[("good", good), ("bad", bad)]);
    assert_eq!(found[0]["name"], json!("bad"), "KS-184: by name");
    assert_eq!(
        found[0]["rowErrors"],
        json!([error("cygnus", "a", "replicas"), error("atlas", "b", "nothing")])
    );
    assert_eq!(found[0]["rows"][2]["columns"], json!([empty, empty]), "KS-178");
    assert_eq!(found[1]["rows"][0]["columns"], json!([number("3")]));
}

/// KS-199: an expression that does not end is an error of its row.
#[test]
fn ks_199_runaway_collectors_are_errors() {
    let range = "lists.range(3000)";
    let spec = json!({"limit": 1, "select":
        [{"name": "a", "def": format!("{range}.all(a, {range}.all(b, {range}.all(c, a + b + c >= 0)))")}]});
    let error = &shown(&[("x", spec)])[0]["rowErrors"][0]["error"];
    assert_eq!(
        *error,
        json!("failed to evaluate expression: operation cancelled: actual cost limit exceeded")
    );
}

/// KS-199: rows that do not fit into an object are left out, and the object says so.
#[test]
fn ks_199_results_fit_into_an_object() {
    let wide = json!({"limit": 9, "select": [{"name": "a", "def": "returned.status"}]});
    let small = json!({"limit": 9, "combinedFields": [{"name": "n", "type": "COUNT"}]});
    let mut inputs = situation(&[("wide", wide), ("small", small)]);
    inputs.reports.insert("atlas".into(), report(json!({"text": "x".repeat(2 << 20)})));
    let mut found = results(&inputs);
    fit(&mut found);
    let found = json!(found);
    assert_eq!(found[0]["rows"][0]["columns"], json!([number("3")]));
    assert!(found[1].get("rows").is_none());
    assert!(found[1]["aggregationErrors"][0]["error"].as_str().unwrap().starts_with("3 rows are left out"));
}

/// KS-187: a report costs one row for each collector; a change of the object costs rows only for collectors
/// that use it.
#[test]
fn ks_187_only_what_changed_is_evaluated_again() {
    let n = json!({"combinedFields": [{"name": "total", "type": "COUNT"}], "limit": 10});
    let mut inputs = situation(&[("n", n), ("short", listing(SHORT))]);
    let mut table = Table::default();
    assert_eq!(table.refresh(&inputs), 6);
    assert!(table.is_fresh(&inputs));
    assert_eq!(table.refresh(&inputs), 0);
    inputs.reports.insert("boreas".into(), report(json!({"availableReplicas": 2})));
    assert!(!table.is_fresh(&inputs));
    assert_eq!(table.refresh(&inputs), 2);
    assert_eq!(json!(table.results())[1]["rows"][0]["columns"][1], number("2"));
    inputs.object = Some(Arc::new(json!({"spec": {"replicas": 2}})));
    assert_eq!(table.refresh(&inputs), 3);
    assert_eq!(json!(table.results())[1]["rows"][0]["columns"][0], string("atlas"));
    inputs.reports.remove("cygnus");
    assert_eq!(table.refresh(&inputs), 0);
    assert_eq!(json!(table.results())[0]["rows"][0]["columns"], json!([number("2")]));
    inputs.reports.insert("dorado".into(), None);
    assert_eq!(table.refresh(&inputs), 2);
    inputs.queries.insert(
        "n".into(),
        query(&json!({"combinedFields": [{"name": "other", "type": "COUNT"}], "limit": 1})),
    );
    assert_eq!(table.refresh(&inputs), 3);
    inputs.queries.clear();
    assert_eq!(table.refresh(&inputs), 0);
    assert!(table.results().is_empty());
}

#[derive(Clone, Debug)]
enum Change {
    Report(u8, Option<Value>),
    Leave(u8),
    Collect(u8, u8),
    Drop(u8),
    Object(u8),
}

fn some_status() -> impl Strategy<Value = Value> {
    prop_oneof![
        (0..4i64).prop_map(|n| json!({"n": n, "phase": "Up"})),
        (0..4i64).prop_map(|n| json!({"n": n as f64 + 0.5})),
        "[a-b1-2]".prop_map(|n| json!({"n": n})),
        Just(json!({"n": null, "phase": "Down"})),
        Just(json!({"n": [1]})),
        Just(json!({})),
    ]
}

fn changes() -> impl Strategy<Value = Change> {
    prop_oneof![
        4 => (0..5u8, prop::option::weighted(0.8, some_status())).prop_map(|(wec, status)| Change::Report(wec, status)),
        1 => (0..5u8).prop_map(Change::Leave),
        2 => (0..3u8, 0..7u8).prop_map(|(name, spec)| Change::Collect(name, spec)),
        1 => (0..3u8).prop_map(Change::Drop),
        1 => (0..3u8).prop_map(Change::Object),
    ]
}

fn some_spec(at: u8) -> Value {
    let n = "returned.status.n";
    match at {
        0 => json!({"limit": 0, "select": [{"name": "a", "def": n}, {"name": "w", "def": "inventory.name"}]}),
        1 => {
            json!({"limit": 2, "filter": "obj.spec.replicas > returned.status.n", "select": [{"name": "a", "def": "obj"}]})
        }
        2 => {
            json!({"limit": 9, "groupBy": [{"name": "g", "def": n}], "combinedFields": [{"name": "c", "type": "COUNT"}]})
        }
        3 => {
            json!({"limit": 9, "combinedFields": [one("s", "SUM", n), one("a", "AVG", n), one("h", "MAX", n), one("l", "MIN", n)]})
        }
        4 => {
            json!({"limit": 9, "filter": "has(returned.status.phase)", "groupBy": [{"name": "g", "def": "returned.status.phase"}],
            "combinedFields": [one("s", "SUM", "obj.spec.replicas"), one("a", "AVG", n)]})
        }
        5 => json!({"limit": 9, "filter": "returned.status.n", "select": [{"name": "a", "def": "1"}]}),
        _ => json!({"limit": 1, "combinedFields": [{"name": "c", "type": "COUNT"}]}),
    }
}

fn apply(inputs: &mut Inputs, change: &Change) {
    let wec = |at: &u8| ClusterName::from(format!("c{at}"));
    let name = |at: &u8| -> Box<str> { format!("q{at}").into() };
    match change {
        Change::Report(at, status) => {
            inputs.reports.insert(wec(at), status.clone().and_then(report));
        }
        Change::Leave(at) => drop(inputs.reports.remove(&wec(at))),
        Change::Collect(at, spec) => drop(inputs.queries.insert(name(at), query(&some_spec(*spec)))),
        Change::Drop(at) => drop(inputs.queries.remove(&name(at))),
        Change::Object(replicas) => {
            inputs.object = Some(Arc::new(json!({"spec": {"replicas": replicas}})));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// KS-187, KS-184: for any events in any order, the rows kept between events give the same results as
    /// rows computed from scratch; and one report makes at most one row per collector be evaluated.
    #[test]
    fn ks_187_results_are_those_of_a_fresh_evaluation(changes in prop::collection::vec((changes(), any::<bool>()), 1..30)) {
        let (mut inputs, mut table) = (Inputs::default(), Table::default());
        let mut fresh_before = true;
        for (change, look) in &changes {
            apply(&mut inputs, change);
            if !look {
                fresh_before = false;
                continue;
            }
            let was_fresh = table.is_fresh(&inputs);
            let evaluated = table.refresh(&inputs);
            prop_assert!(!was_fresh || evaluated == 0);
            prop_assert!(table.is_fresh(&inputs));
            if fresh_before && matches!(change, Change::Report(..)) {
                prop_assert!(evaluated <= inputs.queries.len());
            }
            fresh_before = true;
            let anew = results(&inputs);
            prop_assert_eq!(&table.results(), &anew);
            prop_assert!(same(&anew, &table.results()));
            for result in &anew {
                prop_assert!(result.rows.len() <= 20);
                prop_assert!(result.rows.iter().all(|row| row.columns.len() == result.column_names.len()));
            }
        }
        table.refresh(&inputs);
        let by_name: BTreeMap<_, _> = table.results().into_iter().map(|it| (it.name.clone(), it)).collect();
        prop_assert!(by_name.keys().map(|name| &**name).eq(inputs.queries.keys().map(|name| &**name)));
    }
}
