//! The API objects that the work agent reads and writes, and what their fields mean. Pure.

use apis::{
    constants::{MANIFEST_WORK_FINALIZER, WORK_GROUP},
    ocm::{AppliedManifestWork, ManifestWork, work::AppliedResource},
};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use runtime::rest::Gvr;
use serde_json::{Value, json};

use super::completion;

pub(crate) fn manifest_works() -> Gvr {
    Gvr::of::<ManifestWork>()
}

pub(crate) fn applied_manifest_works() -> Gvr {
    Gvr::of::<AppliedManifestWork>()
}

pub(crate) fn definitions() -> Gvr {
    Gvr::of::<CustomResourceDefinition>()
}

/// Returns whether a work is complete and must not be changed.
pub(crate) fn is_frozen(work: &ManifestWork) -> bool {
    work.status.as_ref().is_some_and(|status| completion::is_complete(&status.conditions))
}

pub(crate) fn has_finalizer(work: &ManifestWork) -> bool {
    work.metadata.finalizers.iter().flatten().any(|f| f == MANIFEST_WORK_FINALIZER)
}

/// Returns the resources that a status lists; empty without a status.
pub(crate) fn listed(applied: &AppliedManifestWork) -> &[AppliedResource] {
    applied.status.as_ref().map(|s| s.applied_resources.as_slice()).unwrap_or_default()
}

/// The owner reference to an AppliedManifestWork (OCM-084).
pub(crate) fn owner_reference(applied: &AppliedManifestWork) -> Value {
    json!({"apiVersion": format!("{WORK_GROUP}/v1"), "kind": "AppliedManifestWork",
        "name": applied.metadata.name, "uid": applied.metadata.uid})
}
