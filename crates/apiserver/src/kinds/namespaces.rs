//! Namespaces, and what they say about new objects inside them.

use machinery::field::Path;
use machinery::names;
use serde_json::{Value, json};
use store::{Collection, Entry, Key};

use super::check::{Errs, name};
use super::spec::{Facts, GenerationRule, Spec, WITH_STATUS};
use super::value::{at, entries, has, list, object_mut, path, put, set_at, text};
use crate::encode;
use crate::error::{ApiError, Cause};
use crate::strategy::NameRule;

const PLURAL: &str = "namespaces";
const NAME_LABEL: &str = "kubernetes.io/metadata.name";

/// Where the Namespace of this name is stored.
pub(crate) fn namespace_key(name: &str) -> Key {
    Key { collection: Collection::new("", PLURAL), namespace: "".into(), name: name.into() }
}

/// Checks that the namespace of a new object, which is stored as `entry`, exists and is not being deleted (spec 7.1).
/// `forbidden` makes the error about the object from a reason.
///
/// # Errors
/// 404 if there is no such namespace, 403 if it is being deleted.
pub(crate) fn check_new_content(
    namespace: &str,
    entry: Option<&Entry>,
    forbidden: impl FnOnce(&str) -> ApiError,
) -> Result<(), ApiError> {
    let Some(entry) = entry else { return Err(ApiError::not_found("", PLURAL, namespace)) };
    // Runs for every create, so only the metadata is searched for the deletion mark.
    let terminating =
        encode::metadata_of(&entry.value).is_some_and(|text| contains(&text, b"\"deletionTimestamp\":\""));
    if !terminating {
        return Ok(());
    }
    let mut error = forbidden(&format!(
        "unable to create new content in namespace {namespace} because it is being terminated"
    ));
    if let Some(details) = error.details.as_mut() {
        details.causes.push(Cause {
            reason: "NamespaceTerminating".into(),
            message: format!("namespace {namespace} is being terminated"),
            field: "metadata.namespace".into(),
        });
    }
    Err(error)
}

fn contains(text: &[u8], needle: &[u8]) -> bool {
    text.windows(needle.len()).any(|window| window == needle)
}

pub(super) const NAMESPACE: Spec = Spec {
    facts: Facts { name: NameRule::Label, own_labels: true, returns_deleted: true, ..WITH_STATUS.facts },
    unenforced: super::unenforced::pod_security,
    status: Some(|| json!({"phase": "Active"})),
    generation: GenerationRule::FromClient,
    fields: &[("status.phase", "status.phase", "")],
    resets: |sub| (sub == Some("finalize")).then_some(&["status"]),
    awaits_finalize: |obj| !list(obj, "spec.finalizers").is_empty(),
    default: |obj| {
        object_mut(obj, "spec");
        name_label(obj);
    },
    create: |_, obj| {
        name_label(obj);
        let mut finalizers = list(obj, "spec.finalizers").to_vec();
        if !finalizers.iter().any(|f| f == "kubernetes") {
            finalizers.push("kubernetes".into());
        }
        set_at(obj, "spec", "finalizers", finalizers);
    },
    update: |_, obj, old| {
        put(obj, "spec", at(old, "spec"));
        name_label(obj);
    },
    delete: |_, obj| {
        set_at(obj, "status", "phase", "Terminating");
    },
    subresource: |_, sub, obj, old| {
        if sub == "finalize" {
            put(obj, "status", at(old, "status"));
            name_label(obj);
        }
    },
    validate: |_, obj, errs| pod_security_labels(obj, errs),
    validate_create: |_, obj, errs| {
        // The errors name the list.
        for finalizer in list(obj, "spec.finalizers").iter().filter_map(Value::as_str) {
            finalizer_name(&path("spec.finalizers"), finalizer, errs);
        }
    },
    validate_subresource: |_, sub, obj, _, errs| {
        if sub == "status" {
            namespace_phase(obj, errs);
        } else {
            for (i, finalizer) in list(obj, "spec.finalizers").iter().enumerate() {
                let value = finalizer.as_str().unwrap_or_default();
                finalizer_name(&path("spec.finalizers").index(i), value, errs);
            }
        }
    },
    refuse_deletion: |name| {
        matches!(name, "default" | "kube-system" | "kube-public")
            .then_some("this namespace may not be deleted")
    },
    ..WITH_STATUS
};

fn name_label(obj: &mut Value) {
    let name = name(obj).to_owned();
    if !name.is_empty() {
        set_at(obj, "metadata.labels", NAME_LABEL, name);
    }
}

fn namespace_phase(obj: &Value, errs: &mut Errs) {
    let phase = text(obj, "status.phase");
    let at = path("status.Phase");
    if has(obj, "metadata.deletionTimestamp") {
        if phase != "Terminating" {
            errs.invalid_str(&at, phase, "may only be 'Terminating' if `deletionTimestamp` is not empty");
        }
    } else if phase != "Active" {
        errs.invalid_str(&at, phase, "may only be 'Active' if `deletionTimestamp` is empty");
    }
}

/// Checks that a finalizer is a standard one or qualified by a domain.
fn finalizer_name(at: &Path, value: &str, errs: &mut Errs) {
    errs.names(at, value, names::qualified_name(value));
    if !value.contains('/') && !matches!(value, "kubernetes" | "orphan" | "foregroundDeletion") {
        errs.invalid_str(at, value, "name is neither a standard finalizer name nor is it fully qualified");
    }
}

fn pod_security_labels(obj: &Value, errs: &mut Errs) {
    const PREFIX: &str = "pod-security.kubernetes.io/";
    for (label, value) in entries(obj, "metadata.labels") {
        let Some(what) = label.strip_prefix(PREFIX) else { continue };
        let value = value.as_str().unwrap_or_default();
        let here = path("metadata.labels").key(label);
        match what {
            "enforce" | "audit" | "warn" if !["privileged", "baseline", "restricted"].contains(&value) => {
                errs.invalid_str(&here, value, "must be one of privileged, baseline, restricted");
            }
            "enforce-version" | "audit-version" | "warn-version" if !is_policy_version(value) => {
                errs.invalid_str(&here, value, "must be \"latest\" or \"v1.x\"");
            }
            _ => {}
        }
    }
}

fn is_policy_version(value: &str) -> bool {
    let minor = value.strip_prefix("v1.").unwrap_or_default();
    value == "latest" || (!minor.is_empty() && minor.bytes().all(|b| b.is_ascii_digit()))
}
