//! The registration agent's decisions about add-ons (OCM-114, OCM-115, OCM-118). Pure.

use std::time::Duration;

use apis::ocm::{
    ManagedClusterAddOn,
    addon::{RegistrationConfig, RegistrationSubject},
};
use k8s_openapi::{
    ByteString, api::coordination::v1::Lease, apimachinery::pkg::apis::meta::v1::Condition, jiff::Timestamp,
};
use serde_json::json;
use sha2::{Digest as _, Sha256};

use super::identity::{CLUSTER_NAME, Data, Endpoint, KUBECONFIG, Subject};
use ocm_shared::{addon as names, clock::FutureTimes, conditions::condition, csr::CLIENT_SIGNER};

/// A lease is valid for five times its duration of a minute.
const FRESH: Duration = Duration::from_secs(5 * 60);

/// An identity that an add-on's agent should have, and its Secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct WantedIdentity {
    pub(super) registration: RegistrationConfig,
    pub(super) namespace: String,
    pub(super) secret: String,
    /// Lifetime in seconds of its tokens; `None` if it is a certificate.
    pub(super) tokens: Option<i64>,
}

impl WantedIdentity {
    /// Returns whether the identity is for the hub itself.
    pub(super) fn is_for_hub(&self) -> bool {
        self.registration.signer_name == CLIENT_SIGNER
    }

    /// Digest of everything whose change makes it another identity.
    pub(super) fn digest(&self, hosted: bool) -> [u8; 32] {
        let text = json!([self.registration, self.namespace, hosted]).to_string();
        Sha256::digest(text).into()
    }

    /// The subject of the certificate, exactly as registered (OCM-114).
    pub(super) fn subject(&self) -> Subject {
        let subject = &self.registration.subject;
        Subject {
            common_name: subject.user.clone(),
            organizations: subject.groups.clone(),
            units: if self.is_for_hub() { Vec::new() } else { subject.organization_units.clone() },
        }
    }

    /// Returns the content of the Secret besides the certificate.
    pub(super) fn additional(&self, cluster: &str, endpoint: &Endpoint) -> Data {
        let bytes = |text: &str| ByteString(text.as_bytes().to_vec());
        let mut data = Data::from([(CLUSTER_NAME.to_owned(), bytes(cluster))]);
        if self.is_for_hub() {
            let by_token = self.tokens.is_some();
            let text = if by_token { endpoint.token_kubeconfig() } else { endpoint.kubeconfig() };
            data.insert(KUBECONFIG.into(), bytes(&text));
        }
        data
    }
}

/// Returns the requested identities (OCM-115). What a subject lacks is as OCM has it by default: a user, and the group
/// of the add-on in the cluster, which only identities for the hub get. With `tokens`, their lifetime in seconds, those for the
/// hub are the add-on's service account (OCM-167).
pub(super) fn wanted(addon: &ManagedClusterAddOn, tokens: Option<i64>) -> Vec<WantedIdentity> {
    let name = addon.metadata.name.as_deref().unwrap_or_default();
    let cluster = addon.metadata.namespace.as_deref().unwrap_or_default();
    let Some(status) = &addon.status else { return Vec::new() };
    let namespace =
        if status.namespace.is_empty() { names::namespace(addon, None) } else { status.namespace.clone() };
    status
        .registrations
        .iter()
        .filter(|registration| !registration.signer_name.is_empty())
        .map(|registration| {
            let mut registration = registration.clone();
            let for_hub = registration.signer_name == CLIENT_SIGNER;
            let tokens = tokens.filter(|_| for_hub);
            let account = names::token_subject(cluster, name);
            if tokens.is_some() {
                registration.subject = account;
            } else if for_hub && registration.subject == account {
                // What an agent left that identified itself by token. No certificate is for a service account.
                registration.subject = RegistrationSubject::default();
            }
            let (group, subject) = (names::cluster_group(cluster, name), &mut registration.subject);
            if subject.user.is_empty() {
                subject.user = format!("{group}:agent:{name}");
            }
            if for_hub && tokens.is_none() && subject.groups.is_empty() {
                subject.groups = vec![group];
            }
            let secret = if for_hub {
                format!("{name}-hub-kubeconfig")
            } else {
                format!("{name}-{}-client-cert", registration.signer_name.replace('/', "-"))
            };
            WantedIdentity { registration, namespace: namespace.clone(), secret, tokens }
        })
        .collect()
}

/// Returns the add-on with what this agent has to say in its status: how its agent identifies itself to the hub, and with
/// tokens as whom. `None` if the status says so already, or if there is no identity for the hub.
pub(super) fn with_driver(addon: &ManagedClusterAddOn, tokens: bool) -> Option<ManagedClusterAddOn> {
    let (mut new, driver) = (addon.clone(), if tokens { "token" } else { "csr" });
    let subject = names::token_subject(
        addon.metadata.namespace.as_deref().unwrap_or_default(),
        addon.metadata.name.as_deref().unwrap_or_default(),
    );
    let status = new.status.as_mut()?;
    let mut changed = status.kube_client_driver != driver;
    driver.clone_into(&mut status.kube_client_driver);
    let mut for_hub =
        status.registrations.iter_mut().filter(|one| one.signer_name == CLIENT_SIGNER).peekable();
    for_hub.peek()?;
    for registration in for_hub.filter(|_| tokens) {
        changed |= registration.subject != subject;
        registration.subject = subject.clone();
    }
    changed.then_some(new)
}

/// Returns whether the add-on's health is determined by the lease.
pub(super) fn by_lease(addon: &ManagedClusterAddOn) -> bool {
    addon.status.as_ref().is_none_or(|status| status.health_check.mode != "Customized")
}

/// Returns the condition that follows from an add-on's lease, and how long it is valid (OCM-118). A renewal in the future
/// counts from when it was first seen.
pub(super) fn health(
    name: &str,
    lease: Option<&Lease>,
    times: &mut FutureTimes,
    now: Timestamp,
) -> (Condition, Option<Duration>) {
    let renewed = lease.and_then(|lease| lease.spec.as_ref()?.renew_time.as_ref()).map(|time| time.0);
    let renewed = renewed.map(|at| times.heard_at(name, at, now));
    let left = renewed.map(|at| {
        let end = at.as_nanosecond().saturating_add(i128::try_from(FRESH.as_nanos()).unwrap_or(i128::MAX));
        u64::try_from(end.saturating_sub(now.as_nanosecond())).ok().filter(|left| *left > 0)
    });
    let (status, reason, message, left) = match (lease, left) {
        (None, _) => (
            "Unknown",
            "ManagedClusterAddOnLeaseNotFound",
            format!("The status of {name} add-on is unknown."),
            None,
        ),
        (_, Some(Some(left))) => (
            "True",
            "ManagedClusterAddOnLeaseUpdated",
            format!("{name} add-on is available."),
            Some(Duration::from_nanos(left)),
        ),
        _ => (
            "False",
            "ManagedClusterAddOnLeaseUpdateStopped",
            format!("{name} add-on is not available."),
            None,
        ),
    };
    (condition("Available", status, reason, message, now), left)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addon(registrations: Vec<RegistrationConfig>) -> ManagedClusterAddOn {
        let mut addon = ManagedClusterAddOn::namespaced("c1", "a");
        addon.status.get_or_insert_default().registrations = registrations;
        addon
    }

    fn registration(signer: &str, user: &str, units: &[&str]) -> RegistrationConfig {
        RegistrationConfig {
            signer_name: signer.into(),
            subject: RegistrationSubject {
                user: user.into(),
                groups: if user.is_empty() {
                    vec![]
                } else {
                    vec!["g1".into(), "g2".into(), "system:authenticated".into()]
                },
                organization_units: units.iter().map(|u| (*u).to_owned()).collect(),
            },
        }
    }

    #[test]
    fn ocm_114_the_subject_is_taken_verbatim() {
        let all = wanted(
            &addon(vec![
                registration(CLIENT_SIGNER, "anyone", &["u"]),
                registration("example.com/signer", "x", &["u"]),
            ]),
            None,
        );
        assert_eq!(all[0].subject().common_name, "anyone");
        assert_eq!(all[0].subject().organizations, ["g1", "g2", "system:authenticated"]);
        assert!(all[0].subject().units.is_empty());
        assert_eq!(all[1].subject().units, ["u"]);
        let default = wanted(&addon(vec![registration(CLIENT_SIGNER, "", &[])]), None);
        assert_eq!(
            default[0].subject().common_name,
            "system:open-cluster-management:cluster:c1:addon:a:agent:a"
        );
        assert_eq!(default[0].subject().organizations, ["system:open-cluster-management:cluster:c1:addon:a"]);
        let custom = wanted(&addon(vec![registration("example.com/signer", "", &["u"])]), None);
        assert_eq!(custom[0].subject().common_name, default[0].subject().common_name);
        assert!(custom[0].subject().organizations.is_empty());
        assert_eq!(custom[0].subject().units, ["u"]);
        assert!(wanted(&addon(vec![registration("", "x", &[])]), None).is_empty());
    }

    /// OCM-167: with tokens, whoever is named before is replaced by the service account; other signers stay.
    #[test]
    fn ocm_167_the_subject_of_a_token() {
        let addon = addon(vec![
            registration(CLIENT_SIGNER, "x", &[]),
            registration("example.com/signer", "y", &["u"]),
        ]);
        let all = wanted(&addon, Some(600));
        assert_eq!(all[0].subject().common_name, "system:serviceaccount:c1:a-agent");
        assert!(all[0].subject().organizations.is_empty());
        assert_eq!((all[0].tokens, all[1].tokens), (Some(600), None));
        assert_eq!(all[1], wanted(&addon, None)[1]);
        let kubeconfig = all[0].additional("c1", &Endpoint::new("https://hub:1", "CA"))[KUBECONFIG].clone();
        let text = String::from_utf8(kubeconfig.0).unwrap();
        assert!(text.contains(r#""tokenFile":"token""#) && !text.contains("client-certificate"), "{text}");
        let told = with_driver(&addon, true).unwrap();
        let status = told.status.as_ref().unwrap();
        assert_eq!(status.kube_client_driver, "token");
        assert_eq!(status.registrations[0].subject.user, "system:serviceaccount:c1:a-agent");
        assert_eq!(status.registrations[1].subject.user, "y");
        assert_eq!(with_driver(&told, true), None);
        let back = with_driver(&told, false).unwrap();
        assert_eq!(back.status.as_ref().unwrap().kube_client_driver, "csr");
        assert_eq!(with_driver(&back, false), None);
        let user = wanted(&back, None)[0].subject().common_name;
        assert_eq!(user, "system:open-cluster-management:cluster:c1:addon:a:agent:a");
    }

    /// OCM-A-85 (names and keys).
    #[test]
    fn ocm_115_where_an_identity_is_kept() {
        let mut addon =
            addon(vec![registration(CLIENT_SIGNER, "x", &[]), registration("example.com/signer", "x", &[])]);
        let all = wanted(&addon, None);
        assert_eq!(all[0].secret, "a-hub-kubeconfig");
        assert_eq!(all[1].secret, "a-example.com-signer-client-cert");
        assert_eq!(all[0].namespace, "open-cluster-management-agent-addon");
        let keys = |w: &WantedIdentity| {
            w.additional("c1", &Endpoint::new("https://hub:1", "CA")).into_keys().collect::<Vec<_>>()
        };
        assert_eq!(keys(&all[0]), ["cluster-name", "kubeconfig"]);
        assert_eq!(keys(&all[1]), ["cluster-name"]);
        addon.spec.install_namespace = "asked".into();
        assert_eq!(wanted(&addon, None)[0].namespace, "asked");
        addon.status.as_mut().unwrap().namespace = "told".into();
        assert_eq!(wanted(&addon, None)[0].namespace, "told");
    }

    /// OCM-A-84: a change of any part makes another identity.
    #[test]
    fn ocm_115_a_changed_registration_is_another() {
        let digest = |user: &str, namespace: &str, hosted: bool| {
            let mut addon = addon(vec![registration(CLIENT_SIGNER, user, &[])]);
            addon.status.as_mut().unwrap().namespace = namespace.into();
            wanted(&addon, None)[0].digest(hosted)
        };
        let first = digest("x", "n", false);
        assert_eq!(first, digest("x", "n", false));
        for other in [digest("y", "n", false), digest("x", "m", false), digest("x", "n", true)] {
            assert_ne!(first, other);
        }
    }

    /// OCM-A-87: fresh, stale, missing.
    #[test]
    fn ocm_118_health_by_lease() {
        let now = Timestamp::from_second(100_000).unwrap();
        let lease = |ago: i64| -> Lease {
            let at = Timestamp::from_second(100_000 - ago).unwrap().to_string();
            serde_json::from_value(json!({"metadata": {"name": "a"}, "spec": {"renewTime": at}})).unwrap()
        };
        let cases = [
            (Some(lease(0)), "True", "ManagedClusterAddOnLeaseUpdated", "a add-on is available.", Some(300)),
            (Some(lease(299)), "True", "ManagedClusterAddOnLeaseUpdated", "a add-on is available.", Some(1)),
            (
                Some(lease(300)),
                "False",
                "ManagedClusterAddOnLeaseUpdateStopped",
                "a add-on is not available.",
                None,
            ),
            (
                Some(Lease::default()),
                "False",
                "ManagedClusterAddOnLeaseUpdateStopped",
                "a add-on is not available.",
                None,
            ),
            (None, "Unknown", "ManagedClusterAddOnLeaseNotFound", "The status of a add-on is unknown.", None),
        ];
        for (lease, status, reason, message, left) in cases {
            let (reported, until) = health("a", lease.as_ref(), &mut FutureTimes::default(), now);
            assert_eq!(
                (reported.status.as_str(), reported.reason.as_str(), reported.message.as_str()),
                (status, reason, message)
            );
            assert_eq!(until.map(|d| d.as_secs()), left);
        }
        // The agent's clock was ahead when it renewed its lease for the last time.
        let (ahead, mut times) = (lease(-1_000_000), FutureTimes::default());
        let status = |times: &mut FutureTimes, second: i64| {
            let (reported, until) = health("a", Some(&ahead), times, Timestamp::from_second(second).unwrap());
            (reported.status, until.map(|d| d.as_secs()))
        };
        assert_eq!(status(&mut times, 100_000), ("True".to_owned(), Some(300)));
        assert_eq!(status(&mut times, 100_300), ("False".to_owned(), None));
        let mut addon = addon(vec![]);
        assert!(by_lease(&addon));
        addon.status.as_mut().unwrap().health_check.mode = "Customized".into();
        assert!(!by_lease(&addon));
    }
}
