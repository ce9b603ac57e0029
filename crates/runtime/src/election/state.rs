//! The pure part of leader election: no clock, no client, no randomness.

use std::time::{Duration, Instant};

/// The durations of an election. The defaults are those of client-go: a holder that disappears is replaced
/// after [`lease`](Timing::lease).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// How long an unrenewed claim keeps other candidates out. A whole number of seconds.
    pub lease: Duration,
    /// How long a leader continues without a successful renewal.
    pub renew_deadline: Duration,
    /// Pause between two tries.
    pub retry: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        let seconds = Duration::from_secs;
        Self { lease: seconds(15), renew_deadline: seconds(10), retry: seconds(2) }
    }
}

/// Why a [`Timing`] is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TimingError {
    /// The lease must be longer than the renew deadline. Otherwise a leader could still work when another
    /// process takes over.
    #[error("the lease duration must be greater than the renew deadline")]
    LeaseTooShort,
    /// The renew deadline must leave room for two tries.
    #[error("the renew deadline must be greater than 1.2 times the retry period")]
    DeadlineTooShort,
    /// The lease must be a whole number of seconds and at least one, because a Lease object stores whole
    /// seconds.
    #[error("the lease duration must be whole seconds, at least one, and the retry period must not be zero")]
    Granularity,
}

impl Timing {
    /// Checks the rules that client-go enforces.
    ///
    /// # Errors
    ///
    /// The first rule that is broken.
    pub fn check(&self) -> Result<(), TimingError> {
        if self.lease.as_secs() == 0 || self.lease.subsec_nanos() != 0 || self.retry.is_zero() {
            return Err(TimingError::Granularity);
        }
        if self.lease <= self.renew_deadline {
            return Err(TimingError::LeaseTooShort);
        }
        if self.renew_deadline <= self.retry.mul_f64(1.2) {
            return Err(TimingError::DeadlineTooShort);
        }
        Ok(())
    }
}

/// The content of a Lease that matters for the election. `W` is wall-clock time; it is written for readers
/// and never compared, because the clocks of the candidates may differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record<W> {
    /// Identity of the holder; empty if nobody holds the Lease.
    pub holder: String,
    /// How long a claim is valid after a renewal.
    pub lease: Duration,
    /// When this holder acquired the Lease.
    pub acquired: Option<W>,
    /// When the holder last renewed the Lease.
    pub renewed: Option<W>,
    /// How often the Lease changed its holder.
    pub transitions: i32,
}

/// What the caller must do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action<W> {
    /// Write this record over the one just read, or create the Lease if there was none. Then call
    /// [`Candidate::written`].
    Write(Record<W>),
    /// Another process holds the Lease.
    Wait,
}

/// One process that competes for the Lease.
#[derive(Clone, Debug)]
pub struct Candidate<W> {
    identity: String,
    timing: Timing,
    /// The record that was last read, and when this candidate first read it.
    observed: Option<(Record<W>, Instant)>,
    /// When the last successful write began; `None` while not leading.
    renewed: Option<Instant>,
}

impl<W: Clone + PartialEq> Candidate<W> {
    /// A candidate that has not read the Lease yet.
    pub fn new(identity: &str, timing: Timing) -> Self {
        Self { identity: identity.to_owned(), timing, observed: None, renewed: None }
    }

    /// Decides what to do about the Lease as it was read at `now`; `wall` is the time to write into it.
    ///
    /// The claim of another holder counts from the moment when *this candidate* first read it in this form,
    /// for the duration that the claim states. So the clocks of the candidates need not agree.
    pub fn see(&mut self, seen: Option<&Record<W>>, now: Instant, wall: W) -> Action<W> {
        let Some(record) = seen else {
            self.observed = None;
            return Action::Write(self.claim(wall.clone(), wall, 0));
        };
        let since = match &self.observed {
            Some((known, since)) if known == record => *since,
            _ => now,
        };
        self.observed = Some((record.clone(), since));
        let ours = record.holder == self.identity;
        if !ours {
            // The Lease names another holder, whatever this candidate assumed.
            self.renewed = None;
            if !record.holder.is_empty() && now.saturating_duration_since(since) < record.lease {
                return Action::Wait;
            }
        }
        Action::Write(if ours {
            let acquired = record.acquired.clone().unwrap_or_else(|| wall.clone());
            self.claim(acquired, wall, record.transitions)
        } else {
            self.claim(wall.clone(), wall, record.transitions.saturating_add(1))
        })
    }

    /// Notes that the Lease has been written as asked. `begun` is when the request was sent: other candidates
    /// may have read the Lease from then on.
    pub fn written(&mut self, record: Record<W>, begun: Instant) {
        self.observed = Some((record, begun));
        self.renewed = Some(begun);
    }

    /// Returns whether this candidate may act as leader at `now`.
    pub fn leads(&self, now: Instant) -> bool {
        self.deadline().is_some_and(|deadline| now < deadline)
    }

    /// Returns the instant until which this candidate may act as leader without another renewal; `None` if it
    /// does not lead.
    pub fn deadline(&self) -> Option<Instant> {
        self.renewed.map(|at| at + self.timing.renew_deadline)
    }

    /// Returns the record that releases the Lease at once. It is the record that client-go writes.
    pub fn release(&self, wall: W) -> Option<Record<W>> {
        let (record, _) = self.observed.as_ref().filter(|(record, _)| record.holder == self.identity)?;
        let free = Record {
            holder: String::new(),
            lease: Duration::from_secs(1),
            acquired: Some(wall.clone()),
            renewed: Some(wall),
            transitions: record.transitions,
        };
        Some(free)
    }

    fn claim(&self, acquired: W, renewed: W, transitions: i32) -> Record<W> {
        Record {
            holder: self.identity.clone(),
            lease: self.timing.lease,
            acquired: Some(acquired),
            renewed: Some(renewed),
            transitions,
        }
    }
}
