//! The identity of an agent on its hub, and its content in the agent's Secret (OCM-030, OCM-032, OCM-033).
//! Pure.

use std::{collections::BTreeMap, time::Duration};

use k8s_openapi::{ByteString, jiff::Timestamp};
use kube::config::{Cluster, Kubeconfig};
use machinery::names::dns1123_label;
use rustls_pki_types::{CertificateDer, pem::PemObject as _};
use serde_json::{Value, json};
use x509_parser::prelude::{FromDer as _, X509Certificate};

use ocm_shared::rbac::{MANAGED_CLUSTERS_GROUP, SUBJECT_PREFIX};

/// Keys of the Secret: the name of the cluster.
pub const CLUSTER_NAME: &str = "cluster-name";
/// Name of the agent.
pub const AGENT_NAME: &str = "agent-name";
/// Kubeconfig with relative file names.
pub const KUBECONFIG: &str = "kubeconfig";
/// Client certificate, PEM.
pub const CERTIFICATE: &str = "tls.crt";
/// Its key, PEM.
pub const KEY: &str = "tls.key";
/// Key of the token of an add-on in the Secret.
pub const TOKEN: &str = "token";

/// Content of a Secret.
pub type Data = BTreeMap<String, ByteString>;

/// Names of a cluster and its agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Names {
    /// Name of the cluster.
    pub cluster: String,
    /// Name of the agent.
    pub agent: String,
}

impl Names {
    /// The subject of the agent's certificate (OCM-036).
    pub fn subject(&self) -> Subject {
        Subject {
            common_name: format!("{SUBJECT_PREFIX}{}:{}", self.cluster, self.agent),
            organizations: vec![format!("{SUBJECT_PREFIX}{}", self.cluster), MANAGED_CLUSTERS_GROUP.into()],
            units: Vec::new(),
        }
    }
}

/// Subject of a certificate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Subject {
    /// CN.
    pub common_name: String,
    /// O, in any order.
    pub organizations: Vec<String>,
    /// OU, in any order.
    pub units: Vec<String>,
}

impl Subject {
    fn is(&self, other: &Self) -> bool {
        let sorted = |list: &[String]| {
            let mut list = list.to_vec();
            list.sort();
            list.dedup();
            list
        };
        self.common_name == other.common_name
            && sorted(&self.organizations) == sorted(&other.organizations)
            && sorted(&self.units) == sorted(&other.units)
    }
}

/// A cluster name that is not a valid namespace name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("metadata.name format is not correct: {0:?} is no namespace name")]
pub struct BadName(pub String);

/// Resolves the names (OCM-032): the requested ones, or those of an earlier run, or new random ones. `random`
/// returns lower-case letters and digits of the given length.
///
/// # Errors
///
/// If the cluster name is not a valid namespace name.
pub fn names(
    cluster: Option<&str>,
    agent: Option<&str>,
    kept: &Data,
    random: impl Fn(usize) -> String,
) -> Result<Names, BadName> {
    let text =
        |key: &str| kept.get(key).and_then(|v| String::from_utf8(v.0.clone()).ok()).filter(|t| !t.is_empty());
    let asked = |name: Option<&str>| name.filter(|n| !n.is_empty()).map(str::to_owned);
    let cluster = asked(cluster).or_else(|| text(CLUSTER_NAME)).unwrap_or_else(|| {
        let r = random(32);
        let part = |from: usize, to: usize| r.get(from..to).unwrap_or_default().to_owned();
        [part(0, 8), part(8, 12), part(12, 16), part(16, 20), part(20, 32)].join("-")
    });
    if !dns1123_label(&cluster).is_empty() {
        return Err(BadName(cluster));
    }
    let agent = asked(agent).or_else(|| text(AGENT_NAME)).unwrap_or_else(|| random(5));
    Ok(Names { cluster, agent })
}

/// The address of the hub: the cluster entry of the bootstrap kubeconfig's current context.
#[derive(Clone, Debug, Default)]
pub struct Endpoint {
    /// Name of the entry. If it changes, agents join again.
    pub name: String,
    /// Server address and CA.
    pub cluster: Cluster,
}

impl Endpoint {
    /// A hub at `server` with a certificate signed by `ca` (PEM).
    pub fn new(server: &str, ca: &str) -> Self {
        use base64::Engine as _;
        let encoded = base64::engine::general_purpose::STANDARD.encode(ca);
        let data = (!ca.is_empty()).then_some(encoded);
        Self {
            name: "hub".into(),
            cluster: Cluster {
                server: Some(server.into()),
                certificate_authority_data: data,
                ..Cluster::default()
            },
        }
    }

    /// Returns the hub of a kubeconfig's current context.
    pub fn of(config: &Kubeconfig) -> Option<Self> {
        let current = config.current_context.as_ref()?;
        let context = config.contexts.iter().find(|c| c.name == *current)?.context.as_ref()?;
        let entry = config.clusters.iter().find(|c| c.name == context.cluster)?;
        Some(Self { name: entry.name.clone(), cluster: entry.cluster.clone()? })
    }

    /// Returns whether an agent at the other one works for the same hub.
    fn is(&self, other: &Self) -> bool {
        let (a, b) = (&self.cluster, &other.cluster);
        self.name == other.name
            && a.server == b.server
            && a.proxy_url == b.proxy_url
            && a.certificate_authority == b.certificate_authority
            && a.certificate_authority_data == b.certificate_authority_data
    }

    /// Address of the hub.
    pub fn server(&self) -> &str {
        self.cluster.server.as_deref().unwrap_or_default()
    }

    /// Returns the kubeconfig for the Secret; certificate and key are files beside it.
    pub fn kubeconfig(&self) -> String {
        self.kubeconfig_of(&json!({"client-certificate": CERTIFICATE, "client-key": KEY}))
    }

    /// Returns the same with a token, which is a file beside it.
    pub fn token_kubeconfig(&self) -> String {
        self.kubeconfig_of(&json!({"tokenFile": TOKEN}))
    }

    fn kubeconfig_of(&self, user: &Value) -> String {
        let mut cluster = json!({"server": self.server(), "insecure-skip-tls-verify": false});
        for (key, value) in [
            ("certificate-authority", &self.cluster.certificate_authority),
            ("certificate-authority-data", &self.cluster.certificate_authority_data),
            ("proxy-url", &self.cluster.proxy_url),
            ("tls-server-name", &self.cluster.tls_server_name),
        ] {
            if let Some(value) = value {
                cluster[key] = value.as_str().into();
            }
        }
        json!({"apiVersion": "v1", "kind": "Config", "current-context": "default-context",
            "clusters": [{"name": self.name, "cluster": cluster}],
            "contexts": [{"name": "default-context",
                "context": {"cluster": self.name, "user": "default-auth", "namespace": "configuration"}}],
            "users": [{"name": "default-auth", "user": user}]})
        .to_string()
    }
}

/// The content of a certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Its subject.
    pub subject: Subject,
    /// Start of its validity.
    pub not_before: Timestamp,
    /// End of the validity of the whole chain.
    pub not_after: Timestamp,
    /// The public key info, DER.
    pub public_key: Vec<u8>,
}

/// How far this clock may be behind the hub's before a certificate counts as not valid yet. The hub checks the dates by its own
/// clock; an agent whose clock is merely slow must not ask again and again.
const LAG: Duration = Duration::from_secs(60 * 60);

impl Facts {
    /// Whether the certificate is not valid yet: the hub signed it while its clock was ahead.
    fn is_early(&self, now: Timestamp) -> bool {
        self.not_before.duration_since(now).as_secs() > LAG.as_secs().cast_signed()
    }
}

/// Parses a PEM chain, leaf first.
pub fn facts(pem: &[u8]) -> Option<Facts> {
    let chain: Vec<CertificateDer<'_>> =
        CertificateDer::pem_slice_iter(pem).collect::<Result<_, _>>().ok()?;
    let mut not_after: Option<Timestamp> = None;
    for der in &chain {
        let (_, certificate) = X509Certificate::from_der(der).ok()?;
        let end = Timestamp::from_second(certificate.validity().not_after.timestamp()).ok()?;
        not_after = Some(not_after.map_or(end, |known| known.min(end)));
    }
    let (_, leaf) = X509Certificate::from_der(chain.first()?).ok()?;
    let text = |a: &x509_parser::x509::AttributeTypeAndValue<'_>| a.as_str().unwrap_or_default().to_owned();
    Some(Facts {
        subject: Subject {
            common_name: leaf.subject().iter_common_name().next().map(text)?,
            organizations: leaf.subject().iter_organization().map(text).collect(),
            units: leaf.subject().iter_organizational_unit().map(text).collect(),
        },
        not_before: Timestamp::from_second(leaf.validity().not_before.timestamp()).ok()?,
        not_after: not_after?,
        public_key: leaf.public_key().raw.to_vec(),
    })
}

/// Parses a stored kubeconfig. OCM's agent writes YAML, this one JSON, which is YAML, too.
fn kubeconfig(text: &ByteString) -> Option<Kubeconfig> {
    Kubeconfig::from_yaml(std::str::from_utf8(&text.0).ok()?).ok()
}

/// Returns whether two stored kubeconfigs mean the same: hub, certificate and key.
fn is_same_kubeconfig(a: &ByteString, b: &ByteString) -> bool {
    let parts = |text: &ByteString| {
        let config = kubeconfig(text)?;
        let context = config.contexts.iter().find(|c| Some(&c.name) == config.current_context.as_ref())?;
        let user = context.context.as_ref()?.user.clone()?;
        let auth = config.auth_infos.iter().find(|a| a.name == user)?.auth_info.as_ref()?;
        let files = (auth.client_certificate.clone(), auth.client_key.clone(), auth.token_file.clone());
        Some((Endpoint::of(&config)?, files))
    };
    match (parts(a), parts(b)) {
        (Some((hub, files)), Some((other, others))) => hub.is(&other) && files == others,
        _ => false,
    }
}

/// Returns the content of the Secret besides the certificate.
pub fn additional(names: &Names, endpoint: &Endpoint) -> Data {
    let bytes = |text: &str| ByteString(text.as_bytes().to_vec());
    [
        (CLUSTER_NAME.to_owned(), bytes(&names.cluster)),
        (AGENT_NAME.to_owned(), bytes(&names.agent)),
        (KUBECONFIG.to_owned(), bytes(&endpoint.kubeconfig())),
    ]
    .into()
}

/// Why the stored credential is not valid for the hub (OCM-033).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Invalid {
    /// The kubeconfig is missing or names another hub.
    #[error("the kubeconfig is missing or of another hub")]
    Kubeconfig,
    /// The key is missing.
    #[error("the key is missing")]
    Key,
    /// The certificate is missing or cannot be parsed.
    #[error("the certificate is missing or cannot be read")]
    Certificate,
    /// The certificate is for another subject.
    #[error("the certificate is another agent's")]
    Subject,
    /// The certificate is not valid yet.
    #[error("the certificate is not valid yet: it was made while a clock was ahead")]
    Early,
    /// The certificate has expired.
    #[error("the certificate has expired")]
    Expired,
}

/// Checks whether the content of the Secret lets the agent work without bootstrapping.
///
/// # Errors
///
/// What is missing or wrong.
pub fn validate(data: &Data, names: &Names, endpoint: &Endpoint, now: Timestamp) -> Result<Facts, Invalid> {
    let kept = data.get(KUBECONFIG).and_then(kubeconfig);
    if !kept.as_ref().and_then(Endpoint::of).is_some_and(|kept| kept.is(endpoint)) {
        return Err(Invalid::Kubeconfig);
    }
    if data.get(KEY).is_none_or(|key| key.0.is_empty()) {
        return Err(Invalid::Key);
    }
    let facts = data.get(CERTIFICATE).and_then(|pem| facts(&pem.0)).ok_or(Invalid::Certificate)?;
    if facts.subject.common_name != names.subject().common_name {
        return Err(Invalid::Subject);
    }
    if facts.is_early(now) {
        return Err(Invalid::Early);
    }
    if now > facts.not_after {
        return Err(Invalid::Expired);
    }
    Ok(facts)
}

/// Why a new certificate is needed (OCM-037).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// There is no valid certificate.
    Certificate,
    /// The other content of the Secret is outdated.
    Additional,
    /// The certificate expires soon.
    Rotation,
}

/// Returns whether the Secret has this content besides the credential itself.
pub fn has(data: &Data, additional: &Data) -> bool {
    additional.iter().all(|(key, value)| {
        data.get(key)
            .is_some_and(|kept| kept == value || key == KUBECONFIG && is_same_kubeconfig(kept, value))
    })
}

/// Returns the part of a certificate's lifetime that must be left, for one check: drawn from [0.20, 0.25) by `chance`, a number
/// from [0, 1). While a request is pending it is the greatest, so that what led to the request still holds: a request that is
/// given up would be approved in vain, and another one asked for.
pub fn threshold(pending: bool, chance: f64) -> f64 {
    if pending { 0.25 } else { 0.20 + chance * 0.05 }
}

/// Returns whether a new certificate is needed. `threshold` is the part of the certificate's lifetime that must be left
/// ([`threshold`]).
pub fn need(
    data: &Data,
    wanted: &Subject,
    additional: &Data,
    threshold: f64,
    now: Timestamp,
) -> Option<Need> {
    let facts = data.get(CERTIFICATE).and_then(|pem| facts(&pem.0));
    let has_key = data.get(KEY).is_some_and(|key| !key.0.is_empty());
    let Some(facts) =
        facts.filter(|f| has_key && f.subject.is(wanted) && !f.is_early(now) && now <= f.not_after)
    else {
        return Some(Need::Certificate);
    };
    if !has(data, additional) {
        return Some(Need::Additional);
    }
    let left = facts.not_after.duration_since(now).as_secs_f64();
    let total = facts.not_after.duration_since(facts.not_before).as_secs_f64();
    (left <= total * threshold).then_some(Need::Rotation)
}

/// Returns how long until only this part of the certificate's lifetime is left (OCM-037), which is when to
/// check again. If less is left already, returns a hundredth of the lifetime, because the next check draws
/// another threshold. Returns `None` without a certificate.
pub fn due(data: &Data, fraction: f64, now: Timestamp) -> Option<Duration> {
    let facts = data.get(CERTIFICATE).and_then(|pem| facts(&pem.0))?;
    let seconds = |from: Timestamp| facts.not_after.duration_since(from).as_secs_f64();
    let total = seconds(facts.not_before).max(0.0);
    let wait = (seconds(now) - total * fraction).max(total / 100.0);
    Duration::try_from_secs_f64(wait).ok()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair};

    /// A certificate of a subject with one or two organisations, valid between two times.
    pub(crate) fn certificate(subject: &Subject, from: i64, to: i64) -> (String, String) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, subject.common_name.as_str());
        for (organization, kind) in subject
            .organizations
            .iter()
            .zip([DnType::OrganizationName, DnType::CustomDnType(vec![2, 5, 4, 10])])
        {
            params.distinguished_name.push(kind, organization.as_str());
        }
        let date = |second: i64| {
            rcgen::date_time_ymd(1970, 1, 1) + std::time::Duration::from_secs(second.unsigned_abs())
        };
        params.not_before = date(from);
        params.not_after = date(to);
        (params.self_signed(&key).unwrap().pem(), key.serialize_pem())
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn whole(names: &Names, endpoint: &Endpoint, from: i64, to: i64) -> Data {
        let (pem, key) = certificate(&names.subject(), from, to);
        let mut data = additional(names, endpoint);
        data.insert(CERTIFICATE.into(), ByteString(pem.into_bytes()));
        data.insert(KEY.into(), ByteString(key.into_bytes()));
        data
    }

    fn c1() -> (Names, Endpoint) {
        (Names { cluster: "c1".into(), agent: "a".into() }, Endpoint::new("https://hub:1", "CA"))
    }

    /// OCM-037: a rotation that was found due stays due until the new certificate is there, whatever is drawn.
    #[test]
    fn ocm_037_a_pending_rotation_stays_due() {
        let (names, endpoint) = c1();
        let data = whole(&names, &endpoint, 0, 1000);
        let need = |second, threshold| need(&data, &names.subject(), &Data::new(), threshold, at(second));
        assert_eq!(need(770, threshold(false, 0.0)), None);
        assert_eq!(need(770, threshold(false, 0.9)), Some(Need::Rotation));
        assert_eq!(need(771, threshold(true, 0.0)), Some(Need::Rotation));
    }

    #[test]
    fn ocm_032_names_are_asked_for_kept_or_made_up() {
        let (names_of, endpoint) = c1();
        let kept = additional(&names_of, &endpoint);
        let random = |n: usize| "x".repeat(n);
        let resolve = |c, a, kept: &Data| names(c, a, kept, random);
        assert_eq!(resolve(None, None, &kept), Ok(names_of));
        let new = resolve(Some("c2"), Some("b"), &kept).unwrap();
        assert_eq!((new.cluster.as_str(), new.agent.as_str()), ("c2", "b"));
        let made = resolve(None, None, &Data::new()).unwrap();
        assert_eq!((made.cluster.len(), made.agent.as_str()), (36, "xxxxx"));
        let long = "a".repeat(64);
        for bad in ["C1", "a.b", "-a", long.as_str(), "a b"] {
            assert_eq!(resolve(Some(bad), None, &kept), Err(BadName(bad.into())));
        }
    }

    /// OCM-A-11, OCM-A-12, OCM-A-13, OCM-A-15: with which stored content an agent continues, and with which
    /// it does not.
    #[test]
    fn ocm_033_what_is_kept_must_fit() {
        let (names, endpoint) = c1();
        let data = whole(&names, &endpoint, 100, 200);
        let check = |data: &Data, names: &Names, endpoint: &Endpoint, now| {
            validate(data, names, endpoint, at(now)).map(|_| ())
        };
        assert_eq!(check(&data, &names, &endpoint, 150), Ok(()));
        // The start of the validity is not checked; a clock that is an hour fast may still see the
        // certificate as expired.
        assert_eq!(check(&data, &names, &endpoint, 50), Ok(()));
        assert_eq!(check(&data, &names, &endpoint, 3750), Err(Invalid::Expired));
        // Made while the hub's clock was ahead.
        let ahead = i64::try_from(LAG.as_secs()).unwrap();
        assert_eq!(check(&data, &names, &endpoint, 100 - ahead), Ok(()));
        assert_eq!(check(&data, &names, &endpoint, 99 - ahead), Err(Invalid::Early));
        let wanted = names.subject();
        assert_eq!(need(&data, &wanted, &Data::new(), 0.2, at(99 - ahead)), Some(Need::Certificate));
        let renamed = Endpoint { name: "other".into(), ..endpoint.clone() };
        let moved = Endpoint::new("https://hub:2", "CA");
        let retrusted = Endpoint::new("https://hub:1", "CB");
        for other in [renamed, moved, retrusted] {
            assert_eq!(check(&data, &names, &other, 150), Err(Invalid::Kubeconfig));
        }
        for (cluster, agent) in [("c10", "a"), ("c1", "b"), ("c2", "a")] {
            let other = Names { cluster: cluster.into(), agent: agent.into() };
            assert_eq!(check(&data, &other, &endpoint, 150), Err(Invalid::Subject));
        }
        for (key, wanted) in
            [(KUBECONFIG, Invalid::Kubeconfig), (KEY, Invalid::Key), (CERTIFICATE, Invalid::Certificate)]
        {
            let mut less = data.clone();
            less.remove(key);
            assert_eq!(check(&less, &names, &endpoint, 150), Err(wanted));
            less.insert(key.into(), ByteString(b"nonsense".to_vec()));
            assert_eq!(check(&less, &names, &endpoint, 150).is_ok(), key == KEY);
        }
    }

    /// OCM-A-07, OCM-A-16: a new certificate is needed in the last fifth of the lifetime, and for some other
    /// reasons.
    #[test]
    fn ocm_037_when_a_certificate_is_asked_for() {
        let (names, endpoint) = c1();
        let data = whole(&names, &endpoint, 1000, 2000);
        let beside = additional(&names, &endpoint);
        let ask = |data: &Data, now| need(data, &names.subject(), &beside, 0.2, at(now));
        for (now, wanted) in [
            (1000, None),
            (1799, None),
            (1800, Some(Need::Rotation)),
            (1999, Some(Need::Rotation)),
            (2001, Some(Need::Certificate)),
        ] {
            assert_eq!(ask(&data, now), wanted, "{now}");
        }
        assert_eq!(need(&data, &names.subject(), &beside, 0.25, at(1760)), Some(Need::Rotation));
        assert_eq!(ask(&Data::new(), 1000), Some(Need::Certificate));
        let mut corrupt = data.clone();
        corrupt.insert(KUBECONFIG.into(), ByteString(b"?".to_vec()));
        assert_eq!(ask(&corrupt, 1000), Some(Need::Additional));
        let mut swapped = names.subject();
        swapped.organizations.reverse();
        assert_eq!(
            need(&data, &swapped, &beside, 0.2, at(1000)),
            None,
            "the order of organisations means nothing"
        );
        swapped.organizations.pop();
        assert_eq!(need(&data, &swapped, &beside, 0.2, at(1000)), Some(Need::Certificate));
    }

    /// OCM-037, OCM-057: the agent checks when the certificate may be due, however short its lifetime is, and
    /// not all the time.
    #[test]
    fn ocm_037_when_to_look_again() {
        let (names, endpoint) = c1();
        let data = whole(&names, &endpoint, 1000, 2000);
        let seconds = |now| due(&data, 0.2, at(now)).map(|wait| wait.as_secs());
        // At the earliest, the certificate ends where the test's certificates end.
        let end = facts(&data[CERTIFICATE].0).unwrap().not_after.as_second();
        let total = end - facts(&data[CERTIFICATE].0).unwrap().not_before.as_second();
        let due_at = end - total / 5;
        assert_eq!(seconds(due_at - 700), Some(700));
        assert_eq!(seconds(due_at), Some(u64::try_from(total / 100).unwrap()));
        assert_eq!(seconds(end + 1), Some(u64::try_from(total / 100).unwrap()));
        assert_eq!(due(&Data::new(), 0.2, at(0)), None);
    }

    /// OCM-030, OCM-033: what OCM's agent stored, in YAML and with its own field order, is continued and not rewritten.
    #[test]
    fn ocm_033_the_identity_of_an_agent_in_go_is_continued() {
        let (names, endpoint) = c1();
        let mut data = whole(&names, &endpoint, 1000, 2000);
        let yaml = |server: &str, certificate: &str| {
            let text = format!(
                "apiVersion: v1\nclusters:\n- cluster:\n    certificate-authority-data: Q0E=\n    server: {server}\n  name: hub\n\
                 contexts:\n- context:\n    cluster: hub\n    namespace: configuration\n    user: default-auth\n  name: default-context\n\
                 current-context: default-context\nkind: Config\npreferences: {{}}\nusers:\n- name: default-auth\n  user:\n\
                 \x20   client-certificate: {certificate}\n    client-key: tls.key\n"
            );
            ByteString(text.into_bytes())
        };
        let beside = additional(&names, &endpoint);
        let needed = |data: &Data| need(data, &names.subject(), &beside, 0.2, at(1000));
        data.insert(KUBECONFIG.into(), yaml("https://hub:1", "tls.crt"));
        assert!(validate(&data, &names, &endpoint, at(1500)).is_ok());
        assert_eq!(needed(&data), None, "it means the same");
        for (server, certificate) in [("https://hub:2", "tls.crt"), ("https://hub:1", "other.crt")] {
            data.insert(KUBECONFIG.into(), yaml(server, certificate));
            assert_eq!(needed(&data), Some(Need::Additional));
        }
        assert_eq!(
            validate(&data, &names, &Endpoint::new("https://hub:2", "CA"), at(1500)),
            Err(Invalid::Kubeconfig)
        );
    }

    #[test]
    fn ocm_030_the_kubeconfig_names_files_beside_it() {
        let (_, endpoint) = c1();
        let text: serde_json::Value = serde_json::from_str(&endpoint.kubeconfig()).unwrap();
        assert_eq!(
            text["users"][0]["user"],
            json!({"client-certificate": "tls.crt", "client-key": "tls.key"})
        );
        assert_eq!(text["contexts"][0]["context"]["namespace"], "configuration");
        assert_eq!(text["clusters"][0]["cluster"]["insecure-skip-tls-verify"], false);
        assert_eq!(text["clusters"][0]["cluster"]["server"], "https://hub:1");
    }
}
