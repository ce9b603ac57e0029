//! The objects of the tests.

use runtime::rest::Gvr;
use serde_json::{Map, Value, json};

pub const MAPS: &str = "v1/configmaps";
pub const SECRETS: &str = "v1/secrets";
pub const FOOS: &str = "example.com/v1/foos";
pub const BARS: &str = "example.com/v1/bars";
pub const CRDS: &str = "apiextensions.k8s.io/v1/customresourcedefinitions";
pub const CONTROLLERS: &str = "metacontroller.k8s.io/v1alpha1/mapcontrollers";
pub const COMPOSITES: &str = "metacontroller.k8s.io/v1alpha1/compositecontrollers";
pub const DECORATORS: &str = "metacontroller.k8s.io/v1alpha1/decoratorcontrollers";

pub fn gvr(text: &str) -> Gvr {
    let parts: Vec<&str> = text.split('/').collect();
    match parts.as_slice() {
        [version, plural] => Gvr::new("", version, plural),
        [group, version, plural] => Gvr::new(group, version, plural),
        _ => panic!("group/version/plural"),
    }
}

/// A schema that accepts everything.
pub fn open() -> Value {
    json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true})
}

/// A CRD with any spec, in version v1.
pub fn crd(kind: &str, plural: &str, group: &str, scope: &str, status: Value) -> Value {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{plural}.{group}"), "annotations": {"api-approved.kubernetes.io": "unapproved, test"}},
        "spec": {
            "group": group, "scope": scope,
            "names": {"kind": kind, "plural": plural, "singular": kind.to_lowercase(), "listKind": format!("{kind}List")},
            "versions": [{
                "name": "v1", "served": true, "storage": true, "subresources": {"status": {}},
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": open(), "status": status}}},
            }],
        },
    })
}

/// A namespaced CRD of `example.com`, served in these versions; the first is stored.
pub fn versioned(kind: &str, plural: &str, versions: &[&str]) -> Value {
    let mut definition = crd(kind, plural, "example.com", "Namespaced", open());
    let one = definition["spec"]["versions"][0].clone();
    let all = versions.iter().enumerate().map(|(index, name)| {
        let mut version = one.clone();
        (version["name"], version["storage"]) = (json!(name), json!(index == 0));
        version
    });
    definition["spec"]["versions"] = all.collect();
    definition
}

pub fn map(namespace: &str, name: &str, labels: Value, data: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "namespace": namespace, "labels": labels}, "data": {"v": data}})
}

pub fn secret(namespace: &str, name: &str, data: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "namespace": namespace}, "stringData": data})
}

/// A Foo in `ns1`.
pub fn foo(name: &str, spec: Value) -> Value {
    json!({"apiVersion": "example.com/v1", "kind": "Foo", "metadata": {"name": name, "namespace": "ns1"}, "spec": spec})
}

/// A rule whose objects are changed in place.
pub fn in_place(api_version: &str, resource: &str) -> Value {
    json!({"apiVersion": api_version, "resource": resource, "updateStrategy": {"method": "InPlace"}})
}

fn hooks(url: &str, names: &[&str]) -> Value {
    let hook = |name: &&str| ((*name).to_owned(), json!({"webhook": {"url": format!("{url}/{name}")}}));
    Value::Object(names.iter().map(hook).collect::<Map<_, _>>())
}

fn controlled(kind: &str, name: &str, mut spec: Value, more: &Value) -> Value {
    merge(&mut spec, more);
    json!({"apiVersion": "metacontroller.k8s.io/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec})
}

/// A MapController of Foos, from ConfigMaps to ConfigMaps; `more` is merged into the spec, `null` removes.
pub fn controller(name: &str, url: &str, more: Value) -> Value {
    let spec = json!({
        "parentResource": {"apiVersion": "example.com/v1", "resource": "foos"},
        "inputResources": [{"apiVersion": "v1", "resource": "configmaps"}],
        "outputResources": [in_place("v1", "configmaps")],
        "hooks": hooks(url, &["map", "tombstone"]),
    });
    controlled("MapController", name, spec, &more)
}

/// A CompositeController `cc1` of Foos with ConfigMaps, and these hooks.
pub fn composite(url: &str, names: &[&str], more: Value) -> Value {
    let spec = json!({
        "parentResource": {"apiVersion": "example.com/v1", "resource": "foos"},
        "childResources": [in_place("v1", "configmaps")],
        "hooks": hooks(url, names),
    });
    controlled("CompositeController", "cc1", spec, &more)
}

/// A DecoratorController of these resources with ConfigMaps, and these hooks.
pub fn decorator(name: &str, url: &str, names: &[&str], resource: Value) -> Value {
    let spec = json!({"resources": [resource], "attachments": [in_place("v1", "configmaps")], "hooks": hooks(url, names)});
    controlled("DecoratorController", name, spec, &json!({}))
}

fn merge(into: &mut Value, patch: &Value) {
    for (key, value) in patch.as_object().into_iter().flatten() {
        match value {
            Value::Null => drop(into.as_object_mut().unwrap().remove(key)),
            Value::Object(_) if into[key].is_object() => merge(&mut into[key], value),
            _ => into[key] = value.clone(),
        }
    }
}

pub fn app(value: &str) -> Value {
    json!({"matchLabels": {"app": value}})
}

pub fn tag<'a>(object: &'a Value, name: &str) -> &'a str {
    object["metadata"]["annotations"][format!("metacontroller.k8s.io/{name}")].as_str().unwrap_or_default()
}
