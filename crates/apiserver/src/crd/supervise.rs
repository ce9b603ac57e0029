//! Restarts the follower of CustomResourceDefinitions after a panic.

use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use futures::FutureExt as _;
use store::SpaceStore;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::Follower;
use crate::admission::Admission;
use crate::catalog::Catalog;

/// Back-off before a restart: the first pause, and the longest. A follower that ran for the longest pause resets the
/// back-off.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(10));

/// Whether changes of definitions reach the catalog. Clones share the state.
#[derive(Clone, Debug, Default)]
pub struct FollowerHealth(Arc<AtomicBool>);

impl FollowerHealth {
    /// The state of a follower that is in sync and about to run.
    pub fn up() -> Self {
        Self(Arc::new(AtomicBool::new(true)))
    }

    pub fn is_up(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }

    fn set(&self, up: bool) {
        self.0.store(up, Ordering::Release);
    }
}

/// Runs `first`, which is in sync. After a panic, runs a new follower that starts with a sync of its own, until
/// stopped (AS-040).
pub async fn supervise(
    first: Follower,
    store: SpaceStore,
    catalog: Arc<ArcSwap<Catalog>>,
    conversion: Option<Arc<dyn Admission>>,
    follower_health: FollowerHealth,
    stop: CancellationToken,
) {
    let mut first = Some(first);
    let up = follower_health.clone();
    let until = stop.clone();
    let follow = move || {
        let (first, up, stop) = (first.take(), up.clone(), until.clone());
        let (store, catalog, conversion) = (store.clone(), catalog.clone(), conversion.clone());
        async move {
            let follower = match first {
                Some(follower) => follower,
                None => {
                    let follower = Follower::new(store, catalog, conversion);
                    follower.sync().await;
                    follower
                }
            };
            up.set(true);
            follower.run(stop).await;
        }
    };
    restart_on_panic(follow, &follower_health, &stop).await;
}

/// Starts `follow` again whenever it panics. No state of the panicked follower is reused.
pub(super) async fn restart_on_panic<F: Future<Output = ()>>(
    mut follow: impl FnMut() -> F,
    follower_health: &FollowerHealth,
    stop: &CancellationToken,
) {
    let (shortest, longest) = BACKOFF;
    let mut pause = shortest;
    loop {
        let started = Instant::now();
        let outcome = AssertUnwindSafe(async { follow().await }).catch_unwind().await;
        follower_health.set(false);
        let Err(panic) = outcome else {
            if !stop.is_cancelled() {
                tracing::warn!("custom resource definitions are not followed any more: the store is closed");
            }
            return;
        };
        if started.elapsed() >= longest {
            pause = shortest;
        }
        tracing::error!(
            panic = reason(&*panic),
            ?pause,
            "following custom resource definitions panicked; starting anew"
        );
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(pause) => {}
        }
        pause = (pause * 2).min(longest);
    }
}

fn reason(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no reason given")
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    /// AS-040: a follower that panics is replaced; meanwhile health reports it.
    #[tokio::test(start_paused = true)]
    async fn as_040_a_follower_that_panics_is_replaced() {
        let (follower_health, stop) = (FollowerHealth::default(), CancellationToken::new());
        let starts = AtomicUsize::new(0);
        let seen = parking_lot::Mutex::new(Vec::new());
        let follow = || {
            let start = starts.fetch_add(1, Ordering::Relaxed);
            seen.lock().push(follower_health.is_up());
            follower_health.set(true);
            let stop = stop.clone();
            async move {
                tokio::task::yield_now().await;
                assert!(start >= 3, "start {start} fails");
                stop.cancelled().await;
            }
        };
        let begun = Instant::now();
        let check = async {
            tokio::time::sleep(Duration::from_secs(2)).await;
            assert!(follower_health.is_up());
            stop.cancel();
        };
        tokio::join!(restart_on_panic(follow, &follower_health, &stop), check);
        assert_eq!(*seen.lock(), [false; 4], "down from the panic to the new start");
        assert!(!follower_health.is_up());
        assert!(begun.elapsed() < Duration::from_secs(3), "{:?}", begun.elapsed());
    }

    /// A panic does not delay the stop.
    #[tokio::test(start_paused = true)]
    async fn a_stop_ends_the_pause() {
        let (follower_health, stop) = (FollowerHealth::default(), CancellationToken::new());
        stop.cancel();
        restart_on_panic(|| async { panic!("always") }, &follower_health, &stop).await;
        assert!(!follower_health.is_up());
    }
}
