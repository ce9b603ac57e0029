//! The metrics in Prometheus' text format (MC-204 to MC-206). A controller's series disappear with the
//! controller.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    sync::{Arc, atomic::Ordering},
};

use parking_lot::Mutex;

use runtime::metrics::QueueMetrics;

use crate::hooks::{HookKind, HookMetrics};

/// The labels of a hook.
#[derive(Clone)]
struct Labelled {
    kind: HookKind,
    labels: String,
    metrics: Arc<HookMetrics>,
}

/// The values of a hosted controller, read when the metrics are requested.
#[derive(Clone, Debug, Default)]
pub struct Numbers {
    /// Number of runs by result.
    pub runs: BTreeMap<&'static str, u64>,
    /// Inputs, failed inputs and detached groups of a MapController.
    pub map: Option<[u64; 3]>,
}

type Source = Arc<dyn Fn() -> Numbers + Send + Sync>;

/// The metrics of all hosted controllers of a process; clones share them.
#[derive(Clone, Default)]
pub struct Metrics {
    entries: Arc<Mutex<BTreeMap<(&'static str, String), Entry>>>,
    /// The metrics of the process, which include the queues.
    process: runtime::metrics::Metrics,
}

#[derive(Default)]
struct Entry {
    hooks: Vec<Labelled>,
    numbers: Option<Source>,
}

impl Metrics {
    /// Creates the metrics, without controllers.
    pub fn new(process: runtime::metrics::Metrics) -> Self {
        Self { entries: Arc::default(), process }
    }

    /// Returns the queue metrics of a controller; they disappear with it (MC-205).
    pub fn queue(&self, controller: (&'static str, &str)) -> QueueMetrics {
        self.process.queue(&queue_name(controller))
    }

    /// Returns all metrics of the process: those that every process has, then [`text`](Self::text).
    pub fn page(&self) -> String {
        // Computed first, because it updates the numbers of waiting items.
        let own = self.text();
        self.process.text() + &own
    }

    /// Registers a hook's counters until the controller is forgotten.
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
            escaped(&public(url)),
            escaped(name)
        );
        let entry = Labelled { kind, labels, metrics };
        self.entries.lock().entry((type_, name.to_owned())).or_default().hooks.push(entry);
    }

    /// Registers a controller's values until it is forgotten.
    pub fn numbers(&self, controller: (&'static str, &str), source: Source) {
        self.entries.lock().entry((controller.0, controller.1.to_owned())).or_default().numbers =
            Some(source);
    }

    /// Removes a controller from the output (MC-206).
    pub fn forget(&self, controller: (&'static str, &str)) {
        self.entries.lock().remove(&(controller.0, controller.1.to_owned()));
        self.process.forget_queue(&queue_name(controller));
    }

    /// Returns the metrics of hooks and controllers in Prometheus' text format.
    pub fn text(&self) -> String {
        let entries = self.entries.lock();
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
        let name = family("request_duration_histogram_seconds");
        let lines = self.metrics.duration.lines(&name, &format!("{labels},method=\"post\""));
        say(name, "histogram", lines);
        let events = [
            ("dns_duration_histogram_seconds", ["dns_start", "dns_done"], &self.metrics.dns),
            (
                "tls_duration_histogram_seconds",
                ["tls_handshake_start", "tls_handshake_done"],
                &self.metrics.tls,
            ),
        ];
        for (rest, events, histograms) in events {
            let name = family(rest);
            // A series starts with its first event, as those of Go's traces do.
            for (event, histogram) in events.iter().zip(histograms) {
                if !histogram.is_empty() {
                    let lines = histogram.lines(&name, &format!("{labels},event=\"{event}\""));
                    say(name.clone(), "histogram", lines);
                }
            }
        }
    }
}

fn queue_name((type_, name): (&'static str, &str)) -> String {
    format!("{type_}-{name}")
}

fn lines_of(type_: &str, name: &str, numbers: &Numbers, say: &mut impl FnMut(String, &'static str, String)) {
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

/// Removes what may be secret from a URL, because the page is public: user, password, query.
fn public(url: &str) -> String {
    let url = url.split(['?', '#']).next().unwrap_or_default();
    let Some((scheme, rest)) = url.split_once("://") else { return url.to_owned() };
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    format!("{scheme}://{host}{path}")
}

fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_shown_without_secrets() {
        assert_eq!(public("https://me:pass@h:8443/map?token=t"), "https://h:8443/map");
        assert_eq!(public("http://me:p@ss@h?token=/a@b"), "http://h");
        assert_eq!(public("http://[::1]:80/a@b"), "http://[::1]:80/a@b");
    }

    /// MC-A-84, MC-204, MC-205, MC-206: names and labels; a controller's series disappear with it.
    #[test]
    fn mc_a_84_series_have_the_documented_names() {
        let metrics = Metrics::default();
        let hook = Arc::new(HookMetrics::default());
        hook.requests.lock().insert(200, 3);
        hook.duration.observe(0.03);
        let mc = ("MapController", "mc1");
        metrics.hook(mc, HookKind::Map, "http://h/map", hook.clone());
        metrics.numbers(mc, Arc::new(|| Numbers { map: Some([10, 1, 0]), ..Numbers::default() }));
        hook.dns[1].observe(0.007);
        hook.tls[0].observe(0.2);
        metrics.queue(mc).added();
        let text = metrics.page();
        for line in [
            "metacontroller_map_requests_total{code=\"200\",url=\"http://h/map\",controller_name=\"mc1\",controller_type=\"MapController\",method=\"post\"} 3",
            "# TYPE metacontroller_map_request_duration_histogram_seconds histogram",
            "metacontroller_map_dns_duration_histogram_seconds_bucket{url=\"http://h/map\",controller_name=\"mc1\",controller_type=\"MapController\",event=\"dns_done\",le=\"0.01\"} 1",
            "metacontroller_map_tls_duration_histogram_seconds_bucket{url=\"http://h/map\",controller_name=\"mc1\",controller_type=\"MapController\",event=\"tls_handshake_start\",le=\"0.1\"} 0",
            "workqueue_adds_total{name=\"MapController-mc1\"} 1",
            "metacontroller_map_inputs{controller_name=\"mc1\"} 10",
        ] {
            assert!(text.contains(line), "{line}\n{text}");
        }
        metrics.forget(mc);
        assert_eq!(metrics.text(), "");
        assert!(!metrics.page().contains("mc1"));
    }
}
