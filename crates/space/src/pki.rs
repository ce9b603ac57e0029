//! Keys and certificates (SP-058, SP-060 to SP-062, SP-066).
//!
//! One serving CA per installation, and one client CA per space, so that a credential of one space is not valid in
//! another. Private keys are files with mode 0600 in directories with mode 0700.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::Write;
use std::net::IpAddr;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType, ExtendedKeyUsagePurpose,
    IsCa, Issuer, KeyPair, KeyUsagePurpose, PublicKeyData as _, SanType,
};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

const DAY: Duration = Duration::from_secs(24 * 3600);
const CA_LIFE: Duration = Duration::from_secs(10 * 365 * 24 * 3600);
const LEAF_LIFE: Duration = Duration::from_secs(365 * 24 * 3600);
/// A certificate is renewed after this part of its life.
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

/// Credentials of the listener: a chain of one certificate, its key, and the CA with which clients verify it. PEM
/// texts.
pub struct Serving {
    pub chain: Vec<CertificateDer<'static>>,
    pub key: PrivateKeyDer<'static>,
    pub ca_pem: String,
    /// Issues certificates for further names with the same key.
    pub names: Option<NameIssuer>,
    /// When [`serving`] has nothing to do.
    pub term: Term,
}

/// Credentials of one space. PEM texts.
#[derive(Clone, PartialEq, Eq)]
pub struct SpaceKeys {
    pub client_ca: String,
    pub client_ca_key: String,
    pub admin_cert: String,
    pub admin_key: String,
    /// When [`space`] has nothing to do.
    pub term: Term,
}

/// The period in which certificates need no renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Term {
    /// Before this time, a certificate is not valid yet: it was made while the clock was ahead.
    pub from: SystemTime,
    /// From this time on, a certificate is near its end.
    pub until: SystemTime,
}

impl Term {
    /// Whether a certificate must be renewed at this time.
    pub fn is_over(&self, now: SystemTime) -> bool {
        now < self.from || self.until <= now
    }

    /// The period in which neither needs a renewal.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self { from: self.from.max(other.from), until: self.until.min(other.until) }
    }
}

/// Loads or creates the serving CA and certificate under `<data>/pki`. `hosts` are added to the names of the
/// certificate.
///
/// # Errors
/// The files cannot be read or written, or the CA is damaged.
pub fn serving(data: &Path, hosts: &[String], now: SystemTime) -> Result<Serving, PkiError> {
    let dir = data.join("pki");
    private_dir(&dir)?;
    let ca = authority(&dir, "ca", "kubestellar serving CA", now)?;
    let leaf = leaf(&dir, "serving", &ca, now, || serving_params(hosts))?;
    let broken = |why: rustls_pki_types::pem::Error| PkiError::Broken {
        path: dir.join("serving.crt"),
        why: why.to_string(),
    };
    Ok(Serving {
        term: ca.term.and(leaf.term),
        chain: CertificateDer::pem_slice_iter(leaf.cert.as_bytes())
            .collect::<Result<_, _>>()
            .map_err(broken)?,
        key: PrivateKeyDer::from_pem_slice(leaf.key.as_bytes()).map_err(broken)?,
        names: Some(NameIssuer {
            ca_cert: ca.cert.clone(),
            ca_key: ca.key,
            leaf_key: leaf.key,
            hosts: hosts.to_vec(),
        }),
        ca_pem: ca.cert,
    })
}

/// Issues serving certificates for further names. They have the key of the [`Serving`] certificate, and its names.
#[derive(Clone)]
pub struct NameIssuer {
    ca_cert: String,
    ca_key: String,
    leaf_key: String,
    hosts: Vec<String>,
}

impl NameIssuer {
    /// A certificate for `name`. Costs one signature, some 100 µs.
    ///
    /// # Errors
    /// The name is no DNS name, or signing fails.
    pub fn issue(&self, name: &str, now: SystemTime) -> Result<CertificateDer<'static>, PkiError> {
        let hosts: Vec<String> = self.hosts.iter().cloned().chain([name.to_owned()]).collect();
        let params = signed_leaf(serving_params(&hosts)?, now);
        let issuer = Issuer::from_ca_cert_pem(&self.ca_cert, KeyPair::from_pem(&self.ca_key)?)?;
        Ok(params.signed_by(&KeyPair::from_pem(&self.leaf_key)?, &issuer)?.der().clone())
    }
}

fn serving_params(hosts: &[String]) -> Result<CertificateParams, PkiError> {
    let mut params = CertificateParams::default();
    params.subject_alt_names = subject_alt_names(hosts)?;
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    params.distinguished_name = name("kubestellar", None);
    Ok(params)
}

/// What all leaves have in common.
fn signed_leaf(mut params: CertificateParams, now: SystemTime) -> CertificateParams {
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.use_authority_key_identifier_extension = true;
    validity(&mut params, now, LEAF_LIFE);
    params
}

/// The serving certificate and its key, PEM.
pub struct ServingPem {
    pub certificate: String,
    pub key: String,
}

/// Reads what [`serving`] has made.
///
/// # Errors
/// The files are not there or cannot be read.
pub fn serving_pem(data: &Path) -> Result<ServingPem, PkiError> {
    let text = |file: &str| {
        let path = data.join("pki").join(file);
        fs::read_to_string(&path).map_err(|source| PkiError::File { path, source })
    };
    Ok(ServingPem { certificate: text("serving.crt")?, key: text("serving.key")? })
}

/// Loads or creates the credentials of one space under `<data>/spaces/<name>`.
///
/// # Errors
/// As for [`serving`].
pub fn space(data: &Path, space: &str, now: SystemTime) -> Result<SpaceKeys, PkiError> {
    let dir = space_dir(data, space)?;
    let ca = authority(&dir, "client-ca", &format!("{space} client CA"), now)?;
    let admin = leaf(&dir, "admin", &ca, now, || {
        let mut params = CertificateParams::default();
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        params.distinguished_name = name("kubernetes-admin", Some("system:masters"));
        Ok(params)
    })?;
    Ok(SpaceKeys {
        term: ca.term.and(admin.term),
        client_ca: ca.cert,
        client_ca_key: ca.key,
        admin_cert: admin.cert,
        admin_key: admin.key,
    })
}

/// Loads or creates the PKCS#8 key that signs the service-account tokens of one space. Separate from [`space`],
/// because few spaces ever sign tokens, and making an RSA key takes long.
///
/// # Errors
/// As for [`serving`], or `make` fails.
pub fn service_account_key(
    data: &Path,
    space: &str,
    make_key: impl FnOnce() -> Result<String, String>,
) -> Result<String, PkiError> {
    if let Some(key) = made_service_account_key(data, space)? {
        return Ok(key);
    }
    let path = space_dir(data, space)?.join("sa.key");
    let key = make_key().map_err(|why| PkiError::Broken { path: path.clone(), why })?;
    write(&path, &key)?;
    Ok(key)
}

/// The key that [`service_account_key`] has made, if it has made one.
///
/// # Errors
/// The file cannot be read, or has no key. It is not replaced, because that would invalidate all tokens of the space.
pub fn made_service_account_key(data: &Path, space: &str) -> Result<Option<String>, PkiError> {
    let path = space_dir(data, space)?.join("sa.key");
    let Some(key) = read(&path)? else { return Ok(None) };
    match KeyPair::from_pem(&key) {
        Ok(_) => Ok(Some(key)),
        Err(error) => Err(PkiError::Broken {
            path,
            why: format!(
                "{error}; restore it, or remove it: then a new key is made, and all tokens of service accounts of the space end"
            ),
        }),
    }
}

fn space_dir(data: &Path, space: &str) -> Result<PathBuf, PkiError> {
    let dir = data.join("spaces").join(space);
    private_dir(&data.join("spaces"))?;
    private_dir(&dir)?;
    Ok(dir)
}

struct Pair {
    cert: String,
    key: String,
    term: Term,
}

impl Pair {
    fn new(cert: String, key: String, now: SystemTime) -> Self {
        let term = ValidityPeriod::of(&cert).map_or(Term { from: now, until: now }, |life| life.term());
        Self { cert, key, term }
    }
}

/// A self-signed CA in `<dir>/<name>.crt` and `.key`. A CA that is not valid yet, near its end, or expired is signed
/// again with the same key and name: certificates that it has signed stay valid, also for clients that only have the
/// older CA certificate. (Go programs also check the dates of their CA certificate; they need the new one.)
///
/// # Errors
/// A CA that cannot be read is not replaced, because that would invalidate all issued credentials. The user must
/// decide.
fn authority(dir: &Path, file: &str, common_name: &str, now: SystemTime) -> Result<Pair, PkiError> {
    let (cert_path, key_path) = (dir.join(format!("{file}.crt")), dir.join(format!("{file}.key")));
    let unusable = |path: &Path, why: &dyn std::fmt::Display| PkiError::Broken {
        path: path.to_owned(),
        why: format!(
            "{why}; restore it, or remove {file}.crt and {file}.key: then a new CA is made, and all clients need new \
             credentials"
        ),
    };
    let as_key = |key: &str| KeyPair::from_pem(key).map_err(|error| unusable(&key_path, &error));
    let key = match (read(&cert_path)?, read(&key_path)?) {
        (None, None) => KeyPair::generate()?,
        // The key is written first. The process has died between both writes.
        (None, Some(key)) => as_key(&key)?,
        (Some(_), None) => return Err(unusable(&key_path, &"the file is missing")),
        (Some(cert), Some(key)) => {
            let pair = as_key(&key)?;
            let life = ValidityPeriod::of(&cert).ok_or_else(|| unusable(&cert_path, &"not a certificate"))?;
            if !is_key_of(&pair, &cert) {
                return Err(unusable(&key_path, &format_args!("it is not the key of {file}.crt")));
            }
            if !life.term().is_over(now) {
                return Ok(Pair { cert, key, term: life.term() });
            }
            if now < life.from {
                tracing::warn!(path = %cert_path.display(), "the CA is not valid yet: it was made while the clock was ahead; signed again");
            } else if life.to <= now {
                tracing::warn!(path = %cert_path.display(), "the CA had expired; clients need its new certificate");
            } else {
                tracing::info!(path = %cert_path.display(), "the CA nears its end and is signed again");
            }
            pair
        }
    };
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages =
        vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature, KeyUsagePurpose::CrlSign];
    params.distinguished_name = name(common_name, None);
    validity(&mut params, now, CA_LIFE);
    let key_pem = key.serialize_pem();
    let ca = CertifiedIssuer::self_signed(params, key)?;
    // The key first: after a crash between both writes, a certificate without key would be useless.
    write(&key_path, &key_pem)?;
    write(&cert_path, &ca.pem())?;
    Ok(Pair::new(ca.pem(), key_pem, now))
}

/// A leaf signed by `ca`. Created again if it is absent, not valid yet, near its end, or signed by another CA, or if its key is
/// not the one beside it: nothing depends on the key of a leaf.
fn leaf(
    dir: &Path,
    file: &str,
    ca: &Pair,
    now: SystemTime,
    params: impl FnOnce() -> Result<CertificateParams, PkiError>,
) -> Result<Pair, PkiError> {
    let (cert_path, key_path) = (dir.join(format!("{file}.crt")), dir.join(format!("{file}.key")));
    if let (Some(cert), Some(key)) = (read(&cert_path)?, read(&key_path)?)
        && let Some(life) = ValidityPeriod::of(&cert)
        && is_signed_by(&cert, &ca.cert)
    {
        if !KeyPair::from_pem(&key).is_ok_and(|key| is_key_of(&key, &cert)) {
            tracing::warn!(path = %key_path.display(), "not the key of its certificate; both are made anew");
        } else if !life.term().is_over(now) {
            return Ok(Pair { cert, key, term: life.term() });
        } else if now < life.from {
            tracing::warn!(path = %cert_path.display(), "the certificate is not valid yet: it was made while the clock was ahead; made anew");
        }
    }
    let params = signed_leaf(params()?, now);
    let issuer = Issuer::from_ca_cert_pem(&ca.cert, KeyPair::from_pem(&ca.key)?)?;
    let key = KeyPair::generate()?;
    let cert = params.signed_by(&key, &issuer)?.pem();
    let key = key.serialize_pem();
    write(&key_path, &key)?;
    write(&cert_path, &cert)?;
    Ok(Pair::new(cert, key, now))
}

/// The period of validity of a certificate.
struct ValidityPeriod {
    from: SystemTime,
    to: SystemTime,
}

impl ValidityPeriod {
    /// `None` if the text is not a certificate.
    fn of(pem: &str) -> Option<Self> {
        let der = CertificateDer::from_pem_slice(pem.as_bytes()).ok()?;
        let (_, cert) = x509_parser::parse_x509_certificate(&der).ok()?;
        let time = |time: x509_parser::time::ASN1Time| {
            SystemTime::UNIX_EPOCH + Duration::from_secs(time.timestamp().max(0).unsigned_abs())
        };
        Some(Self { from: time(cert.validity().not_before), to: time(cert.validity().not_after) })
    }

    fn term(&self) -> Term {
        let life = self.to.duration_since(self.from).unwrap_or_default();
        Term { from: self.from, until: self.from + life.mul_f64(RENEW_AT) }
    }
}

/// Whether the certificate (PEM) has the public part of the key.
fn is_key_of(key: &KeyPair, certificate: &str) -> bool {
    let Ok(der) = CertificateDer::from_pem_slice(certificate.as_bytes()) else { return false };
    x509_parser::parse_x509_certificate(&der)
        .is_ok_and(|(_, certificate)| certificate.public_key().raw == key.subject_public_key_info())
}

fn is_signed_by(leaf: &str, ca: &str) -> bool {
    let der = |pem: &str| CertificateDer::from_pem_slice(pem.as_bytes()).ok();
    let (Some(leaf), Some(ca)) = (der(leaf), der(ca)) else { return false };
    let parse = x509_parser::parse_x509_certificate;
    match (parse(&leaf), parse(&ca)) {
        (Ok((_, leaf)), Ok((_, ca))) => leaf.verify_signature(Some(ca.public_key())).is_ok(),
        _ => false,
    }
}

fn validity(params: &mut CertificateParams, now: SystemTime, life: Duration) {
    // A day of tolerance for clocks that lag.
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

/// Creates a directory with mode 0700, or corrects the mode (SP-066).
fn private_dir(dir: &Path) -> Result<(), PkiError> {
    let failed = |source| PkiError::File { path: dir.to_owned(), source };
    DirBuilder::new().recursive(true).mode(0o700).create(dir).map_err(failed)?;
    tighten(dir, 0o700).map_err(failed)
}

fn read(path: &Path) -> Result<Option<String>, PkiError> {
    match fs::read(path) {
        Ok(bytes) => {
            // What is no text is no PEM either, and is refused or replaced as such.
            let text = String::from_utf8_lossy(&bytes).into_owned();
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

/// Writes a file atomically: temporary file, fsync, rename.
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

    /// SP-042, SP-066: keys have mode 0600 and survive a restart.
    #[test]
    fn sp_066_keys_are_private_and_stay() {
        let dir = tempfile::tempdir().unwrap();
        let now = SystemTime::now();
        let first = space(dir.path(), "wds1", now).unwrap();
        let admin = dir.path().join("spaces/wds1/admin.key");
        assert_eq!(fs::metadata(&admin).unwrap().permissions().mode() & 0o777, 0o600);
        fs::set_permissions(&admin, fs::Permissions::from_mode(0o644)).unwrap();
        let second = space(dir.path(), "wds1", now).unwrap();
        assert_eq!(first.admin_cert, second.admin_cert);
        let token_key = || service_account_key(dir.path(), "wds1", key).unwrap();
        assert_eq!(token_key(), token_key());
        assert_eq!(fs::metadata(&admin).unwrap().permissions().mode() & 0o777, 0o600);
    }

    /// SP-061: spaces share no client CA. SP-062: the admin certificate is renewed at 80 % of its life.
    #[test]
    fn sp_061_sp_062_own_ca_and_renewal() {
        let dir = tempfile::tempdir().unwrap();
        let now = SystemTime::now();
        let a = space(dir.path(), "a", now).unwrap();
        let b = space(dir.path(), "b", now).unwrap();
        assert_ne!(a.client_ca, b.client_ca);
        let later = space(dir.path(), "a", now + LEAF_LIFE.mul_f64(0.85)).unwrap();
        assert_eq!(later.client_ca, a.client_ca);
        assert_ne!(later.admin_cert, a.admin_cert);
    }

    /// SP-062: the reported time of the next renewal is when it happens.
    #[test]
    fn sp_062_the_next_renewal_is_known() {
        let dir = tempfile::tempdir().unwrap();
        let now = SystemTime::now();
        let first = space(dir.path(), "a", now).unwrap();
        let before = space(dir.path(), "a", first.term.until - DAY).unwrap();
        assert_eq!((&before.admin_cert, &before.client_ca), (&first.admin_cert, &first.client_ca));
        let after = space(dir.path(), "a", first.term.until + DAY).unwrap();
        assert_ne!(after.admin_cert, first.admin_cert);
        assert!(after.term.until > first.term.until);
        let first = serving(dir.path(), &[], now).unwrap();
        assert_eq!(serving(dir.path(), &[], first.term.until - DAY).unwrap().chain, first.chain);
        assert_ne!(serving(dir.path(), &[], first.term.until + DAY).unwrap().chain, first.chain);
    }

    /// SP-062: a CA that is near its end or expired keeps its key, so that certificates that it signed stay valid.
    #[test]
    fn sp_062_an_old_ca_is_signed_again() {
        let dir = tempfile::tempdir().unwrap();
        let now = SystemTime::now();
        let first = space(dir.path(), "a", now).unwrap();
        for share in [0.85, 1.5] {
            let later = space(dir.path(), "a", now + CA_LIFE.mul_f64(share)).unwrap();
            assert_ne!(later.client_ca, first.client_ca);
            assert_eq!(later.client_ca_key, first.client_ca_key);
            assert!(is_signed_by(&first.admin_cert, &later.client_ca));
            assert!(is_signed_by(&later.admin_cert, &first.client_ca));
        }
    }

    /// SP-062: a start with a wrong clock does no lasting harm: certificates that are not valid now are created again,
    /// CAs with the same key.
    #[test]
    fn sp_062_certificates_of_another_time_are_replaced() {
        let now = SystemTime::now();
        for wrong in [now + LEAF_LIFE, now + 2 * CA_LIFE, SystemTime::UNIX_EPOCH + DAY] {
            let dir = tempfile::tempdir().unwrap();
            let before = (serving(dir.path(), &[], now).unwrap(), space(dir.path(), "a", now).unwrap());
            let then = (serving(dir.path(), &[], wrong).unwrap(), space(dir.path(), "a", wrong).unwrap());
            assert!(!then.0.term.is_over(wrong) && !then.1.term.is_over(wrong));
            assert!(then.0.term.is_over(now) && then.1.term.is_over(now));
            let after = (serving(dir.path(), &[], now).unwrap(), space(dir.path(), "a", now).unwrap());
            assert!(!after.0.term.is_over(now) && !after.1.term.is_over(now));
            for pem in [&after.0.ca_pem, &after.1.client_ca, &after.1.admin_cert] {
                let life = ValidityPeriod::of(pem).unwrap();
                assert!(life.from <= now && now < life.to);
            }
            assert_ne!(after.0.chain, then.0.chain);
            assert_eq!(after.1.client_ca_key, before.1.client_ca_key);
            assert!(is_signed_by(&before.1.admin_cert, &after.1.client_ca));
        }
    }

    /// SP-062: a CA that cannot be read is an error that says what to do, and is not replaced silently; a leaf of a
    /// missing CA is created again.
    #[test]
    fn sp_062_a_broken_ca_is_said_to_be_one() {
        let dir = tempfile::tempdir().unwrap();
        let now = SystemTime::now();
        let first = serving(dir.path(), &[], now).unwrap();
        let (cert, key) = (dir.path().join("pki/ca.crt"), dir.path().join("pki/ca.key"));
        let whole = fs::read_to_string(&cert).unwrap();
        for (path, text) in [(&cert, "nothing"), (&key, "nothing")] {
            let before = fs::read_to_string(path).unwrap();
            fs::write(path, text).unwrap();
            let error = serving(dir.path(), &[], now).err().unwrap().to_string();
            let said =
                error.contains(&path.display().to_string()) && error.contains("remove ca.crt and ca.key");
            assert!(said, "{error}");
            fs::write(path, before).unwrap();
        }
        fs::remove_file(&cert).unwrap();
        let again = serving(dir.path(), &[], now).unwrap();
        assert!(is_signed_by(&pem_of(&first), &again.ca_pem), "a key without its certificate is used");
        fs::remove_file(&key).unwrap();
        let error = serving(dir.path(), &[], now).err().unwrap().to_string();
        assert!(error.contains("ca.key: the file is missing"), "{error}");
        fs::remove_file(&cert).unwrap();
        let anew = serving(dir.path(), &[], now).unwrap();
        assert_ne!(anew.ca_pem, whole);
        assert_ne!(anew.chain, first.chain, "the old one was signed by the old CA");
    }

    fn pem_of(serving: &Serving) -> String {
        use base64::Engine as _;
        let der = base64::engine::general_purpose::STANDARD.encode(serving.chain[0].as_ref());
        format!("-----BEGIN CERTIFICATE-----\n{der}\n-----END CERTIFICATE-----\n")
    }

    /// What may be in the file of a key that is not the key: nothing, no text, another key.
    fn wrong_keys() -> [Vec<u8>; 3] {
        [Vec::new(), vec![0xff, 0xfe, 0], key().unwrap().into_bytes()]
    }

    /// SP-062: a leaf whose key is empty or another's is made anew with its key.
    #[test]
    fn sp_062_a_leaf_has_its_key() {
        let dir = tempfile::tempdir().unwrap();
        let now = SystemTime::now();
        let first = (space(dir.path(), "a", now).unwrap(), serving(dir.path(), &[], now).unwrap());
        for wrong in wrong_keys() {
            for file in ["spaces/a/admin.key", "pki/serving.key"] {
                fs::write(dir.path().join(file), &wrong).unwrap();
            }
            let (keys, serving) =
                (space(dir.path(), "a", now).unwrap(), serving(dir.path(), &[], now).unwrap());
            let admin = KeyPair::from_pem(&keys.admin_key).unwrap();
            assert!(is_key_of(&admin, &keys.admin_cert));
            let own = KeyPair::try_from(&serving.key).unwrap();
            assert!(is_key_of(&own, &pem_of(&serving)));
            assert_eq!((&keys.client_ca, &serving.ca_pem), (&first.0.client_ca, &first.1.ca_pem));
        }
    }

    /// SP-062: a CA whose key is empty or another's, and a broken key of service accounts, are refused with the name of the
    /// file, and stay.
    #[test]
    fn sp_062_keys_that_others_depend_on_are_not_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let now = SystemTime::now();
        space(dir.path(), "a", now).unwrap();
        let ca = dir.path().join("spaces/a/client-ca.key");
        for wrong in wrong_keys() {
            fs::write(&ca, &wrong).unwrap();
            let error = space(dir.path(), "a", now).err().unwrap().to_string();
            assert!(error.starts_with(&ca.display().to_string()), "{error}");
            assert_eq!(fs::read(&ca).unwrap(), wrong);
        }
        assert_eq!(made_service_account_key(dir.path(), "a").unwrap(), None);
        let tokens = dir.path().join("spaces/a/sa.key");
        fs::write(&tokens, "").unwrap();
        let error = service_account_key(dir.path(), "a", key).err().unwrap().to_string();
        assert!(error.starts_with(&tokens.display().to_string()) && error.contains("tokens"), "{error}");
    }
}
