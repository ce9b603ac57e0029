//! A disk that forgets what was not flushed, and a disk that refuses.

use std::sync::atomic::Ordering;

use proptest::prelude::*;

use super::device::Device;
use super::*;
use crate::log::open_on;

pub(super) fn open(device: &Device) -> Result<Engine, StoreError> {
    let (log, loaded) = open_on(Arc::new(device.clone()), false)?;
    let limits = Limits { events: 20, ..Limits::default() };
    Engine::start(Some(log), loaded, limits)
}

/// Writes until the power fails. Returns the last acknowledged revision.
async fn write_until_dark(engine: &Engine) -> u64 {
    let space = engine.space("a").unwrap();
    for round in 0_u64.. {
        let k = key("x", "n", &(round % 7).to_string());
        let stored = space.snapshot().get(&k);
        let write = match stored {
            Some(stored) if round % 5 == 0 => delete(k, stored.revision, "gone"),
            Some(stored) => put(k, Expect::At(stored.revision), &round.to_string()),
            None => put(k, Expect::Absent, &round.to_string()),
        };
        match space.commit(write).await {
            Ok(entry) => assert_eq!(entry.revision.0, round + 1),
            Err(StoreError::Disk(_)) => {
                assert_eq!(space.revision().0, round, "a write that failed does not show");
                let next = space.commit(put(key("x", "n", "next"), Expect::Absent, "v")).await;
                assert!(matches!(next, Err(StoreError::ReadOnly(_))), "{next:?}");
                assert!(matches!(engine.check(), Err(StoreError::ReadOnly(_))));
                assert!(matches!(space.check(), Err(StoreError::ReadOnly(_))));
                return round;
            }
            Err(other) => panic!("{other}"),
        }
    }
    unreachable!()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(cases(48)))]
    /// AS-071: after a power failure at any time, whatever unflushed writes survive, all acknowledged writes exist, at
    /// most the one in flight exists besides, and the history continues from there.
    #[test]
    fn a_crash_loses_no_acknowledged_write(left in 30..900_u64, luck in any::<u64>()) {
        run(async {
            let device = Device::new(u64::MAX);
            let engine = open(&device).unwrap();
            device.left.store(left, Ordering::Relaxed);
            let acknowledged = write_until_dark(&engine).await;
            drop(engine);
            let reopened = open(&device.after_crash(luck)).unwrap();
            let space = reopened.space("a").unwrap();
            let found = space.revision().0;
            assert!(found == acknowledged || found == acknowledged + 1, "{acknowledged}, found {found}");
            let oldest = found.saturating_sub(20);
            let mut watch = space.watch(scope("x", None), Revision(oldest)).unwrap();
            for revision in oldest + 1..=found {
                assert_eq!(watch.next().await.unwrap().entry.revision.0, revision);
            }
            let k = key("x", "n", "more");
            let more = space.commit(put(k, Expect::Absent, "v")).await.unwrap();
            assert_eq!(more.revision.0, found + 1);
        });
    }
}

#[test]
fn a_commit_is_one_sync_and_waiting_writes_share_it() {
    run(async {
        let device = Device::new(u64::MAX);
        let engine = open(&device).unwrap();
        let space = engine.space("a").unwrap();
        space.commit(put(key("x", "n", "first"), Expect::Absent, "v")).await.unwrap();
        let before = device.medium.lock().syncs;
        space.commit(put(key("x", "n", "second"), Expect::Absent, "v")).await.unwrap();
        assert_eq!(device.medium.lock().syncs - before, 1);

        // While the disk writes one group, the others queue for the next.
        let writes = (0..100).map(|index| {
            let space = engine.space(["a", "b"][index % 2]).unwrap();
            async move { space.commit(put(key("x", "n", &index.to_string()), Expect::Absent, "v")).await }
        });
        let mut all = Box::pin(futures::future::join_all(writes));
        let before = {
            let busy = device.medium.lock();
            let mut idle = std::task::Context::from_waker(std::task::Waker::noop());
            assert!(all.as_mut().poll(&mut idle).is_pending());
            busy.syncs
        };
        assert!(all.await.iter().all(Result::is_ok));
        assert!(device.medium.lock().syncs - before <= 3);
    });
}

#[test]
fn the_backlog_is_bounded_in_bytes() {
    run(async {
        let device = Device::new(u64::MAX);
        let (log, loaded) = open_on(Arc::new(device.clone()), false).unwrap();
        let limits = Limits { backlog_bytes: 64 << 10, ..Limits::default() };
        let engine = Engine::start(Some(log), loaded, limits).unwrap();
        let space = engine.space("a").unwrap();
        let text = "x".repeat(31 << 10);
        let write = |index: usize| put(key("x", "n", &index.to_string()), Expect::Absent, &text);
        let mut all = Box::pin(futures::future::join_all((0..20).map(|index| space.commit(write(index)))));
        {
            // The disk is busy: two writes are on their way to it, the others wait in their callers.
            let _busy = device.medium.lock();
            let mut idle = std::task::Context::from_waker(std::task::Waker::noop());
            assert!(all.as_mut().poll(&mut idle).is_pending());
            assert_eq!(space.core.committing(text.len()), 2);
            assert_eq!(space.ahead().revision(), Revision(2));
        }
        assert!(all.await.iter().all(Result::is_ok));
        // A write larger than the backlog is accepted as well.
        let large = "x".repeat(100 << 10);
        space.commit(put(key("x", "n", "large"), Expect::Absent, &large)).await.unwrap();
        assert_eq!(space.revision(), Revision(21));
    });
}

#[test]
fn a_space_says_that_it_ended() {
    run(async {
        let engine = Engine::in_memory();
        let (removed, closed) = (engine.space("a").unwrap(), engine.space("b").unwrap());
        assert!(removed.check().is_ok());
        engine.remove_space("a").await.unwrap();
        assert!(matches!(removed.check(), Err(StoreError::Closed)));
        assert!(closed.check().is_ok());
        engine.close().await.unwrap();
        assert!(matches!(closed.check(), Err(StoreError::Closed)));
    });
}

#[test]
fn reads_go_on_after_the_disk_failed() {
    run(async {
        let device = Device::new(u64::MAX);
        let engine = open(&device).unwrap();
        let space = engine.space("a").unwrap();
        let k = key("x", "n", "1");
        space.commit(put(k.clone(), Expect::Absent, "v")).await.unwrap();
        assert!(space.check().is_ok());
        device.left.store(0, Ordering::Relaxed);
        let failed = space.commit(put(k.clone(), Expect::At(Revision(1)), "w")).await;
        assert!(matches!(failed, Err(StoreError::Disk(_))), "{failed:?}");
        assert_eq!(space.snapshot().get(&k).unwrap().revision, Revision(1));
        let mut watch = space.watch(scope("x", None), Revision(0)).unwrap();
        assert_eq!(drain(&mut watch), ["Created n/1 1 was 0"]);
        assert!(matches!(engine.remove_space("a").await, Err(StoreError::ReadOnly(_))));
        assert!(matches!(engine.close().await, Err(StoreError::ReadOnly(_))));
    });
}
