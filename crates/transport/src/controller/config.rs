//! The settings of the controller.

use std::{sync::Arc, time::Duration};

use runtime::metrics::Metrics;
use tokio::sync::watch;

use crate::{
    plugin::{Ocm, Transport},
    shard::Limits,
};

/// Settings of the transport controller (KS-216).
#[derive(Clone)]
pub struct Config {
    /// Name of the WDS; it becomes part of names and labels.
    pub wds_name: String,
    /// Size limits of wrapped objects.
    pub limits: Limits,
    /// Number of Bindings processed at a time.
    pub concurrency: usize,
    /// Number of destinations written at a time, for one Binding.
    pub parallel_destinations: usize,
    /// How long a Binding must be unchanged before its outdated generation annotations are refreshed.
    pub refresh_after: Duration,
    /// Pause between two such refreshes, over all Bindings.
    pub refresh_pause: Duration,
    /// Whether wrapped objects carry the generations of their objects (OCM-139). This costs no extra write:
    /// the generations change only when an object changes, and then the envelope is written anyway.
    pub object_generations: bool,
    /// The plugin.
    pub transport: Arc<dyn Transport>,
    /// Set to true once every input needed for decisions is known.
    pub ready: watch::Sender<bool>,
    /// Receives the metrics: the queue `transport-controller` (KS-223), and the counts of objects (KS-221,
    /// KS-222).
    pub metrics: Metrics,
}

impl Config {
    /// The defaults of the command line, for the WDS of this name.
    pub fn new(wds_name: &str) -> Self {
        Self {
            wds_name: wds_name.into(),
            limits: Limits::default(),
            concurrency: 4,
            parallel_destinations: 16,
            refresh_after: Duration::from_secs(60),
            refresh_pause: Duration::from_secs(1),
            object_generations: false,
            transport: Arc::new(Ocm),
            ready: watch::Sender::new(false),
            metrics: Metrics::default(),
        }
    }
}
