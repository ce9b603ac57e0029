//! Service accounts for agents of add-ons that identify themselves to the hub by token (OCM-167). The agent of the cluster
//! says in the add-on's status that it wants tokens, and may ask for those of the service account made here.
//!
//! [`decide`] is pure.

use apis::{
    constants::ADDON_ANNOTATION_PREFIX,
    ocm::{ManagedClusterAddOn, addon::RegistrationConfig},
};
use k8s_openapi::{api::core::v1::ServiceAccount, apimachinery::pkg::apis::meta::v1::Condition};
use ocm_shared::{
    addon::{TOKEN_READY, cluster_group, token_account, token_subject},
    conditions::{self, condition},
    csr::CLIENT_SIGNER,
    object::{identity, name_of},
    rbac,
};
use runtime::{
    Event, Next, PartialObject,
    failure::{is_clash, is_not_found, message_of},
    rest::{Gvr, Removal},
};
use serde_json::{Value, json};

use super::{Key, Manager, addons, namespace_of};

/// Label of what is made here.
pub(super) const LABEL: &str = "addon.open-cluster-management.io/token-infrastructure";

/// What is to be done for one add-on in one cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Nothing.
    Nothing,
    /// Make what is missing, and say so in the status.
    Provide,
    /// Remove it, and what the status says about it.
    Withdraw,
}

/// Decides for an add-on. `exists` says whether its service account is there. An add-on that is being deleted keeps it: its
/// agent may have to clean up.
pub fn decide(addon: Option<&ManagedClusterAddOn>, exists: bool) -> Step {
    let Some(addon) = addon else { return if exists { Step::Withdraw } else { Step::Nothing } };
    let status = addon.status.as_ref();
    let by_token = is_by_token(addon)
        && status.is_some_and(|status| {
            status.registrations.iter().any(|registration| registration.signer_name == CLIENT_SIGNER)
        });
    let told = status.is_some_and(|status| status.conditions.iter().any(|c| c.type_ == TOKEN_READY));
    match (addon.metadata.deletion_timestamp.is_some(), by_token) {
        (true, _) => Step::Nothing,
        (false, true) => Step::Provide,
        (false, false) if exists || told => Step::Withdraw,
        (false, false) => Step::Nothing,
    }
}

/// Returns whether the agent of this add-on identifies itself by token.
pub(super) fn is_by_token(addon: &ManagedClusterAddOn) -> bool {
    addon.status.as_ref().is_some_and(|status| status.kube_client_driver == "token")
}

/// Makes the service account the subject of the identity for the hub, which is what the cluster's agent writes, too.
pub(super) fn identify(registrations: &mut [RegistrationConfig], cluster: &str, addon: &str) {
    for registration in registrations.iter_mut().filter(|one| one.signer_name == CLIENT_SIGNER) {
        registration.subject = token_subject(cluster, addon);
    }
}

/// Gives the permissions of the add-on's agent to the service account, too: tokens have no group of the add-on.
pub(super) fn with_account(mut rights: Vec<Value>, cluster: &str, addon: &str) -> Vec<Value> {
    let group = rbac::subject("Group", &cluster_group(cluster, addon));
    let account = json!({"kind": "ServiceAccount", "namespace": cluster, "name": token_account(addon)});
    for subjects in rights.iter_mut().filter_map(|right| right.get_mut("subjects")?.as_array_mut()) {
        if subjects.contains(&group) {
            subjects.push(account.clone());
        }
    }
    rights
}

fn labels(addon: &str) -> Value {
    json!({format!("{ADDON_ANNOTATION_PREFIX}/name"): addon, LABEL: "true"})
}

/// The permission of the cluster's agent to ask for tokens of one service account.
fn rights(cluster: &str, addon: &str) -> [Value; 2] {
    let name = format!("{addon}-token-role");
    let mut rule = rbac::rule("", &["serviceaccounts/token"], &["create"]);
    rule["resourceNames"] = json!([token_account(addon)]);
    [
        rbac::role(cluster, &name, labels(addon), json!([rule])),
        rbac::binding(cluster, &name, labels(addon), ("Role", &name), rbac::members(cluster)),
    ]
}

fn accounts() -> Gvr {
    Gvr::new("", "v1", "serviceaccounts")
}

impl Manager {
    pub(super) async fn token_identity(&self, cluster: &str, name: &str) -> Result<Next, kube::Error> {
        let addon = self.know.addons.get(cluster, name);
        let exists = self.know.accounts.get(cluster, &token_account(name)).is_some();
        match (decide(addon.as_deref(), exists), addon) {
            (Step::Provide, Some(addon)) => self.provide_account(cluster, &addon).await?,
            (Step::Withdraw, addon) => {
                rbac::withdraw(&self.rest, &rights(cluster, name)).await?;
                if exists {
                    match self
                        .rest
                        .delete(&accounts(), cluster, &token_account(name), &Removal::default())
                        .await
                    {
                        Err(error) if !is_not_found(&error) => return Err(error),
                        _ => {}
                    }
                }
                if let Some(addon) = addon {
                    self.tell_of_account(&addon, None).await?;
                }
            }
            _ => {}
        }
        Ok(Next::OnChange)
    }

    async fn provide_account(&self, cluster: &str, addon: &ManagedClusterAddOn) -> Result<(), kube::Error> {
        let name = name_of(addon);
        let made = async {
            let uid = self.account(cluster, name).await?;
            if uid.is_some() {
                rbac::reconcile(&self.rest, &rights(cluster, name)).await?;
            }
            Ok::<_, kube::Error>(uid)
        };
        let account = token_account(name);
        let say = |status: &str, reason: &str, message: String| {
            condition(TOKEN_READY, status, reason, message, self.now())
        };
        match made.await {
            Ok(Some(uid)) => {
                let message = format!("ServiceAccount {cluster}/{account} (UID: {uid}) is ready");
                self.tell_of_account(addon, Some(say("True", "TokenInfrastructureReady", message))).await
            }
            Ok(None) => {
                let message = format!(
                    "Failed to apply token infrastructure: the ServiceAccount {cluster}/{account} exists and is not the add-on's; delete it, or label it {LABEL}=true"
                );
                self.tell_of_account(addon, Some(say("False", "TokenInfrastructureApplyFailed", message)))
                    .await
            }
            Err(error) if is_clash(&error) => Err(error),
            Err(error) => {
                let message = format!("Failed to apply token infrastructure: {}", message_of(&error));
                self.tell_of_account(addon, Some(say("False", "TokenInfrastructureApplyFailed", message)))
                    .await?;
                Err(error)
            }
        }
    }

    /// Makes the service account if it is missing. Returns its UID; `None` if somebody else's has the name, whose rights
    /// the cluster must not get.
    async fn account(&self, cluster: &str, addon: &str) -> Result<Option<String>, kube::Error> {
        let body = json!({"apiVersion": "v1", "kind": "ServiceAccount",
            "metadata": {"name": token_account(addon), "namespace": cluster, "labels": labels(addon)}});
        let account: ServiceAccount =
            match self.rest.find(&accounts(), cluster, &token_account(addon)).await? {
                Some(found) => found,
                None => self.rest.create(&accounts(), cluster, body.to_string().into_bytes()).await?,
            };
        let ours =
            account.metadata.labels.iter().flatten().any(|(key, value)| key == LABEL && value == "true");
        Ok(account.metadata.uid.filter(|_| ours))
    }

    /// Writes or removes the condition, if that changes anything.
    async fn tell_of_account(
        &self,
        addon: &ManagedClusterAddOn,
        news: Option<Condition>,
    ) -> Result<(), kube::Error> {
        let old = addon.status.as_ref().map(|status| status.conditions.clone()).unwrap_or_default();
        let mut list = old.clone();
        match news {
            Some(news) => conditions::set(&mut list, news),
            None => list.retain(|condition| condition.type_ != TOKEN_READY),
        }
        if list == old {
            return Ok(());
        }
        let patch = json!({"metadata": identity(addon), "status": {"conditions": list}});
        self.rest
            .merge_status::<Value>(&addons(), namespace_of(addon), name_of(addon), &patch)
            .await
            .map(drop)
    }

    /// What was made here has changed, or is gone.
    pub(super) fn on_token_object(&self, event: Event<PartialObject>) {
        let Some(object) = event.object() else { return };
        let label = format!("{ADDON_ANNOTATION_PREFIX}/name");
        if let Some(addon) = object.metadata.labels.get(label.as_str()) {
            self.queue.add(Key::Token(object.metadata.namespace.to_string(), addon.to_string()));
        }
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};

    use super::*;

    /// OCM-167: who gets a service account, and who loses it.
    #[test]
    fn ocm_167_who_gets_a_service_account() {
        let addon = |driver: &str, signer: &str, told: bool| {
            let mut addon = ManagedClusterAddOn::namespaced("c1", "a");
            let status = addon.status.get_or_insert_default();
            status.kube_client_driver = driver.into();
            status.registrations =
                vec![RegistrationConfig { signer_name: signer.into(), ..RegistrationConfig::default() }];
            if told {
                status.conditions.push(condition(TOKEN_READY, "True", "x", "", Timestamp::UNIX_EPOCH));
            }
            addon
        };
        for (addon, exists, step) in [
            (addon("token", CLIENT_SIGNER, false), false, Step::Provide),
            (addon("token", CLIENT_SIGNER, true), true, Step::Provide),
            (addon("token", "example.com/signer", false), false, Step::Nothing),
            (addon("csr", CLIENT_SIGNER, false), false, Step::Nothing),
            (addon("csr", CLIENT_SIGNER, true), false, Step::Withdraw),
            (addon("csr", CLIENT_SIGNER, false), true, Step::Withdraw),
        ] {
            assert_eq!(decide(Some(&addon), exists), step, "{addon:?} {exists}");
            let mut going = addon;
            going.metadata.deletion_timestamp = Some(Time(Timestamp::UNIX_EPOCH));
            assert_eq!(decide(Some(&going), exists), Step::Nothing);
        }
        assert_eq!(decide(None, true), Step::Withdraw);
        assert_eq!(decide(None, false), Step::Nothing);
    }

    /// OCM-167: the cluster may ask for tokens of this service account only.
    #[test]
    fn ocm_167_what_the_cluster_may_do() {
        let [role, binding] = rights("c1", "a");
        assert_eq!(role["rules"].as_array().map(Vec::len), Some(1));
        assert_eq!(role["rules"][0]["resourceNames"], json!(["a-agent"]));
        assert_eq!(role["rules"][0]["verbs"], json!(["create"]));
        assert_eq!(binding["subjects"][0]["name"], "system:open-cluster-management:c1");
        assert_eq!(
            (&role["metadata"]["namespace"], &binding["metadata"]["namespace"]),
            (&json!("c1"), &json!("c1"))
        );
    }
}
