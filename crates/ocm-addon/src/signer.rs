//! Issues certificates for agents of add-ons by a signer other than the hub's (OCM-117). Pure; the time is an
//! argument.
//!
//! Encoded by hand, as requests are, because an agent's subject has several organisations, which rcgen cannot
//! express.

use k8s_openapi::{api::certificates::v1::CertificateSigningRequest, jiff::Timestamp};
use rcgen::{KeyPair, SigningKey as _};
use rustls_pki_types::{CertificateDer, CertificateSigningRequestDer, pem::PemObject as _};
use sha2::{Digest as _, Sha256};
use x509_parser::{
    certification_request::X509CertificationRequest,
    prelude::{FromDer as _, GeneralName, ParsedExtension},
};

use ocm_shared::der::{BITS, armour, element, sequence};

/// Longest lifetime of a certificate, in seconds.
const DAY: i64 = 24 * 60 * 60;
/// Certificates are valid from a little before they are issued, because clocks differ.
const BACKDATE: i64 = 5 * 60;
/// ecdsa-with-SHA256
const ECDSA_256: &[u8] = &[0x30, 0x0a, 0x06, 0x08, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x03, 0x02];
/// ecdsa-with-SHA384
const ECDSA_384: &[u8] = &[0x30, 0x0a, 0x06, 0x08, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x03, 0x03];
/// sha256WithRSAEncryption
const RSA_256: &[u8] =
    &[0x30, 0x0d, 0x06, 0x09, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x0b, 0x05, 0x00];
/// Ed25519
const ED25519: &[u8] = &[0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70];
/// Key usage (critical): digital signature and key encipherment.
const KEY_USAGE: &[u8] =
    &[0x30, 0x0e, 0x06, 0x03, 0x55, 0x1d, 0x0f, 0x01, 0x01, 0xff, 0x04, 0x04, 0x03, 0x02, 0x05, 0xa0];
/// Extended key usage: client authentication.
const CLIENT: &[u8] = &[
    0x30, 0x13, 0x06, 0x03, 0x55, 0x1d, 0x25, 0x04, 0x0c, 0x30, 0x0a, 0x06, 0x08, 0x2b, 0x06, 0x01, 0x05,
    0x05, 0x07, 0x03, 0x02,
];
/// Basic constraints (critical): no authority.
const NO_AUTHORITY: &[u8] =
    &[0x30, 0x0c, 0x06, 0x03, 0x55, 0x1d, 0x13, 0x01, 0x01, 0xff, 0x04, 0x02, 0x30, 0x00];
/// Object identifier of the subject alternative names.
const ALTERNATIVE_NAMES: &[u8] = &[0x06, 0x03, 0x55, 0x1d, 0x11];

/// Why no certificate was issued.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum SignError {
    /// The certificate or the key of the signer is invalid.
    #[error("the {0} of the signing CA cannot be read")]
    Authority(&'static str),
    /// The certificate of the signer has expired.
    #[error("the signing CA has expired")]
    Expired,
    /// The request is invalid.
    #[error("the request cannot be read, or is not signed by its key")]
    Request,
    /// Signing failed.
    #[error("signing failed")]
    Signature,
}

/// A certificate authority.
pub struct Signer {
    certificate: Vec<u8>,
    key: KeyPair,
    algorithm: &'static [u8],
}

impl Signer {
    /// Parses PEM, as in a Secret of type `kubernetes.io/tls`.
    ///
    /// # Errors
    ///
    /// Which of the two cannot be parsed.
    pub fn read(certificate: &[u8], key: &[u8]) -> Result<Self, SignError> {
        let certificate =
            CertificateDer::from_pem_slice(certificate).map_err(|_| SignError::Authority("certificate"))?;
        let key = std::str::from_utf8(key).ok().and_then(|key| KeyPair::from_pem(key).ok());
        let key = key.ok_or(SignError::Authority("key"))?;
        let known = [
            (&rcgen::PKCS_ECDSA_P256_SHA256, ECDSA_256),
            (&rcgen::PKCS_ECDSA_P384_SHA384, ECDSA_384),
            (&rcgen::PKCS_RSA_SHA256, RSA_256),
            (&rcgen::PKCS_ED25519, ED25519),
        ];
        let algorithm = known.iter().find(|(known, _)| *known == key.algorithm()).map(|(_, der)| *der);
        let algorithm = algorithm.ok_or(SignError::Authority("key"))?;
        Ok(Self { certificate: certificate.to_vec(), key, algorithm })
    }

    /// Returns a client certificate (PEM) with the subject, key and DNS names of a request. It is valid for a
    /// day, or for a shorter time if the request asks for that or the CA expires before.
    ///
    /// # Errors
    ///
    /// See [`SignError`].
    pub fn sign(&self, request: &CertificateSigningRequest, now: Timestamp) -> Result<String, SignError> {
        let (_, authority) = x509_parser::parse_x509_certificate(&self.certificate)
            .map_err(|_| SignError::Authority("certificate"))?;
        let der = CertificateSigningRequestDer::from_pem_slice(&request.spec.request.0)
            .map_err(|_| SignError::Request)?;
        // Also checks that the requester has the private key.
        rcgen::CertificateSigningRequestParams::from_der(&der).map_err(|_| SignError::Request)?;
        let (_, parsed) = X509CertificationRequest::from_der(&der).map_err(|_| SignError::Request)?;
        let info = &parsed.certification_request_info;
        let now = now.as_second();
        let asked = request.spec.expiration_seconds.map_or(DAY, i64::from).clamp(600, DAY);
        let end = (now + asked).min(authority.validity.not_after.timestamp());
        if end <= now {
            return Err(SignError::Expired);
        }
        let names = dns_names(&parsed);
        let extensions = sequence(&[KEY_USAGE, CLIENT, NO_AUTHORITY, &names]);
        let serial = serial(&der, now);
        let body = sequence(&[
            &element(0xa0, &[&element(0x02, &[&[2]])]),
            &element(0x02, &[&serial]),
            self.algorithm,
            authority.subject.as_raw(),
            &sequence(&[&time(now - BACKDATE), &time(end)]),
            info.subject.as_raw(),
            info.subject_pki.raw,
            &element(0xa3, &[&extensions]),
        ]);
        let signature = self.key.sign(&body).map_err(|_| SignError::Signature)?;
        let der = sequence(&[&body, self.algorithm, &element(BITS, &[&[0], &signature])]);
        Ok(armour("CERTIFICATE", &der))
    }
}

/// Returns the extension with the requested DNS names; empty without any.
fn dns_names(request: &X509CertificationRequest<'_>) -> Vec<u8> {
    let mut names = Vec::new();
    for extension in request.requested_extensions().into_iter().flatten() {
        let ParsedExtension::SubjectAlternativeName(asked) = extension else { continue };
        for name in &asked.general_names {
            if let GeneralName::DNSName(name) = name {
                names.extend(element(0x82, &[name.as_bytes()]));
            }
        }
    }
    if names.is_empty() {
        return names;
    }
    sequence(&[ALTERNATIVE_NAMES, &element(0x04, &[&sequence(&[&names])])])
}

/// Returns a positive number of sixteen bytes that differs for each request and second.
fn serial(request: &[u8], now: i64) -> [u8; 16] {
    let digest = Sha256::new().chain_update(request).chain_update(now.to_be_bytes()).finalize();
    let mut serial = [0; 16];
    for (byte, of) in serial.iter_mut().zip(digest) {
        *byte = of;
    }
    let [first, ..] = &mut serial;
    *first = *first & 0x7f | 0x40;
    serial
}

/// `UTCTime` until 2049, `GeneralizedTime` from then on.
fn time(second: i64) -> Vec<u8> {
    let at = Timestamp::from_second(second).unwrap_or(Timestamp::UNIX_EPOCH);
    let full = at.strftime("%Y%m%d%H%M%SZ").to_string();
    match full.get(2..) {
        Some(short)
            if (b"1950".as_slice()..b"2050").contains(&full.as_bytes().get(..4).unwrap_or_default()) =>
        {
            element(0x17, &[short.as_bytes()])
        }
        _ => element(0x18, &[full.as_bytes()]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::ByteString;
    use ocm_shared::request::request;

    fn authority(key: &KeyPair, days: i64) -> String {
        let mut ca = rcgen::CertificateParams::default();
        ca.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        ca.distinguished_name.push(rcgen::DnType::CommonName, "the signer");
        let (start, end) = if days > 0 { (2020, 2040) } else { (2020, 2021) };
        (ca.not_before, ca.not_after) = (rcgen::date_time_ymd(start, 1, 1), rcgen::date_time_ymd(end, 1, 1));
        ca.self_signed(key).unwrap().pem()
    }

    fn asked() -> CertificateSigningRequest {
        let key = KeyPair::generate().unwrap();
        let groups = ["a".to_owned(), "b".to_owned()];
        let pem = request(&key, "me", &groups, &["unit".to_owned()], &["a.example".to_owned()]).unwrap();
        let mut csr = CertificateSigningRequest::default();
        csr.spec.request = ByteString(pem.into_bytes());
        csr
    }

    fn now() -> Timestamp {
        "2026-11-22T04:00:00Z".parse().unwrap()
    }

    /// OCM-117, OCM-A-85: with keys of every type, with the whole subject, and for a day at most.
    #[test]
    fn ocm_117_what_another_signer_gives() {
        for algorithm in [
            &rcgen::PKCS_ECDSA_P256_SHA256,
            &rcgen::PKCS_ECDSA_P384_SHA384,
            &rcgen::PKCS_RSA_SHA256,
            &rcgen::PKCS_ED25519,
        ] {
            let key = KeyPair::generate_for(algorithm).unwrap();
            let certificate = authority(&key, 1);
            let signer = Signer::read(certificate.as_bytes(), key.serialize_pem().as_bytes()).unwrap();
            let issued =
                CertificateDer::from_pem_slice(signer.sign(&asked(), now()).unwrap().as_bytes()).unwrap();
            let ca = CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap();
            let (_, ca) = x509_parser::parse_x509_certificate(&ca).unwrap();
            let (rest, leaf) = x509_parser::parse_x509_certificate(&issued).unwrap();
            assert!(rest.is_empty());
            leaf.verify_signature(Some(ca.public_key())).unwrap();
            assert_eq!(leaf.issuer(), ca.subject());
            let organizations: Vec<&str> =
                leaf.subject().iter_organization().map(|o| o.as_str().unwrap()).collect();
            assert_eq!(organizations, ["a", "b"]);
            assert_eq!(leaf.validity.not_after.timestamp() - now().as_second(), DAY);
            assert!(leaf.extended_key_usage().unwrap().unwrap().value.client_auth);
            assert!(!leaf.is_ca());
            let names = leaf.subject_alternative_name().unwrap().unwrap();
            assert_eq!(names.value.general_names, [GeneralName::DNSName("a.example")]);
        }
    }

    #[test]
    fn ocm_117_what_is_not_signed() {
        let key = KeyPair::generate().unwrap();
        let (good, pem) = (authority(&key, 1), key.serialize_pem());
        let why = |certificate: &str, key: &str| Signer::read(certificate.as_bytes(), key.as_bytes()).err();
        assert_eq!(why("", &pem), Some(SignError::Authority("certificate")));
        assert_eq!(why(&good, "x"), Some(SignError::Authority("key")));
        let signer = |certificate: &str| Signer::read(certificate.as_bytes(), pem.as_bytes()).unwrap();
        assert_eq!(signer(&authority(&key, -1)).sign(&asked(), now()), Err(SignError::Expired));
        let mut spoilt = asked();
        spoilt.spec.request.0.truncate(200);
        assert_eq!(signer(&good).sign(&spoilt, now()), Err(SignError::Request));
        let mut short = asked();
        short.spec.expiration_seconds = Some(3600);
        let issued = signer(&good).sign(&short, now()).unwrap();
        let der = CertificateDer::from_pem_slice(issued.as_bytes()).unwrap();
        let (_, leaf) = x509_parser::parse_x509_certificate(&der).unwrap();
        assert_eq!(leaf.validity.not_after.timestamp() - now().as_second(), 3600);
    }
}
