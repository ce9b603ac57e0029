//! Threads that decide each other's writes.

use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::task::{Context, Wake, Waker};

use super::*;

/// Runs a future on a thread of its own.
fn threads<T: Send + 'static>(work: impl Future<Output = T> + Send + 'static) -> std::thread::JoinHandle<T> {
    std::thread::spawn(|| run(work))
}

/// AS-071: writers on many threads, ahead and durable, of several spaces: each write is decided once and answered to
/// its writer, and watchers see all revisions without a gap.
#[test]
fn writers_of_many_threads_lose_nothing() {
    const WRITES: u64 = 400;
    let engine = Engine::in_memory();
    let spaces: Vec<_> = ["a", "b"].map(|name| engine.space(name).unwrap()).into();
    let mut watches: Vec<_> = spaces.iter().map(|space| space.watch_all(Revision(0)).unwrap()).collect();
    let writer = |number: usize| {
        let space = spaces[number % 2].clone();
        let space = if number < 4 { space.ahead() } else { space };
        threads(async move {
            for round in 0..WRITES {
                let key = key("x", "n", &format!("{number}-{round}"));
                let entry = space.commit(put(key.clone(), Expect::Absent, "v")).await.unwrap();
                assert_eq!(space.snapshot().get(&key).unwrap().revision, entry.revision);
            }
        })
    };
    let writers: Vec<_> = (0..8).map(writer).collect();
    for writer in writers {
        writer.join().unwrap();
    }
    for (space, watch) in spaces.iter().zip(&mut watches) {
        run(space.deciding().settle()).unwrap();
        assert_eq!(space.revision(), Revision(4 * WRITES));
        let seen = std::iter::from_fn(|| watch.try_next().unwrap()).map(|event| event.entry.revision.0);
        assert!(seen.eq(1..=4 * WRITES));
    }
}

struct Panics;

impl Wake for Panics {
    fn wake(self: Arc<Self>) {
        panic!("a watcher's waker panics");
    }
}

/// After a panic during a decision nothing is accepted any more, and every waiting writer gets an error.
#[test]
fn a_panic_while_deciding_ends_the_store() {
    run(async {
        let engine = Engine::in_memory();
        let space = engine.space("a").unwrap().ahead();
        let mut watch = space.watch(scope("x", None), Revision(0)).unwrap();
        let waker = Waker::from(Arc::new(Panics));
        {
            let mut next = Box::pin(watch.next());
            assert!(Pin::new(&mut next).poll(&mut Context::from_waker(&waker)).is_pending());
            let writing = AssertUnwindSafe(space.commit(put(key("x", "n", "1"), Expect::Absent, "v")));
            assert!(futures::FutureExt::catch_unwind(writing).await.is_err());
        }
        assert!(matches!(engine.check(), Err(StoreError::Closed)));
        let late = space.commit(put(key("x", "n", "2"), Expect::Absent, "v")).await;
        assert!(matches!(late, Err(StoreError::Closed)), "{late:?}");
        assert!(matches!(engine.remove_space("a").await, Err(StoreError::Closed)));
        engine.close().await.unwrap();
    });
}
