//! Watches on the kinds of applied objects, which report drift and changed statuses (OCM-161).
//!
//! Only metadata is watched. Objects of a resource that cannot be watched are read periodically. One task owns all watches.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    sync::Arc,
};

use runtime::{
    ObjectKey, Source, TaskPool, Watched,
    feed::{Change, follow},
    rest::Gvr,
};
use tokio_util::sync::CancellationToken;

use super::{objects::definitions, records::Meta, rules::Target, shared::Agent, state::Event};

/// The running watches.
struct Feeds {
    kinds: HashMap<Gvr, CancellationToken>,
    /// Set while CRDs are followed because manifests wait for theirs.
    definitions: Option<CancellationToken>,
    pool: TaskPool,
}

impl Feeds {
    fn new(pool: TaskPool) -> Self {
        Self { kinds: HashMap::new(), definitions: None, pool }
    }
}

impl Agent {
    /// Follows exactly the kinds of recorded objects, and CRDs while a manifest waits for its own, until the agent stops.
    /// The watches are tasks of `pool`.
    pub(super) async fn keep_feeds(self: Arc<Self>, pool: TaskPool) {
        let mut feeds = Feeds::new(pool);
        while !self.stop.is_cancelled() {
            tokio::select! {
                () = self.feeds.notified() => self.adjust(&mut feeds),
                () = self.stop.cancelled() => {}
            }
        }
        feeds.pool.shutdown().await;
    }

    fn adjust(self: &Arc<Self>, feeds: &mut Feeds) {
        let (kinds, awaits) = {
            let mut state = self.state.lock();
            (state.changed_kinds(), state.awaits_definitions())
        };
        match (&feeds.definitions, awaits) {
            (Some(stop), false) => {
                stop.cancel();
                feeds.definitions = None;
            }
            (None, true) => {
                let stop = self.stop.child_token();
                feeds.definitions = Some(stop.clone());
                feeds.pool.spawn("the watch on CRDs", self.clone().follow_definitions(stop));
            }
            _ => {}
        }
        let Some(kinds) = kinds else { return };
        self.end_others(feeds, &kinds);
        for gvr in kinds {
            let full = feeds.kinds.len() >= self.config.max_watched_kinds;
            if full || feeds.kinds.contains_key(&gvr) {
                continue;
            }
            let stop = self.stop.child_token();
            feeds.kinds.insert(gvr.clone(), stop.clone());
            feeds.pool.spawn(format!("the watch on {}", gvr.plural), self.clone().follow_kind(gvr, stop));
        }
    }

    /// Ends the watches on all kinds but these.
    fn end_others(&self, feeds: &mut Feeds, wanted: &BTreeSet<Gvr>) {
        // Under the lock, so that an ending watch does not report its first list after that.
        let mut state = self.state.lock();
        feeds.kinds.retain(|gvr, stop| {
            let keep = wanted.contains(gvr);
            if !keep {
                stop.cancel();
                state.unfollow(gvr);
            }
            keep
        });
    }

    async fn follow_kind(self: Arc<Self>, gvr: Gvr, stop: CancellationToken) {
        let source = Source::all(gvr.clone()).metadata();
        let mut first = Some(HashSet::<ObjectKey>::new());
        let target = |key: ObjectKey| Target {
            group: gvr.group.clone(),
            resource: gvr.plural.clone(),
            namespace: key.namespace.to_string(),
            name: key.name.to_string(),
        };
        follow(self.cluster.client(), &source, &stop, |change: Change<Meta>| match change {
            Change::Put(object) => {
                let key = object.key();
                if let Some(seen) = &mut first {
                    seen.insert(key.clone());
                }
                self.note(Event::Object(target(key), Some(Box::new(object.metadata))));
            }
            Change::Gone(key) => self.note(Event::Object(target(key), None)),
            Change::Synced => {
                if let Some(seen) = first.take() {
                    self.note_unless(&stop, Event::KindListed(gvr.clone(), seen));
                }
            }
        })
        .await;
    }

    /// Nothing else reports that a CRD begins to be served. For resources of aggregated servers there is no
    /// event; the back-off covers them.
    async fn follow_definitions(self: Arc<Self>, stop: CancellationToken) {
        let source = Source::all(definitions()).metadata();
        follow(self.cluster.client(), &source, &stop, |change: Change<Meta>| {
            let Change::Put(definition) = change else { return };
            let name = definition.metadata.name.unwrap_or_default();
            let group = name.split_once('.').map_or("", |(_, group)| group);
            self.note(Event::Definition(group.to_owned()));
        })
        .await;
    }
}
