//! The built-in resources, read from a data file: what OpenAPI and discovery of a stock server say about them.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use machinery::schema::{Definitions, Schema};
use serde::Deserialize;
use serde_json::Value;
use store::Collection;

use crate::catalog::{Catalog, Group};
use crate::descriptor::{Column, Descriptor, Subresource, SubresourceAction, api_version};
use crate::kinds;

const TYPES: &[u8] = include_bytes!("data/builtin-types.json");
const COLUMNS: &[u8] = include_bytes!("data/printcolumns.json");

#[derive(Deserialize)]
struct Types {
    groups: Vec<(String, Vec<String>)>,
    resources: BTreeMap<String, Resource>,
    definitions: Value,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Resource {
    group: String,
    version: String,
    plural: String,
    singular: String,
    kind: String,
    namespaced: bool,
    verbs: Vec<String>,
    #[serde(default)]
    short_names: Vec<String>,
    #[serde(default)]
    categories: Vec<String>,
    #[serde(default)]
    subresources: BTreeMap<String, SubresourceData>,
    schema: String,
    #[serde(default)]
    list_schema: Option<String>,
}

#[derive(Deserialize)]
struct SubresourceData {
    group: String,
    version: String,
    kind: String,
    verbs: Vec<String>,
}

#[derive(Deserialize)]
struct Columns {
    resources: BTreeMap<String, Vec<(String, String, String, i64)>>,
}

struct Builtin {
    catalog: Arc<Catalog>,
    definitions: Option<Definitions>,
}

/// The parsed data file, which is part of the program. A failure to read it is a defect of the build that every test
/// shows; the server then serves an empty catalog.
fn builtin() -> &'static Builtin {
    static BUILTIN: OnceLock<Builtin> = OnceLock::new();
    BUILTIN.get_or_init(|| match load() {
        Ok(builtin) => builtin,
        Err(error) => {
            tracing::error!(%error, "built-in type data are unreadable");
            Builtin { catalog: Arc::new(Catalog::default()), definitions: None }
        }
    })
}

/// What a space serves before any CustomResourceDefinition exists. All spaces of the process share one catalog.
pub fn catalog() -> Arc<Catalog> {
    builtin().catalog.clone()
}

/// The type definitions behind [`catalog`], by OpenAPI definition name.
pub fn definitions() -> Option<&'static Definitions> {
    builtin().definitions.as_ref()
}

/// The raw `definitions` of the data file, for OpenAPI documents. Each call parses the file.
///
/// # Errors
/// The data file is not valid; a defect of the build.
pub fn raw_definitions() -> Result<Value, serde_json::Error> {
    serde_json::from_slice::<Types>(TYPES).map(|types| types.definitions)
}

#[derive(Debug, thiserror::Error)]
enum LoadError {
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    #[error("type definitions: {0}")]
    Definitions(String),
}

fn load() -> Result<Builtin, LoadError> {
    let types: Types = serde_json::from_slice(TYPES)?;
    let mut columns: Columns = serde_json::from_slice(COLUMNS)?;
    let definitions =
        Definitions::parse(&types.definitions).map_err(|fault| LoadError::Definitions(fault.to_string()))?;
    let groups = types.groups.into_iter().map(|(name, versions)| Group { name, versions }).collect();
    let resources: Vec<Arc<Descriptor>> = types
        .resources
        .into_iter()
        .filter_map(|(key, resource)| {
            let schema = definitions.schema(&resource.schema)?;
            let columns = columns.resources.remove(&key).unwrap_or_default();
            Some(Arc::new(descriptor(resource, schema, columns)))
        })
        .collect();
    Ok(Builtin { catalog: Arc::new(Catalog::new(groups, resources, 0)), definitions: Some(definitions) })
}

fn descriptor(r: Resource, schema: Schema, columns: Vec<(String, String, String, i64)>) -> Descriptor {
    let storage_api_version = storage_api_version(&r.group, &r.version, &r.plural);
    let collection_group = if r.group == "events.k8s.io" { "" } else { &r.group };
    Descriptor {
        collection: Collection::new(collection_group, &r.plural),
        storage_api_version,
        strategy: kinds::strategy(&r.group, &r.version, &r.plural),
        list_kind: format!("{}List", r.kind),
        definition: r.schema,
        list_definition: r.list_schema.unwrap_or_default(),
        columns: columns.into_iter().map(column).collect(),
        subresources: r
            .subresources
            .into_iter()
            .map(|(name, s)| {
                let action = kinds::subresource_action(&r.group, &r.plural, &name);
                (name, subresource(s, action))
            })
            .collect(),
        group: r.group,
        version: r.version,
        plural: r.plural,
        singular: r.singular,
        kind: r.kind,
        namespaced: r.namespaced,
        short_names: r.short_names,
        categories: r.categories,
        verbs: r.verbs,
        schema,
        custom: None,
    }
}

fn subresource(s: SubresourceData, action: SubresourceAction) -> Subresource {
    Subresource { group: s.group, version: s.version, kind: s.kind, verbs: s.verbs, action }
}

fn column((name, r#type, format, priority): (String, String, String, i64)) -> Column {
    Column { name, r#type, format, description: String::new(), priority, path: None }
}

/// The `apiVersion` of stored objects. Two kinds are served in several versions or groups and stored in one of them.
fn storage_api_version(group: &str, version: &str, plural: &str) -> String {
    match (group, plural) {
        ("events.k8s.io", "events") => "v1".into(),
        ("autoscaling", "horizontalpodautoscalers") => "autoscaling/v2".into(),
        _ => api_version(group, version),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_010_all_resources_of_the_data_are_served() {
        let catalog = catalog();
        assert_eq!(catalog.all().count(), 68);
        assert_eq!(catalog.groups().first().map(|g| g.name.as_str()), Some(""));
        let deployments = catalog.resource("apps", "v1", "deployments").map(|d| d.kind.clone());
        assert_eq!(deployments.as_deref(), Some("Deployment"));
    }

    #[test]
    fn as_010_both_event_groups_share_a_collection() {
        let catalog = catalog();
        let core = catalog.resource("", "v1", "events").map(|d| d.collection.clone());
        let named = catalog.resource("events.k8s.io", "v1", "events").map(|d| d.collection.clone());
        assert!(core.is_some());
        assert_eq!(core, named);
    }
}
