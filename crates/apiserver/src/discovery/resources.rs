//! The resources of a version, in both forms of discovery.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use crate::catalog::{Catalog, Group};
use crate::descriptor::{Descriptor, Subresource, api_version};

/// `resources` of an APIResourceList, sorted by name.
pub(super) fn plain(catalog: &Catalog, group: &str, version: &str) -> Vec<Value> {
    let mut out = Vec::new();
    for d in catalog.in_version(group, version) {
        let mut entry = Map::from_iter([
            ("name".to_owned(), Value::from(d.plural.clone())),
            ("singularName".to_owned(), d.singular.clone().into()),
            ("namespaced".to_owned(), d.namespaced.into()),
            ("kind".to_owned(), d.kind.clone().into()),
            ("verbs".to_owned(), d.verbs.clone().into()),
        ]);
        add_names(&mut entry, d);
        if d.has_verb("create") && d.has_verb("get") {
            entry.insert("storageVersionHash".into(), storage_hash(d).into());
        }
        out.push(Value::Object(entry));
        out.extend(d.subresources.iter().map(|(name, s)| plain_subresource(d, name, s)));
    }
    out
}

fn plain_subresource(d: &Descriptor, name: &str, s: &Subresource) -> Value {
    let mut entry = json!({
        "name": format!("{}/{name}", d.plural), "singularName": "", "namespaced": d.namespaced,
        "kind": s.kind, "verbs": s.verbs,
    });
    if is_foreign(d, s) {
        entry["group"] = s.group.clone().into();
        entry["version"] = s.version.clone().into();
    }
    entry
}

/// Whether the kind belongs to another group or version than the resource.
fn is_foreign(d: &Descriptor, s: &Subresource) -> bool {
    (&s.group, &s.version) != (&d.group, &d.version)
}

fn add_names(entry: &mut Map<String, Value>, d: &Descriptor) {
    if !d.short_names.is_empty() {
        entry.insert("shortNames".into(), d.short_names.clone().into());
    }
    if !d.categories.is_empty() {
        entry.insert("categories".into(), d.categories.clone().into());
    }
}

/// Tells clients when the stored form changes: base64 of 8 bytes of SHA-256 over `group/version/Kind`.
fn storage_hash(d: &Descriptor) -> String {
    let (group, version) = d.storage_api_version.split_once('/').unwrap_or(("", &d.storage_api_version));
    let digest = Sha256::digest(format!("{group}/{version}/{}", d.kind));
    STANDARD.encode(digest.get(..8).unwrap_or_default())
}

/// An APIGroupDiscoveryList of the core group or of all others.
pub(super) fn aggregated(catalog: &Catalog, core: bool) -> Value {
    let wanted = catalog.groups().iter().filter(|g| g.name.is_empty() == core);
    let items: Vec<Value> = wanted.map(|g| aggregated_group(catalog, g)).collect();
    json!({
        "kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "metadata": {}, "items": items,
    })
}

fn aggregated_group(catalog: &Catalog, group: &Group) -> Value {
    let metadata = if group.name.is_empty() { json!({}) } else { json!({"name": group.name}) };
    let version = |version: &String| {
        let resources: Vec<Value> =
            catalog.in_version(&group.name, version).map(|d| aggregated_resource(d)).collect();
        json!({"version": version, "freshness": "Current", "resources": resources})
    };
    json!({"metadata": metadata, "versions": group.versions.iter().map(version).collect::<Vec<_>>()})
}

fn aggregated_resource(d: &Descriptor) -> Value {
    // Built-in kinds leave out what the enclosing version says already.
    let kind = |group: &str, version: &str, kind: &str| {
        let own = !d.is_custom() && api_version(group, version) == d.api_version();
        let (group, version) = if own { ("", "") } else { (group, version) };
        json!({"group": group, "version": version, "kind": kind})
    };
    let mut entry = Map::from_iter([
        ("resource".to_owned(), Value::from(d.plural.clone())),
        ("responseKind".to_owned(), kind(&d.group, &d.version, &d.kind)),
        ("scope".to_owned(), if d.namespaced { "Namespaced" } else { "Cluster" }.into()),
        ("singularResource".to_owned(), d.singular.clone().into()),
        ("verbs".to_owned(), d.verbs.clone().into()),
    ]);
    add_names(&mut entry, d);
    let subresources: Vec<Value> = d
        .subresources
        .iter()
        .map(|(name, s)| {
            json!({"subresource": name, "responseKind": kind(&s.group, &s.version, &s.kind), "verbs": s.verbs})
        })
        .collect();
    if !subresources.is_empty() {
        entry.insert("subresources".into(), subresources.into());
    }
    Value::Object(entry)
}
