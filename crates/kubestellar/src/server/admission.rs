//! What an inventory space demands of writes: the hub's rules (OCM-041, OCM-042), which elsewhere are webhooks.

use std::sync::Arc;

use apis::constants::CLUSTER_GROUP;
use apiserver::admission::{Admission, Attempt};
use apiserver::error::ApiError;
use ocm::hub::admission::{Ask, Refusal, managed_cluster, set_binding};
use serde_json::Value;

/// The demands on writes in a space of this role.
pub(super) fn of_role(role: &str) -> Option<Arc<dyn Admission>> {
    (role == "its").then(|| Arc::new(Inventory) as Arc<dyn Admission>)
}

struct Inventory;

struct Asked<'a>(&'a Attempt<'a>);

impl Ask for Asked<'_> {
    fn may(&self, verb: &str, group: &str, resource: &str, subresource: &str, name: &str) -> bool {
        self.0.may(verb, group, resource, subresource, name)
    }

    fn is_terminating(&self, namespace: &str) -> bool {
        let found = self.0.lookup.get("", "namespaces", "", namespace);
        found.is_some_and(|found| found.pointer("/metadata/deletionTimestamp").is_some())
    }
}

impl Admission for Inventory {
    fn admit(&self, attempt: &Attempt<'_>, object: &mut Value, old: Option<&Value>) -> Result<(), ApiError> {
        if attempt.group != CLUSTER_GROUP || attempt.subresource.is_some() {
            return Ok(());
        }
        let (user, ask) = (attempt.user.name.as_str(), Asked(attempt));
        let answer = match attempt.plural {
            "managedclusters" => managed_cluster(object, old, user, attempt.now, &ask),
            "managedclustersetbindings" => set_binding(object, old, user, &ask),
            _ => Ok(()),
        };
        let name = object.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
        answer.map_err(|refusal| match refusal {
            Refusal::Bad(why) => ApiError::bad_request(why),
            Refusal::Forbidden(why) => ApiError::forbidden(attempt.group, attempt.plural, name, &why),
        })
    }
}
