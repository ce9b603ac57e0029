//! Certificates for the server names of spaces (SP-056).
//!
//! A wildcard `*.localhost` is refused by OpenSSL and others, and one certificate with the names of a thousand spaces would
//! make every handshake heavy. So each space has a certificate of its own, issued when a client first asks for it and kept
//! in memory, with the key and the CA of the installation's certificate.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::time::SystemTime;

use parking_lot::Mutex;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

use crate::addressed::space_of_host;
use crate::listener::{Certificate, Router};
use crate::pki::{NameIssuer, PkiError};

/// Issues and keeps the certificates of server names.
pub(crate) struct NameCertificates {
    issuer: Option<NameIssuer>,
    issued: Mutex<HashMap<String, Arc<CertifiedKey>>>,
}

impl NameCertificates {
    /// Without an issuer there are none: the certificate is not one of ours.
    pub(crate) fn new(issuer: Option<NameIssuer>) -> Self {
        Self { issuer, issued: Mutex::default() }
    }

    /// The certificate for a name; `default` has the key. `None` if it cannot be issued.
    fn of(&self, name: &str, default: &CertifiedKey) -> Option<Arc<CertifiedKey>> {
        if let Some(issued) = self.issued.lock().get(name) {
            return Some(issued.clone());
        }
        let issue = |issuer: &NameIssuer| -> Result<_, PkiError> { issuer.issue(name, SystemTime::now()) };
        let certificate = match issue(self.issuer.as_ref()?) {
            Ok(certificate) => certificate,
            Err(error) => {
                tracing::warn!(name, %error, "issuing the certificate of a server name");
                return None;
            }
        };
        let issued = Arc::new(CertifiedKey::new(vec![certificate], default.key.clone()));
        self.issued.lock().insert(name.to_owned(), issued.clone());
        Some(issued)
    }
}

impl fmt::Debug for NameCertificates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NameCertificates").field("issued", &self.issued.lock().len()).finish_non_exhaustive()
    }
}

/// Chooses the certificate by the server name that the client asks for.
pub(crate) struct ByName {
    pub(crate) certificate: Arc<Certificate>,
    pub(crate) router: Arc<Router>,
}

impl fmt::Debug for ByName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ByName").field("certificate", &self.certificate).finish_non_exhaustive()
    }
}

impl ResolvesServerCert for ByName {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let (default, names) = self.certificate.current();
        // Only names of spaces that exist, so that nobody can make this process issue certificates without end.
        let name = hello.server_name().map(str::to_ascii_lowercase);
        let name =
            name.filter(|name| space_of_host(name).is_some_and(|space| self.router.serves_by_name(&space)));
        let own = name.and_then(|name| names.of(&name, &default));
        Some(own.unwrap_or(default))
    }
}
