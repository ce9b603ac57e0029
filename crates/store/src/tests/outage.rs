//! A disk that is full, and has space again.

use std::sync::atomic::Ordering;

use proptest::prelude::*;
use testkit::wait::{found, when};

use super::damage::{content, limits, reopened};
use super::device::Device;
use super::*;
use crate::log::open_on;

fn start(device: &Device) -> Engine {
    let (log, loaded) = open_on(Arc::new(device.clone()), false).unwrap();
    Engine::start(Some(log), loaded, limits()).unwrap()
}

/// Commits. Retries as long as the store is read-only.
async fn write_again(space: &SpaceStore, write: Write) -> Arc<Entry> {
    found("a write", async || match space.commit(write.clone()).await {
        Ok(entry) => Some(entry),
        Err(StoreError::Disk(_) | StoreError::ReadOnly(_)) => None,
        Err(other) => panic!("{other}"),
    })
    .await
}

/// AS-071: a full disk refuses writes, names the cause, and accepts writes again without a restart, twenty times. No
/// acknowledged write is lost, and no refused one appears.
#[test]
fn a_full_disk_recovers_by_itself() {
    let device = Device::new(u64::MAX);
    run(async {
        let engine = start(&device);
        let space = engine.space("a").unwrap();
        let text = "x".repeat(60 << 10);
        let mut stored = Vec::new();
        for round in 0..20 {
            device.fill(100 << 10);
            let mut refused = None;
            for index in 0..1000 {
                let name = format!("{round}-{index}");
                match space.commit(put(key("x", "n", &name), Expect::Absent, &text)).await {
                    Ok(entry) => stored.push((name, entry.revision)),
                    Err(StoreError::Disk(cause) | StoreError::ReadOnly(cause)) => {
                        assert_eq!(cause.kind(), std::io::ErrorKind::StorageFull);
                        if refused.replace(name).is_some() {
                            break;
                        }
                        // There is not even space to begin a new segment.
                        device.fill_up();
                    }
                    Err(other) => panic!("{other}"),
                }
            }
            let refused = refused.expect("the disk is full");
            assert!(matches!(engine.failure(), Some(StoreError::ReadOnly(_))));
            assert!(engine.check().is_err());
            assert!(space.snapshot().get(&key("x", "n", &refused)).is_none());
            device.free();
            let name = format!("{round}-again");
            let again = write_again(&space, put(key("x", "n", &name), Expect::Absent, "v")).await;
            assert!(engine.failure().is_none());
            stored.push((name, again.revision));
            // Keeps the store small.
            for (name, revision) in stored.drain(..) {
                space.commit(delete(key("x", "n", &name), revision, "gone")).await.unwrap();
            }
            let kept =
                write_again(&space, put(key("x", "n", &format!("kept-{round}")), Expect::Absent, "v")).await;
            assert!(space.snapshot().get(&kept.key).is_some());
        }
        let truth = content(&engine);
        assert_eq!(content(&reopened(&device.after_kill()).unwrap()), truth);
        assert_eq!(content(&reopened(&device.after_crash(7)).unwrap()), truth);
        engine.close().await.unwrap();
        assert_eq!(content(&reopened(&device).unwrap()), truth);
    });
}

/// A long outage with many attempts leaves no files behind.
#[test]
fn attempts_on_a_full_disk_leave_nothing_behind() {
    let device = Device::new(u64::MAX);
    let (mut log, _) = open_on(Arc::new(device.clone()), false).unwrap();
    log.remove(7).unwrap();
    let before = device.files().len();
    device.fill_up();
    // Larger than the rest of the segment.
    let large = "x".repeat(1 << 20);
    let meta = Meta::default();
    let entry = Entry { key: key("x", "n", "1"), revision: Revision(1), value: large.into(), meta };
    let event = [Arc::new(Event { kind: EventKind::Created, entry: entry.into(), previous: None })];
    let change = crate::log::Change { space: 0, describe: Some(("a", Revision(0))), events: &event };
    assert!(log.append([change].into_iter()).is_err());
    for _ in 0..20 {
        assert!(log.reopen().is_err());
    }
    // One more file is allowed: the manifest that could not be written.
    assert!(device.files().len() <= before + 1, "{:?}", device.files().keys());
    device.free();
    log.reopen().unwrap();
    log.remove(7).unwrap();
    open_on(Arc::new(device.after_kill()), true).unwrap();
}

/// The store reopens itself without a write.
#[test]
fn an_outage_ends_without_a_write() {
    let device = Device::new(u64::MAX);
    run(async {
        let engine = start(&device);
        let space = engine.space("a").unwrap();
        space.commit(put(key("x", "n", "1"), Expect::Absent, "v")).await.unwrap();
        device.left.store(0, Ordering::Relaxed);
        assert!(space.commit(put(key("x", "n", "2"), Expect::Absent, "v")).await.is_err());
        device.left.store(u64::MAX, Ordering::Relaxed);
        when("the end of the outage", || engine.failure().is_none()).await;
        space.commit(put(key("x", "n", "2"), Expect::Absent, "v")).await.unwrap();
    });
}

/// When the disk refuses, writes that components decided ahead of it are taken back: their watches end so that they
/// list again, no revision is reused, and no write depends on one that was taken back.
#[test]
fn what_a_full_disk_refuses_is_taken_back() {
    let device = Device::new(u64::MAX);
    run(async {
        let engine = start(&device);
        let (durable, ahead) = (engine.space("a").unwrap(), engine.space("a").unwrap().ahead());
        let k = key("x", "n", "1");
        durable.commit(put(k.clone(), Expect::Absent, "old")).await.unwrap();
        let mut watch = ahead.watch(scope("x", None), Revision(1)).unwrap();
        device.left.store(0, Ordering::Relaxed);
        let deciding = durable.deciding();
        let lost = ahead.commit(put(k.clone(), Expect::At(Revision(1)), "lost")).await.unwrap();
        assert_eq!(lost.revision, Revision(2));
        assert_eq!(watch.next().await.unwrap().entry.revision, Revision(2));
        assert_eq!(deciding.snapshot().revision(), Revision(2));
        let end = watch.next().await;
        assert!(matches!(end, Err(StoreError::Compacted { oldest: Revision(2), .. })), "{end:?}");
        assert_eq!(ahead.snapshot().get(&k).unwrap().revision, Revision(1));
        let never = deciding.settle().await;
        assert!(matches!(never, Err(StoreError::Disk(_) | StoreError::ReadOnly(_))), "{never:?}");
        device.left.store(u64::MAX, Ordering::Relaxed);
        let conflict = found("an accepted write", async || {
            let answer = ahead.commit(put(k.clone(), Expect::At(Revision(2)), "w")).await;
            (!matches!(answer, Err(StoreError::ReadOnly(_)))).then_some(answer)
        })
        .await;
        assert!(matches!(conflict, Err(StoreError::Conflict { .. })), "{conflict:?}");
        let resting = deciding.commit(put(key("x", "n", "2"), Expect::Absent, "w")).await;
        assert!(matches!(resting, Err(StoreError::Disk(_))), "{resting:?}");
        let mut again = ahead.watch(scope("x", None), ahead.revision()).unwrap();
        let next = durable.commit(put(k.clone(), Expect::At(Revision(1)), "new")).await.unwrap();
        assert_eq!(next.revision, Revision(3), "2 was seen");
        assert_eq!(drain(&mut again), ["Updated n/1 3 was 1"]);
        let truth = content(&engine);
        engine.close().await.unwrap();
        assert_eq!(content(&reopened(&device).unwrap()), truth);
    });
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases(24)))]
    /// AS-071: operations fail at random, work again, and the power fails at the end: all acknowledged writes exist,
    /// and no refused one.
    #[test]
    fn failures_and_a_crash_lose_nothing(
        outages in prop::collection::vec((1..60_u64, 0..4_u64), 1..6),
        luck in any::<u64>(),
    ) {
        let device = Device::new(u64::MAX);
        run(async {
            let engine = start(&device);
            let space = engine.space("a").unwrap();
            let mut acknowledged = Vec::new();
            let mut refused = Vec::new();
            for (round, (left, more)) in outages.iter().enumerate() {
                device.left.store(*left, Ordering::Relaxed);
                for index in 0..30 {
                    let name = format!("{round}-{index}");
                    let write = put(key("x", "n", &name), Expect::Absent, "v");
                    match space.commit(write).await {
                        Ok(_) => acknowledged.push(name),
                        Err(_) => refused.push(name),
                    }
                    if !refused.is_empty() && index % 7 == 0 {
                        device.left.store(*more, Ordering::Relaxed);
                    }
                }
                device.left.store(u64::MAX, Ordering::Relaxed);
                let name = format!("{round}-again");
                write_again(&space, put(key("x", "n", &name), Expect::Absent, "v")).await;
                acknowledged.push(name);
            }
            let truth = content(&engine);
            for crashed in [device.after_crash(luck), device.after_kill()] {
                let reopened = reopened(&crashed).unwrap();
                assert_eq!(content(&reopened), truth);
                let snapshot = reopened.space("a").unwrap().snapshot();
                for name in &acknowledged {
                    assert!(snapshot.get(&key("x", "n", name)).is_some(), "{name} is lost");
                }
                for name in &refused {
                    assert!(snapshot.get(&key("x", "n", name)).is_none(), "{name} was refused");
                }
            }
        });
    }
}

/// AS-071: a refused write does not come back when the process dies before the store has reopened itself.
#[test]
fn a_refused_write_does_not_come_back() {
    let device = Device::new(u64::MAX);
    run(async {
        let engine = start(&device);
        let space = engine.space("a").unwrap();
        space.commit(put(key("x", "n", "kept"), Expect::Absent, "v")).await.unwrap();
        let truth = content(&engine);
        // All of it is in the file, but it is not known to be on the disk.
        device.refused_flushes.store(1, Ordering::Relaxed);
        let refused = space.commit(put(key("x", "n", "refused"), Expect::Absent, "v")).await;
        // Killed at once.
        let killed = device.after_kill();
        assert!(matches!(refused, Err(StoreError::Disk(_))), "{refused:?}");
        assert_eq!(content(&reopened(&killed).unwrap()), truth);
        engine.close().await.unwrap();
    });
}
