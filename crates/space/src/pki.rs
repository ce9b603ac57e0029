//! Keys and certificates (SP-058, SP-060 to SP-062, SP-066).
//!
//! One serving CA per installation; per space a client CA of its own, so that a credential of one space is
//! nothing in another. Private keys are files 0600 in directories 0700.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::Write;
use std::net::IpAddr;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType, ExtendedKeyUsagePurpose,
    IsCa, Issuer, KeyPair, KeyUsagePurpose, SanType,
};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

const DAY: Duration = Duration::from_secs(24 * 3600);
const CA_LIFE: Duration = Duration::from_secs(10 * 365 * 24 * 3600);
const LEAF_LIFE: Duration = Duration::from_secs(365 * 24 * 3600);
/// A leaf is renewed at start once this much of its life is over.
const RENEW_AT: f64 = 0.8;

#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PkiError {
    #[error("{path}: {source}")]
    File { path: PathBuf, source: std::io::Error },
    #[error("{path}: {why}")]
    Broken { path: PathBuf, why: String },
    #[error("making a certificate: {0}")]
    Issue(#[from] rcgen::Error),
}

/// What the listener needs: a chain of one certificate and its key, and the CA clients verify it with.
pub struct Serving {
    pub chain: Vec<CertificateDer<'static>>,
    pub key: PrivateKeyDer<'static>,
    pub ca_pem: String,
}

/// Credentials of one space. PEM texts.
#[derive(Clone)]
pub struct SpaceKeys {
    pub client_ca: String,
    pub client_ca_key: String,
    pub admin_cert: String,
    pub admin_key: String,
    /// PKCS#8 key that signs service-account tokens.
    pub service_account_key: String,
}

/// Loads or makes the serving CA and certificate under `<data>/pki`. `hosts` are added to the names every
/// certificate has.
pub fn serving(data: &Path, hosts: &[String], now: SystemTime) -> Result<Serving, PkiError> {
    let dir = data.join("pki");
    private_dir(&dir)?;
    let ca = authority(&dir, "ca", "kubestellar serving CA", now)?;
    let leaf = leaf(&dir, "serving", &ca, now, || {
        let mut params = CertificateParams::default();
        params.subject_alt_names = subject_alt_names(hosts)?;
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.distinguished_name = name("kubestellar", None);
        Ok(params)
    })?;
    let broken = |why: rustls_pki_types::pem::Error| PkiError::Broken {
        path: dir.join("serving.crt"),
        why: why.to_string(),
    };
    Ok(Serving {
        chain: CertificateDer::pem_slice_iter(leaf.cert.as_bytes())
            .collect::<Result<_, _>>()
            .map_err(broken)?,
        key: PrivateKeyDer::from_pem_slice(leaf.key.as_bytes()).map_err(broken)?,
        ca_pem: ca.cert,
    })
}

/// Loads or makes the keys of one space under `<data>/spaces/<name>`.
pub fn space(
    data: &Path,
    space: &str,
    make_key: impl FnOnce() -> Result<String, String>,
    now: SystemTime,
) -> Result<SpaceKeys, PkiError> {
    let dir = data.join("spaces").join(space);
    private_dir(&data.join("spaces"))?;
    private_dir(&dir)?;
    let ca = authority(&dir, "client-ca", &format!("{space} client CA"), now)?;
    let admin = leaf(&dir, "admin", &ca, now, || {
        let mut params = CertificateParams::default();
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        params.distinguished_name = name("kubernetes-admin", Some("system:masters"));
        Ok(params)
    })?;
    let sa = dir.join("sa.key");
    let service_account_key = match read(&sa)? {
        Some(key) => key,
        None => {
            let key = make_key().map_err(|why| PkiError::Broken { path: sa.clone(), why })?;
            write(&sa, &key)?;
            key
        }
    };
    Ok(SpaceKeys {
        client_ca: ca.cert,
        client_ca_key: ca.key,
        admin_cert: admin.cert,
        admin_key: admin.key,
        service_account_key,
    })
}

struct Pair {
    cert: String,
    key: String,
}

/// A self-signed CA in `<dir>/<name>.crt` and `.key`.
fn authority(dir: &Path, file: &str, common_name: &str, now: SystemTime) -> Result<Pair, PkiError> {
    let (cert_path, key_path) = (dir.join(format!("{file}.crt")), dir.join(format!("{file}.key")));
    if let (Some(cert), Some(key)) = (read(&cert_path)?, read(&key_path)?) {
        return Ok(Pair { cert, key });
    }
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages =
        vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::CrlSign];
    params.distinguished_name = name(common_name, None);
    validity(&mut params, now, CA_LIFE);
    let key = KeyPair::generate()?;
    let key_pem = key.serialize_pem();
    let ca = CertifiedIssuer::self_signed(params, key)?;
    // The key first: a certificate without its key would be useless after a crash between the two.
    write(&key_path, &key_pem)?;
    write(&cert_path, &ca.pem())?;
    Ok(Pair { cert: ca.pem(), key: key_pem })
}

/// A leaf signed by `ca`, made anew when absent or near its end.
fn leaf(
    dir: &Path,
    file: &str,
    ca: &Pair,
    now: SystemTime,
    params: impl FnOnce() -> Result<CertificateParams, PkiError>,
) -> Result<Pair, PkiError> {
    let (cert_path, key_path) = (dir.join(format!("{file}.crt")), dir.join(format!("{file}.key")));
    if let (Some(cert), Some(key)) = (read(&cert_path)?, read(&key_path)?)
        && !is_old(&cert, now)
    {
        return Ok(Pair { cert, key });
    }
    let mut params = params()?;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.use_authority_key_identifier_extension = true;
    validity(&mut params, now, LEAF_LIFE);
    let issuer = Issuer::from_ca_cert_pem(&ca.cert, KeyPair::from_pem(&ca.key)?)?;
    let key = KeyPair::generate()?;
    let cert = params.signed_by(&key, &issuer)?.pem();
    let key = key.serialize_pem();
    write(&key_path, &key)?;
    write(&cert_path, &cert)?;
    Ok(Pair { cert, key })
}

fn is_old(pem: &str, now: SystemTime) -> bool {
    let Ok(der) = CertificateDer::from_pem_slice(pem.as_bytes()) else { return true };
    let Ok((_, cert)) = x509_parser::parse_x509_certificate(&der) else { return true };
    let (from, to) =
        (cert.validity().not_before.timestamp() as f64, cert.validity().not_after.timestamp() as f64);
    let now = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs() as f64;
    now > from + (to - from) * RENEW_AT
}

fn validity(params: &mut CertificateParams, now: SystemTime, life: Duration) {
    // A day of slack for clocks that lag.
    params.not_before = (now - DAY).into();
    params.not_after = (now + life).into();
}

fn name(common_name: &str, organization: Option<&str>) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    if let Some(organization) = organization {
        name.push(DnType::OrganizationName, organization);
    }
    name.push(DnType::CommonName, common_name);
    name
}

fn subject_alt_names(hosts: &[String]) -> Result<Vec<SanType>, PkiError> {
    let usual = [
        "localhost",
        "127.0.0.1",
        "::1",
        "kubernetes",
        "kubernetes.default",
        "kubernetes.default.svc",
        "kubernetes.default.svc.cluster.local",
    ];
    let mut names = Vec::new();
    for host in usual.iter().map(ToString::to_string).chain(hosts.iter().cloned()) {
        let san = match host.parse::<IpAddr>() {
            Ok(address) => SanType::IpAddress(address),
            Err(_) => SanType::DnsName(host.try_into()?),
        };
        if !names.contains(&san) {
            names.push(san);
        }
    }
    Ok(names)
}

/// A directory 0700; a looser mode is mended (SP-066).
fn private_dir(dir: &Path) -> Result<(), PkiError> {
    let failed = |source| PkiError::File { path: dir.to_owned(), source };
    DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(failed)?;
    tighten(dir, 0o700).map_err(failed)
}

fn read(path: &Path) -> Result<Option<String>, PkiError> {
    match fs::read_to_string(path) {
        Ok(text) => {
            tighten(path, 0o600).map_err(|source| PkiError::File { path: path.to_owned(), source })?;
            Ok(Some(text))
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(PkiError::File { path: path.to_owned(), source }),
    }
}

fn tighten(path: &Path, mode: u32) -> std::io::Result<()> {
    let now = fs::metadata(path)?.permissions().mode() & 0o777;
    if now & !mode != 0 {
        tracing::warn!(path = %path.display(), mode = format!("{now:o}"), "permissions were too wide; corrected");
        fs::set_permissions(path, fs::Permissions::from_mode(mode))?;
    }
    Ok(())
}

/// Whole or not at all: temporary file, fsync, rename.
fn write(path: &Path, text: &str) -> Result<(), PkiError> {
    let temporary = path.with_extension("tmp");
    let written = (|| {
        let mut file =
            OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&temporary, path)
    })();
    written.map_err(|source| PkiError::File { path: path.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> Result<String, String> {
        KeyPair::generate().map(|k| k.serialize_pem()).map_err(|e| e.to_string())
    }

    /// SP-042, SP-066: keys are 0600 and the same on the next start.
    #[test]
    fn sp_066_keys_are_private_and_stay() {
        let dir = tempfile::tempdir().unwrap();
        let now = SystemTime::now();
        let first = space(dir.path(), "wds1", key, now).unwrap();
        let admin = dir.path().join("spaces/wds1/admin.key");
        assert_eq!(fs::metadata(&admin).unwrap().permissions().mode() & 0o777, 0o600);
        fs::set_permissions(&admin, fs::Permissions::from_mode(0o644)).unwrap();
        let second = space(dir.path(), "wds1", key, now).unwrap();
        assert_eq!(first.admin_cert, second.admin_cert);
        assert_eq!(first.service_account_key, second.service_account_key);
        assert_eq!(fs::metadata(&admin).unwrap().permissions().mode() & 0o777, 0o600);
    }

    /// SP-061: spaces share no client CA. SP-062: the admin certificate is renewed at 80 % of its life.
    #[test]
    fn sp_061_sp_062_own_ca_and_renewal() {
        let dir = tempfile::tempdir().unwrap();
        let now = SystemTime::now();
        let a = space(dir.path(), "a", key, now).unwrap();
        let b = space(dir.path(), "b", key, now).unwrap();
        assert_ne!(a.client_ca, b.client_ca);
        let later = space(dir.path(), "a", key, now + LEAF_LIFE.mul_f64(0.85)).unwrap();
        assert_eq!(later.client_ca, a.client_ca);
        assert_ne!(later.admin_cert, a.admin_cert);
    }
}
