//! The names of the agents of add-ons, on both sides. Pure.

use apis::{
    constants::OCM_ADDON_NAMESPACE,
    ocm::{
        AddOnDeploymentConfig, ManagedClusterAddOn, addon::RegistrationSubject, conversion::INSTALL_NAMESPACE,
    },
};

/// Returns the group of an add-on's agent in one cluster.
pub fn cluster_group(cluster: &str, addon: &str) -> String {
    format!("system:open-cluster-management:cluster:{cluster}:addon:{addon}")
}

/// Condition of an add-on in a cluster: its service account on the hub is ready (OCM-167).
pub const TOKEN_READY: &str = "TokenInfrastructureReady";

/// Returns the name of the service account of an add-on's agent, in the mailbox of its cluster.
pub fn token_account(addon: &str) -> String {
    format!("{addon}-agent")
}

/// The service account of an add-on's agent in the mailbox of its cluster, as the subject of its registration (OCM-167).
pub fn token_subject(cluster: &str, addon: &str) -> RegistrationSubject {
    let user = format!("system:serviceaccount:{cluster}:{}", token_account(addon));
    RegistrationSubject { user, ..RegistrationSubject::default() }
}

/// Returns the group of an add-on's agents.
pub fn addon_group(addon: &str) -> String {
    format!("system:open-cluster-management:addon:{addon}")
}

/// Returns the namespace of the agent in its cluster, by precedence (OCM-113).
pub fn namespace(addon: &ManagedClusterAddOn, config: Option<&AddOnDeploymentConfig>) -> String {
    let annotation = addon.metadata.annotations.as_ref().and_then(|all| all.get(INSTALL_NAMESPACE));
    let asked = [
        config.map(|config| config.spec.agent_install_namespace.as_str()),
        Some(addon.spec.install_namespace.as_str()),
        annotation.map(String::as_str),
    ];
    asked.into_iter().flatten().find(|name| !name.is_empty()).unwrap_or(OCM_ADDON_NAMESPACE).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ocm_113_the_namespace_by_precedence() {
        let mut addon = ManagedClusterAddOn::namespaced("c1", "a");
        let mut config = AddOnDeploymentConfig::namespaced("n", "x");
        assert_eq!(namespace(&addon, None), OCM_ADDON_NAMESPACE);
        addon.metadata.annotations = Some([(INSTALL_NAMESPACE.to_owned(), "noted".to_owned())].into());
        assert_eq!(namespace(&addon, None), "noted");
        addon.spec.install_namespace = "asked".into();
        assert_eq!(namespace(&addon, Some(&config)), "asked");
        config.spec.agent_install_namespace = "configured".into();
        assert_eq!(namespace(&addon, Some(&config)), "configured");
    }
}
