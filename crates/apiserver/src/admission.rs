//! The seam for what a control plane built on this server demands of writes beyond schemas and kinds: what elsewhere an
//! admission webhook does, without the way over the network. It runs on the prepared object, before validation.

use serde_json::Value;

use crate::authz::{Attributes, Authorizer};
use crate::error::ApiError;
use crate::identity::UserInfo;
use crate::strategy::Lookup;

/// A write that is about to happen.
pub struct Attempt<'a> {
    /// Whose write it is.
    pub user: &'a UserInfo,
    pub group: &'a str,
    pub plural: &'a str,
    /// `None` for the object itself.
    pub subresource: Option<&'a str>,
    /// Empty for cluster-scoped objects.
    pub namespace: &'a str,
    /// RFC 3339, seconds, `Z`.
    pub now: &'a str,
    /// Other objects of the space.
    pub lookup: &'a dyn Lookup,
    pub(crate) authorizer: &'a Authorizer,
}

impl Attempt<'_> {
    /// Whether the writer may also do something else.
    pub fn may(&self, verb: &str, group: &str, resource: &str, subresource: &str, name: &str) -> bool {
        self.allows(verb, group, (resource, subresource), "", name)
    }

    /// Whether the writer may do something else in a namespace.
    pub fn may_in(&self, verb: &str, group: &str, resource: &str, namespace: &str, name: &str) -> bool {
        self.allows(verb, group, (resource, ""), namespace, name)
    }

    fn allows(
        &self,
        verb: &str,
        group: &str,
        (resource, subresource): (&str, &str),
        namespace: &str,
        name: &str,
    ) -> bool {
        let attributes = Attributes {
            verb,
            group,
            version: "*",
            resource,
            subresource,
            namespace,
            name,
            path: "",
            resource_request: true,
        };
        self.authorizer.allows(self.user, &attributes)
    }
}

/// Checks and completes writes, and knows the versions of the kinds they are about.
pub trait Admission: Send + Sync {
    /// May change `object`; an error refuses the write. `old` is what an update replaces.
    fn admit(&self, attempt: &Attempt<'_>, object: &mut Value, old: Option<&Value>) -> Result<(), ApiError>;

    /// Rewrites a custom resource of `group` from one of its versions into another, as a conversion webhook does elsewhere;
    /// without loss, for it is stored in one of them. `apiVersion` is not its concern. By default the versions have the
    /// same fields.
    fn convert(&self, _group: &str, _object: &mut Value, _from: &str, _to: &str) {}
}
