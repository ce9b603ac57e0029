//! Client certificates: a chain to the client CA of the space. CN is the user, O are the groups.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::SystemTime;

use parking_lot::Mutex;
use rustls::RootCertStore;
use rustls::crypto::WebPkiSupportedAlgorithms;
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, UnixTime};
use sha2::{Digest, Sha256};
use x509_parser::prelude::{FromDer, X509Certificate};

use super::credential::{AuthnError, CREDENTIAL_ID};
use super::version_1;
use crate::identity::UserInfo;

/// Most certificates in the cache of verified ones.
const CACHE_SIZE: usize = 4096;

struct Verified {
    user: UserInfo,
    /// End of validity of the whole chain, in seconds since 1970.
    not_after: u64,
}

/// The client CA of one space.
pub(super) struct ClientCa {
    verifier: Arc<dyn ClientCertVerifier>,
    /// The certificates of the CA, for client certificates of version 1.
    anchors: Vec<CertificateDer<'static>>,
    algorithms: WebPkiSupportedAlgorithms,
    /// Cache of verified chains, by hash of the leaf: a connection sends many requests with one certificate, and
    /// verifying signatures is expensive.
    verified: Mutex<HashMap<[u8; 32], Verified>>,
}

impl ClientCa {
    pub(super) fn new(pem: &str) -> Result<Self, AuthnError> {
        let fail = |why: String| AuthnError::ClientCa(why);
        let mut roots = RootCertStore::empty();
        let mut anchors = Vec::new();
        for cert in CertificateDer::pem_slice_iter(pem.as_bytes()) {
            let cert = cert.map_err(|e| fail(e.to_string()))?;
            roots.add(cert.clone()).map_err(|e| fail(e.to_string()))?;
            anchors.push(cert);
        }
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let algorithms = provider.signature_verification_algorithms;
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
            .build()
            .map_err(|e| fail(e.to_string()))?;
        Ok(Self { verifier, anchors, algorithms, verified: Mutex::default() })
    }

    /// The user of a chain (leaf first) that leads to this CA, is valid now and is meant for client authentication.
    pub(super) fn verify(&self, chain: &[CertificateDer<'static>]) -> Option<UserInfo> {
        let (leaf, intermediates) = chain.split_first()?;
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).ok()?;
        let hash: [u8; 32] = Sha256::digest(leaf).into();
        if let Some(known) = self.verified.lock().get(&hash)
            && now.as_secs() <= known.not_after
        {
            return Some(known.user.clone());
        }
        let verified = self.verifier.verify_client_cert(leaf, intermediates, UnixTime::since_unix_epoch(now));
        if verified.is_err()
            && !version_1::is_signed_by_anchor(leaf, &self.anchors, now.as_secs(), &self.algorithms)
        {
            return None;
        }
        let user = user(leaf, &hash)?;
        let not_after = chain.iter().map(not_after).collect::<Option<Vec<_>>>()?.into_iter().min()?;
        let mut verified = self.verified.lock();
        if verified.len() >= CACHE_SIZE {
            verified.clear();
        }
        verified.insert(hash, Verified { user: user.clone(), not_after });
        Some(user)
    }
}

fn not_after(cert: &CertificateDer<'static>) -> Option<u64> {
    let (_, cert) = X509Certificate::from_der(cert).ok()?;
    u64::try_from(cert.validity().not_after.timestamp()).ok()
}

fn user(leaf: &CertificateDer<'static>, hash: &[u8; 32]) -> Option<UserInfo> {
    let (_, cert) = X509Certificate::from_der(leaf).ok()?;
    let subject = cert.subject();
    let name = subject.iter_common_name().next()?.as_str().ok()?.to_owned();
    if name.is_empty() {
        return None;
    }
    let groups = subject.iter_organization().filter_map(|o| o.as_str().ok()).map(Into::into).collect();
    let mut id = String::from("X509SHA256=");
    for byte in hash {
        // Writing to a string cannot fail.
        let _ = write!(id, "{byte:02x}");
    }
    let extra = [(CREDENTIAL_ID.to_owned(), vec![id])].into();
    Some(UserInfo { name, groups, extra, ..UserInfo::default() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rcgen::{
        BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
        Issuer, KeyPair,
    };

    struct Ca {
        pem: String,
        issuer: Issuer<'static, KeyPair>,
    }

    fn ca() -> Ca {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "ca");
        let pem = params.self_signed(&key).unwrap().pem();
        Ca { pem, issuer: Issuer::new(params, key) }
    }

    fn leaf(ca: &Ca, purpose: ExtendedKeyUsagePurpose, expired: bool) -> Vec<CertificateDer<'static>> {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, "alice");
        params.distinguished_name.push(DnType::OrganizationName, "devs");
        params.extended_key_usages = vec![purpose];
        if expired {
            params.not_after = rcgen::date_time_ymd(2001, 1, 1);
            params.not_before = rcgen::date_time_ymd(2000, 1, 1);
        }
        vec![params.signed_by(&key, &ca.issuer).unwrap().der().clone()]
    }

    #[test]
    fn as_061_client_certificates_of_the_own_ca_name_user_and_groups() {
        let own = ca();
        let checker = ClientCa::new(&own.pem).unwrap();
        let good = leaf(&own, ExtendedKeyUsagePurpose::ClientAuth, false);
        for _remembered in [false, true] {
            let user = checker.verify(&good).unwrap();
            assert_eq!(
                (user.name.as_str(), user.groups.as_slice()),
                ("alice", ["devs".to_owned()].as_slice())
            );
            assert!(user.extra[CREDENTIAL_ID][0].starts_with("X509SHA256="));
        }
        assert_eq!(checker.verify(&leaf(&ca(), ExtendedKeyUsagePurpose::ClientAuth, false)), None);
        assert_eq!(checker.verify(&leaf(&own, ExtendedKeyUsagePurpose::ServerAuth, false)), None);
        assert_eq!(checker.verify(&leaf(&own, ExtendedKeyUsagePurpose::ClientAuth, true)), None);
        assert_eq!(checker.verify(&[]), None);
        assert!(ClientCa::new("nonsense").is_err());
    }

    /// AS-061: `openssl x509 -req` without extensions makes certificates of version 1, and Go takes them.
    #[test]
    fn as_061_client_certificates_of_version_1_name_user_and_groups() {
        let of = |pem: &str| vec![CertificateDer::from_pem_slice(pem.as_bytes()).unwrap()];
        let client = of(include_str!("version_1/client.crt"));
        let checker = ClientCa::new(include_str!("version_1/ca.crt")).unwrap();
        for _remembered in [false, true] {
            let user = checker.verify(&client).unwrap();
            assert_eq!(
                (user.name.as_str(), user.groups.as_slice()),
                ("alice", ["devs".to_owned()].as_slice())
            );
        }
        assert_eq!(checker.verify(&of(include_str!("version_1/sha1.crt"))), None);
        assert_eq!(ClientCa::new(&ca().pem).unwrap().verify(&client), None);
    }
}
