//! Prometheus metrics of a process. The names, labels and buckets are those of the Go programs (KS-220,
//! KS-223 … KS-225), so that dashboards and alerts made for those keep working.
//!
//! A process creates one [`Metrics`] where its parts are wired together, and passes it to every part that
//! counts:
//!
//! ```
//! # use kubestellar_runtime as runtime;
//! use runtime::{Queue, metrics::Metrics};
//!
//! let metrics = Metrics::new("1.2.3");
//! let queue: Queue<String> = Queue::default().observed(metrics.queue("Binding-wds1"));
//! let wecs = metrics.gauge("kubestellar_transport_controller_wecs", "number of inventory objects");
//! wecs.set(2);
//! queue.add("a".into());
//! assert!(metrics.text().contains("workqueue_depth{name=\"Binding-wds1\"} 1"));
//! ```
//!
//! The client that [`crate::calls::observed`] returns counts its requests. Clones share the metrics.
//! `Metrics::default()` is for callers that do not serve metrics.

mod labelled;
mod process;
mod queue;
mod requests;

use std::{fmt, hash::Hash, sync::Arc};

use parking_lot::Mutex;
use prometheus_client::{
    encoding::{EncodeLabelSet, text},
    metrics::family::Family,
    registry::{Metric, Registry},
};

pub use labelled::{Counters, Gauges, Histograms, Labelled};
pub use prometheus_client::metrics::{counter::Counter, gauge::Gauge, histogram::Histogram};
pub use queue::{QueueMetrics, WorkTimer};
pub use requests::RequestMetrics;

/// The metrics of a process.
#[derive(Clone)]
pub struct Metrics(Arc<Inner>);

struct Inner {
    registry: Mutex<Registry>,
    queues: queue::Families,
    requests: requests::Families,
    leading: Family<Name, Gauge>,
}

/// The label `name`, which is the only one.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Name {
    name: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Build {
    version: String,
}

/// Histograms by labels, all with the same buckets.
type Timings<L> = Family<L, Histogram, fn() -> Histogram>;

/// Creates a metric or family and registers it.
fn shown<M: Metric + Clone + Default>(registry: &mut Registry, name: &str, help: &str) -> M {
    let metric = M::default();
    registry.register(name, help, metric.clone());
    metric
}

/// Creates a family of histograms and registers it.
fn timed<L: EncodeLabelSet + Clone + Eq + Hash + fmt::Debug + Send + Sync + 'static>(
    registry: &mut Registry,
    name: &str,
    help: &str,
    buckets: fn() -> Histogram,
) -> Timings<L> {
    let family = Family::new_with_constructor(buckets);
    registry.register(name, help, family.clone());
    family
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Metrics")
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new("")
    }
}

impl Metrics {
    /// Registers the families that every process has, for a program of this version.
    pub fn new(version: &str) -> Self {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(process::Process));
        let build = Family::<Build, Gauge>::default();
        build.get_or_create(&Build { version: version.to_owned() }).set(1);
        registry.register("kubestellar_build_info", "The version that runs", build);
        let leading = "1 while this process holds the Lease of this name";
        let leading = shown(&mut registry, "leader_election_master_status", leading);
        let queues = queue::Families::registered(&mut registry);
        let requests = requests::Families::registered(&mut registry);
        Self(Arc::new(Inner { registry: Mutex::new(registry), queues, requests, leading }))
    }

    /// Returns the metrics of a work queue of this name. Two queues of the same name are counted together.
    pub fn queue(&self, name: &str) -> QueueMetrics {
        self.0.queues.of(name)
    }

    /// Removes the metrics of a work queue from the output. Later counts of that queue are not visible.
    pub fn forget_queue(&self, name: &str) {
        self.0.queues.forget(name);
    }

    /// Returns the metrics of a client. `host` is the host of its URL. With a `space`, calls to resources are
    /// also counted in KubeStellar's own family (KS-220).
    pub fn requests(&self, host: &str, space: Option<&str>) -> RequestMetrics {
        self.0.requests.of(host, space)
    }

    /// A gauge that is 1 while the process leads by the Lease of this name, and 0 otherwise.
    pub fn leading(&self, lease: &str) -> Gauge {
        self.0.leading.get_or_create_owned(&Name { name: lease.to_owned() })
    }

    /// Registers a gauge without labels. A second call registers a second gauge, so the caller must keep the
    /// result.
    pub fn gauge(&self, name: &str, help: &str) -> Gauge {
        shown(&mut self.0.registry.lock(), name, help)
    }

    /// Registers a histogram without labels. `buckets` are upper bounds; `+Inf` is added.
    pub fn histogram(&self, name: &str, help: &str, buckets: &[f64]) -> Histogram {
        let histogram = Histogram::new(buckets.iter().copied());
        self.register(name, help, histogram.clone());
        histogram
    }

    /// Registers counters with one label. The name must not end in `_total`.
    pub fn counters(&self, name: &str, help: &str, label: &'static str) -> Counters {
        let (shown, family) = Labelled::counters(label);
        self.register(name, help, family);
        shown
    }

    /// Registers gauges with one label.
    pub fn gauges(&self, name: &str, help: &str, label: &'static str) -> Gauges {
        let (shown, family) = Labelled::gauges(label);
        self.register(name, help, family);
        shown
    }

    /// Registers histograms with one label. `buckets` are upper bounds; `+Inf` is added.
    pub fn histograms(&self, name: &str, help: &str, label: &'static str, buckets: &[f64]) -> Histograms {
        let (shown, family) = Labelled::histograms(label, buckets);
        self.register(name, help, family);
        shown
    }

    /// Registers a metric or family of the caller. The name of a counter must not end in `_total`.
    pub fn register(&self, name: &str, help: &str, metric: impl Metric) {
        self.0.registry.lock().register(name, help, metric);
    }

    /// Returns all values in the OpenMetrics text format.
    pub fn openmetrics(&self) -> String {
        self.0.queues.refresh();
        let mut written = String::new();
        // Writing into a String does not fail.
        let _ = text::encode(&mut written, &self.0.registry.lock());
        written
    }

    /// Returns all values in the older Prometheus text format, which `promhttp` uses by default.
    pub fn text(&self) -> String {
        prometheus(&self.openmetrics())
    }
}

/// Converts OpenMetrics text. OpenMetrics declares the family of a counter without `_total`, the older format
/// declares it with `_total`; OpenMetrics also ends with an end mark.
fn prometheus(openmetrics: &str) -> String {
    let counters: Vec<&str> = openmetrics
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE ")?.strip_suffix(" counter"))
        .collect();
    let mut written = String::with_capacity(openmetrics.len());
    for line in openmetrics.lines().filter(|line| *line != "# EOF") {
        let mut words = line.splitn(4, ' ');
        match (words.next(), words.next(), words.next(), words.next()) {
            (Some("#"), Some(what @ ("HELP" | "TYPE")), Some(name), Some(rest))
                if counters.contains(&name) =>
            {
                written.push_str(&format!("# {what} {name}_total {rest}"));
            }
            _ => written.push_str(line),
        }
        written.push('\n');
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;

    /// KS-225: a process shows its processor time, its memory and its version.
    #[test]
    fn ks_225_process_and_build() {
        let text = Metrics::new("9.8.7").text();
        assert!(text.contains("kubestellar_build_info{version=\"9.8.7\"} 1"), "{text}");
        for name in ["process_cpu_seconds_total", "process_resident_memory_bytes", "process_open_fds"] {
            let sample = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
            assert!(sample.is_some_and(|value| value.parse::<f64>().is_ok()), "{name} in {text}");
        }
        assert!(text.contains("# TYPE process_cpu_seconds_total counter"), "{text}");
    }

    /// The metric of a label value is shown from its first use until it is forgotten.
    #[test]
    fn metrics_with_one_label() {
        let metrics = Metrics::new("1");
        let (ends, held) = (metrics.counters("ends", "h", "result"), metrics.gauges("held", "h", "state"));
        let took = metrics.histograms("took_seconds", "h", "result", &[1.0, 2.0]);
        assert!(!metrics.text().contains("result="), "nothing yet");
        ends.of("success").inc();
        ends.of("success").inc();
        held.of("open").set(3);
        took.of("success").observe(1.5);
        let text = metrics.text();
        for line in [
            "ends_total{result=\"success\"} 2",
            "held{state=\"open\"} 3",
            "took_seconds_bucket{le=\"1.0\",result=\"success\"} 0",
            "took_seconds_count{result=\"success\"} 1",
        ] {
            assert!(text.lines().any(|it| it == line), "no {line} in {text}");
        }
        held.forget("open");
        assert!(!metrics.text().contains("held{"));
    }

    /// SP-137: both text formats.
    #[test]
    fn sp_137_counters_in_both_formats() {
        let metrics = Metrics::new("1");
        metrics.queue("q").added();
        let (new, old) = (metrics.openmetrics(), metrics.text());
        assert!(new.contains("# TYPE workqueue_adds counter") && new.ends_with("# EOF\n"), "{new}");
        assert!(old.contains("# TYPE workqueue_adds_total counter") && !old.contains("# EOF"), "{old}");
        for text in [new, old] {
            assert!(text.contains("workqueue_adds_total{name=\"q\"} 1"), "{text}");
        }
    }
}
