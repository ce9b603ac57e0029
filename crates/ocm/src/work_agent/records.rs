//! What the agent remembers of applied objects, and what events about them mean.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    time::Duration,
};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use runtime::{
    feed::{Key, Keyed},
    rest::Gvr,
};
use serde::Deserialize;
use tokio::time::Instant;

use super::rules::Target;

/// Metadata of any object.
#[derive(Clone, Debug, Default, Deserialize)]
pub(crate) struct Meta {
    #[serde(default)]
    pub(crate) metadata: ObjectMeta,
}

impl Keyed for Meta {
    fn key(&self) -> Key {
        (self.metadata.namespace.clone().unwrap_or_default(), self.metadata.name.clone().unwrap_or_default())
    }

    fn resource_version(&self) -> &str {
        self.metadata.resource_version.as_deref().unwrap_or_default()
    }
}

/// One object as one work applied it (OCM-080: the apply cache).
#[derive(Clone, Debug)]
pub(crate) struct Record {
    /// Digest of what was required.
    pub(crate) digest: [u8; 32],
    pub(crate) gvr: Gvr,
    pub(crate) uid: String,
    pub(crate) resource_version: String,
    pub(crate) generation: Option<i64>,
    /// Required labels, annotations and the owner's UID, to notice that one was taken away.
    pub(crate) labels: Vec<(String, String)>,
    pub(crate) annotations: Vec<(String, String)>,
    pub(crate) owner: Option<String>,
    /// The content is enforced (Update and ServerSideApply).
    pub(crate) enforced: bool,
    /// Status feedback was asked for.
    pub(crate) observed: bool,
}

/// What an event of the cluster means for a work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Meaning {
    /// Our own write, or nothing that matters.
    Nothing,
    /// Only what is reported may have changed.
    Look,
    /// Someone changed what we enforce.
    Drift,
}

impl Record {
    pub(crate) fn meaning(&self, live: &ObjectMeta) -> Meaning {
        if live.resource_version.as_deref() == Some(&self.resource_version) {
            return Meaning::Nothing;
        }
        let look = if self.observed { Meaning::Look } else { Meaning::Nothing };
        if live.uid.as_deref() != Some(&self.uid) {
            return Meaning::Drift;
        }
        if !self.enforced {
            return look;
        }
        let has = |map: &Option<std::collections::BTreeMap<String, String>>, wanted: &[(String, String)]| {
            wanted.iter().all(|(k, v)| map.as_ref().and_then(|m| m.get(k)) == Some(v))
        };
        let owned = self
            .owner
            .as_ref()
            .is_none_or(|uid| live.owner_references.iter().flatten().any(|owner| owner.uid == *uid));
        // Kinds that count generations raise them with every change of the spec.
        let same_spec = matches!((self.generation, live.generation), (Some(a), Some(b)) if a == b && a > 0);
        if same_spec && owned && has(&live.labels, &self.labels) && has(&live.annotations, &self.annotations)
        {
            look
        } else {
            Meaning::Drift
        }
    }
}

/// Which works want which objects, and what is pending for each work.
#[derive(Default)]
pub(crate) struct Tracker {
    records: HashMap<Target, HashMap<String, Record>>,
    by_work: HashMap<String, HashSet<Target>>,
    dirty: HashSet<String>,
    touched: HashMap<String, BTreeSet<Target>>,
    corrections: HashMap<Target, (u32, Instant)>,
}

impl Tracker {
    pub(crate) fn get(&self, work: &str, target: &Target) -> Option<Record> {
        self.records.get(target)?.get(work).cloned()
    }

    pub(crate) fn put(&mut self, work: &str, target: Target, record: Record) {
        self.by_work.entry(work.to_owned()).or_default().insert(target.clone());
        self.records.entry(target).or_default().insert(work.to_owned(), record);
    }

    pub(crate) fn forget(&mut self, work: &str, target: &Target) {
        if let Some(works) = self.records.get_mut(target) {
            works.remove(work);
            if works.is_empty() {
                self.records.remove(target);
                self.corrections.remove(target);
            }
        }
        if let Some(targets) = self.by_work.get_mut(work) {
            targets.remove(target);
        }
    }

    pub(crate) fn forget_work(&mut self, work: &str) {
        for target in self.by_work.remove(work).unwrap_or_default() {
            self.forget(work, &target);
        }
        self.dirty.remove(work);
        self.touched.remove(work);
    }

    /// Resources of which something is recorded.
    pub(crate) fn resources(&self) -> HashSet<Gvr> {
        self.records.values().flat_map(|works| works.values().map(|r| r.gvr.clone())).collect()
    }

    /// The work itself changed: everything about it is to be looked at.
    pub(crate) fn mark(&mut self, work: &str) {
        self.dirty.insert(work.to_owned());
    }

    /// What has to be done for a work: everything (`None`), or these objects.
    pub(crate) fn take(&mut self, work: &str) -> Option<BTreeSet<Target>> {
        let touched = self.touched.remove(work).unwrap_or_default();
        if self.dirty.remove(work) { None } else { Some(touched) }
    }

    /// Works to wake because of an object's new metadata, each after a pause. A fight with another writer is slowed
    /// down: the first correction comes at once, further ones within a minute later and later.
    pub(crate) fn event(
        &mut self,
        target: &Target,
        live: Option<&ObjectMeta>,
        now: Instant,
    ) -> Vec<(String, Duration)> {
        let Some(works) = self.records.get_mut(target) else { return Vec::new() };
        let mut wake = Vec::new();
        for (work, record) in works.iter_mut() {
            let meaning = live.map_or(Meaning::Drift, |live| record.meaning(live));
            if meaning != Meaning::Drift
                && let Some(live) = live
            {
                record.resource_version = live.resource_version.clone().unwrap_or_default();
            }
            match meaning {
                Meaning::Nothing => {}
                Meaning::Look => wake.push((work.clone(), Duration::ZERO)),
                Meaning::Drift => {
                    let (count, last) = self.corrections.entry(target.clone()).or_insert((0, now));
                    if now.duration_since(*last) > Duration::from_secs(60) {
                        *count = 0;
                    }
                    let pause = match *count {
                        0..=2 => Duration::ZERO,
                        n => Duration::from_millis(250 << (n - 3).min(10)).min(Duration::from_secs(240)),
                    };
                    *count += 1;
                    *last = now;
                    wake.push((work.clone(), pause));
                }
            }
        }
        for (work, _) in &wake {
            self.touched.entry(work.clone()).or_default().insert(target.clone());
        }
        wake
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn record() -> Record {
        Record {
            digest: [0; 32],
            gvr: Gvr::new("apps", "v1", "deployments"),
            uid: "u".into(),
            resource_version: "5".into(),
            generation: Some(2),
            labels: vec![("a".into(), "1".into())],
            annotations: vec![],
            owner: None,
            enforced: true,
            observed: false,
        }
    }

    fn live(version: &str, generation: Option<i64>, label: &str) -> ObjectMeta {
        ObjectMeta {
            uid: Some("u".into()),
            resource_version: Some(version.into()),
            generation,
            labels: Some(BTreeMap::from([("a".to_owned(), label.to_owned())])),
            ..ObjectMeta::default()
        }
    }

    #[test]
    fn ocm_073_events_are_drift_only_when_what_we_enforce_may_have_changed() {
        let cases = [
            ("our own write", record(), live("5", Some(2), "1"), Meaning::Nothing),
            ("status only", record(), live("6", Some(2), "1"), Meaning::Nothing),
            (
                "status, with feedback",
                Record { observed: true, ..record() },
                live("6", Some(2), "1"),
                Meaning::Look,
            ),
            ("spec changed", record(), live("6", Some(3), "1"), Meaning::Drift),
            ("label taken", record(), live("6", Some(2), "2"), Meaning::Drift),
            (
                "kind without generations",
                Record { generation: None, ..record() },
                live("6", None, "1"),
                Meaning::Drift,
            ),
            (
                "create-only",
                Record { enforced: false, ..record() },
                live("6", Some(3), "2"),
                Meaning::Nothing,
            ),
            (
                "owner taken",
                Record { owner: Some("o".into()), ..record() },
                live("6", Some(2), "1"),
                Meaning::Drift,
            ),
        ];
        for (why, record, live, expected) in cases {
            assert_eq!(record.meaning(&live), expected, "{why}");
        }
    }

    #[test]
    fn a_fight_over_one_object_slows_down() {
        let mut tracker = Tracker::default();
        let target = Target { name: "x".into(), ..Target::default() };
        tracker.put("w", target.clone(), record());
        let pauses: Vec<Duration> = (0..6)
            .map(|i| tracker.event(&target, Some(&live(&format!("1{i}"), Some(9), "1")), Instant::now())[0].1)
            .collect();
        assert_eq!(pauses[..3], [Duration::ZERO; 3]);
        assert!(pauses[3] < pauses[4] && pauses[4] < pauses[5]);
        assert_eq!(tracker.take("w").map(|t| t.len()), Some(1));
        tracker.mark("w");
        assert_eq!(tracker.take("w"), None, "everything");
    }
}
