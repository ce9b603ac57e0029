use super::*;
use crate::descriptor::{CustomResource, Subresource, SubresourceAction};
use serde_json::{Value, json};

fn ask(cache: &Cache, catalog: &Catalog, path: &str, query: &str) -> Response<Bytes> {
    cache.answer(catalog, path, query, &HeaderMap::new()).unwrap().unwrap()
}

fn get(catalog: &Catalog, path: &str) -> Value {
    serde_json::from_slice(ask(&Cache::default(), catalog, path, "").body()).unwrap()
}

/// The built-ins and `Widget` of `ex.com/v1`.
fn with_widgets(generation: u64) -> Catalog {
    let open_api = json!({"type": "object", "properties": {
        "spec": {"type": "object", "properties": {
            "size": {"type": "integer", "default": 1}, "any": {"x-kubernetes-preserve-unknown-fields": true, "type": "object"},
        }},
    }});
    with_custom(generation, open_api)
}

/// The built-ins and `Widget` of `ex.com/v1`, which has this schema.
fn with_custom(generation: u64, open_api: Value) -> Catalog {
    let base = builtin::catalog();
    let pods = base.resource("", "v1", "configmaps").unwrap();
    let own = |name: &str| Subresource {
        group: "ex.com".into(),
        version: "v1".into(),
        kind: name.into(),
        verbs: vec!["get".into(), "patch".into(), "update".into()],
        action: SubresourceAction::Object,
    };
    let scale = Subresource {
        group: "autoscaling".into(),
        kind: "Scale".into(),
        action: SubresourceAction::Scale,
        ..own("")
    };
    let widgets = Descriptor {
        group: "ex.com".into(),
        version: "v1".into(),
        plural: "widgets".into(),
        singular: "widget".into(),
        kind: "Widget".into(),
        list_kind: "WidgetList".into(),
        subresources: [("status".to_owned(), own("Widget")), ("scale".to_owned(), scale)].into(),
        custom: Some(Arc::new(CustomResource {
            crd: "widgets.ex.com".into(),
            crd_uid: "u".into(),
            open_api,
            scale: None,
            has_status: true,
            selectable_fields: vec![],
            deprecated: false,
            deprecation_warning: None,
            terminating: false,
            schema_revision: 0,
        })),
        ..Descriptor::clone(pods)
    };
    let mut groups = base.groups().to_vec();
    groups.push(crate::catalog::Group { name: "ex.com".into(), versions: vec!["v1".into()] });
    Catalog::new(groups, base.all().cloned().chain([Arc::new(widgets)]), generation)
}

/// Checks that all references of a document exist.
fn check_references(document: &Value, node: &Value) {
    match node {
        Value::Object(map) => {
            if let Some(reference) = map.get("$ref").and_then(Value::as_str) {
                let pointer = reference.trim_start_matches('#');
                assert!(document.pointer(pointer).is_some(), "{reference}");
            }
            map.values().for_each(|v| check_references(document, v));
        }
        Value::Array(list) => list.iter().for_each(|v| check_references(document, v)),
        _ => {}
    }
}

#[test]
fn as_007_the_index_leads_to_every_document() {
    let (cache, catalog) = (Cache::default(), with_widgets(1));
    let index = ask(&cache, &catalog, "/openapi/v3", "");
    assert_eq!(index.headers()[CONTENT_TYPE], "text/plain; charset=utf-8");
    let index: Value = serde_json::from_slice(index.body()).unwrap();
    let paths = index["paths"].as_object().unwrap();
    for key in
        ["api", "api/v1", "apis", "apis/apps", "apis/apps/v1", "apis/ex.com", "apis/ex.com/v1", "version"]
    {
        assert!(paths.contains_key(key), "{key}");
    }
    for target in paths.values() {
        let url = target["serverRelativeURL"].as_str().unwrap();
        let (path, query) = url.split_once('?').unwrap();
        let answer = ask(&cache, &catalog, path, query);
        assert_eq!(answer.status(), 200);
        assert_eq!(answer.headers()[CACHE_CONTROL], "public, immutable");
        assert!(answer.headers().contains_key(EXPIRES));
        let hash = query.trim_start_matches("hash=");
        assert_eq!(answer.headers()[ETAG], format!("\"{hash}\""));
        let document: Value = serde_json::from_slice(answer.body()).unwrap();
        check_references(&document, &document);
    }
}

#[test]
fn as_007_a_wrong_hash_is_redirected_and_a_known_document_not_sent() {
    let (cache, catalog) = (Cache::default(), builtin::catalog());
    let wrong = ask(&cache, &catalog, "/openapi/v3/apis/apps/v1", "hash=X");
    assert_eq!(wrong.status(), 301);
    let target = wrong.headers()[LOCATION].to_str().unwrap().trim_start_matches('?').to_owned();
    let right = ask(&cache, &catalog, "/openapi/v3/apis/apps/v1", &target);
    assert_eq!(right.status(), 200);
    let mut headers = HeaderMap::new();
    headers.insert(IF_NONE_MATCH, right.headers()[ETAG].clone());
    let again = cache.answer(&catalog, "/openapi/v3/apis/apps/v1", "", &headers).unwrap().unwrap();
    assert_eq!((again.status(), again.body().len()), (StatusCode::NOT_MODIFIED, 0));
    let none = cache.answer(&catalog, "/openapi/v3/apis/none/v1", "", &HeaderMap::new()).unwrap();
    assert_eq!(none.unwrap_err().code, 404);
}

/// AS-007, AS-008: v2 has a protobuf form under both its media types, including custom resources; v3 has none.
#[test]
fn as_008_only_v2_has_a_protobuf_form() {
    let mut headers = HeaderMap::new();
    for name in V2_PROTOBUF {
        headers.insert(http::header::ACCEPT, HeaderValue::from_static(name));
        let answer =
            Cache::default().answer(&builtin::catalog(), "/openapi/v2", "", &headers).unwrap().unwrap();
        assert_eq!(answer.status(), StatusCode::OK);
        assert_eq!(answer.headers()[CONTENT_TYPE], V2_PROTOBUF[0]);
        let body = answer.into_body();
        for text in [&b"io.k8s.api.apps.v1.Deployment"[..], b"x-kubernetes-group-version-kind"] {
            assert!(body.windows(text.len()).any(|w| w == text));
        }
        for path in ["/openapi/v3", "/openapi/v3/api/v1"] {
            let answer = Cache::default().answer(&builtin::catalog(), path, "", &headers).unwrap().unwrap();
            assert_eq!((answer.status().as_u16(), answer.body().len()), (406, 0));
        }
    }
}

#[test]
fn as_007_kubectl_finds_what_it_needs_to_apply() {
    let apps = get(&builtin::catalog(), "/openapi/v3/apis/apps/v1");
    let patch = &apps["paths"]["/apis/apps/v1/namespaces/{namespace}/deployments/{name}"]["patch"];
    assert_eq!(
        patch["x-kubernetes-group-version-kind"],
        json!({"group": "apps", "version": "v1", "kind": "Deployment"})
    );
    assert_eq!(patch["x-kubernetes-action"], "patch");
    let names: Vec<&str> =
        patch["parameters"].as_array().unwrap().iter().filter_map(|p| p["name"].as_str()).collect();
    assert_eq!(names, ["dryRun", "fieldManager", "fieldValidation", "force"]);
    assert!(patch["requestBody"]["content"]["application/strategic-merge-patch+json"].is_object());
    let schemas = &apps["components"]["schemas"];
    let deployment = &schemas["io.k8s.api.apps.v1.Deployment"];
    assert_eq!(
        deployment["x-kubernetes-group-version-kind"],
        json!([{"group": "apps", "version": "v1", "kind": "Deployment"}])
    );
    assert_eq!(
        deployment["properties"]["spec"]["allOf"][0]["$ref"],
        "#/components/schemas/io.k8s.api.apps.v1.DeploymentSpec"
    );
    let containers = &schemas["io.k8s.api.core.v1.PodSpec"]["properties"]["containers"];
    assert_eq!(containers["x-kubernetes-patch-merge-key"], "name");
    assert_eq!(containers["x-kubernetes-patch-strategy"], "merge");
    assert_eq!(containers["x-kubernetes-list-map-keys"], json!(["name"]));
}

#[test]
fn as_007_custom_resources_have_their_own_document() {
    let document = get(&with_widgets(2), "/openapi/v3/apis/ex.com/v1");
    assert_eq!(document["info"], json!({"title": "Kubernetes CRD Swagger", "version": "v0.1.0"}));
    let widget = &document["components"]["schemas"]["com.ex.v1.Widget"];
    assert_eq!(widget["properties"]["spec"]["properties"]["size"], json!({"type": "integer", "default": 1}));
    assert_eq!(
        widget["properties"]["metadata"]["allOf"][0]["$ref"],
        "#/components/schemas/io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"
    );
    let paths = document["paths"].as_object().unwrap();
    for path in ["", "/{name}", "/{name}/status", "/{name}/scale"] {
        let path = format!("/apis/ex.com/v1/namespaces/{{namespace}}/widgets{path}");
        assert!(paths.contains_key(&path), "{path}");
    }
    let patch = &paths["/apis/ex.com/v1/namespaces/{namespace}/widgets/{name}"]["patch"];
    assert!(patch["requestBody"]["content"].get("application/strategic-merge-patch+json").is_none());
    assert_eq!(paths["/apis/ex.com/v1/widgets"]["get"]["x-kubernetes-action"], "list");
}

#[test]
fn as_008_the_second_version_has_all_in_one() {
    let document = get(&with_widgets(3), "/openapi/v2");
    check_references(&document, &document);
    assert_eq!(document["swagger"], "2.0");
    assert!(document["paths"]["/api/v1/namespaces/{namespace}/pods"]["post"].is_object());
    let definitions = &document["definitions"];
    assert_eq!(
        definitions["io.k8s.apimachinery.pkg.util.intstr.IntOrString"],
        json!({"type": "string", "format": "int-or-string"})
    );
    let spec = &definitions["com.ex.v1.Widget"]["properties"]["spec"]["properties"];
    assert_eq!(spec["size"], json!({"type": "integer"}));
    assert_eq!(spec["any"], json!({"x-kubernetes-preserve-unknown-fields": true}));
}

/// AS-008: kubectl refuses fields that are not listed, so a kind that preserves unknown fields lists no properties.
#[test]
fn as_008_a_kind_that_takes_anything_has_no_properties() {
    let open = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true,
        "properties": {"spec": {"type": "object"}}});
    let document = get(&with_custom(3, open), "/openapi/v2");
    check_references(&document, &document);
    let kind = json!([{"group": "ex.com", "version": "v1", "kind": "Widget"}]);
    let widget = json!({"type": "object", "x-kubernetes-group-version-kind": kind});
    assert_eq!(document["definitions"]["com.ex.v1.Widget"], widget);
}

#[test]
fn as_007_built_in_documents_are_shared_between_spaces() {
    let (one, other) = (Cache::default(), Cache::default());
    let (a, b) = (builtin::catalog(), with_widgets(4));
    let body =
        |cache: &Cache, catalog: &Catalog| ask(cache, catalog, "/openapi/v3/apis/apps/v1", "").into_body();
    assert_eq!(body(&one, &a).as_ptr(), body(&other, &b).as_ptr());
}
