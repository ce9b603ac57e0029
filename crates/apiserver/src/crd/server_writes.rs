//! What the server writes into definitions by itself.

use machinery::managed;
use machinery::schema::Schema;
use serde_json::Value;

use super::{GROUP, PLURAL};

pub(super) const API_VERSION: &str = "apiextensions.k8s.io/v1";
pub(super) const KIND: &str = "CustomResourceDefinition";

/// The field manager of the conditions.
const MANAGER: &str = "kube-apiserver";

/// Tracks field ownership of a write of conditions.
pub(super) fn track(old: &Value, new: &mut Value) {
    let Some(schema) = schema() else { return };
    let writer = managed::Writer {
        manager: MANAGER.into(),
        operation: managed::Operation::Update,
        api_version: API_VERSION.into(),
        subresource: "status".into(),
        now: machinery::time::now(),
        reset: vec!["spec".into(), "metadata".into()],
    };
    managed::track_update(&schema, Some(old), new, &writer);
}

fn schema() -> Option<Schema> {
    let catalog = crate::builtin::catalog();
    catalog.resource(GROUP, "v1", PLURAL).map(|d| d.schema.clone())
}
