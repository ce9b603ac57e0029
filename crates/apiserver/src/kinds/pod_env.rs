//! Validation of environment variables and of references to fields of the pod (spec 2.5).

use machinery::field::Path;
use machinery::names;
use serde_json::Value;

use super::check::{Errs, quantity};
use super::value::{at, has, text};

/// Fields of a pod that a variable may have.
const VARIABLE_FIELDS: &[&str] = &[
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.serviceAccountName",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
];
/// Fields of a pod that a file may have.
const FILE_FIELDS: &[&str] =
    &["metadata.annotations", "metadata.labels", "metadata.name", "metadata.namespace", "metadata.uid"];
/// Fields that the API knows; the rest of a path may be a key in brackets.
const KNOWN_FIELDS: &[&str] = &[
    "metadata.annotations",
    "metadata.labels",
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.restartPolicy",
    "spec.schedulerName",
    "spec.serviceAccountName",
    "spec.hostNetwork",
    "status.phase",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
    "spec.host",
];
const RESOURCES: &[&str] = &[
    "limits.cpu",
    "limits.ephemeral-storage",
    "limits.memory",
    "requests.cpu",
    "requests.ephemeral-storage",
    "requests.memory",
];
const HUGE_PAGES: &[&str] = &["limits.hugepages-", "requests.hugepages-"];
const BYTE_DIVISORS: &[&str] =
    &["1", "1k", "1M", "1G", "1T", "1P", "1E", "1Ki", "1Mi", "1Gi", "1Ti", "1Pi", "1Ei"];

/// What a field reference is for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Target {
    Variable,
    File,
}

/// Validates `env` of a container.
pub(super) fn variables(vars: &[Value], place: &Path, errs: &mut Errs) {
    for (i, var) in vars.iter().enumerate() {
        let here = place.index(i);
        errs.required_name(&here.child("name"), text(var, "name"), names::env_var_name);
        if has(var, "valueFrom") {
            source(var, &here.child("valueFrom"), errs);
        }
    }
}

fn source(var: &Value, place: &Path, errs: &mut Errs) {
    let from = at(var, "valueFrom");
    let mut given = 0;
    for key in ["fieldRef", "resourceFieldRef", "configMapKeyRef", "secretKeyRef", "fileKeyRef"] {
        let reference = at(from, key);
        if reference.is_null() {
            continue;
        }
        given += 1;
        let here = place.child(key);
        match key {
            "fieldRef" => field(reference, Target::Variable, &here, errs),
            "resourceFieldRef" => resource(reference, Target::Variable, &here, errs),
            "fileKeyRef" => file_key(reference, &here, errs),
            _ => object_key(reference, &here, errs),
        }
    }
    if given == 0 {
        errs.invalid_str(
            place,
            "",
            "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`",
        );
    } else if !text(var, "value").is_empty() {
        errs.invalid_str(place, "", "may not be specified when `value` is not empty");
    } else if given > 1 {
        errs.invalid_str(place, "", "may not have more than one field specified at a time");
    }
}

fn object_key(reference: &Value, place: &Path, errs: &mut Errs) {
    let name = text(reference, "name");
    errs.names(&place.child("name"), name, names::dns1123_subdomain(name));
    errs.required_name(&place.child("key"), text(reference, "key"), names::config_key);
}

fn file_key(reference: &Value, place: &Path, errs: &mut Errs) {
    errs.required_name(&place.child("key"), text(reference, "key"), names::env_var_name);
    errs.required_name(&place.child("volumeName"), text(reference, "volumeName"), names::dns1123_label);
    let path = text(reference, "path");
    if path.is_empty() {
        errs.required(&place.child("path"), "");
    } else {
        super::inner_paths::no_backsteps(path, &place.child("path"), errs);
    }
}

/// Validates a reference to a field of the pod.
pub(super) fn field(reference: &Value, target: Target, place: &Path, errs: &mut Errs) {
    let path = text(reference, "fieldPath");
    let version = text(reference, "apiVersion");
    if version.is_empty() {
        errs.required(&place.child("apiVersion"), "");
        return;
    }
    let here = place.child("fieldPath");
    if path.is_empty() {
        errs.required(&here, "");
        return;
    }
    let (name, key) = split_key(path);
    let fault = if version != "v1" {
        Some(format!("unsupported pod version: {version}"))
    } else if key.is_some() {
        (!matches!(name, "metadata.annotations" | "metadata.labels"))
            .then(|| format!("field label does not support subscript: {path}"))
    } else {
        (!KNOWN_FIELDS.contains(&name)).then(|| format!("field label not supported: {path}"))
    };
    if let Some(fault) = fault {
        errs.invalid_str(&here, path, &format!("error converting fieldPath: {fault}"));
        return;
    }
    let allowed = if target == Target::Variable { VARIABLE_FIELDS } else { FILE_FIELDS };
    match key {
        Some(key) if name == "metadata.annotations" => {
            let key = key.to_lowercase();
            errs.names(place, &key, names::qualified_name(&key));
        }
        Some(key) => errs.names(place, key, names::qualified_name(key)),
        None => {
            let name = if name == "spec.host" { "spec.nodeName" } else { name };
            errs.one_of(&here, name, allowed);
        }
    }
}

/// Splits `metadata.labels['key']` into field and key.
fn split_key(path: &str) -> (&str, Option<&str>) {
    path.strip_suffix("']").and_then(|rest| rest.split_once("['")).map_or((path, None), |(f, k)| (f, Some(k)))
}

/// Validates a reference to a request or limit of a container.
pub(super) fn resource(reference: &Value, target: Target, place: &Path, errs: &mut Errs) {
    let name = text(reference, "resource");
    if target == Target::File && text(reference, "containerName").is_empty() {
        errs.required(&place.child("containerName"), "");
    } else if name.is_empty() {
        errs.required(&place.child("resource"), "");
    } else if !HUGE_PAGES.iter().any(|prefix| name.starts_with(prefix)) {
        errs.one_of(&place.child("resource"), name, RESOURCES);
    }
    divisor(name, at(reference, "divisor"), &place.child("divisor"), errs);
}

fn divisor(resource: &str, divisor: &Value, place: &Path, errs: &mut Errs) {
    let Some(parsed) = quantity(divisor).filter(|q| !q.is_zero()) else { return };
    let (what, allowed) = match resource.split_once('.').unwrap_or_default().1 {
        "cpu" => ("cpu", &["1m", "1"][..]),
        "memory" => ("memory", BYTE_DIVISORS),
        "ephemeral-storage" => ("local ephemeral storage", BYTE_DIVISORS),
        other if other.starts_with("hugepages-") => ("hugepages", BYTE_DIVISORS),
        _ => return,
    };
    if !allowed.contains(&parsed.canonical().as_str()) {
        let values = if what == "cpu" { "1m and 1".to_owned() } else { BYTE_DIVISORS.join(", ") };
        errs.invalid_str(
            place,
            resource,
            &format!("only divisor's values {values} are supported with the {what} resource"),
        );
    }
}

/// Validates `envFrom` of a container.
pub(super) fn sources(sources: &[Value], place: &Path, errs: &mut Errs) {
    for (i, source) in sources.iter().enumerate() {
        let here = place.index(i);
        let prefix = text(source, "prefix");
        if !prefix.is_empty() {
            errs.names(&here.child("prefix"), prefix, names::env_var_name(prefix));
        }
        let mut given = 0;
        for key in ["configMapRef", "secretRef"] {
            if has(source, key) {
                given += 1;
                let name = text(at(source, key), "name");
                errs.required_name(&here.child(key).child("name"), name, |name| {
                    names::as_prefix(names::dns1123_subdomain, name)
                });
            }
        }
        // The errors name the list, not the entry.
        if given == 0 {
            errs.invalid_str(place, "", "must specify one of: `configMapRef` or `secretRef`");
        } else if given > 1 {
            errs.invalid_str(place, "", "may not have more than one field specified at a time");
        }
    }
}
