//! Leader election on Leases of `coordination.k8s.io/v1`, compatible with client-go's: a Go program and one of ours
//! that name the same Lease keep each other out (KS-211, OCM-150).
//!
//! ```no_run
//! # use kubestellar_runtime as runtime; use runtime::{election, metrics::Metrics};
//! # async fn example(client: kube::Client, stop: tokio_util::sync::CancellationToken) -> Result<(), election::Lost> {
//! let seat = election::Seat::new("open-cluster-management-agent", "work-agent-lock");
//! let work = |stop: tokio_util::sync::CancellationToken| async move { stop.cancelled().await };
//! // Waits for the Lease, works, and gives the Lease back once `stop` is cancelled and the work has ended.
//! election::lead(client, seat, &Metrics::default(), stop, work).await?;
//! # Ok(())
//! # }
//! ```
//!
//! [`Lost`] must end the process: by then somebody else may lead. The client should not be one that is limited
//! together with the work, or a busy leader loses its Lease.

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

pub use state::{Candidate, Move, Record, Timing, TimingError};

/// What is competed for, and by whom.
#[derive(Clone, Debug)]
pub struct Seat {
    /// Namespace of the Lease. It must exist.
    pub namespace: String,
    /// Name of the Lease.
    pub name: String,
    /// This process, unlike any other.
    pub identity: String,
    /// Durations.
    pub timing: Timing,
}

impl Seat {
    /// A Lease, with the customary durations, for this process.
    pub fn new(namespace: &str, name: &str) -> Self {
        Self {
            namespace: namespace.into(),
            name: name.into(),
            identity: identity(),
            timing: Timing::default(),
        }
    }
}

/// `<host>_<uuid>`, as controller-runtime has it.
pub fn identity() -> String {
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    format!("{}_{}", host.trim(), uuid::Uuid::new_v4())
}

/// The Lease was not renewed in time, or is somebody else's.
#[derive(Debug, thiserror::Error)]
#[error("leader election lost")]
pub struct Lost;

/// Waits until this process leads, then runs `work` until `stop` is cancelled and it ended, or it ends by itself; then
/// gives the Lease back. `None` if it was stopped before it led.
///
/// When the Lease is lost, `work` is told to stop and is dropped at once. Costs a read every [`Timing::retry`] while
/// others lead, a write at the same pace when leading. (It asks instead of watching: the roles that are customary for
/// elections allow get, create and update, no more.)
pub async fn lead<F, Fut>(
    client: Client,
    seat: Seat,
    metrics: &Metrics,
    stop: CancellationToken,
    work: F,
) -> Result<Option<Fut::Output>, Lost>
where
    F: FnOnce(CancellationToken) -> Fut,
    Fut: Future,
{
    let leading = metrics.leading(&seat.name);
    leading.set(0);
    let mut voter = Voter::new(client, seat);
    tokio::select! {
        () = voter.acquire() => {}
        () = stop.cancelled() => {
            // Both may have come at once.
            voter.release().await;
            return Ok(None);
        }
    }
    tracing::info!(lease = voter.seat.name, identity = voter.seat.identity, "leading");
    leading.set(1);
    let token = stop.child_token();
    let outcome = tokio::select! {
        outcome = work(token.clone()) => outcome,
        () = voter.hold() => {
            leading.set(0);
            token.cancel();
            tracing::error!(lease = voter.seat.name, "leader election lost");
            return Err(Lost);
        }
    };
    voter.release().await;
    leading.set(0);
    Ok(Some(outcome))
}

/// The shell around one [`Candidate`].
struct Voter {
    api: Api<Lease>,
    seat: Seat,
    candidate: Candidate<Timestamp>,
    /// The Lease as last read or written.
    known: Option<Lease>,
    /// Who is said to lead, so that each is named once.
    named: String,
}

impl Voter {
    fn new(client: Client, seat: Seat) -> Self {
        let candidate = Candidate::new(&seat.identity, seat.timing);
        let api = Api::namespaced(client, &seat.namespace);
        Self { api, seat, candidate, known: None, named: String::new() }
    }

    async fn acquire(&mut self) {
        tracing::info!(namespace = self.seat.namespace, lease = self.seat.name, "waiting to lead");
        loop {
            self.attempt(self.seat.timing.renew_deadline).await;
            if self.candidate.leads(Instant::now()) {
                return;
            }
            // Spread, so that those who wait don't all ask at once.
            tokio::time::sleep(self.seat.timing.retry + jittered(self.seat.timing.retry) / 2).await;
        }
    }

    /// Returns once the Lease is lost.
    async fn hold(&mut self) {
        loop {
            tokio::time::sleep(self.seat.timing.retry).await;
            while let Some(deadline) = self.candidate.deadline() {
                let left = deadline.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    return;
                }
                if self.attempt(left).await {
                    break;
                }
                tokio::time::sleep(self.seat.timing.retry.min(left)).await;
            }
            if self.candidate.deadline().is_none() {
                return;
            }
        }
    }

    /// One try to get or to renew it, within `budget`. True if it was written.
    async fn attempt(&mut self, budget: Duration) -> bool {
        match tokio::time::timeout(budget, self.try_once()).await {
            Ok(Ok(written)) => written,
            Ok(Err(error)) => {
                self.known = None;
                if failure::is_conflict(&error) || failure::is_already_exists(&error) {
                    tracing::debug!(lease = self.seat.name, "somebody else was first");
                } else {
                    let namespace = &self.seat.namespace;
                    tracing::warn!(namespace, lease = self.seat.name, %error, "electing; will be tried again");
                }
                false
            }
            Err(_) => {
                self.known = None;
                tracing::warn!(lease = self.seat.name, "electing: no answer in time");
                false
            }
        }
    }

    async fn try_once(&mut self) -> Result<bool, kube::Error> {
        // A leader knows what is there: it wrote it. If not, the write is refused and the next try reads.
        if !self.candidate.leads(Instant::now()) || self.known.is_none() {
            self.known = self.api.get_opt(&self.seat.name).await?;
        }
        let seen = self.known.as_ref().map(record);
        let begun = Instant::now();
        let decision = self.candidate.see(seen.as_ref(), begun, Timestamp::now());
        let Move::Write(wanted) = decision else {
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
            tracing::info!(lease = self.seat.name, leader = holder, "somebody else leads");
            holder.clone_into(&mut self.named);
        }
    }

    async fn put(&self, wanted: &Record<Timestamp>) -> Result<Lease, kube::Error> {
        let mut lease = self.known.clone().unwrap_or_default();
        fill(lease.spec.get_or_insert_default(), wanted);
        let params = PostParams::default();
        if self.known.is_some() {
            return self.api.replace(&self.seat.name, &params, &lease).await;
        }
        lease.metadata.name = Some(self.seat.name.clone());
        lease.metadata.namespace = Some(self.seat.namespace.clone());
        self.api.create(&params, &lease).await
    }

    /// Gives the Lease back, if it is ours. Not to be able to is no harm: it runs out.
    async fn release(&mut self) {
        let Some(free) = self.candidate.release(Timestamp::now()) else { return };
        match tokio::time::timeout(Duration::from_secs(5), self.put(&free)).await {
            Ok(Ok(_)) => tracing::info!(lease = self.seat.name, "gave the Lease back"),
            Ok(Err(error)) => tracing::warn!(lease = self.seat.name, %error, "giving the Lease back"),
            Err(_) => tracing::warn!(lease = self.seat.name, "giving the Lease back: no answer in time"),
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

/// Writes a record into a Lease and leaves the rest of it alone.
fn fill(spec: &mut LeaseSpec, record: &Record<Timestamp>) {
    spec.holder_identity = Some(record.holder.clone());
    spec.lease_duration_seconds = i32::try_from(record.lease.as_secs()).ok();
    spec.acquire_time = record.acquired.map(MicroTime);
    spec.renew_time = record.renewed.map(MicroTime);
    spec.lease_transitions = Some(record.transitions);
}
