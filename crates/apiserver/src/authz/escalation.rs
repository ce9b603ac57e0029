//! Checks against privilege escalation: a user may grant only rights that the user has (spec 8.3).

use machinery::field::quote;
use serde_json::{Map, Value};

use super::rules::{describe, missing_rights, quoted_list};
use super::{Attributes, Authorizer, RBAC_GROUP, Rule};
use crate::error::ApiError;
use crate::identity::UserInfo;

/// Refuses writes of roles and bindings that would grant more than the writer has. Must be called for create and
/// update (also patch and apply) of `rbac.authorization.k8s.io` objects, with the object as it would be stored.
/// `resource` is its plural (AS-064).
///
/// # Errors
/// 403 that lists the missing rights; 404 if a binding refers to a role that does not exist.
pub fn check_escalation(
    authorizer: &Authorizer,
    user: &UserInfo,
    resource: &str,
    new: &Value,
    old: Option<&Value>,
) -> Result<(), ApiError> {
    if authorizer.is_unlimited(user) || old.is_some_and(|old| same_but_for_deletion(new, old)) {
        return Ok(());
    }
    let write = RoleWrite { authorizer, user, resource, new, old };
    match resource {
        "roles" | "clusterroles" => write.check_role(),
        "rolebindings" | "clusterrolebindings" => write.check_binding(),
        _ => Ok(()),
    }
}

struct RoleWrite<'a> {
    authorizer: &'a Authorizer,
    user: &'a UserInfo,
    resource: &'a str,
    new: &'a Value,
    old: Option<&'a Value>,
}

fn meta<'a>(object: &'a Value, key: &str) -> &'a str {
    object.get("metadata").and_then(|m| m.get(key)).and_then(Value::as_str).unwrap_or_default()
}

fn rules(object: &Value) -> Vec<Rule> {
    // The object has been decoded, so each rule parses.
    let list = object.get("rules").and_then(Value::as_array).cloned().unwrap_or_default();
    list.into_iter().filter_map(|r| serde_json::from_value(r).ok()).collect()
}

/// Whether the objects differ only in fields that affect deletion (finalizers, owner references).
fn same_but_for_deletion(new: &Value, old: &Value) -> bool {
    fn rest(object: &Value) -> Value {
        let mut object = object.clone();
        if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
            for key in ["finalizers", "ownerReferences", "managedFields", "resourceVersion", "generation"] {
                metadata.remove(key);
            }
        }
        object
    }
    rest(new) == rest(old)
}

impl RoleWrite<'_> {
    fn check_role(&self) -> Result<(), ApiError> {
        let namespace = meta(self.new, "namespace");
        let name = meta(self.new, "name");
        if self.may("escalate", self.resource, namespace, name) {
            return Ok(());
        }
        // Also if the rules stay as they are: labels decide which roles gather them, and so who gets them.
        self.check_held(namespace, &rules(self.new))?;
        let gathers = |object: &Value| object.get("aggregationRule").is_some_and(|r| !r.is_null());
        if gathers(self.new) || self.old.is_some_and(gathers) {
            let (held, _) = self.authorizer.rules_for(self.user, "");
            if missing_rights(&held, &Rule::everything()) != Ok(Vec::new()) {
                let why = "must have cluster-admin privileges to use the aggregationRule";
                return Err(ApiError::forbidden(RBAC_GROUP, self.resource, name, why));
            }
        }
        Ok(())
    }

    fn check_binding(&self) -> Result<(), ApiError> {
        let namespace = meta(self.new, "namespace");
        let empty = Value::Object(Map::new());
        let role_ref = self.new.get("roleRef").unwrap_or(&empty);
        let text = |key: &str| role_ref.get(key).and_then(Value::as_str).unwrap_or_default();
        let (kind, role) = (text("kind"), text("name"));
        let cluster = kind == "ClusterRole";
        let roles = if cluster { "clusterroles" } else { "roles" };
        if self.may("bind", roles, namespace, role) {
            return Ok(());
        }
        match self.authorizer.role_rules(cluster, namespace, role) {
            // The resource of the binding with the name of the role, as a stock server says.
            None => Err(ApiError::not_found(RBAC_GROUP, self.resource, role)),
            Some(wanted) => self.check_held(namespace, &wanted),
        }
    }

    fn may(&self, verb: &str, resource: &str, namespace: &str, name: &str) -> bool {
        let attributes = Attributes {
            verb,
            group: RBAC_GROUP,
            version: "v1",
            resource,
            namespace,
            name,
            resource_request: true,
            ..Attributes::default()
        };
        self.authorizer.allows(self.user, &attributes)
    }

    fn check_held(&self, namespace: &str, wanted: &[Rule]) -> Result<(), ApiError> {
        let (held, errors) = self.authorizer.rules_for(self.user, namespace);
        let what = match missing_rights(&held, wanted) {
            Ok(missing) if missing.is_empty() => return Ok(()),
            Ok(missing) => describe(missing),
            Err(too_many) => too_many.to_string(),
        };
        let mut why = format!(
            "user {} (groups={}) is attempting to grant RBAC permissions not currently held:\n{what}",
            quote(&self.user.name),
            quoted_list(&self.user.groups),
        );
        if !errors.is_empty() {
            why.push_str("; resolution errors: [");
            why.push_str(&errors.join(", "));
            why.push(']');
        }
        Err(ApiError::forbidden(RBAC_GROUP, self.resource, meta(self.new, "name"), &why))
    }
}
