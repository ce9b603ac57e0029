//! Authorization: RBAC over the store (spec 8.3).

use store::SpaceStore;

use crate::error::ApiError;
use crate::identity::UserInfo;

pub mod aggregation;
mod attributes;
pub mod bootstrap;
mod escalation;
mod index;
mod rbac;
mod rules;
mod signers;

pub use aggregation::aggregate;
pub use attributes::{Attributes, Decision, RBAC_GROUP};
pub use escalation::check_escalation;
pub use rules::Rule;
pub(crate) use signers::check_signer;

use rbac::Rbac;

/// The group that may do everything.
pub const MASTERS: &str = "system:masters";
/// Authorizes requests of one space. Cheap to clone; clones share the index.
#[derive(Clone)]
pub struct Authorizer {
    mode: Mode,
}

#[derive(Clone)]
enum Mode {
    AlwaysAllow,
    Rbac(std::sync::Arc<Rbac>),
}

impl Authorizer {
    /// Allows everything; for tests and single-user spaces.
    pub fn always_allow() -> Self {
        Self { mode: Mode::AlwaysAllow }
    }

    /// Evaluates the roles and bindings of the space. A change takes effect at the next request (AS-063).
    pub fn rbac(store: SpaceStore) -> Self {
        Self { mode: Mode::Rbac(std::sync::Arc::new(Rbac::new(store))) }
    }

    /// Whether the user is in `system:masters`, or the server allows everything.
    fn is_unlimited(&self, user: &UserInfo) -> bool {
        matches!(self.mode, Mode::AlwaysAllow) || user.in_group(MASTERS)
    }

    /// The decision with its reason, as review APIs print it.
    pub fn decide(&self, user: &UserInfo, attributes: &Attributes<'_>) -> Decision {
        let Mode::Rbac(rbac) = &self.mode else {
            return Decision::Allow { reason: String::new() };
        };
        if user.in_group(MASTERS) {
            return Decision::Allow { reason: String::new() };
        }
        rbac.decide(user, attributes)
    }

    pub fn allows(&self, user: &UserInfo, attributes: &Attributes<'_>) -> bool {
        match &self.mode {
            Mode::AlwaysAllow => true,
            Mode::Rbac(rbac) => user.in_group(MASTERS) || rbac.allows(user, attributes),
        }
    }

    /// A counter that changes whenever roles or bindings have changed. Constant for users who may do everything.
    pub(crate) fn changes(&self, user: &UserInfo) -> u64 {
        match &self.mode {
            Mode::Rbac(rbac) if !user.in_group(MASTERS) => rbac.changes(),
            _ => 0,
        }
    }

    /// Allows the request, or returns the 403 answer.
    ///
    /// # Errors
    /// 403 if nothing allows the request.
    pub fn authorize(&self, user: &UserInfo, attributes: &Attributes<'_>) -> Result<(), ApiError> {
        if self.allows(user, attributes) {
            return Ok(());
        }
        match self.decide(user, attributes) {
            Decision::Allow { .. } => Ok(()),
            Decision::NoOpinion { reason } => Err(forbidden(user, attributes, &reason)),
        }
    }

    /// All rules that apply to `user` in `namespace` (if empty, cluster-wide ones only), and errors found on the way.
    pub fn rules_for(&self, user: &UserInfo, namespace: &str) -> (Vec<Rule>, Vec<String>) {
        match &self.mode {
            Mode::AlwaysAllow => (Rule::everything().to_vec(), Vec::new()),
            Mode::Rbac(rbac) => rbac.rules_for(user, namespace),
        }
    }

    /// The rules of a role; `None` if the role does not exist.
    fn role_rules(&self, cluster: bool, namespace: &str, name: &str) -> Option<Vec<Rule>> {
        match &self.mode {
            Mode::AlwaysAllow => None,
            Mode::Rbac(rbac) => rbac.role_rules(cluster, namespace, name),
        }
    }
}

/// The 403 answer for a request that nothing allows.
pub fn forbidden(user: &UserInfo, a: &Attributes<'_>, reason: &str) -> ApiError {
    let mut why = denial(user, a);
    if !reason.is_empty() {
        why.push_str(": ");
        why.push_str(reason);
    }
    if a.resource_request {
        ApiError::forbidden(a.group, a.resource, a.name, &why)
    } else {
        ApiError::forbidden("", "", "", &why)
    }
}

fn denial(user: &UserInfo, a: &Attributes<'_>) -> String {
    use machinery::field::quote;
    let name = quote(&user.name);
    let text = if a.resource_request {
        let resource = if a.subresource.is_empty() {
            a.resource.to_owned()
        } else {
            format!("{}/{}", a.resource, a.subresource)
        };
        let scope = if a.namespace.is_empty() {
            "at the cluster scope".to_owned()
        } else {
            format!("in the namespace {}", quote(a.namespace))
        };
        format!(
            "User {name} cannot {} resource {} in API group {} {scope}",
            a.verb,
            quote(&resource),
            quote(a.group)
        )
    } else {
        format!("User {name} cannot {} path {}", a.verb, quote(a.path))
    };
    // A browser may show the text.
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bob() -> UserInfo {
        UserInfo::internal("bob", &[])
    }

    fn text(a: Attributes<'_>) -> String {
        forbidden(&bob(), &a, "").message
    }

    #[test]
    fn as_063_forbidden_texts_are_those_of_kubernetes() {
        let list = Attributes {
            verb: "list",
            resource: "configmaps",
            namespace: "default",
            resource_request: true,
            ..Attributes::default()
        };
        assert_eq!(
            text(list),
            "configmaps is forbidden: User \"bob\" cannot list resource \"configmaps\" in API group \"\" in the namespace \"default\""
        );
        assert_eq!(
            text(Attributes { resource: "nodes", namespace: "", ..list }),
            "nodes is forbidden: User \"bob\" cannot list resource \"nodes\" in API group \"\" at the cluster scope"
        );
        assert_eq!(
            text(Attributes {
                verb: "create",
                resource: "serviceaccounts",
                subresource: "token",
                name: "d",
                ..list
            }),
            "serviceaccounts \"d\" is forbidden: User \"bob\" cannot create resource \"serviceaccounts/token\" in API group \"\" in the namespace \"default\""
        );
        let path = Attributes { verb: "get", path: "/foo", ..Attributes::default() };
        assert_eq!(text(path), "forbidden: User \"bob\" cannot get path \"/foo\"");
        assert_eq!(forbidden(&bob(), &path, "").status()["details"], serde_json::json!({}));
        let tagged = UserInfo { name: "<b>".into(), ..bob() };
        assert!(forbidden(&tagged, &path, "").message.contains("&lt;b&gt;"));
    }
}
