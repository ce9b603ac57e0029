//! ConfigMap `kube-system/extension-apiserver-authentication`: how extensions of the control plane authenticate their
//! callers. A Kubernetes API server publishes it, and programs built on its libraries read it before they serve.

use rcgen::{BasicConstraints, CertificateParams, DistinguishedName, DnType, IsCa, KeyPair};
use serde_json::{Map, Value, json};

/// Namespace of the ConfigMap.
pub(crate) const NAMESPACE: &str = "kube-system";
/// Name of the ConfigMap.
pub(crate) const NAME: &str = "extension-apiserver-authentication";
const CLIENT_CA: &str = "client-ca-file";
const PROXY_CA: &str = "requestheader-client-ca-file";
/// The names of front proxies, and the headers in which they name the user of a request. Each is a JSON list.
const PROXIES: [(&str, &str); 4] = [
    ("requestheader-allowed-names", r#"["front-proxy-client"]"#),
    ("requestheader-extra-headers-prefix", r#"["X-Remote-Extra-"]"#),
    ("requestheader-group-headers", r#"["X-Remote-Group"]"#),
    ("requestheader-username-headers", r#"["X-Remote-User"]"#),
];

/// A merge patch of the ConfigMap's data with everything that it lacks; `None` if it is complete. `client_ca` is PEM.
///
/// There is no front proxy here. Its CA is generated and the key is discarded: programs find a CA, and nobody can act
/// as a front proxy.
pub(crate) fn missing_data(found: Option<&Value>, client_ca: &str) -> Option<Value> {
    let data = found.and_then(|found| found.get("data")).and_then(Value::as_object);
    let text = |key: &str| data.and_then(|data| data.get(key)).and_then(Value::as_str).unwrap_or_default();
    let mut lacks = Map::new();
    for (key, wanted) in PROXIES.into_iter().chain([(CLIENT_CA, client_ca)]) {
        if text(key) != wanted {
            lacks.insert(key.into(), wanted.into());
        }
    }
    if text(PROXY_CA).is_empty() {
        lacks.insert(PROXY_CA.into(), ca_without_key().into());
    }
    (!lacks.is_empty()).then_some(Value::Object(lacks))
}

/// The whole ConfigMap with this data.
pub(crate) fn object(data: &Value) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": NAME, "namespace": NAMESPACE}, "data": data})
}

/// The certificate of a new CA whose key is thrown away, as PEM. Empty if the CA cannot be generated.
fn ca_without_key() -> String {
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let mut name = DistinguishedName::new();
    name.push(DnType::CommonName, "front-proxy-ca");
    params.distinguished_name = name;
    let made = KeyPair::generate().and_then(|key| params.self_signed(&key));
    made.map(|certificate| certificate.pem()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// First everything is published; later changes of others are reverted, but the CA of front proxies is never
    /// replaced.
    #[test]
    fn what_is_published_for_extensions() {
        let all = missing_data(None, "CA").unwrap();
        assert_eq!(all.as_object().unwrap().len(), 6);
        assert_eq!(all["client-ca-file"], "CA");
        assert_eq!(all["requestheader-username-headers"], "[\"X-Remote-User\"]");
        let ca = all["requestheader-client-ca-file"].as_str().unwrap();
        assert!(ca.starts_with("-----BEGIN CERTIFICATE-----"), "{ca}");
        assert!(!ca.contains("PRIVATE"));
        let mut there = object(&all);
        assert_eq!(missing_data(Some(&there), "CA"), None);
        assert_eq!(missing_data(Some(&there), "another"), Some(json!({"client-ca-file": "another"})));
        there["data"]["requestheader-client-ca-file"] = "theirs".into();
        there["data"]["more"] = "x".into();
        assert_eq!(missing_data(Some(&there), "CA"), None, "what others put there is theirs");
        there["data"]["requestheader-allowed-names"] = "[]".into();
        let mended = missing_data(Some(&there), "CA");
        assert_eq!(mended, Some(json!({"requestheader-allowed-names": "[\"front-proxy-client\"]"})));
    }
}
