//! The content of the ITS: every wrapped object of every WDS, reduced to what decisions need.
//!
//! Cost of one event: the objects of that envelope, and only if its payload changed.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use apis::constants::{ORIGIN_BINDING_LABEL, ORIGIN_GENERATION_ANNOTATION, ORIGIN_WDS_LABEL};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use runtime::{ObjectKey, OwnWrite, ResourceVersion, Watched};
use serde::Deserialize;
use serde_json::Value;

use crate::{
    content::Digest,
    identity::Identity,
    plan::{ExistingEnvelope, Items},
    plugin::Item,
};

/// A wrapped object as it is received.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct WrappedObject {
    #[serde(default)]
    pub(crate) metadata: ObjectMeta,
    /// [`EnvelopeKind::payload`](crate::plugin::EnvelopeKind::payload) says which of these two fields
    /// matters.
    #[serde(default)]
    pub(crate) spec: Value,
    #[serde(default)]
    pub(crate) data: Value,
}

impl Watched for WrappedObject {
    fn key(&self) -> ObjectKey {
        ObjectKey::of(&self.metadata)
    }

    fn version(&self) -> &str {
        self.metadata.resource_version.as_deref().unwrap_or_default()
    }
}

/// The WDS and Binding that a wrapped object belongs to.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Origin {
    pub(crate) wds: String,
    pub(crate) binding: String,
}

impl Origin {
    pub(crate) fn of(metadata: &ObjectMeta) -> Self {
        let label = |key| metadata.labels.as_ref().and_then(|l| l.get(key)).cloned().unwrap_or_default();
        Self { wds: label(ORIGIN_WDS_LABEL), binding: label(ORIGIN_BINDING_LABEL) }
    }
}

/// A wrapped object as it is remembered.
#[derive(Clone, Debug)]
pub(crate) struct KnownEnvelope {
    pub(crate) origin: Arc<Origin>,
    pub(crate) uid: String,
    pub(crate) resource_version: ResourceVersion,
    pub(crate) generation: i64,
    pub(crate) finalizers: Vec<String>,
    pub(crate) exactly_labelled: bool,
    pub(crate) binding_generation: String,
    pub(crate) deleting: bool,
    pub(crate) fingerprint: Digest,
    pub(crate) contents: Arc<Vec<Item>>,
    pub(crate) items: Items,
}

impl KnownEnvelope {
    /// Builds it from the metadata and the known content of the spec.
    pub(crate) fn new(
        metadata: &ObjectMeta,
        fingerprint: Digest,
        contents: Arc<Vec<Item>>,
        items: Items,
    ) -> Self {
        let annotation = metadata.annotations.as_ref().and_then(|a| a.get(ORIGIN_GENERATION_ANNOTATION));
        Self {
            origin: Arc::new(Origin::of(metadata)),
            uid: metadata.uid.clone().unwrap_or_default(),
            resource_version: ResourceVersion::of(metadata).to_owned(),
            generation: metadata.generation.unwrap_or_default(),
            finalizers: metadata.finalizers.clone().unwrap_or_default(),
            exactly_labelled: metadata.labels.as_ref().is_some_and(|l| l.len() == 2),
            binding_generation: annotation.cloned().unwrap_or_default(),
            deleting: metadata.deletion_timestamp.is_some(),
            fingerprint,
            contents,
            items,
        }
    }

    /// The view that planning needs.
    pub(crate) fn existing(&self) -> ExistingEnvelope {
        ExistingEnvelope {
            items: self.items.clone(),
            fingerprint: self.fingerprint,
            labelled: self.exactly_labelled,
            deleting: self.deleting,
        }
    }
}

struct Holder {
    origin: Arc<Origin>,
    digest: Digest,
    create_only: bool,
}

type MailboxObject = (Arc<str>, Arc<Identity>);

/// The envelopes of one Binding in one mailbox, by name.
pub(crate) type Mailbox = Arc<BTreeMap<String, Arc<KnownEnvelope>>>;

/// All wrapped objects by origin and mailbox, and which origin delivers which object (KS-147).
///
/// Cost of an event: the items of that envelope if they changed, and a copy of its mailbox's list of
/// envelopes if a reader holds that list. Cost of a look at one Binding: the number of its mailboxes.
#[derive(Default)]
pub(crate) struct EnvelopeIndex {
    seen: HashMap<ObjectKey, Arc<KnownEnvelope>>,
    by_origin: HashMap<Origin, BTreeMap<String, Mailbox>>,
    /// For each origin and mailbox, the counter value of the last change that another client made to the
    /// envelopes.
    foreign_changes: HashMap<Origin, HashMap<String, u64>>,
    clock: u64,
    holders: HashMap<MailboxObject, Vec<Holder>>,
    contested: BTreeMap<Origin, BTreeSet<MailboxObject>>,
    writing: HashMap<ObjectKey, OngoingWrites>,
    /// Our own writes that the watch has not reported yet.
    own_writes: HashMap<ObjectKey, OwnWrite>,
}

/// Writes to one name that are in progress.
#[derive(Default)]
struct OngoingWrites {
    writers: usize,
    /// An object of that name was deleted in the meantime.
    gone: bool,
}

impl EnvelopeIndex {
    /// A write to an object of this name begins; [`EnvelopeIndex::end`] must follow.
    pub(crate) fn begin(&mut self, key: &ObjectKey) {
        self.writing.entry(key.clone()).or_default().writers += 1;
    }

    /// Returns whether the watch reported the deletion of an object of this name since the write began, or
    /// since the last call. Then the response to the write may be outdated.
    pub(crate) fn take_deleted(&mut self, key: &ObjectKey) -> bool {
        self.writing.get_mut(key).is_some_and(|writing| std::mem::take(&mut writing.gone))
    }

    pub(crate) fn end(&mut self, key: &ObjectKey) {
        let Some(writing) = self.writing.get_mut(key) else { return };
        writing.writers = writing.writers.saturating_sub(1);
        if writing.writers == 0 {
            self.writing.remove(key);
        }
    }

    pub(crate) fn get(&self, key: &ObjectKey) -> Option<Arc<KnownEnvelope>> {
        self.seen.get(key).cloned()
    }

    /// Number of wrapped objects of all origins.
    pub(crate) fn len(&self) -> usize {
        self.seen.len()
    }

    /// Returns the envelopes of one Binding, by mailbox.
    pub(crate) fn of(&self, origin: &Origin) -> BTreeMap<String, Mailbox> {
        self.by_origin.get(origin).cloned().unwrap_or_default()
    }

    /// Returns the name of an envelope in a mailbox with which another Binding of the same WDS delivers an
    /// object. Cost: a look at the envelopes of the Bindings that deliver it.
    pub(crate) fn envelope_of_other_binding(
        &self,
        origin: &Origin,
        mailbox: &str,
        object: &Arc<Identity>,
    ) -> Option<String> {
        let holders = self.holders.get(&(mailbox.into(), object.clone())).into_iter().flatten();
        let others = holders.filter(|holder| holder.origin.wds == origin.wds && *holder.origin != *origin);
        let envelopes = others.filter_map(|holder| self.by_origin.get(&*holder.origin)?.get(mailbox));
        let holds = |seen: &KnownEnvelope| !seen.deleting && seen.items.contains(object);
        envelopes.flat_map(|all| all.iter()).find(|(_, seen)| holds(seen)).map(|(name, _)| name.clone())
    }

    /// Notes that another client changed the envelopes of an origin in a mailbox.
    pub(crate) fn note_foreign_change(&mut self, origin: &Origin, mailbox: &str) {
        self.clock += 1;
        let clock = self.clock;
        self.foreign_changes.entry(origin.clone()).or_default().insert(mailbox.to_owned(), clock);
    }

    /// Returns the counters of foreign changes. The counter of a mailbox stays equal as long as no other
    /// client changes the envelopes of that origin there.
    pub(crate) fn foreign_changes(&self, origin: &Origin) -> HashMap<String, u64> {
        self.foreign_changes.get(origin).cloned().unwrap_or_default()
    }

    /// Forgets an origin that no longer exists.
    pub(crate) fn forget(&mut self, origin: &Origin) {
        self.foreign_changes.remove(origin);
    }

    /// Returns whether this version, reported by the watch, is older than our own last write.
    pub(crate) fn is_stale(&self, key: &ObjectKey, version: ResourceVersion<&str>) -> bool {
        self.own_writes.get(key).is_some_and(|ours| ours.is_older(version))
    }

    /// Returns the wrapped objects that this process wrote and that the watch has never reported.
    pub(crate) fn unreported(&self) -> Vec<ObjectKey> {
        let unreported = self.own_writes.iter().filter(|(_, write)| write.is_of_unreported_object());
        unreported.map(|(key, _)| key.clone()).collect()
    }

    /// Stores a wrapped object that the watch reported. Returns the origins whose double deliveries changed.
    pub(crate) fn put(&mut self, key: ObjectKey, seen: KnownEnvelope) -> BTreeSet<Origin> {
        if self.is_stale(&key, seen.resource_version.as_ref()) {
            return BTreeSet::new();
        }
        self.own_writes.remove(&key);
        self.replace(key, seen)
    }

    /// Like `put`, for the response to our own write; the watch may already have reported a later state.
    pub(crate) fn wrote(&mut self, key: ObjectKey, seen: KnownEnvelope) -> BTreeSet<Origin> {
        let mut write = self.own_writes.remove(&key).unwrap_or_else(|| {
            OwnWrite::since(
                self.seen.get(&key).map(|known| known.resource_version.clone()).unwrap_or_default(),
            )
        });
        let is_latest = write.record(seen.resource_version.as_ref(), ());
        if write.is_pending() {
            self.own_writes.insert(key.clone(), write);
        }
        if !is_latest {
            return BTreeSet::new();
        }
        self.replace(key, seen)
    }

    fn replace(&mut self, key: ObjectKey, seen: KnownEnvelope) -> BTreeSet<Origin> {
        let seen = Arc::new(seen);
        let old = self.seen.insert(key.clone(), seen.clone());
        let mut touched = BTreeSet::new();
        let moved = old.as_ref().is_some_and(|old| old.origin != seen.origin);
        if let Some(old) = old.as_ref().filter(|_| moved) {
            self.leave(&key, old);
        }
        let mailboxes = self.by_origin.entry((*seen.origin).clone()).or_default();
        let mailbox = mailboxes.entry(key.namespace.to_string()).or_default();
        Arc::make_mut(mailbox).insert(key.name.to_string(), seen.clone());
        let same_contents = old.as_ref().is_some_and(|old| Arc::ptr_eq(&old.contents, &seen.contents));
        if moved || !same_contents {
            if let Some(old) = &old {
                self.release(&key, old, &mut touched);
            }
            self.hold(&key, &seen, &mut touched);
        }
        touched
    }

    /// Removes a wrapped object. Returns it with the origins whose double deliveries changed.
    pub(crate) fn remove(&mut self, key: &ObjectKey) -> Option<(Arc<KnownEnvelope>, BTreeSet<Origin>)> {
        if let Some(writing) = self.writing.get_mut(key) {
            writing.gone = true;
        }
        self.own_writes.remove(key);
        let old = self.seen.remove(key)?;
        let mut touched = BTreeSet::new();
        self.leave(key, &old);
        self.release(key, &old, &mut touched);
        Some((old, touched))
    }

    fn leave(&mut self, key: &ObjectKey, old: &KnownEnvelope) {
        let Some(mailboxes) = self.by_origin.get_mut(&*old.origin) else { return };
        if let Some(mailbox) = mailboxes.get_mut(&*key.namespace) {
            Arc::make_mut(mailbox).remove(&*key.name);
            if mailbox.is_empty() {
                mailboxes.remove(&*key.namespace);
            }
        }
        if mailboxes.is_empty() {
            self.by_origin.remove(&*old.origin);
        }
    }

    /// Returns lines for `Binding.status.errors` about objects that another origin delivers differently
    /// (KS-147).
    pub(crate) fn double_deliveries(&self, origin: &Origin) -> Vec<String> {
        let mut lines = BTreeSet::new();
        for place in self.contested.get(origin).into_iter().flatten() {
            for other in self.holders.get(place).into_iter().flatten().filter(|h| *h.origin != *origin) {
                let (wec, object) = place;
                let Origin { wds, binding } = &*other.origin;
                lines
                    .insert(format!("{object} is also delivered to {wec} by Binding {binding} of WDS {wds}"));
            }
        }
        lines.into_iter().collect()
    }

    fn hold(&mut self, key: &ObjectKey, seen: &KnownEnvelope, touched: &mut BTreeSet<Origin>) {
        for item in seen.contents.iter() {
            let place = (key.namespace.clone(), item.identity.clone());
            let holder =
                Holder { origin: seen.origin.clone(), digest: item.digest, create_only: item.create_only };
            self.holders.entry(place.clone()).or_default().push(holder);
            self.judge(&place, touched);
        }
    }

    fn release(&mut self, key: &ObjectKey, seen: &KnownEnvelope, touched: &mut BTreeSet<Origin>) {
        for item in seen.contents.iter() {
            let place = (key.namespace.clone(), item.identity.clone());
            if let Some(holders) = self.holders.get_mut(&place)
                && let Some(at) =
                    holders.iter().position(|h| h.origin == seen.origin && h.digest == item.digest)
            {
                let gone = holders.swap_remove(at);
                if holders.is_empty() {
                    self.holders.remove(&place);
                }
                self.uncontest(&gone.origin, &place, touched);
                self.judge(&place, touched);
            }
        }
    }

    fn judge(&mut self, place: &MailboxObject, touched: &mut BTreeSet<Origin>) {
        let Some(holders) = self.holders.get(place).filter(|h| h.len() > 1) else {
            if let Some(holder) = self.holders.get(place).and_then(|h| h.first()) {
                let origin = holder.origin.clone();
                self.uncontest(&origin, place, touched);
            }
            return;
        };
        // Within one WDS both deliver the same object, although perhaps in different versions.
        let differ = |a: &Holder, b: &Holder| {
            a.origin != b.origin
                && (a.create_only != b.create_only || (a.digest != b.digest && a.origin.wds != b.origin.wds))
        };
        let verdicts: Vec<(Arc<Origin>, bool)> =
            holders.iter().map(|a| (a.origin.clone(), holders.iter().any(|b| differ(a, b)))).collect();
        for (origin, contested) in verdicts {
            if contested {
                if self.contested.entry((*origin).clone()).or_default().insert(place.clone()) {
                    touched.insert((*origin).clone());
                }
            } else {
                self.uncontest(&origin, place, touched);
            }
        }
    }

    fn uncontest(&mut self, origin: &Origin, place: &MailboxObject, touched: &mut BTreeSet<Origin>) {
        if let Some(places) = self.contested.get_mut(origin)
            && places.remove(place)
        {
            touched.insert(origin.clone());
            if places.is_empty() {
                self.contested.remove(origin);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(wds: &str, binding: &str, version: &str, objects: &[(&str, u8, bool)]) -> KnownEnvelope {
        let metadata = ObjectMeta {
            labels: Some(BTreeMap::from([
                (ORIGIN_WDS_LABEL.to_owned(), wds.to_owned()),
                (ORIGIN_BINDING_LABEL.to_owned(), binding.to_owned()),
            ])),
            resource_version: Some(version.into()),
            ..ObjectMeta::default()
        };
        let contents: Vec<Item> = objects
            .iter()
            .map(|(name, digest, create_only)| Item {
                identity: Arc::new(Identity {
                    group: String::new(),
                    kind: "X".into(),
                    namespace: String::new(),
                    name: (*name).into(),
                }),
                digest: [*digest; 32],
                create_only: *create_only,
            })
            .collect();
        let items = contents.iter().map(|i| i.identity.clone()).collect();
        KnownEnvelope::new(&metadata, [0; 32], Arc::new(contents), Arc::new(items))
    }

    fn key(name: &str) -> ObjectKey {
        ObjectKey::new("wec", name)
    }

    fn origin(wds: &str, binding: &str) -> Origin {
        Origin { wds: wds.into(), binding: binding.into() }
    }

    #[test]
    fn ks_147_differing_double_delivery_is_noticed_and_forgotten() {
        let mut index = EnvelopeIndex::default();
        assert!(index.put(key("a"), seen("w1", "a", "1", &[("x", 1, false)])).is_empty());
        let touched = index.put(key("b"), seen("w2", "b", "2", &[("x", 2, false)]));
        assert_eq!(touched, BTreeSet::from([origin("w1", "a"), origin("w2", "b")]));
        assert_eq!(
            index.double_deliveries(&origin("w1", "a")),
            ["X(x) is also delivered to wec by Binding b of WDS w2"]
        );
        let touched = index.put(key("b"), seen("w2", "b", "3", &[("x", 1, false)]));
        assert_eq!(touched.len(), 2, "equal contents are no conflict");
        assert!(index.double_deliveries(&origin("w1", "a")).is_empty());
        index.put(key("b"), seen("w2", "b", "4", &[("x", 1, true)]));
        assert_eq!(index.double_deliveries(&origin("w2", "b")).len(), 1, "create-only bits differ");
        index.remove(&key("b"));
        assert!(index.double_deliveries(&origin("w1", "a")).is_empty());
    }

    #[test]
    fn ks_147_bindings_of_one_wds_differ_only_in_create_only() {
        let mut index = EnvelopeIndex::default();
        index.put(key("a"), seen("w", "a", "1", &[("x", 1, false)]));
        assert!(index.put(key("b"), seen("w", "b", "2", &[("x", 2, false)])).is_empty());
        assert!(!index.put(key("b"), seen("w", "b", "3", &[("x", 1, true)])).is_empty());
    }

    /// KS-141: finds the other Binding of the same WDS that delivers an object to a cluster.
    #[test]
    fn ks_141_the_envelope_of_a_neighbour_is_found() {
        let mut index = EnvelopeIndex::default();
        index.put(key("a"), seen("w", "a", "1", &[("x", 1, false)]));
        index.put(key("c"), seen("other", "c", "2", &[("y", 1, false)]));
        let object = |name: &str| {
            Arc::new(Identity {
                group: String::new(),
                kind: "X".into(),
                namespace: String::new(),
                name: name.into(),
            })
        };
        for (binding, mailbox, name, found) in [
            ("b", "wec", "x", Some("a")),
            ("a", "wec", "x", None),
            ("b", "elsewhere", "x", None),
            ("b", "wec", "y", None),
        ] {
            let envelope = index.envelope_of_other_binding(&origin("w", binding), mailbox, &object(name));
            assert_eq!(envelope.as_deref(), found, "{binding} {mailbox} {name}");
        }
    }

    #[test]
    fn envelopes_are_found_by_origin_and_mailbox() {
        let mut index = EnvelopeIndex::default();
        for (mailbox, name, binding) in
            [("m1", "x", "a"), ("m1", "y", "a"), ("m2", "x", "a"), ("m2", "z", "b")]
        {
            index.put(ObjectKey::new(mailbox, name), seen("w", binding, "1", &[]));
        }
        let names = |index: &EnvelopeIndex, binding: &str| -> Vec<String> {
            let all = index.of(&origin("w", binding)).into_iter();
            all.flat_map(|(m, box_)| box_.keys().map(|n| format!("{m}/{n}")).collect::<Vec<_>>()).collect()
        };
        assert_eq!(names(&index, "a"), ["m1/x", "m1/y", "m2/x"]);
        index.put(ObjectKey::new("m2", "x"), seen("w", "b", "2", &[]));
        assert_eq!(names(&index, "a"), ["m1/x", "m1/y"]);
        assert_eq!(names(&index, "b"), ["m2/x", "m2/z"]);
        index.remove(&ObjectKey::new("m1", "x"));
        index.remove(&ObjectKey::new("m1", "y"));
        assert!(index.of(&origin("w", "a")).is_empty() && !index.by_origin.contains_key(&origin("w", "a")));
        let before = index.foreign_changes(&origin("w", "b"));
        index.note_foreign_change(&origin("w", "b"), "m2");
        assert_ne!(index.foreign_changes(&origin("w", "b")), before);
    }

    #[test]
    fn an_end_that_is_told_during_a_write_is_not_missed() {
        let mut index = EnvelopeIndex::default();
        index.begin(&key("a"));
        assert!(!index.take_deleted(&key("a")));
        assert!(index.remove(&key("a")).is_none(), "nothing was known yet");
        assert!(index.take_deleted(&key("a")));
        assert!(!index.take_deleted(&key("a")), "told once");
        index.put(key("a"), seen("w", "a", "10", &[]));
        index.begin(&key("a"));
        index.end(&key("a"));
        index.remove(&key("a"));
        assert!(index.take_deleted(&key("a")), "the other still writes");
        index.end(&key("a"));
        index.remove(&key("a"));
        assert!(!index.take_deleted(&key("a")), "nobody writes");
    }

    #[test]
    fn late_echoes_do_not_undo_newer_knowledge() {
        let mut index = EnvelopeIndex::default();
        let cached = |index: &EnvelopeIndex| {
            index.get(&key("a")).map(|s| s.resource_version.as_str().to_owned()).unwrap_or_default()
        };
        index.wrote(key("a"), seen("w", "a", "10", &[("x", 1, false)]));
        index.put(key("a"), seen("w", "a", "9", &[]));
        assert_eq!(cached(&index), "10");
        index.put(key("a"), seen("w", "a", "12", &[]));
        index.wrote(key("a"), seen("w", "a", "11", &[]));
        assert_eq!(cached(&index), "12", "nor does a late answer");
    }

    /// KS-084: after a server was restored from a backup, its list is accepted although its versions are
    /// smaller.
    #[test]
    fn ks_084_versions_may_go_back() {
        let mut index = EnvelopeIndex::default();
        index.wrote(key("a"), seen("w", "a", "10", &[("x", 1, false)]));
        index.put(key("a"), seen("w", "a", "10", &[("x", 1, false)]));
        index.put(key("b"), seen("w", "a", "11", &[]));
        index.wrote(key("b"), seen("w", "a", "11", &[]));
        for name in ["a", "b"] {
            index.put(key(name), seen("w", "a", "5", &[]));
            assert_eq!(
                index.get(&key(name)).map(|s| s.resource_version.as_str().to_owned()).as_deref(),
                Some("5"),
                "{name}"
            );
        }
        index.wrote(key("c"), seen("w", "a", "12", &[]));
        index.remove(&key("c"));
        index.put(key("c"), seen("w", "a", "6", &[]));
        assert!(index.get(&key("c")).is_some(), "what is gone leaves nothing behind");
    }
}
