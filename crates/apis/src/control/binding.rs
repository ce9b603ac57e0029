use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::is_false;
use crate::{Condition, constants::CONTROL_GROUP, kind::kind};

kind! {
    /// Binding lists the objects that a BindingPolicy selects and the clusters they go to. It is maintained by KubeStellar, one for each policy, under the policy's name.
    Binding = CONTROL_GROUP, "v1alpha1", "bindings", ClusterResourceScope;
    always
    /// Objects and clusters.
    spec: BindingSpec;
    optional
    /// Observed state.
    status as "status": BindingStatus;
}

/// Objects and the clusters they go to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct BindingSpec {
    /// The objects.
    pub workload: DownsyncObjectClauses,
    /// The clusters.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["clusterId"]))]
    pub destinations: Vec<Destination>,
}

impl BindingSpec {
    /// The objects, those that are cluster-scoped first.
    pub fn entries(&self) -> impl Iterator<Item = BindingEntry<'_>> {
        let cluster = self.workload.cluster_scope.iter().map(BindingEntry::from);
        cluster.chain(self.workload.namespace_scope.iter().map(BindingEntry::from))
    }
}

/// The objects of a Binding.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct DownsyncObjectClauses {
    /// Cluster-scoped objects.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend(
        "x-kubernetes-list-type" = "map",
        "x-kubernetes-list-map-keys" = ["group", "resource", "name"],
    ))]
    pub cluster_scope: Vec<ClusterScopeDownsyncClause>,
    /// Namespaced objects.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend(
        "x-kubernetes-list-type" = "map",
        "x-kubernetes-list-map-keys" = ["group", "resource", "namespace", "name"],
    ))]
    pub namespace_scope: Vec<NamespaceScopeDownsyncClause>,
}

/// Refers to one cluster-scoped object at one version.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ClusterScopeDownsyncClause {
    /// API group; empty is the core group.
    #[schemars(extend("x-required" = true))]
    pub group: String,
    /// API version.
    #[schemars(extend("x-required" = true))]
    pub version: String,
    /// Lowercase plural name of the resource.
    #[schemars(extend("x-required" = true))]
    pub resource: String,
    /// Name of the object.
    #[schemars(extend("x-required" = true))]
    pub name: String,
    /// The object's resourceVersion when it was evaluated.
    #[schemars(extend("x-required" = true))]
    pub resource_version: String,
    /// Create the object in the clusters if it does not exist, and never change it.
    #[serde(skip_serializing_if = "is_false")]
    pub create_only: bool,
    /// Names of the StatusCollectors that summarise the reported state of the object.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub status_collectors: Vec<String>,
    /// Bring the object's status back from the one cluster it is sent to.
    #[serde(skip_serializing_if = "is_false")]
    pub want_singleton_reported_state: bool,
    /// Bring the object's status back, aggregated over all clusters it is sent to.
    #[serde(rename = "wantMultiWECReportedState", skip_serializing_if = "is_false")]
    pub want_multi_wec_reported_state: bool,
}

/// Refers to one namespaced object at one version.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct NamespaceScopeDownsyncClause {
    /// API group; empty is the core group.
    #[schemars(extend("x-required" = true))]
    pub group: String,
    /// API version.
    #[schemars(extend("x-required" = true))]
    pub version: String,
    /// Lowercase plural name of the resource.
    #[schemars(extend("x-required" = true))]
    pub resource: String,
    /// Namespace of the object.
    #[schemars(extend("x-required" = true))]
    pub namespace: String,
    /// Name of the object.
    #[schemars(extend("x-required" = true))]
    pub name: String,
    /// The object's resourceVersion when it was evaluated.
    #[schemars(extend("x-required" = true))]
    pub resource_version: String,
    /// Create the object in the clusters if it does not exist, and never change it.
    #[serde(skip_serializing_if = "is_false")]
    pub create_only: bool,
    /// Names of the StatusCollectors that summarise the reported state of the object.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub status_collectors: Vec<String>,
    /// Bring the object's status back from the one cluster it is sent to.
    #[serde(skip_serializing_if = "is_false")]
    pub want_singleton_reported_state: bool,
    /// Bring the object's status back, aggregated over all clusters it is sent to.
    #[serde(rename = "wantMultiWECReportedState", skip_serializing_if = "is_false")]
    pub want_multi_wec_reported_state: bool,
}

/// How an object is treated.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct DownsyncModulation {
    /// Create the object in the clusters if it does not exist, and never change it.
    #[serde(skip_serializing_if = "is_false")]
    pub create_only: bool,
    /// Names of the StatusCollectors that summarise the reported state of the object.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub status_collectors: Vec<String>,
    /// Bring the object's status back from the one cluster it is sent to.
    #[serde(skip_serializing_if = "is_false")]
    pub want_singleton_reported_state: bool,
    /// Bring the object's status back, aggregated over all clusters it is sent to.
    #[serde(rename = "wantMultiWECReportedState", skip_serializing_if = "is_false")]
    pub want_multi_wec_reported_state: bool,
}

/// One object of a Binding, whichever list it is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BindingEntry<'a> {
    /// API group; empty is the core group.
    pub group: &'a str,
    /// API version.
    pub version: &'a str,
    /// Lowercase plural name of the resource.
    pub resource: &'a str,
    /// Namespace of the object; empty for a cluster-scoped one.
    pub namespace: &'a str,
    /// Name of the object.
    pub name: &'a str,
    /// The object's resourceVersion when it was evaluated.
    pub resource_version: &'a str,
    /// Create the object in the clusters if it does not exist, and never change it.
    pub create_only: bool,
    /// Names of the StatusCollectors that summarise the reported state of the object.
    pub status_collectors: &'a [String],
    /// Bring the object's status back from the one cluster it is sent to.
    pub want_singleton_reported_state: bool,
    /// Bring the object's status back, aggregated over all clusters it is sent to.
    pub want_multi_wec_reported_state: bool,
}

impl<'a> BindingEntry<'a> {
    /// Group, resource, namespace and name: which object it is, in whatever version.
    pub fn place(&self) -> [&'a str; 4] {
        [self.group, self.resource, self.namespace, self.name]
    }
}

/// Between a clause and its entry; both have all fields in common but perhaps the namespace.
macro_rules! entries {
    ($clause:ident $(, $namespace:ident)?) => {
        impl<'a> From<&'a $clause> for BindingEntry<'a> {
            fn from(clause: &'a $clause) -> Self {
                Self {
                    group: &clause.group,
                    version: &clause.version,
                    resource: &clause.resource,
                    namespace: entries!(@ clause $($namespace)?),
                    name: &clause.name,
                    resource_version: &clause.resource_version,
                    create_only: clause.create_only,
                    status_collectors: &clause.status_collectors,
                    want_singleton_reported_state: clause.want_singleton_reported_state,
                    want_multi_wec_reported_state: clause.want_multi_wec_reported_state,
                }
            }
        }

        impl From<&BindingEntry<'_>> for $clause {
            fn from(entry: &BindingEntry<'_>) -> Self {
                Self {
                    group: entry.group.to_owned(),
                    version: entry.version.to_owned(),
                    resource: entry.resource.to_owned(),
                    $($namespace: entry.$namespace.to_owned(),)?
                    name: entry.name.to_owned(),
                    resource_version: entry.resource_version.to_owned(),
                    create_only: entry.create_only,
                    status_collectors: entry.status_collectors.to_vec(),
                    want_singleton_reported_state: entry.want_singleton_reported_state,
                    want_multi_wec_reported_state: entry.want_multi_wec_reported_state,
                }
            }
        }
    };
    (@ $clause:ident) => { "" };
    (@ $clause:ident $namespace:ident) => { &$clause.$namespace };
}
entries!(ClusterScopeDownsyncClause);
entries!(NamespaceScopeDownsyncClause, namespace);

impl DownsyncObjectClauses {
    /// Puts an entry into the list that it belongs to.
    pub fn push(&mut self, entry: &BindingEntry<'_>) {
        if entry.namespace.is_empty() {
            self.cluster_scope.push(entry.into());
        } else {
            self.namespace_scope.push(entry.into());
        }
    }
}

/// One cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct Destination {
    /// Name of the cluster in the inventory.
    #[schemars(extend("x-required" = true))]
    pub cluster_id: String,
}

/// Observed state of the Binding.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct BindingStatus {
    /// Conditions of the Binding.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
    /// Generation of the Binding that the transport controller has processed.
    #[schemars(extend("x-required" = true))]
    pub observed_generation: i64,
    /// Errors of the delivery.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<String>,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// KS-060: every entry has all its fields, and goes back into the list that it came from.
    #[test]
    fn ks_060_entries_of_both_lists() {
        let entry = |name: &str, more: serde_json::Value| {
            let mut entry = json!({"group": "apps", "version": "v1", "resource": "things", "name": name,
                "resourceVersion": "7"});
            entry.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            entry
        };
        let reported = json!({"createOnly": true, "statusCollectors": ["s"], "wantSingletonReportedState": true,
            "wantMultiWECReportedState": true});
        let mut inside = reported.clone();
        inside["namespace"] = json!("n");
        let spec: BindingSpec = serde_json::from_value(json!({"workload": {
            "clusterScope": [entry("a", json!({})), entry("b", reported)],
            "namespaceScope": [entry("a", json!({"namespace": "n"})), entry("c", inside)],
        }}))
        .unwrap();
        let places: Vec<_> = spec.entries().map(|it| it.place().join("/")).collect();
        assert_eq!(places, ["apps/things//a", "apps/things//b", "apps/things/n/a", "apps/things/n/c"]);
        let mut again = DownsyncObjectClauses::default();
        for entry in spec.entries() {
            again.push(&entry);
        }
        assert_eq!(again, spec.workload);
    }
}
