use super::*;

/// Answers of a real v1.36.0 server.
const RECORDED: &str = include_str!("../../tests/data/surface_discovery.json");

fn get(path: &str, accept: Option<&'static str>) -> Result<Response<Bytes>, ApiError> {
    let mut headers = HeaderMap::new();
    if let Some(accept) = accept {
        headers.insert(http::header::ACCEPT, HeaderValue::from_static(accept));
    }
    answer(&builtin::catalog(), path, &headers, "127.0.0.1:6443").unwrap()
}

fn body(path: &str, accept: Option<&'static str>) -> Value {
    serde_json::from_slice(get(path, accept).unwrap().body()).unwrap()
}

/// Replaces hashes, and sorts lists whose order does not matter.
fn normal(value: &Value, key: &str) -> Value {
    match value {
        Value::Object(map) => map.iter().map(|(k, v)| (k.clone(), normal(v, k))).collect(),
        Value::Array(list) => {
            let mut list: Vec<Value> = list.iter().map(|v| normal(v, "")).collect();
            if matches!(key, "resources" | "groups" | "items") {
                list.sort_by_key(ToString::to_string);
            }
            Value::Array(list)
        }
        Value::String(_) if key == "storageVersionHash" => "<hash>".into(),
        other => other.clone(),
    }
}

#[test]
fn as_005_as_006_documents_equal_those_of_a_real_server() {
    let recorded: serde_json::Map<String, Value> = serde_json::from_str(RECORDED).unwrap();
    for (key, wanted) in recorded {
        let (path, accept) = match key.split_once('#') {
            Some((path, _)) => (path, Some(AGGREGATED)),
            None => (key.as_str(), None),
        };
        assert_eq!(normal(&body(path, accept), ""), normal(&wanted, ""), "{key}");
    }
}

#[test]
fn as_006_the_form_follows_the_accept_header() {
    let kubectl = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList,application/json";
    assert_eq!(body("/apis", Some(kubectl))["kind"], "APIGroupDiscoveryList");
    let old = "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList,application/json";
    assert_eq!(body("/apis", Some(old))["kind"], "APIGroupList");
    for unknown in ["application/json;g=apidiscovery.k8s.io;v=v9;as=APIGroupDiscoveryList", "text/html"] {
        assert_eq!(get("/api", Some(unknown)).unwrap_err().code, 406);
    }
    let yaml = get("/apis/apps", Some("application/yaml")).unwrap();
    assert_eq!(yaml.headers()[CONTENT_TYPE], "application/yaml");
}

#[test]
fn as_006_an_unchanged_document_is_not_sent_again() {
    let first = get("/apis", Some(AGGREGATED)).unwrap();
    assert_eq!(first.headers()[CONTENT_TYPE], AGGREGATED);
    let mut headers = HeaderMap::new();
    headers.insert(http::header::ACCEPT, HeaderValue::from_static(AGGREGATED));
    headers.insert(IF_NONE_MATCH, first.headers()[ETAG].clone());
    let second = answer(&builtin::catalog(), "/apis", &headers, "").unwrap().unwrap();
    assert_eq!(second.status(), 304);
    assert!(second.body().is_empty());
}

#[test]
fn as_005_unknown_groups_and_versions() {
    for (path, plain) in [
        ("/apis/nothing.test", true),
        ("/apis/nothing.test/v1", true),
        ("/apis/apps/v9", false),
        ("/api/v9", false),
    ] {
        let error = get(path, None).unwrap_err();
        assert_eq!((error.code, error.plain), (404, plain), "{path}");
    }
    assert_eq!(body("/apis/apps/v1/", None)["groupVersion"], "apps/v1");
    assert_eq!(body("/", None)["paths"][0], "/.well-known/openid-configuration");
    assert!(answer(&builtin::catalog(), "/apis/apps/v1/deployments", &HeaderMap::new(), "").is_none());
}

#[test]
fn as_005_storage_hashes_are_those_of_a_stock_server() {
    let list = body("/apis/apps/v1", None);
    let resources = list["resources"].as_array().unwrap();
    let deployments = resources.iter().find(|r| r["name"] == "deployments").unwrap();
    assert_eq!(deployments["storageVersionHash"], "8aSe+NMegvE=");
}
