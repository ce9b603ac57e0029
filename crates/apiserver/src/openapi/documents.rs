//! Whole OpenAPI documents.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::{Value, json};

use super::schemas::{self, Version, table};
use super::{Document, Documents, operations};
use crate::descriptor::Descriptor;
use crate::version::GIT_VERSION;

const META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1";

/// `api/v1`, `apis/apps/v1`.
pub(super) fn path(group: &str, version: &str) -> String {
    if group.is_empty() { format!("api/{version}") } else { format!("apis/{group}/{version}") }
}

fn document(info: &Value, paths: &Value, schemas: BTreeMap<String, Value>) -> Arc<Document> {
    Document::new(&json!({
        "openapi": "3.0.0", "info": info, "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {
                "BearerToken": {
                    "type": "apiKey", "name": "authorization", "in": "header",
                    "description": "Bearer Token authentication",
                },
            },
        },
    }))
}

fn kubernetes() -> Value {
    json!({"title": "Kubernetes", "version": GIT_VERSION})
}

/// A document with one GET whose answer has a built-in type, or any type.
fn single(path: &str, tag: &str, schema: Option<String>) -> Arc<Document> {
    let mut schemas = BTreeMap::new();
    table().add(schema.clone(), Version::V3, &mut schemas);
    let content = match &schema {
        Some(name) => json!({"application/json": {"schema": Version::V3.reference(name)}}),
        None => json!({"application/json": {"schema": {"type": "string"}}}),
    };
    let get = json!({
        "operationId": format!("get_{tag}"),
        "responses": {"200": {"description": "OK", "content": content}, "401": {"description": "Unauthorized"}},
    });
    document(&kubernetes(), &json!({path: {"get": get}}), schemas)
}

/// Documents of paths that every server has.
pub(super) fn fixed() -> Documents {
    let well_known = ".well-known/openid-configuration";
    [
        ("api", single("/api/", "api_versions", Some(format!("{META}.APIVersions")))),
        ("apis", single("/apis/", "api_groups", Some(format!("{META}.APIGroupList")))),
        ("version", single("/version/", "version", None)),
        (well_known, single("/.well-known/openid-configuration/", "openid_configuration", None)),
        ("openid/v1/jwks", single("/openid/v1/jwks/", "openid_keys", None)),
    ]
    .into_iter()
    .map(|(path, document)| (path.to_owned(), document))
    .collect()
}

/// The document of `/apis/{group}`.
pub(super) fn group(name: &str) -> Arc<Document> {
    single(&format!("/apis/{name}/"), "api_group", Some(format!("{META}.APIGroup")))
}

/// The document of one group and version.
pub(super) fn group_version(group: &str, version: &str, resources: &[Arc<Descriptor>]) -> Arc<Document> {
    let (mut paths, mut schemas) = (BTreeMap::new(), BTreeMap::new());
    for d in resources {
        add(d, Version::V3, &mut paths, &mut schemas);
    }
    let custom = !resources.is_empty() && resources.iter().all(|d| d.is_custom());
    let info =
        if custom { json!({"title": "Kubernetes CRD Swagger", "version": "v0.1.0"}) } else { kubernetes() };
    if !custom {
        let list = format!("{META}.APIResourceList");
        table().add([list.clone()], Version::V3, &mut schemas);
        let schema = Version::V3.reference(&list);
        let ok = json!({"description": "OK", "content": {"application/json": {"schema": schema}}});
        let get = json!({"operationId": "get_api_resources", "responses": {"200": ok}});
        paths.insert(format!("/{}/", path(group, version)), json!({"get": get}));
    }
    document(&info, &json!(paths), schemas)
}

fn add(
    d: &Descriptor,
    to: Version,
    paths: &mut BTreeMap<String, Value>,
    schemas: &mut BTreeMap<String, Value>,
) {
    let used = operations::add(d, to, paths);
    schemas::add_custom(d, to, schemas);
    table().add(used, to, schemas);
}

/// The v2 document of these resources.
pub(super) fn v2<'a>(resources: impl Iterator<Item = &'a Arc<Descriptor>>) -> Value {
    let (mut paths, mut schemas) = (BTreeMap::new(), BTreeMap::new());
    for d in resources {
        add(d, Version::V2, &mut paths, &mut schemas);
    }
    json!({
        "swagger": "2.0", "info": kubernetes(), "paths": paths, "definitions": schemas,
        "securityDefinitions": {
            "BearerToken": {
                "type": "apiKey", "name": "authorization", "in": "header",
                "description": "Bearer Token authentication",
            },
        },
        "security": [{"BearerToken": []}],
    })
}
