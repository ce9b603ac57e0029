//! The resources of Open Cluster Management by their plurals, and conditions of any object.

use runtime::rest::Gvr;
use serde_json::Value;

/// The resource with this plural, in the version that OCM uses. Other plurals are taken for those of RBAC. Two have prefixes:
/// `register managedclusters` is the virtual resource that only rights name, `events.k8s.io events` are the Events of that group.
pub fn gvr(plural: &str) -> Gvr {
    let (group, version) = match plural {
        "namespaces" | "secrets" | "configmaps" | "events" | "serviceaccounts" => ("", "v1"),
        "register managedclusters" => {
            return Gvr::new("register.open-cluster-management.io", "v1", "managedclusters");
        }
        "events.k8s.io events" => return Gvr::new("events.k8s.io", "v1", "events"),
        "managedclusters" => ("cluster.open-cluster-management.io", "v1"),
        "clusterclaims" | "addonplacementscores" => ("cluster.open-cluster-management.io", "v1alpha1"),
        "managedclustersets" | "managedclustersetbindings" => {
            ("cluster.open-cluster-management.io", "v1beta2")
        }
        "placements" | "placementdecisions" => ("cluster.open-cluster-management.io", "v1beta1"),
        "managedclusteraddons" | "clustermanagementaddons" | "addondeploymentconfigs" | "addontemplates" => {
            ("addon.open-cluster-management.io", "v1alpha1")
        }
        "manifestworks" | "appliedmanifestworks" => ("work.open-cluster-management.io", "v1"),
        "workstatuses" => ("control.kubestellar.io", "v1alpha1"),
        "clusterprofiles" => ("multicluster.x-k8s.io", "v1alpha1"),
        "customresourcedefinitions" => ("apiextensions.k8s.io", "v1"),
        "certificatesigningrequests" => ("certificates.k8s.io", "v1"),
        "leases" => ("coordination.k8s.io", "v1"),
        "deployments" => ("apps", "v1"),
        "jobs" => ("batch", "v1"),
        _ => ("rbac.authorization.k8s.io", "v1"),
    };
    Gvr::new(group, version, plural)
}

/// The condition of this type; null if the object has none.
pub fn condition(object: &Value, type_: &str) -> Value {
    let all = object.pointer("/status/conditions").and_then(Value::as_array);
    all.into_iter().flatten().find(|c| c["type"] == type_).cloned().unwrap_or_default()
}
