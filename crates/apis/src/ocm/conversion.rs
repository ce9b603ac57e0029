//! Converts objects of the add-on API from one version to the other (OCM-016), as conversion webhooks do in
//! OCM.

use serde_json::{Map, Value, json};

/// Annotation with which v1beta1 expresses `spec.installNamespace` of v1alpha1.
pub const INSTALL_NAMESPACE: &str = "addon.open-cluster-management.io/v1alpha1-install-namespace";
/// Name of a default configuration that means that there is none.
const NO_DEFAULT: &str = "__reserved_no_default__";
const CLIENT_SIGNER: &str = "kubernetes.io/kube-apiserver-client";

/// Converts an object of the add-on API from one version (`v1alpha1`, `v1beta1`) to the other. Objects of
/// other kinds are not changed.
pub fn convert(object: &mut Value, from: &str, to: &str) {
    let kind = object.get("kind").and_then(Value::as_str).unwrap_or_default().to_owned();
    match (kind.as_str(), from, to) {
        ("ManagedClusterAddOn", "v1alpha1", "v1beta1") => member_to_beta(object),
        ("ManagedClusterAddOn", "v1beta1", "v1alpha1") => member_to_alpha(object),
        ("ClusterManagementAddOn", "v1alpha1", "v1beta1") => owner_to_beta(object),
        ("ClusterManagementAddOn", "v1beta1", "v1alpha1") => owner_to_alpha(object),
        _ => {}
    }
}

fn part<'a>(object: &'a mut Value, name: &str) -> Option<&'a mut Map<String, Value>> {
    object.get_mut(name)?.as_object_mut()
}

fn each<'a>(map: &'a mut Map<String, Value>, list: &str) -> impl Iterator<Item = &'a mut Map<String, Value>> {
    map.get_mut(list).and_then(Value::as_array_mut).into_iter().flatten().filter_map(Value::as_object_mut)
}

/// Renames a field.
fn rename(map: &mut Map<String, Value>, from: &str, to: &str) {
    if let Some(value) = map.remove(from) {
        map.insert(to.into(), value);
    }
}

fn text(value: Option<&Value>) -> &str {
    value.and_then(Value::as_str).unwrap_or_default()
}

fn member_to_beta(object: &mut Value) {
    let namespace = part(object, "spec").and_then(|spec| spec.remove("installNamespace"));
    if let Some(namespace) = namespace.filter(|n| n.as_str().is_some_and(|n| !n.is_empty()))
        && let Some(metadata) = part(object, "metadata")
    {
        let annotations = metadata.entry("annotations").or_insert_with(|| json!({}));
        if let Some(annotations) = annotations.as_object_mut() {
            annotations.insert(INSTALL_NAMESPACE.into(), namespace);
        }
    }
    let Some(status) = part(object, "status") else { return };
    status.remove("addOnConfiguration");
    let driver = status.remove("kubeClientDriver");
    for registration in each(status, "registrations") {
        let mut subject = registration.remove("subject");
        let signer = registration.remove("signerName");
        if text(signer.as_ref()) == CLIENT_SIGNER {
            let mut client = Map::new();
            if let Some(subject) = subject.as_mut().and_then(Value::as_object_mut) {
                subject.remove("organizationUnit");
            }
            client.insert("subject".into(), subject.unwrap_or_else(|| json!({})));
            if let Some(driver) = driver.clone() {
                client.insert("driver".into(), driver);
            }
            registration.insert("type".into(), "kubeClient".into());
            registration.insert("kubeClient".into(), client.into());
        } else {
            if let Some(subject) = subject.as_mut().and_then(Value::as_object_mut) {
                rename(subject, "organizationUnit", "organizationUnits");
            }
            registration.insert("type".into(), "customSigner".into());
            let custom = json!({"signerName": signer, "subject": subject.unwrap_or_else(|| json!({}))});
            registration.insert("customSigner".into(), custom);
        }
    }
    for reference in each(status, "configReferences") {
        reference.remove("namespace");
        reference.remove("name");
    }
}

fn member_to_alpha(object: &mut Value) {
    let mut namespace = None;
    if let Some(metadata) = part(object, "metadata") {
        let emptied = part_of(metadata, "annotations").is_some_and(|annotations| {
            namespace = annotations.remove(INSTALL_NAMESPACE);
            namespace.is_some() && annotations.is_empty()
        });
        if emptied {
            metadata.remove("annotations");
        }
    }
    if let Some(namespace) = namespace
        && let Some(object) = object.as_object_mut()
        && let Some(spec) = object.entry("spec").or_insert_with(|| json!({})).as_object_mut()
    {
        spec.insert("installNamespace".into(), namespace);
    }
    let Some(status) = part(object, "status") else { return };
    let mut driver = None;
    for registration in each(status, "registrations") {
        let type_ = registration.remove("type");
        let client = registration.remove("kubeClient");
        let custom = registration.remove("customSigner");
        if text(type_.as_ref()) == "kubeClient" {
            registration.insert("signerName".into(), CLIENT_SIGNER.into());
            let client = client.unwrap_or_default();
            driver = driver.or_else(|| client.get("driver").cloned());
            registration
                .insert("subject".into(), client.get("subject").cloned().unwrap_or_else(|| json!({})));
        } else {
            let custom = custom.unwrap_or_default();
            let mut subject = custom.get("subject").cloned().unwrap_or_else(|| json!({}));
            if let Some(subject) = subject.as_object_mut() {
                rename(subject, "organizationUnits", "organizationUnit");
            }
            registration.insert("signerName".into(), custom.get("signerName").cloned().unwrap_or_default());
            registration.insert("subject".into(), subject);
        }
    }
    if let Some(driver) = driver {
        status.insert("kubeClientDriver".into(), driver);
    }
    for reference in each(status, "configReferences") {
        for key in ["namespace", "name"] {
            if let Some(value) = reference.get("desiredConfig").and_then(|desired| desired.get(key)).cloned()
            {
                reference.insert(key.into(), value);
            }
        }
    }
}

fn part_of<'a>(map: &'a mut Map<String, Value>, name: &str) -> Option<&'a mut Map<String, Value>> {
    map.get_mut(name)?.as_object_mut()
}

fn owner_to_beta(object: &mut Value) {
    if let Some(spec) = part(object, "spec") {
        spec.remove("addOnConfiguration");
        rename(spec, "supportedConfigs", "defaultConfigs");
        for config in each(spec, "defaultConfigs") {
            match config.remove("defaultConfig") {
                Some(Value::Object(default)) => config.extend(default),
                _ => drop(config.insert("name".into(), NO_DEFAULT.into())),
            }
        }
    }
    if let Some(status) = part(object, "status") {
        rename(status, "defaultconfigReferences", "defaultConfigReferences");
    }
}

fn owner_to_alpha(object: &mut Value) {
    if let Some(spec) = part(object, "spec") {
        rename(spec, "defaultConfigs", "supportedConfigs");
        for config in each(spec, "supportedConfigs") {
            let (namespace, name) = (config.remove("namespace"), config.remove("name"));
            if text(name.as_ref()) == NO_DEFAULT {
                continue;
            }
            let mut default = Map::new();
            for (key, value) in [("namespace", namespace), ("name", name)] {
                if let Some(value) = value {
                    default.insert(key.into(), value);
                }
            }
            config.insert("defaultConfig".into(), default.into());
        }
    }
    if let Some(status) = part(object, "status") {
        rename(status, "defaultConfigReferences", "defaultconfigReferences");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member() -> Value {
        json!({"apiVersion": "addon.open-cluster-management.io/v1alpha1", "kind": "ManagedClusterAddOn",
            "metadata": {"name": "a", "annotations": {"mine": "x"}},
            "spec": {"installNamespace": "x", "configs": [{"group": "g", "resource": "r", "name": "n"}]},
            "status": {
                "namespace": "x",
                "kubeClientDriver": "csr",
                "healthCheck": {"mode": "Lease"},
                "registrations": [
                    {"signerName": CLIENT_SIGNER, "subject": {"user": "u", "groups": ["g1", "g2"]}},
                    {"signerName": "example.com/signer", "subject": {"user": "v", "groups": ["g"], "organizationUnit": ["o"]}}],
                "configReferences": [{"group": "g", "resource": "r", "namespace": "ns", "name": "n",
                    "desiredConfig": {"namespace": "ns", "name": "n", "specHash": "h"}}]}})
    }

    fn owner() -> Value {
        json!({"kind": "ClusterManagementAddOn", "metadata": {"name": "a"},
            "spec": {"supportedConfigs": [
                {"group": "g", "resource": "r", "defaultConfig": {"namespace": "ns", "name": "n"}},
                {"group": "g", "resource": "s"},
                {"group": "g", "resource": "t", "defaultConfig": {"name": "n"}}]},
            "status": {"defaultconfigReferences": [{"group": "g", "resource": "r"}]}})
    }

    fn converted(mut object: Value, from: &str, to: &str) -> Value {
        convert(&mut object, from, to);
        object
    }

    /// OCM-A-90.
    #[test]
    fn ocm_016_an_addon_in_both_versions() {
        let beta = converted(member(), "v1alpha1", "v1beta1");
        assert_eq!(beta["metadata"]["annotations"][INSTALL_NAMESPACE], "x");
        assert_eq!(beta["spec"], json!({"configs": [{"group": "g", "resource": "r", "name": "n"}]}));
        assert_eq!(
            beta["status"]["registrations"],
            json!([
                {"type": "kubeClient", "kubeClient": {"driver": "csr", "subject": {"user": "u", "groups": ["g1", "g2"]}}},
                {"type": "customSigner", "customSigner": {"signerName": "example.com/signer",
                    "subject": {"user": "v", "groups": ["g"], "organizationUnits": ["o"]}}}])
        );
        assert!(beta["status"].get("kubeClientDriver").is_none());
        assert!(beta["status"]["configReferences"][0].get("name").is_none());
        assert_eq!(converted(beta.clone(), "v1beta1", "v1alpha1"), member());
        assert_eq!(converted(converted(beta.clone(), "v1beta1", "v1alpha1"), "v1alpha1", "v1beta1"), beta);
    }

    #[test]
    fn ocm_016_a_definition_in_both_versions() {
        let beta = converted(owner(), "v1alpha1", "v1beta1");
        assert_eq!(
            beta["spec"]["defaultConfigs"],
            json!([{"group": "g", "resource": "r", "namespace": "ns", "name": "n"},
                {"group": "g", "resource": "s", "name": NO_DEFAULT},
                {"group": "g", "resource": "t", "name": "n"}])
        );
        assert_eq!(beta["status"], json!({"defaultConfigReferences": [{"group": "g", "resource": "r"}]}));
        assert_eq!(converted(beta.clone(), "v1beta1", "v1alpha1"), owner());
    }

    /// Incomplete or unusual content is handled, and an object of another kind is not changed.
    #[test]
    fn ocm_016_odd_objects_stay_whole() {
        for odd in [
            json!({}),
            json!([]),
            json!({"kind": "ManagedClusterAddOn"}),
            json!({"kind": "ManagedClusterAddOn", "metadata": [], "spec": 1, "status": {"registrations": [1, {}]}}),
        ] {
            for (from, to) in [("v1alpha1", "v1beta1"), ("v1beta1", "v1alpha1")] {
                drop(converted(odd.clone(), from, to));
            }
        }
        let other = json!({"kind": "Widget", "spec": {"installNamespace": "x"}});
        assert_eq!(converted(other.clone(), "v1alpha1", "v1beta1"), other);
        let bare = json!({"kind": "ManagedClusterAddOn", "metadata": {"name": "a"}, "spec": {"installNamespace": ""}});
        let beta = converted(bare, "v1alpha1", "v1beta1");
        assert!(beta["metadata"].get("annotations").is_none(), "only when it is not empty");
        let plain = json!({"kind": "ManagedClusterAddOn", "metadata": {"name": "a", "annotations": {INSTALL_NAMESPACE: "y"}}});
        let alpha = converted(plain, "v1beta1", "v1alpha1");
        assert_eq!(
            (&alpha["spec"]["installNamespace"], alpha["metadata"].get("annotations")),
            (&json!("y"), None)
        );
    }
}
