//! Settings of the work agent, and why it ends by itself.

use std::time::Duration;

use runtime::metrics::Metrics;
use tokio::sync::watch;

use super::feedback::Raw;

/// Settings of the work agent.
#[derive(Clone)]
pub struct Config {
    /// Name of the managed cluster, which is also the name of the mailbox namespace.
    pub cluster_name: String,
    /// URL of the hub, exactly as in the agent's kubeconfig unless the hub has moved. Its hash is part of the
    /// names of AppliedManifestWorks (OCM-071); with another URL every object would get a second owner.
    pub hub_url: String,
    /// `--agent-id`; the hub's hash when empty.
    pub agent_id: String,
    /// Number of works processed at a time.
    pub workers: usize,
    /// Number of manifests of one work applied at a time.
    pub parallel_manifests: usize,
    /// Pause before a work is applied again although no change was observed (OCM-073); jitter adds up to a
    /// half.
    pub reapply: Duration,
    /// `--status-sync-interval`: pause between two reads of objects whose resource cannot be watched
    /// (OCM-161); jitter at most doubles it.
    pub status_sync: Duration,
    /// Pause before a manifest that the executor may not apply is retried (OCM-086).
    pub executor_retry: Duration,
    /// How long an AppliedManifestWork without a ManifestWork is kept (OCM-096).
    pub eviction_grace: Duration,
    /// `--allow-mass-eviction`: evict even if more than half of the works disappeared at once (OCM-096).
    pub allow_mass_eviction: bool,
    /// `--max-feedback-watch`: most kinds that are watched; objects of further kinds are read periodically
    /// (OCM-161).
    pub max_watched_kinds: usize,
    /// How feedback values are reported that are neither text, integer nor boolean (OCM-090).
    pub raw_feedback: Raw,
    /// `--unchecked-feedback`: report values of objects that the executor of their work may not `get`, as OCM's agent
    /// does.
    pub unchecked_feedback: bool,
    /// Set to true once the agent works.
    pub ready: watch::Sender<bool>,
    /// Receives the metrics: the queue `ManifestWorkAgent`, and progress of the work (OCM-164).
    pub metrics: Metrics,
}

impl Config {
    /// The defaults, for one cluster and hub.
    pub fn new(cluster_name: &str, hub_url: &str) -> Self {
        Self {
            cluster_name: cluster_name.into(),
            hub_url: hub_url.into(),
            agent_id: String::new(),
            workers: 10,
            parallel_manifests: 16,
            reapply: Duration::from_secs(240),
            status_sync: Duration::from_secs(10),
            executor_retry: Duration::from_secs(60),
            eviction_grace: Duration::from_secs(3600),
            allow_mass_eviction: false,
            max_watched_kinds: usize::MAX,
            raw_feedback: Raw::Refused,
            unchecked_feedback: false,
            ready: watch::Sender::new(false),
            metrics: Metrics::default(),
        }
    }
}

/// Why the agent ended by itself.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A task of the agent died.
    #[error("a task of the work agent ended")]
    Task(#[from] runtime::TaskError),
}
