//! Status feedback: values read from a live object (OCM-090). Pure.

use apis::ocm::work::{FIELD_BOOLEAN, FIELD_INTEGER, FIELD_STRING, FeedbackRule, FeedbackValue, FieldValue};
use machinery::jsonpath::JsonPath;
use serde_json::Value;

use super::{conditions::Feedback, merge::text};

/// Reads what the rules ask for. Values read before an error are still reported.
pub fn read(rules: &[FeedbackRule], object: &Value) -> (Vec<FeedbackValue>, Feedback) {
    if rules.is_empty() {
        return (Vec::new(), Feedback::None);
    }
    let (mut values, mut errors) = (Vec::new(), Vec::new());
    for rule in rules {
        if rule.type_ == "WellKnownStatus" {
            well_known(object, &mut values, &mut errors);
            continue;
        }
        for path in &rule.json_paths {
            let (_, version) = split_version(text(object, "apiVersion"));
            if !path.version.is_empty() && path.version != version {
                errors.push(format!(
                    "version set in the path {} is not matched for the resource with version {version}",
                    path.name
                ));
                continue;
            }
            match JsonPath::relaxed(&path.path) {
                Ok(parsed) => take(&path.name, parsed.first(object), &mut values, &mut errors),
                Err(error) => errors.push(error.to_string()),
            }
        }
    }
    let outcome = if errors.is_empty() { Feedback::Synced } else { Feedback::Failed(errors.join(", ")) };
    (values, outcome)
}

fn split_version(api_version: &str) -> (&str, &str) {
    api_version.split_once('/').unwrap_or(("", api_version))
}

fn well_known(object: &Value, values: &mut Vec<FeedbackValue>, errors: &mut Vec<String>) {
    let condition = |type_: &str| {
        object
            .pointer("/status/conditions")
            .and_then(Value::as_array)
            .and_then(|all| all.iter().find(|c| text(c, "type") == type_))
            .and_then(|c| c.get("status"))
    };
    let status = |key: &str| object.get("status").and_then(|s| s.get(key));
    let (api_version, kind) = (text(object, "apiVersion"), text(object, "kind"));
    let found: Vec<(&str, Option<&Value>)> = match (api_version, kind) {
        ("apps/v1", "Deployment") => vec![
            ("ReadyReplicas", status("readyReplicas")),
            ("Replicas", status("replicas")),
            ("AvailableReplicas", status("availableReplicas")),
        ],
        ("apps/v1", "DaemonSet") => vec![
            ("NumberReady", status("numberReady")),
            ("DesiredNumberScheduled", status("desiredNumberScheduled")),
            ("NumberAvailable", status("numberAvailable")),
        ],
        ("batch/v1", "Job") => {
            vec![("JobComplete", condition("Complete")), ("JobSucceeded", status("succeeded"))]
        }
        ("v1", "Pod") => vec![("PodReady", condition("Ready")), ("PodPhase", status("phase"))],
        _ => {
            let (group, version) = split_version(api_version);
            let slash = if group.is_empty() { format!("/{version}") } else { format!("{group}/{version}") };
            errors.push(format!(
                "cannot find the wellknown statuses for resource with gvk {slash}, Kind={kind}"
            ));
            return;
        }
    };
    for (name, value) in found {
        take(name, value, values, errors);
    }
}

fn take(name: &str, value: Option<&Value>, values: &mut Vec<FeedbackValue>, errors: &mut Vec<String>) {
    let field = match value {
        None | Some(Value::Null) => return,
        Some(Value::Bool(b)) => {
            FieldValue { type_: FIELD_BOOLEAN.into(), boolean: Some(*b), ..FieldValue::default() }
        }
        Some(Value::String(s)) => {
            FieldValue { type_: FIELD_STRING.into(), string: Some(s.clone()), ..FieldValue::default() }
        }
        Some(Value::Number(n)) if n.is_i64() => {
            FieldValue { type_: FIELD_INTEGER.into(), integer: n.as_i64(), ..FieldValue::default() }
        }
        Some(other) => {
            let type_ = match other {
                Value::Array(_) => "slice",
                Value::Object(_) => "map",
                _ => "float64",
            };
            errors.push(format!("the type {type_} of the value for {name} is not found"));
            return;
        }
    };
    values.push(FeedbackValue { name: name.into(), value: field });
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn rules(value: Value) -> Vec<FeedbackRule> {
        serde_json::from_value(value).expect("rules")
    }

    #[test]
    fn ocm_090_well_known_values_of_a_deployment() {
        let object = json!({"apiVersion": "apps/v1", "kind": "Deployment", "status": {"replicas": 2, "readyReplicas": 1}});
        let (values, outcome) = read(&rules(json!([{"type": "WellKnownStatus"}])), &object);
        let read: Vec<_> = values.iter().map(|v| (v.name.as_str(), v.value.integer)).collect();
        assert_eq!(read, [("ReadyReplicas", Some(1)), ("Replicas", Some(2))], "a missing value is no value");
        assert_eq!(outcome, Feedback::Synced);
    }

    #[test]
    fn ocm_090_unknown_kinds_and_versions_are_errors_of_the_feedback_only() {
        let object = json!({"apiVersion": "v1", "kind": "ConfigMap"});
        let (_, outcome) = read(&rules(json!([{"type": "WellKnownStatus"}])), &object);
        assert_eq!(
            outcome,
            Feedback::Failed(
                "cannot find the wellknown statuses for resource with gvk /v1, Kind=ConfigMap".into()
            )
        );
        let rules = rules(
            json!([{"type": "JSONPaths", "jsonPaths": [{"name": "x", "path": ".a", "version": "v2"}]}]),
        );
        assert!(matches!(read(&rules, &object).1, Feedback::Failed(_)));
        assert_eq!(read(&[], &object), (vec![], Feedback::None));
    }
}
