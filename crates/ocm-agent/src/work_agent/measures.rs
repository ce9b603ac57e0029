//! The metrics of the work agent (OCM-164).

use std::{collections::HashMap, time::Duration};

use apis::ocm::{AppliedManifestWork, work::ManifestCondition};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use runtime::metrics::{Gauge, Gauges, Histogram, Histograms, Metrics};
use tokio::time::Instant;

use super::{conditions::Applied, outcome::Done};

/// Bucket bounds in seconds: from the delay of an embedded cluster to that of a slow line.
const SECONDS: [f64; 12] = [0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0, 120.0];
/// The values of the label `state` of `ocm_manifests`.
const STATES: [&str; 3] = ["available", "unavailable", "failed"];

/// The metric families and the state they need: for each work the time of its first unreported change, and
/// three counts.
pub(crate) struct Measures {
    apply: Histograms,
    lag: Histogram,
    manifests: Gauges,
    evictions: Gauge,
    since: Since,
    counted: HashMap<String, [i64; 3]>,
}

/// The time of the first unreported change of a work or of its objects.
#[derive(Default)]
struct Since {
    noted: HashMap<String, Instant>,
    underway: HashMap<String, Instant>,
}

impl Measures {
    pub(crate) fn new(metrics: &Metrics) -> Self {
        let help = "Time of a pass over a ManifestWork that applies what differs";
        let apply = metrics.histograms("ocm_manifestwork_apply_seconds", help, "result", &SECONDS);
        let help = "Time from a change of a ManifestWork or of its objects to the report about it";
        let lag = metrics.histogram("ocm_manifestwork_status_lag_seconds", help, &SECONDS);
        let help = "Manifests of all ManifestWorks by what was last reported of them";
        let manifests = metrics.gauges("ocm_manifests", help, "state");
        for state in STATES {
            manifests.of(state).set(0);
        }
        let help = "AppliedManifestWorks whose ManifestWork is gone and whose grace period runs";
        let evictions = metrics.gauge("ocm_eviction_pending", help);
        let (since, counted) = (Since::default(), HashMap::new());
        Self { apply, lag, manifests, evictions, since, counted }
    }

    /// A change that may have to be reported.
    pub(crate) fn noted(&mut self, work: &str, now: Instant) {
        let since = &mut self.since;
        if !since.noted.contains_key(work) {
            since.noted.insert(work.to_owned(), now);
        }
    }

    /// The processing of the work begins; it covers all changes noted so far.
    pub(crate) fn begins(&mut self, work: &str) {
        let since = &mut self.since;
        if let Some(noted) = since.noted.remove(work) {
            // A change that an earlier run failed to report still waits.
            since.underway.entry(work.to_owned()).or_insert(noted);
        }
    }

    /// The processing ended with a report, or with nothing to report.
    pub(crate) fn reported(&mut self, work: &str, wrote: bool, now: Instant) {
        let noted = self.since.underway.remove(work);
        if let Some(noted) = noted.filter(|_| wrote) {
            self.lag.observe(now.saturating_duration_since(noted).as_secs_f64());
        }
    }

    /// A pass that applies has ended.
    pub(crate) fn applied(&self, done: &[Done], took: Duration) {
        let failed = done.iter().any(|done| done.applied != Applied::Complete);
        let result = if failed { "failure" } else { "success" };
        self.apply.of(result).observe(took.as_secs_f64());
    }

    /// A pass that applies was aborted.
    pub(crate) fn broke_off(&self, took: Duration) {
        self.apply.of("error").observe(took.as_secs_f64());
    }

    /// Counts the manifests in a work's status.
    pub(crate) fn count(&mut self, work: &str, manifests: &[ManifestCondition]) {
        let mut new = [0; 3];
        for manifest in manifests {
            if let Some(count) = new.get_mut(state(&manifest.conditions)) {
                *count += 1;
            }
        }
        let old = self.counted.insert(work.to_owned(), new).unwrap_or_default();
        self.shift(old, new);
    }

    fn shift(&self, old: [i64; 3], new: [i64; 3]) {
        for ((state, old), new) in STATES.iter().zip(old).zip(new) {
            if old != new {
                self.manifests.of(state).inc_by(new - old);
            }
        }
    }

    /// The work is gone.
    pub(crate) fn forget(&mut self, work: &str) {
        let old = self.counted.remove(work).unwrap_or_default();
        self.shift(old, [0; 3]);
        let since = &mut self.since;
        since.noted.remove(work);
        since.underway.remove(work);
    }

    /// An AppliedManifestWork changed.
    pub(crate) fn eviction(&self, old: Option<&AppliedManifestWork>, new: Option<&AppliedManifestWork>) {
        match (old.is_some_and(is_pending), new.is_some_and(is_pending)) {
            (false, true) => drop(self.evictions.inc()),
            (true, false) => drop(self.evictions.dec()),
            _ => {}
        }
    }
}

fn is_pending(applied: &AppliedManifestWork) -> bool {
    applied.status.as_ref().is_some_and(|status| status.eviction_start_time.is_some())
}

/// Index of the state in [`STATES`].
fn state(conditions: &[Condition]) -> usize {
    let is = |type_: &str, status: &str| conditions.iter().any(|c| c.type_ == type_ && c.status == status);
    match (is("Applied", "False"), is("Available", "True")) {
        (true, _) => 2,
        (false, true) => 0,
        (false, false) => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn value(metrics: &Metrics, name: &str) -> String {
        let text = metrics.text();
        let line =
            text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ').map(str::to_owned));
        line.unwrap_or_else(|| panic!("no {name} in {text}"))
    }

    fn entry(applied: &str, available: &str) -> ManifestCondition {
        let condition = |type_: &str, status: &str| {
            json!({"type": type_, "status": status, "reason": "R", "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z"})
        };
        let all = [condition("Applied", applied), condition("Available", available)];
        serde_json::from_value(json!({"resourceMeta": {}, "conditions": all})).unwrap()
    }

    #[test]
    fn ocm_164_manifests_by_state() {
        let metrics = Metrics::default();
        let mut measures = Measures::new(&metrics);
        assert_eq!(value(&metrics, "ocm_manifests{state=\"failed\"}"), "0", "shown before there is any");
        measures.count("a", &[entry("True", "True"), entry("True", "False"), entry("False", "True")]);
        measures.count("b", &[entry("True", "True")]);
        let seen = || STATES.map(|state| value(&metrics, &format!("ocm_manifests{{state=\"{state}\"}}")));
        assert_eq!(seen(), ["2", "1", "1"]);
        measures.count("a", &[entry("True", "True"), entry("True", "Unknown")]);
        assert_eq!(seen(), ["2", "1", "0"]);
        measures.forget("a");
        assert_eq!(seen(), ["1", "0", "0"]);
    }

    /// A change is measured once, from its first observation to the report that covers it.
    #[test]
    fn ocm_164_lag_of_reports() {
        let metrics = Metrics::default();
        let (mut measures, start) = (Measures::new(&metrics), Instant::now());
        let after = |seconds| start + Duration::from_secs(seconds);
        measures.noted("a", start);
        measures.noted("a", after(2));
        measures.begins("a");
        measures.noted("a", after(3));
        measures.begins("a");
        measures.reported("a", true, after(4));
        assert_eq!(value(&metrics, "ocm_manifestwork_status_lag_seconds_sum"), "4.0");
        measures.noted("a", after(5));
        measures.begins("a");
        measures.reported("a", false, after(9));
        measures.reported("a", true, after(10));
        assert_eq!(value(&metrics, "ocm_manifestwork_status_lag_seconds_count"), "1", "nothing to tell");
    }

    #[test]
    fn ocm_164_pending_evictions() {
        let metrics = Metrics::default();
        let measures = Measures::new(&metrics);
        let pending: AppliedManifestWork = serde_json::from_value(json!({"metadata": {}, "spec": {},
            "status": {"evictionStartTime": "2026-01-01T00:00:00Z"}}))
        .unwrap();
        let kept = AppliedManifestWork::default();
        let steps = [
            (None, Some(&kept), "0"),
            (Some(&kept), Some(&pending), "1"),
            (Some(&pending), Some(&pending), "1"),
            (Some(&pending), None, "0"),
        ];
        for (old, new, count) in steps {
            measures.eviction(old, new);
            assert_eq!(value(&metrics, "ocm_eviction_pending"), count);
        }
    }
}
