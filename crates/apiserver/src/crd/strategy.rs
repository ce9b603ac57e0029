//! The strategy of custom resources.

use std::sync::Arc;

use machinery::field::{self, Path};
use serde_json::Value;

use crate::admission::Admission;
use crate::descriptor::CustomResource;
use crate::error::ApiError;
use crate::kinds::content_changed;
use crate::kinds::value::{at, put, remove, restore};
use crate::strategy::{Facts, Generation, Strategy, WriteContext};

/// The behaviour that all custom resources share (AS-043): separate writes of spec and status if the definition has a
/// status subresource, a generation that counts all changes outside metadata, no update without resourceVersion.
pub struct CustomStrategy {
    pub resource: Arc<CustomResource>,
    /// The converter and the group, if the versions differ in more than their name.
    pub conversion: Option<(Arc<dyn Admission>, String)>,
}

impl Strategy for CustomStrategy {
    fn facts(&self) -> &Facts {
        const FACTS: Facts = Facts { unconditional_update: false, own_labels: true, ..Facts::GENERIC };
        &FACTS
    }

    fn prepare_create(&self, _cx: &WriteContext<'_>, obj: &mut Value) -> Result<(), ApiError> {
        if self.resource.has_status {
            drop(remove(obj, "status"));
        }
        Ok(())
    }

    fn prepare_update(&self, _cx: &WriteContext<'_>, obj: &mut Value, old: &Value) -> Result<(), ApiError> {
        if self.resource.has_status {
            put(obj, "status", at(old, "status"));
        }
        Ok(())
    }

    fn prepare_subresource_update(
        &self,
        _cx: &WriteContext<'_>,
        subresource: &str,
        obj: &mut Value,
        old: &Value,
    ) -> Result<(), ApiError> {
        if subresource != "status" {
            return Ok(());
        }
        restore(obj, old, &["metadata", "status"]);
        if let (Some(metadata), Some(old)) = (obj.get_mut("metadata"), old.get("metadata")) {
            restore(metadata, old, &["managedFields", "resourceVersion"]);
        }
        Ok(())
    }

    fn generation(&self) -> Generation {
        Generation::Managed
    }

    fn spec_changed(&self, new: &Value, old: &Value) -> bool {
        let ignored: &[&str] = if self.resource.has_status { &["metadata", "status"] } else { &["metadata"] };
        content_changed(new, old, ignored)
    }

    fn validate_create(&self, _cx: &WriteContext<'_>, obj: &Value) -> Vec<field::Error> {
        self.replicas(obj)
    }

    fn validate_update(
        &self,
        _cx: &WriteContext<'_>,
        _subresource: Option<&str>,
        obj: &Value,
        _old: &Value,
    ) -> Vec<field::Error> {
        self.replicas(obj)
    }

    fn field_value(&self, obj: &Value, label: &str) -> Option<String> {
        let known = self.resource.selectable_fields.iter().any(|path| path.strip_prefix('.') == Some(label));
        known.then(|| match at(obj, label) {
            Value::String(text) => text.clone(),
            Value::Null => String::new(),
            other => other.to_string(),
        })
    }

    /// With the conversion strategy `None` all versions have the same fields, unless the control plane converts.
    fn convert(&self, obj: &mut Value, from: &str, to: &str) {
        let version = |api_version: &str| api_version.rsplit('/').next().unwrap_or_default().to_owned();
        if let Some((by, group)) = &self.conversion {
            by.convert(group, obj, &version(from), &version(to));
        }
    }

    fn reset_fields(&self, subresource: Option<&str>) -> Vec<String> {
        match subresource {
            Some("status") => vec!["spec".into(), "metadata".into()],
            _ if self.resource.has_status => vec!["status".into()],
            _ => Vec::new(),
        }
    }
}

impl CustomStrategy {
    /// Errors for negative replica counts. The path keeps the leading dot of the definition, as in Kubernetes.
    fn replicas(&self, obj: &Value) -> Vec<field::Error> {
        let Some(scale) = &self.resource.scale else { return Vec::new() };
        [&scale.spec_replicas, &scale.status_replicas]
            .into_iter()
            .filter_map(|place| {
                let count = at(obj, place.trim_start_matches('.'));
                let negative = count.as_i64().is_some_and(|n| n < 0);
                let error = || field::Error {
                    field: place.clone(),
                    ..field::Error::invalid(&Path::root(), count, "should be a non-negative integer")
                };
                negative.then(error)
            })
            .collect()
    }
}
