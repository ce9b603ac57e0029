//! Metadata of written objects (spec 3).

use machinery::metadata::{self, NameRule as Rule};
use machinery::{field, names};
use serde_json::{Value, json};

use super::RequestContext;
use super::object::{copy_meta, meta, meta_str, remove_meta, set_meta};
use crate::error::{ApiError, Reason};
use crate::kinds;
use crate::strategy::NameRule;

fn rule(rule: NameRule) -> Rule {
    match rule {
        NameRule::Subdomain => names::dns1123_subdomain,
        NameRule::Label => names::dns1123_label,
        NameRule::Label1035 => names::dns1035_label,
        NameRule::PathSegment => names::path_segment,
    }
}

/// Sets the namespace of the URL.
///
/// # Errors
/// 400 if the object names another namespace.
pub(crate) fn match_namespace(cx: &RequestContext<'_>, object: &mut Value) -> Result<(), ApiError> {
    let given = meta_str(object, "namespace");
    let wanted = cx.namespace();
    if given == wanted {
        return Ok(());
    }
    if wanted.is_empty() {
        remove_meta(object, "namespace");
    } else if given.is_empty() {
        set_meta(object, "namespace", wanted.into());
    } else {
        return Err(ApiError::bad_request(
            "the namespace of the provided object does not match the namespace sent on the request",
        ));
    }
    Ok(())
}

/// Sets the name of the URL.
///
/// # Errors
/// 400 if the object names another one, or with `required` names none.
pub(crate) fn match_name(object: &mut Value, wanted: &str, required: bool) -> Result<(), ApiError> {
    let given = meta_str(object, "name");
    if given.is_empty() {
        if required {
            return Err(ApiError::bad_request(format!(
                "the name of the object ({wanted} based on URL) was undeterminable: name must be provided"
            )));
        }
        set_meta(object, "name", wanted.into());
    } else if given != wanted {
        return Err(ApiError::bad_request(format!(
            "the name of the object ({given}) does not match the name on the URL ({wanted})"
        )));
    }
    Ok(())
}

/// Removes duplicate owner references, and warns about them.
pub(crate) fn dedup_owners(object: &mut Value, warnings: &mut Vec<String>) {
    let owners = object.pointer_mut("/metadata/ownerReferences").and_then(Value::as_array_mut);
    let duplicates = owners.map(metadata::dedup_owner_references).unwrap_or_default();
    if !duplicates.is_empty() {
        warnings.push(format!(
            ".metadata.ownerReferences contains duplicate entries; API server dedups owner references in 1.20+, and \
             may reject such requests as early as 1.24; please fix your requests; duplicate UID(s) observed: {}",
            duplicates.join(", ")
        ));
    }
}

/// Sets the metadata that the server determines on create.
pub(crate) fn fill_new(object: &mut Value, now: &str) {
    for key in ["deletionTimestamp", "deletionGracePeriodSeconds", "selfLink", "resourceVersion"] {
        remove_meta(object, key);
    }
    set_meta(object, "uid", uuid::Uuid::new_v4().to_string().into());
    set_meta(object, "creationTimestamp", now.into());
}

/// Sets a name made from `generateName`.
pub(crate) fn generate_name(object: &mut Value) {
    let suffix = names::random_suffix(uuid::Uuid::new_v4().as_u64_pair().1);
    let name = names::generate_name(meta_str(object, "generateName"), &suffix);
    set_meta(object, "name", name.into());
}

/// Restores the metadata that no update can change.
pub(crate) fn keep_old(object: &mut Value, live: &Value) {
    copy_meta(object, live, "generation");
    let given =
        |object: &Value, key: &str| meta(object, key).is_some_and(|v| !v.is_null() && v.as_str() != Some(""));
    for (key, always) in [
        ("creationTimestamp", true),
        ("deletionTimestamp", true),
        ("uid", false),
        ("deletionGracePeriodSeconds", false),
    ] {
        if given(live, key) && (always || !given(object, key)) {
            copy_meta(object, live, key);
        }
    }
}

pub(crate) fn validate_create(cx: &RequestContext<'_>, object: &Value) -> Vec<field::Error> {
    let d = cx.descriptor;
    let meta = metadata::of(object);
    if d.is_custom() {
        metadata::validate_create(meta, names::dns1123_subdomain, d.namespaced)
    } else {
        metadata::validate_builtin(meta, rule(d.strategy.name_rule()), d.namespaced)
    }
}

/// Validates the metadata of an update. Kubernetes validates it twice, generically and by kind, so causes repeat.
pub(crate) fn validate_update(cx: &RequestContext<'_>, object: &Value, live: &Value) -> Vec<field::Error> {
    let d = cx.descriptor;
    let (new, old) = (metadata::of(object), metadata::of(live));
    let mut errors = metadata::validate_create(new, names::path_segment, d.namespaced);
    errors.extend(metadata::validate_update(new, old));
    if d.is_custom() {
        if !errors.is_empty() {
            errors.extend(metadata::validate_update(new, old));
        }
        return errors;
    }
    let again = kinds::metadata_checks(&d.group, &d.plural);
    if again.update {
        let finalizers = new.get("finalizers").unwrap_or(&Value::Null);
        let place = field::Path::field("metadata").child("finalizers");
        errors.extend(metadata::validate_update(new, old));
        errors.extend(metadata::validate_standard_finalizers(finalizers, &place));
    }
    if again.create {
        errors.extend(metadata::validate_builtin(new, rule(d.strategy.name_rule()), d.namespaced));
    }
    errors
}

/// Checks that the namespace of a new object exists and is not being deleted (spec 7.1).
pub(crate) fn check_namespace(cx: &RequestContext<'_>, name: &str) -> Result<(), ApiError> {
    let namespace = cx.namespace();
    if namespace.is_empty() {
        return Ok(());
    }
    let entry = cx.store.snapshot().get(&kinds::namespace_key(namespace));
    kinds::check_new_content(namespace, entry.as_deref(), |why| cx.forbidden(name, why))
}

/// The revision that a write requires; `None` for none or 0.
///
/// # Errors
/// 500 if it is not a number, as in Kubernetes.
pub(crate) fn expected_revision(object: &Value) -> Result<Option<u64>, ApiError> {
    match meta_str(object, "resourceVersion") {
        "" | "0" => Ok(None),
        text => text.parse().map(Some).map_err(|_| {
            ApiError::new(
                500,
                Reason::Unknown,
                format!("strconv.ParseUint: parsing {text:?}: invalid syntax"),
            )
        }),
    }
}

/// The conflict of a PUT with another uid.
pub(crate) fn uid_conflict(cx: &RequestContext<'_>, name: &str, given: &str, actual: &str) -> ApiError {
    let d = cx.descriptor;
    let mut path = format!("/registry/{}", d.collection.as_str().trim_start_matches('/'));
    for part in [cx.namespace(), name] {
        if !part.is_empty() {
            path.push('/');
            path.push_str(part);
        }
    }
    ApiError::conflict(
        &d.group,
        &d.plural,
        name,
        &format!(
            "StorageError: invalid object, Code: 4, Key: {path}, ResourceVersion: 0, AdditionalErrorMsg: Precondition \
             failed: UID in precondition: {given}, UID in object meta: {actual}"
        ),
    )
}

/// Sets `metadata.generation`.
pub(crate) fn set_generation(object: &mut Value, generation: i64) {
    set_meta(object, "generation", json!(generation));
}

pub(crate) fn generation(object: &Value) -> i64 {
    meta(object, "generation").and_then(Value::as_i64).unwrap_or_default()
}
