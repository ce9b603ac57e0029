//! The add-on API of a hub. It has two versions, and not every hub has both (OCM-002). Pure.
//!
//! The agent works with v1alpha1 types, and reads and writes v1beta1 if the hub has that.

use std::ops::Deref;

use apis::{
    constants::ADDON_GROUP,
    ocm::{
        ManagedClusterAddOn,
        conversion::{self, INSTALL_NAMESPACE},
    },
};
use kube::api::ApiResource;
use runtime::{ObjectKey, Source, Watched, rest::Gvr};
use serde::{Deserialize, Deserializer, de::Error as _};
use serde_json::{Value, json};

const PLURAL: &str = "managedclusteraddons";
const KIND: &str = "ManagedClusterAddOn";

/// A version of the add-on API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Version {
    /// v1beta1, which is preferred.
    Beta,
    /// v1alpha1, the only one on older hubs.
    Alpha,
}

impl Version {
    /// Returns the version to use, from the discovery document of the group. Returns `None` if the hub has no
    /// known version.
    pub(super) fn of(group: &Value) -> Option<Self> {
        let versions = group.get("versions").and_then(Value::as_array);
        let has = |name: &str| {
            versions.into_iter().flatten().any(|v| v.get("version").and_then(Value::as_str) == Some(name))
        };
        [Self::Beta, Self::Alpha].into_iter().find(|version| has(version.name()))
    }

    fn name(self) -> &'static str {
        match self {
            Self::Beta => "v1beta1",
            Self::Alpha => "v1alpha1",
        }
    }

    /// The resource of the add-ons of clusters.
    pub(super) fn members(self) -> Gvr {
        Gvr::new(ADDON_GROUP, self.name(), PLURAL)
    }

    /// The add-ons of one cluster.
    pub(super) fn source(self, cluster: &str) -> Source {
        let resource = ApiResource {
            group: ADDON_GROUP.into(),
            version: self.name().into(),
            api_version: format!("{ADDON_GROUP}/{}", self.name()),
            kind: KIND.into(),
            plural: PLURAL.into(),
        };
        Source::all(resource).namespaced(cluster)
    }

    /// Returns the status patch with the registrations of the add-on, and how its agent identifies itself to the hub.
    pub(super) fn registrations(self, addon: &ManagedClusterAddOn) -> Value {
        let mut object = serde_json::to_value(addon).unwrap_or_default();
        object["kind"] = KIND.into();
        // A merge patch replaces a list as a whole.
        match self {
            Self::Alpha => {
                let status = &object["status"];
                json!({"kubeClientDriver": status["kubeClientDriver"], "registrations": status["registrations"]})
            }
            Self::Beta => {
                conversion::convert(&mut object, "v1alpha1", "v1beta1");
                json!({"registrations": object["status"]["registrations"]})
            }
        }
    }
}

/// An add-on in a cluster, encoded in either version.
#[derive(Clone, Debug)]
pub(super) struct Member(ManagedClusterAddOn);

impl Deref for Member {
    type Target = ManagedClusterAddOn;

    fn deref(&self) -> &ManagedClusterAddOn {
        &self.0
    }
}

impl<'de> Deserialize<'de> for Member {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut object = Value::deserialize(deserializer)?;
        if is_beta(&object) {
            object["kind"] = KIND.into();
            conversion::convert(&mut object, "v1beta1", "v1alpha1");
            object["apiVersion"] = Version::Alpha.members().api_version().into();
        }
        serde_json::from_value(object).map(Self).map_err(D::Error::custom)
    }
}

impl Watched for Member {
    fn key(&self) -> ObjectKey {
        self.0.key()
    }

    fn version(&self) -> &str {
        self.0.version()
    }
}

/// Returns whether the object is v1beta1. Lists need not repeat the version for each object; then a field
/// that only v1beta1 has tells.
fn is_beta(object: &Value) -> bool {
    match object.get("apiVersion").and_then(Value::as_str).filter(|text| !text.is_empty()) {
        Some(text) => text.ends_with("/v1beta1"),
        None => {
            let annotations = object.pointer("/metadata/annotations");
            let registrations = object.pointer("/status/registrations").and_then(Value::as_array);
            annotations.is_some_and(|all| all.get(INSTALL_NAMESPACE).is_some())
                || registrations.into_iter().flatten().any(|one| one.get("type").is_some())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// OCM-002: the newer version if the hub has both, otherwise the one it has, or none.
    #[test]
    fn ocm_002_the_version_is_found_out() {
        let group = |versions: &[&str]| {
            let versions: Vec<Value> = versions
                .iter()
                .map(
                    |version| json!({"groupVersion": format!("{ADDON_GROUP}/{version}"), "version": version}),
                )
                .collect();
            json!({"kind": "APIGroup", "name": ADDON_GROUP, "versions": versions})
        };
        for (versions, wanted) in [
            (&["v1alpha1", "v1beta1"][..], Some(Version::Beta)),
            (&["v1beta1"], Some(Version::Beta)),
            (&["v1alpha1"], Some(Version::Alpha)),
            (&["v2"], None),
            (&[], None),
        ] {
            assert_eq!(Version::of(&group(versions)), wanted, "{versions:?}");
        }
        assert_eq!(Version::of(&json!("?")), None);
        assert_eq!(Version::Beta.members().api_version(), "addon.open-cluster-management.io/v1beta1");
        assert_eq!(
            Version::Alpha.source("c1").resource.api_version,
            "addon.open-cluster-management.io/v1alpha1"
        );
    }

    /// OCM-002, OCM-016: both versions decode to the same add-on, also in lists without the version.
    #[test]
    fn ocm_002_both_versions_say_the_same() {
        let signer = "kubernetes.io/kube-apiserver-client";
        let alpha = json!({"apiVersion": "addon.open-cluster-management.io/v1alpha1", "kind": KIND,
            "metadata": {"name": "a", "namespace": "c1", "resourceVersion": "7"},
            "spec": {"installNamespace": "there"},
            "status": {"namespace": "there", "conditions": [], "registrations": [
                {"signerName": signer, "subject": {"user": "u", "groups": ["g"]}},
                {"signerName": "example.com/x", "subject": {"user": "v", "groups": [], "organizationUnit": ["o"]}}]}});
        let mut beta = alpha.clone();
        conversion::convert(&mut beta, "v1alpha1", "v1beta1");
        beta["apiVersion"] = "addon.open-cluster-management.io/v1beta1".into();
        assert!(beta["status"]["registrations"][0].get("kubeClient").is_some());
        let read = |object: &Value| serde_json::from_value::<Member>(object.clone()).unwrap();
        let wanted = read(&alpha);
        assert_eq!(wanted.version(), "7");
        let mut bare = beta.clone();
        let fields = bare.as_object_mut().unwrap();
        fields.remove("apiVersion");
        fields.remove("kind");
        for object in [&beta, &bare] {
            let found = read(object);
            assert_eq!(found.spec.install_namespace, wanted.spec.install_namespace);
            let (have, want) = (found.status.as_ref().unwrap(), wanted.status.as_ref().unwrap());
            assert_eq!(have.registrations, want.registrations);
            assert_eq!(have.namespace, want.namespace);
        }
        let mut told = (*wanted).clone();
        told.status.as_mut().unwrap().kube_client_driver = "csr".into();
        let patch = Version::Beta.registrations(&told);
        assert_eq!(patch["registrations"][0]["kubeClient"]["driver"], "csr");
        assert_eq!(patch["registrations"][0]["kubeClient"]["subject"]["user"], "u");
        assert_eq!(patch["registrations"][1]["customSigner"]["signerName"], "example.com/x");
        let patch = Version::Alpha.registrations(&told);
        assert_eq!(patch["kubeClientDriver"], "csr");
        assert_eq!(patch["registrations"][0], alpha["status"]["registrations"][0]);
        assert_eq!(patch["registrations"][1]["signerName"], "example.com/x");
    }
}
