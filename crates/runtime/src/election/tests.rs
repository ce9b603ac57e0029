//! Tests of the decision with a simulated clock: who leads when, and that there are never two leaders.

use std::time::{Duration, Instant};

use proptest::prelude::*;

use super::state::{Action, Candidate, Record, Timing, TimingError};

fn seconds(n: u64) -> Duration {
    Duration::from_secs(n)
}

/// The Lease as a server stores it: a write must name the version that it replaces.
#[derive(Default)]
struct Server {
    record: Option<Record<u64>>,
    version: u64,
}

impl Server {
    fn write(&mut self, over: u64, record: Record<u64>) -> bool {
        if over != self.version {
            return false;
        }
        self.record = Some(record);
        self.version += 1;
        true
    }
}

/// One try: read, decide, write.
fn attempt(candidate: &mut Candidate<u64>, server: &mut Server, now: Instant, wall: u64) -> bool {
    let version = server.version;
    match candidate.see(server.record.as_ref(), now, wall) {
        Action::Wait => false,
        Action::Write(record) => {
            let done = server.write(version, record.clone());
            if done {
                candidate.written(record, now);
            }
            done
        }
    }
}

/// KS-211: the first candidate acquires a free Lease. The second waits while the first renews, and takes over
/// when the first stops.
#[test]
fn ks_211_take_over_after_the_lease_ran_out() {
    let (mut server, start) = (Server::default(), Instant::now());
    let (mut a, mut b) = (Candidate::new("a", Timing::default()), Candidate::new("b", Timing::default()));
    assert!(attempt(&mut a, &mut server, start, 100));
    assert_eq!(server.record.as_ref().unwrap().transitions, 0);
    // b's wall clock is wrong by a day, which must not matter.
    for second in (0..60).step_by(2) {
        assert!(attempt(&mut a, &mut server, start + seconds(second), 100 + second), "renewed at {second}");
        assert!(!attempt(&mut b, &mut server, start + seconds(second + 1), 86_400), "held at {second}");
    }
    let last = start + seconds(58);
    assert!(a.leads(last + seconds(9)) && !a.leads(last + seconds(10)), "gives up before the Lease runs out");
    // b read the last renewal at 59 s.
    assert!(!attempt(&mut b, &mut server, start + seconds(73), 86_400));
    assert!(attempt(&mut b, &mut server, start + seconds(74), 86_401));
    let record = server.record.clone().unwrap();
    assert_eq!((record.holder.as_str(), record.transitions, record.acquired), ("b", 1, Some(86_401)));
    assert!(!attempt(&mut a, &mut server, start + seconds(75), 175) && !a.leads(start + seconds(75)));
}

/// KS-211: a renewal keeps the time of acquisition and the number of transitions.
#[test]
fn ks_211_renewal_keeps_history() {
    let (mut server, start) = (Server::default(), Instant::now());
    let mut a = Candidate::new("a", Timing::default());
    assert!(attempt(&mut a, &mut server, start, 100));
    assert!(attempt(&mut a, &mut server, start + seconds(2), 102));
    let record = server.record.unwrap();
    assert_eq!((record.acquired, record.renewed, record.transitions), (Some(100), Some(102), 0));
}

/// OCM-150: a released Lease can be acquired at once, and a candidate cannot release another's Lease.
#[test]
fn ocm_150_release_lets_the_next_in_at_once() {
    let (mut server, start) = (Server::default(), Instant::now());
    let (mut a, mut b) = (Candidate::new("a", Timing::default()), Candidate::new("b", Timing::default()));
    assert!(attempt(&mut a, &mut server, start, 1));
    assert!(!attempt(&mut b, &mut server, start, 1));
    assert_eq!(b.release(1), None);
    let free = a.release(5).unwrap();
    assert_eq!((free.holder.as_str(), free.lease), ("", seconds(1)));
    let version = server.version;
    assert!(server.write(version, free));
    assert!(attempt(&mut b, &mut server, start + seconds(1), 6));
    assert_eq!(server.record.unwrap().transitions, 1);
}

/// OCM-150: the duration that the holder wrote counts, not the candidate's own, since programs with different
/// settings share a Lease.
#[test]
fn ocm_150_the_holders_duration_counts() {
    let (mut server, start) = (Server::default(), Instant::now());
    let slow = Timing { lease: seconds(137), renew_deadline: seconds(107), retry: seconds(26) };
    let (mut a, mut b) = (Candidate::new("a", slow), Candidate::new("b", Timing::default()));
    assert!(attempt(&mut a, &mut server, start, 1));
    assert!(!attempt(&mut b, &mut server, start, 1));
    assert!(!attempt(&mut b, &mut server, start + seconds(136), 1));
    assert!(attempt(&mut b, &mut server, start + seconds(137), 1));
}

#[test]
fn ks_211_impossible_timings_are_refused() {
    let of = |lease, renew_deadline, retry| {
        let of = Duration::from_millis;
        Timing { lease: of(lease), renew_deadline: of(renew_deadline), retry: of(retry) }.check()
    };
    assert_eq!(of(15_000, 10_000, 2000), Ok(()));
    assert_eq!(of(137_000, 107_000, 26_000), Ok(()));
    assert_eq!(of(10_000, 10_000, 2000), Err(TimingError::LeaseTooShort));
    assert_eq!(of(15_000, 2400, 2000), Err(TimingError::DeadlineTooShort));
    assert_eq!(of(1500, 1000, 100), Err(TimingError::Granularity));
    assert_eq!(of(15_000, 10_000, 0), Err(TimingError::Granularity));
}

#[derive(Clone, Debug)]
enum Step {
    /// Candidate n tries. With `lost`, the server does the write but the response never arrives.
    Try {
        who: usize,
        lost: bool,
    },
    Release {
        who: usize,
    },
    Pass {
        tenths: u64,
    },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => (0..3_usize, any::<bool>()).prop_map(|(who, lost)| Step::Try { who, lost }),
        1 => (0..3_usize).prop_map(|who| Step::Release { who }),
        4 => (1..60_u64).prop_map(|tenths| Step::Pass { tenths }),
    ];
    prop::collection::vec(step, 1..200)
}

proptest! {
    /// KS-211: no two candidates believe that they lead, whatever is lost or slow.
    #[test]
    fn ks_211_never_two_leaders(steps in steps()) {
        let (mut server, mut now, mut wall) = (Server::default(), Instant::now(), 0);
        let mut all: Vec<Candidate<u64>> =
            ["a", "b", "c"].into_iter().map(|id| Candidate::new(id, Timing::default())).collect();
        for step in steps {
            match step {
                Step::Pass { tenths } => now += Duration::from_millis(100 * tenths),
                Step::Try { who, lost } => {
                    wall += 1;
                    let version = server.version;
                    if let Action::Write(record) = all[who].see(server.record.as_ref(), now, wall)
                        && server.write(version, record.clone())
                        && !lost
                    {
                        all[who].written(record, now);
                    }
                }
                // A candidate that releases the Lease has stopped working before.
                Step::Release { who } => {
                    let version = server.version;
                    if all[who].leads(now) && let Some(free) = all[who].release(wall) {
                        server.write(version, free);
                        all[who] = Candidate::new(["a", "b", "c"][who], Timing::default());
                    }
                }
            }
            let leaders = all.iter().filter(|candidate| candidate.leads(now)).count();
            prop_assert!(leaders <= 1, "{leaders} leaders");
        }
    }
}
