//! The parts of a CombinedStatus other than its results (KS-015, KS-017). Pure.

use std::collections::{BTreeMap, BTreeSet};

use apis::{
    constants::{
        REPORT_NAMESPACE, STATUS_API_GROUP_LABEL, STATUS_BINDING_POLICY_LABEL, STATUS_NAME_LABEL,
        STATUS_NAMESPACE_LABEL, STATUS_RESOURCE_LABEL,
    },
    control::{CombinedStatus, NamedStatusCombination},
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use runtime::ObjectKey;
use serde_json::{Map, Value, json};

use super::combine::same;
use crate::{
    binding::world::World,
    identity::{ClusterName, ObjectId, PolicyName},
};

/// A workload object and a policy that requests StatusCollectors for it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Pair {
    /// The policy.
    pub policy: PolicyName,
    /// The object.
    pub object: ObjectId,
}

/// What the policy requests for the object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    /// UID of the object.
    pub uid: Box<str>,
    /// Its resourceVersion.
    pub version: Box<str>,
    /// API version of its resource.
    pub api_version: String,
    /// Its kind.
    pub kind: Box<str>,
    /// UID of the policy.
    pub policy_uid: Box<str>,
    /// The StatusCollectors, by name.
    pub collectors: BTreeSet<Box<str>>,
    /// The WECs.
    pub destinations: BTreeSet<ClusterName>,
}

impl Asked {
    /// Returns `None` if there is no such pair or it requests no StatusCollector (KS-191).
    pub fn find(world: &World, pair: &Pair) -> Option<Self> {
        let resolution = world.resolution(&pair.policy)?;
        let entry = resolution.get(&pair.object)?;
        if entry.modulation.collectors.is_empty() {
            return None;
        }
        let served = world.served(pair.object.resource())?;
        let group = &pair.object.resource().group;
        let api_version =
            if group.is_empty() { served.version.to_string() } else { format!("{group}/{}", served.version) };
        Some(Self {
            uid: entry.object.metadata.uid.clone(),
            version: entry.object.metadata.resource_version.clone(),
            api_version,
            kind: served.kind.clone(),
            policy_uid: world.policy(&pair.policy)?.uid.clone(),
            collectors: entry.modulation.collectors.clone(),
            destinations: resolution.destinations().clone(),
        })
    }

    /// Returns the namespace and name of the CombinedStatus.
    pub fn key(&self, pair: &Pair) -> ObjectKey {
        let namespace = pair.object.namespace();
        let namespace = if namespace.is_empty() { REPORT_NAMESPACE } else { namespace };
        ObjectKey::new(namespace, &format!("{}.{}", self.uid, self.policy_uid))
    }

    /// Renders the CombinedStatus; it has no results if all collectors are missing (KS-190).
    pub fn render(&self, pair: &Pair, results: Vec<NamedStatusCombination>) -> CombinedStatus {
        let key = self.key(pair);
        let (labels, annotations) = labels(pair);
        let owner = OwnerReference {
            api_version: self.api_version.clone(),
            kind: self.kind.to_string(),
            name: pair.object.name().to_owned(),
            uid: self.uid.to_string(),
            controller: None,
            block_owner_deletion: None,
        };
        CombinedStatus {
            metadata: ObjectMeta {
                name: Some(key.name.to_string()),
                namespace: Some(key.namespace.to_string()),
                labels: Some(labels),
                annotations: (!annotations.is_empty()).then_some(annotations),
                owner_references: Some(vec![owner]),
                ..ObjectMeta::default()
            },
            results: (!results.is_empty()).then_some(results),
        }
    }
}

type Texts = BTreeMap<String, String>;

/// Returns the five labels, and annotations with the full values of those that are not valid labels.
fn labels(pair: &Pair) -> (Texts, Texts) {
    let resource = pair.object.resource();
    let full = [
        (STATUS_API_GROUP_LABEL, &*resource.group),
        (STATUS_RESOURCE_LABEL, &*resource.plural),
        (STATUS_NAMESPACE_LABEL, pair.object.namespace()),
        (STATUS_NAME_LABEL, pair.object.name()),
        (STATUS_BINDING_POLICY_LABEL, &*pair.policy),
    ];
    let (mut labels, mut annotations) = (Texts::new(), Texts::new());
    for (key, value) in full {
        let short = label_value(value);
        if short != value {
            annotations.insert(key.to_owned(), value.to_owned());
        }
        labels.insert(key.to_owned(), short);
    }
    (labels, annotations)
}

/// KS-017: makes a text a valid label value. A text that is too long or has invalid characters is shortened
/// and cleaned, and a hash keeps it distinct.
fn label_value(value: &str) -> String {
    if machinery::names::label_value(value).is_empty() {
        return value.to_owned();
    }
    let fits = |c: char| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '-' };
    let start: String = value.chars().take(54).map(fits).collect();
    let start = start.trim_start_matches(|c: char| !c.is_ascii_alphanumeric());
    format!("{start}-{:08x}", fnv(value)).trim_start_matches('-').to_owned()
}

/// FNV-1a, which gives the same result on every machine and in every version.
fn fnv(text: &str) -> u32 {
    text.bytes().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

/// Returns the merge patch that turns `live` into `wanted`; `None` if they agree (KS-186).
pub fn patch(live: &CombinedStatus, wanted: &CombinedStatus) -> Option<Value> {
    let texts = |texts: &Option<Texts>| texts.clone().unwrap_or_default();
    let (have, want) = (texts(&live.metadata.labels), texts(&wanted.metadata.labels));
    let mut metadata = Map::new();
    if have != want {
        let mut labels: Map<String, Value> = have.into_keys().map(|key| (key, Value::Null)).collect();
        labels.extend(want.into_iter().map(|(key, value)| (key, json!(value))));
        metadata.insert("labels".to_owned(), labels.into());
    }
    let have = texts(&live.metadata.annotations);
    let lacks = texts(&wanted.metadata.annotations);
    let lacks: Texts = lacks.into_iter().filter(|(key, value)| have.get(key) != Some(value)).collect();
    if !lacks.is_empty() {
        metadata.insert("annotations".to_owned(), json!(lacks));
    }
    let owners = |object: &CombinedStatus| object.metadata.owner_references.clone().unwrap_or_default();
    if owners(live) != owners(wanted) {
        metadata.insert("ownerReferences".to_owned(), json!(owners(wanted)));
    }
    let mut patch = Map::new();
    if !metadata.is_empty() {
        patch.insert("metadata".to_owned(), metadata.into());
    }
    let results = |object: &CombinedStatus| object.results.clone().unwrap_or_default();
    if !same(&results(live), &results(wanted)) {
        patch.insert("results".to_owned(), json!(wanted.results));
    }
    (!patch.is_empty()).then(|| patch.into())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::identity::GroupResource;

    fn pair(group: &str, plural: &str, namespace: &str, name: &str) -> Pair {
        let resource = Arc::new(GroupResource::new(group, plural));
        Pair { policy: "shop-edge".into(), object: ObjectId::new(resource, namespace, name) }
    }

    fn asked() -> Asked {
        Asked {
            uid: "d1".into(),
            version: "1".into(),
            api_version: "apps/v1".into(),
            kind: "Deployment".into(),
            policy_uid: "p1".into(),
            collectors: ["n".into()].into(),
            destinations: BTreeSet::new(),
        }
    }

    #[test]
    fn ks_015_ks_190_name_place_labels_and_owner() {
        let rendered = json!(asked().render(&pair("apps", "deployments", "shop", "web"), vec![]));
        assert_eq!(
            rendered,
            json!({
                "apiVersion": "control.kubestellar.io/v1alpha1", "kind": "CombinedStatus",
                "metadata": {
                    "name": "d1.p1", "namespace": "shop",
                    "labels": {
                        "status.kubestellar.io/api-group": "apps", "status.kubestellar.io/resource": "deployments",
                        "status.kubestellar.io/namespace": "shop", "status.kubestellar.io/name": "web",
                        "status.kubestellar.io/binding-policy": "shop-edge",
                    },
                    "ownerReferences": [{"apiVersion": "apps/v1", "kind": "Deployment", "name": "web", "uid": "d1"}],
                },
            }),
            "KS-190: results that are empty are left out"
        );
        let rendered = json!(asked().render(&pair("", "namespaces", "", "shop"), vec![]));
        assert_eq!(rendered["metadata"]["namespace"], json!("kubestellar-report"));
        assert_eq!(rendered["metadata"]["labels"]["status.kubestellar.io/namespace"], json!(""));
    }

    #[test]
    fn ks_017_values_that_are_no_labels() {
        let long = format!("{}x", "web.".repeat(40));
        for name in [long.as_str(), "system:node", ":", &"é".repeat(70), "-a"] {
            let rendered = asked().render(&pair("rbac", "roles", "", name), vec![]);
            let label = &rendered.metadata.labels.unwrap()["status.kubestellar.io/name"];
            assert_eq!(machinery::names::label_value(label), [""; 0], "{label}");
            assert_eq!(rendered.metadata.annotations.unwrap()["status.kubestellar.io/name"], name);
        }
        let label = label_value(&long);
        assert_eq!((label.len(), &label[..54]), (63, &long[..54]));
        assert_ne!(label_value(&long), label_value(&format!("{}y", "web.".repeat(40))));
    }

    #[test]
    fn ks_186_only_what_differs_is_written() {
        let result = |rows: Value| -> Vec<NamedStatusCombination> {
            serde_json::from_value(json!([{"name": "n", "columnNames": ["a"], "rows": rows}])).unwrap()
        };
        let row = |text: &str| json!({"columns": [{"type": "Number", "float": text}]});
        let pair = pair("apps", "deployments", "shop", "web");
        let wanted = asked().render(&pair, result(json!([row("1"), row("1e+06")])));
        assert_eq!(patch(&wanted, &wanted), None);
        let mut live = asked().render(&pair, result(json!([row("1000000.0"), row("1")])));
        assert_eq!(patch(&live, &wanted), None, "the order of rows and the look of numbers don't matter");
        live.metadata.annotations = Some([("theirs".to_owned(), "x".to_owned())].into());
        assert_eq!(patch(&live, &wanted), None);
        let labels = live.metadata.labels.as_mut().unwrap();
        labels.insert("more".into(), "x".into());
        labels.remove("status.kubestellar.io/name");
        let found = patch(&live, &wanted).unwrap();
        assert_eq!(found["metadata"]["labels"]["more"], Value::Null);
        assert_eq!(found["metadata"]["labels"]["status.kubestellar.io/name"], json!("web"));
        assert!(found.get("results").is_none());

        let change = |edit: &dyn Fn(&mut NamedStatusCombination)| {
            let mut live = wanted.clone();
            edit(&mut live.results.as_mut().unwrap()[0]);
            patch(&live, &wanted).is_some_and(|patch| patch["results"] == json!(wanted.results))
        };
        assert!(change(&|it| it.rows.truncate(1)));
        assert!(change(&|it| it.rows.push(it.rows[0].clone())), "as often");
        assert!(change(&|it| it.column_names = vec!["b".into()]));
        assert!(change(&|it| it.row_errors = vec![apis::control::RowError::default()]));
        assert!(change(&|it| it.aggregation_errors = vec![apis::control::AggregationError::default()]));
        let none = asked().render(&pair, vec![]);
        assert_eq!(patch(&wanted, &none).unwrap()["results"], Value::Null, "KS-190: the list goes");
        let mut live = wanted.clone();
        live.metadata.owner_references = None;
        assert!(patch(&live, &wanted).unwrap()["metadata"].get("ownerReferences").is_some());
    }

    #[test]
    fn ks_186_the_order_of_columns_matters() {
        let result = |names: [&str; 2]| -> Vec<NamedStatusCombination> {
            serde_json::from_value(json!([{"name": "n", "columnNames": names}])).unwrap()
        };
        let pair = pair("apps", "deployments", "shop", "web");
        let (one, other) =
            (asked().render(&pair, result(["a", "b"])), asked().render(&pair, result(["b", "a"])));
        assert!(patch(&one, &other).is_some());
    }
}
