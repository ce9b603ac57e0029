//! The strategy of CustomResourceDefinitions.

use serde_json::{Value, json};

use super::{FINALIZER, status, validation};
use crate::kinds::spec::{Facts, Spec, WITH_STATUS};
use crate::kinds::value::{fill, fill_at, flag, has, list, object_mut, set_at, text};
use crate::strategy::WriteContext;

pub(crate) const DEFINITION: Spec = Spec {
    // Every write compiles all patterns and rules of the definition, so it is heavy.
    facts: Facts { unconditional_update: false, heavy_to_write: true, ..WITH_STATUS.facts },
    status: Some(
        || json!({"conditions": null, "acceptedNames": {"plural": "", "kind": ""}, "storedVersions": null}),
    ),
    default,
    create: |_, obj| {
        store_version(obj);
    },
    update: |_, obj, _| {
        store_version(obj);
    },
    delete,
    validate_create: |_, obj, errs| {
        validation::spec(obj, None, errs);
        validation::stored_versions(obj, errs);
        validation::approval(obj, None, errs);
        validation::preserve_unknown(obj, errs);
    },
    validate_update: |_, obj, old, errs| {
        validation::spec(obj, Some(old), errs);
        validation::fixed(obj, old, errs);
        validation::stored_versions(obj, errs);
        validation::approval(obj, Some(old), errs);
    },
    warnings: |obj, _| {
        if text(obj, "spec.conversion.strategy") == "Webhook" {
            vec!["spec.conversion: conversion webhooks are not called; objects are served in other versions with their fields unchanged".into()]
        } else {
            Vec::new()
        }
    },
    ..WITH_STATUS
};

fn default(obj: &mut Value) {
    let kind = text(obj, "spec.names.kind").to_owned();
    if let Some(names) = object_mut(obj, "spec.names")
        && !kind.is_empty()
    {
        fill(names, "singular", kind.to_lowercase());
        fill(names, "listKind", format!("{kind}List"));
    }
    fill_at(obj, "spec.conversion", "strategy", "None");
    if has(obj, "spec.conversion.webhook.clientConfig.service") {
        fill_at(obj, "spec.conversion.webhook.clientConfig.service", "port", 443);
    }
}

/// Adds the storage version to `status.storedVersions` before objects can be stored in it.
fn store_version(obj: &mut Value) {
    let Some(storage) = list(obj, "spec.versions").iter().find(|v| flag(v, "storage")) else { return };
    let name = storage.get("name").cloned().unwrap_or_default();
    let mut stored = list(obj, "status.storedVersions").to_vec();
    if !stored.contains(&name) {
        stored.push(name);
        set_at(obj, "status", "storedVersions", stored);
    }
}

/// Keeps the definition until its instances are deleted (AS-049).
fn delete(cx: &WriteContext<'_>, obj: &mut Value) {
    let mut finalizers = list(obj, "metadata.finalizers").to_vec();
    if !finalizers.iter().any(|f| f == FINALIZER) {
        finalizers.push(FINALIZER.into());
        set_at(obj, "metadata", "finalizers", finalizers);
    }
    status::set(obj, cx.now, &status::PENDING);
}
