//! Decides which signing requests of add-on agents are approved (OCM-117). Pure.

use std::collections::BTreeSet;

use apis::{
    constants::{ADDON_NAME_LABEL, CLUSTER_NAME_LABEL},
    ocm::ManagedClusterAddOn,
};
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;

use super::framework::{are_groups, is_agent};
use ocm_shared::{
    csr::{CLIENT_SIGNER, is_decided, subject},
    rbac::SUBJECT_PREFIX,
};

/// Returns the cluster and the add-on that a request names.
pub fn claimed(csr: &CertificateSigningRequest) -> Option<(&str, &str)> {
    let labels = csr.metadata.labels.as_ref()?;
    let (cluster, addon) = (labels.get(CLUSTER_NAME_LABEL)?, labels.get(ADDON_NAME_LABEL)?);
    let named = csr.metadata.name.as_deref().unwrap_or_default().starts_with("addon");
    (named && !cluster.is_empty() && !addon.is_empty()).then_some((cluster, addon))
}

/// Returns whether to approve the request of an add-on's agent: it requests the subject in the add-on's
/// status, and the cluster's own agent created it.
pub fn may_approve(csr: &CertificateSigningRequest, addon: &ManagedClusterAddOn) -> bool {
    let Some((cluster, name)) = claimed(csr) else { return false };
    let meta = &addon.metadata;
    let theirs = meta.namespace.as_deref() == Some(cluster) && meta.name.as_deref() == Some(name);
    if !theirs || csr.spec.signer_name != CLIENT_SIGNER || is_decided(csr) {
        return false;
    }
    let client_only = csr
        .spec
        .usages
        .iter()
        .flatten()
        .all(|usage| matches!(usage.as_str(), "digital signature" | "key encipherment" | "client auth"));
    let Some((common_name, organizations)) = subject(&csr.spec.request.0) else { return false };
    let registered = addon
        .status
        .iter()
        .flat_map(|status| &status.registrations)
        .any(|r| r.signer_name == CLIENT_SIGNER && r.subject.user == common_name);
    client_only
        && registered
        && is_agent(&common_name, cluster, name)
        && are_groups(&organizations, cluster, name)
        && is_from(csr, cluster)
}

/// Returns whether a request is approved and waits for its certificate.
pub fn is_unsigned(csr: &CertificateSigningRequest) -> bool {
    let Some(status) = &csr.status else { return false };
    let conditions = status.conditions.as_deref().unwrap_or_default();
    status.certificate.as_ref().is_none_or(|certificate| certificate.0.is_empty())
        && conditions.iter().any(|c| c.type_ == "Approved" && c.status == "True")
        && !conditions.iter().any(|c| matches!(c.type_.as_str(), "Denied" | "Failed"))
}

/// Returns whether the cluster's own agent created the request. The colon matters: c1 is not c10.
fn is_from(csr: &CertificateSigningRequest, cluster: &str) -> bool {
    let requester = csr.spec.username.as_deref().unwrap_or_default();
    let from_cluster = requester.strip_prefix(SUBJECT_PREFIX).and_then(|r| r.strip_prefix(cluster));
    from_cluster.is_some_and(|rest| rest.strip_prefix(':').is_some_and(|agent| !agent.is_empty()))
}

/// Returns whether another signer than the hub's may sign the request: it requests exactly what the add-on's
/// status says for that signer, and the cluster's own agent created it. The approval is not checked.
pub fn may_be_signed(csr: &CertificateSigningRequest, addon: &ManagedClusterAddOn) -> bool {
    let Some((cluster, name)) = claimed(csr) else { return false };
    let meta = &addon.metadata;
    let theirs = meta.namespace.as_deref() == Some(cluster) && meta.name.as_deref() == Some(name);
    if !theirs || csr.spec.signer_name == CLIENT_SIGNER || !is_from(csr, cluster) {
        return false;
    }
    let Some((common_name, organizations)) = subject(&csr.spec.request.0) else { return false };
    let asked: BTreeSet<&String> = organizations.iter().collect();
    addon.status.iter().flat_map(|status| &status.registrations).any(|r| {
        let groups: BTreeSet<&String> = r.subject.groups.iter().collect();
        r.signer_name == csr.spec.signer_name && r.subject.user == common_name && groups == asked
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::framework::kube_client;
    use k8s_openapi::{ByteString, api::certificates::v1::CertificateSigningRequestCondition};
    use ocm_shared::{
        addon::{addon_group, cluster_group},
        request::{KeyPair, request},
    };

    fn csr(name: &str, groups: &[&str], user: &str) -> CertificateSigningRequest {
        let key = KeyPair::generate().unwrap();
        let groups: Vec<String> = groups.iter().map(|&g| g.to_owned()).collect();
        let mut csr = CertificateSigningRequest::default();
        csr.metadata.name = Some("addon-c1-a-x".into());
        let labels = [(CLUSTER_NAME_LABEL, "c1"), (ADDON_NAME_LABEL, "a")];
        csr.metadata.labels = Some(labels.map(|(k, v)| (k.to_owned(), v.to_owned())).into());
        csr.spec.request = ByteString(request(&key, name, &groups, &[], &[]).unwrap().into_bytes());
        csr.spec.signer_name = CLIENT_SIGNER.into();
        csr.spec.usages = Some(vec!["client auth".into()]);
        csr.spec.username = Some(user.into());
        csr
    }

    fn addon() -> ManagedClusterAddOn {
        let mut addon = ManagedClusterAddOn::namespaced("c1", "a");
        addon.status.get_or_insert_default().registrations = vec![kube_client("c1", "a", &[])];
        addon
    }

    /// Another signer signs what is registered for it, for the agent it is registered for.
    #[test]
    fn ocm_117_what_another_signer_may_sign() {
        let mut addon = addon();
        let mut other = kube_client("c1", "a", &[]);
        other.signer_name = "example.com/s".into();
        other.subject.user = "me".into();
        other.subject.groups = vec!["g".into(), "h".into()];
        addon.status.get_or_insert_default().registrations.push(other);
        let klusterlet = "system:open-cluster-management:c1:k";
        let asked = |name: &str, groups: &[&str], user: &str, signer: &str| {
            let mut csr = csr(name, groups, user);
            csr.spec.signer_name = signer.into();
            may_be_signed(&csr, &addon)
        };
        assert!(asked("me", &["h", "g"], klusterlet, "example.com/s"));
        assert!(!asked("me", &["h", "g"], klusterlet, "example.com/t"));
        assert!(!asked("me", &["g"], klusterlet, "example.com/s"));
        assert!(!asked("you", &["h", "g"], klusterlet, "example.com/s"));
        assert!(!asked("me", &["h", "g"], "system:open-cluster-management:c10:k", "example.com/s"));
        assert!(!asked("me", &["h", "g"], klusterlet, CLIENT_SIGNER));
    }

    /// OCM-A-86: also for a cluster whose name begins with this one's.
    #[test]
    fn ocm_117_only_the_clusters_own_agent_gets_what_is_registered() {
        let (own, all) = (cluster_group("c1", "a"), addon_group("a"));
        let agent = format!("{own}:agent:a");
        let klusterlet = "system:open-cluster-management:c1:k";
        let three = [own.as_str(), all.as_str(), "system:authenticated"];
        let cases: &[(&str, &[&str], &str, bool)] = &[
            (&agent, &three[..2], klusterlet, true),
            (&agent, &three, klusterlet, true),
            (&agent, &three[..2], "system:open-cluster-management:c10:k", false),
            (&agent, &three[..2], "system:open-cluster-management:c2:k", false),
            (&agent, &three[..2], "system:open-cluster-management:c1", false),
            (&agent, &three[..2], "system:open-cluster-management:c1:", false),
            (&agent, &three[..2], "admin", false),
            (&agent, &three[..1], klusterlet, false),
            (&agent, &[&own, &all, "system:masters"], klusterlet, false),
            (&format!("{own}:agent:other"), &three[..2], klusterlet, false),
            ("system:admin", &three[..2], klusterlet, false),
            (&format!("{}:agent:a", cluster_group("c10", "a")), &three[..2], klusterlet, false),
        ];
        for (name, groups, user, wanted) in cases {
            assert_eq!(may_approve(&csr(name, groups, user), &addon()), *wanted, "{name} {groups:?} {user}");
        }
        let good = || csr(&agent, &three[..2], klusterlet);
        let spoilt: [fn(&mut CertificateSigningRequest); 6] = [
            |c| c.metadata.name = Some("c1-x".into()),
            |c| c.metadata.labels = None,
            |c| c.spec.signer_name = "kubernetes.io/kubelet-serving".into(),
            |c| c.spec.usages = Some(vec!["server auth".into()]),
            |c| c.spec.request = ByteString(b"x".to_vec()),
            |c| {
                let denied =
                    CertificateSigningRequestCondition { type_: "Denied".into(), ..Default::default() };
                c.status.get_or_insert_default().conditions = Some(vec![denied]);
            },
        ];
        for spoil in spoilt {
            let mut csr = good();
            spoil(&mut csr);
            assert!(!may_approve(&csr, &addon()));
        }
        assert!(may_approve(&good(), &addon()));
        assert!(!may_approve(&good(), &ManagedClusterAddOn::namespaced("c1", "a")), "not registered");
        let mut elsewhere = addon();
        elsewhere.metadata.namespace = Some("c2".into());
        assert!(!may_approve(&good(), &elsewhere));
    }
}
