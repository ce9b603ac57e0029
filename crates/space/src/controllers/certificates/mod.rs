//! CertificateSigningRequests: approves those of nodes, signs approved ones, and deletes old ones (AS-054, AS-055).

pub(crate) mod approve;
pub(crate) mod clean;
pub(crate) mod decide;
mod der;
mod sign;

use std::sync::Arc;
use std::time::Duration;

use sign::{Authority, Validity};
pub use sign::{SignError, SignRequest};

/// Signs client certificates with the space's client CA. Cheap to clone.
#[derive(Clone, Debug)]
pub struct CsrSigner {
    authority: Arc<Authority>,
    terms: Validity,
}

impl CsrSigner {
    /// A signer with the CA's certificate and PKCS#8 EC P-256 key, both PEM.
    ///
    /// # Errors
    /// Certificate or key cannot be parsed.
    pub fn new(ca_certificate: &str, ca_key: &str) -> Result<Self, SignError> {
        let authority = Arc::new(Authority::new(ca_certificate, ca_key)?);
        Ok(Self { authority, terms: Validity::default() })
    }

    /// Sets the longest life of certificates from now on (default: a year) and how far they are backdated because
    /// clocks differ (default: five minutes). The former is `--cluster-signing-duration` of Kubernetes.
    #[must_use]
    pub fn lasting(mut self, most: Duration, backdate: Duration) -> Self {
        self.terms = Validity { most, backdate };
        self
    }

    /// Certificate of the CA, PEM.
    pub fn ca_pem(&self) -> String {
        sign::armour(&self.authority.certificate)
    }

    /// Signs a request. Subject and alternative names come from the request; `usages` are named as in Kubernetes. The
    /// certificate is valid for the requested seconds, at most as long as [`CsrSigner::lasting`] allows, and not
    /// beyond the CA's end. Returns PEM.
    ///
    /// # Errors
    /// A usage is unknown, or the CA has expired.
    pub fn sign(
        &self,
        request: &SignRequest,
        usages: &[String],
        seconds: Option<u64>,
    ) -> Result<String, SignError> {
        self.authority.sign(request, usages, seconds, self.terms)
    }
}

#[cfg(test)]
impl CsrSigner {
    fn authority_der(&self) -> Vec<u8> {
        self.authority.certificate.clone()
    }
}
