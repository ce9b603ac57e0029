//! ConfigMap `kube-system/extension-apiserver-authentication`: how extensions of the control plane find out who asks them.
//! A Kubernetes API server publishes it; programs built on its libraries look for it when they serve anything.

use rcgen::{BasicConstraints, CertificateParams, DistinguishedName, DnType, IsCa, KeyPair};
use serde_json::{Map, Value, json};

/// Where it is.
pub(crate) const NAMESPACE: &str = "kube-system";
/// What it is called.
pub(crate) const NAME: &str = "extension-apiserver-authentication";
const CLIENT_CA: &str = "client-ca-file";
const PROXY_CA: &str = "requestheader-client-ca-file";
/// What front proxies of a cluster are called, and the headers by which they say for whom they ask; each a JSON list.
const PROXIES: [(&str, &str); 4] = [
    ("requestheader-allowed-names", r#"["front-proxy-client"]"#),
    ("requestheader-extra-headers-prefix", r#"["X-Remote-Extra-"]"#),
    ("requestheader-group-headers", r#"["X-Remote-Group"]"#),
    ("requestheader-username-headers", r#"["X-Remote-User"]"#),
];

/// What it lacks, as a merge patch of its data; none if nothing. `client_ca` is PEM.
///
/// There is no front proxy here. Its CA is made and its key thrown away: programs find all they look for, and nobody can
/// speak to them for others.
pub(crate) fn lacking(found: Option<&Value>, client_ca: &str) -> Option<Value> {
    let data = found.and_then(|found| found.get("data")).and_then(Value::as_object);
    let text = |key: &str| data.and_then(|data| data.get(key)).and_then(Value::as_str).unwrap_or_default();
    let mut lacks = Map::new();
    for (key, wanted) in PROXIES.into_iter().chain([(CLIENT_CA, client_ca)]) {
        if text(key) != wanted {
            lacks.insert(key.into(), wanted.into());
        }
    }
    if text(PROXY_CA).is_empty() {
        lacks.insert(PROXY_CA.into(), nobodys_ca().into());
    }
    (!lacks.is_empty()).then_some(Value::Object(lacks))
}

/// The whole object with this data.
pub(crate) fn object(data: &Value) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": NAME, "namespace": NAMESPACE}, "data": data})
}

/// A CA that nobody has the key of, PEM. Empty if none can be made, which is what it was before.
fn nobodys_ca() -> String {
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

    /// Everything at first; then what somebody changed, but never another CA for front proxies.
    #[test]
    fn what_is_published_for_extensions() {
        let all = lacking(None, "CA").unwrap();
        assert_eq!(all.as_object().unwrap().len(), 6);
        assert_eq!(all["client-ca-file"], "CA");
        assert_eq!(all["requestheader-username-headers"], "[\"X-Remote-User\"]");
        let ca = all["requestheader-client-ca-file"].as_str().unwrap();
        assert!(ca.starts_with("-----BEGIN CERTIFICATE-----"), "{ca}");
        assert!(!ca.contains("PRIVATE"));
        let mut there = object(&all);
        assert_eq!(lacking(Some(&there), "CA"), None);
        assert_eq!(lacking(Some(&there), "another"), Some(json!({"client-ca-file": "another"})));
        there["data"]["requestheader-client-ca-file"] = "theirs".into();
        there["data"]["more"] = "x".into();
        assert_eq!(lacking(Some(&there), "CA"), None, "what others put there is theirs");
        there["data"]["requestheader-allowed-names"] = "[]".into();
        let mended = lacking(Some(&there), "CA");
        assert_eq!(mended, Some(json!({"requestheader-allowed-names": "[\"front-proxy-client\"]"})));
    }
}
