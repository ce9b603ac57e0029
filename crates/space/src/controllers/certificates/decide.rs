//! Signing of approved CertificateSigningRequests. Pure.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::{CsrSigner, SignError, SignRequest};

/// The signers that this controller serves.
const CLIENT: &str = "kubernetes.io/kube-apiserver-client";
pub(super) const KUBELET: &str = "kubernetes.io/kube-apiserver-client-kubelet";
const SERVING: &str = "kubernetes.io/kubelet-serving";

/// The new status, for PUT of the subresource; `None` if nothing is to be done.
pub(crate) fn status(request: &Value, signer: &CsrSigner, now: &str) -> Option<Value> {
    let spec = request.get("spec")?;
    let name = spec.get("signerName")?.as_str()?;
    if ![CLIENT, KUBELET, SERVING].contains(&name)
        || !is_approved(request)
        || has(request, "Failed")
        || is_issued(request)
    {
        return None;
    }
    let mut status = request.get("status").cloned().unwrap_or_else(|| json!({}));
    match issue(name, spec, signer) {
        Ok(pem) => {
            status.as_object_mut()?.insert("certificate".into(), STANDARD.encode(pem).into());
        }
        Err(error) => {
            let condition = json!({
                "type": "Failed", "status": "True", "reason": "SignerValidationFailure", "message": error.to_string(),
                "lastUpdateTime": now, "lastTransitionTime": now,
            });
            let conditions = status.as_object_mut()?.entry("conditions").or_insert_with(|| json!([]));
            conditions.as_array_mut()?.push(condition);
        }
    }
    Some(status)
}

fn has(request: &Value, kind: &str) -> bool {
    let conditions = request.pointer("/status/conditions").and_then(Value::as_array);
    conditions.into_iter().flatten().any(|condition| condition.get("type").is_some_and(|found| found == kind))
}

fn is_approved(request: &Value) -> bool {
    has(request, "Approved") && !has(request, "Denied")
}

fn is_issued(request: &Value) -> bool {
    let issued = request.pointer("/status/certificate").and_then(Value::as_str);
    issued.is_some_and(|certificate| !certificate.is_empty())
}

/// Why a request breaks the rules of its signer. The texts are those of Kubernetes.
#[derive(Debug, thiserror::Error)]
pub(super) enum Invalid {
    #[error("{0}")]
    Text(&'static str),
    #[error("invalid usage for client certificate: {0}")]
    Usage(String),
    #[error(transparent)]
    Sign(#[from] SignError),
}

fn issue(signer_name: &str, spec: &Value, signer: &CsrSigner) -> Result<String, Invalid> {
    let encoded = spec.get("request").and_then(Value::as_str).unwrap_or_default();
    let pem = STANDARD.decode(encoded).map_err(|_| Invalid::Text("unable to parse csr: not base64"))?;
    let request = SignRequest::parse(&pem)?;
    let usages = usages(spec);
    match signer_name {
        KUBELET => check_kubelet(&request, &usages)?,
        SERVING => check_serving(&request, &usages)?,
        _ => check_client(&request, &usages)?,
    }
    let seconds = spec.get("expirationSeconds").and_then(Value::as_u64);
    Ok(signer.sign(&request, &usages, seconds)?)
}

/// The usages of the requested certificate.
pub(super) fn usages(spec: &Value) -> Vec<String> {
    let all = spec.get("usages").and_then(Value::as_array);
    all.into_iter().flatten().filter_map(|usage| usage.as_str().map(str::to_owned)).collect()
}

fn check_client(request: &SignRequest, usages: &[String]) -> Result<(), Invalid> {
    let allowed = ["client auth", "digital signature", "key encipherment"];
    if let Some(odd) = usages.iter().find(|usage| !allowed.contains(&usage.as_str())) {
        return Err(Invalid::Usage(odd.clone()));
    }
    if !usages.iter().any(|usage| usage == "client auth") {
        return Err(Invalid::Text("missing required usage for client certificate: client auth"));
    }
    if request.organizations.iter().any(|organization| organization == "system:masters") {
        return Err(Invalid::Text(
            "use of kubernetes.io/kube-apiserver-client signer with system:masters group is not allowed",
        ));
    }
    Ok(())
}

/// Whether the usages are these, in any order. Usages that only RSA keys need are optional.
fn same_usages(usages: &[String], one: &str) -> bool {
    let required = |usage: &str| usages.iter().any(|have| have == usage);
    let allowed = [one, "digital signature", "key encipherment"];
    required(one)
        && required("digital signature")
        && usages.iter().all(|usage| allowed.contains(&usage.as_str()))
}

fn check_node(request: &SignRequest) -> Result<(), Invalid> {
    if request.organizations != ["system:nodes"] {
        return Err(Invalid::Text("subject organization is not system:nodes"));
    }
    if !request.common_name.starts_with("system:node:") {
        return Err(Invalid::Text("subject common name does not begin with system:node:"));
    }
    if request.kinds.email {
        return Err(Invalid::Text("Email subjectAltNames are not allowed"));
    }
    if request.kinds.uri {
        return Err(Invalid::Text("URI subjectAltNames are not allowed"));
    }
    Ok(())
}

/// Checks a client certificate of a kubelet.
pub(super) fn check_kubelet(request: &SignRequest, usages: &[String]) -> Result<(), Invalid> {
    check_node(request)?;
    if request.kinds.dns {
        return Err(Invalid::Text("DNS subjectAltNames are not allowed"));
    }
    if request.kinds.ip {
        return Err(Invalid::Text("IP subjectAltNames are not allowed"));
    }
    if !same_usages(usages, "client auth") {
        return Err(Invalid::Text("usages did not match [client auth digital signature key encipherment]"));
    }
    Ok(())
}

/// Checks a serving certificate of a kubelet.
fn check_serving(request: &SignRequest, usages: &[String]) -> Result<(), Invalid> {
    check_node(request)?;
    if !request.kinds.dns && !request.kinds.ip {
        return Err(Invalid::Text("DNS or IP subjectAltName is required"));
    }
    if !same_usages(usages, "server auth") {
        return Err(Invalid::Text("usages did not match [digital signature key encipherment server auth]"));
    }
    Ok(())
}

#[cfg(test)]
pub(super) mod tests {
    use rcgen::{CertificateParams, CustomExtension, DistinguishedName, DnType, IsCa, KeyPair};
    use rustls_pki_types::pem::PemObject;
    use x509_parser::prelude::*;

    use super::*;

    fn signer() -> CsrSigner {
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, "ca");
        params.is_ca = IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        CsrSigner::new(&params.self_signed(&key).unwrap().pem(), &key.serialize_pem()).unwrap()
    }

    fn request(common_name: &str, organization: &str) -> String {
        let mut params = CertificateParams::new(vec!["agent.example".to_owned()]).unwrap();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::OrganizationName, organization);
        // rcgen accepts a second organisation only as a custom attribute type.
        params.distinguished_name.push(DnType::CustomDnType(vec![2, 5, 4, 10]), "second");
        params.distinguished_name.push(DnType::CommonName, common_name);
        params.custom_extensions = Vec::<CustomExtension>::new();
        params.serialize_request(&KeyPair::generate().unwrap()).unwrap().pem().unwrap()
    }

    /// A request with these organisations and alternative names.
    pub(crate) fn pem(common_name: &str, organizations: &[&str], names: &[&str]) -> String {
        let names: Vec<String> = names.iter().map(ToString::to_string).collect();
        let mut params = CertificateParams::new(names).unwrap();
        params.distinguished_name = DistinguishedName::new();
        for organization in organizations {
            params.distinguished_name.push(DnType::OrganizationName, *organization);
        }
        params.distinguished_name.push(DnType::CommonName, common_name);
        params.serialize_request(&KeyPair::generate().unwrap()).unwrap().pem().unwrap()
    }

    /// AS-055: client and serving certificates of kubelets, each with what it must have and must not have.
    #[test]
    fn as_055_certificates_of_kubelets() {
        let signer = signer();
        let (client, server) = (["client auth", "digital signature"], ["server auth", "digital signature"]);
        let node = |names: &[&str]| pem("system:node:n1", &["system:nodes"], names);
        let all: &[(&str, String, &[&str], &str)] = &[
            (KUBELET, node(&[]), &client, ""),
            (KUBELET, node(&[]), &["client auth", "digital signature", "key encipherment"], ""),
            (
                KUBELET,
                node(&[]),
                &server,
                "usages did not match [client auth digital signature key encipherment]",
            ),
            (KUBELET, node(&[]), &["client auth"], "usages did not match"),
            (KUBELET, node(&["n1"]), &client, "DNS subjectAltNames are not allowed"),
            (KUBELET, node(&["10.0.0.1"]), &client, "IP subjectAltNames are not allowed"),
            (KUBELET, pem("n1", &["system:nodes"], &[]), &client, "subject common name does not begin with"),
            (
                KUBELET,
                pem("system:node:n1", &["x"], &[]),
                &client,
                "subject organization is not system:nodes",
            ),
            (SERVING, node(&["n1"]), &server, ""),
            (SERVING, node(&["10.0.0.1"]), &server, ""),
            (SERVING, node(&[]), &server, "DNS or IP subjectAltName is required"),
            (
                SERVING,
                node(&["n1"]),
                &client,
                "usages did not match [digital signature key encipherment server auth]",
            ),
            (
                SERVING,
                pem("n1", &["system:nodes"], &["n1"]),
                &server,
                "subject common name does not begin with",
            ),
        ];
        for (name, pem, usages, fault) in all {
            let mut asked = object(pem, usages, true);
            asked["spec"]["signerName"] = json!(name);
            let new_status = status(&asked, &signer, "now").unwrap();
            let message =
                new_status["conditions"].as_array().and_then(|all| all.last()).unwrap()["message"].clone();
            if fault.is_empty() {
                let pem =
                    STANDARD.decode(new_status["certificate"].as_str().expect("a certificate")).unwrap();
                let der = rustls_pki_types::CertificateDer::from_pem_slice(&pem).unwrap();
                let (_, made) = parse_x509_certificate(&der).unwrap();
                let good_for = made.extended_key_usage().unwrap().unwrap().value;
                assert_eq!(
                    (good_for.client_auth, good_for.server_auth),
                    (*name == KUBELET, *name == SERVING)
                );
            } else {
                assert!(message.as_str().unwrap().contains(fault), "{fault}: {message}");
            }
        }
    }

    fn object(pem: &str, usages: &[&str], approved: bool) -> Value {
        let conditions = if approved { json!([{"type": "Approved", "status": "True"}]) } else { json!([]) };
        json!({
            "spec": {"signerName": CLIENT, "request": STANDARD.encode(pem), "usages": usages, "expirationSeconds": 3600},
            "status": {"conditions": conditions},
        })
    }

    #[test]
    fn as_054_an_approved_request_gets_the_certificate_it_asks_for() {
        let signer = signer();
        let usages = ["client auth", "digital signature"];
        let pem = request("system:open-cluster-management:c1:a", "system:open-cluster-management:c1");
        assert_eq!(status(&object(&pem, &usages, false), &signer, "now"), None);
        let signed = status(&object(&pem, &usages, true), &signer, "now").unwrap();
        let text = STANDARD.decode(signed["certificate"].as_str().unwrap()).unwrap();
        let der = rustls_pki_types::CertificateDer::from_pem_slice(&text).unwrap();
        let (rest, certificate) = parse_x509_certificate(&der).unwrap();
        assert!(rest.is_empty());
        let subject = certificate.subject().to_string();
        assert_eq!(
            subject,
            "O=system:open-cluster-management:c1, O=second, CN=system:open-cluster-management:c1:a"
        );
        let validity = certificate.validity();
        assert_eq!(validity.not_after.timestamp() - validity.not_before.timestamp(), 3600 + 300);
        assert!(certificate.extended_key_usage().unwrap().unwrap().value.client_auth);
        assert!(certificate.key_usage().unwrap().unwrap().value.digital_signature());
        assert!(certificate.subject_alternative_name().unwrap().is_some());
        assert!(!certificate.is_ca());
        let ca = signer.authority_der();
        let (_, ca) = parse_x509_certificate(&ca).unwrap();
        certificate.verify_signature(Some(ca.public_key())).unwrap();
        // A signed request is not signed again.
        let mut again = object(&pem, &usages, true);
        again["status"] = signed;
        assert_eq!(status(&again, &signer, "now"), None);
    }

    #[test]
    fn as_054_a_request_against_the_rules_fails_with_a_condition() {
        let signer = signer();
        let good = request("a", "b");
        let cases = [
            (object(&good, &["server auth"], true), "invalid usage for client certificate: server auth"),
            (object(&good, &["digital signature"], true), "missing required usage for client certificate"),
            (
                object(&request("a", "system:masters"), &["client auth"], true),
                "system:masters group is not allowed",
            ),
            (object("nonsense", &["client auth"], true), "unable to parse csr"),
        ];
        for (object, text) in cases {
            let failed = status(&object, &signer, "now").unwrap();
            let condition = failed["conditions"].as_array().unwrap().last().unwrap();
            assert_eq!(condition["reason"], "SignerValidationFailure");
            assert!(condition["message"].as_str().unwrap().contains(text), "{condition}");
        }
        let mut other = object(&good, &["client auth"], true);
        other["spec"]["signerName"] = json!("example.com/own");
        assert_eq!(status(&other, &signer, "now"), None);
    }
}
