use std::collections::HashSet;

use proptest::prelude::*;

use super::*;

const DONE: Outcome = Outcome::Done { again_after: None };

/// An item whose hook never wants to be called again runs when something changes.
#[test]
fn endless_pauses_are_borne() {
    let (mut lanes, now) = (Lanes::<_>::new(4), Instant::now());
    for outcome in [Outcome::RunAfter(Duration::MAX), Outcome::Done { again_after: Some(Duration::MAX) }] {
        lanes.add("a");
        assert_eq!(lanes.take(now), Some("a"));
        lanes.end(&"a", outcome, now, 0.5);
        assert!(lanes.deadline().is_some_and(|at| at > now));
        assert_eq!(lanes.take(now), None);
    }
}

/// MC-033, MC-034: many triggers cause one run, and one more if they arrive during the run.
#[test]
fn mc_033_a_key_runs_once_at_a_time_and_once_more_when_dirty() {
    let (mut lanes, now) = (Lanes::<_>::new(4), Instant::now());
    lanes.add("a");
    lanes.add("a");
    assert_eq!(lanes.take(now), Some("a"));
    lanes.add("a");
    lanes.add_bulk("a");
    assert_eq!(lanes.take(now), None);
    lanes.end(&"a", DONE, now, 0.5);
    assert_eq!(lanes.take(now), Some("a"));
    lanes.end(&"a", DONE, now, 0.5);
    assert_eq!(lanes.take(now), None);
}

/// MC-037: a state that the run knew causes no further run; any other state does.
#[test]
fn mc_037_known_states_are_no_news() {
    let (mut lanes, now) = (Lanes::<_, u8>::new(1), Instant::now());
    for (reported, known, again) in
        [(&[1, 2][..], &[2, 1][..], false), (&[1, 3], &[1], true), (&[], &[1], false), (&[1], &[], true)]
    {
        lanes.add("a");
        assert_eq!(lanes.take(now), Some("a"));
        for state in reported {
            lanes.add_for_state("a", *state);
        }
        lanes.end_knowing(&"a", DONE, known, now, 0.5);
        assert_eq!(lanes.take(now), again.then_some("a"), "{reported:?} {known:?}");
        lanes.end(&"a", DONE, now, 0.5);
    }
    // A state that is reported while the item does not run always causes a run.
    lanes.add_for_state("a", 1);
    assert_eq!(lanes.take(now), Some("a"));
    // A run that ends with `Forget` runs again for a state that it did not know.
    lanes.add_for_state("a", 2);
    lanes.end_knowing(&"a", Outcome::Forget, &[1], now, 0.5);
    assert_eq!(lanes.take(now), Some("a"));
}

/// MC-092: a deleted parent leaves no item, timer, back-off or count behind.
#[test]
fn mc_092_forgotten_items_leave_nothing() {
    let (mut lanes, now) = (Lanes::<_>::new(8), Instant::now());
    for i in 0..6 {
        lanes.add(("gone", i));
    }
    lanes.add(("stays", 0));
    let take = |lanes: &mut Lanes<_>| lanes.take(now).unwrap();
    let (timed, failed, reported) = (take(&mut lanes), take(&mut lanes), take(&mut lanes));
    lanes.end(&timed, Outcome::Done { again_after: Some(Duration::from_secs(5)) }, now, 0.5);
    lanes.end(&failed, Outcome::Failed, now, 0.5);
    lanes.end(&reported, Outcome::RunAfter(Duration::from_secs(9)), now, 0.5);
    let running = take(&mut lanes);
    lanes.add(running);
    lanes.add_bulk(("gone", 9));
    lanes.forget(&("gone", 0), |(parent, _)| *parent == "gone");
    assert_eq!((lanes.deadline(), lanes.waiting(), lanes.active()), (None, 1, 1));
    lanes.end(&running, Outcome::Forget, now, 0.5);
    assert_eq!(lanes.len(), 1);
    let later = now + Duration::from_secs(100);
    assert_eq!((lanes.take(later), lanes.take(later)), (Some(("stays", 0)), None));
    // Its failures are forgotten, too: the first back-off is the shortest again.
    lanes.add(failed);
    assert_eq!(lanes.take(now), Some(failed));
    lanes.end(&failed, Outcome::Failed, now, 0.5);
    assert_eq!(lanes.deadline().map(|at| (at - now).as_millis()), Some(250));
}

/// MC-092: of parents that come and go while no worker is free, no more is kept than of the existing parents.
#[test]
fn mc_092_nothing_piles_up() {
    let (mut lanes, now) = (Lanes::<_>::new(1), Instant::now());
    lanes.add((0, 0));
    assert_eq!(lanes.take(now), Some((0, 0)));
    for round in 0..200 {
        for i in 0..10 {
            lanes.add((1 + round % 2, i));
            lanes.add_bulk((3 + round % 2, i));
        }
        lanes.forget(&(1, 0), |(parent, _)| (1..=4).contains(parent));
    }
    assert_eq!(lanes.len(), 1);
    assert!(lanes.fresh.len() + lanes.bulk.len() <= 4 * SLACK, "{} {}", lanes.fresh.len(), lanes.bulk.len());
    lanes.add((1, 1));
    lanes.end(&(0, 0), DONE, now, 0.5);
    assert_eq!(lanes.take(now), Some((1, 1)));
    lanes.end(&(1, 1), DONE, now, 0.5);
    assert_eq!(lanes.take(now), None);
}

/// MC-035: with one slot, fresh and bulk items take turns.
#[test]
fn mc_035_one_slot_alternates() {
    let (mut lanes, now) = (Lanes::<_>::new(1), Instant::now());
    for i in 0..3 {
        lanes.add(format!("f{i}"));
        lanes.add_bulk(format!("b{i}"));
    }
    let mut order = String::new();
    while let Some(key) = lanes.take(now) {
        order.push_str(&key[..1]);
        lanes.end(&key, DONE, now, 0.0);
    }
    assert_eq!(order, "fbfbfb");
}

/// MC-035: hanging failed items hold at most half of the slots.
#[test]
fn mc_035_failed_items_leave_half_of_the_slots() {
    let (mut lanes, now) = (Lanes::<_>::new(4), Instant::now());
    for i in 0..6 {
        lanes.add(i);
    }
    let first: Vec<_> = std::iter::from_fn(|| lanes.take(now)).collect();
    assert_eq!(first.len(), 4);
    for key in first {
        lanes.end(&key, Outcome::Failed, now, 0.5);
    }
    for key in std::iter::from_fn(|| lanes.take(now)).collect::<Vec<_>>() {
        lanes.end(&key, Outcome::Failed, now, 0.5);
    }
    let later = now + Duration::from_secs(1);
    let hanging: Vec<_> = std::iter::from_fn(|| lanes.take(later)).collect();
    assert_eq!(hanging.len(), 2);
    lanes.add(100);
    lanes.add(101);
    assert_eq!((lanes.take(later), lanes.take(later)), (Some(100), Some(101)));
}

/// An item whose runs cause the next run is limited to ten runs per second in the end; an idle item runs at
/// once.
#[test]
fn items_that_bring_themselves_back_are_slowed() {
    let (mut lanes, start) = (Lanes::<_>::new(1), Instant::now());
    let (mut now, mut runs) = (start, 0);
    lanes.add("a");
    while now < start + Duration::from_secs(20) {
        let Some(key) = lanes.take(now) else {
            now = lanes.deadline().unwrap();
            continue;
        };
        runs += 1;
        lanes.add(key);
        lanes.end(&key, DONE, now, 0.5);
    }
    assert!((280..=310).contains(&runs), "{runs}");
    lanes.add("b");
    assert_eq!(lanes.take(now), Some("b"));
}

/// MC-072: the back-off doubles to a minute, an event ends it without resetting the count, success resets the
/// count.
#[test]
fn mc_072_pauses_double_until_success() {
    let mut lanes = Lanes::<_>::new(1);
    let mut now = Instant::now();
    lanes.add(1);
    let mut pauses = vec![];
    for _ in 0..10 {
        lanes.take(now).unwrap();
        lanes.end(&1, Outcome::Failed, now, 0.5);
        let next = lanes.deadline().unwrap();
        pauses.push((next - now).as_millis());
        now = next;
    }
    assert_eq!(pauses, [250, 500, 1000, 2000, 4000, 8000, 16000, 32000, 60000, 60000]);
    lanes.add(1);
    lanes.take(now).unwrap();
    lanes.end(&1, Outcome::Failed, now, 0.5);
    assert_eq!((lanes.deadline().unwrap() - now).as_secs(), 60);
    lanes.add(1);
    lanes.take(now).unwrap();
    lanes.end(&1, DONE, now, 0.5);
    assert_eq!(lanes.deadline(), None);
    lanes.add(1);
    lanes.take(now).unwrap();
    lanes.end(&1, Outcome::Failed, now, 0.0);
    assert_eq!((lanes.deadline().unwrap() - now).as_millis(), 225);
}

/// MC-036: a periodic run adds nothing for an item that waits, runs or is in back-off.
#[test]
fn mc_036_ticks_do_not_pile_up() {
    let (mut lanes, now) = (Lanes::<_>::new(1), Instant::now());
    lanes.resync(1);
    lanes.resync(1);
    lanes.take(now).unwrap();
    lanes.resync(1);
    lanes.end(&1, Outcome::Failed, now, 0.5);
    lanes.resync(1);
    assert_eq!(lanes.take(now), None);
    assert_eq!(lanes.take(now + Duration::from_secs(1)), Some(1));
}

/// MC-A-63: a timer fires once, and a later answer replaces it.
#[test]
fn mc_a_63_a_timer_fires_once() {
    let (mut lanes, now) = (Lanes::<_>::new(1), Instant::now());
    let after = |secs| Outcome::Done { again_after: Some(Duration::from_secs(secs)) };
    lanes.add(1);
    lanes.take(now).unwrap();
    lanes.end(&1, after(9), now, 0.0);
    lanes.add(1);
    lanes.take(now).unwrap();
    lanes.end(&1, after(2), now, 0.0);
    assert_eq!(lanes.take(now + Duration::from_secs(1)), None);
    assert_eq!(lanes.take(now + Duration::from_secs(2)), Some(1));
    lanes.end(&1, DONE, now, 0.0);
    assert_eq!(lanes.take(now + Duration::from_secs(100)), None);
}

#[derive(Clone, Debug)]
enum Step {
    Add(u8),
    Bulk(u8),
    Resync(u8),
    Take,
    End(u8, u8),
    Release(u8),
    Forget(u8),
    Wait(u16),
}

fn step() -> impl Strategy<Value = Step> {
    let key = 0..6_u8;
    prop_oneof![
        4 => key.clone().prop_map(Step::Add),
        2 => key.clone().prop_map(Step::Bulk),
        2 => key.clone().prop_map(Step::Resync),
        5 => Just(Step::Take),
        5 => (key.clone(), 0..5_u8).prop_map(|(k, o)| Step::End(k, o)),
        1 => key.clone().prop_map(Step::Release),
        1 => key.prop_map(Step::Forget),
        2 => (0..3000_u16).prop_map(Step::Wait),
    ]
}

proptest! {
    /// MC-033, MC-034: in any history, no key runs twice at a time, slots are respected, and every added item
    /// runs.
    #[test]
    fn mc_034_nothing_is_lost_and_nothing_runs_twice(steps in prop::collection::vec(step(), 0..120), slots in 1..4_usize) {
        let mut lanes = Lanes::<_>::new(slots);
        let mut now = Instant::now();
        let (mut out, mut held): (HashSet<u8>, HashSet<u8>) = Default::default();
        let mut owed: HashSet<u8> = HashSet::new();
        let outcomes = [DONE, Outcome::Failed, Outcome::RunAfter(Duration::from_secs(1)), Outcome::Stale, Outcome::Forget];
        for step in steps {
            match step {
                Step::Add(k) => { lanes.add(k); owed.insert(k); }
                Step::Bulk(k) => { lanes.add_bulk(k); owed.insert(k); }
                Step::Resync(k) => lanes.resync(k),
                Step::Take => if let Some(k) = lanes.take(now) {
                    prop_assert!(out.insert(k), "twice");
                    held.insert(k);
                    owed.remove(&k);
                    prop_assert!(held.len() <= slots);
                },
                Step::End(k, o) => if out.remove(&k) { held.remove(&k); lanes.end(&k, outcomes[o as usize], now, 0.5) },
                Step::Release(k) => if out.contains(&k) { lanes.release(&k); held.remove(&k); },
                Step::Forget(k) => { lanes.forget(&k, |x| *x == k); owed.remove(&k); }
                Step::Wait(ms) => now += Duration::from_millis(ms.into()),
            }
        }
        for k in out.drain() { lanes.end(&k, DONE, now, 0.5); }
        now += Duration::from_secs(100);
        for _ in 0..100 {
            let Some(k) = lanes.take(now) else { break };
            owed.remove(&k);
            lanes.end(&k, DONE, now, 0.5);
        }
        prop_assert!(owed.is_empty(), "never given out: {:?}", owed);
        prop_assert_eq!((lanes.waiting(), lanes.active()), (0, 0));
    }
}

/// MC-072: an item that fails and changes faster than it may run keeps its back-off.
#[test]
fn mc_072_a_braked_item_keeps_its_back_off() {
    let mut lanes = Lanes::<_>::new(1);
    let now = Instant::now();
    lanes.add(1);
    let mut runs = 0;
    while lanes.take(now).is_some() {
        // It changes during the run.
        lanes.add(1);
        lanes.end(&1, Outcome::Failed, now, 0.5);
        runs += 1;
        assert!(runs < 1000, "it is never braked");
    }
    assert_eq!((lanes.deadline().unwrap() - now).as_secs(), 60);
}
