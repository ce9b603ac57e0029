//! Names that no cluster may have (OCM-010, OCM-042). Pure.
//!
//! OCM's webhook accepts every valid namespace name. This hub refuses only the names with which a cluster
//! would get permissions that are not its own: permissions refer to names, which must not collide with those
//! of other things.

use apis::constants::{OCM_ADDON_NAMESPACE, OCM_AGENT_NAMESPACE, OCM_HUB_NAMESPACE, OCM_NAMESPACE};

/// Returns why no cluster may have this name; `None` if the name is allowed.
pub fn reserved(name: &str) -> Option<&'static str> {
    match name {
        // `system:open-cluster-management:managed-clusters`: permissions of that cluster would be granted to
        // all clusters.
        "managed-clusters" => Some("it is the group of the agents of all clusters"),
        // `open-cluster-management:managedcluster:work`: the permissions that every cluster has in its
        // mailbox, that cluster would have everywhere.
        "registration" | "work" => Some("its role would be one that all clusters share"),
        // An agent may change the leases in its mailbox, and reads what is delivered through it.
        "default" | OCM_NAMESPACE | OCM_HUB_NAMESPACE | OCM_AGENT_NAMESPACE | OCM_ADDON_NAMESPACE => {
            Some("its mailbox would be a namespace that is there for something else")
        }
        name if name.starts_with("kube-") => {
            Some("its mailbox would be a namespace of the hub's control plane")
        }
        _ => None,
    }
}

/// Returns the whole sentence for users.
pub fn complaint(name: &str, why: &str) -> String {
    format!("no cluster may be called {name:?}: {why}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rbac::{MANAGED_CLUSTERS_GROUP, Subject, on_hub};

    /// OCM-010, OCM-042: only colliding names are refused; names that merely resemble them are allowed.
    #[test]
    fn ocm_042_reserved_names_are_few() {
        for name in ["managed-clusters", "registration", "work", "default", "kube-system", "kube-x"] {
            assert!(reserved(name).is_some(), "{name}");
        }
        for name in [OCM_NAMESPACE, OCM_HUB_NAMESPACE, OCM_AGENT_NAMESPACE, OCM_ADDON_NAMESPACE] {
            assert!(reserved(name).is_some(), "{name}");
        }
        for name in
            ["c1", "works", "kube", "kubernetes", "local-cluster", "default1", "open-cluster-management-x"]
        {
            assert_eq!(reserved(name), None, "{name}");
        }
    }

    /// A cluster with such a name would be granted permissions of something else.
    #[test]
    fn ocm_042_what_collides_is_reserved() {
        let groups = Subject::klusterlet("managed-clusters", "a").groups;
        assert!(groups.iter().all(|group| group == MANAGED_CLUSTERS_GROUP));
        let named = |cluster: &str| -> Vec<String> {
            let roles = on_hub(cluster).into_iter().filter(|object| object["kind"] == "ClusterRole");
            roles.map(|role| role["metadata"]["name"].as_str().unwrap_or_default().to_owned()).collect()
        };
        for (cluster, distinct) in [("c1", 3), ("work", 2), ("registration", 2)] {
            let mut names = named(cluster);
            names.sort();
            names.dedup();
            assert_eq!(names.len(), distinct, "{cluster}");
        }
    }
}
