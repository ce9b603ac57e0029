//! CertificateSigningRequests: those of nodes may be approved, approved ones get signed, old ones are cleared away (AS-054, AS-055).

pub(crate) mod approve;
pub(crate) mod clean;
pub(crate) mod decide;
mod der;
mod sign;

use std::sync::Arc;
use std::time::Duration;

use sign::{Authority, Terms};
pub use sign::{SignError, SignRequest};

/// Signs client certificates with the space's client CA. Cheap to clone.
#[derive(Clone, Debug)]
pub struct CsrSigner {
    authority: Arc<Authority>,
    terms: Terms,
}

impl CsrSigner {
    /// Of the CA's certificate and PKCS#8 EC P-256 key, both PEM.
    pub fn new(ca_certificate: &str, ca_key: &str) -> Result<Self, SignError> {
        let authority = Arc::new(Authority::new(ca_certificate, ca_key)?);
        Ok(Self { authority, terms: Terms::default() })
    }

    /// Certificates are good for at most so long from now (a year unless said here), and from so long ago (five
    /// minutes), because clocks differ. What Kubernetes' `--cluster-signing-duration` sets is the former.
    #[must_use]
    pub fn lasting(mut self, most: Duration, backdate: Duration) -> Self {
        self.terms = Terms { most, backdate };
        self
    }

    /// Certificate of the CA, PEM.
    pub fn ca_pem(&self) -> String {
        sign::armour(&self.authority.certificate)
    }

    /// Signs a request: subject and names from it, usages as given (in the words of Kubernetes), good for the seconds
    /// asked for, within [`CsrSigner::lasting`] and not beyond the CA's end. PEM.
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
