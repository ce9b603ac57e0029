//! Kubeconfigs, and the Secrets that hold them (SP-029, SP-060).

use apis::tenancy::{ControlPlane, SecretReference};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Map, Value, json};

use crate::names::{Type, namespace_of};
use crate::spaces::Access;

/// The kubeconfig of an embedded space's administrator, with the original's names for type `k8s`.
pub(crate) fn of_space(name: &str, access: &Access) -> Value {
    let (cluster, user) = (format!("{name}-cluster"), format!("{name}-admin"));
    let mut place =
        json!({"server": access.url, "certificate-authority-data": STANDARD.encode(&access.ca_pem)});
    if let Some(server_name) = &access.server_name {
        place["tls-server-name"] = server_name.as_str().into();
    }
    json!({
        "apiVersion": "v1", "kind": "Config", "preferences": {},
        "clusters": [{"name": cluster, "cluster": place}],
        "users": [{"name": user, "user": {"client-certificate-data": STANDARD.encode(&access.certificate_pem),
            "client-key-data": STANDARD.encode(&access.key_pem)}}],
        "contexts": [{"name": name, "context": {"cluster": cluster, "user": user, "namespace": "default"}}],
        "current-context": name,
    })
}

/// The kubeconfig of a ControlPlane of type `host`: cluster, user and context have its name.
pub(crate) fn of_host(name: &str, server: &str, ca_pem: &[u8], token: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Config", "preferences": {},
        "clusters": [{"name": name, "cluster": {"server": server,
            "certificate-authority-data": STANDARD.encode(ca_pem)}}],
        "users": [{"name": name, "user": {"token": token}}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name}}],
        "current-context": name,
    })
}

/// The text of a kubeconfig. If YAML cannot express it, JSON, which every reader of YAML accepts.
pub(crate) fn text(kubeconfig: &Value) -> String {
    machinery::yaml::to_string(kubeconfig).unwrap_or_else(|_| kubeconfig.to_string())
}

/// The owner reference that makes an object go with its ControlPlane.
pub(crate) fn owner(plane: &ControlPlane) -> Value {
    json!([{"apiVersion": format!("{}/v1alpha1", apis::constants::TENANCY_GROUP), "kind": "ControlPlane",
        "name": plane.metadata.name, "uid": plane.metadata.uid, "controller": true, "blockOwnerDeletion": true}])
}

/// The owner reference of a ControlPlane that uses an object together with others: the garbage collector removes the object once
/// all of them are gone.
pub(crate) fn user(plane: &ControlPlane) -> Value {
    json!({"apiVersion": format!("{}/v1alpha1", apis::constants::TENANCY_GROUP), "kind": "ControlPlane",
        "name": plane.metadata.name, "uid": plane.metadata.uid})
}

/// A Secret of a ControlPlane; `data` is encoded here.
pub(crate) fn secret(plane: &ControlPlane, name: &str, data: &[(&str, &[u8])]) -> Value {
    let plane_name = plane.metadata.name.as_deref().unwrap_or_default();
    let data: Map<String, Value> =
        data.iter().map(|(key, value)| ((*key).to_owned(), STANDARD.encode(value).into())).collect();
    json!({"apiVersion": "v1", "kind": "Secret", "type": "Opaque", "data": data,
        "metadata": {"name": name, "namespace": namespace_of(plane_name), "ownerReferences": owner(plane)}})
}

/// Where the kubeconfig of a ControlPlane is (SP-011).
pub(crate) fn reference(name: &str, type_: Type) -> SecretReference {
    let (secret, key, in_cluster_key) = type_.secret();
    SecretReference {
        namespace: namespace_of(name),
        name: secret.to_owned(),
        key: key.to_owned(),
        in_cluster_key: in_cluster_key.to_owned(),
    }
}

/// The decoded value of a key of a Secret; `None` if it is missing, empty or no base64.
pub(crate) fn value(secret: &Value, key: &str) -> Option<Vec<u8>> {
    let text = secret.get("data")?.get(key)?.as_str()?;
    STANDARD.decode(text).ok().filter(|value| !value.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// SP-060: names of the entries; SP-011: the Secret holds what the reference names.
    #[test]
    fn sp_060_names_in_kubeconfigs() {
        let access = Access {
            url: "https://h:9443/spaces/wds1".into(),
            server_name: Some("wds1.localhost".into()),
            ca_pem: "CA".into(),
            certificate_pem: "CERT".into(),
            key_pem: "KEY".into(),
        };
        let config = of_space("wds1", &access);
        assert_eq!(config["clusters"][0]["name"], "wds1-cluster");
        assert_eq!(config["clusters"][0]["cluster"]["tls-server-name"], "wds1.localhost", "SP-056");
        assert_eq!(config["users"][0]["name"], "wds1-admin");
        assert_eq!(config["contexts"][0]["name"], "wds1");
        assert_eq!(config["current-context"], "wds1");
        let plane: ControlPlane = serde_json::from_value(
            json!({"metadata": {"name": "wds1", "uid": "u"}, "spec": {"type": "k3s"}}),
        )
        .unwrap();
        let at = reference("wds1", Type::K3s);
        let secret = secret(&plane, &at.name, &[(&at.key, b"a"), (&at.in_cluster_key, b"b")]);
        assert_eq!(value(&secret, &at.key), Some(b"a".to_vec()));
        assert_eq!(value(&secret, "config-incluster"), Some(b"b".to_vec()));
        assert_eq!(value(&secret, "other"), None);
        assert_eq!(secret["metadata"]["namespace"], "wds1-system");
        assert_eq!(secret["metadata"]["ownerReferences"][0]["controller"], true);
        let host = of_host("wds2", "https://kubernetes.default.svc", b"CA", "t");
        assert_eq!(host["users"][0], json!({"name": "wds2", "user": {"token": "t"}}));
    }
}
