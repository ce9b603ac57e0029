//! Writes the status of parents, once for all MapControllers of a parent resource (MC-084 to MC-089).
//!
//! Cost: per parent at most one computation and one write a second; no request when nothing differs from what the
//! cache shows.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use runtime::{
    Next, ObjectKey, Queue,
    events::Events,
    rest::{Rest, is_conflict, is_not_found, message_of},
    work,
};
use serde_json::Value;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::{
    apply::loosely_equal,
    map::{
        mapping::Mapping,
        status::{Contribution, was_pruned},
    },
    object::{self, Text},
    resource::Served,
};

/// A parent: group and plural of its resource, key, UID.
type Key = (Text, ObjectKey, Text);

/// Changes within this time go together.
const GATHER: Duration = Duration::from_millis(100);
/// Writes of one parent are this far apart.
const APART: Duration = Duration::from_secs(1);
/// Tries of a write that others get in the way of.
const TRIES: u32 = 5;

/// Status of all parents.
pub struct Board {
    rest: Rest,
    events: Events,
    queue: Queue<Key>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// By parent resource and name of the MapController.
    contributors: HashMap<Text, BTreeMap<Text, Arc<Mapping>>>,
    written: HashMap<Text, Written>,
    /// Parent resources whose schema was complained about.
    warned: HashSet<Text>,
}

#[derive(Default)]
struct Written {
    at: Option<Instant>,
    /// What was written and not kept.
    pruned: Option<Value>,
}

impl Board {
    /// An empty board.
    pub fn new(rest: Rest, events: Events) -> Self {
        let queue = Queue::new(Duration::from_secs(1), Duration::from_secs(60));
        Self { rest, events, queue, state: Mutex::default() }
    }

    /// A MapController has something to say about its parents from now on.
    pub fn join(&self, mapping: &Arc<Mapping>) {
        let resource = mapping.parent.group_resource().into();
        self.state
            .lock()
            .contributors
            .entry(resource)
            .or_default()
            .insert(mapping.name.clone(), mapping.clone());
    }

    /// It has no more; what it said stays until somebody else says something (MC-093).
    pub fn leave(&self, mapping: &Mapping) {
        let resource: Text = mapping.parent.group_resource().into();
        let mut state = self.state.lock();
        if let Some(all) = state.contributors.get_mut(&resource) {
            all.remove(&mapping.name);
            if all.is_empty() {
                state.contributors.remove(&resource);
                state.warned.remove(&resource);
            }
        }
    }

    /// Something changed that the status of a parent tells of.
    pub fn touch(&self, parent: &Served, key: &ObjectKey, uid: &str) {
        self.queue.add_after((parent.group_resource().into(), key.clone(), uid.into()), GATHER);
    }

    /// A parent is gone.
    pub fn forget(&self, uid: &str) {
        self.state.lock().written.remove(uid);
    }

    /// Writes until `stop`.
    pub async fn run(self: Arc<Self>, stop: CancellationToken) {
        let queue = self.queue.clone();
        work("parent status", &queue, 4, &stop, move |key| {
            let board = self.clone();
            async move { board.write(&key).await }
        })
        .await;
    }

    async fn write(&self, key: &Key) -> Result<Next, String> {
        let (resource, parent, uid) = key;
        let contributors: Vec<Arc<Mapping>> = {
            let state = self.state.lock();
            let last = state.written.get(uid).and_then(|written| written.at);
            if let Some(left) = last.and_then(|at| (at + APART).checked_duration_since(Instant::now())) {
                return Ok(Next::After(left));
            }
            state.contributors.get(resource).into_iter().flat_map(|all| all.values().cloned()).collect()
        };
        let Some(first) = contributors.first() else { return Ok(Next::OnChange) };
        let known = contributors.iter().filter_map(|mapping| mapping.contribution(uid));
        let Some(all) = known.reduce(Contribution::and) else { return Ok(Next::OnChange) };
        let (served, cache) = (&first.parent, &first.parent_cache);
        let Some(cached) = cache.by_key(parent).filter(|object| object.uid() == &**uid) else {
            return Ok(Next::OnChange);
        };
        if up_to_date(&all, &cached.value) || self.is_pruned(uid, &all, &cached.value) {
            return Ok(Next::OnChange);
        }
        self.put(served, key, &all).await
    }

    fn is_pruned(&self, uid: &str, all: &Contribution, parent: &Value) -> bool {
        let wanted = owned(all, parent);
        let state = self.state.lock();
        state.written.get(uid).and_then(|written| written.pruned.as_ref()) == Some(&wanted)
    }

    async fn put(&self, served: &Served, of: &Key, all: &Contribution) -> Result<Next, String> {
        let (_, key, uid) = of;
        let (gvr, namespace) = (&served.gvr, served.place(&key.namespace));
        for _ in 0..TRIES {
            let live: Option<Value> =
                self.rest.find(gvr, namespace, &key.name).await.map_err(|error| message_of(&error))?;
            let Some(mut live) = live else { return Ok(Next::OnChange) };
            if object::uid(&live) != &**uid || object::is_terminating(&live) || up_to_date(all, &live) {
                return Ok(Next::OnChange);
            }
            let status = all.status(status_of(&live), object::generation(&live));
            live["status"] = status.clone();
            let body = live.to_string().into_bytes();
            self.state.lock().written.entry(uid.clone()).or_default().at = Some(Instant::now());
            match self.rest.replace_status::<Value>(gvr, namespace, &key.name, body).await {
                Ok(kept) => {
                    self.check_kept(of, &kept, &status, owned(all, &live));
                    return Ok(Next::OnChange);
                }
                Err(error) if is_conflict(&error) => {}
                Err(error) if is_not_found(&error) => return Ok(Next::OnChange),
                Err(error) => return Err(message_of(&error)),
            }
        }
        Ok(Next::After(APART))
    }

    fn check_kept(&self, (resource, _, uid): &Key, kept: &Value, status: &Value, wanted: Value) {
        let pruned = was_pruned(status, status_of(kept));
        let mut state = self.state.lock();
        let written = state.written.entry(uid.clone()).or_default();
        written.pruned = pruned.then_some(wanted);
        let first = pruned && state.warned.insert(resource.clone());
        drop(state);
        if first {
            let message = "the schema of this kind drops status.inputs, status.outputs or status.observedGeneration; \
                           add them to see how far the MapController is";
            self.events.warning(kept, "StatusPruned", message);
        }
    }
}

fn status_of(parent: &Value) -> &Value {
    parent.get("status").unwrap_or(&Value::Null)
}

fn up_to_date(all: &Contribution, parent: &Value) -> bool {
    loosely_equal(&all.status(status_of(parent), object::generation(parent)), status_of(parent))
}

/// The part of the status that is ours.
fn owned(all: &Contribution, parent: &Value) -> Value {
    all.status(&Value::Null, object::generation(parent))
}
