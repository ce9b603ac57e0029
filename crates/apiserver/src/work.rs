//! CPU-heavy work, off the threads that answer requests, and shared fairly between users.
//!
//! The threads of the runtime answer all requests. Work that may take longer than a few milliseconds (large bodies,
//! large stored objects, definitions, rules, lists that need conversion) takes a *slot* and runs on a thread of its
//! own. There is one slot per core. A user gets at most half of the slots. Users with waiting work take turns, one
//! piece of work at a time, and the pieces of one user run in the order of arrival. So whatever one user asks for,
//! half of the slots and the threads of the runtime are left to the others. Components of this process may take all
//! slots, but also wait for their turn.
//!
//! The slots belong to the process, because its spaces share the same cores.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::error::ApiError;

/// Bodies and stored objects above this size are heavy work.
pub(crate) const HEAVY_BYTES: usize = 64 << 10;
/// Lists of more objects than this are heavy work if the objects must be parsed.
pub(crate) const HEAVY_OBJECTS: usize = 500;

/// The user that a piece of work is queued for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Client {
    /// The number of the server ([`server_number`]), because users of two spaces are different users.
    pub server: u64,
    pub user: Arc<str>,
    /// A component of this process. It may take all slots.
    pub internal: bool,
}

/// A number for a server that no other server of this process has.
pub(crate) fn server_number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Why work was not done.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WorkError {
    /// The user has reached the limit of waiting work.
    #[error("too much work of this client is waiting")]
    Full,
    /// The work panicked, or the runtime is shutting down.
    #[error(transparent)]
    Failed(#[from] tokio::task::JoinError),
}

impl From<WorkError> for ApiError {
    fn from(error: WorkError) -> Self {
        match error {
            WorkError::Full => Self::too_many_requests(),
            WorkError::Failed(error) => Self::internal(error),
        }
    }
}

/// The slots and the queues in front of them. Clones share them.
#[derive(Clone)]
pub(crate) struct HeavyWork(Arc<Mutex<State>>);

struct State {
    free: usize,
    /// Most slots of one user.
    max_per_client: usize,
    clients: HashMap<Client, Queue>,
    /// Clients with waiting work, in the order of their turns.
    turns: VecDeque<Client>,
}

/// Running and waiting work of one client. Removed when both are empty.
#[derive(Default)]
struct Queue {
    running: usize,
    waiting: VecDeque<oneshot::Sender<Slot>>,
}

/// The right to run one piece of work. Dropping it frees the slot.
struct Slot {
    work: HeavyWork,
    client: Client,
}

impl Drop for Slot {
    fn drop(&mut self) {
        let granted = self.work.0.lock().release(&self.client);
        self.work.grant(granted);
    }
}

impl HeavyWork {
    /// `slots` slots, but at least two, so that one user never takes all.
    pub(crate) fn new(slots: usize) -> Self {
        let free = slots.max(2);
        let state = State { free, max_per_client: free / 2, clients: HashMap::new(), turns: VecDeque::new() };
        Self(Arc::new(Mutex::new(state)))
    }

    /// The slots of this process, one for each core.
    pub(crate) fn of_process() -> Self {
        static SLOTS: OnceLock<HeavyWork> = OnceLock::new();
        let cores = || std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        SLOTS.get_or_init(|| Self::new(cores())).clone()
    }

    /// Runs the work on a thread of its own once it has a slot. Dropping the future removes waiting work from the
    /// queue; work that has started runs to its end and keeps its slot until then.
    ///
    /// # Errors
    /// [`WorkError::Full`] at once if `most_waiting` pieces of work of the client are waiting already.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        client: &Client,
        most_waiting: usize,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, WorkError> {
        let slot = self.slot(client, most_waiting).await?;
        let run = move || {
            let _slot = slot;
            work()
        };
        Ok(tokio::task::spawn_blocking(run).await?)
    }

    async fn slot(&self, client: &Client, most_waiting: usize) -> Result<Slot, WorkError> {
        let (sender, receiver) = oneshot::channel();
        let granted = self.0.lock().enqueue(client, sender, most_waiting)?;
        self.grant(granted);
        // A sender is dropped only after it has sent a slot, or after its receiver has been dropped.
        receiver.await.map_err(|_| WorkError::Full)
    }

    /// Hands out slots. The lock must not be held: a slot without a receiver frees itself when it is dropped.
    fn grant(&self, granted: Vec<(Client, oneshot::Sender<Slot>)>) {
        for (client, sender) in granted {
            drop(sender.send(Slot { work: self.clone(), client }));
        }
    }
}

impl State {
    fn enqueue(
        &mut self,
        client: &Client,
        sender: oneshot::Sender<Slot>,
        most_waiting: usize,
    ) -> Result<Vec<(Client, oneshot::Sender<Slot>)>, WorkError> {
        let queue = self.clients.entry(client.clone()).or_default();
        queue.waiting.retain(|waiting| !waiting.is_closed());
        let at_once = self.free > 0 && queue.running < most(self.max_per_client, client);
        if queue.waiting.len() >= most_waiting && !(at_once && queue.waiting.is_empty()) {
            if queue.running == 0 && queue.waiting.is_empty() {
                self.clients.remove(client);
            }
            return Err(WorkError::Full);
        }
        if queue.waiting.is_empty() && !self.turns.contains(client) {
            self.turns.push_back(client.clone());
        }
        queue.waiting.push_back(sender);
        Ok(self.take_turns())
    }

    fn release(&mut self, client: &Client) -> Vec<(Client, oneshot::Sender<Slot>)> {
        self.free += 1;
        if let Some(queue) = self.clients.get_mut(client) {
            queue.running -= 1;
            if queue.running == 0 && queue.waiting.is_empty() {
                self.clients.remove(client);
            }
        }
        self.take_turns()
    }

    /// Assigns free slots: to the first client in turn that may take another one, and so on.
    fn take_turns(&mut self) -> Vec<(Client, oneshot::Sender<Slot>)> {
        let mut granted = Vec::new();
        let mut looked_at = 0;
        while self.free > 0 && looked_at < self.turns.len() {
            let Some(client) = self.turns.get(looked_at).cloned() else { break };
            let Some(queue) = self.clients.get_mut(&client) else {
                self.turns.remove(looked_at);
                continue;
            };
            while queue.waiting.front().is_some_and(oneshot::Sender::is_closed) {
                queue.waiting.pop_front();
            }
            if queue.waiting.is_empty() {
                if queue.running == 0 {
                    self.clients.remove(&client);
                }
                self.turns.remove(looked_at);
            } else if queue.running >= most(self.max_per_client, &client) {
                looked_at += 1;
            } else if let Some(sender) = queue.waiting.pop_front() {
                queue.running += 1;
                self.free -= 1;
                // The client's next turn comes after the turns of all other clients.
                self.turns.remove(looked_at);
                if !queue.waiting.is_empty() {
                    self.turns.push_back(client.clone());
                    looked_at = 0;
                }
                granted.push((client, sender));
            }
        }
        granted
    }
}

fn most(max_per_client: usize, client: &Client) -> usize {
    if client.internal { usize::MAX } else { max_per_client }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    fn client(user: &str, internal: bool) -> Client {
        Client { server: 0, user: user.into(), internal }
    }

    /// Starts work that reports its name when it begins, and runs until the test ends it.
    struct Scene {
        work: HeavyWork,
        begun: (mpsc::Sender<&'static str>, mpsc::Receiver<&'static str>),
        tasks: tokio::task::JoinSet<Result<(), WorkError>>,
    }

    impl Scene {
        fn new(slots: usize) -> Self {
            Self { work: HeavyWork::new(slots), begun: mpsc::channel(), tasks: tokio::task::JoinSet::new() }
        }

        /// Dropping the returned sender ends the work.
        async fn start(&mut self, client: &Client, name: &'static str) -> mpsc::Sender<()> {
            let (end, ended) = mpsc::channel::<()>();
            let (work, client, begun) = (self.work.clone(), client.clone(), self.begun.0.clone());
            self.tasks.spawn(async move {
                let run = move || {
                    let _ = begun.send(name);
                    let _ = ended.recv();
                };
                work.run(&client, 3, run).await
            });
            // The task is in the queue once it has been polled.
            tokio::task::yield_now().await;
            end
        }

        async fn next(&self) -> &'static str {
            loop {
                if let Ok(name) = self.begun.1.try_recv() {
                    return name;
                }
                tokio::task::yield_now().await;
            }
        }

        fn is_quiet(&self) -> bool {
            self.begun.1.try_recv().is_err()
        }
    }

    /// AS-070: one user has half of the slots, however much it asks for; another gets the rest at once.
    #[tokio::test]
    async fn as_070_a_user_has_half_of_the_slots() {
        let mut scene = Scene::new(2);
        let (alice, bob) = (client("alice", false), client("bob", false));
        let first = scene.start(&alice, "alice 1").await;
        let second = scene.start(&alice, "alice 2").await;
        assert_eq!(scene.next().await, "alice 1");
        let other = scene.start(&bob, "bob 1").await;
        assert_eq!(scene.next().await, "bob 1");
        assert!(scene.is_quiet());
        drop(first);
        assert_eq!(scene.next().await, "alice 2");
        drop((second, other));
        while let Some(done) = scene.tasks.join_next().await {
            assert!(matches!(done, Ok(Ok(()))));
        }
        assert!(scene.work.0.lock().clients.is_empty() && scene.work.0.lock().free == 2);
    }

    /// AS-070: users take turns; components of the process may have all slots, and wait for their turn as well.
    #[tokio::test]
    async fn as_070_users_and_components_take_turns() {
        let mut scene = Scene::new(2);
        let (component, alice, bob) = (client("c", true), client("alice", false), client("bob", false));
        let running = [scene.start(&component, "c 1").await, scene.start(&component, "c 2").await];
        assert_eq!((scene.next().await, scene.next().await), ("c 1", "c 2"));
        let waiting = [
            scene.start(&component, "c 3").await,
            scene.start(&component, "c 4").await,
            scene.start(&alice, "alice 1").await,
            scene.start(&bob, "bob 1").await,
        ];
        let [one, two] = running;
        drop(one);
        assert_eq!(scene.next().await, "c 3");
        drop(two);
        assert_eq!(scene.next().await, "alice 1");
        let [c3, c4, alice1, bob1] = waiting;
        drop(c3);
        assert_eq!(scene.next().await, "bob 1");
        drop(alice1);
        assert_eq!(scene.next().await, "c 4");
        drop((c4, bob1));
    }

    /// AS-070: the queue of a user is bounded, and cancelled requests free their entry.
    #[tokio::test]
    async fn as_070_a_users_queue_has_an_end() {
        let mut scene = Scene::new(2);
        let alice = client("alice", false);
        let mut ends = Vec::new();
        for name in ["1", "2", "3", "4"] {
            ends.push(scene.start(&alice, name).await);
        }
        assert_eq!(scene.next().await, "1");
        let refused = scene.work.run(&alice, 3, || ()).await;
        assert!(matches!(refused, Err(WorkError::Full)));
        // Other users are not affected.
        scene.work.run(&client("bob", false), 3, || ()).await.expect("a free slot");
        let mut gone = Box::pin(scene.work.run(&alice, 4, || ()));
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        assert!(gone.as_mut().poll(&mut context).is_pending());
        drop(gone);
        assert!(matches!(scene.work.run(&alice, 3, || ()).await, Err(WorkError::Full)));
        drop(ends);
        while scene.tasks.join_next().await.is_some() {}
        scene.work.run(&alice, 0, || ()).await.expect("a free slot and no queue");
    }
}
