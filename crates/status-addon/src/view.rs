//! The state of the agent. Each method takes one change in and returns the objects to process; none of them
//! awaits or fails. The cost is that of the change: an object affects itself, a ManifestWork the objects it
//! delivered, an AppliedManifestWork the resources that it lists.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use runtime::rest::Gvr;
use runtime::{ObjectKey, OwnWrite, Report, ResourceVersion};
use serde_json::Value;

use crate::decide::{Currency, Existing, Object, Origin, Source, is_excluded, work_status_name};
use crate::items::{Applied, Delivered, Reported, Work};

use apis::constants::SINGLETON_STATUS_LABEL;
use apis::control::generation_key;

struct KnownApplied {
    uid: String,
    work: String,
    resources: BTreeSet<Gvr>,
}

struct KnownObject {
    /// UIDs of its AppliedManifestWork owners, in their order.
    owners: Vec<String>,
    singleton: Option<String>,
    status: Option<Arc<Value>>,
}

struct KnownWork {
    uid: String,
    labels: BTreeMap<String, String>,
    currencies: BTreeMap<String, Currency>,
}

struct KnownReport {
    source: Source,
    existing: Existing,
    /// Our last write of it. It is stored at once, and the watch may report earlier states after that.
    own_write: OwnWrite,
}

/// What a change of an AppliedManifestWork affects.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Affected {
    /// Objects to process.
    pub(crate) sources: Vec<Source>,
    /// Whether the result of [`View::wanted`] changed.
    pub(crate) kinds: bool,
}

/// Whether to report that another object owns the WorkStatus of an object.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ConflictReport {
    /// The conflict is new.
    First,
    /// The conflict has been reported.
    Still,
    /// The conflict is over.
    Free,
}

/// A kind that is followed.
#[derive(Default)]
struct Followed {
    kind: String,
    synced: bool,
    objects: HashMap<ObjectKey, KnownObject>,
}

#[derive(Default)]
pub(crate) struct View {
    /// Whether the agent reports how current objects are (OCM-139).
    details: bool,
    applied: HashMap<String, KnownApplied>,
    /// Number of AppliedManifestWorks that list a resource.
    wanted: BTreeMap<Gvr, usize>,
    applied_synced: bool,
    /// Name of an AppliedManifestWork by its UID.
    by_uid: HashMap<String, String>,
    /// Names of the AppliedManifestWorks of a ManifestWork, by its name.
    by_work: HashMap<String, BTreeSet<String>>,
    works: HashMap<String, KnownWork>,
    works_synced: bool,
    followed: HashMap<Gvr, Followed>,
    /// Objects by the UID of an owner.
    owned: HashMap<String, HashSet<Source>>,
    reports: HashMap<String, KnownReport>,
    reports_synced: bool,
    by_source: HashMap<Source, BTreeSet<String>>,
    /// By name of a WorkStatus: the objects that would have it if another object did not own it. Such objects
    /// are very rare.
    waiting: HashMap<String, BTreeSet<Source>>,
}

impl View {
    pub(crate) fn new(details: bool) -> Self {
        Self { details, ..Self::default() }
    }

    pub(crate) fn put_applied(&mut self, item: &Applied) -> Affected {
        let name = item.metadata.name.clone();
        let resources: BTreeSet<Gvr> = item
            .status
            .applied_resources
            .iter()
            .map(|r| Gvr::new(&r.group, &r.version, &r.resource))
            .filter(|gvr| !is_excluded(gvr))
            .collect();
        let (uid, work) = (item.metadata.uid.clone(), item.spec.manifest_work_name.clone());
        let mut affected = Affected::default();
        // Counted before the old resources are released, so that resources in both lists stay wanted.
        for gvr in &resources {
            let count = self.wanted.entry(gvr.clone()).or_default();
            *count += 1;
            affected.kinds |= *count == 1;
        }
        match self.applied.get(&name) {
            Some(old) if old.uid == uid && old.work == work => {}
            Some(_) => {
                affected.sources = self.forget(&name);
                affected.sources.extend(self.owned_by(&uid));
            }
            None => affected.sources = self.owned_by(&uid),
        }
        self.by_uid.insert(uid.clone(), name.clone());
        self.by_work.entry(work.clone()).or_default().insert(name.clone());
        if let Some(old) = self.applied.insert(name, KnownApplied { uid, work, resources }) {
            self.unwant(&old.resources, &mut affected);
        }
        affected
    }

    pub(crate) fn gone_applied(&mut self, name: &str) -> Affected {
        let mut affected = Affected { sources: self.forget(name), kinds: false };
        if let Some(old) = self.applied.remove(name) {
            self.unwant(&old.resources, &mut affected);
        }
        affected
    }

    /// Removes an AppliedManifestWork from the indexes by UID and work. Returns the objects it owned.
    fn forget(&mut self, name: &str) -> Vec<Source> {
        let Some(old) = self.applied.get(name) else { return Vec::new() };
        let uid = old.uid.clone();
        self.by_uid.remove(&uid);
        if let Some(names) = self.by_work.get_mut(&old.work) {
            names.remove(name);
            if names.is_empty() {
                self.by_work.remove(&old.work);
            }
        }
        self.owned_by(&uid)
    }

    /// One AppliedManifestWork less lists these resources.
    fn unwant(&mut self, resources: &BTreeSet<Gvr>, affected: &mut Affected) {
        for gvr in resources {
            let Some(count) = self.wanted.get_mut(gvr) else { continue };
            *count = count.saturating_sub(1);
            if *count > 0 {
                continue;
            }
            self.wanted.remove(gvr);
            affected.kinds = true;
            // A kind that is followed will be stopped, and its objects are returned then.
            if !self.followed.contains_key(gvr) {
                affected.sources.extend(self.by_source.keys().filter(|s| s.gvr == *gvr).cloned());
            }
        }
    }

    pub(crate) fn applied_synced(&mut self) -> Vec<Source> {
        self.applied_synced = true;
        self.owned.values().flatten().chain(self.by_source.keys()).cloned().collect()
    }

    /// Returns the resources of delivered objects; exactly those must be followed. Cost: their number.
    pub(crate) fn wanted(&self) -> BTreeSet<Gvr> {
        self.wanted.keys().cloned().collect()
    }

    pub(crate) fn follow(&mut self, gvr: Gvr, kind: &str) {
        self.followed.entry(gvr).or_default().kind = kind.into();
    }

    pub(crate) fn unfollow(&mut self, gvr: &Gvr) -> Vec<Source> {
        let Some(old) = self.followed.remove(gvr) else { return Vec::new() };
        let mut affected: Vec<Source> = self.by_source.keys().filter(|s| s.gvr == *gvr).cloned().collect();
        for (key, object) in old.objects {
            let source = source_at(gvr, &key);
            self.disown(&source, &object.owners);
            self.stop_waiting(&source);
            affected.push(source);
        }
        affected
    }

    pub(crate) fn put_object(&mut self, gvr: &Gvr, item: Delivered) -> Option<Source> {
        let meta = item.metadata;
        let owners: Vec<String> = meta
            .owner_references
            .iter()
            .filter(|o| {
                o.kind == "AppliedManifestWork"
                    && o.api_version.starts_with("work.open-cluster-management.io/")
            })
            .map(|o| o.uid.clone())
            .collect();
        let source = Source { gvr: gvr.clone(), namespace: meta.namespace.clone(), name: meta.name.clone() };
        let key = ObjectKey::new(&meta.namespace, &meta.name);
        let followed = self.followed.get_mut(gvr)?;
        // Objects that no ManifestWork delivered are in the watch of their kind but are not stored.
        let old = if owners.is_empty() {
            followed.objects.remove(&key)
        } else {
            let singleton = meta.labels.get(SINGLETON_STATUS_LABEL).cloned();
            let known = KnownObject { owners: owners.clone(), singleton, status: item.status };
            followed.objects.insert(key, known)
        };
        let was_ours = old.is_some();
        if let Some(old) = old {
            self.disown(&source, &old.owners);
        }
        for uid in &owners {
            self.owned.entry(uid.clone()).or_default().insert(source.clone());
        }
        (was_ours || !owners.is_empty()).then_some(source)
    }

    pub(crate) fn gone_object(&mut self, gvr: &Gvr, key: &ObjectKey) -> Option<Source> {
        let old = self.followed.get_mut(gvr)?.objects.remove(key)?;
        let source = source_at(gvr, key);
        self.disown(&source, &old.owners);
        self.stop_waiting(&source);
        Some(source)
    }

    pub(crate) fn objects_synced(&mut self, gvr: &Gvr) -> Vec<Source> {
        if let Some(followed) = self.followed.get_mut(gvr) {
            followed.synced = true;
        }
        let owned = self.owned.values().flatten();
        owned.chain(self.by_source.keys()).filter(|s| s.gvr == *gvr).cloned().collect()
    }

    pub(crate) fn put_work(&mut self, item: Work) -> Vec<Source> {
        let currencies = if self.details { item.currencies() } else { BTreeMap::new() };
        let meta = item.metadata;
        let known = KnownWork { uid: meta.uid, labels: meta.labels, currencies };
        let old = self.works.insert(meta.name.clone(), known);
        let unchanged = match (&old, self.works.get(&meta.name)) {
            (Some(old), Some(new)) => {
                old.uid == new.uid && old.labels == new.labels && old.currencies == new.currencies
            }
            _ => false,
        };
        if unchanged { Vec::new() } else { self.delivered_by(&meta.name) }
    }

    pub(crate) fn gone_work(&mut self, name: &str) -> Vec<Source> {
        self.works.remove(name);
        self.delivered_by(name)
    }

    pub(crate) fn works_synced(&mut self) -> Vec<Source> {
        self.works_synced = true;
        self.owned.values().flatten().chain(self.by_source.keys()).cloned().collect()
    }

    /// The watch reported a WorkStatus.
    pub(crate) fn put_report(&mut self, item: Reported) -> Vec<Source> {
        let (mut own_write, version) = (self.own_write(&item), item.metadata.resource_version.clone());
        let is_latest = own_write.observe(ResourceVersion::new(&version)) != Report::Older;
        self.keep_report(item, own_write, is_latest)
    }

    /// The server answered our write of a WorkStatus; the watch may have reported a later state already.
    pub(crate) fn wrote_report(&mut self, item: Reported) -> Vec<Source> {
        let (mut own_write, version) = (self.own_write(&item), item.metadata.resource_version.clone());
        let is_latest = own_write.record(ResourceVersion::new(&version), ());
        self.keep_report(item, own_write, is_latest)
    }

    fn own_write(&self, item: &Reported) -> OwnWrite {
        let known = self.reports.get(&item.metadata.name);
        let known = known.filter(|known| known.existing.uid == item.metadata.uid);
        known.map(|known| known.own_write.clone()).unwrap_or_default()
    }

    fn keep_report(&mut self, item: Reported, own_write: OwnWrite, is_latest: bool) -> Vec<Source> {
        let meta = item.metadata;
        if let Some(known) = self.reports.get_mut(&meta.name).filter(|_| !is_latest) {
            known.own_write = own_write;
            return vec![known.source.clone()];
        }
        let before = self.drop_report(&meta.name);
        let s = item.spec.source_ref;
        let source = Source {
            gvr: Gvr { group: s.group, version: s.version, plural: s.resource },
            namespace: s.namespace,
            name: s.name,
        };
        self.by_source.entry(source.clone()).or_default().insert(meta.name.clone());
        let existing = Existing {
            name: meta.name.clone(),
            uid: meta.uid,
            resource_version: meta.resource_version,
            labels: meta.labels,
            status: item.status,
            currency: item.status_details,
        };
        let mut affected = Vec::new();
        // The WorkStatus was recreated for another object: its former owner, and the objects that wait for
        // the name, must be processed.
        if before.as_ref() != Some(&source) {
            affected.extend(before);
            affected.extend(self.waiting.remove(&meta.name).into_iter().flatten());
        }
        self.reports.insert(meta.name, KnownReport { source: source.clone(), existing, own_write });
        affected.push(source);
        affected
    }

    pub(crate) fn gone_report(&mut self, name: &str) -> Vec<Source> {
        let waiting = self.waiting.remove(name).into_iter().flatten();
        self.drop_report(name).into_iter().chain(waiting).collect()
    }

    /// Registers an object that waits for a WorkStatus which another object owns: it is processed when that
    /// WorkStatus is deleted.
    pub(crate) fn wait_for(&mut self, name: &str, source: &Source) -> ConflictReport {
        if self.reports.get(name).is_none_or(|report| report.source == *source) {
            return ConflictReport::Free;
        }
        let news = self.waiting.entry(name.to_owned()).or_default().insert(source.clone());
        if news { ConflictReport::First } else { ConflictReport::Still }
    }

    fn stop_waiting(&mut self, source: &Source) {
        self.waiting.retain(|_, sources| {
            sources.remove(source);
            !sources.is_empty()
        });
    }

    /// The watch has listed all WorkStatuses. One that this agent made and that was not in the list is gone: it was
    /// deleted while the watch was interrupted.
    pub(crate) fn reports_synced(&mut self) -> Vec<Source> {
        self.reports_synced = true;
        let unreported = self.reports.iter().filter(|(_, report)| report.own_write.is_of_unreported_object());
        let missing: Vec<String> = unreported.map(|(name, _)| name.clone()).collect();
        let waiting: Vec<Source> = missing.iter().flat_map(|name| self.gone_report(name)).collect();
        self.owned.values().flatten().chain(self.by_source.keys()).cloned().chain(waiting).collect()
    }

    /// Returns whether every feed has read its first list.
    pub(crate) fn ready(&self) -> bool {
        self.applied_synced && self.works_synced && self.reports_synced
    }

    /// Returns what is known about one object, and the WorkStatuses about it.
    pub(crate) fn look(&self, source: &Source) -> (Object, Vec<Existing>) {
        let names = self.by_source.get(source);
        let existing =
            names.into_iter().flatten().filter_map(|n| self.reports.get(n)).map(|r| r.existing.clone());
        (self.object(source), existing.collect())
    }

    fn object(&self, source: &Source) -> Object {
        if !self.ready() {
            return Object::Unclear;
        }
        let Some(followed) = self.followed.get(&source.gvr) else {
            // A kind that will be followed soon, as after a start: nothing is known about its objects yet.
            return if self.wanted.contains_key(&source.gvr) { Object::Unclear } else { Object::Gone };
        };
        if !followed.synced {
            return Object::Unclear;
        }
        let key = ObjectKey::new(&source.namespace, &source.name);
        let Some(object) = followed.objects.get(&key) else { return Object::Gone };
        // The first owner that exists determines the origin of the object (KS-206).
        let owner =
            object.owners.iter().find_map(|uid| Some((uid, self.applied.get(self.by_uid.get(uid)?)?)));
        let Some((uid, applied)) = owner else { return Object::Unclear };
        let Some(work) = self.works.get(&applied.work) else { return Object::Unclear };
        let name = work_status_name(uid, source, &followed.kind);
        let holder = self.reports.get(&name).map(|report| &report.source).filter(|s| *s != source);
        let holder = holder.cloned().map(Box::new);
        Object::Delivered {
            holder,
            kind: followed.kind.clone(),
            origin: Origin {
                applied_uid: uid.clone(),
                work_name: applied.work.clone(),
                work_uid: work.uid.clone(),
                work_labels: work.labels.clone(),
            },
            singleton: object.singleton.clone(),
            status: object.status.clone(),
            currency: (!work.currencies.is_empty())
                .then(|| {
                    let (group, kind) = (&source.gvr.group, &followed.kind);
                    let key = generation_key(group, kind, &source.namespace, &source.name);
                    work.currencies.get(&key).copied()
                })
                .flatten(),
        }
    }

    fn owned_by(&self, uid: &str) -> Vec<Source> {
        self.owned.get(uid).into_iter().flatten().cloned().collect()
    }

    fn delivered_by(&self, work: &str) -> Vec<Source> {
        let names = self.by_work.get(work).into_iter().flatten();
        names.filter_map(|name| self.applied.get(name)).flat_map(|a| self.owned_by(&a.uid)).collect()
    }

    fn disown(&mut self, source: &Source, owners: &[String]) {
        for uid in owners {
            if let Some(sources) = self.owned.get_mut(uid) {
                sources.remove(source);
                if sources.is_empty() {
                    self.owned.remove(uid);
                }
            }
        }
    }

    fn drop_report(&mut self, name: &str) -> Option<Source> {
        let old = self.reports.remove(name)?;
        if let Some(names) = self.by_source.get_mut(&old.source) {
            names.remove(name);
            if names.is_empty() {
                self.by_source.remove(&old.source);
            }
        }
        Some(old.source)
    }
}

/// The object of a kind that has this key.
fn source_at(gvr: &Gvr, key: &ObjectKey) -> Source {
    Source { gvr: gvr.clone(), namespace: key.namespace.to_string(), name: key.name.to_string() }
}

#[cfg(test)]
mod tests;
