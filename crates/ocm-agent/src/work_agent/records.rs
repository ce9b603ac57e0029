//! The records of applied objects, and the meaning of events about them. Pure; the time is an argument.
//!
//! Cost of an event: a look-up, and the works that hold its object. Only the first list of a kind
//! ([`Tracker::listed`]) walks over all records.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    time::Duration,
};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use runtime::{ObjectKey, ResourceVersion, Watched, rest::Gvr};
use serde::Deserialize;
use tokio::time::Instant;

use super::{outcome::Done, rules::Target};

/// The metadata of an object.
#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct Meta {
    #[serde(default)]
    pub(crate) metadata: ObjectMeta,
}

impl Watched for Meta {
    fn key(&self) -> ObjectKey {
        ObjectKey::of(&self.metadata)
    }

    fn version(&self) -> &str {
        self.metadata.resource_version.as_deref().unwrap_or_default()
    }
}

/// What a work enforces about an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hold {
    /// Nothing: the object is only read (ReadOnly).
    Nothing,
    /// Its existence and its owner (CreateOnly).
    Existence,
    /// Its content, together with fields of other managers (ServerSideApply).
    Fields,
    /// Its whole content (Update).
    Content,
}

/// One object as one work applied it (OCM-080: the apply cache).
#[derive(Clone, Debug)]
pub(crate) struct Record {
    /// Digest of what is required: manifest, strategy, owner.
    pub(crate) digest: [u8; 32],
    /// Digest of the manifest alone.
    pub(crate) content: [u8; 32],
    pub(crate) gvr: Gvr,
    /// Empty if there is no object, which occurs only with [`Hold::Nothing`].
    pub(crate) uid: String,
    pub(crate) resource_version: String,
    pub(crate) generation: Option<i64>,
    /// The required labels, annotations and owner UID, to notice when one is removed.
    pub(crate) labels: Vec<(String, String)>,
    pub(crate) annotations: Vec<(String, String)>,
    pub(crate) owner: Option<String>,
    pub(crate) hold: Hold,
    /// Whether status feedback or conditions are derived from its content.
    pub(crate) observed: bool,
    /// The reported outcome.
    pub(crate) done: Done,
}

/// What an event of the cluster means for a work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Meaning {
    /// Our own write, or no relevant change.
    Nothing,
    /// Only the reported values may have changed.
    Look,
    /// Another client changed what the work enforces.
    Drift,
}

impl Record {
    pub(crate) fn meaning(&self, live: Option<&ObjectMeta>) -> Meaning {
        let lost = if self.hold == Hold::Nothing { Meaning::Look } else { Meaning::Drift };
        let Some(live) = live else {
            return if self.uid.is_empty() { Meaning::Nothing } else { lost };
        };
        if live.uid.as_deref() != Some(&self.uid) {
            return lost;
        }
        let version = live.resource_version.as_deref().unwrap_or_default();
        if version == self.resource_version || is_older(version, &self.resource_version) {
            return Meaning::Nothing;
        }
        let look = if self.observed { Meaning::Look } else { Meaning::Nothing };
        let owned = self
            .owner
            .as_ref()
            .is_none_or(|uid| live.owner_references.iter().flatten().any(|owner| owner.uid == *uid));
        match self.hold {
            Hold::Nothing => return look,
            Hold::Existence => return if owned { look } else { Meaning::Drift },
            Hold::Fields | Hold::Content => {}
        }
        let has = |map: &Option<BTreeMap<String, String>>, wanted: &[(String, String)]| {
            wanted.iter().all(|(k, v)| map.as_ref().and_then(|m| m.get(k)) == Some(v))
        };
        // Kinds with generations increase them with every change of the spec.
        let same_spec = matches!((self.generation, live.generation), (Some(a), Some(b)) if a == b && a > 0);
        if same_spec && owned && has(&live.labels, &self.labels) && has(&live.annotations, &self.annotations)
        {
            look
        } else {
            Meaning::Drift
        }
    }
}

/// Returns whether a version of an object precedes another one.
pub(crate) fn is_older(version: &str, than: &str) -> bool {
    ResourceVersion::new(version) < ResourceVersion::new(than)
}

/// What is pending for a work.
#[derive(Clone, Debug, Default)]
pub(crate) struct Todo {
    /// The work itself changed or failed: what differs from the records is applied.
    pub(crate) changed: bool,
    /// All objects are read and corrected: the periodic pass (OCM-073).
    pub(crate) everything: bool,
    /// These objects changed in the cluster.
    pub(crate) objects: BTreeMap<Target, Meaning>,
}

impl Todo {
    pub(crate) fn is_empty(&self) -> bool {
        !self.changed && !self.everything && self.objects.is_empty()
    }

    /// Returns how an object must be processed.
    pub(crate) fn attention(&self, target: &Target) -> Meaning {
        if self.everything {
            return Meaning::Drift;
        }
        self.objects.get(target).copied().unwrap_or(Meaning::Nothing)
    }

    fn touch(&mut self, target: &Target, meaning: Meaning) {
        let known = self.objects.entry(target.clone()).or_insert(meaning);
        *known = meaning.max(*known);
    }
}

/// A version of an object that this agent wrote.
#[derive(Clone, Debug)]
pub(crate) struct Write {
    pub(crate) uid: String,
    pub(crate) resource_version: String,
    pub(crate) generation: Option<i64>,
    /// The write changed only the owners, starting from this version. It says nothing about the other content
    /// of that version.
    pub(crate) owners_of: Option<String>,
}

impl Write {
    /// Advances a record to the written version, if the holder of the record need not read that version: it
    /// knows the previous one, or the content is what a work wants. The last writer wins until the next pass
    /// (OCM-085). Returns true if the holder reports on the content and must read it nevertheless.
    fn advance(&self, record: &mut Record) -> bool {
        let known = self.owners_of.as_ref().is_none_or(|base| !is_older(&record.resource_version, base));
        let newer = is_older(&record.resource_version, &self.resource_version);
        if record.uid != self.uid || !known || !newer {
            return false;
        }
        record.resource_version.clone_from(&self.resource_version);
        record.generation = self.generation;
        record.observed && self.owners_of.is_none()
    }
}

/// An object that is being written: the last event about it, and the newest version that the agent wrote.
#[derive(Debug, Default)]
struct InFlightWrite {
    writers: usize,
    last: Option<LastEvent>,
    newest: Option<Write>,
}

/// The last event about an object.
#[derive(Debug)]
enum LastEvent {
    There(Box<ObjectMeta>),
    Gone,
}

/// The works that hold an object, and what is pending for each work.
#[derive(Default)]
pub(crate) struct Tracker {
    records: HashMap<Target, BTreeMap<String, Record>>,
    by_work: HashMap<String, HashSet<Target>>,
    /// Number of records of each resource.
    kinds: HashMap<Gvr, usize>,
    kinds_changed: bool,
    pending: HashMap<String, Todo>,
    in_flight: HashMap<Target, InFlightWrite>,
    corrections: HashMap<Target, (u32, Instant)>,
}

impl Tracker {
    pub(crate) fn get(&self, work: &str, target: &Target) -> Option<&Record> {
        self.records.get(target)?.get(work)
    }

    /// An object is about to be read or written. Events about it are kept until [`Tracker::settle`], because
    /// they may be caused by our own write.
    pub(crate) fn begin(&mut self, target: &Target) {
        self.in_flight.entry(target.clone()).or_default().writers += 1;
    }

    /// The read or write of an object ended with this record and write. Returns the works to enqueue, each
    /// with a pause: those for which a later event counts, and those that share the object and report on it.
    /// O(works that hold the object), in memory.
    pub(crate) fn settle(
        &mut self,
        work: &str,
        target: &Target,
        record: Option<Record>,
        write: Option<Write>,
        now: Instant,
    ) -> Vec<(String, Duration)> {
        let mut wake = write.map(|write| self.wrote(work, target, write)).unwrap_or_default();
        if let Some(mut record) = record {
            // Another work may have written the object since.
            let newest = self.in_flight.get(target).and_then(|flight| flight.newest.as_ref());
            if newest.is_some_and(|newest| newest.advance(&mut record)) {
                self.pending.entry(work.to_owned()).or_default().touch(target, Meaning::Look);
                wake.push((work.to_owned(), Duration::ZERO));
            }
            let before = self.get(work, target).map(|old| (old.hold, old.content));
            let after = (record.hold, record.content);
            self.put(work, target, record);
            if before != Some(after) {
                wake.extend(self.note_rivals(work, target, before, after));
            }
        }
        if let Some(last) = self.take_last_event(target) {
            let live = match &last {
                LastEvent::There(live) => Some(&**live),
                LastEvent::Gone => None,
            };
            wake.extend(self.judge(target, live, now));
        }
        wake
    }

    /// Advances the records of all works that hold the object. Those that report on the content must read it.
    fn wrote(&mut self, work: &str, target: &Target, write: Write) -> Vec<(String, Duration)> {
        let mut wake = Vec::new();
        for (other, record) in self.records.get_mut(target).into_iter().flatten() {
            if write.advance(record) && other != work {
                self.pending.entry(other.clone()).or_default().touch(target, Meaning::Look);
                wake.push((other.clone(), Duration::ZERO));
            }
        }
        if let Some(flight) = self.in_flight.get_mut(target) {
            let newest = flight.newest.get_or_insert_with(|| write.clone());
            if newest.uid != write.uid || is_older(&newest.resource_version, &write.resource_version) {
                *newest = write;
            }
        }
        wake
    }

    /// A work holds different content now, or in another way: enqueues the works that disagree with it now or
    /// did before, because they report that.
    fn note_rivals(
        &mut self,
        work: &str,
        target: &Target,
        before: Option<(Hold, [u8; 32])>,
        after: (Hold, [u8; 32]),
    ) -> Vec<(String, Duration)> {
        let others = self.records.get(target).into_iter().flatten().filter(|(name, _)| *name != work);
        let mut wake = Vec::new();
        for (name, theirs) in others {
            let disagree = |(hold, content)| {
                hold == Hold::Content && theirs.hold == Hold::Content && content != theirs.content
            };
            if disagree(after) || before.is_some_and(disagree) {
                self.pending.entry(name.clone()).or_default().touch(target, Meaning::Look);
                wake.push((name.clone(), Duration::ZERO));
            }
        }
        wake
    }

    /// Returns the last event that came while the object was written, once no write is in progress.
    fn take_last_event(&mut self, target: &Target) -> Option<LastEvent> {
        let flight = self.in_flight.get_mut(target)?;
        flight.writers = flight.writers.saturating_sub(1);
        if flight.writers > 0 {
            return None;
        }
        self.in_flight.remove(target)?.last
    }

    fn put(&mut self, work: &str, target: &Target, record: Record) {
        self.take_out(work, target);
        let count = self.kinds.entry(record.gvr.clone()).or_default();
        *count += 1;
        self.kinds_changed |= *count == 1;
        self.by_work.entry(work.to_owned()).or_default().insert(target.clone());
        self.records.entry(target.clone()).or_default().insert(work.to_owned(), record);
    }

    /// A work released an object. Returns the works to enqueue: those that held different content of it and
    /// are no longer in conflict.
    #[must_use]
    pub(crate) fn forget(&mut self, work: &str, target: &Target) -> Vec<String> {
        let rivals = self.rivals(work, target);
        self.take_out(work, target);
        if !self.records.contains_key(target) {
            self.corrections.remove(target);
        }
        for rival in &rivals {
            self.pending.entry(rival.clone()).or_default().touch(target, Meaning::Drift);
        }
        rivals
    }

    fn take_out(&mut self, work: &str, target: &Target) {
        let Some(works) = self.records.get_mut(target) else { return };
        let Some(old) = works.remove(work) else { return };
        if works.is_empty() {
            self.records.remove(target);
        }
        if let Some(count) = self.kinds.get_mut(&old.gvr) {
            *count -= 1;
            if *count == 0 {
                self.kinds.remove(&old.gvr);
                self.kinds_changed = true;
            }
        }
        if let Some(targets) = self.by_work.get_mut(work) {
            targets.remove(target);
            if targets.is_empty() {
                self.by_work.remove(work);
            }
        }
    }

    /// Removes the records of a work. Pending entries stay: they came after the work was last processed,
    /// perhaps for a new work of the same name. Returns the works to enqueue, as [`Tracker::forget`].
    #[must_use]
    pub(crate) fn forget_work(&mut self, work: &str) -> Vec<String> {
        let targets = self.by_work.get(work).cloned().unwrap_or_default();
        targets.iter().flat_map(|target| self.forget(work, target)).collect()
    }

    /// Returns the other works that hold different content of an object which each of them replaces as a
    /// whole (OCM-085).
    pub(crate) fn rivals(&self, work: &str, target: &Target) -> Vec<String> {
        let Some(works) = self.records.get(target) else { return Vec::new() };
        let Some(own) = works.get(work).filter(|r| r.hold == Hold::Content) else { return Vec::new() };
        let differs = |r: &Record| r.hold == Hold::Content && r.content != own.content;
        works.iter().filter(|(name, r)| *name != work && differs(r)).map(|(name, _)| name.clone()).collect()
    }

    /// Returns the resources with records, if they differ from those at the last call.
    pub(crate) fn changed_kinds(&mut self) -> Option<BTreeSet<Gvr>> {
        std::mem::take(&mut self.kinds_changed).then(|| self.kinds.keys().cloned().collect())
    }

    /// Returns the objects of a work whose resource is not followed.
    pub(crate) fn unfollowed(&self, work: &str, followed: &HashSet<Gvr>) -> Vec<Target> {
        let targets = self.by_work.get(work).into_iter().flatten();
        targets
            .filter(|t| self.get(work, t).is_some_and(|record| !followed.contains(&record.gvr)))
            .cloned()
            .collect()
    }

    /// The work itself changed or failed.
    pub(crate) fn mark(&mut self, work: &str) {
        self.pending.entry(work.to_owned()).or_default().changed = true;
    }

    /// Takes what is pending for a work.
    pub(crate) fn take(&mut self, work: &str) -> Todo {
        self.pending.remove(work).unwrap_or_default()
    }

    /// Puts pending entries back that were not processed.
    pub(crate) fn put_back(&mut self, work: &str, todo: Todo) {
        let pending = self.pending.entry(work.to_owned()).or_default();
        pending.changed |= todo.changed;
        pending.everything |= todo.everything;
        for (target, meaning) in todo.objects {
            pending.touch(&target, meaning);
        }
    }

    /// Handles the new metadata of an object. Returns the works to enqueue, each with a pause. When another
    /// writer keeps changing an object, corrections are slowed down: the first ones are done at once, further
    /// ones within a minute with growing pauses.
    pub(crate) fn event(
        &mut self,
        target: &Target,
        live: Option<&ObjectMeta>,
        now: Instant,
    ) -> Vec<(String, Duration)> {
        if let Some(flight) = self.in_flight.get_mut(target) {
            flight.last = Some(live.map_or(LastEvent::Gone, |live| LastEvent::There(Box::new(live.clone()))));
            return Vec::new();
        }
        self.judge(target, live, now)
    }

    fn judge(&mut self, target: &Target, live: Option<&ObjectMeta>, now: Instant) -> Vec<(String, Duration)> {
        let Some(works) = self.records.get_mut(target) else { return Vec::new() };
        let mut wake = Vec::new();
        for (work, record) in works.iter_mut() {
            let meaning = record.meaning(live);
            if meaning != Meaning::Drift
                && let Some(live) = live
                && live.uid.as_deref() == Some(&record.uid)
                && !is_older(live.resource_version.as_deref().unwrap_or_default(), &record.resource_version)
            {
                record.resource_version = live.resource_version.clone().unwrap_or_default();
            }
            if meaning > Meaning::Nothing {
                self.pending.entry(work.clone()).or_default().touch(target, meaning);
                wake.push((work.clone(), meaning));
            }
        }
        let pause = if wake.iter().any(|(_, m)| *m == Meaning::Drift) {
            correction_pause(self.corrections.entry(target.clone()).or_insert((0, now)), now)
        } else {
            Duration::ZERO
        };
        let wait = |m: Meaning| if m == Meaning::Drift { pause } else { Duration::ZERO };
        wake.into_iter().map(|(work, meaning)| (work, wait(meaning))).collect()
    }

    /// The first list of a resource is complete and contained `seen`: recorded objects that are not in it
    /// were deleted. Cost: a walk over all records.
    pub(crate) fn listed(
        &mut self,
        gvr: &Gvr,
        seen: &HashSet<ObjectKey>,
        now: Instant,
    ) -> Vec<(String, Duration)> {
        let absent: Vec<Target> = self
            .records
            .iter()
            .filter(|(target, works)| {
                works.values().any(|record| record.gvr == *gvr)
                    && !seen.contains(&ObjectKey::new(&target.namespace, &target.name))
            })
            .map(|(target, _)| target.clone())
            .collect();
        absent.iter().flat_map(|target| self.event(target, None, now)).collect()
    }
}

/// Returns the pause before the next correction of an object that was corrected this often.
fn correction_pause(past: &mut (u32, Instant), now: Instant) -> Duration {
    let (count, last) = past;
    if now.duration_since(*last) > Duration::from_secs(60) {
        *count = 0;
    }
    let pause = match *count {
        0..=2 => Duration::ZERO,
        n => Duration::from_millis(250 << (n - 3).min(10)).min(Duration::from_secs(240)),
    };
    *count += 1;
    *last = now;
    pause
}

#[cfg(test)]
#[path = "records_tests.rs"]
mod tests;
