//! Waiting for a condition, with a deadline. No test waits in another way, and none sleeps for a fixed time.
//!
//! What announces its changes is waited for through its watch or notification ([`within`], [`shows`]). What does not
//! (a file, a process, a metric) is asked again and again ([`until`], [`found`], [`when`]).

use std::fmt::Debug;
use std::time::Duration;

use tokio::sync::watch;

/// Far longer than anything takes, also for unoptimised code on a busy machine: only a defect gets there.
pub const DEADLINE: Duration = Duration::from_secs(90);
/// The pause before a question that announces nothing is asked again.
const PERIOD: Duration = Duration::from_millis(10);
/// The pauses in a row without an event after which [`quiet`] takes a sequence of events for ended.
const SILENCE: u32 = 60;

/// Waits for the end of `work`.
///
/// # Panics
///
/// If it does not end before the deadline.
pub async fn within<T>(what: &str, work: impl Future<Output = T>) -> T {
    let done = tokio::time::timeout(DEADLINE, work).await;
    done.unwrap_or_else(|_| panic!("never: {what} (waited for {DEADLINE:?})"))
}

/// Asks again and again until there is a result.
///
/// # Panics
///
/// If there is none before the deadline.
pub async fn found<T>(what: &str, mut ask: impl AsyncFnMut() -> Option<T>) -> T {
    let wait = async {
        loop {
            if let Some(found) = ask().await {
                return found;
            }
            tokio::time::sleep(PERIOD).await;
        }
    };
    within(what, wait).await
}

/// Asks again and again until the answer is yes.
///
/// # Panics
///
/// If it does not come before the deadline.
pub async fn until(what: &str, mut ask: impl AsyncFnMut() -> bool) {
    found(what, async || ask().await.then_some(())).await;
}

/// Looks again and again until something holds.
///
/// # Panics
///
/// If it does not before the deadline.
pub async fn when(what: &str, mut holds: impl FnMut() -> bool) {
    until(what, async || holds()).await;
}

/// Asks again and again until the answer is one that `fits`, and returns the answer.
///
/// # Panics
///
/// If there is none before the deadline; names the last answer.
pub async fn fitting<T: Debug>(what: &str, mut ask: impl AsyncFnMut() -> T, fits: impl Fn(&T) -> bool) -> T {
    let mut last = None;
    let wait = async {
        loop {
            let answer = ask().await;
            if fits(&answer) {
                return answer;
            }
            last = Some(answer);
            tokio::time::sleep(PERIOD).await;
        }
    };
    let waited = tokio::time::timeout(DEADLINE, wait).await;
    waited.unwrap_or_else(|_| panic!("{what} stays {last:?}"))
}

/// Asks again and again until the answer is `expected`.
///
/// # Panics
///
/// If it is not before the deadline; names the last answer.
pub async fn equals<T: PartialEq + Debug>(what: &str, expected: &T, ask: impl AsyncFnMut() -> T) {
    fitting(&format!("{what}, which should be {expected:?},"), ask, |answer| answer == expected).await;
}

/// Waits until a watched value satisfies `wanted`.
///
/// # Panics
///
/// If it does not before the deadline, or if its sender is gone.
pub async fn shows<T>(what: &str, watched: &mut watch::Receiver<T>, wanted: impl FnMut(&T) -> bool) {
    let outcome = within(what, watched.wait_for(wanted)).await;
    assert!(outcome.is_ok(), "never: {what}: its sender is gone");
}

/// Waits until a watched value has not changed for a while, 600 ms on an idle machine. Counts pauses and not time: what
/// runs in the same runtime and is late, because the machine is busy, gets its turn between them.
///
/// # Panics
///
/// If it still changes at the deadline.
pub async fn quiet<T>(what: &str, watched: &mut watch::Receiver<T>) {
    watched.mark_unchanged();
    let silence = async {
        let mut pauses = 0;
        while pauses < SILENCE {
            tokio::time::sleep(PERIOD).await;
            pauses = if watched.has_changed().unwrap_or_default() { 0 } else { pauses + 1 };
            watched.mark_unchanged();
        }
    };
    within(what, silence).await;
}
