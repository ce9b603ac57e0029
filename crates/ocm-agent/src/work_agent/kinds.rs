//! Watches on the kinds of applied objects, which report drift and changed statuses (OCM-161).
//!
//! Only metadata is watched. Objects of a resource that cannot be watched are read periodically.

use std::{
    collections::{HashMap, HashSet},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use runtime::{
    feed::{Change, Key, Keyed, Source, follow},
    rest::Gvr,
};
use tokio::{task::JoinSet, time::Instant};
use tokio_util::sync::CancellationToken;

use super::{agent::Agent, outcome::Done, records::Meta, rules::Target};

/// A feed for one resource.
struct Feed {
    stop: CancellationToken,
    /// The first list is complete.
    synced: Arc<AtomicBool>,
}

/// The running feeds.
#[derive(Default)]
pub(crate) struct Kinds {
    feeds: HashMap<Gvr, Feed>,
    tasks: JoinSet<()>,
    /// Set while CRDs are followed because manifests wait for theirs.
    awaiting: Option<CancellationToken>,
}

impl Kinds {
    /// Starts a feed. If it panics the agent ends, because drift of a kind without a feed would not be
    /// corrected.
    fn start(&mut self, agent: &CancellationToken, feed: impl Future<Output = ()> + Send + 'static) {
        let end = agent.clone().drop_guard();
        self.tasks.spawn(async move {
            feed.await;
            end.disarm();
        });
    }

    pub(crate) fn take_tasks(&mut self) -> JoinSet<()> {
        std::mem::take(&mut self.tasks)
    }
}

fn definitions() -> Gvr {
    Gvr::new("apiextensions.k8s.io", "v1", "customresourcedefinitions")
}

impl Agent {
    /// Returns whether a feed reports changes of this resource.
    pub(crate) fn follows(&self, gvr: &Gvr) -> bool {
        self.kinds.lock().feeds.get(gvr).is_some_and(|feed| feed.synced.load(Ordering::SeqCst))
    }

    /// Returns the objects of a work that no feed covers.
    pub(crate) fn unfollowed(&self, work: &str) -> Vec<Target> {
        let followed: HashSet<Gvr> = {
            let kinds = self.kinds.lock();
            let synced = kinds.feeds.iter().filter(|(_, feed)| feed.synced.load(Ordering::SeqCst));
            synced.map(|(gvr, _)| gvr.clone()).collect()
        };
        self.tracker.lock().unfollowed(work, &followed)
    }

    /// Starts and stops feeds, so that exactly the kinds of recorded objects are followed, and CRDs while a
    /// manifest waits for its own.
    pub(crate) fn adjust_feeds(self: &Arc<Self>) {
        self.await_definitions();
        let Some(wanted) = self.tracker.lock().changed_kinds() else { return };
        let mut kinds = self.kinds.lock();
        kinds.feeds.retain(|gvr, feed| {
            let keep = wanted.contains(gvr);
            if !keep {
                feed.stop.cancel();
            }
            keep
        });
        while kinds.tasks.try_join_next().is_some() {}
        for gvr in wanted {
            let full = kinds.feeds.len() >= self.config.max_watched_kinds;
            if full || kinds.feeds.contains_key(&gvr) || self.stop.is_cancelled() {
                continue;
            }
            let (stop, synced) = (self.stop.child_token(), Arc::new(AtomicBool::new(false)));
            kinds.feeds.insert(gvr.clone(), Feed { stop: stop.clone(), synced: synced.clone() });
            let me = self.clone();
            kinds.start(&self.stop, async move { me.follow_kind(gvr, &stop, &synced).await });
        }
    }

    async fn follow_kind(&self, gvr: Gvr, stop: &CancellationToken, synced: &AtomicBool) {
        let source = Source::all(gvr.clone()).metadata();
        let mut first: Option<HashSet<Key>> = Some(HashSet::new());
        follow(self.cluster.client(), &source, stop, |change: Change<Meta>| match change {
            Change::Put(object) => {
                if let Some(seen) = &mut first {
                    seen.insert(object.key());
                }
                self.note_object(&gvr, object.key(), Some(&object));
            }
            Change::Gone(key) => self.note_object(&gvr, key, None),
            Change::Synced => {
                synced.store(true, Ordering::SeqCst);
                if let Some(seen) = first.take() {
                    let wake = self.tracker.lock().listed(&gvr, &seen, Instant::now());
                    self.wake_all(wake);
                }
            }
        })
        .await;
    }

    fn note_object(&self, gvr: &Gvr, (namespace, name): Key, live: Option<&Meta>) {
        let target = Target { group: gvr.group.clone(), resource: gvr.plural.clone(), namespace, name };
        let now = Instant::now();
        let wake = self.tracker.lock().event(&target, live.map(|l| &l.metadata), now);
        for (work, _) in &wake {
            self.measures.noted(work, now);
        }
        self.wake_all(wake);
    }

    pub(crate) fn wake_all(&self, works: Vec<(String, Duration)>) {
        for (work, pause) in works {
            self.queue_work_after(work, pause);
        }
    }

    /// Nothing else reports that a CRD begins to be served. For resources of aggregated servers there is no
    /// event; the back-off covers them.
    fn await_definitions(self: &Arc<Self>) {
        let waiting = self.backoff.lock().any(Done::is_unresolved);
        let mut kinds = self.kinds.lock();
        match (&kinds.awaiting, waiting) {
            (Some(stop), false) => {
                stop.cancel();
                kinds.awaiting = None;
            }
            (None, true) if !self.stop.is_cancelled() => {
                let stop = self.stop.child_token();
                kinds.awaiting = Some(stop.clone());
                let me = self.clone();
                kinds.start(&self.stop, async move { me.follow_definitions(&stop).await });
            }
            _ => {}
        }
    }

    async fn follow_definitions(&self, stop: &CancellationToken) {
        let source = Source::all(definitions()).metadata();
        follow(self.cluster.client(), &source, stop, |change: Change<Meta>| {
            let Change::Put(definition) = change else { return };
            let name = definition.metadata.name.unwrap_or_default();
            let group = name.split_once('.').map_or("", |(_, group)| group);
            let hopeful = |done: &Done| done.is_unresolved() && done.meta.group == group;
            let works = self.backoff.lock().retry_now(Instant::now(), hopeful);
            self.queue_works(&works);
        })
        .await;
    }
}
