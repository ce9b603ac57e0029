//! Starts, supervises, restarts and awaits the controllers and agents of this process (SP-070).

use std::collections::BTreeSet;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use runtime::{Backoff, panic_text};
use tokio::sync::{broadcast, watch};
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
    /// The spaces of components that became ready or failed.
    changes: broadcast::Sender<Arc<str>>,
}

/// Changes that a reader may be behind before it is told that it missed some.
const CHANGES: usize = 1024;

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
    /// Another space that the component works with.
    uses: Option<String>,
    /// Ends this component alone.
    stop: CancellationToken,
    /// True once the component has ended for good.
    ended: watch::Sender<bool>,
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
        let changes = broadcast::channel(CHANGES).0;
        Self { tasks: JoinSet::new(), stop: CancellationToken::new(), states: States::default(), changes }
    }

    /// Starts one component for a space, which may work with another space, too (`uses`). Returns the channel that says when
    /// it is ready. A component that was started before is not started again: an attempt to grow that failed half-way may be
    /// repeated (SP-104).
    pub(crate) fn start(
        &mut self,
        name: &'static str,
        space: &str,
        uses: Option<&str>,
        run: Run,
    ) -> watch::Receiver<bool> {
        let mut states = self.states.0.write();
        if let Some(known) = states.iter().find(|s| s.name == name && s.space == space) {
            return known.ready.subscribe();
        }
        let (ready, receiver) = watch::channel(false);
        let state = Arc::new(State {
            name,
            space: space.to_owned(),
            uses: uses.map(str::to_owned),
            stop: self.stop.child_token(),
            ended: watch::Sender::new(false),
            seen: parking_lot::Mutex::default(),
            ready,
        });
        states.push(state.clone());
        drop(states);
        let span = info_span!("component", name, space);
        let (announce, about) =
            (announce(receiver.clone(), self.changes.clone(), space.into()), state.clone());
        let work = async move {
            tokio::select! {
                () = supervise(state, run) => {}
                () = announce => {}
            }
            about.ended.send_replace(true);
        };
        self.tasks.spawn(work.instrument(span));
        receiver
    }

    /// The state of a component; `None` if it was not started.
    pub(crate) fn status_of(&self, name: &str, space: &str) -> Option<ComponentStatus> {
        let states = self.states.0.read();
        states.iter().find(|one| one.name == name && one.space == space).map(|one| one.status())
    }

    /// The spaces of components that become ready or fail from now on.
    pub(crate) fn changes(&self) -> broadcast::Sender<Arc<str>> {
        self.changes.clone()
    }

    /// Tells all components of some spaces to end, and those that work with these spaces. The future waits for them, and then
    /// announces them as changed. They may be started again at once. Cost: one look at each component.
    pub(crate) fn end_of(&mut self, spaces: &BTreeSet<&str>) -> BoxFuture<'static, ()> {
        self.end_those(|one| {
            spaces.contains(one.space.as_str())
                || one.uses.as_deref().is_some_and(|used| spaces.contains(used))
        })
    }

    /// As [`Components::end_of`], for those components of `space` that work with `uses`, too.
    pub(crate) fn end_between(&mut self, space: &str, uses: &str) -> BoxFuture<'static, ()> {
        self.end_those(|one| one.space == space && one.uses.as_deref() == Some(uses))
    }

    /// As [`Components::end_of`], for one component.
    pub(crate) fn end_one(&mut self, name: &str, space: &str) -> BoxFuture<'static, ()> {
        self.end_those(|one| one.space == space && one.name == name)
    }

    fn end_those(&mut self, concerns: impl Fn(&State) -> bool) -> BoxFuture<'static, ()> {
        while self.tasks.try_join_next().is_some() {}
        let concerned: Vec<Arc<State>> = {
            let mut states = self.states.0.write();
            let (concerned, others) = std::mem::take(&mut *states).into_iter().partition(|one| concerns(one));
            *states = others;
            concerned
        };
        for one in &concerned {
            one.stop.cancel();
        }
        let changes = self.changes.clone();
        Box::pin(async move {
            for one in concerned {
                // The sender is in `one`, so the wait ends with the component.
                let _ = one.ended.subscribe().wait_for(|ended| *ended).await;
                // Nobody may be listening.
                let _ = changes.send(one.space.as_str().into());
            }
        })
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

/// Announces the space of a component whenever its readiness changes. Ends never while the component exists.
async fn announce(mut ready: watch::Receiver<bool>, changes: broadcast::Sender<Arc<str>>, space: Arc<str>) {
    while ready.changed().await.is_ok() {
        // Nobody may be listening.
        let _ = changes.send(space.clone());
    }
    std::future::pending::<()>().await;
}

/// Runs a component until it is stopped, and restarts it after a failure. A panic of one component does not affect the
/// others.
async fn supervise(state: Arc<State>, run: Run) {
    let stop = state.stop.clone();
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
            None,
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
        let again = all.start("flaky", "wds1", None, Box::new(|_, _| unreachable!("it runs already")));
        assert!(*again.borrow(), "SP-104: started once, however often it is asked for");
        all.stop().await;
        assert_eq!(runs.load(Ordering::SeqCst), 3);
    }

    /// SP-049: the components of a space end, and those that work with it; the others go on, and all may be started again.
    #[tokio::test(start_paused = true)]
    async fn sp_049_components_of_a_space_end_with_it() {
        let running: Arc<parking_lot::Mutex<Vec<&str>>> = Arc::default();
        let run = |name: &'static str| -> Run {
            let running = running.clone();
            Box::new(move |stop, ready| {
                let running = running.clone();
                Box::pin(async move {
                    running.lock().push(name);
                    ready.send_replace(true);
                    stop.cancelled().await;
                    running.lock().retain(|one| *one != name);
                    Ok(())
                })
            })
        };
        let mut all = Components::new();
        let mut changes = all.changes().subscribe();
        for (name, space, uses) in
            [("hub", "its1", None), ("transport", "wds1", Some("its1")), ("transport", "wds2", Some("its2"))]
        {
            let shown = if space == "wds2" { "other" } else { name };
            let mut ready = all.start(name, space, uses, run(shown));
            ready.wait_for(|ready| *ready).await.unwrap();
            assert_eq!(&*changes.recv().await.unwrap(), space);
        }
        all.end_of(&BTreeSet::from(["its1"])).await;
        assert_eq!((&*changes.recv().await.unwrap(), &*changes.recv().await.unwrap()), ("its1", "wds1"));
        assert_eq!(*running.lock(), ["other"]);
        assert!(all.status_of("hub", "its1").is_none() && all.status_of("transport", "wds2").is_some());
        let mut again = all.start("hub", "its1", None, run("hub"));
        again.wait_for(|ready| *ready).await.unwrap();
        all.stop().await;
        assert!(running.lock().is_empty());
    }
}
