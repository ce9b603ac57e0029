//! Validation of CustomResourceDefinitions (AS-039; spec 6.1). Paths print as in the internal form of Kubernetes:
//! fields that all versions share move from `spec.versions[i]` to the top of the spec.

use std::collections::{HashMap, HashSet};

use machinery::field::{Error, Path};
use machinery::schema::Patterns;
use machinery::{names, rules, schema};
use serde_json::Value;

use super::status::{self, Approval};
use crate::kinds::value::{at, flag, has, list, path, text};
use crate::kinds::{Errs, client_config};

/// Validates the spec. Schemas that `old` has already are not checked again.
pub(super) fn spec(crd: &Value, old: Option<&Value>, errs: &mut Errs) {
    let place = Path::field("spec");
    let spec = at(crd, "spec");
    let plural = text(spec, "names.plural");
    let wanted = format!("{plural}.{}", text(spec, "group"));
    let name = text(crd, "metadata.name");
    if name != wanted {
        errs.invalid_str(&path("metadata.name"), name, "must be spec.names.plural+\".\"+spec.group");
    }
    group(text(spec, "group"), &place.child("group"), errs);
    errs.required_enum(&place.child("scope"), text(spec, "scope"), &["Cluster", "Namespaced"]);
    let versions = list(spec, "versions");
    let shared = SharedFields::of(versions);
    let mut schemas = Schemas::of(old);
    if versions.iter().all(|v| at(v, "schema.openAPIV3Schema").is_null()) {
        for i in 0..versions.len() {
            errs.required(&place.child("versions").index(i).child("schema").child("openAPIV3Schema"), "");
        }
    }
    for (i, version) in versions.iter().enumerate() {
        self::version(version, &place.child("versions").index(i), &shared, &mut schemas, errs);
    }
    version_list(versions, &place, errs);
    if let Some(first) = versions.first() {
        let name = text(first, "name");
        names_joined(&place.child("version"), name, names::dns1035_label(name), "", errs);
    }
    let names_place = place.child("names");
    for key in ["plural", "singular", "kind", "listKind"] {
        if text(at(spec, "names"), key).is_empty() {
            errs.required(&names_place.child(key), "");
        }
    }
    self::names(at(spec, "names"), &names_place, errs);
    if let Some(first) = versions.first() {
        shared_parts(first, &place, &shared, &mut schemas, errs);
    }
    conversion(at(spec, "conversion"), &place.child("conversion"), errs);
}

fn group(group: &str, place: &Path, errs: &mut Errs) {
    if group.is_empty() {
        errs.required(place, "");
        return;
    }
    let faults = names::dns1123_subdomain(group);
    if !faults.is_empty() {
        errs.invalid_str(place, group, &faults.join(","));
    } else if !group.contains('.') {
        errs.invalid_str(place, group, "should be a domain with at least one dot");
    }
}

/// Adds one error for all faults of a name.
fn names_joined(place: &Path, value: &str, faults: Vec<String>, prefix: &str, errs: &mut Errs) {
    if !faults.is_empty() {
        errs.invalid_str(place, value, &format!("{prefix}{}", faults.join(",")));
    }
}

/// State that the schemas of all versions are checked with.
struct Schemas<'o> {
    /// The schemas of the stored definition.
    stored: HashSet<&'o Value>,
    patterns: Patterns,
}

impl<'o> Schemas<'o> {
    fn of(old: Option<&'o Value>) -> Self {
        let versions = old.map(|old| list(old, "spec.versions")).unwrap_or_default();
        let stored = versions.iter().map(|version| at(version, "schema.openAPIV3Schema")).collect();
        Self { stored, patterns: Patterns::default() }
    }
}

/// Which fields all versions share.
struct SharedFields {
    schema: bool,
    subresources: bool,
    columns: bool,
    fields: bool,
}

impl SharedFields {
    fn of(versions: &[Value]) -> Self {
        let same = |key: &str| {
            let first = versions.first().map(|v| at(v, key));
            versions.iter().all(|v| Some(at(v, key)) == first)
        };
        Self {
            schema: same("schema"),
            subresources: same("subresources"),
            columns: same("additionalPrinterColumns"),
            fields: same("selectableFields"),
        }
    }
}

fn version(version: &Value, place: &Path, shared: &SharedFields, schemas: &mut Schemas<'_>, errs: &mut Errs) {
    let name = text(version, "name");
    names_joined(&place.child("name"), name, names::dns1035_label(name), "", errs);
    deprecation(version, place, errs);
    if !shared.schema {
        schema(version, &place.child("schema").child("openAPIV3Schema"), schemas, errs);
    }
    if !shared.subresources {
        subresources(at(version, "subresources"), &place.child("subresources"), errs);
    }
    if !shared.columns {
        columns(version, &place.child("additionalPrinterColumns"), errs);
    }
    if !shared.fields {
        selectable_fields(version, &place.child("selectableFields"), errs);
    }
}

fn shared_parts(
    version: &Value,
    place: &Path,
    shared: &SharedFields,
    schemas: &mut Schemas<'_>,
    errs: &mut Errs,
) {
    if shared.columns {
        columns(version, &place.child("additionalPrinterColumns"), errs);
    }
    if shared.fields {
        selectable_fields(version, &place.child("selectableFields"), errs);
    }
    if shared.schema && has(version, "schema.openAPIV3Schema") {
        schema(version, &place.child("validation").child("openAPIV3Schema"), schemas, errs);
    }
    if shared.subresources {
        subresources(at(version, "subresources"), &place.child("subresources"), errs);
    }
}

fn deprecation(version: &Value, place: &Path, errs: &mut Errs) {
    let Some(warning) = at(version, "deprecationWarning").as_str() else { return };
    let mut fault = |why: &str| errs.invalid_str(&place.child("deprecationWarning"), warning, why);
    if !flag(version, "deprecated") {
        fault("can only be set for deprecated versions");
    }
    if warning.is_empty() {
        fault("must not be an empty string");
    } else if warning.len() > 256 {
        fault("must be <= 256 characters long");
    } else if let Some(index) = warning.chars().position(char::is_control) {
        fault(&format!(
            "must only contain printable UTF-8 characters; non-printable character found at index {index}"
        ));
    }
}

fn version_list(versions: &[Value], place: &Path, errs: &mut Errs) {
    let here = place.child("versions");
    let mut names: Vec<&str> = versions.iter().map(|v| text(v, "name")).collect();
    names.sort_unstable();
    names.dedup();
    if names.len() != versions.len() {
        errs.invalid_text(&here, &print_versions(versions), "must contain unique version names");
    }
    if versions.iter().filter(|v| flag(v, "storage")).count() != 1 {
        errs.invalid_text(
            &here,
            &print_versions(versions),
            "must have exactly one version marked as storage version",
        );
    }
}

/// The versions in the internal form of Kubernetes, without shared fields.
fn print_versions(versions: &[Value]) -> String {
    if versions.is_empty() {
        return "null".into();
    }
    let one = |v: &Value| {
        format!(
            "{{\"Name\":{},\"Served\":{},\"Storage\":{},\"Deprecated\":{},\"DeprecationWarning\":{},\"Schema\":null,\"Subresources\":null,\"AdditionalPrinterColumns\":null,\"SelectableFields\":null}}",
            at(v, "name"),
            flag(v, "served"),
            flag(v, "storage"),
            flag(v, "deprecated"),
            at(v, "deprecationWarning")
        )
    };
    format!("[{}]", versions.iter().map(one).collect::<Vec<_>>().join(","))
}

fn names(all: &Value, place: &Path, errs: &mut Errs) {
    const MIXED: &str = "may have mixed case, but should otherwise match: ";
    for (key, prefix) in [("plural", ""), ("singular", ""), ("kind", MIXED), ("listKind", MIXED)] {
        let value = text(all, key);
        if value.is_empty() {
            continue;
        }
        let checked = if prefix.is_empty() { value.to_owned() } else { value.to_lowercase() };
        names_joined(&place.child(key), value, names::dns1035_label(&checked), prefix, errs);
    }
    for key in ["shortNames", "categories"] {
        for (i, name) in list(all, key).iter().enumerate() {
            let name = name.as_str().unwrap_or_default();
            names_joined(&place.child(key).index(i), name, names::dns1035_label(name), "", errs);
        }
    }
    let kind = text(all, "kind");
    if !kind.is_empty() && kind == text(all, "listKind") {
        errs.invalid_str(&place.child("listKind"), kind, "kind and listKind may not be the same");
    }
}

/// Validates a schema and its rules. A schema that the stored definition has in some version is not checked again.
fn schema(version: &Value, place: &Path, schemas: &mut Schemas<'_>, errs: &mut Errs) {
    let open_api = at(version, "schema.openAPIV3Schema");
    if open_api.is_null() {
        errs.required(place, "");
        return;
    }
    if schemas.stored.contains(open_api) {
        return;
    }
    let faults = schema::structural_errors(open_api, place, &mut schemas.patterns);
    let sound = faults.is_empty();
    errs.0.extend(faults);
    if sound {
        errs.0.extend(rules::compile(open_api, place));
    }
}

fn subresources(all: &Value, place: &Path, errs: &mut Errs) {
    let scale = at(all, "scale");
    if scale.is_null() {
        return;
    }
    let place = place.child("scale");
    for (key, parents, why) in [
        ("specReplicasPath", &[".spec."][..], "should be a json path under .spec"),
        ("statusReplicasPath", &[".status."][..], "should be a json path under .status"),
        (
            "labelSelectorPath",
            &[".status.", ".spec."][..],
            "should be a json path under either .spec or .status",
        ),
    ] {
        let value = text(scale, key);
        let here = place.child(key);
        if value.is_empty() {
            if key != "labelSelectorPath" {
                errs.required(&here, "");
            }
        } else if !simple_path(value, &here, errs) && !parents.iter().any(|p| value.starts_with(p)) {
            errs.invalid_str(&here, value, why);
        }
    }
}

/// Returns `true` and adds an error to `errs` if `value` is not a path.
fn simple_path(value: &str, place: &Path, errs: &mut Errs) -> bool {
    let why = if value.is_empty() {
        "must not be empty"
    } else if !value.starts_with('.') {
        "must be a simple json path starting with ."
    } else {
        return false;
    };
    errs.invalid_str(place, value, why);
    true
}

fn columns(version: &Value, place: &Path, errs: &mut Errs) {
    const TYPES: &[&str] = &["boolean", "date", "integer", "number", "string"];
    const FORMATS: &[&str] =
        &["binary", "byte", "date", "date-time", "double", "float", "int32", "int64", "password"];
    for (i, column) in list(version, "additionalPrinterColumns").iter().enumerate() {
        let here = place.index(i);
        if text(column, "name").is_empty() {
            errs.required(&here.child("name"), "");
        }
        let kind = text(column, "type");
        if kind.is_empty() {
            errs.required(&here.child("type"), &format!("must be one of {}", TYPES.join(",")));
        } else if !TYPES.contains(&kind) {
            errs.invalid_str(&here.child("type"), kind, &format!("must be one of {}", TYPES.join(",")));
        }
        let format = text(column, "format");
        if !format.is_empty() && !FORMATS.contains(&format) {
            errs.invalid_str(&here.child("format"), format, &format!("must be one of {}", FORMATS.join(",")));
        }
        let path = text(column, "jsonPath");
        if path.is_empty() {
            errs.required(&here.child("jsonPath"), "");
        } else {
            simple_path(path, &here.child("jsonPath"), errs);
        }
    }
}

fn selectable_fields(version: &Value, place: &Path, errs: &mut Errs) {
    let fields = list(version, "selectableFields");
    if fields.len() > 8 {
        errs.0.push(Error::too_many(place, fields.len(), 8));
    }
    let mut seen = HashSet::new();
    for (i, field) in fields.iter().enumerate() {
        let here = place.index(i).child("jsonPath");
        let path = text(field, "jsonPath");
        let first = seen.insert(path);
        if path.is_empty() {
            errs.required(&here, "");
            continue;
        }
        match leaf(at(version, "schema.openAPIV3Schema"), path) {
            Err(why) => errs.invalid_str(&here, path, &format!("is an invalid path: {why}")),
            Ok(_) if path == ".metadata" || path.starts_with(".metadata.") => {
                errs.invalid_str(&here, path, "must not point to fields in metadata");
            }
            Ok(found) => {
                if !matches!(text(found, "type"), "string" | "boolean" | "integer") {
                    errs.invalid_str(
                        &here,
                        path,
                        "must point to a field of type string, boolean or integer. Enum string fields and strings with formats are allowed.",
                    );
                }
            }
        }
        if !first {
            errs.duplicate(&here, &path.into());
        }
    }
}

/// The schema node at the end of a simple path.
fn leaf<'a>(open_api: &'a Value, path: &str) -> Result<&'a Value, &'static str> {
    let steps = path.strip_prefix('.').ok_or("expected [ or . but got: ")?;
    if path.contains('[') {
        return Err("does not refer to a valid field");
    }
    if steps == "metadata" || steps.starts_with("metadata.") {
        return Ok(open_api);
    }
    steps
        .split('.')
        .try_fold(open_api, |node, step| at(node, "properties").get(step))
        .ok_or("does not refer to a valid field")
}

fn conversion(conversion: &Value, place: &Path, errs: &mut Errs) {
    let strategy = text(conversion, "strategy");
    errs.required_enum(&place.child("strategy"), strategy, &["None", "Webhook"]);
    let config = at(conversion, "webhook.clientConfig");
    let here = place.child("webhookClientConfig");
    let versions = list(conversion, "webhook.conversionReviewVersions");
    let at_versions = place.child("conversionReviewVersions");
    if strategy == "Webhook" {
        if config.is_null() {
            errs.required(&here, "required when strategy is set to Webhook");
        } else {
            client_config(config, &here, errs);
        }
        if versions.is_empty() {
            errs.required(&at_versions, "");
        } else if !versions.iter().any(|v| v == "v1" || v == "v1beta1") {
            errs.invalid(
                &at_versions,
                at(conversion, "webhook.conversionReviewVersions"),
                "must include at least one of v1, v1beta1",
            );
        }
    } else if !config.is_null() {
        errs.forbidden(&here, "should not be set when strategy is not set to Webhook");
    } else if !versions.is_empty() {
        errs.forbidden(&at_versions, "should not be set when strategy is not set to Webhook");
    }
}

/// Checks that `status.storedVersions` are versions of the spec, with the storage version.
pub(super) fn stored_versions(crd: &Value, errs: &mut Errs) {
    let place = path("status.storedVersions");
    let stored = list(crd, "status.storedVersions");
    if stored.is_empty() {
        errs.invalid(&place, at(crd, "status.storedVersions"), "must have at least one stored version");
        return;
    }
    let mut left: Vec<Option<&str>> = stored.iter().map(Value::as_str).collect();
    // Indexes of each name, the first one last.
    let mut places: HashMap<&str, Vec<usize>> = HashMap::new();
    for (i, name) in left.iter().enumerate().rev() {
        if let Some(name) = name {
            places.entry(name).or_default().push(i);
        }
    }
    for version in list(crd, "spec.versions") {
        let name = text(version, "name");
        let first = places.get_mut(name).and_then(Vec::pop);
        match first.and_then(|first| left.get_mut(first)) {
            Some(found) => *found = None,
            None if flag(version, "storage") => errs.invalid(
                &place,
                at(crd, "status.storedVersions"),
                &format!("must have the storage version {name}"),
            ),
            None => {}
        }
    }
    for (i, name) in left.iter().enumerate().filter_map(|(i, v)| v.map(|v| (i, v))) {
        let why = format!(
            "missing from spec.versions; {name} was previously a storage version, and must remain in spec.versions until a storage migration ensures no data remains persisted in {name} and removes {name} from status.storedVersions"
        );
        errs.invalid_str(&place.index(i), name, &why);
    }
}

/// Checks that definitions in groups of the Kubernetes project name their approval.
pub(super) fn approval(crd: &Value, old: Option<&Value>, errs: &mut Errs) {
    const KEY: &str = "api-approved.kubernetes.io";
    const SEE: &str = "see https://github.com/kubernetes/enhancements/pull/1111";
    let unsound = |crd: &Value| matches!(status::approval_of(crd), Approval::Missing | Approval::Invalid(_));
    if !status::is_protected(text(crd, "spec.group")) || old.is_some_and(unsound) {
        return;
    }
    let place = path("metadata.annotations").key(KEY);
    match status::approval_of(crd) {
        Approval::Missing => {
            let why = format!("protected groups must have approval annotation \"{KEY}\", {SEE}");
            errs.required(&place, &why);
        }
        Approval::Invalid(note) => {
            let why = format!(
                "protected groups must have approval annotation \"{KEY}\" with either a URL or a reason starting with \"unapproved\", {SEE}"
            );
            errs.invalid_str(&place, &note, &why);
        }
        Approval::Bypassed(_) | Approval::Approved(_) => {}
    }
}

pub(super) fn preserve_unknown(crd: &Value, errs: &mut Errs) {
    if flag(crd, "spec.preserveUnknownFields") {
        errs.invalid(
            &path("spec.preserveUnknownFields"),
            &true.into(),
            "cannot set to true, set x-kubernetes-preserve-unknown-fields to true in spec.versions[*].schema instead",
        );
    }
}

/// Checks the fields that cannot change.
pub(super) fn fixed(crd: &Value, old: &Value, errs: &mut Errs) {
    if status::is_true(old, "Established") {
        errs.immutable("spec.scope", crd, old);
        errs.immutable("spec.names.kind", crd, old);
    }
    errs.immutable("spec.group", crd, old);
    errs.immutable("spec.names.plural", crd, old);
}
