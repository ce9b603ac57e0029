//! Indexes WorkStatus objects by the object they are about.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use apis::control::{SourceRef, WorkStatusSpec};
use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};
use parking_lot::Mutex;
use runtime::{Event, ObjectKey, Watched};
use serde::{Deserialize, Deserializer, de::IgnoredAny};
use serde_json::Value;

use super::{decision::Reported, table::Report};
use crate::identity::{ClusterName, GroupResource, ObjectId};

/// The relevant part of a WorkStatus; its managed fields may be larger than the rest.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct WorkFacts {
    metadata: WorkMeta,
    spec: WorkStatusSpec,
    status: Option<Arc<Value>>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct WorkMeta {
    name: Arc<str>,
    namespace: Arc<str>,
    resource_version: Box<str>,
    creation_timestamp: Option<Time>,
    labels: Option<Origin>,
    /// Time of the last change of the status.
    #[serde(rename = "managedFields", deserialize_with = "updated")]
    updated: Option<Timestamp>,
}

/// The WDS that a WorkStatus belongs to, if it names one.
#[derive(Clone, Debug, Default, Deserialize)]
struct Origin {
    #[serde(rename = "transport.kubestellar.io/originWdsName")]
    wds: Option<Box<str>>,
}

/// Returns the latest time of the writes that include the status (KS-176).
fn updated<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Timestamp>, D::Error> {
    #[derive(Deserialize)]
    struct Fields {
        #[serde(rename = "f:status")]
        status: Option<IgnoredAny>,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Write {
        time: Option<Time>,
        #[serde(rename = "fieldsV1")]
        fields: Option<Fields>,
    }
    let writes: Option<Vec<Write>> = Deserialize::deserialize(deserializer)?;
    let of_status = writes
        .into_iter()
        .flatten()
        .filter(|write| write.fields.as_ref().is_some_and(|fields| fields.status.is_some()));
    Ok(of_status.filter_map(|write| write.time).map(|time| time.0).max())
}

impl Watched for WorkFacts {
    fn key(&self) -> ObjectKey {
        ObjectKey::new(&self.metadata.namespace, &self.metadata.name)
    }

    fn version(&self) -> &str {
        &self.metadata.resource_version
    }
}

/// The content of one WorkStatus.
#[derive(Clone)]
struct Entry {
    report: Arc<Report>,
    since: Option<Timestamp>,
}

type ByName = BTreeMap<Arc<str>, Entry>;
type ByCluster = BTreeMap<ClusterName, ByName>;

/// The reports about each object, by cluster. If a report changes, a new value is allocated; otherwise the
/// value in memory stays the same, whatever else changes in its WorkStatus.
pub(super) struct Reports {
    wds: String,
    index: Mutex<HashMap<ObjectId, ByCluster>>,
}

impl Reports {
    pub(super) fn new(wds: &str) -> Self {
        Self { wds: wds.to_owned(), index: Mutex::default() }
    }

    /// Handles an event. Returns the objects whose report changed.
    pub(super) fn take(&self, event: Event<WorkFacts>) -> Vec<ObjectId> {
        let (old, new) = match &event {
            Event::Added(new) => (None, Some(new)),
            Event::Updated { old, new } => (Some(old), Some(new)),
            Event::Deleted(old) => (Some(old), None),
            Event::Synced => (None, None),
        };
        let old = old.and_then(|old| self.subject(old));
        let subject = new.and_then(|new| self.subject(new));
        let mut index = self.index.lock();
        let mut about = Vec::new();
        if let Some((id, cluster, name)) = old
            && subject.as_ref().is_none_or(|(other, ..)| *other != id)
        {
            forget(&mut index, &id, &cluster, &name);
            about.push(id);
        }
        if let (Some((id, cluster, name)), Some(new)) = (subject, new) {
            let entries = index.entry(id.clone()).or_default().entry(cluster).or_default();
            let entry = Entry::of(new);
            let known = entries.get(&name);
            if known.is_none_or(|known| known.report != entry.report || known.since != entry.since) {
                entries.insert(name, entry);
                about.push(id);
            }
        }
        about
    }

    /// Returns the object, the cluster and the name of a WorkStatus; `None` if it belongs to another WDS
    /// (KS-149).
    fn subject(&self, work: &WorkFacts) -> Option<(ObjectId, ClusterName, Arc<str>)> {
        let origin = work.metadata.labels.as_ref().and_then(|labels| labels.wds.as_deref());
        if origin.is_some_and(|wds| wds != self.wds) {
            return None;
        }
        // The version may differ from the one used here (KS-189).
        let SourceRef { group, resource, namespace, name, .. } = work.spec.source_ref.as_ref()?;
        let id = ObjectId::new(Arc::new(GroupResource::new(group, resource)), namespace, name);
        Some((id, work.metadata.namespace.clone(), work.metadata.name.clone()))
    }

    /// Returns the report of a cluster about an object. Of several WorkStatus objects about one object the
    /// latest counts; of equally late ones the first by name (KS-159).
    pub(super) fn get(&self, id: &ObjectId, cluster: &str) -> Option<Arc<Report>> {
        let index = self.index.lock();
        let entries = index.get(id)?.get(cluster)?;
        let latest = entries.values().rev().max_by_key(|entry| entry.since)?;
        Some(latest.report.clone())
    }

    /// Returns the same as a status to be copied.
    pub(super) fn reported(&self, id: &ObjectId, cluster: &str) -> Reported {
        match self.get(id, cluster) {
            None => Reported::Nothing,
            Some(report) => report.status.clone().map_or(Reported::Absent, Reported::Copied),
        }
    }
}

fn forget(index: &mut HashMap<ObjectId, ByCluster>, id: &ObjectId, cluster: &str, name: &str) {
    let Some(clusters) = index.get_mut(id) else { return };
    if let Some(names) = clusters.get_mut(cluster) {
        names.remove(name);
    }
    clusters.retain(|_, names| !names.is_empty());
    if clusters.is_empty() {
        index.remove(id);
    }
}

impl Entry {
    fn of(work: &WorkFacts) -> Self {
        let updated = work.metadata.updated;
        let created = work.metadata.creation_timestamp.as_ref().map(|time| time.0);
        let report = Report { status: work.status.clone(), updated: updated.map(|time| time.to_string()) };
        Self { report: Arc::new(report), since: updated.or(created) }
    }
}

#[cfg(test)]
mod tests {
    use apis::constants::ORIGIN_WDS_LABEL;
    use serde_json::json;

    use super::*;

    fn json_of(name: &str, wds: &str, subject: &str, time: &str, replicas: u32) -> Value {
        json!({
            "metadata": {
                "name": name, "namespace": "c1", "creationTimestamp": time, "resourceVersion": "1",
                "labels": {ORIGIN_WDS_LABEL: wds},
            },
            "spec": {"sourceRef": {
                "group": "apps", "version": "v1", "resource": "deployments", "kind": "Deployment",
                "namespace": "ns", "name": subject,
            }},
            "status": {"replicas": replicas},
        })
    }

    fn of(json: Value) -> WorkFacts {
        serde_json::from_value(json).unwrap()
    }

    fn work(name: &str, wds: &str, subject: &str, time: &str, replicas: u32) -> WorkFacts {
        of(json_of(name, wds, subject, time, replicas))
    }

    fn copied(replicas: u32) -> Reported {
        Reported::Copied(Arc::new(json!({"replicas": replicas})))
    }

    fn id(name: &str) -> ObjectId {
        ObjectId::new(Arc::new(GroupResource::new("apps", "deployments")), "ns", name)
    }

    #[test]
    fn ks_149_reports_of_another_wds_are_not_ours() {
        let reports = Reports::new("wds1");
        let other = work("a", "wds2", "web", "2026-01-01T00:00:00Z", 1);
        assert_eq!(reports.take(Event::Added(Arc::new(other))), []);
        let mut unlabelled = json_of("b", "", "web", "2026-01-01T00:00:00Z", 1);
        unlabelled["metadata"]["labels"] = json!({"other": "x"});
        let unlabelled = of(unlabelled);
        assert_eq!(reports.take(Event::Added(Arc::new(unlabelled))), [id("web")]);
    }

    #[test]
    fn ks_159_the_latest_of_several_reports_counts() {
        let reports = Reports::new("wds1");
        let early = work("z", "wds1", "web", "2026-01-01T00:00:00Z", 1);
        let late = work("a", "wds1", "web", "2026-01-02T00:00:00Z", 2);
        assert_eq!(reports.reported(&id("web"), "c1"), Reported::Nothing);
        reports.take(Event::Added(Arc::new(early)));
        reports.take(Event::Added(Arc::new(late.clone())));
        assert_eq!(reports.reported(&id("web"), "c1"), copied(2));
        reports.take(Event::Deleted(Arc::new(late)));
        assert_eq!(reports.reported(&id("web"), "c1"), copied(1));
        assert_eq!(reports.reported(&id("web"), "c2"), Reported::Nothing);
    }

    #[test]
    fn a_report_that_changes_its_subject_is_about_both() {
        let reports = Reports::new("wds1");
        let old = Arc::new(work("a", "wds1", "web", "2026-01-01T00:00:00Z", 1));
        let new = Arc::new(work("a", "wds1", "db", "2026-01-01T00:00:00Z", 1));
        reports.take(Event::Added(old.clone()));
        assert_eq!(reports.take(Event::Updated { old, new }), [id("web"), id("db")]);
    }

    #[test]
    fn ks_188_like_named_objects_of_two_namespaces_are_two() {
        let reports = Reports::new("wds1");
        let here = work("a", "wds1", "web", "2026-01-01T00:00:00Z", 1);
        let mut there = work("b", "wds1", "web", "2026-01-02T00:00:00Z", 2);
        there.spec.source_ref.as_mut().unwrap().namespace = "other".into();
        reports.take(Event::Added(Arc::new(here)));
        reports.take(Event::Added(Arc::new(there)));
        assert_eq!(reports.reported(&id("web"), "c1"), copied(1));
    }

    #[test]
    fn ks_189_the_version_of_the_resource_may_differ() {
        let reports = Reports::new("wds1");
        let mut other = work("a", "wds1", "web", "2026-01-01T00:00:00Z", 1);
        other.spec.source_ref.as_mut().unwrap().version = "v1beta1".into();
        reports.take(Event::Added(Arc::new(other)));
        assert_eq!(reports.reported(&id("web"), "c1"), copied(1));
    }

    /// KS-176: the time is that of the last change of the status, not of labels. KS-156: an equal report
    /// keeps its value.
    #[test]
    fn ks_176_when_a_status_changed_last() {
        let reports = Reports::new("wds1");
        let mut one = json_of("a", "wds1", "web", "2026-01-01T00:00:00Z", 1);
        one["metadata"]["managedFields"] = json!([
            {"manager": "a", "time": "2026-01-01T00:00:00Z", "fieldsV1": {"f:status": {}}},
            {"manager": "a", "time": "2026-01-02T00:00:00Z", "fieldsV1": {"f:status": {"f:replicas": {}}}},
            {"manager": "b", "time": "2026-01-03T00:00:00Z", "fieldsV1": {"f:metadata": {}}},
            {"manager": "c"},
        ]);
        let old = Arc::new(of(one.clone()));
        reports.take(Event::Added(old.clone()));
        let first = reports.get(&id("web"), "c1").unwrap();
        assert_eq!(first.updated.as_deref(), Some("2026-01-02T00:00:00Z"));
        one["metadata"]["labels"]["more"] = json!("x");
        assert_eq!(reports.take(Event::Updated { old, new: Arc::new(of(one)) }), []);
        assert!(Arc::ptr_eq(&first, &reports.get(&id("web"), "c1").unwrap()));
    }
}
