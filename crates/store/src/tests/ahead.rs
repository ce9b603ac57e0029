//! Handles that do not wait for the disk.

use std::sync::atomic::Ordering;

use proptest::prelude::*;

use super::device::Device;
use super::faults::open;
use super::*;

/// AS-071: writes that are not durable are visible to handles that are ahead, and to no others.
#[test]
#[expect(clippy::await_holding_lock, reason = "the lock is the busy disk; nothing awaited needs it")]
fn only_handles_ahead_see_what_is_not_durable() {
    run(async {
        let device = Device::new(u64::MAX);
        let engine = open(&device).unwrap();
        let (durable, ahead) = (engine.space("a").unwrap(), engine.space("a").unwrap().ahead());
        let k = key("x", "n", "1");
        durable.commit(put(k.clone(), Expect::Absent, "old")).await.unwrap();
        let mut early = ahead.watch(scope("x", None), Revision(1)).unwrap();
        let mut late = durable.watch(scope("x", None), Revision(1)).unwrap();
        let after = durable.commit(put(key("x", "n", "2"), Expect::Absent, "waits"));
        let mut after = Box::pin(after);
        {
            let busy = device.medium.lock();
            let entry = ahead.commit(put(k.clone(), Expect::At(Revision(1)), "new")).await.unwrap();
            assert_eq!(entry.revision, Revision(2));
            assert_eq!((ahead.revision(), durable.revision()), (Revision(2), Revision(1)));
            assert_eq!(&*ahead.snapshot().get(&k).unwrap().value, value("new", Revision(2)).as_bytes());
            assert_eq!(&*durable.snapshot().get(&k).unwrap().value, value("old", Revision(1)).as_bytes());
            assert_eq!(drain(&mut early), ["Updated n/1 2 was 1"]);
            assert!(drain(&mut late).is_empty());
            assert_eq!((early.progress(), late.progress()), (Some(Revision(2)), Some(Revision(1))));
            let past = ahead.collection_at(&collection("x"), Revision(1)).unwrap();
            assert_eq!(&*past.get("n", "1").unwrap().value, value("old", Revision(1)).as_bytes());
            let future = durable.collection_at(&collection("x"), Revision(2));
            assert!(matches!(future, Err(StoreError::Future { .. })), "{future:?}");
            // A write and a refusal of a durable handle wait for everything decided before.
            let mut idle = std::task::Context::from_waker(std::task::Waker::noop());
            assert!(after.as_mut().poll(&mut idle).is_pending());
            let lost = ahead.commit(put(k.clone(), Expect::At(Revision(1)), "lost")).await;
            assert!(matches!(lost, Err(StoreError::Conflict { .. })), "{lost:?}");
            assert!(after.as_mut().poll(&mut idle).is_pending());
            drop(busy);
        }
        let lost = durable.commit(put(k.clone(), Expect::At(Revision(1)), "lost")).await;
        let Err(StoreError::Conflict { actual: Some(actual), .. }) = lost else { panic!("{lost:?}") };
        assert_eq!(
            durable.snapshot().get(&k).unwrap().revision,
            actual.revision,
            "it is published before the answer"
        );
        assert_eq!(after.await.unwrap().revision, Revision(3));
        assert_eq!(drain(&mut late), ["Updated n/1 2 was 1", "Created n/2 3 was 0"]);
        assert_eq!(drain(&mut early), ["Created n/2 3 was 0"]);
    });
}

/// A decision that depends on writes which are not durable is answered only when they are.
#[test]
#[expect(clippy::await_holding_lock, reason = "the lock is the busy disk; nothing awaited needs it")]
fn decisions_are_told_when_their_grounds_are_durable() {
    run(async {
        let device = Device::new(u64::MAX);
        let engine = open(&device).unwrap();
        let (durable, ahead) = (engine.space("a").unwrap(), engine.space("a").unwrap().ahead());
        let k = key("x", "n", "1");
        let mut idle = std::task::Context::from_waker(std::task::Waker::noop());
        let (deciding, blind) = (durable.deciding(), durable.deciding());
        let (mut settled, mut written);
        {
            let _busy = device.medium.lock();
            ahead.commit(put(k.clone(), Expect::Absent, "v")).await.unwrap();
            blind.settle().await.unwrap();
            let found = deciding.snapshot().get(&k).unwrap();
            settled = Box::pin(deciding.settle());
            assert!(settled.as_mut().poll(&mut idle).is_pending());
            written = Box::pin(deciding.commit(put(k.clone(), Expect::At(found.revision), "w")));
            assert!(written.as_mut().poll(&mut idle).is_pending());
        }
        settled.await.unwrap();
        assert!(durable.snapshot().get(&k).is_some());
        assert_eq!(written.await.unwrap().revision, durable.snapshot().get(&k).unwrap().revision);
        deciding.settle().await.unwrap();
        device.left.store(0, Ordering::Relaxed);
        ahead.commit(put(key("x", "n", "2"), Expect::Absent, "v")).await.unwrap();
        deciding.snapshot();
        let never = deciding.settle().await;
        assert!(matches!(never, Err(StoreError::Disk(_) | StoreError::ReadOnly(_))), "{never:?}");
    });
}

/// Both levels drop the same events, whichever level a write uses.
#[test]
fn history_is_as_long_at_both_levels() {
    run(async {
        let engine = Engine::in_memory_with(Limits { events: 20, ..Limits::default() });
        let space = engine.space("a").unwrap();
        for index in 0..100 {
            let by = if index % 2 == 0 { space.clone() } else { space.ahead() };
            by.commit(put(key("x", "n", &index.to_string()), Expect::Absent, "v")).await.unwrap();
        }
        space.commit(put(key("x", "n", "last"), Expect::Absent, "v")).await.unwrap();
        engine.close().await.unwrap();
        let oldest = |published: &crate::published::Published| {
            published.hub.lock().ring.events.front().unwrap().entry.revision
        };
        let shared = &space.shared;
        assert_eq!(oldest(&shared.durable), oldest(&shared.ahead));
        assert_eq!(shared.durable.hub.lock().ring.bytes, shared.ahead.hub.lock().ring.bytes);
        assert!(shared.ahead.hub.lock().ring.events.len() <= 21);
    });
}

/// When the disk refuses, the durable level stays as it is, and no handle can write.
#[test]
fn a_refusing_disk_stops_handles_ahead_too() {
    run(async {
        let device = Device::new(u64::MAX);
        let engine = open(&device).unwrap();
        let (durable, ahead) = (engine.space("a").unwrap(), engine.space("a").unwrap().ahead());
        let k = key("x", "n", "1");
        durable.commit(put(k.clone(), Expect::Absent, "v")).await.unwrap();
        device.left.store(0, Ordering::Relaxed);
        ahead.commit(put(k.clone(), Expect::At(Revision(1)), "w")).await.unwrap();
        let failed = durable.commit(put(key("x", "n", "2"), Expect::Absent, "v")).await;
        assert!(matches!(failed, Err(StoreError::Disk(_) | StoreError::ReadOnly(_))), "{failed:?}");
        let refused = ahead.commit(put(k.clone(), Expect::At(Revision(2)), "w")).await;
        assert!(matches!(refused, Err(StoreError::ReadOnly(_))), "{refused:?}");
        assert_eq!(durable.revision(), Revision(1));
        assert!(matches!(ahead.check(), Err(StoreError::ReadOnly(_))));
    });
}

#[test]
fn watches_ahead_end_with_their_space() {
    run(async {
        let engine = Engine::in_memory();
        let space = engine.space("a").unwrap().ahead();
        let mut watch = space.watch(scope("x", None), Revision(0)).unwrap();
        engine.remove_space("a").await.unwrap();
        assert!(matches!(watch.next().await, Err(StoreError::Closed)));
        let refused = space.commit(put(key("x", "n", "1"), Expect::Absent, "v")).await;
        assert!(matches!(refused, Err(StoreError::Closed)), "{refused:?}");
    });
}

/// A client writes to `a`; a controller ahead copies what it sees there to `b`, and from there to `c`, until the power
/// fails.
async fn copy_until_dark(engine: &Engine) -> u64 {
    let [a, b, c] = ["a", "b", "c"].map(|name| engine.space(name).unwrap());
    let (from, to) = ([a.ahead(), b.ahead()], [b.ahead(), c.ahead()]);
    let mut watches = from.map(|space| space.watch(scope("x", None), Revision(0)).unwrap());
    for round in 0.. {
        let name = round.to_string();
        if a.commit(put(key("x", "n", &name), Expect::Absent, "v")).await.is_err() {
            return round;
        }
        for (watch, to) in watches.iter_mut().zip(&to) {
            let Ok(event) = watch.next().await else { return round };
            if to.commit(put(event.entry.key.clone(), Expect::Absent, "v")).await.is_err() {
                break;
            }
        }
    }
    unreachable!()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases(48)))]
    /// AS-071: after a power failure at any time, all acknowledged writes exist, and no copy exists without its
    /// original.
    #[test]
    fn a_crash_leaves_no_effect_without_its_cause(left in 30..600_u64, luck in any::<u64>()) {
        run(async {
            let device = Device::new(u64::MAX);
            let engine = open(&device).unwrap();
            device.left.store(left, Ordering::Relaxed);
            let acknowledged = copy_until_dark(&engine).await;
            drop(engine);
            let reopened = open(&device.after_crash(luck)).unwrap();
            let [a, b, c] = ["a", "b", "c"].map(|name| reopened.space(name).unwrap().revision().0);
            assert!(a >= acknowledged, "{acknowledged} acknowledged, found {a}");
            assert!(a >= b && b >= c, "{a} originals, {b} copies, {c} copies of copies");
        });
    }
}
