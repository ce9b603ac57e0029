//! What a TLS client accepts of its peer and shows of itself, as Go's `crypto/tls` does.
//!
//! rustls leaves both to webpki, which is stricter than Go. A server certificate that is itself the trusted one and says
//! `CA:TRUE`, and a client certificate of X.509 version 1, are common where certificates were made by hand with openssl.

mod identity;
mod verifier;

pub use identity::{identity, is_version_1};
pub use verifier::{ServerVerifier, trusted};

/// A certificate or a key is not usable.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A trusted certificate cannot be used.
    #[error("CA bundle: {0}")]
    Authority(String),
    /// A client certificate or its key cannot be used.
    #[error("client certificate: {0}")]
    Identity(String),
}
