//! HorizontalPodAutoscalers in both versions.

use serde_json::{Map, Value, json};

use super::spec::{GenerationRule, Spec, WITH_STATUS};
use super::value::{at, fill, fill_at, has, int, list, object_mut, put, remove_at, set_at, text};

/// Annotation in which v1 keeps metrics that it has no fields for.
const METRICS: &str = "autoscaling.alpha.kubernetes.io/metrics";
const CURRENT: &str = "autoscaling.alpha.kubernetes.io/current-metrics";
const CONDITIONS: &str = "autoscaling.alpha.kubernetes.io/conditions";
const BEHAVIOR: &str = "autoscaling.alpha.kubernetes.io/behavior";

pub(super) const HPA_V2: Spec = Spec {
    status: Some(|| json!({"currentMetrics": null, "desiredReplicas": 0})),
    generation: GenerationRule::FromClient,
    default: |obj| {
        fill_at(obj, "spec", "minReplicas", 1);
        if list(obj, "spec.metrics").is_empty() {
            let metric = json!([{"type": "Resource", "resource": {"name": "cpu",
                "target": {"type": "Utilization", "averageUtilization": 80}}}]);
            set_at(obj, "spec", "metrics", metric);
        }
        if has(obj, "spec.behavior") {
            behavior(obj);
        }
    },
    convert: |obj, to| if to == "autoscaling/v1" { to_v1(obj) } else { to_v2(obj) },
    validate: |_, obj, errs| super::hpa_validation::autoscaler(obj, errs),
    validate_subresource: |_, sub, obj, _, errs| {
        if sub == "status" {
            let place = machinery::field::Path::field("status");
            for key in ["currentReplicas", "desiredReplicas"] {
                errs.non_negative(at(obj, "status"), &place, key);
            }
        }
    },
    ..WITH_STATUS
};

pub(super) const HPA_V1: Spec = Spec {
    status: Some(|| json!({"currentReplicas": 0, "desiredReplicas": 0})),
    default: |obj| fill_at(obj, "spec", "minReplicas", 1),
    ..HPA_V2
};

fn behavior(obj: &mut Value) {
    let up = json!([{"type": "Pods", "value": 4, "periodSeconds": 15}, {"type": "Percent", "value": 100, "periodSeconds": 15}]);
    let down = json!([{"type": "Percent", "value": 100, "periodSeconds": 15}]);
    for (key, policies) in [("scaleUp", up), ("scaleDown", down)] {
        if key == "scaleDown" && !has(obj, "spec.behavior.scaleDown") {
            continue;
        }
        let Some(rules) = object_mut(obj, &format!("spec.behavior.{key}")) else { continue };
        fill(rules, "selectPolicy", "Max");
        if key == "scaleUp" {
            fill(rules, "stabilizationWindowSeconds", 0);
        }
        if rules.get("policies").and_then(Value::as_array).is_none_or(Vec::is_empty) {
            rules.insert("policies".into(), policies);
        }
    }
}

/// Converts v2 (the stored version) to v1.
fn to_v1(obj: &mut Value) {
    put(obj, "apiVersion", &"autoscaling/v1".into());
    let metrics = list(obj, "spec.metrics").to_vec();
    drop(remove_at(obj, "spec", "metrics"));
    let (cpu, rest): (Vec<Value>, Vec<Value>) = metrics.into_iter().partition(is_cpu);
    if let Some(percent) = cpu.first().and_then(|m| int(m, "resource.target.averageUtilization")) {
        set_at(obj, "spec", "targetCPUUtilizationPercentage", percent);
    }
    annotate(obj, METRICS, Value::from(rest));
    let behavior = remove_at(obj, "spec", "behavior").unwrap_or_default();
    annotate(obj, BEHAVIOR, behavior);
    let current = list(obj, "status.currentMetrics").to_vec();
    drop(remove_at(obj, "status", "currentMetrics"));
    if let Some(percent) =
        current.iter().find(|m| is_cpu(m)).and_then(|m| int(m, "resource.current.averageUtilization"))
    {
        set_at(obj, "status", "currentCPUUtilizationPercentage", percent);
    }
    annotate(obj, CURRENT, Value::from(current.into_iter().filter(|m| !is_cpu(m)).collect::<Vec<_>>()));
    let conditions = remove_at(obj, "status", "conditions").unwrap_or_default();
    annotate(obj, CONDITIONS, conditions);
    (HPA_V1.default)(obj);
}

/// Converts v1 to v2.
fn to_v2(obj: &mut Value) {
    put(obj, "apiVersion", &"autoscaling/v2".into());
    let mut metrics = match restore(obj, METRICS) {
        Value::Array(items) => items,
        _ => Vec::new(),
    };
    if let Some(percent) = remove_at(obj, "spec", "targetCPUUtilizationPercentage") {
        let cpu = json!({"type": "Resource", "resource": {"name": "cpu",
            "target": {"type": "Utilization", "averageUtilization": percent}}});
        metrics.insert(0, cpu);
    }
    if !metrics.is_empty() {
        set_at(obj, "spec", "metrics", metrics);
    }
    for (annotation, place, key) in [
        (BEHAVIOR, "spec", "behavior"),
        (CURRENT, "status", "currentMetrics"),
        (CONDITIONS, "status", "conditions"),
    ] {
        let value = restore(obj, annotation);
        if !value.is_null() {
            set_at(obj, place, key, value);
        }
    }
    if let Some(percent) = remove_at(obj, "status", "currentCPUUtilizationPercentage") {
        let cpu = json!({"type": "Resource", "resource": {"name": "cpu",
            "current": {"averageUtilization": percent}}});
        if let Some(status) = super::value::at_mut(obj, "status") {
            super::pods::append(status, "currentMetrics", cpu);
        }
    }
    (HPA_V2.default)(obj);
}

fn is_cpu(metric: &Value) -> bool {
    text(metric, "type") == "Resource"
        && text(metric, "resource.name") == "cpu"
        && (has(metric, "resource.target.averageUtilization") || has(metric, "resource.current"))
}

fn annotate(obj: &mut Value, key: &str, value: Value) {
    let empty = value.is_null() || value.as_array().is_some_and(Vec::is_empty);
    if !empty {
        set_at(obj, "metadata.annotations", key, value.to_string());
    }
}

/// Removes an annotation that carries a value, and returns the value.
fn restore(obj: &mut Value, key: &str) -> Value {
    let text = remove_at(obj, "metadata.annotations", key);
    if at(obj, "metadata.annotations").as_object().is_some_and(Map::is_empty) {
        drop(remove_at(obj, "metadata", "annotations"));
    }
    text.as_ref().and_then(Value::as_str).and_then(|t| serde_json::from_str(t).ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_013_autoscalers_convert_both_ways() {
        let v1 = json!({"apiVersion": "autoscaling/v1", "kind": "HorizontalPodAutoscaler", "metadata": {"name": "h"},
            "spec": {"minReplicas": 1, "maxReplicas": 5, "targetCPUUtilizationPercentage": 70,
                "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "d"}}});
        let mut obj = v1.clone();
        to_v2(&mut obj);
        assert_eq!(int(&list(&obj, "spec.metrics")[0], "resource.target.averageUtilization"), Some(70));
        to_v1(&mut obj);
        assert_eq!(obj, v1);
    }
}
