//! Webhook configurations and admission policies.

use std::collections::HashSet;

use machinery::field::Path;
use machinery::names;
use serde_json::{Map, Value};

use super::check::Errs;
use super::spec::{BASE, Facts, GenerationRule, Spec, StatusMeta, WITH_STATUS};
use super::unenforced;
use super::value::{at, fill, fill_at, has, int, list, list_mut, object_mut, text};

const WEBHOOKS: Spec = Spec {
    facts: Facts { unconditional_update: false, ..BASE.facts },
    generation: GenerationRule::Content,
    unenforced: unenforced::webhooks,
    ..BASE
};

pub(super) const VALIDATING_WEBHOOKS: Spec = Spec {
    default: |obj| list_mut(obj, "webhooks").for_each(default_webhook),
    validate: |_, obj, errs| webhooks(obj, errs),
    ..WEBHOOKS
};

pub(super) const MUTATING_WEBHOOKS: Spec = Spec {
    default: |obj| {
        for hook in list_mut(obj, "webhooks") {
            default_webhook(hook);
            if let Some(map) = hook.as_object_mut() {
                fill(map, "reinvocationPolicy", "Never");
            }
        }
    },
    validate: |_, obj, errs| webhooks(obj, errs),
    ..WEBHOOKS
};

pub(super) const VALIDATING_POLICY: Spec = Spec {
    facts: Facts { unconditional_update: false, ..WITH_STATUS.facts },
    status_meta: StatusMeta::Nothing,
    default: |obj| {
        fill_at(obj, "spec", "failurePolicy", "Fail");
        if has(obj, "spec.matchConstraints") {
            default_match(obj, "spec.matchConstraints");
        }
    },
    validate: |_, obj, errs| policy(obj, errs),
    unenforced: unenforced::policy,
    ..WITH_STATUS
};

pub(super) const MUTATING_POLICY: Spec = Spec {
    facts: Facts { unconditional_update: false, ..VALIDATING_POLICY.facts },
    status: None,
    default: VALIDATING_POLICY.default,
    ..VALIDATING_POLICY
};

pub(super) const POLICY_BINDING: Spec = Spec {
    facts: Facts { unconditional_update: false, ..BASE.facts },
    generation: GenerationRule::Spec,
    default: |obj| {
        if has(obj, "spec.matchResources") {
            default_match(obj, "spec.matchResources");
        }
    },
    validate: |_, obj, errs| {
        let here = Path::field("spec");
        if text(obj, "spec.policyName").is_empty() {
            errs.required(&here.child("policyName"), "");
        }
    },
    unenforced: unenforced::policy,
    ..BASE
};

fn default_webhook(hook: &mut Value) {
    let Some(map) = hook.as_object_mut() else { return };
    fill(map, "failurePolicy", "Fail");
    fill(map, "matchPolicy", "Equivalent");
    fill(map, "namespaceSelector", Value::Object(Map::new()));
    fill(map, "objectSelector", Value::Object(Map::new()));
    fill(map, "timeoutSeconds", 10);
    if has(hook, "clientConfig.service") {
        fill_at(hook, "clientConfig.service", "port", 443);
    }
    object_mut(hook, "clientConfig");
    default_scopes(hook, "rules");
}

fn default_scopes(object: &mut Value, place: &str) {
    for rule in list_mut(object, place).filter_map(Value::as_object_mut) {
        fill(rule, "scope", "*");
    }
}

fn default_match(obj: &mut Value, place: &str) {
    fill_at(obj, place, "matchPolicy", "Equivalent");
    fill_at(obj, place, "namespaceSelector", Value::Object(Map::new()));
    fill_at(obj, place, "objectSelector", Value::Object(Map::new()));
    for key in ["resourceRules", "excludeResourceRules"] {
        default_scopes(obj, &format!("{place}.{key}"));
    }
}

fn webhooks(obj: &Value, errs: &mut Errs) {
    let mut seen = HashSet::new();
    for (i, hook) in list(obj, "webhooks").iter().enumerate() {
        let here = Path::field("webhooks").index(i);
        webhook(hook, &here, errs);
        review_versions(hook, &here.child("admissionReviewVersions"), errs);
        let name = text(hook, "name");
        if !seen.insert(name) {
            errs.duplicate(&here.child("name"), at(hook, "name"));
        }
    }
}

fn webhook(hook: &Value, place: &Path, errs: &mut Errs) {
    qualified(text(hook, "name"), &place.child("name"), errs);
    for (i, rule) in list(hook, "rules").iter().enumerate() {
        self::rule(rule, &place.child("rules").index(i), errs);
    }
    errs.one_of(&place.child("failurePolicy"), text(hook, "failurePolicy"), &["Fail", "Ignore"]);
    errs.one_of(&place.child("matchPolicy"), text(hook, "matchPolicy"), &["Equivalent", "Exact"]);
    let effects = text(hook, "sideEffects");
    if effects.is_empty() {
        errs.required(&place.child("sideEffects"), "must specify one of None, NoneOnDryRun");
    } else {
        errs.one_of(&place.child("sideEffects"), effects, &["None", "NoneOnDryRun"]);
    }
    if let Some(seconds) = int(hook, "timeoutSeconds")
        && !(1..=30).contains(&seconds)
    {
        errs.invalid(
            &place.child("timeoutSeconds"),
            &Value::from(seconds),
            "the timeout value must be between 1 and 30 seconds",
        );
    }
    for key in ["namespaceSelector", "objectSelector"] {
        errs.selector(&place.child(key), at(hook, key));
    }
    client_config(at(hook, "clientConfig"), &place.child("clientConfig"), errs);
}

/// Checks that a name has at least three segments.
fn qualified(name: &str, place: &Path, errs: &mut Errs) {
    if name.is_empty() {
        errs.required(place, "");
        return;
    }
    let faults = names::dns1123_subdomain(name);
    if faults.is_empty() && name.split('.').count() < 3 {
        errs.invalid_str(place, name, "should be a domain with at least three segments separated by dots");
    }
    errs.names(place, name, faults);
}

fn rule(rule: &Value, place: &Path, errs: &mut Errs) {
    const OPERATIONS: &[&str] = &["*", "CONNECT", "CREATE", "DELETE", "UPDATE"];
    let operations = list(rule, "operations");
    if operations.is_empty() {
        errs.required(&place.child("operations"), "");
    }
    for (i, operation) in operations.iter().enumerate() {
        errs.one_of(&place.child("operations").index(i), operation.as_str().unwrap_or_default(), OPERATIONS);
    }
    for (key, plural) in
        [("operations", "operations"), ("apiGroups", "API groups"), ("apiVersions", "API versions")]
    {
        let values = list(rule, key);
        if key != "operations" && values.is_empty() {
            errs.required(&place.child(key), "");
        }
        if values.len() > 1 && values.iter().any(|v| v == "*") {
            errs.invalid(
                &place.child(key),
                at(rule, key),
                &format!("if '*' is present, must not specify other {plural}"),
            );
        }
    }
    if list(rule, "resources").is_empty() {
        errs.required(&place.child("resources"), "");
    }
    let scope = text(rule, "scope");
    if !scope.is_empty() {
        errs.one_of(&place.child("scope"), scope, &["*", "Cluster", "Namespaced"]);
    }
}

/// Checks the `clientConfig` of webhooks, including conversion webhooks.
pub(crate) fn client_config(config: &Value, place: &Path, errs: &mut Errs) {
    if has(config, "url") == has(config, "service") {
        errs.required(place, "exactly one of url or service is required");
        return;
    }
    if has(config, "url") {
        url(text(config, "url"), &place.child("url"), errs);
        return;
    }
    let here = place.child("service");
    for key in ["name", "namespace"] {
        if text(at(config, "service"), key).is_empty() {
            errs.required(&here.child(key), &format!("service {key} is required"));
        }
    }
    let port = int(config, "service.port").unwrap_or(443);
    if !(1..=65535).contains(&port) {
        errs.invalid(
            &here.child("port"),
            &Value::from(port),
            "port is not valid: must be between 1 and 65535, inclusive",
        );
    }
    let path = text(config, "service.path");
    if !path.is_empty() && !path.starts_with('/') {
        errs.invalid_str(&here.child("path"), path, "must start with a '/'");
    }
}

fn url(url: &str, place: &Path, errs: &mut Errs) {
    const FORM: &str = "desired format: https://host[/path]";
    let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
    if scheme != "https" {
        errs.invalid_str(place, scheme, &format!("'https' is the only allowed URL scheme; {FORM}"));
    }
    let (rest, fragment) = rest.split_once('#').unwrap_or((rest, ""));
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    let authority = rest.split('/').next().unwrap_or_default();
    let (user, host) = authority.rsplit_once('@').unwrap_or(("", authority));
    if host.is_empty() {
        errs.invalid_str(place, host, &format!("host must be specified; {FORM}"));
    }
    if !user.is_empty() {
        errs.invalid_str(place, user, "user information is not permitted in the URL");
    }
    if !fragment.is_empty() {
        errs.invalid_str(place, fragment, "fragments are not permitted in the URL");
    }
    if !query.is_empty() {
        errs.invalid_str(place, query, "query parameters are not permitted in the URL");
    }
}

fn review_versions(hook: &Value, place: &Path, errs: &mut Errs) {
    let versions = list(hook, "admissionReviewVersions");
    if versions.is_empty() {
        errs.required(place, "must specify one of v1, v1beta1");
        return;
    }
    let mut seen = HashSet::new();
    for (i, version) in versions.iter().enumerate() {
        let text = version.as_str().unwrap_or_default();
        errs.names(&place.index(i), text, names::dns1035_label(text));
        if !seen.insert(version) {
            errs.invalid_str(&place.index(i), text, "duplicate version");
        }
    }
    if !versions.iter().any(|v| v == "v1" || v == "v1beta1") {
        errs.invalid(place, at(hook, "admissionReviewVersions"), "must include at least one of v1, v1beta1");
    }
}

fn policy(obj: &Value, errs: &mut Errs) {
    let place = Path::field("spec");
    let spec = at(obj, "spec");
    errs.one_of(&place.child("failurePolicy"), text(spec, "failurePolicy"), &["Fail", "Ignore"]);
    let constraints = at(spec, "matchConstraints");
    let here = place.child("matchConstraints");
    if constraints.is_null() {
        errs.required(&here, "");
    } else if list(constraints, "resourceRules").is_empty() {
        errs.required(&here.child("resourceRules"), "");
    }
    for (i, rule) in list(constraints, "resourceRules").iter().enumerate() {
        self::rule(rule, &here.child("resourceRules").index(i), errs);
    }
    if has(spec, "mutations") {
        return;
    }
    if list(spec, "validations").is_empty() && list(spec, "auditAnnotations").is_empty() {
        errs.required(
            &place.child("validations"),
            "validations or auditAnnotations must contain at least one item",
        );
    }
    for (i, validation) in list(spec, "validations").iter().enumerate() {
        if text(validation, "expression").trim().is_empty() {
            errs.required(
                &place.child("validations").index(i).child("expression"),
                "expression is not specified",
            );
        }
    }
}
