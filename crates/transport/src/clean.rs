//! Removes from every object what must not leave the WDS, whatever its destination (KS-100 … KS-108).
//!
//! Pure: works on a copy and only removes. First come the common removals, then those of the kind;
//! CustomTransforms are applied afterwards.

use apis::constants::{
    EXECUTING_COUNT_LABEL, EXPAND_TEMPLATES_ANNOTATION as EXPAND_TEMPLATES, MULTI_WEC_STATUS_LABEL,
    PRESERVE_ANNOTATION as PRESERVE, PRESERVE_NODE_PORT, SINGLETON_STATUS_LABEL,
};
use serde_json::{Map, Value};

const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// KubeStellar's own labels. If they were delivered, every returned status would change the object again
/// (KS-101).
const BOOKKEEPING: [&str; 3] = [EXECUTING_COUNT_LABEL, SINGLETON_STATUS_LABEL, MULTI_WEC_STATUS_LABEL];

const COMMON: [&str; 11] = [
    "managedFields",
    "finalizers",
    "generation",
    "ownerReferences",
    "selfLink",
    "resourceVersion",
    "uid",
    "generateName",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
];

/// Removes from `object` what must not reach a WEC (KS-100 … KS-103).
pub fn clean(object: &mut Value) {
    let Some(top) = object.as_object_mut() else { return };
    top.remove("status");
    if let Some(metadata) = child(top, "metadata") {
        for key in COMMON {
            metadata.remove(key);
        }
        remove_entries(metadata, "annotations", &[LAST_APPLIED]);
        remove_entries(metadata, "labels", &BOOKKEEPING);
    }
    let types = (text(top, "apiVersion"), text(top, "kind"));
    match (types.0.as_str(), types.1.as_str()) {
        ("v1", "Service") => clean_service(top),
        ("batch/v1", "Job") => clean_job(top),
        _ => {}
    }
}

/// Returns true if the object requests template expansion. Any value of the annotation other than `true`
/// means no (KS-120).
pub fn wants_expansion(object: &Value) -> bool {
    object.get("metadata").and_then(|m| m.get("annotations")).and_then(|a| a.get(EXPAND_TEMPLATES))
        == Some(&Value::from("true"))
}

/// KS-102: removes what the WDS's API server allocated or defaulted, since it means nothing in another
/// cluster.
fn clean_service(top: &mut Map<String, Value>) {
    let keep_node_ports = top
        .get("metadata")
        .and_then(|m| m.get("annotations"))
        .and_then(|a| a.get(PRESERVE))
        .and_then(Value::as_str)
        == Some(PRESERVE_NODE_PORT);
    let Some(spec) = child(top, "spec") else { return };
    for key in
        ["ipFamilies", "externalTrafficPolicy", "internalTrafficPolicy", "ipFamilyPolicy", "sessionAffinity"]
    {
        spec.remove(key);
    }
    if spec.get("clusterIP").and_then(Value::as_str) != Some("None") {
        spec.remove("clusterIP");
    }
    if let Some(Value::Array(ips)) = spec.get_mut("clusterIPs") {
        ips.retain(|ip| ip.as_str() == Some("None"));
        if ips.is_empty() {
            spec.remove("clusterIPs");
        }
    }
    if !keep_node_ports && let Some(Value::Array(ports)) = spec.get_mut("ports") {
        for port in ports.iter_mut().filter_map(Value::as_object_mut) {
            port.remove("nodePort");
        }
    }
}

/// KS-103: removes what the Job controller of another cluster would reject or act upon.
fn clean_job(top: &mut Map<String, Value>) {
    const UID_LABELS: [&str; 2] = ["controller-uid", "batch.kubernetes.io/controller-uid"];
    if let Some(metadata) = child(top, "metadata") {
        remove_entries(metadata, "annotations", &["batch.kubernetes.io/job-tracking"]);
        remove_entries(metadata, "labels", &UID_LABELS);
    }
    let Some(spec) = child(top, "spec") else { return };
    spec.remove("selector");
    spec.remove("suspend");
    if let Some(metadata) = child(spec, "template").and_then(|template| child(template, "metadata")) {
        remove_entries(metadata, "labels", &UID_LABELS);
    }
}

fn child<'a>(map: &'a mut Map<String, Value>, key: &str) -> Option<&'a mut Map<String, Value>> {
    map.get_mut(key).and_then(Value::as_object_mut)
}

fn text(map: &Map<String, Value>, key: &str) -> String {
    map.get(key).and_then(Value::as_str).unwrap_or_default().to_owned()
}

/// Removes entries of the map at `field`, and the map itself once it is empty.
fn remove_entries(metadata: &mut Map<String, Value>, field: &str, keys: &[&str]) {
    let Some(Value::Object(entries)) = metadata.get_mut(field) else { return };
    for key in keys {
        entries.remove(*key);
    }
    if entries.is_empty() {
        metadata.remove(field);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn cleaned(mut object: Value) -> Value {
        clean(&mut object);
        object
    }

    #[test]
    fn ks_100_common_removals_keep_name_namespace_labels_and_other_annotations() {
        let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {
            "name": "a", "namespace": "n", "labels": {"app": "x"}, "uid": "u", "resourceVersion": "7",
            "generation": 3, "generateName": "a-", "selfLink": "/x", "finalizers": ["f"], "creationTimestamp": "t",
            "deletionTimestamp": "t", "deletionGracePeriodSeconds": 0, "managedFields": [], "ownerReferences": [],
            "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "{}", "keep": "me"}},
            "data": {"k": "v"}, "status": {"x": 1}});
        assert_eq!(
            cleaned(object),
            json!({"apiVersion": "v1", "kind": "ConfigMap", "data": {"k": "v"}, "metadata": {
                "name": "a", "namespace": "n", "labels": {"app": "x"}, "annotations": {"keep": "me"}}})
        );
    }

    #[test]
    fn ks_101_bookkeeping_labels_and_emptied_maps_go() {
        let object = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a",
            "labels": {"kubestellar.io/executing-count": "1", "managed-by.kubestellar.io/singletonstatus": "true",
                       "managed-by.kubestellar.io/multiwecstatus": "true"},
            "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "{}"}}});
        assert_eq!(
            cleaned(object),
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a"}})
        );
    }

    fn service(annotations: Value, spec: Value) -> Value {
        cleaned(json!({"apiVersion": "v1", "kind": "Service", "spec": spec,
            "metadata": {"name": "s", "annotations": annotations}}))["spec"]
            .clone()
    }

    #[test]
    fn ks_102_services_lose_allocations_but_headless_and_preserved_stay() {
        let allocated = json!({"ipFamilies": ["IPv4"], "externalTrafficPolicy": "Cluster", "type": "NodePort",
            "internalTrafficPolicy": "Cluster", "ipFamilyPolicy": "SingleStack", "sessionAffinity": "None",
            "clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1"], "selector": {"a": "b"},
            "ports": [{"port": 80, "nodePort": 30001}]});
        let bare = json!({"type": "NodePort", "selector": {"a": "b"}, "ports": [{"port": 80}]});
        let with_port =
            json!({"type": "NodePort", "selector": {"a": "b"}, "ports": [{"port": 80, "nodePort": 30001}]});
        let headless = json!({"clusterIP": "None", "clusterIPs": ["None"]});
        let cases = [
            ("allocations go", json!({"x": "y"}), allocated.clone(), bare.clone()),
            ("preserved node ports stay", json!({PRESERVE: "nodeport"}), allocated.clone(), with_port),
            ("the annotation's value must be exact", json!({PRESERVE: "NodePort"}), allocated, bare),
            ("headless stays headless", json!({}), headless.clone(), headless),
        ];
        for (why, annotations, before, after) in cases {
            assert_eq!(service(annotations, before), after, "{why}");
        }
    }

    #[test]
    fn ks_102_only_the_core_v1_service_is_special() {
        let other = json!({"apiVersion": "serving.example/v1", "kind": "Service", "metadata": {"name": "s"},
            "spec": {"clusterIP": "1.2.3.4", "sessionAffinity": "None"}});
        assert_eq!(cleaned(other.clone()), other);
    }

    #[test]
    fn ks_103_jobs_lose_their_controller_marks() {
        let job = json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "j",
                "annotations": {"batch.kubernetes.io/job-tracking": ""},
                "labels": {"controller-uid": "u", "batch.kubernetes.io/controller-uid": "u", "app": "x"}},
            "spec": {"suspend": false, "selector": {"matchLabels": {"controller-uid": "u"}}, "completions": 1,
                "template": {"metadata": {"labels": {"controller-uid": "u", "batch.kubernetes.io/controller-uid": "u",
                    "job-name": "j"}}, "spec": {}}}, "status": {"active": 1}});
        assert_eq!(
            cleaned(job),
            json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "j", "labels": {"app": "x"}},
                "spec": {"completions": 1, "template": {"metadata": {"labels": {"job-name": "j"}}, "spec": {}}}})
        );
    }

    #[test]
    fn ks_100_odd_shapes_do_not_disturb() {
        for odd in [
            json!(null),
            json!([1]),
            json!({"metadata": 3, "spec": "x"}),
            json!({"metadata": {"labels": []}}),
        ] {
            assert_eq!(cleaned(odd.clone()), odd);
        }
    }

    #[test]
    fn ks_120_only_the_exact_value_asks_for_expansion() {
        for (value, asks) in [("true", true), ("True", false), ("", false), ("yes", false)] {
            let object = json!({"metadata": {"annotations": {EXPAND_TEMPLATES: value}}});
            assert_eq!(wants_expansion(&object), asks, "{value}");
        }
        assert!(!wants_expansion(&json!({"metadata": {}})));
    }
}
