//! The identities of a template's agents, and their permissions on the hub. Pure.

use apis::{
    constants::{ADDON_GROUP, ADDON_NAME_LABEL, CLUSTER_NAME_LABEL},
    ocm::{
        ManagedClusterAddOn,
        addon::{RegistrationConfig, RegistrationSubject},
    },
};
use serde::Deserialize;
use serde_json::{Value, json};

use crate::framework::{SigningCa, kube_client_as};
use ocm_shared::{addon::cluster_group, rbac};

/// Label of the objects that a template creates on the hub.
pub(crate) const TEMPLATE_LABEL: &str = "open-cluster-management.io/addon-template-name";

/// Secret with an agent's kubeconfig of the hub.
pub(super) fn kubeconfig_secret(addon: &str) -> String {
    format!("{addon}-hub-kubeconfig")
}

/// Secret with a certificate of another signer.
pub(super) fn signed_secret(addon: &str, signer: &str) -> String {
    format!("{addon}-{}-client-cert", signer.replace('/', "-"))
}

/// An entry of a template's `registration`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Registration {
    #[serde(rename = "type")]
    type_: String,
    kube_client: Option<KubeClient>,
    custom_signer: Option<CustomSigner>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct KubeClient {
    hub_permissions: Vec<Permission>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Permission {
    #[serde(rename = "type")]
    type_: String,
    current_cluster: Option<CurrentCluster>,
    single_namespace: Option<SingleNamespace>,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct CurrentCluster {
    cluster_role_name: String,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct SingleNamespace {
    namespace: String,
    role_ref: RoleRef,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
struct RoleRef {
    kind: String,
    name: String,
}

/// An identity from another signer than the hub's.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct CustomSigner {
    signer_name: String,
    subject: Option<Subject>,
    /// The Secret with certificate and key of the signer.
    #[serde(rename = "signingCA")]
    pub(crate) signing_ca: SigningCa,
}

#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
struct Subject {
    user: String,
    groups: Vec<String>,
    #[serde(rename = "organizationUnit", alias = "organizationUnits")]
    organization_units: Vec<String>,
}

impl Registration {
    pub(super) fn is_kube_client(&self) -> bool {
        self.type_ == "KubeClient"
    }

    pub(super) fn custom(&self) -> Option<&CustomSigner> {
        self.custom_signer.as_ref().filter(|_| self.type_ == "CustomSigner")
    }

    /// Returns the signer, if that is not the hub's.
    pub(super) fn signer(&self) -> Option<&str> {
        self.custom().map(|custom| custom.signer_name.as_str())
    }

    /// Checks that nothing is missing.
    ///
    /// # Errors
    ///
    /// A text for the user.
    pub(super) fn check(&self) -> Result<(), String> {
        match self.type_.as_str() {
            "KubeClient" => {
                let all = self.kube_client.iter().flat_map(|client| &client.hub_permissions);
                all.into_iter().try_for_each(|permission| {
                    let missing = match permission.type_.as_str() {
                        "CurrentCluster" => permission.current_cluster.is_none().then_some("current cluster"),
                        "SingleNamespace" => {
                            permission.single_namespace.is_none().then_some("single namespace")
                        }
                        other => return Err(format!("the HubPermission type {other:?} is not known")),
                    };
                    missing.map_or(Ok(()), |what| {
                        Err(format!("{what} is required when the HubPermission type is {}", permission.type_))
                    })
                })
            }
            "CustomSigner" if self.custom_signer.is_none() => Err("custom signer is nil".into()),
            "CustomSigner" => Ok(()),
            other => Err(format!("the registration type {other:?} is not known")),
        }
    }
}

/// Returns the identities of an agent. A well-formed existing one for the hub is kept (OCM-131).
pub(super) fn identities(
    registrations: &[Registration],
    cluster: &str,
    addon: &str,
    old: &[RegistrationConfig],
) -> Vec<RegistrationConfig> {
    let agent = format!("{addon}-agent");
    let standard = || kube_client_as(&agent, cluster, addon, old);
    let mut all: Vec<RegistrationConfig> = Vec::new();
    for registration in registrations {
        let identity = if registration.is_kube_client() {
            standard()
        } else if let Some(custom) = registration.custom() {
            let subject = match &custom.subject {
                Some(subject) => RegistrationSubject {
                    user: subject.user.clone(),
                    groups: subject.groups.clone(),
                    organization_units: subject.organization_units.clone(),
                },
                None => kube_client_as(&agent, cluster, addon, &[]).subject,
            };
            RegistrationConfig { signer_name: custom.signer_name.clone(), subject }
        } else {
            continue;
        };
        if !all.contains(&identity) {
            all.push(identity);
        }
    }
    all
}

/// Returns the bindings that grant an agent its permissions on the hub.
///
/// A binding in another namespace than the cluster's has the cluster in its name: agents of several clusters
/// may request the same permission, and each binding is deleted separately.
pub(super) fn rights(
    registrations: &[Registration],
    cluster: &str,
    addon: &ManagedClusterAddOn,
) -> Vec<Value> {
    let name = addon.metadata.name.as_deref().unwrap_or_default();
    let owner = json!([{"apiVersion": format!("{ADDON_GROUP}/v1alpha1"), "kind": "ManagedClusterAddOn",
        "name": name, "uid": addon.metadata.uid}]);
    let labels = json!({ADDON_NAME_LABEL: name, CLUSTER_NAME_LABEL: cluster, TEMPLATE_LABEL: ""});
    let subjects = json!([{"kind": "Group", "apiGroup": "rbac.authorization.k8s.io", "name": cluster_group(cluster, name)}]);
    let mut all: Vec<Value> = Vec::new();
    let clients = registrations.iter().filter(|r| r.is_kube_client()).filter_map(|r| r.kube_client.as_ref());
    for permission in clients.flat_map(|client| &client.hub_permissions) {
        let (namespace, kind, role) =
            match (permission.type_.as_str(), &permission.current_cluster, &permission.single_namespace) {
                ("CurrentCluster", Some(here), _) => {
                    (cluster, "ClusterRole", here.cluster_role_name.as_str())
                }
                ("SingleNamespace", _, Some(there)) => {
                    (there.namespace.as_str(), there.role_ref.kind.as_str(), there.role_ref.name.as_str())
                }
                _ => continue,
            };
        let mut title = format!("open-cluster-management:{name}:{}:agent", kind.to_lowercase());
        if namespace != cluster {
            title = format!("{title}:{cluster}");
        }
        // A binding has one role: a further one of this kind gets another name.
        if all.iter().any(|b| b["metadata"]["name"] == title && b["metadata"]["namespace"] == namespace) {
            title = format!("{title}:{role}");
        }
        let mut binding = rbac::binding(namespace, &title, labels.clone(), (kind, role), subjects.clone());
        if namespace == cluster {
            binding["metadata"]["ownerReferences"] = owner.clone();
        }
        all.push(binding);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use ocm_shared::addon::addon_group;

    fn read(value: Value) -> Vec<Registration> {
        serde_json::from_value(value).unwrap()
    }

    /// OCM-113, OCM-114: identities as in the original; an existing well-formed one is kept.
    #[test]
    fn ocm_113_identities_of_a_template() {
        let both = read(
            json!([{"type": "KubeClient"}, {"type": "CustomSigner", "customSigner": {"signerName": "example.com/s",
            "signingCA": {"name": "ca"}}}, {"type": "CustomSigner", "customSigner": {"signerName": "example.com/t",
            "subject": {"user": "me", "groups": ["g"], "organizationUnit": ["u"]}}}]),
        );
        let all = identities(&both, "c1", "hello", &[]);
        let user = "system:open-cluster-management:cluster:c1:addon:hello:agent:hello-agent";
        let signers: Vec<&str> = all.iter().map(|i| i.signer_name.as_str()).collect();
        assert_eq!(signers, ["kubernetes.io/kube-apiserver-client", "example.com/s", "example.com/t"]);
        assert_eq!((all[0].subject.user.as_str(), all[1].subject.user.as_str()), (user, user));
        assert_eq!(all[0].subject.groups, [cluster_group("c1", "hello"), addon_group("hello")]);
        assert_eq!((all[2].subject.user.as_str(), all[2].subject.organization_units.len()), ("me", 1));
        let mut kept = all[0].clone();
        kept.subject.user = user.replace("hello-agent", "other");
        assert_eq!(identities(&both, "c1", "hello", std::slice::from_ref(&kept))[0], kept);
        assert!(identities(&[], "c1", "hello", &[]).is_empty());
        assert_eq!(both[1].custom().unwrap().signing_ca.name, "ca");
    }

    /// OCM-113: permissions in the cluster's namespace are deleted with the add-on; those elsewhere are
    /// separate for each cluster.
    #[test]
    fn ocm_113_rights_of_a_template() {
        let mut addon = ManagedClusterAddOn::namespaced("c1", "hello");
        addon.metadata.uid = Some("u".into());
        let here =
            |role: &str| json!({"type": "CurrentCluster", "currentCluster": {"clusterRoleName": role}});
        let there = json!({"type": "SingleNamespace", "singleNamespace": {"namespace": "shared",
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "reader"}}});
        let all = rights(
            &read(
                json!([{"type": "KubeClient", "kubeClient": {"hubPermissions": [here("one"), here("two"), there]}}]),
            ),
            "c1",
            &addon,
        );
        let place = |b: &Value| {
            format!(
                "{}/{}",
                b["metadata"]["namespace"].as_str().unwrap(),
                b["metadata"]["name"].as_str().unwrap()
            )
        };
        assert_eq!(
            all.iter().map(place).collect::<Vec<_>>(),
            [
                "c1/open-cluster-management:hello:clusterrole:agent",
                "c1/open-cluster-management:hello:clusterrole:agent:two",
                "shared/open-cluster-management:hello:role:agent:c1"
            ]
        );
        assert_eq!(all[0]["roleRef"]["name"], "one");
        assert_eq!(all[0]["metadata"]["ownerReferences"][0]["uid"], "u");
        assert!(all[2]["metadata"].get("ownerReferences").is_none());
        let group = "system:open-cluster-management:cluster:c1:addon:hello";
        assert!(
            all.iter()
                .all(|b| b["subjects"].as_array().unwrap().len() == 1 && b["subjects"][0]["name"] == group)
        );
    }

    #[test]
    fn ocm_113_what_a_registration_lacks_is_told() {
        let wrong = [
            (
                json!({"type": "KubeClient", "kubeClient": {"hubPermissions": [{"type": "CurrentCluster"}]}}),
                "current cluster is required when the HubPermission type is CurrentCluster",
            ),
            (
                json!({"type": "KubeClient", "kubeClient": {"hubPermissions": [{"type": "SingleNamespace"}]}}),
                "single namespace is required when the HubPermission type is SingleNamespace",
            ),
            (json!({"type": "CustomSigner"}), "custom signer is nil"),
            (json!({"type": "Other"}), "the registration type \"Other\" is not known"),
        ];
        for (registration, why) in wrong {
            assert_eq!(read(json!([registration]))[0].check(), Err(why.to_owned()));
        }
        assert_eq!(read(json!([{"type": "KubeClient"}]))[0].check(), Ok(()));
    }
}
