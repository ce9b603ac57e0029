//! Validation of `metadata` that all kinds share (AS-019).
//!
//! On create the server runs the kind's own validation and then [`validate_create`] with the rule
//! [`names::path_segment`]. On update it runs [`validate_create`] with that rule and [`validate_update`], and then the
//! kind's validation, which for built-in kinds runs both again: errors repeat in `causes`, as in Kubernetes.

use std::collections::HashSet;

use serde_json::Value;

use crate::{
    field::{Error, Path, quote},
    names,
};

/// Most bytes of all keys and values of the annotations.
const ANNOTATIONS_MAX: usize = 256 * 1024;
const IMMUTABLE: &str = "field is immutable";
const ORPHAN: &str = "orphan";
const FOREGROUND: &str = "foregroundDeletion";

/// A rule for names: from a name to its errors.
pub type NameRule = fn(&str) -> Vec<String>;

fn text<'a>(object: &'a Value, key: &str) -> &'a str {
    object.get(key).and_then(Value::as_str).unwrap_or_default()
}

fn invalid(path: &Path, value: &str, texts: Vec<String>) -> impl Iterator<Item = Error> {
    texts.into_iter().map(move |t| Error::invalid_str(path, value, &t))
}

fn entries(map: &Value) -> impl Iterator<Item = (&String, &Value)> {
    map.as_object().into_iter().flatten()
}

fn strings(list: &Value) -> impl Iterator<Item = &str> {
    list.as_array().into_iter().flatten().filter_map(Value::as_str)
}

/// Validates keys and values of labels.
pub fn validate_labels(labels: &Value, path: &Path) -> Vec<Error> {
    let mut errors = Vec::new();
    for (key, value) in entries(labels) {
        errors.extend(invalid(path, key, names::qualified_name(key)));
        let value = value.as_str().unwrap_or_default();
        errors.extend(invalid(path, value, names::label_value(value)));
    }
    errors
}

/// Validates the keys of annotations, and their total size.
pub fn validate_annotations(annotations: &Value, path: &Path) -> Vec<Error> {
    let mut errors = Vec::new();
    let mut size = 0;
    for (key, value) in entries(annotations) {
        errors.extend(invalid(path, key, names::qualified_name(&key.to_ascii_lowercase())));
        size += key.len() + value.as_str().map_or(0, str::len);
    }
    if size > ANNOTATIONS_MAX {
        errors.push(Error::too_long(path, ANNOTATIONS_MAX));
    }
    errors
}

/// Validates finalizers of any kind.
pub fn validate_finalizers(finalizers: &Value, path: &Path) -> Vec<Error> {
    let mut errors: Vec<Error> =
        strings(finalizers).flat_map(|f| invalid(path, f, names::qualified_name(f))).collect();
    let has = |name: &str| strings(finalizers).any(|f| f == name);
    if has(ORPHAN) && has(FOREGROUND) {
        let detail = format!("finalizer {ORPHAN} and {FOREGROUND} cannot be both set");
        errors.push(Error::invalid(path, finalizers, &detail));
    }
    errors
}

/// Validates finalizers of built-in kinds, which need a domain unless they are standard ones. Called in addition to
/// [`validate_finalizers`].
pub fn validate_standard_finalizers(finalizers: &Value, path: &Path) -> Vec<Error> {
    let detail = "name is neither a standard finalizer name nor is it fully qualified";
    let mut errors = Vec::new();
    for (i, finalizer) in strings(finalizers).enumerate() {
        if !finalizer.contains('/') && !matches!(finalizer, ORPHAN | FOREGROUND | "kubernetes") {
            errors.push(Error::invalid_str(&path.index(i), finalizer, detail));
        }
    }
    errors
}

/// Validates owner references: complete, none to an Event, at most one controller.
pub fn validate_owner_references(references: &Value, path: &Path) -> Vec<Error> {
    let mut errors = Vec::new();
    let mut controller: Option<String> = None;
    for reference in references.as_array().into_iter().flatten() {
        owner_reference(reference, path, &mut errors);
        if reference.get("controller") != Some(&Value::Bool(true)) {
            continue;
        }
        let name = format!("{}/{}", text(reference, "kind"), text(reference, "name"));
        match &controller {
            None => controller = Some(name),
            Some(first) => {
                let detail = format!(
                    "Only one reference can have Controller set to true. Found \"true\" in references for {first} \
                     and {name}"
                );
                errors.push(Error::invalid_text(path, &print_owners(references), &detail));
            }
        }
    }
    errors
}

fn owner_reference(reference: &Value, path: &Path, errors: &mut Vec<Error>) {
    let api_version = text(reference, "apiVersion");
    let (group, version) = match api_version.split_once('/') {
        None => ("", api_version),
        Some((_, rest)) if rest.contains('/') => ("", ""),
        Some(parts) => parts,
    };
    if version.is_empty() {
        errors.push(Error::invalid_str(&path.child("apiVersion"), api_version, "version must not be empty"));
    }
    for key in ["kind", "name", "uid"] {
        if text(reference, key).is_empty() {
            errors.push(Error::invalid_str(&path.child(key), "", "must not be empty"));
        }
    }
    if (group, version, text(reference, "kind")) == ("", "v1", "Event") {
        let detail = "/v1, Kind=Event is disallowed from being an owner";
        errors.push(Error::invalid_text(path, &print_owner(reference), detail));
    }
}

/// Prints an owner reference with its members in declaration order, as Kubernetes does.
fn print_owner(reference: &Value) -> String {
    let members: Vec<String> = ["apiVersion", "kind", "name", "uid", "controller", "blockOwnerDeletion"]
        .into_iter()
        .filter_map(|key| reference.get(key).map(|value| format!("\"{key}\":{value}")))
        .collect();
    format!("{{{}}}", members.join(","))
}

fn print_owners(references: &Value) -> String {
    let all: Vec<String> = references.as_array().into_iter().flatten().map(print_owner).collect();
    format!("[{}]", all.join(","))
}

/// Removes duplicate references to an owner and keeps the first. Returns the duplicate uids.
pub fn dedup_owner_references(references: &mut Vec<Value>) -> Vec<String> {
    let (mut seen, mut reported) = (HashSet::new(), HashSet::new());
    let mut duplicates: Vec<String> = Vec::new();
    references.retain(|reference| {
        let uid = text(reference, "uid").to_owned();
        if seen.insert(uid.clone()) {
            return true;
        }
        if reported.insert(uid.clone()) {
            duplicates.push(uid);
        }
        false
    });
    duplicates
}

/// Validates a whole `metadata`: name, namespace, labels, annotations, owners, finalizers.
pub fn validate_create(meta: &Value, name_rule: NameRule, namespaced: bool) -> Vec<Error> {
    let path = Path::field("metadata");
    let mut errors = Vec::new();
    let generate = text(meta, "generateName");
    if !generate.is_empty() {
        errors.extend(invalid(&path.child("generateName"), generate, names::as_prefix(name_rule, generate)));
    }
    let name = text(meta, "name");
    if name.is_empty() {
        errors.push(Error::required(&path.child("name"), "name or generateName is required"));
    } else {
        errors.extend(invalid(&path.child("name"), name, name_rule(name)));
    }
    validate_namespace(text(meta, "namespace"), namespaced, &path.child("namespace"), &mut errors);
    if let Some(generation) = meta.get("generation").filter(|g| g.as_i64().is_some_and(|g| g < 0)) {
        let detail = "must be greater than or equal to 0";
        errors.push(Error::invalid(&path.child("generation"), generation, detail));
    }
    let part = |key: &str| meta.get(key).unwrap_or(&Value::Null);
    errors.extend(validate_labels(part("labels"), &path.child("labels")));
    errors.extend(validate_annotations(part("annotations"), &path.child("annotations")));
    errors.extend(validate_owner_references(part("ownerReferences"), &path.child("ownerReferences")));
    errors.extend(validate_finalizers(part("finalizers"), &path.child("finalizers")));
    errors
}

/// [`validate_create`], with the additional rules of built-in kinds.
pub fn validate_builtin(meta: &Value, name_rule: NameRule, namespaced: bool) -> Vec<Error> {
    let mut errors = validate_create(meta, name_rule, namespaced);
    let finalizers = meta.get("finalizers").unwrap_or(&Value::Null);
    errors.extend(validate_standard_finalizers(finalizers, &Path::field("metadata").child("finalizers")));
    errors
}

fn validate_namespace(namespace: &str, namespaced: bool, path: &Path, errors: &mut Vec<Error>) {
    match (namespaced, namespace.is_empty()) {
        (true, true) => errors.push(Error::required(path, "")),
        (true, false) => errors.extend(invalid(path, namespace, names::dns1123_label(namespace))),
        (false, true) => {}
        (false, false) => errors.push(Error::forbidden(path, "not allowed on this type")),
    }
}

/// Validates that immutable metadata is unchanged and that the new metadata is well-formed. The caller checks whether
/// a resourceVersion is required.
pub fn validate_update(new: &Value, old: &Value) -> Vec<Error> {
    let path = Path::field("metadata");
    let part = |key: &str| new.get(key).unwrap_or(&Value::Null);
    let mut errors = Vec::new();
    if !text(old, "deletionTimestamp").is_empty() {
        errors.extend(no_new_finalizers(part("finalizers"), old, &path.child("finalizers")));
    }
    let generation = |meta: &Value| meta.get("generation").and_then(Value::as_i64).unwrap_or_default();
    if generation(new) < generation(old) {
        let detail = "must not be decremented";
        errors.push(Error::invalid(&path.child("generation"), &generation(new).into(), detail));
    }
    for key in ["name", "namespace", "uid"] {
        if text(new, key) != text(old, key) {
            errors.push(Error::invalid_str(&path.child(key), text(new, key), IMMUTABLE));
        }
    }
    for key in ["creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds"] {
        let before = old.get(key).unwrap_or(&Value::Null);
        if part(key) != before {
            errors.push(Error::invalid(&path.child(key), part(key), IMMUTABLE));
        }
    }
    errors.extend(validate_labels(part("labels"), &path.child("labels")));
    errors.extend(validate_annotations(part("annotations"), &path.child("annotations")));
    errors.extend(validate_owner_references(part("ownerReferences"), &path.child("ownerReferences")));
    errors
}

fn no_new_finalizers(new: &Value, old: &Value, path: &Path) -> Option<Error> {
    let before: HashSet<&str> = old.get("finalizers").map(|f| strings(f).collect()).unwrap_or_default();
    let mut added: Vec<&str> = strings(new).filter(|f| !before.contains(f)).collect();
    added.sort_unstable();
    added.dedup();
    if added.is_empty() {
        return None;
    }
    let list: Vec<String> = added.into_iter().map(quote).collect();
    let detail = format!(
        "no new finalizers can be added if the object is being deleted, found new finalizers []string{{{}}}",
        list.join(", ")
    );
    Some(Error::forbidden(path, &detail))
}

/// The `metadata` of an object; `null` if there is none.
pub fn of(object: &Value) -> &Value {
    static EMPTY: Value = Value::Null;
    object.get("metadata").unwrap_or(&EMPTY)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn create(meta: Value) -> Vec<String> {
        validate_builtin(&meta, names::dns1123_subdomain, true).iter().map(Error::to_string).collect()
    }

    #[test]
    fn as_019_name_and_namespace() {
        assert_eq!(
            create(json!({"namespace": "n"})),
            ["metadata.name: Required value: name or generateName is required"]
        );
        assert_eq!(create(json!({"name": "a"})), ["metadata.namespace: Required value"]);
        assert!(create(json!({"name": "a", "generateName": "pre-", "namespace": "n"})).is_empty());
        let cluster = validate_create(&json!({"name": "a", "namespace": "n"}), names::path_segment, false);
        assert_eq!(
            cluster.iter().map(Error::to_string).collect::<Vec<_>>(),
            ["metadata.namespace: Forbidden: not allowed on this type"]
        );
    }

    #[test]
    fn as_019_annotations() {
        let at = Path::field("metadata").child("annotations");
        let big = json!({"a": "x".repeat(ANNOTATIONS_MAX)});
        assert_eq!(
            validate_annotations(&big, &at).iter().map(Error::to_string).collect::<Vec<_>>(),
            ["metadata.annotations: Too long: may not be more than 262144 bytes"]
        );
        assert!(validate_annotations(&json!({"a": "x".repeat(ANNOTATIONS_MAX - 1)}), &at).is_empty());
        assert!(validate_annotations(&json!({"Example.COM/x": "y"}), &at).is_empty());
        let bad = validate_annotations(&json!({"til~de": "x"}), &at);
        assert_eq!(bad.len(), 1);
        assert!(bad.iter().all(|e| {
            e.to_string().starts_with("metadata.annotations: Invalid value: \"til~de\": name part")
        }));
        let labels = validate_labels(&json!({"a": "b c"}), &Path::field("metadata").child("labels"));
        assert!(
            labels
                .iter()
                .all(|e| e.to_string().starts_with("metadata.labels: Invalid value: \"b c\": a valid label"))
        );
        assert_eq!(labels.len(), 1);
    }

    #[test]
    fn as_019_finalizers() {
        assert_eq!(
            create(json!({"name": "a", "namespace": "n", "finalizers": ["golden.test/f", "x"]})),
            [
                "metadata.finalizers[1]: Invalid value: \"x\": name is neither a standard finalizer name nor is it fully \
              qualified"
            ]
        );
        assert_eq!(
            create(json!({"name": "a", "namespace": "n", "finalizers": ["orphan", "foregroundDeletion"]})),
            [
                "metadata.finalizers: Invalid value: [\"orphan\",\"foregroundDeletion\"]: finalizer orphan and \
              foregroundDeletion cannot be both set"
            ]
        );
        let custom = json!({"name": "a", "namespace": "n", "finalizers": ["x"]});
        assert!(validate_create(&custom, names::dns1123_subdomain, true).is_empty());
    }

    #[test]
    fn as_019_owner_references() {
        let with = |refs: Value| create(json!({"name": "a", "namespace": "n", "ownerReferences": refs}));
        assert_eq!(
            with(json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": "", "uid": ""}])),
            [
                "metadata.ownerReferences.name: Invalid value: \"\": must not be empty",
                "metadata.ownerReferences.uid: Invalid value: \"\": must not be empty",
            ]
        );
        assert_eq!(
            with(json!([{"apiVersion": "", "kind": "A", "name": "a", "uid": "u"}])),
            ["metadata.ownerReferences.apiVersion: Invalid value: \"\": version must not be empty"]
        );
        assert_eq!(
            with(json!([{"apiVersion": "v1", "kind": "Event", "name": "a", "uid": "u1"}])),
            ["metadata.ownerReferences: Invalid value: \
             {\"apiVersion\":\"v1\",\"kind\":\"Event\",\"name\":\"a\",\"uid\":\"u1\"}: /v1, Kind=Event is disallowed \
             from being an owner"]
        );
        assert_eq!(
            with(json!([
                {"apiVersion": "v1", "kind": "A", "name": "a", "uid": "u1", "controller": true},
                {"apiVersion": "v1", "kind": "B", "name": "b", "uid": "u2", "controller": true}
            ])),
            [
                "metadata.ownerReferences: Invalid value: [{\"apiVersion\":\"v1\",\"kind\":\"A\",\"name\":\"a\",\"uid\":\
              \"u1\",\"controller\":true},{\"apiVersion\":\"v1\",\"kind\":\"B\",\"name\":\"b\",\"uid\":\"u2\",\
              \"controller\":true}]: Only one reference can have Controller set to true. Found \"true\" in references \
              for A/a and B/b"
            ]
        );
        let mut refs = vec![json!({"uid": "1", "name": "a"}), json!({"uid": "1"}), json!({"uid": "2"})];
        assert_eq!(dedup_owner_references(&mut refs), ["1"]);
        assert_eq!(refs, [json!({"uid": "1", "name": "a"}), json!({"uid": "2"})]);
    }

    #[test]
    fn as_019_metadata_updates() {
        let texts = |new: Value, old: Value| {
            validate_update(&new, &old).iter().map(Error::to_string).collect::<Vec<_>>()
        };
        assert_eq!(
            texts(
                json!({"deletionTimestamp": "t", "finalizers": ["old/f", "new/f"]}),
                json!({"deletionTimestamp": "t", "finalizers": ["old/f"]})
            ),
            [
                "metadata.finalizers: Forbidden: no new finalizers can be added if the object is being deleted, found \
              new finalizers []string{\"new/f\"}"
            ]
        );
        assert_eq!(
            texts(json!({"uid": "22"}), json!({"uid": "1"})),
            ["metadata.uid: Invalid value: \"22\": field is immutable"]
        );
        assert_eq!(
            texts(json!({}), json!({"deletionTimestamp": "t"})),
            ["metadata.deletionTimestamp: Invalid value: null: field is immutable"]
        );
        assert_eq!(
            texts(json!({"generation": 1}), json!({"generation": 2})),
            ["metadata.generation: Invalid value: 1: must not be decremented"]
        );
    }
}
