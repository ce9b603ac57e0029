//! `/metrics` of a space, in the Prometheus text format (AS-009): requests, watches and objects, under the names that
//! kube-apiserver uses.
//!
//! The catalog bounds the labels: an unknown path or method gets no series of its own, and the series of a resource
//! end with the resource. Beyond [`MOST_SERIES`], requests that would need a new series are counted without their
//! resource. A request costs a lookup under a short lock; the first request after a change of the catalog costs a pass
//! over all series; printing costs the number of series.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use store::SpaceStore;

use crate::catalog::Catalog;
use crate::descriptor::Descriptor;
use crate::path::RequestInfo;

/// `Content-Type` of the answer.
pub(crate) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Upper bounds of the duration histogram, in seconds; the same as in kube-apiserver.
const BUCKETS: [f64; 23] = [
    0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0, 15.0,
    20.0, 30.0, 45.0, 60.0,
];

/// Most label sets of requests; each has a histogram.
const MOST_SERIES: usize = 10_000;

/// The labels of a request.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct RequestLabels {
    verb: &'static str,
    group: String,
    version: String,
    resource: String,
    subresource: String,
    scope: &'static str,
}

impl RequestLabels {
    pub(crate) fn of(info: &RequestInfo, catalog: &Catalog) -> Self {
        let found = catalog.resource(&info.group, &info.version, &info.resource).filter(|_| info.is_resource);
        let Some(descriptor) = found else { return Self::without_resource(method(&info.verb)) };
        let known = descriptor.subresources.contains_key(&info.subresource);
        Self {
            verb: verb(&info.verb),
            group: info.group.clone(),
            version: info.version.clone(),
            resource: info.resource.clone(),
            subresource: if known { info.subresource.clone() } else { String::new() },
            scope: match (info.name.is_empty(), info.namespace.is_empty()) {
                (false, _) => "resource",
                (true, false) => "namespace",
                (true, true) => "cluster",
            },
        }
    }

    /// Labels of a request for no resource.
    fn without_resource(verb: &'static str) -> Self {
        Self {
            verb,
            group: String::new(),
            version: String::new(),
            resource: String::new(),
            subresource: String::new(),
            scope: "",
        }
    }

    /// Whether the catalog still serves the resource.
    fn is_served(&self, catalog: &Catalog) -> bool {
        self.resource.is_empty() || catalog.resource(&self.group, &self.version, &self.resource).is_some()
    }

    fn write(&self, out: &mut String) {
        let Self { verb, group, version, resource, subresource, scope } = self;
        let _ = write!(
            out,
            "group=\"{group}\",resource=\"{resource}\",scope=\"{scope}\",subresource=\"{subresource}\",verb=\"{verb}\",\
             version=\"{version}\""
        );
    }
}

fn verb(of_request: &str) -> &'static str {
    match of_request {
        "get" => "GET",
        "list" => "LIST",
        "watch" => "WATCH",
        "create" => "POST",
        "update" => "PUT",
        "patch" => "PATCH",
        "delete" => "DELETE",
        "deletecollection" => "DELETECOLLECTION",
        other => method(other),
    }
}

fn method(name: &str) -> &'static str {
    match name {
        "get" | "list" | "watch" => "GET",
        "head" => "HEAD",
        "post" | "create" => "POST",
        "put" | "update" => "PUT",
        "patch" => "PATCH",
        "delete" | "deletecollection" => "DELETE",
        "options" => "OPTIONS",
        _ => "OTHER",
    }
}

/// Duration histogram of one label set.
#[derive(Default)]
struct Durations {
    /// Not cumulative. Durations above the last bound count in `count` only.
    buckets: [u64; BUCKETS.len()],
    sum: f64,
    count: u64,
}

#[derive(Default)]
struct Requests {
    codes: BTreeMap<u16, u64>,
    durations: Durations,
}

/// The counters of one API server. Clones share them.
#[derive(Clone, Default)]
pub(crate) struct Metrics(Arc<Inner>);

#[derive(Default)]
struct Inner {
    requests: Mutex<BTreeMap<RequestLabels, Requests>>,
    reading: AtomicI64,
    mutating: AtomicI64,
    watching: Mutex<BTreeMap<RequestLabels, i64>>,
    /// By group, version and kind.
    watch_events: Mutex<BTreeMap<[String; 3], Arc<AtomicU64>>>,
    /// Generation of the catalog at the last pass that dropped series of resources that are not served.
    cleared: AtomicU64,
}

/// Counts a request as in flight while it lives.
pub(crate) struct InFlight {
    metrics: Metrics,
    mutating: bool,
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.metrics.gauge(self.mutating).fetch_sub(1, Ordering::Relaxed);
    }
}

/// Counts a watch, and the events that it sends.
pub(crate) struct OpenWatch {
    metrics: Metrics,
    labels: RequestLabels,
    events: Arc<AtomicU64>,
}

impl OpenWatch {
    pub(crate) fn sent(&self) {
        self.events.fetch_add(1, Ordering::Relaxed);
    }
}

impl Drop for OpenWatch {
    fn drop(&mut self) {
        let mut watching = self.metrics.0.watching.lock();
        if let Some(count) = watching.get_mut(&self.labels) {
            *count -= 1;
            if *count == 0 {
                watching.remove(&self.labels);
            }
        }
    }
}

impl Metrics {
    fn gauge(&self, mutating: bool) -> &AtomicI64 {
        if mutating { &self.0.mutating } else { &self.0.reading }
    }

    /// Counts a request as in flight. Returns `None` for long-running requests; [`Metrics::watch`] counts watches.
    pub(crate) fn begin(&self, info: &RequestInfo) -> Option<InFlight> {
        let mutating = match info.verb.as_str() {
            "watch" => return None,
            "get" | "list" | "head" | "options" => false,
            _ => true,
        };
        self.gauge(mutating).fetch_add(1, Ordering::Relaxed);
        Some(InFlight { metrics: self.clone(), mutating })
    }

    /// Counts an answered request. The duration of a watch is not recorded.
    pub(crate) fn answered(&self, labels: RequestLabels, catalog: &Catalog, code: u16, took: Duration) {
        if self.0.cleared.swap(catalog.generation, Ordering::Relaxed) != catalog.generation {
            self.forget_unserved(catalog);
        }
        let watch = labels.verb == "WATCH";
        let mut requests = self.0.requests.lock();
        let full = requests.len() >= MOST_SERIES && !requests.contains_key(&labels);
        let labels = if full { RequestLabels::without_resource(labels.verb) } else { labels };
        let entry = requests.entry(labels).or_default();
        *entry.codes.entry(code).or_default() += 1;
        if watch {
            return;
        }
        let seconds = took.as_secs_f64();
        let at = BUCKETS.partition_point(|bound| *bound < seconds);
        if let Some(bucket) = entry.durations.buckets.get_mut(at) {
            *bucket += 1;
        }
        entry.durations.sum += seconds;
        entry.durations.count += 1;
    }

    /// Drops the series of resources that the catalog does not serve any more.
    fn forget_unserved(&self, catalog: &Catalog) {
        self.0.requests.lock().retain(|labels, _| labels.is_served(catalog));
        let kinds: BTreeSet<[&str; 3]> =
            catalog.all().map(|d| [d.group.as_str(), d.version.as_str(), d.kind.as_str()]).collect();
        let served = |kind: &[String; 3]| kinds.contains(&kind.each_ref().map(String::as_str));
        self.0.watch_events.lock().retain(|kind, _| served(kind));
    }

    pub(crate) fn watch(&self, labels: RequestLabels, descriptor: &Descriptor) -> OpenWatch {
        *self.0.watching.lock().entry(labels.clone()).or_default() += 1;
        let kind = [descriptor.group.clone(), descriptor.version.clone(), descriptor.kind.clone()];
        let events = self.0.watch_events.lock().entry(kind).or_default().clone();
        OpenWatch { metrics: self.clone(), labels, events }
    }

    /// All metrics as text, including the number of objects in `store`.
    pub(crate) fn text(&self, store: &SpaceStore, catalog: &Catalog) -> String {
        // A request in flight while its resource was removed may have added a series again.
        self.forget_unserved(catalog);
        let mut out = String::new();
        self.write_requests(&mut out);
        head(
            &mut out,
            "apiserver_current_inflight_requests",
            "gauge",
            "Requests under way, watches not counted.",
        );
        for (kind, gauge) in [("mutating", &self.0.mutating), ("readOnly", &self.0.reading)] {
            let now = gauge.load(Ordering::Relaxed);
            let _ = writeln!(out, "apiserver_current_inflight_requests{{request_kind=\"{kind}\"}} {now}");
        }
        head(&mut out, "apiserver_longrunning_requests", "gauge", "Watches being served.");
        for (labels, count) in &*self.0.watching.lock() {
            out.push_str("apiserver_longrunning_requests{");
            labels.write(&mut out);
            let _ = writeln!(out, "}} {count}");
        }
        head(&mut out, "apiserver_watch_events_total", "counter", "Events sent to watches.");
        for ([group, version, kind], count) in &*self.0.watch_events.lock() {
            let count = count.load(Ordering::Relaxed);
            let _ = writeln!(
                out,
                "apiserver_watch_events_total{{group=\"{group}\",kind=\"{kind}\",version=\"{version}\"}} {count}"
            );
        }
        head(&mut out, "apiserver_storage_objects", "gauge", "Objects stored, by resource.");
        let snapshot = store.snapshot();
        for collection in snapshot.collections() {
            let (group, plural) = collection.as_str().split_once('/').unwrap_or(("", collection.as_str()));
            let dot = if group.is_empty() { "" } else { "." };
            let count = snapshot.view(collection).len(None);
            let _ = writeln!(out, "apiserver_storage_objects{{resource=\"{plural}{dot}{group}\"}} {count}");
        }
        out
    }

    fn write_requests(&self, out: &mut String) {
        let requests = self.0.requests.lock();
        head(out, "apiserver_request_total", "counter", "Requests answered.");
        for (labels, entry) in &*requests {
            for (code, count) in &entry.codes {
                let _ = write!(out, "apiserver_request_total{{code=\"{code}\",");
                labels.write(out);
                let _ = writeln!(out, "}} {count}");
            }
        }
        head(out, "apiserver_request_duration_seconds", "histogram", "Time until a request was answered.");
        for (labels, Requests { durations, .. }) in requests.iter().filter(|(_, r)| r.durations.count > 0) {
            let mut below = 0;
            let mut sample = |suffix: &str, bound: Option<&str>, value: &dyn std::fmt::Display| {
                let _ = write!(out, "apiserver_request_duration_seconds_{suffix}{{");
                labels.write(out);
                if let Some(bound) = bound {
                    let _ = write!(out, ",le=\"{bound}\"");
                }
                let _ = writeln!(out, "}} {value}");
            };
            for (bound, count) in BUCKETS.iter().zip(durations.buckets) {
                below += count;
                sample("bucket", Some(&bound.to_string()), &below);
            }
            sample("bucket", Some("+Inf"), &durations.count);
            sample("sum", None, &durations.sum);
            sample("count", None, &durations.count);
        }
    }
}

fn head(out: &mut String, name: &str, kind: &str, help: &str) {
    let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(resource: &str) -> RequestLabels {
        RequestLabels {
            group: "apps".into(),
            version: "v1".into(),
            resource: resource.into(),
            scope: "cluster",
            ..RequestLabels::without_resource("LIST")
        }
    }

    /// AS-009: series end with what they were about, also when a late answer brought one back, and do not grow without end.
    #[test]
    fn as_009_series_are_bounded_by_what_is_served() {
        let catalog = crate::builtin::catalog();
        let metrics = Metrics::default();
        let count = || metrics.0.requests.lock().len();
        metrics.answered(labels("deployments"), &catalog, 200, Duration::ZERO);
        metrics.answered(labels("gone"), &catalog, 200, Duration::ZERO);
        assert_eq!(count(), 2, "looked for once per catalog");
        let mut next = (*catalog).clone();
        next.generation += 1;
        metrics.answered(RequestLabels::without_resource("GET"), &next, 404, Duration::ZERO);
        assert!(!metrics.0.requests.lock().contains_key(&labels("gone")));
        assert_eq!(count(), 2);
        metrics.answered(labels("gone"), &next, 200, Duration::ZERO);
        metrics.0.watch_events.lock().insert(["apps".into(), "v1".into(), "Gone".into()], Arc::default());
        metrics
            .0
            .watch_events
            .lock()
            .insert(["apps".into(), "v1".into(), "Deployment".into()], Arc::default());
        metrics.forget_unserved(&next);
        assert_eq!(count(), 2);
        assert_eq!(metrics.0.watch_events.lock().len(), 1);
        for index in 0..MOST_SERIES + 50 {
            metrics.answered(labels(&format!("r{index}")), &next, 200, Duration::ZERO);
        }
        assert!(count() <= MOST_SERIES + 1, "{}", count());
        let requests = metrics.0.requests.lock();
        let rest = requests
            .get(&RequestLabels::without_resource("LIST"))
            .expect("what is beyond is counted all the same");
        assert_eq!(rest.codes.get(&200), Some(&52));
    }
}
