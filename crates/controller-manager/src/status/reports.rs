//! WorkStatus objects by what they are about.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use apis::{
    constants::ORIGIN_WDS_LABEL,
    control::{SourceRef, WorkStatus},
};
use parking_lot::Mutex;
use runtime::{Event, Store};

use super::decision::Reported;
use crate::identity::{ClusterName, GroupResource, ObjectId};

type ByCluster = BTreeMap<ClusterName, BTreeSet<Arc<str>>>;

/// Which WorkStatus objects there are for an object, by cluster.
pub(super) struct Reports {
    wds: String,
    index: Mutex<HashMap<ObjectId, ByCluster>>,
}

impl Reports {
    pub(super) fn new(wds: &str) -> Self {
        Self { wds: wds.to_owned(), index: Mutex::default() }
    }

    /// Takes note of an event, and gives the objects that it is about: the one it was about, too.
    pub(super) fn take(&self, event: Event<WorkStatus>) -> Vec<ObjectId> {
        let (old, new) = match &event {
            Event::Added(new) => (None, Some(new)),
            Event::Updated { old, new } => (Some(old), Some(new)),
            Event::Deleted(old) => (Some(old), None),
            Event::Synced => (None, None),
        };
        let old = old.and_then(|old| self.subject(old));
        let new = new.and_then(|new| self.subject(new));
        let mut index = self.index.lock();
        if let Some((id, cluster, name)) = &old
            && old != new
            && let Some(clusters) = index.get_mut(id)
        {
            if let Some(names) = clusters.get_mut(cluster) {
                names.remove(name);
            }
            clusters.retain(|_, names| !names.is_empty());
            if clusters.is_empty() {
                index.remove(id);
            }
        }
        if let Some((id, cluster, name)) = &new {
            let names = index.entry(id.clone()).or_default().entry(cluster.clone()).or_default();
            names.insert(name.clone());
        }
        drop(index);
        let mut about: Vec<_> = [old, new].into_iter().flatten().map(|(id, ..)| id).collect();
        about.dedup();
        about
    }

    /// What it is about, in which cluster, and its name; none if it is another WDS' (KS-149).
    fn subject(&self, work: &WorkStatus) -> Option<(ObjectId, ClusterName, Arc<str>)> {
        let labels = work.metadata.labels.as_ref();
        if labels.and_then(|labels| labels.get(ORIGIN_WDS_LABEL)).is_some_and(|wds| *wds != self.wds) {
            return None;
        }
        let SourceRef { group, resource, namespace, name, .. } = work.spec.source_ref.as_ref()?;
        let id = ObjectId::new(Arc::new(GroupResource::new(group, resource)), namespace, name);
        let (cluster, own) = (work.metadata.namespace.as_deref()?, work.metadata.name.as_deref()?);
        Some((id, cluster.into(), own.into()))
    }

    /// What a cluster reports about an object (KS-159).
    pub(super) fn reported(&self, id: &ObjectId, cluster: &str, works: &Store<WorkStatus>) -> Reported {
        let index = self.index.lock();
        let names = index.get(id).and_then(|clusters| clusters.get(cluster)).cloned().unwrap_or_default();
        drop(index);
        let found = names.iter().rev().filter_map(|name| works.get(cluster, name));
        // Of several, all about the same object, the latest; of equally late ones the first by name.
        match found.max_by_key(|work| updated(work)) {
            None => Reported::Nothing,
            Some(work) => {
                work.status.as_ref().map_or(Reported::Absent, |raw| Reported::Status(raw.0.clone()))
            }
        }
    }
}

fn updated(work: &WorkStatus) -> Option<k8s_openapi::jiff::Timestamp> {
    let writes = work.metadata.managed_fields.iter().flatten().filter_map(|entry| entry.time.as_ref());
    writes.chain(&work.metadata.creation_timestamp).map(|time| time.0).max()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn work(name: &str, wds: &str, subject: &str, time: &str, replicas: u32) -> WorkStatus {
        serde_json::from_value(json!({
            "metadata": {
                "name": name, "namespace": "c1", "creationTimestamp": time, "resourceVersion": "1",
                "labels": {ORIGIN_WDS_LABEL: wds},
            },
            "spec": {"sourceRef": {
                "group": "apps", "version": "v1", "resource": "deployments", "kind": "Deployment",
                "namespace": "ns", "name": subject,
            }},
            "status": {"replicas": replicas},
        }))
        .unwrap()
    }

    fn id(name: &str) -> ObjectId {
        ObjectId::new(Arc::new(GroupResource::new("apps", "deployments")), "ns", name)
    }

    #[test]
    fn ks_149_reports_of_another_wds_are_not_ours() {
        let reports = Reports::new("wds1");
        let other = work("a", "wds2", "web", "2026-01-01T00:00:00Z", 1);
        assert_eq!(reports.take(Event::Added(Arc::new(other))), []);
        let mut unlabelled = work("b", "", "web", "2026-01-01T00:00:00Z", 1);
        unlabelled.metadata.labels = None;
        assert_eq!(reports.take(Event::Added(Arc::new(unlabelled))), [id("web")]);
    }

    #[test]
    fn ks_159_the_latest_of_several_reports_counts() {
        let reports = Reports::new("wds1");
        let early = work("z", "wds1", "web", "2026-01-01T00:00:00Z", 1);
        let late = work("a", "wds1", "web", "2026-01-02T00:00:00Z", 2);
        let store = Store::of([early.clone(), late.clone()]);
        assert_eq!(reports.reported(&id("web"), "c1", &store), Reported::Nothing);
        reports.take(Event::Added(Arc::new(early)));
        reports.take(Event::Added(Arc::new(late.clone())));
        assert_eq!(reports.reported(&id("web"), "c1", &store), Reported::Status(json!({"replicas": 2})));
        reports.take(Event::Deleted(Arc::new(late)));
        assert_eq!(reports.reported(&id("web"), "c1", &store), Reported::Status(json!({"replicas": 1})));
        assert_eq!(reports.reported(&id("web"), "c2", &store), Reported::Nothing);
    }

    #[test]
    fn a_report_that_changes_its_subject_is_about_both() {
        let reports = Reports::new("wds1");
        let old = Arc::new(work("a", "wds1", "web", "2026-01-01T00:00:00Z", 1));
        let new = Arc::new(work("a", "wds1", "db", "2026-01-01T00:00:00Z", 1));
        reports.take(Event::Added(old.clone()));
        assert_eq!(reports.take(Event::Updated { old, new }), [id("web"), id("db")]);
    }
}
