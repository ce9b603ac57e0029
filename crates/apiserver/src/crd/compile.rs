//! Compiles a CustomResourceDefinition into the resources that it defines.

use std::collections::BTreeMap;
use std::sync::Arc;

use machinery::field;
use machinery::schema::Schema;
use serde_json::{Value, json};
use store::Collection;

use super::strategy::CustomStrategy;
use super::versions;
use crate::descriptor::{
    Column, CustomResource, Descriptor, ScalePaths, Subresource, SubresourceAction, api_version,
};
use crate::kinds::value::{at, flag, has, int, list, text};

/// Verbs of custom resources, in the order in which Kubernetes prints them.
const VERBS: &[&str] = &["delete", "deletecollection", "get", "list", "patch", "create", "update", "watch"];
/// The verbs that discovery lists while the definition is being deleted.
const LAST_VERBS: &[&str] = &["delete", "deletecollection", "get", "list", "watch"];

/// The resources of the served versions of a CustomResourceDefinition, with the accepted names
/// (`status.acceptedNames`) or, before names are accepted, the requested ones.
///
/// # Errors
/// A schema cannot be compiled.
pub fn descriptors(crd: &Value) -> Result<Vec<Descriptor>, Vec<field::Error>> {
    compile(crd, 0)
}

/// Like [`descriptors`], with the revision from which on objects are stored under these schemas.
pub(super) fn compile(crd: &Value, schema_revision: u64) -> Result<Vec<Descriptor>, Vec<field::Error>> {
    let common = Common::of(crd);
    list(crd, "spec.versions")
        .iter()
        .filter(|v| flag(v, "served"))
        .map(|version| descriptor(crd, version, &common, schema_revision))
        .collect()
}

/// What the versions of a definition need to know about each other.
struct Common<'c> {
    /// The version in which objects are stored.
    storage: Option<&'c str>,
    /// The preferred served version that is not deprecated.
    best: Option<&'c str>,
}

impl<'c> Common<'c> {
    fn of(crd: &'c Value) -> Self {
        let all = list(crd, "spec.versions");
        let current = all.iter().filter(|v| flag(v, "served") && !flag(v, "deprecated"));
        Self {
            storage: all.iter().find(|v| flag(v, "storage")).map(|v| text(v, "name")),
            best: current.map(|v| text(v, "name")).max_by(|a, b| versions::compare(a, b)),
        }
    }
}

fn descriptor(
    crd: &Value,
    version: &Value,
    common: &Common<'_>,
    schema_revision: u64,
) -> Result<Descriptor, Vec<field::Error>> {
    let group = text(crd, "spec.group");
    let name = text(version, "name");
    let names = if text(crd, "status.acceptedNames.plural").is_empty() {
        at(crd, "spec.names")
    } else {
        at(crd, "status.acceptedNames")
    };
    let kind = text(names, "kind");
    let open_api = schema_of(crd, version);
    let schema = Schema::structural(open_api, group, name, kind)?;
    let custom = Arc::new(custom_resource(crd, version, open_api, common, schema_revision));
    let storage = common.storage.unwrap_or(name);
    let definition = definition_name(group, name, kind);
    let verbs = if custom.terminating { LAST_VERBS } else { VERBS };
    Ok(Descriptor {
        group: group.into(),
        version: name.into(),
        plural: text(names, "plural").into(),
        singular: text(names, "singular").into(),
        kind: kind.into(),
        list_kind: text(names, "listKind").into(),
        namespaced: text(crd, "spec.scope") == "Namespaced",
        short_names: strings(list(names, "shortNames")),
        categories: strings(list(names, "categories")),
        verbs: verbs.iter().map(ToString::to_string).collect(),
        subresources: subresources(group, name, kind, &custom),
        schema,
        list_definition: format!("{definition}List"),
        definition,
        collection: Collection::new(group, text(crd, "spec.names.plural")),
        storage_api_version: api_version(group, storage),
        columns: columns(crd, version),
        strategy: Arc::new(CustomStrategy { resource: custom.clone(), conversion: None }),
        custom: Some(custom),
    })
}

fn schema_of<'a>(crd: &'a Value, version: &'a Value) -> &'a Value {
    let own = at(version, "schema.openAPIV3Schema");
    if own.is_null() { at(crd, "spec.validation.openAPIV3Schema") } else { own }
}

fn strings(values: &[Value]) -> Vec<String> {
    values.iter().filter_map(|v| v.as_str().map(str::to_owned)).collect()
}

/// `com.ex.v1.Widget` for `ex.com/v1` `Widget`.
fn definition_name(group: &str, version: &str, kind: &str) -> String {
    let reversed: Vec<&str> = group.rsplit('.').collect();
    format!("{}.{version}.{kind}", reversed.join("."))
}

fn custom_resource(
    crd: &Value,
    version: &Value,
    open_api: &Value,
    common: &Common<'_>,
    schema_revision: u64,
) -> CustomResource {
    let scale = at(version, "subresources.scale");
    CustomResource {
        crd: text(crd, "metadata.name").into(),
        crd_uid: text(crd, "metadata.uid").into(),
        open_api: open_api.clone(),
        scale: scale.is_object().then(|| ScalePaths {
            spec_replicas: text(scale, "specReplicasPath").into(),
            status_replicas: text(scale, "statusReplicasPath").into(),
            label_selector: scale.get("labelSelectorPath").and_then(Value::as_str).map(str::to_owned),
        }),
        has_status: has(version, "subresources.status"),
        selectable_fields: list(version, "selectableFields")
            .iter()
            .map(|f| text(f, "jsonPath").to_owned())
            .collect(),
        deprecated: flag(version, "deprecated"),
        deprecation_warning: flag(version, "deprecated").then(|| deprecation(crd, version, common)),
        terminating: has(crd, "metadata.deletionTimestamp"),
        schema_revision,
    }
}

/// The deprecation warning of a version.
fn deprecation(crd: &Value, version: &Value, common: &Common<'_>) -> String {
    if let Some(own) = version.get("deprecationWarning").and_then(Value::as_str) {
        return own.to_owned();
    }
    let (group, kind, name) = (text(crd, "spec.group"), text(crd, "spec.names.kind"), text(version, "name"));
    let newer = common.best.filter(|best| versions::compare(best, name).is_gt());
    let warning = format!("{group}/{name} {kind} is deprecated");
    match newer {
        Some(best) => format!("{warning}; use {group}/{best} {kind}"),
        None => warning,
    }
}

fn subresources(
    group: &str,
    version: &str,
    kind: &str,
    custom: &CustomResource,
) -> BTreeMap<String, Subresource> {
    let verbs = || ["get", "patch", "update"].map(str::to_owned).to_vec();
    let mut out = BTreeMap::new();
    if custom.has_status {
        let status = Subresource {
            group: group.into(),
            version: version.into(),
            kind: kind.into(),
            verbs: verbs(),
            action: SubresourceAction::Object,
        };
        out.insert("status".to_owned(), status);
    }
    if custom.scale.is_some() {
        let scale = Subresource {
            group: "autoscaling".into(),
            version: "v1".into(),
            kind: "Scale".into(),
            verbs: verbs(),
            action: SubresourceAction::Scale,
        };
        out.insert("scale".to_owned(), scale);
    }
    out
}

/// `Name`, then the columns of the definition, or `Age` if it has none.
fn columns(crd: &Value, version: &Value) -> Vec<Column> {
    let name = Column {
        name: "Name".into(),
        r#type: "string".into(),
        format: "name".into(),
        description: String::new(),
        priority: 0,
        path: None,
    };
    let asked = list(version, "additionalPrinterColumns");
    let asked = if asked.is_empty() { list(crd, "spec.additionalPrinterColumns") } else { asked };
    let age = [json!({"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp",
        "description": "CreationTimestamp is a timestamp representing the server time when this object was created. It is not guaranteed to be set in happens-before order across separate operations. Clients may not set this value. It is represented in RFC3339 form and is in UTC.\n\nPopulated by the system. Read-only. Null for lists. More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md#metadata"})];
    let asked = if asked.is_empty() { &age[..] } else { asked };
    std::iter::once(name).chain(asked.iter().map(column)).collect()
}

fn column(column: &Value) -> Column {
    let path = text(column, "jsonPath");
    let description = match text(column, "description") {
        "" => format!("Custom resource definition column (in JSONPath format): {path}"),
        own => own.to_owned(),
    };
    Column {
        name: text(column, "name").into(),
        r#type: text(column, "type").into(),
        format: text(column, "format").into(),
        description,
        priority: int(column, "priority").unwrap_or_default(),
        path: Some(path.into()),
    }
}
