//! Decides which certificate signing requests the hub approves automatically (OCM-039). Pure.
//!
//! Labels are hints only: the request itself and its requester count.

use apis::constants::CLUSTER_NAME_LABEL;
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use rustls_pki_types::{CertificateSigningRequestDer, pem::PemObject as _};
use x509_parser::{certification_request::X509CertificationRequest, prelude::FromDer as _};

use crate::{
    rbac::{MANAGED_CLUSTERS_GROUP, SUBJECT_PREFIX},
    reserved::reserved,
};

/// The signer of client certificates.
pub const CLIENT_SIGNER: &str = "kubernetes.io/kube-apiserver-client";

/// Requesters whose first certificate is approved automatically.
#[derive(Clone, Debug, Default)]
pub struct Policy {
    /// Users whose requests are approved for any cluster; `--auto-approved-csr-users` with its gate.
    pub approved_users: Vec<String>,
    /// The user `<prefix><cluster>` may request a certificate for `<cluster>` only. For clusters whose
    /// identity this process guarantees.
    pub vouched_prefix: Option<String>,
}

/// The decision about a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Do nothing: the request is not for us, already decided, or to be decided by an administrator.
    Leave,
    /// Approve if the requester may `renew` (OCM-039).
    IfMayRenew,
    /// Approve.
    Approve,
}

/// The agent that a request is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Requested {
    /// Name of the cluster.
    pub cluster: String,
    /// Name of the agent.
    pub agent: String,
    /// The requested common name.
    pub common_name: String,
}

/// Returns common name and organisations of a PEM request; `None` if it is not a request.
pub fn subject(pem: &[u8]) -> Option<(String, Vec<String>)> {
    let der = CertificateSigningRequestDer::from_pem_slice(pem).ok()?;
    let (_, request) = X509CertificationRequest::from_der(&der).ok()?;
    let subject = &request.certification_request_info.subject;
    let text =
        |attribute: &x509_parser::x509::AttributeTypeAndValue<'_>| attribute.as_str().ok().map(str::to_owned);
    let mut names = subject.iter_common_name();
    let common_name = names.next().and_then(text)?;
    if names.next().is_some() {
        return None;
    }
    let organizations: Option<Vec<String>> = subject.iter_organization().map(text).collect();
    Some((common_name, organizations?))
}

/// Returns the agent, if the request is one for a cluster's agent. All fields must match exactly (E7, E8),
/// and the name must not be [`reserved`].
pub fn recognise(csr: &CertificateSigningRequest) -> Option<Requested> {
    let cluster = csr.metadata.labels.as_ref()?.get(CLUSTER_NAME_LABEL).filter(|c| !c.is_empty())?;
    if reserved(cluster).is_some() {
        return None;
    }
    let (common_name, organizations) = subject(&csr.spec.request.0)?;
    let mut own: Vec<&String> = organizations.iter().collect();
    if let Some(at) = own.iter().position(|o| *o == MANAGED_CLUSTERS_GROUP) {
        own.remove(at);
    }
    let [organization] = own.as_slice() else { return None };
    if organization.strip_prefix(SUBJECT_PREFIX) != Some(cluster.as_str()) {
        return None;
    }
    let mut parts = common_name.strip_prefix(SUBJECT_PREFIX)?.split(':');
    let (of, agent) = (parts.next()?, parts.next()?);
    if parts.next().is_some() || of != cluster || agent.is_empty() {
        return None;
    }
    Some(Requested { cluster: cluster.clone(), agent: agent.to_owned(), common_name: common_name.clone() })
}

/// Returns whether the request has been approved or denied.
pub fn is_decided(csr: &CertificateSigningRequest) -> bool {
    let conditions = csr.status.as_ref().and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    conditions.iter().any(|c| c.type_ == "Approved" || c.type_ == "Denied")
}

/// Decides about a request (OCM-039).
pub fn verdict(csr: &CertificateSigningRequest, policy: &Policy) -> Verdict {
    if csr.spec.signer_name != CLIENT_SIGNER || is_decided(csr) {
        return Verdict::Leave;
    }
    let Some(wanted) = recognise(csr) else { return Verdict::Leave };
    let user = csr.spec.username.as_deref().unwrap_or_default();
    if user == wanted.common_name {
        return Verdict::IfMayRenew;
    }
    let vouched = policy.vouched_prefix.as_deref().and_then(|prefix| user.strip_prefix(prefix));
    if vouched == Some(wanted.cluster.as_str()) || policy.approved_users.iter().any(|known| known == user) {
        return Verdict::Approve;
    }
    Verdict::Leave
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::{KeyPair, request};
    use k8s_openapi::{ByteString, api::certificates::v1::CertificateSigningRequestCondition};

    const PREFIX: &str = "system:open-cluster-management:";

    fn csr(label: &str, common_name: &str, organizations: &[&str], user: &str) -> CertificateSigningRequest {
        let key = KeyPair::generate().unwrap();
        let organizations: Vec<String> = organizations.iter().map(|&o| o.to_owned()).collect();
        let mut csr = CertificateSigningRequest::default();
        csr.metadata.labels = Some([(CLUSTER_NAME_LABEL.to_owned(), label.to_owned())].into());
        csr.spec.request =
            ByteString(request(&key, common_name, &organizations, &[], &[]).unwrap().into_bytes());
        csr.spec.signer_name = CLIENT_SIGNER.into();
        csr.spec.username = Some(user.into());
        csr
    }

    fn policy() -> Policy {
        Policy { approved_users: vec!["boot".into()], vouched_prefix: Some("own:".into()) }
    }

    /// OCM-A-05: requests with a wrong CN, a wrong O, one of another cluster, one too many, or no agent are
    /// left alone and never denied.
    #[test]
    fn ocm_039_only_a_well_formed_request_is_recognised() {
        let (c1, c2, all) = (format!("{PREFIX}c1"), format!("{PREFIX}c2"), MANAGED_CLUSTERS_GROUP);
        let c10 = format!("{PREFIX}c10");
        let agent = format!("{PREFIX}c1:a");
        let cases: &[(&str, &str, &[&str], bool)] = &[
            ("c1", &agent, &[&c1, all], true),
            ("c1", &agent, &[&c1], true),
            ("c1", &agent, &[all, &c1], true),
            ("c1", &agent, &[&c10, all], false),
            ("c1", &agent, &[all], false),
            ("c1", &agent, &[], false),
            ("c1", &agent, &[&c1, all, "third"], false),
            ("c1", &agent, &[&c1, &c2], false),
            ("c1", &agent, &["system:masters", all], false),
            ("c1", &format!("{PREFIX}c2:a"), &[&c2, all], false),
            ("c2", &agent, &[&c1, all], false),
            ("c1", &format!("{PREFIX}c1"), &[&c1, all], false),
            ("c1", &format!("{PREFIX}c1:"), &[&c1, all], false),
            ("c1", &format!("{PREFIX}c1:a:b"), &[&c1, all], false),
            ("c1", "c1:a", &[&c1, all], false),
            ("", &format!("{PREFIX}:a"), &[PREFIX, all], false),
            // The group of all clusters is not the group of one cluster.
            ("managed-clusters", &format!("{PREFIX}managed-clusters:a"), &[all], false),
            ("managed-clusters", &format!("{PREFIX}managed-clusters:a"), &[all, all], false),
        ];
        for (label, name, organizations, known) in cases {
            let csr = csr(label, name, organizations, "boot");
            assert_eq!(recognise(&csr).is_some(), *known, "{label} {name} {organizations:?}");
            assert_eq!(verdict(&csr, &policy()), if *known { Verdict::Approve } else { Verdict::Leave });
        }
    }

    #[test]
    fn ocm_039_what_is_no_request_is_left() {
        let mut odd = csr("c1", "x", &[], "boot");
        for text in ["", "nonsense", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"] {
            odd.spec.request = ByteString(text.as_bytes().to_vec());
            assert_eq!(verdict(&odd, &policy()), Verdict::Leave);
        }
        odd.metadata.labels = None;
        assert_eq!(recognise(&odd), None);
    }

    /// OCM-A-06: an agent renews for itself only; a bootstrap identity is trusted as far as the policy says.
    #[test]
    fn ocm_039_who_asks_decides() {
        let (agent, organizations) = (format!("{PREFIX}c1:a"), [format!("{PREFIX}c1")]);
        let organizations: Vec<&str> = organizations.iter().map(String::as_str).collect();
        let cases = [
            (agent.as_str(), Verdict::IfMayRenew),
            ("system:open-cluster-management:c1:b", Verdict::Leave),
            ("boot", Verdict::Approve),
            ("own:c1", Verdict::Approve),
            ("own:c2", Verdict::Leave),
            ("own:", Verdict::Leave),
            ("stranger", Verdict::Leave),
        ];
        for (user, wanted) in cases {
            assert_eq!(verdict(&csr("c1", &agent, &organizations, user), &policy()), wanted, "{user}");
        }
        assert_eq!(verdict(&csr("c1", &agent, &organizations, "boot"), &Policy::default()), Verdict::Leave);
        let mut other = csr("c1", &agent, &organizations, "boot");
        other.spec.signer_name = "kubernetes.io/kubelet-serving".into();
        assert_eq!(verdict(&other, &policy()), Verdict::Leave);
    }

    /// OCM-A-10: a decision by an administrator is not changed.
    #[test]
    fn ocm_039_a_decided_request_is_not_touched() {
        let mut done = csr("c1", &format!("{PREFIX}c1:a"), &[&format!("{PREFIX}c1")], "boot");
        for decision in ["Approved", "Denied"] {
            let condition = CertificateSigningRequestCondition {
                type_: decision.into(),
                ..CertificateSigningRequestCondition::default()
            };
            done.status.get_or_insert_default().conditions = Some(vec![condition]);
            assert_eq!(verdict(&done, &policy()), Verdict::Leave);
        }
    }
}
