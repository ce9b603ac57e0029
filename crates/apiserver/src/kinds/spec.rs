//! The strategy of all built-in kinds. It interprets a row of the table of kinds.

use machinery::field;
use serde_json::{Map, Value};

use super::check::Errs;
use super::value::{at, put, remove, set_at};
use crate::authz::Authorizer;
use crate::error::ApiError;
use crate::identity::UserInfo;
pub(crate) use crate::strategy::Facts;
use crate::strategy::{Generation, Strategy, WriteContext};

/// Which metadata a write to `/status` may change.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum StatusMeta {
    All,
    AllButLabels,
    Nothing,
}

/// Which changes increment `metadata.generation`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum GenerationRule {
    /// None: the generation is the client's value.
    FromClient,
    Spec,
    SpecAndAnnotations,
    /// All fields except metadata and status.
    Content,
}

/// A field label, the path of its value, and the value if the path is absent.
pub(crate) type FieldLabel = (&'static str, &'static str, &'static str);

/// Whether the user may update a subresource, given the new and the old object.
type AuthorizeUpdate = fn(&Authorizer, &UserInfo, Option<&str>, &Value, &Value) -> Result<(), ApiError>;

/// The properties of one kind. The functions have the meaning of the methods of [`Strategy`].
#[derive(Clone, Copy)]
pub(crate) struct Spec {
    pub facts: Facts,
    /// The initial status; `None` for kinds without status.
    pub status: Option<fn() -> Value>,
    /// The status of a created object is kept.
    pub status_on_create: bool,
    pub status_meta: StatusMeta,
    pub generation: GenerationRule,
    pub fields: &'static [FieldLabel],
    pub default: fn(&mut Value),
    pub create: fn(&WriteContext<'_>, &mut Value),
    /// Admission of new objects.
    pub admit: fn(&WriteContext<'_>, &mut Value) -> Result<(), ApiError>,
    pub update: fn(&WriteContext<'_>, &mut Value, &Value),
    /// Called on the first DELETE, before it is decided whether the object stays.
    pub delete: fn(&WriteContext<'_>, &mut Value),
    /// Converts into the other form of the kind, which has this apiVersion.
    pub convert: fn(&mut Value, &str),
    /// Called on updates of any subresource; for `status` after the generic separation.
    pub subresource: fn(&WriteContext<'_>, &str, &mut Value, &Value),
    /// Validates the object, on create and update.
    pub validate: fn(&WriteContext<'_>, &Value, &mut Errs),
    pub validate_create: fn(&WriteContext<'_>, &Value, &mut Errs),
    pub validate_update: fn(&WriteContext<'_>, &Value, &Value, &mut Errs),
    /// Validates writes to a subresource.
    pub validate_subresource: fn(&WriteContext<'_>, &str, &Value, &Value, &mut Errs),
    pub warnings: fn(&Value, Option<&Value>) -> Vec<String>,
    /// What of the object this API server does not enforce.
    pub unenforced: fn(&Value, Option<&Value>) -> Option<String>,
    /// Paths that an endpoint never owns; `None` for those that follow from the status rules.
    pub resets: fn(Option<&str>) -> Option<&'static [&'static str]>,
    pub graceful: fn(&Value, Option<i64>) -> Option<i64>,
    /// Whether a deleted object stays although it has no `metadata.finalizers`.
    pub awaits_finalize: fn(&Value) -> bool,
    /// Why the object with this name cannot be deleted.
    pub refuse_deletion: fn(&str) -> Option<&'static str>,
    /// [`Strategy::check_escalation`].
    pub escalation: fn(&Authorizer, &UserInfo, &Value, Option<&Value>) -> Result<(), ApiError>,
    /// [`Strategy::authorize_update`].
    pub authorize_update: AuthorizeUpdate,
}

/// A kind without rules of its own.
pub(crate) const BASE: Spec = Spec {
    facts: Facts::GENERIC,
    status: None,
    status_on_create: false,
    status_meta: StatusMeta::All,
    generation: GenerationRule::FromClient,
    fields: &[],
    default: |_| {},
    create: |_, _| {},
    admit: |_, _| Ok(()),
    update: |_, _, _| {},
    delete: |_, _| {},
    convert: |_, _| {},
    subresource: |_, _, _, _| {},
    validate: |_, _, _| {},
    validate_create: |_, _, _| {},
    validate_update: |_, _, _, _| {},
    validate_subresource: |_, _, _, _, _| {},
    warnings: |_, _| Vec::new(),
    unenforced: |_, _| None,
    resets: |_| None,
    graceful: |_, _| None,
    awaits_finalize: |_| false,
    refuse_deletion: |_| None,
    escalation: |_, _, _, _| Ok(()),
    authorize_update: |_, _, _, _, _| Ok(()),
};

/// A kind with an empty initial status and a generation that counts changes of the spec.
pub(crate) const WITH_STATUS: Spec =
    Spec { status: Some(|| Value::Object(Map::new())), generation: GenerationRule::Spec, ..BASE };

/// A [`Spec`] as [`Strategy`], with its field labels.
pub(crate) struct KindStrategy(Spec, Vec<&'static str>);

/// Metadata that a status write cannot change if [`StatusMeta`] is `Nothing`.
const STATUS_METADATA: &[&str] = &[
    "labels",
    "annotations",
    "finalizers",
    "ownerReferences",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "generation",
];

impl KindStrategy {
    pub(crate) fn new(spec: Spec) -> Self {
        let labels = spec.fields.iter().map(|(label, ..)| *label).collect();
        Self(spec, labels)
    }

    fn separate_status(&self, obj: &mut Value, old: &Value) {
        let status = remove(obj, "status").unwrap_or_default();
        let metadata = remove(obj, "metadata").unwrap_or_default();
        *obj = old.clone();
        put(obj, "status", &status);
        put(obj, "metadata", &metadata);
        let fixed = match self.0.status_meta {
            StatusMeta::All => &[][..],
            StatusMeta::AllButLabels => &["labels"][..],
            StatusMeta::Nothing => STATUS_METADATA,
        };
        keep_metadata(obj, old, fixed);
    }
}

/// Restores the named metadata fields from `old`.
pub(crate) fn keep_metadata(obj: &mut Value, old: &Value, fields: &[&str]) {
    for key in fields {
        match at(old, "metadata").get(key) {
            Some(value) => set_at(obj, "metadata", key, value.clone()),
            None => drop(super::value::remove_at(obj, "metadata", key)),
        }
    }
}

/// Adds the fields of `defaults` that `value` lacks.
pub(crate) fn fill_object(value: &mut Value, defaults: Value) {
    match (value, defaults) {
        (Value::Object(map), Value::Object(defaults)) => {
            for (key, default) in defaults {
                match map.get_mut(&key) {
                    Some(present) if !present.is_null() => fill_object(present, default),
                    _ => drop(map.insert(key, default)),
                }
            }
        }
        (value @ Value::Null, defaults) => *value = defaults,
        _ => {}
    }
}

impl Strategy for KindStrategy {
    fn facts(&self) -> &Facts {
        &self.0.facts
    }

    fn default(&self, obj: &mut Value) {
        (self.0.default)(obj);
        if let (Some(initial), Some(map)) = (self.0.status, obj.as_object_mut()) {
            fill_object(map.entry("status").or_insert(Value::Null), initial());
        }
    }

    fn prepare_create(&self, cx: &WriteContext<'_>, obj: &mut Value) -> Result<(), ApiError> {
        if let Some(initial) = self.0.status.filter(|_| !self.0.status_on_create) {
            put(obj, "status", &initial());
        }
        (self.0.create)(cx, obj);
        (self.0.admit)(cx, obj)
    }

    fn prepare_update(&self, cx: &WriteContext<'_>, obj: &mut Value, old: &Value) -> Result<(), ApiError> {
        if self.0.status.is_some() {
            put(obj, "status", at(old, "status"));
        }
        (self.0.update)(cx, obj, old);
        Ok(())
    }

    fn prepare_subresource_update(
        &self,
        cx: &WriteContext<'_>,
        subresource: &str,
        obj: &mut Value,
        old: &Value,
    ) -> Result<(), ApiError> {
        if subresource == "status" {
            self.separate_status(obj, old);
        }
        (self.0.subresource)(cx, subresource, obj, old);
        Ok(())
    }

    fn prepare_delete(&self, cx: &WriteContext<'_>, obj: &mut Value) -> Result<(), ApiError> {
        (self.0.delete)(cx, obj);
        Ok(())
    }

    fn convert(&self, obj: &mut Value, _from: &str, to: &str) {
        (self.0.convert)(obj, to);
    }

    fn generation(&self) -> Generation {
        if self.0.generation == GenerationRule::FromClient {
            Generation::FromClient
        } else {
            Generation::Managed
        }
    }

    fn spec_changed(&self, new: &Value, old: &Value) -> bool {
        match self.0.generation {
            GenerationRule::FromClient => false,
            GenerationRule::Spec => new.get("spec") != old.get("spec"),
            GenerationRule::SpecAndAnnotations => {
                new.get("spec") != old.get("spec")
                    || at(new, "metadata.annotations") != at(old, "metadata.annotations")
            }
            GenerationRule::Content => content_changed(new, old, &["metadata", "status"]),
        }
    }

    fn validate_create(&self, cx: &WriteContext<'_>, obj: &Value) -> Vec<field::Error> {
        let mut errs = Errs::default();
        (self.0.validate)(cx, obj, &mut errs);
        (self.0.validate_create)(cx, obj, &mut errs);
        errs.0.into_vec()
    }

    fn validate_update(
        &self,
        cx: &WriteContext<'_>,
        subresource: Option<&str>,
        obj: &Value,
        old: &Value,
    ) -> Vec<field::Error> {
        let mut errs = Errs::default();
        match subresource {
            Some(name) if name != "scale" => (self.0.validate_subresource)(cx, name, obj, old, &mut errs),
            _ => {
                (self.0.validate)(cx, obj, &mut errs);
                (self.0.validate_update)(cx, obj, old, &mut errs);
            }
        }
        errs.0.into_vec()
    }

    fn warnings(&self, obj: &Value, old: Option<&Value>) -> Vec<String> {
        (self.0.warnings)(obj, old)
    }

    fn unenforced(&self, obj: &Value, old: Option<&Value>) -> Option<String> {
        (self.0.unenforced)(obj, old)
    }

    fn field_value(&self, obj: &Value, label: &str) -> Option<String> {
        let (_, place, default) = self.0.fields.iter().find(|(name, ..)| *name == label)?;
        Some(match at(obj, place) {
            Value::String(s) => s.clone(),
            Value::Null => (*default).to_owned(),
            other => other.to_string(),
        })
    }

    fn field_labels(&self) -> &[&'static str] {
        &self.1
    }

    fn graceful_deletion(&self, obj: &Value, requested: Option<i64>) -> Option<i64> {
        (self.0.graceful)(obj, requested)
    }

    fn awaits_finalize(&self, obj: &Value) -> bool {
        (self.0.awaits_finalize)(obj)
    }

    fn reset_fields(&self, subresource: Option<&str>) -> Vec<String> {
        if let Some(own) = (self.0.resets)(subresource) {
            return own.iter().map(ToString::to_string).collect();
        }
        if self.0.status.is_none() {
            return Vec::new();
        }
        match (subresource, self.0.status_meta) {
            (None | Some("scale"), _) => vec!["status".into()],
            (Some("status"), StatusMeta::All) => vec!["spec".into()],
            (Some("status"), StatusMeta::AllButLabels) => vec!["spec".into(), "metadata.labels".into()],
            (Some("status"), StatusMeta::Nothing) => {
                let metadata = ["labels", "annotations", "finalizers", "ownerReferences"];
                std::iter::once("spec".to_owned())
                    .chain(metadata.iter().map(|key| format!("metadata.{key}")))
                    .collect()
            }
            _ => Vec::new(),
        }
    }

    fn refuse_deletion(&self, name: &str) -> Option<&'static str> {
        (self.0.refuse_deletion)(name)
    }

    fn check_escalation(
        &self,
        authorizer: &Authorizer,
        user: &UserInfo,
        obj: &Value,
        old: Option<&Value>,
    ) -> Result<(), ApiError> {
        (self.0.escalation)(authorizer, user, obj, old)
    }

    fn authorize_update(
        &self,
        authorizer: &Authorizer,
        user: &UserInfo,
        subresource: Option<&str>,
        obj: &Value,
        old: &Value,
    ) -> Result<(), ApiError> {
        (self.0.authorize_update)(authorizer, user, subresource, obj, old)
    }
}

/// Whether two objects differ in a top-level field outside `ignored`.
pub(crate) fn content_changed(new: &Value, old: &Value, ignored: &[&str]) -> bool {
    let (Some(new), Some(old)) = (new.as_object(), old.as_object()) else { return new != old };
    let counts = |key: &&String| !ignored.contains(&key.as_str());
    new.keys().chain(old.keys()).filter(counts).any(|key| new.get(key) != old.get(key))
}
