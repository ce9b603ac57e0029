//! What the agent knows. Each method takes one change in and returns the objects to look at again; none of them
//! awaits or fails. Costs are those of the change: an object touches itself, a work touches what it delivered.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use runtime::feed::Key;
use runtime::rest::Gvr;
use serde_json::Value;

use crate::decide::{Currency, Existing, Object, Origin, Source, is_excluded};
use crate::items::{Applied, Delivered, Reported, Work};

use apis::constants::SINGLETON_STATUS_LABEL;
use apis::control::generation_key;

struct KnownApplied {
    uid: String,
    work: String,
    resources: BTreeSet<Gvr>,
}

struct KnownObject {
    /// uids of its AppliedManifestWork owners, in their order.
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
}

/// A kind that is being followed.
#[derive(Default)]
struct Followed {
    kind: String,
    synced: bool,
    objects: HashMap<Key, KnownObject>,
}

#[derive(Default)]
pub(crate) struct View {
    /// How current objects are is of interest (OCM-139).
    details: bool,
    applied: HashMap<String, KnownApplied>,
    applied_synced: bool,
    /// AppliedManifestWork uid to its name.
    by_uid: HashMap<String, String>,
    /// ManifestWork name to the names of its AppliedManifestWorks.
    by_work: HashMap<String, BTreeSet<String>>,
    works: HashMap<String, KnownWork>,
    works_synced: bool,
    followed: HashMap<Gvr, Followed>,
    /// Objects by owner uid.
    owned: HashMap<String, HashSet<Source>>,
    reports: HashMap<String, KnownReport>,
    reports_synced: bool,
    by_source: HashMap<Source, BTreeSet<String>>,
}

impl View {
    pub(crate) fn new(details: bool) -> Self {
        Self { details, ..Self::default() }
    }

    pub(crate) fn put_applied(&mut self, item: &Applied) -> Vec<Source> {
        let name = item.metadata.name.clone();
        self.drop_applied(&name);
        let resources = item
            .status
            .applied_resources
            .iter()
            .map(|r| Gvr::new(&r.group, &r.version, &r.resource))
            .filter(|gvr| !is_excluded(gvr))
            .collect();
        let (uid, work) = (item.metadata.uid.clone(), item.spec.manifest_work_name.clone());
        self.by_uid.insert(uid.clone(), name.clone());
        self.by_work.entry(work.clone()).or_default().insert(name.clone());
        let touched = self.owned_by(&uid);
        self.applied.insert(name, KnownApplied { uid, work, resources });
        touched
    }

    pub(crate) fn gone_applied(&mut self, name: &str) -> Vec<Source> {
        self.drop_applied(name).map(|uid| self.owned_by(&uid)).unwrap_or_default()
    }

    fn drop_applied(&mut self, name: &str) -> Option<String> {
        let old = self.applied.remove(name)?;
        self.by_uid.remove(&old.uid);
        if let Some(names) = self.by_work.get_mut(&old.work) {
            names.remove(name);
            if names.is_empty() {
                self.by_work.remove(&old.work);
            }
        }
        Some(old.uid)
    }

    pub(crate) fn applied_synced(&mut self) -> Vec<Source> {
        self.applied_synced = true;
        self.owned.values().flatten().chain(self.by_source.keys()).cloned().collect()
    }

    /// The resources that delivered objects are of; those must be followed, and no others.
    pub(crate) fn wanted(&self) -> BTreeSet<Gvr> {
        self.applied.values().flat_map(|a| a.resources.iter().cloned()).collect()
    }

    pub(crate) fn follow(&mut self, gvr: Gvr, kind: &str) {
        self.followed.entry(gvr).or_default().kind = kind.into();
    }

    pub(crate) fn unfollow(&mut self, gvr: &Gvr) -> Vec<Source> {
        let Some(old) = self.followed.remove(gvr) else { return Vec::new() };
        let mut touched: Vec<Source> = self.by_source.keys().filter(|s| s.gvr == *gvr).cloned().collect();
        for ((namespace, name), object) in old.objects {
            let source = Source { gvr: gvr.clone(), namespace, name };
            self.disown(&source, &object.owners);
            touched.push(source);
        }
        touched
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
        let key = (meta.namespace, meta.name);
        let followed = self.followed.get_mut(gvr)?;
        // Objects that nobody delivered are watched with the rest of their kind, but not kept.
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

    pub(crate) fn gone_object(&mut self, gvr: &Gvr, key: &Key) -> Option<Source> {
        let old = self.followed.get_mut(gvr)?.objects.remove(key)?;
        let source = Source { gvr: gvr.clone(), namespace: key.0.clone(), name: key.1.clone() };
        self.disown(&source, &old.owners);
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

    pub(crate) fn put_report(&mut self, item: Reported) -> Source {
        let meta = item.metadata;
        // Our own write is known before the watch tells of it: an older version must not replace it.
        if let Some(known) = self.reports.get(&meta.name)
            && known.existing.uid == meta.uid
            && version(&known.existing.resource_version) > version(&meta.resource_version)
        {
            return known.source.clone();
        }
        self.drop_report(&meta.name);
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
        self.reports.insert(meta.name, KnownReport { source: source.clone(), existing });
        source
    }

    pub(crate) fn gone_report(&mut self, name: &str) -> Option<Source> {
        self.drop_report(name)
    }

    pub(crate) fn reports_synced(&mut self) -> Vec<Source> {
        self.reports_synced = true;
        self.owned.values().flatten().chain(self.by_source.keys()).cloned().collect()
    }

    /// Whether all that is needed to decide has been read once.
    pub(crate) fn ready(&self) -> bool {
        self.applied_synced && self.works_synced && self.reports_synced
    }

    /// What is known of one object, and the WorkStatuses about it.
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
            // A kind that will be followed in a moment, as after a start, says nothing about its objects yet.
            let wanted = self.applied.values().any(|a| a.resources.contains(&source.gvr));
            return if wanted { Object::Unclear } else { Object::Gone };
        };
        if !followed.synced {
            return Object::Unclear;
        }
        let key = (source.namespace.clone(), source.name.clone());
        let Some(object) = followed.objects.get(&key) else { return Object::Gone };
        // The first owner that is still there speaks for the object (KS-206).
        let owner =
            object.owners.iter().find_map(|uid| Some((uid, self.applied.get(self.by_uid.get(uid)?)?)));
        let Some((uid, applied)) = owner else { return Object::Unclear };
        let Some(work) = self.works.get(&applied.work) else { return Object::Unclear };
        Object::Delivered {
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

/// Versions of one object are comparable numbers (AS-020); anything else counts as new.
fn version(text: &str) -> u64 {
    text.parse().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn deployments() -> Gvr {
        Gvr::new("apps", "v1", "deployments")
    }

    fn item<T: serde::de::DeserializeOwned>(value: Value) -> T {
        serde_json::from_value(value).unwrap()
    }

    fn applied(uid: &str, work: &str) -> Applied {
        item(json!({
            "metadata": {"name": format!("hub-{work}"), "uid": uid},
            "spec": {"manifestWorkName": work},
            "status": {"appliedResources": [
                {"group": "apps", "version": "v1", "resource": "deployments"},
                {"group": "", "version": "v1", "resource": "configmaps"},
            ]},
        }))
    }

    fn work(name: &str) -> Work {
        item(
            json!({"metadata": {"name": name, "uid": "w", "labels": {"transport.kubestellar.io/originWdsName": "wds1"}}}),
        )
    }

    fn web(owners: &[&str]) -> Delivered {
        let owners: Vec<Value> = owners
            .iter()
            .map(|uid| json!({"apiVersion": "work.open-cluster-management.io/v1", "kind": "AppliedManifestWork", "uid": uid}))
            .collect();
        item(
            json!({"metadata": {"name": "web", "namespace": "shop", "ownerReferences": owners}, "status": {"replicas": 1}}),
        )
    }

    fn source() -> Source {
        Source { gvr: deployments(), namespace: "shop".into(), name: "web".into() }
    }

    fn ready() -> View {
        let mut view = View::default();
        view.applied_synced();
        view.works_synced();
        view.reports_synced();
        view
    }

    /// KS-201, OCM-134: a kind is followed as long as something delivered is of it; excluded kinds never are.
    #[test]
    fn ks_201_followed_kinds() {
        let mut view = ready();
        view.put_applied(&applied("u1", "p-0"));
        view.put_applied(&applied("u2", "p-1"));
        assert_eq!(view.wanted(), BTreeSet::from([deployments()]));
        view.gone_applied("hub-p-0");
        assert_eq!(view.wanted().len(), 1);
        view.gone_applied("hub-p-1");
        assert_eq!(view.wanted().len(), 0);
    }

    /// KS-001: whatever the order in which object, AppliedManifestWork and ManifestWork are seen, the last of
    /// them makes the object known.
    #[test]
    fn ks_001_any_order_of_arrival() {
        for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
            let mut view = ready();
            view.follow(deployments(), "Deployment");
            view.objects_synced(&deployments());
            let mut touched = Vec::new();
            for step in order {
                touched = match step {
                    0 => view.put_applied(&applied("u1", "p-0")),
                    1 => view.put_work(work("p-0")),
                    _ => view.put_object(&deployments(), web(&["u1"])).into_iter().collect(),
                };
            }
            assert_eq!(touched, vec![source()], "{order:?}");
            assert!(matches!(view.look(&source()).0, Object::Delivered { .. }), "{order:?}");
        }
    }

    /// KS-206: when the first owner goes away the next one speaks for the object; without any it is gone.
    #[test]
    fn ks_206_next_owner_takes_over() {
        let mut view = ready();
        view.follow(deployments(), "Deployment");
        view.objects_synced(&deployments());
        for (uid, name) in [("u1", "p-0"), ("u2", "q-0")] {
            view.put_applied(&applied(uid, name));
            view.put_work(work(name));
        }
        view.put_object(&deployments(), web(&["u1", "u2"]));
        view.gone_applied("hub-p-0");
        let Object::Delivered { origin, .. } = view.look(&source()).0 else { panic!("not delivered") };
        assert_eq!(origin.applied_uid, "u2");
        assert_eq!(view.put_object(&deployments(), web(&[])), Some(source()));
        assert_eq!(view.look(&source()).0, Object::Gone);
    }

    /// OCM-139: what a work tells of the generations inside, and what its agent reports, says how current an object is. An
    /// applied condition of an earlier form of the work says nothing.
    #[test]
    fn ocm_139_how_current_an_object_is() {
        let told = |generation: i64, observed: i64| -> Work {
            let annotation = json!({"apps/Deployment/shop/web": generation}).to_string();
            item(
                json!({"metadata": {"name": "p-0", "uid": "w", "generation": 5, "labels": {"transport.kubestellar.io/originWdsName": "wds1"},
                    "annotations": {"transport.kubestellar.io/originObjectGenerations": annotation}},
                "status": {"resourceStatus": {"manifests": [{"resourceMeta": {"group": "apps", "kind": "Deployment", "namespace": "shop", "name": "web"},
                    "conditions": [{"type": "Applied", "status": "True", "observedGeneration": observed}]}]}}}),
            )
        };
        let seen = |details: bool, work: Work| {
            let mut view = View { details, ..ready() };
            view.follow(deployments(), "Deployment");
            view.objects_synced(&deployments());
            view.put_applied(&applied("u1", "p-0"));
            view.put_object(&deployments(), web(&["u1"]));
            assert_eq!(view.put_work(work), vec![source()]);
            let Object::Delivered { currency, .. } = view.look(&source()).0 else { panic!("not delivered") };
            currency
        };
        let at = |generation, applied| Some(Currency { generation, applied });
        assert_eq!(seen(true, told(3, 5)), at(3, true));
        assert_eq!(seen(true, told(3, 4)), at(3, false));
        assert_eq!(seen(false, told(3, 5)), None, "nobody wants to know");
        assert_eq!(seen(true, work("p-0")), None, "nobody tells");
    }

    /// Nothing is decided before everything was read once: a restart deletes no WorkStatus.
    #[test]
    fn ks_001_unclear_until_synced() {
        let mut view = View::default();
        view.put_report(item(json!({"metadata": {"name": "r"}, "spec": {"sourceRef":
            {"group": "apps", "version": "v1", "resource": "deployments", "namespace": "shop", "name": "web"}}})));
        assert_eq!(view.look(&source()).0, Object::Unclear);
        view.works_synced();
        view.reports_synced();
        assert_eq!(view.applied_synced(), vec![source()]);
        assert_eq!(view.look(&source()).0, Object::Gone);
        view.put_applied(&applied("u1", "p-0"));
        assert_eq!(view.look(&source()).0, Object::Unclear, "its kind is about to be followed");
        view.follow(deployments(), "Deployment");
        assert_eq!(view.look(&source()).0, Object::Unclear);
    }
}
