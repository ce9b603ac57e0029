//! Validation of claims, claim templates, and what they share with volumes (spec 2.5).

use machinery::field::Path;
use machinery::names;
use serde_json::Value;

use super::check::Errs;
use super::value::{at, has, list, text};

const MODES: &[&str] = &["ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod"];

/// Validates the spec of a claim or claim template.
pub(super) fn claim(spec: &Value, place: &Path, errs: &mut Errs) {
    if list(spec, "accessModes").is_empty() {
        errs.required(&place.child("accessModes"), "at least 1 access mode is required");
    }
    if has(spec, "selector") {
        errs.selector(&place.child("selector"), at(spec, "selector"));
    }
    access_modes(spec, place, errs);
    let here = place.child("resources");
    match at(spec, "resources.requests").get("storage") {
        None => errs.required(&here.key("storage"), ""),
        Some(amount) => {
            if super::check::quantity(amount).is_some_and(|q| q.is_zero() || q.is_negative()) {
                errs.invalid(&here.key("storage"), amount, "must be greater than zero");
            }
        }
    }
    for key in ["storageClassName", "volumeAttributesClassName"] {
        let class = text(spec, key);
        if !class.is_empty() {
            errs.names(&place.child(key), class, names::dns1123_subdomain(class));
        }
    }
    if has(spec, "volumeMode") {
        errs.one_of(&place.child("volumeMode"), text(spec, "volumeMode"), &["Block", "Filesystem"]);
    }
    for key in ["dataSource", "dataSourceRef"] {
        if has(spec, key) {
            data_source(at(spec, key), &place.child(key), errs);
        }
    }
}

fn data_source(source: &Value, place: &Path, errs: &mut Errs) {
    for key in ["name", "kind"] {
        if text(source, key).is_empty() {
            errs.required(&place.child(key), "");
        }
    }
    let group = text(source, "apiGroup");
    if group.is_empty() && text(source, "kind") != "PersistentVolumeClaim" {
        errs.invalid_str(
            place,
            text(source, "kind"),
            "must be 'PersistentVolumeClaim' when referencing the default apiGroup",
        );
    }
    if !group.is_empty() {
        errs.names(&place.child("apiGroup"), group, names::dns1123_subdomain(group));
    }
}

/// Validates the access modes of a claim or volume.
pub(super) fn access_modes(spec: &Value, place: &Path, errs: &mut Errs) {
    let here = place.child("accessModes");
    let modes: Vec<&str> =
        list(spec, "accessModes").iter().map(|mode| mode.as_str().unwrap_or_default()).collect();
    for mode in &modes {
        errs.one_of(&here, mode, MODES);
    }
    let single = modes.contains(&"ReadWriteOncePod");
    if single && modes.iter().any(|mode| *mode != "ReadWriteOncePod" && MODES.contains(mode)) {
        errs.forbidden(&here, "may not use ReadWriteOncePod with other access modes");
    }
}
