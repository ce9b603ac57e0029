//! The fields that the agent decodes of the objects it follows: only those it decides on.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use apis::constants::ORIGIN_OBJECT_GENERATIONS_ANNOTATION;
use apis::control::generation_key;
use runtime::{ObjectKey, Watched};
use serde::Deserialize;
use serde_json::Value;

use crate::decide::Currency;

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Metadata {
    pub(crate) name: String,
    pub(crate) namespace: String,
    pub(crate) uid: String,
    pub(crate) resource_version: String,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) owner_references: Vec<Owner>,
    pub(crate) annotations: BTreeMap<String, String>,
    pub(crate) generation: i64,
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

/// An object of which only the name matters.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Named {
    pub(crate) metadata: Metadata,
}

/// A ManifestWork. Only its metadata is requested, unless details of WorkStatuses are switched on.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Work {
    pub(crate) metadata: Metadata,
    pub(crate) status: WorkReport,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct WorkReport {
    resource_status: ResourceStatus,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct ResourceStatus {
    manifests: Vec<ManifestReport>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ManifestReport {
    resource_meta: ManifestMeta,
    conditions: Vec<ManifestCondition>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct ManifestMeta {
    group: String,
    kind: String,
    namespace: String,
    name: String,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ManifestCondition {
    #[serde(rename = "type")]
    type_: String,
    status: String,
    observed_generation: i64,
}

impl Work {
    /// Returns how current the objects of the work are, by [`generation_key`], for those whose generation the
    /// work carries.
    pub(crate) fn currencies(&self) -> BTreeMap<String, Currency> {
        let reported = self.metadata.annotations.get(ORIGIN_OBJECT_GENERATIONS_ANNOTATION);
        let reported: BTreeMap<String, i64> =
            reported.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
        let done = |c: &ManifestCondition| {
            c.type_ == "Applied" && c.status == "True" && c.observed_generation == self.metadata.generation
        };
        let reports = self.status.resource_status.manifests.iter();
        let applied: BTreeSet<String> = reports
            .filter(|report| report.conditions.iter().any(done))
            .map(|report| {
                let meta = &report.resource_meta;
                generation_key(&meta.group, &meta.kind, &meta.namespace, &meta.name)
            })
            .collect();
        reported
            .into_iter()
            .map(|(key, generation)| {
                let applied = applied.contains(&key);
                (key, Currency { generation, applied })
            })
            .collect()
    }
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
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Reported {
    pub(crate) metadata: Metadata,
    pub(crate) spec: ReportedSpec,
    pub(crate) status: Option<Arc<Value>>,
    pub(crate) status_details: Currency,
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

macro_rules! watched {
    ($($kind:ty),*) => {$(
        impl Watched for $kind {
            fn key(&self) -> ObjectKey {
                ObjectKey::new(&self.metadata.namespace, &self.metadata.name)
            }

            fn version(&self) -> &str {
                &self.metadata.resource_version
            }
        }
    )*};
}

watched!(Delivered, Named, Work, Applied, Reported);
