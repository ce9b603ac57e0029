//! How a kind differs from the generic resource handler. Strategies do no I/O and have no clock.

use machinery::field;
use serde_json::Value;

use crate::authz::Authorizer;
use crate::error::ApiError;
use crate::identity::UserInfo;
use crate::service_network::ServiceNetwork;

/// What a strategy can use of the request.
pub struct WriteContext<'a> {
    pub user: &'a UserInfo,
    /// RFC 3339, seconds, `Z`.
    pub now: &'a str,
    pub namespace: &'a str,
    pub dry_run: bool,
    /// Reads other objects of the space (quota, service IPs, references).
    pub lookup: &'a dyn Lookup,
    pub settings: &'a KindSettings,
}

/// What an administrator chose for built-in kinds.
#[derive(Clone, Debug)]
pub struct KindSettings {
    /// Where Services get their addresses.
    pub service_network: ServiceNetwork,
    /// A Pod needs an existing service account and mounts its token: the admission plugin `ServiceAccount`.
    pub pod_accounts: bool,
    /// Writes of objects that are stored and not enforced are answered with a warning, which a real API server does not send.
    pub unenforced_warnings: bool,
}

impl Default for KindSettings {
    fn default() -> Self {
        Self { service_network: ServiceNetwork::default(), pod_accounts: true, unenforced_warnings: false }
    }
}

/// Reads other objects of the space.
pub trait Lookup: Send + Sync {
    /// The stored object, or `None`. `namespace` is empty for cluster-scoped kinds.
    fn get(&self, group: &str, plural: &str, namespace: &str, name: &str) -> Option<Value>;
    fn list(&self, group: &str, plural: &str, namespace: Option<&str>) -> Vec<Value>;
}

/// Group, version and plural of a resource.
pub type ResourceName = (&'static str, &'static str, &'static str);

/// What is the same for all objects of a kind.
#[derive(Clone, Copy, Debug)]
pub struct Facts {
    /// The syntax of `metadata.name`.
    pub name: NameRule,
    /// PUT of an absent object creates it.
    pub create_on_update: bool,
    /// PUT without `metadata.resourceVersion` is accepted.
    pub unconditional_update: bool,
    /// A DELETE that removes the object is answered with the object instead of a `Status`.
    pub returns_deleted: bool,
    /// Which text an unknown field label gets: `true` for `field label not supported: x`, `false` for `"x" is not a
    /// known field selector: only "metadata.name", "metadata.namespace"`.
    pub own_labels: bool,
    /// Dependents are orphaned if DeleteOptions name no propagation policy.
    pub orphans: bool,
    /// The warning about a DELETE whose options name no propagation policy.
    pub unpropagated_delete: Option<&'static str>,
    /// A write may choose a value of a limited range (cluster IP, node port). Such writes run one at a time.
    pub allocates: bool,
    /// Every write is heavy work, whatever the size of its body.
    pub heavy_to_write: bool,
    /// The text of the warning for a deprecated built-in kind, without code and agent.
    pub deprecated: Option<&'static str>,
    /// How a POST is answered if objects of this kind are not stored.
    pub review: Option<Review>,
    /// The resource whose objects limit how many objects of this kind may be evicted.
    pub disruption_budgets: Option<&'static ResourceName>,
    /// The resource whose object of the same name lists what is behind an object of this kind.
    pub backends: Option<&'static ResourceName>,
}

impl Facts {
    /// Those of a kind without peculiarities.
    pub const GENERIC: Self = Self {
        name: NameRule::Subdomain,
        create_on_update: false,
        unconditional_update: true,
        returns_deleted: false,
        own_labels: false,
        orphans: false,
        unpropagated_delete: None,
        allocates: false,
        heavy_to_write: false,
        deprecated: None,
        review: None,
        disruption_budgets: None,
        backends: None,
    };
}

/// Behaviour of one kind. The default of every method is the generic behaviour. The handler applies the metadata rules
/// that all kinds share (names, labels, finalizers, uid, generation, managedFields).
pub trait Strategy: Send + Sync {
    /// What is the same for all objects of the kind.
    fn facts(&self) -> &Facts {
        &Facts::GENERIC
    }

    /// Fills in defaults that a schema cannot express. Called on every decode, after the defaults of the schema.
    fn default(&self, _obj: &mut Value) {}

    /// Clears the fields that a client may not set on create, and fills in the fields that the server sets. The
    /// handler has set `metadata.name`, `namespace`, `uid` and `creationTimestamp`.
    ///
    /// # Errors
    /// The create is refused with this error.
    fn prepare_create(&self, _cx: &WriteContext<'_>, _obj: &mut Value) -> Result<(), ApiError> {
        Ok(())
    }

    /// Called on an update of the main resource: copies the fields from `old` that such an update cannot change
    /// (typically `status`).
    fn prepare_update(&self, _cx: &WriteContext<'_>, _obj: &mut Value, _old: &Value) -> Result<(), ApiError> {
        Ok(())
    }

    /// Called on an update through a subresource (`status`, `approval`, `finalize`, ...): copies the fields from `old`
    /// that such an update cannot change.
    fn prepare_subresource_update(
        &self,
        _cx: &WriteContext<'_>,
        _subresource: &str,
        _obj: &mut Value,
        _old: &Value,
    ) -> Result<(), ApiError> {
        Ok(())
    }

    /// Called on the copy that the first DELETE is about to mark as deleted, before the handler checks whether
    /// anything keeps the object: adds finalizers, sets a phase or conditions, or refuses.
    fn prepare_delete(&self, _cx: &WriteContext<'_>, _obj: &mut Value) -> Result<(), ApiError> {
        Ok(())
    }

    /// Whether the server sets `metadata.generation` of this kind.
    fn generation(&self) -> Generation {
        Generation::FromClient
    }

    /// Whether `new` differs from `old` in a field that increments the generation. Called for [`Generation::Managed`]
    /// only.
    fn spec_changed(&self, new: &Value, old: &Value) -> bool {
        new.get("spec") != old.get("spec")
    }

    fn validate_create(&self, _cx: &WriteContext<'_>, _obj: &Value) -> Vec<field::Error> {
        Vec::new()
    }

    fn validate_update(
        &self,
        _cx: &WriteContext<'_>,
        _subresource: Option<&str>,
        _obj: &Value,
        _old: &Value,
    ) -> Vec<field::Error> {
        Vec::new()
    }

    /// Texts for `Warning: 299 - "..."` headers.
    fn warnings(&self, _obj: &Value, _old: Option<&Value>) -> Vec<String> {
        Vec::new()
    }

    /// Another such text, for servers that say what they do not enforce ([`KindSettings::unenforced_warnings`]).
    fn unenforced(&self, _obj: &Value, _old: Option<&Value>) -> Option<String> {
        None
    }

    /// The value of a field label other than metadata.name and metadata.namespace; `None` for an unknown label.
    fn field_value(&self, _obj: &Value, _label: &str) -> Option<String> {
        None
    }

    /// The field labels that [`Strategy::field_value`] knows.
    fn field_labels(&self) -> &[&'static str] {
        &[]
    }

    /// Grace period of a delete, in seconds; `None` for kinds without graceful deletion.
    fn graceful_deletion(&self, _obj: &Value, _requested: Option<i64>) -> Option<i64> {
        None
    }

    /// Whether a deleted object stays until its `finalize` subresource is written (`spec.finalizers` of a Namespace).
    fn awaits_finalize(&self, _obj: &Value) -> bool {
        false
    }

    /// Converts an object from its stored version to the requested one, or back. `from` and `to` are `apiVersion`s.
    /// The handler sets `apiVersion` and `kind` afterwards.
    fn convert(&self, _obj: &mut Value, _from: &str, _to: &str) {}

    /// Dotted paths that this endpoint never owns, whatever the body contains. Field ownership is computed from the
    /// decoded and defaulted body, before `prepare_*` runs, so nobody owns the fields that `prepare_*` fills in.
    fn reset_fields(&self, _subresource: Option<&str>) -> Vec<String> {
        Vec::new()
    }

    /// Why the object with this name may never be deleted.
    fn refuse_deletion(&self, _name: &str) -> Option<&'static str> {
        None
    }

    /// Refuses a write that grants rights which the writer does not have. `obj` is the object as it would be stored. Called
    /// before validation errors are reported, as in a stock server.
    fn check_escalation(
        &self,
        _authorizer: &Authorizer,
        _user: &UserInfo,
        _obj: &Value,
        _old: Option<&Value>,
    ) -> Result<(), ApiError> {
        Ok(())
    }

    /// Refuses an update for which the writer needs more than the verb on the resource. `obj` is the valid object as it would
    /// be stored.
    fn authorize_update(
        &self,
        _authorizer: &Authorizer,
        _user: &UserInfo,
        _subresource: Option<&str>,
        _obj: &Value,
        _old: &Value,
    ) -> Result<(), ApiError> {
        Ok(())
    }
}

/// The kinds that ask the server a question. The answer is computed from the posted object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Review {
    SelfSubjectAccess,
    SubjectAccess,
    LocalSubjectAccess,
    SelfSubjectRules,
    SelfSubject,
    Token,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Generation {
    /// The client's value is stored unchanged.
    FromClient,
    /// 1 on create; incremented by each change of the spec and by the first deletion mark.
    Managed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameRule {
    Subdomain,
    Label,
    Label1035,
    PathSegment,
}

/// The generic behaviour, for kinds without peculiarities.
pub struct Generic;

impl Strategy for Generic {}
