//! Starts, supervises, restarts and awaits the controllers and agents of this process (SP-070).

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use runtime::{Backoff, panic_text};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::{Instrument, error, info_span};

use crate::control::ComponentStatus;

/// A component that `serve --without` leaves to another process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Elsewhere {
    ControllerManager,
    TransportController,
    WorkAgent,
    StatusAgent,
}

/// Bounds of the wait before a failed component is started again.
const BACKOFF: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));
/// The back-off of a component that ran this long starts anew.
const HEALTHY: Duration = Duration::from_secs(60);

/// Starts one run of a component. The run ends when its token is cancelled, or with an error.
pub(crate) type Run =
    Box<dyn Fn(CancellationToken, watch::Sender<bool>) -> BoxFuture<'static, anyhow::Result<()>> + Send>;

/// All components of a server. Dropping it aborts them; [`Components::stop`] ends them in order.
pub(crate) struct Components {
    tasks: JoinSet<()>,
    stop: CancellationToken,
    states: States,
}

/// The states of the components; clones share them.
#[derive(Clone, Default)]
pub(crate) struct States(Arc<parking_lot::RwLock<Vec<Arc<State>>>>);

impl States {
    pub(crate) fn status(&self) -> Vec<ComponentStatus> {
        self.0.read().iter().map(|s| s.status()).collect()
    }
}

struct State {
    name: &'static str,
    space: String,
    seen: parking_lot::Mutex<Seen>,
    ready: watch::Sender<bool>,
}

#[derive(Default)]
struct Seen {
    restarts: u32,
    last_error: Option<String>,
}

impl Components {
    pub(crate) fn new() -> Self {
        Self { tasks: JoinSet::new(), stop: CancellationToken::new(), states: States::default() }
    }

    /// Starts one component for a space and returns the channel that says when it is ready. A component that was started
    /// before is not started again: an attempt to grow that failed half-way may be repeated (SP-104).
    pub(crate) fn start(&mut self, name: &'static str, space: &str, run: Run) -> watch::Receiver<bool> {
        let mut states = self.states.0.write();
        if let Some(known) = states.iter().find(|s| s.name == name && s.space == space) {
            return known.ready.subscribe();
        }
        let (ready, receiver) = watch::channel(false);
        let state =
            Arc::new(State { name, space: space.to_owned(), seen: parking_lot::Mutex::default(), ready });
        states.push(state.clone());
        drop(states);
        let span = info_span!("component", name, space);
        self.tasks.spawn(supervise(state, run, self.stop.child_token()).instrument(span));
        receiver
    }

    pub(crate) fn status(&self) -> Vec<ComponentStatus> {
        self.states.status()
    }

    /// The states that [`Components::status`] reads.
    pub(crate) fn states(&self) -> States {
        self.states.clone()
    }

    /// Cancels all and waits for them.
    pub(crate) async fn stop(&mut self) {
        self.stop.cancel();
        while self.tasks.join_next().await.is_some() {}
    }
}

impl State {
    fn status(&self) -> ComponentStatus {
        let seen = self.seen.lock();
        ComponentStatus {
            name: self.name.to_owned(),
            space: self.space.clone(),
            ready: *self.ready.borrow(),
            restarts: seen.restarts,
            last_error: seen.last_error.clone(),
        }
    }

    fn failed(&self, why: String) {
        error!(component = self.name, space = self.space, why, "component failed");
        self.ready.send_replace(false);
        let mut seen = self.seen.lock();
        seen.restarts += 1;
        seen.last_error = Some(why);
    }
}

/// Runs a component until `stop`, and restarts it after a failure. A panic of one component does not affect the others.
async fn supervise(state: Arc<State>, run: Run, stop: CancellationToken) {
    let mut backoff = Backoff::new(BACKOFF.0, BACKOFF.1);
    while !stop.is_cancelled() {
        let started = tokio::time::Instant::now();
        let outcome = AssertUnwindSafe(run(stop.child_token(), state.ready.clone())).catch_unwind().await;
        if stop.is_cancelled() {
            return;
        }
        state.failed(match outcome {
            Ok(Ok(())) => "it ended without being told to".to_owned(),
            Ok(Err(error)) => format!("{error:#}"),
            Err(panic) => format!("panic: {}", panic_text(panic.as_ref())),
        });
        if started.elapsed() > HEALTHY {
            backoff.reset();
        }
        tokio::select! {
            () = tokio::time::sleep(backoff.pause()) => {}
            () = stop.cancelled() => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    /// SP-070: a failure or a panic restarts the component alone, and shows in its status.
    #[tokio::test(start_paused = true)]
    async fn sp_070_failed_component_is_restarted() {
        let mut all = Components::new();
        let runs = Arc::new(AtomicU32::new(0));
        let count = runs.clone();
        let mut ready = all.start(
            "flaky",
            "wds1",
            Box::new(move |stop, ready| {
                let n = count.fetch_add(1, Ordering::SeqCst);
                Box::pin(async move {
                    match n {
                        0 => anyhow::bail!("first"),
                        1 => panic!("second"),
                        _ => {
                            ready.send_replace(true);
                            stop.cancelled().await;
                            Ok(())
                        }
                    }
                })
            }),
        );
        ready.wait_for(|r| *r).await.unwrap();
        let status = all.status();
        assert_eq!((status[0].restarts, status[0].last_error.as_deref()), (2, Some("panic: second")));
        let again = all.start("flaky", "wds1", Box::new(|_, _| unreachable!("it runs already")));
        assert!(*again.borrow(), "SP-104: started once, however often it is asked for");
        all.stop().await;
        assert_eq!(runs.load(Ordering::SeqCst), 3);
    }
}
