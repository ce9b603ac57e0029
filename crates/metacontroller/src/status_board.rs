//! Writes the status of parents, once for all MapControllers of a parent resource (MC-084 to MC-089).
//!
//! Cost per parent, however much changes: at most one computation in 400 ms, which looks at all its inputs
//! and outputs, and one write a second. No request if nothing differs from what the cache shows.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use runtime::{
    Next, ObjectKey, Queue,
    events::Events,
    failure::{is_clash, is_not_found, message_of},
    rest::Rest,
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

/// Changes within this time are processed together.
const GATHER: Duration = Duration::from_millis(100);
/// Least time between two computations for one parent. Together with `GATHER`, a change is visible within
/// half a second (MC-087).
const LOOKS_APART: Duration = Duration::from_millis(400);
/// Least time between two writes for one parent.
const APART: Duration = Duration::from_secs(1);
/// Tries of a write that conflicts with other writers.
const TRIES: u32 = 5;

/// The statuses of all parents.
pub struct StatusBoard {
    rest: Rest,
    events: Events,
    queue: Queue<Key>,
    state: Mutex<State>,
}

/// By parent resource.
type State = HashMap<Text, Resource>;

/// The state of a parent resource, as long as a MapController contributes to it.
#[derive(Default)]
struct Resource {
    /// The contributing MapControllers by name.
    contributors: BTreeMap<Text, Arc<Mapping>>,
    /// By UID of the parent.
    written: HashMap<Text, Written>,
    /// Whether a warning about the schema has been emitted.
    warned: bool,
}

#[derive(Default)]
struct Written {
    last_done: LastDone,
    /// Fields that were written and that the server dropped.
    pruned: Option<Value>,
}

/// When a parent was last computed and written.
#[derive(Clone, Copy, Debug, Default)]
struct LastDone {
    looked: Option<Instant>,
    wrote: Option<Instant>,
}

impl LastDone {
    /// Returns how long to wait until the next computation; `None` if it may be now.
    fn pause(&self, now: Instant) -> Option<Duration> {
        let left = |at: Option<Instant>, apart: Duration| (at? + apart).checked_duration_since(now);
        left(self.looked, LOOKS_APART).max(left(self.wrote, APART)).filter(|left| !left.is_zero())
    }
}

/// Registers a MapController that contributes to statuses, until this is dropped. Its contribution stays
/// until another MapController writes (MC-093).
#[must_use]
pub struct Contributor {
    board: Arc<StatusBoard>,
    mapping: Arc<Mapping>,
}

impl Drop for Contributor {
    fn drop(&mut self) {
        let resource: Text = self.mapping.parent.group_resource().into();
        let mut state = self.board.state.lock();
        let Some(of) = state.get_mut(&resource) else { return };
        // A successor of the same name stays registered.
        if of.contributors.get(&self.mapping.name).is_some_and(|now| Arc::ptr_eq(now, &self.mapping)) {
            of.contributors.remove(&self.mapping.name);
        }
        if of.contributors.is_empty() {
            state.remove(&resource);
        }
    }
}

impl StatusBoard {
    /// An empty board.
    pub fn new(rest: Rest, events: Events) -> Self {
        let queue = Queue::new(Duration::from_secs(1), Duration::from_secs(60));
        Self { rest, events, queue, state: Mutex::default() }
    }

    /// Registers a MapController that contributes to the statuses of its parents.
    pub fn join(self: &Arc<Self>, mapping: &Arc<Mapping>) -> Contributor {
        let resource = mapping.parent.group_resource().into();
        let mut state = self.state.lock();
        state.entry(resource).or_default().contributors.insert(mapping.name.clone(), mapping.clone());
        Contributor { board: self.clone(), mapping: mapping.clone() }
    }

    /// Something changed that the status of a parent shows.
    pub fn touch(&self, parent: &Served, key: &ObjectKey, uid: &str) {
        self.queue.add_after((parent.group_resource().into(), key.clone(), uid.into()), GATHER);
    }

    /// A parent is gone.
    pub fn forget(&self, parent: &Served, uid: &str) {
        if let Some(of) = self.state.lock().get_mut(&*parent.group_resource()) {
            of.written.remove(uid);
        }
    }

    /// Writes statuses until `stop` is cancelled.
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
        let now = Instant::now();
        let contributors: Vec<Arc<Mapping>> = {
            let state = self.state.lock();
            let Some(of) = state.get(resource) else { return Ok(Next::OnChange) };
            if let Some(pause) = of.written.get(uid).and_then(|written| written.last_done.pause(now)) {
                return Ok(Next::After(pause));
            }
            of.contributors.values().cloned().collect()
        };
        let Some(first) = contributors.first() else { return Ok(Next::OnChange) };
        let known = contributors.iter().filter_map(|mapping| mapping.contribution(uid));
        let Some(all) = known.reduce(Contribution::and) else { return Ok(Next::OnChange) };
        let (served, cache) = (&first.parent, &first.parent_cache);
        let Some(cached) = cache.by_key(parent).filter(|object| object.uid() == &**uid) else {
            return Ok(Next::OnChange);
        };
        self.note(key, |written| written.last_done.looked = Some(now));
        if up_to_date(&all, &cached.value) || self.is_pruned(key, &all, &cached.value) {
            return Ok(Next::OnChange);
        }
        self.put(served, key, &all).await
    }

    /// Updates the state of a parent, as long as a MapController contributes to its resource.
    fn note<T>(&self, (resource, _, uid): &Key, what: impl FnOnce(&mut Written) -> T) -> Option<T> {
        let mut state = self.state.lock();
        state.get_mut(resource).map(|of| what(of.written.entry(uid.clone()).or_default()))
    }

    fn is_pruned(&self, key: &Key, all: &Contribution, parent: &Value) -> bool {
        let wanted = owned(all, parent);
        self.note(key, |written| written.pruned.as_ref() == Some(&wanted)).unwrap_or_default()
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
            self.note(of, |written| written.last_done.wrote = Some(Instant::now()));
            match self.rest.replace_status::<Value>(gvr, namespace, &key.name, body).await {
                Ok(kept) => {
                    self.check_kept(of, &kept, &status, owned(all, &live));
                    return Ok(Next::OnChange);
                }
                Err(error) if is_clash(&error) => {}
                Err(error) if is_not_found(&error) => return Ok(Next::OnChange),
                Err(error) => return Err(message_of(&error)),
            }
        }
        Ok(Next::After(APART))
    }

    fn check_kept(&self, key: &Key, kept: &Value, status: &Value, wanted: Value) {
        let pruned = was_pruned(status, status_of(kept));
        self.note(key, |written| written.pruned = pruned.then_some(wanted));
        if !pruned {
            return;
        }
        let warned = |of: &mut Resource| std::mem::replace(&mut of.warned, true);
        let first = self.state.lock().get_mut(&key.0).is_some_and(|of| !warned(of));
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

/// The part of the status that MapControllers own.
fn owned(all: &Contribution, parent: &Value) -> Value {
    all.status(&Value::Null, object::generation(parent))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// MC-087: however often a parent is touched, it is computed every 400 ms and written once a second.
    #[test]
    fn mc_087_looks_and_writes_are_apart() {
        let start = Instant::now();
        let ms = Duration::from_millis;
        let (mut last_done, mut looks, mut writes) = (LastDone::default(), 0, 0);
        for tick in 0..100 {
            let now = start + ms(100 * tick);
            match last_done.pause(now) {
                Some(pause) => assert!(pause <= APART),
                None => {
                    last_done.looked = Some(now);
                    looks += 1;
                    // Every second computation has something to write.
                    if looks % 2 == 0 {
                        last_done.wrote = Some(now);
                        writes += 1;
                    }
                }
            }
        }
        assert!((14..=16).contains(&looks) && writes == looks / 2, "{looks} {writes}");
        let idle = LastDone { looked: Some(start), wrote: None };
        assert_eq!((idle.pause(start), idle.pause(start + LOOKS_APART)), (Some(LOOKS_APART), None));
    }
}
