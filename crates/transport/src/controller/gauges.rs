//! The metrics of the transport controller (KS-221, KS-222), with the names and buckets of the Go program.
//!
//! The Go program updates them five seconds after the last object came or went. Here each event updates them,
//! so the values are never older than that.

use apis::control::Binding;
use runtime::metrics::{Gauge, Histogram, Metrics};

const WHATS: [f64; 11] = [0.0, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0];
const WHERES: [f64; 13] = [0.0, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0];
const AREAS: [f64; 11] = [0.0, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0, 3000.0, 10_000.0, 30_000.0];

pub(super) struct Gauges {
    pub(super) wecs: Gauge,
    pub(super) bindings: Gauge,
    pub(super) transforms: Gauge,
    pub(super) prop_maps: Gauge,
    pub(super) wrapped_objects: Gauge,
    whats: Histogram,
    wheres: Histogram,
    areas: Histogram,
}

impl Gauges {
    pub(super) fn new(metrics: &Metrics) -> Self {
        let name = |what: &str| format!("kubestellar_transport_controller_{what}");
        let gauge = |what: &str, of: &str| metrics.gauge(&name(what), &format!("number of {of}"));
        let histogram = |what: &str, of: &str, buckets: &[f64]| {
            metrics.histogram(&name(what), &format!("{of} of a Binding, at each look at it"), buckets)
        };
        Self {
            wecs: gauge("wecs", "inventory objects"),
            bindings: gauge("bindings", "Binding objects"),
            transforms: gauge("transforms", "CustomTransform objects"),
            prop_maps: gauge("prop_maps", "ConfigMap objects with properties of WECs"),
            wrapped_objects: gauge("wrapped_objects", "wrapped objects"),
            whats: histogram("binding_whats", "workload objects", &WHATS),
            wheres: histogram("binding_wheres", "destinations", &WHERES),
            areas: histogram("binding_areas", "workload objects times destinations", &AREAS),
        }
    }

    /// Counts the sizes of a Binding that is processed.
    pub(super) fn observe(&self, binding: &Binding) {
        let workload = &binding.spec.workload;
        let whats = (workload.cluster_scope.len() + workload.namespace_scope.len()) as f64;
        let wheres = binding.spec.destinations.len() as f64;
        self.whats.observe(whats);
        self.wheres.observe(wheres);
        self.areas.observe(whats * wheres);
    }
}

/// Converts a count to the type of a gauge.
pub(super) fn count(number: usize) -> i64 {
    number.try_into().unwrap_or(i64::MAX)
}
