//! What the ITS holds: every wrapped object of every WDS, reduced to what decisions need.
//!
//! Cost of one event: its own objects, and only when its spec changed.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use apis::constants::{ORIGIN_BINDING_LABEL, ORIGIN_GENERATION_ANNOTATION, ORIGIN_WDS_LABEL};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use runtime::feed::{Key, Keyed};
use serde::Deserialize;
use serde_json::Value;

use crate::{
    content::{Digest, Identity},
    plan::{Existing, Items},
    plugin::Item,
};

/// A wrapped object as it arrives.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct WrappedObject {
    #[serde(default)]
    pub(crate) metadata: ObjectMeta,
    #[serde(default)]
    pub(crate) spec: Value,
}

impl Keyed for WrappedObject {
    fn key(&self) -> Key {
        (self.metadata.namespace.clone().unwrap_or_default(), self.metadata.name.clone().unwrap_or_default())
    }

    fn resource_version(&self) -> &str {
        self.metadata.resource_version.as_deref().unwrap_or_default()
    }
}

/// Whose wrapped object it is.
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
pub(crate) struct Seen {
    pub(crate) origin: Arc<Origin>,
    pub(crate) uid: String,
    pub(crate) resource_version: String,
    pub(crate) generation: i64,
    pub(crate) finalizers: Vec<String>,
    pub(crate) exactly_labelled: bool,
    pub(crate) binding_generation: String,
    pub(crate) deleting: bool,
    pub(crate) fingerprint: Digest,
    pub(crate) contents: Arc<Vec<Item>>,
    pub(crate) items: Items,
}

impl Seen {
    /// From metadata and what the spec is known to hold.
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
            resource_version: metadata.resource_version.clone().unwrap_or_default(),
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

    /// For planning, when the Binding is at `generation`.
    pub(crate) fn existing(&self, generation: &str) -> Existing {
        Existing {
            items: self.items.clone(),
            fingerprint: self.fingerprint,
            labelled: self.exactly_labelled,
            current: self.binding_generation == generation,
            deleting: self.deleting,
        }
    }
}

struct Holder {
    origin: Arc<Origin>,
    digest: Digest,
    create_only: bool,
}

type Place = (String, Arc<Identity>);

/// All wrapped objects, by origin, and who delivers what (KS-147).
#[derive(Default)]
pub(crate) struct Index {
    seen: HashMap<Key, Arc<Seen>>,
    by_origin: HashMap<Origin, BTreeSet<Key>>,
    holders: HashMap<Place, Vec<Holder>>,
    contested: BTreeMap<Origin, BTreeSet<Place>>,
}

impl Index {
    pub(crate) fn get(&self, key: &Key) -> Option<Arc<Seen>> {
        self.seen.get(key).cloned()
    }

    /// All of one Binding, sorted by namespace and name.
    pub(crate) fn of(&self, origin: &Origin) -> Vec<(Key, Arc<Seen>)> {
        let keys = self.by_origin.get(origin).into_iter().flatten();
        keys.filter_map(|key| Some((key.clone(), self.seen.get(key)?.clone()))).collect()
    }

    /// Remembers a wrapped object. Gives the origins whose double deliveries changed.
    pub(crate) fn put(&mut self, key: Key, seen: Seen) -> BTreeSet<Origin> {
        let old = self.seen.get(&key).cloned();
        if let Some(old) = &old
            && older(&seen.resource_version, &old.resource_version)
        {
            return BTreeSet::new();
        }
        let unchanged = old
            .as_ref()
            .is_some_and(|old| Arc::ptr_eq(&old.contents, &seen.contents) && old.origin == seen.origin);
        let mut touched = BTreeSet::new();
        if !unchanged {
            if let Some(old) = &old {
                self.release(&key, old, &mut touched);
            }
            self.hold(&key, &seen, &mut touched);
        }
        self.seen.insert(key, Arc::new(seen));
        touched
    }

    /// Forgets a wrapped object; gives it back together with the origins whose double deliveries changed.
    pub(crate) fn remove(&mut self, key: &Key) -> Option<(Arc<Seen>, BTreeSet<Origin>)> {
        let old = self.seen.remove(key)?;
        let mut touched = BTreeSet::new();
        self.release(key, &old, &mut touched);
        Some((old, touched))
    }

    /// Lines for `Binding.status.errors` about objects that someone else delivers differently (KS-147).
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

    fn hold(&mut self, key: &Key, seen: &Seen, touched: &mut BTreeSet<Origin>) {
        self.by_origin.entry((*seen.origin).clone()).or_default().insert(key.clone());
        for item in seen.contents.iter() {
            let place = (key.0.clone(), item.identity.clone());
            let holder =
                Holder { origin: seen.origin.clone(), digest: item.digest, create_only: item.create_only };
            self.holders.entry(place.clone()).or_default().push(holder);
            self.judge(&place, touched);
        }
    }

    fn release(&mut self, key: &Key, seen: &Seen, touched: &mut BTreeSet<Origin>) {
        if let Some(keys) = self.by_origin.get_mut(&*seen.origin) {
            keys.remove(key);
            if keys.is_empty() {
                self.by_origin.remove(&*seen.origin);
            }
        }
        for item in seen.contents.iter() {
            let place = (key.0.clone(), item.identity.clone());
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

    fn judge(&mut self, place: &Place, touched: &mut BTreeSet<Origin>) {
        let Some(holders) = self.holders.get(place).filter(|h| h.len() > 1) else {
            if let Some(holder) = self.holders.get(place).and_then(|h| h.first()) {
                let origin = holder.origin.clone();
                self.uncontest(&origin, place, touched);
            }
            return;
        };
        // Within one WDS both carry the same object, if perhaps not yet at the same version.
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

    fn uncontest(&mut self, origin: &Origin, place: &Place, touched: &mut BTreeSet<Origin>) {
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

/// True when both are numbers and `left` is the smaller: a late echo of something already superseded.
pub(crate) fn older(left: &str, right: &str) -> bool {
    match (left.parse::<u64>(), right.parse::<u64>()) {
        (Ok(left), Ok(right)) => left < right,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(wds: &str, binding: &str, version: &str, objects: &[(&str, u8, bool)]) -> Seen {
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
        Seen::new(&metadata, [0; 32], Arc::new(contents), Arc::new(items))
    }

    fn key(name: &str) -> Key {
        ("wec".into(), name.into())
    }

    fn origin(wds: &str, binding: &str) -> Origin {
        Origin { wds: wds.into(), binding: binding.into() }
    }

    #[test]
    fn ks_147_differing_double_delivery_is_noticed_and_forgotten() {
        let mut index = Index::default();
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
        let mut index = Index::default();
        index.put(key("a"), seen("w", "a", "1", &[("x", 1, false)]));
        assert!(index.put(key("b"), seen("w", "b", "2", &[("x", 2, false)])).is_empty());
        assert!(!index.put(key("b"), seen("w", "b", "3", &[("x", 1, true)])).is_empty());
    }

    #[test]
    fn late_echoes_do_not_undo_newer_knowledge() {
        let mut index = Index::default();
        index.put(key("a"), seen("w", "a", "10", &[("x", 1, false)]));
        index.put(key("a"), seen("w", "a", "9", &[]));
        assert_eq!(index.get(&key("a")).map(|s| s.contents.len()), Some(1));
    }
}
