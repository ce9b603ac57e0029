//! Admission of the control plane that is built on this server, as an admission webhook does it elsewhere, without a
//! network call. It runs on the prepared object, before validation.

use serde_json::Value;

use crate::authz::{Attributes, Authorizer};
use crate::error::ApiError;
use crate::identity::UserInfo;
use crate::strategy::Lookup;

/// A write that asks for admission.
pub struct AdmissionRequest<'a> {
    /// The writer.
    pub user: &'a UserInfo,
    pub group: &'a str,
    pub plural: &'a str,
    /// `None` for the object itself.
    pub subresource: Option<&'a str>,
    /// Empty for cluster-scoped objects.
    pub namespace: &'a str,
    /// RFC 3339, seconds, `Z`.
    pub now: &'a str,
    /// Reads other objects of the space.
    pub lookup: &'a dyn Lookup,
    pub(crate) authorizer: &'a Authorizer,
}

impl AdmissionRequest<'_> {
    /// Whether the writer has another right, at the cluster scope.
    pub fn may(&self, verb: &str, group: &str, resource: &str, subresource: &str, name: &str) -> bool {
        self.allows(verb, group, (resource, subresource), "", name)
    }

    /// Whether the writer has another right in a namespace.
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

/// Checks and completes writes, and converts custom resources between versions.
pub trait Admission: Send + Sync {
    /// Admits a write; may change `object`. `old` is the object that an update replaces.
    ///
    /// # Errors
    /// The write is refused with this error.
    fn admit(
        &self,
        attempt: &AdmissionRequest<'_>,
        object: &mut Value,
        old: Option<&Value>,
    ) -> Result<(), ApiError>;

    /// Converts a custom resource of `group` between versions, as a conversion webhook does elsewhere. The conversion
    /// must lose nothing, because objects are stored in one of the versions. The caller sets `apiVersion`. The default
    /// is for versions with the same fields.
    fn convert(&self, _group: &str, _object: &mut Value, _from: &str, _to: &str) {}

    /// Returns whether objects of this CustomResourceDefinition go through [`Admission::convert`].
    fn converts(&self, _definition: &Value) -> bool {
        true
    }
}
