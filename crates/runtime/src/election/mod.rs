//! Leader election on Leases of `coordination.k8s.io/v1`. It is compatible with client-go: when a Go program
//! and one of ours name the same Lease, only one of them leads (KS-211, OCM-150).
//!
//! ```no_run
//! # use kubestellar_runtime as runtime; use runtime::{election, metrics::Metrics};
//! # async fn example(client: kube::Client, stop: tokio_util::sync::CancellationToken) -> Result<(), election::LeadershipLost> {
//! let lock = election::LeaseLock::new("open-cluster-management-agent", "work-agent-lock");
//! let work = |stop: tokio_util::sync::CancellationToken| async move { stop.cancelled().await };
//! // Waits for the Lease, works, and releases the Lease once `stop` is cancelled and the work has ended.
//! election::lead(client, lock, &Metrics::default(), stop, work).await?;
//! # Ok(())
//! # }
//! ```
//!
//! [`LeadershipLost`] must end the process: another process may lead by then. The client for the election
//! must not share the rate limit of the work, or a busy leader loses its Lease.

mod state;
#[cfg(test)]
mod tests;

use std::{
    fs,
    time::{Duration, Instant},
};

use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::MicroTime,
    jiff::Timestamp,
};
use kube::{Api, Client, api::PostParams};
use tokio_util::sync::CancellationToken;

use crate::{backoff::jittered, failure, metrics::Metrics};

pub use state::{Action, Candidate, Record, Timing, TimingError};

/// The Lease to compete for and the identity of this process.
#[derive(Clone, Debug)]
pub struct LeaseLock {
    /// Namespace of the Lease. It must exist.
    pub namespace: String,
    /// Name of the Lease.
    pub name: String,
    /// Identity of this process. It must be unique among the candidates.
    pub identity: String,
    /// Durations of the election.
    pub timing: Timing,
}

impl LeaseLock {
    /// A lock on this Lease for this process, with the default durations.
    pub fn new(namespace: &str, name: &str) -> Self {
        Self {
            namespace: namespace.into(),
            name: name.into(),
            identity: identity(),
            timing: Timing::default(),
        }
    }
}

/// Returns `<host>_<uuid>`, the form that controller-runtime uses.
pub fn identity() -> String {
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    format!("{}_{}", host.trim(), uuid::Uuid::new_v4())
}

/// The Lease was not renewed in time, or another process holds it now.
#[derive(Debug, thiserror::Error)]
#[error("leader election lost")]
pub struct LeadershipLost;

/// Waits until this process leads, then runs `work`, then releases the Lease.
///
/// `work` runs until it ends by itself or until `stop` is cancelled and it has ended. Returns `None` if
/// `stop` was cancelled before this process led.
///
/// Cost: one read every [`Timing::retry`] while another process leads, one write every [`Timing::retry`]
/// while this process leads. The Lease is polled and not watched, because the usual roles for elections allow
/// only get, create and update.
///
/// # Errors
///
/// [`LeadershipLost`] if the Lease is lost. `work` is then told to stop and is dropped at once.
pub async fn lead<F, Fut>(
    client: Client,
    lock: LeaseLock,
    metrics: &Metrics,
    stop: CancellationToken,
    work: F,
) -> Result<Option<Fut::Output>, LeadershipLost>
where
    F: FnOnce(CancellationToken) -> Fut,
    Fut: Future,
{
    let leading = metrics.leading(&lock.name);
    leading.set(0);
    let mut voter = Elector::new(client, lock);
    tokio::select! {
        () = voter.acquire() => {}
        () = stop.cancelled() => {
            // The Lease may have been acquired at the moment when `stop` was cancelled.
            voter.release().await;
            return Ok(None);
        }
    }
    tracing::info!(lease = voter.lock.name, identity = voter.lock.identity, "leading");
    leading.set(1);
    let token = stop.child_token();
    let outcome = tokio::select! {
        outcome = work(token.clone()) => outcome,
        () = voter.hold() => {
            leading.set(0);
            token.cancel();
            tracing::error!(lease = voter.lock.name, "leader election lost");
            return Err(LeadershipLost);
        }
    };
    voter.release().await;
    leading.set(0);
    Ok(Some(outcome))
}

/// Does the I/O for one [`Candidate`].
struct Elector {
    api: Api<Lease>,
    lock: LeaseLock,
    candidate: Candidate<Timestamp>,
    /// The Lease as last read or written.
    known: Option<Lease>,
    /// The leader that was logged last, so that each leader is logged once.
    named: String,
}

impl Elector {
    fn new(client: Client, lock: LeaseLock) -> Self {
        let candidate = Candidate::new(&lock.identity, lock.timing);
        let api = Api::namespaced(client, &lock.namespace);
        Self { api, lock, candidate, known: None, named: String::new() }
    }

    async fn acquire(&mut self) {
        tracing::info!(namespace = self.lock.namespace, lease = self.lock.name, "waiting to lead");
        loop {
            self.attempt(self.lock.timing.renew_deadline).await;
            if self.candidate.leads(Instant::now()) {
                return;
            }
            // Jitter, so that the waiting candidates do not all send their requests at the same time.
            tokio::time::sleep(self.lock.timing.retry + jittered(self.lock.timing.retry) / 2).await;
        }
    }

    /// Renews the Lease and returns once it is lost.
    async fn hold(&mut self) {
        loop {
            tokio::time::sleep(self.lock.timing.retry).await;
            while let Some(deadline) = self.candidate.deadline() {
                let left = deadline.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    return;
                }
                if self.attempt(left).await {
                    break;
                }
                tokio::time::sleep(self.lock.timing.retry.min(left)).await;
            }
            if self.candidate.deadline().is_none() {
                return;
            }
        }
    }

    /// Tries once to acquire or renew the Lease within `budget`. Returns true if the Lease was written.
    async fn attempt(&mut self, budget: Duration) -> bool {
        match tokio::time::timeout(budget, self.try_once()).await {
            Ok(Ok(written)) => written,
            Ok(Err(error)) => {
                self.known = None;
                if failure::is_conflict(&error) || failure::is_already_exists(&error) {
                    tracing::debug!(lease = self.lock.name, "another process was first");
                } else {
                    let namespace = &self.lock.namespace;
                    tracing::warn!(namespace, lease = self.lock.name, %error, "electing; will be tried again");
                }
                false
            }
            Err(_) => {
                self.known = None;
                tracing::warn!(lease = self.lock.name, "electing: no answer in time");
                false
            }
        }
    }

    async fn try_once(&mut self) -> Result<bool, kube::Error> {
        // A leader knows the Lease because it wrote it. If the Lease has changed, the write is refused and
        // the next try reads first.
        if !self.candidate.leads(Instant::now()) || self.known.is_none() {
            self.known = self.api.get_opt(&self.lock.name).await?;
        }
        let seen = self.known.as_ref().map(record);
        let begun = Instant::now();
        let decision = self.candidate.see(seen.as_ref(), begun, Timestamp::now());
        let Action::Write(wanted) = decision else {
            self.say_who(seen.as_ref());
            return Ok(false);
        };
        let lease = self.put(&wanted).await?;
        self.candidate.written(record(&lease), begun);
        self.known = Some(lease);
        Ok(true)
    }

    fn say_who(&mut self, seen: Option<&Record<Timestamp>>) {
        let holder = seen.map_or("", |it| it.holder.as_str());
        if self.named != holder {
            tracing::info!(lease = self.lock.name, leader = holder, "another process leads");
            holder.clone_into(&mut self.named);
        }
    }

    async fn put(&self, wanted: &Record<Timestamp>) -> Result<Lease, kube::Error> {
        let mut lease = self.known.clone().unwrap_or_default();
        fill(lease.spec.get_or_insert_default(), wanted);
        let params = PostParams::default();
        if self.known.is_some() {
            return self.api.replace(&self.lock.name, &params, &lease).await;
        }
        lease.metadata.name = Some(self.lock.name.clone());
        lease.metadata.namespace = Some(self.lock.namespace.clone());
        self.api.create(&params, &lease).await
    }

    /// Releases the Lease if this process holds it. If the release fails, the Lease expires by itself.
    async fn release(&mut self) {
        let Some(free) = self.candidate.release(Timestamp::now()) else { return };
        match tokio::time::timeout(Duration::from_secs(5), self.put(&free)).await {
            Ok(Ok(_)) => tracing::info!(lease = self.lock.name, "released the Lease"),
            Ok(Err(error)) => tracing::warn!(lease = self.lock.name, %error, "releasing the Lease"),
            Err(_) => tracing::warn!(lease = self.lock.name, "releasing the Lease: no answer in time"),
        }
    }
}

fn record(lease: &Lease) -> Record<Timestamp> {
    let spec = lease.spec.as_ref();
    let seconds = spec.and_then(|it| it.lease_duration_seconds).and_then(|it| u64::try_from(it).ok());
    Record {
        holder: spec.and_then(|it| it.holder_identity.clone()).unwrap_or_default(),
        lease: Duration::from_secs(seconds.unwrap_or(0)),
        acquired: spec.and_then(|it| it.acquire_time.as_ref()).map(|it| it.0),
        renewed: spec.and_then(|it| it.renew_time.as_ref()).map(|it| it.0),
        transitions: spec.and_then(|it| it.lease_transitions).unwrap_or(0),
    }
}

/// Writes a record into a Lease and leaves the other fields unchanged.
fn fill(spec: &mut LeaseSpec, record: &Record<Timestamp>) {
    spec.holder_identity = Some(record.holder.clone());
    spec.lease_duration_seconds = i32::try_from(record.lease.as_secs()).ok();
    spec.acquire_time = record.acquired.map(MicroTime);
    spec.renew_time = record.renewed.map(MicroTime);
    spec.lease_transitions = Some(record.transitions);
}
