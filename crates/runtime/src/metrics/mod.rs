//! Prometheus metrics of a process, with the names, labels and buckets that the Go programs have (KS-220, KS-223 …
//! KS-225), so that the dashboards and alerts made for those go on working.
//!
//! One [`Metrics`] per process, made where the process is wired up and handed to whatever counts:
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
//! Requests are counted by the client that [`crate::calls::observed`] makes. A clone counts into the same place;
//! `Metrics::default()` is for those who don't want to know.

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
pub use queue::{QueueMetrics, Working};
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

/// The one label `name`.
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

/// A new metric or family, which is shown from now on.
fn shown<M: Metric + Clone + Default>(registry: &mut Registry, name: &str, help: &str) -> M {
    let metric = M::default();
    registry.register(name, help, metric.clone());
    metric
}

/// A new family of histograms, which is shown from now on.
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
    /// The families of every process, for a program of this version.
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

    /// What a work queue of this name counts into. Two queues may share a name; they are then counted together.
    pub fn queue(&self, name: &str) -> QueueMetrics {
        self.0.queues.of(name)
    }

    /// Ends what is shown of a work queue. Whoever still counts into it is not seen.
    pub fn forget_queue(&self, name: &str) {
        self.0.queues.forget(name);
    }

    /// What a client counts into: `host` as in its URL; with a `space`, calls of resources are also counted as
    /// KubeStellar's own family does (KS-220).
    pub fn requests(&self, host: &str, space: Option<&str>) -> RequestMetrics {
        self.0.requests.of(host, space)
    }

    /// 1 while the process leads by the Lease of this name, else 0.
    pub fn leading(&self, lease: &str) -> Gauge {
        self.0.leading.get_or_create_owned(&Name { name: lease.to_owned() })
    }

    /// Adds a gauge without labels. Asked for twice, it is there twice: whoever makes it keeps it.
    pub fn gauge(&self, name: &str, help: &str) -> Gauge {
        shown(&mut self.0.registry.lock(), name, help)
    }

    /// Adds a histogram without labels. `+Inf` needs no bucket.
    pub fn histogram(&self, name: &str, help: &str, buckets: &[f64]) -> Histogram {
        let histogram = Histogram::new(buckets.iter().copied());
        self.register(name, help, histogram.clone());
        histogram
    }

    /// Adds counters told apart by one label. The name goes without `_total`.
    pub fn counters(&self, name: &str, help: &str, label: &'static str) -> Counters {
        let (shown, family) = Labelled::counters(label);
        self.register(name, help, family);
        shown
    }

    /// Adds gauges told apart by one label.
    pub fn gauges(&self, name: &str, help: &str, label: &'static str) -> Gauges {
        let (shown, family) = Labelled::gauges(label);
        self.register(name, help, family);
        shown
    }

    /// Adds histograms told apart by one label. `+Inf` needs no bucket.
    pub fn histograms(&self, name: &str, help: &str, label: &'static str, buckets: &[f64]) -> Histograms {
        let (shown, family) = Labelled::histograms(label, buckets);
        self.register(name, help, family);
        shown
    }

    /// Adds a metric or a family of its own. A counter is given its name without `_total`.
    pub fn register(&self, name: &str, help: &str, metric: impl Metric) {
        self.0.registry.lock().register(name, help, metric);
    }

    /// All values in the OpenMetrics text format.
    pub fn openmetrics(&self) -> String {
        self.0.queues.refresh();
        let mut written = String::new();
        // Writing into a String does not fail.
        let _ = text::encode(&mut written, &self.0.registry.lock());
        written
    }

    /// All values in the older Prometheus text format, which is what `promhttp` answers by default.
    pub fn text(&self) -> String {
        prometheus(&self.openmetrics())
    }
}

/// OpenMetrics has the family of a counter without `_total`, the older format with it; and it ends with a mark.
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

    /// What a label tells apart is shown from the first time on, and no more once it is forgotten.
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
