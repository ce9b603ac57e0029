//! Aggregates the statuses of many WECs into one (KS-160 … KS-169). Pure.
//!
//! Kinds of `apps` and `batch` that count things have rules for each counter. For all other kinds the rules
//! follow the shape of the values. Conditions are merged in the same way everywhere. Cost: a walk over all
//! statuses.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

use crate::identity::{ClusterName, GroupResource};

/// The status that each WEC reports, by name (KS-166); `None` if it reports nothing.
pub type Reports<'a> = BTreeMap<ClusterName, Option<&'a Value>>;

/// The counters of a kind, by the way in which those of several WECs are combined.
struct Counters {
    least: &'static [&'static str],
    most: &'static [&'static str],
}

fn counters(resource: &GroupResource) -> Option<Counters> {
    let counters = match (&*resource.group, &*resource.plural) {
        ("apps", "deployments") => Counters {
            least: &[
                "replicas",
                "updatedReplicas",
                "availableReplicas",
                "readyReplicas",
                "observedGeneration",
            ],
            most: &["unavailableReplicas"],
        },
        ("apps", "replicasets") => Counters {
            least: &[
                "replicas",
                "fullyLabeledReplicas",
                "readyReplicas",
                "availableReplicas",
                "observedGeneration",
            ],
            most: &[],
        },
        ("apps", "daemonsets") => Counters {
            least: &[
                "currentNumberScheduled",
                "desiredNumberScheduled",
                "numberReady",
                "observedGeneration",
                "updatedNumberScheduled",
                "numberAvailable",
            ],
            most: &["numberMisscheduled"],
        },
        ("apps", "statefulsets") => Counters {
            least: &[
                "replicas",
                "readyReplicas",
                "currentReplicas",
                "updatedReplicas",
                "availableReplicas",
                "observedGeneration",
            ],
            most: &[],
        },
        ("batch", "jobs") => Counters { least: &["active", "succeeded", "failed"], most: &[] },
        _ => return None,
    };
    Some(counters)
}

/// Returns the aggregated status; `None` if no WEC reports anything.
pub fn aggregate(resource: &GroupResource, reports: &Reports) -> Option<Value> {
    if reports.values().all(Option::is_none) {
        return None;
    }
    let status = match counters(resource) {
        Some(counters) => counted(resource, &counters, reports),
        None => objects(&reports.values().copied().collect::<Vec<_>>()),
    };
    Some(Value::Object(status))
}

/// KS-160, KS-161: an absent counter counts as 0. KS-162: all counters are in the result.
fn counted(resource: &GroupResource, counters: &Counters, reports: &Reports) -> Map<String, Value> {
    let values = |field: &str| {
        let of = |status: Option<&Value>| status.and_then(|it| it.get(field)).and_then(Value::as_i64);
        reports.values().map(|status| of(*status).unwrap_or(0)).collect::<Vec<_>>()
    };
    let mut out = Map::new();
    for field in counters.least {
        out.insert((*field).to_owned(), json!(values(field).into_iter().min().unwrap_or(0)));
    }
    for field in counters.most {
        out.insert((*field).to_owned(), json!(values(field).into_iter().max().unwrap_or(0)));
    }
    let lists: Vec<Option<&Value>> =
        reports.values().map(|status| status.and_then(|it| it.get("conditions"))).collect();
    let mut merged = conditions(&lists);
    if let Some(telling) = verbatim(resource, &lists) {
        merged.insert(type_of(telling).unwrap_or_default().to_owned(), telling.clone());
    }
    if !merged.is_empty() {
        out.insert("conditions".to_owned(), merged.into_values().collect());
    }
    out
}

/// KS-164: conditions that report a problem, and that merging would lose.
fn verbatim<'a>(resource: &GroupResource, lists: &[Option<&'a Value>]) -> Option<&'a Value> {
    let mut entries = lists.iter().copied().flatten().filter_map(Value::as_array).flatten();
    let text = |entry: &Value, key: &str| entry.get(key).and_then(Value::as_str).map(str::to_owned);
    if resource.is("apps", "deployments") {
        return entries.find(|it| {
            type_of(it) == Some("Progressing")
                && text(it, "reason").as_deref() == Some("ProgressDeadlineExceeded")
        });
    }
    let failed =
        |it: &&Value| type_of(it) == Some("ReplicaFailure") && text(it, "status").as_deref() == Some("True");
    resource.is("apps", "replicasets").then(|| entries.find(failed)).flatten()
}

fn type_of(condition: &Value) -> Option<&str> {
    condition.get("type").and_then(Value::as_str)
}

/// KS-163: merges conditions by type, sorted by type, for each type that occurs anywhere.
fn conditions(lists: &[Option<&Value>]) -> BTreeMap<String, Value> {
    let of = |list: Option<&Value>, type_: &str| -> Option<Value> {
        let entries = list.and_then(Value::as_array)?;
        entries.iter().find(|entry| type_of(entry) == Some(type_)).cloned()
    };
    let all = lists.iter().copied().flatten().filter_map(Value::as_array).flatten();
    let types: BTreeSet<&str> = all.filter_map(type_of).collect();
    let merge = |type_: &str| {
        let entries: Vec<Option<Value>> = lists.iter().map(|list| of(*list, type_)).collect();
        (type_.to_owned(), condition(type_, &entries))
    };
    types.into_iter().map(merge).collect()
}

fn condition(type_: &str, entries: &[Option<Value>]) -> Value {
    let text = |entry: &Value, key: &str| entry.get(key).and_then(Value::as_str).map(str::to_owned);
    let says = |entry: &Option<Value>, status: &str| {
        entry.as_ref().and_then(|it| text(it, "status")).as_deref() == Some(status)
    };
    let status = if entries.iter().any(|entry| says(entry, "False")) {
        "False"
    } else if entries.iter().all(|entry| says(entry, "True")) {
        "True"
    } else {
        "Unknown"
    };
    let mut out = Map::from_iter([("type".to_owned(), json!(type_)), ("status".to_owned(), json!(status))]);
    let there: Vec<&Value> = entries.iter().flatten().collect();
    // Times in the one form that Kubernetes writes sort as texts do. For equal times the first WEC wins.
    let since = |entry: &Value| text(entry, "lastTransitionTime").unwrap_or_default();
    let latest = there.iter().rev().max_by_key(|entry| since(entry));
    for key in ["reason", "message"] {
        if let Some(value) = latest.and_then(|entry| entry.get(key)) {
            out.insert(key.to_owned(), value.clone());
        }
    }
    let times = there.iter().filter_map(|entry| entry.as_object()).flatten();
    for (key, time) in times.filter(|(key, _)| key.ends_with("Time")) {
        let Some(time) = time.as_str() else { continue };
        if out.get(key).and_then(Value::as_str).is_none_or(|before| before < time) {
            out.insert(key.clone(), json!(time));
        }
    }
    let generations = entries.iter().map(|entry| entry.as_ref()?.get("observedGeneration")?.as_i64());
    if let Some(least) = generations.min().flatten() {
        out.insert("observedGeneration".to_owned(), json!(least));
    }
    Value::Object(out)
}

/// KS-165: keeps the keys that all WECs have; a WEC that reports nothing has no keys.
fn objects(values: &[Option<&Value>]) -> Map<String, Value> {
    let maps: Vec<Option<&Map<String, Value>>> =
        values.iter().map(|value| value.and_then(Value::as_object)).collect();
    let keys: BTreeSet<&String> = maps.iter().flatten().flat_map(|map| map.keys()).collect();
    let mut out = Map::new();
    for key in keys {
        let below: Vec<Option<&Value>> = maps.iter().map(|map| map.and_then(|map| map.get(key))).collect();
        let merged = if key == "conditions" && are_conditions(&below) {
            Some(conditions(&below).into_values().collect())
        } else {
            below.into_iter().collect::<Option<Vec<_>>>().and_then(|below| shaped(&below))
        };
        if let Some(merged) = merged {
            out.insert(key.clone(), merged);
        }
    }
    out
}

fn are_conditions(lists: &[Option<&Value>]) -> bool {
    lists.iter().flatten().all(|list| {
        list.as_array().is_some_and(|entries| entries.iter().all(|entry| type_of(entry).is_some()))
    })
}

/// Combines values according to their shape; `None` if they cannot be combined.
fn shaped(values: &[&Value]) -> Option<Value> {
    let first = *values.first()?;
    match first {
        Value::Number(_) if values.iter().all(|value| value.is_number()) => {
            let least = |a: &&&Value, b: &&&Value| {
                a.as_f64().partial_cmp(&b.as_f64()).unwrap_or(std::cmp::Ordering::Equal)
            };
            values.iter().min_by(least).map(|value| (*value).clone())
        }
        Value::Bool(_) if values.iter().all(|value| value.is_boolean()) => {
            Some(json!(values.iter().all(|value| **value == json!(true))))
        }
        Value::Object(_) if values.iter().all(|value| value.is_object()) => {
            let values: Vec<_> = values.iter().copied().map(Some).collect();
            Some(Value::Object(objects(&values)))
        }
        Value::Array(items) => {
            let lists: Vec<_> = values.iter().map(|value| value.as_array()).collect::<Option<_>>()?;
            if lists.iter().any(|list| list.len() != items.len()) {
                return None;
            }
            let at =
                |index: usize| shaped(&lists.iter().filter_map(|list| list.get(index)).collect::<Vec<_>>());
            (0..items.len()).map(at).collect::<Option<Vec<_>>>().map(Value::Array)
        }
        _ => values.iter().all(|value| *value == first).then(|| first.clone()),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn run(group: &str, plural: &str, statuses: &[Value]) -> Value {
        let name = |at: usize| ClusterName::from(format!("c{at}"));
        let report = |(at, status)| (name(at), (!Value::is_null(status)).then_some(status));
        let reports: Reports = statuses.iter().enumerate().map(report).collect();
        aggregate(&GroupResource::new(group, plural), &reports).unwrap_or(Value::Null)
    }

    #[test]
    fn ks_169_the_worked_example() {
        let atlas = json!({"replicas": 3, "readyReplicas": 3, "availableReplicas": 3, "updatedReplicas": 3,
            "observedGeneration": 2, "conditions": [{"type": "Available", "status": "True",
            "lastTransitionTime": "2026-01-01T00:00:00Z", "reason": "MinimumReplicasAvailable", "message": "ok"}]});
        let boreas = json!({"replicas": 3, "updatedReplicas": 3, "unavailableReplicas": 3, "observedGeneration": 1,
            "conditions": [{"type": "Available", "status": "False", "lastTransitionTime": "2026-01-02T00:00:00Z",
            "reason": "MinimumReplicasUnavailable", "message": "no"}]});
        let expected = json!({"replicas": 3, "updatedReplicas": 3, "readyReplicas": 0, "availableReplicas": 0,
            "unavailableReplicas": 3, "observedGeneration": 1, "conditions": [{"type": "Available", "status": "False",
            "lastTransitionTime": "2026-01-02T00:00:00Z", "reason": "MinimumReplicasUnavailable", "message": "no"}]});
        assert_eq!(run("apps", "deployments", &[atlas.clone(), boreas.clone()]), expected);
        assert_eq!(run("apps", "deployments", &[boreas, atlas]), expected, "KS-166");
    }

    #[test]
    fn ks_162_all_counters_of_a_kind_are_there() {
        for (plural, group, expected) in [
            (
                "deployments",
                "apps",
                json!({"replicas": 0, "updatedReplicas": 0, "availableReplicas": 0, "readyReplicas": 0,
                "observedGeneration": 0, "unavailableReplicas": 0}),
            ),
            (
                "replicasets",
                "apps",
                json!({"replicas": 0, "fullyLabeledReplicas": 0, "readyReplicas": 0, "availableReplicas": 0,
                "observedGeneration": 0}),
            ),
            (
                "daemonsets",
                "apps",
                json!({"currentNumberScheduled": 0, "desiredNumberScheduled": 0, "numberReady": 0,
                "observedGeneration": 0, "updatedNumberScheduled": 0, "numberAvailable": 0, "numberMisscheduled": 0}),
            ),
            (
                "statefulsets",
                "apps",
                json!({"replicas": 0, "readyReplicas": 0, "currentReplicas": 0, "updatedReplicas": 0,
                "availableReplicas": 0, "observedGeneration": 0}),
            ),
            ("jobs", "batch", json!({"active": 0, "succeeded": 0, "failed": 0})),
        ] {
            assert_eq!(run(group, plural, &[json!({"x": 1}), json!({})]), expected, "{plural}");
        }
        assert_eq!(
            run(
                "apps",
                "daemonsets",
                &[json!({"numberReady": 2, "numberMisscheduled": 1}), json!({"numberReady": 1})]
            )["numberMisscheduled"],
            json!(1)
        );
    }

    #[test]
    fn ks_160_who_reports_nothing_counts_as_zero_and_unknown() {
        let one = json!({"readyReplicas": 3, "unavailableReplicas": 1,
            "conditions": [{"type": "Available", "status": "True"}]});
        let found = run("apps", "deployments", &[one, Value::Null]);
        assert_eq!((&found["readyReplicas"], &found["unavailableReplicas"]), (&json!(0), &json!(1)));
        assert_eq!(found["conditions"], json!([{"type": "Available", "status": "Unknown"}]));
        assert_eq!(run("apps", "deployments", &[Value::Null, Value::Null]), Value::Null);
    }

    #[test]
    fn ks_161_an_absent_counter_is_zero() {
        let found =
            run("apps", "replicasets", &[json!({"readyReplicas": 3}), json!({"observedGeneration": 1})]);
        assert_eq!(found["readyReplicas"], json!(0));
    }

    #[test]
    fn ks_163_conditions_have_three_values() {
        let entry = |status: &str| json!({"conditions": [{"type": "Ready", "status": status}]});
        for (statuses, expected) in [
            (&["True", "True"][..], "True"),
            (&["True", "False"], "False"),
            (&["Unknown", "False"], "False"),
            (&["True", "Unknown"], "Unknown"),
            (&["Unknown", "Unknown"], "Unknown"),
        ] {
            let reports: Vec<Value> = statuses.iter().map(|status| entry(status)).collect();
            let found = run("example.org", "things", &reports);
            assert_eq!(found["conditions"][0]["status"], json!(expected), "{statuses:?}");
        }
        let found = run("example.org", "things", &[entry("True"), json!({"conditions": []})]);
        assert_eq!(found["conditions"][0]["status"], json!("Unknown"), "missing");
        let timed = |type_: &str, status: &str, time: &str, reason: &str| json!({"type": type_, "status": status, "lastTransitionTime": time, "reason": reason});
        let found = run(
            "apps",
            "statefulsets",
            &[
                json!({"conditions": [timed("B", "True", "2026-01-01T00:00:00Z", "b1"), timed("A", "True", "2026-01-03T00:00:00Z", "a1")]}),
                json!({"conditions": [timed("A", "True", "2026-01-03T00:00:00Z", "a2"), timed("B", "True", "2026-01-02T00:00:00Z", "b2")]}),
            ],
        );
        let expected = json!([
            timed("A", "True", "2026-01-03T00:00:00Z", "a1"),
            timed("B", "True", "2026-01-02T00:00:00Z", "b2")
        ]);
        assert_eq!(found["conditions"], expected, "sorted; the latest, the first of equally late ones");
    }

    #[test]
    fn ks_164_what_tells_of_trouble_is_taken_as_it_is() {
        let stuck = json!({"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded",
            "lastUpdateTime": "2026-01-01T00:00:00Z"});
        let fine = json!({"type": "Progressing", "status": "False", "reason": "Other", "lastTransitionTime": "2027-01-01T00:00:00Z"});
        let reports = [json!({"conditions": [fine]}), json!({"conditions": [stuck]})];
        assert_eq!(run("apps", "deployments", &reports)["conditions"], json!([stuck]));
        let failed = json!({"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate"});
        let not = json!({"type": "ReplicaFailure", "status": "False"});
        let reports = [json!({"conditions": [not]}), json!({"conditions": [failed]})];
        assert_eq!(run("apps", "replicasets", &reports)["conditions"], json!([failed]));
    }

    #[test]
    fn ks_165_other_kinds_go_by_the_shape_of_values() {
        let one = json!({"phase": "Up", "n": 3, "x": 1.5, "ok": true, "mixed": 1, "only": 1, "same": [1, "a"],
            "short": [1], "differ": ["a"], "in": {"a": 2, "b": 1}, "observedGeneration": 4, "none": null});
        let two = json!({"phase": "Down", "n": 2, "x": 2, "ok": false, "mixed": "1", "same": [0, "a"],
            "short": [1, 2], "differ": ["b"], "in": {"a": 1}, "observedGeneration": 3, "none": null});
        assert_eq!(
            run("example.org", "things", &[one, two]),
            json!({"n": 2, "x": 1.5, "ok": false, "same": [0, "a"], "in": {"a": 1}, "observedGeneration": 3, "none": null})
        );
    }

    fn any_json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            (-3i64..4).prop_map(Value::from),
            "[a-c]".prop_map(Value::from),
        ];
        leaf.prop_recursive(3, 24, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
                prop::collection::btree_map("[a-d]|conditions|type|status", inner, 0..4)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        /// KS-166, KS-199: any reports in any order give the same result, and equal reports keep their
        /// numbers.
        #[test]
        fn ks_166_order_does_not_matter(mut statuses in prop::collection::vec(any_json(), 1..4), n in 0i64..9) {
            for (group, plural) in [("example.org", "things"), ("apps", "deployments")] {
                let forth = run(group, plural, &statuses);
                statuses.reverse();
                let back = run(group, plural, &statuses);
                // Texts of conditions may come from the first of several WECs; nothing else depends on the
                // order.
                prop_assert_eq!(without_texts(&forth), without_texts(&back));
                let same = json!({"readyReplicas": n});
                prop_assert_eq!(&run(group, plural, &[same.clone(), same])["readyReplicas"], &json!(n));
            }
        }
    }

    fn without_texts(value: &Value) -> Value {
        match value {
            Value::Object(map) => {
                let kept = map.iter().filter(|(key, _)| *key != "reason" && *key != "message");
                Value::Object(kept.map(|(key, value)| (key.clone(), without_texts(value))).collect())
            }
            Value::Array(items) => items.iter().map(without_texts).collect(),
            other => other.clone(),
        }
    }
}
