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
        let (default, names) = self.certificate.current();
        // Only names of spaces that exist, so that nobody can make this process issue certificates without end.
        let name = hello.server_name().map(str::to_ascii_lowercase);
        let name =
            name.filter(|name| space_of_host(name).is_some_and(|space| self.router.serves_by_name(&space)));
        let own = name.and_then(|name| names.of(&name, &default));
        Some(own.unwrap_or(default))
    }
}
