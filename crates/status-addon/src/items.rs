//! What the agent reads of the objects it follows: nothing but what it decides on.

use std::collections::BTreeMap;
use std::sync::Arc;

use runtime::feed::{Key, Keyed};
use serde::Deserialize;
use serde_json::Value;

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Metadata {
    pub(crate) name: String,
    pub(crate) namespace: String,
    pub(crate) uid: String,
    pub(crate) resource_version: String,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) owner_references: Vec<Owner>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Owner {
    pub(crate) api_version: String,
    pub(crate) kind: String,
    pub(crate) uid: String,
}

/// An object in the cluster.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Delivered {
    pub(crate) metadata: Metadata,
    pub(crate) status: Option<Arc<Value>>,
}

/// Something of which only the name counts.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Named {
    pub(crate) metadata: Metadata,
}

/// A ManifestWork, of which only metadata is asked for.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Work {
    pub(crate) metadata: Metadata,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Applied {
    pub(crate) metadata: Metadata,
    pub(crate) spec: AppliedSpec,
    pub(crate) status: AppliedStatus,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct AppliedSpec {
    pub(crate) manifest_work_name: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct AppliedStatus {
    pub(crate) applied_resources: Vec<AppliedResource>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub(crate) struct AppliedResource {
    pub(crate) group: String,
    pub(crate) version: String,
    pub(crate) resource: String,
}

/// A WorkStatus.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Reported {
    pub(crate) metadata: Metadata,
    pub(crate) spec: ReportedSpec,
    pub(crate) status: Option<Arc<Value>>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct ReportedSpec {
    pub(crate) source_ref: SourceRef,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct SourceRef {
    pub(crate) group: String,
    pub(crate) version: String,
    pub(crate) resource: String,
    pub(crate) namespace: String,
    pub(crate) name: String,
}

macro_rules! keyed {
    ($($kind:ty),*) => {$(
        impl Keyed for $kind {
            fn key(&self) -> Key {
                (self.metadata.namespace.clone(), self.metadata.name.clone())
            }

            fn resource_version(&self) -> &str {
                &self.metadata.resource_version
            }
        }
    )*};
}

keyed!(Delivered, Named, Work, Applied, Reported);
