//! Objects of the ITS from which properties of WECs are read.

use std::collections::BTreeMap;

use base64::{Engine as _, engine::general_purpose::STANDARD};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use runtime::{ObjectKey, Watched};
use serde::Deserialize;

/// An inventory object or a property ConfigMap.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct InputObject {
    pub(super) metadata: ObjectMeta,
    data: Option<BTreeMap<String, String>>,
    binary_data: Option<BTreeMap<String, String>>,
}

impl InputObject {
    /// Returns `data`, overlaid with the bytes of `binaryData` taken as text (KS-128).
    pub(super) fn properties(self) -> BTreeMap<String, String> {
        let mut all = self.data.unwrap_or_default();
        let binary = self.binary_data.into_iter().flatten();
        all.extend(binary.filter_map(|(key, value)| {
            let bytes = STANDARD.decode(value.as_bytes()).ok()?;
            Some((key, String::from_utf8_lossy(&bytes).into_owned()))
        }));
        all
    }
}

impl Watched for InputObject {
    fn key(&self) -> ObjectKey {
        ObjectKey::of(&self.metadata)
    }

    fn version(&self) -> &str {
        self.metadata.resource_version.as_deref().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ks_128_binary_data_is_text_and_comes_last() {
        let facts: InputObject = serde_json::from_value(serde_json::json!({"metadata": {"name": "atlas"},
            "data": {"a": "1", "b": "2"}, "binaryData": {"b": "w6k=", "bad": "%"}}))
        .expect("a ConfigMap");
        let properties: Vec<_> = facts.properties().into_iter().collect();
        assert_eq!(properties, [("a".into(), "1".into()), ("b".into(), "é".into())]);
    }
}
