//! The parts of a Binding that its controller needs.

use apis::control::{BindingSpec, BindingStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use runtime::{ObjectKey, Watched};
use serde::{Deserialize, Deserializer};

use super::resolution::SpecDigest;

/// A Binding without its entries, of which there may be many.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct BindingFacts {
    pub(crate) metadata: BindingMeta,
    #[serde(deserialize_with = "digest")]
    pub(crate) spec: SpecDigest,
    pub(crate) status: Option<BindingStatus>,
}

/// The metadata of a Binding.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct BindingMeta {
    pub(crate) name: String,
    pub(crate) uid: String,
    pub(crate) resource_version: String,
    pub(crate) generation: i64,
    pub(crate) deletion_timestamp: Option<String>,
    pub(crate) owner_references: Vec<OwnerReference>,
}

fn digest<'de, D: Deserializer<'de>>(deserializer: D) -> Result<SpecDigest, D::Error> {
    Ok(SpecDigest::of(&BindingSpec::deserialize(deserializer)?))
}

impl BindingFacts {
    /// Returns the known state after `spec` was written; `metadata` is the server's response. The status is
    /// the previous one, if the UID is the same; the informer brings a later status.
    pub(crate) fn written(metadata: BindingMeta, spec: &BindingSpec, before: &Self) -> Self {
        let same = metadata.uid == before.metadata.uid;
        let status = before.status.clone().filter(|_| same);
        Self { metadata, spec: SpecDigest::of(spec), status }
    }

    /// Returns whether exactly this policy owns the Binding (KS-011).
    pub(crate) fn is_owned_by(&self, owner: &OwnerReference) -> bool {
        self.metadata.owner_references.as_slice() == std::slice::from_ref(owner)
    }

    /// The policy that owns the Binding.
    pub(crate) fn owner(&self) -> Option<&OwnerReference> {
        self.metadata.owner_references.iter().find(|owner| {
            owner.kind == "BindingPolicy" && owner.api_version.starts_with("control.kubestellar.io/")
        })
    }

    /// Returns whether the Binding is being deleted.
    pub(crate) fn is_going(&self) -> bool {
        self.metadata.deletion_timestamp.is_some()
    }
}

impl Watched for BindingFacts {
    fn key(&self) -> ObjectKey {
        ObjectKey::new("", &self.metadata.name)
    }

    fn version(&self) -> &str {
        &self.metadata.resource_version
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn facts(object: Value) -> BindingFacts {
        serde_json::from_value(object).unwrap()
    }

    /// KS-071: after a write the known state is what was sent, with the version from the server. The status
    /// is the previous one, unless the Binding has another UID.
    #[test]
    fn ks_071_what_a_write_leaves_behind() {
        let spec = json!({"workload": {"namespaceScope": [{"group": "", "version": "v1", "resource": "configmaps",
            "namespace": "n", "name": "a", "resourceVersion": "7"}]}, "destinations": [{"clusterId": "c"}]});
        let before = facts(
            json!({"metadata": {"name": "b", "uid": "u1", "resourceVersion": "5", "generation": 1},
            "spec": {"destinations": [{"clusterId": "c"}]}, "status": {"observedGeneration": 1, "errors": ["oh"]}}),
        );
        for (uid, errors) in [("u1", Some(vec!["oh".to_owned()])), ("u2", None)] {
            let metadata = json!({"name": "b", "uid": uid, "resourceVersion": "9", "generation": 2});
            let whole = facts(json!({"metadata": metadata, "spec": spec}));
            let sent: BindingSpec = serde_json::from_value(spec.clone()).unwrap();
            let now = BindingFacts::written(serde_json::from_value(metadata).unwrap(), &sent, &before);
            assert_eq!(now.spec, whole.spec, "as if the whole had come back");
            assert_ne!(now.spec, before.spec);
            assert_eq!((now.version(), now.metadata.generation), ("9", 2));
            assert_eq!(now.status.map(|status| status.errors), errors, "{uid}");
        }
    }
}
