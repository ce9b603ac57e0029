//! The interface of an add-on's own manager, and its effect on the status of a ManagedClusterAddOn (OCM-113,
//! OCM-114, OCM-131). Pure.

use apis::{
    constants::{ADDON_ANNOTATION_PREFIX, BUILT_IN_ADDONS_ANNOTATION},
    ocm::{
        AddOnDeploymentConfig, ClusterManagementAddOn, ManagedCluster, ManagedClusterAddOn,
        addon::{RegistrationConfig, RegistrationSubject},
        work::FeedbackValue,
    },
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde_json::Value;

use ocm_shared::{
    addon::{addon_group, cluster_group, namespace},
    csr::CLIENT_SIGNER,
};

/// Condition of a ManagedClusterAddOn: the identity and the permissions of its agent on the hub are set up.
pub const REGISTRATION_APPLIED: &str = "RegistrationApplied";

/// A cluster in which an add-on is installed.
pub struct Target<'a> {
    /// The cluster.
    pub cluster: &'a ManagedCluster,
    /// The add-on in that cluster.
    pub addon: &'a ManagedClusterAddOn,
    /// Namespace of the agent in the cluster.
    pub namespace: &'a str,
    /// The AddOnDeploymentConfig in use.
    pub config: Option<&'a AddOnDeploymentConfig>,
}

impl Target<'_> {
    /// Name of the cluster.
    pub fn cluster_name(&self) -> &str {
        self.cluster.metadata.name.as_deref().unwrap_or_default()
    }
}

/// How the health of an agent is derived from the works that deploy it.
pub struct Health {
    /// Entries of a ManifestWork's `manifestConfigs`: feedback rules, and update strategies.
    pub configs: Vec<Value>,
    /// Group, resource, namespace and name of the objects to check.
    pub objects: Vec<[String; 4]>,
    /// Returns why the agent is unhealthy, from the feedback of the objects that have some.
    pub check: fn(&[Reading<'_>]) -> Result<(), String>,
}

/// The feedback about an object.
pub struct Reading<'a> {
    /// Group, resource, namespace and name.
    pub object: &'a [String; 4],
    /// The values.
    pub values: &'a [FeedbackValue],
}

/// An add-on's own manager: it determines what is installed, and the identities of the agents.
pub trait Addon: Send + Sync {
    /// Name of the add-on.
    fn name(&self) -> &str;
    /// Returns the roles and bindings for the agent of a cluster on the hub. Those in the cluster's namespace
    /// are deleted with the add-on.
    fn rights(&self, cluster: &str) -> Vec<Value>;
    /// Returns why nothing can be done about the add-on at present.
    fn obstacle(&self) -> Option<String> {
        None
    }
    /// Returns whether to wait until the add-on's configuration is settled.
    fn waits_for_configuration(&self) -> bool {
        false
    }
    /// Returns the identities of the agent of a cluster; `old` are its present ones.
    fn identities(&self, cluster: &str, old: &[RegistrationConfig]) -> Vec<RegistrationConfig> {
        let mut all = vec![kube_client(cluster, self.name(), old)];
        all.extend(self.further_identities(cluster));
        all
    }
    /// Returns the identities besides the client certificate for the hub.
    fn further_identities(&self, _cluster: &str) -> Vec<RegistrationConfig> {
        Vec::new()
    }
    /// Returns the CA with which the manager itself signs for `signer`.
    fn signing_ca(&self, _signer: &str) -> Option<SigningCa> {
        None
    }
    /// Returns the namespace of the agent in its cluster.
    fn namespace(&self, addon: &ManagedClusterAddOn, config: Option<&AddOnDeploymentConfig>) -> String {
        namespace(addon, config)
    }
    /// Returns the objects of the agent.
    ///
    /// # Errors
    ///
    /// Why there are none.
    fn manifests(&self, target: &Target<'_>) -> Result<Vec<Value>, String>;
    /// Returns how its health is derived from its works, which contain `objects`. `None` means by its lease.
    fn health(&self, _namespace: &str, _objects: &[Value]) -> Option<Health> {
        None
    }
}

/// A Secret of type `kubernetes.io/tls`.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(default)]
pub struct SigningCa {
    /// Namespace; empty means that of the hub's controllers.
    pub namespace: String,
    /// Name.
    pub name: String,
}

/// Returns whether a user is an agent of this add-on in this cluster, with no part of the name missing.
pub fn is_agent(user: &str, cluster: &str, addon: &str) -> bool {
    let agent =
        user.strip_prefix(&cluster_group(cluster, addon)).and_then(|rest| rest.strip_prefix(":agent:"));
    agent.is_some_and(|agent| !agent.is_empty() && !agent.contains(':'))
}

/// Returns whether groups are those of an agent: both of its own, and at most the additional one that older
/// frameworks request.
pub fn are_groups(groups: &[String], cluster: &str, addon: &str) -> bool {
    let own = [cluster_group(cluster, addon), addon_group(addon)];
    let others: Vec<&String> = groups.iter().filter(|group| !own.contains(group)).collect();
    own.iter().all(|group| groups.contains(group))
        && groups.len() == own.len() + others.len()
        && (others.is_empty() || others == ["system:authenticated"])
}

/// Returns the identity for the hub. A well-formed existing one is kept, so that no new certificate is needed
/// when a manager restarts or another one takes over (OCM-131).
pub fn kube_client(cluster: &str, addon: &str, old: &[RegistrationConfig]) -> RegistrationConfig {
    kube_client_as(addon, cluster, addon, old)
}

/// The same, with this default name of the agent.
pub(super) fn kube_client_as(
    agent: &str,
    cluster: &str,
    addon: &str,
    old: &[RegistrationConfig],
) -> RegistrationConfig {
    let kept = old.iter().find(|r| {
        r.signer_name == CLIENT_SIGNER
            && is_agent(&r.subject.user, cluster, addon)
            && are_groups(&r.subject.groups, cluster, addon)
    });
    kept.cloned().unwrap_or_else(|| RegistrationConfig {
        signer_name: CLIENT_SIGNER.into(),
        subject: RegistrationSubject {
            user: format!("{}:agent:{agent}", cluster_group(cluster, addon)),
            groups: vec![cluster_group(cluster, addon), addon_group(addon)],
            organization_units: Vec::new(),
        },
    })
}

/// Returns whether the add-on has an owner of its name and kind; without one, no identity is granted
/// (OCM-112).
pub fn is_owned(addon: &ManagedClusterAddOn) -> bool {
    let name = addon.metadata.name.as_deref().unwrap_or_default();
    let owners = addon.metadata.owner_references.iter().flatten();
    owners.into_iter().any(|o| {
        o.kind == "ClusterManagementAddOn"
            && o.name == name
            && o.api_version.starts_with(ADDON_ANNOTATION_PREFIX)
    })
}

/// Returns whether the general manager installs this add-on, and not its own manager.
pub fn is_managed(owner: &ClusterManagementAddOn) -> bool {
    let lifecycle = owner
        .metadata
        .annotations
        .as_ref()
        .and_then(|all| all.get(apis::constants::ADDON_LIFECYCLE_ANNOTATION));
    lifecycle.is_none_or(|who| who != "self")
}

/// Returns whether the cluster's klusterlet runs the agent of this add-on itself.
pub fn is_built_in(cluster: &ManagedCluster, addon: &str) -> bool {
    let all = cluster.metadata.annotations.as_ref().and_then(|all| all.get(BUILT_IN_ADDONS_ANNOTATION));
    all.is_some_and(|all| all.split(',').any(|name| name.trim() == addon))
}

/// Returns the annotations of a ManagedCluster that its add-ons inherit.
pub fn inherited(cluster: &ObjectMeta) -> impl Iterator<Item = (&String, &String)> {
    cluster.annotations.iter().flatten().filter(|(key, _)| key.starts_with(ADDON_ANNOTATION_PREFIX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn registration(user: &str, groups: &[&str]) -> RegistrationConfig {
        RegistrationConfig {
            signer_name: CLIENT_SIGNER.into(),
            subject: RegistrationSubject {
                user: user.into(),
                groups: groups.iter().map(|g| (*g).to_owned()).collect(),
                organization_units: Vec::new(),
            },
        }
    }

    /// OCM-A-99: a well-formed user is kept, whatever its last part; any other is replaced by the stable one.
    #[test]
    fn ocm_131_a_well_formed_user_is_kept() {
        let (own, all) = (cluster_group("c1", "a"), addon_group("a"));
        let stable = format!("{own}:agent:a");
        let groups: &[&str] = &[&own, &all];
        let three: &[&str] = &[&own, &all, "system:authenticated"];
        let cases: &[(RegistrationConfig, bool)] = &[
            (registration(&format!("{own}:agent:x7k2p"), groups), true),
            (registration(&format!("{own}:agent:x7k2p"), three), true),
            (registration(&format!("{own}:agent:"), groups), false),
            (registration(&format!("{own}:agent:a:b"), groups), false),
            (registration(&format!("{}:agent:a", cluster_group("c10", "a")), groups), false),
            (registration(&format!("{own}:agent:a1"), &[&own]), false),
            (registration(&format!("{own}:agent:a1"), &[&own, &all, "system:masters"]), false),
            (registration(&format!("{own}:agent:a1"), &[&own, &own, &all]), false),
            (registration("", &[]), false),
        ];
        for (old, kept) in cases {
            let new = kube_client("c1", "a", std::slice::from_ref(old));
            assert_eq!(new == *old, *kept, "{old:?}");
            if !kept {
                assert_eq!((new.subject.user.as_str(), new.subject.groups.len()), (stable.as_str(), 2));
            }
            assert_eq!(kube_client("c1", "a", std::slice::from_ref(&new)), new, "and then it stays");
        }
    }

    #[test]
    fn ocm_112_only_its_own_definition_owns_an_addon() {
        let owned = |api: &str, kind: &str, name: &str| {
            let mut addon = ManagedClusterAddOn::namespaced("c1", "a");
            let owner = json!({"apiVersion": api, "kind": kind, "name": name, "uid": "u"});
            addon.metadata.owner_references = Some(vec![serde_json::from_value(owner).unwrap()]);
            is_owned(&addon)
        };
        assert!(owned("addon.open-cluster-management.io/v1alpha1", "ClusterManagementAddOn", "a"));
        assert!(!owned("addon.open-cluster-management.io/v1alpha1", "ClusterManagementAddOn", "b"));
        assert!(!owned("addon.open-cluster-management.io/v1alpha1", "ManagedClusterAddOn", "a"));
        assert!(!owned("example.com/v1", "ClusterManagementAddOn", "a"));
        assert!(!is_owned(&ManagedClusterAddOn::namespaced("c1", "a")));
    }
}
