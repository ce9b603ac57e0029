//! Validation of HorizontalPodAutoscalers.

use machinery::field::Path;
use machinery::names;
use serde_json::Value;

use super::check::{Errs, quantity};
use super::value::{at, has, int, list, text};

const MAX_SECONDS: i64 = 3600;
const MAX_PERIOD: i64 = 1800;
/// Types of metrics and the fields that describe them, in the order of their checks.
const SOURCES: &[(&str, &str)] = &[
    ("Object", "object"),
    ("External", "external"),
    ("Pods", "pods"),
    ("Resource", "resource"),
    ("ContainerResource", "containerResource"),
];
const TYPES: &[&str] = &["ContainerResource", "External", "Object", "Pods", "Resource"];

/// Validates an autoscaler in the form of v2.
pub(super) fn autoscaler(obj: &Value, errs: &mut Errs) {
    let place = Path::field("spec");
    let spec = at(obj, "spec");
    let min = int(spec, "minReplicas");
    let max = int(spec, "maxReplicas").unwrap_or_default();
    if let Some(min) = min.filter(|n| *n < 1) {
        errs.invalid(&place.child("minReplicas"), &Value::from(min), "must be greater than or equal to 1");
    }
    let here = place.child("maxReplicas");
    if max == 0 {
        errs.required(&here, "must be set and greater than 0");
    } else if max < 0 {
        errs.invalid(&here, &Value::from(max), "must be greater than or equal to 1");
    }
    if min.is_some_and(|min| max < min) {
        errs.invalid(&here, &Value::from(max), "must be greater than or equal to `minReplicas`");
    }
    reference(at(spec, "scaleTargetRef"), true, &place.child("scaleTargetRef"), errs);
    let metrics = list(spec, "metrics");
    for (i, metric) in metrics.iter().enumerate() {
        self::metric(metric, &place.child("metrics").index(i), errs);
    }
    let outside = |m: &Value| matches!(text(m, "type"), "Object" | "External");
    if min == Some(0) && !metrics.iter().any(outside) {
        errs.forbidden(
            &place.child("metrics"),
            "must specify at least one Object or External metric to support scaling to zero replicas",
        );
    }
    for key in ["scaleUp", "scaleDown"] {
        let rules = at(at(spec, "behavior"), key);
        if !rules.is_null() {
            scaling_rules(rules, &place.child("behavior").child(key), errs);
        }
    }
}

fn reference(target: &Value, needs_group: bool, place: &Path, errs: &mut Errs) {
    for key in ["kind", "name"] {
        errs.required_name(&place.child(key), text(target, key), names::path_segment);
    }
    let version = text(target, "apiVersion");
    let core = version == "v1" && text(target, "kind") == "ReplicationController";
    let here = place.child("apiVersion");
    if version.matches('/').count() > 1 {
        errs.invalid_str(&here, version, &format!("unexpected GroupVersion string: {version}"));
    } else if needs_group && !core && version.split_once('/').is_none_or(|(group, _)| group.is_empty()) {
        errs.invalid_str(&here, version, "apiVersion must specify API group");
    }
}

fn scaling_rules(rules: &Value, place: &Path, errs: &mut Errs) {
    let here = place.child("stabilizationWindowSeconds");
    match int(rules, "stabilizationWindowSeconds") {
        Some(n) if n < 0 => {
            errs.invalid(&here, &Value::from(n), "must be greater than or equal to zero");
        }
        Some(n) if n > MAX_SECONDS => {
            errs.invalid(&here, &Value::from(n), "must be less than or equal to 3600");
        }
        _ => {}
    }
    if has(rules, "selectPolicy") {
        errs.one_of(&place.child("selectPolicy"), text(rules, "selectPolicy"), &["Disabled", "Max", "Min"]);
    }
    let here = place.child("policies");
    let policies = list(rules, "policies");
    if policies.is_empty() {
        errs.required(&here, "must specify at least one Policy");
    }
    for (i, policy) in policies.iter().enumerate() {
        let here = here.index(i);
        errs.one_of(&here.child("type"), text(policy, "type"), &["Percent", "Pods"]);
        for key in ["value", "periodSeconds"] {
            let n = int(policy, key).unwrap_or_default();
            if n <= 0 {
                errs.invalid(&here.child(key), &Value::from(n), "must be greater than zero");
            }
        }
        if let Some(n) = int(policy, "periodSeconds").filter(|n| *n > MAX_PERIOD) {
            errs.invalid(&here.child("periodSeconds"), &Value::from(n), "must be less than or equal to 1800");
        }
    }
    if super::check::is_negative(at(rules, "tolerance")) {
        errs.invalid(&place.child("tolerance"), at(rules, "tolerance"), super::check::NOT_NEGATIVE);
    }
}

fn metric(metric: &Value, place: &Path, errs: &mut Errs) {
    let kind = text(metric, "type");
    let here = place.child("type");
    if kind.is_empty() {
        errs.required(&here, "must specify a metric source type");
    }
    let given: Vec<&str> = SOURCES.iter().map(|(_, key)| *key).filter(|key| has(metric, key)).collect();
    let expected = SOURCES.iter().find(|(name, _)| *name == kind).map(|(_, key)| *key);
    if expected.is_none() {
        // Two checks report it.
        errs.unsupported(&here, kind, TYPES);
    }
    if let Some(first) = given.first() {
        source(first, at(metric, first), &place.child(first), errs);
    }
    match expected {
        Some(key) if !has(metric, key) => {
            errs.required(&place.child(key), "must populate information for the given metric source");
        }
        None => errs.unsupported(&here, kind, TYPES),
        _ => {}
    }
    if given.len() != 1 {
        for key in given.iter().filter(|key| Some(**key) != expected) {
            errs.forbidden(&place.child(key), "must populate the given metric source only");
        }
    }
}

fn source(kind: &str, source: &Value, place: &Path, errs: &mut Errs) {
    if kind == "object" {
        reference(at(source, "describedObject"), false, &place.child("describedObject"), errs);
    }
    if matches!(kind, "object" | "external" | "pods") {
        let name = text(source, "metric.name");
        let here = place.child("metric").child("name");
        if name.is_empty() {
            errs.required(&here, "must specify a metric name");
        } else {
            errs.names(&here, name, names::path_segment(name));
        }
    } else {
        let name = text(source, "name");
        let here = place.child("name");
        if name.is_empty() {
            errs.required(&here, "must specify a resource name");
        } else if kind == "containerResource" {
            super::pod_containers::container_resource(name, &here, errs);
        }
    }
    if kind == "containerResource" {
        let container = text(source, "container");
        let here = place.child("container");
        if container.is_empty() {
            errs.required(&here, "must specify a container");
        } else {
            errs.names(&here, container, names::dns1123_label(container));
        }
    }
    let goal = at(source, "target");
    let here = place.child("target");
    target(goal, &here, errs);
    let (value, average, utilization) =
        (has(goal, "value"), has(goal, "averageValue"), has(goal, "averageUtilization"));
    let missing = match kind {
        "object" if !value && !average => {
            Some(("averageValue", "must set either a target value or averageValue"))
        }
        "external" if !value && !average => {
            Some(("averageValue", "must set either a target value for metric or a per-pod target"))
        }
        "pods" if !average => Some(("averageValue", "must specify a positive target averageValue")),
        "resource" | "containerResource" if !utilization && !average => {
            Some(("averageUtilization", "must set either a target raw value or a target utilization"))
        }
        _ => None,
    };
    if let Some((key, why)) = missing {
        errs.required(&here.child(key), why);
    }
    match kind {
        "external" if value && average => errs.forbidden(
            &here.child("value"),
            "may not set both a target value for metric and a per-pod target",
        ),
        "resource" | "containerResource" if utilization && average => errs.forbidden(
            &here.child("averageValue"),
            "may not set both a target raw value and a target utilization",
        ),
        _ => {}
    }
}

fn target(target: &Value, place: &Path, errs: &mut Errs) {
    let kind = text(target, "type");
    if kind.is_empty() {
        errs.required(&place.child("type"), "must specify a metric target type");
    }
    if !matches!(kind, "Utilization" | "Value" | "AverageValue") {
        errs.invalid_str(&place.child("type"), kind, "must be either Utilization, Value, or AverageValue");
    }
    for key in ["value", "averageValue"] {
        let amount = at(target, key);
        if quantity(amount).is_some_and(|q| q.is_zero() || q.is_negative()) {
            errs.invalid(&place.child(key), amount, "must be positive");
        }
    }
    if let Some(n) = int(target, "averageUtilization").filter(|n| *n < 1) {
        errs.invalid(&place.child("averageUtilization"), &Value::from(n), "must be greater than 0");
    }
}
