//! The validated and compiled StatusCollectors, and the condition about them on Bindings (KS-170 … KS-173).

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use apis::{
    Condition,
    condition::{REASON_ERROR, REASON_SUCCESS, STATUS_COLLECTORS_AVAILABLE},
    control::{StatusCollector, StatusCollectorSpec, StatusCollectorStatus, bounded_errors},
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use parking_lot::Mutex;

use super::query::{Query, Verdict};

/// Every existing StatusCollector, compiled once for each spec.
#[derive(Default)]
pub(super) struct Collectors(Mutex<BTreeMap<Box<str>, Known>>);

struct Known {
    spec: StatusCollectorSpec,
    query: Option<Arc<Query>>,
    errors: Vec<String>,
}

impl Collectors {
    /// Stores the present state of a StatusCollector; `None` if it was deleted. Returns true if that changes
    /// query results.
    pub(super) fn put(&self, name: &str, now: Option<&StatusCollector>) -> bool {
        let Some(now) = now else {
            return self.0.lock().remove(name).is_some_and(|known| known.query.is_some());
        };
        if self.0.lock().get(name).is_some_and(|known| known.spec == now.spec) {
            return false;
        }
        let Verdict { query, errors } = Query::compile(&now.spec);
        let known = Known { spec: now.spec.clone(), query: query.map(Arc::new), errors };
        let valid = known.query.is_some();
        let old = self.0.lock().insert(name.into(), known);
        valid || old.is_some_and(|old| old.query.is_some())
    }

    /// Returns the status that a StatusCollector should have; `None` if it has that status.
    pub(super) fn status(&self, name: &str, now: &StatusCollector) -> Option<StatusCollectorStatus> {
        let errors = bounded_errors(self.0.lock().get(name)?.errors.clone());
        let wanted =
            StatusCollectorStatus { observed_generation: now.metadata.generation.unwrap_or(0), errors };
        (now.status.as_ref() != Some(&wanted)).then_some(wanted)
    }

    /// Returns the valid StatusCollectors among those requested.
    pub(super) fn queries(&self, asked: &BTreeSet<Box<str>>) -> BTreeMap<Box<str>, Arc<Query>> {
        let known = self.0.lock();
        let valid = |name: &str| Some((name.into(), known.get(name)?.query.clone()?));
        asked.iter().filter_map(|name| valid(name)).collect()
    }

    /// Returns the requested StatusCollectors that do not exist or are invalid (KS-171), sorted.
    pub(super) fn missing(&self, asked: &BTreeSet<Box<str>>) -> Vec<String> {
        let known = self.0.lock();
        let valid = |name: &str| known.get(name).is_some_and(|known| known.query.is_some());
        asked.iter().filter(|name| !valid(name)).map(ToString::to_string).collect()
    }
}

/// Returns the condition for these missing StatusCollectors (sorted) (KS-172).
pub(super) fn availability(missing: &[String], now: Time) -> Condition {
    let (status, reason, message) = if missing.is_empty() {
        (true, REASON_SUCCESS, "All StatusCollector(s) are available".to_owned())
    } else {
        (false, REASON_ERROR, format!("Missing StatusCollector(s) [{}]", missing.join(" ")))
    };
    Condition::new(STATUS_COLLECTORS_AVAILABLE, status, reason, message, now)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn ks_172_missing_collectors_are_named() {
        let now = Time(k8s_openapi::jiff::Timestamp::UNIX_EPOCH);
        let all = availability(&[], now.clone());
        assert_eq!((all.status.as_str(), all.reason.as_str()), ("True", "ReconcileSuccess"));
        let some = availability(&["a".into(), "b".into()], now);
        assert_eq!(
            (some.status.as_str(), some.reason.as_str(), some.message.as_str()),
            ("False", "ReconcileError", "Missing StatusCollector(s) [a b]")
        );
    }

    fn collector(filter: &str, generation: i64) -> StatusCollector {
        serde_json::from_value(json!({
            "metadata": {"name": "n", "generation": generation},
            "spec": {"filter": filter, "select": [{"name": "a", "def": "1"}], "limit": 1},
        }))
        .unwrap()
    }

    /// KS-173: creation, change, deletion, and changes that make no difference.
    #[test]
    fn ks_171_an_invalid_collector_is_as_good_as_none() {
        let (collectors, asked) = (Collectors::default(), ["n".into(), "b".into()].into());
        assert_eq!(collectors.missing(&asked), ["b", "n"]);
        assert!(!collectors.put("n", Some(&collector("1 +", 1))), "was missing, and is as good as that");
        assert_eq!(collectors.missing(&asked), ["b", "n"]);
        assert!(collectors.queries(&asked).is_empty());
        assert!(collectors.put("n", Some(&collector("true", 2))));
        assert_eq!(collectors.missing(&asked), ["b"]);
        let query = collectors.queries(&asked)["n"].clone();
        assert!(!collectors.put("n", Some(&collector("true", 3))), "the spec is the same");
        assert!(Arc::ptr_eq(&query, &collectors.queries(&asked)["n"]));
        assert!(collectors.put("n", Some(&collector("false", 4))));
        assert!(collectors.put("n", Some(&collector("1 +", 5))));
        assert!(!collectors.put("n", None));
        assert_eq!(collectors.missing(&asked), ["b", "n"]);
    }

    #[test]
    fn ks_170_errors_and_generation_stand_in_the_status() {
        let collectors = Collectors::default();
        let mut one = collector("1 +", 7);
        collectors.put("n", Some(&one));
        let status = collectors.status("n", &one).unwrap();
        assert_eq!((status.observed_generation, status.errors.len()), (7, 1));
        one.status = Some(status);
        assert_eq!(collectors.status("n", &one), None, "nothing to write");
        let better = StatusCollector { status: one.status, ..collector("true", 8) };
        collectors.put("n", Some(&better));
        assert_eq!(collectors.status("n", &better).unwrap().errors, [""; 0], "cleared");
    }
}
