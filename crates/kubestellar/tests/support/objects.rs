//! Objects of the tests, as a user writes them.

use std::collections::BTreeMap;

use kube::api::{DynamicObject, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, Client, Resource, ResourceExt};
use serde_json::{Value, json};

/// Label that the policies of the tests select.
const APP: &str = "app.kubernetes.io/part-of";

pub fn namespace(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": {APP: name}}})
}

pub fn config_map(namespace: &str, name: &str, value: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": namespace, "labels": {APP: namespace}},
        "data": {"value": value},
    })
}

pub fn deployment(namespace: &str, name: &str) -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": name, "namespace": namespace, "labels": {APP: namespace}},
        "spec": {
            "replicas": 2,
            "selector": {"matchLabels": {"app": name}},
            "template": {
                "metadata": {"labels": {"app": name}},
                "spec": {"containers": [{"name": "main", "image": "registry.example/main:1.0"}]},
            },
        },
    })
}

/// Delivers everything of `namespace` to the clusters with the label.
pub fn policy(namespace: &str, cluster: (&str, &str), singleton: bool) -> Value {
    json!({
        "apiVersion": "control.kubestellar.io/v1alpha1", "kind": "BindingPolicy",
        "metadata": {"name": namespace},
        "spec": {
            "clusterSelectors": [{"matchLabels": {cluster.0: cluster.1}}],
            "downsync": [{
                "objectSelectors": [{"matchLabels": {APP: namespace}}],
                "wantSingletonReportedState": singleton,
            }],
        },
    })
}

/// Any collection, by API version and kind; all namespaces when none is given.
pub fn dynamic(
    client: &Client,
    api_version: &str,
    kind: &str,
    namespace: Option<&str>,
) -> Api<DynamicObject> {
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind));
    match namespace {
        Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
        None => Api::all_with(client.clone(), &resource),
    }
}

fn collection(client: &Client, object: &Value) -> Api<DynamicObject> {
    let text = |path: &str| object.pointer(path).and_then(Value::as_str);
    let (api_version, kind) = (text("/apiVersion").expect("apiVersion"), text("/kind").expect("kind"));
    dynamic(client, api_version, kind, text("/metadata/namespace"))
}

pub async fn create(client: &Client, object: Value) -> DynamicObject {
    let api = collection(client, &object);
    let object: DynamicObject = serde_json::from_value(object).expect("an object");
    match api.create(&PostParams::default(), &object).await {
        Ok(created) => created,
        Err(error) => panic!("creating {object:?}: {error:?}"),
    }
}

/// Writes the status as the controllers of a real cluster would.
pub async fn apply_status(client: &Client, object: &Value, status: Value) -> DynamicObject {
    let name = object["metadata"]["name"].as_str().expect("a name");
    let patch = Patch::Merge(json!({"status": status}));
    collection(client, object)
        .patch_status(name, &PatchParams::default(), &patch)
        .await
        .expect("status is written")
}

pub fn uid<K: Resource>(object: &K) -> String {
    object.uid().expect("a uid")
}

pub fn resource_version<K: Resource>(object: &K) -> u64 {
    object.resource_version().and_then(|v| v.parse().ok()).expect("a resourceVersion")
}

/// Names, with what `value` makes of each object.
pub fn names<K: Resource, V>(all: &BTreeMap<String, K>, value: impl Fn(&K) -> V) -> BTreeMap<String, V> {
    all.iter().map(|(name, object)| (name.clone(), value(object))).collect()
}
