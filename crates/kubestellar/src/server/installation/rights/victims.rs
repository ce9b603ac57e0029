//! Objects of every kind that a request without rights could read, change or delete.

use std::collections::BTreeSet;
use std::sync::Arc;

use apiserver::descriptor::Descriptor;
use http::Request;
use kube::client::Body;
use serde_json::json;
use space::Space;
use store::{Action, Encoded, Expect, Key, Meta, Write};

use super::routes::{FOREIGN, VICTIM};

/// An annotation of every object outside the own places. No answer to a refused request contains it.
pub(super) const MARK: &str = "only-for-its-owner";

/// Kinds whose instances are not data but change what is served, or are made by the tests.
const NOT: [&str; 8] = [
    "customresourcedefinitions",
    "apiservices",
    "namespaces",
    "mutatingwebhookconfigurations",
    "validatingwebhookconfigurations",
    "validatingadmissionpolicies",
    "validatingadmissionpolicybindings",
    "nodes",
];

/// Makes one object of every stored kind in each of the namespaces and in [`FOREIGN`], or with each of the names.
pub(super) async fn make(space: &Arc<Space>, own: &BTreeSet<&str>) {
    let catalog = space.server().catalog();
    let stored =
        |d: &&Arc<Descriptor>| d.has_verb("create") && d.has_verb("get") && !NOT.contains(&d.plural.as_str());
    for d in catalog.all().filter(stored) {
        for place in own.iter().copied().chain([FOREIGN]) {
            let (namespace, name) = if d.namespaced { (place, VICTIM) } else { ("", place) };
            write(space, d, namespace, name, if place == FOREIGN { MARK } else { "of an owner" }).await;
        }
    }
}

/// Writes an object by a request, so that it is whole, or past the API where the kind needs a specification.
async fn write(space: &Space, d: &Descriptor, namespace: &str, name: &str, mark: &str) {
    let base = if d.group.is_empty() { "/api/v1".into() } else { format!("/apis/{}/{}", d.group, d.version) };
    let at = if namespace.is_empty() { String::new() } else { format!("/namespaces/{namespace}") };
    let admin = apiserver::identity::UserInfo::internal("kubernetes-admin", &["system:masters"]);
    let mut object = json!({"apiVersion": d.api_version(), "kind": d.kind,
        "metadata": {"name": name, "annotations": {"mark": mark}}});
    if d.plural.ends_with("rolebindings") {
        object["roleRef"] =
            json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"});
    }
    let request = Request::post(format!("{base}{at}/{}", d.plural))
        .header("content-type", "application/json")
        .extension(apiserver::identity::Caller::Internal(Arc::new(admin)))
        .body(Body::from(object.to_string().into_bytes()))
        .expect("a request");
    let status = space.server().call(request).await.status().as_u16();
    if matches!(status, 201 | 409) {
        return;
    }
    let uid = format!("{}-{namespace}-{name}", d.plural);
    object["metadata"]["uid"] = uid.clone().into();
    object["metadata"]["creationTimestamp"] = "2026-01-01T00:00:00Z".into();
    if !namespace.is_empty() {
        object["metadata"]["namespace"] = namespace.into();
    }
    object["apiVersion"] = d.storage_api_version.clone().into();
    object["metadata"]["resourceVersion"] = "@".into();
    let text = object.to_string();
    let (head, tail) = text.split_once('@').expect("a place for the revision");
    let encoded = Encoded {
        head: head.as_bytes().to_vec().into(),
        tail: tail.as_bytes().to_vec().into(),
        meta: Meta { uid: uid.into(), ..Meta::default() },
    };
    let key = Key { collection: d.collection.clone(), namespace: namespace.into(), name: name.into() };
    let write = Write { key, expect: Expect::Absent, action: Action::Put(encoded) };
    // An object of another version of the kind may be there already.
    let _ = space.server().store().commit(write).await;
}
