//! Keys and certificate signing requests (OCM-036).
//!
//! Encoded by hand, because an agent's subject has several organisations, which rcgen cannot express.

use rcgen::{PublicKeyData as _, SigningKey as _};
use rustls_pki_types::{CertificateSigningRequestDer, pem::PemObject as _};
use x509_parser::{certification_request::X509CertificationRequest, prelude::FromDer as _};

pub use rcgen::KeyPair;

use crate::der::{SEQUENCE, armour, element};

/// Why a request could not be created.
#[derive(Debug, thiserror::Error)]
#[error("creating a certificate signing request")]
pub struct RequestError(#[from] rcgen::Error);

const COMMON_NAME: [u8; 5] = [0x06, 0x03, 0x55, 0x04, 0x03];
const ORGANIZATION: [u8; 5] = [0x06, 0x03, 0x55, 0x04, 0x0a];
const ORGANIZATION_UNIT: [u8; 5] = [0x06, 0x03, 0x55, 0x04, 0x0b];
const ALTERNATIVE_NAMES: [u8; 5] = [0x06, 0x03, 0x55, 0x1d, 0x11];
/// 1.2.840.113549.1.9.14
const EXTENSION_REQUEST: [u8; 11] = [0x06, 0x09, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x09, 0x0e];
/// ecdsa-with-SHA256
const SIGNATURE_ALGORITHM: [u8; 12] =
    [0x30, 0x0a, 0x06, 0x08, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x03, 0x02];
const SET: u8 = 0x31;

fn name_part(kind: &[u8], text: &str) -> Vec<u8> {
    let value = element(0x0c, &[text.as_bytes()]);
    element(SET, &[&element(SEQUENCE, &[kind, &value])])
}

fn attributes(dns_names: &[String]) -> Vec<u8> {
    if dns_names.is_empty() {
        return element(0xa0, &[]);
    }
    let names: Vec<u8> = dns_names.iter().flat_map(|name| element(0x82, &[name.as_bytes()])).collect();
    let value = element(0x04, &[&element(SEQUENCE, &[&names])]);
    let extensions = element(SEQUENCE, &[&element(SEQUENCE, &[&ALTERNATIVE_NAMES, &value])]);
    let attribute = element(SEQUENCE, &[&EXTENSION_REQUEST, &element(SET, &[&extensions])]);
    element(0xa0, &[&attribute])
}

/// Returns a PEM request for `key`, which must be ECDSA P-256 as [`KeyPair::generate`] creates it.
pub fn request(
    key: &KeyPair,
    common_name: &str,
    organizations: &[String],
    units: &[String],
    dns_names: &[String],
) -> Result<String, RequestError> {
    let mut subject: Vec<u8> = organizations.iter().flat_map(|o| name_part(&ORGANIZATION, o)).collect();
    subject.extend(units.iter().flat_map(|unit| name_part(&ORGANIZATION_UNIT, unit)));
    subject.extend(name_part(&COMMON_NAME, common_name));
    let info = element(
        SEQUENCE,
        &[
            &[0x02, 0x01, 0x00],
            &element(SEQUENCE, &[&subject]),
            &key.subject_public_key_info(),
            &attributes(dns_names),
        ],
    );
    let signature = key.sign(&info)?;
    let der = element(SEQUENCE, &[&info, &SIGNATURE_ALGORITHM, &element(0x03, &[&[0], &signature])]);
    Ok(armour("CERTIFICATE REQUEST", &der))
}

/// Returns the public key info (DER) of a PEM request; `None` if it is not a request.
pub fn public_key(pem: &[u8]) -> Option<Vec<u8>> {
    let der = CertificateSigningRequestDer::from_pem_slice(pem).ok()?;
    let (_, request) = X509CertificationRequest::from_der(&der).ok()?;
    Some(request.certification_request_info.subject_pki.raw.to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ocm_036_a_request_says_what_it_is_told() {
        let key = KeyPair::generate().unwrap();
        let long = "o".repeat(150);
        let organizations = ["a".to_owned(), long, "c".to_owned()];
        let dns = ["x.addon.open-cluster-management.io".to_owned()];
        let pem = request(&key, "system:one", &organizations, &["unit".to_owned()], &dns).unwrap();
        let der = CertificateSigningRequestDer::from_pem_slice(pem.as_bytes()).unwrap();
        let (rest, parsed) = X509CertificationRequest::from_der(&der).unwrap();
        assert!(rest.is_empty());
        let info = &parsed.certification_request_info;
        let texts: Vec<&str> = info.subject.iter_organization().map(|o| o.as_str().unwrap()).collect();
        assert_eq!(texts, organizations.iter().map(String::as_str).collect::<Vec<_>>());
        assert_eq!(public_key(pem.as_bytes()).unwrap(), key.subject_public_key_info());
        assert_eq!(public_key(b"nothing"), None);
        assert_eq!(info.subject.iter_common_name().next().unwrap().as_str().unwrap(), "system:one");
        assert_eq!(info.subject.iter_organizational_unit().next().unwrap().as_str().unwrap(), "unit");
        assert!(
            format!("{:?}", parsed.requested_extensions().unwrap().collect::<Vec<_>>()).contains(&dns[0])
        );
        let plain = request(&key, "n", &[], &[], &[]).unwrap();
        let der = CertificateSigningRequestDer::from_pem_slice(plain.as_bytes()).unwrap();
        let (_, parsed) = X509CertificationRequest::from_der(&der).unwrap();
        assert!(parsed.requested_extensions().is_none());
    }
}
