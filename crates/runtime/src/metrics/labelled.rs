//! Metric families with one label.

use std::sync::Arc;

use prometheus_client::metrics::{
    counter::Counter,
    family::{Family, MetricConstructor},
    gauge::Gauge,
    histogram::Histogram,
};

type Label = [(&'static str, String); 1];

/// Metrics of one type that differ in the value of one label. Clones share the metrics.
#[derive(Clone)]
pub struct Labelled<M, C = fn() -> M> {
    label: &'static str,
    family: Family<Label, M, C>,
}

/// Counters by label value.
pub type Counters = Labelled<Counter>;
/// Gauges by label value.
pub type Gauges = Labelled<Gauge>;
/// Histograms by label value.
pub type Histograms = Labelled<Histogram, Buckets>;

/// Creates the histograms of a family, all with these buckets.
#[derive(Clone)]
pub struct Buckets(Arc<[f64]>);

impl MetricConstructor<Histogram> for Buckets {
    fn new_metric(&self) -> Histogram {
        Histogram::new(self.0.iter().copied())
    }
}

impl Counters {
    pub(super) fn counters(label: &'static str) -> (Self, Family<Label, Counter>) {
        let family = Family::default();
        (Self { label, family: family.clone() }, family)
    }
}

impl Gauges {
    pub(super) fn gauges(label: &'static str) -> (Self, Family<Label, Gauge>) {
        let family = Family::default();
        (Self { label, family: family.clone() }, family)
    }
}

impl Histograms {
    pub(super) fn histograms(
        label: &'static str,
        buckets: &[f64],
    ) -> (Self, Family<Label, Histogram, Buckets>) {
        let family = Family::new_with_constructor(Buckets(buckets.into()));
        (Self { label, family: family.clone() }, family)
    }
}

impl<M: Clone, C: MetricConstructor<M>> Labelled<M, C> {
    /// Returns the metric for this label value. Creates it if it does not exist.
    pub fn of(&self, value: &str) -> M {
        self.family.get_or_create_owned(&[(self.label, value.to_owned())])
    }

    /// Removes the metric of this label value from the output.
    pub fn forget(&self, value: &str) {
        self.family.remove(&[(self.label, value.to_owned())]);
    }
}
