//! Decides when the agent removes what it applied for works that no longer exist on the hub (OCM-096). Pure;
//! the time is an argument.

use std::time::Duration;

use k8s_openapi::jiff::{SignedDuration, Timestamp};

/// A grace period of a hundred years or more means never.
const NEVER: Duration = Duration::from_secs(100 * 365 * 24 * 3600);
/// How far a recorded beginning may lie in the future.
const AHEAD: SignedDuration = SignedDuration::from_hours(1);
/// Evictions that begin within this many seconds count as one event.
const AT_ONCE: i64 = 600;
/// An event with at most this many evictions is never a mass eviction.
const FEW: usize = 5;

/// What to do about an AppliedManifestWork without a work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Record that its grace period begins.
    Begin,
    /// Wait this long.
    Wait(Duration),
    /// Delete it.
    Evict,
    /// Leave it.
    Never,
}

/// Decides from the time when the eviction began.
pub(crate) fn verdict(began: Option<Timestamp>, grace: Duration, now: Timestamp) -> Verdict {
    if grace >= NEVER {
        return Verdict::Never;
    }
    // A beginning in the future was recorded while the clock was ahead.
    let Some(began) = began.filter(|began| began.duration_since(now) <= AHEAD) else { return Verdict::Begin };
    let waited = Duration::try_from(now.duration_since(began)).unwrap_or_default();
    match grace.checked_sub(waited) {
        Some(left) if !left.is_zero() => Verdict::Wait(left.max(Duration::from_millis(100))),
        _ => Verdict::Evict,
    }
}

/// Returns whether more than half of the hub's works disappeared at once. Then the hub's store was probably
/// restored or emptied, and the deletion of all objects is not intended. `others` are the other
/// AppliedManifestWorks of this hub, with the time when their eviction began.
pub(crate) fn is_mass(began: Timestamp, others: &[Option<Timestamp>]) -> bool {
    let near = |other: &&Timestamp| (other.as_second() - began.as_second()).abs() <= AT_ONCE;
    let leaving = 1 + others.iter().flatten().filter(near).count();
    leaving > FEW && leaving * 2 > others.len() + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).expect("in range")
    }

    #[test]
    fn ocm_096_grace() {
        let hour = Duration::from_secs(3600);
        for (began, now, grace, expected) in [
            (None, 0, hour, Verdict::Begin),
            (Some(at(0)), 600, hour, Verdict::Wait(Duration::from_secs(3000))),
            (Some(at(0)), 3600, hour, Verdict::Evict),
            (Some(at(0)), 9999, NEVER, Verdict::Never),
            (None, 9999, NEVER, Verdict::Never),
            (Some(at(50)), 0, hour, Verdict::Wait(hour)), // a clock that went back
            (Some(at(999_999)), 0, hour, Verdict::Begin), // a clock that was ahead
        ] {
            assert_eq!(verdict(began, grace, at(now)), expected, "{began:?} {now}");
        }
    }

    #[test]
    fn ocm_096_a_hub_that_was_put_back_evicts_nothing() {
        let others =
            |leaving: usize, staying: usize| [vec![Some(at(100)); leaving], vec![None; staying]].concat();
        assert!(!is_mass(at(0), &others(0, 0)), "one of one");
        assert!(!is_mass(at(0), &others(4, 0)), "five of five");
        assert!(is_mass(at(0), &others(9, 4)), "ten of fourteen");
        assert!(!is_mass(at(0), &others(9, 10)), "half");
        assert!(!is_mass(at(7200), &others(9, 4)), "the others went long before");
    }
}
