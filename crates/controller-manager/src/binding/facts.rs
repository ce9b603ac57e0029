//! What of a Binding matters to its controller.

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
    /// Whether exactly this policy owns it (KS-011).
    pub(crate) fn is_owned_by(&self, owner: &OwnerReference) -> bool {
        self.metadata.owner_references.as_slice() == std::slice::from_ref(owner)
    }

    /// The policy that owns it.
    pub(crate) fn owner(&self) -> Option<&OwnerReference> {
        self.metadata.owner_references.iter().find(|owner| {
            owner.kind == "BindingPolicy" && owner.api_version.starts_with("control.kubestellar.io/")
        })
    }

    /// Someone asked for its deletion.
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
