//! The certificate that the listener shows, and those of the server names of spaces (SP-056, SP-062).
//!
//! A wildcard `*.localhost` is refused by OpenSSL and others, and one certificate with the names of a thousand spaces would
//! make every handshake heavy. So each space has a certificate of its own, issued when a client first asks for it and kept
//! in memory as long as the space is served, with the key and the CA of the installation's certificate.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;

use crate::pki::{NameIssuer, Serving};

/// The serving certificate, and the issuer of those of the server names of spaces. New connections use a replacement at once.
pub struct Certificate(ArcSwap<Shown>);

/// What is shown to clients until the next replacement.
struct Shown {
    default: Arc<CertifiedKey>,
    issuer: Option<Arc<NameIssuer>>,
}

impl Shown {
    fn of_serving(serving: &Serving) -> Result<Self, rustls::Error> {
        Self::new(&serving.chain, &serving.key, serving.names.clone())
    }

    fn new(
        chain: &[CertificateDer<'static>],
        key: &PrivateKeyDer<'static>,
        names: Option<NameIssuer>,
    ) -> Result<Self, rustls::Error> {
        Ok(Self { default: Arc::new(certified(chain, key)?), issuer: names.map(Arc::new) })
    }
}

impl Certificate {
    /// Loads a certificate and its key.
    ///
    /// # Errors
    /// The key has an unusable type, or does not belong to the certificate.
    pub fn new(serving: &Serving) -> Result<Self, rustls::Error> {
        Ok(Self(ArcSwap::from_pointee(Shown::of_serving(serving)?)))
    }

    /// As [`Certificate::new`], of a chain, leaf first, and the leaf's key. Server names of spaces are shown this chain, too.
    ///
    /// # Errors
    /// As for [`Certificate::new`].
    pub fn of(
        chain: &[CertificateDer<'static>],
        key: &PrivateKeyDer<'static>,
    ) -> Result<Self, rustls::Error> {
        Ok(Self(ArcSwap::from_pointee(Shown::new(chain, key, None)?)))
    }

    /// Replaces the certificate.
    ///
    /// # Errors
    /// As for [`Certificate::new`]. The old certificate stays then.
    pub fn replace(&self, serving: &Serving) -> Result<(), rustls::Error> {
        self.0.store(Arc::new(Shown::of_serving(serving)?));
        Ok(())
    }

    /// As [`Certificate::replace`], with a chain, leaf first, and the leaf's key.
    ///
    /// # Errors
    /// As for [`Certificate::new`]. The old certificate stays then.
    pub fn replace_with(
        &self,
        chain: &[CertificateDer<'static>],
        key: &PrivateKeyDer<'static>,
    ) -> Result<(), rustls::Error> {
        self.0.store(Arc::new(Shown::new(chain, key, None)?));
        Ok(())
    }

    /// The certificate for clients that ask for no name of a space, and the issuer of those for the others. Without an
    /// issuer there are none: the certificate is not one of ours.
    pub(crate) fn current(&self) -> (Arc<CertifiedKey>, Option<Arc<NameIssuer>>) {
        let shown = self.0.load();
        (shown.default.clone(), shown.issuer.clone())
    }
}

impl fmt::Debug for Certificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Certificate").finish_non_exhaustive()
    }
}

fn certified(
    chain: &[CertificateDer<'static>],
    key: &PrivateKeyDer<'static>,
) -> Result<CertifiedKey, rustls::Error> {
    let provider = rustls::crypto::aws_lc_rs::default_provider();
    CertifiedKey::from_der(chain.to_vec(), key.clone_key(), &provider)
}

/// The certificates of the server names of one space. They go with it.
#[derive(Default)]
pub(crate) struct ServerNames(Mutex<HashMap<String, Issued>>);

struct Issued {
    /// The serving certificate at that time. After its replacement a new certificate is issued.
    with: Arc<CertifiedKey>,
    certificate: Arc<CertifiedKey>,
}

impl ServerNames {
    /// The certificate for a name; `default` has the key. `None` if it cannot be issued.
    pub(crate) fn of(
        &self,
        name: &str,
        default: &Arc<CertifiedKey>,
        issuer: &NameIssuer,
    ) -> Option<Arc<CertifiedKey>> {
        if let Some(issued) = self.0.lock().get(name).filter(|issued| Arc::ptr_eq(&issued.with, default)) {
            return Some(issued.certificate.clone());
        }
        let certificate = match issuer.issue(name, SystemTime::now()) {
            Ok(certificate) => certificate,
            Err(error) => {
                tracing::warn!(name, %error, "issuing the certificate of a server name");
                return None;
            }
        };
        let certificate = Arc::new(CertifiedKey::new(vec![certificate], default.key.clone()));
        let issued = Issued { with: default.clone(), certificate: certificate.clone() };
        self.0.lock().insert(name.to_owned(), issued);
        Some(certificate)
    }
}
