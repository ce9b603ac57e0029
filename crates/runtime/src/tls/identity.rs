//! The certificate that a client shows.

use std::sync::Arc;

use rustls::{
    client::ResolvesClientCert,
    crypto::aws_lc_rs,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    sign::{CertifiedKey, SingleCertAndKey},
};
use x509_parser::prelude::{FromDer, X509Certificate, X509Version};

use super::TlsError;

/// Reads a certificate chain and its key from PEM. Takes certificates of X.509 version 1, as Go does.
///
/// # Errors
/// If either is not readable, or the key does not belong to the certificate.
pub fn identity(certificate: &[u8], key: &[u8]) -> Result<Arc<dyn ResolvesClientCert>, TlsError> {
    let fail = |error: &dyn std::error::Error| TlsError::Identity(error.to_string());
    let chain = CertificateDer::pem_slice_iter(certificate)
        .collect::<Result<Vec<_>, _>>()
        .map_err(|error| fail(&error))?;
    let key = PrivateKeyDer::from_pem_slice(key).map_err(|error| fail(&error))?;
    let first = chain.first().ok_or_else(|| TlsError::Identity("there is none in the PEM".into()))?;
    let signing = aws_lc_rs::sign::any_supported_type(&key).map_err(|error| fail(&error))?;
    let version_1 = key_of_version_1(first);
    let certified = CertifiedKey::new(chain, signing);
    match version_1 {
        Some(public) if certified.key.public_key().is_some_and(|own| own.as_ref() == public) => (),
        Some(_) => return Err(TlsError::Identity("it is for another key".into())),
        None => certified.keys_match().map_err(|error| fail(&error))?,
    }
    Ok(Arc::new(SingleCertAndKey::from(certified)))
}

/// Whether a certificate is of X.509 version 1.
pub fn is_version_1(certificate: &CertificateDer<'_>) -> bool {
    key_of_version_1(certificate).is_some()
}

/// Returns the public key (a DER `SubjectPublicKeyInfo`) of a certificate of version 1, which webpki cannot read.
fn key_of_version_1(certificate: &CertificateDer<'_>) -> Option<Vec<u8>> {
    let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
    (parsed.version() == X509Version::V1).then(|| parsed.public_key().raw.to_vec())
}

#[cfg(test)]
mod tests {
    use rcgen::{CertificateParams, KeyPair};

    use super::*;

    /// Made with `openssl req` and `openssl x509 -req` without extensions, which is how certificates of version 1 come to be.
    const VERSION_1: &str = include_str!("version_1.crt");
    const KEY: &str = include_str!("version_1.key");

    /// MC-101: Go takes a client certificate of version 1.
    #[test]
    fn mc_101_a_client_certificate_may_be_of_version_1() {
        assert!(key_of_version_1(&CertificateDer::from_pem_slice(VERSION_1.as_bytes()).unwrap()).is_some());
        assert!(identity(VERSION_1.as_bytes(), KEY.as_bytes()).is_ok());
    }

    #[test]
    fn mc_101_a_key_must_belong_to_its_certificate() {
        let own = KeyPair::generate().unwrap();
        let newer = CertificateParams::new(vec!["a".to_owned()]).unwrap().self_signed(&own).unwrap().pem();
        assert!(identity(newer.as_bytes(), own.serialize_pem().as_bytes()).is_ok());
        let other = KeyPair::generate().unwrap().serialize_pem();
        for certificate in [VERSION_1, &newer] {
            assert!(identity(certificate.as_bytes(), other.as_bytes()).is_err());
        }
        assert!(identity(b"", KEY.as_bytes()).is_err());
        assert!(identity(VERSION_1.as_bytes(), b"nonsense").is_err());
    }
}
