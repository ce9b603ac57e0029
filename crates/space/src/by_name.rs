//! Chooses the certificate for the server name that a client asks for (SP-056).

use std::fmt;
use std::sync::Arc;

use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;

use crate::addressed::space_of_host;
use crate::certificate::Certificate;
use crate::router::Router;

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
        let (default, issuer) = self.certificate.current();
        let own = issuer.zip(hello.server_name()).and_then(|(issuer, name)| {
            let name = name.to_ascii_lowercase();
            // Only names of spaces that exist, so that nobody can make this process issue certificates without end.
            self.router.names_of(&space_of_host(&name)?)?.of(&name, &default, &issuer)
        });
        Some(own.unwrap_or(default))
    }
}
