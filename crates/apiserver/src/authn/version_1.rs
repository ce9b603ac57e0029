//! Client certificates of X.509 version 1.
//!
//! `openssl x509 -req` without extensions creates such certificates. Go accepts them; webpki cannot read them. Only the leaf
//! of a chain may be of version 1, and a trusted CA itself must have signed the leaf. A certificate of version 1 cannot
//! restrict its purposes, so the server accepts it for client authentication, as Go does. The supported signature algorithms
//! are those of webpki.

use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::{WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature};
use rustls::{CertificateError, DigitallySignedStruct, Error};
use rustls_pki_types::{CertificateDer, SubjectPublicKeyInfoDer};
use x509_parser::asn1_rs::{Any, FromDer as _};
use x509_parser::prelude::{X509Certificate, X509Version};

/// A public key as signature algorithms take it: its `AlgorithmIdentifier` and its bits, each without DER header.
struct PublicKey<'a> {
    algorithm: &'a [u8],
    bits: &'a [u8],
}

impl<'a> PublicKey<'a> {
    fn of(certificate: &X509Certificate<'a>) -> Option<Self> {
        let info = element(certificate.tbs_certificate.subject_pki.raw)?.1;
        let (rest, algorithm) = element(info)?;
        // The first byte of a bit string is the number of unused bits.
        let (unused, bits) = element(rest)?.1.split_first()?;
        (*unused == 0).then_some(Self { algorithm, bits })
    }
}

/// Takes one DER element off the input. Returns what follows and the content of the element.
fn element(input: &[u8]) -> Option<(&[u8], &[u8])> {
    let (rest, any) = Any::from_der(input).ok()?;
    Some((rest, any.data))
}

fn parse<'a>(certificate: &'a CertificateDer<'_>) -> Option<X509Certificate<'a>> {
    let (rest, parsed) = X509Certificate::from_der(certificate).ok()?;
    rest.is_empty().then_some(parsed)
}

/// Returns the certificate if it is of version 1.
fn of_version_1<'a>(certificate: &'a CertificateDer<'_>) -> Option<X509Certificate<'a>> {
    parse(certificate).filter(|parsed| parsed.version() == X509Version::V1)
}

/// Returns whether `leaf` is of version 1, valid at `now` (seconds since 1970), and signed by one of `anchors`.
pub(super) fn is_signed_by_anchor(
    leaf: &CertificateDer<'_>,
    anchors: &[CertificateDer<'_>],
    now: u64,
    algorithms: &WebPkiSupportedAlgorithms,
) -> bool {
    let (Some(parsed), Ok(now)) = (of_version_1(leaf), i64::try_from(now)) else { return false };
    let validity = parsed.validity();
    (validity.not_before.timestamp()..=validity.not_after.timestamp()).contains(&now)
        && anchors.iter().any(|anchor| is_signed_by(leaf, &parsed, anchor, algorithms) == Some(true))
}

/// Returns whether a CA signed a certificate; `None` if either cannot be read that far.
fn is_signed_by(
    leaf: &CertificateDer<'_>,
    parsed: &X509Certificate<'_>,
    anchor: &CertificateDer<'_>,
    algorithms: &WebPkiSupportedAlgorithms,
) -> Option<bool> {
    let anchor = parse(anchor)?;
    if parsed.issuer().as_raw() != anchor.subject().as_raw() || !may_sign(&anchor) {
        return Some(false);
    }
    // Certificate ::= SEQUENCE { tbsCertificate, signatureAlgorithm, signatureValue }
    let (rest, _) = element(element(leaf)?.1)?;
    let (_, signed_with) = element(rest)?;
    let key = PublicKey::of(&anchor)?;
    let (message, signature) = (parsed.tbs_certificate.as_ref(), &parsed.signature_value.data);
    Some(algorithms.all.iter().any(|algorithm| {
        algorithm.signature_alg_id().as_ref() == signed_with
            && algorithm.public_key_alg_id().as_ref() == key.algorithm
            && algorithm.verify_signature(key.bits, message, signature).is_ok()
    }))
}

/// Go's rule: a CA says so itself, unless it is of version 1 and cannot.
fn may_sign(anchor: &X509Certificate<'_>) -> bool {
    match (anchor.basic_constraints(), anchor.key_usage()) {
        (Ok(constraints), Ok(usage)) => {
            constraints.map_or(anchor.version() == X509Version::V1, |known| known.value.ca)
                && usage.is_none_or(|known| known.value.key_cert_sign())
        }
        _ => false,
    }
}

/// Verifies the signature of a TLS 1.2 handshake by a certificate of any version.
///
/// # Errors
/// The signature is wrong, or its scheme is not supported.
pub fn verify_handshake_tls12(
    message: &[u8],
    certificate: &CertificateDer<'_>,
    signed: &DigitallySignedStruct,
    algorithms: &WebPkiSupportedAlgorithms,
) -> Result<HandshakeSignatureValid, Error> {
    let Some(parsed) = of_version_1(certificate) else {
        return verify_tls12_signature(message, certificate, signed, algorithms);
    };
    let key = PublicKey::of(&parsed).ok_or(CertificateError::BadEncoding)?;
    let usable = algorithms
        .mapping
        .iter()
        .filter(|(scheme, _)| *scheme == signed.scheme)
        .flat_map(|(_, all)| all.iter())
        .filter(|algorithm| algorithm.public_key_alg_id().as_ref() == key.algorithm);
    for algorithm in usable {
        if algorithm.verify_signature(key.bits, message, signed.signature()).is_ok() {
            return Ok(HandshakeSignatureValid::assertion());
        }
    }
    Err(CertificateError::BadSignature.into())
}

/// Verifies the signature of a TLS 1.3 handshake by a certificate of any version.
///
/// # Errors
/// The signature is wrong, or its scheme is not supported.
pub fn verify_handshake_tls13(
    message: &[u8],
    certificate: &CertificateDer<'_>,
    signed: &DigitallySignedStruct,
    algorithms: &WebPkiSupportedAlgorithms,
) -> Result<HandshakeSignatureValid, Error> {
    let Some(parsed) = of_version_1(certificate) else {
        return verify_tls13_signature(message, certificate, signed, algorithms);
    };
    let key = SubjectPublicKeyInfoDer::from(parsed.tbs_certificate.subject_pki.raw);
    rustls::crypto::verify_tls13_signature_with_raw_key(message, &key, signed, algorithms)
}

#[cfg(test)]
mod tests {
    use rustls_pki_types::pem::PemObject as _;

    use super::*;

    /// All made with openssl: `req -x509` for the CAs, `x509 -req` without extensions for the clients.
    const CA: &str = include_str!("version_1/ca.crt");
    const CLIENT: &str = include_str!("version_1/client.crt");

    const NOW: u64 = 1_900_000_000;

    fn der(pem: &str) -> CertificateDer<'static> {
        CertificateDer::from_pem_slice(pem.as_bytes()).unwrap()
    }

    fn is_accepted(leaf: &CertificateDer<'_>, anchor: &str, now: u64) -> bool {
        let algorithms = rustls::crypto::aws_lc_rs::default_provider().signature_verification_algorithms;
        is_signed_by_anchor(leaf, &[der(anchor)], now, &algorithms)
    }

    /// AS-061: Go takes client certificates of version 1, with keys of all kinds.
    #[test]
    fn as_061_client_certificates_of_version_1() {
        assert!(is_accepted(&der(CLIENT), CA, NOW));
        assert!(is_accepted(&der(include_str!("version_1/rsa.crt")), CA, NOW));
        assert!(!is_accepted(&der(CLIENT), CA, 1), "not valid yet");
        assert!(!is_accepted(&der(CLIENT), CA, u64::MAX / 4), "expired");
    }

    /// AS-061: what Go refuses of version 1, and what is not of version 1.
    #[test]
    fn as_061_what_is_no_client_certificate_of_version_1() {
        let client = der(CLIENT);
        assert!(
            !is_accepted(&client, include_str!("version_1/other-ca.crt"), NOW),
            "another key of that name"
        );
        assert!(!is_accepted(&client, include_str!("version_1/no-ca.crt"), NOW), "signed by what is no CA");
        assert!(!is_accepted(&der(include_str!("version_1/sha1.crt")), CA, NOW), "a weak signature");
        assert!(!is_accepted(&der(CA), CA, NOW), "of version 3");
        for place in 0..client.len() {
            let mut changed = client.to_vec();
            if let Some(byte) = changed.get_mut(place) {
                *byte ^= 1;
            }
            assert!(!is_accepted(&changed.into(), CA, NOW), "byte {place} changed");
        }
        let longer: Vec<u8> = client.iter().copied().chain([0]).collect();
        assert!(!is_accepted(&longer.into(), CA, NOW), "something behind the certificate");
    }
}
