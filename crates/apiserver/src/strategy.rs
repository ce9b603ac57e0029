//! What a kind does differently from the generic resource handler. Pure: no I/O, no clock of its own.

use machinery::field;
use serde_json::Value;

use crate::authz::Authorizer;
use crate::error::ApiError;
use crate::identity::UserInfo;

/// What a strategy may know about the request.
pub struct WriteContext<'a> {
    pub user: &'a UserInfo,
    /// RFC 3339, seconds, `Z`.
    pub now: &'a str,
    pub namespace: &'a str,
    pub dry_run: bool,
    /// Read-only look at other objects of the space (quota, service IPs, references).
    pub lookup: &'a dyn Lookup,
}

/// Reads of other objects during admission.
pub trait Lookup: Send + Sync {
    /// The object as stored, or `None`. `namespace` is empty for cluster-scoped kinds.
    fn get(&self, group: &str, plural: &str, namespace: &str, name: &str) -> Option<Value>;
    fn list(&self, group: &str, plural: &str, namespace: Option<&str>) -> Vec<Value>;
}

/// Per-kind behaviour; every method has the generic behaviour as its default. Metadata rules common to all
/// kinds (names, labels, finalizers, uid, generation bookkeeping, managedFields) are done by the handler.
pub trait Strategy: Send + Sync {
    /// Defaults that a schema cannot say; called after schema defaults, on every decode.
    fn default(&self, _obj: &mut Value) {}

    /// Clears what a client may not set on create, fills what the server decides. Errors refuse the request.
    /// The handler has set `metadata.name`, `namespace`, `uid` and `creationTimestamp` before.
    fn prepare_create(&self, _cx: &WriteContext<'_>, _obj: &mut Value) -> Result<(), ApiError> {
        Ok(())
    }

    /// Update of the main resource: copy from `old` what this way cannot change (typically `status`).
    fn prepare_update(&self, _cx: &WriteContext<'_>, _obj: &mut Value, _old: &Value) -> Result<(), ApiError> {
        Ok(())
    }

    /// Update through a subresource (`status`, `approval`, `finalize`, ...): copy all it cannot change.
    fn prepare_subresource_update(
        &self,
        _cx: &WriteContext<'_>,
        _subresource: &str,
        _obj: &mut Value,
        _old: &Value,
    ) -> Result<(), ApiError> {
        Ok(())
    }

    /// Called on the copy that a first DELETE is about to mark as deleted, before it is decided whether anything keeps
    /// the object: add finalizers, set a phase or conditions, or refuse.
    fn prepare_delete(&self, _cx: &WriteContext<'_>, _obj: &mut Value) -> Result<(), ApiError> {
        Ok(())
    }

    /// Whether this kind has `metadata.generation`, and whether this change moves it on.
    fn generation(&self) -> Generation {
        Generation::Unmanaged
    }

    /// Whether `new` differs from `old` in what generation counts (called only when managed).
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

    /// Which syntax `metadata.name` has.
    fn name_rule(&self) -> NameRule {
        NameRule::Subdomain
    }

    /// PUT on an absent object creates it.
    fn create_on_update(&self) -> bool {
        false
    }

    /// PUT without `metadata.resourceVersion` is accepted.
    fn unconditional_update(&self) -> bool {
        true
    }

    /// Values of the field labels this kind knows besides metadata.name and metadata.namespace; `None`: unknown label.
    fn field_value(&self, _obj: &Value, _label: &str) -> Option<String> {
        None
    }

    /// The field labels of [`Strategy::field_value`].
    fn field_labels(&self) -> &[&'static str] {
        &[]
    }

    /// The text for an unknown field label: `true` for `field label not supported: x`, `false` for
    /// `"x" is not a known field selector: only "metadata.name", "metadata.namespace"`.
    fn own_field_label_conversion(&self) -> bool {
        false
    }

    /// Grace period of a delete, `None` where deletion is immediate.
    fn graceful_deletion(&self, _obj: &Value, _requested: Option<i64>) -> Option<i64> {
        None
    }

    /// Whether a deleted object stays until its `finalize` subresource is written (`spec.finalizers` of a Namespace).
    fn awaits_finalize(&self, _obj: &Value) -> bool {
        false
    }

    /// A DELETE that removes the object answers with it instead of a `Status`.
    fn returns_deleted_object(&self) -> bool {
        false
    }

    /// Brings an object from the version it is stored in to the one asked for, or back (both as apiVersion). The
    /// handler sets `apiVersion` and `kind` afterwards.
    fn convert(&self, _obj: &mut Value, _from: &str, _to: &str) {}

    /// Dotted paths that a write this way never owns, whatever its body says. Field ownership is computed from the
    /// decoded and defaulted body, before `prepare_*` runs: what those fill in is owned by nobody.
    fn reset_fields(&self, _subresource: Option<&str>) -> Vec<String> {
        Vec::new()
    }

    /// Whether a write may choose a value of a limited range (cluster IP, node port). Such writes run one at a time.
    fn allocates(&self) -> bool {
        false
    }

    /// Whether every write is heavy work, whatever the size of its body.
    fn heavy_to_write(&self) -> bool {
        false
    }

    /// The text of the warning for a deprecated built-in kind, without code and agent.
    fn deprecation_warning(&self) -> Option<&'static str> {
        None
    }

    /// How a POST is answered if objects of this kind are not stored.
    fn review(&self) -> Option<Review> {
        None
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

    /// Default propagation when DeleteOptions name none.
    fn default_orphans_dependents(&self) -> bool {
        false
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
    /// The client's value is stored as is.
    Unmanaged,
    /// 1 on create, one more with each change of spec and with the first deletion mark.
    Managed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameRule {
    Subdomain,
    Label,
    Label1035,
    PathSegment,
}

/// The generic behaviour, for kinds that need nothing special.
pub struct Generic;

impl Strategy for Generic {}
