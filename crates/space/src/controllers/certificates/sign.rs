//! Certificates made from signing requests (AS-054).

use std::time::Duration;

use jiff::Timestamp;
use rcgen::{KeyPair, PublicKeyData, SigningKey};
use rustls_pki_types::pem::PemObject;
use sha2::{Digest, Sha256};
use x509_parser::prelude::{
    FromDer, GeneralName, ParsedCriAttribute, ParsedExtension, SubjectAlternativeName,
    X509CertificationRequest, X509CertificationRequestInfo,
};

use super::der::{bits, element, extension, integer, octets, sequence, time};

/// Life time and backdating of certificates.
#[derive(Clone, Copy, Debug)]
pub(super) struct Validity {
    /// Longest life from now on.
    pub(super) most: Duration,
    /// Certificates are valid from this long before now, because clocks differ.
    pub(super) backdate: Duration,
}

impl Default for Validity {
    fn default() -> Self {
        Self { most: Duration::from_secs(365 * 24 * 60 * 60), backdate: Duration::from_secs(5 * 60) }
    }
}

/// Why a request is not signed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SignError {
    #[error("unable to parse csr: {0}")]
    Parse(String),
    #[error("the request's signature is not that of its key")]
    Signature,
    #[error("usage {0:?} is not known")]
    Usage(String),
    #[error("signing: {0}")]
    Sign(String),
}

/// A parsed request whose signature proves possession of its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignRequest {
    pub common_name: String,
    pub organizations: Vec<String>,
    /// The distinguished name, DER as in the request.
    subject: Vec<u8>,
    public_key: Vec<u8>,
    alternative_names: Option<Vec<u8>>,
    /// The kinds of alternative names that the request has.
    pub(super) kinds: NameKinds,
}

/// Kinds of alternative names.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct NameKinds {
    pub(super) dns: bool,
    pub(super) email: bool,
    pub(super) ip: bool,
    pub(super) uri: bool,
}

/// ecdsa-with-SHA256
const SIGNATURE_ALGORITHM: [u8; 12] =
    [0x30, 0x0a, 0x06, 0x08, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x03, 0x02];

impl SignRequest {
    /// Parses a PEM `CERTIFICATE REQUEST` and verifies its signature.
    ///
    /// # Errors
    /// The request is malformed, or the signature does not match.
    pub fn parse(pem: &[u8]) -> Result<Self, SignError> {
        let der = rustls_pki_types::CertificateSigningRequestDer::from_pem_slice(pem)
            .map_err(|error| SignError::Parse(error.to_string()))?;
        let (_, request) =
            X509CertificationRequest::from_der(&der).map_err(|error| SignError::Parse(error.to_string()))?;
        request.verify_signature().map_err(|_| SignError::Signature)?;
        let info = &request.certification_request_info;
        let texts = |attribute: &x509_parser::x509::AttributeTypeAndValue<'_>| {
            attribute.as_str().map(str::to_owned).unwrap_or_default()
        };
        let names = alternative_names(info);
        let mut kinds = NameKinds::default();
        for name in names.iter().flat_map(|(names, _)| &names.general_names) {
            match name {
                GeneralName::DNSName(_) => kinds.dns = true,
                GeneralName::RFC822Name(_) => kinds.email = true,
                GeneralName::IPAddress(_) => kinds.ip = true,
                GeneralName::URI(_) => kinds.uri = true,
                _ => {}
            }
        }
        let alternative_names = names.map(|(_, raw)| raw.to_vec());
        Ok(Self {
            common_name: info.subject.iter_common_name().next().map(texts).unwrap_or_default(),
            organizations: info.subject.iter_organization().map(texts).collect(),
            subject: info.subject.as_raw().to_vec(),
            public_key: info.subject_pki.raw.to_vec(),
            alternative_names,
            kinds,
        })
    }
}

/// The alternative names that a request asks for, parsed and as their DER. Both are of the same extension: what is checked
/// is what is signed.
fn alternative_names<'r>(
    info: &'r X509CertificationRequestInfo<'_>,
) -> Option<(&'r SubjectAlternativeName<'r>, &'r [u8])> {
    info.iter_attributes().find_map(|attribute| {
        let ParsedCriAttribute::ExtensionRequest(asked) = attribute.parsed_attribute() else { return None };
        asked.extensions.iter().find_map(|extension| match extension.parsed_extension() {
            ParsedExtension::SubjectAlternativeName(names) => Some((names, extension.value)),
            _ => None,
        })
    })
}

/// A certificate authority with its key.
pub(super) struct Authority {
    /// DER.
    pub(super) certificate: Vec<u8>,
    key: KeyPair,
}

impl std::fmt::Debug for Authority {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Authority").finish_non_exhaustive()
    }
}

impl Authority {
    pub(super) fn new(certificate: &str, key: &str) -> Result<Self, SignError> {
        let certificate = rustls_pki_types::CertificateDer::from_pem_slice(certificate.as_bytes())
            .map_err(|error| SignError::Sign(format!("CA certificate: {error}")))?;
        let key = KeyPair::from_pem(key).map_err(|error| SignError::Sign(format!("CA key: {error}")))?;
        Ok(Self { certificate: certificate.to_vec(), key })
    }

    pub(super) fn sign(
        &self,
        request: &SignRequest,
        usages: &[String],
        seconds: Option<u64>,
        terms: Validity,
    ) -> Result<String, SignError> {
        let (_, ca) = x509_parser::parse_x509_certificate(&self.certificate)
            .map_err(|error| SignError::Sign(error.to_string()))?;
        let now = Timestamp::now().as_second();
        let whole = |seconds: u64| i64::try_from(seconds).unwrap_or(i64::MAX / 4);
        let most = terms.most.as_secs();
        let wanted = whole(seconds.unwrap_or(most).min(most));
        let end = (now + wanted).min(ca.validity.not_after.timestamp());
        let extensions = extensions(request, &ca, &self.key, usages)?;
        let body = sequence(&[
            &element(0xa0, &[&integer(&[2])]),
            &integer(&serial_bytes()),
            &SIGNATURE_ALGORITHM,
            ca.subject.as_raw(),
            &sequence(&[&time(now - whole(terms.backdate.as_secs())), &time(end)]),
            &request.subject,
            &request.public_key,
            &element(0xa3, &[&extensions]),
        ]);
        let signature = self.key.sign(&body).map_err(|error| SignError::Sign(error.to_string()))?;
        let der = sequence(&[&body, &SIGNATURE_ALGORITHM, &bits(&signature)]);
        Ok(armour(&der))
    }
}

fn extensions(
    request: &SignRequest,
    ca: &x509_parser::certificate::X509Certificate<'_>,
    key: &KeyPair,
    usages: &[String],
) -> Result<Vec<u8>, SignError> {
    let (key_usage, extended) = usage_bytes(usages)?;
    let authority = ca
        .get_extension_unique(&x509_parser::oid_registry::OID_X509_EXT_SUBJECT_KEY_IDENTIFIER)
        .ok()
        .flatten()
        .and_then(|found| match found.parsed_extension() {
            ParsedExtension::SubjectKeyIdentifier(id) => Some(id.0.to_vec()),
            _ => None,
        })
        .unwrap_or_else(|| Sha256::digest(key.der_bytes()).iter().take(20).copied().collect());
    let mut all = Vec::new();
    if let Some(key_usage) = key_usage {
        all.extend(extension(15, true, &key_usage));
    }
    if !extended.is_empty() {
        all.extend(extension(37, false, &sequence(&[&extended])));
    }
    all.extend(extension(19, true, &sequence(&[])));
    all.extend(extension(35, false, &sequence(&[&element(0x80, &[&authority])])));
    if let Some(names) = &request.alternative_names {
        all.extend(extension(17, false, names));
    }
    let subject_key: Vec<u8> = Sha256::digest(&request.public_key).iter().take(20).copied().collect();
    all.extend(extension(14, false, &octets(&subject_key)));
    Ok(sequence(&[&all]))
}

/// The key usage bit string (if any bit is set) and the extended usages.
fn usage_bytes(usages: &[String]) -> Result<(Option<Vec<u8>>, Vec<u8>), SignError> {
    let mut flags = 0_u8;
    let mut extended = Vec::new();
    for usage in usages {
        match usage.as_str() {
            "signing" | "digital signature" => flags |= 0x80,
            "content commitment" => flags |= 0x40,
            "key encipherment" => flags |= 0x20,
            "data encipherment" => flags |= 0x10,
            "key agreement" => flags |= 0x08,
            "server auth" => extended.extend(purpose(1)),
            "client auth" => extended.extend(purpose(2)),
            "code signing" => extended.extend(purpose(3)),
            "email protection" => extended.extend(purpose(4)),
            "timestamping" => extended.extend(purpose(8)),
            "ocsp signing" => extended.extend(purpose(9)),
            other => return Err(SignError::Usage(other.to_owned())),
        }
    }
    let unused = flags.trailing_zeros() as u8;
    let key_usage = (flags != 0).then(|| element(0x03, &[&[unused, flags]]));
    Ok((key_usage, extended))
}

/// `id-kp` with this number.
fn purpose(number: u8) -> Vec<u8> {
    element(0x06, &[&[0x2b, 0x06, 0x01, 0x05, 0x05, 0x07, 0x03, number]])
}

pub(super) fn armour(der: &[u8]) -> String {
    use base64::Engine as _;
    let text = base64::engine::general_purpose::STANDARD.encode(der);
    let mut out = String::from("-----BEGIN CERTIFICATE-----\n");
    for line in text.as_bytes().chunks(64) {
        out.push_str(&String::from_utf8_lossy(line));
        out.push('\n');
    }
    out.push_str("-----END CERTIFICATE-----\n");
    out
}

/// 128 random bits, positive.
fn serial_bytes() -> [u8; 16] {
    let mut bytes = *uuid::Uuid::new_v4().as_bytes();
    if let Some(first) = bytes.first_mut() {
        *first = *first & 0x7f | 0x40;
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{CertificateParams, DnType};

    /// AS-054: the names that are signed are those that were checked, and not bytes elsewhere in the request that look so.
    #[test]
    fn as_054_only_the_extension_has_alternative_names() {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec!["node.example".to_owned()]).unwrap();
        params
            .distinguished_name
            .push(DnType::OrganizationalUnitName, "\u{6}\u{3}U\u{1d}\u{11}\u{4}\u{4}evil");
        let pem = params.serialize_request(&key).unwrap().pem().unwrap();
        let request = SignRequest::parse(pem.as_bytes()).unwrap();
        assert!(request.kinds.dns);
        assert!(request.alternative_names.unwrap().ends_with(b"node.example"));
        let bare =
            CertificateParams::new(Vec::new()).unwrap().serialize_request(&key).unwrap().pem().unwrap();
        assert_eq!(SignRequest::parse(bare.as_bytes()).unwrap().alternative_names, None);
    }
}
