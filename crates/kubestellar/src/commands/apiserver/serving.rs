//! The certificate that the server shows: its own, or files that others wrote (`--cert-dir`, `--tls-cert-file`).

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use space::listener::Certificate;
use space::pki::{self, Serving, Term};

use super::flags::KubeFlags;
use crate::datadir::write_atomically;
use crate::exit::{Failure, OrFail as _};

/// Where the certificate comes from.
pub(super) enum Source {
    /// Made by this server, and renewed in time.
    Own { home: PathBuf, hosts: Vec<String>, term: Term },
    /// Written by others. They replace it, and this server reads it again.
    Files { certificate: PathBuf, key: PathBuf, seen: (Vec<u8>, Vec<u8>) },
}

/// Loads the certificate, or makes it. `home` has the keys of this server.
///
/// # Errors
/// The files cannot be read or written, or do not belong together.
pub(super) fn open(flags: &KubeFlags, home: &Path) -> Result<(Certificate, Source), Failure> {
    let hosts: Vec<String> = flags.external_hostname.iter().cloned().collect();
    let files = match (&flags.tls_cert_file, &flags.tls_private_key_file, &flags.cert_dir) {
        (Some(certificate), Some(key), _) => Some((certificate.clone(), key.clone())),
        (_, _, Some(dir)) => Some((dir.join("apiserver.crt"), dir.join("apiserver.key"))),
        _ => None,
    };
    let Some((certificate, key)) = files else {
        let serving = pki::serving(home, &hosts, SystemTime::now()).or_fail("preparing the certificates")?;
        let shown = Certificate::new(&serving).or_fail("preparing the certificates")?;
        return Ok((shown, Source::Own { home: home.to_owned(), hosts, term: serving.term }));
    };
    if flags.tls_cert_file.is_none() && !certificate.exists() && !key.exists() {
        make(&certificate, &key, home, &hosts)?;
    }
    let seen = (read(&certificate)?, read(&key)?);
    let shown = parsed(&seen)
        .and_then(|(chain, key)| Certificate::of(&chain, &key).map_err(|error| error.to_string()));
    let shown = shown.or_fail(format!("serving with {} and {}", certificate.display(), key.display()))?;
    Ok((shown, Source::Files { certificate, key, seen }))
}

/// Writes a new certificate with its CA behind it, so that a client can trust the file as it is.
fn make(certificate: &Path, key: &Path, home: &Path, hosts: &[String]) -> Result<(), Failure> {
    if let Some(dir) = certificate.parent() {
        std::fs::create_dir_all(dir).or_fail(format!("making {}", dir.display()))?;
    }
    let what = |path: &Path| format!("writing {}", path.display());
    let serving = pki::serving(home, hosts, SystemTime::now()).or_fail("preparing the certificates")?;
    let pem = pki::serving_pem(home).or_fail("preparing the certificates")?;
    // The key first: after a crash between both, a certificate without key would be useless.
    write_atomically(key, pem.key.as_bytes(), 0o600).or_fail(what(key))?;
    let bundle = format!("{}{}", pem.certificate, serving.ca_pem);
    write_atomically(certificate, bundle.as_bytes(), 0o644).or_fail(what(certificate))
}

fn read(path: &Path) -> Result<Vec<u8>, Failure> {
    std::fs::read(path).or_fail(format!("reading {}", path.display()))
}

type Parsed = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

fn parsed((certificate, key): &(Vec<u8>, Vec<u8>)) -> Result<Parsed, String> {
    let chain: Vec<_> = CertificateDer::pem_slice_iter(certificate)
        .collect::<Result<_, _>>()
        .map_err(|error| format!("the certificate: {error}"))?;
    if chain.is_empty() {
        return Err("there is no certificate in the file".to_owned());
    }
    let key = PrivateKeyDer::from_pem_slice(key).map_err(|error| format!("the key: {error}"))?;
    Ok((chain, key))
}

impl Source {
    /// Replaces the certificate if its time has come, or its files have changed. The old one stays if that fails.
    pub(super) fn renew(&mut self, shown: &Certificate) {
        let outcome = match self {
            Self::Own { home, hosts, term } => renew_own(home, hosts, term, shown),
            Self::Files { certificate, key, seen } => reload(certificate, key, seen, shown),
        };
        if let Err(error) = outcome {
            tracing::error!(error, "the serving certificate could not be renewed");
        }
    }
}

fn renew_own(home: &Path, hosts: &[String], term: &mut Term, shown: &Certificate) -> Result<(), String> {
    if !term.is_over(SystemTime::now()) {
        return Ok(());
    }
    let serving: Serving = pki::serving(home, hosts, SystemTime::now()).map_err(|error| error.to_string())?;
    shown.replace(&serving).map_err(|error| error.to_string())?;
    *term = serving.term;
    Ok(())
}

fn reload(
    certificate: &Path,
    key: &Path,
    seen: &mut (Vec<u8>, Vec<u8>),
    shown: &Certificate,
) -> Result<(), String> {
    let read =
        |path: &Path| std::fs::read(path).map_err(|error| format!("reading {}: {error}", path.display()));
    let now = (read(certificate)?, read(key)?);
    if now == *seen {
        return Ok(());
    }
    let (chain, key) = parsed(&now)?;
    shown.replace_with(&chain, &key).map_err(|error| error.to_string())?;
    *seen = now;
    tracing::info!(path = %certificate.display(), "serving with the new certificate");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// SP-126, SP-062: files that are replaced are shown, and what cannot be used leaves the old certificate.
    #[test]
    fn sp_126_certificates_of_others_are_read_again() {
        let (home, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (certificate, key) = (home.path().join("c/apiserver.crt"), home.path().join("c/apiserver.key"));
        make(&certificate, &key, home.path(), &["api.example".to_owned()]).unwrap();
        let mut seen = (read(&certificate).unwrap(), read(&key).unwrap());
        let (chain, private) = parsed(&seen).unwrap();
        assert_eq!(chain.len(), 2, "the CA is in the file");
        let shown = Certificate::of(&chain, &private).unwrap();
        let first = seen.clone();
        std::fs::write(&key, "nonsense").unwrap();
        assert!(reload(&certificate, &key, &mut seen, &shown).is_err());
        assert_eq!(seen, first, "it is tried again");
        make(&certificate, &key, other.path(), &[]).unwrap();
        reload(&certificate, &key, &mut seen, &shown).unwrap();
        assert_ne!(seen, first);
        // A key of another certificate is refused.
        std::fs::write(&key, &first.1).unwrap();
        assert!(reload(&certificate, &key, &mut seen, &shown).is_err());
    }
}
