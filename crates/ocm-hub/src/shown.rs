//! The hub's metrics (OCM-164).

use std::{collections::BTreeSet, time::Duration};

use parking_lot::Mutex;
use runtime::metrics::{Counters, Gauges, Histogram, Metrics};

/// Bucket bounds in seconds: around the usual lease duration of a minute, and the five minutes after which a
/// cluster counts as unreachable.
const AGES: [f64; 11] = [1.0, 5.0, 15.0, 30.0, 60.0, 75.0, 90.0, 120.0, 180.0, 300.0, 600.0];

/// The metrics.
pub(super) struct HubMetrics {
    available: Gauges,
    /// Clusters with a metric of their own.
    clusters: Mutex<BTreeSet<String>>,
    /// Most clusters with a metric of their own.
    most: usize,
    ages: Histogram,
    requests: Counters,
}

impl HubMetrics {
    pub(super) fn new(metrics: &Metrics, most: usize) -> Self {
        Self {
            available: metrics.gauges(
                "ocm_managedcluster_available",
                "1 while the cluster is available, else 0; of as many clusters as may be shown by themselves",
                "cluster",
            ),
            clusters: Mutex::default(),
            most,
            ages: metrics.histogram(
                "ocm_lease_age_seconds",
                "How old leases of clusters were when they were renewed",
                &AGES,
            ),
            requests: metrics.counters(
                "ocm_csr",
                "Certificate signing requests of clusters that the hub decided on",
                "result",
            ),
        }
    }

    /// Sets the availability of a cluster. A cluster beyond the limit gets its metric at its next change
    /// after another cluster is gone.
    pub(super) fn cluster(&self, name: &str, available: bool) {
        let mut clusters = self.clusters.lock();
        if !clusters.contains(name) {
            if clusters.len() >= self.most {
                return;
            }
            clusters.insert(name.to_owned());
        }
        self.available.of(name).set(i64::from(available));
    }

    pub(super) fn cluster_gone(&self, name: &str) {
        if self.clusters.lock().remove(name) {
            self.available.forget(name);
        }
    }

    pub(super) fn lease_renewed(&self, age: Duration) {
        self.ages.observe(age.as_secs_f64());
    }

    pub(super) fn request(&self, result: &str) {
        self.requests.of(result).inc();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// OCM-164: there are metrics by cluster, for a limited number of clusters.
    #[test]
    fn ocm_164_what_a_hub_shows() {
        let metrics = Metrics::new("1");
        let hub_metrics = HubMetrics::new(&metrics, 2);
        hub_metrics.cluster("a", true);
        hub_metrics.cluster("b", true);
        hub_metrics.cluster("c", true);
        hub_metrics.cluster("b", false);
        hub_metrics.lease_renewed(Duration::from_secs(61));
        hub_metrics.request("approved");
        hub_metrics.request("approved");
        hub_metrics.request("refused");
        let text = metrics.text();
        let has = |text: &str, line: &str| text.lines().any(|have| have == line);
        for line in [
            "ocm_managedcluster_available{cluster=\"a\"} 1",
            "ocm_managedcluster_available{cluster=\"b\"} 0",
            "ocm_lease_age_seconds_bucket{le=\"60.0\"} 0",
            "ocm_lease_age_seconds_bucket{le=\"75.0\"} 1",
            "ocm_csr_total{result=\"approved\"} 2",
            "ocm_csr_total{result=\"refused\"} 1",
        ] {
            assert!(has(&text, line), "no {line} in {text}");
        }
        assert!(!text.contains("cluster=\"c\""), "{text}");
        hub_metrics.cluster_gone("a");
        hub_metrics.cluster_gone("c");
        hub_metrics.cluster("c", true);
        let text = metrics.text();
        assert!(
            !text.contains("cluster=\"a\"") && has(&text, "ocm_managedcluster_available{cluster=\"c\"} 1")
        );
    }
}
