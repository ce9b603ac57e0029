//! The metrics of work queues that client-go has (KS-223).

use std::{
    collections::HashMap,
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use prometheus_client::{
    metrics::{
        counter::Counter,
        family::Family,
        gauge::Gauge,
        histogram::{Histogram, exponential_buckets},
    },
    registry::Registry,
};

use super::{Name, Timings, shown, timed};

type FloatGauge = Gauge<f64, std::sync::atomic::AtomicU64>;

pub(super) struct Families {
    depth: Family<Name, Gauge>,
    adds: Family<Name, Counter>,
    retries: Family<Name, Counter>,
    waited: Timings<Name>,
    worked: Timings<Name>,
    unfinished: Family<Name, FloatGauge>,
    longest: Family<Name, FloatGauge>,
    running: Mutex<HashMap<Name, Arc<Running>>>,
}

/// The start times of the items that are being processed, by a number of their own.
#[derive(Default)]
struct Running {
    next: std::sync::atomic::AtomicU64,
    begun: Mutex<HashMap<u64, Instant>>,
}

fn durations() -> Histogram {
    Histogram::new(exponential_buckets(1e-8, 10.0, 10))
}

impl Families {
    pub(super) fn registered(registry: &mut Registry) -> Self {
        let waited = "How long in seconds an item stays in workqueue before being requested";
        let worked = "How long in seconds processing an item from workqueue takes";
        let unfinished = "How many seconds of work is in progress and has not been observed by work_duration";
        let longest = "How many seconds has the longest running processor for workqueue been running";
        Self {
            depth: shown(registry, "workqueue_depth", "Current depth of workqueue"),
            adds: shown(registry, "workqueue_adds", "Total number of adds handled by workqueue"),
            retries: shown(registry, "workqueue_retries", "Total number of retries handled by workqueue"),
            waited: timed(registry, "workqueue_queue_duration_seconds", waited, durations),
            worked: timed(registry, "workqueue_work_duration_seconds", worked, durations),
            unfinished: shown(registry, "workqueue_unfinished_work_seconds", unfinished),
            longest: shown(registry, "workqueue_longest_running_processor_seconds", longest),
            running: Mutex::default(),
        }
    }

    pub(super) fn of(&self, name: &str) -> QueueMetrics {
        let name = Name { name: name.to_owned() };
        // Create the gauges now, so that a queue without any item yet shows zeros.
        drop(self.unfinished.get_or_create(&name));
        drop(self.longest.get_or_create(&name));
        QueueMetrics {
            depth: self.depth.get_or_create_owned(&name),
            adds: self.adds.get_or_create_owned(&name),
            retries: self.retries.get_or_create_owned(&name),
            waited: self.waited.get_or_create_owned(&name),
            worked: self.worked.get_or_create_owned(&name),
            running: self.running.lock().entry(name).or_default().clone(),
        }
    }

    pub(super) fn forget(&self, name: &str) {
        let name = Name { name: name.to_owned() };
        self.running.lock().remove(&name);
        self.depth.remove(&name);
        self.adds.remove(&name);
        self.retries.remove(&name);
        self.waited.remove(&name);
        self.worked.remove(&name);
        self.unfinished.remove(&name);
        self.longest.remove(&name);
    }

    /// Updates the two gauges that grow with time. Cost: one look at each item that is being processed.
    pub(super) fn refresh(&self) {
        for (name, running) in self.running.lock().iter() {
            let (mut sum, mut longest) = (0.0_f64, 0.0_f64);
            for begun in running.begun.lock().values() {
                let seconds = begun.elapsed().as_secs_f64();
                sum += seconds;
                longest = longest.max(seconds);
            }
            self.unfinished.get_or_create(name).set(sum);
            self.longest.get_or_create(name).set(longest);
        }
    }
}

/// The metrics of one queue.
#[derive(Clone)]
pub struct QueueMetrics {
    depth: Gauge,
    adds: Counter,
    retries: Counter,
    waited: Histogram,
    worked: Histogram,
    running: Arc<Running>,
}

impl QueueMetrics {
    /// A key became ready.
    pub fn added(&self) {
        self.adds.inc();
    }

    /// The number of keys that wait.
    pub fn depth(&self, keys: usize) {
        self.depth.set(keys as i64);
    }

    /// A key failed and will be retried.
    pub fn retried(&self) {
        self.retries.inc();
    }

    /// A key that has waited this long is being processed. Drop the result when the processing ends.
    pub fn taken(&self, waited: Duration) -> WorkTimer {
        self.waited.observe(waited.as_secs_f64());
        let id = self.running.next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let begun = Instant::now();
        self.running.begun.lock().insert(id, begun);
        WorkTimer { id, begun, worked: self.worked.clone(), running: self.running.clone() }
    }
}

/// Measures the processing of one key; dropping it ends the measurement.
pub struct WorkTimer {
    id: u64,
    begun: Instant,
    worked: Histogram,
    running: Arc<Running>,
}

impl Drop for WorkTimer {
    fn drop(&mut self) {
        self.running.begun.lock().remove(&self.id);
        self.worked.observe(self.begun.elapsed().as_secs_f64());
    }
}

#[cfg(test)]
mod tests {
    use crate::{Queue, metrics::Metrics};
    use tokio_util::sync::CancellationToken;

    /// MC-206: a forgotten queue leaves no line in the output.
    #[test]
    fn mc_206_a_queue_is_forgotten() {
        let metrics = Metrics::default();
        let (one, other) = (metrics.queue("one"), metrics.queue("other"));
        drop(one.taken(std::time::Duration::ZERO));
        other.added();
        metrics.forget_queue("one");
        let text = metrics.text();
        assert!(
            !text.contains("\"one\"") && text.contains("workqueue_adds_total{name=\"other\"} 1"),
            "{text}"
        );
    }

    /// KS-223: the seven families follow what happens in a queue, labelled with the queue's name.
    #[tokio::test]
    async fn ks_223_families_follow_the_queue() {
        let (metrics, stop) = (Metrics::default(), CancellationToken::new());
        let queue = Queue::default().observed(metrics.queue("Binding-wds1"));
        let sees = |line: &str| {
            let text = metrics.text();
            assert!(text.lines().any(|it| it == line), "no {line} in {text}");
        };
        for zero in ["depth", "unfinished_work_seconds", "longest_running_processor_seconds"] {
            assert!(metrics.text().contains(&format!("workqueue_{zero}{{name=\"Binding-wds1\"}} 0")));
        }
        queue.add("a");
        queue.add("a");
        queue.add("b");
        sees("workqueue_adds_total{name=\"Binding-wds1\"} 2");
        sees("workqueue_depth{name=\"Binding-wds1\"} 2");
        let lease = queue.next(&stop).await.unwrap();
        sees("workqueue_depth{name=\"Binding-wds1\"} 1");
        sees("workqueue_queue_duration_seconds_count{name=\"Binding-wds1\"} 1");
        let text = metrics.text();
        let under_way = text.lines().find(|l| l.starts_with("workqueue_unfinished_work_seconds")).unwrap();
        assert!(!under_way.ends_with(" 0") && !under_way.ends_with(" 0.0"), "{under_way}");
        queue.retry("a");
        drop(lease);
        sees("workqueue_retries_total{name=\"Binding-wds1\"} 1");
        sees("workqueue_work_duration_seconds_count{name=\"Binding-wds1\"} 1");
    }
}
