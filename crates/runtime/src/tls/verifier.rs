//! Verifies the certificate of a server as Go does.

use std::sync::Arc;

use rustls::{
    CertificateError, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
    client::{
        WebPkiServerVerifier,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
        verify_server_name,
    },
    crypto::aws_lc_rs,
    pki_types::{CertificateDer, ServerName, UnixTime, pem::PemObject},
    server::ParsedCertificate,
};
use x509_parser::prelude::{FromDer, X509Certificate};

use super::TlsError;

/// Verifies as webpki does, and also takes a server certificate that is, byte for byte, one of the trusted ones.
///
/// webpki refuses such a certificate when it says `CA:TRUE`. Go takes it, if its name, its time and its purpose are
/// right; so does this verifier. A certificate that only resembles a trusted one is not taken.
#[derive(Debug)]
pub struct ServerVerifier {
    webpki: Arc<WebPkiServerVerifier>,
    anchors: Vec<CertificateDer<'static>>,
}

impl ServerVerifier {
    /// Trusts `anchors`.
    ///
    /// # Errors
    /// If there is none, or one of them is not a certificate.
    pub fn new(anchors: impl IntoIterator<Item = CertificateDer<'static>>) -> Result<Self, TlsError> {
        let fail = |error: &dyn std::error::Error| TlsError::Authority(error.to_string());
        let anchors: Vec<_> = anchors.into_iter().collect();
        let mut roots = RootCertStore::empty();
        for anchor in &anchors {
            roots.add(anchor.clone()).map_err(|error| fail(&error))?;
        }
        let provider = Arc::new(aws_lc_rs::default_provider());
        let webpki = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider)
            .build()
            .map_err(|error| fail(&error))?;
        Ok(Self { webpki, anchors })
    }
}

/// Reads a PEM bundle of trusted certificates.
///
/// # Errors
/// If a part of it is not a certificate. An empty bundle is an error of [`ServerVerifier::new`].
pub fn trusted(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    CertificateDer::pem_slice_iter(pem)
        .collect::<Result<_, _>>()
        .map_err(|error| TlsError::Authority(error.to_string()))
}

/// Checks what is left to check of a certificate that is trusted by itself: name, time and purpose.
fn verify_anchor(
    certificate: &CertificateDer<'_>,
    name: &ServerName<'_>,
    now: UnixTime,
) -> Result<(), Error> {
    verify_server_name(&ParsedCertificate::try_from(certificate)?, name)?;
    let (_, parsed) =
        X509Certificate::from_der(certificate).map_err(|_| Error::from(CertificateError::BadEncoding))?;
    let now = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
    if now < parsed.validity().not_before.timestamp() {
        return Err(CertificateError::NotValidYet.into());
    }
    if now > parsed.validity().not_after.timestamp() {
        return Err(CertificateError::Expired.into());
    }
    let purpose =
        parsed.extended_key_usage().map_err(|_| Error::from(CertificateError::BadEncoding))?.map(|e| e.value);
    match purpose {
        Some(usage) if !usage.any && !usage.server_auth => Err(CertificateError::InvalidPurpose.into()),
        _ => Ok(()),
    }
}

impl ServerCertVerifier for ServerVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        if self.anchors.iter().any(|anchor| anchor == end_entity) {
            return verify_anchor(end_entity, server_name, now).map(|()| ServerCertVerified::assertion());
        }
        self.webpki.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.webpki.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.webpki.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.webpki.supported_verify_schemes()
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use rcgen::{BasicConstraints, CertificateParams, ExtendedKeyUsagePurpose, IsCa, KeyPair};

    use super::*;

    const NAME: &str = "hook.example";

    fn self_signed(change: impl FnOnce(&mut CertificateParams)) -> CertificateDer<'static> {
        let mut params = CertificateParams::new(vec![NAME.to_owned()]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        change(&mut params);
        params.self_signed(&KeyPair::generate().unwrap()).unwrap().der().clone()
    }

    fn verify(
        trusted: &CertificateDer<'static>,
        shown: &CertificateDer<'static>,
        name: &str,
    ) -> Result<(), Error> {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO);
        let verifier = ServerVerifier::new([trusted.clone()]).unwrap();
        let name = ServerName::try_from(name.to_owned()).unwrap();
        verifier.verify_server_cert(shown, &[], &name, &[], UnixTime::since_unix_epoch(now)).map(|_| ())
    }

    /// MC-101: a self-signed certificate with CA:TRUE in `caBundle` is taken, as by Go.
    #[test]
    fn mc_101_a_trusted_certificate_may_be_the_servers_own() {
        let own = self_signed(|_| ());
        assert_eq!(verify(&own, &own, NAME), Ok(()));
        let leaf = self_signed(|params| params.is_ca = IsCa::ExplicitNoCa);
        assert_eq!(verify(&leaf, &leaf, NAME), Ok(()));
        let server = self_signed(|p| p.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth]);
        assert_eq!(verify(&server, &server, NAME), Ok(()));
    }

    #[test]
    fn mc_101_a_trusted_certificate_must_fit_in_name_time_and_purpose() {
        let own = self_signed(|_| ());
        assert!(verify(&own, &own, "other.example").is_err());
        let other = self_signed(|_| ());
        assert!(verify(&own, &other, NAME).is_err());
        let old = self_signed(|params| params.not_after = rcgen::date_time_ymd(2001, 1, 1));
        assert_eq!(verify(&old, &old, NAME), Err(CertificateError::Expired.into()));
        let young = self_signed(|params| params.not_before = rcgen::date_time_ymd(4000, 1, 1));
        assert_eq!(verify(&young, &young, NAME), Err(CertificateError::NotValidYet.into()));
        let client = self_signed(|p| p.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth]);
        assert_eq!(verify(&client, &client, NAME), Err(CertificateError::InvalidPurpose.into()));
    }

    #[test]
    fn mc_101_an_empty_or_broken_bundle_is_an_error() {
        assert!(ServerVerifier::new([]).is_err());
        assert!(ServerVerifier::new([CertificateDer::from(b"nonsense".to_vec())]).is_err());
        let broken = b"-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n";
        assert!(trusted(broken).is_err());
        assert!(trusted(b"").unwrap().is_empty());
    }
}
