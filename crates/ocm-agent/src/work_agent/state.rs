//! What the work agent knows, as plain state: an event comes in, what to process comes out. No lock, no client, no clock; the
//! time is an argument.
//!
//! Cost of an event: a look-up, and the works that it concerns. Only the first list of a kind walks over all records.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use apis::ocm::{
    AppliedManifestWork, ManifestWork,
    work::{AppliedManifestWorkSpec, ManifestWorkStatus},
};
use k8s_openapi::{apimachinery::pkg::apis::meta::v1::ObjectMeta, jiff::Timestamp};
use runtime::{Next, ObjectKey, backoff::jittered, rest::Gvr};
use tokio::time::Instant;

use super::{
    backoff::ManifestBackoff,
    config::Config,
    eviction,
    measures::Measures,
    names::HubNames,
    objects::{has_finalizer, is_frozen},
    outcome::Done,
    records::{Meaning, Todo, Tracker, is_older},
    rules::Target,
    wanted::ManifestIndex,
};

/// A work item of the queue.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Item {
    /// A work of the mailbox, by name.
    Work(String),
    /// An AppliedManifestWork of another hub, by its own name.
    Foreign(String),
}

/// An item to process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Wake {
    pub(crate) item: Item,
    /// How long to wait before.
    pub(crate) after: Duration,
    /// As if it had never failed before.
    pub(crate) anew: bool,
}

impl Wake {
    /// For what is pending for a work.
    pub(crate) fn work(name: &str) -> Self {
        Self { item: Item::Work(name.to_owned()), after: Duration::ZERO, anew: false }
    }

    fn foreign(name: String) -> Self {
        Self { item: Item::Foreign(name), after: Duration::ZERO, anew: false }
    }

    /// For works that are to be processed after their pauses.
    pub(crate) fn later(works: Vec<(String, Duration)>) -> Vec<Self> {
        works.into_iter().map(|(name, after)| Self { after, ..Self::work(&name) }).collect()
    }

    /// For what is pending for several works.
    pub(crate) fn works(names: &[String]) -> Vec<Self> {
        names.iter().map(|name| Self::work(name)).collect()
    }
}

/// What a watch reports.
pub(crate) enum Event {
    /// A work is there or changed.
    Work(Box<ManifestWork>),
    /// A work is gone.
    WorkGone(String),
    /// All works are known.
    WorksListed,
    /// An AppliedManifestWork is there or changed.
    Applied(Box<AppliedManifestWork>),
    /// An AppliedManifestWork is gone.
    AppliedGone(String),
    /// All AppliedManifestWorks are known.
    AppliedListed,
    /// The metadata of an object of a followed kind; `None` if the object is gone.
    Object(Target, Option<Box<ObjectMeta>>),
    /// The first list of a followed kind is complete and contained these objects.
    KindListed(Gvr, HashSet<ObjectKey>),
    /// Definitions of this group changed; resources that manifests wait for may be served now.
    Definition(String),
}

/// What to do about a work.
#[derive(Debug)]
pub(crate) enum Stage {
    /// The work is gone: evict what was applied for it after the grace period, or forget it.
    Gone(Option<Arc<AppliedManifestWork>>),
    /// The work is being deleted: remove what was applied for it.
    Finalize(Arc<ManifestWork>),
    /// Its AppliedManifestWork is being deleted: remove what that lists, then continue.
    Empty(Arc<ManifestWork>, Arc<AppliedManifestWork>),
    /// The work is complete: leave everything as it is.
    Rest,
    /// Apply its manifests.
    Apply(Arc<ManifestWork>),
}

/// When a work is processed although no change was observed.
#[derive(Clone, Copy, Debug)]
struct Clock {
    /// A full pass that corrects every object (OCM-073).
    pass: Instant,
    /// A read of the objects that cannot be watched.
    poll: Instant,
}

/// The state of one agent.
pub(crate) struct State {
    names: HubNames,
    agent_id: String,
    reapply: Duration,
    status_sync: Duration,
    works: HashMap<String, Arc<ManifestWork>>,
    index: ManifestIndex,
    applied: HashMap<String, Arc<AppliedManifestWork>>,
    /// Which of the two lists above are complete.
    listed: (bool, bool),
    pub(crate) tracker: Tracker,
    pub(crate) backoff: ManifestBackoff<Done>,
    /// The status of a work as this agent last wrote it, with the work's UID; no other client writes it
    /// (OCM-162).
    statuses: HashMap<String, (Option<String>, ManifestWorkStatus)>,
    clocks: HashMap<String, Clock>,
    /// Works with objects that are still to be removed, and how long to wait for them.
    leaving: HashMap<String, Duration>,
    /// The kinds whose changes are reported.
    followed: HashSet<Gvr>,
    pub(crate) measures: Measures,
}

impl State {
    /// Knows nothing yet. `config` has an agent ID.
    pub(crate) fn new(config: &Config, names: HubNames) -> Self {
        Self {
            names,
            agent_id: config.agent_id.clone(),
            reapply: config.reapply,
            status_sync: config.status_sync,
            works: HashMap::new(),
            index: ManifestIndex::default(),
            applied: HashMap::new(),
            listed: (false, false),
            tracker: Tracker::default(),
            backoff: ManifestBackoff::default(),
            statuses: HashMap::new(),
            clocks: HashMap::new(),
            leaving: HashMap::new(),
            followed: HashSet::new(),
            measures: Measures::new(&config.metrics),
        }
    }

    /// Takes in an event. Returns what to process.
    pub(crate) fn event(&mut self, event: Event, now: Instant) -> Vec<Wake> {
        match event {
            Event::Work(work) => self.work(*work, now),
            Event::WorkGone(name) => {
                self.index.remove(&name);
                self.works.remove(&name);
                vec![self.changed(&name, now)]
            }
            Event::Applied(applied) => self.applied(*applied),
            Event::AppliedGone(name) => {
                let ours = self.drop_applied(&name).filter(|applied| self.is_of_this_hub(applied));
                ours.map(|applied| self.changed(&applied.spec.manifest_work_name, now)).into_iter().collect()
            }
            Event::Object(target, live) => {
                let wake = self.tracker.event(&target, live.as_deref(), now);
                for (work, _) in &wake {
                    self.measures.noted(work, now);
                }
                Wake::later(wake)
            }
            Event::KindListed(gvr, seen) => {
                let wake = self.tracker.listed(&gvr, &seen, now);
                self.followed.insert(gvr);
                Wake::later(wake)
            }
            Event::Definition(group) => {
                let hopeful = |done: &Done| done.is_unresolved() && done.meta.group == group;
                Wake::works(&self.backoff.retry_now(now, hopeful))
            }
            Event::WorksListed => {
                self.listed.0 = true;
                Vec::new()
            }
            Event::AppliedListed => {
                self.listed.1 = true;
                Vec::new()
            }
        }
    }

    /// OCM-073: a work is processed for a change of spec or labels, the start of a deletion, a removed finalizer, or completion.
    fn work(&mut self, work: ManifestWork, now: Instant) -> Vec<Wake> {
        let name = work.metadata.name.clone().unwrap_or_default();
        let essence = |w: &ManifestWork| {
            let m = &w.metadata;
            (m.uid.clone(), m.generation, m.labels.clone(), m.deletion_timestamp.is_some(), is_frozen(w))
        };
        let lost = !has_finalizer(&work) && work.metadata.deletion_timestamp.is_none();
        let work = Arc::new(work);
        let old = self.works.insert(name.clone(), work.clone());
        let lost = lost && old.as_ref().is_none_or(|old| has_finalizer(old));
        let changed = old.is_none_or(|old| essence(&old) != essence(&work));
        if changed {
            self.index.put(&name, &work);
        }
        if lost || changed { vec![self.changed(&name, now)] } else { Vec::new() }
    }

    /// The work itself changed: failed manifests are retried at once.
    fn changed(&mut self, name: &str, now: Instant) -> Wake {
        self.tracker.mark(name);
        self.measures.noted(name, now);
        self.backoff.forget(name);
        Wake { anew: true, ..Wake::work(name) }
    }

    /// A deletion by an administrator, or an AppliedManifestWork that an earlier run left behind (OCM-095, OCM-096).
    fn applied(&mut self, applied: AppliedManifestWork) -> Vec<Wake> {
        let name = applied.metadata.name.clone().unwrap_or_default();
        let work = applied.spec.manifest_work_name.clone();
        let (deleting, ours) = (applied.metadata.deletion_timestamp.is_some(), self.is_own(&applied.spec));
        let old = self.applied.get(&name);
        let known = old.is_some();
        if old.is_none_or(|old| !precedes(&applied, old)) {
            self.measures.eviction(old.map(AsRef::as_ref), Some(&applied));
            self.applied.insert(name.clone(), Arc::new(applied));
        }
        let mut wakes = Vec::new();
        if !known && let Some(other) = self.names.superseded(&work, |name| self.applied.contains_key(name)) {
            wakes.push(Wake::foreign(other));
        }
        if ours && (!known || deleting) {
            if self.applied_name(&work) == name {
                self.tracker.mark(&work);
                wakes.push(Wake::work(&work));
            } else {
                wakes.push(Wake::foreign(name));
            }
        }
        wakes
    }

    /// Whether all works and AppliedManifestWorks are known, so that decisions can be made.
    pub(crate) fn is_complete(&self) -> bool {
        self.listed == (true, true)
    }

    /// Takes what is to be done for a work now; `None` if nothing is.
    pub(crate) fn begin(&mut self, name: &str, now: Instant) -> Option<Todo> {
        self.measures.begins(name);
        let mut todo = self.tracker.take(name);
        let clock = self.clocks.get(name).copied();
        todo.everything |= clock.is_some_and(|clock| clock.pass <= now);
        todo.changed |= self.leaving.contains_key(name);
        todo.changed |= self.backoff.next(name).is_some_and(|due| due <= now);
        if clock.is_some_and(|clock| clock.poll <= now) {
            for target in self.tracker.unfollowed(name, &self.followed) {
                todo.objects.entry(target).or_insert(Meaning::Look);
            }
            let poll = now + jittered(self.status_sync.saturating_mul(2));
            if let Some(clock) = self.clocks.get_mut(name) {
                clock.poll = poll;
            }
        }
        if todo.is_empty() {
            self.measures.reported(name, false, now);
            return None;
        }
        Some(todo)
    }

    /// Returns what to do about a work.
    pub(crate) fn stage(&self, name: &str) -> Stage {
        let applied = self.applied_of(name);
        let Some(work) = self.works.get(name).cloned() else { return Stage::Gone(applied) };
        if work.metadata.deletion_timestamp.is_some() {
            return Stage::Finalize(work);
        }
        match applied {
            Some(applied) if applied.metadata.deletion_timestamp.is_some() => Stage::Empty(work, applied),
            _ if is_frozen(&work) => Stage::Rest,
            _ => Stage::Apply(work),
        }
    }

    /// What was taken by [`State::begin`] was not done.
    pub(crate) fn failed(&mut self, name: &str, todo: Todo) {
        self.tracker.put_back(name, todo);
        self.tracker.mark(name);
    }

    /// Returns when a work is processed next. The queue has one timer for each work, and any other cause to process the work
    /// resets it, so it is set again after each run.
    pub(crate) fn rest(&self, name: &str, now: Instant) -> Next {
        let clock = self.clocks.get(name);
        let leaving = self.leaving.get(name).map(|pause| now + *pause);
        let has_unfollowed = || !self.tracker.unfollowed(name, &self.followed).is_empty();
        let poll = clock.map(|clock| clock.poll).filter(|_| has_unfollowed());
        let retry = self.backoff.next(name);
        let due = [clock.map(|clock| clock.pass), poll, retry, leaving].into_iter().flatten().min();
        due.map_or(Next::OnChange, |due| {
            Next::After(due.saturating_duration_since(now).max(Duration::from_millis(1)))
        })
    }

    /// A pass has ended: schedules the next full one, if none is scheduled or this was one.
    pub(crate) fn passed(&mut self, name: &str, everything: bool, now: Instant) {
        let pass = now + jittered(self.reapply.mul_f64(1.5)).max(self.reapply);
        let poll = now + jittered(self.status_sync.saturating_mul(2));
        let clock = self.clocks.entry(name.to_owned()).or_insert(Clock { pass, poll });
        if everything {
            clock.pass = pass;
        }
    }

    /// Notes whether objects of the work are still to be removed, so that it must be processed again after a
    /// pause.
    pub(crate) fn set_leaving(&mut self, name: &str, pause: Option<Duration>) {
        match pause {
            Some(pause) => drop(self.leaving.insert(name.to_owned(), pause)),
            None => drop(self.leaving.remove(name)),
        }
    }

    /// Stops everything about the work until it changes.
    pub(crate) fn freeze(&mut self, name: &str) {
        self.backoff.forget(name);
        self.clocks.remove(name);
        self.leaving.remove(name);
    }

    /// Forgets a work that is gone. Returns the works that disagreed with it about objects.
    pub(crate) fn forget(&mut self, name: &str) -> Vec<Wake> {
        let rivals = self.tracker.forget_work(name);
        self.freeze(name);
        self.statuses.remove(name);
        self.measures.forget(name);
        Wake::works(&rivals)
    }

    /// Returns the status that this agent last wrote for this very work, or else the one that the work shows; there may have
    /// been another work of its name before.
    pub(crate) fn last_status(&self, name: &str, work: &ManifestWork) -> ManifestWorkStatus {
        let last = self.statuses.get(name).filter(|(uid, _)| *uid == work.metadata.uid);
        last.map(|(_, status)| status.clone()).or_else(|| work.status.clone()).unwrap_or_default()
    }

    pub(crate) fn remember_status(&mut self, name: &str, work: &ManifestWork, status: ManifestWorkStatus) {
        self.statuses.insert(name.to_owned(), (work.metadata.uid.clone(), status));
    }

    pub(crate) fn work_of(&self, name: &str) -> Option<Arc<ManifestWork>> {
        self.works.get(name).cloned()
    }

    /// Returns whether this very work still exists on the hub.
    pub(crate) fn is_wanted(&self, name: &str, work: &ManifestWork) -> bool {
        self.works.get(name).is_some_and(|now| {
            now.metadata.uid == work.metadata.uid && now.metadata.deletion_timestamp.is_none()
        })
    }

    /// Returns the other works that hold a manifest for an object, each with the manifest's kind.
    pub(crate) fn others(&self, except: &str, target: &Target) -> Vec<(String, String)> {
        self.index.others(except, target)
    }

    /// Returns the AppliedManifestWork of a work, as last observed.
    pub(crate) fn applied_of(&self, name: &str) -> Option<Arc<AppliedManifestWork>> {
        self.applied.get(&self.applied_name(name)).cloned()
    }

    /// Returns an AppliedManifestWork that belongs to no work of this hub.
    pub(crate) fn foreign(&self, applied_name: &str) -> Option<Arc<AppliedManifestWork>> {
        self.applied.get(applied_name).filter(|applied| !self.is_of_this_hub(applied)).cloned()
    }

    /// Returns whether this agent created it, or an agent of this hub without an ID (OCM-071).
    pub(crate) fn is_own(&self, spec: &AppliedManifestWorkSpec) -> bool {
        spec.agent_id == self.agent_id
            || self.names.is_of_hub(&spec.hub_hash) && self.names.is_of_hub(&spec.agent_id)
    }

    fn is_of_this_hub(&self, applied: &AppliedManifestWork) -> bool {
        applied.metadata.name.as_deref() == Some(&self.applied_name(&applied.spec.manifest_work_name))
    }

    /// Name of the AppliedManifestWork of a work: of the one that exists, if one does.
    pub(crate) fn applied_name(&self, name: &str) -> String {
        self.names.of_work(name, |name| self.applied.contains_key(name))
    }

    /// The spec that the AppliedManifestWork of a work must have, by its name.
    pub(crate) fn applied_spec(&self, name: &str, applied_name: &str) -> AppliedManifestWorkSpec {
        AppliedManifestWorkSpec {
            hub_hash: self.names.hash_of(applied_name).to_owned(),
            manifest_work_name: name.to_owned(),
            agent_id: self.agent_id.clone(),
        }
    }

    /// Stores the response to a request, unless the watch has already reported a later version; returns the later of the two.
    pub(crate) fn remember_applied(&mut self, applied: AppliedManifestWork) -> Arc<AppliedManifestWork> {
        let name = applied.metadata.name.clone().unwrap_or_default();
        if let Some(newer) = self.applied.get(&name).filter(|old| precedes(&applied, old)) {
            return newer.clone();
        }
        let applied = Arc::new(applied);
        let old = self.applied.insert(name, applied.clone());
        self.measures.eviction(old.as_deref(), Some(&applied));
        applied
    }

    pub(crate) fn drop_applied(&mut self, name: &str) -> Option<Arc<AppliedManifestWork>> {
        let old = self.applied.remove(name);
        self.measures.eviction(old.as_deref(), None);
        old
    }

    /// Returns whether an eviction that began at this time looks unintended. Only works of this hub count, because a change to
    /// another hub removes all works of the former one on purpose. Cost: a walk over all AppliedManifestWorks.
    pub(crate) fn looks_unintended(&self, applied: &AppliedManifestWork, began: Timestamp) -> bool {
        if !self.is_of_this_hub(applied) {
            return false;
        }
        let others = self
            .applied
            .values()
            .filter(|other| self.is_of_this_hub(other) && other.metadata.uid != applied.metadata.uid);
        let others: Vec<Option<Timestamp>> = others
            .map(|other| {
                let noted = other.status.as_ref().and_then(|s| s.eviction_start_time.as_ref()).map(|t| t.0);
                // The eviction of another one without a work may just not have been recorded yet.
                let gone = !self.works.contains_key(&other.spec.manifest_work_name);
                gone.then_some(noted.unwrap_or(began))
            })
            .collect();
        eviction::is_mass(began, &others)
    }

    /// Returns whether changes of this resource are reported.
    pub(crate) fn follows(&self, gvr: &Gvr) -> bool {
        self.followed.contains(gvr)
    }

    /// The changes of this resource are not reported any more.
    pub(crate) fn unfollow(&mut self, gvr: &Gvr) {
        self.followed.remove(gvr);
    }

    /// Returns the resources to follow, if they differ from those at the last call.
    pub(crate) fn changed_kinds(&mut self) -> Option<BTreeSet<Gvr>> {
        self.tracker.changed_kinds()
    }

    /// Returns whether a manifest waits for its definition.
    pub(crate) fn awaits_definitions(&self) -> bool {
        self.backoff.any(Done::is_unresolved)
    }
}

/// Returns whether the first is an earlier version of the second.
fn precedes(new: &AppliedManifestWork, old: &AppliedManifestWork) -> bool {
    let version = |w: &AppliedManifestWork| w.metadata.resource_version.clone().unwrap_or_default();
    new.metadata.uid == old.metadata.uid && is_older(&version(new), &version(old))
}

#[cfg(test)]
#[path = "state_tests.rs"]
mod tests;
