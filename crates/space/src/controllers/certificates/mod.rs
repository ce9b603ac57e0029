//! CertificateSigningRequests: those of nodes may be approved, approved ones get signed, old ones are cleared away (AS-054, AS-055).

pub(crate) mod approve;
pub(crate) mod clean;
pub(crate) mod decide;
mod der;
mod sign;

use std::sync::Arc;

use sign::Authority;
pub use sign::{SignError, SignRequest};

/// Signs client certificates with the space's client CA. Cheap to clone.
#[derive(Clone, Debug)]
pub struct CsrSigner {
    authority: Arc<Authority>,
}

impl CsrSigner {
    /// Of the CA's certificate and PKCS#8 EC P-256 key, both PEM.
    pub fn new(ca_certificate: &str, ca_key: &str) -> Result<Self, SignError> {
        Ok(Self { authority: Arc::new(Authority::new(ca_certificate, ca_key)?) })
    }

    /// Signs a request: subject and names from it, usages as given (in the words of Kubernetes), good from five
    /// minutes ago for the seconds asked for, at most a year and not beyond the CA's end. PEM.
    pub fn sign(
        &self,
        request: &SignRequest,
        usages: &[String],
        seconds: Option<u64>,
    ) -> Result<String, SignError> {
        self.authority.sign(request, usages, seconds)
    }
}

#[cfg(test)]
impl CsrSigner {
    fn authority_der(&self) -> Vec<u8> {
        self.authority.certificate.clone()
    }
}
