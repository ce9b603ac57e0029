//! Client certificates of X.509 version 1 in kubeconfigs.

use kube::{Config, client::ConfigExt as _, config::AuthInfo};
use rustls::{
    ClientConfig,
    pki_types::{CertificateDer, pem::PemObject as _},
};
use serde_json::Value;

use super::ConnectError;
use crate::tls::{identity, is_version_1};

/// The TLS configuration for a certificate that `kube` refuses because webpki cannot read its version. `error` is what
/// `kube` said, and what is returned for any other certificate.
pub(super) fn of_version_1(config: &Config, error: kube::Error) -> Result<ClientConfig, ConnectError> {
    let Some((certificate, key)) = pem_of(&config.auth_info) else { return Err(error.into()) };
    let first = CertificateDer::from_pem_slice(&certificate).ok();
    if !first.as_ref().is_some_and(is_version_1) {
        return Err(error.into());
    }
    let shown = identity(&certificate, &key)?;
    let mut bare = config.clone();
    bare.auth_info.client_certificate = None;
    bare.auth_info.client_certificate_data = None;
    bare.auth_info.client_key = None;
    bare.auth_info.client_key_data = None;
    let mut tls = bare.rustls_client_config()?;
    tls.client_auth_cert_resolver = shown;
    Ok(tls)
}

/// Reads certificate and key of a kubeconfig's user, from its data or its files.
fn pem_of(user: &AuthInfo) -> Option<(Vec<u8>, Vec<u8>)> {
    use base64::Engine as _;
    // Only its serialization gives the key away: the field is a secret of a crate that `kube` does not export.
    let user = serde_json::to_value(user).ok()?;
    let read = |data: &str, file: &str| match user.get(data).and_then(Value::as_str) {
        Some(text) => base64::engine::general_purpose::STANDARD.decode(text).ok(),
        None => std::fs::read(user.get(file)?.as_str()?).ok(),
    };
    Some((read("client-certificate-data", "client-certificate")?, read("client-key-data", "client-key")?))
}
