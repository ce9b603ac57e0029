use super::*;
use std::collections::BTreeMap;

fn record() -> Record {
    Record {
        digest: [0; 32],
        content: [0; 32],
        gvr: Gvr::new("apps", "v1", "deployments"),
        uid: "u".into(),
        resource_version: "5".into(),
        generation: Some(2),
        labels: vec![("a".into(), "1".into())],
        annotations: vec![],
        owner: None,
        hold: Hold::Content,
        observed: false,
        done: Done::default(),
    }
}

fn live(version: &str, generation: Option<i64>, label: &str) -> ObjectMeta {
    ObjectMeta {
        uid: Some("u".into()),
        resource_version: Some(version.into()),
        generation,
        labels: Some(BTreeMap::from([("a".to_owned(), label.to_owned())])),
        ..ObjectMeta::default()
    }
}

fn target() -> Target {
    Target { name: "x".into(), ..Target::default() }
}

/// The version in a record, as the write of a work.
fn written(record: &Record) -> Write {
    let Record { uid, resource_version, generation, .. } = record.clone();
    Write { uid, resource_version, generation, owners_of: None }
}

fn put(tracker: &mut Tracker, work: &str, record: Record) -> Vec<(String, Duration)> {
    tracker.begin(&target());
    let write = written(&record);
    tracker.settle(work, &target(), Some(record), Some(write), Instant::now())
}

#[test]
fn ocm_073_events_are_drift_only_when_what_we_enforce_may_have_changed() {
    let other = ObjectMeta { uid: Some("v".into()), ..live("9", Some(1), "1") };
    let cases = vec![
        ("our own write", record(), Some(live("5", Some(2), "1")), Meaning::Nothing),
        ("older than our write", record(), Some(live("4", Some(1), "2")), Meaning::Nothing),
        ("status only", record(), Some(live("6", Some(2), "1")), Meaning::Nothing),
        (
            "status, with feedback",
            Record { observed: true, ..record() },
            Some(live("6", Some(2), "1")),
            Meaning::Look,
        ),
        ("spec changed", record(), Some(live("6", Some(3), "1")), Meaning::Drift),
        ("label taken", record(), Some(live("6", Some(2), "2")), Meaning::Drift),
        ("gone", record(), None, Meaning::Drift),
        ("another incarnation", record(), Some(other.clone()), Meaning::Drift),
        (
            "kind without generations",
            Record { generation: None, ..record() },
            Some(live("6", None, "1")),
            Meaning::Drift,
        ),
        (
            "create-only",
            Record { hold: Hold::Existence, ..record() },
            Some(live("6", Some(3), "2")),
            Meaning::Nothing,
        ),
        (
            "create-only, owner taken",
            Record { hold: Hold::Existence, owner: Some("o".into()), ..record() },
            Some(live("6", Some(2), "1")),
            Meaning::Drift,
        ),
        ("create-only, gone", Record { hold: Hold::Existence, ..record() }, None, Meaning::Drift),
        ("read-only, gone", Record { hold: Hold::Nothing, ..record() }, None, Meaning::Look),
        (
            "read-only, there at last",
            Record { hold: Hold::Nothing, uid: String::new(), ..record() },
            Some(other),
            Meaning::Look,
        ),
        (
            "owner taken",
            Record { owner: Some("o".into()), ..record() },
            Some(live("6", Some(2), "1")),
            Meaning::Drift,
        ),
    ];
    for (why, record, live, expected) in cases {
        assert_eq!(record.meaning(live.as_ref()), expected, "{why}");
    }
}

#[test]
fn a_fight_over_one_object_slows_down() {
    let mut tracker = Tracker::default();
    put(&mut tracker, "w", record());
    let pauses: Vec<Duration> = (0..6)
        .map(|i| tracker.event(&target(), Some(&live(&format!("1{i}"), Some(9), "1")), Instant::now())[0].1)
        .collect();
    assert_eq!(pauses[..3], [Duration::ZERO; 3]);
    assert!(pauses[3] < pauses[4] && pauses[4] < pauses[5]);
}

/// OCM-073: a change by another client that is observed while the work itself is pending is corrected with
/// it.
#[test]
fn ocm_073_a_changed_work_does_not_hide_drift() {
    let mut tracker = Tracker::default();
    put(&mut tracker, "w", record());
    tracker.event(&target(), Some(&live("6", Some(3), "1")), Instant::now());
    tracker.mark("w");
    let todo = tracker.take("w");
    assert!(todo.changed);
    assert_eq!(todo.attention(&target()), Meaning::Drift);
    tracker.put_back("w", todo);
    assert_eq!(tracker.take("w").attention(&target()), Meaning::Drift);
    assert!(tracker.take("w").is_empty());
}

/// OCM-073: an event that arrives before the response to our own request counts if it reports a later
/// version.
#[test]
fn ocm_073_events_that_overtake_the_answer() {
    for (why, event, again) in [
        ("our own write", Some(live("5", Some(2), "1")), false),
        ("the version before", Some(live("4", Some(1), "2")), false),
        ("a later change", Some(live("6", Some(3), "1")), true),
        ("it went", None, true),
    ] {
        let mut tracker = Tracker::default();
        tracker.begin(&target());
        assert!(
            tracker.event(&target(), event.as_ref(), Instant::now()).is_empty(),
            "{why}: nothing recorded"
        );
        let wake = tracker.settle("w", &target(), Some(record()), Some(written(&record())), Instant::now());
        assert_eq!(!wake.is_empty(), again, "{why}");
        assert_eq!(tracker.take("w").attention(&target()) == Meaning::Drift, again, "{why}");
    }
}

/// OCM-085: works that share an object do not overwrite each other's content between passes, and each knows
/// of the other.
#[test]
fn ocm_085_sharing_works_do_not_see_each_others_writes_as_drift() {
    let mut tracker = Tracker::default();
    put(&mut tracker, "one", record());
    let theirs = Record { content: [1; 32], resource_version: "7".into(), generation: Some(3), ..record() };
    tracker.begin(&target());
    let early = tracker.event(&target(), Some(&live("7", Some(3), "1")), Instant::now());
    assert!(early.is_empty(), "the event of a write may come before its answer");
    let write = written(&theirs);
    let wake = tracker.settle("two", &target(), Some(theirs), Some(write), Instant::now());
    assert_eq!(wake, [("one".to_owned(), Duration::ZERO)], "it reports that they disagree");
    assert_eq!(tracker.take("one").attention(&target()), Meaning::Look);
    assert_eq!(tracker.rivals("one", &target()), ["two"]);
    assert!(tracker.event(&target(), Some(&live("7", Some(3), "1")), Instant::now()).is_empty());
    assert_eq!(tracker.event(&target(), Some(&live("8", Some(4), "1")), Instant::now()).len(), 2);
    tracker.take("one");
    assert_eq!(tracker.forget("two", &target()), ["one"], "it has its way again");
    assert_eq!(tracker.take("one").attention(&target()), Meaning::Drift);
    assert!(tracker.rivals("one", &target()).is_empty());
}

#[test]
fn followed_kinds_are_those_with_records() {
    let mut tracker = Tracker::default();
    put(&mut tracker, "one", record());
    put(&mut tracker, "two", record());
    assert_eq!(tracker.changed_kinds(), Some(BTreeSet::from([record().gvr])));
    put(&mut tracker, "two", record());
    assert_eq!(tracker.unfollowed("one", &HashSet::new()), [target()]);
    assert!(tracker.unfollowed("one", &HashSet::from([record().gvr])).is_empty());
    assert!(tracker.forget_work("one").is_empty());
    tracker.changed_kinds();
    assert_eq!(tracker.changed_kinds(), None);
    assert!(tracker.forget_work("two").is_empty());
    assert_eq!(tracker.changed_kinds(), Some(BTreeSet::new()));
}

/// OCM-073: a work that is recreated under its name while the agent finishes the old one is processed.
#[test]
fn ocm_073_forgetting_a_work_does_not_lose_its_successor() {
    let mut tracker = Tracker::default();
    put(&mut tracker, "w", record());
    tracker.take("w");
    tracker.mark("w");
    assert!(tracker.forget_work("w").is_empty());
    assert!(tracker.get("w", &target()).is_none());
    assert!(tracker.take("w").changed);
    assert!(tracker.take("w").is_empty());
}

#[test]
fn a_first_list_tells_of_what_went_before_it() {
    let mut tracker = Tracker::default();
    put(&mut tracker, "w", record());
    let there = HashSet::from([ObjectKey::new("", "x")]);
    assert!(tracker.listed(&record().gvr, &there, Instant::now()).is_empty());
    assert_eq!(tracker.listed(&record().gvr, &HashSet::new(), Instant::now()).len(), 1);
    assert_eq!(tracker.take("w").attention(&target()), Meaning::Drift);
}

/// OCM-161: works that share a namespace do not read it because of each other, neither when one more work is
/// created, in any order of the responses, nor when one is deleted.
#[test]
fn ocm_161_sharers_of_an_object_do_not_wake_each_other() {
    // Without a generation only the version tells.
    let owned = |version: &str| Record { generation: None, resource_version: version.into(), ..record() };
    let mut tracker = Tracker::default();
    assert!(put(&mut tracker, "one", owned("5")).is_empty());
    // Two more at the same time; the event and the response of the later write come first.
    tracker.begin(&target());
    tracker.begin(&target());
    for version in ["6", "7"] {
        assert!(tracker.event(&target(), Some(&live(version, None, "1")), Instant::now()).is_empty());
    }
    for (work, version) in [("three", "7"), ("two", "6")] {
        let write = written(&owned(version));
        let wake = tracker.settle(work, &target(), Some(owned(version)), Some(write), Instant::now());
        assert!(wake.is_empty(), "{work}");
    }
    // One work is deleted: it removes its owner reference.
    let disowned = Write { owners_of: Some("7".into()), ..written(&owned("8")) };
    tracker.begin(&target());
    assert!(tracker.event(&target(), Some(&live("8", None, "1")), Instant::now()).is_empty());
    assert!(tracker.settle("one", &target(), None, Some(disowned), Instant::now()).is_empty());
    assert!(tracker.forget("one", &target()).is_empty());
    // Every other change makes them read it.
    assert_eq!(tracker.event(&target(), Some(&live("9", None, "1")), Instant::now()).len(), 2);
}

/// OCM-073: a change by another client just before our write of the owners is noticed, although only the
/// later version is reported.
#[test]
fn ocm_073_a_change_of_owners_does_not_hide_drift() {
    let held = |version: &str| Record { generation: None, resource_version: version.into(), ..record() };
    let mut tracker = Tracker::default();
    put(&mut tracker, "one", held("5"));
    tracker.begin(&target());
    let disowned = Write { owners_of: Some("6".into()), ..written(&held("7")) };
    assert!(tracker.event(&target(), Some(&live("7", None, "1")), Instant::now()).is_empty());
    assert_eq!(tracker.settle("two", &target(), None, Some(disowned), Instant::now()).len(), 1);
    assert_eq!(tracker.take("one").attention(&target()), Meaning::Drift);
}

/// OCM-090: a work that reports on an object reads what another work wrote.
#[test]
fn ocm_090_an_observer_looks_at_what_another_work_wrote() {
    let mut tracker = Tracker::default();
    put(&mut tracker, "one", Record { hold: Hold::Fields, observed: true, ..record() });
    let theirs = Record { hold: Hold::Fields, resource_version: "6".into(), ..record() };
    assert_eq!(put(&mut tracker, "two", theirs), [("one".to_owned(), Duration::ZERO)]);
    assert_eq!(tracker.take("one").attention(&target()), Meaning::Look);
}

/// OCM-090: also if the other work wrote while this one was about to record what it had read. An apply that
/// changed nothing makes no work read it.
#[test]
fn ocm_090_an_observer_that_comes_late_looks_again() {
    let seen = |version: &str| Record {
        hold: Hold::Fields,
        observed: true,
        resource_version: version.into(),
        ..record()
    };
    let mut tracker = Tracker::default();
    tracker.begin(&target());
    tracker.begin(&target());
    let theirs = seen("7");
    let write = written(&theirs);
    assert!(tracker.settle("two", &target(), Some(theirs), Some(write), Instant::now()).is_empty());
    let wake = tracker.settle("one", &target(), Some(seen("6")), None, Instant::now());
    assert_eq!(wake, [("one".to_owned(), Duration::ZERO)]);
    assert_eq!(tracker.take("one").attention(&target()), Meaning::Look);
    assert!(put(&mut tracker, "one", seen("7")).is_empty(), "nothing new");
}
