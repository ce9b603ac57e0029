//! Who leads: the decision, without clock, client or randomness.

use std::time::{Duration, Instant};

/// How an election is held. The defaults are client-go's customary ones, which every take-over depends on: a holder
/// that is gone is replaced after [`lease`](Timing::lease).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// How long a holder that is not heard of keeps others out. Whole seconds.
    pub lease: Duration,
    /// How long a leader goes on without having renewed.
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

/// What is wrong with a [`Timing`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TimingError {
    /// A leader would still work while somebody else may take over.
    #[error("the lease duration must be greater than the renew deadline")]
    LeaseTooShort,
    /// A leader would give up before it had tried twice.
    #[error("the renew deadline must be greater than 1.2 times the retry period")]
    DeadlineTooShort,
    /// The Lease counts whole seconds, at least one.
    #[error("the lease duration must be whole seconds, at least one, and the retry period must not be zero")]
    Granularity,
}

impl Timing {
    /// The rules of client-go.
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

/// What a Lease says, as far as the election goes. `W` is the wall clock's time, of which nothing here depends: what
/// others wrote by their clocks is never compared with ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record<W> {
    /// Who holds it; empty for nobody.
    pub holder: String,
    /// How long it is held after a renewal.
    pub lease: Duration,
    /// Since when this holder has it.
    pub acquired: Option<W>,
    /// When it was renewed last.
    pub renewed: Option<W>,
    /// How often it changed hands.
    pub transitions: i32,
}

/// What to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Move<W> {
    /// Write this, over what was just seen (or make it, if nothing was there), and say so with
    /// [`Candidate::written`].
    Write(Record<W>),
    /// Somebody else holds it.
    Wait,
}

/// One process that wants to lead.
#[derive(Clone, Debug)]
pub struct Candidate<W> {
    identity: String,
    timing: Timing,
    /// What was seen last, and when it was seen first.
    observed: Option<(Record<W>, Instant)>,
    /// When the last write that succeeded was begun, while leading.
    renewed: Option<Instant>,
}

impl<W: Clone + PartialEq> Candidate<W> {
    /// A candidate that has seen nothing yet.
    pub fn new(identity: &str, timing: Timing) -> Self {
        Self { identity: identity.to_owned(), timing, observed: None, renewed: None }
    }

    /// Decides by what the Lease says at `now`; `wall` is written down as the time.
    ///
    /// Another's claim counts from when *we* first saw it in this form, for as long as the claim itself says, so
    /// that clocks need not agree.
    pub fn see(&mut self, seen: Option<&Record<W>>, now: Instant, wall: W) -> Move<W> {
        let Some(record) = seen else {
            self.observed = None;
            return Move::Write(self.claim(wall.clone(), wall, 0));
        };
        let since = match &self.observed {
            Some((known, since)) if known == record => *since,
            _ => now,
        };
        self.observed = Some((record.clone(), since));
        let ours = record.holder == self.identity;
        if !ours {
            // Whatever we thought, this is what holds.
            self.renewed = None;
            if !record.holder.is_empty() && now.saturating_duration_since(since) < record.lease {
                return Move::Wait;
            }
        }
        Move::Write(if ours {
            let acquired = record.acquired.clone().unwrap_or_else(|| wall.clone());
            self.claim(acquired, wall, record.transitions)
        } else {
            self.claim(wall.clone(), wall, record.transitions.saturating_add(1))
        })
    }

    /// The Lease has been written as asked; `begun` is when the request was sent: others may have seen it then.
    pub fn written(&mut self, record: Record<W>, begun: Instant) {
        self.observed = Some((record, begun));
        self.renewed = Some(begun);
    }

    /// Whether this candidate may act as leader at `now`.
    pub fn leads(&self, now: Instant) -> bool {
        self.deadline().is_some_and(|deadline| now < deadline)
    }

    /// Until when it may act without another renewal; none if it may not.
    pub fn deadline(&self) -> Option<Instant> {
        self.renewed.map(|at| at + self.timing.renew_deadline)
    }

    /// What to write to let others in at once: what client-go writes.
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
