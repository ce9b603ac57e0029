use super::merge::*;
use serde_json::{Value, json};

fn object(api_version: &str, kind: &str, rest: Value) -> Value {
    let mut object = json!({"apiVersion": api_version, "kind": kind, "metadata": {"name": "x"}});
    for (key, value) in rest.as_object().expect("an object") {
        object[key] = value.clone();
    }
    object
}

fn replaced(required: &Value, live: &Value) -> Value {
    match update(required, live) {
        Verdict::Replace(object) => object,
        other => panic!("expected a replacement, got {other:?}"),
    }
}

#[test]
fn ocm_078_metadata_is_merged_key_by_key() {
    let live = object(
        "v1",
        "Namespace",
        json!({"metadata": {"name": "x", "uid": "u", "finalizers": ["keep"],
        "labels": {"live": "1", "drop": "1", "change": "1"}}, "spec": {"finalizers": ["kubernetes"]}}),
    );
    let required = object(
        "v1",
        "Namespace",
        json!({"metadata": {"name": "x",
        "labels": {"drop-": "", "change": "2", "new": "3"}}, "spec": {"anything": "ignored"}}),
    );
    let out = replaced(&required, &live);
    assert_eq!(out["metadata"]["labels"], json!({"live": "1", "change": "2", "new": "3"}));
    assert_eq!(out["metadata"]["finalizers"], json!(["keep"]));
    assert_eq!(out["spec"], live["spec"], "nothing but metadata of a Namespace is touched");
    assert_eq!(update(&required, &out), Verdict::Equal);
}

#[test]
fn ocm_078_owners_are_matched_by_name_kind_and_group() {
    let owner = |uid: &str, version: &str| {
        json!({"apiVersion": format!("work.open-cluster-management.io/{version}"), "kind": "AppliedManifestWork",
            "name": "a", "uid": uid})
    };
    let mut metadata = json!({"ownerReferences": [owner("1", "v1")]});
    let map = metadata.as_object_mut().expect("an object");
    assert!(!merge_owner(map, &owner("1", "v1")));
    assert!(merge_owner(map, &owner("2", "v2")), "replaced, not doubled");
    assert_eq!(map["ownerReferences"], json!([owner("2", "v2")]));
    assert!(merge_owner(map, &owner("2-", "v1")), "a UID ending in - removes");
    assert_eq!(map.get("ownerReferences"), None);
    assert!(!merge_owner(map, &owner("2-", "v1")));
}

#[test]
fn ocm_078_config_maps_and_secrets() {
    let live = object("v1", "ConfigMap", json!({"data": {"a": "1", "extra": "drift"}}));
    let required = object("v1", "ConfigMap", json!({"data": {"a": "1"}}));
    assert_eq!(replaced(&required, &live)["data"], json!({"a": "1"}));
    assert_eq!(update(&required, &required), Verdict::Equal);
    let empty = object("v1", "ConfigMap", json!({"data": {}}));
    assert_eq!(update(&empty, &object("v1", "ConfigMap", json!({}))), Verdict::Equal);

    let live = object("v1", "Secret", json!({"type": "Opaque", "data": {"a": "MQ=="}}));
    let required = object("v1", "Secret", json!({"stringData": {"a": "1"}}));
    assert_eq!(update(&required, &live), Verdict::Equal, "stringData is folded in");
    let other = object("v1", "Secret", json!({"type": "kubernetes.io/tls", "data": {"a": "MQ=="}}));
    assert_eq!(update(&other, &live), Verdict::Recreate, "the type is immutable");
}

#[test]
fn ocm_078_services_follow_their_spec_hash() {
    let required =
        object("v1", "Service", json!({"spec": {"selector": {"a": "b"}, "ports": [{"port": 80}]}}));
    let mut live = to_create(&required);
    assert!(live["metadata"]["annotations"][SPEC_HASH].is_string());
    live["spec"]["type"] = json!("ClusterIP");
    live["spec"]["clusterIP"] = json!("10.0.0.1");
    assert_eq!(update(&required, &live), Verdict::Equal, "defaults and allocations are no drift");
    live["spec"]["selector"] = json!({"a": "other"});
    assert_eq!(replaced(&required, &live)["spec"], required["spec"]);
}

#[test]
fn ocm_078_rbac_and_crds() {
    let role = |rules: Value| object("rbac.authorization.k8s.io/v1", "Role", json!({ "rules": rules }));
    let out = replaced(&role(json!([{"verbs": ["get"]}])), &role(json!([{"verbs": ["get", "list"]}])));
    assert_eq!(out["rules"], json!([{"verbs": ["get"]}]));

    let required = object(
        "apiextensions.k8s.io/v1",
        "CustomResourceDefinition",
        json!({"spec": {"group": "g", "names": {"kind": "Boat", "plural": "boats"}}}),
    );
    let live = object(
        "apiextensions.k8s.io/v1",
        "CustomResourceDefinition",
        json!({"status": {"x": 1}, "spec": {"group": "g", "conversion": {"strategy": "None"},
            "names": {"kind": "Boat", "plural": "boats", "singular": "boat", "listKind": "BoatList"}}}),
    );
    assert_eq!(update(&required, &live), Verdict::Equal, "the server's defaults are no difference");
}

#[test]
fn ocm_079_the_generic_path_replaces_the_whole_object_but_keeps_its_status() {
    let live = json!({"apiVersion": "sea.example/v1", "kind": "Buoy", "spec": {"depth": 3, "colour": "red"},
        "status": {"ok": true}, "metadata": {"name": "x", "uid": "u", "resourceVersion": "7", "generation": 2,
            "finalizers": ["f"], "labels": {"own": "1"}}});
    let required = object("sea.example/v1", "Buoy", json!({"spec": {"depth": 3}}));
    let out = replaced(&required, &live);
    assert_eq!(out["spec"], json!({"depth": 3}));
    assert_eq!(out["status"], live["status"]);
    assert_eq!(out["metadata"], live["metadata"]);
    let same = object("sea.example/v1", "Buoy", json!({"spec": {"depth": 3, "colour": "red"}}));
    assert_eq!(update(&same, &live), Verdict::Equal);
}

#[test]
fn ocm_078_creation_drops_removal_keys() {
    let required = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x",
        "labels": {"a": "1", "b-": ""}, "annotations": {"c-": ""}, "ownerReferences": [{"uid": "u-"}, {"uid": "v"}],
        "resourceVersion": "7", "uid": "other"}});
    assert_eq!(
        to_create(&required)["metadata"],
        json!({"name": "x", "labels": {"a": "1"}, "annotations": {}, "ownerReferences": [{"uid": "v"}]})
    );
}

#[test]
fn ocm_078_injected_bundles_and_contradicting_secrets() {
    let marked = json!({"name": "x", "labels": {"config.openshift.io/inject-trusted-cabundle": "true"}});
    let required = object("v1", "ConfigMap", json!({"metadata": marked.clone()}));
    let live =
        object("v1", "ConfigMap", json!({"metadata": marked.clone(), "data": {"ca-bundle.crt": "PEM"}}));
    assert_eq!(update(&required, &live), Verdict::Equal, "what was asked for is no drift");
    let own = object("v1", "ConfigMap", json!({"metadata": marked, "data": {"ca-bundle.crt": "mine"}}));
    assert_eq!(replaced(&own, &live)["data"]["ca-bundle.crt"], "mine");

    let secret =
        |plain: &str| object("v1", "Secret", json!({"data": {"a": "MQ=="}, "stringData": {"a": plain}}));
    assert_eq!(secret_conflict(&secret("1")), None);
    assert_eq!(
        secret_conflict(&secret("2")).as_deref(),
        Some("Secret.stringData[a] conflicts with Secret.data[a]")
    );
}
