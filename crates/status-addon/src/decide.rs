//! Decides about the WorkStatus of one object.

use std::collections::BTreeMap;
use std::sync::Arc;

use apis::constants::{MANAGED_BY_LABEL_PREFIX, SINGLETON_STATUS_LABEL, TRANSPORT_LABEL_PREFIX};
use runtime::rest::Gvr;
use serde_json::{Value, json};

/// Longest name of an object, in bytes; the name of a WorkStatus is cut to this (OCM-135).
const NAME_MAX: usize = 253;

/// An object in the cluster: resource, namespace (empty for cluster-scoped) and name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Source {
    pub gvr: Gvr,
    pub namespace: String,
    pub name: String,
}

/// The ManifestWork that delivered an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Origin {
    /// UID of the AppliedManifestWork; it is part of the WorkStatus' name.
    pub applied_uid: String,
    pub work_name: String,
    pub work_uid: String,
    pub work_labels: BTreeMap<String, String>,
}

/// How current an object in the cluster is (OCM-139).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(default)]
pub struct Currency {
    /// Generation in the WDS that was last sent to the cluster.
    #[serde(rename = "lastGeneration")]
    pub generation: i64,
    /// Whether that generation has been applied in the cluster.
    #[serde(rename = "lastGenerationIsApplied")]
    pub applied: bool,
}

/// What is known about the object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Object {
    /// It does not exist, or no AppliedManifestWork owns it.
    Gone,
    /// It exists, but the ManifestWork that delivered it is not known yet.
    Unclear,
    Delivered {
        kind: String,
        origin: Origin,
        singleton: Option<String>,
        status: Option<Arc<Value>>,
        /// `None` if the ManifestWork does not tell, or details are switched off.
        currency: Option<Currency>,
        /// The other object that owns the WorkStatus of this name, if there is one: two objects, with their
        /// namespaces, can lead to the same name (`a-b/c` and `a/b-c`).
        holder: Option<Box<Source>>,
    },
}

/// A WorkStatus in the mailbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Existing {
    pub name: String,
    pub uid: String,
    pub resource_version: String,
    pub labels: BTreeMap<String, String>,
    pub status: Option<Arc<Value>>,
    pub currency: Currency,
}

/// A write. Writes are idempotent.
#[derive(Clone, Debug, PartialEq)]
pub enum Effect {
    Delete {
        name: String,
        uid: String,
    },
    /// Create the object, and write the status right afterwards.
    Create {
        object: Value,
        status: Option<Arc<Value>>,
    },
    /// Set labels; `None` removes one.
    Label {
        name: String,
        labels: BTreeMap<String, Option<String>>,
    },
    /// Replace `statusDetails`, with the time of the write; the status is not changed.
    Details {
        name: String,
        currency: Currency,
    },
    /// Replace the whole status, with a JSON patch of that field.
    Report {
        name: String,
        status: Arc<Value>,
    },
    /// Nothing can be written, because the WorkStatus belongs to another object. Reported on the
    /// ManifestWork, once.
    Conflict {
        name: String,
        holder: Source,
        work_name: String,
        work_uid: String,
    },
}

/// Returns whether the kind has no status worth reporting (KS-202).
pub fn is_excluded(gvr: &Gvr) -> bool {
    match gvr.group.as_str() {
        "" => ["secrets", "configmaps", "serviceaccounts"].contains(&gvr.plural.as_str()),
        "rbac.authorization.k8s.io" => true,
        _ => false,
    }
}

/// Returns the name `<AppliedManifestWork uid>-<group and version>-<kind>-<namespace>-<name>`, lower case, at
/// most 253 bytes (KS-200, OCM-135).
pub fn work_status_name(applied_uid: &str, source: &Source, kind: &str) -> String {
    let version = source.gvr.api_version().replace('/', "").to_lowercase();
    let mut name =
        format!("{applied_uid}-{version}-{}-{}-{}", kind.to_lowercase(), source.namespace, source.name);
    let mut end = NAME_MAX.min(name.len());
    while !name.is_char_boundary(end) {
        end -= 1;
    }
    name.truncate(end);
    // After the cut the name may end with a character that is not valid there.
    name.truncate(name.trim_end_matches(['-', '.']).len());
    name
}

/// Returns whether KubeStellar created this ManifestWork (KS-203, OCM-136).
pub fn is_ours(work_labels: &BTreeMap<String, String>) -> bool {
    let prefixes = [TRANSPORT_LABEL_PREFIX, MANAGED_BY_LABEL_PREFIX];
    work_labels.keys().any(|key| prefixes.iter().any(|prefix| key.starts_with(prefix)))
}

/// Returns the writes for an object. `existing` are all WorkStatuses in the mailbox that are about `source`.
pub fn plan(cluster: &str, source: &Source, object: &Object, existing: &[Existing]) -> Vec<Effect> {
    let delete = |e: &Existing| Effect::Delete { name: e.name.clone(), uid: e.uid.clone() };
    let (kind, origin, singleton, status, currency, holder) = match object {
        Object::Unclear => return Vec::new(),
        Object::Gone => return existing.iter().map(delete).collect(),
        Object::Delivered { kind, origin, singleton, status, currency, holder } => {
            (kind, origin, singleton, status, currency, holder)
        }
    };
    if !is_ours(&origin.work_labels) {
        return existing.iter().map(delete).collect();
    }
    let name = work_status_name(&origin.applied_uid, source, kind);
    let mut effects: Vec<Effect> = existing.iter().filter(|e| e.name != name).map(delete).collect();
    let labels = labels(origin, singleton.as_deref());
    if let Some(holder) = holder.clone() {
        let (work_name, work_uid) = (origin.work_name.clone(), origin.work_uid.clone());
        effects.push(Effect::Conflict { name, holder: *holder, work_name, work_uid });
        return effects;
    }
    match existing.iter().find(|e| e.name == name) {
        None => {
            let object = document(cluster, &name, source, kind, origin, &labels);
            effects.push(Effect::Create { object, status: status.clone() });
            effects.extend(details(&name, Currency::default(), *currency));
        }
        Some(live) => {
            let change = label_change(&live.labels, &labels);
            if !change.is_empty() {
                effects.push(Effect::Label { name: name.clone(), labels: change });
            }
            effects.extend(details(&name, live.currency, *currency));
            // If the object's status was removed, the last report stays.
            if let Some(status) = status.clone().filter(|s| live.status.as_ref() != Some(s)) {
                effects.push(Effect::Report { name, status });
            }
        }
    }
    effects
}

fn details(name: &str, live: Currency, wanted: Option<Currency>) -> Option<Effect> {
    let currency = wanted.filter(|wanted| *wanted != live)?;
    Some(Effect::Details { name: name.to_owned(), currency })
}

fn labels(origin: &Origin, singleton: Option<&str>) -> BTreeMap<String, String> {
    let mut labels = origin.work_labels.clone();
    if let Some(value) = singleton {
        labels.insert(SINGLETON_STATUS_LABEL.into(), value.into());
    }
    labels
}

/// Returns our labels that differ; labels of other writers stay (KS-206).
fn label_change(
    live: &BTreeMap<String, String>,
    wanted: &BTreeMap<String, String>,
) -> BTreeMap<String, Option<String>> {
    let set =
        wanted.iter().filter(|(k, v)| live.get(*k) != Some(v)).map(|(k, v)| (k.clone(), Some(v.clone())));
    let ours =
        |key: &&String| key.starts_with(TRANSPORT_LABEL_PREFIX) || key.as_str() == SINGLETON_STATUS_LABEL;
    let unset = live.keys().filter(ours).filter(|k| !wanted.contains_key(*k)).map(|k| (k.clone(), None));
    set.chain(unset).collect()
}

fn document(
    cluster: &str,
    name: &str,
    source: &Source,
    kind: &str,
    origin: &Origin,
    labels: &BTreeMap<String, String>,
) -> Value {
    json!({
        "apiVersion": "control.kubestellar.io/v1alpha1",
        "kind": "WorkStatus",
        "metadata": {
            "name": name,
            "namespace": cluster,
            "labels": labels,
            "ownerReferences": [{
                "apiVersion": "work.open-cluster-management.io/v1",
                "kind": "ManifestWork",
                "name": origin.work_name,
                "uid": origin.work_uid,
                "controller": true,
                "blockOwnerDeletion": true,
            }],
        },
        "spec": { "sourceRef": {
            "group": source.gvr.group,
            "version": source.gvr.version,
            "resource": source.gvr.plural,
            "kind": kind,
            "namespace": source.namespace,
            "name": source.name,
        }},
        "statusDetails": {
            "lastGeneration": 0,
            "lastGenerationIsApplied": false,
            "lastCurrencyUpdateTime": "1970-01-01T00:00:00Z",
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source() -> Source {
        Source { gvr: Gvr::new("apps", "v1", "deployments"), namespace: "shop".into(), name: "web".into() }
    }

    fn delivered(status: Option<Value>) -> Object {
        let labels = [("transport.kubestellar.io/originWdsName".to_owned(), "wds1".to_owned())];
        let origin = Origin {
            applied_uid: "u1".into(),
            work_name: "p-wds1-0".into(),
            work_uid: "w1".into(),
            work_labels: labels.into(),
        };
        let status = status.map(Arc::new);
        let (singleton, currency, holder) = (None, None, None);
        Object::Delivered { kind: "Deployment".into(), origin, singleton, status, currency, holder }
    }

    /// The content of the mailbox after `effects`.
    fn after(effects: &[Effect], mut existing: Vec<Existing>) -> Vec<Existing> {
        for effect in effects {
            match effect {
                Effect::Delete { name, .. } => existing.retain(|e| e.name != *name),
                Effect::Create { object, status } => existing.push(Existing {
                    name: object["metadata"]["name"].as_str().unwrap_or_default().into(),
                    uid: "new".into(),
                    resource_version: "1".into(),
                    labels: serde_json::from_value(object["metadata"]["labels"].clone()).unwrap(),
                    status: status.clone(),
                    currency: Currency::default(),
                }),
                Effect::Details { name, currency } => {
                    for e in existing.iter_mut().filter(|e| e.name == *name) {
                        e.currency = *currency;
                    }
                }
                Effect::Label { name, labels } => {
                    for e in existing.iter_mut().filter(|e| e.name == *name) {
                        for (k, v) in labels {
                            match v {
                                Some(v) => drop(e.labels.insert(k.clone(), v.clone())),
                                None => drop(e.labels.remove(k)),
                            }
                        }
                    }
                }
                Effect::Report { name, status } => {
                    for e in existing.iter_mut().filter(|e| e.name == *name) {
                        e.status = Some(status.clone());
                    }
                }
                Effect::Conflict { .. } => {}
            }
        }
        existing
    }

    fn stale(name: &str) -> Existing {
        Existing {
            name: name.into(),
            uid: name.into(),
            resource_version: "1".into(),
            labels: BTreeMap::new(),
            status: None,
            currency: Currency::default(),
        }
    }

    /// OCM-139: details are written if they are requested and differ, separately from the status.
    #[test]
    fn ocm_139_details_follow_by_themselves() {
        let name = "u1-appsv1-deployment-shop-web";
        let at = |generation, applied| Currency { generation, applied };
        let wanted = |currency| match delivered(None) {
            Object::Delivered { kind, origin, singleton, status, holder, .. } => {
                Object::Delivered { kind, origin, singleton, status, currency, holder }
            }
            other => other,
        };
        let mut live = stale(name);
        live.labels = [("transport.kubestellar.io/originWdsName".to_owned(), "wds1".to_owned())].into();
        let write = |currency| vec![Effect::Details { name: name.into(), currency }];
        assert_eq!(plan("c1", &source(), &wanted(None), &[live.clone()]), vec![]);
        assert_eq!(plan("c1", &source(), &wanted(Some(at(2, false))), &[live.clone()]), write(at(2, false)));
        live.currency = at(2, false);
        assert_eq!(plan("c1", &source(), &wanted(Some(at(2, true))), &[live.clone()]), write(at(2, true)));
        live.currency = at(2, true);
        assert_eq!(plan("c1", &source(), &wanted(Some(at(2, true))), &[live]), vec![]);
        let effects = plan("c1", &source(), &wanted(Some(at(2, true))), &[]);
        let settled = after(&effects, vec![]);
        assert_eq!(settled[0].currency, at(2, true), "also of a new one");
    }

    /// KS-200, OCM-135: the names are those of the original, with two dashes for cluster-scoped objects.
    #[test]
    fn ks_200_names() {
        assert_eq!(work_status_name("6d0c", &source(), "Deployment"), "6d0c-appsv1-deployment-shop-web");
        let ns =
            Source { gvr: Gvr::new("", "v1", "namespaces"), namespace: String::new(), name: "nginx".into() };
        assert_eq!(work_status_name("6d0c", &ns, "Namespace"), "6d0c-v1-namespace--nginx");
        let long = Source { name: "n".repeat(253), ..source() };
        assert_eq!(work_status_name("6d0c", &long, "Deployment").len(), 253);
    }

    /// OCM-135: of two objects with the same WorkStatus name, the one that does not own it writes nothing
    /// under it, reports the conflict, and still deletes its WorkStatuses under other names.
    #[test]
    fn ocm_135_a_name_that_is_taken_is_told() {
        let at = |namespace: &str, name: &str| Source {
            namespace: namespace.into(),
            name: name.into(),
            ..source()
        };
        let (one, two) = (at("a-b", "c"), at("a", "b-c"));
        assert_eq!(work_status_name("u1", &one, "Deployment"), work_status_name("u1", &two, "Deployment"));
        let mut object = delivered(Some(json!({"replicas": 1})));
        if let Object::Delivered { holder, .. } = &mut object {
            *holder = Some(Box::new(one.clone()));
        }
        let reported = Effect::Conflict {
            name: "u1-appsv1-deployment-a-b-c".into(),
            holder: one,
            work_name: "p-wds1-0".into(),
            work_uid: "w1".into(),
        };
        assert_eq!(plan("c1", &two, &object, &[]), vec![reported.clone()]);
        let delete = Effect::Delete { name: "old".into(), uid: "old".into() };
        assert_eq!(plan("c1", &two, &object, &[stale("old")]), vec![delete, reported]);
    }

    /// KS-202: kinds that never get a WorkStatus.
    #[test]
    fn ks_202_excluded_kinds() {
        for (group, plural, excluded) in [
            ("", "configmaps", true),
            ("", "secrets", true),
            ("", "serviceaccounts", true),
            ("rbac.authorization.k8s.io", "clusterroles", true),
            ("", "namespaces", false),
            ("", "services", false),
            ("example.com", "configmaps", false),
        ] {
            assert_eq!(is_excluded(&Gvr::new(group, "v1", plural)), excluded, "{group}/{plural}");
        }
    }

    /// OCM-137, KS-204: from any state of the mailbox, including an empty one, one round of writes settles
    /// it, and an unchanged status is not written again.
    #[test]
    fn ocm_137_plans_settle() {
        let mailboxes =
            [vec![], vec![stale("old")], vec![stale("u1-appsv1-deployment-shop-web"), stale("x")]];
        let objects = [
            delivered(None),
            delivered(Some(json!({}))),
            delivered(Some(json!({"replicas": 1}))),
            Object::Gone,
        ];
        for object in &objects {
            for mailbox in &mailboxes {
                let effects = plan("c1", &source(), object, mailbox);
                let settled = after(&effects, mailbox.clone());
                assert_eq!(plan("c1", &source(), object, &settled), vec![], "{object:?} {mailbox:?}");
                assert_eq!(settled.len(), usize::from(*object != Object::Gone));
            }
        }
    }

    /// OCM-136, KS-203: objects of other ManifestWorks get no WorkStatus. Nothing is done while the origin is
    /// not known.
    #[test]
    fn ocm_136_foreign_and_unclear_works() {
        let mut foreign = delivered(None);
        if let Object::Delivered { origin, .. } = &mut foreign {
            origin.work_labels = BTreeMap::from([("app".into(), "x".into())]);
        }
        assert_eq!(plan("c1", &source(), &foreign, &[]), vec![]);
        assert_eq!(plan("c1", &source(), &Object::Unclear, &[stale("old")]), vec![]);
    }

    /// KS-206: labels follow those of the ManifestWork, labels of other writers stay.
    #[test]
    fn ks_206_labels_are_refreshed() {
        let name = "u1-appsv1-deployment-shop-web";
        let mut live = stale(name);
        live.labels = [
            ("mine", "1"),
            ("transport.kubestellar.io/originWdsName", "old"),
            ("transport.kubestellar.io/gone", "1"),
        ]
        .map(|(k, v)| (k.to_owned(), v.to_owned()))
        .into();
        let change = [
            ("transport.kubestellar.io/gone".to_owned(), None),
            ("transport.kubestellar.io/originWdsName".to_owned(), Some("wds1".to_owned())),
        ];
        assert_eq!(
            plan("c1", &source(), &delivered(None), &[live]),
            vec![Effect::Label { name: name.into(), labels: change.into() }]
        );
    }
}
