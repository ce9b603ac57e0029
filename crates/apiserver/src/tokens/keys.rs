//! The keys that sign and verify service-account tokens: RSA (RS256) and EC P-256 (ES256), as files of Kubernetes have them.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::jwk::Jwk;
use jsonwebtoken::{Algorithm, DecodingKey, EncodingKey};
use rcgen::{KeyPair, PublicKeyData as _};
use rustls_pki_types::pem::{PemObject as _, SectionKind};
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use x509_parser::prelude::{FromDer as _, X509Certificate};
use x509_parser::public_key::PublicKey;
use x509_parser::x509::SubjectPublicKeyInfo;

use super::error::{TokenError, key_error};

/// Signs tokens, and has the key that verifies them.
pub(super) struct SigningKey {
    pub(super) encoding: EncodingKey,
    pub(super) public: VerifyingKey,
}

/// Verifies tokens.
#[derive(Clone)]
pub struct VerifyingKey {
    pub(super) algorithm: Algorithm,
    /// As Kubernetes names keys: the SHA-256 of the DER public key, in URL-safe base64.
    pub(super) id: String,
    pub(super) decoding: DecodingKey,
    /// The key as a JSON web key.
    pub(super) public: Value,
}

impl std::fmt::Debug for VerifyingKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("VerifyingKey").field("id", &self.id).finish_non_exhaustive()
    }
}

impl SigningKey {
    /// Reads a private key in PEM: PKCS#8, PKCS#1 or SEC 1.
    pub(super) fn from_pem(pem: &str) -> Result<Self, TokenError> {
        let der = PrivateKeyDer::from_pem_slice(pem.as_bytes()).map_err(key_error)?;
        let pair = KeyPair::try_from(&der).map_err(key_error)?;
        let public = VerifyingKey::new(&pair.subject_public_key_info())?;
        let encoding = match (public.algorithm, &der) {
            (Algorithm::ES256, PrivateKeyDer::Sec1(key)) => {
                EncodingKey::from_ec_der(&wrapped(key.secret_sec1_der()))
            }
            (Algorithm::ES256, _) => EncodingKey::from_ec_der(der.secret_der()),
            _ => EncodingKey::from_rsa_pem(pem.as_bytes()).map_err(key_error)?,
        };
        Ok(Self { encoding, public })
    }
}

/// Wraps a SEC 1 key of the curve P-256 into PKCS#8.
fn wrapped(sec1: &[u8]) -> Vec<u8> {
    const VERSION_AND_ALGORITHM: [u8; 24] = [
        0x02, 0x01, 0x00, 0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08, 0x2a,
        0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07,
    ];
    let inner = [&VERSION_AND_ALGORITHM[..], &element(0x04, sec1)].concat();
    element(0x30, &inner)
}

/// A DER element of at most 65,535 bytes.
fn element(tag: u8, content: &[u8]) -> Vec<u8> {
    let length = u16::try_from(content.len()).unwrap_or(u16::MAX).to_be_bytes();
    let header = match content.len() {
        0..=0x7f => vec![tag, length[1]],
        0x80..=0xff => vec![tag, 0x81, length[1]],
        _ => vec![tag, 0x82, length[0], length[1]],
    };
    [&header, content].concat()
}

impl VerifyingKey {
    /// Reads all keys of a PEM file: public keys, private keys and certificates, as `--service-account-key-file` takes them.
    ///
    /// # Errors
    /// There is no key, or one is not RSA or EC P-256.
    pub fn all_from_pem(pem: &str) -> Result<Vec<Self>, TokenError> {
        let mut keys = Vec::new();
        for section in <(SectionKind, Vec<u8>)>::pem_slice_iter(pem.as_bytes()) {
            let (kind, der) = section.map_err(key_error)?;
            keys.push(match kind {
                SectionKind::Certificate => Self::of_certificate(&der.into())?,
                SectionKind::PublicKey => Self::new(&der)?,
                SectionKind::PrivateKey | SectionKind::RsaPrivateKey | SectionKind::EcPrivateKey => {
                    let der = PrivateKeyDer::try_from(der.as_slice()).map_err(key_error)?;
                    Self::new(&KeyPair::try_from(&der).map_err(key_error)?.subject_public_key_info())?
                }
                _ => continue,
            });
        }
        if keys.is_empty() { Err(TokenError::Key("there is no key in the file".into())) } else { Ok(keys) }
    }

    fn of_certificate(certificate: &CertificateDer<'_>) -> Result<Self, TokenError> {
        let (_, parsed) = X509Certificate::from_der(certificate).map_err(key_error)?;
        Self::new(parsed.public_key().raw)
    }

    /// `info`: the DER `SubjectPublicKeyInfo`.
    fn new(info: &[u8]) -> Result<Self, TokenError> {
        let (_, parsed) = SubjectPublicKeyInfo::from_der(info).map_err(key_error)?;
        let id = URL_SAFE_NO_PAD.encode(Sha256::digest(info));
        let text = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
        let (algorithm, public) = match parsed.parsed().map_err(key_error)? {
            PublicKey::RSA(key) => {
                let number = |bytes: &[u8]| {
                    let first = bytes.iter().position(|byte| *byte != 0).unwrap_or(bytes.len());
                    text(bytes.get(first..).unwrap_or_default())
                };
                (Algorithm::RS256, json!({"kty": "RSA", "n": number(key.modulus), "e": number(key.exponent)}))
            }
            // An uncompressed point: 4, x, y.
            PublicKey::EC(point) => match point.data().split_first() {
                Some((4, rest)) if rest.len() == 64 => {
                    let (x, y) = rest.split_at(32);
                    (Algorithm::ES256, json!({"kty": "EC", "crv": "P-256", "x": text(x), "y": text(y)}))
                }
                _ => return Err(TokenError::Key("of the elliptic curves only P-256 is supported".into())),
            },
            _ => return Err(TokenError::Key("it is neither RSA nor EC P-256".into())),
        };
        let mut public = public;
        if let Some(fields) = public.as_object_mut() {
            let name = if algorithm == Algorithm::ES256 { "ES256" } else { "RS256" };
            fields.extend([
                ("use".to_owned(), "sig".into()),
                ("kid".to_owned(), id.clone().into()),
                ("alg".to_owned(), name.into()),
            ]);
        }
        let jwk: Jwk = serde_json::from_value(public.clone()).map_err(key_error)?;
        let decoding = DecodingKey::from_jwk(&jwk).map_err(key_error)?;
        Ok(Self { algorithm, id, decoding, public })
    }
}
