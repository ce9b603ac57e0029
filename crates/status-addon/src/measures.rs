//! The metrics of the agent's work (OCM-164).

use std::collections::HashMap;

use parking_lot::Mutex;
use runtime::metrics::{Counters, Histogram, Metrics};
use tokio::time::Instant;

use crate::decide::Source;

/// Bucket bounds in seconds: from the delay of an embedded inventory space to that of a slow line.
const SECONDS: [f64; 12] = [0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0, 120.0];

/// The metric families, and the time of the first unreported change of each object.
pub(crate) struct Measures {
    writes: Counters,
    lag: Histogram,
    noted: Mutex<HashMap<Source, Instant>>,
}

impl Measures {
    pub(crate) fn new(metrics: &Metrics) -> Self {
        let help = "Requests that write or delete a WorkStatus";
        let writes = metrics.counters("ksstatus_workstatus_writes", help, "result");
        let help = "Time from a change of a delivered object to its WorkStatus";
        let lag = metrics.histogram("ksstatus_lag_seconds", help, &SECONDS);
        Self { writes, lag, noted: Mutex::default() }
    }

    /// An object changed.
    pub(crate) fn noted(&self, source: &Source, now: Instant) {
        let mut noted = self.noted.lock();
        if !noted.contains_key(source) {
            noted.insert(source.clone(), now);
        }
    }

    /// The processing of an object begins; it covers all changes noted so far. Returns the time of the first
    /// of them.
    pub(crate) fn begins(&self, source: &Source) -> Option<Instant> {
        self.noted.lock().remove(source)
    }

    /// The processing must be repeated.
    pub(crate) fn failed(&self, source: &Source, since: Option<Instant>) {
        if let Some(since) = since {
            self.noted.lock().insert(source.clone(), since);
        }
    }

    /// Everything that the change requires is written.
    pub(crate) fn settled(&self, since: Option<Instant>, now: Instant) {
        if let Some(since) = since {
            self.lag.observe(now.saturating_duration_since(since).as_secs_f64());
        }
    }

    /// A request to the inventory space ended.
    pub(crate) fn wrote<T>(&self, outcome: &Result<T, kube::Error>) {
        let result = match outcome {
            Ok(_) => "success",
            Err(error) if runtime::failure::is_clash(error) => "conflict",
            Err(_) => "error",
        };
        self.writes.of(result).inc();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use runtime::rest::Gvr;
    use std::time::Duration;

    #[test]
    fn ocm_164_lag_counts_from_the_first_change() {
        let metrics = Metrics::default();
        let (measures, start) = (Measures::new(&metrics), Instant::now());
        let source =
            Source { gvr: Gvr::new("apps", "v1", "deployments"), namespace: "n".into(), name: "a".into() };
        let after = |seconds| start + Duration::from_secs(seconds);
        measures.noted(&source, start);
        measures.noted(&source, after(1));
        let since = measures.begins(&source);
        measures.failed(&source, since);
        measures.noted(&source, after(2));
        let since = measures.begins(&source);
        measures.settled(since, after(3));
        measures.settled(measures.begins(&source), after(9));
        measures.wrote(&Ok::<(), kube::Error>(()));
        let text = metrics.text();
        for line in [
            "ksstatus_lag_seconds_sum 3.0",
            "ksstatus_lag_seconds_count 1",
            "ksstatus_workstatus_writes_total{result=\"success\"} 1",
        ] {
            assert!(text.lines().any(|it| it == line), "no {line} in {text}");
        }
    }
}
