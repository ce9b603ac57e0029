//! What is counted, in Prometheus' text form (MC-204 to MC-206). A controller's series go with the controller.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use parking_lot::Mutex;

use crate::hooks::{HookKind, HookMetrics};

/// Upper bounds of the duration's buckets, in seconds.
const BUCKETS: [f64; 11] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

/// Durations in buckets.
#[derive(Default)]
pub struct Histogram {
    buckets: [AtomicU64; BUCKETS.len()],
    count: AtomicU64,
    micros: AtomicU64,
}

impl Histogram {
    /// Counts a duration in seconds.
    pub fn observe(&self, seconds: f64) {
        for (bucket, _) in self.buckets.iter().zip(BUCKETS).filter(|(_, bound)| seconds <= *bound) {
            bucket.fetch_add(1, Ordering::Relaxed);
        }
        self.count.fetch_add(1, Ordering::Relaxed);
        self.micros.fetch_add((seconds * 1e6) as u64, Ordering::Relaxed);
    }
}

/// A hook as the metrics name it.
#[derive(Clone)]
struct Labelled {
    kind: HookKind,
    labels: String,
    metrics: Arc<HookMetrics>,
}

/// Numbers of a hosted controller, asked for when somebody looks.
#[derive(Clone, Debug, Default)]
pub struct Numbers {
    /// Items that wait.
    pub depth: u64,
    /// Items put into the queue.
    pub adds: u64,
    /// Items tried again.
    pub retries: u64,
    /// Runs by result.
    pub runs: BTreeMap<&'static str, u64>,
    /// Inputs, failed inputs and detached groups, of a MapController.
    pub map: Option<[u64; 3]>,
}

type Source = Arc<dyn Fn() -> Numbers + Send + Sync>;

/// The metrics of all hosted controllers of a process; a clone is the same.
#[derive(Clone, Default)]
pub struct Metrics(Arc<Mutex<BTreeMap<(&'static str, String), Entry>>>);

#[derive(Default)]
struct Entry {
    hooks: Vec<Labelled>,
    numbers: Option<Source>,
}

impl Metrics {
    /// Shows a hook's numbers until the controller goes.
    pub fn hook(
        &self,
        controller: (&'static str, &str),
        kind: HookKind,
        url: &str,
        metrics: Arc<HookMetrics>,
    ) {
        let (type_, name) = controller;
        let labels = format!(
            "url=\"{}\",controller_name=\"{}\",controller_type=\"{type_}\"",
            escaped(url),
            escaped(name)
        );
        let entry = Labelled { kind, labels, metrics };
        self.0.lock().entry((type_, name.to_owned())).or_default().hooks.push(entry);
    }

    /// Shows a controller's numbers until it goes.
    pub fn numbers(&self, controller: (&'static str, &str), source: Source) {
        self.0.lock().entry((controller.0, controller.1.to_owned())).or_default().numbers = Some(source);
    }

    /// Ends what is shown of a controller (MC-206).
    pub fn forget(&self, controller: (&'static str, &str)) {
        self.0.lock().remove(&(controller.0, controller.1.to_owned()));
    }

    /// Everything, in Prometheus' text form.
    pub fn text(&self) -> String {
        let entries = self.0.lock();
        let mut families: BTreeMap<String, (&'static str, String)> = BTreeMap::new();
        let mut say = |family: String, kind: &'static str, line: String| {
            let (_, lines) = families.entry(family).or_insert((kind, String::new()));
            lines.push_str(&line);
        };
        for ((type_, name), entry) in entries.iter() {
            for hook in &entry.hooks {
                hook.lines(&mut say);
            }
            if let Some(numbers) = entry.numbers.as_ref().map(|source| source()) {
                lines_of(type_, name, &numbers, &mut say);
            }
        }
        let mut text = String::new();
        for (family, (kind, lines)) in families {
            let _ = write!(text, "# HELP {family} Metacontroller.\n# TYPE {family} {kind}\n{lines}");
        }
        text
    }
}

impl Labelled {
    fn lines(&self, say: &mut impl FnMut(String, &'static str, String)) {
        let (hook, labels) = (self.kind.as_str(), &self.labels);
        let family = |rest: &str| format!("metacontroller_{hook}_{rest}");
        let name = family("requests_total");
        for (code, count) in self.metrics.requests.lock().iter() {
            let line = format!("{name}{{code=\"{code}\",{labels},method=\"post\"}} {count}\n");
            say(name.clone(), "counter", line);
        }
        let name = family("failures_total");
        for (reason, count) in self.metrics.failures.lock().iter() {
            say(name.clone(), "counter", format!("{name}{{{labels},reason=\"{reason}\"}} {count}\n"));
        }
        let name = family("in_flight_requests");
        let flying = self.metrics.in_flight.load(Ordering::Relaxed);
        say(name.clone(), "gauge", format!("{name}{{{labels}}} {flying}\n"));
        let (name, histogram) = (family("request_duration_histogram_seconds"), &self.metrics.duration);
        let mut lines = String::new();
        let count = histogram.count.load(Ordering::Relaxed);
        for (bound, bucket) in BUCKETS.iter().zip(&histogram.buckets) {
            let seen = bucket.load(Ordering::Relaxed);
            let _ = writeln!(lines, "{name}_bucket{{{labels},method=\"post\",le=\"{bound}\"}} {seen}");
        }
        let sum = histogram.micros.load(Ordering::Relaxed) as f64 / 1e6;
        let _ = writeln!(lines, "{name}_bucket{{{labels},method=\"post\",le=\"+Inf\"}} {count}");
        let _ = writeln!(lines, "{name}_sum{{{labels},method=\"post\"}} {sum}");
        let _ = writeln!(lines, "{name}_count{{{labels},method=\"post\"}} {count}");
        say(name, "histogram", lines);
    }
}

fn lines_of(type_: &str, name: &str, numbers: &Numbers, say: &mut impl FnMut(String, &'static str, String)) {
    let queue = escaped(&format!("{type_}-{name}"));
    for (family, kind, value) in [
        ("workqueue_depth", "gauge", numbers.depth),
        ("workqueue_adds_total", "counter", numbers.adds),
        ("workqueue_retries_total", "counter", numbers.retries),
    ] {
        say(family.into(), kind, format!("{family}{{name=\"{queue}\"}} {value}\n"));
    }
    let family = "controller_runtime_reconcile_total";
    let controller = match type_ {
        "MapController" => "map-metacontroller",
        "CompositeController" => "composite-metacontroller",
        _ => "decorator-metacontroller",
    };
    for (result, count) in &numbers.runs {
        let line = format!(
            "{family}{{controller=\"{controller}\",name=\"{}\",result=\"{result}\"}} {count}\n",
            escaped(name)
        );
        say(family.into(), "counter", line);
    }
    let map = [
        "metacontroller_map_inputs",
        "metacontroller_map_failed_inputs",
        "metacontroller_map_detached_groups",
    ];
    for (family, value) in map.into_iter().zip(numbers.map.into_iter().flatten()) {
        say(family.into(), "gauge", format!("{family}{{controller_name=\"{}\"}} {value}\n", escaped(name)));
    }
}

fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// MC-A-84, MC-204, MC-206: names and labels; a controller's series go with it.
    #[test]
    fn mc_a_84_series_have_the_documented_names() {
        let metrics = Metrics::default();
        let hook = Arc::new(HookMetrics::default());
        hook.requests.lock().insert(200, 3);
        hook.duration.observe(0.03);
        let mc = ("MapController", "mc1");
        metrics.hook(mc, HookKind::Map, "http://h/map", hook);
        metrics.numbers(mc, Arc::new(|| Numbers { depth: 2, map: Some([10, 1, 0]), ..Numbers::default() }));
        let text = metrics.text();
        for line in [
            "metacontroller_map_requests_total{code=\"200\",url=\"http://h/map\",controller_name=\"mc1\",controller_type=\"MapController\",method=\"post\"} 3",
            "# TYPE metacontroller_map_request_duration_histogram_seconds histogram",
            "workqueue_depth{name=\"MapController-mc1\"} 2",
            "metacontroller_map_inputs{controller_name=\"mc1\"} 10",
        ] {
            assert!(text.contains(line), "{line}\n{text}");
        }
        metrics.forget(mc);
        assert_eq!(metrics.text(), "");
    }
}
